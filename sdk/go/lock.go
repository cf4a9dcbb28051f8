package leasehold

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"example.invalid/leasehold/sdk/go/internal/clock"
	"example.invalid/leasehold/sdk/go/internal/wire"
)

// Lock is a lease that this program holds. The client renews it in the background until [Lock.Unlock].
//
// A lock holds no data. Before each step that matters look at [Lock.Check], or do the work under [Lock.Context], and
// pass [Lock.Fence] to what the lock protects: a process can be paused at any point, and a network cut, for longer than
// the ttl. The lock is then lost before the server can grant it to another client, and the fence stops what was already
// on its way.
//
// A lock that is never unlocked stays held for as long as the process runs: Go cannot tell when the work is over, so
// the garbage collector releases nothing. [MaxHold] limits it.
type Lock struct {
	client *Client
	held   *held
	ctx    context.Context
	mode   Mode
	limit  uint32
	waited time.Duration
	ended  int32 // Unlock was called
}

func newLock(c *Client, a *acquisition, g grant, sent clock.Moment, parent context.Context) *Lock {
	h, ctx := newHeld(a.name, a.id, &a.opts, sent, g, parent)
	lock := &Lock{client: c, held: h, mode: a.mode, limit: a.limit, waited: clock.Now().Since(a.started)}
	lock.ctx = lockContext{Context: ctx, held: h}
	c.keeper.schedule(h)
	return lock
}

// lockContext is a context whose Err looks at the deadline: a process that was stopped past it finds its work cancelled
// at the first look, before any timer ran.
type lockContext struct {
	context.Context
	held *held
}

func (c lockContext) Err() error {
	c.held.look()
	return c.Context.Err()
}

// Name returns the name that is locked, in NFC.
func (l *Lock) Name() string { return l.held.name }

// Mode returns how the lock shares its name.
func (l *Lock) Mode() Mode { return l.mode }

// Fence returns the fencing token: pass it along with every write to what the lock protects.
func (l *Lock) Fence() Fence { return l.held.fence }

// LeaseID returns the id of the lease. It is a secret: any process that has it can renew and release the lease.
func (l *Lock) LeaseID() string { return l.held.id }

// Owner returns the owner label.
func (l *Lock) Owner() string { return l.held.opts.owner }

// Waited returns how long the acquire took.
func (l *Lock) Waited() time.Duration { return l.waited }

// State returns what is known about the lease at this moment, without asking the server.
func (l *Lock) State() State {
	state, _, _, _ := l.held.look()
	return state
}

// ValidFor returns how long the lock can be relied on unless it is renewed: until its local deadline, which is before
// the server can grant the name to another client. It is zero when the lock is not held.
func (l *Lock) ValidFor() time.Duration {
	state, _, until, at := l.held.look()
	if state != Held && state != AtRisk {
		return 0
	}
	return until.Since(at)
}

// Deadline returns until when the lock can be relied on unless it is renewed, in nanoseconds of the boot-time clock
// (CLOCK_BOOTTIME) on Linux. Most programs want [Lock.ValidFor].
func (l *Lock) Deadline() int64 {
	_, _, until, _ := l.held.look()
	return int64(until)
}

// Check returns nil while the lock is held, a [*LostError] if it is lost, and [ErrGone] after Unlock. It looks at the
// clock and asks no server, so it is cheap.
func (l *Lock) Check() error {
	state, loss, _, _ := l.held.look()
	switch {
	case loss != nil:
		return loss
	case state == Released:
		return ErrGone
	}
	return nil
}

// Err returns a [*LostError] once the lock is lost, else nil, also after Unlock.
func (l *Lock) Err() error {
	if _, loss, _, _ := l.held.look(); loss != nil {
		return loss
	}
	return nil
}

// Lost returns a channel that is closed when the lock is lost. Unlock does not close it.
func (l *Lock) Lost() <-chan struct{} { return l.held.lost }

// Context returns the context for work that needs the lock. It is cancelled when the lock is lost, before the server
// can grant it to another client, and when it is unlocked; from Go 1.20 on [context.Cause] gives the [*LostError].
//
// Its parent is the context that the lock was acquired with. So limit a wait with the option [Wait] rather than with a
// context that ends before the work, or use [Lock.With].
func (l *Lock) Context() context.Context { return l.ctx }

