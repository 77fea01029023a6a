/* Copies of tiles and products of a warpgroup (kernels/cuda/hopper.h) against the host's sums: on a GPU, and on the
 * shim (tests/cudahost). */
#ifndef TESTS_GPU_TILES_CUH
#define TESTS_GPU_TILES_CUH

#include "kernels/cuda/hopper.h"

#include <stdio.h>
#include <string.h>

enum { TILES_ROWS = 200, TILES_WIDTH = 136, TILES_THREADS = 128, TILES_MOST = 128 /* columns of a product */ };

/* Returns a pair of bf16 of up to 1. */
static __host__ __device__ inline uint32_t tiles_pair(unsigned key)
{
    uint32_t words[4];
    kern_random_words(9, KERN_NOISE_INIT, 0, key, 0, 0, words);
    return (words[0] & 0x80ff80ffu) | 0x3e003e00u;
}

/* Both blocks of a pair copy half of a tile for both, and multiply with it. */
template <int fast_one, int N>
static __global__ void tiles_multiply(const __grid_constant__ CUtensorMap map, int row, int column, float *out)
{
#if CUDA_HOPPER
    char *tile = (char *)cuda_shared();
    uint64_t *barrier = (uint64_t *)(tile + TILES_MOST * TILE_PITCH);
    uint32_t a[4][4];
    float d[N / 2];
    for (unsigned i = 0; i < 16; i++) a[i / 4][i % 4] = tiles_pair(threadIdx.x * 16 + i);
    for (int i = 0; i < N / 2; i++) d[i] = (float)i;
    if (threadIdx.x == 0) {
        fast::barrier_create(barrier, 1);
        fast::barriers_created();
    }
    fast::cluster_meet();
    if (threadIdx.x == 0) {
        const int half = (int)fast::cluster_rank() * N / 2;
        fast::barrier_expect(barrier, N * TILE_PITCH);
        fast::tile_copy(tile + half * TILE_PITCH, &map, column, row + half, barrier, 3);
    }
    __syncwarp();
    fast::barrier_wait(barrier, 0);
    fast::warpgroup_begin();
    for (int k = 0; k < 4; k++)
        if (fast_one)
            fast::warpgroup_mma<N>(d, a[k], tile, 16 * k);
        else
            plain::warpgroup_mma<N>(d, a[k], tile, 16 * k);
    fast::warpgroup_end();
    fast::warpgroup_wait(d, a);
    for (int i = 0; i < N / 2; i++) out[(blockIdx.x * blockDim.x + threadIdx.x) * (N / 2) + (unsigned)i] = d[i];
    fast::cluster_meet(); /* the other block may still copy to this one */
#else
    (void)map, (void)row, (void)column, (void)out;
#endif
}

/* d[0 .. 31] = X X^T of the 64 rows of a tile, d[32 .. 63] = A X. */
template <int fast_one>
static __global__ void tiles_turn(const __grid_constant__ CUtensorMap map, int row, int column, float *out)
{
#if CUDA_HOPPER
    char *tile = (char *)cuda_shared();
    uint64_t *barrier = (uint64_t *)(tile + TILES_MOST * TILE_PITCH);
    uint32_t a[4][4];
    float d[32], e[32] = {};
    for (unsigned i = 0; i < 16; i++) a[i / 4][i % 4] = tiles_pair(threadIdx.x * 16 + i);
    for (int i = 0; i < 32; i++) d[i] = -1;
    if (threadIdx.x == 0) {
        fast::barrier_create(barrier, 1);
        fast::barriers_created();
    }
    fast::cluster_meet();
    if (threadIdx.x == 0) {
        fast::barrier_expect(barrier, 64 * TILE_PITCH);
        for (int half = 0; half < 64; half += 32) /* not shared: each block copies all */
            fast::tile_copy(tile + half * TILE_PITCH, &map, column, row + half, barrier, 1u << fast::cluster_rank());
    }
    __syncwarp();
    fast::barrier_wait(barrier, 0);
    fast::warpgroup_begin();
    for (int k = 0; k < 64; k += 16)
        if (fast_one) {
            fast::warpgroup_mma_tiles<64>(d, tile, tile, k, k > 0);
            fast::warpgroup_mma_rows(e, a[k / 16], tile, k);
        } else {
            plain::warpgroup_mma_tiles<64>(d, tile, tile, k, k > 0);
            plain::warpgroup_mma_rows(e, a[k / 16], tile, k);
        }
    fast::warpgroup_end();
    fast::warpgroup_wait(d);
    fast::warpgroup_wait(e, a);
    for (int i = 0; i < 32; i++) {
        out[(blockIdx.x * blockDim.x + threadIdx.x) * 64 + (unsigned)i] = d[i];
        out[(blockIdx.x * blockDim.x + threadIdx.x) * 64 + 32 + (unsigned)i] = e[i];
    }
#else
    (void)map, (void)row, (void)column, (void)out;
#endif
}

