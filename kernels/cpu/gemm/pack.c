/* Packing of blocks (gemm.h). */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/int4.h"

#include <string.h>

const float gemm_no_bias[GEMM_COLS];

enum {
    TILE = 4,
    IN_PLACE = 64 /* words at a time: 16 KB of a block, which stay in L1 */
};

typedef uint32_t words4 __attribute__((vector_size(4 * TILE)));
#if defined(__clang__)
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (words4){i, j, k, l})
#endif

/* Rounds to nearest even. A NaN may lose its payload but stays NaN: its top mantissa bit is kept. */
static inline uint16_t pack_store_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 0x40u) : rounded);
}

int gemm_words(gemm_type type, int in, int step)
{
    if (type == GEMM_INT4) return in / KERN_INT4_GROUP;
    const int numbers = type == GEMM_F32 ? 1 : type == GEMM_BF16 ? 2 : 4, words = (in + numbers - 1) / numbers;
    return (words + step - 1) / step * step;
}

size_t gemm_block_bytes(gemm_type type, int words)
{
    if (type == GEMM_INT4) return (size_t)words * GEMM_INT4_GROUP;
    const size_t end = type == GEMM_INT8 ? sizeof(float) + sizeof(int32_t) : 0;
    return GEMM_COLS * (4 * (size_t)words + end);
}

/* Returns the place of word `word` of column `col` in a block of `words` words. */
static inline size_t pack_place(const gemm_kernel *k, int words, int word, int col)
{
    return ((size_t)(col / k->panel) * (size_t)words + (size_t)word) * (size_t)k->panel + (size_t)(col % k->panel);
}

/* Writes four rows of four words as columns: word i of row c becomes word c of row i, `apart` words apart. */
static inline void transpose_tile(const uint32_t *const from[TILE], size_t apart, uint32_t *to)
{
    words4 a[TILE];
    for (int c = 0; c < TILE; c++) memcpy(&a[c], from[c], sizeof a[c]);
    const words4 ab = SHUFFLE(a[0], a[1], 0, 4, 1, 5), cd = SHUFFLE(a[2], a[3], 0, 4, 1, 5);
    const words4 ef = SHUFFLE(a[0], a[1], 2, 6, 3, 7), gh = SHUFFLE(a[2], a[3], 2, 6, 3, 7);
    const words4 row[TILE] = {SHUFFLE(ab, cd, 0, 1, 4, 5), SHUFFLE(ab, cd, 2, 3, 6, 7), SHUFFLE(ef, gh, 0, 1, 4, 5),
                              SHUFFLE(ef, gh, 2, 3, 6, 7)};
    for (int i = 0; i < TILE; i++) memcpy(to + (size_t)i * apart, &row[i], sizeof row[i]);
}

/* Writes `count` words of `cols` rows, `stride` words apart, as columns of a block, from word `first` on. */
static void pack_transpose(const gemm_kernel *k, const uint32_t *from, size_t stride, int cols, int first, int count,
                           int words, uint32_t *block)
{
    const size_t apart = (size_t)k->panel;
    for (int c = 0; c < cols; c += TILE) {
        const int width = cols - c < TILE ? cols - c : TILE;
        const uint32_t *row[TILE];
        uint32_t *to = block + pack_place(k, words, first, c);
        for (int i = 0; i < width; i++) row[i] = from + (size_t)(c + i) * stride;
        int i = 0;
        for (; width == TILE && i + TILE <= count; i += TILE) {
            transpose_tile(row, apart, to + (size_t)i * apart);
            for (int j = 0; j < TILE; j++) row[j] += TILE;
        }
        for (; i < count; i++)
            for (int j = 0; j < width; j++) memcpy(to + (size_t)i * apart + j, row[j]++, sizeof *to);
    }
}

/* Makes `words` words of a row from its number `first` on, of float or of act; missing numbers are 0. */
static void make_words(gemm_type type, const void *row, int is_float, int first, int in, int words, uint32_t *to)
{
    const int numbers = type == GEMM_BF16 ? 2 : 1, room = words * numbers, left = in - first < room ? in - first : room;
    const size_t size = type == GEMM_BF16 ? 2 : 4;
    uint16_t rounded[2 * TILE * TILE];
    memset(to, 0, 4 * (size_t)words);
    if (left <= 0) return;
    if (type == GEMM_BF16 && is_float) {
        for (int i = 0; i < left; i++) rounded[i] = pack_store_bf16(((const float *)row)[first + i]);
        memcpy(to, rounded, (size_t)left * size);
    } else {
        memcpy(to, (const char *)row + (size_t)first * size, (size_t)left * size);
    }
}

