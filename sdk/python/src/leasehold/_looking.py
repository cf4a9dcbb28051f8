"""Looking at locks and revoking them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import quote

from . import _wire
from ._options import Mode, Options, normal_name
from ._steps import Steps, answered, ask
from ._wire import Call
from .errors import InvalidArgument

#: Locks in one page of a list.
PAGE: Final = 200
MAX_PAGE: Final = 1000


@dataclass(frozen=True)
class Holder:
    """A client that holds a lock."""

    owner: str
    mode: Mode
    limit: int | None
    fence: int
    #: Seconds until the lease ends unless it is renewed.
    expires_in: float
    #: Seconds since 1970, by the store's clock.
    acquired_at: float
    renewals: int
    metadata: str | None = field(repr=False)
    #: Whether the store refuses to renew it.
    revoked: bool


@dataclass(frozen=True)
class Waiter:
    """A client that waits for a lock."""

    owner: str
    mode: Mode
    limit: int | None
    #: Seconds.
    waited: float


@dataclass(frozen=True)
class LockInfo:
    """What the server says about a lock."""

    name: str
    #: The holders, oldest grant first; at most a hundred.
    holders: tuple[Holder, ...]
    holder_count: int
    #: The waiters, in order; at most a hundred.
    waiters: tuple[Waiter, ...]
    queue_length: int
    #: The fence of the latest grant.
    last_fence: int
    #: Counts every change.
    version: int

    @property
    def held(self) -> bool:
        """Whether any client holds it."""
        return self.holder_count > 0


def show(name: str, options: Options) -> Steps[LockInfo]:
    """Look at one lock."""
    call = Call("GET", _wire.path("show", normal_name(name)), b"", options.request_timeout)
    return _lock(_wire.ok("Lock", (yield from ask(call))))


def page(prefix: str, cursor: str | None, size: int, options: Options) -> Steps[tuple[list[LockInfo], str | None]]:
    """List some locks. Returns where the next page begins."""
    target = f"{_wire.path('list')}?limit={size}&prefix={quote(prefix, safe='')}"
    if cursor is not None:
        target += f"&cursor={quote(cursor, safe='')}"
    fields = _wire.ok("Listed", (yield from ask(Call("GET", target, b"", options.request_timeout))))
    return [_lock(_wire.read("Lock", one)) for one in fields["locks"]], fields["next_cursor"]


def revoke(name: str, now: bool, fence: int | None, options: Options) -> Steps[int]:
    """Revoke leases. Returns how many."""
    body = _wire.encode("Revoke", {"now": now, "fencing_token": fence})
    call = Call("POST", _wire.path("revoke", normal_name(name)), body, options.request_timeout)
    # Without a fence, a repeat could revoke the next holder too.
    answer = answered((yield call)) if fence is None else (yield from ask(call))
    if answer.status == 409 and _wire.code(answer) == _wire.HOLDER_CHANGED:
        return 0
    return int(_wire.ok("Revoked", answer)["revoked"])


def check_prefix(prefix: str) -> str:
    """Return the prefix in its normal form."""
    return normal_name(prefix) if prefix else ""


def check_page_size(size: int) -> int:
    """Check how many locks a caller wants at a time."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_PAGE:
        raise InvalidArgument(f"`page_size` must be a number from 1 to {MAX_PAGE}")
    return size


def check_fence(fence: int | None) -> int | None:
    """Check a fence that a caller names."""
    if fence is not None and (isinstance(fence, bool) or not isinstance(fence, int) or fence < 0):
        raise InvalidArgument("`fence` must be the number of a lock's fence")
    return fence


def _lock(fields: Mapping[str, Any]) -> LockInfo:
    return LockInfo(
        name=fields["lock_name"],
        holders=tuple(_holder(_wire.read("Holder", one)) for one in fields["holders"]),
        holder_count=fields["holder_count"],
        waiters=tuple(_waiter(_wire.read("Waiter", one)) for one in fields["waiters"]),
        queue_length=fields["queue_length"],
        last_fence=fields["last_fencing_token"],
        version=fields["version"],
    )


def _holder(fields: Mapping[str, Any]) -> Holder:
    return Holder(
        owner=fields["owner_id"],
        mode=cast(Mode, fields["mode"]),
        limit=fields["limit"],
        fence=fields["fencing_token"],
        expires_in=(fields["expires_in_ms"] or 0) / 1000,
        acquired_at=fields["acquired_at_ms"] / 1000,
        renewals=fields["renewals"],
        metadata=fields["metadata"],
        revoked=fields["revoked"],
    )


def _waiter(fields: Mapping[str, Any]) -> Waiter:
    return Waiter(
        owner=fields["owner_id"],
        mode=cast(Mode, fields["mode"]),
        limit=fields["limit"],
        waited=fields["waited_ms"] / 1000,
    )
