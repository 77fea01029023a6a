/* Unrolling, by each compiler's pragma: with GCC's clang 14 leaves large tiles in a loop, and their sums in memory. */
#ifndef BASE_UNROLL_H
#define BASE_UNROLL_H

/* Unrolls the whole loop below it, which has at most 16 turns: the vectors that it indexes can then be in registers. */
#if defined(__clang__)
#if !__has_feature(address_sanitizer) /* with its checks tiles would take long to compile */
#define UNROLL _Pragma("clang loop unroll(full)")
#endif
#endif
#ifndef UNROLL
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
