#!/bin/sh
# A long search: campaign.sh [EXECUTIONS [TARGET...]], by default 10 million executions of each target, two targets at a
# time, in slices of at most 500 000 with a seed each. What it finds goes to build/fuzz/campaign; when it is interrupted and
# started again, it goes on after the last whole slice. At its end it writes bench/results/fuzz.json, a row a target, for
# the targets that are complete, with the coverage that the corpus found reaches.
set -eu
cd "$(dirname "$0")/../.."
. tests/fuzz/targets.sh
state=build/fuzz/campaign

# A target's number in its slices: `total TARGET COLUMN`; the columns are executions, seconds and peak memory in MB.
total() {
    awk -v column="$2" '{ sum += $column } END { print sum + 0 }' "$state/$1/slices"
}

count() { # files that match
    find "$state/$1" -maxdepth 1 -name "$2-*" | wc -l
}

one() {
    target=$1 wanted=$2
    mkdir -p "$state/$target/corpus"
    cp -n "tests/fuzz/corpus/$target/"* "$state/$target/corpus/"
    touch "$state/$target/slices"
    while done=$(total "$target" 1) && [ "$done" -lt "$wanted" ]; do
        runs=$((wanted - done < 500000 ? wanted - done : 500000)) seed=$(($(wc -l <"$state/$target/slices") + 1))
        started=$(date +%s)
        fuzz_run "$target" "$state/$target/" -seed="$seed" -runs="$runs" "$state/$target/corpus" \
            >"$state/$target/log" 2>&1 || {
            cp "$state/$target/log" "$state/$target/log.$seed"
            grep -a -m 1 -E '^FAILED|ERROR: |runtime error' "$state/$target/log" || :
        }
        made=$(fuzz_stat number_of_executed_units "$state/$target/log")
        [ -n "$made" ] || {
            echo "campaign.sh: $target did not end, see $state/$target/log" >&2
            exit 1
        }
        echo "$made $(($(date +%s) - started)) $(fuzz_stat peak_rss_mb "$state/$target/log")" >>"$state/$target/slices"
        if [ "$(find "$state/$target" -maxdepth 1 -name 'log.*' | wc -l)" -ge 20 ]; then
            echo "campaign.sh: $target stops after 20 findings, in $state/$target" >&2
            exit 1
        fi
    done
}

if [ "${1:-}" = --one ]; then
    one "$3" "$2"
    exit 0
fi
wanted=${1:-10000000}
if [ $# -gt 0 ]; then shift; fi
if [ $# -eq 0 ]; then
    # shellcheck disable=SC2086  # the list is words
    set -- $fuzz_targets
fi
scripts/build.sh fuzz >/dev/null
printf '%s\n' "$@" | xargs -P 2 -n 1 tests/fuzz/campaign.sh --one "$wanted" || echo "Not all went to their end" >&2

result=bench/results/fuzz.json
separator='['
printf '%-12s %10s %8s %7s %7s %7s %7s %7s %5s %5s\n' target executions seconds 'exec/s' inputs lines regions crashes hangs ooms
for target in $fuzz_targets; do
    [ -s "$state/$target/slices" ] || continue
    executions=$(total "$target" 1) seconds=$(total "$target" 2)
    [ "$seconds" -gt 0 ] || seconds=1
    peak=$(awk '$3 > peak { peak = $3 } END { print peak + 0 }' "$state/$target/slices")
    # shellcheck disable=SC2046  # two numbers
    set -- $(tests/fuzz/coverage.sh --numbers "$target" "$state/$target/corpus")
    printf '%-12s %10d %8d %7d %7d %6s%% %6s%% %7d %5d %5d\n' "$target" "$executions" "$seconds" \
        $((executions / seconds)) "$(find "$state/$target/corpus" -type f | wc -l)" "$1" "$2" \
        $(($(count "$target" crash) + $(count "$target" leak))) "$(count "$target" timeout)" "$(count "$target" oom)"
    printf '%s\n {"target": "%s", "executions": %d, "seconds": %d, "executions_per_second": %d, "inputs": %d,' \
        "$separator" "$target" "$executions" "$seconds" $((executions / seconds)) \
        "$(find "$state/$target/corpus" -type f | wc -l)" >>"$result.part"
    printf ' "lines_percent": %s, "regions_percent": %s, "peak_mb": %d,\n  "crashes": %d, "hangs": %d, "ooms": %d}' \
        "$1" "$2" "$peak" $(($(count "$target" crash) + $(count "$target" leak))) "$(count "$target" timeout)" \
        "$(count "$target" oom)" >>"$result.part"
    separator=','
done
printf '\n]\n' >>"$result.part"
mv "$result.part" "$result"
echo "Written to $result"
