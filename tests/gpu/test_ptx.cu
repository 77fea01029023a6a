/* Each instruction of kernels/cuda/ptx.h and hopper.h against its plain twin, on the GPU. */
#include "tests/gpu/tiles.cuh"

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}

#include <math.h>
#include <string.h>

static void check(cudaError_t error)
{
    if (error != cudaSuccess) fail_msg("%s", cudaGetErrorString(error));
}

enum { ALONE, TOGETHER, IN_PAIRS }; /* launch of the blocks: plain, cooperative, in clusters of two */

/* Runs kernel(arguments..., out) and fetches out[n]. */
template <typename T, typename... P, typename... A>
static void run(void (*kernel)(P...), unsigned blocks, unsigned threads, T *out, size_t n, int how, A... arguments)
{
    T *device;
    check(cudaMalloc((void **)&device, n * sizeof(T)));
    check(cudaMemset(device, 0xff, n * sizeof(T)));
    cudaLaunchAttribute attribute = {};
    if (how == IN_PAIRS) {
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = 2;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    } else {
        attribute.id = cudaLaunchAttributeCooperative;
        attribute.val.cooperative = how == TOGETHER;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = 16 * 1024;
    config.attrs = &attribute;
    config.numAttrs = 1;
    check(cudaLaunchKernelEx(&config, kernel, arguments..., device));
    check(cudaMemcpy(out, device, n * sizeof(T), cudaMemcpyDeviceToHost));
    check(cudaFree(device));
}

/* Returns a pseudo-random pair of bf16, or of f16, of moderate size. */
static __device__ uint32_t operands(unsigned key)
{
    uint32_t words[4];
    kern_random_words(7, KERN_NOISE_INIT, 0, key, 0, 0, words);
    return (words[0] & 0x80ff80ffu) | 0x3f003f00u;
}

template <int fast_one, typename T> static __global__ void multiply(float *out)
{
    float d[4];
    uint32_t a[4], b[2];
    for (unsigned i = 0; i < 4; i++) {
        a[i] = operands(threadIdx.x * 8 + i);
        d[i] = (float)i - 1.5f;
    }
    for (unsigned i = 0; i < 2; i++) b[i] = operands(threadIdx.x * 8 + 4 + i);
    if (fast_one)
        ptx::mma<T>(d, a, b);
    else
        plain::mma<T>(d, a, b);
    for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + (unsigned)i] = d[i];
}

template <typename T> static void check_mma()
{
    float fast_one[128], plain_one[128];
    run(multiply<1, T>, 1, 32, fast_one, 128, ALONE);
    run(multiply<0, T>, 1, 32, plain_one, 128, ALONE);
    for (int i = 0; i < 128; i++) /* sums of 17 terms below 4, in another order */
        if (!(fabsf(fast_one[i] - plain_one[i]) <= 17 * 4 * 1.2e-7f * 17))
            fail_msg("element %d: %g, expected %g", i, (double)fast_one[i], (double)plain_one[i]);
}

static void test_mma(void **state)
{
    (void)state;
    check_mma<bf16>(), check_mma<f16>();
}

/* Loads rows of 8 values at odd places of shared memory, direct and transposed. */
template <int fast_one> static __global__ void load_rows(uint32_t *out)
{
    uint4 *shared = (uint4 *)cuda_shared();
    const unsigned lane = threadIdx.x, key = lane * 4 + 1000;
    shared[lane] = make_uint4(operands(key), operands(key + 1), operands(key + 2), operands(key + 3));
    __syncwarp();
    const void *row = shared + (lane * 7 + 3) % 32;
    uint32_t r[4], t[4];
    if (fast_one) {
        ptx::load_matrices(r, row);
        ptx::load_matrices_transposed(t, row);
    } else {
        plain::load_matrices(r, row);
        plain::load_matrices_transposed(t, row);
    }
    for (unsigned i = 0; i < 4; i++) {
        out[lane * 8 + i] = r[i];
        out[lane * 8 + 4 + i] = t[i];
    }
}

static void test_load_matrices(void **state)
{
    (void)state;
    uint32_t fast_one[256], plain_one[256];
    run(load_rows<1>, 1, 32, fast_one, 256, ALONE);
    run(load_rows<0>, 1, 32, plain_one, 256, ALONE);
    assert_memory_equal(fast_one, plain_one, sizeof fast_one);
}

