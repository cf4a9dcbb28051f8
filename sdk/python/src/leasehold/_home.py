"""The background thread of a client: renews leases, signals losses, sends releases that no caller awaits.

It runs an event loop of its own, so that one request that hangs delays neither the others nor a lost signal, and so
that a program that is busy, or whose own event loop is blocked, keeps its locks.
"""

from __future__ import annotations

import asyncio
import atexit
import heapq
import itertools
import logging
import os
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final, Protocol

from . import _wire
from ._address import Address
from ._clock import MILLISECOND, NEVER, SECOND, now
from ._held import HeldLease, Renewal, report_loss
from ._report import flush, report
from ._steps import Pause, Steps, T, ask, release
from ._streams import Streams
from ._wire import Call
from .errors import Error

#: Leases that are due within this time are renewed together.
AHEAD: Final = 50 * MILLISECOND
#: The timers of the system stand still while the machine is suspended. After a resume, a loss is signalled late by no
#: more than this; a look at the lock tells the truth at once.
NAP: Final = 1.0
#: How often a waiting client asks whether the server is there, and how long the answer may take.
PULSE: Final = 2.0
#: Releases in flight at the same time.
MAX_RELEASES: Final = 16
#: How long a program that ends waits for releases that are still to be sent.
FAREWELL: Final = 2.0


class Job(Protocol):
    """A release in the background."""

    def steps(self) -> Steps[bool]:
        """Return the steps to send it."""


class Release:
    """The release of a lease that was held."""

    def __init__(self, lease: HeldLease, *, held: bool) -> None:
        self.lease, self.held = lease, held
        #: Whether there was a lease to release.
        self.answer: Future[bool] = Future()

    def steps(self) -> Steps[bool]:
        """Send the release, and again while the server does not answer."""
        lease = self.lease
        fields = {"lease_id": lease.lease_id, "fencing_token": lease.fence}
        return release(lease.name, fields, lease.options, held=self.held)


