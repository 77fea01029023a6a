/* Calls of oneDNN, which is C++ and was not written for memory that runs out: it lets std::bad_alloc out of its C
 * interface, and uses what posix_memalign and mmap return without a look. An exception that meets a C caller ends the
 * process, and so does the address 0.
 *
 * guard_call is a frame that catches exceptions, for C: what is called in it is left, with the destructors of all C++
 * frames on the way, and the call returns `caught`. In such a call an allocation of oneDNN's that fails throws
 * std::bad_alloc, whatever oneDNN would do with a NULL, and omp_get_max_threads says 1: oneDNN has no threads but ours.
 * For that guard_open puts functions of ours into the table of what libdnnl imports, which other users of libdnnl do
 * not notice: outside a guard_call these do what the ones in their place did. This was tried with oneDNN 2.6.3 and
 * libstdc++. Another C++ library throws no std::bad_alloc of ours, and a oneDNN that is linked into libmar, or whose
 * imports are another's already, stays as it is. */
#ifndef KERNELS_CPU_GUARD_H
#define KERNELS_CPU_GUARD_H

/* Replaces the imports of the library that has this address in it, once in a process. Where that or guard_call is not
 * known how to be done (no ELF, neither x86-64 nor aarch64), it does nothing. */
void guard_open(const void *address);

/* Calls body(arg) and returns what it returns, or `caught` if an exception leaves it. A C function that is left frees
 * nothing and unlocks nothing. Guarded calls may be nested. */
int guard_call(int (*body)(void *arg), void *arg, int caught);

#endif
