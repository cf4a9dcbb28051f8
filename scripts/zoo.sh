#!/usr/bin/env bash
# `make zoo`: plants each defect of the bug zoo and waits until the check that is named for it sees it, by simulated seeds,
# or by torture of a real store if the defect is in that; then simulates thousands of seeds without a defect, which
# must show nothing. `scripts/zoo.sh simulated`, `scripts/zoo.sh live` and `scripts/zoo.sh DEFECT…` do a part of it.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo run --locked --quiet --profile sim -p leasehold-torture --features bugs --example zoo -- "$@"
