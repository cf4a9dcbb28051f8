"""What can go wrong, and the one table from the server's codes to it.

Contention is a value and a lost lock a signal, so only faults are errors. No message holds a name, a lease id or a
token.
"""

from __future__ import annotations

from typing import ClassVar, Final

__all__ = [
    "Aborted",
    "AuthFailed",
    "Deadlock",
    "Error",
    "Internal",
    "InvalidArgument",
    "Lost",
    "Mismatch",
    "NetworkTimeout",
    "Overloaded",
    "RateLimited",
    "Timeout",
    "Unavailable",
    "Unsupported",
]


class Error(Exception):
    """The base of all errors of leasehold."""

    #: The kind of the error, the same word in every language.
    kind: ClassVar[str] = "internal"
    #: Whether the same call may work a little later. An acquire that waits tries again by itself.
    retryable: ClassVar[bool] = False

    #: Seconds after which the server wants to be asked again, if it said so.
    retry_after: float = 0.0
    #: A connection that was used before turned out to be dead.
    stale: bool = False
    #: The server may have got the request.
    sent: bool = True


class InvalidArgument(Error, ValueError):
    """An argument breaks a rule. Nothing was done."""

    kind = "invalid_argument"


class Unavailable(Error):
    """The server or its store cannot be reached, or is stopping."""

    kind = "unavailable"
    retryable = True


class Overloaded(Error):
    """The store is too busy."""

    kind = "overloaded"
    retryable = True


class NetworkTimeout(Error):
    """The server did not answer in time."""

    kind = "network_timeout"
    retryable = True


class AuthFailed(Error):
    """The token is missing or wrong, or does not allow this."""

    kind = "auth_failed"


class RateLimited(Error):
    """Too much for this token."""

    kind = "rate_limited"
    retryable = True


class Timeout(Error, TimeoutError):
    """Another client kept the lock for as long as the caller was willing to wait."""

    kind = "timeout"


class Aborted(Error):
    """The client was closed."""

    kind = "aborted"


class Lost(Error):
    """The lease is gone and will not come back. Stop the work that needs it."""

    kind = "lost"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the lock is lost: {LOST.get(reason, reason)}")
        #: Why: ``deadline_passed``, ``expired``, ``not_found``, ``superseded``, ``revoked``, ``max_hold`` or
        #: ``forked``.
        self.reason = reason

    def __reduce__(self) -> tuple[type[Lost], tuple[str]]:
        return type(self), (self.reason,)


class Mismatch(Error):
    """The name is in use as another kind of lock, or with another limit."""

    kind = "mismatch"


class Deadlock(Error):
    """The store refused to wait, because it would have waited for ever."""

    kind = "deadlock"


class Unsupported(Error):
    """The store cannot do this, or there is no leasehold server at this address."""

    kind = "unsupported"


class Internal(Error):
    """A bug, in the server or here."""

    kind = "internal"


LOST: Final = {
    "deadline_passed": "no renewal was confirmed in time",
    "expired": "the store says that it has expired",
    "not_found": "the store no longer has it",
    "superseded": "the store says that it was superseded",
    "revoked": "it was revoked",
    "max_hold": "it was held for as long as `max_hold` allows",
    "unattended": "the background work that renews it has ended",
    "released": "it was released",
    "forked": "this process is a fork of the one that holds it",
}

CODES: Final[dict[str, type[Error]]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "UNAVAILABLE": Unavailable,
    "DRAINING": Unavailable,
    "ABORTED": Unavailable,
    "BUSY_RETRY": Overloaded,
    "NETWORK_TIMEOUT": NetworkTimeout,
    "AUTH_FAILED": AuthFailed,
    "RATE_LIMITED": RateLimited,
    "TIMEOUT": Timeout,
    "LOST": Lost,
    "MISMATCH": Mismatch,
    "DEADLOCK": Deadlock,
    "UNSUPPORTED": Unsupported,
    "INTERNAL": Internal,
}


def by_answer(status: int, code: str | None) -> type[Error]:
    """Return the error that an answer means, by the server's code, or by the status if a proxy answered."""
    if status in (401, 403):
        return AuthFailed
    if status == 429:
        return RateLimited
    if code in CODES:
        return CODES[code]
    if status in (404, 405):
        return Unsupported
    return InvalidArgument if 400 <= status < 500 else Unavailable
