"""Blocking connections to one server, kept for the next call."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from ._address import Address
from ._http import Reader, request
from ._wire import Answer, Call
from .errors import Aborted, Error, NetworkTimeout, Unavailable

#: How long an unused connection is kept: less than a server waits for the next request.
IDLE: Final = 4.0
MAX_IDLE: Final = 64
#: How long connecting may take: a lost packet is sent again after one second, and then after two.
CONNECT: Final = 4.0
#: After this long in silence, a call that waits asks whether the server is still there.
QUIET: Final = 0.2

UNREACHABLE: Final = "cannot reach the server; check the host and port, and that it is running"
BROKEN: Final = "the connection to the server broke; whether the call took effect is unknown"
LATE: Final = "the server did not answer in time"
SILENT: Final = "the server stopped answering during the wait"
CLOSED: Final = "the client is closed"

#: Registers a waiting call with the pulse. The function it gets ends the call; the one it returns takes it out again.
Watch = Callable[[Callable[[], None]], Callable[[], None]]


def tune(sock: socket.socket) -> None:
    """Send small requests at once, and let the system notice within seconds that a server died silently."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Connection:
    """One connection. One thread uses it at a time; another may end its call."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.used = False
        self.since = 0.0
        #: Why another thread ended the call.
        self.ended: Error | None = None
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    def end(self, why: Error) -> None:
        """End the call in flight, from another thread."""
        if self.ended is None:
            self.ended = why
        try:
            # Not the method of an SSL socket, which would change what the other thread is reading from.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
        except OSError:
            pass

    def is_dead(self) -> bool:
        """Whether the server has closed the connection while nobody used it: there should be nothing to read."""
        return bool(self._readable.poll(0))

    def exchange(self, data: bytes, reader: Reader, until: float, watch: Watch | None) -> Answer:
        """Send a request and read its answer."""
        self.sock.settimeout(max(0.001, until - time.monotonic()))
        self.sock.sendall(data)
        unwatch: Callable[[], None] | None = None
        try:
            while True:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                quiet = watch is not None and unwatch is None
                self.sock.settimeout(min(left, QUIET) if quiet else left)
                try:
                    received = self.sock.recv(65536)
                except TimeoutError:
                    if watch is not None and unwatch is None:
                        unwatch = watch(lambda: self.end(Unavailable(SILENT)))
                    continue
                answer = reader.feed(received) if received else reader.end()
                if answer is not None:
                    return answer
                if not received:
                    raise ConnectionResetError
        finally:
            if unwatch is not None:
                unwatch()


class Sockets:
    """The connections of a client that blocks."""

    def __init__(self, address: Address, watch: Watch) -> None:
        self._address, self._watch = address, watch
        # A signal handler may make calls while its own thread is in here.
        self._lock = threading.RLock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self.closed = threading.Event()

    def call(self, call: Call) -> Answer:
        """Send a call and wait for its answer."""
        until = time.monotonic() + call.timeout
        data = request(call, self._address.base, self._address.head)
        connection = None if call.fresh else self._take()
        if connection is None:
            connection = Connection(self._connect(until))
        with self._lock:
            self._busy.add(connection)
            closed = self.closed.is_set()
        reader, kept = Reader(), False
        try:
            if closed:
                raise Aborted(CLOSED)
            answer = connection.exchange(data, reader, until, self._watch if call.waits else None)
            kept = reader.reusable and connection.ended is None
            return answer
        except OSError as error:
            if connection.ended is not None:
                raise connection.ended from None
            if isinstance(error, TimeoutError):
                self.forget_idle()
                raise NetworkTimeout(LATE) from None
            broken = Unavailable(BROKEN)
            if connection.used and not reader.began:
                # Other connections of the same age are suspect too.
                self.forget_idle()
                broken.stale = True
            raise broken from error
        finally:
            with self._lock:
                self._busy.discard(connection)
                kept = kept and not self.closed.is_set()
                if kept:
                    self._keep(connection)
            if not kept:
                connection.sock.close()

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if time.monotonic() - connection.since < IDLE and not connection.is_dead():
                return connection
            connection.sock.close()

    def _keep(self, connection: Connection) -> None:
        connection.used, connection.since = True, time.monotonic()
        while self._idle and (connection.since - self._idle[0].since >= IDLE or len(self._idle) >= MAX_IDLE):
            self._idle.pop(0).sock.close()
        self._idle.append(connection)

    def _connect(self, until: float) -> socket.socket:
        timeout = max(0.001, min(CONNECT, until - time.monotonic()))
        try:
            sock = socket.create_connection((self._address.host, self._address.port), timeout)
        except OSError as error:
            raise unreachable() from error
        try:
            tune(sock)
            if self._address.tls is not None:
                sock = self._address.tls.wrap_socket(sock, server_hostname=self._address.host)
            return sock
        except OSError as error:
            sock.close()
            raise refusal(error) from error
        except BaseException:
            sock.close()
            raise

    def forget_idle(self) -> None:
        """Close unused connections: where one got no answer, others opened the same way will get none either."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.sock.close()

    def close(self) -> None:
        """End the calls in flight, and refuse new ones."""
        self.closed.set()
        with self._lock:
            busy = list(self._busy)
        for connection in busy:
            connection.end(Aborted(CLOSED))
        self.forget_idle()


def unreachable(message: str = UNREACHABLE) -> Unavailable:
    """Return the error for a connection that could not be made."""
    error = Unavailable(message)
    error.sent = False
    return error


def refusal(error: OSError) -> Unavailable:
    """Return the error for a connection that could not be made, perhaps because of TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return unreachable("the server's certificate is not trusted; check the host in the URL, and `ca`")
    if isinstance(error, ssl.SSLError):
        return unreachable("cannot agree with the server on TLS; check that it uses TLS, and `cert` and `key`")
    return unreachable()
