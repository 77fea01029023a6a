#!/usr/bin/env bash
# Measures on a machine with a GPU, in one call of at most 9 minutes, what decides the next work on the CUDA backend. What
# each step decides is in docs/gpu.md, "The script of a GPU's hour", and in the table that is printed last.
#   scripts/gpu_kit.sh build/gpu-kit                            # first, on a machine with nvcc: programs and packages
#   . build/gpu-kit/env.sh && scripts/gpu_hour.sh OUT_DIR       # on the machine with the GPU, in this tree
# Options:
#   --seconds N   of all steps [520]
#   --limit N     of each step, at most [no limit beside its own]
#   --dry-run     tries the script on a CPU: demo models, the command of $MAR_COMMAND [build/release/mar], the
#                 microbenchmarks and tests of $MAR_GPU_PROGRAMS, a folder; steps that need a GPU are skipped by name
# A step's output is in OUT_DIR/NN-name.txt and NN-name*.json while it runs, its row in OUT_DIR/summary.txt when it ends. A
# step that fails or is cut does not stop the others. The programs are the kit's if they are of these sources and run here,
# else they are built, meanwhile. Models are random, of the official shapes (tools/dev/random_checkpoint.py, which needs
# PyTorch), and made meanwhile in build/bench. The exit status is 0 if no step failed or was cut, else 1.
set -uo pipefail

usage() {
    echo "usage: scripts/gpu_hour.sh [--seconds N] [--limit N] [--dry-run] OUT_DIR" >&2
    exit 2
}
is_number() {
    case $1 in "" | *[!0-9]* | ??????*) return 1 ;; esac
}

seconds=520 limit=99999 dry=
while [ $# -gt 1 ]; do
    case $1 in
    --seconds | --limit)
        is_number "$2" || { echo "gpu_hour.sh: $1 is '$2', expected a number of seconds" >&2; exit 2; }
        if [ "$1" = --limit ]; then limit=$2; else seconds=$2; fi
        shift
        ;;
    --dry-run) dry=1 ;;
    *) usage ;;
    esac
    shift
done
case ${1:-} in "" | -*) usage ;; esac
mkdir -p -- "$1" || exit 2
out=$(cd -- "$1" && pwd)
cd "$(dirname "$0")/.." || exit 2
. scripts/cuda.sh
. scripts/gpu_programs.sh

now() { date +%s; }
end=$(($(now) + seconds))
work=$(mktemp -d)
background=()
leave() {
    [ ${#background[@]} = 0 ] || kill "${background[@]}" 2>/dev/null
    wait
    rm -rf "$work"
}
trap leave EXIT
trap 'exit 1' HUP INT TERM
files=build/bench # of the models
mkdir -p "$files"
: >"$out/summary.txt"

# --- steps ------------------------------------------------------------------------------------------------------------

number=0 failures=0
# row NUMBER NAME STATUS SECONDS KEY DECIDES
row() {
    printf '%-2s %-14s %-9s %4s  %-62s %s\n' "$@"
}

# step NAME SECONDS DECIDES COMMAND...: runs a function, which may set `key`, in at most that many seconds. Its status 77
# is a skip, 124 and 137 are a cut. Functions run their programs by `bounded`.
step() {
    local name=$1 most=$2 decides=$3 begin left rc status
    shift 3
    begin=$(now) number=$((number + 1)) key=
    left=$((end - begin))
    file=$out/$(printf %02d "$number")-$name
    [ "$most" -le "$limit" ] || most=$limit
    [ "$most" -le "$left" ] || most=$left
    deadline=$((begin + most))
    if [ "$most" -lt 1 ]; then
        rc=1 status="no time"
    else
        "$@" >"$file.txt" 2>&1
        rc=$?
        case $rc in
        0) status=ok ;;
        77) status=skipped ;;
        124 | 137) status='cut' ;;
        *) status="failed $rc" key=${key:-$(tail -n 1 "$file.txt" | cut -c 1-62)} ;;
        esac
    fi
    case $rc in 0 | 77) ;; *) failures=$((failures + 1)) ;; esac
    row "$number" "$name" "$status" $(($(now) - begin)) "$key" "$decides" | tee -a "$out/summary.txt"
}