static void pack_columns(const gemm_kernel *k, gemm_type type, const void *w, size_t stride, int is_float, int cols,
                         int in, int words, void *block)
{
    enum { WORDS = TILE * TILE };
    uint32_t chunk[GEMM_COLS * WORDS];
    const int numbers = type == GEMM_BF16 ? 2 : 1, rounds = is_float && type == GEMM_BF16;
    const int whole = rounds || (stride | (uintptr_t)w) % sizeof *chunk ? 0 : in / numbers; /* read in place */
    if (cols < GEMM_COLS) memset(block, 0, (size_t)words * GEMM_COLS * 4);
    for (int i = 0, count; i < words; i += count) {
        if (i < whole) {
            count = whole - i < IN_PLACE ? whole - i : IN_PLACE;
            pack_transpose(k, (const uint32_t *)w + i, stride / sizeof *chunk, cols, i, count, words, block);
            continue;
        }
        count = words - i < WORDS ? words - i : WORDS;
        for (int c = 0; c < cols; c++)
            make_words(type, (const char *)w + (size_t)c * stride, is_float, i * numbers, in, count, chunk + c * WORDS);
        pack_transpose(k, chunk, WORDS, cols, i, count, words, block);
    }
}

void gemm_pack(const gemm_kernel *k, gemm_type type, const float *w, int cols, int in, int words, void *block)
{
    pack_columns(k, type, w, (size_t)in * sizeof *w, 1, cols, in, words, block);
}

void gemm_pack_columns(const gemm_kernel *k, gemm_type type, const void *w, size_t stride, int cols, int in, int words,
                       void *block)
{
    pack_columns(k, type, w, stride, 0, cols, in, words, block);
}

/* Packs a word of `cols` columns of a panel from `row` and, in bf16, the next. `left`: the rows that are left. */
static void pack_word(gemm_type type, const char *row, size_t stride, int cols, int left, uint32_t *to)
{
    if (left <= 0) {
        memset(to, 0, (size_t)cols * 4);
    } else if (type == GEMM_F32) {
        memcpy(to, row, (size_t)cols * 4);
    } else {
        const uint16_t *a = (const uint16_t *)(const void *)row;
        const uint16_t *b = (const uint16_t *)(const void *)(row + stride);
        if (left > 1)
            for (int c = 0; c < cols; c++) to[c] = a[c] | (uint32_t)b[c] << 16;
        else
            for (int c = 0; c < cols; c++) to[c] = a[c];
    }
}

void gemm_pack_rows(const gemm_kernel *k, gemm_type type, const void *w, size_t stride, int cols, int in, int words,
                    void *block)
{
    const int numbers = type == GEMM_BF16 ? 2 : 1;
    const size_t size = type == GEMM_BF16 ? 2 : 4;
    if (cols < GEMM_COLS) memset(block, 0, (size_t)words * GEMM_COLS * 4);
    for (int c = 0; c < cols; c += k->panel) {
        const char *row = (const char *)w + (size_t)c * size;
        uint32_t *to = (uint32_t *)block + pack_place(k, words, 0, c);
        const int wide = cols - c < k->panel ? cols - c : k->panel;
        for (int i = 0; i < words; i++, to += k->panel, row += (size_t)numbers * stride)
            pack_word(type, row, stride, wide, in - numbers * i, to);
    }
}

void gemm_pack_int8(const gemm_kernel *k, const int8_t *q, const float *scale, int cols, int in, int words, void *block)
{
    static const size_t byte_of[2][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}};
    const size_t bytes = (size_t)words * 4 * GEMM_COLS;
    int8_t *to = block;
    float *scales = (float *)(void *)(to + bytes);
    int32_t *offset = (int32_t *)(scales + GEMM_COLS);
    memset(block, 0, gemm_block_bytes(GEMM_INT8, words));
    for (int c = 0; c < cols; c++, q += in) {
        const size_t apart = 4 * (size_t)k->panel, *const byte = byte_of[k->wide];
        int8_t *const column = to + 4 * pack_place(k, words, 0, c);
        int32_t sum = 0;
        for (int i = 0; i < in; i++) {
            column[(size_t)(i / 4) * apart + byte[i % 4]] = q[i];
            sum += q[i];
        }
        scales[c] = scale[c];
        offset[c] = GEMM_ZERO * sum;
    }
}

void gemm_pack_int4(const uint8_t *q, const uint16_t *scale, int cols, int in, void *block)
{
    enum { WORDS = KERN_INT4_GROUP / 8 };
    const int groups = in / KERN_INT4_GROUP;
    memset(block, 0, gemm_block_bytes(GEMM_INT4, groups));
    for (int c = 0; c < cols; c++)
        for (int g = 0; g < groups; g++, q += KERN_INT4_BYTES) {
            uint8_t *to = (uint8_t *)block + (size_t)g * GEMM_INT4_GROUP;
            uint16_t *scales = (uint16_t *)(void *)(to + WORDS * 4 * GEMM_COLS);
            scales[c] = *scale++;
            for (int i = 0; i < KERN_INT4_GROUP; i++) {
                const int code = q[i / 2] >> i % 2 * 4 & 15;
                to[(i / 8 * GEMM_COLS + c) * 4 + i % 4] |= (uint8_t)(code << i % 8 / 4 * 4);
            }
        }
}
