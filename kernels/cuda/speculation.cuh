/* Speculation inside the head (diffusion/speculate.h) on the GPU: the work of a token in a round, by a block of
 * PERSISTENT_THREADS threads. Its threads work on the channels of all rows at once: the filter of q, the distributions,
 * the ratios of all proposals. Two things are sequential. One is the proposals themselves, some operations a level and
 * channel. The other is a round's single replacement: a warp makes the draft's mirror image, or else chooses the tilt,
 * while another one updates the ratio r. If the mirror image is refused, all warps try candidates, a block's threads at
 * a time.
 *
 * A round is: propose (speculate_filter, or a draft), evaluate the head at all rows, take the outputs (speculate_take),
 * walk (speculate_walk), and, where one launch does all rounds, take the next token (speculate_next_token). All threads
 * of a block call these together; only speculate_take is called by channel. The block that has a slot does all of its
 * work, so no other block reads or writes its token's arrays. */
#ifndef KERNELS_CUDA_SPECULATION_CUH
#define KERNELS_CUDA_SPECULATION_CUH

#include "kernels/cuda/persistent_layers.cuh"

extern "C" {
#include "kernels/speculation.h"
}

/* Maximum tokens per slot of one launch, a guess, as bench/gpu_model.py estimates. Measure at this times the tokens
 * that fit: a call should take the same time with and without speculate_run. */
enum { SPECULATE_TOKENS = 2 };

/* The argument of a launch of all rounds beside persistent_args; mod as in kern_speculation_head. */
typedef struct {
    kern_speculation w;
    const unsigned char *mod;
} speculate_job;

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

/* --- proposals ----------------------------------------------------------------------------------------------- */

/* The part of one channel of a proposal that does not depend on its starting state. */
typedef struct {
    kern_speculation_filter filter;
    float step; /* noise times its scale */
} speculate_term;

/* Lists the modulation rows of a slot's rows. Rows without a state are also evaluated, with modulation row 0. */
static __device__ void speculate_list(const kern_speculation &w, int slot, int token)
{
    const int rows = w.slots * w.window;
    KERN_ROLLED
    for (int i = (int)threadIdx.x; i < w.conditions * w.window; i += (int)blockDim.x) {
        const int condition = i / w.window, level = i % w.window;
        const int index = token < 0 ? 0 : max(w.index[token] - level, 0);
        const int mod = kern_speculation_mod(&w, condition, index, w.source[max(token, 0)]);
        w.mod_index[condition * rows + level * w.slots + slot] = mod;
        w.draft_index[(level * w.conditions + condition) * w.slots + slot] = mod;
    }
}

/* Writes the state of the slot's first row. */
static __device__ void speculate_state(const kern_speculation &w, int slot, int token)
{
    KERN_ROLLED
    for (int c = (int)threadIdx.x; c < w.channels; c += (int)blockDim.x)
        w.state[slot * w.channels + c] = w.token[token * w.channels + c];
}

/* Returns the radial part of a proposal (kern_speculation_radial), from its first lanes' terms; by one warp. */
static __device__ float speculate_radial(const kern_speculation &w, int token, int k, const float *x,
                                         const speculate_term *term)
{
    float product = 0, square = 0;
    KERN_ROLLED
    for (int c = kern_lane(); c < w.channels; c += 32) {
        const kern_speculation_filter *f = &term[c].filter;
        product += (kern_speculation_clean(&w, f, k, x[c]) - f->x0) * f->x0;
        square += f->x0 * f->x0;
    }
    return kern_speculation_radial(&w, token, k, cuda_warp_sum(product), cuda_warp_sum(square));
}

/* Writes the proposals of levels first .. end - 1 where tokens lie on a sphere: all channels of a level together, by
 * one warp. */
static __device__ void speculate_on_sphere(const kern_speculation &w, int slot, int token, int first, int end,
                                           const speculate_term *term)
{
    KERN_ROLLED
    for (int level = first; level < end; level++, term += w.channels) {
        const int k = w.index[token] - level;
        const size_t at = (size_t)(level * w.slots + slot) * (size_t)w.channels;
        const size_t next = at + (size_t)(w.slots * w.channels);
        const float radial = speculate_radial(w, token, k, w.state + at, term);
        KERN_ROLLED
        for (int c = kern_lane(); c < w.channels; c += 32) {
            const float mean = kern_speculation_mean(&w, &term[c].filter, k, w.state[at + c], radial);
            w.mean_q[at + c] = mean;
            w.state[next + c] = mean + term[c].step;
        }
    }
}

/* Writes the slot's other rows by the filter, channels c0 .. c1 - 1. The scratch memory has room for `levels`
 * levels. */
