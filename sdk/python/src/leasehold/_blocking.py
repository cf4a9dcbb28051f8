"""The blocking client: locks for programs and threads that wait in place."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NoReturn, ParamSpec, TypeVar

from . import _looking
from ._address import resolve
from ._clock import now
from ._core import Core, Lease, Parts
from ._held import HeldLease
from ._looking import LockInfo
from ._options import Mode, Options, normal_name
from ._sockets import Sockets
from ._steps import Acquisition, Pause, Steps, T
from .errors import Aborted, Error, InvalidArgument

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
    """Make a client of a lock server. Nothing is sent before the first call. All times are seconds.

    Args:
        url: ``http://HOST:PORT`` or ``https://…``; LEASEHOLD_URL unless given.
        token: The bearer token; LEASEHOLD_TOKEN, or the file in LEASEHOLD_TOKEN_FILE, unless given.
        token_file: A file with the token.
        ca: The authority that signed the server's certificate, in PEM; the system's unless given.
        cert: The client's own certificate, in PEM.
        key: Its key, in PEM.
        ttl: How long a lease lasts unless renewed. It is renewed every third of this.
        owner: A label that tells people which client asks; ``host:pid`` unless given.
        metadata: Text that is shown with the lease.
        max_hold: How long a lock may be held in all. It is then lost.
        wait: How long to wait for a lock; for ever unless given.
        wait_per_call: The longest wait in one request; make it shorter than the limit of a proxy.
        request_timeout: How long the server may take to answer.
        release_timeout: How long a release is tried.

    Raises:
        InvalidArgument: An argument or a file is not as it must be.
    """
    address = resolve(url, token=token, token_file=token_file, ca=ca, cert=cert, key=key)
    options = Options(ttl, owner, metadata, max_hold, wait, wait_per_call, request_timeout, release_timeout)
    return Locks(Core(address, options))


def drive(sockets: Sockets, steps: Steps[T]) -> T:
    """Carry out steps in the calling thread."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Pause):
                if sockets.closed.wait(step.seconds):
                    raise Aborted("the client is closed")
                step = steps.send(None)
                continue
            try:
                answer = sockets.call(step)
            except Error as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