template <int fast_one> static __global__ void powers(float *out)
{
    const float x = (float)threadIdx.x * 0.37f - 120; /* normal results: from -120 to 69 */
    out[threadIdx.x] = fast_one ? ptx::exp2(x) : plain::exp2(x);
}

static void test_exp2(void **state)
{
    (void)state;
    enum { N = 512 };
    float fast_one[N], plain_one[N];
    run(powers<1>, 1, N, fast_one, N, ALONE);
    run(powers<0>, 1, N, plain_one, N, ALONE);
    for (int i = 0; i < N; i++)
        if (!(fabsf(fast_one[i] / plain_one[i] - 1) <= 5e-7f))
            fail_msg("2^x number %d: %g, expected %g", i, (double)fast_one[i], (double)plain_one[i]);
}

template <int fast_one> static __global__ void pairs(uint32_t *out)
{
    const unsigned i = threadIdx.x;
    const uint32_t a = operands(3 * i), b = operands(3 * i + 1), c = operands(3 * i + 2);
    out[2 * i] = fast_one ? ptx::fma_pairs(a, b, c) : plain::fma_pairs(a, b, c);
    out[2 * i + 1] = fast_one ? ptx::mask_and_set(a, b, c) : plain::mask_and_set(a, b, c);
}

static void test_pairs(void **state)
{
    (void)state;
    uint32_t fast_one[512], plain_one[512];
    run(pairs<1>, 1, 256, fast_one, 512, ALONE);
    run(pairs<0>, 1, 256, plain_one, 512, ALONE);
    assert_memory_equal(fast_one, plain_one, sizeof fast_one);
}

template <int fast_one> static __global__ void copy(const uint4 *from, uint4 *out)
{
    uint4 *shared = (uint4 *)cuda_shared();
    const unsigned other = (threadIdx.x + 37) % blockDim.x;
    if (fast_one) {
        ptx::copy16(shared + threadIdx.x, from + threadIdx.x);
        ptx::copy_commit();
        ptx::copy16_if(threadIdx.x % 3 != 0, shared + blockDim.x + threadIdx.x, from + other);
        ptx::copy_commit();
        ptx::copy_wait<0>();
    } else {
        plain::copy16(shared + threadIdx.x, from + threadIdx.x);
        plain::copy16_if(threadIdx.x % 3 != 0, shared + blockDim.x + threadIdx.x, from + other);
    }
    __syncthreads();
    out[threadIdx.x] = shared[other];
    out[blockDim.x + threadIdx.x] = shared[blockDim.x + other];
}

static void test_copy(void **state)
{
    (void)state;
    enum { N = 128 };
    uint4 host[N], fast_one[2 * N], plain_one[2 * N], *from;
    for (unsigned i = 0; i < N; i++) host[i] = make_uint4(i, i * 3 + 1, ~i, i << 20);
    check(cudaMalloc((void **)&from, sizeof host));
    check(cudaMemcpy(from, host, sizeof host, cudaMemcpyHostToDevice));
    run(copy<1>, 1, N, fast_one, 2 * N, ALONE, (const uint4 *)from);
    run(copy<0>, 1, N, plain_one, 2 * N, ALONE, (const uint4 *)from);
    check(cudaFree(from));
    assert_memory_equal(fast_one, plain_one, sizeof fast_one);
    assert_memory_equal(fast_one, host + 37, sizeof host - sizeof(uint4) * 37);
}

/* In each round every block writes a number, and reads all numbers after the barrier. */
template <int fast_one> static __global__ void rounds(unsigned *count, unsigned *value, int n, unsigned *out)
{
    unsigned sum = 0;
    for (int round = 0; round < n; round++) {
        unsigned *now = value + (round % 2) * gridDim.x;
        if (threadIdx.x == 0) now[blockIdx.x] = (unsigned)round * 1000003u + blockIdx.x * blockIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) {
            const unsigned target = (unsigned)(round + 1) * gridDim.x;
            if (fast_one) {
                ptx::grid_arrive(count);
                ptx::grid_wait(count, target);
            } else {
                plain::grid_arrive(count);
                plain::grid_wait(count, target);
            }
        }
        __syncthreads();
        for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x) sum = sum * 31 + __ldcg(now + b);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

