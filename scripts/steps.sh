# Sourced by test.sh and check.sh: runs named steps, each with a time limit, stops at the first that fails, and ends
# with a summary. Expects `goal`, what the user typed, for the last line.
# shellcheck shell=bash

# Nothing here asks a question; a program that tries to gets end-of-file instead of a hanging terminal.
exec </dev/null
# Under `make -j` these name a job server that is closed to us, and cargo would warn about it.
unset MAKEFLAGS MFLAGS

ran=()
# A step that leaves something out appends a line here: what, and why.
NOT_TESTED=$(mktemp)
export NOT_TESTED
trap 'rm -f "$NOT_TESTED"' EXIT
running=
trap 'kill "$running" 2>/dev/null; exit 130' INT TERM

# step LIMIT HEADING COMMAND...
# LIMIT is in minutes, several times what the step takes on two cores: a step that reaches it hangs.
step() {
  local limit=$1 heading=$2 began=$SECONDS code=0
  shift 2
  printf '\n==> %s\n' "$heading"
  # In the background, so that Ctrl-C works at once: `timeout` has moved the command out of the terminal's reach.
  timeout --kill-after=10 "${limit}m" "$@" &
  running=$!
  wait "$running" || code=$?
  running=
  if ((code == 124 || code == 137)); then
    failed "$heading" "$((SECONDS - began))" "it had not ended after $limit minutes"
  elif ((code != 0)); then
    failed "$heading" "$((SECONDS - began))" "exit code $code"
  fi
  ran+=("$(printf '%5d s  %s' "$((SECONDS - began))" "$heading")")
}

# failed HEADING SECONDS WHY
failed() {
  summary >&2
  printf '%5d s  FAILED: %s (%s)\n' "$2" "$1" "$3" >&2
  printf '\n%s: FAILED after %d s at the step: %s\n' "$goal" "$SECONDS" "$1" >&2
  exit 1
}

# not_tested TEXT: something that this run leaves out on purpose, and what would test it.
not_tested() {
  printf '%s\n' "$1" >>"$NOT_TESTED"
}

summary() {
  printf '\n==> summary of %s\n' "$goal"
  ((${#ran[@]} == 0)) || printf '%s\n' "${ran[@]}"
}

passed() {
  summary
  if [[ -s $NOT_TESTED ]]; then
    printf '\nnot tested:\n'
    sed 's/^/  - /' "$NOT_TESTED"
  fi
  printf '\n%s: passed in %d s\n' "$goal" "$SECONDS"
}
