/* The chain of up to PERSISTENT_ROWS rows: all steps in one launch.
 *
 * The floor of a step is the larger of two times. One is its sequential weights, 4*depth*W^2 bytes (SWIGLU:
 * 6*depth*W*H), over the bandwidth of the memory they are in: shared memory, else the L2 cache or device memory. The
 * other is its exchanges between blocks, 2*depth + 2 of them. An exchange is a barrier, that is an arrival at and a
 * poll of the L2 cache followed by a load from there, or, of up to PERSISTENT_WORD_ROWS rows, a poll of the words
 * themselves; the last of an evaluation is always a barrier. With few rows the exchanges take longer
 * (docs/persistent.md). */
#include "kernels/cuda/persistent_layers.cuh"

typedef cuda_floats<4> quad; /* four neighbouring channels of a token */

static __device__ __forceinline__ quad persistent_load_quad(const float *at)
{
    const float4 x = __ldcg((const float4 *)at);
    return {{x.x, x.y, x.z, x.w}};
}

/* Loads the head's prediction for quad i of a token: eps with guidance, and the variance fraction v. */
static __device__ __forceinline__ void persistent_load_prediction(const persistent_args &a, const kern_chain_job &j,
                                                                  int token, int channel, quad *eps, quad *v)
{
    const float *cond = a.out + token * 2 * a.channels + channel;
    *eps = persistent_load_quad(cond);
    *v = persistent_load_quad(cond + a.channels);
    if (j.conditions == 1) return;
    const quad uncond = persistent_load_quad(cond + j.tokens * 2 * a.channels);
    const float cfg = j.cfg[token];
#pragma unroll
    for (int n = 0; n < 4; n++) eps->v[n] = kern_chain_eps(eps->v[n], uncond.v[n], cfg);
}

/* Finds token and first channel of quad i. A thread has the quads threadIdx.x, + PERSISTENT_THREADS, ... at every step.
 */
static __device__ __forceinline__ void persistent_quad(const persistent_args &a, int i, int *token, int *channel)
{
    const int quads = a.channels / 4;
    *token = i / quads;
    *channel = i % quads * 4;
}
static __device__ __forceinline__ int persistent_quads(const persistent_args &a, const kern_chain_job &j)
{
    return j.tokens * a.channels / 4;
}

/* Returns the block's copy of the states, [ROWS][C]; behind it is a solver's last x0. Every block takes the step for
 * all tokens, so the states need no exchange. */
static __device__ __forceinline__ quad *persistent_states(const persistent_args &a)
{
    return (quad *)a.states + (size_t)blockIdx.x * (size_t)(2 * PERSISTENT_ROWS * a.channels / 4);
}
static __device__ __forceinline__ quad *persistent_history(const persistent_args &a)
{
    return persistent_states(a) + PERSISTENT_ROWS * a.channels / 4;
}

/* Takes a step, to the block's states and to f->state. The noise is made before the wait, and is meanwhile in f->state,
 * which the evaluation has read. A thread has the same quads of all. */
static __device__ __forceinline__ void persistent_ddpm_step(const persistent_args &a, persistent_block *f,
                                                            const kern_chain_job &j, int step)
{
    const kern_chain_coef coef = j.coef[step];
    const int quads = persistent_quads(a, j);
    quad *next = (quad *)f->state, *states = persistent_states(a);
    int token, channel;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < quads; i += PERSISTENT_THREADS) {
        quad drawn = {};
        persistent_quad(a, i, &token, &channel);
        if (coef.noise != 0) cuda_step_noise(j, step, token, channel, drawn.v);
        next[i] = drawn;
    }
    persistent_wait(a, f);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < quads; i += PERSISTENT_THREADS) {
        quad eps, v, x = states[i];
        const quad noise = next[i];
        persistent_quad(a, i, &token, &channel);
        persistent_load_prediction(a, j, token, channel, &eps, &v);
#pragma unroll
        for (int n = 0; n < 4; n++) x.v[n] = kern_chain_next(&coef, x.v[n], eps.v[n], v.v[n], noise.v[n]);
        states[i] = next[i] = x;
    }
}

static __device__ __forceinline__ void persistent_ode_step(const persistent_args &a, persistent_block *f,
                                                           const kern_chain_job &j, int step)
{
    const kern_ode_coef coef = j.ode[step];
    const int quads = persistent_quads(a, j);
    quad *next = (quad *)f->state, *states = persistent_states(a), *history = persistent_history(a);
    int token, channel;
    persistent_wait(a, f);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < quads; i += PERSISTENT_THREADS) {
        quad eps, v, x = states[i], x0 = history[i];
        persistent_quad(a, i, &token, &channel);
        persistent_load_prediction(a, j, token, channel, &eps, &v);
#pragma unroll
        for (int n = 0; n < 4; n++) x.v[n] = kern_chain_ode_next(&coef, x.v[n], eps.v[n], &x0.v[n]);
        states[i] = next[i] = x;
        history[i] = x0;
    }
}

/* Copies the thread's quads. */
static __device__ __forceinline__ void persistent_copy_quads(const persistent_args &a, const kern_chain_job &j,
                                                             const void *from, void *to)
{
    const int quads = persistent_quads(a, j);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < quads; i += PERSISTENT_THREADS) ((quad *)to)[i] = ((const quad *)from)[i];
}