static void test_barrier(void **state)
{
    (void)state;
    enum { BLOCKS = 64, THREADS = 128, ROUNDS = 1000 };
    static unsigned fast_one[BLOCKS * THREADS], plain_one[BLOCKS * THREADS];
    unsigned *memory;
    for (int i = 0; i < 2; i++) {
        check(cudaMalloc((void **)&memory, (1 + 2 * BLOCKS) * sizeof *memory));
        check(cudaMemset(memory, 0, (1 + 2 * BLOCKS) * sizeof *memory));
        if (i)
            run(rounds<1>, BLOCKS, THREADS, fast_one, BLOCKS * THREADS, TOGETHER, memory, memory + 1, (int)ROUNDS);
        else
            run(rounds<0>, BLOCKS, THREADS, plain_one, BLOCKS * THREADS, TOGETHER, memory, memory + 1, (int)ROUNDS);
        check(cudaFree(memory));
    }
    assert_memory_equal(fast_one, plain_one, sizeof fast_one);
    for (int b = 1; b < BLOCKS; b++) /* every block saw the same */
        assert_memory_equal(fast_one, fast_one + b * THREADS, THREADS * sizeof *fast_one);
}

/* Writes four numbers, then two, from each thread to the shared memory of the cluster's other block. */
template <int fast_one> static __global__ void exchange(float4 *out)
{
    float4 *shared = (float4 *)cuda_shared();
    float2 *second = (float2 *)(shared + blockDim.x);
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const float n = (float)i;
    const float4 x = make_float4(n, n * 3 + 1, -n, n / 4);
    const float2 y = make_float2(n + 7, n - 7);
    if (fast_one) {
        ptx::cluster_meet(); /* both blocks have begun */
        ptx::cluster_store(shared + threadIdx.x, 1 - ptx::cluster_rank(), x);
        ptx::cluster_store(second + threadIdx.x, 1 - ptx::cluster_rank(), y);
        ptx::cluster_sync();
    } else {
        plain::cluster_meet();
        plain::cluster_store(shared + threadIdx.x, 1 - plain::cluster_rank(), x);
        plain::cluster_store(second + threadIdx.x, 1 - plain::cluster_rank(), y);
        plain::cluster_sync();
    }
    const float4 got = shared[blockDim.x - 1 - threadIdx.x];
    const float2 also = second[blockDim.x - 1 - threadIdx.x];
    out[i] = make_float4(got.x + also.x, got.y + also.y, got.z, got.w);
}

static void test_cluster(void **state)
{
    (void)state;
    enum { BLOCKS = 32, THREADS = 256 };
    static float4 fast_one[BLOCKS * THREADS], plain_one[BLOCKS * THREADS];
    int device, major;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (major < 9) skip();
    run(exchange<1>, BLOCKS, THREADS, fast_one, BLOCKS * THREADS, IN_PAIRS);
    run(exchange<0>, BLOCKS, THREADS, plain_one, BLOCKS * THREADS, IN_PAIRS);
    assert_memory_equal(fast_one, plain_one, sizeof fast_one);
    for (unsigned b = 0; b < BLOCKS; b++)
        for (unsigned t = 0; t < THREADS; t++) {
            const float n = (float)((b ^ 1) * THREADS + THREADS - 1 - t);
            assert_true(fast_one[b * THREADS + t].x == n + (n + 7));
            assert_true(fast_one[b * THREADS + t].w == n / 4);
        }
}

/* Block 0 writes numbers, then a flag. The others poll the flag with the load under test, then read the numbers. */
template <int fast_one> static __global__ void publish(unsigned *flag, unsigned *value, unsigned *out)
{
    if (blockIdx.x == 0) {
        value[threadIdx.x] = threadIdx.x * 7 + 1;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicExch(flag, 5u);
        }
    } else {
        if (threadIdx.x == 0) {
            while ((fast_one ? ptx::load_relaxed(flag) : plain::load_relaxed(flag)) != 5) {
            }
            __threadfence();
        }
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = __ldcg(value + threadIdx.x);
}

static void test_flag(void **state)
{
    (void)state;
    enum { BLOCKS = 16, THREADS = 128 };
    unsigned got[BLOCKS * THREADS], *memory;
    for (int i = 0; i < 2; i++) {
        check(cudaMalloc((void **)&memory, (32 + THREADS) * sizeof *memory));
        check(cudaMemset(memory, 0, (32 + THREADS) * sizeof *memory));
        if (i)
            run(publish<1>, BLOCKS, THREADS, got, BLOCKS * THREADS, TOGETHER, memory, memory + 32);
        else
            run(publish<0>, BLOCKS, THREADS, got, BLOCKS * THREADS, TOGETHER, memory, memory + 32);
        check(cudaFree(memory));
        for (unsigned t = 0; t < BLOCKS * THREADS; t++) assert_int_equal(got[t], t % THREADS * 7 + 1);
    }
}

