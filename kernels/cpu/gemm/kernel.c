/* The micro-kernels but AMX's, compiled for each type (KERN_TYPE=f32|bf16|int8) and instruction set (KERN_ISA=...), and
 * chosen at run time (isa.c).
 *
 * A tile of results is some rows x some vectors of columns, whose sums are in registers.
 * Flat tiles are for few rows, whose weights come from memory: a chunk of words is used for all rows while it is in L1
 * and the next is prefetched. Tall ones are for many rows: their sums stay in registers for all words, and the weights
 * come from L2 again for each tile, in half as many bytes a product. */
#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)
#define NAME_(t, i)  gemm_##t##_##i
#define NAME(t, i)   NAME_(t, i)
#define TEXT_(a)     #a
#define TEXT(a)      TEXT_(a)
#define IS_f32       1
#define IS_bf16      2
#define IS_int8      3
#define TYPE         PASTE(IS, KERN_TYPE)

#include "kernels/cpu/gemm/epilogue.h"
#include "kernels/cpu/gemm/softmax.h"

/* --- a vector of words times another -------------------------------------------------------------------------------
 */

/* Without instructions for it a product of words takes two: of their halves, which x_half and w_half unpack. int8's x
 * has come as int16; bf16's is made float before a tall tile where registers are few, and read there as f32's is. */

#if TYPE == IS_int8
typedef ints sums;
#else
typedef floats sums;
#endif

#if TYPE == IS_f32
enum { HALVES = 1 };
#elif TYPE == IS_bf16 && (defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC))
enum { HALVES = 1 };
#elif TYPE == IS_int8 && (defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__aarch64__))
enum { HALVES = 1 };
#else
enum { HALVES = 2 };
#endif

enum {
    WIDE = TYPE == IS_int8 && HALVES == 2,
    X_WORD = WIDE ? 8 : 4, /* bytes of x for a word of weights */
    UNPACKS = TYPE == IS_bf16 && HALVES == 2 && (int)REGISTERS == 16
};

#if TYPE == IS_int8 && defined(__aarch64__)
enum { SIGNED = 1 }; /* x is signed, so the sums have no offset */
#else
enum { SIGNED = WIDE };
#endif

#if TYPE == IS_int8 && defined(__aarch64__) && !defined(__ARM_FEATURE_DOTPROD)
enum { PAIRS = 1 }; /* products of bytes are added in pairs, in two more registers */
#else
enum { PAIRS = 0 };
#endif

#if TYPE != IS_int8
/* Returns half of each word as a float. */
static inline ints bf16_half(ints words, int half)
{
#if defined(__aarch64__) /* a permutation runs on more pipes than a shift does */
    const int16x8_t zero = {0}, x = (int16x8_t)words;
    return (ints)(half ? vtrn2q_s16(zero, x) : vtrn1q_s16(zero, x));
#else
    if (half) words = (ints)((uints)words >> 16); /* a mask would take the register of a sum */
    return words << 16;
#endif
}
#endif

/* Returns a word of x, or half of it, for multiply_add. `wide`: the word has 8 bytes, half of it 4. */
#if defined(__aarch64__) && (TYPE != IS_int8 || defined(__ARM_FEATURE_DOTPROD))
/* ARM multiplies a vector by a lane of another: the word is in lane 0, or its halves in lanes 0 and 1, for both
 * products at once. */
enum { BY_LANE = 1 };
typedef int32x2_t x_words;

static inline x_words x_half(const char *p, int half, int wide)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    (void)half, (void)wide;
    return HALVES == 1 ? vcreate_s32(word) : (x_words)vzip1_s16(vcreate_s16(0), vcreate_s16(word));
}
#else
enum { BY_LANE = 0 };
typedef ints x_words;

static inline x_words x_half(const char *p, int half, int wide)
{
    int32_t word;
    memcpy(&word, wide ? p + 4 * half : p, sizeof word);
    const ints words = (ints){0} + word;
#if TYPE != IS_int8
    if (HALVES == 2 && !wide) return bf16_half(words, half);
#endif
    return words;
}
#endif