class LostSignal:
    """Tells that a lock is lost. It is set before the server can grant the lock to another client."""

    def __init__(self, held: HeldLease) -> None:
        self._held = held

    def is_set(self) -> bool:
        """Whether the lock is lost, at this moment."""
        return self._held.reason() is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lock is lost. Returns False when it was released, or after ``timeout`` seconds.

        In a loop of work, use it in place of ``time.sleep``.
        """
        if not self._held.is_copy():
            self._held.over.wait(timeout)
        return self.is_set()

    @property
    def reason(self) -> str | None:
        """Why the lock is lost, if it is: see :class:`leasehold.Lost`."""
        return self._held.reason()

    def __repr__(self) -> str:
        return f"<LostSignal {self.reason or 'not set'}>"


class Lock(Lease):
    """A lock that is held. Its lease is renewed in the background until it is released.

    A process can be paused at any line for longer than any ttl. So call :meth:`check` before each step that matters,
    and pass :attr:`fence` along with every write to what the lock protects.

    As a context manager it releases at the end of the block, and raises :class:`leasehold.Lost` if the lease was lost
    in the meantime. An error of the block wins, and has the loss attached.
    """

    def __init__(self, parts: Parts, held: HeldLease, waited: float) -> None:
        #: Set when the lock is lost.
        self.lost = LostSignal(held)
        super().__init__(parts, held, waited)

    def release(self) -> bool:
        """Release the lock, and wait for the answer.

        Returns whether there was a lease to release: False if it is gone or was released before.

        Raises:
            Error: The server did not confirm it within ``release_timeout``. The lease then ends with its ttl.
        """
        job = self._begin_release()
        if job is None:
            return False
        try:
            return drive(self._parts.sockets, job.steps())
        except Aborted:
            # The client is closed, but this lock was still held.
            self._parts.home.send(job)
            return job.answer.result()
        except Error:
            raise
        except BaseException:
            self._parts.home.send(job)
            raise

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lost = self._end(error)
        if lost is not None:
            self._release_in_background()
            raise lost
        try:
            self.release()
        except Error as failure:
            # It never hides the error of the block, and the work was done under the lock.
            log.warning("could not release a lock, it ends with its ttl: %s", failure)


class _Face:
    """What mutex, reader-writer lock and semaphore share."""

    def __init__(self, core: Core, name: str, options: Options) -> None:
        self._core, self._options = core, options
        self._name = normal_name(name)

    @property
    def name(self) -> str:
        """The name of the lock, in its normal form."""
        return self._name

    def _acquire(self, mode: Mode, limit: int | None, wait: float | None, once: bool) -> Lock | None:
        options = self._options.but(wait=wait)
        parts = self._core.open_parts()
        acquisition = Acquisition(self._name, mode, limit, options, once=once, send_back=parts.home.send)
        try:
            grant = drive(parts.sockets, acquisition.run())
            if grant is None:
                return None
            held = HeldLease(self._name, mode, acquisition.owner, grant, options)
            lock = Lock(parts, held, (now() - acquisition.started) / 1e9)
            acquisition.pending = False
            return lock
        finally:
            acquisition.give_back()

    def _wait(self, mode: Mode, limit: int | None, wait: float | None) -> Lock:
        lock = self._acquire(mode, limit, wait, once=False)
        assert lock is not None, "a wait ends with a lock or an error"
        return lock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


class _Block(_Face):
    """A face that is a context manager itself. Each thread has its own stack of locks."""

    def __init__(self, core: Core, name: str, options: Options) -> None:
        super().__init__(core, name, options)
        self._entered = threading.local()

    def _take(self) -> Lock:
        raise NotImplementedError

    def __enter__(self) -> Lock:
        lock = self._take()
        stack: list[Lock] = self._entered.__dict__.setdefault("stack", [])
        stack.append(lock)
        return lock

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stack: list[Lock] = self._entered.stack
        stack.pop().__exit__(kind, error, traceback)


class Mutex(_Block):
    """A lock that one client holds at a time. It is not re-entrant."""

    def lock(self, wait: float | None = None) -> Lock:
        """Wait for the lock, first come, first served.

        Args:
            wait: How many seconds to wait at most; as the options say unless given, which is for ever.

        Raises:
            Timeout: Another client kept the lock for that long.
            Error: The server cannot be reached, or refuses.
        """
        return self._wait("exclusive", None, wait)

    def try_lock(self) -> Lock | None:
        """Take the lock if it is free. Returns None if another client holds it or waits for it.

        Raises:
            Error: The server cannot be reached, or refuses.
        """
        return self._acquire("exclusive", None, None, once=True)

    def _take(self) -> Lock:
        return self.lock()


class RwLock(_Face):
    """A lock that many readers hold together, or one writer alone. Neither side starves."""

    def read(self, wait: float | None = None) -> Lock:
        """Wait for the lock as a reader. As :meth:`Mutex.lock`."""
        return self._wait("shared", None, wait)

    def try_read(self) -> Lock | None:
        """Take the lock as a reader, or return None. As :meth:`Mutex.try_lock`."""
        return self._acquire("shared", None, None, once=True)

    def write(self, wait: float | None = None) -> Lock:
        """Wait for the lock as a writer. As :meth:`Mutex.lock`."""
        return self._wait("exclusive", None, wait)

    def try_write(self) -> Lock | None:
        """Take the lock as a writer, or return None. As :meth:`Mutex.try_lock`."""
        return self._acquire("exclusive", None, None, once=True)


class Semaphore(_Block):
    """A lock that at most ``limit`` clients hold at a time. All clients of a name must give the same limit."""

    def __init__(self, core: Core, name: str, limit: int, options: Options) -> None:
        super().__init__(core, name, options)
        self._limit = check_limit(limit)

    def acquire(self, wait: float | None = None) -> Lock:
        """Wait for a permit. As :meth:`Mutex.lock`."""
        return self._wait("permit", self._limit, wait)

    def try_acquire(self) -> Lock | None:
        """Take a permit if one is free, or return None. As :meth:`Mutex.try_lock`."""
        return self._acquire("permit", self._limit, None, once=True)

    def _take(self) -> Lock:
        return self.acquire()


def check_limit(limit: int) -> int:
    """Check the limit of a semaphore."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit < 1 << 32:
        raise InvalidArgument("`limit` must be a number of permits from 1 to 4294967295")
    return limit


class Locks:
    """A client of a lock server. Threads may share it. Made by :func:`leasehold.connect`."""

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
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """Decorate a function: it runs under the mutex of this name.

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

        def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
            if inspect.iscoroutinefunction(function):
                raise InvalidArgument("`locked` of the blocking client is for ordinary functions; use leasehold.aio")

            @functools.wraps(function)
            def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
                lock = mutex.try_lock() if skip else mutex.lock()
                if lock is None:
                    return None
                with lock:
                    return function(*args, **kwargs)

            return run

        return decorate

    def show(self, name: str) -> LockInfo:
        """Look at a lock: its holders and waiters."""
        return drive(self._core.open_parts().sockets, _looking.show(name, self._core.options))

    def list(self, prefix: str = "", *, page_size: int = _looking.PAGE) -> Iterator[LockInfo]:
        """List the locks in use whose names begin with ``prefix``, in order, ``page_size`` in a request."""
        prefix, cursor = _looking.check_prefix(prefix), None
        _looking.check_page_size(page_size)
        while True:
            sockets = self._core.open_parts().sockets
            found, cursor = drive(sockets, _looking.page(prefix, cursor, page_size, self._core.options))
            yield from found
            if cursor is None:
                return

    def revoke(self, name: str, *, now: bool = False, fence: int | None = None) -> int:
        """Revoke the leases of a lock: they cannot be renewed any more. Returns how many.

        Args:
            name: The name of the lock.
            now: Free the name at once. Its holders learn of it at their next renewal, so only fences protect.
            fence: Revoke only the lease with this fence. Returns 0 if that is gone.
        """
        fence = _looking.check_fence(fence)
        return drive(self._core.open_parts().sockets, _looking.revoke(name, now, fence, self._core.options))

    def close(self) -> None:
        """End the waits of other threads, refuse new calls, and wait until outstanding releases are sent.

        Locks that are still held go on being renewed until they are released.
        """
        parts = self._core.close()
        parts.home.settle().wait(self._core.options.release_timeout + 1)

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<leasehold.Locks {self._core!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client belongs to its process; call leasehold.connect() in the other one")
