package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
)

func TestBusyIsAnAnswer(t *testing.T) {
	c, name := connect(t, shared.Server), unique(t)
	lock, err := c.Mutex(name).TryLock(within(t))
	must(t, lock, err)
	_, err = c.Mutex(name).TryLock(within(t))
	if err != leasehold.ErrHeld || leasehold.KindOf(err) != "" {
		t.Fatalf("got %v", err)
	}
	if err := lock.Unlock(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := lock.Unlock(within(t)); err != leasehold.ErrGone {
		t.Fatalf("a second release gave %v", err)
	}
}

func TestServerThatIsDownIsAFault(t *testing.T) {
	c := connect(t, "http://127.0.0.1:1")
	_, err := c.Mutex("x").TryLock(within(t))
	if leasehold.KindOf(err) != leasehold.KindUnavailable || errors.Is(err, leasehold.ErrHeld) {
		t.Fatalf("got %v", err)
	}
	if _, err := c.Show(within(t), "x"); leasehold.KindOf(err) != leasehold.KindUnavailable {
		t.Fatalf("got %v", err)
	}
}

func TestWaitEndsWithATimeout(t *testing.T) {
	c, name := connect(t, shared.Server), unique(t)
	lock, err := c.Mutex(name).Lock(within(t))
	must(t, lock, err)
	_, err = c.Mutex(name, leasehold.Wait(50*time.Millisecond)).Lock(within(t))
	var fault *leasehold.Error
	if !errors.As(err, &fault) || fault.Kind != leasehold.KindTimeout || !fault.Timeout() || fault.Retryable() {
		t.Fatalf("got %v", err)
	}
	waiters(t, c, name, 0)
}

func TestCancelledWaitLeavesTheQueue(t *testing.T) {
	c, name := connect(t, shared.Server), unique(t)
	lock, err := c.Mutex(name).Lock(within(t))
	must(t, lock, err)
	ctx, cancel := context.WithCancel(within(t))
	ended := make(chan error)
	go func() {
		_, err := c.Mutex(name).Lock(ctx)
		ended <- err
	}()
	waiters(t, c, name, 1)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || leasehold.KindOf(err) != leasehold.KindAborted {
		t.Fatalf("got %v", err)
	}
	waiters(t, c, name, 0)
}

func TestWaitEndsWithItsContext(t *testing.T) {
	c, name := connect(t, shared.Server), unique(t)
	lock, err := c.Mutex(name).Lock(within(t))
	must(t, lock, err)
	ctx, cancel := context.WithTimeout(within(t), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Mutex(name).Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	waiters(t, c, name, 0)
	done, end := context.WithCancel(context.Background())
	end()
	if _, err := c.Mutex(unique(t)).Lock(done); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

func TestDeadlineCountsFromSending(t *testing.T) {
	t.Parallel()
	b := own(t)
	c := connect(t, b.Proxy)
	const late, ttl = 1500 * time.Millisecond, 10 * time.Second
	obey(t, b, fmt.Sprintf("delay to-client %d", late.Milliseconds()))
	before := time.Now()
	lock, err := c.Mutex(unique(t), leasehold.TTL(ttl)).TryLock(within(t))
	must(t, lock, err)
	left := lock.ValidFor()
	if took := time.Since(before); took < late {
		t.Fatalf("the answer was not late: %v", took)
	}
	if most := ttl - ttl/100 - 2*time.Millisecond - late; left > most {
		t.Errorf("it is held for %v more, but at most %v are safe", left, most)
	}
}

func TestRepeatKeepsItsID(t *testing.T) {
	t.Parallel()
	b := own(t)
	c := connect(t, b.Proxy, leasehold.RequestTimeout(time.Second))
	name := unique(t)
	obey(t, b, "swallow /acquire")
	began := time.Now()
	lock, err := c.Mutex(name, leasehold.TTL(time.Minute), leasehold.Wait(8*time.Second)).Lock(within(t))
	if err != nil {
		t.Fatalf("after %v: %v", time.Since(began), err)
	}
	info, err := connect(t, b.Server).Show(within(t), name)
	if err != nil || info.HolderCount != 1 || info.Holders[0].Fence != lock.Fence() {
		t.Fatalf("saw %+v, %v", info, err)
	}
}

func TestCancelGivesBack(t *testing.T) {
	t.Parallel()
	b := own(t)
	c, direct := connect(t, b.Proxy), connect(t, b.Server)
	name := unique(t)
	obey(t, b, "swallow /acquire")
	ctx, cancel := context.WithCancel(within(t))
	ended := make(chan error)
	go func() {
		_, err := c.Mutex(name, leasehold.TTL(time.Minute)).Lock(ctx)
		ended <- err
	}()
	count := func() int {
		info, err := direct.Show(within(t), name)
		if err != nil {
			t.Error(err)
		}
		return info.HolderCount
	}
	eventually(t, "a lease that the client knows nothing of", func() bool { return count() == 1 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	for end := time.Now().Add(5 * time.Second); count() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the lease is not given back")
		}
	}
}

func TestLateAcquireGetsNothing(t *testing.T) {
	t.Parallel()
	b := own(t)
	c, direct := connect(t, b.Proxy), connect(t, b.Server)
	name := unique(t)
	request := obey(t, b, "hold /acquire")
	ctx, cancel := context.WithCancel(within(t))
	ended := make(chan error)
	go func() {
		_, err := c.Mutex(name, leasehold.TTL(time.Minute)).Lock(ctx)
		ended <- err
	}()
	if obey(t, b, "caught "+request+" 10000") != "true" {
		t.Fatal("the request does not come")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	// Close waits for the give-back. The acquire arrives after it, and must get nothing.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	obey(t, b, "deliver "+request)
	lock, err := direct.Mutex(name, leasehold.Wait(5*time.Second)).Lock(within(t))
	must(t, lock, err)
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		info, err := direct.Show(within(t), name)
		if err != nil || info.HolderCount != 1 || info.Holders[0].Fence != lock.Fence() {
			t.Fatalf("saw %+v, %v", info, err)
		}
	}
}

func TestLossCancelsTheWork(t *testing.T) {
	t.Parallel()
	b := own(t)
	c := connect(t, b.Proxy)
	lock, err := c.Mutex(unique(t), leasehold.TTL(3*time.Second)).Lock(within(t))
	must(t, lock, err)
	other, stop := lock.With(context.WithValue(context.Background(), key{}, "kept"))
	defer stop()
	obey(t, b, "blackhole")
	for _, ctx := range []context.Context{lock.Context(), other} {
		select {
		case <-ctx.Done():
		case <-within(t).Done():
			t.Fatal("the work goes on")
		}
	}
	if other.Value(key{}) != "kept" {
		t.Error("a value is missing")
	}
	var lost *leasehold.LostError
	if !errors.As(lock.Err(), &lost) || lost.Reason != leasehold.DeadlinePassed || lock.State() != leasehold.Lost {
		t.Fatalf("got %v", lock.Err())
	}
	<-lock.Lost()
	if lock.ValidFor() != 0 || !errors.Is(lock.Check(), leasehold.ErrGone) {
		t.Errorf("%v, %v", lock.ValidFor(), lock.Check())
	}
	obey(t, b, "pass")
	if err := lock.Unlock(within(t)); !errors.As(err, &lost) {
		t.Errorf("got %v", err)
	}
}

type key struct{}

func TestContextsEndAsTheyShould(t *testing.T) {
	c := connect(t, shared.Server)
	parent, cancel := context.WithCancel(context.WithValue(within(t), key{}, "kept"))
	defer cancel()
	lock, err := c.Mutex(unique(t)).Lock(parent)
	must(t, lock, err)
	if lock.Context().Value(key{}) != "kept" || lock.Context().Err() != nil {
		t.Error("the parent's value is missing, or the context has ended")
	}
	apart, stop := lock.With(context.Background())
	defer stop()
	cancel()
	<-lock.Context().Done()
	if lock.Check() != nil {
		t.Errorf("the end of the parent lost the lock: %v", lock.Check())
	}
	if err := lock.Unlock(context.Background()); err != nil {
		t.Fatal(err)
	}
	<-apart.Done()
	if lock.Err() != nil || lock.Check() != leasehold.ErrGone || lock.State() != leasehold.Released {
		t.Errorf("%v, %v, %v", lock.Err(), lock.Check(), lock.State())
	}
	select {
	case <-lock.Lost():
		t.Error("a release is no loss")
	default:
	}
}

func TestUnlockWorksWhenItsContextHasEnded(t *testing.T) {
	c, name := connect(t, shared.Server), unique(t)
	lock, err := c.Mutex(name).Lock(within(t))
	must(t, lock, err)
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if err := lock.Unlock(done); err != nil {
		t.Fatal(err)
	}
	again, err := c.Mutex(name).TryLock(within(t))
	must(t, again, err)
}

func TestErrorOfTheWorkWins(t *testing.T) {
	t.Parallel()
	c := connect(t, shared.Server)
	broken := errors.New("broken")
	name := unique(t)
	take := func(ctx context.Context) (*leasehold.Lock, error) {
		return c.Mutex(name, leasehold.TTL(time.Minute)).TryLock(ctx)
	}
	revoke := func(ctx context.Context) {
		if _, err := c.Revoke(ctx, name, leasehold.RevokeOptions{Now: true}); err != nil {
			t.Error(err)
		}
	}
	var lost *leasehold.LostError
	// The loss comes with the next renewal, so these locks are renewed soon.
	short := func(ctx context.Context) (*leasehold.Lock, error) {
		return c.Mutex(name, leasehold.TTL(1500*time.Millisecond)).Lock(ctx)
	}
	for _, one := range []struct {
		about   string
		take    func(context.Context) (*leasehold.Lock, error)
		work    func(context.Context, *leasehold.Lock) error
		ok      func(error) bool
		errText string
	}{
		{"no error", take, func(context.Context, *leasehold.Lock) error { return nil },
			func(err error) bool { return err == nil }, ""},
		{"its error", take, func(context.Context, *leasehold.Lock) error { return broken },
			func(err error) bool { return err == broken }, ""},
		{"the loss alone", short, func(ctx context.Context, _ *leasehold.Lock) error {
			revoke(context.Background())
			<-ctx.Done()
			return nil
		}, func(err error) bool { return errors.As(err, &lost) && !errors.Is(err, context.Canceled) }, ""},
		{"cancelled by the loss", short, func(ctx context.Context, _ *leasehold.Lock) error {
			revoke(context.Background())
			<-ctx.Done()
			return ctx.Err()
		}, func(err error) bool { return errors.As(err, &lost) && leasehold.KindOf(err) == leasehold.KindLost }, ""},
		{"both", short, func(ctx context.Context, _ *leasehold.Lock) error {
			revoke(context.Background())
			<-ctx.Done()
			return fmt.Errorf("row 7: %w", broken)
		}, func(err error) bool {
			return errors.Is(err, broken) && errors.As(err, &lost) && errors.Is(err, leasehold.ErrGone)
		}, "row 7: broken (also: leasehold: the lease was lost"},
	} {
		err := leasehold.Do(within(t), one.take, one.work)
		if !one.ok(err) || one.errText != "" && !strings.HasPrefix(err.Error(), one.errText) {
			t.Errorf("%s: got %v", one.about, err)
		}
		free := must2(c.Mutex(name, leasehold.Wait(patience)).Lock(within(t)))(t)
		if err := free.Unlock(within(t)); err != nil {
			t.Fatal(err)
		}
	}
}

func must2(lock *leasehold.Lock, err error) func(*testing.T) *leasehold.Lock {
	return func(t *testing.T) *leasehold.Lock { return must(t, lock, err) }
}

func TestPanicInTheWorkReleases(t *testing.T) {
	c, name := connect(t, shared.Server), unique(t)
	func() {
		defer func() {
			if recover() != "oh" {
				t.Error("the panic is gone")
			}
		}()
		_ = leasehold.Do(within(t), c.Mutex(name).Lock, func(context.Context, *leasehold.Lock) error { panic("oh") })
	}()
	lock, err := c.Mutex(name).TryLock(within(t))
	must(t, lock, err)
}

func TestCloseEndsAcquiresAndKeepsLocks(t *testing.T) {
	t.Parallel()
	c, name := connect(t, shared.Server), unique(t)
	lock, err := c.Mutex(name, leasehold.TTL(1500*time.Millisecond)).Lock(within(t))
	must(t, lock, err)
	ended := make(chan error)
	go func() {
		_, err := c.Mutex(name).Lock(context.Background())
		ended <- err
	}()
	waiters(t, c, name, 1)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; leasehold.KindOf(err) != leasehold.KindAborted {
		t.Fatalf("got %v", err)
	}
	if _, err := c.Mutex(unique(t)).TryLock(within(t)); leasehold.KindOf(err) != leasehold.KindAborted {
		t.Fatalf("got %v", err)
	}
	time.Sleep(3 * time.Second) // two ttls
	if err := lock.Check(); err != nil {
		t.Fatal(err)
	}
	if err := lock.Unlock(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// Go cannot tell when work is over, so a lock that nobody refers to any more stays held.
func TestCollectedLockStaysHeld(t *testing.T) {
	t.Parallel()
	c, name := connect(t, shared.Server), unique(t)
	func() { must2(c.Mutex(name, leasehold.TTL(time.Second)).Lock(within(t)))(t) }()
	for i := 0; i < 5; i++ {
		runtime.GC()
		time.Sleep(500 * time.Millisecond)
	}
	if _, err := c.Mutex(name).TryLock(within(t)); err != leasehold.ErrHeld {
		t.Fatalf("got %v", err)
	}
}

func TestNothingPrintsASecret(t *testing.T) {
	const token = "hush-4711"
	c := connect(t, shared.Server, leasehold.Token(token))
	lock, err := c.Mutex(unique(t)).TryLock(within(t))
	must(t, lock, err)
	lease, _, err := c.AcquireOnce(within(t), unique(t), "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	_, unreachable := connect(t, "http://127.0.0.1:1", leasehold.Token(token)).Mutex("private").TryLock(within(t))
	_, refused := c.Mutex("private", leasehold.TTL(24*time.Hour)).TryLock(within(t))
	_, inURL := leasehold.Connect(leasehold.URL("http://user:" + token + "@host"))
	for _, one := range []any{c, lock, lease, &lease, unreachable, refused, inURL} {
		for _, form := range []string{"%v", "%+v", "%#v", "%s"} {
			printed := fmt.Sprintf(form, one)
			for _, secret := range []string{token, lock.LeaseID(), lease.LeaseID, "private"} {
				if strings.Contains(printed, secret) {
					t.Errorf("%s of %T shows %q: %s", form, one, secret, printed)
				}
			}
		}
	}
}
