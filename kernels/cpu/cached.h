/* Attention of some queries over rows of a cache: one task of attention_cache (kernels/ops.h). Compiled once per
 * instruction set, like the row kernels. */
#ifndef KERNELS_CPU_CACHED_H
#define KERNELS_CPU_CACHED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

/* Lists the slots that some row of a task knows, the common ones first: slot [common + own], and who [common + own],
 * whose bit r says that row r knows it. Returns how many. */
static inline int cached_list(const cached_task *t, int *slot, uint16_t *who)
{
    int n = t->common;
    memcpy(slot, t->slot, (size_t)n * sizeof *slot);
    memset(who, 0xff, (size_t)n * sizeof *who);
    for (int j = 0; j < t->own; j++) {
        unsigned rows = 0;
        for (int r = 0; r < t->rows; r++)
            rows |= (unsigned)(t->mask[(size_t)r * (size_t)t->words + (size_t)j / 64] >> j % 64 & 1) << r;
        if (!rows) continue;
        slot[n] = t->slot[t->common + j];
        who[n++] = (uint16_t)rows;
    }
    return n;
}

struct kern_rows;

/* Computes a task: `rows` has one of these (rows.h). A row's bits depend on its query and on the slots that it knows,
 * in their order, only. */
typedef void cached_attend(const cached_task *t, const struct kern_rows *rows);

/* That of rows, or AMX's where it multiplies (dot_bf16_best), which leaves to rows what has other heads than bf16 of a
 * multiple of 32 numbers. */
cached_attend *cached_attend_best(const struct kern_rows *rows);

#endif
