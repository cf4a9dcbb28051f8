"""Planted bugs: each breaks the client on purpose, and a named check must turn red.

The bugs live here only. The same checks pass in the scenarios and in the process tests while nothing is broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import unittest
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import leasehold
from leasehold import _clock, _held, _home, _steps

from . import scenarios
from .bench import Bench, Server, vectors
from .test_processes import block_the_loop

Patches = contextlib.AbstractContextManager[Any]


def deadline_counted_from_the_answer() -> Patches:
    original = _held.HeldLease.__init__

    def init(self: Any, name: Any, mode: Any, owner: Any, grant: Any, options: Any) -> None:
        grant.sent = _clock.now() - grant.waited
        original(self, name, mode, owner, grant, options)

    return mock.patch.object(_held.HeldLease, "__init__", init)


def renewal_counted_from_the_answer() -> Patches:
    original = _held.HeldLease.confirm

    def confirm(self: Any, renewal: Any, left: int) -> None:
        renewal.sent = _clock.now()
        original(self, renewal, left)

    return mock.patch.object(_held.HeldLease, "confirm", confirm)


def loss_that_heals() -> Patches:
    original = _held.HeldLease.confirm

    def confirm(self: Any, renewal: Any, left: int) -> None:
        self._state, self._reason = "held", None
        self._deadline = max(self._deadline, _clock.now() + _clock.SECOND)
        original(self, renewal, left)

    def forgiving(self: Any, held: Any) -> None:
        self.schedule(held)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(_held.HeldLease, "confirm", confirm))
    stack.enter_context(mock.patch.object(_home.Home, "_lost", forgiving))
    return stack


def loss_not_seen_by_a_timer() -> Patches:
    return mock.patch.object(_home, "NAP", 3600), mock.patch.object(  # type: ignore[return-value]
        _held.HeldLease, "wanted", lambda self: self._next if self._is_alive() else _clock.NEVER
    )


def renewal_on_the_users_thread() -> Patches:
    original_hold, original_renew = _home.Home.hold, _home.Home._renew
    loops: list[asyncio.AbstractEventLoop] = []

    def hold(self: Any, held: Any) -> None:
        loops.append(asyncio.get_running_loop())
        original_hold(self, held)

    async def renew(self: Any, batch: Any) -> None:
        turn = threading.Event()
        loops[-1].call_soon_threadsafe(turn.set)
        # Until the user's event loop has had a turn, nothing is renewed.
        while not turn.is_set():
            await asyncio.sleep(0.005)
        await original_renew(self, batch)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(_home.Home, "hold", hold))
    stack.enter_context(mock.patch.object(_home.Home, "_renew", renew))
    return stack


def retry_with_a_new_id() -> Patches:
    original = _steps.Acquisition._fault

    def fault(self: Any, error: Any) -> Any:
        self.lease_id, self.repeat = _steps.new_lease_id(), False
        return original(self, error)

    return mock.patch.object(_steps.Acquisition, "_fault", fault)


def cancel_without_give_back() -> Patches:
    return mock.patch.object(_steps.Acquisition, "give_back", lambda self: None)


def give_back_that_allows_the_late_call() -> Patches:
    original = _steps.release

    def release(name: Any, fields: Any, options: Any, *, held: bool) -> Any:
        return original(name, {**fields, "unanswered": None}, options, held=held)

    return mock.patch.object(_steps, "release", release)


def dead_connection_kept() -> Patches:
    from leasehold import _sockets, _streams

    stack = contextlib.ExitStack()
    for kind in (_sockets.Connection, _streams.Stream):
        stack.enter_context(mock.patch.object(kind, "is_dead", lambda self: False))
    stack.enter_context(
        mock.patch.object(leasehold.Unavailable, "stale", property(lambda self: False, lambda *_: None))
    )
    return stack


@contextlib.contextmanager
def planted(patches: Patches) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for one in patches if isinstance(patches, tuple) else (patches,):
            stack.enter_context(one)
        yield


def scenario(name: str, *, blocking: bool = False) -> Callable[[], None]:
    """Return a case of sdk/vectors.json as a check."""

    def check() -> None:
        loaded: Any = vectors()
        (case,) = (one for one in loaded["scenarios"] if one["id"] == name)
        side = scenarios.BlockingSide() if blocking else scenarios.AsyncSide()
        with Bench() as bench:
            scenarios.Case(case, side, bench.server, bench.proxy, False, bench).run()

    return check


def blocked_loop() -> None:
    with Server() as server:
        asyncio.run(block_the_loop(server))


def lost_try_is_given_back() -> None:
    """A try whose answer is lost gives back what it got, long before the ttl ends."""
    steps = [
        {"do": "client", "client": "a"},
        {"do": "bench", "line": "swallow /acquire"},
        {"do": "try", "client": "a", "lock": "l", "ttl": 60_000, "expect": "network_timeout"},
        {"do": "free", "lock": "l"},
    ]
    with Bench() as bench:
        case = {"id": "given-back", "steps": steps}
        scenarios.Case(case, scenarios.BlockingSide(), bench.server, bench.proxy, False, bench).run()


class Planted(unittest.TestCase):
    def setUp(self) -> None:
        logging.getLogger("leasehold").setLevel(logging.CRITICAL + 1)
        self.addCleanup(logging.getLogger("leasehold").setLevel, logging.NOTSET)

    def caught(self, patches: Patches, check: Callable[[], None]) -> None:
        try:
            with planted(patches):
                check()
        except (AssertionError, leasehold.Error):
            return
        self.fail("the check did not see the planted bug")

    def test_deadline_from_the_answer_is_caught(self) -> None:
        self.caught(deadline_counted_from_the_answer(), scenario("deadline-from-sending", blocking=True))

    def test_renewal_from_the_answer_is_caught(self) -> None:
        self.caught(renewal_counted_from_the_answer(), scenario("old-answer"))

    def test_loss_that_heals_is_caught(self) -> None:
        self.caught(loss_that_heals(), scenario("loss-does-not-heal"))

    def test_loss_without_a_timer_is_caught(self) -> None:
        self.caught(loss_not_seen_by_a_timer(), scenario("lost-signal", blocking=True))

    def test_renewal_on_the_users_thread_is_caught(self) -> None:
        self.caught(renewal_on_the_users_thread(), blocked_loop)

    def test_retry_with_a_new_id_is_caught(self) -> None:
        self.caught(retry_with_a_new_id(), scenario("acquire-answer-lost", blocking=True))

    def test_cancel_without_give_back_is_caught(self) -> None:
        self.caught(cancel_without_give_back(), lost_try_is_given_back)

    def test_give_back_without_unanswered_is_caught(self) -> None:
        self.caught(give_back_that_allows_the_late_call(), scenario("late-try", blocking=True))

    def test_dead_connection_is_caught(self) -> None:
        self.caught(dead_connection_kept(), scenario("dead-connection", blocking=True))

    def test_checks_pass_while_nothing_is_broken(self) -> None:
        lost_try_is_given_back()


if __name__ == "__main__":
    unittest.main()