static __device__ void speculate_filter_channels(const kern_speculation &w, int slot, int token, int c0, int c1,
                                                 int levels, speculate_term *term)
{
    const int top = w.index[token], last = kern_speculation_levels(&w, token) - 1, n = c1 - c0;
    KERN_ROLLED
    for (int first = 0; first < last; first += levels) {
        const int end = min(first + levels, last);
        KERN_ROLLED
        for (int i = (int)threadIdx.x; i < (end - first) * n; i += (int)blockDim.x) {
            const int level = first + i / n, c = c0 + i % n, k = top - level;
            const kern_speculation_filter f = kern_speculation_prepare(&w, token, k, c);
            term[i].filter = f;
            term[i].step = kern_speculation_move(&w, k, 0, f.log_std, kern_speculation_noise(&w, token, k)[c]);
            w.log_std_q[(level * w.slots + slot) * w.channels + c] = f.log_std;
        }
        __syncthreads();
        if (w.sphere && threadIdx.x < 32) speculate_on_sphere(w, slot, token, first, end, term);
        KERN_ROLLED
        for (int c = c0 + (int)threadIdx.x; !w.sphere && c < c1; c += (int)blockDim.x) {
            size_t at = (size_t)(first * w.slots + slot) * (size_t)w.channels + (size_t)c;
            float x = w.state[at];
            KERN_ROLLED
            for (int level = first; level < end; level++) {
                const speculate_term *t = &term[(level - first) * n + c - c0];
                const float mean = kern_speculation_mean(&w, &t->filter, top - level, x, 0);
                w.mean_q[at] = mean;
                at += (size_t)(w.slots * w.channels);
                w.state[at] = x = mean + t->step;
            }
        }
        __syncthreads();
    }
}

/* Writes all of a slot's rows; the filter proposes. `scratch` has `bytes` bytes, enough for a level of min(C, threads)
 * terms. */
static __device__ void speculate_filter(const kern_speculation &w, int slot, int token, void *scratch, int bytes)
{
    speculate_list(w, slot, token);
    if (token < 0) return;
    speculate_state(w, slot, token);
    KERN_ROLLED
    for (int c = 0; c < w.channels; c += (int)blockDim.x) {
        const int n = min(w.channels - c, (int)blockDim.x);
        speculate_filter_channels(w, slot, token, c, c + n, bytes / (n * (int)sizeof(speculate_term)),
                                  (speculate_term *)scratch);
    }
}

/* --- the walk ------------------------------------------------------------------------------------------------ */

/* Stores p of channel c of the slot's row at a level, from the head's outputs there: eps with and without condition,
 * and v. Also the evaluation of the row's state. */
static __device__ inline void speculate_take(const kern_speculation &w, int slot, int token, int level, int c,
                                             float eps, float uncond, float v)
{
    const int k = w.index[token] - level, at = (level * w.slots + slot) * w.channels + c;
    const float x = w.state[at];
    float mean, log_std;
    kern_speculation_transition(&w, token, k, x, eps, uncond, v, &mean, &log_std);
    kern_speculation_remember(&w, token, k, c, x, mean, v);
    w.mean_p[at] = mean;
    w.log_std_p[at] = log_std;
    w.tempered_p[at] = log_std + w.log_temperature;
    w.tempered_q[at] = w.log_std_q[at] + w.log_temperature;
}

/* Loads channel c's outputs of the head from row i of the n conditional output rows. */
static __device__ inline void speculate_output(const kern_speculation &w, const float *out, int i, int n, int c,
                                               float *eps, float *uncond, float *v)
{
    const float *cond = out + (size_t)i * 2 * (size_t)w.channels + c;
    *eps = __ldcg(cond); /* not from the L1 cache: other blocks have rewritten them */
    *v = __ldcg(cond + w.channels);
    *uncond = w.conditions == 2 ? __ldcg(cond + (size_t)n * 2 * (size_t)w.channels) : *eps;
}

/* Takes the head's outputs `out` for all rows of the slot's token. */
static __device__ inline void speculate_read_outputs(const kern_speculation &w, const float *out, int slot, int token)
{
    const int n = kern_speculation_levels(&w, token) * w.channels, rows = w.slots * w.window;
    KERN_ROLLED
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        const int level = i / w.channels, c = i % w.channels;
        float eps, uncond, v;
        speculate_output(w, out, level * w.slots + slot, rows, c, &eps, &uncond, &v);
        speculate_take(w, slot, token, level, c, eps, uncond, v);
    }
}

/* The scratch memory of a walk. */
typedef struct {
    int first;                        /* first rejected proposal */
    int lowest[2 * PERSISTENT_WARPS]; /* for the crew of all warps that draws from the residual */
    kern_residual residual;
} speculate_scratch;

/* Lowers *first to the number of the first rejected proposal; the caller sets it to `proposals`. One warp verifies one
 * proposal at a time. */
static __device__ void speculate_verify(const kern_speculation &w, int slot, int token, int proposals, int *first)
{
    KERN_ROLLED
    for (int level = (int)threadIdx.x / 32; level < proposals; level += PERSISTENT_WARPS) {
        const int row = level * w.slots + slot;
        const kern_gaussians pq = kern_speculation_gaussians(&w, row);
        const kern_address address = kern_speculation_address(&w, token, w.index[token] - level);
        const float *draft = w.state + (size_t)(row + w.slots) * (size_t)w.channels;
        const double log_f = kern_gaussian_log_accept(&w.rule, &pq, KERN_SPECULATION_PATH, draft);
        if (kern_lane() == 0 && !kern_gaussian_accepts(log_f, &address)) atomicMin(first, level);
    }
}

