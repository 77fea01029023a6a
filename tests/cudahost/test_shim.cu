/* Tests of the shim itself. CUDA's promises to a kernel hold in each order of threads, and mistakes are found. Each
 * mistake runs in its own process, whose exit status and output are checked. The file is compiled twice: in the build's
 * kind, and with the check for races. */
#include "tests/cudahost/shim_support.h"

#include <cooperative_groups.h>

/* --- cooperation of threads -------------------------------------------------------------------------------------- */

__global__ static void barriers(int *y)
{
    int *s = (int *)cuda_shared();
    const int n = (int)blockDim.x, i = (int)threadIdx.x;
    s[i] = i + (int)blockIdx.x;
    __syncthreads();
    const int other = s[n - 1 - i];
    const int any = __syncthreads_or(i == 3), none = __syncthreads_or(i == n);
    y[blockIdx.x * blockDim.x + threadIdx.x] = any && !none ? other : -1;
}
static void test_barriers(void **)
{
    enum { BLOCKS = 3, THREADS = 96 };
    int host[BLOCKS * THREADS], *y = (int *)device(sizeof(host));
    assert_cuda(launch(barriers, BLOCKS, THREADS, THREADS * sizeof(int), y));
    host_copy(host, y, BLOCKS * THREADS);
    for (int i = 0; i < BLOCKS * THREADS; i++) assert_int_equal(host[i], THREADS - 1 - i % THREADS + i / THREADS);
    cudaFree(y);
}

/* Block 0 stores two words in turn, PAIRS times. Block 1 counts those of which it sees only the second. */
enum { PAIRS = 64 };
__global__ static void two_words(uint2 *first, uint4 *second, int *late)
{
    uint4 two;
    if (threadIdx.x > 0) return;
    for (int i = 0; i < PAIRS; i++)
        if (blockIdx.x == 0) {
            fast::store_word(first + 2 * i, 7, 1);
            fast::store_wide_word(second + i, make_uint4(1, 2, 3, 1));
            fast::poll_again();
        } else {
            while ((two = fast::load_wide_word(second + i)).w != 1) fast::poll_again();
            if (two.x != 1 || two.y != 2 || two.z != 3) *late = -PAIRS;
            *late += fast::load_two_words((const uint4 *)first + i).y != 1;
        }
}
static void test_words_in_any_order(void **)
{
    uint2 zero[4 * PAIRS + 1] = {}, words[4 * PAIRS + 1];
    uint2 *x = device_copy(zero, 4 * PAIRS + 1);
    const int shuffled = strcmp(getenv("MAR_CUDAHOST_ORDER"), "shuffled") == 0;
    assert_cuda(launch_together(two_words, 2, 1, 32, 0, x, (uint4 *)(x + 2 * PAIRS), (int *)(x + 4 * PAIRS)));
    host_copy(words, x, 4 * PAIRS + 1);
    const int late = (int)words[4 * PAIRS].x;
    if (late < shuffled || late > shuffled * PAIRS / 2) fail_msg("%d words in another order", late);
    for (int i = 0; i < PAIRS; i++) assert_int_equal(words[2 * i].x, 7);
    cudaFree(x);
}

