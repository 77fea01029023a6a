#!/bin/sh
# Searches for inputs that break a property, about a quarter of a minute a target, two targets at a time, from the corpora,
# which stay as they are: run.sh [TARGET...]. What fails is kept in build/fuzz/findings, with a line that says how to run it
# again. The number of executions is fixed and so is the seed: the same code gets the same inputs, on a slow machine fewer,
# and campaign.sh others. An input may take 25 s of the clock: other tests may be running.
set -eu
cd "$(dirname "$0")/../.."
. tests/fuzz/targets.sh
findings=build/fuzz/findings

if [ "${1:-}" != --one ]; then
    if [ $# -eq 0 ]; then
        # shellcheck disable=SC2086  # the list is words
        set -- $fuzz_targets
    fi
    rm -rf "$findings"
    mkdir -p "$findings"
    printf '%s\n' "$@" | xargs -P 2 -n 1 tests/fuzz/run.sh --one || exit 1
    exit 0
fi

target=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "tests/fuzz/corpus/$target" "$work/corpus"
status=0
fuzz_run "$target" "$findings/$target-" -seed=1 -timeout=25 -runs="$(($(fuzz_runs "$target") / 4))" -max_total_time=60 \
    "$work/corpus" >"$work/log" 2>&1 || status=$?
edges=$(sed -n 's/^#[0-9]*\t.* cov: \([0-9]*\) .*/\1/p' "$work/log" | tail -n 1)
echo "fuzz $target: $(fuzz_stat number_of_executed_units "$work/log") executions, $edges edges, at most" \
    "$(fuzz_stat peak_rss_mb "$work/log") MB"
[ $status -ne 0 ] || exit 0

grep -a -m 1 -E '^FAILED|ERROR: |runtime error' "$work/log" || :
cp "$work/log" "$findings/$target.log"
for input in "$findings/$target-"*-*; do
    [ ! -e "$input" ] || echo "Run it again: build/fuzz/tests/fuzz/fuzz_$target $input"
done
echo "FAILED: fuzz $target, see $findings/$target.log"
exit 1