/* Returns the modulation rows of a step. */
static __device__ __forceinline__ const unsigned char *persistent_mod(const persistent_args &a, const kern_chain_job &j,
                                                                      int step)
{
    const int rows = (j.first - step) * j.tokens * j.conditions; /* of the steps before */
    return (const unsigned char *)j.mod + (size_t)rows * a.mod_bytes;
}

/* Prefetches the modulation rows of a step into the L2 cache. They were made for many steps at once, so the cache may
 * have dropped them. */
static __device__ __forceinline__ void persistent_prefetch_mod(const persistent_args &a, const kern_chain_job &j,
                                                               int step)
{
    if (step < 0) return;
    const size_t bytes = (size_t)(j.tokens * j.conditions) * a.mod_bytes;
    const unsigned char *mod = persistent_mod(a, j, step);
    for (size_t i = (blockIdx.x * PERSISTENT_THREADS + threadIdx.x) * (size_t)128; i < bytes;
         i += gridDim.x * PERSISTENT_THREADS * 128)
        fast::prefetch_l2(mod + i);
}

template <int PAIRS, int WIDE, bool WORDS>
static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) persistent_chain(persistent_args a, kern_chain_job j)
{
    const int rows = j.tokens * j.conditions;
    persistent_block f;
    if (j.tokens == 0) return; /* persistent_try_chain only tests whether the kernel starts */
    persistent_begin<PAIRS, WIDE>(a, &f);
    persistent_copy_quads(a, j, j.x, persistent_states(a));
    persistent_copy_quads(a, j, j.x, f.state);
    if (j.ode) persistent_copy_quads(a, j, j.x0, persistent_history(a));
    for (int step = j.first; step >= 0; step--) {
        if ((int)threadIdx.x < rows) f.mod[threadIdx.x] = persistent_mod(a, j, step) + threadIdx.x * a.mod_bytes;
        __syncthreads();
        persistent_prefetch_mod(a, j, step - 1);
        persistent_evaluate<PAIRS, WIDE, WORDS>(a, &f, rows, j.tokens);
        if (j.ode)
            persistent_ode_step(a, &f, j, step);
        else
            persistent_ddpm_step(a, &f, j, step);
    }
    if (blockIdx.x == 0) {
        persistent_copy_quads(a, j, persistent_states(a), j.x);
        if (j.ode) persistent_copy_quads(a, j, persistent_history(a), j.x0);
    }
    persistent_end(a);
}

typedef void (*persistent_form_of_chain)(persistent_args, kern_chain_job);
static const persistent_form_of_chain persistent_chains[2][PERSISTENT_INSTANCES] = {
    PERSISTENT_TABLE(persistent_chain, false), PERSISTENT_TABLE(persistent_chain, true)}; /* with words */

void persistent_run(cuda_queue *c, const kern_head *h, const kern_chain_job *job)
{
    const bool words = job->tokens * job->conditions <= h->persistent->word_rows;
    if (resident_run(c, h->persistent, job)) return;
    persistent_launch(c, h->persistent, persistent_chains[words], words, *job);
}

int persistent_clusters(const cuda_queue *c, int instance, int cluster)
{
    int n = 0;
    if (cluster == 1) return c->device->multiprocessors;
    cudaLaunchAttribute attribute = persistent_cluster(cluster);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)cluster);
    config.blockDim = dim3(PERSISTENT_THREADS);
    config.dynamicSmemBytes = c->device->shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    const persistent_form_of_chain form = persistent_chains[0][instance];
    cudaError_t e = persistent_limit(c, form);
    if (e == cudaSuccess) e = cudaOccupancyMaxActiveClusters(&n, form, &config);
    if (e != cudaSuccess) cudaGetLastError();              /* not a failure: other kernels do the work */
    const int most = c->device->multiprocessors / cluster; /* a block has a multiprocessor to itself */
    return e != cudaSuccess ? 0 : n < most ? n : most;
}

cudaError_t persistent_try_chain(const cuda_queue *c, const persistent_head *f)
{
    const cudaError_t e = persistent_start(c, f->args, persistent_chains[0][f->args.instance], kern_chain_job());
    return e == cudaSuccess ? persistent_start(c, f->args, persistent_chains[1][f->args.instance], kern_chain_job())
                            : e;
}

/* Lays out the working memory, 128-byte aligned: at most 2 MB and 32 KB a block. Blocks poll the word of arrivals: it
 * has its 128 bytes to itself. Behind it are the words, which a launch clears (persistent_launch), of no more rows than
 * there can be. */
static void persistent_lay_out(void *memory, bool words, persistent_args *a)
{
    const size_t rows = words ? (size_t)PERSISTENT_WORD_ROWS : (size_t)PERSISTENT_ROWS;
    const size_t x = words ? 8 : 4, v = !words ? 2 : a->norms ? 8 : 4; /* bytes a channel */
    a->arrivals = (unsigned *)memory;
    a->x = (uint4 *)memory + 8;
    a->v = a->x + rows * (size_t)a->width * x / sizeof *a->x;
    a->out = (float *)(a->v + rows * (size_t)a->hidden * v / sizeof *a->v);
    a->states = a->out + 2 * (size_t)a->channels * PERSISTENT_ROWS;
}

int persistent_prepare(cuda_queue *c, const persistent_head *f, bool words, persistent_args *args)
{
    if (!cuda_has_working(c)) return 0; /* it exists, but for a head without a plan */
    *args = f->args;
    persistent_lay_out(c->working, words, args);
    args->gave_up = c->gave_up;
    return 1;
}
