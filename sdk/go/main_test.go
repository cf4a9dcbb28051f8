package leasehold_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
	"example.invalid/leasehold/sdk/go/internal/bench"
)

// shared is the server of all tests that break nothing. Without it nothing is tested, so the run fails.
var shared *bench.Bench

func TestMain(m *testing.M) {
	if role := os.Getenv("LEASEHOLD_TEST_ROLE"); role != "" {
		play(role)
		return
	}
	var err error
	if shared, err = bench.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot start a server:", err)
		os.Exit(1)
	}
	// The examples read it.
	os.Setenv("LEASEHOLD_URL", shared.Server)
	os.Unsetenv("LEASEHOLD_TOKEN")
	os.Unsetenv("LEASEHOLD_TOKEN_FILE")
	code := m.Run()
	shared.Close()
	os.Exit(code)
}

// patience is how long a test waits for what has to come.
const patience = 20 * time.Second

var names int64

// unique returns a name that no other test uses.
func unique(t *testing.T) string {
	return fmt.Sprintf("%s/%d/%d", t.Name(), os.Getpid(), atomic.AddInt64(&names, 1))
}

func connect(t *testing.T, url string, opts ...leasehold.ConnectOption) *leasehold.Client {
	t.Helper()
	client, err := leasehold.Connect(append([]leasehold.ConnectOption{leasehold.URL(url)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// own starts a server and a proxy for one test.
func own(t *testing.T) *bench.Bench {
	t.Helper()
	b, err := bench.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func obey(t *testing.T, b *bench.Bench, line string) string {
	t.Helper()
	value, err := b.Do(line)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// within returns a context for what has to come.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, lock *leasehold.Lock, err error) *leasehold.Lock {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !isSo(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come: " + what)
		}
	}
}

func waiters(t *testing.T, c *leasehold.Client, name string, count int) {
	t.Helper()
	eventually(t, fmt.Sprint(count, " waiters"), func() bool {
		info, err := c.Show(context.Background(), name)
		return err == nil && info.QueueLength == count
	})
}
