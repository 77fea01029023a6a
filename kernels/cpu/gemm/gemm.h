/* Matrix products of the CPU backend: y = activation(x w + bias), in f32, bf16, int8 or int4, for any number of rows.
 *
 * A word is the 4 bytes of a row that an instruction multiplies at a time: one float, two bf16 or four int8. Weights
 * are packed in blocks of GEMM_COLS columns, and these in panels of as many columns as a tile reads at a time, word by
 * word: [GEMM_COLS / panel][words][panel] words. A micro-kernel exists for each type and instruction set. It adds word
 * after word to a row's sums, in the same order for any number of rows. So the bits of a row depend on that row only.
 * They may differ between instruction sets; in int8 the sums are exact everywhere.
 *
 * In int4 a word is 4 bytes of a row, too, but of weights it has 8. Instead of words a row or block is counted in
 * groups of KERN_INT4_GROUP numbers. */
#ifndef KERNELS_CPU_GEMM_H
#define KERNELS_CPU_GEMM_H

#include "kernels/ops.h"

enum {
    GEMM_COLS = 64,         /* columns of a weight block */
    GEMM_HALF = 32,         /* results of a block with swiglu */
    GEMM_ROWS = 64,         /* rows of a pass over a block; their sums stay in L1 */
    GEMM_STEP = 16,         /* AMX takes as many words at a time */
    GEMM_ZERO = 128,        /* zero point of int8's unsigned x */
    GEMM_INT4_X_GROUP = 40, /* bytes of a group of int4's x: 32 int8, the first sum, the scale */
    GEMM_INT4_GROUP = 1152  /* bytes of a group of a block: 4 words of each column, the scales as bf16 */
};

typedef enum { GEMM_F32, GEMM_BF16, GEMM_INT8, GEMM_INT4 } gemm_type;

/* Rows of x. A row is a sequence of `parts` parts with `words` words each, 4-byte aligned. */
typedef struct {
    const char *base;       /* row 0, if `row` is NULL */
    size_t stride;          /* bytes from one row to the next */
    const char *const *row; /* [rows]; NULL: equally spaced rows */
    int parts, words;
    size_t x_step;        /* bytes from a row's part to the next; unused if there is one part */
    int w_words, w_first; /* words of the block, and the first one's number that is multiplied */
    int w_step;           /* words from a part's weights to the next one's; unused if there is one part */
} gemm_rows;

/* A gate; row r is at base + (index ? index[r] : r) * stride bytes. */
typedef struct {
    const char *base;
    const int *index;
    size_t stride;
    int f32; /* float, else bf16 */
} gemm_gate;

/* The epilogue: a = activation(x w + bias), then y = a, y += a or y += gate * a. */
typedef struct {
    const float *bias; /* [GEMM_COLS] */
    kern_activation activation;
    int relu;              /* y = max(a, 0); a NaN stays one */
    int swiglu;            /* y = silu(a) * b, GEMM_HALF columns of each; without activation, relu, y_at and add */
    int cols;              /* existing columns of the block, 1..GEMM_COLS; with swiglu GEMM_HALF + those of b */
    void *y;               /* row 0, the block's first column; bf16 or float */
    size_t y_stride;       /* elements */
    const ptrdiff_t *y_at; /* [rows] offset of each row from y in elements; NULL: r * y_stride */
    int y_bf16;            /* y is bf16, else float */
    int add;               /* y += a; needs float y */
    const gemm_gate *gate; /* of the block's first column, or NULL; needs add */
    int raw;               /* 1: y = x w, where -0 may stand for 0: float y without any of the above */
    int ahead;             /* rows to one whose results are prefetched; below 0: those of the next block; 0: none */
    /* int8: x w = (sum - offset[column]) * (x_scale[row] * w_scale[column]). Other types: x w = sum * x_scale[row],
     * unless it is NULL. */
    const float *x_scale, *w_scale; /* [rows], [GEMM_COLS] */
    const int32_t *offset;          /* [GEMM_COLS] GEMM_ZERO times the column's sum */
} gemm_out;

