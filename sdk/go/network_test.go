package leasehold_test

import (
	"encoding/json"
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
