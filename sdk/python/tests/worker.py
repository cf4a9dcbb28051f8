"""A worker of `leasehold torture`: plays turns on the locks of a task, and writes down what it did and saw.

Half of the tasks are threads with the blocking client, the others run in one event loop with the asyncio client. The
turns are the same; the blocking client cancels an acquire by closing a client that was made for it alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import random
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import leasehold
import leasehold.aio
from leasehold import _clock

from .records import MODES, History, encode, fnv1a

#: Looks while a lock is held.
LOOK = 0.001
NEVER = (1 << 64) - 1
REASONS = {"deadline_passed": 0, "expired": 1, "not_found": 1, "superseded": 1, "revoked": 1}

_REQUEST = struct.Struct("<BxHHxxI4xQQQ")


@dataclass
class Turn:
    """What a task does in one turn."""

    lock: dict[str, Any]
    mode: str
    claim: int
    once: bool
    wait: float | None
    cancel_after: float | None
    hold: float
    write: bool


class Worker:
    """What the tasks of this process share."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.history = History(task["history"])
        self.finish = threading.Event()
        self._lock = threading.Lock()
        self._claims = 0
        self.ttl = task["ttl_ms"] / 1000
        self.locks = task["locks"]
        self.hot = [lock for lock in self.locks if lock.get("hot")] or self.locks
        self.options: dict[str, Any] = {"ttl": self.ttl, "request_timeout": task["patience_ms"] / 1000}

    def turn(self, random_: random.Random) -> Turn:
        with self._lock:
            self._claims += 1
            claim = self._claims
        lock = random_.choice(self.hot if random_.random() < 0.5 else self.locks)
        modes = {"mutex": ("exclusive",), "rwlock": ("exclusive", "shared", "shared"), "semaphore": ("permit",)}
        mode = random_.choice(modes[lock["kind"]])
        once = random_.random() < 1 / 3
        wait = None if random_.random() < 0.1 else random_.uniform(0, 0.3)
        cancels = self.task.get("cancels") and not once and random_.random() < 0.1
        lingers = self.task.get("lingers") and random_.random() < 1 / 60
        return Turn(
            lock=lock,
            mode=mode,
            claim=claim,
            once=once,
            wait=wait,
            cancel_after=random_.uniform(0, 0.02) if cancels else None,
            hold=random_.uniform(0.5, 1.5) * self.ttl if lingers else random_.uniform(0, 0.005),
            write=mode == "exclusive" and random_.random() < 2 / 3,
        )

    def owner(self, claim: int) -> str:
        return f"worker-{self.task['worker']}-{claim}"


