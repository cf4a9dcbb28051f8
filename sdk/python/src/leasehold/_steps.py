"""The protocol as steps: generators that say what to send and how long to pause, and are told the answers.

They do no I/O, so that blocking programs, asyncio and the background thread share them. A driver sends each
:class:`Call`, and throws the error into the generator if there is no answer.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from . import _wire
from ._clock import MILLISECOND, NEVER, SECOND, ceil_ms, deadline, nanoseconds, now
from ._options import Mode, Options
from ._wire import Answer, Call
from .errors import Error, NetworkTimeout, Overloaded, Timeout

T = TypeVar("T")

#: How long a waiting acquire goes on with nothing but faults: as long as the server keeps its place in the queue.
PATIENCE: Final = 10 * SECOND

#: How long the server keeps a place in the queue for a waiter that is silent, in milliseconds.
TICKET_MS: Final = 10_000

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0


@dataclass
class Pause:
    """Wait for this many seconds."""

    seconds: float


Step = Call | Pause
Steps = Generator[Step, Answer | None, T]


def answered(answer: Answer | None) -> Answer:
    """Return the answer that a driver must give for a call."""
    assert answer is not None, "the driver gave no answer to a call"
    return answer


def pause(faults: int, error: Error) -> float:
    """Return the pause after this many earlier faults in a row, with jitter."""
    longest: float = min(FIRST_PAUSE * 2 ** min(faults, 10), LONGEST_PAUSE)
    jittered = longest * random.uniform(0.5, 1.0)
    return max(jittered, error.retry_after) if error.kind == "rate_limited" else jittered


def wait_ms(left: int, per_call: int) -> int:
    """Return how long the server is to wait in one call, in milliseconds."""
    return max(1, ceil_ms(min(left, per_call)))


def ask(call: Call) -> Steps[Answer]:
    """Send a call that is safe to repeat. If a kept connection turned out dead, send it again on a new one."""
    try:
        return answered((yield call))
    except Error as error:
        if not error.stale:
            raise
    call.fresh = True
    return answered((yield call))


def new_lease_id() -> str:
    """Make a lease id: 16 random bytes as 22 characters of base64url."""
    return secrets.token_urlsafe(16)


@dataclass
class Grant:
    """A lease that was granted. All times are nanoseconds."""

    lease_id: str
    fence: int
    ttl: int
    #: Taken before the request waited for a connection.
    sent: int
    waited: int
    left: int

    def __repr__(self) -> str:
        return f"Grant(fence={self.fence})"


@dataclass
class GiveBack:
    """A release of what an acquire may have got."""

    name: str
    lease_id: str
    ttl: int
    options: Options

    def __repr__(self) -> str:
        return "GiveBack()"

    def steps(self) -> Steps[bool]:
        """Release it, and make the store refuse its id from now on: an attempt may still be on its way."""
        fields = {"lease_id": self.lease_id, "unanswered": ceil_ms(self.ttl)}
        return release(self.name, fields, self.options, held=True)


class Acquisition:
    """One acquire, from its first attempt until it is granted, busy, out of time or given up."""

    def __init__(
        self,
        name: str,
        mode: Mode,
        limit: int | None,
        options: Options,
        *,
        once: bool,
        send_back: Callable[[GiveBack], None],
    ) -> None:
        #: Sends a release in the background.
        self.send_back = send_back
        self.name, self.mode, self.limit, self.options = name, mode, limit, options
        #: Make a single attempt.
        self.once = once
        self.owner = options.owner_label()
        self.ttl = options.ttl_ns
        self.started = now()
        self.end = NEVER if once or options.wait is None else self.started + nanoseconds(options.wait)
        self.lease_id = new_lease_id()
        #: Calls with this id.
        self.calls = 0
        #: A call with this id went unanswered, so it may still arrive.
        self.repeat = False
        #: The store may have a lease or a place of this id.
        self.pending = False
        self.faults = 0
        self.failing_since = NEVER
        self.measured_again = False

    def give_back(self) -> None:
        """Give back what the id may have got. The caller need not wait for that."""
        if self.pending:
            self.pending = False
            self.send_back(GiveBack(self.name, self.lease_id, self.ttl, self.options))

    def run(self) -> Steps[Grant | None]:
        """Wait for the lease. None means that another client holds the lock, after a single attempt."""
        fresh, queued = False, False
        while True:
            sent = now()
            # The first call only joins the queue, so that a lost answer is noticed soon.
            wait = self._wait(sent) if queued else 0
            call = self._call(wait, fresh)
            self.calls += 1
            before, self.pending = self.pending, True
            try:
                answer = answered((yield call))
            except Error as error:
                self.pending, self.repeat = before or error.sent, self.repeat or error.sent
                queued = False
                # A kept connection was dead: that is no fault of the server. A new connection cannot be stale.
                fresh = error.stale
                if not fresh:
                    yield from self._fault(error)
                continue
            fresh = False
            if answer.status == 200:
                grant = self._granted(answer, sent)
                if grant is not None:
                    return grant
                if not self.measured_again:
                    self.measured_again = True
                    continue
                self.measured_again = False
                late = NetworkTimeout("the lock was granted, but the answer came after its time")
                queued = False
                yield from self._begin_anew(late)
            elif answer.status == 410:
                # A repeat arrived after the lease that an earlier call had got was over.
                self.pending = False
                spent = Overloaded("the server no longer accepts the lease id of this acquire; try again")
                queued = False
                yield from self._begin_anew(spent)
            elif (busy := self._busy(answer)) is not None:
                self.faults, self.failing_since = 0, NEVER
                if self.once:
                    self.pending = self.repeat
                    return None
                if now() >= self.end:
                    raise Timeout("another client kept the lock for as long as `wait` allows")
                if queued and now() - sent < 10 * MILLISECOND < wait * MILLISECOND:
                    # An answer that comes at once, again and again, must not become a storm of calls.
                    yield Pause(min(busy / 1000, max(0, self.end - now()) / SECOND))
                queued = True
            else:
                failure = _wire.error(answer)
                if not failure.retryable:
                    # The server refused before it did anything, unless it does not know itself.
                    self.pending = self.calls > 1 or failure.kind == "internal"
                    raise failure
                self.repeat, queued = True, False
                yield from self._fault(failure)

    def _wait(self, sent: int) -> int:
        """How long the server is to wait, in milliseconds."""
        return wait_ms(self.end - sent, nanoseconds(self.options.wait_per_call))

    def _call(self, wait: int, fresh: bool) -> Call:
        body = _wire.encode(
            "Acquire",
            {
                "owner_id": self.owner,
                "ttl_ms": ceil_ms(self.ttl),
                "lease_id": self.lease_id,
                "mode": None if self.mode == "exclusive" else self.mode,
                "limit": self.limit,
                "metadata": self.options.metadata,
                "wait_ms": wait or None,
                "queue": None if self.once or wait else TICKET_MS,
                "repeat": self.repeat,
            },
        )
        timeout = self.options.request_timeout + wait / 1000
        return Call("POST", _wire.path("acquire", self.name), body, timeout, waits=wait > 0, fresh=fresh)

    def _granted(self, answer: Answer, sent: int) -> Grant | None:
        """Return the grant, unless the answer came after the deadline."""
        fields = _wire.ok("Acquired", answer)
        waited, left = fields["waited_ms"] * MILLISECOND, fields["expires_in_ms"] * MILLISECOND
        grant = Grant(self.lease_id, fields["fencing_token"], self.ttl, sent, waited, left)
        return grant if now() < deadline(sent, waited, left, self.ttl) else None

    def _busy(self, answer: Answer) -> int | None:
        """Return the milliseconds until a retry makes sense, if another client holds the lock."""
        if answer.status != 409:
            return None
        fields = _wire.read("Busy", _wire.decode(answer))
        if fields["reason"] not in ("HELD", "WAIT_TIMEOUT"):
            return None
        return max(25, min(fields["recommended_retry_ms"] or 25, 1000))

    def _begin_anew(self, why: Error) -> Steps[None]:
        """Give back what the id has got, and go on with a new one."""
        self.give_back()
        self.lease_id = new_lease_id()
        self.calls, self.repeat = 0, False
        yield from self._fault(why)

    def _fault(self, error: Error) -> Steps[None]:
        """Pause before the next attempt, or raise the error if no time or patience is left."""
        if self.once or not error.retryable:
            raise error
        at = now()
        self.failing_since = min(self.failing_since, at)
        if at >= self.end or at - self.failing_since >= PATIENCE:
            raise error
        seconds = pause(self.faults, error)
        self.faults += 1
        yield Pause(min(seconds, (self.end - at) / SECOND))
        if now() >= self.end:
            raise error


def release(name: str, fields: Mapping[str, object], options: Options, *, held: bool) -> Steps[bool]:
    """Release a lease, and again while the server does not answer. Returns whether there was one to release.

    ``held`` says that it was held until now. If it is gone after a try that got no answer, that try may have done it.
    """
    body = _wire.encode("Release", fields)
    end = now() + nanoseconds(options.release_timeout)
    faults, unsure, fresh = 0, False, False
    while True:
        timeout = max(0.001, min(options.request_timeout, (end - now()) / SECOND))
        try:
            call = Call("POST", _wire.path("release", name), body, timeout, fresh=fresh)
            answer = answered((yield call))
            return bool(_wire.ok("Released", answer)["released"]) or (held and unsure)
        except Error as error:
            if not error.retryable:
                raise
            unsure = unsure or error.kind in ("network_timeout", "unavailable")
            fresh = error.stale
            if fresh:
                continue
            seconds = pause(faults, error)
            faults += 1
            if now() + nanoseconds(seconds) >= end:
                raise
        yield Pause(seconds)
