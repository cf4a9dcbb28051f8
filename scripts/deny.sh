#!/usr/bin/env bash
# `make deny`: checks licences, sources and versions of every dependency, and known advisories if they can be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.20.2

# Beside cargo's other output, wherever that is.
target=$(cargo metadata --locked --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
tools=$target/tools

is_wanted() {
  command -v "$1" >/dev/null && [[ $("$1" --version 2>/dev/null) == "cargo-deny $version" ]]
}

if is_wanted cargo-deny; then
  deny=cargo-deny
else
  deny=$tools/bin/cargo-deny
  if ! is_wanted "$deny"; then
    echo "building cargo-deny $version once, into $tools: about 3.5 minutes on two cores"
    # A separate build directory, because nothing in it is used again.
    CARGO_TARGET_DIR=$tools/build cargo install --locked --version "$version" --root "$tools" --no-default-features cargo-deny
    rm -rf "$tools/build"
  fi
fi

"$deny" --locked check bans licenses sources

# The advisories are kept outside the repository. If they cannot be fetched, this is reported and the build continues,
# because the code is not at fault; once they are here, one that applies is an error. Two commands, to tell the two
# cases apart.
if reason=$(timeout 120 "$deny" --locked fetch db 2>&1); then
  "$deny" --locked --offline check advisories
else
  reason=$(sed -n '/./h; ${ g; s/.*\[ERROR\] //; p; }' <<<"$reason")
  said="advisories of the dependencies: their database cannot be fetched here (${reason:-no answer in time})"
  echo "NOT checked: $said"
  # For the summary of `make test`.
  [[ -z ${NOT_TESTED:-} ]] || echo "$said" >>"$NOT_TESTED"
fi
