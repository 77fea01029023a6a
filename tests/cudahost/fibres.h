/* Private to the shim: launches. fibres.cpp runs them for runtime.cpp and race.cpp. */
#ifndef CUDAHOST_FIBRES_H
#define CUDAHOST_FIBRES_H

#include "cuda_runtime.h"

#include <string>
#include <vector>

#if defined(MAR_CUDAHOST_ASAN)
#define CUDAHOST_ASAN 1
#else
#define CUDAHOST_ASAN 0
#endif

struct fibre_stack;

/* A copy of 16 bytes to shared memory that nobody has waited for. */
struct device_copy {
    void *to;
    const void *from;
    unsigned group; /* of the thread's groups, from 0 */
    void *code;
    const char *file;
    int line;
};

/* A product of a warpgroup that nobody has waited for. */
struct device_product {
    cudahost_product kind;
    unsigned n; /* columns */
    float *d;
    const uint32_t *from; /* A: where the registers are at the wait; NULL: in x */
    uint32_t a[4];
    const void *x, *tile;
    unsigned k;
    int add;
};

/* A device thread. The fields that each meeting of a warp reads, for all lanes, are in one cache line. */
struct alignas(64) device_thread : cudahost_thread {
    unsigned number; /* in its block */
    /* reason and place of its wait */
    cudahost_wait wait;
    const char *file;
    int line;
    unsigned mask;
    fibre_stack *stack;
    device_thread *next; /* in a list of waiting threads */
    bool exited;
    uint64_t got[32]; /* values of the lanes of a partial mask */
    std::vector<device_copy> copies;
    unsigned groups; /* closed groups of copies */
    device_product products[8];
    unsigned n_products;
    enum { CLOSED, OPEN, COMMITTED } multiplies; /* of products, since the last wait */
    bool created;                                /* it has created barriers, and has not told the cluster */
    bool waited;                                 /* for the launch before */
    bool unfenced; /* it has copied to shared memory, and has no fence for products of warpgroups since */
};

/* Threads that wait for each other. */
struct fibre_barrier {
    unsigned expected, arrived, exited;
    int value, result;
    cudahost_wait kind;
    const char *file;
    int line;
    device_thread *first, *last;
};

struct device_warp {
    unsigned exists, exited, waits, ready; /* bit masks of lanes */
    unsigned last;                         /* lane at which the search for the next begins */
    bool queued;
    device_thread *lanes;
    uint64_t gives[32], gave[32];
};

struct device_cluster {
    fibre_barrier barrier;
    std::vector<struct cudahost_block *> blocks; /* by rank */
};

struct cudahost_block {
    std::vector<device_thread> threads;
    std::vector<device_warp> warps;
    fibre_barrier barrier, teams[CUDAHOST_TEAMS];
    uint3 index;
    unsigned unfenced; /* threads that are */
    unsigned char *shared;
    device_cluster *cluster;
    unsigned rank; /* in the cluster */
    void *race;    /* data of race.cpp */
};

struct device_launch {
    const void *kernel;
    const cudahost_call *call;
    dim3 grid, block, cluster;
    size_t shared_bytes;
    bool together; /* all blocks run at once: cooperative, or in clusters */
    bool early;    /* by programmatic dependent launch: the launches before may still run */
};

/* Runs a launch to its end. */
void fibre_run(const device_launch *launch);
extern const device_launch *fibre_running;
static inline const device_launch *fibre_launch() /* returns the running launch */
{
    return fibre_running;
}
/* Returns which of n events is next: by MAR_CUDAHOST_ORDER the first, the last, or any. */
size_t fibre_pick(size_t n);
/* Returns the copies of tiles that are under way (hopper.cpp). */
size_t hopper_tiles();
/* Whether launches run in part (cudahost_hold_last): their barriers give up, and order nothing. */
extern bool fibre_holds;
/* The stack of the running thread. */
extern uintptr_t fibre_bottom;
extern size_t fibre_bytes;

/* Return "kernel 'name', block (x,y,z), thread (x,y,z)" of a thread, and the symbol at a code address. */
std::string fibre_describe(const device_thread *t);
std::string fibre_symbol(const void *code, bool with_line);
/* Reports an error of a thread, and aborts. */
[[noreturn]] void fibre_fail(const device_thread *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Events for the check for races (race.cpp); NULL without it. */
struct race_hooks {
    void (*block_begins)(cudahost_block *b);
    void (*block_ends)(cudahost_block *b);
    void (*launch_ends)();
    void (*block_syncs)(cudahost_block *b); /* all threads of the block have arrived */
    void (*cluster_syncs)(device_cluster *c);
    void (*team_syncs)(cudahost_block *b, unsigned warps); /* all threads of these warps have arrived */
    void (*warp_syncs)(cudahost_block *b, unsigned warp, unsigned mask);
    void (*atomic)(void *p, size_t bytes, void *code);
    void (*copy_begins)(const device_copy *c);
    void (*copy_ends)(const device_copy *c);
    void (*memory_ends)(void *p); /* of device memory */
    void (*thread_fences)();      /* the running thread */
    /* A thread arrives at a barrier of shared memory, or has waited at it; starts to copy a tile. */
    void (*barrier)(void *p, int arrives);
    void (*tile_reads)(const void *from, size_t bytes);
    void (*tile_writes)(void *to, size_t bytes);
};
extern const race_hooks *cudahost_race;

#endif
