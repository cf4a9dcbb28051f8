#!/usr/bin/env python3
"""Builds the workspace's test binaries and runs them, several at once: for `make test` and `make soak`.

  scripts/tests.py run [BINARY...]     each binary once; a failure or a binary that takes too long is an error
  scripts/tests.py soak [BINARY...]    each binary repeatedly, alone and beside two busy loops, until it has run often
                                       enough; prints how often each test failed and how long it took
  scripts/tests.py table               print that table again

A binary is CRATE/TARGET, such as leasehold/redis; the unit tests of a crate are CRATE/unit. Without arguments: all.

Results of `soak` are kept in target/soak.jsonl and add up over several runs. SOAK_MINUTES ends one earlier (default 30).
Remove the file to start afresh, or name binaries with --anew to drop only their results.

Most tests wait for something most of the time, so several binaries run at once (TESTS_AT_ONCE, default 3).
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
AT_ONCE = int(os.environ.get("TESTS_AT_ONCE", "3"))
# No binary takes nearly this long, even on a loaded machine. One that does hangs.
LIMIT_SECS = 900
# Started first, because they take longest: short ones should start last.
LONGEST = ("leasehold/postgres_advisory", "leasehold/postgres_tables", "leasehold/redis", "leasehold-torture/slices")
# How often a binary has to run in a soak, by how long it takes.
OFTEN, SELDOM, SHORT_SECS = 10, 3, 30
BUSY_LOOPS = 2
# All processes that this one has started and that have not ended.
RUNNING = set()


class Binary:
    def __init__(self, name, path, directory):
        self.name, self.path, self.directory = name, path, directory

    def run(self, *arguments, **environment):
        """Exit code (None: it took too long), output and seconds."""
        variables = dict(os.environ, CARGO_MANIFEST_DIR=str(self.directory), **environment)
        began = time.monotonic()
        process = start([self.path, *arguments], cwd=self.directory, env=variables, stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output, code = process.communicate(timeout=LIMIT_SECS)[0], process.returncode
        except subprocess.TimeoutExpired:
            end(process)
            output, code = process.communicate()[0], None
        RUNNING.discard(process)
        return code, output.decode(errors="replace"), time.monotonic() - began


def start(command, **options):
    """Starts a process in its own session, so that everything it starts can be ended with it."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    RUNNING.add(process)
    return process


