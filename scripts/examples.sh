#!/usr/bin/env bash
# Runs every example program of the library. Each asserts what it claims, and ends by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --locked --quiet -p leasehold --all-features --examples
for file in crates/leasehold/examples/*.rs; do
  name=$(basename "$file" .rs)
  printf -- '--- %s\n' "$name"
  timeout 60 cargo run --locked --quiet -p leasehold --all-features --example "$name" ||
    { echo "examples.sh: the example $name failed or did not end within 60 s" >&2; exit 1; }
done
