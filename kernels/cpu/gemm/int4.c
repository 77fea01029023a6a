/* The micro-kernels of int4 weights (kernels/int4.h), compiled for each instruction set (KERN_ISA=...), and chosen at
 * run time (isa.c).
 *
 * x is quantised to int8 in the weights' groups. The sum of a group's 32 products is exact in integers, of codes + 8:
 * it begins at -8 times the group's x, as 32 bits, or as 16 bits for each pair of products, in which it always fits: at
 * most 16 * 8 * 127. Times both scales it is added to the result's f32 sum, group by group. A vector of columns takes
 * two instructions for 8 weights of each column, or four where products come in pairs, and unpacking, which the rows
 * share: in registers, or through a group of bytes in L1, from which AVX2's tall tiles of many rows read. */
#define PASTE_(t, i) gemm_##t##_##i
#define PASTE(t, i)  PASTE_(t, i)
#define TEXT_(a)     #a
#define TEXT(a)      TEXT_(a)

#include "kernels/cpu/gemm/epilogue.h"
#include "kernels/int4.h"

#include <float.h>
#include <math.h>

enum {
    WORDS = KERN_INT4_GROUP / 8,                /* packed words of a group and column: 8 weights each */
    ROW = GEMM_COLS * 4,                        /* bytes of a word of all columns, and of a row of sums */
    GROUP_BYTES = WORDS * ROW + 2 * GEMM_COLS,  /* with the scales, bf16 */
    LINES = GROUP_BYTES / 64,                   /* cache lines */
    TILE_ROWS = 4,                              /* rows of a tile */
    TALL_ROWS = 6,                              /* of a tall one, */
    TALL = 2,                                   /* and its vectors */
    MOST_ROWS = 32,                             /* rows of a pass over the block; their sums stay in L1 */
    LAST_ROWS_OF_WIDE = REGISTERS == 32 ? 4 : 2 /* rows of a tile of four vectors; more have two */
};

/* Groups from one that is multiplied to the one that is then prefetched into L1, and bytes from there to what is
 * prefetched into L2, or 0. Both were measured, on a Xeon with VNNI and on an EPYC without (bench/LAB.md). */
#if defined(__AVX512VNNI__)
enum { AHEAD = 6, FAR = 16384 };
#else
enum { AHEAD = 12, FAR = 0 };
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
enum { PAIRS = 0 };
typedef ints exact; /* a group's sums */
#else
enum { PAIRS = 1 };
typedef shorts exact; /* two sums a column, of bytes 0 and 1 of each word and of bytes 2 and 3 */
#endif

/* More than a tile's rows are computed in tall tiles where registers are few. With 32 no gain was found. */
#if defined(__AVX2__) && !defined(__AVX512F__)
enum { BY_ROW = PAIRS };
#else
enum { BY_ROW = 0 };
#endif

/* A group of a row of x. */
typedef struct {
    int8_t q[KERN_INT4_GROUP];
    int32_t start; /* first sum: int32, or a pair of int16 */
    float scale;
} x_group;

static inline ints int4_word(const void *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return (ints){0} + word;
}

/* Returns s plus, column by column, the products of the bytes of w, 0..15, and of x. */
static inline exact add_products(exact s, ints w, ints x)
{
#if defined(__AVX512VNNI__)
    return (exact)_mm512_dpbusd_epi32((__m512i)s, (__m512i)w, (__m512i)x);
#elif defined(__AVXVNNI__)
    return (exact)_mm256_dpbusd_avx_epi32((__m256i)s, (__m256i)w, (__m256i)x);
#elif defined(__ARM_FEATURE_DOTPROD)
    return (exact)vdotq_s32((int32x4_t)s, (int8x16_t)w, (int8x16_t)x);
#elif defined(__aarch64__)
    const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)x));
    return s + (exact)vpaddq_s16(low, vmull_high_s8((int8x16_t)w, (int8x16_t)x));
#elif defined(__AVX512BW__)
    return s + (exact)_mm512_maddubs_epi16((__m512i)w, (__m512i)x);
#elif defined(__AVX2__)
    return s + (exact)_mm256_maddubs_epi16((__m256i)w, (__m256i)x);
