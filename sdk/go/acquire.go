package leasehold

import (
	"context"
	"net/http"
	"time"

	"example.invalid/leasehold/sdk/go/internal/clock"
	"example.invalid/leasehold/sdk/go/internal/protocol"
	"example.invalid/leasehold/sdk/go/internal/wire"
)

// Mode says how a lock shares its name.
type Mode string

// The modes of a lock.
const (
	// Exclusive is one holder alone.
	Exclusive Mode = "exclusive"
	// Shared is any number of readers together.
	Shared Mode = "shared"
	// Permit is one permit of a semaphore.
	Permit Mode = "permit"
)

// patience is how long a waiting acquire bears a server that gives nothing but faults: as long as its place is kept.
const patience = 10 * time.Second

// waitGrace is how long after the wait the answer to a call may come.
const waitGrace = 5 * time.Second

// earlyAnswer is less than any wait that the client asks for, except at the limit.
const earlyAnswer = 10 * time.Millisecond

// acquisition is one acquire, from before the first byte is sent until it has a lease, or has given back what it may
// have got.
type acquisition struct {
	client *Client
	name   string
	mode   Mode
	limit  uint32
	opts   options
	try    bool // one attempt only

	id      string
	started clock.Moment
	end     clock.Moment // no attempt begins after this
	// polls says that the claim is in the queue, and the next call waits there.
	polls bool
	// pending says that the store may have a lease or a place of this id; unanswered, that a call with it got no answer.
	pending, unanswered bool
	// faults counts faults in a row, since failingSince.
	faults       int
	failingSince clock.Moment
	// early counts answers in a row that came at once although the call asked to wait.
	early int
	// conflict is the latest answer 409.
	conflict *wire.Busy
	// measuredAgain says that a grant that came too late has been asked for once more.
	measuredAgain bool
}

// acquire returns a lease with the moment before the request that got it was sent. The error is ErrHeld, or an *Error.
func (a *acquisition) acquire(ctx context.Context) (g grant, sent clock.Moment, err error) {
	if a.id, err = newLeaseID(); err != nil {
		return g, 0, err
	}
	if ctx.Err() != nil {
		return g, 0, aborted("the acquire was cancelled before anything was sent", ctx.Err())
	}
	ctx, cancel := a.client.untilClosed(ctx)
	defer cancel()
	a.started, a.end = clock.Now(), clock.Never
	if a.opts.hasMaxWait && !a.try {
		a.end = a.started.Add(a.opts.maxWait)
	}
	defer func() {
		if err != nil {
			a.giveBack()
		}
	}()
	for {
		sent = clock.Now()
		g, status, fault := a.attempt(ctx, sent)
		switch {
		case ctx.Err() != nil && (fault != nil || status != granted):
			return g, 0, a.client.cancelled(ctx)
		case fault != nil:
			if fault = a.failed(ctx, sent, fault); fault != nil {
				return g, 0, fault
			}
		case status == granted:
			ok, late := a.judge(sent, g)
			if ok {
				a.pending = false
				return g, sent, nil
			}
			if late != nil {
				if late = a.failed(ctx, clock.Now(), late); late != nil {
					return g, 0, late
				}
			}
		case status == spent:
			// The id will never be granted; what it may have had is over.
			a.pending, a.unanswered = false, false
			if a.id, err = newLeaseID(); err != nil {
				return g, 0, err
			}
			fault := &Error{Kind: KindOverloaded, Status: http.StatusGone,
				Message: "the server no longer accepts the lease id of this acquire; try again"}
			if fault = a.failed(ctx, sent, fault); fault != nil {
				return g, 0, fault
			}
		default:
			if err = a.busy(ctx, sent); err != nil {
				return g, 0, err
			}
		}
	}
}

// verdict is what the server answered.
type verdict int

const (
	busy verdict = iota
	granted
	spent
)

// attempt makes one call.
func (a *acquisition) attempt(ctx context.Context, sent clock.Moment) (g grant, is verdict, fault *Error) {
	var wait time.Duration
	if a.polls {
		wait = protocol.WaitOfCall(a.end.Since(sent), a.opts.waitPerCall)
		if until, ok := ctx.Deadline(); ok {
			// Without a wait the call would be a plain attempt.
			wait = protocol.Shortest(wait, time.Until(until)+time.Millisecond)
		}
	}
	limit := a.opts.requestTimeout
	if wait > 0 {
		limit = wait + waitGrace
	}
	what := request{
		method: http.MethodPost,
		path:   wire.Locks + "/" + protocol.Segment(a.name) + "/acquire",
		limit:  limit,
		body: func(again bool) any {
			body := wire.Acquire{
				OwnerID: a.opts.owner, TTLMs: protocol.CeilMs(a.opts.grantTTL()), LeaseID: a.id, WaitMs: protocol.CeilMs(wait),
				Metadata: a.opts.metadata, Limit: a.limit, Repeat: a.unanswered || again,
			}
			if a.mode != Exclusive {
				body.Mode = string(a.mode)
			}
			if !a.try && wait <= 0 {
				body.Queue = protocol.CeilMs(patience)
			}
			return body
		},
	}
	call := ctx
	if wait > 0 {
		var stop func()
		call, stop = a.client.pulse.listen(ctx)
		defer stop()
	}
	answer, fault := a.client.transport.call(call, what)
	if fault != nil && call.Err() != nil && ctx.Err() == nil {
		fault = &Error{Kind: KindNetworkTimeout, Message: "the server stopped answering during the wait", sent: true}
	}
	if fault == nil {
		a.note(answer.again)
		g, is, fault = a.read(answer)
	}
	if fault != nil {
		// A refusal is final; after a fault, the call may still be granted, or may have been.
		a.note(fault.sent && (fault.Retryable() || fault.Kind == KindInternal || fault.Kind == KindAborted))
	}
	return g, is, fault
}

