#!/usr/bin/env bash
# `make fuzz`: runs every fuzz target (a test whose name begins with `fuzz_`) for FUZZ_SECS seconds, one after the
# other. In `make test` each gets a thousand inputs. SEED=N repeats the same inputs.
set -euo pipefail
cd "$(dirname "$0")/.."
export FUZZ_SECS=${FUZZ_SECS:-60}
# Faster than dev, and an overflow still panics.
exec cargo test --locked --profile sim --all-features -p leasehold -p leasehold-server --lib fuzz_ -- --test-threads=1 --nocapture
