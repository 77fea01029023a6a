/* For tests: what the imagined GPU is told to refuse, and what it has been asked for. The functions are weak in C,
 * because a GPU has nothing like them: there their addresses are NULL. */
#ifndef CUDAHOST_CONTROL_H
#define CUDAHOST_CONTROL_H

#ifdef __cplusplus
extern "C" {
#define CUDAHOST_CALL
#else
#define CUDAHOST_CALL __attribute__((weak))
#endif

/* After `calls` more calls of this thread that can fail on a GPU that works (allocations, copies, launches, new
 * streams, events, graphs), they fail; a negative number: none does. */
CUDAHOST_CALL void cudahost_fail_after(long calls);

/* What may be refused, whatever thread asks. */
enum {
    CUDAHOST_COOPERATIVE = 1 << 0,          /* cooperative launches */
    CUDAHOST_COOPERATIVE_CAPTURED = 1 << 1, /* cooperative launches that are captured */
    CUDAHOST_CLUSTER_ROOM = 1 << 2,         /* there is room for no cluster (cudaOccupancyMaxActiveClusters) */
    CUDAHOST_CLUSTERS = 1 << 3,             /* launches in clusters */
    CUDAHOST_CLUSTERS_CAPTURED = 1 << 4,    /* launches in clusters that are captured */
    CUDAHOST_L2_POLICY = 1 << 5,            /* launches with an access policy window */
    CUDAHOST_BEGIN_CAPTURE = 1 << 6,
    CUDAHOST_END_CAPTURE = 1 << 7,
    CUDAHOST_INSTANTIATE = 1 << 8,
    CUDAHOST_GRAPH_LAUNCH = 1 << 9,
    CUDAHOST_PINNED = 1 << 10,          /* pinned memory */
    CUDAHOST_CURRENT_CONTEXT = 1 << 11, /* to tell the thread's current context */
};
/* Refuses a set of these from now on; 0: nothing. CUDAHOST_CLUSTER_ROOM and the like are of clusters of at least
 * `cluster` blocks, 2 to mean all. */
CUDAHOST_CALL void cudahost_refuse(unsigned what, int cluster);
/* Refuses each of a set of these once, when it is asked for next. Returns those of the last set that were not. */
CUDAHOST_CALL unsigned cudahost_refuse_once(unsigned what);

/* How much there is: allocations, streams, events, graphs, handles. */
CUDAHOST_CALL long cudahost_objects(void);
/* Graphs instantiated, and graphs launched, since the program began. */
CUDAHOST_CALL long cudahost_instantiated(void);
CUDAHOST_CALL long cudahost_graph_launches(void);
/* Kernels and products that have run, in graphs, too; and how often the host has waited for all work of a stream. */
CUDAHOST_CALL long cudahost_launches(void);
CUDAHOST_CALL long cudahost_waits(void);
/* How many different kernels have been captured in cooperative launches since the last call. */
CUDAHOST_CALL int cudahost_captured_together(void);
/* Memory freed while work that is younger was still to be done on any stream, since the program began
 * (MAR_CUDAHOST_LAZY=1). */
CUDAHOST_CALL long cudahost_hasty_frees(void);
/* What cuBLASLt's heuristic offers from now on: an algorithm, none, or one that no product can be made with. */
enum { CUDAHOST_ALGORITHM, CUDAHOST_NO_ALGORITHM, CUDAHOST_BROKEN_ALGORITHM };
CUDAHOST_CALL void cudahost_algorithms(int offered);
/* The devices on which somebody has made a context, since the last call: bit i is device i. */
CUDAHOST_CALL unsigned cudahost_contexts(void);

#ifdef __cplusplus
}
#endif

#endif