enum { RESULTS = 13 }; /* of a lane */
__global__ static void lanes(int *y)
{
    const int i = (int)threadIdx.x;
    int *r = y + RESULTS * i;
    r[0] = __shfl_sync(~0u, i, 5);
    r[1] = __shfl_sync(~0u, i, i + 1);
    r[2] = __shfl_sync(~0u, i, 9, 8);
    r[3] = __shfl_xor_sync(~0u, i, 16);
    r[4] = __shfl_up_sync(~0u, i, 3);
    r[5] = __shfl_up_sync(~0u, i, 3, 8);
    r[6] = __shfl_down_sync(~0u, i, 3);
    r[7] = __shfl_down_sync(~0u, i, 3, 8);
    r[8] = (int)__ballot_sync(~0u, i % 3 == 0);
    /* Each half of a warp acts alone. */
    const unsigned half = i % 32 < 16 ? 0xffffu : 0xffff0000u;
    int sum = i;
    if (i % 32 < 16)
        for (int k = 8; k > 0; k /= 2) sum += __shfl_xor_sync(half, sum, k);
    else
        for (int k = 1; k < 16; k *= 2) sum += 2 * __shfl_xor_sync(half, sum, k);
    r[9] = sum;
    r[10] = (int)(__shfl_xor_sync(~0u, 0.5 * i, 1) * 2);
    r[11] = (int)__bfloat162float(__shfl_xor_sync(~0u, __float2bfloat16((float)i), 1));
    r[12] = (int)(__shfl_sync(~0u, (long long)i << 40, 31) >> 40);
}
static void test_lanes(void **)
{
    static int host[64 * RESULTS];
    int *y = (int *)device(sizeof(host));
    assert_cuda(launch(lanes, 1, 64, 0, y));
    host_copy(host, y, 64 * RESULTS);
    for (int i = 0; i < 64; i++) {
        const int w = i / 32 * 32, l = i % 32;
        unsigned thirds = 0;
        int low = 0, high = l < 16 ? 0 : i;
        for (int k = 0; k < 32; k++) thirds |= (unsigned)((w + k) % 3 == 0) << k;
        for (int k = 0; k < 16; k++) low += w + k;
        if (l >= 16) { /* each round triples equal values, and else shows the order of the xor */
            int v[16], u[16];
            for (int k = 0; k < 16; k++) v[k] = w + 16 + k;
            for (int k = 1; k < 16; k *= 2) {
                for (int m = 0; m < 16; m++) u[m] = v[m] + 2 * v[m ^ k];
                memcpy(v, u, sizeof(v));
            }
            high = v[l - 16];
        }
        const int want[RESULTS] = {w + 5,
                                   w + (l + 1) % 32,
                                   w + l / 8 * 8 + 1,
                                   w + (l ^ 16),
                                   l < 3 ? i : i - 3,
                                   l % 8 < 3 ? i : i - 3,
                                   l > 28 ? i : i + 3,
                                   l % 8 > 4 ? i : i + 3,
                                   (int)thirds,
                                   l < 16 ? low : high,
                                   i ^ 1,
                                   i ^ 1,
                                   w + 31};
        for (int k = 0; k < RESULTS; k++)
            if (host[RESULTS * i + k] != want[k])
                fail_msg("lane %d, %d: %d, expected %d", i, k, host[RESULTS * i + k], want[k]);
    }
    cudaFree(y);
}

