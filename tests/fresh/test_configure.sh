#!/bin/sh
# Checks that library and command are configured without a C++ compiler, nvcc or packages of the tests.
# demo.sh must install none of them. CUDA architectures in CMake's form are accepted, others refused.
# Called by ctest: test_configure.sh SOURCE_DIR CC GENERATOR
set -eu
source_dir=$1 cc=$2 generator=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake -G "$generator" -S "$source_dir" -B "$work/build" -DCMAKE_C_COMPILER="$cc" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
failed=0
for word in CMAKE_CXX_COMPILER CMOCKA MAR_NVCC CMAKE_CUDA_COMPILER; do
    if grep "^$word" "$work/build/CMakeCache.txt"; then
        echo "FAILED: the command is configured with $word"
        failed=1
    fi
done
if [ -e "$work/build/tests" ] || (cd "$work/build" && ctest -N | grep -q 'Test *#'); then
    echo "FAILED: the tests are configured for the command"
    failed=1
fi
. "$source_dir/scripts/packages.sh"
for package in $test_packages $mpi_packages $fuzz_packages make; do
    case " $packages " in
    *" $package "*)
        echo "FAILED: demo.sh installs $package"
        failed=1
        ;;
    esac
done

# Checking nvcc's arguments needs no toolkit.
configure_cuda() {
    CUDAARCHS=$1 cmake -G "$generator" -S "$source_dir" -B "$work/cuda" -DCMAKE_C_COMPILER="$cc" -DMAR_CUDA=ON \
        -DMAR_NVCC=/bin/true -DMAR_CUDART=cudart -DMAR_CUBLASLT="${2-cublasLt}" -DMAR_CURAND=curand -DMAR_CUDA_INCLUDE=/ \
        >"$work/log" 2>&1
}
for names in native all all-major OFF "90a;sm_80"; do
    if configure_cuda "$names" || ! grep -q "CUDA architecture ${names#*;}: expected a number such as" "$work/log"; then
        echo "FAILED: CUDAARCHS=$names is not refused"
        failed=1
    fi
done
configure_cuda "80-real;86-real;90a-real;90-virtual" || { cat "$work/log"; failed=1; }
for flag in compute_80,code=sm_80 compute_80,code=sm_86 compute_90a,code=sm_90a compute_90,code=compute_90; do
    grep -rqe "-gencode arch=$flag" "$work/cuda" || { echo "FAILED: nvcc is not told $flag"; failed=1; }
done
if grep -rqe "-gencode arch=[^ ]*real" "$work/cuda"; then
    echo "FAILED: nvcc is told -real"
    failed=1
fi
# libcublasLt of a toolkit fetched into the source tree is found at run time.
fetched=$source_dir/build/fetched/lib
configure_cuda 90a "$fetched/libcublasLt.so" || { cat "$work/log"; failed=1; }
grep -rqe "rpath[^ ]*$fetched" "$work/cuda" || { echo "FAILED: the run path is without $fetched"; failed=1; }
exit $failed
