// Package leasehold takes distributed locks from a leasehold lock server.
//
// Each lock is a lease: it ends after a time, its ttl, unless it is renewed. This package renews it in the background,
// tells the program when it is lost before another client can get it, and gives every lock a fence, a number that rises
// from holder to holder, for the protected resource to check.
//
//	locks, err := leasehold.Connect() // LEASEHOLD_URL, LEASEHOLD_TOKEN
//	lock, err := locks.Mutex("nightly", leasehold.TTL(30*time.Second)).Lock(ctx)
//	defer lock.Unlock(ctx)
//	err = work(lock.Context(), lock.Fence()) // cancelled before the lease can pass on
//
// [Client.Mutex], [Client.RWMutex] and [Client.Semaphore] are the kinds of locks, [Do] runs work under one. A try
// returns [ErrHeld] if another client holds the lock; every other error is a fault, an [*Error] with a [Kind].
//
// The deadline of a lock is kept on a clock that counts the time that the machine was suspended and ignores steps of
// the wall clock: CLOCK_BOOTTIME on Linux. On other systems it is the monotonic clock, which may stand still while the
// machine is suspended: there only the fence protects the first moments after it wakes up.
//
// A process has the locks that it acquired itself; there is no fork in Go. A lock that is never unlocked stays held for
// as long as the process runs; see [Lock].
//
// The names of LockServer's Go SDK, such as [Client.AcquireWithRetry] and [Client.StartHeartbeat], work over the same
// client.
package leasehold
