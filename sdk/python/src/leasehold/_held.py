"""What the client believes about one lease: its state, its deadline, and the one-way step to lost.

The user's thread, the background thread and the lost signal share it. It does no I/O.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ._clock import MILLISECOND, NEVER, SECOND, ceil_ms, deadline, nanoseconds, now
from ._options import Mode, Options
from ._report import report
from ._steps import Grant
from .errors import LOST, Lost

State = Literal["held", "at_risk", "lost", "released"]

_numbers = itertools.count(1)


@dataclass
class Renewal:
    """A renewal that is about to be sent."""

    held: HeldLease
    sent: int
    extend_by: int
    #: ``max_hold`` cuts it short, so there is nothing more to ask for.
    last: bool
    timeout: float

    def fields(self) -> dict[str, object]:
        """Return the item of the batch."""
        return {
            "lock_name": self.held.name,
            "lease_id": self.held.lease_id,
            "extend_by_ms": ceil_ms(self.extend_by),
            "fencing_token": self.held.fence,
        }


def first_renewal(ttl: int, left: int) -> int:
    """Return how long after the grant to renew. A repeated acquire gets what is left, and must renew sooner."""
    return min(ttl // 3, left // 2)


def renewal_timeout(ttl: int) -> int:
    """Return the time limit of a renewal: several fit between the first one and the deadline."""
    return min(ttl // 6, 5 * SECOND)


def retry_after(ttl: int) -> int:
    """Return how long to wait before a failed renewal is tried again."""
    return min(ttl // 12, SECOND)


class HeldLease:
    """A lease that this process holds or held."""

    def __init__(self, name: str, mode: Mode, owner: str, grant: Grant, options: Options) -> None:
        self.name, self.mode, self.owner, self.options = name, mode, owner, options
        self.lease_id, self.fence, self.ttl = grant.lease_id, grant.fence, grant.ttl
        #: Distinguishes leases that are due at the same moment.
        self.number = next(_numbers)
        self.process = os.getpid()
        since = grant.sent + grant.waited
        hold = options.max_hold
        self.hold_until = NEVER if hold is None else since + nanoseconds(hold)
        #: When it is to be looked at next, as the background thread knows it.
        self.due = NEVER
        # A signal handler may look at the lock while its own thread is changing it.
        self._lock = threading.RLock()
        self._state: State = "held"
        self._reason: str | None = None
        self._deadline = min(deadline(grant.sent, grant.waited, grant.left, grant.ttl), self.hold_until)
        self._last = hold is not None and nanoseconds(hold) <= grant.ttl
        self._next = NEVER if self._last else since + first_renewal(grant.ttl, grant.left)
        self._in_flight: int | None = None
        self._listeners: list[Callable[[], None]] = []
        #: Set when the lock is lost or released.
        self.over = threading.Event()

    # A look checks the deadline first: one that has passed is a loss, even if no timer has noticed it yet.

    def _look(self) -> list[Callable[[], None]]:
        """Call with the lock held. Returns the listeners to call after it is free."""
        if self._is_alive() and now() >= self._deadline:
            return self._lose("max_hold" if self._last or now() >= self.hold_until else "deadline_passed")
        return []

    def _lose(self, reason: str) -> list[Callable[[], None]]:
        if not self._is_alive():
            return []
        self._state, self._reason = "lost", reason
        self.over.set()
        listeners, self._listeners = self._listeners, []
        return listeners

    def _is_alive(self) -> bool:
        return self._state in ("held", "at_risk")

    def _tell(self, listeners: list[Callable[[], None]]) -> None:
        for listener in listeners:
            listener()

    def is_copy(self) -> bool:
        """Whether this process is a fork of the holder. Checked first: in a fork, the locks may stay locked."""
        return os.getpid() != self.process

    def state(self) -> State:
        """Return the state at this moment."""
        if self.is_copy():
            return "lost"
        with self._lock:
            listeners = self._look()
            state = self._state
        self._tell(listeners)
        return state

    def reason(self) -> str | None:
        """Return why the lock is lost, if it is."""
        if self.is_copy():
            return "forked"
        self.state()
        return self._reason

    def error(self) -> Lost | None:
        """Return the error to raise if the lock is lost."""
        reason = self.reason()
        return None if reason is None else Lost(reason)

    def valid_for(self) -> int:
        """Return the nanoseconds until the deadline."""
        if self.state() not in ("held", "at_risk"):
            return 0
        return max(0, self._deadline - now())

    def deadline(self) -> int:
        """Return the deadline on the boot-time clock."""
        return self._deadline

    def release(self) -> bool:
        """End holding, because the user does. Returns whether the lease was held until now."""
        with self._lock:
            listeners = self._look()
            held = self._is_alive()
            if held:
                self._state = "released"
                self.over.set()
                listeners, self._listeners = self._listeners, []
        self._tell(listeners)
        return held

    def listen(self, listener: Callable[[], None]) -> None:
        """Call the function once, from any thread, when the lock is lost or released; at once if it is."""
        with self._lock:
            listeners = self._look()
            late = not self._is_alive()
            if not late:
                self._listeners.append(listener)
        self._tell(listeners)
        if late:
            listener()

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Take the function out again."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    # For the background thread.

    def wanted(self) -> int:
        """Return when to look again."""
        with self._lock:
            return min(self._next, self._deadline) if self._is_alive() else NEVER

    def renewal(self, ahead: int) -> Renewal | None:
        """Return the renewal that is due within this many nanoseconds."""
        with self._lock:
            listeners = self._look()
            renewal = None
            at = now()
            if self._is_alive() and at + ahead >= self._next:
                if self._in_flight is not None:
                    self._risk("the server does not answer")
                self._in_flight = at
                self._next = at + renewal_timeout(self.ttl)
                left = self.hold_until - at
                extend = max(MILLISECOND, min(self.ttl, left))
                renewal = Renewal(self, at, extend, left <= self.ttl, renewal_timeout(self.ttl) / SECOND)
        self._tell(listeners)
        return renewal

    def confirm(self, renewal: Renewal, left: int) -> None:
        """Apply a confirmed renewal. A confirmation after the deadline is too late."""
        with self._lock:
            listeners = self._look()
            if self._is_alive():
                until = deadline(renewal.sent, 0, left, self.ttl)
                self._deadline = max(self._deadline, min(until, self.hold_until))
                self._last = renewal.last
                self._next = NEVER if renewal.last else renewal.sent + self.ttl // 3
                self._in_flight = None
                if self._state == "at_risk":
                    report(logging.INFO, "renewed again: fence %d", self.fence)
                self._state = "held"
        self._tell(listeners)

    def refuse(self, reason: str) -> None:
        """Handle the server's word that the lease is gone."""
        with self._lock:
            listeners = self._look() or self._lose(reason)
        self._tell(listeners)

    def fail(self, renewal: Renewal, why: str) -> None:
        """Handle a renewal that failed: the lock stays held until its deadline."""
        with self._lock:
            listeners = self._look()
            # Unless a later one is in flight by now.
            if self._is_alive() and self._in_flight in (None, renewal.sent):
                self._in_flight = None
                self._next = now() + retry_after(self.ttl)
                self._risk(why)
        self._tell(listeners)

    def _risk(self, why: str) -> None:
        if self._state == "held":
            self._state = "at_risk"
            report(logging.WARNING, "a renewal failed, the lock is at risk: fence %d: %s", self.fence, why)


def report_loss(held: HeldLease) -> None:
    """Log that a lock is lost."""
    reason = held.reason() or ""
    report(logging.WARNING, "lost a lock: fence %d: %s", held.fence, LOST.get(reason, reason))
