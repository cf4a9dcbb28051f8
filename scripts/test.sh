#!/usr/bin/env bash
# `make test`: everything that must hold, on a machine with only Rust installed.
set -euo pipefail
cd "$(dirname "$0")/.."
goal='make test'
. scripts/steps.sh

step 15 'tools' scripts/tools.sh
step 15 'tools for the SDKs' scripts/sdk.sh tools
# After this only the dependency check needs the network, and CARGO_NET_OFFLINE proves it.
step 15 'fetch the dependencies' cargo fetch --locked
export CARGO_NET_OFFLINE=true
step 2 'format' cargo fmt --all --check
step 20 'lints' cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
step 15 'lints: every feature alone' scripts/features.sh
# Not cargo-nextest: a fresh machine does not have it.
step 45 'tests' scripts/tests.py run
step 10 'SDK for Python' scripts/sdk.sh python
step 10 'SDK for TypeScript' scripts/sdk.sh typescript
step 10 'SDK for Go' scripts/sdk.sh go
step 10 'all languages on one lock' scripts/sdk.sh mixed
step 15 'examples in the documentation' cargo test --locked --workspace --all-features --doc
# The defects in the stores are left to `make zoo`: whether a run on a real server shows one in time depends on the
# machine.
step 20 'bug zoo and simulation' scripts/zoo.sh simulated
step 10 'example programs' scripts/examples.sh
step 20 'packages' scripts/package.sh
step 10 'listing of the public API' scripts/api.py check
step 15 'no test code in what ships' scripts/shipped.sh
step 15 'documentation' make --no-print-directory doc
step 1 'files and names on the architecture page' scripts/architecture.py
step 1 'test names, long files, first lines of modules, words' scripts/names.py
step 1 'links and line lengths of the documentation' scripts/links.py
CARGO_NET_OFFLINE=false step 20 'dependencies' scripts/deny.sh

# What was left out, why, and the command that tests it.
not_tested 'defects planted in the real stores: whether a run shows one in time depends on the machine: make zoo'
not_tested 'long random histories on the real stores: make test runs short ones: make model'
not_tested 'other seeds of the simulation than those of the bug zoo: there is no end to them: make sim'
not_tested 'tests that fail only now and then: each ran once: make soak'
not_tested 'stores under faults: two hours for all: make torture; for longer: leasehold torture --hours'
not_tested 'SDKs under faults beyond ten calm seconds each: make test runs their own tests of faults: make sdk-torture'
not_tested 'fuzz targets beyond a thousand inputs each: they take as long as they are given: make fuzz'
not_tested 'other releases of Redis and PostgreSQL: they are downloaded, and need Debian: make versions'
not_tested 'the oldest supported Rust: rustup may have to download it; the lints know what is newer: make oldest'
not_tested 'speed: a busy machine falsifies it: make bench, bench-cli, bench-redis, bench-postgres, bench-server'
passed
