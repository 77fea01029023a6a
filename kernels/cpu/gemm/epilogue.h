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

/* Returns x w + bias of LANES columns from c on, of the sums `at` of a row. */
static inline __attribute__((always_inline)) floats result_of(const gemm_out *o, const char *at, const int int8,
                                                              const int is_signed, size_t row, int c)
{
    floats a = load_floats(at + 4 * c);
    if (int8) {
        ints exact = (ints)a;
        if (!is_signed) exact -= (ints)load_floats(o->offset + c);
        a = __builtin_convertvector(exact, floats) * (load_floats(o->w_scale + c) * o->x_scale[row]);
    } else if (o->x_scale) {
        a *= o->x_scale[row];
    }
    return a + load_floats(o->bias + c);
}

/* Prefetches the row of results at o->ahead for writing. Lines are so read between rows: many at once would hold up the
 * tiles, which read from L2. */
static inline __attribute__((always_inline)) void prefetch_results(const gemm_out *o, int row)
{
    const ptrdiff_t size = o->y_bf16 ? 2 : 4, results = o->swiglu ? GEMM_HALF : GEMM_COLS, to = row + o->ahead;
    const char *y = (char *)o->y + (o->y_at ? o->y_at[to] : to * (ptrdiff_t)o->y_stride) * size;
    if (o->ahead < 0) y += results * size;
    for (ptrdiff_t i = 0; o->ahead && i < results * size; i += 64) __builtin_prefetch(y + i, 1);
}

/* Writes rows of y. `whole`: the block has all columns, without gate and ReLU, and y is not scattered. The loops then
 * have hardly a branch. */
static inline __attribute__((always_inline)) void finish_rows(const kern_activation activation, const int bf16,
                                                              const int whole, const void *sum, const int int8,
                                                              const int is_signed, int rows, int first,
                                                              const gemm_out *out)
{
    const gemm_out o = *out;
    const ptrdiff_t size = bf16 ? 2 : 4;
    const int cols = whole ? GEMM_COLS : o.cols;
    const char *at = sum;
    for (int r = 0; r < rows; r++, at += 4 * GEMM_COLS) {
        const size_t row = (size_t)(first + r);
        char *y = (char *)o.y + (whole || !o.y_at ? (ptrdiff_t)(row * o.y_stride) : o.y_at[row]) * size;
        const char *gate = NULL;
        if (!whole && o.gate) {
            const ptrdiff_t bytes = GEMM_COLS * (o.gate->f32 ? 4 : 2);
            gate = o.gate->base + (size_t)(o.gate->index ? o.gate->index[row] : (int)row) * o.gate->stride;
            for (ptrdiff_t i = 0; i < bytes; i += 64) __builtin_prefetch(gate + bytes + i); /* the next block's */
        }
        prefetch_results(&o, (int)row);
        for (int c = 0; c < cols; c += LANES) {
            floats a = result_of(&o, at, int8, is_signed, row, c);
            if (activation == KERN_GELU) a = bf16 ? gelu_bf16_v(a) : gelu_v(a);
            if (activation == KERN_SILU) a = silu_v(a);
            if (activation == KERN_GELU_TANH) a = gelu_tanh_v(a);
            if (!whole && o.relu) a = choose(is_less(a, (floats){0}), (floats){0}, a);
            if (c + LANES <= cols)
                store_values(&o, bf16, a, c, gate, y + c * size);
            else
                store_some(out, a, c, gate, y + c * size, cols - c);
        }
    }
}

/* Writes rows of y by the loop for the case. */
static inline __attribute__((always_inline)) void finish_as(const kern_activation activation, const void *sum,
                                                            const int int8, const int is_signed, int rows, int first,
                                                            const gemm_out *o)
{
    const int whole = o->cols == GEMM_COLS && !o->y_at && !o->gate && !o->relu;
    if (whole && o->y_bf16)
        finish_rows(activation, 1, 1, sum, int8, is_signed, rows, first, o);
    else if (whole)
        finish_rows(activation, 0, 1, sum, int8, is_signed, rows, first, o);
    else if (o->y_bf16)
        finish_rows(activation, 1, 0, sum, int8, is_signed, rows, first, o);
    else
        finish_rows(activation, 0, 0, sum, int8, is_signed, rows, first, o);
}

/* Writes rows of y = silu(a) * b. */
static inline __attribute__((always_inline)) void finish_swiglu(const int bf16, const void *sum, const int int8,
                                                                const int is_signed, int rows, int first,
                                                                const gemm_out *out)
{
    const gemm_out o = *out;
    const size_t size = bf16 ? 2 : 4;
    const int cols = o.cols - GEMM_HALF;
    const char *at = sum;
    for (int r = 0; r < rows; r++, at += 4 * GEMM_COLS) {
        const size_t row = (size_t)(first + r);
        char *y = (char *)o.y + row * o.y_stride * size;
        prefetch_results(&o, (int)row);
        for (int c = 0; c < cols; c += LANES) {
            const floats a = result_of(&o, at, int8, is_signed, row, c);
            const floats b = result_of(&o, at, int8, is_signed, row, c + GEMM_HALF);
            if (c + LANES <= cols)
                store_values(&o, bf16, silu_v(a) * b, c, NULL, y + (size_t)c * size);
            else
                store_some(out, silu_v(a) * b, c, NULL, y + (size_t)c * size, cols - c);
        }
    }
}

/* Writes rows first .. first+rows-1 of y from sum[rows][GEMM_COLS], float, or int32_t if `int8`. These have their
 * offset unless the rows were multiplied as signed numbers. Reads whole vectors of sums only as far as there are
 * columns. */
static inline __attribute__((always_inline)) void gemm_finish(const void *sum, const int int8, const int is_signed,
                                                              int rows, int first, const gemm_out *o)
{
    switch (o->activation) {
    case KERN_LINEAR:
        if (o->swiglu && o->y_bf16)
            finish_swiglu(1, sum, int8, is_signed, rows, first, o);
        else if (o->swiglu)
            finish_swiglu(0, sum, int8, is_signed, rows, first, o);
        else
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
