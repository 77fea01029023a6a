#!/bin/sh
# Measures how much of a target's files (targets.sh) a corpus reaches, in lines and regions:
# coverage.sh [--numbers] [TARGET [CORPUS]], by default every target and its corpus here.
# With --numbers it prints only the two percentages, lines first.
# Needs llvm-profdata and llvm-cov (Debian: llvm); builds in build/fuzz-coverage.
set -eu
cd "$(dirname "$0")/../.."
. tests/fuzz/targets.sh
numbers=
if [ "${1:-}" = --numbers ]; then
    numbers=yes
    shift
fi
fuzz_can_cover
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

flags='-fprofile-instr-generate -fcoverage-mapping'
if ! { cmake --preset fuzz -B build/fuzz-coverage -DCMAKE_C_FLAGS="$flags" -DCMAKE_EXE_LINKER_FLAGS="$flags" \
    -DCMAKE_C_FLAGS_RELEASE=-O1 && cmake --build build/fuzz-coverage --target fuzz; } >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
for target in ${1:-$fuzz_targets}; do
    program=build/fuzz-coverage/tests/fuzz/fuzz_$target
    LLVM_PROFILE_FILE="$work/raw" "$program" -runs=0 "${2:-tests/fuzz/corpus/$target}" >"$work/log" 2>&1 || {
        tail -n 40 "$work/log" >&2
        exit 1
    }
    fuzz_llvm llvm-profdata merge -sparse "$work/raw" -o "$work/profile"
    fuzz_llvm llvm-cov report "$program" -instr-profile="$work/profile" >"$work/report"
    # A row: file, regions, missed, %, functions, missed, %, lines, missed, %, ... The name is without what all have in
    # common; llvm-cov's own choice of files fails where the compiler was given relative names.
    awk -v target="$target" -v numbers="$numbers" -v sources="$(fuzz_sources "$target")" '
        function percent(all, missed) { return sprintf("%.2f", all ? 100 * (all - missed) / all : 0) }
        BEGIN { wanted = split(sources, list); for (i in list) aims[list[i]] = 1 }
        {
            for (i in list) {
                at = length($1) - length(list[i])
                if (!(list[i] in aims) || at < 0 || substr($1, at + 1) != list[i]) continue
                if (at > 0 && substr($1, at, 1) != "/") continue
                delete aims[list[i]]
                found++
                regions += $2; regions_missed += $3; lines += $8; lines_missed += $9
                rows = rows sprintf("   %-24s regions %6s%%  lines %6s%%\n", list[i], percent($2, $3), percent($8, $9))
            }
        }
        END {
            if (found != wanted) {
                for (name in aims) print "coverage.sh: " target " has no " name > "/dev/stderr"
                exit 1
            }
            if (numbers) print percent(lines, lines_missed), percent(regions, regions_missed)
            else printf "== %s: regions %s%%, lines %s%%\n%s", target, percent(regions, regions_missed),
                percent(lines, lines_missed), rows
        }' "$work/report"
done