# bounded COMMAND...: with what is left of the step's time
bounded() {
    local left=$((deadline - $(now)))
    [ $left -ge 1 ] || return 124
    timeout -k 2 $left "$@"
}

# skip WHY: returns the status of a skip
skip() {
    key=$1
    return 77
}

# finished NAME: waits for a job that runs meanwhile (meanwhile); its status
finished() {
    while [ ! -e "$work/$1" ]; do
        [ "$(now)" -lt "$deadline" ] || { key="$1 is not there yet"; return 124; }
        sleep 0.2
    done
    [ "$(cat "$work/$1")" = 0 ] || skip "no $1, see $1.log"
}

# meanwhile NAME COMMAND...: runs a command in the background; its output is in OUT_DIR/NAME.log
meanwhile() {
    local name=$1
    shift
    (
        timeout -k 2 "$seconds" "$@" >"$out/$name.log" 2>&1 &
        child=$!
        trap 'kill $child' TERM
        wait $child
        echo $? >"$work/part.$name" && mv "$work/part.$name" "$work/$name"
    ) &
    background+=($!)
}

# --- numbers ----------------------------------------------------------------------------------------------------------

# value NAME FILE [FACTOR [FORMAT]]: a number of a JSON file, times FACTOR
value() {
    sed -n "s/.*\"$1\":[[:space:]]*\([-0-9.e+]*\),*\$/\1/p" "$2" |
        awk -v factor="${3:-1}" -v format="${4:-%.4g}" '{ printf format, $1 * factor; exit }'
}

# passes FILE: "rows: ms" of the target's first three passes in a JSON file
passes() {
    awk '/"target_passes"/ { on = 1 } on && /"rows"/ { rows = $2 + 0 }
        on && /"seconds"/ && n < 3 { printf "%s%d: %.3f", n++ ? ", " : "", rows, 1000 * $2 }' "$1"
}

# less A B: whether A < B
less() {
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a + 0 < b + 0) }'
}

# --- programs and models ----------------------------------------------------------------------------------------------

# Unpacks the kit's programs. Fails if they are of other sources or for another GPU, or do not run here.
unpack_programs() {
    local kit=${MAR_GPU_KIT:-build/gpu-kit}
    [ -e "$kit/programs.tar.xz" ] || { echo "no programs in the kit $kit"; return 1; }
    [ "$(cat "$kit/programs")" = "$architecture $(gpu_sources)" ] ||
        { echo "the kit's programs are of other sources or not for sm_$architecture"; return 1; }
    rm -rf build/gpu-hour && mkdir -p build/gpu-hour || return 1
    tar -xJf "$kit/programs.tar.xz" -C build/gpu-hour ||
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$kit/programs.tar.xz" \
            build/gpu-hour || return 1
    build/gpu-hour/mar --version
}

# Builds the programs of these sources, in the places of the kit's.
build_programs() {
    have_cuda || { echo "no nvcc in PATH, \$CUDA_PATH/bin or /usr/local/cuda/bin"; return 1; }
    rm -rf build/gpu-hour && mkdir -p build/gpu-hour/tests || return 1
    gpu_compile "$architecture" build/gpu-hour || return 1
    # shellcheck disable=SC2046  # the targets are words
    CUDAARCHS=$architecture scripts/build.sh --tests cuda $(gpu_targets) || return 1
    find build/cuda/tests -name 'test_gpu_*' -type f -perm -u+x -exec cp {} build/gpu-hour/tests \;
    cp build/cuda/mar build/cuda/libmar.so build/gpu-hour
}

