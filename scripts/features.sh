#!/usr/bin/env bash
# Lints what users build, with only the features they ask for: the command line, and the library and the bext plugin
# with each feature alone. A build of the whole workspace cannot show that a feature needs another, because there each
# crate gets every feature that any other asks for.
set -euo pipefail
cd "$(dirname "$0")/.."

# The features of the library, one per line. A fresh machine has no JSON parser. This is safe without one because a
# package, unlike a dependency, has its version right after its name; its features are the first object of that name
# after it, and contain only lists.
features() {
  local metadata package features
  metadata=$(cargo metadata --locked --no-deps --format-version 1)
  package=${metadata#*'{"name":"leasehold","version":'}
  features=${package#*'"features":{'}
  features=${features%%'}'*}
  grep -oE '"[^"]+":\[' <<<"$features" | tr -d '":['
}

lint() {
  printf '%s\n' "$*"
  cargo clippy --quiet --locked "$@" -- -D warnings
}

all=$(features) || { echo 'features.sh: cargo metadata lists no features of leasehold' >&2; exit 1; }
# A plain `cargo add leasehold` must be useful without a C compiler.
if cargo tree --locked -p leasehold -e normal,build --prefix none | grep -E '^cc v'; then
  echo 'features.sh: the default features of leasehold need a C compiler' >&2
  exit 1
fi
lint -p leasehold-cli
lint -p leasehold --lib --no-default-features
for feature in $all; do
  lint -p leasehold --lib --no-default-features --features "$feature"
done
lint -p leasehold --lib --all-features
lint -p leasehold-bext --lib --no-default-features
for feature in conformance http postgres redis sqlite; do
  lint -p leasehold-bext --lib --no-default-features --features "$feature"
done
