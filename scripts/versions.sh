#!/usr/bin/env bash
# `make versions`: runs the tests of the server stores on other versions of their servers than the system's own. These
# come from other releases of Debian, are unpacked under target/versions and run with the libraries they were built
# with; nothing is installed. Needs a Debian system and the network. Continues after a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
base=$PWD/target/versions

# fetch RELEASE PACKAGE: unpacks it and everything it needs.
fetch() {
  local release=$1 root=$base/$2
  [[ -e $root/complete ]] && return
  mkdir -p "$root"/{lists/partial,cache/archives/partial,root}
  : >"$root/status"
  # The archive that this system gets its packages from.
  local archive
  archive=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1)
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $release main" >"$root/sources.list"
  # As if nothing were installed here, so that every library comes with it. The downloader's own user cannot write
  # here.
  local apt=(apt-get -qq -o APT::Sandbox::User=root -o APT::Install-Recommends=false -o Dir::Etc::sourceparts=-
    -o Dir::Etc::sourcelist="$root/sources.list" -o Dir::State::lists="$root/lists"
    -o Dir::State::status="$root/status" -o Dir::Cache="$root/cache")
  "${apt[@]}" update
  "${apt[@]}" install --yes --download-only "$2"
  local archived
  for archived in "$root"/cache/archives/*.deb; do
    dpkg -x "$archived" "$root/root"
  done
  rm -r "$root"/{cache,lists}
  # The PostgreSQL tests run its server as another user.
  chmod -R a+rX "$base"
  touch "$root/complete"
}

# wrap PACKAGE PROGRAM WHERE: a script WHERE that runs the program with the loader and libraries that came with it.
wrap() {
  local root=$base/$1/root program=$2 where=$3 loader libraries
  # The link in /lib64 names the root of a whole system.
  loader=$(find "$root" -type f \( -name 'ld-linux-x86-64.so.2' -o -name 'ld-2.*.so' \) | head -n 1)
  libraries=$(find "$root" -name '*.so*' -path '*/x86_64-linux-gnu/*' -printf '%h\n' |
    grep -Ev '/(gconv|engines[^/]*|sasl2|security|ossl-modules)$' | sort -u | paste -sd:)
  mkdir -p "$(dirname "$where")"
  printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' "$loader" "$libraries" "$program" >"$where"
  chmod a+rx "$where"
}

# postgres RELEASE VERSION
postgres() {
  local package=postgresql-$2 program
  local programs=$base/$package/root/usr/lib/postgresql/$2/bin
  fetch "$1" "$package"
  for program in initdb postgres pg_ctl pg_basebackup psql; do
    # It looks for the other programs beside itself.
    [[ -e $programs/$program.unwrapped ]] || mv "$programs/$program" "$programs/$program.unwrapped"
    wrap "$package" "$programs/$program.unwrapped" "$programs/$program"
  done
  "$programs/postgres" --version
  LEASEHOLD_POSTGRES_PROGRAMS=$programs cargo test --locked -p leasehold --all-features --no-fail-fast \
    --test postgres_tables --test postgres_advisory --test postgres_warnings
}

# redis RELEASE NAME: `redis`, or a compatible server with another name.
redis() {
  local package=$2-server program
  local programs=$base/$package/programs
  fetch "$1" "$package"
  for program in server cli; do
    wrap "$package" "$base/$package/root/usr/bin/$2-$program" "$programs/redis-$program"
  done
  "$programs/redis-server" --version
  PATH=$programs:$PATH cargo test --locked -p leasehold --all-features --no-fail-fast \
    --test redis --test redis_warnings --test quorum
}

command -v apt-get >/dev/null || { echo 'make versions needs a Debian system' >&2; exit 1; }
failed=()
try() {
  printf '\n==> %s\n' "$*"
  # In a subshell, where `set -e` still works: in a condition it would not.
  set +e
  (set -e; "$@")
  local code=$?
  set -e
  ((code == 0)) || failed+=("$*")
}
try postgres bullseye 13
try postgres trixie 17
try redis trixie redis
try redis trixie valkey
if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo 'make versions: passed'