// note records whether a call has no answer that says what it did.
func (a *acquisition) note(unanswered bool) {
	if unanswered {
		a.unanswered, a.pending = true, true
	}
}

// read turns an answer into what it means.
func (a *acquisition) read(answer answer) (g grant, is verdict, fault *Error) {
	switch answer.status {
	case http.StatusOK:
		var body wire.Acquired
		if fault := answer.read(&body); fault != nil {
			return g, busy, fault
		}
		if !body.Acquired || body.LeaseID != a.id || body.FencingToken == nil || body.ExpiresInMs == nil {
			return g, busy, answer.odd("the server granted something else than this client asked for")
		}
		return grant{
			fence: Fence(*body.FencingToken), waited: protocol.FromMs(body.WaitedMs), left: protocol.FromMs(*body.ExpiresInMs),
			expiryMs: body.LeaseExpiryMs, owner: body.OwnerID,
		}, granted, nil
	case http.StatusConflict:
		var body wire.Busy
		if answer.read(&body) == nil {
			a.conflict = &body
			if body.Reason == wire.Held || body.Reason == wire.WaitTimeout {
				return g, busy, nil
			}
		}
	case http.StatusGone:
		return g, spent, nil
	}
	return g, busy, answer.fault()
}

// busy takes in that another client holds the lock. It returns the error if the acquire is over.
func (a *acquisition) busy(ctx context.Context, sent clock.Moment) error {
	a.faults, a.failingSince = 0, 0
	if a.try {
		return ErrHeld
	}
	a.pending = true // the place in the queue
	polled := a.polls
	a.polls = true
	at := clock.Now()
	if at >= a.end {
		return a.timedOut()
	}
	// An answer at once, again and again, must not become a storm of calls.
	if polled && at.Since(sent) < earlyAnswer {
		a.early++
	} else {
		a.early = 0
	}
	if a.early > 1 {
		sleep(ctx, protocol.Shortest(protocol.Pause(a.early-2), a.end.Since(at)))
	}
	if ctx.Err() != nil {
		return a.client.cancelled(ctx)
	}
	if clock.Now() >= a.end {
		return a.timedOut()
	}
	return nil
}

// timedOut is the error at the limit. It is never reached with a fault as the last thing known.
func (a *acquisition) timedOut() error {
	waited := clock.Now().Since(a.started).Round(time.Millisecond)
	return &Error{Kind: KindTimeout, Message: "not acquired within " + waited.String()}
}

// failed takes in a fault of a call sent at this moment, and pauses before the next. It returns the error if the
// acquire is over.
func (a *acquisition) failed(ctx context.Context, sent clock.Moment, fault *Error) *Error {
	if !fault.Retryable() {
		return fault
	}
	at := clock.Now()
	if a.failingSince == 0 {
		a.failingSince = sent
		if a.polls {
			a.failingSince = at // the wait itself was no fault
		}
	}
	if a.try || at >= a.end || at.Since(a.failingSince) >= patience {
		return fault
	}
	// The next call joins the queue again, and does not wait: so its lost answer is noticed soon.
	a.polls = false
	pause := protocol.Pause(a.faults)
	if fault.retryAfter > pause && fault.Kind == KindRateLimited {
		pause = fault.retryAfter
	}
	a.faults++
	sleep(ctx, protocol.Shortest(pause, a.end.Since(at)))
	if ctx.Err() != nil {
		return a.client.cancelled(ctx)
	}
	if clock.Now() >= a.end {
		return fault
	}
	return nil
}

// judge looks at the clock: a grant whose time was over when it came is asked for once more, and then given back. The
// error is a fault, after which the acquire goes on with a new id.
func (a *acquisition) judge(sent clock.Moment, g grant) (ok bool, late *Error) {
	end := deadline(sent, g.waited, g.left, a.opts.grantTTL())
	if clock.Now() < end {
		return true, nil
	}
	if !a.try && !a.measuredAgain {
		a.measuredAgain = true
		return false, nil
	}
	late = &Error{Kind: KindNetworkTimeout,
		Message: "the server granted the lease, but its time was over when the answer came"}
	a.pending = true
	a.giveBack()
	id, err := newLeaseID()
	if err != nil {
		return false, &Error{Kind: KindInternal, Message: "the system gives no random numbers", cause: err}
	}
	a.id, a.measuredAgain, a.unanswered = id, false, false
	return false, late
}

// giveBack releases in the background what this id may have got. The store then refuses the id for ever after.
func (a *acquisition) giveBack() {
	if !a.pending {
		return
	}
	a.pending = false
	body := wire.Release{LeaseID: a.id, Unanswered: protocol.CeilMs(a.opts.grantTTL())}
	a.client.releaseInBackground(a.name, body, &a.opts, false)
}
