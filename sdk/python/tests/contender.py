"""One process of the mixed test: takes one mutex again and again, and writes down when."""

from __future__ import annotations

import json
import os
import pathlib
import random
import sys
import time

import leasehold
from leasehold import _clock


def main() -> None:
    task = json.loads(pathlib.Path(sys.argv[1]).read_text())
    log = os.open(task["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def event(word: str, fence: int) -> None:
        os.write(log, f"{task['me']} {word} {fence} {_clock.now()}\n".encode())

    with leasehold.connect(task["url"]) as locks:
        mutex = locks.mutex(task["lock"], ttl=task["ttl_ms"] / 1000)
        for _ in range(task["rounds"]):
            lock = mutex.lock()
            event("enter", lock.fence)
            time.sleep(random.uniform(0.001, 0.005))
            event("lost" if lock.lost.is_set() else "leave", lock.fence)
            lock.release()


if __name__ == "__main__":
    main()
