"""HTTP/1.1 without I/O: requests as bytes, and a reader that is fed bytes until an answer is complete.

Blocking sockets and asyncio share it. The standard library has an HTTP client for the former only.
"""

from __future__ import annotations

from typing import Final

from ._wire import Answer, Call
from .errors import Unavailable

#: The most bytes of an answer: more than a full page of locks needs.
MAX_ANSWER: Final = 64 << 20
MAX_HEAD: Final = 64 << 10


def request(call: Call, base: str, head: str) -> bytes:
    """Return the bytes of a request. ``head`` holds the headers that all requests share."""
    start = f"{call.method} {base}{call.target} HTTP/1.1\r\n{head}"
    if call.method == "POST":
        start += f"Content-Type: application/json\r\nContent-Length: {len(call.body)}\r\n"
    return start.encode("ascii") + b"\r\n" + call.body


def _broken(what: str) -> Unavailable:
    return Unavailable(f"the server does not speak HTTP: {what}; if it uses TLS, write https:")


def _digits(text: str) -> bool:
    # `isdigit` alone also accepts digits that are not ASCII.
    return text.isascii() and text.isdigit() and len(text) < 16


class Reader:
    """Reads one answer."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._status = 0
        self._length: int | None = None
        self._chunked = False
        self._body = bytearray()
        self._retry_after = 0.0
        #: Whether the connection can be used again.
        self.reusable = True

    @property
    def began(self) -> bool:
        """Whether any byte of the answer has come."""
        return bool(self._bytes) or self._status != 0

    def feed(self, data: bytes) -> Answer | None:
        """Take more bytes. Returns the answer when it is complete."""
        self._bytes += data
        while not self._status:
            if not self._head():
                return None
        if self._chunked:
            return self._answer() if self._chunks() else None
        if self._length is None or len(self._bytes) < self._length:
            if len(self._bytes) > MAX_ANSWER:
                raise _broken("the answer is too long")
            return None
        self._body = self._bytes[: self._length]
        if len(self._bytes) > self._length:
            self.reusable = False
        return self._answer()

    def end(self) -> Answer | None:
        """Handle the end of the connection. Returns the answer if this is how it ends."""
        if self._status and not self._chunked and self._length is None:
            self._body = self._bytes
            return self._answer()
        return None

    def _answer(self) -> Answer:
        return Answer(self._status, bytes(self._body), self._retry_after)

    def _head(self) -> bool:
        """Read the head, if all of it has come."""
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0:
            if len(self._bytes) > MAX_HEAD:
                raise _broken("the head of the answer is too long")
            return False
        lines = self._bytes[:end].decode("latin-1").split("\r\n")
        del self._bytes[: end + 4]
        version, _, rest = lines[0].partition(" ")
        status = rest[:3]
        if not version.startswith("HTTP/1.") or not _digits(status):
            raise _broken("the answer has no status line")
        if status.startswith("1"):
            # An interim answer; the real one follows.
            return True
        self.reusable = version == "HTTP/1.1"
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self._header(name.strip().lower(), value.strip())
        self._status = int(status)
        if self._status in (204, 304):
            self._length = 0
        if self._length is None and not self._chunked:
            # The body ends with the connection.
            self.reusable = False
        return True

    def _header(self, name: str, value: str) -> None:
        if name == "content-length":
            if not _digits(value) or int(value) > MAX_ANSWER:
                raise _broken("the length of the answer is wrong")
            self._length = int(value)
        elif name == "transfer-encoding":
            self._chunked = value.lower() == "chunked"
        elif name == "connection" and value.lower() == "close":
            self.reusable = False
        elif name == "retry-after" and _digits(value):
            self._retry_after = float(min(int(value), 3600))

    def _chunks(self) -> bool:
        """Read chunks. Returns whether the last one has come."""
        while True:
            end = self._bytes.find(b"\r\n")
            if end < 0:
                return False
            try:
                size = int(bytes(self._bytes[:end]).split(b";")[0], 16)
            except ValueError:
                raise _broken("a part of the answer has no length") from None
            if size < 0 or len(self._body) + size > MAX_ANSWER:
                raise _broken("the answer is too long")
            if size == 0:
                # Trailers, if any, end with an empty line.
                done = self._bytes.find(b"\r\n\r\n", end)
                if done < 0:
                    return False
                self.reusable = self.reusable and len(self._bytes) == done + 4
                return True
            if len(self._bytes) < end + 2 + size + 2:
                return False
            self._body += self._bytes[end + 2 : end + 2 + size]
            del self._bytes[: end + 2 + size + 2]