# Sets programs, mar and repeat, and begins to build what is missing.
find_programs() {
    local capability packages cuda=${CUDA_PATH:-/usr/local/cuda}
    if [ "$dry" ]; then
        backend=cpu programs=${MAR_GPU_PROGRAMS:-} mar=${MAR_COMMAND:-build/release/mar} repeat=1
        echo 0 >"$work/programs"
        return
    fi
    # The first image pays for loading and planning, the second for recordings.
    backend=cuda programs=build/gpu-hour mar=build/gpu-hour/mar repeat=3
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
    case $capability in
    9.0) architecture=90a ;;
    [0-9]*.[0-9]) architecture=${capability/./} ;;
    *) echo "gpu_hour.sh: nvidia-smi shows no GPU, expected one; --dry-run tries this script without" >&2 && exit 2 ;;
    esac
    meanwhile clocks nvidia-smi dmon -s pcu -d 5 # while it runs, the driver need not set up the GPU for each program
    { nvidia-smi && nvidia-smi -q -d CLOCK; } >"$out/machine.txt" 2>&1
    export PATH="$PATH:$cuda/bin" MAR_DATA_DIR=$PWD/weights # ncu; the demo model of the test of products
    # cuBLASLt is the toolkit's or, where only PyTorch brings one, PyTorch's.
    packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)
    export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cuda/lib64:$packages/nvidia/cu13/lib"
    if unpack_programs >"$out/kit.log" 2>&1; then
        echo 0 >"$work/programs"
    else
        export -f build_programs have_cuda gpu_compile gpu_targets
        export architecture gpu_tests gpu_microbenchmarks
        meanwhile programs bash -c build_programs
    fi
}

# model NAME ARCH [OPTION...]: makes the file or folder NAME in build/bench meanwhile
model() {
    local name=$1 arch=$2
    shift 2
    if [ -e "$files/$name" ]; then
        echo 0 >"$work/$name"
    else
        mkdir -p "$files/part"
        # shellcheck disable=SC2016
        meanwhile "$name" bash -c 'python3 tools/dev/random_checkpoint.py --arch "$1" --out "$2/part/$3" "${@:4}" &&
            mv "$2/part/$3" "$2/$3"' model "$arch" "$files" "$name" "$@"
    fi
}

make_models() {
    local steps=(mar_base.pth kl16.ckpt spherear_b.pt gpt_l.pt vq16.pt lumina_7b vqgan.ckpt mar_huge.pth nextstep) name
    if [ "$dry" ]; then
        for name in "${steps[@]}"; do echo 0 >"$work/$name"; done
        return
    fi
    model mar_base.pth mar_base
    model kl16.ckpt kl16
    model spherear_b.pt spherear_b
    model gpt_l.pt gpt_l
    model vq16.pt vq16
    model lumina_7b lumina_7b --depth 4
    model vqgan.ckpt vqgan
    model mar_huge.pth mar_huge
    model nextstep nextstep_14b --depth 2
}

# bench MODEL SUFFIX OPTION...: `mar bench` of a model, into the step's NN-name-SUFFIX.json
bench() {
    local needs options model=$1 json=$file-$2.json one
    shift 2
    case $model in
    mar_b) needs=(mar_base.pth kl16.ckpt) options=(--model "$files/mar_base.pth" --vae "$files/kl16.ckpt" --num_iter 64) ;;
    mar_b_256) needs=(mar_base.pth kl16.ckpt) options=(--model "$files/mar_base.pth" --vae "$files/kl16.ckpt" --num_iter 256) ;;
    mar_h) needs=(mar_huge.pth kl16.ckpt) options=(--model "$files/mar_huge.pth" --vae "$files/kl16.ckpt" --num_iter 64) ;;
    nextstep) needs=(nextstep) options=(--model "$files/nextstep" --prompt "a red ball" --size 256x256) ;;
    spherear_b) needs=(spherear_b.pt) options=(--model "$files/spherear_b.pt") ;;
    gpt_l) needs=(gpt_l.pt vq16.pt) options=(--model "$files/gpt_l.pt" --vae "$files/vq16.pt") ;;
    lumina) needs=(lumina_7b vqgan.ckpt) options=(--model "$files/lumina_7b" --vae "$files/vqgan.ckpt" --prompt "a red ball") ;;
    esac
    if [ "$dry" ]; then
        case $model in
        mar_b* | mar_h) options=(--model demo --num_iter 2 --num_sampling_steps 8) ;;
        nextstep) options=(--model demo-nextstep --prompt "three digits: 4 0 7" --num_sampling_steps 3) ;;
        spherear_b) options=(--model demo-sphere --num_sampling_steps 2) ;;
        gpt_l) options=(--model demo-discrete) ;;
        lumina) options=(--model demo-mgpt --prompt "a red ball") ;;
        esac
        options+=(--threads 1)
    fi
    finished programs || return
    for one in "${needs[@]}"; do finished "$one" || return; done
    options+=(--repeat "$repeat")
    echo "$mar bench --backend $backend ${options[*]} $*"
    bounded "$mar" bench --backend "$backend" "${options[@]}" --json "$@" >"$json"
}

