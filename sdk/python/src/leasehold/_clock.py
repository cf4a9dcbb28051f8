"""The deadline clock: nanoseconds that count suspend and ignore steps of the wall clock."""

from __future__ import annotations

import time
from typing import Final

#: Later than every real moment.
NEVER: Final = 1 << 63

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> int:
        """Return the time on the boot-time clock, which goes on while the machine is suspended."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:

    def now() -> int:
        """Return the time on the monotonic clock: this platform has no better one."""
        return time.monotonic_ns()


def nanoseconds(seconds: float) -> int:
    """Turn seconds into whole nanoseconds."""
    return round(seconds * 1e9)


def ceil_ms(span: int) -> int:
    """Turn nanoseconds into milliseconds, rounded up: for a time that is asked for."""
    return -(-span // MILLISECOND)


def deadline(sent: int, waited: int, left: int, ttl: int) -> int:
    """Return the moment until which a holder may rely on a grant. All times are nanoseconds.

    ``sent`` was taken before the request waited for a connection, so the store measured ``left`` no earlier than
    ``sent + waited``. One percent and 2 ms are kept for clocks that run at different rates, and for rounding.
    """
    span = waited + min(left, ttl)
    return sent + span - span // 100 - 2 * MILLISECOND