#else
    const shorts odd = (shorts)w >> 8, even = (shorts)w & 0xff;
    return s + odd * ((shorts)x >> 8) + even * ((shorts)((shorts)x << 8) >> 8);
#endif
}

/* Returns each column's sum. */
static inline floats whole(exact s)
{
#if !defined(__AVX512VNNI__) && !defined(__AVXVNNI__) && !defined(__ARM_FEATURE_DOTPROD)
#if defined(__AVX512BW__)
    const ints sums = (ints)_mm512_madd_epi16((__m512i)s, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
    const ints sums = (ints)_mm256_madd_epi16((__m256i)s, _mm256_set1_epi16(1));
#else
    const ints sums = ((ints)s << 16 >> 16) + ((ints)s >> 16);
#endif
    return __builtin_convertvector(sums, floats);
#else
    return __builtin_convertvector(s, floats);
#endif
}

/* Adds a group's products to the sums of `rows` rows and `wide` vectors of columns. w is the first vector's first word,
 * `scale` its scales; x has the rows' groups. */
static inline __attribute__((always_inline)) void run_tile(const int rows, const int wide, const char *w,
                                                           const char *scale, const x_group *const *x, char *sum)
{
    const ints low = (ints){0} + 0x0f0f0f0f;
    exact acc[TILE_ROWS][4];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < wide; v++) acc[r][v] = (exact)int4_word(&x[r]->start);
    }
    UNROLL
    for (int i = 0; i < WORDS; i++) {
        UNROLL
        for (int v = 0; v < wide; v++) {
            const ints both = *(const ints *)(w + i * ROW + v * VECTOR);
            const ints first = both & low, second = (ints)((uints)both >> 4) & low;
            UNROLL
            for (int r = 0; r < rows; r++) {
                acc[r][v] = add_products(acc[r][v], first, int4_word(x[r]->q + 8 * i));
                acc[r][v] = add_products(acc[r][v], second, int4_word(x[r]->q + 8 * i + 4));
            }
        }
    }
    UNROLL
    for (int v = 0; v < wide; v++) {
        const floats scales = from_bf16(scale + v * VECTOR / 2);
        UNROLL
        for (int r = 0; r < rows; r++) {
            floats *to = (floats *)(void *)(sum + r * ROW + v * VECTOR);
            *to = multiply_add_v(whole(acc[r][v]), scales * x[r]->scale, *to);
        }
    }
}

/* Adds the products of 4 bytes of x and of TALL vectors of words to s. As one statement of assembly it takes two
 * registers beside sums and weights: the compiler takes more, and keeps sums in memory. */
static inline __attribute__((always_inline)) void multiply_row(exact s[TALL], const int8_t *x, const ints w[TALL])
{
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (BY_ROW) {
        ints product, word;
        __asm__ volatile("vpbroadcastd %4, %3\n\tvpmaddubsw %3, %5, %2\n\tvpaddw %2, %0, %0\n\t"
                         "vpmaddubsw %3, %6, %3\n\tvpaddw %3, %1, %1"
                         : "+x"(s[0]), "+x"(s[1]), "=&x"(product), "=&x"(word)
                         : "m"(*(const int32_t *)(const void *)x), "x"(w[0]), "x"(w[1]));
        return;
    }
#endif
    const ints word = int4_word(x);
    for (int v = 0; v < TALL; v++) s[v] = add_products(s[v], w[v], word);
}

/* The same in TALL vectors, whose weights are bytes: the first word of each, its second, the words after it. `scale` is
 * float. */
static inline __attribute__((always_inline)) void run_tall(const int rows, const char *w, const char *scale,
                                                           const x_group *const *x, char *sum)
{
    exact acc[TALL_ROWS][TALL];
    const floats scales[TALL] = {load_floats(scale), load_floats(scale + VECTOR)};
    UNROLL
    for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = (exact)int4_word(&x[r]->start);
    UNROLL
    for (int i = 0; i < 2 * WORDS; i++, w += TALL * VECTOR) {
        const ints b[TALL] = {*(const ints *)w, *(const ints *)(w + VECTOR)};
        UNROLL
        for (int r = 0; r < rows; r++) multiply_row(acc[r], x[r]->q + 4 * i, b);
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < TALL; v++) {
            floats *to = (floats *)(void *)(sum + r * ROW + v * VECTOR);
            *to = multiply_add_v(whole(acc[r][v]), scales[v] * x[r]->scale, *to);
        }
}

