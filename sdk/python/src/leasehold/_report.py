"""Log lines of the background thread, on a thread of their own: a log that blocks must not delay a renewal."""

from __future__ import annotations

import logging
import os
import queue
import threading
from typing import Final

log: Final = logging.getLogger("leasehold")

#: Lines that wait for a log that blocks. Further ones are dropped.
MOST: Final = 1000


class _Reporter:
    """The thread and its queue, for one process. The thread starts with the first line."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lines: queue.SimpleQueue[tuple[int, str, tuple[object, ...]] | threading.Event] = queue.SimpleQueue()
        self.started = False

    def run(self) -> None:
        while True:
            item = self.lines.get()
            if isinstance(item, threading.Event):
                item.set()
            else:
                log.log(item[0], item[1], *item[2])


_reporter = _Reporter()


def report(level: int, message: str, *args: object) -> None:
    """Log a line soon. Never blocks."""
    global _reporter
    if not log.isEnabledFor(level):
        return
    if _reporter.process != os.getpid():
        _reporter = _Reporter()
    reporter = _reporter
    if reporter.lines.qsize() >= MOST:
        return
    reporter.lines.put((level, message, args))
    if not reporter.started:
        reporter.started = True
        try:
            threading.Thread(target=reporter.run, name="leasehold-log", daemon=True).start()
        except RuntimeError:
            # The interpreter is shutting down.
            reporter.started = False


def flush(seconds: float) -> None:
    """Wait until the log has taken what was reported so far, for a limited time."""
    if _reporter.started and _reporter.process == os.getpid():
        done = threading.Event()
        _reporter.lines.put(done)
        done.wait(seconds)
