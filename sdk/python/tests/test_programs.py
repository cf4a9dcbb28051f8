"""The programs that the tests of all languages share: worker and fields."""

from __future__ import annotations

import json
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from .bench import SDK, Server
from .records import KINDS, fnv1a


class Programs(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir)
        self.entered: list[int] = []

    def resource(self, path: str) -> None:
        """Take every write, and count the holders inside."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()

        def serve(connection: socket.socket) -> None:
            with connection:
                while request := connection.recv(40, socket.MSG_WAITALL):
                    self.entered.append(request[0])
                    connection.sendall(b"\x01")

        def accept() -> None:
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def worker(self, server: Server) -> tuple[subprocess.Popen[bytes], pathlib.Path]:
        history, resource = self.dir / "history", str(self.dir / "resource")
        if not pathlib.Path(resource).exists():
            self.resource(resource)
        task = {
            "url": server.url,
            "worker": 7,
            "history": str(history),
            "resource": resource,
            "seed": 1,
            "tasks": 5,
            "ttl_ms": 400,
            "patience_ms": 2000,
            "cancels": True,
            "lingers": True,
            "clock_offset_ns": 0,
            "locks": [
                {"place": 0, "name": "m", "kind": "mutex", "limit": 0, "hot": True},
                {"place": 1, "name": "r/w", "kind": "rwlock", "limit": 0, "hot": False},
                {"place": 2, "name": "s", "kind": "semaphore", "limit": 2, "hot": False},
            ],
        }
        (self.dir / "task.json").write_text(json.dumps(task))
        return subprocess.Popen([SDK / "bin" / "worker", self.dir / "task.json"], stdin=subprocess.PIPE), history

    def kinds(self, history: pathlib.Path) -> list[str]:
        names = {number: name for name, number in KINDS.items()}
        data = history.read_bytes() if history.exists() else b""
        records = [data[at : at + 96] for at in range(0, len(data), 96)]
        for record in records:
            self.assertEqual(struct.unpack("<Q", record[88:])[0], fnv1a(record[:88]))
        return [names[record[0]] for record in records]

    def play(self, history: pathlib.Path) -> None:
        """Wait until each kind of turn was played."""
        wanted = {"Granted", "Busy", "Held", "Released", "WriteTaken", "AcquireDropped"}
        until = time.monotonic() + 60
        while not wanted <= set(self.kinds(history)):
            self.assertLess(time.monotonic(), until, f"only {sorted(set(self.kinds(history)))}")
            time.sleep(0.1)

    def test_worker_plays_and_finishes_when_asked(self) -> None:
        with Server() as server:
            process, history = self.worker(server)
            self.play(history)
            process.communicate(b"finish\n", timeout=60)
            self.assertEqual(process.returncode, 0)
            kinds = self.kinds(history)
            self.assertEqual((kinds[0], kinds[-1]), ("Begin", "End"))
            ended = sum(kinds.count(one) for one in ("Granted", "Busy", "AcquireFailed", "AcquireDropped"))
            self.assertEqual(kinds.count("AcquireCall"), ended)
            self.assertEqual(self.entered.count(1), self.entered.count(2))
            # It has released everything.
            for name in ("m", "r%2Fw", "s"):
                self.assertEqual(server.count(name), (0, 0))

    def test_worker_ends_with_its_input(self) -> None:
        with Server() as server:
            process, _ = self.worker(server)
            assert process.stdin is not None
            process.stdin.close()
            self.assertEqual(process.wait(30), 0)

    def test_fields_are_printed_as_json(self) -> None:
        printed = json.loads(subprocess.run([SDK / "bin" / "fields"], check=True, capture_output=True).stdout)
        self.assertIn("lease_id", printed["sends"]["Acquire"])
        self.assertIn("POST /v1/renew", printed["paths"])
        self.assertIn("MISMATCH", printed["codes"])
        self.assertIn("expires_in_ms", printed["reads"]["RenewedEach"])


if __name__ == "__main__":
    unittest.main()
