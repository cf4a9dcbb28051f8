#!/usr/bin/env python3
"""Twenty processes in Rust, Python, TypeScript and Go on one lock, of which some are killed: no two hold it at once, and
fences rise.

  scripts/sdk-mixed.py                 needs the SDKs as scripts/sdk.sh builds them
  scripts/sdk-mixed.py --self-test

LEASEHOLD_BIN and LEASEHOLD_FAULT_PROXY name the built programs, LEASEHOLD_CONTENDER the contender in Rust.
"""
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "target/debug/examples"
OF_EACH, ROUNDS, TTL_MS = 5, 25, 3000
# Each language loses this many of its processes.
KILLS = 2
LIMIT_SECS = 150


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def program(language):
    """The contender of a language. LEASEHOLD_SDK_LANGUAGE names its folder if it is elsewhere."""
    if language == "rust":
        return os.environ.get("LEASEHOLD_CONTENDER", EXAMPLES / "contender")
    folder = os.environ.get(f"LEASEHOLD_SDK_{language.upper()}", ROOT / "sdk" / language)
    return pathlib.Path(folder) / "bin/contender"


Event = collections.namedtuple("Event", "me what fence at")


def judge(events, killed):
    """What is wrong with a log. `killed`: until when each process that was killed may have lived."""
    events = sorted(events, key=lambda event: event.at)
    entered = [event for event in events if event.what == "enter"]
    for before, after in zip(entered, entered[1:]):
        if after.fence <= before.fence:
            yield f"the fence fell or stayed: {before}, then {after}"
    ends = {(event.me, event.fence): event for event in events if event.what != "enter"}
    inside = []
    for enter in entered:
        end = ends.get((enter.me, enter.fence))
        # A process that was killed held the lock at most until then.
        until = end.at if end else killed.get(enter.me)
        if until is None:
            yield f"{enter.me} entered and never left, and was not killed"
        elif end and end.what == "lost":
            # It saw by itself that it no longer held the lock: since when is unknown.
            until = enter.at
        if until is not None:
            inside.append((enter.at, until, enter))
    for (_, until, before), (begins, _, after) in zip(inside, inside[1:]):
        if begins < until:
            yield f"two at once: {before} until {until}, and {after}"


def self_test():
    def event(me, what, fence, at):
        return Event(me, what, fence, at)
    good = [event("a", "enter", 1, 10), event("a", "leave", 1, 20), event("b", "enter", 2, 30),
            event("c", "enter", 3, 50), event("c", "lost", 3, 70), event("a", "enter", 4, 60), event("a", "leave", 4, 80)]
    assert not list(judge(good, {"b": 45}))
    assert len(list(judge(good, {"b": 55}))) == 1
    assert len(list(judge(good, {}))) == 1
    assert len(list(judge([*good, event("d", "enter", 4, 90), event("d", "leave", 4, 95)], {"b": 45}))) == 1
    assert len(list(judge([*good, event("d", "enter", 5, 75), event("d", "leave", 5, 95)], {"b": 45}))) == 1


def read(log):
    lines = log.read_text().splitlines() if log.exists() else []
    return [Event(me, what, int(fence), int(at)) for me, what, fence, at in (line.split() for line in lines)]


def main():
    self_test()
    if sys.argv[1:] == ["--self-test"]:
        return
    languages = ["rust", "python", "typescript", "go"]
    random.seed(seed := int(os.environ.get("SEED", random.randrange(2**32))))
    print(f"SEED={seed}")
    offset = now() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    bench = subprocess.Popen([os.environ.get("LEASEHOLD_FAULT_PROXY", EXAMPLES / "fault-proxy")],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    processes = {}
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        log = directory / "log"
        try:
            url = json.loads(bench.stdout.readline())["server"]
            for number in range(OF_EACH):
                for language in languages:
                    me = f"{language}-{number}"
                    task = directory / f"{me}.json"
                    task.write_text(json.dumps({"url": url, "lock": "mixed/one", "ttl_ms": TTL_MS, "rounds": ROUNDS,
                                                "log": str(log), "me": me, "clock_offset_ns": offset}))
                    processes[me] = subprocess.Popen([program(language), task], stdin=subprocess.DEVNULL)
            killed = kill_some(processes, languages, log)
            ended = list(wait(processes, killed))
            events = read(log)
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
            bench.stdin.close()
            bench.wait()
    found = [*ended, *judge(events, killed)]
    entered = [event for event in events if event.what == "enter"]
    counts = collections.Counter(event.me.split("-")[0] for event in entered)
    for language in languages:
        if counts[language] < (OF_EACH - KILLS) * ROUNDS:
            found.append(f"{language} entered only {counts[language]} times")
    handovers = sum(a.me != b.me for a, b in zip(entered, entered[1:]))
    lost = sum(event.what == "lost" for event in events)
    print(f"{dict(counts)}, {handovers} hand-overs, {len(killed)} killed, {lost} lost")
    if found:
        sys.exit("\n".join(found))


def kill_some(processes, languages, log):
    """Kills processes of each language while all compete: the first of each while it holds the lock."""
    killed, began = {}, time.monotonic()
    wanted = [(language, turn) for turn in range(KILLS) for language in languages]
    # All take part first, unless they are done already.
    while len({event.me for event in read(log)}) < len(processes) and time.monotonic() - began < LIMIT_SECS / 2:
        time.sleep(0.02)
    for language, turn in wanted:
        alive = [me for me in processes if me.startswith(language) and me not in killed and processes[me].poll() is None]
        if not alive:
            continue
        me, end = random.choice(alive), time.monotonic() + 2
        while turn == 0 and time.monotonic() < end and processes[me].poll() is None:
            mine = [event for event in read(log)[-3:] if event.me == me]
            if mine and mine[-1].what == "enter":
                break
            time.sleep(0.0005)
        processes[me].kill()
        if processes[me].wait() == -9:
            killed[me] = now()
    return killed


def wait(processes, killed):
    end = time.monotonic() + LIMIT_SECS
    for me, process in processes.items():
        try:
            code = process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            yield f"{me} does not end"
            continue
        if code != 0 and me not in killed:
            yield f"{me} ended with code {code}"


main()
