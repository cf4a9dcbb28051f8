package leasehold

import (
	"context"
	"sync"
	"time"

	"example.invalid/leasehold/sdk/go/internal/clock"
	"example.invalid/leasehold/sdk/go/internal/protocol"
)

// HeartbeatOptions say how [Client.StartHeartbeat] renews.
type HeartbeatOptions struct {
	// Interval is the time between renewals, at most half of ExtendBy; a third of it if it is 0.
	Interval time.Duration
	// ExtendBy is how long each renewal makes the lease last; the ttl of the lease if it is 0.
	ExtendBy time.Duration
}

// beats are the heartbeats of a client, by lease id.
type beats struct {
	mu  sync.Mutex
	all map[string]chan struct{}
}

func (b *beats) start(id string) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[string]chan struct{}{}
	}
	if b.all[id] == nil {
		b.all[id] = make(chan struct{})
	}
	return b.all[id]
}

// over forgets a heartbeat that has ended by itself.
func (b *beats) over(id string, stop chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all[id] == stop {
		delete(b.all, id)
	}
}

func (b *beats) stop(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if stop, there := b.all[id]; there {
		delete(b.all, id)
		close(stop)
	}
}

// StartHeartbeat renews the lease in the background until ctx ends or [Client.ReleaseOnce] releases it; then it closes
// the channel. The channel reports each renewal that failed, while the heartbeat goes on. When the lease is lost, the
// last thing on the channel is a [*LostError], before the server can grant the lock to another client, and the channel
// is closed. A program that reads nothing from the channel delays no renewal.
func (c *Client) StartHeartbeat(ctx context.Context, lease Lease, opts HeartbeatOptions) <-chan error {
	const kept = 16 // reports that a slow reader may be behind; the last place is for the loss
	errs := make(chan error, kept)
	if opts.ExtendBy <= 0 {
		opts.ExtendBy = lease.ttl
	}
	if opts.Interval <= 0 {
		opts.Interval = opts.ExtendBy / 3
	}
	err := c.defect
	if err == nil {
		err = lease.check()
	}
	if err == nil && (opts.ExtendBy < minTTL || opts.Interval > opts.ExtendBy/2) {
		err = invalid("`ExtendBy` must be at least %v, and `Interval` at most half of it", minTTL)
	}
	if err != nil {
		errs <- err
		close(errs)
		return errs
	}

	var mu sync.Mutex
	over := false
	report := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if !over && len(errs) < kept-1 {
			errs <- err
		}
	}
	h := &held{
		name: lease.LockName, id: lease.LeaseID, opts: &c.defaults, fence: Fence(lease.FencingToken),
		ttl: opts.ExtendBy, every: opts.Interval, onFault: report, holdUntil: clock.Never,
		lost: make(chan struct{}), abandon: func(error) {}, state: Held, deadline: clock.Never, index: -1,
	}
	at := clock.Now()
	h.next = at.Add(opts.Interval)
	if lease.until != 0 {
		h.deadline = lease.until
		h.next = at.Add(protocol.Shortest(opts.Interval, lease.until.Since(at)/2))
	}
	stop := c.beats.start(lease.LeaseID)
	c.keeper.schedule(h)
	go func() {
		select {
		case <-ctx.Done():
		case <-stop:
		case <-h.lost:
		}
		c.beats.over(lease.LeaseID, stop)
		// A lease whose deadline has passed is lost, whatever else has ended the heartbeat.
		h.release()
		c.keeper.forget(h)
		_, loss, _, _ := h.look()
		mu.Lock()
		defer mu.Unlock()
		over = true
		if loss != nil {
			errs <- loss
		}
		close(errs)
	}()
	return errs
}
