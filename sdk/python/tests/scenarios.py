"""Runs sdk/vectors.json with the Python clients: a line `ok ID` or `not ok ID: why` for each case.

Cases without faults run straight to the server with the blocking client and with the asyncio client, and with the
latter through the proxy in `weather`. Cases with faults have a bench of their own, for each client. A blocking acquire
cannot be cancelled by another thread, so cases that cancel run with asyncio only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import queue
import secrets
import sys
import threading
import time
import traceback
import urllib.parse
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import leasehold
import leasehold.aio
from leasehold import _options

from . import pure
from .bench import Bench, vectors

TRANSIENT = ("unavailable", "network_timeout", "overloaded")
#: Cases at the same time. They mostly wait.
AT_ONCE = 10


class BlockingSide:
    """Drives the blocking client."""

    name = "blocking"

    def connect(self, **options: Any) -> Any:
        return leasehold.connect(**options)

    def call(self, work: Callable[[], Any]) -> Any:
        return work()

    def start(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future

    def cancel(self, future: Future[Any]) -> None:
        raise AssertionError("a blocking acquire cannot be cancelled by another thread")

    def listed(self, client: Any, prefix: str, size: int) -> list[str]:
        return [lock.name for lock in client.list(prefix, page_size=size)]

    def signal(self, lock: Any, timeout: float) -> bool:
        return bool(lock.lost.wait(timeout))


class AsyncSide:
    """Drives the asyncio client, in one event loop of its own."""

    name = "asyncio"

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def connect(self, **options: Any) -> Any:
        return leasehold.aio.connect(**options)

    def call(self, work: Callable[[], Any]) -> Any:
        return self.start(work).result()

    def start(self, work: Callable[[], Any]) -> Future[Any]:
        async def run() -> Any:
            made = work()
            return await made if isinstance(made, Coroutine | leasehold.aio.Acquiring) else made

        return asyncio.run_coroutine_threadsafe(run(), self.loop)

    def cancel(self, future: Future[Any]) -> None:
        future.cancel()

    def listed(self, client: Any, prefix: str, size: int) -> list[str]:
        async def names() -> list[str]:
            return [lock.name async for lock in client.list(prefix, page_size=size)]

        found: list[str] = self.call(names)
        return found

    def signal(self, lock: Any, timeout: float) -> bool:
        waiting = self.start(lock.lost.wait)
        try:
            return bool(waiting.result(timeout))
        except FutureTimeout:
            waiting.cancel()
            return False


Side = BlockingSide | AsyncSide


class Case:
    """One run of one case."""

    def __init__(self, case: dict[str, Any], side: Side, straight: str, url: str, weather: bool, bench: Bench | None):
        self.case, self.side, self.weather, self.bench = case, side, weather, bench
        self.straight, self.url = straight, url
        self.prefix = f"{secrets.token_hex(4)}/{case['id']}/"
        self.clients: dict[str, Any] = {}
        self.urls: dict[str, str] = {}
        self.locks: dict[str, Any] = {}
        self.started: dict[str, Future[Any]] = {}
        self.held_back = ""
        self.unsure: set[str] = set()

    def run(self) -> None:
        try:
            for step in self.case["steps"]:
                began = time.monotonic()
                try:
                    getattr(self, "do_" + step["do"])(step)
                except (AssertionError, leasehold.Error, TimeoutError, FutureTimeout) as error:
                    raise AssertionError(f"{json.dumps(step)[:300]}: {type(error).__name__}: {error}") from error
                took = (time.monotonic() - began) * 1000
                limit = step.get("within", 10_000) + step.get("ms", 0)
                assert took <= limit or self.weather, f"{json.dumps(step)[:300]}: took {took:.0f} ms"
        finally:
            for future in self.started.values():
                future.cancel()
            for client in self.clients.values():
                with contextlib.suppress(leasehold.Error):
                    self.side.call(client.close)

    # Clients and calls.

    def client(self, step: dict[str, Any]) -> Any:
        name = step.get("client", "")
        if name not in self.clients:
            self.make(name, {"direct": True} if not name else {})
        return self.clients[name]

    def make(self, name: str, options: dict[str, Any]) -> None:
        direct = options.get("direct") or self.url == self.straight
        url = options.get("url") or (self.straight if direct else self.url)
        made: dict[str, Any] = {} if direct else {"request_timeout": 1.0}
        for option in ("request_timeout", "wait_per_call"):
            if option in options:
                made[option] = options[option] / 1000
        for option in ("token", "owner"):
            if option in options:
                made[option] = options[option]
        self.urls[name] = url
        self.clients[name] = self.side.connect(url=url, **made)

    def full(self, step: dict[str, Any]) -> str:
        lock: str = step["lock"]
        return lock if step.get("raw") else self.prefix + lock

    def again(self, step: dict[str, Any], work: Callable[[], Any]) -> Any:
        """Make a call; in weather, make it again while it fails for a reason that the step does not expect."""
        until = time.monotonic() + 10
        while True:
            try:
                return work()
            except leasehold.Error as error:
                expected = listed(step.get("expect"))
                bad = not self.weather or error.kind not in TRANSIENT or error.kind in expected
                if bad or time.monotonic() > until:
                    raise
            time.sleep(0.05)

    def acquire(self, step: dict[str, Any], once: bool) -> Callable[[], Any]:
        """Return the call of the client."""
        options: dict[str, Any] = {"ttl": step.get("ttl", 10_000) / 1000}
        for option in ("owner", "metadata"):
            if option in step:
                options[option] = step[option]
        if "max_hold" in step:
            options["max_hold"] = step["max_hold"] / 1000
        if "options" in step:
            self.make(step["client"], step["options"])
        client, kind, name = self.client(step), step.get("kind", "mutex"), self.full(step)
        verbs = {
            "mutex": ("mutex", "lock", "try_lock"),
            "read": ("rwlock", "read", "try_read"),
            "write": ("rwlock", "write", "try_write"),
            "semaphore": ("semaphore", "acquire", "try_acquire"),
        }[kind]
        limit = (step["limit"],) if kind == "semaphore" else ()
        wait = {"wait": step["wait"] / 1000} if "wait" in step else {}

        def work() -> Any:
            face = getattr(client, verbs[0])(name, *limit, **options)
            return getattr(face, verbs[2])() if once else getattr(face, verbs[1])(**wait)

        return work

    def outcome(self, step: dict[str, Any], work: Callable[[], Any]) -> str:
        """Make an acquire, and return how it ended."""
        hides = step.get("hides", [])
        try:
            lock = self.again(step, work)
        except (CancelledError, asyncio.CancelledError):
            return "cancelled"
        except leasehold.Error as error:
            shown = "".join(traceback.format_exception_only(error)) + repr(error)
            shown += repr(self.clients.get(step.get("client", ""))) + str(vars(error))
            assert not any(text in shown for text in hides), "a secret is shown"
            return error.kind
        if lock is None:
            return "busy"
        self.locks[step.get("as", "")] = lock
        assert lock.lease_id not in repr(lock), "the lease id is shown"
        return "held"

    # The steps.

    def do_client(self, step: dict[str, Any]) -> None:
        self.make(step["client"], step.get("options", {}))

    def do_try(self, step: dict[str, Any]) -> None:
        work = self.acquire(step, once=True)
        until = time.monotonic() + 10
        while True:
            got = self.outcome(step, lambda: self.side.call(work))
            again = self.weather and got == "busy" and step["expect"] == "held" and time.monotonic() < until
            if not again:
                break
            time.sleep(0.05)
        expect(got, step["expect"])

    def do_lock(self, step: dict[str, Any]) -> None:
        work = self.acquire(step, once=False)
        expect(self.outcome(step, lambda: self.side.call(work)), step["expect"])

    def do_start(self, step: dict[str, Any]) -> None:
        work = self.acquire(step, once=False)
        self.started[step["as"]] = self.side.start(work)
        self.locks["start " + step["as"]] = work

    def do_join(self, step: dict[str, Any]) -> None:
        future = self.started.pop(step["as"])
        work = self.locks["start " + step["as"]]
        tries = iter([lambda: future.result(step.get("within", 10_000) / 1000)])
        got = self.outcome(step, lambda: next(tries, lambda: self.side.call(work))())
        expect(got, step["expect"])

    def do_pending(self, step: dict[str, Any]) -> None:
        time.sleep(step["ms"] / 1000)
        assert not self.started[step["as"]].done(), "the acquire has ended"

    def do_cancel(self, step: dict[str, Any]) -> None:
        self.side.cancel(self.started[step["as"]])

    def do_queued(self, step: dict[str, Any]) -> None:
        self.until(step, lambda shown: shown.queue_length == step["count"])

    def do_free(self, step: dict[str, Any]) -> None:
        self.until(step, lambda shown: shown.holder_count == 0)

    def until(self, step: dict[str, Any], reached: Callable[[leasehold.LockInfo], bool]) -> None:
        until = time.monotonic() + step.get("within", 10_000) / 1000
        while True:
            shown = self.look(step)
            if reached(shown):
                return
            assert time.monotonic() < until, f"it is {shown}"
            time.sleep(0.02)

    def look(self, step: dict[str, Any]) -> leasehold.LockInfo:
        client, name = self.client(step), self.full(step)
        shown: leasehold.LockInfo = self.again(step, lambda: self.side.call(lambda: client.show(name)))
        return shown

    def do_release(self, step: dict[str, Any]) -> None:
        lock = self.locks[step["as"]]
        try:
            released = self.side.call(lock.release)
        except leasehold.Error as error:
            if not self.weather or error.kind not in TRANSIENT:
                expect(error.kind, step["expect"])
            # In weather the lease then ends with its ttl; the next step waits for that.
            return
        expect("released" if released else "gone", step["expect"])

    def do_check(self, step: dict[str, Any]) -> None:
        lock = self.locks[step["as"]]
        try:
            lock.check()
        except leasehold.Lost as lost:
            expect("lost", step["expect"])
            if "reason" in step:
                expect(lost.reason, step["reason"])
        else:
            expect("held", step["expect"])

    def do_lost(self, step: dict[str, Any]) -> None:
        lock, began = self.locks[step["as"]], time.monotonic()
        assert self.side.signal(lock, step.get("within", 10_000) / 1000), "the lock is not lost"
        took = (time.monotonic() - began) * 1000
        assert self.weather or took >= step.get("after", 0), f"lost after {took:.0f} ms"
        if "reason" in step:
            expect(lock.lost.reason, step["reason"])

    def do_stays(self, step: dict[str, Any]) -> None:
        until = time.monotonic() + step["ms"] / 1000
        while time.monotonic() < until:
            self.locks[step["as"]].check()
            time.sleep(0.01)

    def do_left(self, step: dict[str, Any]) -> None:
        left = self.locks[step["as"]].valid_for * 1000
        assert self.weather or step["least"] <= left <= step["most"], f"{left:.0f} ms are left"

    def do_fences(self, step: dict[str, Any]) -> None:
        fences = [self.locks[one].fence for one in step["rise"]]
        assert all(a < b for a, b in itertools.pairwise(fences)), f"{fences}"

    def do_same(self, step: dict[str, Any]) -> None:
        first, second = (self.locks[one].fence for one in step["of"])
        assert first == second, f"{first} and {second}"

    def do_show(self, step: dict[str, Any]) -> None:
        shown = self.look(step)
        got = {
            "holders": shown.holder_count,
            "waiters": shown.queue_length,
            "owners": [holder.owner for holder in shown.holders],
            "metadata": shown.holders[0].metadata if shown.holders else None,
            "fence_of": shown.holders[0].fence if shown.holders else None,
        }
        for field, value in got.items():
            if field in step:
                expected = self.locks[step[field]].fence if field == "fence_of" else step[field]
                assert value == expected, f"{field} is {value!r}"

    def do_list(self, step: dict[str, Any]) -> None:
        client, prefix = self.client(step), self.prefix + step["prefix"]
        names = self.again(step, lambda: self.side.listed(client, prefix, step.get("limit", 200)))
        assert names == [self.prefix + name for name in step["names"]], f"{names}"

    def do_revoke(self, step: dict[str, Any]) -> None:
        client, name = self.client(step), self.full(step)
        fence = self.locks[step["only"]].fence if "only" in step else None
        count = self.again(
            step, lambda: self.side.call(lambda: client.revoke(name, now=step.get("now", False), fence=fence))
        )
        if not self.weather:
            expect(count, step["expect"])

    def do_post(self, step: dict[str, Any]) -> None:
        self.client(step)
        path = step["path"]
        for part in [one.split("}")[0] for one in path.split("{")[1:]]:
            path = path.replace("{" + part + "}", _options.segment(self.prefix + part))
        url = urllib.parse.urlsplit(self.straight if self.weather else self.urls[step.get("client", "")])
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
        try:
            connection.request("POST", path, json.dumps(step["body"]), {"content-type": "application/json"})
            expect(connection.getresponse().status, step["expect"])
        finally:
            connection.close()

    def do_sleep(self, step: dict[str, Any]) -> None:
        time.sleep(step["ms"] / 1000)

    def do_bench(self, step: dict[str, Any]) -> None:
        assert self.bench is not None
        self.held_back = self.bench.command(step["line"]) or self.held_back

    def do_caught(self, step: dict[str, Any]) -> None:
        assert self.bench is not None
        expect(self.bench.command(f"caught {self.held_back} {step.get('within', 10_000)}"), "true")

    def do_deliver(self, step: dict[str, Any]) -> None:
        assert self.bench is not None
        self.bench.command(f"deliver {self.held_back}")

    def do_close(self, step: dict[str, Any]) -> None:
        self.side.call(self.client(step).close)


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def expect(got: Any, expected: Any) -> None:
    assert got in listed(expected), f"got {got!r}, expected {expected!r}"


def cancels(case: dict[str, Any]) -> bool:
    return any(step["do"] == "cancel" for step in case["steps"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="run only cases whose id begins so")
    only = tuple(parser.parse_args().only)
    loaded: Any = vectors()
    results: queue.Queue[tuple[str, str | None]] = queue.Queue()
    asynchronous, blocking = AsyncSide(), BlockingSide()

    def report(name: str, work: Callable[[], None]) -> None:
        try:
            work()
            results.put((name, None))
        except Exception as error:
            results.put((name, " ".join(str(error).split())))

    def faulty(case: dict[str, Any], side: Side) -> None:
        with Bench() as bench:
            Case(case, side, bench.server, bench.proxy, False, bench).run()

    with Bench() as calm, Bench() as stormy, ThreadPoolExecutor(AT_ONCE) as pool:
        stormy.command("weather 4711")
        jobs: list[tuple[str, Callable[[], None]]] = list(pure.cases(loaded["pure"]))
        for case in sorted(loaded["scenarios"], key=lambda case: not case.get("faults")):
            for side in (asynchronous, blocking):
                if side is blocking and cancels(case):
                    continue
                name = f"{case['id']}/{side.name}"
                if case.get("faults"):
                    jobs.append((name, lambda case=case, side=side: faulty(case, side)))  # type: ignore[misc]
                    continue
                straight = Case(case, side, calm.server, calm.server, False, calm)
                jobs.append((name, straight.run))
                if side is asynchronous and case.get("weather", True):
                    weather = Case(case, side, stormy.server, stormy.proxy, True, stormy)
                    jobs.append((f"{case['id']}/weather", weather.run))
        jobs = [job for job in jobs if not only or job[0].startswith(only)]
        for name, work in jobs:
            pool.submit(report, name, work)
        failed = 0
        for _ in jobs:
            name, why = results.get()
            failed += why is not None
            print(f"ok {name}" if why is None else f"not ok {name}: {why}", flush=True)
    print(f"{len(jobs) - failed} of {len(jobs)} cases passed", file=sys.stderr)
    if not jobs:
        print("no case has such an id", file=sys.stderr)
    return 1 if failed or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
