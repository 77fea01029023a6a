/* Rounds of speculation inside the head (speculation.cuh) on the GPU. There are two loops around a round. With up to
 * PERSISTENT_ROWS rows one launch does all rounds (speculate_kernel): the blocks with tokens alternate with the
 * evaluation of persistent_layers.cuh. A slot whose token is finished gets the next token. The floor of a round is that
 * of an evaluation (persistent.cu), one more barrier, and the latency of the tokens' work. With more rows cuBLASLt
 * evaluates between two small kernels, propose_kernel and walk_kernel, and the host runs the loop
 * (diffusion/speculate.c). It checks for finished tokens only when a token can be finished. Until then the rounds are
 * certainly needed, and it does not wait. resident.cu and groups_speculation.cu have other loops, chosen at load. */
#include "kernels/cuda/speculation.cuh"

enum {
    THREADS = PERSISTENT_THREADS,
    SCRATCH_BYTES = PERSISTENT_SCRATCH, /* shared memory of a token's work: persistent_block.scratch */
    /* Two guesses, each to be measured on a GPU by the time of a call of diff_speculate_sample. */
    PARTS = 8,            /* A round's slots are a multiple of an eighth of the tokens: products have this many shapes.
                           * Measure with 4 and 16 at 256 tokens. More shapes cost plans and recordings, fewer cost rows of
                           * finished tokens. */
    UNCHECKED_ROUNDS = 4, /* Maximum rounds between two checks for finished tokens. Measure with 1 and 8 at 129 rows and
                           * at 256 tokens. A check costs the launches the GPU waits for, a round too many costs rows of
                           * finished tokens. */
};

static_assert(sizeof(speculate_scratch) <= SCRATCH_BYTES, "the scratch memory has room for a residual");

/* --- evaluation inside: all rounds in one launch -------------------------------------------------------------- */

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
                speculate_read_outputs(w, a.out, slot, token);
                speculate_walk(w, slot, token, (speculate_scratch *)f.scratch);
                token = speculate_next_token(w, slot);
            }
            speculate_filter(w, slot, token, f.scratch, SCRATCH_BYTES);
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
    if (!draft && groups_run_speculation(cuda_of(k), w, target)) return;
    const int fit = PERSISTENT_ROWS / (w->conditions * w->window);
    if (draft || !f || w->tokens > SPECULATE_TOKENS * fit) {
        kern_speculate_rounds(k, w, draft, target);
        return;
    }
    if (resident_speculate(cuda_of(k), f, w, target->mod)) return;
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
        speculate_filter(w, slot, token, cuda_shared(), SCRATCH_BYTES);
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
        float mean, log_std, eps, uncond, v;
        speculate_output(w, out, slot, w.slots, c, &eps, &uncond, &v);
        kern_speculation_transition(&w, token, k, w.state[at], eps, uncond, v, &mean, &log_std);
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
    if (token < 0) return;
    speculate_read_outputs(w, out, slot, token);
    speculate_walk(w, slot, token, (speculate_scratch *)cuda_shared());
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
