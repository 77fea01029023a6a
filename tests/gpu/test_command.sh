#!/bin/sh
# test_command.sh MAR: checks the command built with CUDA, with and without a GPU.
set -eu
mar=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() {
    "$mar" generate --backend "$1" --num_iter 2 --num_sampling_steps 4 --out "$work/$1.png" >"$work/out" 2>"$work/err"
}
if run cuda; then
    test -s "$work/cuda.png"
    grep -q 'cuda' "$work/out" "$work/err" || { echo "no word of the backend"; exit 1; }
else
    test "$(wc -l <"$work/err")" = 1 || { cat "$work/err"; echo "expected one line"; exit 1; }
    grep -qi 'no GPU' "$work/err" || { cat "$work/err"; echo "expected 'no GPU'"; exit 1; }
    test ! -e "$work/cuda.png"
    if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        cat "$work/err"
        echo "there is a GPU, though"
        exit 1
    fi
fi
run auto
test -s "$work/auto.png"