class Home:
    """The background work of one client. Its thread starts with the first lease and ends with the client."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.process = os.getpid()
        # A signal handler may get here while its own thread is in here.
        self._lock = threading.RLock()
        self._due: list[tuple[int, int, HeldLease]] = []
        self._live: dict[int, HeldLease] = {}
        #: The thread sleeps until then; what is due earlier must wake it.
        self._armed = NEVER
        #: Appended to without a lock, also while garbage is collected.
        self._mail: deque[Job | HeldLease] = deque()
        self._unsent = 0
        self._settled: list[threading.Event] = []
        self._watchers: set[Callable[[], None]] = set()
        self._pulse: asyncio.Task[None] | None = None
        self._ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell: asyncio.Event | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._streams: Streams | None = None
        self._slots: asyncio.Semaphore
        self._entries = itertools.count()
        _homes.add(self)

    # Called by any thread.

    def _start(self) -> None:
        """Start the thread, unless it runs. Call with the lock held."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._bell = asyncio.Event()
            thread = threading.Thread(target=self._run, args=(self._loop,), name="leasehold", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The interpreter is shutting down. Leases end with their ttl.
                self._loop.close()
                self._loop = None

    def _ring(self) -> None:
        """Wake the thread. Safe at any moment, also while garbage is collected."""
        loop, bell = self._loop, self._bell
        # The loop of a fork's parent is not ours to wake.
        if loop is not None and bell is not None and self.process == os.getpid():
            try:
                loop.call_soon_threadsafe(bell.set)
            except RuntimeError:
                # The loop is closed: nothing is left to do.
                pass

    def hold(self, held: HeldLease) -> None:
        """Renew the lease from now on."""
        with self._lock:
            self._start()
            self._live[held.number] = held
        self.schedule(held)

    def schedule(self, held: HeldLease) -> None:
        """Put the lease into its position in the queue."""
        due = held.wanted()
        with self._lock:
            if held.number not in self._live or held.due == due:
                return
            held.due = due
            if due == NEVER:
                return
            heapq.heappush(self._due, (due, next(self._entries), held))
            ring = due < self._armed
        if ring:
            self._ring()

    def forget(self, held: HeldLease) -> None:
        """Stop renewing the lease."""
        with self._lock:
            self._live.pop(held.number, None)
            held.due = NEVER
            # Entries of leases that are gone stay until their time; not too many of them.
            if len(self._due) > 2 * len(self._live) + 64:
                self._due = [entry for entry in self._due if entry[0] == entry[2].due]
                heapq.heapify(self._due)

    def send(self, job: Job) -> None:
        """Send a release in the background."""
        with self._lock:
            self._start()
        self._mail.append(job)
        self._ring()

    def orphan(self, held: HeldLease) -> None:
        """Release a lease whose lock was garbage collected. Takes no lock: the collector may run anywhere."""
        self._mail.append(held)
        self._ring()

    def watch(self, silent: Callable[[], None]) -> Callable[[], None]:
        """Call the function if the server stops answering. Returns a function that ends this."""
        with self._lock:
            self._start()
            self._watchers.add(silent)
        self._ring()
        return lambda: self._unwatch(silent)

    def _unwatch(self, silent: Callable[[], None]) -> None:
        with self._lock:
            self._watchers.discard(silent)

    def settle(self) -> threading.Event:
        """Return an event that is set when no release is outstanding."""
        event = threading.Event()
        with self._lock:
            if self._loop is None:
                event.set()
                return event
            self._settled.append(event)
        self._ring()
        return event

    def end(self) -> None:
        """Let the thread end when nothing is left to do."""
        self._ending = True
        self._ring()

    def held(self) -> list[HeldLease]:
        """Return the leases that are held."""
        with self._lock:
            return list(self._live.values())

    # In the thread.

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._main())
            loop.run_until_complete(loop.shutdown_asyncgens())
        except Exception:
            report(logging.ERROR, "the background thread failed, its locks are lost:\n%s", traceback.format_exc())
            self._abandon(loop)
        finally:
            loop.close()

    def _abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing renews the leases any more, so no program may go on believing in them."""
        with self._lock:
            if self._loop is loop:
                self._loop, self._armed = None, NEVER
            live, self._live = list(self._live.values()), {}
            settled, self._settled = self._settled, []
        for held in live:
            held.refuse("unattended")
        for event in settled:
            event.set()

    async def _main(self) -> None:
        bell = self._bell
        assert bell is not None
        streams = self._streams = Streams(self._address, None)
        self._slots = asyncio.Semaphore(MAX_RELEASES)
        loop = asyncio.get_running_loop()
        try:
            while True:
                bell.clear()
                self._take_mail()
                armed = self._start_due()
                self._beat()
                if self._is_over():
                    return
                timer = None
                if armed != NEVER:
                    timer = loop.call_later(min(max(0, armed - now()) / SECOND, NAP), bell.set)
                await bell.wait()
                if timer is not None:
                    timer.cancel()
        finally:
            if self._pulse is not None:
                self._pulse.cancel()
                await asyncio.wait({self._pulse})
            streams.close()

    def _is_over(self) -> bool:
        """Tell those that wait for releases; and return whether the thread can end."""
        with self._lock:
            if self._mail or self._unsent:
                return False
            settled, self._settled = self._settled, []
            over = self._ending and not self._live and not self._work
            if over:
                # Whoever comes from now on starts another thread.
                self._loop, self._armed = None, NEVER
        for event in settled:
            event.set()
        return over

    def _take_mail(self) -> None:
        while self._mail:
            item = self._mail.popleft()
            if isinstance(item, HeldLease):
                self.forget(item)
                item = Release(item, held=item.release())
            self._unsent += 1
            self._begin(self._send(item))

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            why = "".join(traceback.format_exception(task.exception()))
            report(logging.ERROR, "background work failed:\n%s", why)
        if self._bell is not None:
            self._bell.set()

    async def _send(self, job: Job) -> None:
        try:
            async with self._slots:
                released = await self.drive(job.steps())
            if isinstance(job, Release):
                job.answer.set_result(released)
        except Error as error:
            if isinstance(job, Release):
                job.answer.set_exception(error)
            report(logging.WARNING, "could not release a lock, it ends with its ttl: %s", error)
        finally:
            self._unsent -= 1

    async def drive(self, steps: Steps[T]) -> T:
        """Carry out steps on the thread's own connections."""
        assert self._streams is not None
        return await drive(self._streams, steps)

    def _start_due(self) -> int:
        """Start what is due. Returns when to look again."""
        at = now()
        looked: list[HeldLease] = []
        with self._lock:
            ahead = AHEAD if self._due and self._due[0][0] <= at else 0
            while self._due and self._due[0][0] <= at + ahead:
                due, _, held = heapq.heappop(self._due)
                if held.due == due and held.number in self._live:
                    held.due = NEVER
                    looked.append(held)
        renewals = []
        for held in looked:
            renewal = held.renewal(AHEAD)
            if renewal is not None:
                renewals.append(renewal)
            if held.state() == "lost":
                self._lost(held)
            else:
                self.schedule(held)
        for batch in batches(renewals):
            self._begin(self._renew(batch))
        with self._lock:
            self._armed = self._due[0][0] if self._due else NEVER
            return self._armed

    def _lost(self, held: HeldLease) -> None:
        report_loss(held)
        self.forget(held)

    async def _renew(self, batch: list[tuple[Renewal, bytes]]) -> None:
        """Renew one batch, and give each lease its answer."""
        body = b'{"leases":[' + b",".join(encoded for _, encoded in batch) + b"]}"
        timeout = min(renewal.timeout for renewal, _ in batch)
        why = "the server did not answer each renewal"
        results: list[Any] = []
        try:
            answer = await self.drive(ask(Call("POST", _wire.path("renew"), body, timeout)))
            results = _wire.ok("RenewedMany", answer)["results"]
        except Error as error:
            why = str(error)
        if len(results) != len(batch):
            results = [None] * len(batch)
        for (renewal, _), result in zip(batch, results, strict=True):
            self._renewed(renewal, result, why)

    def _renewed(self, renewal: Renewal, result: Any, why: str) -> None:
        held = renewal.held
        try:
            fields = _wire.read("RenewedEach", result if isinstance(result, dict) else {})
        except Error as error:
            held.fail(renewal, why if result is None else str(error))
        else:
            status, left = fields["status"], fields["expires_in_ms"]
            if status == 200 and left is not None:
                held.confirm(renewal, left * MILLISECOND)
            elif status == 410:
                held.refuse(fields["gone"] or "not_found")
            else:
                held.fail(renewal, str(_wire.make(status, fields["code"], None)))
        if held.state() == "lost":
            self._lost_once(held)
        else:
            self.schedule(held)

    def _lost_once(self, held: HeldLease) -> None:
        with self._lock:
            known = held.number in self._live
        if known:
            self._lost(held)

    def _beat(self) -> None:
        """Keep the pulse while any call waits."""
        if self._watchers and self._pulse is None:
            self._pulse = asyncio.get_running_loop().create_task(self._feel())

    async def _feel(self) -> None:
        """Ask the server whether it is there, until no call waits or it does not answer."""
        try:
            while True:
                await asyncio.sleep(PULSE)
                if not self._watchers:
                    return
                try:
                    call = Call("GET", _wire.path("alive"), b"", PULSE)
                    # Any answer shows that the server is there.
                    await self.drive(ask(call))
                except Error:
                    with self._lock:
                        watchers, self._watchers = self._watchers, set()
                    for silent in watchers:
                        silent()
                    return
        finally:
            self._pulse = None


def batches(renewals: Iterable[Renewal]) -> Iterable[list[tuple[Renewal, bytes]]]:
    """Split renewals into batches that fit into one request each."""
    batch: list[tuple[Renewal, bytes]] = []
    size = 0
    for renewal in renewals:
        encoded = _wire.encode_renewal(renewal.fields())
        if batch and (len(batch) == _wire.MAX_BATCH or size + len(encoded) > _wire.MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((renewal, encoded))
        size += len(encoded) + 1
    if batch:
        yield batch


async def drive(streams: Streams, steps: Steps[T]) -> T:
    """Carry out steps on the connections of the running event loop."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                step = steps.send(None)
                continue
            try:
                answer = await streams.call(step)
            except Error as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


_homes: weakref.WeakSet[Home] = weakref.WeakSet()


@atexit.register
def _farewell() -> None:
    """Release what a program that ends still holds, and send what is still to be sent, for a short time."""
    until = time.monotonic() + FAREWELL
    waiting = []
    for home in list(_homes):
        if home.process == os.getpid():
            for held in home.held():
                home.orphan(held)
            waiting.append(home.settle())
    for event in waiting:
        event.wait(max(0, until - time.monotonic()))
    flush(max(0, until - time.monotonic()))
