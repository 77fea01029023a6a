/* Private to the shim: launches, as fibres.cpp runs them for runtime.cpp and race.cpp. */
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

/* A device thread. What each meeting of a warp looks at, of all its lanes, is in one cache line. */
struct alignas(64) device_thread : cudahost_thread {
    unsigned number; /* in its block */
    /* what it waits for, and where */
    cudahost_wait wait;
    const char *file;
    int line;
    unsigned mask;
    fibre_stack *stack;
    device_thread *next; /* in a list of those that wait */
    bool exited;
    uint64_t got[32]; /* the values of the lanes of a partial mask */
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
    unsigned exists, exited, waits; /* lanes */
    uint64_t gives[32], gave[32];
};

struct device_cluster {
    fibre_barrier barrier;
    std::vector<struct cudahost_block *> blocks; /* by rank */
};

struct cudahost_block {
    std::vector<device_thread> threads;
    std::vector<device_warp> warps;
    fibre_barrier barrier;
    uint3 index;
    unsigned char *shared;
    device_cluster *cluster;
    unsigned rank; /* in the cluster */
    void *race;    /* race.cpp's */
};

struct device_launch {
    const void *kernel;
    const cudahost_call *call;
    dim3 grid, block, cluster;
    size_t shared_bytes;
    bool together; /* all blocks at once: cooperative, or in clusters */
};

/* Runs a launch to its end. */
void fibre_run(const device_launch *launch);
extern const device_launch *fibre_running;
static inline const device_launch *fibre_launch() /* the running one */
{
    return fibre_running;
}
/* The stack that the running thread is on. */
extern uintptr_t fibre_bottom;
extern size_t fibre_bytes;

/* "kernel 'name', block (x,y,z), thread (x,y,z)" of a thread, and the name of what is at a code address. */
std::string fibre_describe(const device_thread *t);
std::string fibre_symbol(const void *code, bool with_line);
/* Says what is wrong and with which thread, and aborts. */
[[noreturn]] void fibre_fail(const device_thread *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What the check for races (race.cpp) needs to know; NULL without it. */
struct race_hooks {
    void (*block_begins)(cudahost_block *b);
    void (*block_ends)(cudahost_block *b);
    void (*launch_ends)();
    void (*block_syncs)(cudahost_block *b); /* all its threads have arrived */
    void (*cluster_syncs)(device_cluster *c);
    void (*warp_syncs)(cudahost_block *b, unsigned warp, unsigned mask);
    void (*atomic)(void *p, size_t bytes, void *code);
    void (*memory_ends)(void *p); /* of the device */
};
extern const race_hooks *cudahost_race;

#endif
