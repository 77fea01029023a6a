/* For the tests of the shim: random numbers, memory, launches. */
#ifndef TESTS_CUDAHOST_SHIM_SUPPORT_H
#define TESTS_CUDAHOST_SHIM_SUPPORT_H

#include "kernels/cuda/ptx.h"
#include "tests/cudahost/fibres.h"

#include <pthread.h>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
}

static inline uint32_t word(uint32_t i)
{
    uint32_t out[4];
    kern_random_words(1, KERN_NOISE_INIT, 0, 0, 0, i / 4, out);
    return out[i % 4];
}
static inline float number(uint32_t i)
{
    return (float)word(i) / 2147483648.0f - 1;
}

#define assert_cuda(call) assert_string_equal(cudaGetErrorName(call), "cudaSuccess")

static inline void *device(size_t bytes)
{
    void *p;
    assert_cuda(cudaMalloc(&p, bytes));
    return p;
}
template <typename T> static T *device_copy(const T *host, size_t n)
{
    T *p = (T *)device(n * sizeof(T));
    assert_cuda(cudaMemcpy(p, host, n * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <typename T> static void host_copy(T *host, const T *p, size_t n)
{
    assert_cuda(cudaMemcpy(host, p, n * sizeof(T), cudaMemcpyDeviceToHost));
}

template <typename... P, typename... A>
static cudaError_t launch(void (*kernel)(P...), unsigned grid, unsigned block, size_t shared, A... a)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    return cudaLaunchKernelEx(&config, kernel, P(a)...);
}
template <typename... P, typename... A>
static cudaError_t launch_together(void (*kernel)(P...), unsigned grid, unsigned cluster, unsigned block, size_t shared,
                                   A... a)
{
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, P(a)...);
}

#endif
