#!/bin/sh
# A long search: campaign.sh [EXECUTIONS [TARGET...]], by default 10 million executions of each target.
# Two targets run at a time, in slices of at most 500 000 executions with a seed each. Findings go to
# build/fuzz/campaign. An interrupted campaign, started again, continues after the last whole slice. An input that takes
# more than 5 s is a finding.
# At its end it writes bench/results/fuzz.json, a row a target: executions done and wanted, findings, and the coverage
# of the corpus found. Coverage is null where it cannot be measured.
# campaign.sh --report [EXECUTIONS [TARGET...]]: only writes that file, from the results so far. With targets named, the
# rows of others without a campaign here stay as they were.
# The exit status is 1 if anything was found, or if a (named) target has fewer executions than wanted.
set -eu
cd "$(dirname "$0")/../.."
. tests/fuzz/targets.sh
state=build/fuzz/campaign
result=bench/results/fuzz.json

# `total TARGET COLUMN`: adds up a column over a target's slices: executions, seconds or peak memory in MB.
total() {
    awk -v column="$2" '{ sum += $column } END { print sum + 0 }' "$state/$1/slices"
}

count() { # inputs that were kept, of the kinds
    kept=0 counted=$1
    shift
    for kind in "$@"; do
        kept=$((kept + $(find "$state/$counted" -maxdepth 1 -name "$kind-*" | wc -l)))
    done
    echo "$kept"
}

one() {
    target=$1 wanted=$2
    mkdir -p "$state/$target/corpus"
    cp -n "tests/fuzz/corpus/$target/"* "$state/$target/corpus/"
    touch "$state/$target/slices"
    while done=$(total "$target" 1) && [ "$done" -lt "$wanted" ]; do
        runs=$((wanted - done < 500000 ? wanted - done : 500000)) seed=$(($(wc -l <"$state/$target/slices") + 1))
        started=$(date +%s)
        status=0
        fuzz_run "$target" "$state/$target/" -seed="$seed" -timeout=5 -runs="$runs" "$state/$target/corpus" \
            >"$state/$target/log" 2>&1 || status=$?
        made=$(fuzz_stat number_of_executed_units "$state/$target/log")
        [ -n "$made" ] || {
            echo "campaign.sh: $target did not end, see $state/$target/log" >&2
            exit 1
        }
        [ $status -eq 0 ] || {
            cp "$state/$target/log" "$state/$target/log.$seed"
            grep -a -m 1 -E '^FAILED|ERROR: |runtime error' "$state/$target/log" || :
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
report=
if [ "${1:-}" = --report ]; then
    report=yes
    shift
fi
wanted=${1:-10000000}
[ "$wanted" -ge 1 ] 2>/dev/null || {
    echo "campaign.sh: '$wanted' executions, expected [--report] [EXECUTIONS [TARGET...]]" >&2
    exit 2
}
if [ $# -gt 0 ]; then shift; fi
if [ $# -eq 0 ]; then
    # shellcheck disable=SC2086  # the list is words
    set -- $fuzz_targets
fi
asked=" $* "
coverage=yes
fuzz_can_cover || {
    coverage=
    echo "campaign.sh: going on without coverage, $result will have null in its place" >&2
}
if [ -z "$report" ]; then
    scripts/build.sh fuzz >/dev/null
    # Those that do not go to their end are seen below, in what they have done.
    printf '%s\n' "$@" | xargs -P 2 -n 1 tests/fuzz/campaign.sh --one "$wanted" || :
fi

# Prints the target's row of the existing result, as in the middle of a list; nothing if there is none.
kept_row() {
    [ -e "$result" ] || return 0
    awk -v row="{\"target\": \"$1\"," '
        index($0, row) { inside = 1; sub(/^[[ ]*/, " ") }
        inside { text = text (text ? "\n" : "") $0 }
        inside && /}/ { sub(/},?$/, "}", text); printf "%s", text; exit }' "$result"
}

separator='[' failed=0
: >"$result.part"
trap 'rm -f "$result.part"' EXIT
printf '%-12s %10s %9s %8s %7s %7s %7s %7s %7s %5s %5s\n' \
    target executions 'of wanted' seconds 'exec/s' inputs lines regions crashes hangs ooms
for target in $fuzz_targets; do
    case $asked in
    *" $target "*) ;;
    *)
        if [ ! -s "$state/$target/slices" ]; then # of an earlier campaign
            row=$(kept_row "$target")
            [ -n "$row" ] || continue
            printf '%s\n%s' "$separator" "$row" >>"$result.part"
            separator=','
            continue
        fi
        ;;
    esac
    mkdir -p "$state/$target/corpus"
    touch "$state/$target/slices"
    executions=$(total "$target" 1) seconds=$(total "$target" 2)
    rate=$((executions / (seconds > 0 ? seconds : 1)))
    peak=$(awk '$3 > peak { peak = $3 } END { print peak + 0 }' "$state/$target/slices")
    inputs=$(find "$state/$target/corpus" -type f | wc -l)
    crashes=$(count "$target" crash leak) hangs=$(count "$target" timeout) ooms=$(count "$target" oom)
    lines=null regions=null complete=true
    if [ -n "$coverage" ] && [ "$inputs" -gt 0 ]; then
        if numbers=$(tests/fuzz/coverage.sh --numbers "$target" "$state/$target/corpus"); then
            lines=${numbers% *} regions=${numbers#* }
        else
            echo "campaign.sh: $target: no coverage" >&2
        fi
    fi
    if [ "$executions" -lt "$wanted" ]; then
        complete=false
        case $asked in *" $target "*) failed=1 ;; esac
        echo "campaign.sh: $target is not complete: $executions of $wanted executions" >&2
    fi
    # A slice that failed leaves its log, whether or not an input could be kept.
    if [ $((crashes + hangs + ooms)) -gt 0 ] || [ -n "$(find "$state/$target" -maxdepth 1 -name 'log.*')" ]; then
        failed=1
        echo "campaign.sh: $target has findings, in $state/$target" >&2
    fi
    printf '%-12s %10d %8d%% %8d %7d %7d %7s %7s %7d %5d %5d\n' "$target" "$executions" \
        $((100 * executions / wanted)) "$seconds" "$rate" "$inputs" "$lines" "$regions" "$crashes" "$hangs" "$ooms"
    printf '%s\n {"target": "%s", "executions": %d, "wanted": %d, "complete": %s, "seconds": %d,' \
        "$separator" "$target" "$executions" "$wanted" "$complete" "$seconds" >>"$result.part"
    printf ' "executions_per_second": %d, "inputs": %d,\n  "lines_percent": %s, "regions_percent": %s,' \
        "$rate" "$inputs" "$lines" "$regions" >>"$result.part"
    printf ' "peak_mb": %d, "crashes": %d, "hangs": %d, "ooms": %d}' "$peak" "$crashes" "$hangs" "$ooms" \
        >>"$result.part"
    separator=','
done
printf '\n]\n' >>"$result.part"
mv "$result.part" "$result"
echo "Written to $result"
exit "$failed"