__global__ static void atomics(int *i, unsigned *u, float *f, unsigned long long *l)
{
    unsigned *s = (unsigned *)cuda_shared();
    const unsigned t = threadIdx.x + blockDim.x * blockIdx.x;
    if (threadIdx.x == 0) *s = 0;
    __syncthreads();
    atomicAdd(s, threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(u, *s);
    atomicAdd(i, -1);
    atomicMax(i + 1, (int)t);
    atomicMin(i + 2, (int)t);
    atomicAdd(f, 0.5f);
    atomicAdd(l, 1ull << 33);
    atomicOr(u + 1, 1u << t % 32);
}
static void test_atomics(void **)
{
    int i[3] = {7, 0, 1000};
    unsigned u[2] = {0, 0};
    float f = 1;
    unsigned long long l = 3;
    int *di = device_copy(i, 3);
    unsigned *du = device_copy(u, 2);
    float *df = device_copy(&f, 1);
    unsigned long long *dl = device_copy(&l, 1);
    assert_cuda(launch(atomics, 2, 64, 4, di, du, df, dl));
    host_copy(i, di, 3), host_copy(u, du, 2), host_copy(&f, df, 1), host_copy(&l, dl, 1);
    assert_int_equal(i[0], 7 - 128);
    assert_int_equal(i[1], 127);
    assert_int_equal(i[2], 0);
    assert_int_equal(u[0], 2 * 2016);
    assert_int_equal(u[1], ~0u);
    assert_true(f == 65 && l == 3 + (128ull << 33));
    cudaFree(di), cudaFree(du), cudaFree(df), cudaFree(dl);
}

__global__ static void rounds(int *y, unsigned *count, int n)
{
    const unsigned b = blockIdx.x, blocks = gridDim.x;
    for (int r = 0; r < n; r++) {
        const int left = y[(b + blocks - 1) % blocks * blockDim.x + threadIdx.x];
        for (int half = 1; half <= 2; half++) {
            if (half == 2) y[b * blockDim.x + threadIdx.x] = left + 1;
            __syncthreads();
            if (threadIdx.x == 0) {
                fast::grid_arrive(count);
                fast::grid_wait(count, (unsigned)(2 * r + half) * blocks);
            }
            __syncthreads();
        }
    }
}
static void test_grid_barrier(void **)
{
    enum { BLOCKS = 5, THREADS = 64, ROUNDS = 12 };
    int host[BLOCKS * THREADS];
    unsigned zero = 0, *count = device_copy(&zero, 1);
    for (int i = 0; i < BLOCKS * THREADS; i++) host[i] = 100 * i;
    int *y = device_copy(host, BLOCKS * THREADS);
    assert_cuda(launch_together(rounds, BLOCKS, 1, THREADS, 0, y, count, ROUNDS));
    host_copy(host, y, BLOCKS * THREADS);
    for (int i = 0; i < BLOCKS * THREADS; i++) {
        const int from = (i / THREADS + BLOCKS * ROUNDS - ROUNDS) % BLOCKS * THREADS + i % THREADS;
        assert_int_equal(host[i], 100 * from + ROUNDS);
    }
    cudaFree(y), cudaFree(count);
}

__global__ static void ring(int *y, int forget)
{
    const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    int *s = (int *)cuda_shared();
    const unsigned next = (cluster.block_rank() + 1) % 4;
    cluster.map_shared_rank(s, next)[threadIdx.x] = (int)(100 * blockIdx.x + threadIdx.x);
    if (!forget) cluster.sync();
    y[blockIdx.x * blockDim.x + threadIdx.x] = s[threadIdx.x];
    cluster.sync();
}
static void test_cluster(void **)
{
    int host[8 * 32], *y = (int *)device(sizeof(host));
    assert_cuda(launch_together(ring, 8, 4, 32, 128, y, 0));
    host_copy(host, y, 8 * 32);
    for (int i = 0; i < 8 * 32; i++) {
        const int b = i / 32, from = b / 4 * 4 + (b + 3) % 4;
        assert_int_equal(host[i], 100 * from + i % 32);
    }
    cudaFree(y);
}

/* --- matrices ---------------------------------------------------------------------------------------------------- */

/* Computes the plain twin of mma.sync, for A [16][16] and B [16][8] in the instruction's fragments. */
template <typename T> __global__ static void mma_twin(const T *a, const T *b, float *d)
{
    const int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    const uint32_t *a2 = (const uint32_t *)a;
    const uint16_t *b1 = (const uint16_t *)b;
    uint32_t fa[4] = {a2[g * 8 + t], a2[(g + 8) * 8 + t], a2[g * 8 + t + 4], a2[(g + 8) * 8 + t + 4]}, fb[2];
    for (int i = 0; i < 2; i++) fb[i] = b1[(2 * t + 8 * i) * 8 + g] | (uint32_t)b1[(2 * t + 8 * i + 1) * 8 + g] << 16;
    float fd[4] = {1, 2, 3, 4};
    float same[4] = {1, 2, 3, 4};
    plain::mma<T>(fd, fa, fb);
    cudahost_mma<T>(same, fa, fb);
    for (int i = 0; i < 4; i++)
        if (same[i] != fd[i]) __trap();
    d[g * 8 + 2 * t] = fd[0], d[g * 8 + 2 * t + 1] = fd[1];
    d[(g + 8) * 8 + 2 * t] = fd[2], d[(g + 8) * 8 + 2 * t + 1] = fd[3];
}
template <typename T> static void check_mma()
{
    T a[256], b[256];
    float d[128];
    for (uint32_t i = 0; i < 256; i++) cuda_store(&a[i], number(i)), cuda_store(&b[i], number(1000 + i));
    T *da = device_copy(a, 256), *db = device_copy(b, 256);
    float *dd = (float *)device(sizeof(d));
    assert_cuda(launch(mma_twin<T>, 1, 32, 0, da, db, dd));
    host_copy(d, dd, 128);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            double sum = 1 + j % 2 + 2 * (i / 8);
            for (int k = 0; k < 16; k++) sum += (double)cuda_float(a[i * 16 + k]) * cuda_float(b[k * 8 + j]);
            assert_true(fabs(d[i * 8 + j] - sum) < 1e-5);
        }
    cudaFree(da), cudaFree(db), cudaFree(dd);
}

static void test_products_of_warps(void **)
{
    check_mma<bf16>(), check_mma<f16>();
}

static void test_f16(void **)
{
    for (int i = 0; i < 0x7c00; i++) {
        const float x = cudahost_f16_float((unsigned short)i), next = cudahost_f16_float((unsigned short)(i + 1));
        const int exponent = i >> 10 ? i >> 10 : 1, mantissa = (i >> 10 ? 0x400 : 0) + i % 0x400;
        const float middle = i == 0x7bff ? 65520 : x + (next - x) / 2;
        assert_true(x == ldexpf((float)mantissa, exponent - 25));
        assert_int_equal(cudahost_f16(-x), i | 0x8000);
        assert_int_equal(cudahost_f16(middle), i + i % 2);
        assert_int_equal(cudahost_f16(nextafterf(middle, 0)), i);
        assert_int_equal(cudahost_f16(nextafterf(middle, INFINITY)), i + 1);
    }
    assert_true(isnan(__half2float(__float2half_rn(NAN))) && __half2float(__float2half_rn(1e9f)) == INFINITY);
    assert_true(__half22float2(__floats2half2_rn(1.5f, -2.0f)).y == -2.0f);
}

