#!/usr/bin/env bash
# `make zoo`: plants each defect of the bug zoo and waits until the check that is named for it sees it; then simulates
# thousands of seeds without a defect, which must show nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo run --locked --quiet --profile sim -p leasehold-torture --features bugs --example zoo -- "$@"
