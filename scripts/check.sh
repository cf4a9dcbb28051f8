#!/usr/bin/env bash
# `make check`: what is worth waiting for after every change. `make test` decides.
set -euo pipefail
cd "$(dirname "$0")/.."
goal='make check'
. scripts/steps.sh

step 'format' cargo fmt --all --check
step 'lints' cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
step 'tests' cargo test --locked --workspace --all-features --lib --bins --tests
passed
