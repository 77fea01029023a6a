#!/bin/sh
# The library and the command are configured without asking for a C++ compiler, nvcc or anything of the tests, and
# demo.sh installs none of it. Called by ctest: test_configure.sh SOURCE_DIR CC GENERATOR
set -eu
source_dir=$1 cc=$2 generator=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake -G "$generator" -S "$source_dir" -B "$work/build" -DCMAKE_C_COMPILER="$cc" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
failed=0
for word in CMAKE_CXX_COMPILER CMOCKA MAR_NVCC CMAKE_CUDA_COMPILER; do
    if grep "^$word" "$work/build/CMakeCache.txt"; then
        echo "FAILED: the command is configured with $word"
        failed=1
    fi
done
if [ -e "$work/build/tests" ] || (cd "$work/build" && ctest -N | grep -q 'Test *#'); then
    echo "FAILED: the tests are configured for the command"
    failed=1
fi
. "$source_dir/scripts/packages.sh"
for package in $test_packages $fuzz_packages make; do
    case " $packages " in
    *" $package "*)
        echo "FAILED: demo.sh installs $package"
        failed=1
        ;;
    esac
done
exit $failed