static inline ints w_half(ints words, int half)
{
    if (HALVES == 1 || BY_LANE) return words;
#if TYPE == IS_int8
    return (ints)((half ? (shorts)words : (shorts)((shorts)words << 8)) >> 8);
#else
    return bf16_half(words, half);
#endif
}

static inline sums multiply_add(sums s, x_words x, ints w)
{
#if TYPE == IS_int8 && defined(__AVX512VNNI__)
    return (sums)_mm512_dpbusd_epi32((__m512i)s, (__m512i)x, (__m512i)w);
#elif TYPE == IS_int8 && defined(__AVXVNNI__)
    return (sums)_mm256_dpbusd_avx_epi32((__m256i)s, (__m256i)x, (__m256i)w);
#elif TYPE == IS_int8 && defined(__ARM_FEATURE_DOTPROD)
    return (sums)vdotq_lane_s32((int32x4_t)s, (int8x16_t)w, (int8x8_t)x, 0);
#elif TYPE == IS_int8 && defined(__aarch64__)
    const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)x));
    const int16x8_t high = vmull_high_s8((int8x16_t)w, (int8x16_t)x);
    return (sums)vpadalq_s16((int32x4_t)s, vpaddq_s16(low, high)); /* |x| <= 127, so two products fit in 16 bits */
#elif TYPE == IS_int8 && defined(__AVX512BW__)
    return s + (sums)_mm512_madd_epi16((__m512i)x, (__m512i)w);
#elif TYPE == IS_int8 && defined(__AVX2__)
    return s + (sums)_mm256_madd_epi16((__m256i)x, (__m256i)w);
#elif TYPE == IS_int8 && defined(__SSE2__)
    return s + (sums)_mm_madd_epi16((__m128i)x, (__m128i)w);
#elif TYPE == IS_int8
    return s + (x << 16 >> 16) * (w << 16 >> 16) + (x >> 16) * (w >> 16);
#elif TYPE == IS_bf16 && defined(__AVX512BF16__)
    return (sums)_mm512_dpbf16_ps((__m512)s, (__m512bh)x, (__m512bh)w);
#elif TYPE == IS_bf16 && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return (sums)vbfdotq_lane_f32((float32x4_t)s, (bfloat16x8_t)w, (bfloat16x4_t)x, 0);
#elif defined(__aarch64__)
    if (HALVES == 1) return (sums)vfmaq_lane_f32((float32x4_t)s, (float32x4_t)w, (float32x2_t)x, 0);
    s = (sums)vfmaq_lane_f32((float32x4_t)s, (float32x4_t)bf16_half(w, 0), (float32x2_t)x, 0);
    return (sums)vfmaq_lane_f32((float32x4_t)s, (float32x4_t)bf16_half(w, 1), (float32x2_t)x, 1);
#else
    return multiply_add_v((floats)x, (floats)w, s);
#endif
}

/* --- tiles ----------------------------------------------------------------------------------------------------------
 */

/* Leaves the vector as it is, in a register. */
#if defined(__AVX512F__)
#define KEEP(vector) __asm__("" : "+v"(vector))
#elif defined(__x86_64__)
#define KEEP(vector) __asm__("" : "+x"(vector))
#else
#define KEEP(vector) (void)(vector)
#endif

/* With the sanitizers' checks tall tiles of many rows take minutes to compile: there all have few. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum {
    FLAT = 4,      /* vectors of a flat tile */
    TALL = 2,      /* vectors of a tall one */
    FEW_ROWS = 12, /* computed in flat tiles */
    FLAT_ROWS = SANITIZED         ? 2
                : REGISTERS == 32 ? (HALVES == 1 ? 6 : 4)
                : HALVES == 1     ? 3
                                  : 2,
    TALL_ROWS = SANITIZED                        ? 3
                : REGISTERS == 32                ? (HALVES == 1 && !PAIRS ? 14 : 12)
                : HALVES == 1 || WIDE || UNPACKS ? 6
                                                 : 4,
    ROW = GEMM_COLS * 4,   /* bytes of a row of sums */
    PANEL = FLAT * VECTOR, /* bytes of a word of a panel */
    PANELS = ROW / PANEL,
    LINES = PANEL / 64,    /* cache lines of a word */
    CHUNK = 16384 / PANEL, /* words of a flat tile: 16 KiB of weights, a third of a common L1 */
    UNPACKED = 1536,       /* words of x that are made float at a time, at most: 12 KiB */
    NEAR = 1024            /* bytes of prefetch distance from L2 */
};

