#!/bin/sh
# Installs what is missing, builds, and runs every test: optimised, then under AddressSanitizer and UBSan; both run the
# CUDA kernels on the CPU. Those with several threads run under ThreadSanitizer, too. Then the readers and parsers get
# a quarter of a minute of libFuzzer each. Then the CUDA build: compiled and linked, and run where there is a GPU.
#   ./test.sh [--quick] [PRESET...]
# --quick installs, configures and builds the same, then runs only the tests labelled quick. PRESETs, of release, asan,
# tsan, fuzz and cuda, confine it to these.
set -eu
cd "$(dirname "$0")"
. scripts/packages.sh
. scripts/cuda.sh

quick=
if [ "${1:-}" = --quick ]; then
    quick=yes
    shift
fi
if [ $# -eq 0 ]; then set -- release asan tsan fuzz cuda; fi
for preset in "$@"; do
    case $preset in
    release | asan | tsan | fuzz | cuda) ;;
    *)
        echo "test.sh: no preset '$preset', expected [--quick] and any of release, asan, tsan, fuzz, cuda" >&2
        exit 2
        ;;
    esac
done

# shellcheck disable=SC2086  # the list is words
need_packages $test_packages
if [ -z "${MAR_FRESH:-}" ]; then # the bare Debian of the test `fresh` goes without
    want_packages debootstrap    # without it that test is skipped
    want_packages ccache         # the C files of cuda are compiled as those of release; all, when this is run again
    # shellcheck disable=SC2086
    want_packages $mpi_packages # without them the build leaves out libmar-mpi.so, and its tests are skipped
fi
# shellcheck disable=SC2086
case " $* " in *" fuzz "*) need_packages $fuzz_packages ;; esac
case " $* " in *" cuda "*)
    need_cuda
    want_nvdisasm
    # PTX for GPUs to come is another compilation of the same code, which only such a GPU runs.
    have_gpu || export CUDAARCHS="${CUDAARCHS-80;89;90a}"
    ;;
esac
if command -v ccache >/dev/null 2>&1; then # a new build folder remembers it; CMake's own variables
    export CMAKE_C_COMPILER_LAUNCHER="${CMAKE_C_COMPILER_LAUNCHER-ccache}"
    export CMAKE_CXX_COMPILER_LAUNCHER="${CMAKE_CXX_COMPILER_LAUNCHER-ccache}"
fi
# The bare Debian of the test `fresh` leaves out what runs kernels/cuda on the CPU: no system changes that.
without=
if [ -n "$quick" ] && [ -n "${MAR_FRESH:-}" ]; then without=-DMAR_TESTS_CUDAHOST=OFF; fi
failed=
for preset in "$@"; do
    echo "== $preset"
    labels='.' target=
    if [ "$preset" = tsan ]; then labels='^threads$' target=threads_tests; fi
    scripts/build.sh --tests $without "$preset" $target
    if [ "$preset" = cuda ]; then
        labels='^cuda$'
        if have_gpu; then labels='^(cuda|gpu)$'; else echo "No GPU here: the tests labelled gpu do not run"; fi
    fi
    ctest --preset "$preset" -L "$labels" ${quick:+-L '^quick$'} --no-tests=error || failed="$failed $preset"
    if [ "$preset" = fuzz ] && [ -z "$quick" ]; then tests/fuzz/run.sh || failed="$failed fuzz"; fi
    grep -h '^SKIPPED: ' "build/$preset/Testing/Temporary/LastTest.log" || : # why, of what ctest lists as skipped
done
[ -z "$failed" ] || {
    echo "Tests failed:$failed" >&2
    exit 1
}
