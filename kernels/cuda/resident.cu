/* The chain of up to 8 rows, and rounds of speculation of as many, without clusters, barriers of the grid and fences:
 * the second form of persistent.cu's and speculation.cu's, chosen at load (MAR_CUDA_HEAD_RESIDENT, docs/gpu.md).
 * resident.cuh has the evaluation. */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/resident.cuh"

typedef cuda_floats<4> quad; /* four neighbouring channels of a token */

/* Takes a step of the thread's quad of the states, in every block. *x0 is a solver's last x0. */
template <typename S>
static __device__ __forceinline__ void resident_step(const persistent_args &a, S &s, const kern_chain_job &j, int step,
                                                     unsigned number, quad *x0)
{
    const int token = (int)threadIdx.x / (S::CHANNELS / 4), channel = (int)threadIdx.x % (S::CHANNELS / 4) * 4;
    if (token < j.tokens)
        chain_step(a, j, step, S::CHANNELS, token, channel, a.x + S::OUT, number, s.state[token] + channel, x0->v);
}

/* --- the chain ------------------------------------------------------------------------------------------------- */

/* Copies a product's weights of the block's columns. */
template <typename S, resident_side SIDE>
static __device__ __forceinline__ void resident_copy(const persistent_args &a, S &s, int block)
{
    typedef resident_product<S, SIDE> P;
    const uint4 *from = resident_packed<S, SIDE>(a, block);
    uint4 *to = s.weight + block * (S::FC1 + S::FC2) + (SIDE == RESIDENT_FC1 ? 0 : S::FC1);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < P::TILES * P::ALL * 32; i += PERSISTENT_THREADS)
        fast::copy16(to + i, from + i / (P::ALL * 32) * P::PACKED + i % (P::ALL * 32));
}

/* Loads what stays in shared memory, and the first `floats` of the states from x. */
template <typename S>
static __device__ __forceinline__ void resident_begin(persistent_args &a, S &s, const float *x, int floats)
{
    enum { WIDE = RESIDENT_OWN * S::TILES, BOTH = WIDE + RESIDENT_OWN }; /* columns of fc1, of fc1 and fc2 */
    const int thread = (int)threadIdx.x, column = RESIDENT_OWN * (int)blockIdx.x;
    a.width = S::WIDTH, a.inverse_width = 1 / (float)S::WIDTH; /* constants at compile time */
    a.mod_final = 6 * (S::DEPTH / S::GROUP) * S::WIDTH, a.mod_bytes = a.mod_final + 8 * S::WIDTH;
#pragma unroll 1
    for (int block = 0; 2 * block < S::KEPT; block++) {
        resident_copy<S, RESIDENT_FC1>(a, s, block);
        if (2 * block + 1 < S::KEPT) resident_copy<S, RESIDENT_FC2>(a, s, block);
    }
    fast::copy_commit();
    for (int i = thread; i < S::DEPTH * BOTH; i += PERSISTENT_THREADS) {
        const float *from = a.bias + i / BOTH * (S::TILES + 1) * S::WIDTH; /* fc1 has TILES * W columns */
        const int n = i % BOTH;
        s.bias[i / BOTH][n / RESIDENT_OWN][n % RESIDENT_OWN] =
            n < WIDE ? from[S::TILES * column + n] : from[S::TILES * S::WIDTH + column + n - WIDE];
    }
    for (int i = thread; i < (int)(sizeof s.operand / sizeof(uint4)); i += PERSISTENT_THREADS)
        s.operand[i / 32][i % 32] = make_uint4(0, 0, 0, 0);
    for (int i = thread; i < RESIDENT_OWN * (S::CHANNELS + 1); i += PERSISTENT_THREADS) {
        const int c = i / RESIDENT_OWN, n = column + i % RESIDENT_OWN;
        s.in[c][i % RESIDENT_OWN] = c < S::CHANNELS ? a.in[n * S::CHANNELS + c] : a.in_bias[n];
    }
    for (int i = thread; i < S::ROWS * S::CHANNELS; i += PERSISTENT_THREADS)
        s.state[i / S::CHANNELS][i % S::CHANNELS] = i < floats ? x[i] : 0;
    fast::copy_wait<0>();
    __syncthreads();
}

