/* The epilogue of a product (gemm.h), compiled into each micro-kernel's file for its instruction set. */
#ifndef KERNELS_CPU_GEMM_EPILOGUE_H
#define KERNELS_CPU_GEMM_EPILOGUE_H

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/vector.h"

/* Writes LANES values of a row from column c on. Reads and writes y as a whole vector. */
static inline __attribute__((always_inline)) void store_values(const gemm_out *o, floats a, int c, const char *gate,
                                                               void *y)
{
    if (o->y_bf16) {
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

/* Writes rows from float sums in whole vectors, without activation and gate, as finish_rows does in more instructions.
 * These are a large part of a product of few words. */
static inline __attribute__((always_inline)) void finish_plain(const int y_bf16, const int add, const int relu,
                                                               const void *sum, int rows, int first, const gemm_out *o)
{
    const ptrdiff_t size = y_bf16 ? 2 : 4, stride = (ptrdiff_t)o->y_stride, *y_at = o->y_at;
    const float *bias = o->bias; /* copies, since a store to y could change *o for the compiler */
    const int cols = o->cols;
    char *const base = o->y;
    const char *at = sum;
    for (int r = 0; r < rows; r++, at += 4 * GEMM_COLS) {
        char *y = base + (y_at ? y_at[first + r] : (first + r) * stride) * size;
        for (int c = 0; c < cols; c += LANES, y += LANES * size) {
            floats a = load_floats(at + 4 * c) + load_floats(bias + c);
            if (relu) a = choose(a < 0.0f, (floats){0}, a);
            if (y_bf16) {
                const halves h = to_bf16(a);
                memcpy(y, &h, sizeof h);
                continue;
            }
            if (add) a = load_floats(y) + a;
            memcpy(y, &a, sizeof a);
        }
    }
}

/* Writes the last n < LANES values, through copies of y and the gate. */
static void store_some(const gemm_out *o, floats a, int c, const char *gate, void *y, int n)
{
    char values[VECTOR] = {0}, gates[VECTOR] = {0};
    const size_t bytes = (size_t)n * (o->y_bf16 ? 2 : 4), size = o->gate && o->gate->f32 ? 4 : 2;
    memcpy(values, y, bytes);
    if (gate) memcpy(gates, gate + (size_t)c * size, (size_t)n * size);
    store_values(o, a, 0, gate ? gates : NULL, values);
    memcpy(y, values, bytes);
}

static inline __attribute__((always_inline)) void finish_rows(const kern_activation activation, const void *sum,
                                                              const int int8, const int is_signed, int rows, int first,
                                                              const gemm_out *o)
{
    const size_t size = o->y_bf16 ? 2 : 4;
    const char *at = sum;
    for (int r = 0; r < rows; r++, at += 4 * GEMM_COLS) {
        const size_t row = (size_t)(first + r);
        char *y = (char *)o->y + (o->y_at ? o->y_at[row] : (ptrdiff_t)(row * o->y_stride)) * (ptrdiff_t)size;
        const char *gate =
            o->gate ? o->gate->base + (size_t)(o->gate->index ? o->gate->index[row] : (int)row) * o->gate->stride
                    : NULL;
        for (int c = 0; c < o->cols; c += LANES) {
            floats a = load_floats(at + 4 * c);
            if (int8) {
                ints exact = (ints)a;
                if (!is_signed) exact -= (ints)load_floats(o->offset + c);
                a = __builtin_convertvector(exact, floats) * (load_floats(o->w_scale + c) * o->x_scale[row]);
            }
            a += load_floats(o->bias + c);
            if (activation == KERN_GELU) a = gelu_v(a);
            if (activation == KERN_SILU) a = silu_v(a);
            if (activation == KERN_GELU_TANH) a = gelu_tanh_v(a);
            if (o->relu) a = choose(a < 0.0f, (floats){0}, a);
            if (c + LANES <= o->cols)
                store_values(o, a, c, gate, y + (size_t)c * size);
            else
                store_some(o, a, c, gate, y + (size_t)c * size, o->cols - c);
        }
    }
}

/* Writes rows first .. first+rows-1 of y from sum[rows][GEMM_COLS], float, or int32_t if `int8`. These have their
 * offset unless the rows were multiplied as signed numbers. Reads whole vectors of sums only as far as there are
 * columns. */
static inline __attribute__((always_inline)) void gemm_finish(const void *sum, const int int8, const int is_signed,
                                                              int rows, int first, const gemm_out *o)
{
    if (!int8 && o->activation == KERN_LINEAR && !o->gate && !(o->relu && o->add) && o->cols % LANES == 0) {
        if (o->relu && o->y_bf16)
            finish_plain(1, 0, 1, sum, rows, first, o);
        else if (o->relu)
            finish_plain(0, 0, 1, sum, rows, first, o);
        else if (o->y_bf16)
            finish_plain(1, 0, 0, sum, rows, first, o);
        else if (o->add)
            finish_plain(0, 1, 0, sum, rows, first, o);
        else
            finish_plain(0, 0, 0, sum, rows, first, o);
        return;
    }
    switch (o->activation) {
    case KERN_LINEAR:
        finish_rows(KERN_LINEAR, sum, int8, is_signed, rows, first, o);
        break;
    case KERN_GELU:
        finish_rows(KERN_GELU, sum, int8, is_signed, rows, first, o);
        break;
    case KERN_SILU:
        finish_rows(KERN_SILU, sum, int8, is_signed, rows, first, o);
        break;
    case KERN_GELU_TANH:
        finish_rows(KERN_GELU_TANH, sum, int8, is_signed, rows, first, o);
        break;
    }
}

#endif