#if defined(__AVX2__) && !defined(__AVX512F__)
enum { BY_ROW = WIDE };

/* Adds the products of a pair of int8's x and two vectors of weights to s. As one statement it takes two registers
 * beside sums and weights: the compiler takes more, and keeps sums in memory. */
static inline void multiply_row(sums s[TALL], const char *x, const ints w[TALL])
{
    ints product, pair;
    __asm__ volatile("vpbroadcastd %4, %3\n\tvpmaddwd %5, %3, %2\n\tvpaddd %2, %0, %0\n\t"
                     "vpmaddwd %6, %3, %3\n\tvpaddd %3, %1, %1"
                     : "+x"(s[0]), "+x"(s[1]), "=&x"(product), "=&x"(pair)
                     : "m"(*(const int32_t *)(const void *)x), "x"(w[0]), "x"(w[1]));
}
#else
enum { BY_ROW = 0 };

static inline void multiply_row(sums s[TALL], const char *x, const ints w[TALL])
{
    (void)s, (void)x, (void)w;
}
#endif

/* What a tile multiplies. */
typedef struct {
    const char *const *x; /* its rows' first words */
    int parts, words;
    size_t x_step, w_skip; /* bytes from a row's part to the next, and between their weights */
    int fresh;             /* 1: the sums begin at 0 */
    const char *w;         /* weights of the first word and the tile's first column */
    const char *next;      /* prefetched meanwhile */
    size_t next_step;      /* of a flat tile: bytes from a word's prefetch to the next one's */
    char *sum;             /* its sums, at its first column */
    size_t sum_stride;     /* bytes from one row of them to the next */
} tile;

/* Computes a tile of `rows` rows and `wide` vectors. Prefetches `lines` cache lines of t->next with each word, and with
 * `near`, for a tall tile, its own weights. */
static inline __attribute__((always_inline)) void run_tile(const int rows, const int wide, const int lines,
                                                           const int near, const tile *t)
{
    const size_t bytes = 4 * (size_t)t->words;
    const int floats_of_x = UNPACKS && near, x_word = WIDE || floats_of_x ? 8 : 4;
    const char *w = t->w, *next = t->next;
    char *const sum = t->sum;
    const size_t stride = t->sum_stride;
    sums acc[TALL_ROWS][FLAT];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < wide; v++)
            acc[r][v] = t->fresh ? (sums){0} : *(sums *)(sum + (size_t)r * stride + v * VECTOR);
    }
    for (int part = 0; part < t->parts; part++, w += t->w_skip) {
        const char *x[TALL_ROWS];
        UNROLL
        for (int r = 0; r < rows; r++) x[r] = t->x[r] + (size_t)part * t->x_step;
        for (size_t i = 0; i < bytes; i += 4, w += PANEL) {
            UNROLL
            for (int l = 0; l < lines; l++, next += near ? 64 : t->next_step)
                if (near)
                    __builtin_prefetch(next, 0, 2); /* to L2: this block's weights are read in between */
                else
                    __builtin_prefetch(next);
            UNROLL
            for (int v = 0; v < wide; v++)
                if (near && v * VECTOR % 64 == 0) __builtin_prefetch(w + NEAR + v * VECTOR);
            UNROLL
            for (int half = 0; half < (BY_LANE ? 1 : HALVES); half++) {
                const char *at = w;
                ints b[FLAT];
                if (HALVES == 2 && BY_ROW) /* loads each half: registers have no room for both */
                    __asm__ volatile("" : "+r"(at));
                else if (HALVES == 2)
                    __asm__("" : "+r"(at));
                UNROLL
                for (int v = 0; v < wide; v++) b[v] = w_half(*(const ints *)(at + v * VECTOR), half);
                UNROLL
                for (int r = 0; r < rows; r++) {
                    if (BY_ROW && near && wide == TALL) {
                        multiply_row(acc[r], x[r] + i / 4 * x_word + 4 * half, b);
                        continue;
                    }
                    const x_words a = x_half(x[r] + i / 4 * x_word, half, x_word == 8);
                    UNROLL
                    for (int v = 0; v < wide; v++) {
                        acc[r][v] = multiply_add(acc[r][v], a, b[v]);
                        if (x_word == 8) KEEP(acc[r][v]); /* else products wait for their sums, in memory */
                    }
                }
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < wide; v++) *(sums *)(sum + (size_t)r * stride + v * VECTOR) = acc[r][v];
    }
}

