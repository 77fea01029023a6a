/* Runs of the diffusion head's chain on a head of random weights, to compare forms and backends. */
#ifndef TESTS_CHAIN_CASE_H
#define TESTS_CHAIN_CASE_H

#include "tests/support/device.h"

/* Steps of modulation rows; maximum rows of a run. */
enum { CHAIN_STEPS = 3, CHAIN_MOST = 544 };

typedef struct {
    int width, depth, channels;
    const char *multiprocessors; /* of the simulated device; a GPU has its own */
    int hidden, ada_layers;      /* of a head of SWIGLU blocks; 0: MLP */
} shape;

typedef struct {
    shape s;
    float *weights;
    kern_head_block *blocks;
    kern_head_spec spec;
} network;

/* A head on a backend, with modulation rows for `most` rows at CHAIN_STEPS steps. Row r of step s is at s*most + r. */
typedef struct {
    kern_queue *k;
    kern_head *h;
    int channels, most;
    char *mod;
} bench;

typedef struct {
    int tokens, conditions, steps, ode;
    int from; /* the first token's number */
    float temperature;
} run;

/* A run in progress on a backend: the arguments of its recorded calls. */
typedef struct {
    const bench *b;
    kern_chain_job job;
    void *mod;
    kern_chain_coef coef[CHAIN_STEPS + 1];
    kern_ode_coef ode[CHAIN_STEPS + 1];
    int t[CHAIN_STEPS + 1], x_index[CHAIN_MOST], position[CHAIN_MOST];
    float cfg[CHAIN_MOST];
    uint64_t seed[CHAIN_MOST], image[CHAIN_MOST];
} chain;

/* Returns a head's shape, without weights. */
kern_head_spec spec_of(shape s);
network make_network(shape s, uint64_t seed);
void free_network(network *n);
/* Makes a head and modulation rows on a queue, which free_bench closes. */
bench make_bench(kern_queue *k, const network *n, int most);
/* The same on the CUDA backend. A simulated GPU gets the shape's multiprocessors. */
bench open_cuda_bench(const network *n, int most);
void free_bench(bench *b);

/* Fills the host arrays of a run. Index i of the chain is the step's number from the end, plus one. */
void fill_chain(chain *c, const run *r);
/* Fills a chain with new device memory. Modulation rows also follow the token's number. */
void open_chain(const bench *b, const run *r, chain *c);
/* Runs a chain's job once; arg is the chain. */
void chain_body(void *arg);
/* Copies the states, and a solver's last x0, to x and x0 if they are not NULL, and frees the memory. */
void close_chain(chain *c, float *x, float *x0);
/* Opens, runs and closes a chain. */
void run_chain(const bench *b, const run *r, float *x, float *x0);
/* Fails if run number `number` differs on the two backends. */
void compare_chains(const bench *cuda, const bench *cpu, const run *r, size_t number);

#endif
