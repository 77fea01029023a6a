#!/bin/sh
# Configures and builds a preset: build.sh [--tests] PRESET [TARGET...]. With --tests the tests are built, too, and
# `ctest --preset PRESET` runs them. CMake's own account is shown if it fails.
set -eu
tests=
if [ "${1:-}" = --tests ]; then
    tests=-DMAR_TESTS=ON
    shift
fi
preset=$1
shift
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" $tests >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
}
if [ $# -gt 0 ]; then set -- --target "$@"; fi
cmake --build --preset "$preset" "$@"