# --- the steps --------------------------------------------------------------------------------------------------------

# microbenchmark NAME: runs one, with its output in the step's file
microbenchmark() {
    [ "$programs" ] || { skip "needs a GPU"; return; }
    until [ -x "$programs/$1" ] || [ -e "$work/programs" ] || [ "$(now)" -ge "$deadline" ]; do sleep 0.2; done
    if [ ! -x "$programs/$1" ]; then finished programs || return; fi
    bounded "$programs/$1"
}

# us WHAT: of a row of exchange's output, the last number before "us"
us() {
    awk -v what="$1" 'index($0, what) == 1 { print $(NF - 1); exit }' "$file.txt"
}
run_exchange() {
    microbenchmark exchange || return
    local barrier async word
    barrier=$(us "clusters of 2: barrier, release behind a remote store")
    async=$(us "clusters of 2: st.async")
    word=$(us "all to all, 2 rows of 1024, two f16 a word")
    key=$(awk -v b="$barrier" -v a="$async" -v w="$word" \
        'BEGIN { printf "st.async %s us for a barrier'\''s %s: %+.1f us a call; words %s", a, b, 18 * (a - b), w }')
}

run_chain_proto() {
    local rc two
    microbenchmark chain_proto
    rc=$?
    [ $rc != 77 ] || return 77
    two=$(awk '/^2 rows:/ { print $3; exit }' "$file.txt")
    key=$(awk '/ rows: / { printf "%s%s rows %s us", n++ ? ", " : "", $1, $3 }' "$file.txt")
    if grep -q WRONG "$file.txt"; then
        key="$key: WRONG"
    elif less "$two" 16; then
        key="$key: build it"
    elif less 25 "$two"; then
        key="$key: exchanges are the floor"
    elif [ "$two" ]; then
        key="$key: between, st.async first"
    fi
    return $rc
}

run_programs() {
    finished programs || return
    if [ "$dry" ]; then
        key="the command is $mar"
    elif [ -e "$out/programs.log" ]; then
        key="built: $(tail -n 1 "$out/kit.log")"
    else
        key="the kit's"
    fi
    bounded "$mar" --version
}

# run_tests SCALE TEST...: tests at SCALE times the host's sizes, one after another: kernels that fill the GPU wait for
# each other. 40 s each.
run_tests() {
    local scale=$1 name passed=0 failed='' late='' without='' whole=$deadline
    finished programs || return
    [ -d "${programs:-/none}/tests" ] || { skip "needs a GPU"; return; }
    shift
    for name in "$@"; do
        if [ "$(now)" -ge "$whole" ]; then
            without="$without $name"
            continue
        fi
        deadline=$(($(now) + 40))
        [ $deadline -le "$whole" ] || deadline=$whole
        echo "== $name"
        MAR_CUDA_TEST_SCALE=$scale bounded "$programs/tests/test_gpu_$name"
        case $? in
        0) passed=$((passed + 1)) ;;
        124 | 137) late="$late $name" ;;
        *) failed="$failed $name" ;;
        esac
    done
    key="$passed pass${failed:+; failed:$failed}${late:+; cut:$late}${without:+; not run:$without}"
    [ -z "$failed" ] || return 1
    [ -z "$late$without" ] || return 124
}

