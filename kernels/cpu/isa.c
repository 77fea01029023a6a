/* Selects kernels by the processor. */
#include "kernels/cpu/cached.h"
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* An instruction set, and what it computes. The sets of isa_set are in order; MAR_ISA names the last that may be used.
 */
typedef struct {
    int set;                  /* isa_set */
    const gemm_kernel *of[4]; /* kernel of each gemm_type; NULL: one further down */
} choice;
extern const kern_rows kern_rows_generic;
extern const gemm_kernel gemm_f32_generic, gemm_bf16_generic, gemm_int8_generic, gemm_int4_generic;

#if defined(__x86_64__)
typedef enum { GENERIC, AVX2, AVX_VNNI, AVX512, AVX512_VNNI, AVX512_BF16, AMX, SETS } isa_set;
static const char *const names[SETS] = {"generic", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"};
extern const kern_rows kern_rows_avx2, kern_rows_avx512;
extern const gemm_kernel gemm_f32_avx2, gemm_f32_avx512;
extern const gemm_kernel gemm_bf16_avx2, gemm_bf16_avx512, gemm_bf16_avx512_bf16, gemm_bf16_amx_bf16;
extern const gemm_kernel gemm_int8_avx2, gemm_int8_avx_vnni, gemm_int8_avx512, gemm_int8_avx512_vnni;
extern const gemm_kernel gemm_int8_avx512_bf16, gemm_int8_amx_int8;
extern const gemm_kernel gemm_int4_avx2, gemm_int4_avx_vnni, gemm_int4_avx512, gemm_int4_avx512_vnni;
extern const gemm_kernel gemm_int4_avx512_bf16;
cached_attend kern_cached_amx;
static const choice choices[] = {
    {AMX, {NULL, &gemm_bf16_amx_bf16, &gemm_int8_amx_int8, NULL}},
    {AVX512_BF16, {NULL, &gemm_bf16_avx512_bf16, &gemm_int8_avx512_bf16, &gemm_int4_avx512_bf16}},
    {AVX512_VNNI, {NULL, NULL, &gemm_int8_avx512_vnni, &gemm_int4_avx512_vnni}},
    {AVX512, {&gemm_f32_avx512, &gemm_bf16_avx512, &gemm_int8_avx512, &gemm_int4_avx512}},
    {AVX_VNNI, {NULL, NULL, &gemm_int8_avx_vnni, &gemm_int4_avx_vnni}},
    {AVX2, {&gemm_f32_avx2, &gemm_bf16_avx2, &gemm_int8_avx2, &gemm_int4_avx2}},
    {GENERIC, {&gemm_f32_generic, &gemm_bf16_generic, &gemm_int8_generic, &gemm_int4_generic}}};
#elif defined(__aarch64__)
typedef enum { GENERIC, DOTPROD, BF16, SETS } isa_set;
static const char *const names[SETS] = {"generic", "dotprod", "bf16"};
extern const gemm_kernel gemm_int8_dotprod, gemm_int4_dotprod, gemm_bf16_bf16;
static const choice choices[] = {
    {BF16, {NULL, &gemm_bf16_bf16, NULL, NULL}},
    {DOTPROD, {NULL, NULL, &gemm_int8_dotprod, &gemm_int4_dotprod}},
    {GENERIC, {&gemm_f32_generic, &gemm_bf16_generic, &gemm_int8_generic, &gemm_int4_generic}}};
#else
typedef enum { GENERIC, SETS } isa_set;
static const char *const names[SETS] = {"generic"};
static const choice choices[] = {
    {GENERIC, {&gemm_f32_generic, &gemm_bf16_generic, &gemm_int8_generic, &gemm_int4_generic}}};
#endif

/* Returns 1 if MAR_ISA permits the set. */
static int is_wanted(isa_set set)
{
    const char *wish = getenv("MAR_ISA");
    for (int i = 0; wish && i < (int)set; i++)
        if (strcmp(wish, names[i]) == 0) return 0;
    return 1;
}

#if defined(__x86_64__)
typedef enum { AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25 } amx_part; /* bits of CPUID 7.0's edx */

/* Returns 1 if the processor has AMX and this part of it. Linux grants it on request. */
static int has_amx(amx_part part)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    return d & AMX_TILE && d & part && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static int has_avx_vnni(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || a < 1) return 0; /* a: the last subleaf */
    __get_cpuid_count(7, 1, &a, &b, &c, &d);
    return a >> 4 & 1u;
}

static int isa_has(isa_set set)
{
    __builtin_cpu_init();
    switch (set) {
    case AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case AVX_VNNI:
        return isa_has(AVX2) && has_avx_vnni();
    case AVX512:
        return isa_has(AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    case AVX512_VNNI:
        return isa_has(AVX512) && __builtin_cpu_supports("avx512vnni");
    case AVX512_BF16:
        return isa_has(AVX512_VNNI) && __builtin_cpu_supports("avx512bf16");
    case AMX:
        return isa_has(AVX512_BF16) && has_amx(AMX_BF16) && has_amx(AMX_INT8);
    default:
        return 1;
    }
}
#elif defined(__aarch64__)
static int isa_has(isa_set set)
{
    if (set == DOTPROD) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    if (set == BF16) return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
    return 1;
}
#else
static int isa_has(isa_set set)
{
    return set == GENERIC;
}
#endif

static int may_use(isa_set set)
{
    return is_wanted(set) && isa_has(set);
}

const kern_rows *kern_rows_best(void)
{
#if defined(__x86_64__)
    if (!may_use(AVX2)) return &kern_rows_generic;
    return may_use(AVX512) ? &kern_rows_avx512 : &kern_rows_avx2;
#else
    return &kern_rows_generic;
#endif
}

const gemm_kernel *gemm_best(gemm_type type)
{
    int i = 0;
    while (!choices[i].of[type] || !may_use((isa_set)choices[i].set)) i++; /* ends at the last */
    return choices[i].of[type];
}

cached_attend *cached_attend_best(const kern_rows *rows)
{
#if defined(__x86_64__)
    if (gemm_best(GEMM_BF16) == &gemm_bf16_amx_bf16) return kern_cached_amx;
#endif
    return rows->attend;
}
