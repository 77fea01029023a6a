/* The softmax of rows.h, compiled once per instruction set like rows.c. */
#include "kernels/cpu/gemm/softmax.h"
#include "kernels/cpu/rows.h"

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)

void PASTE(kern_softmax, KERN_ISA)(float *s, int n, float scale)
{
    softmax_row(s, n, scale, s);
}