// With returns a context with another parent that is cancelled when the lock is lost or unlocked. Call the function
// that it returns when the work is over.
func (l *Lock) With(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := withCause(parent)
	go func() {
		select {
		case <-l.ctx.Done():
			var cause error
			if loss := l.Err(); loss != nil {
				cause = loss
			}
			cancel(cause)
		case <-ctx.Done():
		}
	}()
	return lockContext{Context: ctx, held: l.held}, func() { cancel(nil) }
}

// unlockGrace is how long Unlock waits for the answer after its context has ended.
const unlockGrace = time.Second

// Unlock releases the lock and waits for the answer. The error is nil if that ended the lease; a [*LostError] if the
// lock was lost before; [ErrGone] if it was unlocked before; else a fault, after which the lease ends with its ttl.
//
// The release is sent even if ctx has ended, so that `defer lock.Unlock(ctx)` works in a program that is being stopped:
// Unlock then waits for one second at most, and the client goes on trying in the background. The release of a lost lock
// is sent too, in the background: it acts only on this very lease, which may last a little longer in the store.
func (l *Lock) Unlock(ctx context.Context) error {
	if !atomic.CompareAndSwapInt32(&l.ended, 0, 1) {
		return ErrGone
	}
	h := l.held
	wasHeld := h.release()
	l.client.keeper.forget(h)
	h.abandon(nil)
	body := wire.Release{LeaseID: h.id, FencingToken: uint64(h.fence)}
	if !wasHeld {
		l.client.releaseInBackground(h.name, body, h.opts, false)
		_, loss, _, _ := h.look()
		return loss
	}
	call, cancel := context.WithCancel(context.Background())
	defer cancel()
	if ctx.Done() != nil {
		go func() {
			select {
			case <-ctx.Done():
				sleep(call, unlockGrace)
				cancel()
			case <-call.Done():
			}
		}()
	}
	l.client.begin()
	defer l.client.end()
	released, gone, fault := l.client.release(call, h.name, body, h.opts, true)
	switch {
	case fault != nil && call.Err() != nil:
		// The same release again, which is safe: it acts only on this very lease.
		l.client.releaseInBackground(h.name, body, h.opts, true)
		return aborted("the release was sent, but not answered yet", ctx.Err())
	case fault != nil:
		return fault
	case !released:
		return &LostError{Reason: gone}
	}
	return nil
}

// String shows the lock without its id.
func (l *Lock) String() string {
	return fmt.Sprintf("leasehold.Lock{name: %q, mode: %s, fence: %v, state: %s}", l.Name(), l.mode, l.Fence(), l.State())
}

// GoString is String, for %#v.
func (l *Lock) GoString() string { return l.String() }

// Do runs work under a lock. It acquires the lock with a method such as [Mutex.Lock] or [Mutex.TryLock], runs the work
// with a context that is cancelled when the lock is lost, and releases the lock, also if the work panics.
//
// It returns the error of the acquire, such as [ErrHeld]; else the error of the work, with the [*LostError] attached if
// the lock was lost as well; else the loss. If the work gave up only because its context was cancelled by the loss, the
// error is the loss. A failed release hides none of these; [OnReleaseError] hears of it.
func Do(
	ctx context.Context,
	acquire func(context.Context) (*Lock, error),
	work func(ctx context.Context, lock *Lock) error,
) (err error) {
	lock, err := acquire(ctx)
	if err != nil {
		return err
	}
	defer func() {
		var fault *Error
		// A release that is still under way reports its failure itself.
		if errors.As(lock.Unlock(ctx), &fault) && fault.Kind != KindAborted {
			reportRelease(lock.held.opts, fault)
		}
	}()
	err = work(lock.Context(), lock)
	_, loss, _, _ := lock.held.look()
	var already *LostError
	switch {
	case loss == nil:
		return err
	case err == nil, errors.Is(err, context.Canceled) && ctx.Err() == nil:
		return loss
	case errors.As(err, &already):
		return err
	}
	return &workAndLoss{work: err, loss: loss}
}
