#!/bin/sh
# Configures and builds a preset: build.sh [--tests | --all-tests] [-DNAME=VALUE...] [-UNAME...] PRESET [TARGET...].
# With --tests the tests of the change lane are built, too, with --all-tests those of the nightly lane; `ctest --preset
# PRESET` runs them. CMake's own account is shown if it fails.
set -eu
options=
while :; do
    case ${1:-} in
    --tests) options="$options -DMAR_TESTS=ON" ;;
    --all-tests) options="$options -DMAR_TESTS=ALL" ;;
    -D* | -U*) options="$options $1" ;;
    *) break ;;
    esac
    shift
done
preset=$1
shift
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086  # the list is words
cmake --preset "$preset" $options >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
}
if [ $# -gt 0 ]; then set -- --target "$@"; fi
cmake --build --preset "$preset" "$@"
