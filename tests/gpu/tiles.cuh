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

static inline float tiles_half(uint32_t pair, int upper)
{
    const uint32_t bits = upper ? pair & 0xffff0000u : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns "", or what is wrong with the sums of the 64 rows times N of x from (row, column) on. */
template <int N> static const char *tiles_wrong(const uint16_t *x, int row, int column, const float *sums)
{
    static char text[128];
    for (int r = 0; r < 64; r++)
        for (int n = 0; n < N; n++) {
            const int thread = r / 16 * 32 + r % 8 * 4, place = 4 * (n / 8) + r / 8 % 2 * 2 + n % 2;
            double sum = place;
            for (int k = 0; k < 64 && row + n < TILES_ROWS; k++) {
                const int number = k / 16 * 4 + r / 8 % 2 + k / 8 % 2 * 2;
                const uint32_t pair = tiles_pair((unsigned)((thread + k % 8 / 2) * 16 + number));
                const uint32_t other = column + k < TILES_WIDTH ? x[(row + n) * TILES_WIDTH + column + k] : 0u;
                sum += (double)tiles_half(pair, k % 2) * (double)tiles_half(other, 0);
            }
            for (int block = 0; block < 2; block++) {
                const double got = (double)sums[(block * TILES_THREADS + thread + n % 8 / 2) * (N / 2) + place];
                if (!(fabs(got - sum) <= 65 * 128 * 1.2e-7)) /* 65 sums of up to 128 */
                    snprintf(text, sizeof text, "%d columns, block %d, (%d, %d): %g, expected %g", N, block, r, n, got,
                             sum);
            }
        }
    return text;
}

template <int fast_one, int N> static const char *tiles_run(const CUtensorMap &map, const uint16_t *x)
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
        error = cudaLaunchKernelEx(&config, tiles_multiply<fast_one, N>, CUtensorMap(map), (int)ROW, (int)COLUMN,
                                   (float *)out);
    if (error == cudaSuccess) error = cudaMemcpy(sums, out, sizeof sums, cudaMemcpyDeviceToHost);
    (void)cudaFree(out);
    return error != cudaSuccess ? cudaGetErrorString(error) : tiles_wrong<N>(x, ROW, COLUMN, sums);
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
        if (!*wrong) wrong = tiles_run<0, N>(map, x);                                                                  \
        if (!*wrong) wrong = tiles_run<1, N>(map, x);                                                                  \
    }
    TILES_CASE(64)
    TILES_CASE(96)
    TILES_CASE(128)
#undef TILES_CASE
    (void)cudaFree(matrix);
    return wrong;
}

#endif
