/* Operands of the CPU's int8 GEMM (dot.h). */
#ifndef KERNELS_CPU_INT8_H
#define KERNELS_CPU_INT8_H

#include "kernels/cpu/dot.h"

enum {
    INT8_BLOCK_END = DOT_COLS * 8, /* bytes after a block's weights: float scale[DOT_COLS], int32_t offset[DOT_COLS] */
    INT8_ZERO = 128,               /* zero point of the unsigned x */
};

/* Returns the words of a row of `in` numbers: whole AMX steps. */
static inline int int8_words(int in)
{
    return (in + 4 * DOT_WORDS - 1) / (4 * DOT_WORDS) * DOT_WORDS;
}

/* Returns the bytes from a row of x to the next: an odd number of cache lines, so that a tile's 16 rows map to 16 cache
 * sets. */
static inline size_t int8_stride(int words)
{
    return (size_t)(words / DOT_WORDS | 1) * 4 * DOT_WORDS;
}

/* Returns the bytes of a weight block and its end. */
static inline size_t int8_block_bytes(int in)
{
    return (size_t)int8_words(in) * 4 * DOT_COLS + INT8_BLOCK_END;
}

/* Packs q[cols][in] and scale[cols] as one block; missing columns are 0. */
void int8_pack(const int8_t *q, const float *scale, int cols, int in, void *block);

#endif