/* Updates r from the transitions decided in this round; by one warp. */
static __device__ void speculate_learn(const kern_speculation &w, int token, int decided)
{
    const int top = w.index[token];
    KERN_ROLLED
    for (int k = min(top, w.steps - 2); k > top - decided; k--) {
        float sum = 0;
        KERN_ROLLED
        for (int c = kern_lane(); c < w.channels; c += 32) {
            const float expected = kern_speculation_expected(&w, token, k, c);
            sum += expected * expected / (float)w.channels;
        }
        sum = cuda_warp_sum(sum) + 1e-12f;
        KERN_ROLLED
        for (int c = kern_lane(); c < w.channels; c += 32) kern_speculation_learn(&w, token, k, c, sum);
    }
}

/* Draws the state at the end of the round from p of the last row; by one warp. */
static __device__ void speculate_move(const kern_speculation &w, int slot, int token, int accepted)
{
    const int row = accepted * w.slots + slot, k = w.index[token] - accepted;
    const float *eps = kern_speculation_noise(&w, token, k);
    KERN_ROLLED
    for (int c = kern_lane(); c < w.channels; c += 32) {
        const int at = row * w.channels + c;
        w.token[token * w.channels + c] = kern_speculation_move(&w, k, w.mean_p[at], w.log_std_p[at], eps[c]);
    }
}

/* Moves the token's index and counts the round; by one thread. */
static __device__ void speculate_advance(const kern_speculation &w, int token, int rows, int accepted, bool rejected,
                                         long tries)
{
    const int calls = ++w.calls[token], index = w.index[token];
    w.wide[token] += rows > 1;
    w.rejected[token] += rejected;
    w.lowest[token] = index - (rows - 1); /* each round reaches lower than the previous one */
    w.index[token] = index - (accepted + 1);
    atomicAdd(&w.count->calls, 1ull);
    atomicMax(&w.count->calls_max, (unsigned long long)calls);
    atomicAdd(&w.count->evaluations, (unsigned long long)rows);
    atomicAdd(&w.count->accepted, (unsigned long long)accepted);
    atomicAdd(&w.count->rejected, (unsigned long long)rejected);
    atomicAdd(&w.count->tries, (unsigned long long)tries);
    if (index <= accepted) atomicSub(&w.left[KERN_LEFT_TOKENS], 1);
}

/* Moves the slot's token from its first row to the end of its round, behind speculate_take of all channels of its rows.
 * The new state is a draw from p of the last row, or the rejected proposal's replacement from the residual. */
static __device__ void speculate_walk(const kern_speculation &w, int slot, int token, speculate_scratch *scratch)
{
    const int rows = kern_speculation_levels(&w, token), warp = (int)threadIdx.x / 32;
    if (threadIdx.x == 0) scratch->first = rows - 1;
    __syncthreads();
    speculate_verify(w, slot, token, rows - 1, &scratch->first);
    __syncthreads();
    const int accepted = scratch->first;
    const bool rejected = accepted < rows - 1;
    const kern_crew crew = {warp, PERSISTENT_WARPS, scratch->lowest};
    const kern_address address = kern_speculation_address(&w, token, w.index[token] - accepted);
    int kept = KERN_NO_CANDIDATE;
    if (rejected) {
        const kern_gaussians pq = kern_speculation_gaussians(&w, accepted * w.slots + slot);
        const float *draft = w.state + (size_t)((accepted + 1) * w.slots + slot) * (size_t)w.channels;
        kern_residual_begin(&crew, &scratch->residual, &pq, kern_gaussian_log_scale(&w.rule, KERN_SPECULATION_PATH),
                            kern_gaussian_rule_is_exact(&w.rule) ? draft : NULL);
        kept = kern_residual_try(&crew, &scratch->residual, &address);
    } else if (warp == 0) {
        speculate_move(w, slot, token, accepted);
    }
    if (warp == 1) speculate_learn(w, token, accepted + 1); /* the last warp makes the mirror image */
    long tries = 0;
    if (rejected)
        tries =
            kern_residual_end(&crew, &scratch->residual, &address, kept, w.token + (size_t)token * (size_t)w.channels);
    __syncthreads();
    if (threadIdx.x == 0) speculate_advance(w, token, rows, accepted, rejected, tries);
    __syncthreads();
}

/* Returns the slot's token. If it is finished, takes the next token without a slot, or returns -1. */
static __device__ int speculate_next_token(const kern_speculation &w, int slot)
{
    const int token = w.slot_token[slot];
    if (token < 0 || w.index[token] >= 0) return token;
    __syncthreads();
    if (threadIdx.x == 0) {
        const int next = w.slots + atomicAdd(&w.left[KERN_LEFT_TAKEN], 1);
        w.slot_token[slot] = next < w.tokens ? next : -1;
    }
    __syncthreads();
    return w.slot_token[slot];
}

#endif

#endif
