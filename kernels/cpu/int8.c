#include "kernels/cpu/int8.h"

#include <string.h>

void int8_pack(const int8_t *q, const float *scale, int cols, int in, void *block)
{
    int8_t *to = block;
    const size_t bytes = (size_t)int8_words(in) * 4 * DOT_COLS;
    float *scales = (float *)(to + bytes);
    int32_t *offset = (int32_t *)(scales + DOT_COLS);
    memset(block, 0, bytes + INT8_BLOCK_END);
    for (int c = 0; c < cols; c++, q += in) {
        int32_t sum = 0;
        for (int i = 0; i < in; i++) {
            to[((size_t)(i / 4) * DOT_COLS + (size_t)c) * 4 + (size_t)(i % 4)] = q[i];
            sum += q[i];
        }
        scales[c] = scale[c];
        offset[c] = INT8_ZERO * sum;
    }
}
