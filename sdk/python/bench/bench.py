"""Measures the client beside the bare HTTP client of Python (`http.client`), in the same run.

    LEASEHOLD_BIN=…/leasehold PYTHONPATH=src:. python bench/bench.py [--seconds 3] [--rounds 200]

- pairs: lock and release of a free name, from one process, beside the same two requests made with `http.client`.
- hand-over: release in one process until the waiter in the other has the lock, beside bare round trips. Both processes
  read the same clock.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import statistics
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable

from tests.bench import Server

import leasehold
from leasehold import _clock, _steps


def bare(url: str) -> Callable[[], None]:
    """Return a pair of bare requests."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    headers = {"content-type": "application/json"}

    def post(verb: str, body: dict[str, object]) -> None:
        connection.request("POST", f"/v1/locks/bare/{verb}", json.dumps(body), headers)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        assert answer.status == 200, said

    def pair() -> None:
        lease_id = _steps.new_lease_id()
        post("acquire", {"owner_id": "bench", "ttl_ms": 30_000, "lease_id": lease_id})
        post("release", {"lease_id": lease_id})

    return pair


def timed(pair: Callable[[], None]) -> tuple[float, float]:
    """Return how long a pair took, and how much of that was this process's own work."""
    began, worked = time.perf_counter(), time.process_time()
    pair()
    return time.perf_counter() - began, time.process_time() - worked


def pairs(url: str, seconds: float) -> None:
    locks = leasehold.connect(url)
    mutex = locks.mutex("sdk")

    def sdk() -> None:
        with mutex:
            pass

    other = bare(url)
    times: dict[str, list[tuple[float, float]]] = {"sdk": [], "bare": []}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        # In turns, so that what else the machine does meets both.
        times["sdk"].append(timed(sdk))
        times["bare"].append(timed(other))
    rates = {name: 1 / statistics.median(took for took, _ in all_) for name, all_ in times.items()}
    work = {name: statistics.median(worked for _, worked in all_) * 1e6 for name, all_ in times.items()}
    print(f"pairs a second: {rates['sdk']:.0f}, bare {rates['bare']:.0f}, ratio {rates['sdk'] / rates['bare']:.2f}")
    print(f"processor time for a pair: {work['sdk']:.0f} us, bare {work['bare']:.0f} us")
    locks.close()


def player(url: str, rounds: int) -> None:
    """One of the two processes of the hand-over: says when it got the lock, and when it released it."""
    with leasehold.connect(url) as locks:
        mutex = locks.mutex("hand-over")
        for _ in range(rounds):
            lock = mutex.lock()
            entered = _clock.now()
            # Long enough for the other process to wait in the queue.
            time.sleep(0.02)
            left = _clock.now()
            lock.release()
            print(f"{lock.fence} {entered} {left}")


def hand_over(url: str, rounds: int) -> None:
    command = [sys.executable, __file__, "--player", url, "--rounds", str(rounds)]
    players = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    turns = []
    for number, one in enumerate(players):
        said, _ = one.communicate()
        turns += [(*map(int, line.split()), number) for line in said.splitlines()]
    turns.sort()
    took = [(b[1] - a[2]) / 1e6 for a, b in itertools.pairwise(turns) if a[3] != b[3]]
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    trips = []
    for number in range(rounds):
        body = {"owner_id": "bench", "ttl_ms": 30_000, "lease_id": _steps.new_lease_id()}
        began = _clock.now()
        connection.request("POST", f"/v1/locks/trip{number}/acquire", json.dumps(body),
                           {"content-type": "application/json"})  # fmt: skip
        connection.getresponse().read()
        trips.append((_clock.now() - began) / 1e6)
    median, trip = statistics.median(took), statistics.median(trips)
    print(f"hand-over: median {median:.2f} ms of {len(took)}, bare round trip {trip:.2f} ms, {median / trip:.1f} trips")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server; one of its own unless given")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--player", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.player:
        player(args.player, args.rounds)
        return
    if args.url:
        pairs(args.url, args.seconds)
        hand_over(args.url, args.rounds)
        return
    with Server() as server:
        pairs(server.url, args.seconds)
        hand_over(server.url, args.rounds)


if __name__ == "__main__":
    main()
