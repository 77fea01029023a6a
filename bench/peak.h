/* Peaks of an x86-64 processor: products in registers only, for each type and instruction set of kernels/cpu/gemm. */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include "kernels/cpu/gemm/gemm.h"

#include <math.h>
#include <string.h>

/* Defines a loop of twelve independent sums in registers; \r is a sum's number. */
#define LOOP(name, instruction)                                                                                        \
    static void name(long n)                                                                                           \
    {                                                                                                                  \
        __asm__ volatile("vzeroall\n1:\n.irp r,0,1,2,3,4,5,6,7,8,9,10,11\n" instruction                                \
                         "\n.endr\ndec %0\njnz 1b\nvzeroupper\n"                                                       \
                         : "+r"(n)                                                                                     \
                         :                                                                                             \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",       \
                           "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                      \
    }
LOOP(fma512, "vfmadd231ps %%zmm14, %%zmm15, %%zmm\\r")
LOOP(fma256, "vfmadd231ps %%ymm14, %%ymm15, %%ymm\\r")
LOOP(fma128, "movaps %%xmm14, %%xmm13; mulps %%xmm15, %%xmm13; addps %%xmm13, %%xmm\\r")
LOOP(dpbf16, "vdpbf16ps %%zmm14, %%zmm15, %%zmm\\r")
LOOP(vnni512, "vpdpbusd %%zmm14, %%zmm15, %%zmm\\r")
LOOP(vnni256, "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm\\r")
LOOP(madd512, "vpmaddwd %%zmm14, %%zmm15, %%zmm13; vpaddd %%zmm13, %%zmm\\r, %%zmm\\r")
LOOP(madd256, "vpmaddwd %%ymm14, %%ymm15, %%ymm13; vpaddd %%ymm13, %%ymm\\r, %%ymm\\r")
LOOP(madd128, "movdqa %%xmm14, %%xmm13; pmaddwd %%xmm15, %%xmm13; paddd %%xmm13, %%xmm\\r")

/* Loops for a kernel's types, and the products that an instruction, or a pair of them, adds. bf16 may be f32. */
static const struct {
    const char *unit;
    void (*loop[3])(long n);
    int products[3];
} peaks[] = {
    {"avx512_bf16", {fma512, dpbf16, vnni512}, {16, 32, 64}}, {"avx512_vnni", {fma512, fma512, vnni512}, {16, 16, 64}},
    {"avx512", {fma512, fma512, madd512}, {16, 16, 32}},      {"avx_vnni", {fma256, fma256, vnni256}, {8, 8, 32}},
    {"avx2", {fma256, fma256, madd256}, {8, 8, 16}},          {"generic", {fma128, fma128, madd128}, {4, 4, 8}}};

/* Returns a thread's peak, operations a second, two for each multiply-add; 0 if it is unknown. now returns seconds. */
static double peak_of(const char *unit, gemm_type type, double (*now)(void))
{
    enum { ITERATIONS = 200000, RUNS = 30 };
    size_t i = 0;
    double least = INFINITY;
    while (i < sizeof peaks / sizeof *peaks && strcmp(peaks[i].unit, unit) != 0) i++;
    if (i == sizeof peaks / sizeof *peaks) return 0;
    for (int r = 0; r < RUNS; r++) {
        const double begin = now();
        peaks[i].loop[type](ITERATIONS);
        least = fmin(least, now() - begin);
    }
    return 24.0 * ITERATIONS * peaks[i].products[type] / least;
}

#endif