static void test_bf16(void **)
{
    assert_int_equal(sizeof(bf16), 2);
    for (uint32_t i = 0; i < 100000; i++) {
        /* random bits, and ties made of them */
        const float x = __uint_as_float(i % 2 ? word(i) : (word(i) & 0xffff0000u) | 0x8000u);
        if (isnan(x)) {
            assert_true(isnan(__bfloat162float(__float2bfloat16(x))));
            continue;
        }
        const uint32_t below = __float_as_uint(x) & 0xffff0000u, above = below + 0x10000u;
        const double low = fabs((double)x - __uint_as_float(below)), high = fabs((double)__uint_as_float(above) - x);
        uint32_t want = low < high || (low == high && !(below & 0x10000u)) ? below : above;
        if (isinf(__uint_as_float(above))) want = (__float_as_uint(x) & 0xffffu) >= 0x8000u ? above : below;
        assert_int_equal(__float2bfloat16(x).__x, want >> 16);
    }
    const __nv_bfloat162 pair = __floats2bfloat162_rn(1.5f, -2.0f);
    assert_true((float)pair.x == 1.5f && (float)pair.y == -2.0f);
}

/* Computes y[rows][n] = epilogue(x[rows][k] w[n][k]^T + bias) with the backend's arguments: D^T = W X^T by columns. */
static cublasStatus_t matmul(const bf16 *x, const bf16 *w, const void *bias, void *y, cudaDataType_t out, int rows,
                             int n, int k, cublasLtEpilogue_t epilogue, cublasComputeType_t compute, uint32_t alignment,
                             float beta)
{
    static cublasLtHandle_t handle;
    static void *workspace;
    if (!handle) {
        assert_int_equal(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
        workspace = device(1 << 20);
    }
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const uint64_t workspace_bytes = 1 << 20;
    const float one = 1;
    int count = 0;
    cublasLtMatmulDescInit(&desc, compute, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
    cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    cublasLtMatmulDescSetAttribute(&desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
    cublasLtMatrixLayoutInit(&a, CUDA_R_16BF, (uint64_t)k, (uint64_t)n, k);
    cublasLtMatrixLayoutInit(&b, CUDA_R_16BF, (uint64_t)k, (uint64_t)rows, k);
    cublasLtMatrixLayoutInit(&d, out, (uint64_t)n, (uint64_t)rows, n);
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                         sizeof(workspace_bytes));
    for (int i = 0; i < 4; i++)
        cublasLtMatmulPreferenceSetAttribute(
            preference, (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
            &alignment, sizeof(alignment));
    cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(handle, &desc, &a, &b, &d, &d, preference, 1, &found, &count);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmul(handle, &desc, &one, w, &a, x, &b, &beta, y, &d, y, &d, &found.algo, workspace,
                           found.workspaceSize, 0);
    cublasLtMatmulPreferenceDestroy(preference);
    if (!x) { /* the last call */
        cublasLtDestroy(handle);
        cudaFree(workspace);
        handle = NULL;
    }
    return s;
}
static void test_matmul(void **)
{
    enum { ROWS = 5, N = 24, K = 40 };
    bf16 x[ROWS * K], w[N * K], bias[N], y[ROWS * N];
    float sums[ROWS * N];
    for (uint32_t i = 0; i < ROWS * K; i++) x[i] = __float2bfloat16(number(i));
    for (uint32_t i = 0; i < N * K; i++) w[i] = __float2bfloat16(number(5000 + i));
    for (uint32_t i = 0; i < N; i++) bias[i] = __float2bfloat16(number(9000 + i));
    for (uint32_t i = 0; i < ROWS * N; i++) sums[i] = number(7000 + i);
    bf16 *dx = device_copy(x, ROWS * K), *dw = device_copy(w, N * K), *dbias = device_copy(bias, N);
    bf16 *dy = (bf16 *)device(sizeof(y));
    float *dsums = device_copy(sums, ROWS * N), got[ROWS * N];
    assert_int_equal(
        matmul(dx, dw, dbias, dy, CUDA_R_16BF, ROWS, N, K, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLAS_COMPUTE_32F, 256, 0),
        CUBLAS_STATUS_SUCCESS);
    assert_int_equal(
        matmul(dx, dw, NULL, dsums, CUDA_R_32F, ROWS, N, K, CUBLASLT_EPILOGUE_DEFAULT, CUBLAS_COMPUTE_32F, 16, 1),
        CUBLAS_STATUS_SUCCESS);
    host_copy(y, dy, ROWS * N);
    host_copy(got, dsums, ROWS * N);
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < N; n++) {
            double sum = 0;
            for (int k = 0; k < K; k++) sum += (double)(float)x[r * K + k] * (float)w[n * K + k];
            assert_true(fabs(got[r * N + n] - (sums[r * N + n] + sum)) < 1e-5);
            sum += (float)bias[n];
            const double gelu = 0.5 * sum * (1 + tanh(sqrt(2 / M_PI) * (sum + 0.044715 * sum * sum * sum)));
            assert_true(fabs((float)y[r * N + n] - gelu) < 0.005 * fabs(gelu) + 1e-4);
        }
    const cublasLtEpilogue_t plain = CUBLASLT_EPILOGUE_DEFAULT;
    assert_int_equal(matmul(dx, dw, NULL, dy, CUDA_R_16BF, ROWS, N, K, plain, CUBLAS_COMPUTE_32F_FAST_TF32, 16, 0),
                     CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(matmul(dx + 4, dw, NULL, dy, CUDA_R_16BF, ROWS - 1, N, K, plain, CUBLAS_COMPUTE_32F, 16, 0),
                     CUBLAS_STATUS_NOT_SUPPORTED); /* misaligned by 8 bytes */
    assert_int_equal(matmul(dx + 8, dw, NULL, dy, CUDA_R_16BF, ROWS - 1, N, K, plain, CUBLAS_COMPUTE_32F, 256, 0),
                     CUBLAS_STATUS_NOT_SUPPORTED); /* less aligned than promised */
    assert_int_equal(matmul(dx, dw, NULL, dy, CUDA_R_16BF, ROWS + 1, N, K, plain, CUBLAS_COMPUTE_32F, 16, 0),
                     CUBLAS_STATUS_INVALID_VALUE); /* more rows than in memory */
    assert_int_equal(matmul(NULL, dw, NULL, dy, CUDA_R_16BF, ROWS, N, K, plain, CUBLAS_COMPUTE_32F, 16, 0),
                     CUBLAS_STATUS_INVALID_VALUE);
    cudaFree(dx), cudaFree(dw), cudaFree(dbias), cudaFree(dy), cudaFree(dsums);
}

/* --- mistakes ---------------------------------------------------------------------------------------------------- */

__global__ static void stray(int which, unsigned *count)
{
    const unsigned i = threadIdx.x;
    if (which == 0) { /* a barrier at two places */
        if (i < 32)
            __syncthreads();
        else
            __syncthreads();
    }
    if (which == 1 && i == 7) return;
    if (which == 1) __syncthreads();
    if (which == 2) __shfl_sync(0xffffu, 1, 20); /* source lane not in the mask; callers not in the mask */
    if (which == 3 && i % 32 > 20) return;
    if (which == 3) __shfl_xor_sync(~0u, 1, 1);
    if (which == 4 && i == 0) { /* waits for more blocks than exist */
        fast::grid_arrive(count);
        fast::grid_wait(count, gridDim.x + 1);
    }
    if (which == 5 && i < 16) __shfl_xor_sync(~0u, 1, 1);
    if (which == 5 && i >= 16) __ballot_sync(~0u, 1);
    if (which == 6 && i % 32 != 3) __syncwarp(); /* waits for a lane that waits for the block */
    if (which == 6) __syncthreads();
    if (which == 7) __trap();
    if (which == 8 && i < 32) fast::team_sync(1, 64); /* a team that lacks a warp */
    if (which == 9) fast::team_sync(16, 32);
}
static void make_stray(int which)
{
    unsigned zero = 0, *count = device_copy(&zero, 1);
    launch_together(stray, 2, 1, 64, 0, which, count);
}
static void one_block_at_a_time(int)
{
    unsigned zero = 0, *count = device_copy(&zero, 1);
    int *y = (int *)device(128 * sizeof(int));
    cudaMemset(y, 0, 128 * sizeof(int));
    launch(rounds, 2, 64, 0, y, count, 1);
}
static void test_waits_in_vain(void **)
{
    assert_found(make_stray, 0, "while thread (0,0,0) is in __syncthreads at");
    assert_found(make_stray, 1, "__syncthreads at");
    assert_found(make_stray, 2, "does not name");
    assert_found(make_stray, 3, "a shuffle");
    assert_found(make_stray, 4, "deadlock, waiting for what cannot happen");
    assert_found(make_stray, 4, "kernel stray");
    assert_found(make_stray, 5, "a shuffle");
    assert_found(make_stray, 6, "deadlock");
    assert_found(make_stray, 7, "__trap at");
    assert_found(make_stray, 8, "deadlock");
    assert_found(make_stray, 9, "no team");
    assert_found(one_block_at_a_time, 0, "deadlock");
    assert_fine(make_stray, 100);
}

__global__ static void reach(int which, float *y)
{
    float *s = (float *)cuda_shared();
    s[threadIdx.x] = 1;
    if (which == 0) s[blockDim.x + threadIdx.x / 31] = 2;
    if (which == 1) y[threadIdx.x + 1] = 2;
    if (which == 2) *(float4 *)(y + 1) = make_float4(1, 2, 3, 4); /* misaligned */
    if (which == 3) s[-1] = 0;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x ^ 1];
}
static void make_reach(int which)
{
    float *y = (float *)device(32 * sizeof(float));
    if (which == 4) cudaFree(y);
    if (which == 5) y[0] = 1; /* the host writes device memory */
    launch(reach, 1, 32, 32 * sizeof(float), which, y);
}
static void test_out_of_bounds(void **)
{
    assert_fine(make_reach, 100);
    const char *words = cudahost_race ? "touches" : "AddressSanitizer";
    if (!cudahost_race && !CUDAHOST_ASAN) return;
    assert_found(make_reach, 0, words);
    assert_found(make_reach, 1, words);
    assert_found(make_reach, 3, words);
    assert_found(make_reach, 4, words);
    if (!CUDAHOST_ASAN) return;
    assert_found(make_reach, 2, "misaligned");
    assert_found(make_reach, 5, words);
}

/* y = x, through shared memory that had zeros, by two groups of copies. `which` is a mistake. */
__global__ static void copy_late(int which, const uint4 *x, uint4 *y)
{
    uint4 *s = (uint4 *)cuda_shared();
    const unsigned i = threadIdx.x, n = blockDim.x, other = i ^ 33;
    s[i] = s[n + i] = make_uint4(0, 0, 0, 0);
    if (which != 6) __syncthreads();
    fast::copy16(s + (which == 6 ? other : i), x + (which == 6 ? other : i));
    fast::copy_commit();
    fast::copy16(s + n + i, x + n + i);
    if (which != 2) fast::copy_commit();
    if (which == 3) s[i].x = 1; /* the copy overwrites it, or does not */
    if (which != 1) fast::copy_wait<1>();
    if (which != 4) __syncthreads();
    y[other] = s[other];
    if (which == 5) return;
    fast::copy_wait<0>(); /* 2: the second group is open still */
    __syncthreads();
    y[n + other] = s[n + other];
    fast::copy_commit();
    fast::copy_wait<0>();
}
static void make_copy_late(int which)
{
    enum { THREADS = 64 };
    uint32_t x[THREADS * 8], y[THREADS * 8];
    for (uint32_t i = 0; i < THREADS * 8; i++) x[i] = word(i);
    uint32_t *dx = device_copy(x, THREADS * 8), *dy = (uint32_t *)device(sizeof(y));
    assert_cuda(launch(copy_late, 1, THREADS, THREADS * 32, which, (const uint4 *)dx, (uint4 *)dy));
    host_copy(y, dy, THREADS * 8);
    if (memcmp(x, y, sizeof(x)) != 0) fputs("read before the wait\n", stderr), abort();
}
static void test_copies_are_late(void **)
{
    assert_fine(make_copy_late, 0);
    const char *early = cudahost_race ? "which a cp.async that was not waited for copies" : "read before the wait";
    for (int bad : {1, 2}) assert_found(make_copy_late, bad, early);
    assert_found(make_copy_late, 5, "has not waited for its cp.async at");
    if (!cudahost_race) return;
    assert_found(make_copy_late, 3, early);
    for (int bad : {4, 6}) assert_found(make_copy_late, bad, "race: it ");
}

/* Adds 1 to x. `which` is a mistake of a launch that begins before the last one has ended. */
__global__ static void begin_early(int which, const float *constant, float *x, float *unused)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float y = constant[i], zero = 0;
    fast::start_next();
    if (which == 1) y += x[i];
    if (which == 2) unused[i] = 0;
    if (which != 3 || i % 2) fast::wait_for_previous();
    if (which == 0) zero = unused[i];
    if (which != 1) y += x[i];
    x[i] = y + zero;
}
static cudaError_t launch_early(int which, const float *constant, float *x, float *unused)
{
    cudaLaunchAttribute early = {cudaLaunchAttributeProgrammaticStreamSerialization, {}};
    early.val.programmaticStreamSerializationAllowed = 1;
    const cudaLaunchConfig_t config = {dim3(2), dim3(64), 0, NULL, &early, 1};
    return cudaLaunchKernelEx(&config, begin_early, which, constant, x, unused);
}
static void make_early(int which)
{
    enum { N = 128 };
    float zero[N] = {}, one[N], got[N];
    for (float &f : one) f = 1;
    float *constant = device_copy(one, N), *x = device_copy(zero, N), *y = device_copy(zero, N);
    assert_cuda(launch(begin_early, 2, 64, 0, 0, constant, x, y));
    for (int i = 0; i < 2; i++) assert_cuda(launch_early(which, constant, x, y));
    host_copy(got, x, N);
    for (float f : got)
        if (f != 3) fputs("wrong\n", stderr), abort();
}
static void test_early_launches(void **)
{
    assert_fine(make_early, 0);
    assert_found(make_early, 3, "has not waited for the launch before it");
    setenv("MAR_CUDAHOST_CAPABILITY", "8.0", 1);
    assert_string_equal(cudaGetErrorName(launch_early(0, NULL, NULL, NULL)), "cudaErrorNotSupported");
    unsetenv("MAR_CUDAHOST_CAPABILITY");
    if (!cudahost_race) return;
    assert_found(make_early, 1, "which a launch before wrote, and has not waited for it");
    assert_found(make_early, 2, "which a launch before read, and has not waited for it");
}

__global__ static void race(int which, float *y, unsigned *count, const float *host)
{
    float *s = (float *)cuda_shared();
    const unsigned i = threadIdx.x, n = blockDim.x, b = blockIdx.x;
    float v = 0;
    s[i] = 1;
    s[n + i] = 1;
    if (which != 0) __syncthreads();
    if (which < 2) v = s[(i + 40) % n];     /* 0: reads another thread's write */
    if (which == 2) v = s[i ^ 1], s[i] = v; /* writes after another thread's read */
    if (which == 3) s[i] = 2, v = s[i ^ 1];
    if (which == 4) s[i] = 2, v = __shfl_xor_sync(~0u, v, 1), v = s[i ^ 1]; /* a shuffle orders no memory */
    if (which == 5) s[i] = 2, __syncwarp(), v = s[i ^ 1];                   /* no mistake */
    if (which == 6) s[i] = 2, __syncwarp(), v = s[i ^ 32];                  /* another warp */
    if (which == 7) v = s[2 * n + i];                                       /* never written */
    if (which == 8) y[i] = 1;                                               /* written by all blocks */
    if (which == 9 || which == 10) {
        y[b * n + i] = 1;
        if (which == 10) __syncthreads(); /* no mistake: the barrier orders the block's writes */
        if (i == 0) {
            fast::grid_arrive(count);
            fast::grid_wait(count, gridDim.x);
        }
        __syncthreads();
        v = y[(b + 1) % gridDim.x * n + i];
    }
    if (which == 11) v = *host;
    if (which == 12) { /* no mistake: adjacent bytes */
        ((unsigned char *)s)[i] = 1, ((bf16 *)y)[b * n + i] = __float2bfloat16(1);
        return;
    }
    if (which == 13) atomicAdd(&s[0], 1.0f);           /* no mistake: atomics of all threads */
    if (which == 14) atomicAdd(&s[0], 1.0f), v = s[0]; /* the plain read is a mistake */
    if (which == 15) {                                 /* each half of a warp synchronizes alone */
        s[i] = 2, __syncwarp(i % 32 < 16 ? 0xffffu : 0xffff0000u);
        v = s[i ^ 8];
    }
    if (which == 16) {
        s[i] = 2, __syncwarp(i % 32 < 16 ? 0xffffu : 0xffff0000u);
        v = s[i ^ 16];
    }
    if (which == 17 && i == 0) s[1] = 2; /* many readers, one in the writer's warp */
    if (which == 17 && i == 33) v = s[1];
    if (which == 18 || which == 19) { /* writes only the last part of a value read later */
        if (which == 18 && i == 1) ((unsigned char *)s)[3] = 1;
        if (which == 19 && i == 1) ((bf16 *)y)[2 * n * b + 1] = __float2bfloat16(1);
        v = __shfl_xor_sync(~0u, v, 1);
        if (i == 8) v += which == 18 ? s[0] : y[n * b];
    }
    if (which >= 21) { /* each warp is a team */
        const int team = 1 + (int)i / 32;
        s[i] = 2, y[b * n + i] = 1;
        fast::team_sync(team, 32);
        if (which == 21) v = s[i ^ 1];  /* no mistake */
        if (which == 22) v = s[i ^ 32]; /* another team's */
        if (which == 23 && i % 32 == 0) {
            fast::grid_arrive(count);
            fast::grid_wait(count, gridDim.x * n / 32);
        }
        fast::team_sync(team, 32);
        if (which == 23) v = y[(b + 1) % gridDim.x * n + i]; /* no mistake: a thread has waited for all teams */
        s[n + i] = v;
        return;
    }
    if (which != 8 && which != 9 && which != 10) y[b * n + i] = v;
}
/* Block 0 reads y before its cluster's barrier, behind which block 1 tells block 2, which writes y. which 25: block 1
 * does not wait for the barrier. */
__global__ static void pass_on(int which, float *y, unsigned *count)
{
    const unsigned b = blockIdx.x;
    const float v = b == 0 ? y[0] : 0;
    if (which == 25 && b == 1) fast::grid_arrive(count);
    fast::cluster_sync();
    if (which == 24 && b == 1) fast::grid_arrive(count);
    if (b == 2) fast::grid_wait(count, 1), y[0] = 1;
    y[1 + b] = v;
}
/* A word tells block 1 that block 0 has read y[0] and written y[1]. That orders a write of y[0], which 26. A read of
 * y[1] needs a fence: which 27 has one, which 28 none. */
__global__ static void tell(int which, float *y, uint4 *word)
{
    if (blockIdx.x == 0) {
        y[1] = y[0];
        __threadfence();
        fast::store_two_words(word, 0, 0, 1);
        return;
    }
    while (fast::load_two_words(word).w != 1) fast::poll_again();
    if (which == 27) __threadfence();
    y[2] = which == 26 ? y[0] = 1 : y[1];
}
static void make_race(int which)
{
    static const char *const orders[] = {"forward", "reverse", "shuffled"};
    float here = 1;
    if (which == 20) { /* a cluster whose blocks do not wait for each other */
        int *z = (int *)device(8 * 32 * sizeof(int));
        launch_together(ring, 8, 4, 32, 128, z, 1);
        return;
    }
    for (int o = 0; o < 3; o++) {
        setenv("MAR_CUDAHOST_ORDER", orders[o], 1);
        unsigned zero = 0, *count = device_copy(&zero, 1);
        float *y = (float *)device(2 * 64 * sizeof(float));
        if (which >= 26) {
            const uint4 none = {};
            launch_together(tell, 2, 1, 1, 0, which, y, device_copy(&none, 1));
            continue;
        }
        if (which >= 24) {
            launch_together(pass_on, 4, 2, 1, 0, which, y, count);
            continue;
        }
        launch_together(race, 2, 1, 64, 3 * 64 * sizeof(float), which, y, count, &here);
    }
}
static void test_races(void **)
{
    for (int good : {1, 5, 10, 12, 13, 15, 21, 23, 24, 26, 27}) assert_fine(make_race, good);
    if (!cudahost_race) return;
    for (int bad : {0, 2, 3, 4, 6, 8, 9, 14, 16, 17, 18, 19, 22, 25, 28}) assert_found(make_race, bad, "race: it ");
    assert_found(make_race, 7, "which nobody has written");
    assert_found(make_race, 11, "not the device's");
    assert_found(make_race, 20, "shared memory");
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_grid_barrier),
        cmocka_unit_test(test_cluster),
        cmocka_unit_test(test_products_of_warps),
        cmocka_unit_test(test_words_in_any_order),
    };
    const struct CMUnitTest once[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_waits_in_vain),
        cmocka_unit_test(test_out_of_bounds),
        cmocka_unit_test(test_races),
        cmocka_unit_test(test_copies_are_late),
        cmocka_unit_test(test_early_launches),
    };
    int failed = 0;
    remember_faults();
    for (const char *order : {"forward", "reverse", "shuffled"}) {
        setenv("MAR_CUDAHOST_ORDER", order, 1);
        failed += cmocka_run_group_tests_name(order, tests, NULL, NULL);
    }
    unsetenv("MAR_CUDAHOST_ORDER");
    return failed + cmocka_run_group_tests_name("shim", once, NULL, NULL);
}
