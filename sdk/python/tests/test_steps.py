"""Tests of the protocol's steps and of the held lease, without any I/O."""

from __future__ import annotations

import json
import unittest
from typing import Any

import leasehold
from leasehold import _clock, _held, _home
from leasehold._options import Options
from leasehold._steps import Acquisition, GiveBack, Grant, Pause, ask, release
from leasehold._wire import Answer, Call

HELD = Answer(409, json.dumps({"reason": "HELD", "recommended_retry_ms": 25}).encode())
WAIT_TIMEOUT = Answer(409, json.dumps({"reason": "WAIT_TIMEOUT", "recommended_retry_ms": 25}).encode())
SPENT = Answer(410, b'{"code": "SUPERSEDED", "gone": "superseded"}')
DRAINING = Answer(503, b'{"code": "DRAINING", "error": "stopping"}')
MISMATCH = Answer(422, b'{"code": "MISMATCH", "error": "another kind"}')


def granted(left: int = 30_000, waited: int = 0) -> Answer:
    return Answer(200, json.dumps({"fencing_token": 7, "expires_in_ms": left, "waited_ms": waited}).encode())


def stale() -> leasehold.Error:
    error = leasehold.Unavailable("dead")
    error.stale = True
    return error


def unsent() -> leasehold.Error:
    error = leasehold.Unavailable("refused")
    error.sent = False
    return error


class Script:
    """Drives an acquire with given answers, and keeps what it sent."""

    def __init__(self, *answers: Answer | leasehold.Error, once: bool = False, **options: Any) -> None:
        self.given_back: list[GiveBack] = []
        self.sent: list[dict[str, Any]] = []
        self.calls: list[Call] = []
        self.pauses = 0
        self.result: Grant | None = None
        self.error: leasehold.Error | None = None
        self.acquisition = Acquisition(
            "x", "exclusive", None, Options(**options), once=once, send_back=self.given_back.append
        )
        steps, rest = self.acquisition.run(), list(answers)
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    self.pauses += 1
                    step = steps.send(None)
                    continue
                self.calls.append(step)
                self.sent.append(json.loads(step.body))
                answer = rest.pop(0)
                step = steps.throw(answer) if isinstance(answer, leasehold.Error) else steps.send(answer)
        except StopIteration as stop:
            self.result = stop.value
        except leasehold.Error as error:
            self.error = error
        assert not rest, f"{len(rest)} answers are left"

    def field(self, name: str) -> list[Any]:
        return [body.get(name) for body in self.sent]


class Acquiring(unittest.TestCase):
    def test_wait_joins_the_queue_and_then_polls(self) -> None:
        script = Script(HELD, WAIT_TIMEOUT, granted(), wait_per_call=0.005)
        self.assertIsInstance(script.result, Grant)
        self.assertEqual(script.field("queue"), [10_000, None, None])
        self.assertEqual(script.field("wait_ms"), [None, 5, 5])
        self.assertEqual([call.waits for call in script.calls], [False, True, True])
        self.assertEqual(len(set(script.field("lease_id"))), 1)
        self.assertEqual(script.field("repeat"), [None, None, None])

    def test_try_sends_one_plain_call(self) -> None:
        script = Script(HELD, once=True)
        self.assertEqual((script.result, script.error, script.acquisition.pending), (None, None, False))
        self.assertEqual(sorted(script.sent[0]), ["lease_id", "owner_id", "ttl_ms"])
        script = Script(leasehold.NetworkTimeout("late"), once=True)
        self.assertIsInstance(script.error, leasehold.NetworkTimeout)
        self.assertTrue(script.acquisition.pending)

    def test_lost_answer_is_repeated_with_the_same_id(self) -> None:
        for fault in (leasehold.NetworkTimeout("late"), leasehold.Unavailable("broken"), DRAINING):
            script = Script(HELD, fault, granted())
            self.assertEqual(len(set(script.field("lease_id"))), 1)
            self.assertEqual(script.field("repeat"), [None, None, True])
            # It goes back to the call that joins the queue.
            self.assertEqual(script.field("queue"), [10_000, None, 10_000])
            self.assertEqual(script.pauses, 1)

    def test_dead_connection_is_replaced_at_once(self) -> None:
        for once in (True, False):
            script = Script(stale(), granted(), once=once)
            self.assertIsInstance(script.result, Grant)
            self.assertEqual([call.fresh for call in script.calls], [False, True])
            self.assertEqual((script.field("repeat"), script.pauses), ([None, True], 0))

    def test_call_that_was_never_sent_leaves_nothing(self) -> None:
        script = Script(unsent(), once=True)
        self.assertFalse(script.acquisition.pending)
        script = Script(unsent(), granted())
        self.assertEqual(script.field("repeat"), [None, None])

    def test_spent_id_is_replaced_by_a_new_one(self) -> None:
        script = Script(leasehold.NetworkTimeout("late"), SPENT, granted())
        first, second, third = script.field("lease_id")
        self.assertEqual(first, second)
        self.assertNotEqual(second, third)
        self.assertEqual(script.field("repeat"), [None, True, None])
        assert script.result is not None
        self.assertEqual(script.result.lease_id, third)

    def test_late_grant_is_measured_again_and_then_given_back(self) -> None:
        script = Script(granted(1), granted())
        self.assertEqual(len(set(script.field("lease_id"))), 1)
        self.assertEqual(script.given_back, [])
        script = Script(granted(1), granted(1), granted())
        first, second, third = script.field("lease_id")
        self.assertEqual(first, second)
        self.assertNotEqual(second, third)
        self.assertEqual([one.lease_id for one in script.given_back], [first])
        body = json.loads(next(script.given_back[0].steps()).body)  # type: ignore[union-attr]
        self.assertEqual(body, {"lease_id": first, "unanswered": 30_000})

    def test_refusal_is_raised_and_leaves_nothing(self) -> None:
        script = Script(MISMATCH)
        self.assertIsInstance(script.error, leasehold.Mismatch)
        self.assertFalse(script.acquisition.pending)
        # After another call it may have a place in the queue.
        self.assertTrue(Script(HELD, MISMATCH).acquisition.pending)

    def test_end_of_the_wait_is_a_timeout_or_the_last_fault(self) -> None:
        script = Script(HELD, wait=0)
        self.assertIsInstance(script.error, leasehold.Timeout)
        self.assertTrue(script.acquisition.pending)
        self.assertIsInstance(Script(DRAINING, wait=0).error, leasehold.Unavailable)

    def test_max_hold_shortens_the_ttl_that_is_asked_for(self) -> None:
        self.assertEqual(Script(granted(), ttl=30, max_hold=2).field("ttl_ms"), [2000])
        self.assertEqual(Script(granted(), ttl=2, max_hold=30).field("ttl_ms"), [2000])