template <typename S>
static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) resident_chain(persistent_args a, kern_chain_job j)
{
    S &s = *(S *)cuda_shared();
    const int thread = (int)threadIdx.x, rows = j.tokens * j.conditions;
    const bool quads = thread < j.tokens * S::CHANNELS / 4;
    const size_t line = (blockIdx.x * PERSISTENT_THREADS + threadIdx.x) * (size_t)128;
    const unsigned char *mod = (const unsigned char *)j.mod; /* rows of the step */
    quad x0 = {};
    unsigned number = S::FIRST; /* of the words written last */
    if (j.tokens == 0) return;  /* resident_try only tests whether the kernel starts */
    if (thread < rows) s.mod[thread] = mod + thread * a.mod_bytes;
    resident_begin(a, s, j.x, j.tokens * S::CHANNELS);
    if (j.ode && quads) x0 = ((const quad *)j.x0)[thread];
#pragma unroll 1
    for (int step = j.first; step >= 0; step--, mod += rows * a.mod_bytes) {
        if (step > 0 && line < rows * a.mod_bytes)
            fast::prefetch_l2(mod + rows * a.mod_bytes + line); /* as persistent_prefetch_mod */
        number = resident_evaluate(a, s, j.tokens, rows, number);
        resident_step(a, s, j, step, number, &x0);
        if (thread < rows) s.mod[thread] += rows * a.mod_bytes;
        __syncthreads();
    }
    if (blockIdx.x == 0 && quads) {
        ((quad *)j.x)[thread] = ((const quad *)s.state)[thread];
        if (j.ode) ((quad *)j.x0)[thread] = x0;
    }
    persistent_report(a);
}

/* --- speculation inside the head -------------------------------------------------------------------------------- */

/* Takes the outputs of the slot's rows, each thread those of a channel of a row. Waits for all of them, also without a
 * token. */
template <typename S>
static __device__ __forceinline__ void resident_take(const persistent_args &a, const kern_speculation &w, int slot,
                                                     int token, unsigned number)
{
    const int level = (int)threadIdx.x / S::CHANNELS, c = (int)threadIdx.x % S::CHANNELS;
    const uint4 *cond = a.x + S::OUT + ((level * w.slots + slot) * S::OUTPUTS + c) / 2;
    const uint4 *uncond = cond + (w.conditions - 1) * w.slots * w.window * S::OUTPUTS / 2;
    uint4 of[4]; /* eps and v, with and without condition */
    unsigned late, polls = 0;
    const bool some = token >= 0 && level < kern_speculation_levels(&w, token); /* loaded before the wait */
    if (level >= w.window) return;
    do {
#pragma unroll
        for (int i = 0; i < 4; i++) of[i] = fast::load_two_words((i < 2 ? cond : uncond) + i % 2 * (S::CHANNELS / 2));
        late = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) late |= (of[i].y ^ number) | (of[i].w ^ number);
    } while (!persistent_polled(a, late != 0, &polls));
    if (!some) return;
    speculate_take(w, slot, token, level, c, __uint_as_float(resident_word(of[0], c).x),
                   __uint_as_float(resident_word(of[2], c).x), __uint_as_float(resident_word(of[1], c).x));
}

/* A slot's turn between two evaluations: its token moves to the end of the round, and it or the next one proposes.
 * Writes the slot's words of the next round: states, and modulation rows, or -1 without a token and where a wait gave
 * up. */
template <typename S>
static __device__ __forceinline__ void resident_move(const persistent_args &a, S &s, const kern_speculation &w,
                                                     int slot, bool evaluated, unsigned number)
{
    const int i = (int)threadIdx.x, row = i - S::ROWS * S::CHANNELS, states = w.slots * w.window;
    const bool gave_up = persistent_gave_up(a);
    uint2 *to = (uint2 *)(a.x + S::ROUND) + i;
    int token = w.slot_token[slot];
    if (evaluated) {
        resident_take<S>(a, w, slot, token, number);
        if (token >= 0) {
            speculate_walk(w, slot, token, &s.turn.scratch);
            token = speculate_next_token(w, slot);
        }
    }
    speculate_filter(w, slot, token, &s.turn.scratch, sizeof s.turn.scratch);
    __syncthreads();
    if (i < states * S::CHANNELS && i / S::CHANNELS % w.slots == slot)
        fast::store_word(to, __float_as_uint(w.state[i]), number + 1);
    if (row >= 0 && row < states * w.conditions && row % w.slots == slot)
        fast::store_word(to, gave_up || token < 0 ? ~0u : (unsigned)s.turn.mod_index[row], number + 1);
}

