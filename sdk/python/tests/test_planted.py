"""Planted bugs: each breaks the client on purpose, and a named check must turn red.

The bugs live here only. The same checks pass in the scenarios and in the process tests while nothing is broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import threading
import unittest
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import leasehold
from leasehold import _clock, _held, _home, _sockets, _steps

from . import scenarios
from .bench import Bench, Server, vectors
from .test_locks import until
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
    original, original_lost = _held.HeldLease.confirm, _home.Home._lost

    def confirm(self: Any, renewal: Any, left: int) -> None:
        if self._state == "lost":
            self._state, self._reason = "held", None
            self._deadline = _clock.now() + _clock.SECOND
        original(self, renewal, left)

    async def go_on(home: Any, held: Any) -> None:
        for _ in range(20):
            await asyncio.sleep(0.1)
            renewal = _held.Renewal(held, _clock.now(), held.ttl, False, 1.0)
            for batch in _home.batches([renewal]):
                await home._renew(batch)

    def lost(self: Any, held: Any) -> None:
        original_lost(self, held)
        self._begin(go_on(self, held))

    return both(
        mock.patch.object(_held.HeldLease, "confirm", confirm),
        mock.patch.object(_home.Home, "_lost", lost),
    )


def hanging_renewal_that_hides_the_loss() -> Patches:
    return both(
        mock.patch.object(_held, "renewal_timeout", lambda ttl: 3600 * _clock.SECOND),
        mock.patch.object(_held.HeldLease, "wanted", lambda self: self._next if self._is_alive() else _clock.NEVER),
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

    return both(
        mock.patch.object(_home.Home, "hold", hold),
        mock.patch.object(_home.Home, "_renew", renew),
    )


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
    return both(
        mock.patch.object(_sockets.Connection, "is_dead", lambda self: False),
        mock.patch.object(leasehold.Unavailable, "stale", property(lambda self: False, lambda *_: None)),
    )


@contextlib.contextmanager
def both(*patches: Patches) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for one in patches:
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


def renewals_count_from_sending() -> None:
    """After a renewal, the time left is never more than it was when the renewal was sent."""
    with Bench() as bench, leasehold.connect(bench.proxy) as locks, locks.mutex("l", ttl=6) as lock:
        bench.command("delay to-client 700")
        first, until = lock.deadline_ns, _clock.now() + 8 * _clock.SECOND
        while lock.deadline_ns == first:
            assert _clock.now() < until, "nothing was renewed"
            assert lock.valid_for <= 6 - 0.062, f"{lock.valid_for} s are left"
        assert lock.valid_for <= 6 - 0.062 - 0.7, f"{lock.valid_for} s are left right after the answer"
        bench.command("pass")


def given_up_id_is_refused() -> None:
    """The id of an acquire that was given up is refused for good, however late a call with it arrives."""
    ids: list[str] = []

    def new_lease_id(original: Callable[[], str] = _steps.new_lease_id) -> str:
        ids.append(original())
        return ids[-1]

    with Bench() as bench, leasehold.connect(bench.proxy, request_timeout=1) as locks:
        bench.command("swallow /acquire")
        try:
            with mock.patch.object(_steps, "new_lease_id", new_lease_id):
                locks.mutex("l").try_lock()
        except leasehold.NetworkTimeout:
            pass
        with leasehold.connect(bench.server) as direct:
            until(lambda: not direct.show("l").held, "a free lock")
        fields = {"owner_id": "late", "ttl_ms": 1000, "lease_id": ids[0]}
        request = urllib.request.Request(
            f"{bench.server}/v1/locks/l/acquire", json.dumps(fields).encode(), {"content-type": "application/json"}
        )
        try:
            urllib.request.urlopen(request, timeout=10).close()
        except urllib.error.HTTPError as refused:
            with refused:
                assert refused.code == 410, f"refused with {refused.code}"
        else:
            raise AssertionError("the id was granted again")


class Planted(unittest.TestCase):
    def setUp(self) -> None:
        logging.getLogger("leasehold").setLevel(logging.CRITICAL + 1)
        self.addCleanup(logging.getLogger("leasehold").setLevel, logging.NOTSET)

    def caught(self, patches: Patches, check: Callable[[], None]) -> None:
        try:
            with patches:
                check()
        except (AssertionError, leasehold.Error) as red:
            print(f"{self._testMethodName}: {red}"[:300], file=sys.stderr)
            return
        self.fail("the check did not see the planted bug")

    def test_deadline_from_the_answer_is_caught(self) -> None:
        self.caught(deadline_counted_from_the_answer(), scenario("deadline-from-sending", blocking=True))

    def test_renewal_from_the_answer_is_caught(self) -> None:
        self.caught(renewal_counted_from_the_answer(), renewals_count_from_sending)

    def test_loss_that_heals_is_caught(self) -> None:
        self.caught(loss_that_heals(), scenario("loss-does-not-heal"))

    def test_loss_hidden_by_a_hanging_renewal_is_caught(self) -> None:
        self.caught(hanging_renewal_that_hides_the_loss(), scenario("lost-signal", blocking=True))

    def test_renewal_on_the_users_thread_is_caught(self) -> None:
        self.caught(renewal_on_the_users_thread(), blocked_loop)

    def test_retry_with_a_new_id_is_caught(self) -> None:
        self.caught(retry_with_a_new_id(), scenario("acquire-answer-lost", blocking=True))

    def test_cancel_without_give_back_is_caught(self) -> None:
        self.caught(cancel_without_give_back(), lost_try_is_given_back)

    def test_give_back_without_unanswered_is_caught(self) -> None:
        self.caught(give_back_that_allows_the_late_call(), given_up_id_is_refused)

    def test_dead_connection_is_caught(self) -> None:
        self.caught(dead_connection_kept(), scenario("dead-connection", blocking=True))

    def test_lost_try_is_given_back(self) -> None:
        lost_try_is_given_back()

    def test_renewals_count_from_sending(self) -> None:
        renewals_count_from_sending()

    def test_given_up_id_is_refused(self) -> None:
        given_up_id_is_refused()


if __name__ == "__main__":
    unittest.main()
