"""A job that must not overlap. Start it twice at once: the second one says that it has nothing to do."""

import time

import leasehold

with leasehold.connect() as locks:
    lock = locks.mutex("example/nightly").try_lock()
    if lock is None:
        print("the job is running already")
    else:
        with lock:
            print(f"working, with fence {lock.fence_text}")
            time.sleep(0.2)