static inline float tiles_half(uint32_t pair, int upper)
{
    const uint32_t bits = upper ? pair & 0xffff0000u : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns number (r, k) of A, and of x from its element (row, column) on. */
static inline double tiles_a(int r, int k)
{
    const int thread = r / 16 * 32 + r % 8 * 4 + k % 8 / 2, number = k / 16 * 4 + r / 8 % 2 + k / 8 % 2 * 2;
    return (double)tiles_half(tiles_pair((unsigned)(thread * 16 + number)), k % 2);
}
static inline double tiles_x(const uint16_t *x, int row, int column)
{
    return row < TILES_ROWS && column < TILES_WIDTH ? (double)tiles_half(x[row * TILES_WIDTH + column], 0) : 0;
}

/* Returns "", or what is wrong with the sums of 64 rows and N columns: of A and x from (row, column) on, or, turned, of
 * both products of tiles_turn. */
template <int N> static const char *tiles_wrong(const uint16_t *x, int row, int column, int turned, const float *sums)
{
    static char text[128];
    for (int r = 0; r < 64; r++)
        for (int n = 0; n < N; n++) {
            const int m = turned ? n % 64 : n, thread = r / 16 * 32 + r % 8 * 4 + m % 8 / 2;
            const int place = 4 * (n / 8) + r / 8 % 2 * 2 + n % 2;
            double sum = turned ? 0 : place;
            for (int k = 0; k < 64; k++)
                sum += !turned  ? tiles_a(r, k) * tiles_x(x, row + n, column + k)
                       : n < 64 ? tiles_x(x, row + r, column + k) * tiles_x(x, row + n, column + k)
                                : tiles_a(r, k) * tiles_x(x, row + k, column + m);
            for (int block = 0; block < 2; block++) {
                const double got = (double)sums[(block * TILES_THREADS + thread) * (N / 2) + place];
                if (!(fabs(got - sum) <= 65 * 128 * 1.2e-7)) /* 65 sums of up to 128 */
                    snprintf(text, sizeof text, "%d columns%s, block %d, (%d, %d): %g, expected %g", N,
                             turned ? ", turned" : "", block, r, n, got, sum);
            }
        }
    return text;
}

template <int N>
static const char *tiles_run(void (*kernel)(CUtensorMap, int, int, float *), int turned, const CUtensorMap &map,
                             const uint16_t *x)
{
    enum { SUMS = 2 * TILES_THREADS * N / 2, ROW = TILES_ROWS - N + 3, COLUMN = TILES_WIDTH - 64 + 8 };
    static float sums[SUMS];
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {2, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2), config.blockDim = dim3(TILES_THREADS);
    config.dynamicSmemBytes = TILES_MOST * TILE_PITCH + sizeof(uint64_t);
    config.attrs = &attribute, config.numAttrs = 1;
    float *out;
    cudaError_t error = cudaMalloc((void **)&out, sizeof sums);
    if (error == cudaSuccess)
        error = cudaLaunchKernelEx(&config, kernel, CUtensorMap(map), (int)ROW, (int)COLUMN, (float *)out);
    if (error == cudaSuccess) error = cudaMemcpy(sums, out, sizeof sums, cudaMemcpyDeviceToHost);
    (void)cudaFree(out);
    return error != cudaSuccess ? cudaGetErrorString(error) : tiles_wrong<N>(x, ROW, COLUMN, turned, sums);
}

/* Multiplies 64 rows with tiles of a matrix whose last rows and columns are outside, where all is 0. Returns "", or
 * what is wrong. */
static inline const char *tiles_check(void)
{
    static uint16_t x[TILES_ROWS * TILES_WIDTH];
    const cuuint64_t size[] = {TILES_WIDTH, TILES_ROWS}, pitch[] = {TILES_WIDTH * sizeof *x};
    const cuuint32_t step[] = {1, 1};
    const char *wrong = "";
    void *found = NULL, *matrix;
    for (unsigned i = 0; i < TILES_ROWS * TILES_WIDTH; i++) x[i] = (uint16_t)tiles_pair(100000 + i);
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault) != cudaSuccess ||
        !found)
        return "the driver describes no tiles";
    if (cudaMalloc(&matrix, sizeof x) != cudaSuccess) return "no memory";
    if (cudaMemcpy(matrix, x, sizeof x, cudaMemcpyHostToDevice) != cudaSuccess) wrong = "no copy";
#define TILES_CASE(N)                                                                                                  \
    {                                                                                                                  \
        const cuuint32_t box[] = {64, N / 2};                                                                          \
        CUtensorMap map;                                                                                               \
        if (((decltype(cuTensorMapEncodeTiled) *)found)(                                                               \
                &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix, size, pitch, box, step,                             \
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,         \
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)                                                    \
            wrong = "the driver does not describe these tiles";                                                        \
        if (!*wrong) wrong = tiles_run<N>(tiles_multiply<0, N>, 0, map, x);                                            \
        if (!*wrong) wrong = tiles_run<N>(tiles_multiply<1, N>, 0, map, x);                                            \
        if (!*wrong && N == 64) wrong = tiles_run<128>(tiles_turn<0>, 1, map, x);                                      \
        if (!*wrong && N == 64) wrong = tiles_run<128>(tiles_turn<1>, 1, map, x);                                      \
    }
    TILES_CASE(64)
    TILES_CASE(96)
    TILES_CASE(128)
#undef TILES_CASE
    (void)cudaFree(matrix);
    return wrong;
}

#endif
