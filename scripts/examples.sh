#!/usr/bin/env bash
# Runs every example program of the library and of the bext plugin. Each asserts what it claims, and ends by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --locked --quiet -p leasehold --all-features --examples
for file in crates/leasehold/examples/*.rs; do
  name=$(basename "$file" .rs)
  printf -- '--- %s\n' "$name"
  timeout 60 cargo run --locked --quiet -p leasehold --all-features --example "$name" ||
    { echo "examples.sh: the example $name failed or did not end within 60 s" >&2; exit 1; }
done
printf -- '--- %s\n' host_scheduler
timeout 120 cargo run --locked --quiet -p leasehold-bext --example host_scheduler ||
  { echo 'examples.sh: the example host_scheduler failed or did not end within 120 s' >&2; exit 1; }
