#!/bin/sh
# Measures how long `leasehold run x -- true` takes on file:, compared with `flock x true`: the difference must stay
# within 10 ms. The argument is the number of rounds, 300 by default. The commands are run in turns, in an order that
# changes from round to round, so that a busy moment of the machine affects all alike; medians are compared.
set -eu
cd "$(dirname "$0")/.."
rounds=${1:-300}
cargo build --locked --release -q -p leasehold-cli
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 - "$rounds" "$dir" <<'PYTHON'
import os, random, statistics, sys, time

rounds, where = int(sys.argv[1]), sys.argv[2]
LIMIT = 10.0
binary = os.path.abspath("target/release/leasehold")
run = [binary, "run", "--url"]
commands = {
    "true": ["true"],
    "flock x true": ["flock", where + "/x", "true"],
    "leasehold run x -- true": run + ["file:" + where + "/locks", "x", "--", "true"],
    "leasehold run (sqlite:)": run + ["sqlite:" + where + "/db", "x", "--", "true"],
    "leasehold --version": [binary, "--version"],
}

def once(command):
    start = time.perf_counter()
    # Cheaper than subprocess, whose own work would be part of the measurement.
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
    ])
    _, status, used = os.wait4(pid, 0)
    taken = (time.perf_counter() - start) * 1000
    if status != 0:
        sys.exit(f"{command} failed: {status}")
    return taken, (used.ru_utime + used.ru_stime) * 1000

for command in commands.values():  # the first makes files, and fills caches
    once(command)
times = {name: [] for name in commands}
for _ in range(rounds):
    for name in random.sample(list(commands), len(commands)):
        times[name].append(once(commands[name]))
print(f"{rounds} rounds, milliseconds")
print(f"{'':26} {'median':>8} {'p95':>8} {'best':>8} {'CPU, median':>12}")
medians = {}
for name, measured in times.items():
    taken = sorted(wall for wall, _ in measured)
    medians[name] = statistics.median(taken)
    # Processor time of the processes themselves, which a busy machine does not change.
    used = statistics.median(cpu for _, cpu in measured)
    print(f"{name:26} {medians[name]:8.2f} {taken[int(len(taken) * 0.95)]:8.2f} {taken[0]:8.2f} {used:12.2f}")
ours, theirs = medians["leasehold run x -- true"], medians["flock x true"]
extra = ours - theirs
print(f"leasehold on file: takes {extra:.2f} ms more than flock, {ours / theirs:.1f} times as long; to reach: {LIMIT:.0f} ms")
sys.exit(extra > LIMIT)
PYTHON
