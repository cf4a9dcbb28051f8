#!/usr/bin/env bash
# `make zoo`: plants each defect of the bug zoo and waits until its check sees it, in simulated seeds, or by torture of
# a real store if the defect is in the store; then simulates thousands of seeds without a defect, which must show
# nothing. `scripts/zoo.sh simulated`, `scripts/zoo.sh live` and `scripts/zoo.sh DEFECT…` do a part of it; SEED=N
# simulates the seeds from N on without a defect.
set -euo pipefail
cd "$(dirname "$0")/.."
features=(--features __bugs)
# The simulation uses no store, and most of what would have to be built belongs to the stores.
[ "$*" = simulated ] && features+=(--no-default-features)
exec cargo run --locked --quiet --profile sim -p leasehold-torture "${features[@]}" --example zoo -- "$@"
