package leasehold

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"example.invalid/leasehold/sdk/go/internal/clock"
)

// newTestLease makes a lease that was granted just now.
func newTestLease(ttl time.Duration, opts ...Option) (*held, context.Context) {
	o := defaultOptions()
	o.ttl = ttl
	for _, option := range opts {
		option(&o)
	}
	return newHeld("x", "id", &o, clock.Now(), grant{fence: 7, left: ttl}, context.Background())
}

func waitUntil(at clock.Moment) { time.Sleep(at.Since(clock.Now()) + time.Millisecond) }

func TestLossDoesNotHeal(t *testing.T) {
	h, ctx := newTestLease(time.Minute)
	h.next = clock.Now()
	one, due := h.begin(0)
	h.deadline = clock.Now().Add(100 * time.Millisecond)
	if !due {
		t.Fatal("no renewal is due")
	}
	waitUntil(h.deadline)
	// The server has confirmed it, and the answer comes late.
	h.confirm(one, time.Minute)
	state, loss, _, _ := h.look()
	if state != Lost || loss == nil || loss.Reason != DeadlinePassed || ctx.Err() == nil {
		t.Fatalf("%v, %v, %v", state, loss, ctx.Err())
	}
	h.fail(one, nil)
	h.refuse(Revoked)
	if _, after, _, _ := h.look(); after != loss {
		t.Errorf("the reason changed to %v", after)
	}
}

func TestFailedRenewalLosesNothingByItself(t *testing.T) {
	h, _ := newTestLease(time.Minute)
	until := h.deadline
	h.next = clock.Now()
	one, _ := h.begin(0)
	h.fail(one, &Error{Kind: KindUnavailable, Message: "down"})
	if state, _, now, _ := h.look(); state != AtRisk || now != until {
		t.Fatalf("%v until %v, not %v", state, now, until)
	}
	h.next = clock.Now()
	one, _ = h.begin(0)
	h.confirm(one, time.Minute)
	if state, _, now, _ := h.look(); state != Held || now <= until {
		t.Fatalf("%v until %v, not after %v", state, now, until)
	}
}

func TestHangingRenewalIsSentAgain(t *testing.T) {
	h, _ := newTestLease(time.Minute)
	h.next = clock.Now()
	first, _ := h.begin(0)
	h.next = clock.Now()
	second, due := h.begin(0)
	if state, _, _, _ := h.look(); !due || state != AtRisk {
		t.Fatalf("%v, %v", due, state)
	}
	h.confirm(second, time.Minute)
	until := h.deadline
	// The answer to the first one comes last.
	h.confirm(first, time.Second)
	if h.deadline != until {
		t.Error("the deadline moved back")
	}
}

func TestRenewalInFlightHasItsFullTime(t *testing.T) {
	h, _ := newTestLease(600 * time.Millisecond)
	h.next = clock.Now()
	if _, due := h.begin(together); !due {
		t.Fatal("no renewal is due")
	}
	// Its time is a sixth of the ttl. Another lease that is due now takes those along that are due soon, but not this.
	h.next = clock.Now().Add(together / 2)
	if _, due := h.begin(together); due {
		t.Error("it is sent twice at once")
	}
	if state, _, _, _ := h.look(); state != Held {
		t.Errorf("it is %v", state)
	}
}

func TestMaxHoldEndsRenewing(t *testing.T) {
	h, _ := newTestLease(time.Minute, MaxHold(200*time.Millisecond))
	if h.next != clock.Never || h.ttl != 200*time.Millisecond {
		t.Fatalf("the next renewal is at %v, the ttl %v", h.next, h.ttl)
	}
	waitUntil(h.deadline)
	if _, loss, _, _ := h.look(); loss == nil || loss.Reason != MaxHeld {
		t.Fatalf("got %v", loss)
	}
	h, _ = newTestLease(100*time.Millisecond, MaxHold(time.Hour))
	h.next = clock.Now()
	one, _ := h.begin(0)
	if one.capped || one.extendBy != 100*time.Millisecond {
		t.Errorf("%+v", one)
	}
}

func TestReleasedLeaseIsNotLost(t *testing.T) {
	h, _ := newTestLease(50 * time.Millisecond)
	until := h.deadline
	if !h.release() || h.release() {
		t.Fatal("it was held once")
	}
	waitUntil(until)
	if state, loss, _, _ := h.look(); state != Released || loss != nil {
		t.Fatalf("%v, %v", state, loss)
	}
}

func TestWorkKeepsItsErrorAndTheLoss(t *testing.T) {
	cause := errors.New("cause")
	err := error(&workAndLoss{work: fmt.Errorf("work: %w", cause), loss: &LostError{Reason: Revoked}})
	var lost *LostError
	if !errors.Is(err, cause) || !errors.As(err, &lost) || lost.Reason != Revoked || !errors.Is(err, ErrGone) {
		t.Fatalf("%v", err)
	}
}

func TestAlarmRingsOnTime(t *testing.T) {
	for _, alarm := range []clock.Alarm{clock.NewAlarm(), clock.NewNaps()} {
		defer alarm.Close()
		alarm.Arm(clock.Never)
		go func() {
			time.Sleep(20 * time.Millisecond)
			alarm.Arm(clock.Now().Add(30 * time.Millisecond))
		}()
		began := clock.Now()
		alarm.Wait()
		if took := clock.Now().Since(began); took < 45*time.Millisecond {
			t.Errorf("%T rang after %v", alarm, took)
		}
		alarm.Arm(clock.Now() - 1)
		alarm.Wait()
	}
}
