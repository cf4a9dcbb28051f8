#!/bin/sh
# How long `leasehold run x -- true` takes on file:, beside `flock x true`: the difference is to stay within 10 ms.
# Both are run in turns, so that a busy moment of the machine meets both. Takes a number of rounds, 200 unless given.
set -eu
cd "$(dirname "$0")/.."
rounds=${1:-200}
cargo build --locked --release -q -p leasehold-cli
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
exec python3 - "$rounds" "$dir" <<'PYTHON'
import os, statistics, subprocess, sys, time

rounds, where = int(sys.argv[1]), sys.argv[2]
commands = {
    "true": ["true"],
    "flock x true": ["flock", where + "/x", "true"],
    "leasehold run x -- true": ["target/release/leasehold", "run", "--url", "file:" + where + "/locks", "x", "--", "true"],
    "leasehold run (sqlite)": ["target/release/leasehold", "run", "--url", "sqlite:" + where + "/db", "x", "--", "true"],
}
times = {name: [] for name in commands}
for _ in range(rounds):
    for name, command in commands.items():
        start = time.perf_counter()
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        times[name].append((time.perf_counter() - start) * 1000)
for name, taken in times.items():
    taken.sort()
    print(f"{name:26} median {statistics.median(taken):6.2f} ms   p95 {taken[int(len(taken) * 0.95)]:6.2f} ms")
extra = statistics.median(times["leasehold run x -- true"]) - statistics.median(times["flock x true"])
print(f"leasehold on file: takes {extra:.2f} ms more than flock")
PYTHON
