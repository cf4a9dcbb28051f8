#!/usr/bin/env python3
"""Makes the relative links of every page in a copy of the tree absolute: `absolute.py COPY`.

The address is `repository` of Cargo.toml. A link leads to the tag of the version, so that old pages stay right.
"""
import pathlib
import re
import sys
import tomllib

LINK = re.compile(r"\]\((?![a-z][a-z0-9+.-]*:|#|//)([^()\s]+)\)", re.I)


def absolute(text, base):
    """The text with its relative links below `base`; code stays as it is."""
    parts = re.split(r"(^ *```.*?^ *```|`[^`\n]+`)", text, flags=re.S | re.M)
    return "".join(part if part.lstrip().startswith("`") else LINK.sub(rf"]({base}/\1)", part) for part in parts)


def main(copy):
    package = tomllib.loads((copy / "Cargo.toml").read_text())["workspace"]["package"]
    tree = f"{package['repository']}/blob/v{package['version']}"
    for page in copy.glob("crates/*/README.md"):
        page.write_text(absolute(page.read_text(), tree))
    for page in copy.glob("crates/*/docs/*.md"):
        page.write_text(absolute(page.read_text(), f"{tree}/docs"))


if __name__ == "__main__":
    sample = "[a](b.md#c) [d](https://e/f) [g](#h)\n```\n[i](j)\n```\n`[k](l)` [`m`](../n)\n"
    assert absolute(sample, "x:") == sample.replace("b.md", "x:/b.md").replace("../n", "x:/../n"), absolute(sample, "x:")
    main(pathlib.Path(sys.argv[1]))
