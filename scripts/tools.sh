#!/usr/bin/env bash
# Checks that everything `make test` needs is here. Prints in one line what is missing and what to do about it.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() {
  printf '%s\n' "$*" >&2
  exit 1
}

# Installs Debian packages without asking, but only where that takes no password.
apt_install() {
  local line="apt-get update && apt-get install -y --no-install-recommends $*"
  if ! command -v apt-get >/dev/null; then
    stop "missing: $*. Install what your system calls these Debian packages, then run this again."
  elif [[ $(id -u) == 0 ]]; then
    printf 'installing: %s\n' "$line"
    # In runlevel 1 server packages do not start their servers.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive bash -c "$line" || stop "this failed; run it by hand: $line"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    printf 'installing with sudo: %s\n' "$line"
    sudo -n env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive bash -c "$line" || stop "this failed; run it by hand: sudo bash -c '$line'"
  else
    stop "missing: $*. Run as root, then run this again: $line"
  fi
}

# The workspace states the oldest Rust, so it is read and not repeated. Not through cargo: one that is too old cannot
# even read the manifest.
needed=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' Cargo.toml)
[[ -n $needed ]] || stop 'Cargo.toml has no rust-version'

for tool in cargo rustc; do
  command -v "$tool" >/dev/null ||
    stop "$tool is not on the PATH: install Rust $needed or newer from https://rustup.rs, open a new shell, and run this again."
  # "rustc 1.95.0 (59807616e 2026-04-14)", or "rustc 1.97.0-nightly (…)"
  found=$("$tool" --version | sed -n "s/^$tool \([0-9.]*\).*/\1/p") || found=
  [[ -n $found ]] || stop "$tool --version does not work: repair the Rust installation, for example with \"rustup default stable\"."
  oldest=$(printf '%s\n' "$needed" "$found" | sort -V | head -n 1)
  [[ $oldest == "$needed" ]] ||
    stop "$tool is $found, and leasehold needs $needed or newer: run \"rustup update stable\", or install Rust from https://rustup.rs."
  "$tool" --version
done

# rustup's minimal profile has neither.
components=()
cargo fmt --version >/dev/null 2>&1 || components+=(rustfmt)
cargo clippy --version >/dev/null 2>&1 || components+=(clippy)
if ((${#components[@]})); then
  line="rustup component add ${components[*]}"
  command -v rustup >/dev/null || stop "missing: ${components[*]}. Install them from where this Rust came from."
  printf 'installing: %s\n' "$line"
  $line || stop "this failed; run it by hand: $line"
fi
cargo fmt --version
cargo clippy --version

# Rust links through the C compiler, so there must be one, with a libc to link with.
links() {
  command -v cc >/dev/null || return 1
  local out linked=0
  out=$(mktemp)
  echo 'int main(void) { return 0; }' | cc -x c -o "$out" - 2>/dev/null || linked=$?
  rm -f "$out"
  return "$linked"
}
links || apt_install gcc libc6-dev
links || stop 'cc cannot link a program, although gcc and libc6-dev are installed'
cc --version | head -n 1

# The tests start their own servers, on free ports, and stop them again.
has_postgres() {
  command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}
packages=()
command -v redis-server >/dev/null || packages+=(redis-server)
command -v redis-sentinel >/dev/null || packages+=(redis-sentinel)
# Certificates for them; an independent HTTP client; a program that acts like a person at a terminal.
for tool in openssl curl python3; do
  command -v "$tool" >/dev/null || packages+=("$tool")
done
# The shells whose completions are tried out.
for tool in zsh fish; do
  command -v "$tool" >/dev/null || packages+=("$tool")
done
has_postgres || packages+=(postgresql)
# The SQL for fences is tried on a real server, and fences pass through JavaScript's numbers.
command -v mariadbd >/dev/null || [[ -x /usr/sbin/mariadbd ]] || packages+=(mariadb-server)
command -v node >/dev/null || packages+=(nodejs)
# The dashboard is tested in a real browser.
command -v chromium >/dev/null || packages+=(chromium)
command -v pgbouncer >/dev/null || [[ -x /usr/sbin/pgbouncer ]] || packages+=(pgbouncer)
((${#packages[@]} == 0)) || apt_install "${packages[@]}"
redis-server --version
chromium --version 2>/dev/null
has_postgres || stop 'initdb of PostgreSQL is not to be found, neither on the PATH nor in /usr/lib/postgresql'
