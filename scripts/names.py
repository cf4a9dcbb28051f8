#!/usr/bin/env python3
"""Fails if a test name has more than 60 characters: names are read in a list, and each should say one thing."""
import pathlib
import re
import sys

LIMIT = 60
TEST = re.compile(r"#\[(?:tokio::)?test\b[^\n]*\]\s*(?:(?:#\[[^\n]*\]|//[^\n]*)\s*)*(?:async )?fn (\w+)")
CHECK = re.compile(r"^async fn (\w+)\(t: Trial\)", re.M)


def too_long(text):
    return [name for name in TEST.findall(text) + CHECK.findall(text) if len(name) > LIMIT]


assert too_long(f"#[tokio::test(flavor = \"multi_thread\")]\n#[ignore]\nasync fn {'x' * 61}() {{}}") == ["x" * 61]
assert too_long(f"#[test]\nfn {'x' * 60}() {{}}") == []

root = pathlib.Path(__file__).resolve().parent.parent
found = [(path, name) for path in sorted(root.glob("crates/*/*/**/*.rs")) for name in too_long(path.read_text())]
for path, name in found:
    print(f"{path.relative_to(root)}: {name} has {len(name)} characters; {LIMIT} are enough")
sys.exit(1 if found else 0)
