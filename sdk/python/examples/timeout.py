"""Wait for a lock, but not for ever."""

import leasehold

with leasehold.connect() as locks:
    mutex = locks.mutex("example/timeout")
    with mutex:
        try:
            mutex.lock(wait=0.5)
        except leasehold.Timeout:
            print("another client kept the lock for half a second")
    with mutex.lock(wait=0.5) as lock:
        print(f"locked after {lock.waited:.3f} s")
