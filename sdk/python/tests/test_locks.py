"""Tests of both clients against a real server."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import leasehold
import leasehold.aio

from .bench import SDK, Server, leasehold_bin

server: Server


def setUpModule() -> None:
    global server
    logging.getLogger("leasehold").setLevel(logging.CRITICAL)
    server = Server().start()


def tearDownModule() -> None:
    server.__exit__(None, None, None)
    logging.getLogger("leasehold").setLevel(logging.NOTSET)


def until(reached: Callable[[], bool], what: str, seconds: float = 20) -> None:
    """Wait for the thing itself, for a bounded time."""
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come")
        time.sleep(0.01)


async def until_async(reached: Callable[[], bool], what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come")
        await asyncio.sleep(0.01)


def free(name: str) -> None:
    until(lambda: server.count(name) == (0, 0), f"a free `{name}`")


class Blocking(unittest.TestCase):
    def setUp(self) -> None:
        self.locks = leasehold.connect(server.url)
        self.addCleanup(self.locks.close)
        self.name = self.id().rsplit(".", 1)[-1]

    def test_block_holds_and_releases(self) -> None:
        with self.locks.mutex(self.name) as lock:
            self.assertEqual(server.count(self.name), (1, 0))
            self.assertEqual((lock.name, lock.mode, lock.state), (self.name, "exclusive", "held"))
            self.assertEqual(int(lock.fence_text), lock.fence)
            self.assertEqual(len(lock.fence_text), 15)
            self.assertIn(str(os.getpid()), lock.owner)
            self.assertTrue(28 < lock.valid_for <= 30)
            self.assertNotIn(lock.lease_id, repr(lock))
            lock.check()
        self.assertEqual(server.count(self.name), (0, 0))
        self.assertEqual((lock.state, lock.valid_for, lock.lost.is_set()), ("released", 0, False))
        with self.assertRaisesRegex(leasehold.Lost, "released"):
            lock.check()

    def test_error_of_the_block_passes_and_releases(self) -> None:
        for error in (ValueError("mine"), KeyboardInterrupt(), SystemExit(3)):
            with self.assertRaises(type(error)) as caught:
                with self.locks.mutex(self.name):
                    raise error
            self.assertIs(caught.exception, error)
            self.assertEqual(server.count(self.name), (0, 0))

    def test_error_of_the_block_wins_over_the_loss(self) -> None:
        with self.assertRaises(ValueError) as caught:
            with self.locks.mutex(self.name, ttl=0.6) as lock:
                self.locks.revoke(self.name)
                self.assertTrue(lock.lost.wait(20))
                raise ValueError("mine")
        self.assertIsInstance(caught.exception.__context__, leasehold.Lost)
        self.assertIn("revoked", str(getattr(caught.exception, "__notes__", "revoked")))

    def test_block_that_lost_its_lock_raises(self) -> None:
        with self.assertRaises(leasehold.Lost) as caught:
            with self.locks.mutex(self.name, ttl=0.6) as lock:
                self.locks.revoke(self.name)
                self.assertTrue(lock.lost.wait(20))
                self.assertEqual((lock.lost.reason, lock.state, lock.valid_for), ("revoked", "lost", 0))
        self.assertEqual(caught.exception.reason, "revoked")
        self.assertFalse(lock.release())
        # The lease of a revoked lock lasts until its ttl ends, unless its holder gives it up.
        lock = self.locks.mutex(f"{self.name}/long", ttl=60).lock()
        self.locks.revoke(lock.name)
        lock._held.refuse("revoked")
        self.assertTrue(lock.release())
        self.assertEqual(server.count(f"{self.name}%2Flong"), (0, 0))
        self.assertFalse(lock.release())

    def test_release_that_fails_hides_no_error(self) -> None:
        with Server() as other:
            locks = leasehold.connect(other.url, release_timeout=0.3)
            with self.assertRaisesRegex(ValueError, "mine"):
                with locks.mutex("x"):
                    other.kill()
                    raise ValueError("mine")
            other.start()
            with self.assertLogs("leasehold", "WARNING"):
                with locks.mutex("y"):
                    other.kill()
            other.start()
            lock = locks.mutex("z").lock()
            other.kill()
            with self.assertRaises(leasehold.Unavailable):
                lock.release()
            self.assertFalse(lock.release())

    def test_busy_is_a_value_and_timeout_an_error(self) -> None:
        mutex = self.locks.mutex(self.name)
        with mutex:
            self.assertIsNone(mutex.try_lock())
            for wait in (0, 0.2):
                with self.assertRaises(leasehold.Timeout):
                    mutex.lock(wait=wait)
            with self.assertRaises(leasehold.Timeout):
                with self.locks.mutex(self.name, wait=0.1):
                    self.fail("entered")
            until(lambda: server.count(self.name) == (1, 0), "an empty queue")
        lock = mutex.try_lock()
        assert lock is not None
        self.assertTrue(lock.release())
        self.assertFalse(lock.release())

    def test_server_that_is_down_is_an_error(self) -> None:
        locks = leasehold.connect("http://127.0.0.1:9")
        with self.assertRaises(leasehold.Unavailable):
            locks.mutex("x").try_lock()
        with self.assertRaises(leasehold.Unavailable):
            locks.mutex("x").lock(wait=0.3)

    def test_threads_take_turns(self) -> None:
        mutex, inside, fences = self.locks.mutex(self.name), [0], []

        def work() -> None:
            for _ in range(5):
                with mutex as lock:
                    inside[0] += 1
                    fences.append(lock.fence)
                    self.assertEqual(inside[0], 1)
                    inside[0] -= 1

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(len(fences), 30)
        self.assertEqual(fences, sorted(set(fences)))

    def test_readers_share_and_writers_do_not(self) -> None:
        rwlock = self.locks.rwlock(self.name)
        with rwlock.read() as one, rwlock.read(wait=5) as two:
            self.assertNotEqual(one.fence, two.fence)
            self.assertEqual(one.mode, "shared")
            self.assertIsNone(rwlock.try_write())
        with rwlock.write() as lock:
            self.assertEqual(lock.mode, "exclusive")
            self.assertIsNone(rwlock.try_read())

    def test_semaphore_has_its_permits(self) -> None:
        semaphore = self.locks.semaphore(self.name, 2)
        with semaphore, semaphore.acquire() as lock:
            self.assertEqual(lock.mode, "permit")
            self.assertIsNone(semaphore.try_acquire())
        with self.assertRaises(leasehold.Mismatch), semaphore:
            self.locks.semaphore(self.name, 3).try_acquire()

    def test_decorated_function_runs_under_the_lock(self) -> None:
        @self.locks.locked(self.name, skip=True)
        def job(number: int, *, more: int) -> int:
            """Do the job."""
            self.assertEqual(server.count(self.name), (1, 0))
            return number + more

        self.assertEqual(job(1, more=2), 3)
        self.assertEqual((job.__name__, job.__doc__), ("job", "Do the job."))
        with self.locks.mutex(self.name):
            self.assertIsNone(job(1, more=2))

    def test_list_show_and_revoke(self) -> None:
        with self.locks.mutex(f"{self.name}/b", owner="me", metadata="text"), self.locks.mutex(f"{self.name}/a"):
            found = list(self.locks.list(f"{self.name}/", page_size=1))
            self.assertEqual([one.name for one in found], [f"{self.name}/a", f"{self.name}/b"])
            shown = self.locks.show(f"{self.name}/b")
            self.assertTrue(shown.held)
            holder = shown.holders[0]
            self.assertEqual((holder.owner, holder.metadata, holder.mode), ("me", "text", "exclusive"))
            self.assertEqual(self.locks.revoke(f"{self.name}/b", fence=holder.fence + 1), 0)
        self.assertEqual(self.locks.revoke(self.name), 0)
        self.assertFalse(self.locks.show(self.name).held)

    def test_lost_signal_ends_its_wait_on_release(self) -> None:
        lock = self.locks.mutex(self.name).lock()
        self.assertFalse(lock.lost.wait(0.01))
        answers: list[bool] = []
        waiter = threading.Thread(target=lambda: answers.append(lock.lost.wait()))
        waiter.start()
        lock.release()
        waiter.join(20)
        self.assertEqual(answers, [False])

    def test_collected_lock_is_released(self) -> None:
        lock: leasehold.Lock | None = self.locks.mutex(self.name).lock()
        self.assertEqual(server.count(self.name), (1, 0))
        del lock
        gc.collect()
        free(self.name)

    def test_close_ends_waits_and_keeps_held_locks(self) -> None:
        locks = leasehold.connect(server.url, wait_per_call=50)
        lock = locks.mutex(self.name, ttl=1.5).lock()
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                locks.mutex(self.name).lock()
            except leasehold.Error as error:
                errors.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        # Only a call that waits at the server is watched.
        until(lambda: bool(locks._core.parts().home._watchers), "a waiting call")
        locks.close()
        waiter.join(20)
        self.assertIsInstance(errors[0], leasehold.Aborted)
        until(lambda: server.count(self.name) == (1, 0), "an empty queue")
        with self.assertRaises(leasehold.Aborted):
            locks.mutex("x").try_lock()
        # Two ttls: it is renewed all the time.
        self.assertFalse(lock.lost.wait(3))
        self.assertTrue(lock.release())
        self.assertEqual(server.count(self.name), (0, 0))

    def test_background_thread_ends_with_the_client(self) -> None:
        def threads() -> set[threading.Thread]:
            return {one for one in threading.enumerate() if one.name == "leasehold"}

        before = threads()
        locks = leasehold.connect(server.url)
        with locks.mutex(self.name):
            (mine,) = threads() - before
        locks.close()
        mine.join(20)
        self.assertFalse(mine.is_alive())
        locks = leasehold.connect(server.url)
        lock = locks.mutex(self.name).lock()
        (mine,) = threads() - before
        del locks
        gc.collect()
        self.assertTrue(mine.is_alive())
        lock.release()
        del lock
        gc.collect()
        mine.join(20)
        self.assertFalse(mine.is_alive())

    def test_many_leases_are_renewed_in_few_requests(self) -> None:
        calls: list[Any] = []
        home = self.locks._core.parts().home
        locks = [self.locks.mutex(f"{self.name}/{n}", ttl=3).lock() for n in range(40)]
        original = home._renew

        async def count(batch: Any) -> None:
            calls.append(len(batch))
            await original(batch)

        home._renew = count  # type: ignore[method-assign]
        until(lambda: sum(calls) >= 120, "three rounds of renewals")
        self.assertLess(len(calls), 60)
        for lock in locks:
            lock.check()
            lock.release()

    def test_log_that_blocks_delays_no_renewal(self) -> None:
        entered, go_on = threading.Event(), threading.Event()

        class Blocking(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                entered.set()
                go_on.wait(60)

        logger, handler = logging.getLogger("leasehold"), Blocking()
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        try:
            lost = self.locks.mutex(f"{self.name}/lost", ttl=0.6).lock()
            self.locks.revoke(lost.name)
            self.assertTrue(entered.wait(20), "the loss was not logged")
            with self.locks.mutex(self.name, ttl=2) as lock:
                self.assertFalse(lock.lost.wait(4))
        finally:
            go_on.set()
            logger.removeHandler(handler)
            logger.setLevel(level)

    def test_proxy_of_the_environment_is_not_used(self) -> None:
        with mock.patch.dict(os.environ, {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}):
            with leasehold.connect(server.url) as locks, locks.mutex(self.name) as lock:
                lock.check()


class Fork(unittest.TestCase):
    def test_fork_has_no_lock_and_its_own_client(self) -> None:
        locks = leasehold.connect(server.url)
        name = self.id()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with locks.mutex(name, ttl=2) as lock:
                read, write = os.pipe()
                child = os.fork()
                if child == 0:
                    try:
                        said = f"{lock.state} {lock.lost.reason} {lock.release()} "
                        said += str(locks.mutex(name).try_lock())
                        with locks.mutex(f"{name}/child", ttl=1) as own:
                            time.sleep(2.5)
                            said += f" {own.state}"
                        os.write(write, said.encode())
                    finally:
                        os._exit(0)
                os.close(write)
                _, status = os.waitpid(child, 0)
                with os.fdopen(read) as answer:
                    self.assertEqual(answer.read(), "lost forked False None held")
                self.assertEqual(status, 0)
                lock.check()
        self.assertEqual(server.count(name), (0, 0))
        locks.close()

    def test_pool_of_forked_workers_takes_turns(self) -> None:
        global shared
        shared = leasehold.connect(server.url)
        # The client has connections and a thread before the fork.
        with shared.mutex("pool"):
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with multiprocessing.get_context("fork").Pool(4) as pool:
                fences = [fence for part in pool.map(take_turns, range(4)) for fence in part]
        self.assertEqual(len(set(fences)), 20)
        shared.close()

    def test_spawned_process_connects_by_itself(self) -> None:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            self.assertEqual(pool.apply(connect_and_lock, (server.url,)), "held")


shared: leasehold.Locks


def take_turns(_: int) -> list[int]:
    fences = []
    for _ in range(5):
        with shared.mutex("pool") as lock:
            fences.append(lock.fence)
    return fences


def connect_and_lock(url: str) -> str:
    with leasehold.connect(url) as locks, locks.mutex("spawned") as lock:
        return lock.state


class Exit(unittest.TestCase):
    def run_program(self, program: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LEASEHOLD_URL": server.url, "PYTHONPATH": str(SDK / "src")}
        command = [sys.executable, "-c", textwrap.dedent(program)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def test_program_that_ends_releases_its_locks(self) -> None:
        program = "import leasehold; locks = leasehold.connect(); lock = locks.mutex('exit').lock()"
        done = self.run_program(program + "; print(lock.state)")
        self.assertEqual((done.stdout, done.stderr, done.returncode), ("held\n", "", 0))
        free("exit")

    def test_program_ends_although_the_server_is_gone(self) -> None:
        with Server() as other:
            began = time.monotonic()
            done = self.run_program(f"""
                import leasehold, os, signal
                locks = leasehold.connect({other.url!r})
                lock = locks.mutex('x').lock()
                os.kill({other.process.pid if other.process else 0}, signal.SIGKILL)
            """)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertLess(time.monotonic() - began, 20)


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.locks = leasehold.aio.connect(server.url)
        self.addAsyncCleanup(self.locks.close)
        self.name = self.id().rsplit(".", 1)[-1]

    async def test_body_holds_and_releases(self) -> None:
        async with self.locks.mutex(self.name) as lock:
            self.assertEqual(server.count(self.name), (1, 0))
            lock.check()
            self.assertIsNone(await self.locks.mutex(self.name).try_lock())
        self.assertEqual(server.count(self.name), (0, 0))
        async with self.locks.mutex(self.name).lock(wait=5) as lock:
            self.assertEqual(lock.state, "held")
        lock = await self.locks.mutex(self.name).lock()
        async with lock:
            pass
        self.assertFalse(await lock.release())

    async def test_body_is_cancelled_when_the_lock_is_lost(self) -> None:
        reached = []
        with self.assertRaises(leasehold.Lost) as caught:
            async with self.locks.mutex(self.name, ttl=0.6):
                await self.locks.revoke(self.name)
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    reached.append("cancelled")
                    raise
        self.assertEqual((caught.exception.reason, reached), ("revoked", ["cancelled"]))
        # The task goes on as if nothing had happened. From Python 3.11 on, it counts its cancellations.
        self.assertEqual(getattr(asyncio.current_task(), "cancelling", int)(), 0)
        await asyncio.sleep(0)

    async def test_error_of_the_body_wins_over_the_loss(self) -> None:
        with self.assertRaises(ValueError) as caught:
            async with self.locks.mutex(self.name, ttl=0.6):
                await self.locks.revoke(self.name)
                try:
                    await asyncio.sleep(60)
                finally:
                    raise ValueError("mine")
        errors, error = [], caught.exception.__context__
        while error is not None:
            errors.append(type(error))
            error = error.__context__
        self.assertIn(leasehold.Lost, errors)

    async def test_body_that_ends_in_spite_of_the_loss_raises(self) -> None:
        with self.assertRaises(leasehold.Lost):
            async with self.locks.mutex(self.name, ttl=0.6):
                await self.locks.revoke(self.name)
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass

    async def test_cancellation_from_outside_stays_one(self) -> None:
        inside = asyncio.Event()

        async def work() -> None:
            async with self.locks.mutex(self.name):
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(free, self.name)

    async def test_cancelled_wait_leaves_nothing(self) -> None:
        async with self.locks.mutex(self.name):
            waiting = asyncio.ensure_future(self.locks.mutex(self.name)._wait("exclusive", None, None)._start())
            await until_async(lambda: server.count(self.name) == (1, 1), "a waiter")
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            await until_async(lambda: server.count(self.name) == (1, 0), "an empty queue")

    async def test_cancelled_acquire_leaves_nothing(self) -> None:
        # Cancelled after ever more steps of the event loop, until an acquire comes to its end.
        for steps in range(200):
            acquiring = asyncio.ensure_future(self.locks.mutex(self.name).try_lock())
            for _ in range(steps):
                await asyncio.sleep(0)
            if acquiring.done():
                lock = acquiring.result()
                assert lock is not None
                await lock.release()
                break
            acquiring.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await acquiring
            await asyncio.to_thread(free, self.name)
        self.assertGreater(steps, 2)

    async def test_cancelled_release_is_still_sent(self) -> None:
        lock = await self.locks.mutex(self.name).lock()
        # It needs a new connection, so nothing is sent before it is cancelled.
        lock._parts.streams().forget_idle()
        releasing = asyncio.ensure_future(lock.release())
        await asyncio.sleep(0)
        releasing.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await releasing
        await asyncio.to_thread(free, self.name)

    async def test_tasks_take_turns(self) -> None:
        mutex, fences = self.locks.mutex(self.name), []

        async def work() -> None:
            for _ in range(5):
                async with mutex as lock:
                    fences.append(lock.fence)
                    await asyncio.sleep(0.001)

        await asyncio.gather(*(work() for _ in range(6)))
        self.assertEqual(len(fences), 30)
        self.assertEqual(fences, sorted(set(fences)))

    async def test_faces_and_looks(self) -> None:
        rwlock, semaphore = self.locks.rwlock(self.name), self.locks.semaphore(f"{self.name}/s", 1)
        async with rwlock.read(), rwlock.read():
            self.assertIsNone(await rwlock.try_write())
        async with rwlock.write() as lock:
            self.assertIsNone(await rwlock.try_read())
            self.assertEqual((await self.locks.show(self.name)).holders[0].fence, lock.fence)
        async with semaphore:
            self.assertIsNone(await semaphore.try_acquire())
            self.assertEqual([one.name async for one in self.locks.list(f"{self.name}/")], [f"{self.name}/s"])
        with self.assertRaises(leasehold.Timeout):
            async with semaphore, semaphore.acquire(wait=0.1):
                self.fail("entered")

    async def test_decorated_coroutine_runs_under_the_lock(self) -> None:
        @self.locks.locked(self.name, skip=True)
        async def job() -> tuple[int, int]:
            return server.count(self.name)

        self.assertEqual(await job(), (1, 0))
        async with self.locks.mutex(self.name):
            self.assertIsNone(await job())

    async def test_lost_signal_wakes_its_waiters(self) -> None:
        lock = await self.locks.mutex(self.name, ttl=0.6).lock()
        waiting = asyncio.ensure_future(lock.lost.wait())
        await self.locks.revoke(self.name)
        self.assertTrue(await waiting)
        lock = await self.locks.mutex(f"{self.name}/2").lock()
        waiting = asyncio.ensure_future(lock.lost.wait())
        await asyncio.sleep(0)
        await lock.release()
        self.assertFalse(await waiting)

    async def test_collected_lock_is_released(self) -> None:
        lock: leasehold.aio.Lock | None = await self.locks.mutex(self.name).lock()
        del lock
        gc.collect()
        await asyncio.to_thread(free, self.name)

    async def test_close_ends_waits(self) -> None:
        locks = leasehold.aio.connect(server.url, wait_per_call=50)
        lock = await locks.mutex(self.name).lock()

        async def acquire() -> None:
            await locks.mutex(self.name).lock()

        waiting = asyncio.ensure_future(acquire())
        # Only a call that waits at the server is watched.
        await until_async(lambda: bool(locks._core.parts().home._watchers), "a waiting call")
        await locks.close()
        done, _ = await asyncio.wait({waiting}, timeout=20)
        self.assertIsInstance(done.pop().exception(), leasehold.Aborted)
        self.assertTrue(await lock.release())


class Loops(unittest.TestCase):
    def test_client_works_in_one_event_loop_after_another(self) -> None:
        locks = leasehold.aio.connect(server.url)

        async def once() -> int:
            async with locks.mutex(self.id()) as lock:
                return lock.fence

        first, second = asyncio.run(once()), asyncio.run(once())
        self.assertLess(first, second)
        asyncio.run(locks.close())


class Access(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir)

    def both(self, name: str, **options: Any) -> None:
        """Take a lock with each client."""
        with leasehold.connect(**options) as locks, locks.mutex(name) as lock:
            self.assertEqual(lock.state, "held")

        async def aio() -> None:
            async with leasehold.aio.connect(**options) as locks, locks.mutex(name) as lock:
                self.assertEqual(lock.state, "held")

        asyncio.run(aio())

    def test_token_decides_what_is_allowed(self) -> None:
        command = [leasehold_bin(), "token", "create", "--tokens", str(self.dir / "tokens"), "--name", "ci"]
        command += ["--prefix", "ci/", "--allow", "acquire,read"]
        token = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
        with Server("--tokens", str(self.dir / "tokens")) as guarded:
            self.both("ci/x", url=guarded.url, token=token)
            with leasehold.connect(guarded.url, token=token) as locks:
                for call in (locks.mutex("other").try_lock, lambda: locks.revoke("ci/x")):
                    with self.assertRaises(leasehold.AuthFailed) as caught:
                        call()
                    self.assertNotIn(token, str(caught.exception))
            with leasehold.connect(guarded.url) as locks, self.assertRaises(leasehold.AuthFailed):
                locks.mutex("ci/x").lock()

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=self.dir)

    def test_tls_checks_both_sides(self) -> None:
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        for name, host in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "subjectAltName=DNS:client")):
            key, ca = ["-keyout", f"{name}-ca.key"], ["-out", f"{name}-ca.pem", "-subj", f"/CN={name}-ca"]
            self.openssl("req", "-x509", *new, *key, *ca, "-addext", "keyUsage=critical,keyCertSign")
            self.openssl("req", *new[:-2], "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
            (self.dir / f"{name}.ext").write_text(host + "\n")
            self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{name}-ca.pem", "-CAkey", f"{name}-ca.key",
                         "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip
        file = {name: str(self.dir / name) for name in os.listdir(self.dir)}
        tls = ["--tls-cert", file["server.pem"], "--tls-key", file["server.key"]]
        good: dict[str, Any] = {"ca": file["server-ca.pem"], "cert": file["client.pem"], "key": file["client.key"]}
        with Server(*tls, "--tls-client-ca", file["client-ca.pem"], scheme="https") as secure:
            self.both("x", url=secure.url, **good)
            with leasehold.connect(secure.url) as locks, self.assertRaisesRegex(leasehold.Unavailable, "`ca`"):
                locks.mutex("x").try_lock()
            with leasehold.connect(secure.url, ca=good["ca"]) as locks, self.assertRaises(leasehold.Unavailable):
                locks.mutex("x").try_lock()
            with leasehold.connect(secure.url.replace("https", "http")) as locks:
                with self.assertRaises(leasehold.Unavailable):
                    locks.mutex("x").try_lock()
            # Connections are kept and replaced here too.
            with leasehold.connect(secure.url, **good) as locks:
                with locks.mutex("x"):
                    pass
                secure.restart()
                with locks.mutex("x", ttl=1) as lock:
                    self.assertFalse(lock.lost.wait(1.5))
        self.assertTrue(ssl.HAS_TLSv1_3)


if __name__ == "__main__":
    unittest.main()
