"""Real servers for the tests: a lock server of its own, and the bench, which puts a proxy with faults before one."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from types import TracebackType

ROOT = pathlib.Path(__file__).resolve().parents[3]
SDK = ROOT / "sdk" / "python"


def program(variable: str, *built: str) -> str:
    """Find a program that the tests need. A missing one is a failure, never a reason to skip."""
    given = os.environ.get(variable)
    candidates = [given] if given else [str(ROOT / "target" / "debug" / one) for one in built]
    for one in candidates:
        if os.access(one, os.X_OK):
            return one
    raise RuntimeError(f"there is no {' or '.join(candidates)}; build it, or set {variable}")


def leasehold_bin() -> str:
    return program("LEASEHOLD_BIN", "leasehold")


def proxy_bin() -> str:
    return program("LEASEHOLD_FAULT_PROXY", "examples/fault-proxy")


def vectors() -> dict[str, object]:
    path = pathlib.Path(os.environ.get("LEASEHOLD_SDK_VECTORS") or ROOT / "sdk" / "vectors.json")
    loaded: dict[str, object] = json.loads(path.read_text())
    return loaded


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Server:
    """A lock server on SQLite, in a directory of its own. It ends with the block."""

    def __init__(self, *args: str, scheme: str = "http") -> None:
        self.dir = tempfile.mkdtemp(prefix="leasehold-sdk-")
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.args = args
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
        command = [leasehold_bin(), "serve", "--listen", f"127.0.0.1:{self.port}", "--log", "none", *self.args]
        self.process = subprocess.Popen(
            command, cwd=self.dir, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError("the lock server did not start") from None
                time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def show(self, name: str) -> dict[str, object]:
        with urllib.request.urlopen(f"{self.url}/v1/locks/{name}", timeout=10) as answer:
            shown: dict[str, object] = json.load(answer)
            return shown

    def count(self, name: str) -> tuple[int, int]:
        """Return how many hold and how many wait."""
        shown = self.show(name)
        held, waiting = shown["holder_count"], shown["queue_length"]
        assert isinstance(held, int)
        assert isinstance(waiting, int)
        return held, waiting

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


class Bench:
    """A lock server and a proxy before it, with commands for faults. It ends with the block."""

    def __enter__(self) -> Bench:
        environment = {**os.environ, "LEASEHOLD_BIN": leasehold_bin()}
        self.process = subprocess.Popen(
            [proxy_bin()], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._lock = threading.Lock()
        assert self.process.stdout is not None
        urls = json.loads(self.process.stdout.readline())
        self.server, self.proxy = urls["server"], urls["proxy"]
        return self

    def command(self, line: str) -> str:
        """Send a command. Returns what follows `ok`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self._lock:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().strip()
        word, _, value = answer.partition(" ")
        if word != "ok":
            raise AssertionError(f"bench: {line}: {answer}")
        return value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            # It ends, and everything with it, when its input ends.
            self.process.stdin.close()
            self.process.wait(15)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
