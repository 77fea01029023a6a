/* Speculation inside the head (diffusion/speculate.h) on the GPU. A block works on a token, and its threads on the
 * channels of all rows at once: the filter of q, the distributions, the ratios of all proposals. Two things are
 * sequential. One is the proposals themselves, some operations a level and channel. The other is a round's single
 * replacement: a warp makes the draft's mirror image, or else chooses the tilt, while another one updates the ratio r.
 * If the mirror image is refused, all warps try candidates, THREADS at a time.
 *
 * A round is: propose (speculate_filter, or a draft), evaluate the head at all rows, walk (speculate_walk). There are
 * two loops around it. With up to PERSISTENT_ROWS rows one launch does all rounds (speculate_kernel): the blocks with
 * tokens alternate with the evaluation of persistent_layers.cuh. A slot whose token is finished gets the next token.
 * The floor of a round is that of an evaluation (persistent.cu), one more barrier, and the latency of the tokens' work.
 * With more rows cuBLASLt evaluates between two small kernels, propose_kernel and walk_kernel, and the host runs the
 * loop (diffusion/speculate.c). It checks for finished tokens only when a token can be finished. Until then the rounds
 * are certainly needed, and it does not wait. */
#include "kernels/cuda/persistent_layers.cuh"

extern "C" {
#include "kernels/speculation.h"
}

enum {
    THREADS = PERSISTENT_THREADS,
    WARPS = THREADS / 32,
    SCRATCH_BYTES = PERSISTENT_SCRATCH, /* shared memory of a token's work: persistent_block.scratch */
    /* Three guesses, each to be measured on a GPU by the time of a call of diff_speculate_sample. */
    TOKENS_PER_SLOT = 2,  /* Maximum tokens per slot of one launch, as bench/gpu_model.py estimates. Measure at
                           * TOKENS_PER_SLOT times the tokens that fit: a call should take the same time with and without
                           * speculate_run. */
    PARTS = 8,            /* A round's slots are a multiple of an eighth of the tokens: products have this many shapes.
                           * Measure with 4 and 16 at 256 tokens. More shapes cost plans and recordings, fewer cost rows of
                           * finished tokens. */
    UNCHECKED_ROUNDS = 4, /* Maximum rounds between two checks for finished tokens. Measure with 1 and 8 at 129 rows and
                           * at 256 tokens. A check costs the launches the GPU waits for, a round too many costs rows of
                           * finished tokens. */
};

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

/* Writes all of a slot's rows; the filter proposes. */
static __device__ void speculate_filter(const kern_speculation &w, int slot, int token, void *scratch)
{
    speculate_list(w, slot, token);
    if (token < 0) return;
    speculate_state(w, slot, token);
    KERN_ROLLED
    for (int c = 0; c < w.channels; c += (int)blockDim.x) {
        const int n = min(w.channels - c, (int)blockDim.x);
        speculate_filter_channels(w, slot, token, c, c + n, SCRATCH_BYTES / (n * (int)sizeof(speculate_term)),
                                  (speculate_term *)scratch);
    }
}

/* --- the walk ------------------------------------------------------------------------------------------------ */

/* Computes channel c's Gaussian of transition k from the state x, from row i of the head's n conditional output rows.
 * Returns v. */
static __device__ inline float speculate_gaussian(const kern_speculation &w, const float *out, int i, int n, int token,
                                                  int k, int c, float x, float *mean, float *log_std)
{
    const float *cond = out + (size_t)i * 2 * (size_t)w.channels + c;
    const float eps = __ldcg(cond),
                v = __ldcg(cond + w.channels); /* not from the L1 cache: other blocks have rewritten them */
    const float uncond = w.conditions == 2 ? __ldcg(cond + (size_t)n * 2 * (size_t)w.channels) : eps;
    kern_speculation_transition(&w, token, k, x, eps, uncond, v, mean, log_std);
    return v;
}

/* Reads the head's outputs: p of the slot's rows, and the evaluations of their states. */
static __device__ void speculate_read_outputs(const kern_speculation &w, const float *out, int slot, int token)
{
    const int top = w.index[token], n = kern_speculation_levels(&w, token) * w.channels;
    KERN_ROLLED
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        const int level = i / w.channels, c = i % w.channels, k = top - level, row = level * w.slots + slot;
        const int at = row * w.channels + c;
        const float x = w.state[at];
        float mean, log_std;
        const float v = speculate_gaussian(w, out, row, w.slots * w.window, token, k, c, x, &mean, &log_std);
        kern_speculation_remember(&w, token, k, c, x, mean, v);
        w.mean_p[at] = mean;
        w.log_std_p[at] = log_std;
        w.tempered_p[at] = log_std + w.log_temperature;
        w.tempered_q[at] = w.log_std_q[at] + w.log_temperature;
    }
}

