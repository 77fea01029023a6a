/* Controls of the simulated GPU for tests: refusals, and counts of its calls. The functions are weak in C. A real GPU
 * has no such functions, so there their addresses are NULL. */
#ifndef CUDAHOST_CONTROL_H
#define CUDAHOST_CONTROL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#define CUDAHOST_CALL
#else
#define CUDAHOST_CALL __attribute__((weak))
#endif

/* Makes calls of this thread fail after `calls` more of them. They are the calls that can fail on a working GPU:
 * allocations, copies, launches, new streams, events, graphs. With a negative number no call fails. */
CUDAHOST_CALL void cudahost_fail_after(long calls);

/* Makes every call that reaches the device fail with this error, on all threads; 0: none does. Memory can still be
 * freed. */
CUDAHOST_CALL void cudahost_lose(int device, int error);

/* Features that can be refused, for all threads. */
enum {
    CUDAHOST_COOPERATIVE = 1 << 0,          /* cooperative launches */
    CUDAHOST_COOPERATIVE_CAPTURED = 1 << 1, /* cooperative launches that are captured */
    CUDAHOST_CLUSTER_ROOM = 1 << 2,         /* room for clusters (cudaOccupancyMaxActiveClusters) */
    CUDAHOST_CLUSTERS = 1 << 3,             /* launches in clusters */
    CUDAHOST_BEGIN_CAPTURE = 1 << 4,
    CUDAHOST_END_CAPTURE = 1 << 5,
    CUDAHOST_INSTANTIATE = 1 << 6,
    CUDAHOST_GRAPH_LAUNCH = 1 << 7,
    CUDAHOST_PINNED = 1 << 8,          /* pinned memory */
    CUDAHOST_CURRENT_CONTEXT = 1 << 9, /* reports of the thread's current context */
};
/* Refuses a set of these from now on; 0 refuses nothing. The refusals of clusters apply to clusters of at least
 * `cluster` blocks; 2 means all. */
CUDAHOST_CALL void cudahost_refuse(unsigned what, int cluster);
/* Refuses each of a set of these once, at its next request. Returns those of the last set that were not requested. */
CUDAHOST_CALL unsigned cudahost_refuse_once(unsigned what);

/* Returns the number of allocations, streams, events, graphs and handles. */
CUDAHOST_CALL long cudahost_objects(void);
/* Return the number of graphs instantiated, and of graphs launched, since the program began. */
CUDAHOST_CALL long cudahost_instantiated(void);
CUDAHOST_CALL long cudahost_graph_launches(void);
/* The first returns the number of kernels and products run, including those in graphs. The second returns the number of
 * the host's waits for all work of a stream. */
CUDAHOST_CALL long cudahost_launches(void);
CUDAHOST_CALL long cudahost_waits(void);
/* Returns the bytes that cudaMemset and cudaMemsetAsync have set since the program began. */
CUDAHOST_CALL size_t cudahost_set_bytes(void);
/* Returns the number of different kernels in cooperative launches since the last call. */
CUDAHOST_CALL int cudahost_launched_together(void);
/* Returns how many launches since the last call were of kernels whose name contains the text, in clusters of so many
 * blocks; 0: of any. */
CUDAHOST_CALL long cudahost_ran(const char *kernel, unsigned cluster);
/* Returns the number of frees since the program began while newer work was pending (MAR_CUDAHOST_LAZY=1). */
CUDAHOST_CALL long cudahost_hasty_frees(void);
/* Sets what cuBLASLt's heuristic offers from now on: CUDAHOST_CANDIDATES working algorithms; none; such that always
 * fail; such that refuse other rows than they were chosen for; such that all but number CUDAHOST_FASTEST are slow. */
enum {
    CUDAHOST_ALGORITHM,
    CUDAHOST_NO_ALGORITHM,
    CUDAHOST_BROKEN_ALGORITHM,
    CUDAHOST_EXACT_ALGORITHM,
    CUDAHOST_SLOW_ALGORITHM
};
enum { CUDAHOST_CANDIDATES = 3, CUDAHOST_FASTEST = 1 };
CUDAHOST_CALL void cudahost_algorithms(int offered);
/* Returns how often the heuristic was asked since the program began. *others, if not NULL, gets the number of
 * algorithms that it returned besides the first. */
CUDAHOST_CALL long cudahost_choices(long *others);
/* Sets the polls after which a wait for other blocks gives up (GRID_PATIENCE of kernels/cuda/ptx.h); UINT_MAX at first.
 */
CUDAHOST_CALL void cudahost_give_up_after(unsigned polls);
/* The last block (or cluster) of a cooperative launch begins only when the others have ended, or have done nothing but
 * poll, so many times. 0: it begins as the others; ULONG_MAX: any number of times. */
CUDAHOST_CALL void cudahost_hold_last(unsigned long polls);
/* In cooperative launches a thread of this block that has polled runs on only when the others have done nothing but
 * poll for a while. UINT_MAX, at first: no block. */
CUDAHOST_CALL void cudahost_slow_block(unsigned block);
/* Returns the bytes of global memory that kernels have read before they waited for the kernel before. Only the check
 * for races counts them. */
CUDAHOST_CALL size_t cudahost_early_bytes(void);
/* Returns the devices on which a context was made since the last call: bit i is device i. */
CUDAHOST_CALL unsigned cudahost_contexts(void);

#ifdef __cplusplus
}
#endif

#endif
