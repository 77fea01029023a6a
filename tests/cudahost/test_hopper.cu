/* The shim's instructions of kernels/cuda/hopper.h in each order of threads, and mistakes with them that it finds. The
 * file is compiled twice: in the build's kind, and with the check for races. */
#include "tests/cudahost/shim_support.h"
#include "tests/gpu/tiles.cuh"

static void test_tiles(void **)
{
    assert_string_equal(tiles_check(), "");
}

enum { FINE, UNCREATED, UNTOLD, NO_BEGIN, NO_END, NO_WAIT, MISALIGNED, UNFENCED, TOO_EARLY, AFTER_ITS_END };

/* Multiplies a tile of the matrix; block 1 of the pair only receives half of it. `which` is a mistake. */
__global__ static void multiply_wrong(int which, const __grid_constant__ CUtensorMap map, const uint4 *zeros, float *y)
{
    char *tile = (char *)cuda_shared();
    uint64_t *barrier = (uint64_t *)(tile + 64 * TILE_PITCH), *second = barrier + 1;
    uint32_t a[4][4] = {};
    float d[32] = {};
    if (threadIdx.x == 0) {
        if (which != UNCREATED) fast::barrier_create(barrier, 1);
        fast::barrier_create(second, 2);
        if (which != UNTOLD) fast::barriers_created();
    }
    fast::cluster_meet();
    if (threadIdx.x == 0) {
        fast::barrier_expect(barrier, 64 * TILE_PITCH);
        const int half = (int)fast::cluster_rank() * 32;
        fast::tile_copy(tile + half * TILE_PITCH, &map, 0, half, barrier, 3);
    }
    __syncwarp();
    if (which != TOO_EARLY) fast::barrier_wait(barrier, 0);
    if (which == UNFENCED && threadIdx.x == 0) {
        fast::copy16(tile, zeros);
        fast::copy_commit();
        fast::copy_wait<0>();
    }
    __syncthreads();
    if (which != NO_BEGIN) fast::warpgroup_begin();
    fast::warpgroup_mma<64>(d, a[0], which == MISALIGNED ? tile + 128 : tile, 0);
    if (which != NO_END) fast::warpgroup_end();
    if (which != NO_WAIT) fast::warpgroup_wait(d, a);
    y[blockIdx.x * blockDim.x + threadIdx.x] = d[0];
    if (which == TOO_EARLY) fast::barrier_wait(barrier, 0);
    if (which != AFTER_ITS_END || fast::cluster_rank() == 1) return;
    for (int i = 0; i < 100; i++) fast::poll_again(); /* block 1 has ended */
    if (threadIdx.x == 0) fast::barrier_arrive(second, 1);
}

static void make_wrong(int which)
{
    enum { WIDTH = 64, ROWS = 64 };
    static uint16_t x[ROWS * WIDTH];
    const cuuint64_t size[] = {WIDTH, ROWS}, pitch[] = {WIDTH * sizeof *x};
    const cuuint32_t box[] = {64, 32}, step[] = {1, 1};
    uint16_t *matrix = device_copy(x, ROWS * WIDTH);
    CUtensorMap map;
    if (cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix, size, pitch, box, step,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        abort();
    assert_cuda(launch_together(multiply_wrong, 2, 2, 128, 64 * TILE_PITCH + 16, which, map, (const uint4 *)matrix,
                                (float *)device(256 * sizeof(float))));
    assert_cuda(cudaDeviceSynchronize());
}

static void test_mistakes(void **)
{
    assert_fine(make_wrong, FINE);
    assert_found(make_wrong, UNCREATED, "uses a barrier of shared memory that nobody has created");
    assert_found(make_wrong, UNTOLD, "has created barriers without barriers_created");
    assert_found(make_wrong, NO_BEGIN, "multiplies without warpgroup_begin before it");
    assert_found(make_wrong, NO_END, "waits for products without warpgroup_end behind them");
    assert_found(make_wrong, NO_WAIT, "ends, and has not waited for its products");
    assert_found(make_wrong, MISALIGNED, "a tile that is not aligned to 1024 bytes");
    assert_found(make_wrong, UNFENCED, "without a fence (tiles_written)");
    assert_found(make_wrong, AFTER_ITS_END, "of rank 1, which has ended");
    if (cudahost_race) assert_found(make_wrong, TOO_EARLY, "race: it ");
}

int main()
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiles), cmocka_unit_test(test_mistakes)};
    int failed = 0;
    remember_faults();
    for (const char *order : {"forward", "reverse", "shuffled"}) {
        setenv("MAR_CUDAHOST_ORDER", order, 1);
        failed += cmocka_run_group_tests_name(order, tests, NULL, NULL);
    }
    return failed;
}
