#!/usr/bin/env python3
"""Checks that every file and folder named in docs/architecture.md exists."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).parent.parent
named = set(re.findall(r"`([\w/.-]+(?:\.(?:rs|lua)|/))`", (root / "docs/architecture.md").read_text()))
missing = sorted(n for n in named if not any((root / base / n).exists() for base in ("", "docs", "crates/leasehold/src")))
if missing or not named:
    sys.exit("docs/architecture.md names files that do not exist: " + " ".join(missing))