/* Narrow tiles, of a block's last columns, prefetch no other weights. */
#define FLAT_TILE(R)                                                                                                   \
    static void flat_##R(const tile *t, int wide, int lines)                                                           \
    {                                                                                                                  \
        enum { ROWS = R <= FLAT_ROWS ? R : 1 };                                                                        \
        if (R > FLAT_ROWS) return; /* no such tile */                                                                  \
        if (wide == 1) run_tile(ROWS, 1, 0, 0, t);                                                                     \
        if (wide == 2) run_tile(ROWS, 2, 0, 0, t);                                                                     \
        if (wide == 4 && lines == 0) run_tile(ROWS, 4, 0, 0, t);                                                       \
        if (wide == 4 && lines == 1) run_tile(ROWS, 4, 1, 0, t);                                                       \
        if (wide == 4 && lines == 2) run_tile(ROWS, 4, 2, 0, t);                                                       \
        if (wide == 4 && lines > 2) run_tile(ROWS, 4, 4, 0, t);                                                        \
    }
#define TALL_TILE(R)                                                                                                   \
    static void tall_##R(const tile *t, int wide, int lines)                                                           \
    {                                                                                                                  \
        enum { ROWS = R <= TALL_ROWS ? R : 1 };                                                                        \
        if (R > TALL_ROWS) return;                                                                                     \
        if (wide == 1) run_tile(ROWS, 1, 0, 1, t);                                                                     \
        if (wide == 2 && lines == 0) run_tile(ROWS, 2, 0, 1, t);                                                       \
        if (wide == 2 && lines == 1) run_tile(ROWS, 2, 1, 1, t);                                                       \
    }
/* clang-format off */
FLAT_TILE(1) FLAT_TILE(2) FLAT_TILE(3) FLAT_TILE(4) FLAT_TILE(5) FLAT_TILE(6)
TALL_TILE(1) TALL_TILE(2) TALL_TILE(3) TALL_TILE(4) TALL_TILE(5) TALL_TILE(6) TALL_TILE(7) TALL_TILE(8) TALL_TILE(9)
TALL_TILE(10) TALL_TILE(11) TALL_TILE(12) TALL_TILE(13) TALL_TILE(14)
typedef void run_rows(const tile *t, int wide, int lines);
static run_rows *const flat_tiles[] = {NULL, flat_1, flat_2, flat_3, flat_4, flat_5, flat_6};
static run_rows *const tall_tiles[] = {NULL, tall_1, tall_2, tall_3, tall_4, tall_5, tall_6, tall_7, tall_8, tall_9,
                                       tall_10, tall_11, tall_12, tall_13, tall_14};
/* clang-format on */

/* Returns the vectors of part `part` of a block's columns, at most `most`: 1, 2 or 4, or 0 if it has none. */
static int gemm_width(int cols, int part, int most)
{
    const int vectors = (cols + LANES - 1) / LANES - part * most;
    return vectors <= 0 ? 0 : vectors >= most ? most : vectors >= 3 ? 4 : vectors;
}

/* Returns a row's first word. */
static const char *gemm_row(const gemm_rows *x, int row)
{
    return x->row ? x->row[row] : x->base + (size_t)row * x->stride;
}

/* Returns the weights of word number `word` of a row, in panel `panel`. */
static const char *weights_at(const gemm_rows *x, const char *block, int panel, int word)
{
    return block + ((size_t)panel * (size_t)x->w_words + (size_t)(x->w_first + word)) * PANEL;
}

/* Computes a panel's sums of all rows in flat tiles. A chunk of the panel is used for all of them while it is in L1;
 * the tiles share the prefetching of the next one: all of them fetch, evenly, or memory rests with those that do not.
 * `next` NULL: the last chunk prefetches nothing. */
