"""The cases of sdk/vectors.json that need no server."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Any

from leasehold import Error, InvalidArgument, _clock, _held, _options, _steps, _wire, fence_text, read_fence

from . import records

MS = _clock.MILLISECOND


def segments(case: Any) -> None:
    equal(_options.segment(_options.normal_name(case["name"])), case["segment"])


def names_refused(case: Any) -> None:
    try:
        _options.normal_name(case)
    except InvalidArgument as error:
        equal(error.kind, "invalid_argument")
    else:
        raise AssertionError("the name was accepted")


def lease_id(case: Any) -> None:
    made = {_steps.new_lease_id() for _ in range(100)}
    equal(len(made), 100)
    for one in made:
        assert re.fullmatch(case["form"], one), "the form is wrong"
        equal(len(base64.urlsafe_b64decode(one + "==")), case["bytes"])


def deadlines(case: Any) -> None:
    times = (case["waited_ms"] * MS, case["expires_in_ms"] * MS, case["ttl_ms"] * MS)
    equal(_clock.deadline(case["sent_ns"], *times), case["deadline_ns"])


def first_renewals(case: Any) -> None:
    ttl, left = case["ttl_ms"] * MS, case["expires_in_ms"] * MS
    equal(_held.first_renewal(ttl, left), case["after_ns"])


def renewal_timeouts(case: Any) -> None:
    equal(_held.renewal_timeout(case["ttl_ms"] * MS), case["timeout_ns"])


def renewal_retries(case: Any) -> None:
    equal(_held.retry_after(case["ttl_ms"] * MS), case["after_ns"])


def pauses(case: Any) -> None:
    for _ in range(50):
        pause = _steps.pause(case["faults"], Error()) * 1000
        assert case["least_ms"] <= pause <= case["most_ms"], f"a pause of {pause} ms"


def waits(case: Any) -> None:
    left = _clock.NEVER if case["left_ms"] is None else case["left_ms"] * MS
    equal(_steps.wait_ms(left, case["per_call_ms"] * MS), case["wait_ms"])


def errors(case: Any) -> None:
    equal(_wire.make(case["status"], case["code"], "text").kind, case["kind"])


def fences(case: Any) -> None:
    equal(fence_text(case["number"]), case["text"])
    equal(read_fence(case["text"]), case["number"])


def hashes(case: Any) -> None:
    equal(records.fnv1a(case["lease_id"].encode()), int(case["fnv1a"]))


def record(case: Any) -> None:
    numbers = {name: int(case[name]) for name in ("claim", "at", "lease", "fence", "deadline", "value")}
    places = {name: case[name] for name in ("place", "task", "worker")}
    equal(records.encode(case["kind"], case["mode"], **places, **numbers).hex(), case["hex"])


GROUPS: dict[str, Callable[[Any], None]] = {
    "segments": segments,
    "names_refused": names_refused,
    "lease_id": lease_id,
    "deadlines": deadlines,
    "first_renewals": first_renewals,
    "renewal_timeouts": renewal_timeouts,
    "renewal_retries": renewal_retries,
    "pauses": pauses,
    "waits": waits,
    "errors": errors,
    "fences": fences,
    "hashes": hashes,
    "records": record,
}


def equal(got: object, expected: object) -> None:
    assert got == expected, f"got {got!r}, expected {expected!r}"


def cases(pure: dict[str, Any]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield each case with its id. A group that this runner does not know is a failure."""
    for group, given in pure.items():
        if group == "about":
            continue
        check = GROUPS.get(group)
        for number, case in enumerate(given if isinstance(given, list) else [given]):
            if check is None:
                yield f"{group}-{number}", unknown
            else:
                yield f"{group}-{number}", lambda check=check, case=case: check(case)  # type: ignore[misc]


def unknown() -> None:
    raise AssertionError("this runner does not know the group")
