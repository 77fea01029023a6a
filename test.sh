#!/bin/sh
# Installs what is missing, builds, and runs every test: optimised, then under AddressSanitizer and UBSan.
set -eu
cd "$(dirname "$0")"
. scripts/packages.sh

need_packages
failed=
for preset in release asan; do
    echo "== $preset"
    scripts/build.sh "$preset"
    ctest --preset "$preset" --no-tests=error || failed="$failed $preset"
done
[ -z "$failed" ] || {
    echo "Tests failed:$failed" >&2
    exit 1
}
