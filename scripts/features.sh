#!/usr/bin/env bash
# features.sh CRATE: the features of a workspace member, one a line, as cargo sees them.
set -euo pipefail
cd "$(dirname "$0")/.."
crate=$1

# A fresh machine has no JSON parser. What makes this safe without one: a package, unlike a dependency, has its
# version right after its name; its features are the first object of that name behind it, and hold only lists.
metadata=$(cargo metadata --locked --offline --no-deps --format-version 1)
package=${metadata#*"{\"name\":\"$crate\",\"version\":"}
if [[ $package == "$metadata" ]]; then
  echo "features.sh: cargo metadata lists no crate $crate" >&2
  exit 1
fi
features=${package#*'"features":{'}
features=${features%%'}'*}
if ! grep -oE '"[^"]+":\[' <<<"$features" | tr -d '":['; then
  echo "features.sh: found no features of $crate in cargo metadata" >&2
  exit 1
fi
