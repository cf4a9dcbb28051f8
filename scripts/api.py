#!/usr/bin/env python3
"""The public API of the library crates as lists under version control: docs/api/CRATE.txt.

`api.py write` writes them, `api.py check` fails if one differs. Every public path is one line, with its signature as the
source has it. rustdoc finds the items (its JSON, which stable Rust gives only with RUSTC_BOOTSTRAP); of that only names,
kinds and places in the source are used.
"""
import difflib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# With the features that users turn on; as on docs.rs.
CRATES = {"leasehold": "full,openapi,test-util", "leasehold-bext": "full", "leasehold-server": ""}
# Their items are not worth a line each: derives, and what the compiler adds.
SIGNED = {"function", "struct", "enum", "trait", "constant", "static", "type_alias", "assoc_const", "assoc_type", "macro"}


def documentation(crate):
    command = ["cargo", "rustdoc", "--locked", "--quiet", "-p", crate, "--lib", "--features", CRATES[crate]]
    command += ["--", "-Zunstable-options", "--output-format", "json", "--cap-lints", "allow"]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"RUSTC_BOOTSTRAP": "1"})
    metadata = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    target = json.loads(subprocess.check_output(metadata, cwd=ROOT))["target_directory"]
    return json.loads((pathlib.Path(target) / f"doc/{crate.replace('-', '_')}.json").read_text())


def source(item, cache={}):
    """The text of an item in its file, without doc comments and attributes."""
    if not item["span"]:
        return ""
    name = item["span"]["filename"]
    lines = cache.setdefault(name, (ROOT / name).read_text().splitlines())
    (first, column), (last, end) = item["span"]["begin"], item["span"]["end"]
    text = lines[first - 1 : last]
    text[-1] = text[-1][: end]
    text[0] = text[0][max(column - 1, 0) :]
    text = [line.strip() for line in text]
    return " ".join(line for line in text if not line.startswith(("//", "#[")))


def signature(item):
    """The text up to the body."""
    depth = 0
    text = source(item)
    for at, character in enumerate(text):
        depth += character in "([<"
        depth -= character in ")]" or (character == ">" and text[at - 1] not in "-=")
        if depth <= 0 and character in "{;" or depth <= 0 and text[at : at + 3] == " = " and "const" not in text[:at]:
            text = text[:at]
            break
    text = re.sub(r"\s+", " ", text).strip().removeprefix("pub ")
    return text.replace("( ", "(").replace(", )", ")").rstrip(",")


class Listing:
    def __init__(self, crate):
        doc = documentation(crate)
        self.index = {str(key): item for key, item in doc["index"].items()}
        self.lines = set()
        self.root = self.index[str(doc["root"])]["name"]
        self.walk(str(doc["root"]), self.root, frozenset())

    def item(self, id):
        return self.index.get(str(id))

    def walk(self, id, path, above):
        item = self.item(id)
        if item is None or id in above or item["visibility"] == "crate":
            return
        (kind, inner), = item["inner"].items()
        above |= {id}
        if kind == "module":
            self.lines.add(f"mod {path}") if path != self.root else None
            for child in inner["items"]:
                self.child(child, path, above)
        elif kind == "use":
            target = inner["id"]
            if inner["is_glob"]:
                for child in (self.item(target) or {"inner": {"module": {"items": []}}})["inner"].get("module", {"items": []})["items"]:
                    self.child(child, path, above)
            elif target is not None and self.item(target):
                self.walk(str(target), f"{path}::{inner['name']}", above)
            else:
                self.lines.add(f"use {path}::{inner['name']} = {inner['source']}")
        elif kind in SIGNED:
            self.lines.add(f"{path}: {signature(item)}")
            for child in self.parts(kind, inner):
                self.child(child, path, above)
            for one in inner.get("impls", []):
                self.implementation(one, path, above)

    def child(self, id, path, above):
        item = self.item(id)
        if item is None:
            return
        kind = next(iter(item["inner"]))
        if kind == "struct_field":
            if item["visibility"] in ("public", "default"):
                self.lines.add(f"{path}.{item['name']}: {signature(item)}")
        elif kind == "variant":
            self.lines.add(f"{path}::{item['name']}: {re.sub(r' +', ' ', source(item))}")
        else:
            self.walk(str(id), path if kind == "use" else f"{path}::{item['name']}", above)

    @staticmethod
    def parts(kind, inner):
        if kind == "struct":
            plain = inner["kind"].get("plain") if isinstance(inner["kind"], dict) else None
            tuple_ = inner["kind"].get("tuple") if isinstance(inner["kind"], dict) else None
            return plain["fields"] if plain else [field for field in tuple_ or [] if field is not None]
        return inner.get("variants", []) if kind == "enum" else inner.get("items", [])

    def implementation(self, id, path, above):
        item = self.item(id)
        if item is None:
            return
        implemented = item["inner"]["impl"]
        if implemented["is_synthetic"] or implemented["blanket_impl"]:
            return
        if implemented["trait"] and implemented["trait"]["path"] == "StructuralPartialEq":
            return  # comes with PartialEq
        if implemented["trait"]:
            sign = "!" if implemented["is_negative"] else ""
            generic = json.dumps(implemented["trait"].get("args") or "")
            named = re.findall(r'"(?:path|primitive|generic)": "([^"]+)"', generic)
            self.lines.add(f"{path}: impl {sign}{implemented['trait']['path']}" + (f"<{', '.join(named)}>" if named else ""))
        else:
            for child in implemented["items"]:
                self.child(child, path, above)


def main(how):
    changed = []
    for crate in CRATES:
        path = ROOT / f"docs/api/{crate}.txt"
        # Not in the order of the index, which changes from build to build.
        listing = "\n".join(sorted(Listing(crate).lines)) + "\n"
        if how == "write":
            path.write_text(listing)
        elif (kept := path.read_text()) != listing:
            texts = (kept.splitlines(), listing.splitlines())
            changed += difflib.unified_diff(*texts, path.relative_to(ROOT).as_posix(), "the sources", lineterm="", n=0)
    if changed:
        sys.exit("\n".join([*changed, "the public API has changed: run `make api`, and commit the difference"]))


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] in (["write"], ["check"]) else sys.exit("api.py write | check"))
