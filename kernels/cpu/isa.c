/* Selects row kernels and GEMM kernels by the processor. */
#include "kernels/cpu/cached.h"
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern const kern_rows kern_rows_generic;
#if defined(__x86_64__)
extern const kern_rows kern_rows_avx2, kern_rows_avx512;
extern const gemm_kernel dot_bf16_avx512, dot_bf16_amx, dot_int8_avx512, dot_int8_amx, dot_int8_avxvnni;
extern const direct_conv direct_conv_f32, direct_conv_bf16;
cached_attend kern_cached_amx;
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
typedef enum { AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25 } amx_part; /* bits of CPUID 7.0's edx */

/* Returns 1 if this process may use AMX and this part of it. The processor must have it; Linux grants it on request. */
static int may_use(amx_part part)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d;
    const char *wish = getenv("MAR_ISA");
    if (kern_rows_best() != &kern_rows_avx512 || (wish && !strcmp(wish, "avx512"))) return 0;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    return d & AMX_TILE && d & part && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static int has_avx_vnni(void)
{
    unsigned a, b, c, d;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(1));
    return kern_rows_best() != &kern_rows_generic && a >> 4 & 1u;
}
#endif

const char *cpu_bf16_unit(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16")) return NULL;
    return may_use(AMX_BF16) ? "amx_bf16" : "avx512_bf16";
#else
    return NULL;
#endif
}

const gemm_kernel *dot_bf16_best(void)
{
#if defined(__x86_64__)
    const char *unit = cpu_bf16_unit();
    if (!unit || kern_rows_best() != &kern_rows_avx512) return NULL;
    return strcmp(unit, "amx_bf16") == 0 ? &dot_bf16_amx : &dot_bf16_avx512;
#else
    return NULL;
#endif
}

cached_attend *cached_attend_best(const kern_rows *rows)
{
#if defined(__x86_64__)
    if (dot_bf16_best() == &dot_bf16_amx) return kern_cached_amx;
#endif
    return rows->attend;
}

const gemm_kernel *dot_int8_best(const char **unit)
{
    *unit = NULL;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (may_use(AMX_INT8)) {
        *unit = "amx_int8";
        return &dot_int8_amx;
    }
    if (kern_rows_best() == &kern_rows_avx512 && __builtin_cpu_supports("avx512vnni")) {
        *unit = "avx512_vnni";
        return &dot_int8_avx512;
    }
    if (has_avx_vnni()) {
        *unit = "avx_vnni";
        return &dot_int8_avxvnni;
    }
#endif
    return NULL;
}

const direct_conv *direct_conv_best(int bf16)
{
#if defined(__x86_64__)
    if (bf16) return dot_bf16_best() == &dot_bf16_avx512 ? &direct_conv_bf16 : NULL;
    if (kern_rows_best() == &kern_rows_avx512) return &direct_conv_f32;
#endif
    (void)bf16;
    return NULL;
}
