#!/usr/bin/env bash
# What ships contains no test code: no simulation, no seed for lease ids, no planted defect, no tokio clock that tests
# can stop. Checks the features and the symbols of `leasehold` as `cargo install` builds it, not as the tests do: in a
# build of the whole workspace each crate gets every feature that any other asks for. Without optimisation, because
# then every function has its symbol.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(cargo metadata --locked --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')

fail() {
  printf 'shipped.sh: %s\n' "$*" >&2
  exit 1
}

# PACKAGE ARGUMENT…: which of our crates, and whether tokio, have features for tests in a build of that package.
test_features() {
  cargo tree --locked -e normal --prefix none -f '{p} {f}' -p "$@" |
    grep -E '^(leasehold|tokio)[a-z-]* .*[ ,](__[a-z]+|test-util)(,| |$)' | sed 's, (\*)$,,' | sort -u || true
}
found=$(test_features leasehold-cli)
[[ -z $found ]] || fail "leasehold-cli is built with features for tests: $found"
# A search that never finds anything proves nothing.
[[ $(test_features leasehold-torture --all-features | cut -d' ' -f1) == $'leasehold\nleasehold-torture\ntokio' ]] ||
  fail 'the search finds no feature where there are some'

cargo build --locked --quiet -p leasehold-cli
# As zoo.sh builds it: this build contains everything that is searched for.
cargo build --locked --quiet --profile sim -p leasehold-torture --no-default-features --features __bugs --example zoo

# KIND TEXT: parts of symbols, and a variable that only planted defects read.
while read -r kind text; do
  grep -aqF "$text" "$target/sim/examples/zoo" || fail "no $kind is found by $text where there is one; look for something else"
  ! grep -aqF "$text" "$target/debug/leasehold" || fail "leasehold contains a $kind: $text"
  printf 'no %-11s %s\n' "$kind" "$text"
done <<'LOOK'
simulation leasehold_torture3sim
seed leasehold6chance6seeded
defect leasehold4bugs
defect leasehold_torture7defects
defect leasehold_torture3zoo
defect LEASEHOLD_BUG
test-clock inhibit_auto_advance
LOOK
