package leasehold

import (
	"errors"
	"fmt"
	"time"

	"example.invalid/leasehold/sdk/go/internal/protocol"
)

// Kind says what went wrong; each kind calls for another reaction.
type Kind string

// The kinds of errors. The words are the same in every language.
const (
	// KindInvalidArgument: the call itself is wrong, for example a name or an option. Nothing was done.
	KindInvalidArgument Kind = "invalid_argument"
	// KindUnavailable: the server or its store cannot be reached, or does not work.
	KindUnavailable Kind = "unavailable"
	// KindOverloaded: the store is too busy. It never means that another client holds the lock.
	KindOverloaded Kind = "overloaded"
	// KindNetworkTimeout: no answer in time. The call may or may not have taken effect.
	KindNetworkTimeout Kind = "network_timeout"
	// KindAuthFailed: the server wants another token or certificate, or does not allow the call.
	KindAuthFailed Kind = "auth_failed"
	// KindRateLimited: too many requests for this token.
	KindRateLimited Kind = "rate_limited"
	// KindTimeout: an acquire with a time limit did not get its turn in time.
	KindTimeout Kind = "timeout"
	// KindAborted: the call was cancelled, or the client is closed.
	KindAborted Kind = "aborted"
	// KindLost: the lease is gone.
	KindLost Kind = "lost"
	// KindMismatch: the name is in use as another kind of lock, or with another limit.
	KindMismatch Kind = "mismatch"
	// KindDeadlock: the caller would wait for itself.
	KindDeadlock Kind = "deadlock"
	// KindUnsupported: this server, or its store, cannot do that.
	KindUnsupported Kind = "unsupported"
	// KindInternal: a bug, or unexpected data.
	KindInternal Kind = "internal"
)

// ErrHeld is what a try returns when another client holds the lock. It is an answer, not a fault.
var ErrHeld = errors.New("leasehold: another client holds the lock")

// ErrGone is what [Lock.Unlock] returns when there was nothing to release: the lease had ended, or was released before.
// A [*LostError] is an ErrGone too.
var ErrGone = errors.New("leasehold: there was nothing to release")

// Error is a fault, or a refusal by the server. Its text contains no lock name, no lease id and no token.
type Error struct {
	// Kind says what went wrong.
	Kind Kind
	// Message says it for people, and what to do about it.
	Message string
	// Status is the HTTP status of the answer; zero if there was none.
	Status int

	cause      error
	retryAfter time.Duration
	sent       bool   // the server may have received the request
	body       []byte // of the answer
}

func (e *Error) Error() string {
	text := "leasehold: " + e.Message
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Unwrap returns the cause, such as context.Canceled.
func (e *Error) Unwrap() error { return e.cause }

// Retryable says whether the same call, made again a little later, can succeed without anything being repaired.
func (e *Error) Retryable() bool {
	switch e.Kind {
	case KindUnavailable, KindOverloaded, KindNetworkTimeout, KindRateLimited:
		return true
	}
	return false
}

// Timeout says whether it is a lack of time, as in net.Error.
func (e *Error) Timeout() bool { return e.Kind == KindTimeout || e.Kind == KindNetworkTimeout }

// Reason says why a lease was lost.
type Reason string

// The reasons of a loss.
const (
	// DeadlinePassed: no renewal was confirmed in time.
	DeadlinePassed Reason = "deadline_passed"
	// Expired: the server says that the lease has expired.
	Expired Reason = "expired"
	// NotFound: the server no longer has the lease.
	NotFound Reason = "not_found"
	// Superseded: the server says that a newer call took the lease over.
	Superseded Reason = "superseded"
	// Revoked: an administrator revoked the lease.
	Revoked Reason = "revoked"
	// MaxHeld: the lock was held for as long as [MaxHold] allows.
	MaxHeld Reason = "max_hold"
)

var reasonTexts = map[Reason]string{
	DeadlinePassed: "no renewal was confirmed in time",
	Expired:        "the server says it has expired",
	NotFound:       "the server no longer has it",
	Superseded:     "the server says it was taken over",
	Revoked:        "it was revoked",
	MaxHeld:        "it was held for as long as MaxHold allows",
}

// LostError says that a lease is gone and will not come back.
type LostError struct {
	// Reason says why.
	Reason Reason
}

func (e *LostError) Error() string {
	text, known := reasonTexts[e.Reason]
	if !known {
		text = string(e.Reason)
	}
	return "leasehold: the lease was lost: " + text
}

// Is makes a loss an [ErrGone].
func (e *LostError) Is(target error) bool { return target == ErrGone }

// KindOf returns the kind of an error of this package, of a wrapped one too; the empty Kind for others, and for
// [ErrHeld] and [ErrGone], which are answers.
func KindOf(err error) Kind {
	var lost *LostError
	var fault *Error
	switch {
	case errors.As(err, &fault):
		return fault.Kind
	case errors.As(err, &lost):
		return KindLost
	}
	return ""
}

func invalid(format string, args ...any) *Error {
	return &Error{Kind: KindInvalidArgument, Message: fmt.Sprintf(format, args...)}
}

func aborted(message string, cause error) *Error {
	return &Error{Kind: KindAborted, Message: message, cause: cause}
}

// workAndLoss is the error of work that failed by itself while its lock was lost: the work's error, with the loss
// attached.
type workAndLoss struct {
	work error
	loss *LostError
}

func (e *workAndLoss) Error() string { return e.work.Error() + " (also: " + e.loss.Error() + ")" }

func (e *workAndLoss) Unwrap() error { return e.work }

func (e *workAndLoss) Is(target error) bool { return e.loss.Is(target) }

func (e *workAndLoss) As(target any) bool {
	if lost, ok := target.(**LostError); ok {
		*lost = e.loss
		return true
	}
	return false
}

// normalName checks a name and returns it in NFC.
func normalName(name string) (string, error) {
	name, err := protocol.Name(name)
	if err != nil {
		return "", invalid("%v", err)
	}
	return name, nil
}

// newLeaseID makes the id of one acquisition.
func newLeaseID() (string, error) {
	id, err := protocol.LeaseID()
	if err != nil {
		return "", &Error{Kind: KindInternal, Message: "the system gives no random numbers", cause: err}
	}
	return id, nil
}