def end(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def interrupted(number, _):
    for process in list(RUNNING):
        end(process)
    os._exit(128 + number)


def build(wanted):
    """Builds all test binaries and returns the selected ones."""
    command = ["cargo", "test", "--locked", "--workspace", "--all-features", "--no-run",
               "--message-format=json-render-diagnostics"]
    cargo = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if cargo.returncode != 0:
        sys.exit("the tests do not build")
    binaries = []
    for line in cargo.stdout.decode().splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        directory = pathlib.Path(message["manifest_path"]).parent
        target = message["target"]["name"] if "test" in message["target"]["kind"] else "unit"
        binaries.append(Binary(f"{directory.name}/{target}", message["executable"], directory))
    unknown = set(wanted) - {binary.name for binary in binaries}
    if unknown:
        names = " ".join(sorted(binary.name for binary in binaries))
        sys.exit(f"no such test binary: {' '.join(sorted(unknown))}; there are: {names}")
    chosen = [binary for binary in binaries if not wanted or binary.name in wanted]
    return sorted(chosen, key=lambda binary: (binary.name not in LONGEST, binary.name))


def run(wanted):
    binaries = build(wanted)
    passed = ignored = 0
    failed, took = [], []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = {pool.submit(binary.run): binary for binary in binaries}
        for done in concurrent.futures.as_completed(running):
            binary = running[done]
            code, output, secs = done.result()
            print(f"\n--- {binary.name}, {secs:.0f} s\n{output.strip()}", flush=True)
            took.append((secs, binary.name))
            # A binary whose tests run this binary again prints more than one of these lines; the last is its own.
            results = re.findall(r"test result: .*? (\d+) passed; \d+ failed; (\d+) ignored", output)
            if results:
                passed += int(results[-1][0])
                ignored += int(results[-1][1])
            if code != 0 or not results:
                failed.append((binary, code, output))
    print("\nlongest: " + ", ".join(f"{name} {secs:.0f} s" for secs, name in sorted(took, reverse=True)[:8]))
    for binary, code, output in failed:
        why = f"ended with {code}" if code is not None else f"was stopped after {LIMIT_SECS} s"
        print(f"\nFAILED: {binary.name} {why}")
        for name in re.findall(r"^test (.+?) (?:\.\.\. FAILED|has been running for .*)$", output, re.MULTILINE):
            print(f"  {name}")
    print(f"{passed} tests passed in {len(binaries)} binaries, {len(failed)} binaries failed, {ignored} tests ignored")
    return 1 if failed or not passed else 0


class Results:
    """What the runs of a soak showed, one JSON object a line: binary, busy, seconds, and each test with its outcome."""

    def __init__(self):
        self.path = ROOT / "target" / "soak.jsonl"
        self.lock = threading.Lock()
        self.runs = []
        if self.path.exists():
            self.runs = [json.loads(line) for line in self.path.read_text().splitlines()]

    def forget(self, names):
        self.runs = [run for run in self.runs if run["binary"] not in names]
        self.path.write_text("".join(json.dumps(run) + "\n" for run in self.runs))

    def add(self, run):
        with self.lock:
            self.runs.append(run)
            with self.path.open("a") as file:
                file.write(json.dumps(run) + "\n")

    def missing(self, binary, busy):
        """How many runs a binary still needs."""
        secs = [run["secs"] for run in self.runs if run["binary"] == binary.name and run["busy"] == busy]
        if not secs:
            return 1  # that one tells how many more
        return max(0, (OFTEN if statistics.median(secs) < SHORT_SECS else SELDOM) - len(secs))

    def table(self):
        tests = collections.defaultdict(lambda: {False: [], True: []})
        for run in self.runs:
            for name, (outcome, secs) in run["tests"].items():
                tests[run["binary"], name][run["busy"]].append((outcome, secs))
        failed = 0
        rows = []
        for (binary, test), seen in tests.items():
            failures = [sum(outcome != "ok" for outcome, _ in seen[busy]) for busy in (False, True)]
            failed += sum(failures)
            secs = [sec for busy in (False, True) for _, sec in seen[busy]]
            rows.append((sum(failures), max(secs), statistics.median(secs), failures, seen, f"{binary} {test}"))
        rows.sort(key=lambda row: row[:2], reverse=True)
        print(f"{'failed/runs quiet':>18} {'busy':>9} {'median s':>9} {'longest s':>9}  test")
        for _, longest, median, failures, seen, name in rows:
            quiet, busy = (f"{failures[busy]}/{len(seen[busy])}" for busy in (False, True))
            print(f"{quiet:>18} {busy:>9} {median:9.2f} {longest:9.2f}  {name}")
        quiet, busy = (sum(run["busy"] == busy for run in self.runs) for busy in (False, True))
        print(f"{len(rows)} tests, {quiet} runs of binaries quiet and {busy} beside {BUSY_LOOPS} busy loops: "
              f"{failed} failures")
        return 1 if failed else 0


def soak_once(binary, busy, results):
    # The times of single tests need a switch of the nightly compiler.
    code, output, secs = binary.run("-Zunstable-options", "--format=json", "--report-time", RUSTC_BOOTSTRAP="1")
    tests = {}
    for line in output.splitlines():
        # A binary without the usual harness ignores the options and prints plain text.
        plain = re.match(r"test (\S+) \.\.\. (ok|FAILED)(?: \((\d+) s)?", line)
        if plain:
            tests[plain[1]] = (plain[2], float(plain[3] or 0))
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("type") != "test":
            continue
        if event["event"] == "started":
            # A test without an end event has hung.
            tests[event["name"]] = ("hung", secs)
        elif event["event"] != "timeout":
            tests[event["name"]] = (event["event"], event.get("exec_time", 0.0))
    bad = [name for name, (outcome, _) in tests.items() if outcome != "ok"]
    if code != 0 and not bad:
        tests["(the binary itself)"] = (f"ended with {code}", secs)
        bad = ["(the binary itself)"]
    results.add({"binary": binary.name, "busy": busy, "secs": secs, "tests": tests})
    print(f"{binary.name}, {'busy' if busy else 'quiet'}: {secs:.0f} s, {len(bad)} failed", flush=True)
    if bad:
        log = ROOT / "target" / f"soak-{binary.name.replace('/', '-')}-{int(time.time())}.log"
        log.write_text(output)
        print(f"  {' '.join(bad)}; its output is in {log}", flush=True)


def soak(wanted, anew):
    binaries = build(wanted)
    results = Results()
    if anew:
        results.forget([binary.name for binary in binaries])
    end_at = time.monotonic() + 60 * float(os.environ.get("SOAK_MINUTES", "30"))
    for busy in (False, True):
        loops = [start(["sh", "-c", "while :; do :; done"]) for _ in range(BUSY_LOOPS if busy else 0)]
        try:
            while time.monotonic() < end_at:
                left = [binary for binary in binaries if results.missing(binary, busy)]
                if not left:
                    break
                with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                    for done in [pool.submit(soak_once, binary, busy, results) for binary in left]:
                        done.result()
        finally:
            for loop in loops:
                end(loop)
                loop.wait()
                RUNNING.discard(loop)
    failed = results.table()
    lacking = [binary.name for binary in binaries if results.missing(binary, False) or results.missing(binary, True)]
    if lacking:
        print(f"out of time; run it again for the rest: {' '.join(lacking)}")
    return failed


def main():
    arguments = sys.argv[1:]
    anew = "--anew" in arguments
    if anew:
        arguments.remove("--anew")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    verb, names = arguments[0], arguments[1:]
    if verb == "run":
        return run(names)
    if verb == "soak":
        return soak(names, anew)
    if verb == "table":
        return Results().table()
    sys.exit(f"tests.py knows run, soak and table, not {verb}")


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    sys.exit(main())
