#!/usr/bin/env python3
"""Checks names and first lines in crates/.

No test name has more than 60 characters: names are read in a list, and each should say one thing. The module comment of
a file of more than 500 lines says why it is not split: "One file because …". Every mod.rs of the library, the server and
the command line says in its first lines what belongs there, and what to run: "Before changing …".
"""
import pathlib
import re
import sys

LIMIT = 60
TEST = re.compile(r"#\[(?:tokio::)?test\b[^\n]*\]\s*(?:(?:#\[[^\n]*\]|//[^\n]*)\s*)*(?:async )?fn (\w+)")
CHECK = re.compile(r"^async fn (\w+)\(t: Trial\)", re.M)
LONG = 500
SHIPPED = ("leasehold", "leasehold-server", "leasehold-cli")


def too_long(text):
    return [name for name in TEST.findall(text) + CHECK.findall(text) if len(name) > LIMIT]


def first_lines(text):
    """The comments above the first line of code."""
    comments = []
    for line in text.splitlines():
        if line.startswith("//"):
            comments.append(line.lstrip("/! "))
        elif line and not line.startswith("#!["):
            break
    return " ".join(comments)


def problems(path, text):
    """What is wrong with a file, by its path below crates/."""
    for name in too_long(text):
        yield f"{name} has {len(name)} characters; {LIMIT} are enough"
    lines = len(text.splitlines())
    if lines > LONG and "One file because " not in first_lines(text):
        yield f'{lines} lines: split it, or say "One file because …" in its module comment'
    if path.name == "mod.rs" and path.parts[0] in SHIPPED and path.parts[1] == "src":
        if "Before changing " not in first_lines(text):
            yield 'its first lines do not say what to run: "Before changing …"'


def self_test():
    assert too_long(f"#[tokio::test(flavor = \"multi_thread\")]\n#[ignore]\nasync fn {'x' * 61}() {{}}") == ["x" * 61]
    assert too_long(f"#[test]\nfn {'x' * 60}() {{}}") == []
    a, b = pathlib.PurePath("leasehold/src/a.rs"), pathlib.PurePath("leasehold/src/b/mod.rs")
    assert len(list(problems(a, "//! A.\n" + "x\n" * 500 + "// One file because not."))) == 1
    assert not list(problems(a, "//! A.\n//!\n//! One file because it is.\n" + "x\n" * 500))
    assert len(list(problems(b, "//! B.\n\nmod c;\n"))) == 1
    assert not list(problems(b, "//! B.\n#![doc = \"\"]\n\n// Before changing it: run.\nmod c;\n"))


self_test()
crates = pathlib.Path(__file__).resolve().parent.parent / "crates"
paths = [path.relative_to(crates) for path in sorted(crates.glob("*/**/*.rs")) if "target" not in path.parts]
found = [f"crates/{path}: {problem}" for path in paths for problem in problems(path, (crates / path).read_text())]
if found:
    sys.exit("\n".join(found))
