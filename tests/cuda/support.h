/* For tests of the CUDA backend through the kernel table. They run twice: on the host (tests/cudahost), and on a GPU.
 */
#ifndef TESTS_CUDA_SUPPORT_H
#define TESTS_CUDA_SUPPORT_H

#include "kernels/ops.h"
#include "tests/support/support.h" /* relative_error, assert_close */

/* How much larger sizes may be than what the host runs in seconds: 1 there, more on a GPU. */
static inline int cuda_test_scale(void)
{
    return CUDA_TEST_SCALE;
}

/* The oracle, f32 on one thread, and the backend under test; a failure to open fails the test. */
kern *open_cpu(void);
kern *open_cuda(mar_dtype dtype);
/* The test fails if an operation has. */
void check_kern(const kern *k);

float *random_floats(size_t n, float scale, uint64_t seed); /* normal; the caller frees */

/* New memory of the backend, the caller's: a copy of host memory, or zeros for NULL. */
void *to_device(kern *k, const void *host, size_t bytes);
void from_device(kern *k, void *host, const void *device, size_t bytes);
/* Operands from and as floats: bf16 or f32 by backend. */
void *to_act(kern *k, const float *host, size_t n);
float *act_to_floats(kern *k, const void *device_act, size_t n);

#endif
