#!/bin/sh
# test_resources_script.sh SOURCE_DIR NVCC: checks that scripts/kernel_resources.sh finds large kernels, and those
# that spill, on each architecture. The script runs in a tree with a few kernels of its own.
set -eu
source_dir=$1 nvcc=$2
export ARCHITECTURES='80 90a 120'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/scripts" "$work/kernels/cuda"
cp "$source_dir/scripts/kernel_resources.sh" "$source_dir/scripts/cubins.sh" "$work/scripts"
persistent=$work/kernels/cuda/persistent.cu

fail() {
    echo "FAILED: $*"
    cat "$work/table" "$work/err"
    exit 1
}

# resources: writes the table, and returns the script's status
resources() {
    "$work/scripts/kernel_resources.sh" "$nvcc" "$@" >"$work/table" 2>"$work/err"
}

# code KERNEL ARCHITECTURE: prints the kernel's bytes of machine code, from the table
code() {
    awk -v kernel="$1" -v sm="$2" '$2 == kernel && $3 == sm { print $NF }' "$work/table"
}

# A division called by both kernels, and not inlined, counts for both.
cat >"$persistent" <<'END'
__noinline__ __device__ double divide(double x, int n) { for (int i = 1; i < n; i++) x /= 1 + x * i; return x; }
template <int N> __global__ void calls(double *x, int n) { for (int i = 0; i < N; i++) x[i] = divide(x[i], n); }
template __global__ void calls<1>(double *, int);
template __global__ void calls<2>(double *, int);
__global__ void small(double *x) { x[threadIdx.x] = 1; }
END
resources || fail "kernels of a few kilobytes are refused"
for sm in sm_80 sm_90a sm_120; do
    small=$(code small $sm)
    for kernel in 'calls<1>' 'calls<2>'; do
        bytes=$(code "$kernel" $sm)
        [ "$small" -gt 0 ] && [ "$bytes" -gt $((small + 1024)) ] || fail "$kernel for $sm has $bytes bytes beside $small"
    done
done
most=$(code 'calls<2>' sm_120) # of both kernels; for 120 the limit is an eighth higher
ARCHITECTURES=120 MAX_BYTES=$most resources || fail "for 120 the limit is not an eighth higher"
! ARCHITECTURES=120 MAX_BYTES=$((most * 8 / 9)) resources || fail "for 120 a kernel that has the limit passes"
resources || fail "kernels of a few kilobytes are refused"
ARCHITECTURES=80 MAX_BYTES=$(($(code 'calls<2>' sm_80) + 1)) resources || fail "the limit is too low by more than a byte"
! ARCHITECTURES=80 MAX_BYTES=$(code 'calls<2>' sm_80) resources || fail "a kernel that has the limit passes"
grep -q 'machine code .* calls<2>' "$work/err" || fail "the error does not name the kernel"
# Others are limited likewise, decode.cu's and groups.cu's less; elsewhere there is no limit.
most=$(code 'calls<2>' sm_80)
cd "$work/kernels/cuda"
while read -r file max; do
    mv ./*.cu "$file.cu"
    ! ARCHITECTURES=80 MAX_BYTES=$max resources || fail "$file.cu: a kernel that has the limit passes"
    ARCHITECTURES=80 MAX_BYTES=$((max + 2)) resources || fail "$file.cu: the limit is too low"
done <<END
product $most
decode $((most - 8192))
groups $((most * 4 / 5))
END
mv groups.cu others.cu
MAX_BYTES=1 resources || fail "a limit is put on a kernel that needs none"

cat >"$persistent" <<'END'
__global__ void __launch_bounds__(1024) spills(float *x, int n) {
    float a[96];
    for (int i = 0; i < 96; i++) a[i] = x[i * n + threadIdx.x];
    for (int j = 0; j < n; j++)
        for (int i = 0; i < 96; i++) a[i] = a[i] * a[(i + 7) % 96] + x[j];
    for (int i = 0; i < 96; i++) x[i * n + threadIdx.x] = a[i];
}
END
! resources || fail "a kernel that spills passes"
[ "$(grep -c 'must not: .* spills ' "$work/err")" = 3 ] || fail "not on all three architectures"
echo "PASSED"
