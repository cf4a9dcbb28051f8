#!/usr/bin/env bash
# `make test`: everything that must hold, on a machine with only Rust installed.
set -euo pipefail
cd "$(dirname "$0")/.."
goal='make test'
. scripts/steps.sh

step 15 'tools' scripts/tools.sh
# After this only the dependency check needs the network, and CARGO_NET_OFFLINE proves it.
step 15 'fetch the dependencies' cargo fetch --locked
export CARGO_NET_OFFLINE=true
step 2 'format' cargo fmt --all --check
step 20 'lints' cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
step 15 'lints: every feature alone' scripts/features.sh
# Not cargo-nextest: a fresh machine does not have it.
step 45 'tests' scripts/tests.py run
step 15 'examples in the documentation' cargo test --locked --workspace --all-features --doc
# The defects in the stores are left to `make zoo`: whether a run on a real server shows one in time depends on the
# machine.
step 20 'bug zoo and simulation' scripts/zoo.sh simulated
step 10 'example programs' scripts/examples.sh
step 20 'packages' scripts/package.sh
step 10 'listing of the public API' scripts/api.py check
step 15 'no test code in what ships' scripts/shipped.sh
step 15 'documentation' make --no-print-directory doc
step 1 'files that the architecture page names' scripts/architecture.py
step 1 'test names, long files, first lines of modules' scripts/names.py
step 1 'links and line lengths of the documentation' scripts/links.py
CARGO_NET_OFFLINE=false step 20 'dependencies' scripts/deny.sh

not_tested 'defects planted in the real stores: make zoo'
not_tested 'long runs under faults: make torture, leasehold torture --hours'
not_tested 'long runs of the fuzz targets: make fuzz'
not_tested 'other releases of Redis and PostgreSQL: make versions'
not_tested 'the oldest supported Rust: make oldest (the lints know which parts of the standard library are newer)'
not_tested 'speed: make bench, bench-cli, bench-redis, bench-postgres, bench-server'
passed
