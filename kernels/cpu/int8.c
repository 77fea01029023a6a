/* Compiled for AVX2 and FMA, which every processor with int8 products has. */
#include "kernels/cpu/int8.h"

#include <math.h>
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

/* Magnitudes as integers have the order of the numbers, and NaN lies above infinity. */
static inline __attribute__((always_inline)) void quantise_row(const void *x, const int bf16, int in, uint8_t *q,
                                                               float *scale)
{
    static const uint32_t INFINITE = 0x7f800000u;
    uint32_t most = 0;
    if (bf16) {
        uint16_t half = 0;
        for (int i = 0; i < in; i++) {
            const uint16_t magnitude = ((const uint16_t *)x)[i] & 0x7fffu;
            half = magnitude > half ? magnitude : half;
        }
        most = (uint32_t)half << 16;
    } else {
        for (int i = 0; i < in; i++) {
            uint32_t bits;
            memcpy(&bits, (const float *)x + i, sizeof bits);
            bits &= 0x7fffffffu;
            most = bits > most ? bits : most;
        }
    }
    float greatest;
    memcpy(&greatest, &most, sizeof greatest);
    if (most >= INFINITE || greatest < 1e-30f) {
        memset(q, INT8_ZERO, (size_t)in);
        *scale = most >= INFINITE ? NAN : 0.0f;
        return;
    }
    const float factor = 127.0f / greatest;
    for (int i = 0; i < in; i++) {
        float value;
        if (bf16) {
            const uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
            memcpy(&value, &bits, sizeof value);
        } else {
            value = ((const float *)x)[i];
        }
        q[i] = (uint8_t)((int)rintf(value * factor) + INT8_ZERO);
    }
    *scale = greatest / 127.0f;
}

void int8_quantise_rows(const void *x, int bf16, int rows, int in, uint8_t *q, float *scale)
{
    const size_t width = (size_t)int8_words(in) * 4;
    for (int r = 0; r < rows; r++, q += width) {
        const size_t at = (size_t)r * (size_t)in;
        if (bf16)
            quantise_row((const uint16_t *)x + at, 1, in, q, scale + r);
        else
            quantise_row((const float *)x + at, 0, in, q, scale + r);
        memset(q + in, INT8_ZERO, width - (size_t)in);
    }
}
