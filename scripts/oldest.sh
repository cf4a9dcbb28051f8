#!/usr/bin/env bash
# Builds every crate that users need with the oldest supported Rust (`rust-version` in Cargo.toml), through rustup.
set -euo pipefail
cd "$(dirname "$0")/.."
oldest=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' Cargo.toml)
if ! command -v rustup >/dev/null; then
  echo "rustup is not on the PATH: it installs Rust $oldest for this check. See https://rustup.rs." >&2
  exit 1
fi
rustup toolchain list | grep -q "^$oldest" || rustup toolchain install "$oldest" --profile minimal
# A directory of its own: what another compiler built is of no use to this one.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/oldest \
  cargo "+$oldest" check --locked -p leasehold -p leasehold-bext -p leasehold-server -p leasehold-cli \
  --features leasehold/full,leasehold-bext/full
