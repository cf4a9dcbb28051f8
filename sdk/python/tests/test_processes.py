"""Tests with real processes and signals: stopped, killed, blocked, restarted, interrupted."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from typing import Any

import leasehold
import leasehold.aio

from .bench import SDK, Bench, Server
from .test_locks import until, until_async


class Child:
    """A Python program with a client of the server. It says one word per line."""

    def __init__(self, server: Server, program: str) -> None:
        environment = {**os.environ, "LEASEHOLD_URL": server.url, "PYTHONPATH": str(SDK / "src")}
        begin = "import asyncio, leasehold, leasehold.aio, sys, time\ndef say(word): print(word, flush=True)\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", begin + textwrap.dedent(program)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")

    def hear(self) -> str:
        line = self._lines.get(timeout=60)
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"the program ended: {self.process.stderr.read()}")
        return line

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


class Processes(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server().start()
        self.addCleanup(self.server.__exit__, None, None, None)
        self.locks = leasehold.connect(self.server.url)
        self.addCleanup(self.locks.close)
        logging.getLogger("leasehold").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("leasehold").setLevel, logging.NOTSET)

    def child(self, program: str) -> Child:
        child = Child(self.server, program)
        self.addCleanup(child.end)
        return child

    def take_over(self, child: Child) -> None:
        """Stop a holder, and go on when another client has got its lock."""
        self.assertEqual(child.hear(), "held")
        child.signal(signal.SIGSTOP)
        with self.locks.mutex("x").lock(wait=30):
            child.signal(signal.SIGCONT)
            self.assertEqual(child.hear(), "lost deadline_passed")
        self.assertEqual(child.process.wait(30), 0)

    def test_stopped_holder_learns_of_the_loss_at_its_first_look(self) -> None:
        self.take_over(
            self.child("""
            lock = leasehold.connect().mutex("x", ttl=2).lock()
            say("held")
            while True:
                # A look after the deadline finds the loss, whether or not a timer has run since.
                deadline, at = lock.deadline_ns, time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                if lock.lost.is_set():
                    break
                if at >= deadline and deadline == lock.deadline_ns:
                    say("not seen")
            say("lost " + str(lock.lost.reason))
            """)
        )

    def test_body_of_a_stopped_holder_is_cancelled(self) -> None:
        self.take_over(
            self.child("""
            async def main():
                async with leasehold.aio.connect().mutex("x", ttl=2):
                    say("held")
                    await asyncio.sleep(60)
            try:
                asyncio.run(main())
            except leasehold.Lost as lost:
                say("lost " + lost.reason)
            """)
        )

    def test_lock_of_a_killed_holder_passes_on(self) -> None:
        child = self.child("""
            lock = leasehold.connect().mutex("x", ttl=2).lock()
            say("held")
            time.sleep(60)
        """)
        self.assertEqual(child.hear(), "held")
        child.signal(signal.SIGKILL)
        with self.locks.mutex("x").lock(wait=30):
            pass

    def test_interrupted_wait_leaves_nothing(self) -> None:
        with self.locks.mutex("x"):
            child = self.child("""
                import signal
                # A shell may have started the tests with this signal ignored.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                locks = leasehold.connect()
                say("waits")
                try:
                    locks.mutex("x").lock()
                except KeyboardInterrupt:
                    say("interrupted")
                time.sleep(60)
            """)
            self.assertEqual(child.hear(), "waits")
            until(lambda: self.server.count("x") == (1, 1), "a waiter")
            child.signal(signal.SIGINT)
            self.assertEqual(child.hear(), "interrupted")
            # Less than the 10 s for which the server keeps the place of a silent waiter.
            until(lambda: self.server.count("x") == (1, 0), "an empty queue", 8)

    def test_blocked_event_loop_keeps_its_lock(self) -> None:
        asyncio.run(block_the_loop(self.server))

    def test_busy_threads_keep_their_lock(self) -> None:
        with self.locks.mutex("x", ttl=2) as lock:
            done = threading.Event()

            def spin() -> None:
                while not done.is_set():
                    sum(range(1000))

            threads = [threading.Thread(target=spin) for _ in range(3)]
            for thread in threads:
                thread.start()
            try:
                self.assertFalse(lock.lost.wait(4))
            finally:
                done.set()
                for thread in threads:
                    thread.join()
            lock.check()

    def test_code_that_holds_the_gil_too_long_sees_the_loss(self) -> None:
        # `PyDLL` keeps the interpreter's lock during the call.
        libc = ctypes.PyDLL(None)
        with self.assertRaises(leasehold.Lost):
            with self.locks.mutex("x", ttl=2) as lock:
                libc.usleep(600_000)
                lock.check()
                self.assertFalse(lock.lost.wait(2.5))
                libc.usleep(3_000_000)
                self.assertEqual(lock.state, "lost")
                self.assertEqual(lock.lost.reason, "deadline_passed")

    def test_holder_survives_a_restart_of_the_server(self) -> None:
        with self.locks.mutex("x", ttl=4) as lock:
            self.server.restart()
            self.assertFalse(lock.lost.wait(5))
            self.assertEqual(self.server.count("x"), (1, 0))
        self.assertEqual(self.server.count("x"), (0, 0))

    def test_waiter_survives_a_restart_of_the_server(self) -> None:
        lock = self.locks.mutex("x").lock()
        got: list[leasehold.Lock] = []
        waiter = threading.Thread(target=lambda: got.append(self.locks.mutex("x").lock()))
        waiter.start()
        until(lambda: self.server.count("x") == (1, 1), "a waiter")
        self.server.restart()
        until(lambda: self.server.count("x") == (1, 1), "the waiter after the restart")
        self.assertTrue(lock.release())
        waiter.join(30)
        self.assertGreater(got[0].fence, lock.fence)
        got[0].release()

    def test_stopped_server_costs_the_lock_but_no_hang(self) -> None:
        with self.assertRaises(leasehold.Lost):
            with self.locks.mutex("x", ttl=2) as lock:
                self.server.signal(signal.SIGSTOP)
                self.assertTrue(lock.lost.wait(20))
                self.assertEqual(lock.lost.reason, "deadline_passed")
                self.server.signal(signal.SIGCONT)
        with self.locks.mutex("x").lock(wait=30) as again:
            self.assertGreater(again.fence, lock.fence)

    def test_silent_server_ends_a_wait_long_before_its_answer_is_due(self) -> None:
        with Bench() as bench, leasehold.connect(bench.server) as direct, direct.mutex("x"):
            errors: list[BaseException] = []

            first = leasehold.connect(bench.proxy, wait_per_call=50, request_timeout=1)
            second = leasehold.aio.connect(bench.proxy, wait_per_call=50, request_timeout=1)

            def blocking() -> None:
                try:
                    first.mutex("x").lock()
                except leasehold.Error as error:
                    errors.append(error)

            async def acquire() -> None:
                await second.mutex("x").lock()

            def asynchronous() -> None:
                try:
                    asyncio.run(acquire())
                except leasehold.Error as error:
                    errors.append(error)

            threads = [threading.Thread(target=one, daemon=True) for one in (blocking, asynchronous)]
            for thread in threads:
                thread.start()
            # Only a call that waits at the server is watched.
            for client in (first, second):
                until(lambda client=client: bool(client._core.parts().home._watchers), "a waiting call")  # type: ignore[misc]
            bench.command("blackhole")
            # Silence is noticed after 4 s, and faults are put up with for 10 s more.
            for thread in threads:
                thread.join(40)
            self.assertEqual([type(error).retryable for error in errors], [True, True])  # type: ignore[attr-defined]

    def test_contenders_never_overlap_though_some_are_killed(self) -> None:
        directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, directory)
        log = directory / "log"
        children = []
        for me in range(6):
            task = {"url": self.server.url, "lock": "x", "ttl_ms": 2000, "rounds": 15, "log": str(log), "me": me}
            (directory / f"{me}.json").write_text(json.dumps(task))
            children.append(subprocess.Popen([SDK / "bin" / "contender", directory / f"{me}.json"]))
        until(lambda: log.exists() and len(log.read_text().splitlines()) > 20, "some rounds", 60)
        for child in children[:2]:
            child.kill()
        for child in children[2:]:
            self.assertEqual(child.wait(90), 0)
        for child in children[:2]:
            child.wait()
        inside: str | None = None
        last = rounds = 0
        for line in sorted(log.read_text().splitlines(), key=lambda line: int(line.split()[3])):
            process, word, fence, _ = line.split()
            if word == "enter":
                self.assertIn(inside, (None, "0", "1"), "only a killed process leaves the lock without a word")
                self.assertGreater(int(fence), last)
                inside, last, rounds = process, int(fence), rounds + 1
            else:
                self.assertEqual(inside, process)
                inside = None
        self.assertGreaterEqual(rounds, 60)


async def block_the_loop(server: Server) -> None:
    """Block the event loop for two ttls, while another client tries to get the lock."""
    async with leasehold.aio.connect(server.url) as locks:
        async with locks.mutex("blocked", ttl=2) as lock:
            time.sleep(4)
            lock.check()
            holders: Any = server.show("blocked")["holders"]
            assert holders[0]["renewals"] >= 3, "nothing was renewed"
            await until_async(lambda: lock.state == "held", "a lock without risk")


if __name__ == "__main__":
    unittest.main()
