"""Options of a lock, their limits, and what a name may be."""

from __future__ import annotations

import math
import os
import socket
import unicodedata
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal
from urllib.parse import quote

from ._clock import nanoseconds
from .errors import InvalidArgument

Mode = Literal["exclusive", "shared", "permit"]

MAX_NAME_BYTES: Final = 512
MAX_OWNER_BYTES: Final = 256
MAX_METADATA_BYTES: Final = 4096
#: With a shorter ttl, renewals could not keep up with an ordinary pause of the process.
MIN_TTL: Final = 0.05
MAX_TTL: Final = 24 * 3600.0
#: The longest wait that the server accepts in one request.
MAX_WAIT_PER_CALL: Final = 50.0


def utf8(what: str, text: str, most: int) -> bytes:
    """Encode a text, and check its length."""
    if not isinstance(text, str):
        raise InvalidArgument(f"`{what}` must be text (str)")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"`{what}` has characters that are not Unicode text (lone surrogates)") from None
    if len(encoded) > most:
        raise InvalidArgument(f"`{what}` has {len(encoded)} bytes; at most {most} are allowed")
    return encoded


def normal_name(name: str) -> str:
    """Return the name in its normal form (NFC), after checking it."""
    if not isinstance(name, str):
        raise InvalidArgument("`name` must be text (str)")
    normal = unicodedata.normalize("NFC", name)
    if not utf8("name", normal, MAX_NAME_BYTES):
        raise InvalidArgument("`name` must not be empty")
    return normal


def segment(name: str) -> str:
    """Return the name as one segment of a path. A dot is encoded too: ``.`` and ``..`` have a meaning of their own."""
    return quote(name, safe="").replace(".", "%2E")


def seconds(what: str, value: float, least: float, most: float = math.inf) -> float:
    """Check a time in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidArgument(f"`{what}` must be a number of seconds")
    if not least <= value <= most:
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise InvalidArgument(f"`{what}` is {value:g} seconds; it must be at least {least:g}{upper}")
    return float(value)


def default_owner() -> str:
    """Return ``host:pid`` of this process."""
    host = "".join(character for character in socket.gethostname()[:64] if character.isprintable())
    return f"{host or 'localhost'}:{os.getpid()}"


@dataclass(frozen=True)
class Options:
    """The options of a lock. Times are seconds."""

    #: How long a lease lasts unless renewed.
    ttl: float = 30.0
    #: A label that tells people which client asks; ``host:pid`` unless given.
    owner: str | None = None
    #: Text that is shown with the lease.
    metadata: str | None = None
    #: How long the lock may be held in all: renewals end so that it is lost by then.
    max_hold: float | None = None
    #: How long to wait for the lock; for ever unless given.
    wait: float | None = None
    #: The longest wait in one request; make it shorter than a proxy's own limit.
    wait_per_call: float = 10.0
    #: How long the server may take to answer.
    request_timeout: float = 5.0
    #: How long a release is tried.
    release_timeout: float = 5.0

    def __post_init__(self) -> None:
        seconds("ttl", self.ttl, MIN_TTL, MAX_TTL)
        if self.owner is not None and not utf8("owner", self.owner, MAX_OWNER_BYTES):
            raise InvalidArgument("`owner` must not be empty")
        if self.metadata is not None:
            utf8("metadata", self.metadata, MAX_METADATA_BYTES)
        if self.max_hold is not None:
            seconds("max_hold", self.max_hold, MIN_TTL)
        if self.wait is not None:
            seconds("wait", self.wait, 0)
        seconds("wait_per_call", self.wait_per_call, 0.001, MAX_WAIT_PER_CALL)
        seconds("request_timeout", self.request_timeout, 0.001)
        seconds("release_timeout", self.release_timeout, 0.001)

    def __repr__(self) -> str:
        # Metadata may hold what its owner would not want in a log.
        return f"Options(ttl={self.ttl:g}, wait={self.wait}, max_hold={self.max_hold})"

    def but(self, **changes: float | str | None) -> Options:
        """Return these options with the changes that are not None."""
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, **given) if given else self  # type: ignore[arg-type]

    @cached_property
    def ttl_ns(self) -> int:
        """How long a lease is asked for: never longer than it may be held."""
        return nanoseconds(min(self.ttl, self.max_hold or self.ttl))

    def owner_label(self) -> str:
        """Return the owner; the default names the process of this moment, which may be a fork."""
        return self.owner if self.owner is not None else default_owner()
