#!/bin/sh
# Writes the seconds of the tests' last runs, in build/PRESET, into tests/costs.txt: after ./test.sh --all on an idle machine.
# A test that did not run keeps its numbers; a new one gets a row. Parentheses, the nightly lane's, stay as they are.
set -eu
cd "$(dirname "$0")/.."
costs=tests/costs.txt
presets='release asan tsan fuzz cuda'
seconds=$(mktemp)
trap 'rm -f "$seconds" "$costs.part"' EXIT
for preset in $presets; do
    log=build/$preset/Testing/Temporary/LastTest.log
    [ ! -e "$log" ] || awk -v preset="$preset" '/^[0-9]+\/[0-9]+ Test: / { name = $3; skipped = 0 }
        /^SKIPPED: / { skipped = 1 }
        /^Test time = / && !skipped { print preset, name, $4 }' "$log"
done >"$seconds"
[ -s "$seconds" ] || {
    echo "test_costs.sh: no test has run in build/PRESET, expected a run of ./test.sh" >&2
    exit 1
}
{
    grep -E '^(#|test )' "$costs"
    awk -v presets="$presets" '
        BEGIN { n = split(presets, column, " ") }
        /^#/ || $1 == "test" { next }
        NR == FNR { measured[$1, $2] = sprintf("%.1f", $3); names[$2]; next }
        { names[$1]; for (i = 1; i <= n; i++) old[column[i], $1] = $(i + 1) }
        END {
            for (name in names) {
                row = sprintf("%-30s", name)
                for (i = 1; i <= n; i++) {
                    was = old[column[i], name]
                    cost = (column[i], name) in measured ? measured[column[i], name] : was == "" ? "-" : was
                    if (was ~ /^\(/ && cost !~ /^\(/) cost = "(" cost ")"
                    row = row sprintf(" %9s", cost)
                }
                print row
            }
        }' "$seconds" "$costs" | LC_ALL=C sort
} >"$costs.part"
mv "$costs.part" "$costs"
