#!/usr/bin/env bash
# `make sim`: runs seeds of the deterministic simulation of the library, without any store. `scripts/sim.sh --help`
# says more.
set -euo pipefail
cd "$(dirname "$0")/.."
# Without the default features no store has to be built.
exec cargo run --locked --quiet --profile sim -p leasehold-torture --no-default-features --features __simulation --example sim -- "$@"
