#!/bin/sh
# Searches for inputs that break a property: run.sh [TARGET...]. It takes about 15 s a target, two targets at a time. It
# starts from the corpora and leaves them unchanged. Failing inputs are kept in build/fuzz/findings, with a line that
# says how to run them again.
# The number of executions and the seed are fixed: the same code gets the same inputs, fewer on a slow machine.
# campaign.sh gives it others. An input may take 25 s of the clock, as other tests may be running.
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
