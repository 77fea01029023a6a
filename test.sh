#!/bin/sh
# Installs what is missing, builds and tests: ./test.sh [quick | [--all] [PRESET...]]
# Without arguments this is the change lane, what every change must pass, in some 12 minutes on two cores: release
# (optimised), asan (AddressSanitizer and UBSan, with the corpora of the fuzz targets), tsan (ThreadSanitizer over what
# has threads of its own) and cuda (compiled by nvcc for one GPU, and run where there is one). PRESETs confine it.
# quick is for the time between: units, operations, comparisons with the official codes and three commands, of release
# alone, in some 3 minutes from a built tree. --all is the nightly lane: all tests of these presets, the CUDA kernels on
# the CPU under a race check, every GPU architecture, a build with the CUDA toolkit 12.8 if CUDA12_PATH has it (or
# /usr/local/cuda-12.8), a bare Debian, and libFuzzer's targets (preset fuzz). The minutes of each step end the output.
set -eu
cd "$(dirname "$0")"
. scripts/packages.sh
. scripts/cuda.sh

tests=--tests presets='release asan tsan cuda' labels_of_release='.' target_of_release=''
if [ "${1:-}" = --all ]; then
    tests=--all-tests presets='release asan tsan fuzz cuda'
    shift
elif [ $# = 1 ] && [ "$1" = quick ]; then
    presets=release labels_of_release='^quick$' target_of_release=quick_tests
    shift
fi
if [ $# -gt 0 ]; then presets=$*; fi
for preset in $presets; do
    case $preset in
    release | asan | tsan | fuzz | cuda) ;;
    *)
        echo "test.sh: no preset '$preset', expected quick, or [--all] and any of release, asan, tsan, fuzz, cuda" >&2
        exit 2
        ;;
    esac
done

cuda_options='' steps='' step_started=$(date +%s) started=$(date +%s)
# step NAME: the step so named ends here
step() {
    now=$(date +%s)
    steps="$steps$(printf '%-16s %5.1f min' "$1" "$(echo $((now - step_started)) | awk '{ print $1 / 60 }')")
"
    step_started=$now
}

# shellcheck disable=SC2086  # the list is words
need_packages $test_packages
if [ -z "${MAR_FRESH:-}$target_of_release" ]; then # quick and the bare Debian of the test `fresh` go without
    want_packages debootstrap    # without it that test is skipped
    if [ $tests = --all-tests ]; then want_packages lintian buildah iproute2 gpg; fi # the test `packages`
    if [ $tests = --all-tests ]; then want_packages nginx-light openssl; fi # the test serve.operation
    want_packages ccache         # the C files of cuda are compiled as those of release; all, when this is run again
    # shellcheck disable=SC2086
    want_packages $webp_packages
    # shellcheck disable=SC2086
    want_packages $python_packages # without them the test `wheel` is skipped
    # shellcheck disable=SC2086
    want_packages $mpi_packages # without them the build leaves out libmar-mpi.so, and its tests are skipped
fi
# shellcheck disable=SC2086
case " $presets " in *" fuzz "*) need_packages $fuzz_packages ;; esac
case " $presets " in
*" cuda "*)
    need_cuda
    want_nvdisasm
    # One GPU's machine code is enough for the change lane. A build folder remembers it.
    if [ $tests = --all-tests ]; then
        cuda_options=-UMAR_CUDA_ARCHITECTURES
    elif ! have_gpu; then
        cuda_options=-DMAR_CUDA_ARCHITECTURES=${CUDAARCHS-90a}
    fi
    ;;
esac
if command -v ccache >/dev/null 2>&1; then # a new build folder remembers it; CMake's own variables
    export CMAKE_C_COMPILER_LAUNCHER="${CMAKE_C_COMPILER_LAUNCHER-ccache}"
    export CMAKE_CXX_COMPILER_LAUNCHER="${CMAKE_CXX_COMPILER_LAUNCHER-ccache}"
fi
step packages
failed=
for preset in $presets; do
    echo "== $preset"
    labels='.' target='' options=''
    if [ "$preset" = release ]; then labels=$labels_of_release target=$target_of_release; fi
    if [ "$preset" = tsan ]; then labels='^(threads|rooms)$' target=threads_tests; fi
    if [ "$preset" = cuda ]; then options=$cuda_options; fi
    scripts/build.sh $tests $options "$preset" $target
    step "$preset build"
    if [ "$preset" = cuda ]; then
        labels='^(cuda|rooms)$'
        if have_gpu; then labels='^(cuda|gpu|rooms)$'; else echo "No GPU here: the tests labelled gpu do not run"; fi
    fi
    ctest --preset "$preset" -L "$labels" --no-tests=error || failed="$failed $preset"
    step "$preset tests"
    if [ "$preset" = cuda ] && [ $tests = --all-tests ]; then
        nvcc12=${CUDA12_PATH:-/usr/local/cuda-12.8}/bin/nvcc
        if [ -x "$nvcc12" ]; then
            { cmake --preset cuda -B build/cuda12 -DMAR_NVCC="$nvcc12" && cmake --build build/cuda12 &&
                tests/gpu/test_command.sh build/cuda12/mar; } || failed="$failed cuda12"
            step 'cuda12'
        else
            echo "No $nvcc12: the build with CUDA 12.8 is left out"
        fi
    fi
    if [ "$preset" = fuzz ]; then
        tests/fuzz/run.sh || failed="$failed fuzz"
        step "fuzz search"
    fi
    grep -h '^SKIPPED: ' "build/$preset/Testing/Temporary/LastTest.log" || : # why, of what ctest lists as skipped
done
step_started=$started
step all
printf '%s' "$steps"
[ -z "$failed" ] || {
    echo "Tests failed:$failed" >&2
    exit 1
}
