#!/bin/sh
# Checks that this tree draws the same tokens as an older one, to the bit, in every configuration of tokens.c. Also
# times both builds in turns:
#   tests/record/compare.sh REV [ROUNDS]
# ROUNDS (default 0) is the number of times that each command below is timed in each build.
set -eu
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { echo "usage: tests/record/compare.sh REV [ROUNDS]" >&2; exit 2; }
rev=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "compare.sh: $1: no such revision" >&2; exit 2; }
rounds=${2:-0}
work=$(mktemp -d)
trap 'git worktree remove --force "$work/old" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/old" "$rev"

# build TREE BUILD: builds the library, the command, and tokens.c with them
build() {
    cmake -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMAR_TESTS=OFF >"$2.log" 2>&1 &&
        cmake --build "$2" >>"$2.log" 2>&1 || { cat "$2.log" >&2; exit 1; }
    cc -std=c11 -D_GNU_SOURCE -O1 -I"$1/include" tests/record/tokens.c -o "$2/token_record" -L"$2" -lmar \
        -Wl,-rpath,"$2"
}
build "$work/old" "$work/old-build"
build . "$work/new-build"
for build in old new; do "$work/$build-build/token_record" >"$work/$build.txt"; done
if ! diff "$work/old.txt" "$work/new.txt"; then
    echo "compare.sh: the tokens differ from those of $1" >&2
    exit 1
fi
echo "$(wc -l <"$work/new.txt") configurations, identical to the bit to $1 ($(git describe --always "$rev"))"

# Prints the seconds per image of `mar bench` in turns. The arguments are its options.
time_runs() {
    for round in $(seq "$rounds"); do
        for build in old new; do
            "$work/$build-build/mar" bench "$@" --json |
                python3 -c 'import json, sys; print("%.4f" % json.load(sys.stdin)["seconds_per_image"])' \
                    >>"$work/$build.times"
        done
    done
    paste "$work/old.times" "$work/new.times" |
        awk -v name="$*" '{ old[NR] = $1; new[NR] = $2; r[NR] = $2 / $1 }
            function median(a, n, i, j, t) {
                for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (a[j] < a[i]) { t = a[i]; a[i] = a[j]; a[j] = t }
                return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
            }
            END { o = median(old, NR); n = median(new, NR); m = median(r, NR)
                  printf "%s: %.4f s an image before, %.4f after; after/before %.3f (%.3f to %.3f) in %d turns\n", \
                         name, o, n, m, r[1], r[NR], NR }'
    rm "$work/old.times" "$work/new.times"
}
[ "$rounds" -gt 0 ] || exit 0
time_runs --repeat 20
time_runs --repeat 20 --head_spec 8
if [ -n "${MAR_B:-}" ]; then time_runs --model "$MAR_B" ${VAE:+--vae "$VAE"}; fi
