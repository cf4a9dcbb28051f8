#!/usr/bin/env bash
# Packages every crate that users need, from a copy of the tree, and builds each from its package.
#
# Pages link to each other by relative paths. Hosted documentation has no such files, so in the copy every relative link
# begins with the repository's address, which is in Cargo.toml alone. `scripts/release.sh` publishes from the same copy.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(cargo metadata --locked --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
copy=$target/publish
rm -rf "$copy"
mkdir -p "$copy"
# What is under version control, as it is in the work tree; links to pages become the pages.
git ls-files -z --cached --others --exclude-standard -- Cargo.toml Cargo.lock crates |
  tar --create --dereference --exclude='crates/benchmarks' --null --files-from=- | tar --extract --directory "$copy"
scripts/absolute.py "$copy"

cd "$copy"
# Not under version control here, so cargo cannot say what was changed.
CARGO_TARGET_DIR=$target cargo package --locked --workspace --exclude testkit --allow-dirty "$@"
