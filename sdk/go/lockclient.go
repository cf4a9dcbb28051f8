package leasehold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"example.invalid/leasehold/sdk/go/internal/clock"
	"example.invalid/leasehold/sdk/go/internal/protocol"
	"example.invalid/leasehold/sdk/go/internal/wire"
)

// This file and heartbeat.go have the names of the Go SDK of LockServer, so that code written for it changes only its import. Its calls
// use the same client, and the same care, as the rest of the package.

// New returns a client of the server at baseURL, as [Connect] with [URL] does. Of hc it uses only the transport, if hc
// is not nil and has one: each call has a time limit of its own. A bad URL is reported by the first call.
func New(baseURL string, hc *http.Client) *Client {
	c, err := Connect(URL(baseURL))
	if err != nil {
		c = newClient(&transport{}, defaultOptions())
		c.defect = err
		return c
	}
	if hc != nil && hc.Transport != nil {
		c.transport.http = hc.Transport
	}
	return c
}

// Lease is a lease as plain data, which nothing renews unless [Client.StartHeartbeat] does.
type Lease struct {
	// LockName is the name of the lock.
	LockName string
	// OwnerID is the owner label.
	OwnerID string
	// LeaseID is the id of the lease. It is a secret.
	LeaseID string
	// FencingToken is the fence.
	FencingToken int64
	// LeaseExpiryMS is when the lease expires unless it is renewed, in milliseconds since 1970 by the store's clock: for
	// display only.
	LeaseExpiryMS int64

	until clock.Moment  // by the client's own clock; zero if unknown
	ttl   time.Duration // zero if unknown
}

// FencingTokenValue returns the fence: pass it along with every write to what the lock protects.
func (l Lease) FencingTokenValue() int64 { return l.FencingToken }

// String shows the lease without its id.
func (l Lease) String() string {
	return fmt.Sprintf("leasehold.Lease{name: %q, fence: %v}", l.LockName, Fence(l.FencingToken))
}

// GoString is String, for %#v.
func (l Lease) GoString() string { return l.String() }

func (l Lease) check() error {
	if l.LockName == "" || l.OwnerID == "" || l.LeaseID == "" || l.FencingToken <= 0 {
		return invalid("the lease is incomplete: it needs a lock name, an owner, an id and a fence")
	}
	return nil
}

// NotAcquiredError says that another client holds the lock, or that the store is too busy.
type NotAcquiredError struct {
	// LockName is the name of the lock; the text of the error does not show it.
	LockName string
	// Reason is HELD or BUSY_RETRY.
	Reason string
	// RecommendedRetry is the server's hint when to try again, in milliseconds.
	RecommendedRetry int64
	// CurrentOwnerID is the owner label of the holder.
	CurrentOwnerID string
	// CurrentExpiryMS is when its lease expires unless it is renewed, in milliseconds since 1970.
	CurrentExpiryMS int64
}

func (e *NotAcquiredError) Error() string {
	return fmt.Sprintf("leasehold: the lock was not acquired: %s, try again in %d ms", e.Reason, e.RecommendedRetry)
}

// Is makes contention an [ErrHeld]; a store that is too busy is none.
func (e *NotAcquiredError) Is(target error) bool {
	return target == ErrHeld && e.Reason != wire.BusyRetry
}

// UnexpectedStatusError is an answer that is neither success nor contention.
type UnexpectedStatusError struct {
	// Method and Path say which call it answers; the text of the error shows no path, because that has the lock's name.
	Method, Path string
	// Code is the HTTP status.
	Code int
	// Body is what the server said.
	Body string

	fault *Error
}

func (e *UnexpectedStatusError) Error() string {
	return fmt.Sprintf("leasehold: unexpected status %d: %s", e.Code, e.fault.Message)
}

// Unwrap returns the [*Error], whose Kind says what went wrong.
func (e *UnexpectedStatusError) Unwrap() error { return e.fault }

