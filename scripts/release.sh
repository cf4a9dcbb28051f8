#!/usr/bin/env bash
# `scripts/release.sh check`: may this tree be released? `scripts/release.sh publish` checks, and publishes the crates.
set -euo pipefail
cd "$(dirname "$0")/.."

value() { sed -n "s/^$1 *= *\"\(.*\)\"/\1/p" Cargo.toml | head -n 1; }
version=$(value version)
problems=()
[[ $(value repository) != *example.invalid* ]] ||
  problems+=("\`repository\` in Cargo.toml is a placeholder: set the public address")
grep -q "^## $version " CHANGELOG.md ||
  problems+=("CHANGELOG.md has no section \"## $version (date)\"")
! grep -rq -E 'is not on (crates.io|npm|PyPI) yet|no public address yet' README.md docs ||
  problems+=("texts say that leasehold is not published yet: $(grep -rlE 'is not on (crates.io|npm|PyPI) yet|no public address yet' README.md docs | xargs)")
[[ -z $(git status --porcelain) ]] ||
  problems+=("the work tree has changes: commit them")
[[ $(git tag --points-at HEAD) == *"v$version"* ]] ||
  problems+=("HEAD has no tag v$version: run \"git tag v$version\"")
if ((${#problems[@]})); then
  printf 'not ready for release: %s\n' "${problems[@]}" >&2
  exit 1
fi
scripts/oldest.sh
scripts/package.sh
case ${1:-check} in
  check) echo "leasehold $version may be released" ;;
  publish) cd "$(cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/publish" &&
    cargo publish --locked --workspace --exclude testkit --allow-dirty ;;
  *) echo 'scripts/release.sh check | publish' >&2; exit 64 ;;
esac