class Player:
    """One task: its records, and its connection to the resource."""

    def __init__(self, worker: Worker, number: int) -> None:
        self.worker, self.number = worker, number
        self.random = random.Random(f"{worker.task['seed']}-{worker.task['worker']}-{number}")
        self._resource: socket.socket | None = None
        self._writes = 0
        self.turn: Turn
        self.lease = self.fence = 0

    def begin(self) -> Turn:
        self.turn = self.worker.turn(self.random)
        self.lease = self.fence = 0
        return self.turn

    def note(self, kind: str, at: int | None = None, *, deadline: int = 0, value: int = 0) -> None:
        turn, task = self.turn, self.worker.task
        known = kind != "AcquireCall"
        self.worker.history.write(
            encode(
                kind,
                turn.mode,
                place=turn.lock["place"],
                task=self.number,
                worker=task["worker"],
                claim=turn.claim,
                at=_clock.now() if at is None else at,
                lease=self.lease if known else 0,
                fence=self.fence if known else 0,
                deadline=deadline,
                value=value,
            )
        )

    def call(self) -> None:
        turn = self.turn
        value = 0 if turn.once else NEVER if turn.wait is None else _clock.nanoseconds(turn.wait)
        self.note("AcquireCall", deadline=_clock.nanoseconds(self.worker.ttl), value=value)

    def granted(self, lock: leasehold.Lock | leasehold.aio.Lock) -> None:
        self.lease, self.fence = fnv1a(lock.lease_id.encode()), lock.fence
        self.note("Granted", deadline=lock.deadline_ns)

    def look(self, lock: leasehold.Lock | leasehold.aio.Lock) -> bool:
        """Look at the lock once. Returns whether it is held."""
        at = _clock.now()
        # Read before the look: a renewal in between can only move it on.
        deadline = lock.deadline_ns
        reason = lock.lost.reason
        if reason is None:
            self.note("Held", at, deadline=deadline)
            return True
        self.note("Lost", value=REASONS.get(reason, 2))
        return False

    def released(self, done: bool) -> None:
        self.note("Released" if done else "ReleasedNothing")

    def resource(self, verb: int) -> bool:
        """Ask the resource. It is local, and answers at once."""
        if self._resource is None:
            self._resource = socket.socket(socket.AF_UNIX)
            self._resource.settimeout(30)
            self._resource.connect(self.worker.task["resource"])
        turn = self.turn
        request = _REQUEST.pack(
            verb,
            turn.lock["place"],
            self.number,
            self.worker.task["worker"],
            turn.claim,
            self.lease,
            self.fence,
        )
        self._resource.sendall(request)
        answer = self._resource.recv(1)
        if not answer:
            # The torture is over.
            os._exit(0)
        return answer == b"\x01"

    def write(self) -> None:
        self._writes += 1
        number = (self.number << 48) + self._writes
        self.note("WriteCall", value=number)
        taken = self.resource(0)
        self.note("WriteTaken" if taken else "WriteRejected", value=number)

    def over(self, error: BaseException) -> None:
        """Record how an acquire ended without a lock."""
        if isinstance(error, leasehold.Timeout):
            self.note("Busy")
        elif isinstance(error, leasehold.Error) and not isinstance(error, leasehold.Aborted):
            self.note("AcquireFailed")
        else:
            self.note("AcquireDropped")


ENTER, LEAVE = 1, 2


def play_blocking(worker: Worker, number: int, locks: leasehold.Locks) -> None:
    """Play the turns of one thread."""
    player = Player(worker, number)
    while not worker.finish.is_set():
        turn = player.begin()
        client, timer = locks, None
        if turn.cancel_after is not None:
            client = leasehold.connect(worker.task["url"], **worker.options)
            timer = threading.Timer(turn.cancel_after, client.close)
        face = faced(client, turn, owner=worker.owner(turn.claim))
        player.call()
        if timer is not None:
            timer.start()
        try:
            verbs = VERBS[turn.lock["kind"], turn.mode]
            lock = getattr(face, verbs[1])() if turn.once else getattr(face, verbs[0])(wait=turn.wait)
        except leasehold.Error as error:
            player.over(error)
            time.sleep(player.random.uniform(0, 0.02))
            lock = None
        else:
            if lock is None:
                player.note("Busy")
            else:
                player.granted(lock)
                hold_blocking(player, lock)
        if timer is not None:
            timer.join()


def hold_blocking(player: Player, lock: leasehold.Lock) -> None:
    turn = player.turn
    until = time.monotonic() + turn.hold
    inside = turn.write and player.look(lock)
    if inside:
        player.resource(ENTER)
    elif turn.write:
        return
    held = player.look(lock)
    if held and inside:
        player.write()
        held = player.look(lock)
    while held and time.monotonic() < until:
        time.sleep(LOOK)
        held = player.look(lock)
    if inside:
        player.resource(LEAVE)
    if not held or not player.look(lock):
        return
    player.note("ReleaseCall")
    try:
        player.released(lock.release())
    except leasehold.Error:
        player.note("ReleaseFailed")