typedef struct {
    const char *unit; /* for descriptions: "avx512_bf16" */
    int step;         /* a block's words are zero-padded to a multiple of it, at most GEMM_STEP */
    int panel;        /* columns of a panel, at most GEMM_COLS; unused in int4 */
    int zero;         /* zero point of int8's x: GEMM_ZERO, or 0 for signed x */
    int wide;         /* 1: int8's x is int16, and gemm_pack_int8 packs for it; the zero point is 0 */
    int takes_parts;  /* 1: takes any rows, and half a block; 0: only equally spaced ones of one part, and a block */
    int native;       /* 1: the processor has instructions for the type */
    /* Multiplies rows with a 64-byte aligned block. Prefetches `next`, what this thread reads next, or NULL: otherwise
     * memory and arithmetic alternate. If `next` is the block itself, it is in cache and nothing is fetched. */
    void (*product)(const gemm_rows *x, int rows, const void *block, const void *next, const gemm_out *out);
    /* f32, bf16: y = softmax(scale * s) but for a factor, which it returns; n values, as x; s is overwritten. NULL for
     * other types. */
    float (*softmax)(float *s, int n, float scale, void *y);
    /* Releases what the products set up, or NULL; a thread calls it after its products. */
    void (*end)(void);
    /* int4: makes an operand's row of x[in], bf16 or float. It has gemm_int4_stride(in) bytes. NULL for other types. */
    void (*operand)(const void *x, int bf16, int in, void *row);
} gemm_kernel;

/* Returns the kernel of the fastest instruction set this processor has; MAR_ISA asks for less (rows.h). Each type has
 * one everywhere: without instructions for it, bf16 is multiplied in f32 and int8 in int16. */
const gemm_kernel *gemm_best(gemm_type type);

extern const float gemm_no_bias[GEMM_COLS]; /* zeros */

/* --- packing ------------------------------------------------------------------------------------------------------ */

/* Returns the words of a row of `in` numbers, padded to a multiple of `step`; in int4 its groups. */
int gemm_words(gemm_type type, int in, int step);
/* Returns the bytes from one row of int8's x to the next: an odd number of cache lines, so that the rows of an AMX tile
 * map to different cache sets. */
static inline size_t gemm_int8_stride(int words)
{
    return (size_t)((words + GEMM_STEP - 1) / GEMM_STEP | 1) * 4 * GEMM_STEP;
}
/* Returns the bytes from one row of int4's x to the next: an odd number of cache lines, for the cache's sets, too. */
static inline size_t gemm_int4_stride(int groups)
{
    return (((size_t)groups * GEMM_INT4_X_GROUP + 63) / 64 | 1) * 64;
}
/* Returns the bytes of a block of `words` words, with the scales and offsets that follow an int8 block's weights. */
size_t gemm_block_bytes(gemm_type type, int words);
/* Packs w[cols][in] (float) for the kernel, rounded to the type, f32 or bf16. Missing columns and words are 0. */
void gemm_pack(const gemm_kernel *k, gemm_type type, const float *w, int cols, int in, int words, void *block);
/* Packs q[cols][in] and scale[cols] as an int8 block: the weights, then float scale[GEMM_COLS], int32_t
 * offset[GEMM_COLS]. For a wide kernel bytes 1 and 2 of a word are swapped: it multiplies bytes 0 and 2, as int16, by
 * one pair of x, and bytes 1 and 3 by the next. */
void gemm_pack_int8(const gemm_kernel *k, const int8_t *q, const float *scale, int cols, int in, int words,
                    void *block);
/* Packs q[cols][in/2] and scale[cols][in/32] (kernels/int4.h) as an int4 block. A word's 8 weights are neighbours; the
 * low halves of its bytes have the first four. */
void gemm_pack_int4(const uint8_t *q, const uint16_t *scale, int cols, int in, void *block);
/* Packs `cols` rows of `in` act, `stride` bytes apart, as the columns of a block: attention's keys. */
void gemm_pack_columns(const gemm_kernel *k, gemm_type type, const void *w, size_t stride, int cols, int in, int words,
                       void *block);
/* Packs `in` rows of `cols` act, `stride` bytes apart, as the rows of a block: attention's values. */
void gemm_pack_rows(const gemm_kernel *k, gemm_type type, const void *w, size_t stride, int cols, int in, int words,
                    void *block);

#endif
