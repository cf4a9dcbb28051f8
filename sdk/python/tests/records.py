"""Records of a worker's history: 96 bytes each, as docs/sdk-protocol.md says."""

from __future__ import annotations

import os
import struct

KINDS = {
    "AcquireCall": 0,
    "Granted": 1,
    "Busy": 2,
    "AcquireFailed": 3,
    "AcquireDropped": 4,
    "Held": 5,
    "Lost": 6,
    "ReleaseCall": 11,
    "Released": 12,
    "ReleasedNothing": 13,
    "ReleaseFailed": 14,
    "WriteCall": 18,
    "WriteTaken": 19,
    "WriteRejected": 20,
    "Begin": 26,
    "End": 27,
}
MODES = {"exclusive": 0, "shared": 1, "permit": 2}

_BODY = struct.Struct("<BBxxHHI4xQQQQQQ24x")
_SUM = struct.Struct("<Q")


def fnv1a(data: bytes) -> int:
    """Return the 64-bit FNV-1a of some bytes."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def encode(
    kind: str,
    mode: str,
    *,
    place: int,
    task: int,
    worker: int,
    claim: int,
    at: int,
    lease: int = 0,
    fence: int = 0,
    deadline: int = 0,
    value: int = 0,
) -> bytes:
    """Return the bytes of a record."""
    body = _BODY.pack(KINDS[kind], MODES[mode], place, task, worker, claim, at, lease, fence, deadline, value)
    return body + _SUM.pack(fnv1a(body))


class History:
    """The file of a worker. Each record is one write, so that it survives a kill."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, record: bytes) -> None:
        written = os.write(self._file, record)
        assert written == len(record), "a record was cut off"
