/* The chain of up to 8 rows without clusters, barriers of the grid and fences: the second form of persistent.cu's,
 * chosen at load (MAR_CUDA_HEAD_RESIDENT, docs/gpu.md). resident.cuh has the evaluation. */
#include "kernels/cuda/resident.cuh"

typedef cuda_floats<4> quad; /* four neighbouring channels of a token */

/* Takes a step of the thread's quad of the states, in every block. *x0 is a solver's last x0. */
template <typename S>
static __device__ __forceinline__ void resident_step(const persistent_args &a, S &s, const kern_chain_job &j, int step,
                                                     unsigned number, quad *x0)
{
    const int token = (int)threadIdx.x / (S::CHANNELS / 4), channel = (int)threadIdx.x % (S::CHANNELS / 4) * 4;
    if (token >= j.tokens) return;
    quad noise = {};
    uint32_t words[4];
    const kern_chain_coef coef = j.coef ? j.coef[step] : kern_chain_coef{};
    const kern_ode_coef ode = j.ode ? j.ode[step] : kern_ode_coef{};
    if (coef.noise != 0) {
        kern_random_words(j.seed[token], KERN_NOISE_STEP, j.image[token], (uint32_t)j.position[token],
                          (uint32_t)j.t[step], (uint32_t)channel / 4, words);
        kern_normal4(words, noise.v);
    }
    const uint4 *at = a.x + S::OUT + (token * S::OUTPUTS + channel) / 2;
    const uint4 *uncond = at + (j.conditions - 1) * j.tokens * S::OUTPUTS / 2;
    uint4 w[4][2]; /* prediction and variance fraction, also without condition */
    unsigned late, polls = 0;
    do {
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i / 2][i % 2] = fast::load_two_words((i < 4 ? at : uncond) + i / 2 % 2 * (S::CHANNELS / 2) + i % 2);
        late = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) late |= (w[i / 2][i % 2].y ^ number) | (w[i / 2][i % 2].w ^ number);
    } while (!persistent_polled(a, late != 0, &polls));
    float of[3][4]; /* prediction, variance fraction, prediction without condition */
#pragma unroll
    for (int n = 0; n < 12; n++) of[n / 4][n % 4] = __uint_as_float(resident_word(w[n / 4][n % 4 / 2], n).x);
    const float cfg = j.conditions == 2 ? j.cfg[token] : 0;
    float *x = s.state[token] + channel;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float guided = j.conditions == 2 ? kern_chain_eps(of[0][n], of[2][n], cfg) : of[0][n];
        x[n] = j.ode ? kern_chain_ode_next(&ode, x[n], guided, &x0->v[n])
                     : kern_chain_next(&coef, x[n], guided, of[1][n], noise.v[n]);
    }
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

/* Loads what stays in shared memory. */
template <typename S>
static __device__ __forceinline__ void resident_begin(const persistent_args &a, S &s, const kern_chain_job &j)
{
    enum { WIDE = RESIDENT_OWN * S::TILES, BOTH = WIDE + RESIDENT_OWN }; /* columns of fc1, of fc1 and fc2 */
    const int thread = (int)threadIdx.x, column = RESIDENT_OWN * (int)blockIdx.x;
#pragma unroll 1
    for (int block = 0; 2 * block < S::KEPT; block++) {
        resident_copy<S, RESIDENT_FC1>(a, s, block);
        if (2 * block + 1 < S::KEPT) resident_copy<S, RESIDENT_FC2>(a, s, block);
    }
    fast::copy_commit();
    for (int i = thread; i < S::DEPTH * BOTH; i += PERSISTENT_THREADS) {
        const float *from = a.bias + i / BOTH * (S::TILES + 1) * S::WIDTH; /* fc1 has TILES * W columns */
        const int n = i % BOTH;
        s.bias[0][0][i] = n < WIDE ? from[S::TILES * column + n] : from[S::TILES * S::WIDTH + column + n - WIDE];
    }
    for (int i = thread; i < (int)(sizeof s.operand / sizeof(uint4)); i += PERSISTENT_THREADS)
        s.operand[0][i] = make_uint4(0, 0, 0, 0);
    for (int i = thread; i < RESIDENT_OWN * (S::CHANNELS + 1); i += PERSISTENT_THREADS) {
        const int c = i / RESIDENT_OWN, n = column + i % RESIDENT_OWN;
        s.in[0][i] = c < S::CHANNELS ? a.in[n * S::CHANNELS + c] : a.in_bias[n];
    }
    for (int i = thread; i < j.tokens * S::CHANNELS; i += PERSISTENT_THREADS) s.state[0][i] = j.x[i];
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
    if (j.tokens == 0) return;  /* resident_starts only tests whether the kernel starts */
    a.width = S::WIDTH;         /* constants at compile time */
    a.mod_final = 6 * (S::DEPTH / S::GROUP) * S::WIDTH, a.mod_bytes = a.mod_final + 8 * S::WIDTH;
    resident_begin(a, s, j);
    if (j.ode && quads) x0 = ((const quad *)j.x0)[thread];
#pragma unroll 1
    for (int step = j.first; step >= 0; step--, mod += rows * a.mod_bytes) {
        if (step > 0 && line < rows * a.mod_bytes)
            fast::prefetch_l2(mod + rows * a.mod_bytes + line); /* as persistent_prefetch_mod */
        float4 x = resident_in(s, j.tokens, rows);
        if (thread < 32) resident_store_x<S>(a, x, rows, number + 1);
        number++;
#pragma unroll 1
        for (int block = 0; block < S::DEPTH; block++) number = resident_layer(a, s, mod, block, rows, number, &x);
        resident_out(a, s, mod, rows, number);
        number++;
        resident_step(a, s, j, step, number, &x0);
        __syncthreads();
    }
    if (blockIdx.x == 0 && quads) {
        ((quad *)j.x)[thread] = ((const quad *)s.state)[thread];
        if (j.ode) ((quad *)j.x0)[thread] = x0;
    }
    if (thread == 0 && persistent_gave_up(a)) *a.gave_up = 1;
}

/* --- the host -------------------------------------------------------------------------------------------------- */

typedef void (*resident_kernel)(persistent_args, kern_chain_job);
enum { RESIDENT_SIZES = 3 }; /* kernels for up to 2, 4 and 8 rows */

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
} resident_heads[] = {
#define RESIDENT_HEAD(W, D, A, C, H, N)                                                                                \
    {                                                                                                                  \
        W, D, A, C, H,                                                                                                 \
        {                                                                                                              \
            resident_of<resident_shared<W, D, A, C, H, N, 2>>, resident_of<resident_shared<W, D, A, C, H, N, 4>>,      \
                resident_of<resident_shared<W, D, A, C, H, N, 8>>                                                      \
        }                                                                                                              \
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
    return e;
}

int resident_run(cuda_queue *c, const persistent_head *f, const kern_chain_job *job)
{
    const int rows = job->tokens * job->conditions, size = rows <= 2 ? 0 : rows <= 4 ? 1 : 2;
    persistent_args args;
    if (!f->few || rows > RESIDENT_ROWS) return 0;
    if (!cuda_live(c) || !persistent_prepare(c, f, true, &args)) return 1;
    args = resident_args(f->few, size, &args);
    const size_t zeros = (size_t)((char *)(args.x + f->few->sizes[size].words) - (char *)args.arrivals);
    if (cuda_ok(c, cudaMemsetAsync(args.arrivals, 0, zeros, c->stream), "preparing the head's kernel"))
        cuda_ok(c, persistent_start(c, args, f->few->sizes[size].kernel, *job), "launching the head's kernel");
    return 1;
}
