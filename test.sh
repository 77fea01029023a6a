#!/bin/sh
# Installs what is missing, builds, and runs every test: optimised, then under AddressSanitizer and UBSan; both run the
# CUDA kernels on the CPU. Then the CUDA build: compiled and linked, and run where there is a GPU.
set -eu
cd "$(dirname "$0")"
. scripts/packages.sh
. scripts/cuda.sh

need_packages g++
need_cuda
failed=
for preset in release asan; do
    echo "== $preset"
    scripts/build.sh "$preset"
    ctest --preset "$preset" --no-tests=error || failed="$failed $preset"
done
echo "== cuda"
scripts/build.sh cuda
labels=cuda
if have_gpu; then labels='cuda|gpu'; else echo "No GPU here: the tests labelled gpu do not run"; fi
ctest --preset cuda -L "^($labels)\$" --no-tests=error || failed="$failed cuda"
[ -z "$failed" ] || {
    echo "Tests failed:$failed" >&2
    exit 1
}
