#!/bin/sh
# How much of the files that a target aims at (targets.sh) a corpus reaches, in lines and regions: coverage.sh [--numbers]
# [TARGET [CORPUS]], by default every target and its corpus here. With --numbers only the two percentages. Needs
# llvm-profdata and llvm-cov (Debian: llvm); builds in build/fuzz-coverage.
set -eu
cd "$(dirname "$0")/../.."
. tests/fuzz/targets.sh
numbers=
if [ "${1:-}" = --numbers ]; then
    numbers=yes
    shift
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

flags='-fprofile-instr-generate -fcoverage-mapping'
if ! { cmake --preset fuzz -B build/fuzz-coverage -DCMAKE_C_FLAGS="$flags" -DCMAKE_EXE_LINKER_FLAGS="$flags" \
    -DCMAKE_C_FLAGS_RELEASE=-O1 && cmake --build build/fuzz-coverage --target fuzz; } >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
tool() { # of the version that clang has
    name=$1
    shift
    "$(clang -print-prog-name="$name")" "$@"
}
for target in ${1:-$fuzz_targets}; do
    program=build/fuzz-coverage/tests/fuzz/fuzz_$target
    LLVM_PROFILE_FILE="$work/raw" "$program" -runs=0 "${2:-tests/fuzz/corpus/$target}" >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        exit 1
    }
    tool llvm-profdata merge -sparse "$work/raw" -o "$work/profile"
    # shellcheck disable=SC2046  # a list of files
    tool llvm-cov report "$program" -instr-profile="$work/profile" $(fuzz_sources "$target") >"$work/report"
    if [ -n "$numbers" ]; then
        awk '$1 == "TOTAL" { gsub("%", ""); print $10, $4 }' "$work/report"
    else
        echo "== $target: regions $(awk '$1 == "TOTAL" { print $4 }' "$work/report"), lines $(
            awk '$1 == "TOTAL" { print $10 }' "$work/report")"
        awk '/\.[ch] / { printf "   %-24s regions %7s  lines %7s\n", $1, $4, $10 }' "$work/report"
    fi
done