# run_forms MODEL FORM...: us a call of the head's default and of forms, "resident", "streamed", or "cluster N words N";
# 30 s each, because one may hang. The GPU may have no room for clusters; another form that fails, fails the step.
run_forms() {
    local model=$1 form name call rc failed=0 whole=$deadline
    local -a variables
    shift
    for form in default "$@"; do
        name=${form// words/-words} name=${name// /}
        deadline=$(($(now) + 30))
        [ $deadline -le "$whole" ] || deadline=$whole
        read -ra variables <<<"$form"
        case $form in
        resident) export MAR_CUDA_HEAD_RESIDENT=1 ;;
        streamed) export MAR_CUDA_HEAD_RESIDENT=2 ;;
        cluster*) export MAR_CUDA_HEAD_CLUSTER=${variables[1]} MAR_CUDA_HEAD_WORDS=${variables[3]} ;;
        esac
        bench "$model" "$name"
        rc=$?
        unset MAR_CUDA_HEAD_RESIDENT MAR_CUDA_HEAD_CLUSTER MAR_CUDA_HEAD_WORDS
        case $rc:$form in
        0:*) call=$(value head_call_seconds "$file-$name.json" 1e6) ;;
        77:*) return 77 ;;
        124:* | 137:*) call='cut' failed=$rc ;;
        *:cluster*) call="failed $rc" ;;
        *) call="failed $rc" failed=$rc ;;
        esac
        key="${key:+$key, }$name $call"
    done
    return $failed
}

# run_ncu KERNEL OPTION...: profiles a launch of MAR-B behind those of loading
run_ncu() {
    local kernel=$1
    shift
    [ -z "$dry" ] || { skip "needs a GPU"; return; }
    command -v ncu >/dev/null 2>&1 || { skip "no ncu in PATH"; return; }
    finished programs && finished mar_base.pth && finished kl16.ckpt || return
    bounded ncu --clock-control none -k "regex:$kernel" --launch-skip 20 -c 1 --section SourceCounters \
        --section WarpStateStats --section SpeedOfLight -f -o "$file" "$mar" bench --backend cuda --model \
        "$files/mar_base.pth" --vae "$files/kl16.ckpt" --num_iter 64 --repeat 1 "$@" || return
    bounded ncu -i "$file.ncu-rep" --page details
    bounded ncu -i "$file.ncu-rep" --page source --csv >"$file-source.csv"
    key=$(awk '/Warp Cycles Per Issued Instruction/ { print "warp cycles an issued instruction: " $NF; exit }' "$file.txt")
}

run_ncu_resident() {
    local -x MAR_CUDA_HEAD_RESIDENT=1
    run_ncu resident_chain
}

run_head_spec() {
    bench mar_b 4 --head_spec 4 && bench mar_b 8 --head_spec 8 || return
    key="$(value seconds_per_image "$file-4.json") s with 4, $(value seconds_per_image "$file-8.json") with 8;"
    key="$key $(value head_call_seconds "$file-8.json" 1e6) us a call"
}

# Rounds of up to 8 rows, a token at a time, us a call: the default, and the resident form
run_head_spec_few() {
    local model
    for model in spherear_b mar_b_256; do
        bench "$model" "$model-default" --head_spec 4 || return
        key="${key:+$key; }$model $(value head_call_seconds "$file-$model-default.json" 1e6)"
        MAR_CUDA_HEAD_RESIDENT=1 bench "$model" "$model-resident" --head_spec 4 || return
        key="$key, resident $(value head_call_seconds "$file-$model-resident.json" 1e6)"
    done
}

run_spec_groups() {
    local -x MAR_CUDA_HEAD_GROUPS=1
    run_head_spec
}

run_tune() {
    [ -z "$dry" ] || { skip "needs a GPU"; return; }
    rm -f "$work/tuning"
    bench mar_b plain && bench mar_b tuning --tune --tuning "$work/tuning" && bench mar_b tuned --tuning "$work/tuning" ||
        return
    cp "$work/tuning" "$out/gpu.tuning"
    key="transformer $(value decoder_seconds "$file-plain.json") + $(value encoder_seconds "$file-plain.json") s,"
    key="$key tuned $(value decoder_seconds "$file-tuned.json") + $(value encoder_seconds "$file-tuned.json")"
}

# The encoder's and the decoder's seconds, of a JSON
tower_seconds() {
    awk -v a="$(value decoder_seconds "$1")" -v b="$(value encoder_seconds "$1")" 'BEGIN { printf "%.4g", a + b }'
}