/* The scratch memory of a walk. */
typedef struct {
    int first;             /* first rejected proposal */
    int lowest[2 * WARPS]; /* for the crew of all warps that draws from the residual */
    kern_residual residual;
} speculate_scratch;
static_assert(sizeof(speculate_scratch) <= SCRATCH_BYTES, "the scratch memory has room for a residual");

/* Lowers *first to the number of the first rejected proposal; the caller sets it to `proposals`. One warp verifies one
 * proposal at a time. */
static __device__ void speculate_verify(const kern_speculation &w, int slot, int token, int proposals, int *first)
{
    KERN_ROLLED
    for (int level = (int)threadIdx.x / 32; level < proposals; level += WARPS) {
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

/* Moves the slot's token from its first row to the end of its round. out is the head's output for all rows. The new
 * state is a draw from p of the last row, or the rejected proposal's replacement from the residual. */
static __device__ void speculate_walk(const kern_speculation &w, const float *out, int slot, int token, void *memory)
{
    speculate_scratch *scratch = (speculate_scratch *)memory;
    const int rows = kern_speculation_levels(&w, token), warp = (int)threadIdx.x / 32;
    if (threadIdx.x == 0) scratch->first = rows - 1;
    speculate_read_outputs(w, out, slot, token);
    __syncthreads();
    speculate_verify(w, slot, token, rows - 1, &scratch->first);
    __syncthreads();
    const int accepted = scratch->first;
    const bool rejected = accepted < rows - 1;
    const kern_crew crew = {warp, WARPS, scratch->lowest};
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

/* --- evaluation inside: all rounds in one launch -------------------------------------------------------------- */

typedef struct {
    kern_speculation w;
    const unsigned char *mod;
} speculate_job;

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

/* Fills the block's own copy of persistent_evaluate's input. */
static __device__ void speculate_load(const persistent_args &a, const persistent_block *f, const speculate_job &j,
                                      int rows, int states)
{
    KERN_ROLLED
    for (int i = (int)threadIdx.x; i < states * a.channels; i += PERSISTENT_THREADS)
        f->state[i] = __ldcg(j.w.state + i);
    KERN_ROLLED
    for (int r = (int)threadIdx.x; r < rows; r += PERSISTENT_THREADS)
        f->mod[r] = j.mod + (size_t)__ldcg(j.w.mod_index + r) * a.mod_bytes;
    __syncthreads();
}

static __device__ inline unsigned speculate_left(const kern_speculation &w)
{
    return fast::load_relaxed((const unsigned *)&w.left[KERN_LEFT_TOKENS]);
}

template <int PAIRS, int WIDE, bool WORDS>
static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) speculate_kernel(persistent_args a, speculate_job j)
{
    const kern_speculation &w = j.w;
    const int states = w.slots * w.window, rows = states * w.conditions;
    persistent_block f;
    if (w.tokens == 0) return; /* speculate_try only tests whether the kernel starts */
    persistent_begin<PAIRS, WIDE>(a, &f);
    for (bool evaluated = false;; evaluated = true) {
        for (int slot = (int)blockIdx.x; slot < w.slots; slot += (int)gridDim.x) {
            int token = w.slot_token[slot];
            if (evaluated) {
                if (token < 0) continue;
                speculate_walk(w, a.out, slot, token, f.scratch);
                token = speculate_next_token(w, slot);
            }
            speculate_filter(w, slot, token, f.scratch);
        }
        persistent_arrive(a, &f);
        persistent_wait(a, &f);
        /* `left` stays unchanged until all blocks have arrived in the evaluation */
        if (__syncthreads_or(threadIdx.x == 0 && (speculate_left(w) == 0 || persistent_gave_up(a)))) break;
        if (blockIdx.x == 0 && threadIdx.x == 0) w.count->rounds++;
        speculate_load(a, &f, j, rows, states);
        persistent_evaluate<PAIRS, WIDE, WORDS>(a, &f, rows, states);
        persistent_wait(a, &f);
    }
    persistent_end(a);
}

static void (*const speculate_kernels[PERSISTENT_INSTANCES])(persistent_args,
                                                             speculate_job) = PERSISTENT_TABLE(speculate_kernel, false);

cudaError_t speculate_try(const cuda_queue *c, const persistent_head *f)
{
    return persistent_start(c, f->args, speculate_kernels[f->args.instance], speculate_job());
}

void cuda_speculate_run(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft,
                        const kern_speculation_head *target)
{
    const persistent_head *f = target->net->persistent;
    const int fit = PERSISTENT_ROWS / (w->conditions * w->window);
    if (draft || !f || w->tokens > TOKENS_PER_SLOT * fit) {
        kern_speculate_rounds(k, w, draft, target);
        return;
    }
    w->slots = w->tokens < fit ? w->tokens : fit;
    const speculate_job j = {*w, (const unsigned char *)target->mod};
    persistent_launch(cuda_of(k), f, speculate_kernels, false, j);
}

/* --- evaluation by cuBLASLt: the host runs the rounds --------------------------------------------------------- */

/* Draws x_T and all noise, four channels a thread. Index 0 adds no noise and stands for x_T. */
static __global__ void start_kernel(kern_speculation w)
{
    const int quads = (w.channels + 3) / 4, i = (int)(blockIdx.x * THREADS + threadIdx.x);
    const int c = i % quads * 4, token = i / quads, index = (int)blockIdx.y;
    if (i == 0 && index == 0) {
        *w.count = {};
        w.left[KERN_LEFT_TOKENS] = w.tokens;
        w.left[KERN_LEFT_TAKEN] = 0;
    }
    if (token >= w.tokens) return;
    float *to = index ? kern_speculation_noise(&w, token, index) : w.token + (size_t)token * (size_t)w.channels;
    uint32_t words[4];
    float noise[4];
    kern_random_words(w.seed[token], index ? KERN_NOISE_STEP : KERN_NOISE_INIT, w.image[token],
                      (uint32_t)w.position[token], index ? (uint32_t)w.t[index] : 0, (uint32_t)c / 4, words);
    kern_normal4(words, noise);
    for (int n = 0; n < 4 && c + n < w.channels; n++) {
        to[c + n] = noise[n];
        if (index == 0) kern_speculation_reset(&w, token, c + n);
    }
    if (index == 0 && c == 0) {
        w.index[token] = w.steps - 1;
        w.lowest[token] = w.steps;
        w.calls[token] = w.wide[token] = w.rejected[token] = 0;
        w.slot_token[token] = token;
    }
}

/* Returns the number of rounds to the first one in which a token at this step index can finish. */
static int rounds_until(const kern_speculation *w, int index)
{
    return (index + w->window) / w->window;
}

void cuda_speculate_start(kern_queue *k, kern_speculation *w)
{
    const unsigned quads = (unsigned)(w->channels + 3) / 4;
    w->rounds = rounds_until(w, w->steps - 1);
    w->slots = w->tokens;
    cuda_launch(cuda_of(k), start_kernel, dim3(cuda_blocks((size_t)w->tokens * quads, THREADS), (unsigned)w->steps),
                THREADS, 0, *w);
}

/* Assigns the first slots to the unfinished tokens, and records their highest step index; by one warp. */
static __global__ void slots_kernel(kern_speculation w)
{
    int slots = 0, highest = -1;
    for (int first = 0; first < w.tokens; first += 32) {
        const int token = first + (int)threadIdx.x, some = token < w.tokens && w.index[token] >= 0;
        const unsigned votes = __ballot_sync(0xffffffffu, some);
        if (some) {
            w.slot_token[slots + __popc(votes & ((1u << threadIdx.x) - 1))] = token;
            highest = max(highest, w.index[token]);
        }
        slots += __popc(votes);
    }
    for (int i = 16; i > 0; i /= 2) highest = max(highest, __shfl_xor_sync(0xffffffffu, highest, i));
    if (threadIdx.x == 0) w.left[KERN_LEFT_INDEX] = highest;
    for (int slot = slots + (int)threadIdx.x; slot < w.tokens; slot += 32) w.slot_token[slot] = -1;
}

/* Returns the slot's token, or -1 if it has none or the token is finished. */
static __device__ int speculate_unfinished(const kern_speculation &w, int slot)
{
    const int token = w.slot_token[slot];
    return token >= 0 && w.index[token] < 0 ? -1 : token;
}

static __global__ void __launch_bounds__(THREADS, 1) propose_kernel(kern_speculation w, int by_filter)
{
    const int slot = (int)blockIdx.x, token = speculate_unfinished(w, slot);
    if (by_filter) {
        speculate_filter(w, slot, token, cuda_shared());
    } else {
        speculate_list(w, slot, token);
        if (token >= 0) speculate_state(w, slot, token);
    }
}

/* Writes the proposals after the rows of one level, from the draft's output for that level. */
static __global__ void draft_kernel(kern_speculation w, const float *out, int level)
{
    const int slot = (int)blockIdx.x, token = speculate_unfinished(w, slot);
    if (token < 0 || level + 1 >= kern_speculation_levels(&w, token)) return;
    const int k = w.index[token] - level;
    for (int c = (int)threadIdx.x; c < w.channels; c += (int)blockDim.x) {
        const int at = (level * w.slots + slot) * w.channels + c;
        float mean, log_std;
        speculate_gaussian(w, out, slot, w.slots, token, k, c, w.state[at], &mean, &log_std);
        w.mean_q[at] = mean;
        w.log_std_q[at] = log_std;
        w.state[at + w.slots * w.channels] =
            kern_speculation_move(&w, k, mean, log_std, kern_speculation_noise(&w, token, k)[c]);
    }
    if (threadIdx.x == 0) atomicAdd(&w.count->draft_evaluations, 1ull);
}

static __global__ void __launch_bounds__(THREADS, 1) walk_kernel(kern_speculation w, const float *out)
{
    const int slot = (int)blockIdx.x, token = speculate_unfinished(w, slot);
    if (slot == 0 && threadIdx.x == 0) w.count->rounds++;
    if (token >= 0) speculate_walk(w, out, slot, token, cuda_shared());
}

static int slots_for(const kern_speculation *w, int unfinished)
{
    const int part = (w->tokens + PARTS - 1) / PARTS, slots = (unfinished + part - 1) / part * part;
    return slots < w->tokens ? slots : w->tokens;
}

mar_status cuda_speculate_plan(kern_queue *k, const kern_head *h, const kern_speculation *w, mar_err *err)
{
    mar_status status = MAR_OK;
    for (int n = 1; status == MAR_OK && n <= w->tokens; n++) {
        if (slots_for(w, n) != n) continue;
        status = cuda_head_plan(k, h, w->conditions * n * w->window, err);
        if (status == MAR_OK)
            status = cuda_head_plan(k, h, w->conditions * n, err); /* the draft's, one level at a time */
    }
    return status;
}

/* Proposes level by level; each level is evaluated by the draft's head before the next. */
static void cuda_propose_by_draft(cuda_queue *c, const kern_speculation *w, const kern_speculation_head *draft)
{
    for (int level = 0; level + 1 < w->window && cuda_live(c); level++) {
        cuda_head_eval_at(c, draft->net, w->state + (size_t)(level * w->slots) * (size_t)w->channels, w->slots,
                          draft->mod, w->draft_index + (size_t)level * (size_t)(w->conditions * w->slots),
                          w->conditions * w->slots, draft->out, draft->scratch);
        cuda_launch(c, draft_kernel, (unsigned)w->slots, 32, 0, *w, (const float *)draft->out, level);
    }
}

/* Waits for pending rounds and assigns slots to the unfinished tokens. Returns 1 if there are any. */
static int has_unfinished(cuda_queue *c, kern_speculation *w)
{
    int left[KERN_LEFT] = {0};
    cuda_launch(c, slots_kernel, 1, 32, 0, *w);
    c->base.core->download(&c->base, left, w->left, sizeof left);
    if (left[KERN_LEFT_TOKENS] == 0 || c->base.failed != MAR_OK) return 0;
    w->slots = slots_for(w, left[KERN_LEFT_TOKENS]);
    const int rounds = rounds_until(w, left[KERN_LEFT_INDEX]);
    w->rounds = rounds < UNCHECKED_ROUNDS ? rounds : UNCHECKED_ROUNDS;
    return 1;
}

int cuda_speculate_propose(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft)
{
    cuda_queue *c = cuda_of(k);
    if (!cuda_live(c)) return 0;
    if (w->rounds == 0 && !has_unfinished(c, w)) return 0;
    w->rounds--;
    cuda_launch(c, propose_kernel, (unsigned)w->slots, THREADS, SCRATCH_BYTES, *w, draft ? 0 : 1);
    if (draft) cuda_propose_by_draft(c, w, draft);
    return w->slots;
}

void cuda_speculate_walk(kern_queue *k, kern_speculation *w, const kern_speculation_head *target)
{
    cuda_queue *c = cuda_of(k);
    const int states = w->slots * w->window;
    cuda_head_eval_at(c, target->net, w->state, states, target->mod, w->mod_index, w->conditions * states, target->out,
                      target->scratch);
    cuda_launch(c, walk_kernel, (unsigned)w->slots, THREADS, SCRATCH_BYTES, *w, (const float *)target->out);
}