static void run_panel(const gemm_rows *x, int rows, const char *block, int panel, const char *next, int prefetches,
                      int wide, char *sum)
{
    const int groups = (rows + FLAT_ROWS - 1) / FLAT_ROWS;
    const int most =
        groups > 1 && REGISTERS == 16 ? CHUNK / 2 : CHUNK; /* the next chunk and x fit in an L1 of 32 KiB */
    const size_t step = groups > LINES ? (size_t)((PANEL + groups - 1) / groups) : 64;
    for (int p = 0; p < x->parts; p++)
        for (int first = 0, count; first < x->words; first += count) {
            count = x->words - first < most ? x->words - first : most;
            const char *w = weights_at(x, block, panel, p * x->w_step + first), *ahead = w + (size_t)count * PANEL;
            if (first + count == x->words)
                ahead = p == x->parts - 1 ? next : weights_at(x, block, panel, (p + 1) * x->w_step);
            for (int g = 0, done = 0, taken; g < groups; g++, done += taken) {
                const int share = groups > LINES ? 1 : LINES * (g + 1) / groups - LINES * g / groups;
                const int lines = prefetches && ahead ? share : 0;
                const char *spaced[FLAT_ROWS];
                taken = (rows - done) / (groups - g);
                for (int r = 0; r < taken; r++)
                    spaced[r] = gemm_row(x, done + r) + (size_t)p * x->x_step + X_WORD * (size_t)first;
                const tile t = {.x = spaced,
                                .parts = 1,
                                .words = count,
                                .fresh = p == 0 && first == 0,
                                .w = w,
                                .next = ahead,
                                .next_step = step,
                                .sum = sum + done * ROW,
                                .sum_stride = ROW};
                flat_tiles[taken](&t, wide, lines);
                if (lines) ahead += step * (size_t)(lines * count);
            }
        }
}

static void run_few(const gemm_rows *x, int rows, const char *block, const char *next, int cols, char *sum)
{
    for (int panel = 0, wide; panel < PANELS && (wide = gemm_width(cols, panel, FLAT)) > 0; panel++) {
        const int last = panel == PANELS - 1 || gemm_width(cols, panel + 1, FLAT) == 0;
        run_panel(x, rows, block, panel, last ? next : weights_at(x, block, panel + 1, 0), next != block, wide,
                  sum + panel * PANEL);
    }
}

#if TYPE == IS_bf16
/* Makes words of rows first .. first+rows-1 float, from byte `at` of each row on. Sets their places in `to`. */
static void unpack_rows(const gemm_rows *x, int first, int rows, size_t at, int words, float *to, const char **spaced)
{
    for (int r = 0; r < rows; r++, to += 2 * words) {
        const char *from = gemm_row(x, first + r) + at;
        int i = 0;
        spaced[r] = (const char *)to;
        for (; i + LANES <= 2 * words; i += LANES) {
            const floats f = from_bf16(from + 2 * i);
            memcpy(to + i, &f, sizeof f);
        }
        for (; i < 2 * words; i++) {
            uint16_t half;
            memcpy(&half, from + 2 * i, sizeof half);
            const uint32_t bits = (uint32_t)half << 16;
            memcpy(to + i, &bits, sizeof bits);
        }
    }
}
#endif

/* Computes a column of tall tiles of t's rows. Prefetches a share of `next`, or nothing if it is NULL. Returns the rest
 * of `next`. */
static const char *run_column(tile t, const gemm_rows *x, int rows, const char *block, int word, const char *next,
                              int cols)
{
    enum { PARTS = GEMM_COLS / (TALL * LANES), OF_PANEL = FLAT / TALL };
    char *const sum = t.sum;
    for (int part = 0; part < PARTS; part++) {
        const int wide = gemm_width(cols, part, TALL);
        t.w = weights_at(x, block, part / OF_PANEL, word) + part % OF_PANEL * TALL * VECTOR;
        t.next = next;
        t.sum = sum + part * TALL * VECTOR;
        if (wide) tall_tiles[rows](&t, wide, next != NULL);
        if (next) next += 64 * (size_t)t.words;
    }
    return next;
}

