/* What an AMX multiplication costs by the tiles that are in use and the loads beside it:
 *
 *     cmake --build build/release --target amx_tiles && build/release/amx_tiles
 *
 * Each line is an arrangement of sums (rows x columns of tiles), with the tiles that it uses and the tiles that it
 * writes, by loads and multiplications, for each multiplication. Operands are in L1. Printed are the least, the median
 * and the greatest nanoseconds a multiplication of 100 runs, between which the other thread of the core may have begun
 * or ended something. */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { RUNS = 100, STEPS = 20000, ROW = 256 /* bytes from a row of weights to the next, as in kernels/cpu/gemm/gemm.h */ };

static void configure(int tiles)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int t = 0; t < tiles; t++) c.row_bytes[t] = 64, c.rows[t] = 16;
    __asm__ volatile("" ::"r"(&c) : "memory");
    _tile_loadconfig(&c);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A function that returns the nanoseconds of a multiplication. w moves over 16 KiB. */
#define ARRANGEMENT(name, tiles, multiplications, body)                                                                \
    static double name(const char *x, const char *weights)                                                             \
    {                                                                                                                  \
        configure(tiles);                                                                                              \
        const double begin = now();                                                                                    \
        for (int i = 0; i < STEPS; i++) {                                                                              \
            const char *w = weights + (i & 3) * 16 * ROW;                                                              \
            __asm__ volatile("" ::"r"(x), "r"(w) : "memory");                                                          \
            body                                                                                                       \
        }                                                                                                              \
        const double seconds = now() - begin;                                                                          \
        _tile_release();                                                                                               \
        return 1e9 * seconds / STEPS / (multiplications);                                                              \
    }
#define X(t, group)  _tile_loadd(t, x + (group)*1024, 64);
#define W(t, column) _tile_loadd(t, w + (column)*64, ROW);
#define M(sum, a, b) _tile_dpbf16ps(sum, a, b);

ARRANGEMENT(no_loads, 6, 4, M(0, 4, 5) M(1, 4, 5) M(2, 4, 5) M(3, 4, 5))
ARRANGEMENT(two_by_one, 4, 2, W(3, 0) X(2, 0) M(0, 2, 3) X(2, 1) M(1, 2, 3))
ARRANGEMENT(three_by_one, 5, 3, W(4, 0) X(3, 0) M(0, 3, 4) X(3, 1) M(1, 3, 4) X(3, 2) M(2, 3, 4))
ARRANGEMENT(one_by_four, 6, 4, X(4, 0) W(5, 0) M(0, 4, 5) W(5, 1) M(1, 4, 5) W(5, 2) M(2, 4, 5) W(5, 3) M(3, 4, 5))
ARRANGEMENT(two_by_two, 7, 4, W(6, 0) X(4, 0) M(0, 4, 6) X(5, 1) M(1, 5, 6) W(6, 1) M(2, 4, 6) M(3, 5, 6))
ARRANGEMENT(one_by_four_wide, 8, 4, X(4, 0) W(5, 0) M(0, 4, 5) W(6, 1) M(1, 4, 6) W(7, 2) M(2, 4, 7) W(5, 3) M(3, 4, 5))

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    static const struct {
        const char *name;
        double (*run)(const char *x, const char *w);
        double writes;
        int tiles;
    } all[] = {{"4 sums, no loads", no_loads, 1, 6},
               {"2 x 1, one tile of weights", two_by_one, 5.0 / 2, 4},
               {"3 x 1, one tile of weights", three_by_one, 7.0 / 3, 5},
               {"1 x 4, one tile of weights", one_by_four, 9.0 / 4, 6},
               {"2 x 2, one tile of weights", two_by_two, 8.0 / 4, 7},
               {"1 x 4, three tiles of weights", one_by_four_wide, 9.0 / 4, 8}};
    enum { ALL = sizeof all / sizeof *all, ASK = 0x1023, TILE_DATA = 18 };
    static double ns[ALL][RUNS];
    static _Alignas(64) char x[4096], w[16384];
    if (syscall(SYS_arch_prctl, ASK, TILE_DATA) != 0) {
        fputs("amx_tiles: this processor or system has no AMX\n", stderr);
        return 1;
    }
    for (int r = 0; r < RUNS; r++) /* in turns */
        for (int a = 0; a < ALL; a++) ns[a][r] = all[a].run(x, w);
    printf("%-32s %5s %8s %8s %8s %8s\n", "sums", "tiles", "writes", "least", "median", "greatest");
    for (int a = 0; a < ALL; a++) {
        qsort(ns[a], RUNS, sizeof *ns[a], by_size);
        printf("%-32s %5d %8.2f %8.1f %8.1f %8.1f\n", all[a].name, all[a].tiles, all[a].writes, ns[a][0],
               ns[a][RUNS / 2], ns[a][RUNS - 1]);
    }
    return 0;
}
