# Sourced by test.sh and check.sh: runs named steps, times each, and stops at the first that fails.
# Expects `goal`, what the person typed, for the last line.
# shellcheck shell=bash

# Nothing here asks a question; whatever tries to gets end-of-file instead of a hanging terminal.
exec </dev/null
# Under `make -j` these name a job server that is closed to us, and cargo would warn about it.
unset MAKEFLAGS MFLAGS

# step HEADING COMMAND...
# The command is a program, not a shell function: `if` switches `set -e` off inside functions.
step() {
  local heading=$1 began=$SECONDS
  shift
  printf '\n==> %s\n' "$heading"
  if "$@"; then
    printf '    done in %d s: %s\n' "$((SECONDS - began))" "$heading"
  else
    failed "$heading" "$((SECONDS - began))"
  fi
}

failed() {
  printf '\n%s: FAILED after %d s at the step: %s\n' "$goal" "$2" "$1" >&2
  exit 1
}

passed() {
  printf '\n%s: passed in %d s\n' "$goal" "$SECONDS"
}
