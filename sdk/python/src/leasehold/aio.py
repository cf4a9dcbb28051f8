"""The asyncio client: the same locks, for programs that wait in an event loop.

Leases are renewed by a thread, so an event loop that is blocked keeps its locks. Inside ``async with``, the body is
cancelled when the lease is lost, and :class:`leasehold.Lost` is raised::

    import leasehold.aio

    locks = leasehold.aio.connect("http://127.0.0.1:7420")
    async with locks.mutex("nightly") as lock:
        await write(row, fence=lock.fence)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import NoReturn, ParamSpec, TypeVar

from . import _looking
from ._address import resolve
from ._blocking import check_limit
from ._clock import now
from ._core import Core, Lease, Parts
from ._held import HeldLease
from ._home import drive
from ._looking import LockInfo
from ._options import Mode, Options, normal_name
from ._steps import Acquisition
from .errors import Aborted, Error, InvalidArgument

__all__ = ["Acquiring", "Lock", "Locks", "LostSignal", "Mutex", "RwLock", "Semaphore", "connect"]

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("leasehold")

Path = str | os.PathLike[str]


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    token_file: Path | None = None,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    ttl: float = 30.0,
    owner: str | None = None,
    metadata: str | None = None,
    max_hold: float | None = None,
    wait: float | None = None,
    wait_per_call: float = 10.0,
    request_timeout: float = 5.0,
    release_timeout: float = 5.0,
) -> Locks:
    """Make a client of a lock server. As :func:`leasehold.connect`; nothing is sent, so there is nothing to await."""
    address = resolve(url, token=token, token_file=token_file, ca=ca, cert=cert, key=key)
    options = Options(ttl, owner, metadata, max_hold, wait, wait_per_call, request_timeout, release_timeout)
    return Locks(Core(address, options))


class LostSignal:
    """Tells that a lock is lost. It is set before the server can grant the lock to another client."""

    def __init__(self, held: HeldLease) -> None:
        self._held = held

    def is_set(self) -> bool:
        """Whether the lock is lost, at this moment."""
        return self._held.reason() is not None

    async def wait(self) -> bool:
        """Wait until the lock is lost. Returns False when it was released."""
        if self._held.is_copy():
            return True
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def listener() -> None:
            _call_soon(loop, over.set)

        self._held.listen(listener)
        try:
            await over.wait()
        finally:
            self._held.unlisten(listener)
        return self.is_set()

    @property
    def reason(self) -> str | None:
        """Why the lock is lost, if it is: see :class:`leasehold.Lost`."""
        return self._held.reason()

    def __repr__(self) -> str:
        return f"<LostSignal {self.reason or 'not set'}>"


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call a function in an event loop, from any thread."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        # The loop is closed: nobody listens any more.
        pass


class Lock(Lease):
    """A lock that is held. Its lease is renewed by a thread until it is released.

    As an asynchronous context manager it cancels the body when the lease is lost, and then raises
    :class:`leasehold.Lost`. An error of the body wins, and has the loss attached. At the end it releases.

    A process can be paused at any line for longer than any ttl. So call :meth:`check` before each step that matters,
    and pass :attr:`fence` along with every write to what the lock protects.
    """

    def __init__(self, parts: Parts, held: HeldLease, waited: float) -> None:
        #: Set when the lock is lost.
        self.lost = LostSignal(held)
        self._body: _Body | None = None
        super().__init__(parts, held, waited)

    async def release(self) -> bool:
        """Release the lock, and wait for the answer. If cancelled, the release is sent in the background.

        Returns whether there was a lease to release: False if it is gone or was released before.

        Raises:
            Error: The server did not confirm it within ``release_timeout``. The lease then ends with its ttl.
        """
        job = self._begin_release()
        if job is None:
            return False
        try:
            return await drive(self._parts.streams(), job.steps())
        except Aborted:
            # The client is closed, but this lock was still held.
            self._parts.home.send(job)
            return await asyncio.wrap_future(job.answer)
        except Error:
            raise
        except BaseException:
            self._parts.home.send(job)
            raise

    async def __aenter__(self) -> Lock:
        if self._body is not None:
            raise InvalidArgument("a lock can be entered once")
        self._body = _Body(self._held)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._body is not None
        if self._body.end(error):
            # The loss ended the body, and nothing else did.
            error = None
        lost = self._end(error)
        if lost is not None:
            self._release_in_background()
            raise lost
        try:
            await self.release()
        except Error as failure:
            # It never hides the error of the body, and the work was done under the lock.
            log.warning("could not release a lock, it ends with its ttl: %s", failure)


class _Body:
    """The body of an ``async with``: cancels its task when the lease is lost."""

    def __init__(self, held: HeldLease) -> None:
        task = asyncio.current_task()
        assert task is not None, "a body runs in a task"
        self._held, self._task = held, task
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._cancelled = False
        # From Python 3.11 on, a task counts its cancellations, so that each can be told from the others.
        self._before: int = getattr(task, "cancelling", int)()
        held.listen(self._over)

    def _over(self) -> None:
        _call_soon(self._loop, self._cancel)

    def _cancel(self) -> None:
        if self._open and self._held.reason() is not None:
            self._cancelled = True
            self._task.cancel()

    def end(self, error: BaseException | None) -> bool:
        """End it. Returns whether the error is the cancellation by the loss alone."""
        self._open = False
        self._held.unlisten(self._over)
        if not self._cancelled:
            return False
        left: int = getattr(self._task, "uncancel", int)()
        return isinstance(error, asyncio.CancelledError) and left <= self._before


class Acquiring:
    """An acquire: await it, or enter it with ``async with``."""

    def __init__(self, start: Callable[[], Awaitable[Lock]]) -> None:
        self._start = start
        self._lock: Lock | None = None

    def __await__(self) -> Generator[object, None, Lock]:
        return self._start().__await__()

    async def __aenter__(self) -> Lock:
        self._lock = await self._start()
        return await self._lock.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._lock is not None
        await self._lock.__aexit__(kind, error, traceback)


class _Face:
    """What mutex, reader-writer lock and semaphore share."""

    def __init__(self, core: Core, name: str, options: Options) -> None:
        self._core, self._options = core, options
        self._name = normal_name(name)

    @property
    def name(self) -> str:
        """The name of the lock, in its normal form."""
        return self._name

    async def _acquire(self, mode: Mode, limit: int | None, wait: float | None, once: bool) -> Lock | None:
        options = self._options.but(wait=wait)
        parts = self._core.open_parts()
        acquisition = Acquisition(self._name, mode, limit, options, once=once, send_back=parts.home.send)
        try:
            grant = await drive(parts.streams(), acquisition.run())
            if grant is None:
                return None
            held = HeldLease(self._name, mode, acquisition.owner, grant, options)
            lock = Lock(parts, held, (now() - acquisition.started) / 1e9)
            acquisition.pending = False
            return lock
        finally:
            acquisition.give_back()

    def _wait(self, mode: Mode, limit: int | None, wait: float | None) -> Acquiring:
        async def start() -> Lock:
            lock = await self._acquire(mode, limit, wait, once=False)
            assert lock is not None, "a wait ends with a lock or an error"
            return lock

        return Acquiring(start)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


class _Block(_Face):
    """A face that is a context manager itself. Each task has its own stack of locks."""

    def __init__(self, core: Core, name: str, options: Options) -> None:
        super().__init__(core, name, options)
        self._entered: weakref.WeakKeyDictionary[asyncio.Task[object], list[Lock]] = weakref.WeakKeyDictionary()

    def _take(self) -> Acquiring:
        raise NotImplementedError

    def _stack(self) -> list[Lock]:
        task = asyncio.current_task()
        assert task is not None, "a body runs in a task"
        return self._entered.setdefault(task, [])

    async def __aenter__(self) -> Lock:
        stack = self._stack()
        lock = await self._take()
        stack.append(lock)
        return await lock.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack().pop().__aexit__(kind, error, traceback)


class Mutex(_Block):
    """A lock that one client holds at a time. It is not re-entrant."""

    def lock(self, wait: float | None = None) -> Acquiring:
        """Wait for the lock, first come, first served. If cancelled, nothing is left behind.

        Args:
            wait: How many seconds to wait at most; as the options say unless given, which is for ever.

        Raises:
            Timeout: Another client kept the lock for that long.
            Error: The server cannot be reached, or refuses.
        """
        return self._wait("exclusive", None, wait)

    async def try_lock(self) -> Lock | None:
        """Take the lock if it is free. Returns None if another client holds it or waits for it.

        Raises:
            Error: The server cannot be reached, or refuses.
        """
        return await self._acquire("exclusive", None, None, once=True)

    def _take(self) -> Acquiring:
        return self.lock()


class RwLock(_Face):
    """A lock that many readers hold together, or one writer alone. Neither side starves."""

    def read(self, wait: float | None = None) -> Acquiring:
        """Wait for the lock as a reader. As :meth:`Mutex.lock`."""
        return self._wait("shared", None, wait)

    async def try_read(self) -> Lock | None:
        """Take the lock as a reader, or return None. As :meth:`Mutex.try_lock`."""
        return await self._acquire("shared", None, None, once=True)

    def write(self, wait: float | None = None) -> Acquiring:
        """Wait for the lock as a writer. As :meth:`Mutex.lock`."""
        return self._wait("exclusive", None, wait)

    async def try_write(self) -> Lock | None:
        """Take the lock as a writer, or return None. As :meth:`Mutex.try_lock`."""
        return await self._acquire("exclusive", None, None, once=True)


class Semaphore(_Block):
    """A lock that at most ``limit`` clients hold at a time. All clients of a name must give the same limit."""

    def __init__(self, core: Core, name: str, limit: int, options: Options) -> None:
        super().__init__(core, name, options)
        self._limit = check_limit(limit)

    def acquire(self, wait: float | None = None) -> Acquiring:
        """Wait for a permit. As :meth:`Mutex.lock`."""
        return self._wait("permit", self._limit, wait)

    async def try_acquire(self) -> Lock | None:
        """Take a permit if one is free, or return None. As :meth:`Mutex.try_lock`."""
        return await self._acquire("permit", self._limit, None, once=True)

    def _take(self) -> Acquiring:
        return self.acquire()


class Locks:
    """A client of a lock server, for asyncio. Made by :func:`leasehold.aio.connect`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def mutex(
        self,
        name: str,
        *,
        ttl: float | None = None,
        owner: str | None = None,
        metadata: str | None = None,
        max_hold: float | None = None,
        wait: float | None = None,
    ) -> Mutex:
        """Return the mutex of a name. The options override those of the client."""
        changes = {"ttl": ttl, "owner": owner, "metadata": metadata, "max_hold": max_hold, "wait": wait}
        return Mutex(self._core, name, self._core.options.but(**changes))

    def rwlock(
        self,
        name: str,
        *,
        ttl: float | None = None,
        owner: str | None = None,
        metadata: str | None = None,
        max_hold: float | None = None,
        wait: float | None = None,
    ) -> RwLock:
        """Return the reader-writer lock of a name. The options override those of the client."""
        changes = {"ttl": ttl, "owner": owner, "metadata": metadata, "max_hold": max_hold, "wait": wait}
        return RwLock(self._core, name, self._core.options.but(**changes))

    def semaphore(
        self,
        name: str,
        limit: int,
        *,
        ttl: float | None = None,
        owner: str | None = None,
        metadata: str | None = None,
        max_hold: float | None = None,
        wait: float | None = None,
    ) -> Semaphore:
        """Return the semaphore of a name with ``limit`` permits. The options override those of the client."""
        changes = {"ttl": ttl, "owner": owner, "metadata": metadata, "max_hold": max_hold, "wait": wait}
        return Semaphore(self._core, name, limit, self._core.options.but(**changes))

    def locked(
        self,
        name: str,
        *,
        skip: bool = False,
        ttl: float | None = None,
        owner: str | None = None,
        metadata: str | None = None,
        max_hold: float | None = None,
        wait: float | None = None,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R | None]]]:
        """Decorate a coroutine function: it runs under the mutex of this name, and is cancelled if the lease is lost.

        Args:
            name: The name of the mutex.
            skip: If another client holds it, do not run the function, and return None.
            ttl: As in :func:`connect`; so are the other options.
            owner: See there.
            metadata: See there.
            max_hold: See there.
            wait: See there.

        Raises:
            Lost: The lease was lost while the function ran.
        """
        mutex = self.mutex(name, ttl=ttl, owner=owner, metadata=metadata, max_hold=max_hold, wait=wait)

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R | None]]:
            if not inspect.iscoroutinefunction(function):
                raise InvalidArgument("`locked` of leasehold.aio is for coroutine functions (async def)")

            @functools.wraps(function)
            async def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
                lock = await mutex.try_lock() if skip else await mutex.lock()
                if lock is None:
                    return None
                async with lock:
                    return await function(*args, **kwargs)

            return run

        return decorate

    async def show(self, name: str) -> LockInfo:
        """Look at a lock: its holders and waiters."""
        return await drive(self._core.open_parts().streams(), _looking.show(name, self._core.options))

    async def list(self, prefix: str = "", *, page_size: int = _looking.PAGE) -> AsyncIterator[LockInfo]:
        """List the locks in use whose names begin with ``prefix``, in order, ``page_size`` in a request."""
        prefix, cursor = _looking.check_prefix(prefix), None
        _looking.check_page_size(page_size)
        while True:
            streams = self._core.open_parts().streams()
            found, cursor = await drive(streams, _looking.page(prefix, cursor, page_size, self._core.options))
            for lock in found:
                yield lock
            if cursor is None:
                return

    async def revoke(self, name: str, *, now: bool = False, fence: int | None = None) -> int:
        """Revoke the leases of a lock: they cannot be renewed any more. Returns how many.

        Args:
            name: The name of the lock.
            now: Free the name at once. Its holders learn of it at their next renewal, so only fences protect.
            fence: Revoke only the lease with this fence. Returns 0 if that is gone.
        """
        fence = _looking.check_fence(fence)
        return await drive(
            self._core.open_parts().streams(),
            _looking.revoke(name, now, fence, self._core.options),
        )

    async def close(self) -> None:
        """End the waits, refuse new calls, and wait until outstanding releases are sent.

        Locks that are still held go on being renewed until they are released.
        """
        parts = self._core.close()
        settled = parts.home.settle()
        await asyncio.to_thread(settled.wait, self._core.options.release_timeout + 1)

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<leasehold.aio.Locks {self._core!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client belongs to its process; call leasehold.aio.connect() in the other one")
