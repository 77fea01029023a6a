/* The CPU's products (kernels/cpu/gemm): the bits of a row are those of the row alone, in any number of rows. Their
 * values are tested in tests/ops/test_linear.c. */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/int4.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 150, MOST_IN = 1312 };

typedef struct {
    gemm_type type;
    const gemm_kernel *k;
    int in, words; /* words of a row, or int4's groups */
    size_t stride;
    char *x, *block;
    float scale[MOST_ROWS];
} product;

static float number_of(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int32_t)*seed * 0x1p-31f;
}

/* Packs a block of `cols` columns. */
static void make_block(product *p, int cols, uint32_t *seed)
{
    const size_t n = (size_t)cols * (size_t)p->in;
    float *w = malloc(n * sizeof *w), scale[GEMM_COLS];
    int8_t *q = malloc(n);
    uint16_t *scales = malloc(n / KERN_INT4_GROUP * sizeof *scales + 1);
    const int words = gemm_words(p->type, p->in, p->k->step);
    for (size_t i = 0; i < n; i++) w[i] = number_of(seed), q[i] = (int8_t)(w[i] * 127);
    for (int c = 0; c < cols; c++) scale[c] = 1e-3f;
    if (p->type == GEMM_INT4) {
        kern_int4_quantise(w, cols, p->in, (uint8_t *)q, scales);
        gemm_pack_int4((uint8_t *)q, scales, cols, p->in, p->block);
    } else if (p->type == GEMM_INT8) {
        gemm_pack_int8(p->k, q, scale, cols, p->in, words, p->block);
    } else {
        gemm_pack(p->k, p->type, w, cols, p->in, words, p->block);
    }
    free(w), free(q), free(scales);
}

/* Fills the operand's rows, as the type and the kernel want them. */
static void make_rows(product *p, uint32_t *seed)
{
    float row[MOST_IN];
    for (int r = 0; r < MOST_ROWS; r++) {
        char *to = p->x + (size_t)r * p->stride;
        for (int i = 0; i < p->in; i++) {
            row[i] = number_of(seed);
            const int integer = (int)(row[i] * 127);
            uint32_t bits;
            memcpy(&bits, row + i, sizeof bits);
            if (p->type == GEMM_F32) memcpy(to + 4 * i, &bits, 4);
            if (p->type == GEMM_BF16) memcpy(to + 2 * i, (char *)&bits + 2, 2);
            if (p->type == GEMM_INT8 && p->k->wide) memcpy(to + 2 * i, &(int16_t){(int16_t)integer}, 2);
            if (p->type == GEMM_INT8 && !p->k->wide) to[i] = (char)(integer + p->k->zero);
        }
        if (p->type == GEMM_INT4) p->k->operand(row, 0, p->in, to);
        p->scale[r] = 1 + (float)r / 64;
    }
}

static void multiply(const product *p, int first, int rows, int cols, int words, float *y)
{
    const gemm_rows x = {
        .base = p->x + (size_t)first * p->stride, .stride = p->stride, .parts = 1, .words = p->words, .w_words = words};
    const float *scales = (const float *)(const void *)(p->block + (size_t)words * 4 * GEMM_COLS);
    gemm_out out = {.bias = gemm_no_bias, .cols = cols, .y = y, .y_stride = GEMM_COLS};
    if (p->type == GEMM_INT8) {
        out.x_scale = p->scale + first, out.w_scale = scales;
        out.offset = (const int32_t *)(const void *)(scales + GEMM_COLS);
    }
    p->k->product(&x, rows, p->block, NULL, &out);
    if (p->k->end) p->k->end();
}

static void check_product(gemm_type type, int in, int cols, const char *isa)
{
    static const int counts[] = {2, 4, 5, 12, 13, 38, 64, 65, 70, MOST_ROWS};
    static float all[MOST_ROWS * GEMM_COLS], alone[MOST_ROWS * GEMM_COLS];
    product p = {.type = type, .k = gemm_best(type), .in = in};
    const int words = gemm_words(type, in, p.k->step);
    uint32_t seed = 5;
    if (type == GEMM_INT4 && in % KERN_INT4_GROUP) return;
    p.words = type == GEMM_INT8 ? words : gemm_words(type, in, 1);
    p.stride = type == GEMM_INT8   ? gemm_int8_stride(words << p.k->wide)
               : type == GEMM_INT4 ? gemm_int4_stride(words)
                                   : 4 * (size_t)p.words;
    p.x = calloc(1, MOST_ROWS * p.stride);
    p.block = aligned_alloc(64, (gemm_block_bytes(type, words) + 63) / 64 * 64);
    make_block(&p, cols, &seed);
    make_rows(&p, &seed);
    for (int r = 0; r < MOST_ROWS; r++) multiply(&p, r, 1, cols, words, alone + r * GEMM_COLS);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        memset(all, 0xff, sizeof all);
        multiply(&p, 0, counts[i], cols, words, all);
        for (int r = 0; r < counts[i]; r++)
            if (memcmp(all + r * GEMM_COLS, alone + r * GEMM_COLS, (size_t)cols * sizeof *all) != 0)
                fail_msg("%s (%s): row %d of %d, %d inputs, %d columns", isa, p.k->unit, r, counts[i], in, cols);
        for (int c = cols; c < GEMM_COLS; c++) assert_memory_equal(all + c, &(uint32_t){UINT32_MAX}, sizeof *all);
    }
    free(p.x), free(p.block);
}

TEST_CASE(rows_are_those_alone)
{
    static const char *const isas[] = {"", "avx512_vnni", "avx512", "avx_vnni", "avx2", "dotprod", "generic"};
    static const int ins[] = {32, 237, 608, MOST_IN}, columns[] = {GEMM_COLS, 41, 3};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        setenv("MAR_ISA", isas[i], 1);
        for (int type = GEMM_F32; type <= GEMM_INT4; type++)
            for (int n = 0; n < 4; n++)
                for (int c = 0; c < 3; c++) check_product((gemm_type)type, ins[n], columns[c], isas[i]);
        unsetenv("MAR_ISA");
    }
}