/* Block 0 writes words whose parts are their numbers; the other blocks poll them. out counts torn words. */
template <int fast_one> static __global__ void wide_words(uint4 *words, unsigned last, unsigned *out)
{
    uint4 *mine = words + threadIdx.x, x = {};
    unsigned torn = 0;
    if (blockIdx.x == 0)
        for (unsigned n = 1; n <= last; n++) {
            const uint4 word = make_uint4(n, n, n, n << 16 | n);
            fast_one ? ptx::store_wide_word(mine, word) : plain::store_wide_word(mine, word);
        }
    while ((x.w & 0xffff) != last) {
        x = fast_one ? ptx::load_wide_word(mine) : plain::load_wide_word(mine);
        torn += x.x != x.y || x.x != x.z || x.w != (x.x << 16 | x.x);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = torn;
}

static void test_wide_words(void **state)
{
    (void)state;
    enum { BLOCKS = 64, THREADS = 256, LAST = 20000 };
    static unsigned torn[BLOCKS * THREADS];
    uint4 *words;
    check(cudaMalloc((void **)&words, THREADS * sizeof *words));
    for (int i = 0; i < 2; i++) {
        check(cudaMemset(words, 0, THREADS * sizeof *words));
        if (i)
            run(wide_words<1>, BLOCKS, THREADS, torn, BLOCKS * THREADS, TOGETHER, words, (unsigned)LAST);
        else
            run(wide_words<0>, BLOCKS, THREADS, torn, BLOCKS * THREADS, TOGETHER, words, (unsigned)LAST);
        for (int t = 0; i && t < BLOCKS * THREADS; t++) assert_int_equal(torn[t], 0); /* the twin's may be torn */
    }
    check(cudaFree(words));
}

/* to[i] = 3 from[another] + constant[i]. A launch of it begins while the one before it runs. */
static __global__ void pass_on(const uint4 *constant, const unsigned *from, unsigned *to)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    ptx::start_next();
    const uint4 added = ptx::load_weights(constant + i);
    ptx::wait_for_previous();
    to[i] = from[(i + 4097) % (gridDim.x * blockDim.x)] * 3 + added.x + added.w;
}

static void test_early_launches(void **state)
{
    (void)state;
    enum { BLOCKS = 300, THREADS = 128, N = BLOCKS * THREADS, LAUNCHES = 200 };
    static uint4 constant[N];
    static unsigned want[2][N], got[N];
    int device, major;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    for (unsigned i = 0; i < N; i++) constant[i] = make_uint4(i * 7, 1, 2, i);
    uint4 *constants;
    unsigned *x;
    check(cudaMalloc((void **)&constants, sizeof constant));
    check(cudaMalloc((void **)&x, sizeof want));
    check(cudaMemcpy(constants, constant, sizeof constant, cudaMemcpyHostToDevice));
    check(cudaMemset(x, 0, sizeof want));
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(BLOCKS), config.blockDim = dim3(THREADS);
    config.attrs = &attribute, config.numAttrs = major >= 9;
    for (int l = 0; l < LAUNCHES; l++) {
        const unsigned *from = want[l % 2];
        check(cudaLaunchKernelEx(&config, pass_on, (const uint4 *)constants, (const unsigned *)(x + l % 2 * N),
                                 x + (l + 1) % 2 * N));
        for (unsigned i = 0; i < N; i++)
            want[(l + 1) % 2][i] = from[(i + 4097) % N] * 3 + constant[i].x + constant[i].w;
    }
    check(cudaMemcpy(got, x + LAUNCHES % 2 * N, sizeof got, cudaMemcpyDeviceToHost));
    check(cudaFree(constants));
    check(cudaFree(x));
    assert_memory_equal(got, want[LAUNCHES % 2], sizeof got);
}

static void test_tiles(void **state)
{
    (void)state;
    int device, major;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (major != 9) skip();
    assert_string_equal(tiles_check(), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mma),        cmocka_unit_test(test_load_matrices),
                                       cmocka_unit_test(test_exp2),       cmocka_unit_test(test_copy),
                                       cmocka_unit_test(test_pairs),      cmocka_unit_test(test_barrier),
                                       cmocka_unit_test(test_cluster),    cmocka_unit_test(test_flag),
                                       cmocka_unit_test(test_wide_words), cmocka_unit_test(test_early_launches),
                                       cmocka_unit_test(test_tiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
