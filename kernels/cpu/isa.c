/* Chooses among the compiled row kernels and products by the processor. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern const kern_rows kern_rows_generic;
#if defined(__x86_64__)
extern const kern_rows kern_rows_avx2, kern_rows_avx512;
extern const bf16_dot bf16_dot_avx512, bf16_dot_amx;
extern const direct_conv direct_conv_f32, direct_conv_bf16;
#endif

const kern_rows *kern_rows_best(void)
{
#if defined(__x86_64__)
    const char *wish = getenv("MAR_ISA");
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (wish && !strcmp(wish, "generic")) return &kern_rows_generic;
    if (wish && !strcmp(wish, "avx2")) avx512 = 0;
    if (avx512) return &kern_rows_avx512;
    if (avx2) return &kern_rows_avx2;
#endif
    return &kern_rows_generic;
}

#if defined(__x86_64__)
/* Whether this process may use AMX. The processor has it, and Linux grants it to those who ask. */
static int may_use_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    const int there = d >> 22 & 1u && d >> 24 & 1u; /* AMX-BF16, AMX-TILE */
    return there && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static int wishes_less_than_amx(void)
{
    const char *wish = getenv("MAR_ISA");
    return wish && !strcmp(wish, "avx512");
}
#endif

const char *cpu_bf16_unit(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16")) return NULL;
    return !wishes_less_than_amx() && may_use_amx() ? "amx_bf16" : "avx512_bf16";
#else
    return NULL;
#endif
}

const bf16_dot *bf16_dot_best(void)
{
#if defined(__x86_64__)
    const char *unit = cpu_bf16_unit();
    if (!unit || kern_rows_best() != &kern_rows_avx512) return NULL;
    return strcmp(unit, "amx_bf16") == 0 ? &bf16_dot_amx : &bf16_dot_avx512;
#else
    return NULL;
#endif
}

const direct_conv *direct_conv_best(int bf16)
{
#if defined(__x86_64__)
    if (bf16) return bf16_dot_best() == &bf16_dot_avx512 ? &direct_conv_bf16 : NULL;
    if (kern_rows_best() == &kern_rows_avx512) return &direct_conv_f32;
#endif
    (void)bf16;
    return NULL;
}
