"""Distributed locks that people can trust: the client of the leasehold lock server.

Each lock is a lease that is renewed in the background, carries a fencing token, and tells the program of its loss
before another client can get it::

    import leasehold

    locks = leasehold.connect("http://127.0.0.1:7420")
    with locks.mutex("nightly") as lock:
        write(row, fence=lock.fence)

:mod:`leasehold.aio` is the same for asyncio.
"""

from ._blocking import Lock, Locks, LostSignal, Mutex, RwLock, Semaphore, connect
from ._core import fence_text, read_fence
from ._looking import Holder, LockInfo, Waiter
from .errors import (
    Aborted,
    AuthFailed,
    Deadlock,
    Error,
    Internal,
    InvalidArgument,
    Lost,
    Mismatch,
    NetworkTimeout,
    Overloaded,
    RateLimited,
    Timeout,
    Unavailable,
    Unsupported,
)

__all__ = [
    "Aborted",
    "AuthFailed",
    "Deadlock",
    "Error",
    "Holder",
    "Internal",
    "InvalidArgument",
    "Lock",
    "LockInfo",
    "Locks",
    "Lost",
    "LostSignal",
    "Mismatch",
    "Mutex",
    "NetworkTimeout",
    "Overloaded",
    "RateLimited",
    "RwLock",
    "Semaphore",
    "Timeout",
    "Unavailable",
    "Unsupported",
    "Waiter",
    "connect",
    "fence_text",
    "read_fence",
]

__version__ = "0.1.0"
