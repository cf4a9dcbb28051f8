#!/usr/bin/env bash
# Tests the SDKs: `make sdk-python`, `make sdk-typescript`, `make sdk-go` test one, `make sdk-mixed` all languages
# together, `make sdk-torture` all under faults, for about 20 minutes.
#
#   scripts/sdk.sh LANGUAGE    its lints, its own tests, the scenarios, its fields beside /openapi.json, a short torture
#   scripts/sdk.sh tools       installs what Debian has of what is missing: Go, Node, Python's venv
#
# LEASEHOLD_BIN, LEASEHOLD_FAULT_PROXY and LEASEHOLD_CONTENDER name programs that are built already.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

stop() {
  printf 'sdk.sh: %s\n' "$*" >&2
  exit 1
}

# Installs the Debian package unless the command works.
need() {
  local package=$1
  shift
  if "$@" >/dev/null 2>&1; then return; fi
  printf 'installing %s\n' "$package"
  local as=()
  [[ $(id -u) == 0 ]] || as=(sudo -n)
  { command -v apt-get >/dev/null &&
    "${as[@]}" apt-get -o DPkg::Lock::Timeout=300 update -qq &&
    "${as[@]}" apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$package" >/dev/null; } ||
    stop "install $package, which the tests of the SDKs need, and run this again"
  "$@" >/dev/null 2>&1 || stop "$package is installed, and yet this fails: $*"
}

tools() {
  need golang-go go version
  need nodejs node --version
  need npm npm --version
  need python3-venv python3 -c 'import ensurepip, venv'
  node -e 'process.exit(+process.versions.node.split(".")[0] >= 20 ? 0 : 1)' ||
    stop "node is $(node --version), and the SDK needs 20 or newer: install it from https://nodejs.org"
}

# The server, the bench and the contender in Rust.
programs() {
  local target=
  if [[ -z ${LEASEHOLD_BIN:-} || -z ${LEASEHOLD_FAULT_PROXY:-} || -z ${LEASEHOLD_CONTENDER:-} ]]; then
    target=$(cargo metadata --locked --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
  fi
  if [[ -z ${LEASEHOLD_BIN:-} ]]; then
    cargo build --locked --quiet -p leasehold-cli
    export LEASEHOLD_BIN=$target/debug/leasehold
  fi
  if [[ -z ${LEASEHOLD_FAULT_PROXY:-} ]]; then
    cargo build --locked --quiet -p leasehold-testbed --example fault-proxy
    export LEASEHOLD_FAULT_PROXY=$target/debug/examples/fault-proxy
  fi
  if [[ -z ${LEASEHOLD_CONTENDER:-} && $1 == mixed ]]; then
    cargo build --locked --quiet -p leasehold-torture --example contender
    export LEASEHOLD_CONTENDER=$target/debug/examples/contender
  fi
}

# What an SDK's programs need before they run.
build() {
  cd "$root/sdk/$1"
  case $1 in
    python)
      venv=$root/target/sdk/python
      if ! cmp -s requirements-dev.txt "$venv/installed"; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements-dev.txt
        cp requirements-dev.txt "$venv/installed"
      fi
      export PATH=$venv/bin:$PATH
      ;;
    typescript)
      [[ node_modules/.package-lock.json -nt package-lock.json ]] || npm ci --silent --no-audit --no-fund
      npm run --silent build
      ;;
    go) go build ./... ;;
  esac
  cd "$root"
}

heading() {
  printf -- '--> %s: %s\n' "$1" "$2"
}

# Runs the lints, the SDK's own tests and the scenarios. Every case of a scenario leaves a line in the file $seen.
own_tests() {
  cd "$root/sdk/$1"
  case $1 in
    python)
      # Lints, package, tests and scenarios side by side.
      bin/test
      cp "${CARGO_TARGET_DIR:-$root/target}/sdk/python-work/scenarios.log" "$seen"
      ;;
    typescript)
      npm run --silent lint
      npm test --silent
      bin/scenarios >"$seen" || { grep -v '^ok ' "$seen"; stop "scenarios of $1 failed"; }
      ;;
    go)
      local wrong
      wrong=$(gofmt -l .)
      [[ -z $wrong ]] || stop "not formatted; run gofmt -w: $wrong"
      go vet ./...
      go test -count=1 ./...
      bin/scenarios >"$seen" || { grep -v '^ok ' "$seen"; stop "scenarios of $1 failed"; }
      ;;
  esac
  cd "$root"
  # A runner that runs nothing passes.
  local ran
  ran=$(grep -c '^ok ' "$seen")
  ((ran >= 100)) || stop "only $ran cases ran"
  printf '%s scenarios and pure cases passed\n' "$ran"
}

language() {
  heading "$1" 'build'
  build "$1"
  heading "$1" 'lints, its own tests, scenarios'
  own_tests "$1"
  heading "$1" 'fields and codes beside /openapi.json'
  scripts/sdk-fields.py "$1"
  heading "$1" 'torture'
  # Exit code 81: no violation, but too little happened to show anything. A slow machine needs more time.
  local code=0
  "$LEASEHOLD_BIN" torture --store http --workers "$1" --secs 10 || code=$?
  ((code != 81)) || { code=0; "$LEASEHOLD_BIN" torture --store http --workers "$1" --secs 40 || code=$?; }
  ((code == 0)) || stop "torture with workers of $1 ended with $code"
}

torture() {
  local name profile
  for name in python typescript go; do
    build "$name"
    for profile in calm kill pause net restart; do
      "$LEASEHOLD_BIN" torture --store http --workers "$name" --profile "$profile" --secs 60
    done
  done
}

seen=$(mktemp)
trap 'rm -f "$seen"' EXIT
case ${1:-} in
  tools) tools ;;
  python | typescript | go)
    tools
    programs "$1"
    language "$1"
    ;;
  mixed)
    tools
    programs mixed
    for name in python typescript go; do build "$name"; done
    scripts/sdk-mixed.py
    ;;
  torture)
    tools
    programs torture
    torture
    ;;
  *) stop 'which? python, typescript, go, mixed, torture or tools' ;;
esac
