#!/bin/sh
# Checks campaign.sh --report on made-up campaigns: the rows, a file that is always whole, and the exit status.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*" >&2
    cat "$work/out" >&2
    exit 1
}

. "$here/targets.sh"
rows=$(echo "$fuzz_targets" | wc -w)
mkdir -p "$work/tests/fuzz" "$work/bench/results" "$work/bin"
cp "$here"/*.sh "$work/tests/fuzz"
# A clang without the tools for coverage.
printf '#!/bin/sh\necho no-such-tool\n' >"$work/bin/clang"
chmod +x "$work/bin/clang"
result=$work/bench/results/fuzz.json state=$work/build/fuzz/campaign

campaign() { # TARGET EXECUTIONS: as if that many had been made, in two slices
    mkdir -p "$state/$1/corpus"
    printf '%s 2 50\n%s 3 40\n' $(($2 - 100)) 100 >"$state/$1/slices"
    echo seed >"$state/$1/corpus/seed"
}

# report STATUS: runs it twice, the second time as after an interruption
report() {
    for part in nothing half; do
        [ $part = nothing ] || echo '[ {"target": "half' >"$result.part"
        status=0
        PATH="$work/bin:$PATH" "$work/tests/fuzz/campaign.sh" --report 1000 >"$work/out" 2>&1 || status=$?
        [ $status = "$1" ] || fail "the exit status is $status, expected $1"
        [ "$(grep -c '"target"' "$result")" = "$rows" ] || fail "not $rows rows: $(cat "$result")"
        [ "$(head -c 1 "$result")" = '[' ] && [ "$(tail -n 1 "$result")" = ']' ] || fail "no list: $(cat "$result")"
        ! grep -q half "$result" || fail "what was left of another try is in it: $(cat "$result")"
        [ ! -e "$result.part" ] || fail "$result.part stays"
    done
    grep -q 'apt-get install llvm' "$work/out" || fail "it does not say what coverage needs"
}

for target in $fuzz_targets; do campaign $target 1000; done
report 0
[ "$(grep -c '"executions": 1000, "wanted": 1000, "complete": true, "seconds": 5' "$result")" = "$rows" ] ||
    fail "wrong rows: $(cat "$result")"
[ "$(grep -c '"lines_percent": null, "regions_percent": null, "peak_mb": 50, "crashes": 0' "$result")" = "$rows" ] ||
    fail "wrong rows: $(cat "$result")"

campaign options 800
report 1
grep -q '"target": "options", "executions": 800, "wanted": 1000, "complete": false' "$result" || fail "$(cat "$result")"
grep -q 'options is not complete: 800 of 1000 executions' "$work/out" || fail "it does not say what is missing"

rm -r "$state/options"
report 1
grep -q '"target": "options", "executions": 0, "wanted": 1000, "complete": false' "$result" || fail "$(cat "$result")"

campaign options 1000
echo x >"$state/options/crash-1"
report 1
[ "$(grep -c '"crashes": 1,' "$result")" = 1 ] || fail "no crash: $(cat "$result")"
grep -q 'options has findings' "$work/out" || fail "it does not say where the findings are"
rm "$state/options/crash-1"
# Rows at the beginning, in the middle and at the end of the list, and one additional campaign.
rm -r "$state/safetensors" "$state/options" "$state/run"
campaign npz 2000
PATH="$work/bin:$PATH" "$work/tests/fuzz/campaign.sh" --report 2000 npz >"$work/out" 2>&1 || fail "the exit status is $?"
for target in options safetensors run; do
    grep -q "\"target\": \"$target\", \"executions\": 1000, \"wanted\": 1000" "$result" ||
        fail "no $target: $(cat "$result")"
done
grep -q '"target": "npz", "executions": 2000, "wanted": 2000' "$result" || fail "no npz: $(cat "$result")"
[ "$(grep -c '},$' "$result")" = $((rows - 1)) ] && [ "$(grep -c '"target"' "$result")" = "$rows" ] ||
    fail "no list of $rows rows: $(cat "$result")"
campaign options 1000
campaign safetensors 1000
campaign run 1000
echo x >"$state/options/log.2" # a slice that failed and kept no input
report 1
echo "rows and exit status are right"
