"""What goes over HTTP: paths, the fields of requests and answers, and how answers are read.

The tables are the only place that names fields; ``bin/fields`` prints them, to be compared with the server's
``/openapi.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ._options import segment
from .errors import CODES, Error, Internal, Lost, by_answer

#: The most leases, and the most bytes of leases, in one request.
MAX_BATCH: Final = 512
MAX_BATCH_BYTES: Final = 40 * 1024

PATHS: Final = {
    "acquire": "POST /v1/locks/{name}/acquire",
    "release": "POST /v1/locks/{name}/release",
    "revoke": "POST /v1/locks/{name}/revoke",
    "show": "GET /v1/locks/{name}",
    "list": "GET /v1/locks",
    "renew": "POST /v1/renew",
    "alive": "GET /healthz",
}

SENDS: Final[dict[str, frozenset[str]]] = {
    "Acquire": frozenset(
        ("owner_id", "ttl_ms", "lease_id", "mode", "limit", "wait_ms", "queue", "metadata", "repeat"),
    ),
    "RenewMany": frozenset(("leases",)),
    "Renew": frozenset(("lock_name", "lease_id", "extend_by_ms", "fencing_token")),
    "Release": frozenset(("lease_id", "fencing_token", "unanswered")),
    "Revoke": frozenset(("now", "fencing_token")),
}

_MAYBE_TEXT: Final = (str, type(None))
_MAYBE_NUMBER: Final = (int, type(None))

#: The fields that are read, with their types. A field that may be None may also be missing.
READS: Final[dict[str, dict[str, type | tuple[type, ...]]]] = {
    "Acquired": {"fencing_token": int, "expires_in_ms": int, "waited_ms": int},
    "Busy": {"reason": str, "recommended_retry_ms": _MAYBE_NUMBER},
    "RenewedMany": {"results": list},
    "RenewedEach": {
        "status": int,
        "expires_in_ms": _MAYBE_NUMBER,
        "gone": _MAYBE_TEXT,
        "code": _MAYBE_TEXT,
    },
    "Released": {"released": bool},
    "Revoked": {"revoked": int},
    "Listed": {"locks": list, "next_cursor": _MAYBE_TEXT},
    "Lock": {
        "lock_name": str,
        "version": int,
        "last_fencing_token": int,
        "holders": list,
        "holder_count": int,
        "waiters": list,
        "queue_length": int,
    },
    "Holder": {
        "owner_id": str,
        "mode": str,
        "limit": _MAYBE_NUMBER,
        "fencing_token": int,
        "expires_in_ms": _MAYBE_NUMBER,
        "acquired_at_ms": int,
        "renewals": int,
        "metadata": _MAYBE_TEXT,
        "revoked": bool,
    },
    "Waiter": {"owner_id": str, "mode": str, "limit": _MAYBE_NUMBER, "waited_ms": int},
    "Problem": {"error": _MAYBE_TEXT, "code": _MAYBE_TEXT},
}

#: A revocation that names one lease, and that lease is gone: nothing has changed.
HOLDER_CHANGED: Final = "HOLDER_CHANGED"

#: Every code that the SDK knows. ``HELD`` and ``WAIT_TIMEOUT`` are values, and ``SUPERSEDED`` comes with a 410.
KNOWN_CODES: Final = (*CODES, HOLDER_CHANGED, "HELD", "WAIT_TIMEOUT", "SUPERSEDED")


@dataclass
class Call:
    """A request to send."""

    method: str
    target: str
    body: bytes
    #: Seconds until the answer counts as missing.
    timeout: float
    #: The server may stay silent on purpose: it waits for the lock.
    waits: bool = False
    #: Do not use a connection that was used before.
    fresh: bool = False

    def __repr__(self) -> str:
        return f"Call({self.method})"


@dataclass
class Answer:
    """An answer of the server."""

    status: int
    body: bytes
    #: Seconds, from the header ``Retry-After``.
    retry_after: float = 0.0

    def __repr__(self) -> str:
        return f"Answer({self.status})"


def encode(schema: str, fields: Mapping[str, object]) -> bytes:
    """Encode a body. Leaves out what is None or False."""
    return json.dumps(_sent(schema, fields), separators=(",", ":")).encode()


def _sent(schema: str, fields: Mapping[str, object]) -> dict[str, object]:
    unknown = fields.keys() - SENDS[schema]
    if unknown:
        raise Internal(f"the table of {schema} lacks a field")
    return {name: value for name, value in fields.items() if value is not None and value is not False}


def encode_renewal(fields: Mapping[str, object]) -> bytes:
    """Encode one item of a batch."""
    return encode("Renew", fields)


def path(verb: str, name: str = "") -> str:
    """Return the path of a verb."""
    template = PATHS[verb].split(" ", 1)[1]
    return template.replace("{name}", segment(name)) if name else template


def decode(answer: Answer) -> dict[str, Any]:
    """Decode a body, which must be a JSON object."""
    try:
        data = json.loads(answer.body)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise Internal("cannot decode the answer; check that this is a leasehold server of this version")
    return data


def read(schema: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Take the fields of a schema out of an answer."""
    fields = {}
    for field, kind in READS[schema].items():
        value = data.get(field)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise Internal(f"the answer has a wrong `{field}`; check that this is a leasehold server of this version")
        fields[field] = value
    return fields


def ok(schema: str, answer: Answer) -> dict[str, Any]:
    """Read a 200. Every other status is an error."""
    if answer.status != 200:
        raise error(answer)
    return read(schema, decode(answer))


def code(answer: Answer) -> str | None:
    """Return the server's own code of what went wrong."""
    try:
        said = json.loads(answer.body).get("code")
    except (ValueError, AttributeError):
        return None
    return said if isinstance(said, str) else None


def error(answer: Answer) -> Error:
    """Return the error that an answer means."""
    said = code(answer)
    made = make(answer.status, said, _text(answer))
    made.retry_after = answer.retry_after
    return made


def make(status: int, said: str | None, text: str | None) -> Error:
    """Return the error for a status and a code."""
    kind = by_answer(status, said)
    if kind is Lost:
        return Lost("expired")
    if text is None or said is None:
        text = f"the server answered with status {status}"
        if kind.kind == "unsupported":
            text = "there is no leasehold server at this address; check the URL"
    return kind(text)


def _text(answer: Answer) -> str | None:
    try:
        text = json.loads(answer.body).get("error")
    except (ValueError, AttributeError):
        return None
    # The server's messages name fields, never what they held.
    return text[:500] if isinstance(text, str) else None
