#!/usr/bin/env python3
"""Adds up the reports of torture runs, one row for each store: hand-overs that were judged, and faults that were felt.

scripts/handovers.py [PATH…]: each is a report, or a directory with reports; without any, target/torture. `scripts/torture.sh`
writes a report for each run, and prints this table in the end.
"""

import json
import pathlib
import sys

FAILOVERS = ["CrashPrimary", "FreezePrimary", "SwitchPrimary"]
COLUMNS = ["store", "runs", "violated", "vacuous", "hand-overs", "judged", "kills", "past ttl", "restarts", "fail-overs"]


def reports(paths):
    """The reports below the paths, each run once. A file of another kind is passed over."""
    seen = set()
    for path in paths:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        for file in files:
            report = json.loads(file.read_text())
            if isinstance(report, dict) and {"figures", "faults", "outcome"} <= report.keys():
                run = tuple(report[key] for key in ("directory", "store", "profile", "seed", "seconds"))
                if run not in seen:
                    seen.add(run)
                    yield report


def felt(report, fault, what="landed"):
    """How many faults of this kind landed. One that no worker felt does not count."""
    count = report["faults"].get(fault, {}).get(what, 0)
    return min(count, report["figures"]["felt"].get(fault, 0))


def row(report):
    """The numbers of one report."""
    figures = report["figures"]
    return [
        1,
        report["outcome"] == "violated",
        report["outcome"] == "vacuous",
        figures["handovers"],
        figures["handovers_judged"],
        felt(report, "Kill"),
        felt(report, "Pause", "past_ttl"),
        felt(report, "RestartStore"),
        sum(felt(report, fault) for fault in FAILOVERS),
    ]


def main():
    """Prints the table."""
    sums = {}
    for report in reports([pathlib.Path(path) for path in sys.argv[1:] or ["target/torture"]]):
        wait = "+wait" if report["promises"]["losses"] == "releases" else ""
        store = report["store"] + wait
        sums[store] = [a + b for a, b in zip(sums.get(store, [0] * (len(COLUMNS) - 1)), row(report))]
    if not sums:
        sys.exit("there are no reports; scripts/torture.sh writes them to target/torture")
    line = "{:<27}" + "{:>11}" * (len(COLUMNS) - 1)
    print(line.format(*COLUMNS))
    for store, numbers in sorted(sums.items()):
        print(line.format(store, *numbers))
    print(line.format("all", *map(sum, zip(*sums.values()))))


main()
