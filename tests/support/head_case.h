/* A diffusion head of random weights and its reference in double by the official formulas. The tests of both backends
 * use it. */
#ifndef TESTS_HEAD_CASE_H
#define TESTS_HEAD_CASE_H

#include "tests/support/support.h"

typedef struct {
    kern_head_spec spec; /* layer norms have weights in 0.3 .. 2 and biases other than 0 */
    kern_head_block *blocks;
    float *weights;
} head_case;

head_case make_head_case(int width, int depth, int channels, uint64_t seed);
/* Makes a head of SwiGLU blocks with shared adaLN layers. */
head_case make_swiglu_case(int width, int depth, int channels, int hidden, int ada_layers, uint64_t seed);
/* Makes the same with layer norm weights in 0.05 .. 0.3 in the blocks. The blocks have no shift, and fc1's weights
 * compensate the small norms. So their errors show in the output. */
head_case make_faint_case(int width, int depth, int channels, uint64_t seed);
/* Makes one block that adds exactly SiLU(fc1's bias) to the residual stream, or with SWIGLU SiLU(a's bias) * b's bias,
 * rounded to the operands' type. fc1 and adaLN have zero weights, fc2 is the identity, the gate is 1. Extra rounding
 * before SiLU or the product shows in every output. */
head_case make_rounding_case(int width, int channels, kern_head_form form, uint64_t seed);
void free_head_case(head_case *h);

/* Returns n floats, evenly distributed in low .. high. The caller frees them. */
float *even_floats(size_t n, float low, float high, uint64_t seed);

/* out [rows][2C] = the head at x [rows][C] under SiLU(cond [rows][W]). With type BF16 or F16 these are rounded to it:
 * weights and operands of the products in the blocks and the modulation, and the blocks' modulation; in F16 also its
 * bias. No sum is rounded. Each layer norm keeps its own weight and bias. */
void head_reference(const head_case *h, const float *x, const float *cond, int rows, mar_dtype type, float *out);

/* Returns the root of the sum of squares of the final layer's terms, weight times operand, over all outputs.
 * Independent rounding errors of the operands add up to their relative size times this. */
double head_terms(const head_case *h, const float *x, const float *cond, int rows, mar_dtype type);

/* Computes the same with LazyMAR's reuse (kern_head_ops.eval_reusing). kept [rows][depth][W], or NULL. */
void head_reference_reusing(const head_case *h, const float *x, const float *cond, int rows, mar_dtype type,
                            kern_head_reuse reuse, double *kept, float *out);

#endif
