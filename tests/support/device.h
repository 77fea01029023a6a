/* For tests of a backend through the kernel table. Those of the CUDA backend run twice: on the host (tests/cudahost),
 * and on a GPU. */
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H

#include "kernels/ops.h"
#include "tests/support/support.h" /* relative_error, assert_close */

#include <stdlib.h>

#ifdef CUDA_TEST_SCALE
/* How much larger sizes may be than those the host runs in seconds: 1 on the host, more on a GPU; or what
 * MAR_CUDA_TEST_SCALE says, 1 under compute-sanitizer. */
static inline int cuda_test_scale(void)
{
    const char *scale = getenv("MAR_CUDA_TEST_SCALE");
    return scale ? atoi(scale) : CUDA_TEST_SCALE;
}

/* Whether AddressSanitizer is at work. The check for races (cudarace.*) runs the same in full, to the same bits, and
 * looks at every access of a kernel to shared memory and to allocations. What is left are arithmetic, stacks and the
 * host's code: each kernel and each variant once. */
static inline int cuda_test_brief(void)
{
    return CUDA_TEST_BRIEF;
}
#endif

/* Open the oracle (CPU, f32, one thread) and the backend under test, each with a queue that is entered; close_queue
 * closes both. A failure to open fails the test. */
kern_queue *open_cpu(void);
kern_queue *open_cuda(mar_dtype dtype);
/* Another queue, entered; free_queue frees it. */
kern_queue *new_queue(kern_device *d);
/* Fails the test if an operation has failed. */
void check_kern(kern_queue *k);

float *random_floats(size_t n, float scale, uint64_t seed); /* normal; the caller frees */

/* New backend memory, which the caller frees: a copy of host memory, or zeros if host is NULL. */
void *to_device(kern_queue *k, const void *host, size_t bytes);
void from_device(kern_queue *k, void *host, const void *device, size_t bytes);
/* Operands (bf16 or f32 by backend) from floats. The caller frees them. */
void *to_act(kern_queue *k, const float *host, size_t n);

#endif
