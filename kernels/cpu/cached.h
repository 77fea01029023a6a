/* Attention of some queries over rows of a cache: one task of attention_cache (kernels/ops.h). Compiled once per
 * instruction set, like the row kernels. */
#ifndef KERNELS_CPU_CACHED_H
#define KERNELS_CPU_CACHED_H

#include "kernels/causal.h"

#include <string.h>

enum {
    CACHED_QUERIES = 32, /* maximum queries of a task for a head of keys: keys and values are read once for all of them.
                          * Only a single row may have more */
    CACHED_PAIRS = 320,  /* maximum queries of a task: 16 heads, 20 queries each. Many heads make a task's reads of a
                          * slot long enough for the processor to fetch ahead */
    CACHED_SLOTS = 16    /* slots converted at a time */
};

_Static_assert((int)CACHED_PAIRS >= (int)KERN_CACHE_GROUP_MAX, "a task has room for a group");

typedef enum { CACHED_F32, CACHED_BF16, CACHED_INT8 } cached_type;

/* Rows of one span that all attend to the first `common` of its slots. Each row has heads * group queries; `group`
 * neighbouring ones read the same head of keys and values. Pointers are to the task's first head. */
typedef struct cached_task {
    int rows, heads, group, dim; /* rows * group <= CACHED_QUERIES or rows 1; rows * heads * group <= CACHED_PAIRS */
    int bf16;                    /* q and y are bf16, else float */
    cached_type type;            /* of keys and values */
    const char *q;               /* rows q_stride bytes apart; queries side by side */
    size_t q_stride;
    const char *key, *value;             /* of slot 0; slots slot_stride bytes apart; heads side by side */
    const char *key_scale, *value_scale; /* CACHED_INT8: float, likewise */
    size_t slot_stride;
    const int *slot; /* [common + own] */
    int common, own;
    const uint64_t *mask; /* [rows][words] bit j: the row attends to slot number common + j, j < own */
    int words;
    char *y; /* rows y_stride bytes apart */
    size_t y_stride;
    void *work; /* cached_bytes(rows * heads * group, common + own, dim) bytes, 64-byte aligned */
} cached_task;

/* Returns the maximum rows of a task. */
static inline int cached_rows(int group)
{
    return group < CACHED_QUERIES ? CACHED_QUERIES / group : 1;
}

/* Returns the bytes of a number of keys and values. */
static inline size_t cached_size(cached_type type)
{
    return type == CACHED_F32 ? 4 : type == CACHED_BF16 ? 2 : 1;
}

/* Returns the numbers of a head, padded to whole vectors. */
static inline size_t cached_width(int dim)
{
    return ((size_t)dim + 15) / 16 * 16;
}

/* Returns the length of a row of scores: the slots plus one vector. */
static inline size_t cached_length(int slots)
{
    return ((size_t)slots + 31) / 16 * 16;
}

/* Returns the bytes of working memory of a task with so many queries in all. */
static inline size_t cached_bytes(int pairs, int slots, int dim)
{
    enum { OF_BLOCK = 18 }; /* AMX: the words of a pair's weights in a block, its largest score and its total */
    const size_t width = cached_width(dim), length = cached_length(slots), across = ((size_t)pairs + 15) / 16 * 16;
    return sizeof(float) * (across * (2 * width + length + OF_BLOCK) + CACHED_SLOTS * width + 2 * length);
}

/* Lists the slots that some row of a task attends to, the common ones first: slot [common + own]. Bit r of
 * row_mask[common + own] means row r attends to it. Returns their number. */
static inline int cached_list(const cached_task *t, int *slot, uint32_t *row_mask)
{
    int n = t->common;
    memcpy(slot, t->slot, (size_t)n * sizeof *slot);
    memset(row_mask, 0xff, (size_t)n * sizeof *row_mask);
    for (int j = 0; j < t->own; j++) {
        unsigned rows = 0;
        for (int r = 0; r < t->rows; r++)
            rows |= (unsigned)(t->mask[(size_t)r * (size_t)t->words + (size_t)j / 64] >> j % 64 & 1) << r;
        if (!rows) continue;
        slot[n] = t->slot[t->common + j];
        row_mask[n++] = rows;
    }
    return n;
}

struct kern_rows;

/* Computes a task: kern_rows has one of these (rows.h). A row's bits depend only on its query and on the slots it
 * attends to, in order. */
typedef void cached_attend(const cached_task *t, const struct kern_rows *rows);

/* Returns the function in `rows`, or AMX's where it multiplies bf16 (gemm_best). AMX takes keys in bf16 with heads of a
 * multiple of 32 numbers and groups of up to CACHED_QUERIES, and rounds weights to bf16. It leaves the others to
 * `rows`. */
cached_attend *cached_attend_best(const struct kern_rows *rows);

#endif