# run_products: MAR-B's transformer, s an image, by cuBLASLt (0), by products of our own (1), with attention by warpgroups,
# and with cuts that share operands in no cluster, or x; 20 s each, because one may hang
run_products() {
    local how name rc failed=0 cuts="attention 128:1:1:1 64:1:1:4" whole=$deadline
    [ -z "$dry" ] || cuts=
    for how in 0 1 $cuts; do
        name=${how//:/-}
        deadline=$(($(now) + 20))
        [ $deadline -le "$whole" ] || deadline=$whole
        if [ "$how" = attention ]; then
            MAR_CUDA_PRODUCTS=1 MAR_CUDA_ATTENTION=1 bench mar_b "$name"
        else
            MAR_CUDA_PRODUCTS=$how bench mar_b "$name"
        fi
        rc=$?
        case $rc in
        0) key="${key:+$key, }$how: $(tower_seconds "$file-$name.json")" ;;
        77) return 77 ;;
        124 | 137) key="${key:+$key, }$how: cut" failed=$rc ;;
        *) key="${key:+$key, }$how: failed $rc" failed=$rc ;;
        esac
    done
    return $failed
}

run_ncu_products() {
    local -x MAR_CUDA_PRODUCTS=1
    run_ncu product_kernel
}

run_ncu_attention() {
    local -x MAR_CUDA_ATTENTION=1
    run_ncu attend_warpgroups --batch 64
}

run_gpt_l() {
    bench gpt_l bf16 --dtype bf16 && bench gpt_l int8 --dtype int8 || return
    key="$(value seconds_per_token "$file-bf16.json" 1e3) ms a token, int8 $(value seconds_per_token "$file-int8.json" 1e3)"
    key="$key; rows $(passes "$file-bf16.json")"
}

# The same passes in one launch; those of 10 rows as before.
run_decode() {
    local -x MAR_CUDA_DECODE=1
    run_gpt_l
}

run_lumina() {
    bench lumina bf16 || return
    key="$(value seconds_per_token "$file-bf16.json" 1e3) ms a token of 4 layers;"
    key="$key memory $(value memory_floor_seconds_per_token "$file-bf16.json" 1e3)"
    MAR_CUDA_DECODE=1 bench lumina decode || return
    key="$key; in one launch $(value seconds_per_token "$file-decode.json" 1e3)"
}

run_batch() {
    local few=64 many=256 repeat=2
    if [ "$dry" ]; then few=2 many=3 repeat=1; fi
    bench mar_b "$few" --batch $few || return
    key="$(value seconds_per_image "$file-$few.json") s an image at $few"
    key="$key, head $(value head_call_seconds "$file-$few.json" 1e6) us a call"
    key="$key, transformer $(tower_seconds "$file-$few.json")"
    repeat=1
    bench mar_b "$many" --batch $many || return
    key="$key, $(value seconds_per_image "$file-$many.json") at $many"
}

run_batch_groups() {
    local -x MAR_CUDA_HEAD_GROUPS=1
    run_batch
}

run_batch_products() {
    local -x MAR_CUDA_PRODUCTS=2 MAR_CUDA_ATTENTION=1
    run_batch || return
    [ -z "$dry" ] || return 0
    local repeat=2
    MAR_CUDA_ATTENTION=0 bench mar_b 64-products --batch 64 || return
    key="$key; products alone: transformer $(tower_seconds "$file-64-products.json") at 64"
}

run_threads() {
    local library=$programs/libmar.so
    [ -z "$dry" ] || { skip "needs a GPU"; return; }
    finished programs && finished mar_base.pth && finished kl16.ckpt || return
    MAR_LIBRARY=$library PYTHONPATH=python bounded python3 bench/gpu/two_threads.py --model "$files/mar_base.pth" \
        --vae "$files/kl16.ckpt" --device cuda --batch 64 --out "$file.json" || return
    key="two of 32: $(value two_threads_seconds_per_image "$file.json") s an image;"
    key="$key one of 64: $(value one_thread_seconds_per_image "$file.json")"
}

have_torch() {
    bounded python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { skip "no PyTorch with CUDA"; return 77; }
}

