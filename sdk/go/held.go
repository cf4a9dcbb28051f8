package leasehold

import (
	"context"
	"sync"
	"time"

	"example.invalid/leasehold/sdk/go/internal/clock"
	"example.invalid/leasehold/sdk/go/internal/protocol"
)

// State is what a client knows about a lock it has taken, without asking the server.
type State string

// The states of a lock.
const (
	// Held: the lease is held, and the last renewal succeeded.
	Held State = "held"
	// AtRisk: the lease is held, but the last renewal failed or hangs. A confirmed renewal makes it Held again.
	AtRisk State = "at_risk"
	// Lost: the lease is gone, for good.
	Lost State = "lost"
	// Released: its holder has released it.
	Released State = "released"
)

// deadline is the moment until which the client may rely on a grant that answers a request sent at sent.
func deadline(sent clock.Moment, waited, left, ttl time.Duration) clock.Moment {
	return sent.Add(protocol.Span(waited, left, ttl))
}

// held is what the client believes about one lease: its state, its deadline, and the one-way step to Lost. It does no
// I/O. The lock, its context and the keeper share it.
type held struct {
	name, id  string
	opts      *options
	fence     Fence
	since     clock.Moment // when the lease was granted
	ttl       time.Duration
	every     time.Duration // how often it is renewed
	onFault   func(error)   // hears of each renewal that failed; may be nil
	holdUntil clock.Moment  // renewals do not extend the lease past this clock.Moment
	lost      chan struct{}
	abandon   func(error) // cancels the work

	mu       sync.Mutex
	state    State
	loss     *LostError
	deadline clock.Moment
	// capped says that holdUntil cut the last confirmed renewal short, so there is nothing more to ask for.
	capped   bool
	inFlight clock.Moment // when the renewal in flight was sent; zero if there is none
	next     clock.Moment // when to renew, or to give up on the renewal in flight

	// Of the keeper, under its lock: when the lease is due, and where it is in the queue; -1 if it is not.
	due   clock.Moment
	index int
}

// grant is what the server answered to an acquire.
type grant struct {
	fence        Fence
	waited, left time.Duration
	expiryMs     int64
	owner        string
}

func newHeld(name, id string, o *options, sent clock.Moment, g grant, parent context.Context) (*held, context.Context) {
	ctx, cancel := withCause(parent)
	since := sent.Add(g.waited)
	h := &held{
		name: name, id: id, opts: o, fence: g.fence, since: since, ttl: o.grantTTL(),
		holdUntil: clock.Never, lost: make(chan struct{}), abandon: cancel, state: Held, index: -1,
	}
	h.deadline = deadline(sent, g.waited, g.left, h.ttl)
	h.every = h.ttl / 3
	h.next = since.Add(protocol.FirstRenewal(h.ttl, g.left))
	if o.hasMaxHold {
		h.holdUntil = since.Add(o.maxHold)
		h.deadline = clock.Earliest(h.deadline, h.holdUntil)
		if o.maxHold <= o.ttl {
			h.capped, h.next = true, clock.Never
		}
	}
	return h, ctx
}

// update is the only way to change the belief. It looks at the deadline first: one that has passed is a loss, even if
// nothing has noticed it yet. It reports the loss after unlocking.
func (h *held) update(change func(at clock.Moment)) {
	h.mu.Lock()
	was, at := h.state, clock.Now()
	if at >= h.deadline {
		if h.capped || at >= h.holdUntil {
			h.lose(MaxHeld)
		} else {
			h.lose(DeadlinePassed)
		}
	}
	change(at)
	state, loss := h.state, h.loss
	h.mu.Unlock()
	if was != state && state == Lost {
		close(h.lost)
		h.abandon(loss)
	}
}

func (h *held) alive() bool { return h.state == Held || h.state == AtRisk }

func (h *held) lose(why Reason) {
	if h.alive() {
		h.state, h.loss = Lost, &LostError{Reason: why}
	}
}

func (h *held) risk() {
	if h.alive() {
		h.state = AtRisk
	}
}

// look returns the state at this moment, why the lease was lost, and until when it can be relied on.
func (h *held) look() (state State, loss *LostError, until clock.Moment, at clock.Moment) {
	h.update(func(read clock.Moment) { state, loss, until, at = h.state, h.loss, h.deadline, read })
	return state, loss, until, at
}

// release ends holding. It returns whether the lease was held until now.
func (h *held) release() (wasHeld bool) {
	h.update(func(clock.Moment) {
		if wasHeld = h.alive(); wasHeld {
			h.state = Released
		}
	})
	return wasHeld
}

// renewal says how a renewal was sent.
type renewal struct {
	of       *held
	at       clock.Moment
	extendBy time.Duration
	capped   bool
}

// begin returns the renewal to send if one is due within slack. One that is in flight has its full time first.
func (h *held) begin(slack time.Duration) (one renewal, due bool) {
	h.update(func(at clock.Moment) {
		if h.inFlight != 0 {
			slack = 0
		}
		if !h.alive() || at.Add(slack) < h.next {
			return
		}
		if h.inFlight != 0 {
			h.risk()
		}
		left := h.holdUntil.Since(at)
		one = renewal{of: h, at: at, extendBy: protocol.Shortest(h.ttl, left), capped: left <= h.ttl}
		h.inFlight, h.next, due = at, at.Add(protocol.RenewalTimeout(h.ttl)), true
	})
	return one, due
}

// confirm takes in a renewal that the server has confirmed. After the deadline it is too late.
func (h *held) confirm(one renewal, left time.Duration) {
	h.update(func(clock.Moment) {
		if !h.alive() {
			return
		}
		// Answers may arrive in another order than the server gave them; each of their deadlines holds.
		confirmed := clock.Earliest(deadline(one.at, 0, left, h.ttl), h.holdUntil)
		if confirmed > h.deadline {
			h.deadline = confirmed
		}
		h.capped, h.next = one.capped, one.at.Add(h.every)
		if h.capped {
			h.next = clock.Never
		}
		h.inFlight, h.state = 0, Held
	})
}

// refuse takes in that the server no longer has the lease.
func (h *held) refuse(why Reason) { h.update(func(clock.Moment) { h.lose(why) }) }

// fail takes in that a renewal failed.
func (h *held) fail(one renewal, why *Error) {
	if h.onFault != nil {
		h.onFault(why)
	}
	h.update(func(at clock.Moment) {
		// Unless a later renewal is in flight already.
		if h.inFlight == 0 || h.inFlight == one.at {
			h.inFlight, h.next = 0, at.Add(protocol.RenewalRetry(h.ttl))
		}
		h.risk()
	})
}

// nextDue is when the keeper has to look again.
func (h *held) nextDue() clock.Moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.alive() {
		return clock.Never
	}
	return clock.Earliest(h.next, h.deadline)
}