/* Computes the sums of rows first .. first+rows-1 as a column of tall tiles, `stride` bytes apart. Prefetches a share
 * of `next`, or nothing if it is NULL. Returns the rest of `next`. */
static const char *run_tall(const gemm_rows *x, int first, int rows, const char *block, const char *next, int cols,
                            char *sum, size_t stride)
{
    const char *spaced[TALL_ROWS];
    tile t = {.x = spaced,
              .parts = x->parts,
              .words = x->words,
              .x_step = x->x_step,
              .w_skip = x->parts > 1 ? (size_t)(x->w_step - x->words) * PANEL : 0,
              .fresh = 1,
              .sum = sum,
              .sum_stride = stride};
#if TYPE == IS_bf16
    _Alignas(VECTOR) float unpacked[2 * UNPACKED];
    for (int p = 0; UNPACKS && p < x->parts; p++) /* the sums go on from some words of a part to the next */
        for (int word = 0; word < x->words; word += t.words) {
            const int left = x->words - word;
            t.parts = 1;
            t.words = left < UNPACKED / rows ? left : UNPACKED / rows;
            t.fresh = p == 0 && word == 0;
            unpack_rows(x, first, rows, (p ? (size_t)p * x->x_step : 0) + 4 * (size_t)word, t.words, unpacked, spaced);
            next = run_column(t, x, rows, block, (p ? p * x->w_step : 0) + word, next, cols);
        }
    if (UNPACKS) return next;
#endif
    for (int r = 0; r < rows; r++) spaced[r] = gemm_row(x, first + r);
    return run_column(t, x, rows, block, 0, next, cols);
}

/* Returns 1 if the sums are the results, in whole vectors: tiles then write them. */
static int writes_sums(const gemm_out *o)
{
    return TYPE != IS_int8 && o->raw && o->cols == GEMM_COLS && (uintptr_t)o->y % VECTOR == 0 &&
           o->y_stride % LANES == 0;
}

static void gemm_product(const gemm_rows *x, int rows, const void *block, const void *next, const gemm_out *out)
{
    _Alignas(64) char sum[(int)TALL_ROWS > (int)FEW_ROWS ? TALL_ROWS * ROW : FEW_ROWS * ROW];
    if (rows <= FEW_ROWS) {
        run_few(x, rows, block, next, out->cols, sum);
        gemm_finish(sum, TYPE == IS_int8, SIGNED, rows, 0, out);
        return;
    }
    const int tiles = (rows + TALL_ROWS - 1) / TALL_ROWS;
    const char *ahead = next != block ? next : NULL, *end = ahead ? ahead + (size_t)x->words * ROW : NULL;
    const int straight = writes_sums(out);
    gemm_out o = *out;
    const size_t stride = straight ? 4 * out->y_stride : ROW;
    for (int i = 0, first = 0; i < tiles; i++) {
        const int taken = (rows - first) / (tiles - i);
        if (ahead >= end) ahead = NULL;
        char *to = straight ? (char *)out->y + (size_t)first * stride : sum;
        ahead = run_tall(x, first, taken, block, ahead, out->cols, to, stride);
        o.ahead = i + 1 < tiles ? taken : -first; /* the next tile has as many rows or one more */
        if (!straight) gemm_finish(sum, TYPE == IS_int8, SIGNED, taken, first, &o);
        first += taken;
    }
}

#if TYPE != IS_int8
static float gemm_softmax(float *s, int n, float scale, void *y)
{
#if TYPE == IS_bf16
    return softmax_weights(s, n, scale, y);
#else
    softmax_row(s, n, scale, y);
    return 1;
#endif
}
#endif

extern const gemm_kernel NAME(KERN_TYPE, KERN_ISA);
const gemm_kernel NAME(KERN_TYPE, KERN_ISA) = {
    .unit = TEXT(KERN_ISA),
    .step = 1,
    .panel = PANEL / 4,
    .zero = SIGNED ? 0 : GEMM_ZERO,
    .wide = WIDE,
    .takes_parts = 1,
    .native = HALVES == 1,
    .product = gemm_product,
#if TYPE != IS_int8
    .softmax = gemm_softmax,
#endif
};