run_torch_products() {
    [ -z "$dry" ] || { skip "needs a GPU"; return; }
    have_torch || return
    bounded python3 bench/gpu/torch_products.py --out "$file.json" || return
    key="SDPA $(value sdpa_us "$file.json") us, matmul of K = 768 $(value matmul_tflops "$file.json") TFLOP/s"
}

# run_pytorch CONFIG: MAR-B at batch 1
run_pytorch() {
    [ -z "$dry" ] || { skip "needs a GPU"; return; }
    have_torch || return
    bounded python3 bench/pytorch_mar.py --arch mar_base --device cuda --batch 1 --configs "$1" --json || return
    tail -n 1 "$file.txt" >"$file.json"
    key="$(sed -n 's/.*"total": *\([0-9.]*\).*/\1/p' "$file.json") s an image"
}

find_programs
make_models
echo "Results go to $out. Steps take at most $seconds s."
forms=("cluster 8 words "{0,1})
[ "$dry" ] || forms+=("cluster 4 words "{0,1} "cluster 2 words "{0,1} "cluster 1 words "{0,1})
step exchange 45 "st.async 10 us a call cheaper: in place of cluster barriers" run_exchange
step chain_proto 45 "2 rows below 16 us: build it; above 25: exchanges are the floor" run_chain_proto
step programs 300 "" run_programs
# shellcheck disable=SC2086  # the tests are words
step tests 120 "right on this GPU" run_tests 1 $gpu_tests
step head-mar_b 75 "resident 2 us below the default: the default up to 8 rows" run_forms mar_b resident streamed
step head-spherear 75 "the same for SwiGLU; 48.7 us on an H200 before" run_forms spherear_b resident streamed
step gpt_l 30 "0.470 ms before; goal 0.20; int8 below bf16? rows 4: 0.629, 10: 0.916 before" run_gpt_l
step decode 45 "below the step before: the default up to 8 rows" run_decode
step products 60 "5 kernels a block below 7 of cuBLASLt: the default up to 1024 rows" run_products
step head_spec 30 "0.223 s before; goal 0.08" run_head_spec
step head_spec-few 60 "resident below the default: the default of rounds up to 8 rows" run_head_spec_few
step spec-groups 30 "below head_spec: rounds in groups" run_spec_groups
step batch 60 "floor 0.0174 s; goal 1.5 times" run_batch
step batch-groups 60 "below the step before: the head in groups for these rows" run_batch_groups
step batch-products 60 "transformer below the step batch's: the default for these rows" run_batch_products
step head-mar_h 60 "124.5 us before, floor 26: below the default, it is the default up to 8 rows" run_forms mar_h streamed
step head-nextstep 60 "the same in place of cuBLASLt's steps" run_forms nextstep streamed
step ncu-chain 45 "barriers and fences, or loads: what takes the 48 us" run_ncu persistent_chain
step ncu-resident 45 "what its next change is for" run_ncu_resident
step tests-full 80 "the same, at the official sizes" run_tests 2 streamed groups
step clusters-mar_b 75 "one below the default: choose the form by the number of rows" run_forms mar_b "${forms[@]}"
step lumina 60 "goal: 83 % of memory, 3.6 ms with all 32 layers; below it in one launch: the default" run_lumina
step tune 45 "0.076 s before; what own products have to beat" run_tune
step ncu-speculate 45 "the walk's share of a round" run_ncu speculate_kernel --head_spec 8
step ncu-products 45 "loads, products or barriers: what their next change is for" run_ncu_products
step ncu-attention 45 "the same, attention at batch 64" run_ncu_attention
step clusters-spherear 75 "the same as of MAR-B" run_forms spherear_b "${forms[@]}"
step two-threads 40 "below 0.9 of one session: run two" run_threads
step torch-products 30 "attention 209 us, products 801 TFLOP/s: whether ours are behind" run_torch_products
step torch-graphs 90 "what MAR-B is compared with, recorded" run_pytorch bf16-graphs
step torch-compile 90 "the same, compiled" run_pytorch bf16-compile

echo
row "" step status s "key number" "what it decides"
cat "$out/summary.txt"
[ $failures = 0 ]
