"""What the blocking client and the asyncio client share: one background thread and the connections, per process."""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import Final, NoReturn

from ._address import Address
from ._held import HeldLease
from ._home import Home, Release
from ._options import Options
from ._sockets import Sockets
from ._streams import Streams
from .errors import Aborted, InvalidArgument, Lost

CLOSED: Final = "the client is closed"

#: What a fork has inherited. It is never touched again, not even to clean it up: the other process uses it.
_inherited: list[Parts] = []


class Parts:
    """What belongs to one process."""

    def __init__(self, address: Address) -> None:
        self.process = os.getpid()
        self.home = Home(address)
        self.sockets = Sockets(address, self.home.watch)
        self._address = address
        self._streams: dict[asyncio.AbstractEventLoop, Streams] = {}

    def streams(self) -> Streams:
        """Return the connections of the running event loop."""
        loop = asyncio.get_running_loop()
        streams = self._streams.get(loop)
        if streams is None:
            for closed in [other for other in self._streams if other.is_closed()]:
                del self._streams[closed]
            streams = self._streams[loop] = Streams(self._address, self.home.watch)
            streams.closed = self.sockets.closed.is_set()
        return streams

    def close(self) -> None:
        """End the waits, and let the background thread end after the last lease."""
        self.sockets.close()
        for loop, streams in list(self._streams.items()):
            try:
                loop.call_soon_threadsafe(streams.close)
            except RuntimeError:
                # That loop is closed, and its connections with it.
                pass
        self.home.end()


class Core:
    """The state of a client."""

    def __init__(self, address: Address, options: Options) -> None:
        self.address, self.options = address, options
        self._parts = Parts(address)
        self._closed = False
        weakref.finalize(self, _unused, self._parts).atexit = False

    def parts(self) -> Parts:
        """Return what belongs to this process: a fork makes its own."""
        parts = self._parts
        if parts.process != os.getpid():
            _inherited.append(parts)
            parts = self._parts = Parts(self.address)
            if self._closed:
                parts.close()
            weakref.finalize(self, _unused, parts).atexit = False
        return parts

    def open_parts(self) -> Parts:
        """Return what belongs to this process, for a new acquire or a look."""
        if self._closed:
            raise Aborted(CLOSED)
        return self.parts()

    def close(self) -> Parts:
        """Refuse new calls and end those that wait."""
        self._closed = True
        parts = self.parts()
        parts.close()
        return parts

    def __repr__(self) -> str:
        scheme = "https" if self.address.tls is not None else "http"
        return f"{scheme}://{self.address.host}:{self.address.port}{self.address.base}"


def _unused(parts: Parts) -> None:
    """Clean up after a client that was garbage collected. The thread ends with its last lease."""
    if parts.process == os.getpid():
        parts.sockets.forget_idle()
        parts.home.end()


class Lease:
    """What a lock of either client knows about its lease. Nothing here asks the server."""

    def __init__(self, parts: Parts, held: HeldLease, waited: float) -> None:
        self._parts, self._held, self._waited = parts, held, waited
        # A lock that is garbage collected is released by the background thread.
        self._finalizer = weakref.finalize(self, _collected, parts.home, held)
        self._finalizer.atexit = False
        parts.home.hold(held)

    @property
    def name(self) -> str:
        """The name that is locked, in its normal form."""
        return self._held.name

    @property
    def mode(self) -> str:
        """``exclusive``, ``shared`` or ``permit``."""
        return self._held.mode

    @property
    def fence(self) -> int:
        """The fencing token. Pass it along with every write to what the lock protects."""
        return self._held.fence

    @property
    def fence_text(self) -> str:
        """The fencing token as 15 digits, which compare as text like the numbers do."""
        return fence_text(self._held.fence)

    @property
    def owner(self) -> str:
        """The owner label."""
        return self._held.owner

    @property
    def lease_id(self) -> str:
        """The id of the lease: a secret. Any process that has it can renew and release the lease."""
        return self._held.lease_id

    @property
    def waited(self) -> float:
        """How many seconds the acquire took."""
        return self._waited

    @property
    def state(self) -> str:
        """``held``, ``at_risk`` (the last renewal failed or hangs), ``lost`` or ``released``, at this moment."""
        return self._held.state()

    @property
    def valid_for(self) -> float:
        """How many seconds the lock can be relied on unless it is renewed; 0 if it is not held."""
        return self._held.valid_for() / 1e9

    @property
    def deadline_ns(self) -> int:
        """The moment until which the lock can be relied on: nanoseconds of the boot-time clock."""
        return self._held.deadline()

    def check(self) -> None:
        """Check that the lock can be relied on at this moment.

        Call it before each step that matters, also right after a pause: it looks at the clock.

        Raises:
            Lost: The lease is gone, or was released.
        """
        state = self._held.state()
        if state == "lost":
            raise self._held.error() or Lost("deadline_passed")
        if state == "released":
            raise Lost("released")

    def _begin_release(self) -> Release | None:
        """End holding and renewing. Returns what is to be sent, once.

        The release of a lost lock is sent too: it acts only on this very lease, which may last a little longer.
        """
        first = self._finalizer.detach() is not None
        if self._held.is_copy() or not first:
            # In a fork, it belongs to the other process.
            return None
        held = self._held.release()
        self._parts.home.forget(self._held)
        return Release(self._held, held=held)

    def _release_in_background(self) -> None:
        job = self._begin_release()
        if job is not None:
            self._parts.home.send(job)

    def _end(self, error: BaseException | None) -> Lost | None:
        """At the end of a block: return the loss, if that is what the block ends with."""
        lost = self._held.error()
        if lost is None:
            return None
        if error is None:
            return lost
        if not isinstance(error, Lost):
            attach(error, lost)
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.mode} fence={self.fence} {self.state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lock belongs to its process; pass its name and `fence` on instead")


def attach(error: BaseException, lost: Lost) -> None:
    """Attach the loss to the error of the block, which wins."""
    if hasattr(error, "add_note"):
        error.add_note(f"also: {lost}")
    first = error
    while first.__context__ is not None and first.__context__ is not first:
        first = first.__context__
    if first is not lost:
        first.__context__ = lost


def _collected(home: Home, held: HeldLease) -> None:
    if not held.is_copy():
        home.orphan(held)


def fence_text(fence: int) -> str:
    """Return a fencing token as 15 digits, which compare as text like the numbers do."""
    if not 0 <= fence < 10**15:
        raise InvalidArgument("`fence` must be a number from 0 to 999999999999999")
    return f"{fence:015d}"


def read_fence(text: str) -> int:
    """Read a fencing token from its digits."""
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 15):
        raise InvalidArgument("a fence must have 1 to 15 digits")
    return int(text)
