#!/usr/bin/env python3
"""Checks that what docs/architecture.md names exists.

Every file and folder exists. What is named together with a file ("`file.rs`, `name`" or "`name` in `file.rs`") is defined
in that file. Every other name occurs in the sources, every `make` command in the Makefile, every test that a command runs
in its crate. A heading that ends with a number of files is followed by that many.
"""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
FILE = r"[\w/.-]+(?:\.(?:rs|lua|sql|md)|/)"
NAME = r"(?:impl )?[A-Za-z_]\w*(?:(?:::| for )[A-Za-z_]\w*)*"


def place(name):
    """The file or folder of this name, or None."""
    paths = (root / base / name for base in ("", "docs", "crates/leasehold/src"))
    return next((path for path in paths if path.exists()), None)


def defines(text, name):
    if " for " in name:
        trait, of = name.removeprefix("impl ").split(" for ")
        return re.search(rf"^impl.*\b{trait} for {of}\b", text, re.M)
    return re.search(rf"\b(?:fn|struct|enum|trait|type|const|static|mod|macro_rules!) {name.split('::')[-1]}\b", text)


def problems(page):
    sources = {path: path.read_text() for path in root.glob("crates/*/src/**/*.*") if path.suffix in (".rs", ".lua", ".sql")}
    named = set(re.findall(rf"`({FILE})`", page))
    yield from (f"there is no {name}" for name in sorted(named) if not place(name))
    text = " ".join(page.split())
    pairs = re.findall(rf"`({FILE})`, `({NAME})`", text)
    pairs += [(file, name) for name, file in re.findall(rf"`({NAME})` (?:in|of) `({FILE})`", text)]
    for file, name in pairs:
        path = place(file)
        if path and path.is_file():
            code = path.read_text()
            if not (defines(code, name) if path.suffix == ".rs" else re.search(rf"\b{name}\b", code)):
                yield f"{file} does not define {name}"
    words = set(re.findall(r"\w+", " ".join(sources.values())))
    for name in set(re.findall(rf"`({NAME})`", text)) - set(re.findall(r"`(make [\w-]+|cargo [^`]*)`", text)):
        missing = [part for part in re.findall(r"\w+", name) if part not in words | {"for", "impl"}]
        yield from (f"no source file has {part}" for part in missing)
    targets = set(re.findall(r"^([\w-]+):", (root / "Makefile").read_text(), re.M))
    yield from (f"there is no `make {name}`" for name in re.findall(r"`make ([\w-]+)`", text) if name not in targets)
    for crate, rest in re.findall(r"`cargo test -p ([\w-]+)([^`]*)`", text):
        for test in re.findall(r"--test ([\w-]+)", rest):
            tests = root / "crates" / crate / "tests"
            if not ((tests / f"{test}.rs").exists() or (tests / test / "main.rs").exists()):
                yield f"{crate} has no test binary {test}"
    for number, section in re.findall(r"^#+ .*: (\d+) files\n(.*?)(?=^#|\Z)", page, re.M | re.S):
        files = {name for name in re.findall(rf"`({FILE})`", section) if name.endswith(".rs")}
        if len(files) != int(number):
            yield f"a heading says {number} files, and {len(files)} are named below it"


def self_test():
    good = "`state/mod.rs`, `State`, `client/acquire.rs`, `Drop for Acquire`; `deadline` in `engine/held.rs`; `make zoo`\n"
    good += "### A: 2 files\n`lib.rs` `error.rs`\n"
    assert not list(problems(good)), list(problems(good))
    bad = "`gone.rs` `lib.rs`, `deadline` `NoSuchWord` `make gone` `cargo test -p leasehold --test gone`\n"
    bad += "### A: 3 files\n`lib.rs` `error.rs`\n"
    assert len(list(problems(bad))) == 6, list(problems(bad))


self_test()
found = list(problems((root / "docs/architecture.md").read_text()))
if found:
    sys.exit("docs/architecture.md: " + "\ndocs/architecture.md: ".join(found))