/* Loads states and modulation rows. Returns whether a slot has a token; not where a wait gave up. */
template <typename S>
static __device__ __forceinline__ bool resident_load_round(const persistent_args &a, S &s, const speculate_job &j,
                                                           unsigned number)
{
    const int i = (int)threadIdx.x, row = i - S::ROWS * S::CHANNELS, states = j.w.slots * j.w.window;
    const bool state = i < states * S::CHANNELS, mod = row >= 0 && row < states * j.w.conditions;
    uint2 word = make_uint2(0, number);
    unsigned polls = 0;
    do {
        if (state || mod) word = resident_word(fast::load_two_words(a.x + S::ROUND + i / 2), i);
    } while (!persistent_polled(a, word.y != number, &polls));
    if (state) s.state[i / S::CHANNELS][i % S::CHANNELS] = __uint_as_float(word.x);
    if (mod) s.mod[row] = j.mod + (size_t)max((int)word.x, 0) * a.mod_bytes;
    return __syncthreads_or(mod && word.y == number && (int)word.x >= 0);
}

/* Runs all rounds. The last blocks have the slots: with few rows or many blocks they compute no outputs. */
template <typename S>
static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) resident_rounds(persistent_args a, speculate_job j)
{
    S &s = *(S *)cuda_shared();
    const int slot = (int)(gridDim.x - 1 - blockIdx.x), states = j.w.slots * j.w.window;
    unsigned number = S::FIRST;
    kern_speculation w = j.w; /* the slot's, in shared memory what a round needs, but for q */
    if (w.tokens == 0) return;
    w.state = s.state[0], w.mod_index = s.turn.mod_index;
    w.mean_p = s.turn.mean_p, w.log_std_p = s.turn.log_std_p;
    w.tempered_p = s.turn.tempered_p, w.tempered_q = s.turn.tempered_q;
    resident_begin(a, s, NULL, 0);
#pragma unroll 1
    for (bool evaluated = false;; evaluated = true) {
        if (slot < w.slots) resident_move(a, s, w, slot, evaluated, number);
        number++;
        if (!resident_load_round(a, s, j, number)) break;
        if (blockIdx.x == 0 && threadIdx.x == 0) w.count->rounds++;
        number = resident_evaluate(a, s, states, states * w.conditions, number);
    }
    persistent_report(a);
}

/* --- the host -------------------------------------------------------------------------------------------------- */

typedef void (*resident_kernel)(persistent_args, kern_chain_job);
enum { RESIDENT_SIZES = 3 }; /* kernels for up to 2, 4 and 8 rows; rounds have the last one's shared memory and words */

/* A kernel, its shared memory, and its words in 16 bytes. */
typedef struct {
    resident_kernel kernel;
    size_t bytes, words;
} resident_size;
template <typename S> constexpr resident_size resident_of = {resident_chain<S>, sizeof(S), S::WORDS};

/* The heads with a resident form: the demo models' of MAR and Harmon, of NextStep-1 and of SphereAR, MAR-B's (also
 * Harmon 0.5B's), SphereAR-B's; on the host, where the blocks of these are too many, two of
 * tests/cuda/test_persistent.c. */
