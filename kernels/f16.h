/* FP16 numbers in f32: the operands of a CPU that simulates a head in FP16. */
#ifndef KERNELS_F16_H
#define KERNELS_F16_H

#include <stddef.h>

/* Rounds n numbers to FP16, to nearest, ties to even. Beyond 65519.99 they become infinite; a NaN stays one. */
void kern_f16_round(float *x, size_t n);

#endif