// unexpected turns the fault of an answer into the type that programs of LockServer know. secret is the lease id, which
// the body of an odd answer might hold.
func unexpected(fault *Error, name, verb, secret string) error {
	if fault.Status == 0 {
		return fault
	}
	body := strings.ReplaceAll(string(bytes.TrimSpace(fault.body)), secret, "…")
	path := wire.Locks + "/" + protocol.Segment(name) + "/" + verb
	return &UnexpectedStatusError{Method: http.MethodPost, Path: path, Code: fault.Status, Body: body, fault: fault}
}

// AcquireOptions say how [Client.AcquireWithRetry] tries.
type AcquireOptions struct {
	// TTL is how long the lease lasts unless it is renewed; required.
	TTL time.Duration
	// MaxRetries is the most tries after the first; 50 if it is 0.
	MaxRetries int
	// MaxTotalWait is how long to go on trying; without limit if it is 0.
	MaxTotalWait time.Duration
	// MinRetry and MaxRetry bound the pause between two tries, which the server recommends; 25 ms and 1 s if they are 0.
	MinRetry, MaxRetry time.Duration
	// JitterFrac is by which part the pause varies; 0.2 if it is 0.
	JitterFrac float64
}

func (o AcquireOptions) withDefaults() AcquireOptions {
	if o.MaxRetries <= 0 {
		o.MaxRetries = 50
	}
	if o.MinRetry <= 0 {
		o.MinRetry = 25 * time.Millisecond
	}
	if o.MaxRetry <= 0 {
		o.MaxRetry = time.Second
	}
	if o.MaxRetry < o.MinRetry {
		o.MaxRetry = o.MinRetry
	}
	if o.JitterFrac <= 0 {
		o.JitterFrac = 0.2
	}
	return o
}

// pause is how long to wait before the next try: what the server recommends, within bounds, varied.
func (o AcquireOptions) pause(recommended time.Duration, try int) time.Duration {
	if recommended <= 0 {
		recommended = o.MinRetry
		for i := 0; i < try && recommended < o.MaxRetry; i++ {
			recommended *= 2
		}
	}
	if recommended < o.MinRetry {
		recommended = o.MinRetry
	}
	recommended = protocol.Shortest(recommended, o.MaxRetry)
	return time.Duration(float64(recommended) * (1 + o.JitterFrac*(2*protocol.Chance()-1)))
}

// AcquireOnce makes one attempt. It returns a lease, or why it was not acquired, or an error. Whatever a failed attempt
// may have got is given back.
func (c *Client) AcquireOnce(
	ctx context.Context, lockName, ownerID string, ttl time.Duration,
) (Lease, *NotAcquiredError, error) {
	if c.defect != nil {
		return Lease{}, nil, c.defect
	}
	what := spec{name: lockName, mode: Exclusive, opts: []Option{Owner(ownerID), TTL(ttl)}}
	name, err := what.check(c)
	if err != nil {
		return Lease{}, nil, err
	}
	c.begin()
	defer c.end()
	work := &acquisition{client: c, name: name, mode: Exclusive, opts: what.options(c), try: true}
	g, sent, err := work.acquire(ctx)
	var fault *Error
	switch {
	case err == nil:
		return Lease{
			LockName: name, OwnerID: ownerID, LeaseID: work.id, FencingToken: int64(g.fence),
			LeaseExpiryMS: g.expiryMs, until: deadline(sent, g.waited, g.left, ttl), ttl: ttl,
		}, nil, nil
	case work.conflict != nil && (errors.Is(err, ErrHeld) || KindOf(err) == KindOverloaded):
		return Lease{}, &NotAcquiredError{
			LockName: name, Reason: work.conflict.Reason, RecommendedRetry: work.conflict.RecommendedRetryMs,
			CurrentOwnerID: work.conflict.CurrentOwnerID, CurrentExpiryMS: work.conflict.CurrentExpiryMs,
		}, nil
	case errors.As(err, &fault):
		return Lease{}, nil, unexpected(fault, name, "acquire", work.id)
	}
	return Lease{}, nil, err
}

