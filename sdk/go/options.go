package leasehold

import (
	"fmt"
	"os"
	"time"

	"example.invalid/leasehold/sdk/go/internal/protocol"
)

const (
	defaultTTL = 30 * time.Second
	// minTTL is the shortest ttl that renewals can keep up with through an ordinary pause of the process.
	minTTL = 50 * time.Millisecond
	// maxWaitPerCall is the longest that the server waits in one call.
	maxWaitPerCall = 50 * time.Second
	defaultPerCall = 10 * time.Second
	defaultTimeout = 5 * time.Second
)

// ConnectOption is an option of [Connect]. Every [Option] is one too: it then holds for all locks of the client.
type ConnectOption interface{ connect(*config) }

// Option is an option of one lock, or, given to [Connect], of all locks of the client. A bad value is reported by the
// first call that uses it, before anything is sent.
type Option func(*options)

func (o Option) connect(c *config) { o(&c.defaults) }

type options struct {
	ttl            time.Duration
	owner          string
	metadata       string
	maxWait        time.Duration // zero: no limit
	hasMaxWait     bool
	maxHold        time.Duration // zero: no limit
	hasMaxHold     bool
	waitPerCall    time.Duration
	requestTimeout time.Duration
	releaseTimeout time.Duration
	onReleaseError func(error)
}

func defaultOptions() options {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	if len(host) > 64 {
		host = host[:64]
	}
	return options{
		ttl:            defaultTTL,
		owner:          fmt.Sprintf("%s:%d", host, os.Getpid()),
		waitPerCall:    defaultPerCall,
		requestTimeout: defaultTimeout,
		releaseTimeout: defaultTimeout,
	}
}

// TTL sets how long a lease lasts unless it is renewed, which the client does at a third of it. It is 30 s unless set,
// and at least 50 ms. A dead holder blocks the name for this long.
func TTL(ttl time.Duration) Option { return func(o *options) { o.ttl = ttl } }

// Owner sets the label that tells people which client holds the lock: at most 256 bytes, HOST:PID unless set.
func Owner(owner string) Option { return func(o *options) { o.owner = owner } }

// Metadata sets a text that is shown with the lease, at most 4096 bytes.
func Metadata(text string) Option { return func(o *options) { o.metadata = text } }

// Wait sets how long an acquire waits at most; then its error is of [KindTimeout]. Without it, an acquire waits until
// its context ends. A try never waits.
func Wait(limit time.Duration) Option {
	return func(o *options) { o.maxWait, o.hasMaxWait = limit, true }
}

// MaxHold sets how long a lock may be held in all. Renewing stops so that the lock is lost by then, with the reason
// [MaxHeld].
func MaxHold(limit time.Duration) Option {
	return func(o *options) { o.maxHold, o.hasMaxHold = limit, true }
}

// WaitPerCall sets how long the server may wait within one call: 10 s unless set, at most 50 s. Make it shorter than
// the time after which a proxy gives up on a silent connection. A waiter keeps its place from call to call.
func WaitPerCall(limit time.Duration) Option { return func(o *options) { o.waitPerCall = limit } }

// RequestTimeout sets how long the server may take to answer one call, beside the wait that the call asks for: 5 s
// unless set.
func RequestTimeout(limit time.Duration) Option { return func(o *options) { o.requestTimeout = limit } }

// ReleaseTimeout sets for how long the client tries to release: 5 s unless set.
func ReleaseTimeout(limit time.Duration) Option { return func(o *options) { o.releaseTimeout = limit } }

// OnReleaseError sets a function for a failed release that no caller waits for, such as that of a cancelled acquire.
// The lease then ends with its ttl. It may be called from several goroutines at once.
func OnReleaseError(report func(error)) Option { return func(o *options) { o.onReleaseError = report } }

func (o *options) check() error {
	if o.ttl < minTTL {
		return invalid("a `TTL` of %v is too short: it must be at least %v", o.ttl, minTTL)
	}
	if o.owner == "" || len(o.owner) > protocol.MaxOwner {
		return invalid("`Owner` must have 1 to %d bytes, not %d", protocol.MaxOwner, len(o.owner))
	}
	if len(o.metadata) > protocol.MaxMetadata {
		return invalid("`Metadata` must have at most %d bytes, not %d", protocol.MaxMetadata, len(o.metadata))
	}
	if o.hasMaxWait && o.maxWait < 0 {
		return invalid("`Wait` must not be negative")
	}
	if o.hasMaxHold && o.maxHold < minTTL {
		return invalid("a `MaxHold` of %v is too short: it must be at least %v", o.maxHold, minTTL)
	}
	if o.waitPerCall <= 0 || o.waitPerCall > maxWaitPerCall {
		return invalid("`WaitPerCall` must be above zero and at most %v", maxWaitPerCall)
	}
	if o.requestTimeout <= 0 || o.releaseTimeout <= 0 {
		return invalid("`RequestTimeout` and `ReleaseTimeout` must be above zero")
	}
	return nil
}

// grantTTL is the ttl to ask for: no longer than the lock may be held.
func (o *options) grantTTL() time.Duration {
	if o.hasMaxHold {
		return protocol.Shortest(o.ttl, o.maxHold)
	}
	return o.ttl
}
