#!/bin/sh
# test_counts_script.sh SOURCE_DIR NVCC NVDISASM: checks scripts/kernel_counts.sh on a kernel of known instructions.
set -eu
source_dir=$1 nvcc=$2 nvdisasm=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=$(dirname "$nvcc"):$(dirname "$nvdisasm"):$PATH

cat >"$work/kernel.cu" <<'END'
__global__ void other(float *x) { x[threadIdx.x] = 2; }

template <int N> __global__ void counted(float *x, const float *y, double *d, unsigned *met, int n, int inner)
{
    __shared__ float s[32];
    s[threadIdx.x] = y[threadIdx.x]; /* a load, a store to shared memory */
    __syncthreads();
    float c[4] = {0, 0, 0, 0};
    const unsigned a = met[0], b = met[9]; /* two loads */
#pragma unroll 1
    for (int i = 0; i < n; i++) { /* the outer loop: a barrier; in the inner one a product */
#pragma unroll 1
        for (int j = 0; j < inner; j++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                         "{%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a), "r"(b));
        __syncthreads();
    }
    x[threadIdx.x] = c[0] + s[31 - threadIdx.x] + N; /* two sums, a load from shared memory, a store */
    d[threadIdx.x] = d[threadIdx.x] * 3.0; /* a load, a product of doubles, a store */
    atomicAdd(met + 2, 1u);
}
template __global__ void counted<4>(float *, const float *, double *, unsigned *, int, int);
END

fail() {
    echo "FAILED: $*"
    cat "$work/table"
    exit 1
}

# count ROW CLASS: prints a number of the table; the kernel's row is 1
count() {
    awk -v row="$1" -v class="$2" '
        FNR == 2 { for (i = 1; i <= NF; i++) if ($i == class) column = NF - i }
        FNR == 2 + row { print $(NF - column) }' "$work/table"
}

# expect ROW CLASS NUMBER: checks a number of the table
expect() {
    [ "$(count "$1" "$2")" = "$3" ] || fail "row $1 has $(count "$1" "$2") of $2, expected $3"
}

"$source_dir/scripts/kernel_counts.sh" 'counted<4>' "$work/kernel.cu" >"$work/table"
expect 1 global 6
expect 1 shared 2
expect 1 local 0
expect 1 mma 1
expect 1 fp32 2
expect 1 fp64 1
expect 1 barrier 2
expect 1 atomic 1
[ "$(wc -l <"$work/table")" = 5 ] || fail "expected the kernel and two loops"
grep -q '^loop [0-9a-f]' "$work/table" && grep -q '^loop \.[0-9a-f]' "$work/table" || fail "no loop within a loop"
expect 2 barrier 1 # the outer loop has all that is in the inner one
expect 2 mma 1
expect 2 global 0
expect 3 barrier 0
expect 3 mma 1
if "$source_dir/scripts/kernel_counts.sh" absent "$work/kernel.cu" >"$work/table" 2>&1; then fail "a kernel that is not there"; fi
grep -q 'no kernel absent .*expected one of: .*counted<4>' "$work/table" || fail "the error names no kernels"
echo "PASSED"
