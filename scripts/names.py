#!/usr/bin/env python3
"""Checks names, first lines and words.

No test name has more than 60 characters: names are read in a list, and each should say one thing. The module comment of
a file of more than 500 lines says why it is not split: "One file because …". Every mod.rs of the library, the server and
the command line says in its first lines what belongs there, and what to run: "Before changing …". No source, test or
page uses a phrase that hides who acts.
"""
import pathlib
import re
import sys

LIMIT = 60
TEST = re.compile(r"#\[(?:tokio::)?test\b[^\n]*\]\s*(?:(?:#\[[^\n]*\]|//[^\n]*)\s*)*(?:async )?fn (\w+)")
CHECK = re.compile(r"^async fn (\w+)\(t: Trial\)", re.M)
LONG = 500
VAGUE = re.compile(r"\b(?:who\s+(?:waits|holds)|those\s+who|whoever|somebody|is\s+told|can\s+be\s+had)\b", re.I)
SHIPPED = ("leasehold", "leasehold-bext", "leasehold-server", "leasehold-cli")


def too_long(text):
    return [name for name in TEST.findall(text) + CHECK.findall(text) if len(name) > LIMIT]


def vague(text):
    """Phrases that hide who acts, with their lines. A comment may continue one on its next line."""
    words = re.sub(r"\n[ \t]*(?://[/!]?|--|#)", "\n", text).replace("_", " ")
    return [(words.count("\n", 0, match.start()) + 1, " ".join(match[0].split())) for match in VAGUE.finditer(words)]


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
    assert vague("a\n/// One is\n/// told, by some_body's somebody_waits.") == [(2, "is told"), (3, "somebody")]
    assert not vague("// Those whose holders wait are told.")
    a, b = pathlib.PurePath("leasehold/src/a.rs"), pathlib.PurePath("leasehold/src/b/mod.rs")
    assert len(list(problems(a, "//! A.\n" + "x\n" * 500 + "// One file because not."))) == 1
    assert not list(problems(a, "//! A.\n//!\n//! One file because it is.\n" + "x\n" * 500))
    assert len(list(problems(b, "//! B.\n\nmod c;\n"))) == 1
    assert not list(problems(b, "//! B.\n#![doc = \"\"]\n\n// Before changing it: run.\nmod c;\n"))


self_test()
root = pathlib.Path(__file__).resolve().parent.parent
crates = root / "crates"
paths = [path.relative_to(crates) for path in sorted(crates.glob("*/**/*.rs")) if "target" not in path.parts]
found = [f"crates/{path}: {problem}" for path in paths for problem in problems(path, (crates / path).read_text())]
pages = [page for pattern in ("*.md", "docs/**/*.md", "crates/*/README.md") for page in root.glob(pattern)]
scripts = [path for kind in ("lua", "sql", "js", "html") for path in crates.glob(f"*/src/**/*.{kind}")]
for path in sorted([*(crates / path for path in paths), *pages, *scripts]):
    for line, phrase in vague(path.read_text()):
        found.append(f'{path.relative_to(root)}:{line}: "{phrase}" hides who acts: name the client, store, waiter or holder')
if found:
    sys.exit("\n".join(found))
