#!/usr/bin/env python3
"""Checks the pages at the root, docs/ and the crates' READMEs.

Every relative link leads to a file, every anchor to a heading. No line is longer than 120 columns, except where a URL
makes it so; code blocks count too. Error messages that docs/operations.md quotes are in the
sources. `--self-test` shows that links and lines can fail.
"""
import pathlib
import re
import sys
import tempfile

WIDTH = 120
PAGES = ("*.md", "docs/**/*.md", "crates/*/README.md")
LINK = re.compile(r"\]\(([^()\s]+)\)")
ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:", re.I)


def lines(page):
    """The lines of a page outside code blocks, with their numbers."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for _, line in lines(page):
        heading = re.match(r"#+ +(.*)", line)
        if heading:
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            base = anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            count = 0
            while anchor in found:
                count += 1
                anchor = f"{base}-{count}"
            found.add(anchor)
    return found


def problems(root):
    pages = (page for pattern in PAGES for page in root.glob(pattern))
    # A link to a page leads where that page is.
    for page in sorted(page for page in pages if not page.is_symlink()):
        name = page.relative_to(root)
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if len(re.sub(r"https?://\S+", "", line)) > WIDTH:
                yield f"{name}:{number}: {len(line)} columns; {WIDTH} are allowed"
        for number, line in lines(page):
            for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                path, _, anchor = link.partition("#")
                if ABSOLUTE.match(link) or link.startswith("//"):
                    continue
                target = page.parent / path if path else page
                if not target.exists():
                    yield f"{name}:{number}: there is no {path}"
                elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                    yield f"{name}:{number}: there is no heading #{anchor} in {path or name}"


def quotes(root):
    """Messages that docs/operations.md quotes, in the first column of its tables, but no source file has."""
    sources = (path.read_text() for path in root.glob("crates/*/src/**/*.rs"))
    code = re.sub(r"\\\n\s*", "", "\n".join(sources))
    for number, line in lines(root / "docs/operations.md"):
        quoted = re.match(r"\| `([^`]+)` \|", line)
        for part in quoted[1].split("…") if quoted else ():
            if " " in part.strip() and part.strip() not in code:
                yield f"docs/operations.md:{number}: no source file says {part.strip()!r}"


def self_test():
    """A page with one mistake of each kind, and a page without one."""
    good = "# A b-c: `d`\n\n[here](#a-b-c-d) [there](docs/b.md#x) [away](https://example.org/no)\n```\n[code](no)\n```\n"
    bad = "# X\n\n[file](gone.md)\n[anchor](../README.md#gone)\n" + "w" * 121 + "\n```\n" + "w" * 121 + "\n```\n"
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        (root / "docs").mkdir()
        (root / "README.md").write_text(good)
        (root / "docs/b.md").write_text("# X\n")
        assert not list(problems(root)), list(problems(root))
        (root / "docs/b.md").write_text(bad)
        found = list(problems(root))
        assert [problem.split(":")[1] for problem in found] == ["5", "7", "3", "4"], found


if __name__ == "__main__":
    self_test()
    if sys.argv[1:] != ["--self-test"]:
        root = pathlib.Path(__file__).resolve().parent.parent
        found = [*problems(root), *quotes(root)]
        if found:
            sys.exit("\n".join(found))
