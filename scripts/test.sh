#!/usr/bin/env bash
# `make test`: everything that has to hold, on a machine with nothing but Rust.
set -euo pipefail
cd "$(dirname "$0")/.."
goal='make test'
. scripts/steps.sh

step 'tools' scripts/tools.sh
# After this, nothing but the dependency check needs the network, and --offline proves it.
step 'fetch the dependencies' cargo fetch --locked
step 'format' cargo fmt --all --check
step 'lints' cargo clippy --locked --offline --workspace --all-targets --all-features -- -D warnings
# As it is built for those who use it, with no more features than it asks for.
step 'lints: the command line alone' cargo clippy --locked --offline -p leasehold-cli -- -D warnings

# A feature that only builds together with another is broken for whoever wants it alone. The workspace build
# above cannot see that: there, each crate gets what any other asks for.
features=$(scripts/features.sh leasehold) || failed 'list the features' 0
alone() {
  local heading=$1
  shift
  step "lints: $heading" cargo clippy --locked --offline -p leasehold --lib "$@" -- -D warnings
}
alone 'leasehold without features' --no-default-features
for feature in $features; do
  alone "leasehold with the feature $feature alone" --no-default-features --features "$feature"
done
alone 'leasehold with all features' --all-features

# Not cargo-nextest: it would leave out the examples in the documentation.
step 'tests' cargo test --locked --offline --workspace --all-features
# The defects in the stores are left to `make zoo`: whether a run on a real server meets one in time depends on the machine.
step 'bug zoo and simulation' scripts/zoo.sh simulated
step 'documentation' make --no-print-directory doc
step 'dependencies' scripts/deny.sh
passed