// AcquireWithRetry tries until it has the lock, or has used up its retries or its time; then it returns what the last
// try met: a [*NotAcquiredError], or a fault. A server that is down or restarts is tried again like a lock that is
// held.
func (c *Client) AcquireWithRetry(
	ctx context.Context, lockName, ownerID string, opts AcquireOptions,
) (Lease, error) {
	if opts.TTL <= 0 {
		return Lease{}, invalid("`AcquireOptions.TTL` is required")
	}
	opts = opts.withDefaults()
	end := clock.Never
	if opts.MaxTotalWait > 0 {
		end = clock.Now().Add(opts.MaxTotalWait)
	}
	for try := 0; ; try++ {
		lease, busy, err := c.AcquireOnce(ctx, lockName, ownerID, opts.TTL)
		var fault *Error
		var recommended time.Duration
		switch {
		case busy != nil:
			err, recommended = busy, protocol.FromMs(busy.RecommendedRetry)
		case err == nil:
			return lease, nil
		case !errors.As(err, &fault) || !fault.Retryable():
			return Lease{}, err
		default:
			recommended = fault.retryAfter
		}
		pause := opts.pause(recommended, try)
		if try >= opts.MaxRetries || clock.Now().Add(pause) >= end {
			return Lease{}, err
		}
		sleep(ctx, pause)
		if ctx.Err() != nil {
			return Lease{}, aborted("the acquire was cancelled", ctx.Err())
		}
	}
}

// RenewOnce makes the lease last for extendBy from now. It returns the new expiry in milliseconds since 1970, whether
// the lease was renewed, and if not, why: then it is lost.
func (c *Client) RenewOnce(
	ctx context.Context, lease Lease, extendBy time.Duration,
) (expiryMS int64, renewed bool, reason string, err error) {
	if c.defect != nil {
		return 0, false, "", c.defect
	}
	if err := lease.check(); err != nil {
		return 0, false, "", err
	}
	if extendBy <= 0 {
		return 0, false, "", invalid("`extendBy` must be above zero")
	}
	body := wire.Renew{
		LeaseID: lease.LeaseID, OwnerID: lease.OwnerID, FencingToken: uint64(lease.FencingToken),
		ExtendByMs: protocol.CeilMs(extendBy),
	}
	path := wire.Locks + "/" + protocol.Segment(lease.LockName) + "/renew"
	answer, fault := c.transport.call(ctx, post(path, body, c.defaults.requestTimeout))
	var result wire.RenewedEach
	switch {
	case fault != nil:
	case answer.status == http.StatusOK, answer.status == http.StatusGone:
		if fault = answer.read(&result); fault == nil {
			return result.LeaseExpiryMs, result.Renewed, result.Reason, nil
		}
	default:
		fault = answer.fault()
	}
	return 0, false, "", unexpected(fault, lease.LockName, "renew", lease.LeaseID)
}

// ReleaseOnce releases the lease. It returns whether that ended the lease, and if not, why. It ends the heartbeat of
// the lease too, without an error.
func (c *Client) ReleaseOnce(ctx context.Context, lease Lease) (released bool, reason string, err error) {
	if c.defect != nil {
		return false, "", c.defect
	}
	if err := lease.check(); err != nil {
		return false, "", err
	}
	c.beats.stop(lease.LeaseID)
	body := wire.Release{
		LeaseID: lease.LeaseID, OwnerID: lease.OwnerID, FencingToken: uint64(lease.FencingToken),
	}
	path := wire.Locks + "/" + protocol.Segment(lease.LockName) + "/release"
	answer, fault := c.transport.call(ctx, post(path, body, c.defaults.requestTimeout))
	var result wire.Released
	switch {
	case fault != nil:
	case answer.status == http.StatusOK:
		if fault = answer.read(&result); fault == nil && result.Released != nil {
			return *result.Released, result.Reason, nil
		}
		fault = answer.odd("the server did not say whether it released the lease")
	default:
		fault = answer.fault()
	}
	return false, "", unexpected(fault, lease.LockName, "release", lease.LeaseID)
}