/* Makes a group's weights bytes, the columns of one tall tile after those of another, and its scales float. */
static void unpack_group(const char *w, char *to)
{
    const char *scale = w + WORDS * ROW;
    const ints low = (ints){0} + 0x0f0f0f0f;
    for (int at = 0; at < ROW; at += TALL * VECTOR)
        for (int i = 0; i < WORDS; i++, to += 2 * TALL * VECTOR)
            for (int v = 0; v < TALL; v++) {
                const ints both = *(const ints *)(w + i * ROW + at + v * VECTOR);
                *(ints *)(to + v * VECTOR) = both & low;
                *(ints *)(to + (TALL + v) * VECTOR) = (ints)((uints)both >> 4) & low;
            }
    for (int at = 0; at < ROW; at += VECTOR) *(floats *)(to + at) = from_bf16(scale + at / 2);
}

#define GROUP_TILE(R)                                                                                                  \
    static void tile_##R(const char *w, const x_group *const *x, char *sum)                                            \
    {                                                                                                                  \
        enum { WIDE = R <= LAST_ROWS_OF_WIDE ? 4 : 2, BYTES = WIDE * VECTOR };                                         \
        for (int at = 0; at < ROW; at += BYTES) run_tile(R, WIDE, w + at, w + WORDS * ROW + at / 2, x, sum + at);      \
    }
GROUP_TILE(1)
GROUP_TILE(2)
GROUP_TILE(3)
GROUP_TILE(4)
typedef void run_group(const char *w, const x_group *const *x, char *sum);
static run_group *const tiles[] = {NULL, tile_1, tile_2, tile_3, tile_4};

#define TALL_TILE(R)                                                                                                   \
    static void tall_##R(const char *w, const x_group *const *x, char *sum)                                            \
    {                                                                                                                  \
        for (int at = 0; at < ROW; at += TALL * VECTOR)                                                                \
            run_tall(R, w + at * 2 * WORDS, w + 2 * WORDS * ROW + at, x, sum + at);                                    \
    }
TALL_TILE(3)
TALL_TILE(4)
TALL_TILE(5)
TALL_TILE(6)
static run_group *const tall_tiles[] = {NULL, NULL, NULL, tall_3, tall_4, tall_5, tall_6};

/* Returns what is prefetched with group g: the group AHEAD of it, of this block or the next, or NULL. */
static const char *ahead_of(const char *block, const char *next, int g, int groups)
{
    if (next == block) return NULL;
    if (g + AHEAD < groups) return block + (ptrdiff_t)(g + AHEAD) * GROUP_BYTES;
    return next && groups >= AHEAD ? next + (ptrdiff_t)(g + AHEAD - groups) * GROUP_BYTES : NULL;
}

/* Multiplies more than TILE_ROWS rows in tall tiles. */
static void tall_product(const gemm_rows *x, int rows, const char *block, const gemm_out *out)
{
    _Alignas(64) char sum[GEMM_ROWS * ROW], group[2 * WORDS * ROW + ROW];
    const x_group *at[TALL_ROWS];
    const int passes = (rows + GEMM_ROWS - 1) / GEMM_ROWS;
    for (int p = 0, first = 0, n; p < passes; p++, first += n) {
        n = (rows - first) / (passes - p);
        const int count = (n + TALL_ROWS - 1) / TALL_ROWS;
        memset(sum, 0, (size_t)n * ROW);
        for (int g = 0; g < x->words; g++) {
            const char *w = block + (size_t)g * GROUP_BYTES;
            for (int l = 0; l < LINES; l++) __builtin_prefetch(w + 2 * GROUP_BYTES + 64 * l); /* the group after next */
            unpack_group(w, group);
            for (int i = 0, r = 0, taken; i < count; i++, r += taken) {
                taken = (n - r) / (count - i);
                for (int j = 0; j < taken; j++)
                    at[j] = (const x_group *)(const void *)(x->base + (size_t)(first + r + j) * x->stride) + g;
                tall_tiles[taken](group, at, sum + r * ROW);
            }
        }
        gemm_finish(sum, 0, 0, n, first, out);
    }
}

