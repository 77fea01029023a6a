/* For tests of a backend through the kernel table. Those of the CUDA backend run twice: on the host (tests/cudahost),
 * and on a GPU. */
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H

#include "kernels/ops.h"
#include "mar.h"
#include "mar_measure.h"
#include "tests/support/support.h" /* relative_error, assert_close */

#include <stdlib.h>

#ifdef CUDA_TEST_SCALE
/* Returns a factor for sizes that the host runs in seconds: 1 on the host, more on a GPU. MAR_CUDA_TEST_SCALE overrides
 * it; it is 1 under compute-sanitizer. */
static inline int cuda_test_scale(void)
{
    const char *scale = getenv("MAR_CUDA_TEST_SCALE");
    return scale ? atoi(scale) : CUDA_TEST_SCALE;
}

/* Tells whether AddressSanitizer is enabled. The race check (cudarace.*) runs the same tests in full, to the same bits.
 * It checks every kernel access to shared memory and allocations. AddressSanitizer adds arithmetic, stacks and host
 * code, so each kernel and variant runs once. */
static inline int cuda_test_brief(void)
{
    return CUDA_TEST_BRIEF;
}
#endif

/* Open the oracle (CPU, f32, one thread) and the backend under test, each with a bound queue. close_queue closes device
 * and queue. A failure to open fails the test. */
kern_queue *open_cpu(void);
kern_queue *open_cuda(mar_dtype dtype);
/* Returns 0 if the GPU lacks the form that an environment variable asks for, because it is not of compute
 * capability 9.0. On the host all forms are there. */
int cuda_has_asked(void);
/* Opens and binds another queue; free_queue frees it. */
kern_queue *new_queue(kern_device *d);
/* Fails the test if an operation has failed. */
void check_kern(kern_queue *k);

/* Comparison of images made on a device with the CPU's. A decision falls otherwise if its uniform is within rounding of
 * its threshold, and then all of its image may differ. count_other_images adds to *others the images of `values` values
 * that differ by more than a relative error. expect_decisions fails the test if there are more of them than among
 * `decisions` decisions are likely (flips_allowed), and if passes or accepted drafts differ by more than such images,
 * of at most `tokens` tokens, explain. */
void count_other_images(const float *x, const float *y, int images, size_t values, double tolerance, int *others);
void expect_decisions(const char *name, const mar_stats *stats, const mar_stats *theirs, int others, long decisions,
                      int tokens);
/* Returns the largest number of flips that is no sign of a mistake. Sums in another order make of an error of 1e-6 up
 * to 1e-3 in a log ratio: one decision in a thousand flips. More than returned do in less than one test in a thousand.
 * On the host, which adds in the same order each time, none flips. */
int flips_allowed(long decisions);

float *random_floats(size_t n, float scale, uint64_t seed); /* normal; the caller frees */

/* Returns new backend memory: a copy of host memory, or zeros if host is NULL. The caller frees it. */
void *to_device(kern_queue *k, const void *host, size_t bytes);
void from_device(kern_queue *k, void *host, const void *device, size_t bytes);
/* Converts floats to operands (bf16 or f32 by backend). The caller frees them. */
void *to_act(kern_queue *k, const float *host, size_t n);

/* A library with the models of a run. A name that is NULL loads none. A failure fails the test. */
typedef struct {
    mar *m;
    mar_model *model, *draft;
    mar_vae *vae;
} library;
library open_library(mar_backend backend, mar_dtype dtype, const char *model, const char *draft, const char *vae);
void close_library(library *l);

#endif
