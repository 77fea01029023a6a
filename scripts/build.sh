#!/bin/sh
# Configures and builds a preset: build.sh PRESET [TARGET...]. CMake's own account is shown if it fails.
set -eu
preset=$1
shift
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
}
if [ $# -gt 0 ]; then set -- --target "$@"; fi
cmake --build --preset "$preset" "$@"