static void int4_product(const gemm_rows *x, int rows, const void *block, const void *next, const gemm_out *out)
{
    _Alignas(64) char sum[MOST_ROWS * ROW];
    const x_group *at[TILE_ROWS];
    if (BY_ROW && rows > TILE_ROWS) {
        tall_product(x, rows, block, out);
        return;
    }
    for (int first = 0, n; first < rows; first += n, next = block) {
        n = rows - first < MOST_ROWS ? rows - first : MOST_ROWS;
        memset(sum, 0, (size_t)n * ROW);
        for (int g = 0; g < x->words; g++) {
            const char *ahead = ahead_of(block, next, g, x->words);
            for (int l = 0; ahead && l < LINES; l++) {
                __builtin_prefetch(ahead + 64 * l);
                if (FAR) __builtin_prefetch(ahead + FAR + 64 * l, 0, 2);
            }
            for (int r = 0, taken; r < n; r += taken) {
                taken = n - r < TILE_ROWS ? n - r : TILE_ROWS;
                for (int i = 0; i < taken; i++)
                    at[i] = (const x_group *)(const void *)(x->base + (size_t)(first + r + i) * x->stride) + g;
                tiles[taken]((const char *)block + (size_t)g * GROUP_BYTES, at, sum + r * ROW);
            }
        }
        gemm_finish(sum, 0, 0, n, first, out);
    }
}

/* Quantises a group of x. Non-finite numbers make its scale NaN; magnitudes all below 1e-30 make it 0. */
static void int4_quantise(const float *x, x_group *to)
{
    float most = 0;
    int sums[2] = {0};
    int finite = 1;
    for (int i = 0; i < KERN_INT4_GROUP; i++) {
        const float magnitude = fabsf(x[i]);
        finite &= magnitude <= FLT_MAX;
        most = magnitude > most ? magnitude : most;
    }
    if (!finite || most < 1e-30f) {
        *to = (x_group){.scale = finite ? 0.0f : NAN};
        return;
    }
    const float factor = 127.0f / most, rounds = 12582912.0f; /* 1.5*2^23 */
    to->scale = most / 127.0f;
    for (int i = 0; i < KERN_INT4_GROUP; i++) to->q[i] = (int8_t)(int)(x[i] * factor + rounds - rounds);
    for (int i = 0; i < KERN_INT4_GROUP; i++) sums[i % 4 / 2] -= KERN_INT4_ZERO * to->q[i];
    to->start = PAIRS ? (int32_t)((uint32_t)(uint16_t)sums[0] | (uint32_t)sums[1] << 16) : sums[0] + sums[1];
}

static void int4_operand(const void *x, int bf16, int in, void *row)
{
    x_group *to = row;
    float copy[KERN_INT4_GROUP];
    for (int i = 0; i < in; i += KERN_INT4_GROUP, to++) {
        const float *from = (const float *)x + i;
        if (bf16) {
            for (int j = 0; j < KERN_INT4_GROUP; j++) {
                const uint32_t bits = (uint32_t)((const uint16_t *)x)[i + j] << 16;
                memcpy(copy + j, &bits, sizeof bits);
            }
            from = copy;
        }
        int4_quantise(from, to);
    }
}

extern const gemm_kernel PASTE(int4, KERN_ISA);
const gemm_kernel PASTE(int4, KERN_ISA) = {
    .unit = TEXT(KERN_ISA),
    .step = 1,
    .native = !PAIRS,
    .product = int4_product,
    .operand = int4_operand,
};
_Static_assert(sizeof(x_group) == GEMM_INT4_X_GROUP, "gemm_int4_stride");
_Static_assert((int)GROUP_BYTES == (int)GEMM_INT4_GROUP, "gemm_pack_int4");
