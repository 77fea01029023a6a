#!/usr/bin/env bash
# test_hour.sh SOURCE_DIR COMMAND [demo]: tries scripts/gpu_hour.sh without a GPU. The programs are stand-ins: one step
# hangs, others fail, and each must have its row. Then it runs with a stand-in for nvidia-smi and a kit's programs, in
# another folder. With `demo` the steps run COMMAND on the demo models, and none fails.
set -euo pipefail
source_dir=$1 command=$2 kind=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hour=$source_dir/scripts/gpu_hour.sh

fail() {
    echo "FAILED: $*"
    cat "$work/printed" 2>/dev/null || true
    exit 1
}

# has NAME STATUS [KEY]: checks a step's row
has() {
    grep -Eq "^[0-9]+ +$1 +$2 +[0-9]+ +${3:-}" "$work/out/summary.txt" || fail "$1: no row with $2, ${3:-any number}"
}

if [ "$kind" = demo ]; then
    MAR_COMMAND=$command "$hour" --dry-run "$work/out" >"$work/printed" 2>&1 || fail "status $?, expected 0"
    for name in head-{mar_b,spherear,mar_h,nextstep} head_spec head_spec-few spec-groups gpt_l products batch batch-{groups,products} \
        clusters-{mar_b,spherear} lumina decode; do
        has $name ok '[^ ]'
    done
    has tests skipped 'needs a GPU'
    for name in clusters-mar_b-cluster8-words0 head-{mar_b,spherear}-resident head_spec-few-{mar_b_256,spherear_b}-resident \
        head-{mar_h,nextstep}-streamed; do
        grep -q '"head_call_seconds"' "$work"/out/*-$name.json || fail "no JSON of $name"
    done
    has gpt_l ok '.* rows 2: [0-9.]+, 4: '
    echo PASSED
    exit 0
fi

# Stand-ins: a microbenchmark that hangs, with a child; one whose numbers decide; tests, one of which fails and one hangs;
# a command that fails with --head_spec and is slower with words.
mkdir -p "$work/programs/tests"
. "$source_dir/scripts/gpu_programs.sh"
for name in $gpu_tests; do ln -s /bin/true "$work/programs/tests/test_gpu_$name"; done
ln -sf /bin/false "$work/programs/tests/test_gpu_streamed"
rm "$work/programs/tests/test_gpu_groups"
printf '#!/bin/sh\n[ "$MAR_CUDA_TEST_SCALE" != 1 ] || sleep 1000\n' >"$work/programs/tests/test_gpu_groups"
chmod +x "$work/programs/tests/test_gpu_groups"
cat >"$work/programs/exchange" <<'END'
#!/bin/sh
echo "clusters of 2: st.async                                      100 cycles 0.050 us"
sleep 1000
END
cat >"$work/programs/chain_proto" <<'END'
#!/bin/sh
echo "2 rows: ${US:-12.50} us a call; relative distance to the host 1.0e-04: right"
echo "8 rows: 19.00 us a call; relative distance to the host 1.0e-04: right"
END
cat >"$work/programs/mar" <<'END'
#!/bin/sh
case "$*" in
*--version*) echo "mar 0" ;;
*"--head_spec 4"*) echo "mar: a stand-in that fails" >&2 && exit 3 ;;
*)
    [ "${MAR_CUDA_HEAD_CLUSTER:-}${MAR_CUDA_HEAD_WORDS:-}" != "${NO_ROOM:-none}" ] || exit 4
    [ "${MAR_CUDA_HEAD_RESIDENT:-}" != "${BROKEN:-none}" ] || exit 5
    printf '{\n\t"head_call_seconds":\t%s,\n\t"seconds_per_image":\t0.5,\n\t"seconds_per_token":\t%s\n}\n' \
        "0.00004${MAR_CUDA_HEAD_WORDS:-$((5 - ${MAR_CUDA_HEAD_RESIDENT:-0} - ${MAR_CUDA_HEAD_GROUPS:-0}))}" \
        "0.000${MAR_CUDA_DECODE:+2}5"
    case "$*" in *--backend\ cuda*--repeat\ [23]* | *--backend\ cpu*--repeat\ 1* | *--batch\ 256*) ;; *) exit 6 ;; esac
    ;;
esac
END
chmod +x "$work"/programs/*
export MAR_GPU_PROGRAMS=$work/programs MAR_COMMAND=$work/programs/mar

status=0
(cd "$work" && "$hour" --dry-run --limit 5 out) >"$work/printed" 2>&1 || status=$?
[ $status = 1 ] || fail "status $status, expected 1: steps were cut and failed"
has exchange cut
grep -q '^clusters of 2' "$work/out/01-exchange.txt" || fail "what a step printed before it was cut is lost"
has chain_proto ok '2 rows 12.50 us, 8 rows 19.00 us: build it'
has tests 'failed 1' '3 pass; failed: streamed; cut: groups; not run: decode .* conv'
has tests-full 'failed 1' '1 pass; failed: streamed'
has head-mar_b ok 'default 45, resident 44, streamed 43'
has clusters-mar_b ok 'default 45, cluster8-words0 40, cluster8-words1 41'
grep -q '"head_call_seconds":[[:space:]]*0.000041' "$work"/out/*-clusters-mar_b-cluster8-words1.json || fail "no JSON of a form"
grep -q '"head_call_seconds":[[:space:]]*0.000044' "$work/out/05-head-mar_b-resident.json" || fail "no JSON of the resident form"
has head-mar_h ok 'default 45, streamed 43'
has products ok '0: 0, 1: 0'
has head_spec 'failed 3' 'mar: a stand-in that fails'
has head_spec-few 'failed 3'
has spec-groups 'failed 3'
has batch ok '0.5 s an image at 2, head 45 us a call, transformer 0, 0.5 at 3'
has batch-groups ok '0.5 s an image at 2, head 44 us a call, '
has batch-products ok '0.5 s an image at 2, head 45 us a call, transformer 0, 0.5 at 3'
has gpt_l ok '0.5 ms a token, int8 0.5'
has decode ok '0.25 ms a token, int8 0.25'
has lumina ok '0.5 ms a token .* in one launch 0.25'
has torch-compile skipped
[ "$(tail -n "$(wc -l <"$work/out/summary.txt")" "$work/printed")" = "$(cat "$work/out/summary.txt")" ] ||
    fail "the table is not what is printed last"
[ "$(wc -l <"$work/out/summary.txt")" = "$(grep -c '^step ' "$hour")" ] || fail "a step has no row"

# What the prototype's time decides; a time that is over.
for case in "20.00 between" "25.10 exchanges"; do
    US=${case% *} "$hour" --dry-run --limit 2 --seconds 30 "$work/out" >"$work/printed" 2>&1 || true
    has chain_proto ok "2 rows ${case% *} us, .*: ${case#* }"
done

# A form that the GPU has no room for does not fail the step; a new form that fails does. Both are named.
NO_ROOM=80 BROKEN=1 "$hour" --dry-run --limit 6 "$work/out" >"$work/printed" 2>&1 || true
has clusters-mar_b ok 'default 45, cluster8-words0 failed 4, cluster8-words1 41'
has head-mar_b 'failed 5' 'default 45, resident failed 5, streamed 43'
"$hour" --dry-run --seconds 1 "$work/out" >"$work/printed" 2>&1 || true
has torch-compile 'no time'

# With a GPU's programs from a kit, in a tree without git and at another place; PyTorch makes some of the models.
rm -f "$work/programs/exchange" "$work/programs/tests/test_gpu_"{streamed,groups,products}
printf '#!/bin/sh\n[ -e "$MAR_DATA_DIR/demo" ]\n' >"$work/programs/tests/test_gpu_products" # in the tree
chmod +x "$work/programs/tests/test_gpu_products"
mkdir -p "$work/tree/tests" "$work/tree/weights/demo" "$work/kit" "$work/bin"
cp -r "$source_dir/scripts" "$work/tree"
touch "$work/tree/tests/test.c"
python3 -c 'import sys, tarfile; tarfile.open(sys.argv[2], "w:xz").add(sys.argv[1], ".")' \
    "$work/programs" "$work/kit/programs.tar.xz"
echo "90a $(cd "$work/tree" && gpu_sources 2>/dev/null)" >"$work/kit/programs"
touch -d 2020-01-01 "$work/tree/tests/test.c"
cat >"$work/bin/nvidia-smi" <<'END'
#!/bin/sh
case "$1" in --query-gpu=compute_cap) echo 9.0 ;; esac
END
cat >"$work/bin/python3" <<'END'
#!/bin/sh
case "$*" in
*tarfile*) exec /usr/bin/python3 "$@" ;; # unpacks where tar finds no xz
*spherear_b*) echo "No module named 'torch'" >&2 && exit 1 ;;
*random_checkpoint.py*) sleep 1 && touch "$5" ;;
*) exit 1 ;;
esac
END
printf '#!/bin/sh\necho "Warp Cycles Per Issued Instruction cycle 21.5"\n' >"$work/bin/ncu"
chmod +x "$work/bin/"*
env -i "PATH=$work/bin:/usr/bin:/bin" "MAR_GPU_KIT=$work/kit" "$work/tree/scripts/gpu_hour.sh" "$work/out" \
    >"$work/printed" 2>&1 || true
has programs ok "the kit's"
has chain_proto ok
has tests 'failed 1' '13 pass; failed: streamed groups *right'
has head-mar_b ok 'default 45, resident 44, streamed 43'
has head-spherear skipped 'no spherear_b.pt, see spherear_b.pt.log'
has ncu-resident ok 'warp cycles an issued instruction: 21.5'
has batch ok '0.5 s an image at 64, .* at 256'
has two-threads 'failed 1'
has torch-products skipped
grep -q "No module named 'torch'" "$work/out/spherear_b.pt.log" || fail "why a model is missing is lost"
[ "$(ls "$work/tree")" = "$(printf 'build\nscripts\ntests\nweights')" ] || fail "something is written beside build: $(ls "$work/tree")"

# says TEXT ARGUMENT...: checks that the script refuses its arguments
says() {
    local text=$1 status=0
    shift
    "$hour" "$@" >"$work/printed" 2>&1 || status=$?
    [ $status = 2 ] || fail "$*: status $status, expected 2"
    grep -qF -- "$text" "$work/printed" || fail "$*: expected '$text'"
}
says "usage: scripts/gpu_hour.sh"
says "usage: scripts/gpu_hour.sh" --wet "$work/out"
says "--seconds is 'x', expected a number of seconds" --seconds x "$work/out"
if ! command -v nvidia-smi >/dev/null 2>&1; then says "nvidia-smi shows no GPU" "$work/out"; fi
echo PASSED
