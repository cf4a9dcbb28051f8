package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	leasehold "example.invalid/leasehold/sdk/go"
)

// The examples need a server, at LEASEHOLD_URL.

func report(ctx context.Context) error { return ctx.Err() }

func Example() {
	locks, err := leasehold.Connect() // reads LEASEHOLD_URL and LEASEHOLD_TOKEN
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	ctx := context.Background()
	lock, err := locks.Mutex("first").Lock(ctx) // waits for its turn
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)
	fmt.Println("locked", lock.Name(), lock.Fence() > 0)
	// Output: locked first true
}

// A job that must not overlap: the second machine skips it.
func ExampleMutex_TryLock() {
	locks, err := leasehold.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	nightly := func(ctx context.Context) error {
		return leasehold.Do(ctx, locks.Mutex("nightly").TryLock, func(ctx context.Context, lock *leasehold.Lock) error {
			return report(ctx)
		})
	}
	err = nightly(context.Background())
	if errors.Is(err, leasehold.ErrHeld) {
		fmt.Println("another machine does it")
	} else if err != nil {
		log.Fatal(err) // the report has failed, or the server is down
	} else {
		fmt.Println("done")
	}
	// Output: done
}

// Wait with a timeout.
func ExampleWait() {
	locks, err := leasehold.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	ctx := context.Background()
	other, err := locks.Mutex("account-7").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer other.Unlock(ctx)

	lock, err := locks.Mutex("account-7", leasehold.Wait(50*time.Millisecond)).Lock(ctx)
	switch {
	case leasehold.KindOf(err) == leasehold.KindTimeout:
		fmt.Println("another client keeps it for longer")
	case err != nil:
		log.Fatal(err)
	default:
		defer lock.Unlock(ctx)
	}
	// Output: another client keeps it for longer
}

// Cancel on loss.
func ExampleLock_Context() {
	locks, err := leasehold.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	rows := []string{"a", "b"}

	copyRows := func(ctx context.Context) error {
		lock, err := locks.Mutex("copy", leasehold.TTL(30*time.Second)).Lock(ctx)
		if err != nil {
			return err
		}
		defer lock.Unlock(ctx)
		for range rows {
			if err := lock.Check(); err != nil {
				return err // before each step that matters
			}
			if err := report(lock.Context()); err != nil {
				return err // cancelled before another client can get the lock
			}
		}
		return lock.Err() // nil, unless it was lost
	}
	fmt.Println(copyRows(context.Background()))
	// Output: <nil>
}

// Pass the fence to the database.
func ExampleLock_Fence() {
	locks, err := leasehold.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	exec := func(query string, args ...any) int64 { return 1 } // stands for database/sql

	ctx := context.Background()
	lock, err := locks.Mutex("balance").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)
	changed := exec("UPDATE account SET balance = $1, fence = $2 WHERE id = 7 AND fence <= $2", 100, lock.Fence())
	if changed == 0 {
		log.Fatal("a later holder has written already")
	}
	fmt.Println(changed)
	// Output: 1
}

// At most three at a time.
func ExampleSemaphore() {
	locks, err := leasehold.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	downloads := locks.Semaphore("downloads", 3) // every client says 3
	err = leasehold.Do(context.Background(), downloads.Acquire, func(ctx context.Context, _ *leasehold.Lock) error {
		return report(ctx)
	})
	fmt.Println(err)
	// Output: <nil>
}

// Readers share the lock, a writer has it alone.
func ExampleRWMutex() {
	locks, err := leasehold.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	ctx := context.Background()
	rates := locks.RWMutex("exchange-rates")

	one, err := rates.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	two, err := rates.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = rates.TryLock(ctx)
	fmt.Println(errors.Is(err, leasehold.ErrHeld))
	one.Unlock(ctx)
	two.Unlock(ctx)
	// Output: true
}

// The names of LockServer's SDK.
func ExampleClient_StartHeartbeat() {
	client, err := leasehold.Connect()
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	lease, err := client.AcquireWithRetry(ctx, "job-lock", "worker-1", leasehold.AcquireOptions{TTL: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	token := lease.FencingTokenValue()
	errs := client.StartHeartbeat(ctx, lease, leasehold.HeartbeatOptions{Interval: 10 * time.Second})
	defer client.ReleaseOnce(ctx, lease)

	select {
	case err := <-errs:
		log.Fatal("lost: ", err) // or a renewal has failed; the channel ends with a loss
	default:
		fmt.Println("work with", token > 0)
	}
	// Output: work with true
}

func ExampleClient_Show() {
	locks, err := leasehold.Connect(leasehold.Owner("worker-7"))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	ctx := context.Background()
	lock, err := locks.Mutex("shown").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	info, err := locks.Show(ctx, "shown")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Held, info.Holders[0].Owner)
	// Output: true worker-7
}
