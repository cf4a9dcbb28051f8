"""Connections of one event loop to one server, kept for the next call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from ._address import Address
from ._http import Reader, request
from ._sockets import (
    BROKEN,
    CLOSED,
    CONNECT,
    IDLE,
    LATE,
    MAX_IDLE,
    QUIET,
    SILENT,
    Watch,
    refusal,
    tune,
    unreachable,
)
from ._wire import Answer, Call
from .errors import Aborted, Error, NetworkTimeout, Unavailable

#: With it, the next address of a host is tried when one stays silent for this long.
NEXT_ADDRESS: Final = 0.5


class Stream:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.used = False
        self.since = 0.0
        #: Why the call was ended.
        self.ended: Error | None = None

    def end(self, why: Error) -> None:
        """End the call in flight."""
        if self.ended is None:
            self.ended = why
        self.writer.transport.abort()

    def is_dead(self) -> bool:
        """Whether the server has closed the connection while nobody used it."""
        return self.reader.at_eof() or self.writer.is_closing()


class Streams:
    """The connections of one event loop. All methods run in it, except where they say otherwise."""

    def __init__(self, address: Address, watch: Watch | None) -> None:
        self._address, self._watch = address, watch
        self._idle: list[Stream] = []
        self._busy: set[Stream] = set()
        self.closed = False

    async def call(self, call: Call) -> Answer:
        """Send a call and wait for its answer. If cancelled, the connection is closed."""
        until = time.monotonic() + call.timeout
        data = request(call, self._address.base, self._address.head)
        if self.closed:
            raise Aborted(CLOSED)
        stream = None if call.fresh else self._take()
        if stream is None:
            stream = await self._connect(until)
        self._busy.add(stream)
        loop = asyncio.get_running_loop()
        # Not `asyncio.wait_for`, which may swallow a cancellation that comes together with the answer.
        timer = loop.call_later(max(0, until - time.monotonic()), stream.end, NetworkTimeout(LATE))
        unwatch: list[Callable[[], None]] = []
        quiet = loop.call_later(QUIET, self._begin_watch, stream, unwatch, loop) if call.waits else None
        reader, kept = Reader(), False
        try:
            if self.closed:
                raise Aborted(CLOSED)
            answer = await self._exchange(stream, data, reader)
            kept = reader.reusable and stream.ended is None and not self.closed
            return answer
        except OSError as error:
            if stream.ended is not None:
                if stream.ended.kind == "network_timeout":
                    self.forget_idle()
                raise stream.ended from None
            broken = Unavailable(BROKEN)
            if stream.used and not reader.began:
                # Other connections of the same age are suspect too.
                self.forget_idle()
                broken.stale = True
            raise broken from error
        finally:
            timer.cancel()
            if quiet is not None:
                quiet.cancel()
            for one in unwatch:
                one()
            self._busy.discard(stream)
            if kept:
                self._keep(stream)
            else:
                stream.writer.transport.abort()

    async def _exchange(self, stream: Stream, data: bytes, reader: Reader) -> Answer:
        stream.writer.write(data)
        while True:
            received = await stream.reader.read(65536)
            answer = reader.feed(received) if received else reader.end()
            # The end of a connection that was ended from here is not the end of an answer.
            if answer is not None and (received or stream.ended is None):
                return answer
            if not received:
                raise ConnectionResetError

    def _begin_watch(
        self,
        stream: Stream,
        unwatch: list[Callable[[], None]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        def silent() -> None:
            # Called by the background thread.
            try:
                loop.call_soon_threadsafe(stream.end, Unavailable(SILENT))
            except RuntimeError:
                # The loop is closed, and the call with it.
                pass

        if self._watch is not None:
            unwatch.append(self._watch(silent))

    def _take(self) -> Stream | None:
        while self._idle:
            stream = self._idle.pop()
            if time.monotonic() - stream.since < IDLE and not stream.is_dead():
                return stream
            stream.writer.transport.abort()
        return None

    def _keep(self, stream: Stream) -> None:
        stream.used, stream.since = True, time.monotonic()
        while self._idle and (stream.since - self._idle[0].since >= IDLE or len(self._idle) >= MAX_IDLE):
            self._idle.pop(0).writer.transport.abort()
        self._idle.append(stream)

    async def _connect(self, until: float) -> Stream:
        address = self._address
        opening = asyncio.ensure_future(
            asyncio.open_connection(
                address.host,
                address.port,
                ssl=address.tls,
                server_hostname=address.host if address.tls is not None else None,
                happy_eyeballs_delay=NEXT_ADDRESS,
            )
        )
        try:
            done, _ = await asyncio.wait({opening}, timeout=max(0, min(CONNECT, until - time.monotonic())))
        except BaseException:
            opening.add_done_callback(_abort)
            opening.cancel()
            raise
        if not done:
            opening.add_done_callback(_abort)
            opening.cancel()
            raise unreachable()
        error = opening.exception()
        if isinstance(error, OSError):
            raise refusal(error) from error
        reader, writer = opening.result()
        sock = writer.get_extra_info("socket")
        try:
            tune(sock)
        except OSError as broken:
            # The server has closed it again already.
            writer.transport.abort()
            raise unreachable() from broken
        return Stream(reader, writer)

    def forget_idle(self) -> None:
        """Close unused connections: where one got no answer, others opened the same way will get none either."""
        idle, self._idle = self._idle, []
        for stream in idle:
            stream.writer.transport.abort()

    def close(self) -> None:
        """End the calls in flight, and refuse new ones."""
        self.closed = True
        for stream in list(self._busy):
            stream.end(Aborted(CLOSED))
        self.forget_idle()


def _abort(opening: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Close a connection that came after nobody wanted it any more."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()
