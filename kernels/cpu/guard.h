/* Guarded calls of oneDNN, a C++ library not written for memory that runs out. It lets std::bad_alloc out of its C
 * interface, and uses the results of posix_memalign and mmap unchecked. An exception in a C caller ends the process,
 * and so does address 0.
 *
 * guard_call is an exception-catching frame for C. The call is left, running the destructors of all C++ frames on the
 * way, and returns `caught`. In such a call a failing allocation of oneDNN throws std::bad_alloc, whatever oneDNN does
 * with NULL. omp_get_max_threads returns 1 there: oneDNN has no threads but ours. For that guard_open replaces entries
 * in libdnnl's import table. Other users of libdnnl do not notice: outside a guard_call the replacements do what the
 * originals did.
 *
 * Tested with oneDNN 2.6.3 and libstdc++. Another C++ library throws no std::bad_alloc of ours. A oneDNN that is linked
 * into libmar, or whose imports are already replaced, stays unchanged. */
#ifndef KERNELS_CPU_GUARD_H
#define KERNELS_CPU_GUARD_H

/* Replaces the imports of the library that contains this address, once per process. Does nothing where that or
 * guard_call is unsupported (no ELF, neither x86-64 nor aarch64). */
void guard_open(const void *address);

/* Calls body(arg) and returns its result, or `caught` if an exception leaves it. A C function that is left frees
 * nothing and unlocks nothing. Guarded calls may be nested. */
int guard_call(int (*body)(void *arg), void *arg, int caught);

#endif
