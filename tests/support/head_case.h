/* A diffusion head of random weights, and what the official formulas make of it in double, for the tests of both
 * backends. */
#ifndef TESTS_HEAD_CASE_H
#define TESTS_HEAD_CASE_H

#include "tests/support/support.h"

typedef struct {
    kern_head_spec spec; /* layer norms have weights in 0.3 .. 2 and biases other than 0 */
    kern_head_block *blocks;
    float *weights;
} head_case;

head_case make_head_case(int width, int depth, int channels, uint64_t seed);
/* The same with layer norms' weights in 0.05 .. 0.3 in the blocks. There is no shift beside them, and fc1's weight
 * makes up for them, so the output feels their errors. */
head_case make_faint_case(int width, int depth, int channels, uint64_t seed);
/* One block that adds bf16(SiLU(fc1's bias)) to the residual stream, exactly: fc1 and adaLN have no weight, fc2 is the
 * identity, the gate 1. Rounding the sum in front of SiLU, too, shows in every output. */
head_case make_rounding_case(int width, int channels, uint64_t seed);
void free_head_case(head_case *h);

/* n floats, evenly distributed in low .. high. The caller frees them. */
float *even_floats(size_t n, float low, float high, uint64_t seed);

/* out [rows][2C] = the head at x [rows][C] under SiLU(cond [rows][W]). If bf16, weights of products in the blocks and
 * of the modulation, their operands, and the blocks' modulation are rounded to bf16, but no sum is, and each layer norm
 * keeps its own weight and bias. */
void head_reference(const head_case *h, const float *x, const float *cond, int rows, int bf16, float *out);

/* The same by LazyMAR's reuse (kern_head_ops.eval_reusing): kept [rows][depth][W], or NULL. */
void head_reference_reusing(const head_case *h, const float *x, const float *cond, int rows, int bf16,
                            kern_head_reuse reuse, double *kept, float *out);

#endif
