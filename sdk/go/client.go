package leasehold

import (
	"context"
	"errors"
	"sync"
	"time"

	"example.invalid/leasehold/sdk/go/internal/clock"
	"example.invalid/leasehold/sdk/go/internal/protocol"
	"example.invalid/leasehold/sdk/go/internal/wire"
)

// Client is a connection to a lock server. It may be used from any number of goroutines. Make one for a program: its
// locks are renewed together.
type Client struct {
	transport *transport
	defaults  options
	defect    error // a client that New could not make returns it from every call
	keeper    keeper
	pulse     pulse
	beats     beats

	mu          sync.Mutex
	closed      bool
	acquires    map[*context.CancelFunc]struct{}
	outstanding int             // acquires and releases under way
	settled     []chan struct{} // closed when there are none
}

// Connect returns a client of a lock server. It sends nothing yet. Without options it reads LEASEHOLD_URL,
// LEASEHOLD_TOKEN and LEASEHOLD_TOKEN_FILE. It uses no HTTP proxy of the environment.
//
// The error is of [KindInvalidArgument]: a bad URL or option, or a file that cannot be read.
func Connect(opts ...ConnectOption) (*Client, error) {
	settings := config{defaults: defaultOptions()}
	for _, option := range opts {
		option.connect(&settings)
	}
	base, err := settings.base()
	if err != nil {
		return nil, err
	}
	token, err := settings.secret()
	if err != nil {
		return nil, err
	}
	certificates, err := settings.tls()
	if err != nil {
		return nil, err
	}
	if err := settings.defaults.check(); err != nil {
		return nil, err
	}
	return newClient(newTransport(base, token, certificates), settings.defaults), nil
}

func newClient(transport *transport, defaults options) *Client {
	c := &Client{transport: transport, defaults: defaults, acquires: map[*context.CancelFunc]struct{}{}}
	c.keeper.client, c.pulse.transport = c, transport
	return c
}

// String shows nothing: the address and the token are the program's own business.
func (c *Client) String() string { return "leasehold.Client" }

// GoString is String, for %#v.
func (c *Client) GoString() string { return c.String() }

// closePatience is how long Close waits for what is under way.
const closePatience = 10 * time.Second

// Close ends the acquires under way, waits until what they may have got is given back and all outstanding releases are
// sent, and closes the connections. From then on acquires fail with [KindAborted]. Locks that are held stay renewed
// until they are unlocked.
//
// The error says that the server did not answer in time; the leases then end with their ttl.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	for cancel := range c.acquires {
		(*cancel)()
	}
	settled := make(chan struct{})
	if c.outstanding == 0 {
		close(settled)
	} else {
		c.settled = append(c.settled, settled)
	}
	c.mu.Unlock()
	defer c.keeper.ring()
	defer c.transport.forgetIdle()
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case <-settled:
		return nil
	case <-timer.C:
		return &Error{Kind: KindNetworkTimeout, Message: "the client was closed, but the server did not answer all releases"}
	}
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

var errClosed = errors.New("the client is closed")

// begin counts something that Close waits for, until end.
func (c *Client) begin() {
	c.mu.Lock()
	c.outstanding++
	c.mu.Unlock()
}

func (c *Client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outstanding--
	if c.outstanding == 0 {
		for _, settled := range c.settled {
			close(settled)
		}
		c.settled = nil
	}
}

// untilClosed returns a context that also ends when the client is closed.
func (c *Client) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acquires[&cancel] = struct{}{}
	if c.closed {
		cancel()
	}
	return ctx, func() {
		c.mu.Lock()
		delete(c.acquires, &cancel)
		c.mu.Unlock()
		cancel()
	}
}

// cancelled is the error of an acquire whose context has ended.
func (c *Client) cancelled(ctx context.Context) *Error {
	if c.isClosed() {
		return aborted("the acquire was cancelled", errClosed)
	}
	return aborted("the acquire was cancelled", ctx.Err())
}

// acquire takes a lock.
func (c *Client) acquire(ctx context.Context, what spec, try bool) (*Lock, error) {
	if c.defect != nil {
		return nil, c.defect
	}
	name, err := what.check(c)
	if err != nil {
		return nil, err
	}
	c.begin()
	defer c.end()
	work := &acquisition{
		client: c, name: name, mode: what.mode, limit: what.limit, opts: what.options(c), try: try,
	}
	g, sent, err := work.acquire(ctx)
	if err != nil {
		return nil, err
	}
	return newLock(c, work, g, sent, ctx), nil
}

// release sends a release, and again while the server does not answer. It returns whether the release ended the lease,
// and else why there was nothing to end. wasHeld says that the lease was held until now: if an earlier try got no
// answer, that try has ended it.
func (c *Client) release(
	ctx context.Context, name string, body wire.Release, o *options, wasHeld bool,
) (released bool, gone Reason, fault *Error) {
	end := clock.Now().Add(o.releaseTimeout)
	unanswered := false
	path := wire.Locks + "/" + protocol.Segment(name) + "/release"
	for tries := 0; ; tries++ {
		limit := protocol.Shortest(o.requestTimeout, end.Since(clock.Now()))
		answer, fault := c.transport.call(ctx, post(path, body, limit))
		if fault == nil {
			unanswered = unanswered || answer.again
			released, gone, fault = readReleased(answer)
			if fault == nil {
				return released || wasHeld && unanswered, gone, nil
			}
		}
		pause := protocol.Pause(tries)
		if !fault.Retryable() || clock.Now().Add(pause) >= end {
			return false, "", fault
		}
		// An overloaded store has answered, and did nothing.
		if fault.sent && (fault.Kind == KindNetworkTimeout || fault.Kind == KindUnavailable) {
			unanswered = true
		}
		sleep(ctx, pause)
	}
}

func readReleased(answer answer) (released bool, gone Reason, fault *Error) {
	var body wire.Released
	if answer.status != 200 {
		return false, "", answer.fault()
	}
	if fault := answer.read(&body); fault != nil {
		return false, "", fault
	}
	if body.Released == nil {
		return false, "", answer.odd("the server did not say whether it released the lease")
	}
	gone = Reason(body.Gone)
	if gone == "" {
		gone = NotFound
	}
	return *body.Released, gone, nil
}

// releaseInBackground sends a release that no caller waits for.
func (c *Client) releaseInBackground(name string, body wire.Release, o *options, wasHeld bool) {
	c.begin()
	go func() {
		defer c.end()
		if _, _, fault := c.release(context.Background(), name, body, o, wasHeld); fault != nil {
			reportRelease(o, fault)
		}
	}()
}

func reportRelease(o *options, fault *Error) {
	if o.onReleaseError != nil {
		o.onReleaseError(fault)
	}
}

// sleep waits, and ends early with the context.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