class Releasing(unittest.TestCase):
    def release(self, *answers: Answer | leasehold.Error, held: bool = True) -> bool:
        steps, rest = release("x", {"lease_id": "id"}, Options(), held=held), list(answers)
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    step = steps.send(None)
                    continue
                answer = rest.pop(0)
                step = steps.throw(answer) if isinstance(answer, leasehold.Error) else steps.send(answer)
        except StopIteration as stop:
            return bool(stop.value)

    def test_gone_after_a_lost_answer_counts_as_released(self) -> None:
        done, gone = Answer(200, b'{"released": true}'), Answer(200, b'{"released": false, "gone": "not_found"}')
        self.assertTrue(self.release(done))
        self.assertFalse(self.release(gone))
        for fault in (leasehold.NetworkTimeout("late"), stale(), DRAINING):
            self.assertTrue(self.release(fault, gone))
            self.assertFalse(self.release(fault, gone, held=False))
        with self.assertRaises(leasehold.Mismatch):
            self.release(MISMATCH)

    def test_call_is_repeated_once_after_a_dead_connection(self) -> None:
        steps = ask(Call("GET", "/", b"", 1))
        next(steps)
        again = steps.throw(stale())
        assert isinstance(again, Call)
        self.assertTrue(again.fresh)
        with self.assertRaises(leasehold.Unavailable):
            steps.throw(stale())


class Holding(unittest.TestCase):
    def held(self, *, ago: float = 0, ttl: float = 30, **options: Any) -> _held.HeldLease:
        span = _clock.nanoseconds(ttl)
        grant = Grant("id", 7, span, _clock.now() - _clock.nanoseconds(ago), 0, span)
        return _held.HeldLease("x", "exclusive", "me", grant, Options(ttl=ttl, **options))

    def test_every_look_finds_a_passed_deadline_without_a_timer(self) -> None:
        looks: dict[str, Any] = {
            "state": "lost",
            "reason": "deadline_passed",
            "valid_for": 0,
            "release": False,
        }
        for look, expected in looks.items():
            self.assertEqual(getattr(self.held(ago=29.7), look)(), expected, look)
        self.assertIsNotNone(self.held(ago=29.7).error())
        told: list[int] = []
        self.held(ago=29.7).listen(lambda: told.append(1))
        self.assertEqual(told, [1])
        self.assertEqual(self.held(ago=29).state(), "held")

    def test_late_confirmation_brings_nothing_back(self) -> None:
        held = self.held(ago=29.7)
        renewal = _held.Renewal(held, _clock.now(), held.ttl, False, 1)
        held.confirm(renewal, held.ttl)
        self.assertEqual((held.state(), held.reason()), ("lost", "deadline_passed"))
        held.refuse("revoked")
        held.fail(renewal, "late")
        self.assertEqual(held.reason(), "deadline_passed")

    def test_deadline_never_moves_back(self) -> None:
        held = self.held()
        before = held.deadline()
        held.confirm(_held.Renewal(held, _clock.now(), held.ttl, False, 1), held.ttl // 2)
        self.assertEqual(held.deadline(), before)

    def test_failed_renewal_is_a_risk_and_a_confirmed_one_ends_it(self) -> None:
        held = self.held(ago=10)
        renewal = held.renewal(0)
        assert renewal is not None
        held.fail(renewal, "no answer")
        self.assertEqual(held.state(), "at_risk")
        held.confirm(renewal, held.ttl)
        self.assertEqual(held.state(), "held")

    def test_max_hold_ends_renewing(self) -> None:
        held = self.held(ago=10, max_hold=35)
        renewal = held.renewal(0)
        assert renewal is not None
        self.assertTrue(renewal.last)
        self.assertTrue(24 * _clock.SECOND < renewal.extend_by <= 25 * _clock.SECOND)
        held.confirm(renewal, renewal.extend_by)
        self.assertIsNone(held.renewal(20 * _clock.SECOND))
        self.assertEqual(self.held(ago=36, ttl=40, max_hold=35).reason(), "max_hold")

    def test_batches_keep_within_their_limits(self) -> None:
        leases = [_held.Renewal(self.held(), 0, 1, False, 1) for _ in range(700)]
        sizes = []
        for batch in _home.batches(leases):
            self.assertLessEqual(sum(len(encoded) + 1 for _, encoded in batch), 40 * 1024)
            sizes.append(len(batch))
        self.assertEqual(sum(sizes), 700)
        self.assertLessEqual(max(sizes), 512)


if __name__ == "__main__":
    unittest.main()
