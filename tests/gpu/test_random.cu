/* The words of an address on the GPU against the CPU's and those of cuRAND's device functions, bit for bit. */
#include "kernels/cuda/cuda.h"

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}

#include <curand_kernel.h>
#include <string.h>

enum { ADDRESSES = 4096 };

typedef struct {
    uint64_t seed, image;
    kern_noise purpose;
    uint32_t position, step, block;
} address;

static void check(cudaError_t error)
{
    if (error != cudaSuccess) fail_msg("%s", cudaGetErrorString(error));
}

static __global__ void words_kernel(const address *at, uint32_t (*ours)[4], uint32_t (*curands)[4])
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const address a = at[i];
    kern_random_words(a.seed, a.purpose, a.image, a.position, a.step, a.block, ours[i]);
    const unsigned long long x = a.step << 16 | a.block, y = (uint32_t)a.purpose << 24 | a.position;
    curandStatePhilox4_32_10_t state;
    curand_init(a.seed, a.image, 4 * (y << 32 | x), &state);
    const uint4 four = curand4(&state);
    curands[i][0] = four.x, curands[i][1] = four.y, curands[i][2] = four.z, curands[i][3] = four.w;
}

static void words(void **state)
{
    (void)state;
    static address at[ADDRESSES];
    static uint32_t ours[ADDRESSES][4], curands[ADDRESSES][4];
    for (uint32_t i = 0; i < ADDRESSES; i++) { /* covers all bits of all fields */
        uint32_t w[8];
        const uint32_t counter[2][4] = {{i, 0, 0, 0}, {i, 1, 0, 0}};
        kern_philox(1, counter[0], w);
        kern_philox(1, counter[1], w + 4);
        at[i].seed = (uint64_t)w[0] << 32 | w[1];
        at[i].image = (uint64_t)w[2] << 32 | w[3];
        at[i].purpose = (kern_noise)(w[4] % 5);
        at[i].position = w[5] >> 8;
        at[i].step = w[6] >> 16;
        at[i].block = w[7] >> 16;
    }
    address *device_at;
    uint32_t(*device_ours)[4], (*device_curands)[4];
    check(cudaMalloc((void **)&device_at, sizeof at));
    check(cudaMalloc((void **)&device_ours, sizeof ours));
    check(cudaMalloc((void **)&device_curands, sizeof curands));
    check(cudaMemcpy(device_at, at, sizeof at, cudaMemcpyHostToDevice));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(ADDRESSES / 128);
    config.blockDim = dim3(128);
    check(cudaLaunchKernelEx(&config, words_kernel, (const address *)device_at, device_ours, device_curands));
    check(cudaMemcpy(ours, device_ours, sizeof ours, cudaMemcpyDeviceToHost));
    check(cudaMemcpy(curands, device_curands, sizeof curands, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < ADDRESSES; i++) {
        uint32_t expected[4];
        kern_random_words(at[i].seed, at[i].purpose, at[i].image, at[i].position, at[i].step, at[i].block, expected);
        assert_memory_equal(ours[i], expected, sizeof expected);
        assert_memory_equal(curands[i], expected, sizeof expected);
    }
    check(cudaFree(device_at));
    check(cudaFree(device_ours));
    check(cudaFree(device_curands));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