async def play_async(worker: Worker, number: int, locks: leasehold.aio.Locks) -> None:
    """Play the turns of one asyncio task."""
    player = Player(worker, number)
    while not worker.finish.is_set():
        turn = player.begin()
        face = faced(locks, turn, owner=worker.owner(turn.claim))
        player.call()
        verbs = VERBS[turn.lock["kind"], turn.mode]

        async def acquire(face: Any = face, verbs: Any = verbs, turn: Turn = turn) -> leasehold.aio.Lock | None:
            if turn.once:
                return await getattr(face, verbs[1])()  # type: ignore[no-any-return]
            return await getattr(face, verbs[0])(wait=turn.wait)  # type: ignore[no-any-return]

        acquiring = asyncio.ensure_future(acquire())
        if turn.cancel_after is not None:
            asyncio.get_running_loop().call_later(turn.cancel_after, acquiring.cancel)
        try:
            lock = await acquiring
        except (leasehold.Error, asyncio.CancelledError) as error:
            player.over(error)
            await asyncio.sleep(player.random.uniform(0, 0.02))
            continue
        if lock is None:
            player.note("Busy")
        else:
            player.granted(lock)
            await hold_async(player, lock)


async def hold_async(player: Player, lock: leasehold.aio.Lock) -> None:
    turn = player.turn
    until = time.monotonic() + turn.hold
    inside = turn.write and player.look(lock)
    if inside:
        player.resource(ENTER)
    elif turn.write:
        return
    held = player.look(lock)
    if held and inside:
        player.write()
        held = player.look(lock)
    while held and time.monotonic() < until:
        await asyncio.sleep(LOOK)
        held = player.look(lock)
    if inside:
        player.resource(LEAVE)
    if not held or not player.look(lock):
        return
    player.note("ReleaseCall")
    try:
        player.released(await lock.release())
    except leasehold.Error:
        player.note("ReleaseFailed")


VERBS = {
    ("mutex", "exclusive"): ("lock", "try_lock"),
    ("rwlock", "exclusive"): ("write", "try_write"),
    ("rwlock", "shared"): ("read", "try_read"),
    ("semaphore", "permit"): ("acquire", "try_acquire"),
}


def faced(locks: Any, turn: Turn, *, owner: str) -> Any:
    limit = (turn.lock["limit"],) if turn.lock["kind"] == "semaphore" else ()
    return getattr(locks, turn.lock["kind"])(turn.lock["name"], *limit, owner=owner)


async def play_all_async(worker: Worker, numbers: list[int]) -> None:
    async with leasehold.aio.connect(worker.task["url"], **worker.options) as locks:
        await asyncio.gather(*(play_async(worker, number, locks) for number in numbers))


def connect(url: str, options: dict[str, Any]) -> leasehold.Locks:
    """Connect, however long that takes."""
    locks = leasehold.connect(url, **options)
    while True:
        try:
            locks.show("anything")
        except leasehold.Error:
            time.sleep(0.05)
        else:
            return locks


def listen(worker: Worker) -> None:
    """A line asks to finish; the end of the input ends the process at once."""
    if sys.stdin.buffer.readline():
        worker.finish.set()
        if sys.stdin.buffer.readline():
            return
    if not worker.finish.is_set():
        os._exit(0)


def main() -> None:
    worker = Worker(json.loads(pathlib.Path(sys.argv[1]).read_text()))
    task = worker.task

    def mark(kind: str) -> None:
        places = {"place": 0, "task": 0, "worker": task["worker"], "claim": 0}
        value = os.getpid() if kind == "Begin" else 0
        worker.history.write(encode(kind, "exclusive", **places, at=_clock.now(), value=value))

    assert MODES["exclusive"] == 0
    threading.Thread(target=listen, args=(worker,), daemon=True).start()
    locks = connect(task["url"], worker.options)
    mark("Begin")
    numbers = list(range(task["tasks"]))
    threads = [threading.Thread(target=play_blocking, args=(worker, one, locks)) for one in numbers[::2]]
    if numbers[1::2]:
        runner = asyncio.run
        threads.append(threading.Thread(target=lambda: runner(play_all_async(worker, numbers[1::2]))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    locks.close()
    mark("End")


if __name__ == "__main__":
    main()
