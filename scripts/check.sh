#!/usr/bin/env bash
# `make check`: the quick checks to run after every change. `make test` decides.
set -euo pipefail
cd "$(dirname "$0")/.."
goal='make check'
. scripts/steps.sh

step 2 'format' cargo fmt --all --check
step 20 'lints' cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
step 45 'tests' scripts/tests.py run
passed