static const struct resident_head {
    int width, depth, ada_layers, channels, hidden; /* hidden 0: MLP */
    resident_size sizes[RESIDENT_SIZES];
    void (*rounds)(persistent_args, speculate_job);
} resident_heads[] = {
#define RESIDENT_HEAD(W, D, A, C, H, N)                                                                                \
    {                                                                                                                  \
        W, D, A, C, H,                                                                                                 \
            {resident_of<resident_shared<W, D, A, C, H, N, 2>>, resident_of<resident_shared<W, D, A, C, H, N, 4>>,     \
             resident_of<resident_shared<W, D, A, C, H, N, 8>>},                                                       \
            resident_rounds<resident_shared<W, D, A, C, H, N, 8>>                                                      \
    }
    RESIDENT_HEAD(128, 2, 2, 8, 0, 4), RESIDENT_HEAD(128, 3, 3, 16, 0, 6),  RESIDENT_HEAD(128, 4, 2, 16, 192, 8),
#ifdef MAR_CUDAHOST
    RESIDENT_HEAD(512, 1, 1, 8, 0, 2), RESIDENT_HEAD(256, 2, 1, 4, 384, 1),
#else
    RESIDENT_HEAD(1024, 6, 6, 16, 0, 12), RESIDENT_HEAD(768, 6, 2, 16, 1152, 7),
#endif
#undef RESIDENT_HEAD
};

/* Returns the arguments of a launch of kernel `size`; *args has the queue's working memory, or none. */
static persistent_args resident_args(const resident_head *of, int size, const persistent_args *args)
{
    persistent_args a = *args;
    a.cluster = 1, a.clusters = of->width / RESIDENT_OWN, a.shared_bytes = of->sizes[size].bytes;
    return a;
}

const resident_head *resident_find(const cuda_queue *c, const kern_head_spec *spec)
{
    for (const resident_head &of : resident_heads)
        if (spec->width == of.width && spec->depth == of.depth && spec->channels == of.channels &&
            spec->ada_layers == of.ada_layers && (spec->form == KERN_HEAD_SWIGLU ? spec->hidden : 0) == of.hidden &&
            of.width / RESIDENT_OWN <= c->device->multiprocessors &&
            of.sizes[RESIDENT_SIZES - 1].bytes <= c->device->shared_bytes)
            return &of;
    return NULL;
}

cudaError_t resident_try(const cuda_queue *c, const persistent_head *f, const resident_head *of)
{
    cudaError_t e = cudaSuccess;
    for (int size = 0; size < RESIDENT_SIZES && e == cudaSuccess; size++)
        e = persistent_start(c, resident_args(of, size, &f->args), of->sizes[size].kernel, kern_chain_job());
    if (e != cudaSuccess) return e;
    return persistent_start(c, resident_args(of, RESIDENT_SIZES - 1, &f->args), of->rounds, speculate_job());
}

/* Launches kernel(args, job), which has the shared memory and words of kernel `size`. */
template <typename E>
static void resident_launch(cuda_queue *c, const persistent_head *f, int size, void (*kernel)(persistent_args, E),
                            const E &job)
{
    persistent_args args;
    if (!cuda_live(c) || !persistent_prepare(c, f, true, &args)) return;
    args = resident_args(f->few, size, &args);
    const size_t zeros = (size_t)((char *)(args.x + f->few->sizes[size].words) - (char *)args.arrivals);
    if (cuda_ok(c, cudaMemsetAsync(args.arrivals, 0, zeros, c->stream), "preparing the head's kernel"))
        cuda_ok(c, persistent_start(c, args, kernel, job), "launching the head's kernel");
}

int resident_run(cuda_queue *c, const persistent_head *f, const kern_chain_job *job)
{
    const int rows = job->tokens * job->conditions, size = rows <= 2 ? 0 : rows <= 4 ? 1 : 2;
    if (!f->few || rows > RESIDENT_ROWS) return 0;
    resident_launch(c, f, size, f->few->sizes[size].kernel, *job);
    return 1;
}

int resident_speculate(cuda_queue *c, const persistent_head *f, kern_speculation *w, const void *mod)
{
    const int fit = RESIDENT_ROWS / (w->conditions * w->window);
    if (!f->few || w->tokens > SPECULATE_TOKENS * fit) return 0;
    w->slots = w->tokens < fit ? w->tokens : fit;
    const speculate_job j = {*w, (const unsigned char *)mod};
    resident_launch(c, f, RESIDENT_SIZES - 1, f->few->rounds, j);
    return 1;
}
