package leasehold_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
	"example.invalid/leasehold/sdk/go/internal/bench"
)

func TestRequestOnADyingConnectionIsSentAgain(t *testing.T) {
	t.Parallel()
	b := own(t)
	c, name := connect(t, b.Proxy), unique(t)
	first, err := c.Mutex(name).TryLock(within(t))
	must(t, first, err)
	// The connection is kept, and breaks when the next request comes over it.
	obey(t, b, "cut to-server 10")
	if err := first.Unlock(within(t)); err != nil {
		t.Fatalf("the release: %v", err)
	}
	obey(t, b, "cut to-server 10")
	second, err := c.Mutex(name).TryLock(within(t))
	if err != nil {
		t.Fatalf("the acquire: %v", err)
	}
	info, err := connect(t, b.Server).Show(within(t), name)
	if err != nil || info.HolderCount != 1 || info.Holders[0].Fence != second.Fence() {
		t.Errorf("saw %+v, %v", info, err)
	}
	// A new connection that breaks is a fault: the try says so.
	obey(t, b, "reset")
	obey(t, b, "refuse on")
	if _, err := c.Mutex(unique(t)).TryLock(within(t)); leasehold.KindOf(err) != leasehold.KindUnavailable {
		t.Errorf("got %v", err)
	}
}

func TestAnswerLostOnADyingConnectionIsNoLoss(t *testing.T) {
	t.Parallel()
	b := own(t)
	c, name := connect(t, b.Proxy), unique(t)
	first, err := c.Mutex(name).TryLock(within(t))
	must(t, first, err)
	// The server gets the release, and its answer breaks off.
	obey(t, b, "cut to-client 10")
	if err := first.Unlock(within(t)); err != nil {
		t.Fatalf("the release: %v", err)
	}
	obey(t, b, "cut to-client 10")
	second, err := c.Mutex(name).TryLock(within(t))
	if err != nil {
		t.Fatalf("the acquire: %v", err)
	}
	info, err := connect(t, b.Server).Show(within(t), name)
	if err != nil || info.HolderCount != 1 || info.Holders[0].Fence != second.Fence() {
		t.Errorf("saw %+v, %v", info, err)
	}
}

func TestWaiterNoticesASilentServer(t *testing.T) {
	t.Parallel()
	b := own(t)
	direct, c, name := connect(t, b.Server), connect(t, b.Proxy), unique(t)
	lock, err := direct.Mutex(name, leasehold.TTL(time.Minute)).Lock(within(t))
	must(t, lock, err)
	before := accepted(t, b)
	got := make(chan error, 1)
	go func() {
		// This call alone would wait for the better part of a minute.
		_, err := c.Mutex(name, leasehold.WaitPerCall(50*time.Second)).Lock(within(t))
		got <- err
	}()
	waiters(t, direct, name, 1)
	obey(t, b, "blackhole")
	// The server grants the waiter the lock; the answer is lost.
	if err := lock.Unlock(within(t)); err != nil {
		t.Fatal(err)
	}
	// It asks for a sign of life over a second connection, and for the lock over a third.
	eventually(t, "three connections", func() bool { return accepted(t, b) >= before+3 })
	obey(t, b, "discard")
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// accepted is how many connections the proxy has accepted.
func accepted(t *testing.T, b *bench.Bench) (count int) {
	t.Helper()
	var counts map[string]int
	if err := json.Unmarshal([]byte(obey(t, b, "counts")), &counts); err != nil {
		t.Fatal(err)
	}
	return counts["accepted"]
}

// counter counts requests by their path.
type counter struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *counter) RoundTrip(request *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.calls[request.URL.Path]++
	c.mu.Unlock()
	return http.DefaultTransport.RoundTrip(request)
}

func TestLeasesAreRenewedTogether(t *testing.T) {
	t.Parallel()
	const locks, ttl = 30, 6 * time.Second
	count := &counter{calls: map[string]int{}}
	c := leasehold.New(shared.Server, &http.Client{Transport: count})
	prefix := unique(t)
	var all []*leasehold.Lock
	for i := 0; i < locks; i++ {
		all = append(all, must2(c.Mutex(fmt.Sprint(prefix, "/", i), leasehold.TTL(ttl)).Lock(within(t)))(t))
	}
	eventually(t, "a renewal of each", func() bool {
		infos, err := c.List(within(t), prefix)
		if err != nil || len(infos) != locks {
			t.Fatalf("%d locks, %v", len(infos), err)
		}
		for _, info := range infos {
			if info.Holders[0].Renewals == 0 {
				return false
			}
		}
		return true
	})
	for _, lock := range all {
		if err := lock.Unlock(within(t)); err != nil {
			t.Error(err)
		}
	}
	count.mu.Lock()
	defer count.mu.Unlock()
	if calls := count.calls["/v1/renew"]; calls == 0 || calls > locks/2 {
		t.Errorf("%d requests renewed %d leases", calls, locks)
	}
}

func TestUnlockDoesNotHangOnASilentServer(t *testing.T) {
	t.Parallel()
	b := own(t)
	c, name := connect(t, b.Proxy), unique(t)
	lock, err := c.Mutex(name, leasehold.TTL(time.Minute)).Lock(within(t))
	must(t, lock, err)
	obey(t, b, "blackhole")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	began := time.Now()
	if err := lock.Unlock(ctx); !errors.Is(err, context.Canceled) || leasehold.KindOf(err) != leasehold.KindAborted {
		t.Fatalf("got %v", err)
	}
	if took := time.Since(began); took < 900*time.Millisecond || took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	obey(t, b, "pass")
	// The client goes on in the background, and Close waits for it.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	free, err := connect(t, b.Server).Mutex(name).TryLock(within(t))
	must(t, free, err)
}

func TestFailedReleaseIsReported(t *testing.T) {
	t.Parallel()
	b := own(t)
	reports := make(chan error, 1)
	c := connect(t, b.Proxy, leasehold.ReleaseTimeout(300*time.Millisecond), leasehold.OnReleaseError(func(err error) {
		reports <- err
	}))
	name := unique(t)
	err := leasehold.Do(within(t), c.Mutex(name).Lock, func(context.Context, *leasehold.Lock) error {
		obey(t, b, "server kill")
		return nil
	})
	if err != nil {
		t.Fatalf("a failed release hides that the work is done: %v", err)
	}
	if err := <-reports; leasehold.KindOf(err) != leasehold.KindUnavailable {
		t.Fatalf("got %v", err)
	}
}
