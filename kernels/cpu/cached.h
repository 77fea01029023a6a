/* Attention of some queries over rows of a cache: one task of attention_cache (kernels/ops.h). Compiled once per
 * instruction set, like the row kernels. */
#ifndef KERNELS_CPU_CACHED_H
#define KERNELS_CPU_CACHED_H

#include <stddef.h>
#include <stdint.h>

enum {
    CACHED_ROWS = 16,  /* queries of a task, at most: a key or value is converted once for all of them */
    CACHED_PAIRS = 64, /* pairs of a query and a head of a task, at most: what it keeps for them stays in L2 */
    CACHED_SLOTS = 16  /* slots whose keys or values are converted at a time */
};

/* Queries of one span that all know the first `common` of its slots. Pointers are to the first head of the task. */
typedef struct cached_task {
    int rows, heads, dim; /* rows <= CACHED_ROWS, rows * heads <= CACHED_PAIRS */
    int bf16;             /* q, key, value and y are bf16, else float */
    const char *q;        /* rows q_stride bytes apart; heads side by side */
    size_t q_stride;
    const char *key, *value; /* of slot 0; slots slot_stride bytes apart */
    size_t slot_stride;
    const int *slot; /* [common + own] */
    int common, own;
    const uint64_t *mask; /* [rows][words] bit j: the row knows slot number common + j, j < own */
    int words;
    char *y; /* rows y_stride bytes apart */
    size_t y_stride;
    void *work; /* cached_bytes(common + own, dim) bytes, 64-byte aligned */
} cached_task;

/* Numbers of a head, filled up with zeros to whole vectors. */
static inline size_t cached_width(int dim)
{
    return ((size_t)dim + 15) / 16 * 16;
}

/* Slots of a row of scores, and a vector's more. */
static inline size_t cached_length(int slots)
{
    return ((size_t)slots + 31) / 16 * 16;
}

static inline size_t cached_bytes(int slots, int dim)
{
    const size_t width = cached_width(dim), length = cached_length(slots);
    return sizeof(float) * (CACHED_PAIRS * (2 * width + length) + CACHED_SLOTS * width + length) + 2 * length;
}

#endif
