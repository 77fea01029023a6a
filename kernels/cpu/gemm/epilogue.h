/* The epilogue of a product (gemm.h), compiled into each micro-kernel's file for its instruction set. */
#ifndef KERNELS_CPU_GEMM_EPILOGUE_H
#define KERNELS_CPU_GEMM_EPILOGUE_H

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/vector.h"

/* Writes LANES values of a row from column c on. Reads and writes y as a whole vector. */
static inline __attribute__((always_inline)) void store_values(const gemm_out *o, const int bf16, floats a, int c,
                                                               const char *gate, void *y)
{
    if (bf16) {
        const halves h = to_bf16(a);
        memcpy(y, &h, sizeof h);
        return;
    }
    if (gate)
        a = multiply_add_v(a, o->gate->f32 ? load_floats(gate + 4 * c) : from_bf16(gate + 2 * c), load_floats(y));
    else if (o->add)
        a = load_floats(y) + a;
    memcpy(y, &a, sizeof a);
}

/* Writes the last n < LANES values, through copies of y and the gate. */
static void store_some(const gemm_out *o, floats a, int c, const char *gate, void *y, int n)
{
    char values[VECTOR] = {0}, gates[VECTOR] = {0};
    const size_t bytes = (size_t)n * (o->y_bf16 ? 2 : 4), size = o->gate && o->gate->f32 ? 4 : 2;
    memcpy(values, y, bytes);
    if (gate) memcpy(gates, gate + (size_t)c * size, (size_t)n * size);
    store_values(o, o->y_bf16, a, 0, gate ? gates : NULL, values);
    memcpy(y, values, bytes);
}

/* Column by column, so that what belongs to columns stays in registers for all rows.
 * Activations have ABREAST rows at a time; the last ones may be fewer. */
static inline __attribute__((always_inline)) void finish_rows(const kern_activation activation, const int bf16,
                                                              const void *sum, const int int8, const int is_signed,
                                                              int rows, int first, const gemm_out *restrict o)
{
    const ptrdiff_t size = bf16 ? 2 : 4;
    const int abreast = activation == KERN_LINEAR ? 1 : ABREAST;
    for (int c = 0; c < o->cols; c += LANES) {
        const floats bias = load_floats(o->bias + c), w_scale = load_floats(int8 ? o->w_scale + c : o->bias);
        const ints offset = (ints)load_floats(int8 && !is_signed ? (const void *)(o->offset + c) : o->bias);
        for (int r = 0; r < rows; r += abreast) {
            floats a[ABREAST];
#pragma GCC unroll 4
            for (int v = 0; v < abreast; v++) {
                const int at = r + v < rows ? r + v : r;
                a[v] = load_floats((const char *)sum + 4 * (at * GEMM_COLS + c));
                if (int8) {
                    ints exact = (ints)a[v];
                    if (!is_signed) exact -= offset;
                    a[v] = __builtin_convertvector(exact, floats) * (w_scale * o->x_scale[first + at]);
                }
                a[v] += bias;
            }
            if (activation == KERN_GELU) gelu_v(a);
            if (activation == KERN_SILU) silu_v(a);
            if (activation == KERN_GELU_TANH) gelu_tanh_v(a);
#pragma GCC unroll 4
            for (int v = 0; v < abreast; v++) {
                if (r + v >= rows) break;
                const size_t row = (size_t)(first + r + v);
                char *y = (char *)o->y + ((o->y_at ? o->y_at[row] : (ptrdiff_t)(row * o->y_stride)) + c) * size;
                const char *gate = NULL;
                if (!bf16 && o->gate)
                    gate = o->gate->base + (size_t)(o->gate->index ? o->gate->index[row] : (int)row) * o->gate->stride;
                if (o->relu) a[v] = choose(is_less(a[v], (floats){0}), (floats){0}, a[v]);
                if (c + LANES <= o->cols)
                    store_values(o, bf16, a[v], c, gate, y);
                else
                    store_some(o, a[v], c, gate, y, o->cols - c);
            }
        }
    }
}

static inline __attribute__((always_inline)) void finish_as(const kern_activation activation, const void *sum,
                                                            const int int8, const int is_signed, int rows, int first,
                                                            const gemm_out *o)
{
    if (o->y_bf16)
        finish_rows(activation, 1, sum, int8, is_signed, rows, first, o);
    else
        finish_rows(activation, 0, sum, int8, is_signed, rows, first, o);
}

/* Writes rows first .. first+rows-1 of y from sum[rows][GEMM_COLS], float, or int32_t if `int8`. These have their
 * offset unless the rows were multiplied as signed numbers. Reads whole vectors of sums only as far as there are
 * columns. */
static inline __attribute__((always_inline)) void gemm_finish(const void *sum, const int int8, const int is_signed,
                                                              int rows, int first, const gemm_out *o)
{
    switch (o->activation) {
    case KERN_LINEAR:
        finish_as(KERN_LINEAR, sum, int8, is_signed, rows, first, o);
        break;
    case KERN_GELU:
        finish_as(KERN_GELU, sum, int8, is_signed, rows, first, o);
        break;
    case KERN_SILU:
        finish_as(KERN_SILU, sum, int8, is_signed, rows, first, o);
        break;
    case KERN_GELU_TANH:
        finish_as(KERN_GELU_TANH, sum, int8, is_signed, rows, first, o);
        break;
    }
}

#endif
