/* Matrix products by cuBLASLt, planned once for each shape and device, and linear layers. */
#include "kernels/cuda/cuda.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

enum {
    TILE = 16,      /* rows and columns that a block of the simple kernel computes */
    THREADS = 256,  /* of a block of the activations' kernel */
    ALIGNMENT = 16, /* bytes; of arrays that cuBLASLt gets */
    CANDIDATES = 8, /* algorithms of a product that are timed, at most */
    ROUNDS = 3,     /* times that each is timed; its least time counts */
    BUCKETS = sizeof(((cuda_device *)0)->matmuls) / sizeof(struct cuda_matmul *),
};

/* A product y[rows][out] = x[rows][in] weight[out][in]^T + bias. Rows of x and weight are dense, those of y y_stride
 * elements apart. By cuBLASLt where the arrays and their rows are 16-byte aligned, else by a simple kernel. */
typedef struct {
    int rows, out, in, y_stride;
    int f32;   /* x and weight are float, multiplied in f32; else act */
    int y_f32; /* y is float, else act; so is bias */
    int bias;  /* there is one */
    int add;   /* y += */
    int then;  /* THEN_*: what follows the sum with its bias */
} matmul_spec;
enum {
    THEN_NOTHING,
    THEN_GELU, /* in cuBLASLt's tanh form, less than 5e-4 from the exact one; not with f32 */
    THEN_RELU,
};

/* How to compute a product. It does not change once it is in the device's table, so all queues use it at once. */
struct cuda_matmul {
    matmul_spec spec;
    int library; /* whether cuBLASLt computes it, by `algo` */
    cublasLtMatmulAlgo_t algo;
    struct cuda_matmul *next;
};

/* What cuBLASLt is told of a product, with the address of its bias. Each call has its own. */
typedef struct {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t weight, x, y;
} description;

static mar_status cublas_status(cublasStatus_t returned, const matmul_spec *p, mar_err *err)
{
    if (returned == CUBLAS_STATUS_SUCCESS) return MAR_OK;
    return err_set(err, MAR_EBACKEND, "cuBLASLt: a product of %d x %d by %d x %d: %s", p->rows, p->in, p->in, p->out,
                   cublasLtGetStatusString(returned));
}

/* What timing may take on the GPU, in milliseconds: of one product, after whose round it stops, and of a device's
 * products together. */
static const double product_ms = 30, device_ms = 2000;

/* --- plans ------------------------------------------------------------------------------------------------ */

void cuda_matmuls_free(cuda_device *d)
{
    cuda_free(&d->base, d->trial);
    for (int i = 0; i < BUCKETS; i++)
        while (d->matmuls[i]) {
            struct cuda_matmul *m = d->matmuls[i];
            d->matmuls[i] = m->next;
            free(m);
        }
}

static int aligned(const void *p)
{
    return (uintptr_t)p % ALIGNMENT == 0;
}

static int rows_aligned(const cuda_device *d, const matmul_spec *p)
{
    const int size = d->bf16 && !p->f32 ? 2 : 4, y_size = d->bf16 && !p->y_f32 ? 2 : 4;
    return p->in * size % ALIGNMENT == 0 && p->y_stride * y_size % ALIGNMENT == 0;
}

static cublasStatus_t describe(const cuda_device *device, const matmul_spec *p, const void *bias, description *d)
{
    const cudaDataType_t from = device->bf16 && !p->f32 ? CUDA_R_16BF : CUDA_R_32F;
    const cudaDataType_t to = device->bf16 && !p->y_f32 ? CUDA_R_16BF : CUDA_R_32F;
    const int32_t transposed = CUBLAS_OP_T;
    static const int32_t epilogues[][2] = {{CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS},
                                           {CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS},
                                           {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS}};
    const int32_t epilogue = epilogues[p->then][p->bias];
    /* cuBLAS counts columns first: our rows are its columns, and y^T = weight x^T. */
    const uint64_t rows = (uint64_t)p->rows, out = (uint64_t)p->out, in = (uint64_t)p->in;
    cublasStatus_t s = cublasLtMatmulDescInit(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s)
        s = cublasLtMatmulDescSetAttribute(&d->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (!s) s = cublasLtMatmulDescSetAttribute(&d->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!s && p->bias) /* the bias has y's type */
        s = cublasLtMatmulDescSetAttribute(&d->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (!s) s = cublasLtMatrixLayoutInit(&d->weight, from, in, out, p->in);
    if (!s) s = cublasLtMatrixLayoutInit(&d->x, from, in, rows, p->in);
    if (!s) s = cublasLtMatrixLayoutInit(&d->y, to, out, rows, p->y_stride);
    return s;
}

static cublasStatus_t limit(const cuda_queue *c, cublasLtMatmulPreference_t preference)
{
    static const cublasLtMatmulPreferenceAttributes_t operands[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = c->workspace_bytes;
    const uint32_t alignment = ALIGNMENT;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* parts of sums stay f32 */
    cublasStatus_t s = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                            &workspace, sizeof workspace);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                 sizeof reductions);
    for (int i = 0; !s && i < 4; i++)
        s = cublasLtMatmulPreferenceSetAttribute(preference, operands[i], &alignment, sizeof alignment);
    return s;
}

static cublasStatus_t library_matmul(cuda_queue *c, const struct cuda_matmul *m, const void *x, const void *weight,
                                     const void *bias, void *y)
{
    const float one = 1, beta = m->spec.add ? 1 : 0;
    description d;
    const cublasStatus_t s = describe(c->device, &m->spec, bias, &d);
    if (s) return s;
    return cublasLtMatmul(c->device->lt, &d.product, &one, weight, &d.weight, x, &d.x, &beta, y, &d.y, y, &d.y,
                          &m->algo, c->workspace, c->workspace_bytes, c->stream);
}

/* --- the choice of an algorithm ---------------------------------------------------------------------------- */

/* cuBLASLt orders its algorithms by what it expects of them. The first ones are tried on operands of their own:
 *   - Each computes two products. Only those whose results are, bit for bit, those of the first that can be run are
 *     candidates, so that the choice, which is the clock's, changes no result.
 *       - CANCELLED: the operands' second halves cancel what the first halves add up to, and one term the bias, so that
 *         a result is what rounding left of it: sums in another order or in parts, or a bias that is added elsewhere,
 *         show in nearly all elements, in bf16 too.
 *       - PLAIN: nothing cancels, and the sums, the bias and what y held are some ones: the activation shows, and what
 *         is added to y.
 *   - The candidates are timed in turns behind a kernel that holds the stream until all launches are in it.
 * The operands stay in the L2 cache if they fit, which those of a model may not. A trial that fails keeps the first
 * algorithm and fails nothing: an error that stays is the next operation's, too. */
enum { CANCELLED, PLAIN, PRODUCTS };
enum { SEED_X = 1, SEED_WEIGHT, SEED_BIAS, SEED_Y };
typedef struct {
    cudaError_t error; /* the first */
    void *x, *weight, *bias, *y;
    unsigned long long *digest; /* [PRODUCTS][CANDIDATES] */
    size_t y_elements;          /* of all rows with what is between them */
    cudaEvent_t event[CANDIDATES + 1];
} trial;

/* Remembers the first error. Returns whether there is none. */
static int trial_ok(trial *t, cudaError_t error)
{
    if (t->error == cudaSuccess) t->error = error;
    return t->error == cudaSuccess;
}

/* Has a random sign, one of 12 exponents and 8 bits, as many as bf16; the mean of its square is 7/27. */
static __device__ inline float trial_value(size_t at, unsigned seed)
{
    unsigned i = (unsigned)at * 0x9e3779b1u + seed;
    i = (i ^ i >> 16) * 0x85ebca6bu;
    i = (i ^ i >> 13) * 0xc2b2ae35u;
    i ^= i >> 16;
    const float size = ldexpf(1 + (float)(i & 127) / 128, -(int)(i >> 7 & 0xffff) % 12);
    return i >> 31 ? -size : size;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) trial_fill(T *p, size_t n, int seed, float scale)
{
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n; i += gridDim.x * (size_t)THREADS)
        cuda_store(p + i, scale * trial_value(i, (unsigned)seed));
}

/* Fills x, or the weight, of n elements in rows of `in`, so that sums cancel. The second half of a row repeats the
 * first, in the weight negatively. If there is a bias, it is cancelled by the first term, which has none to cancel. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) trial_cancel(T *p, size_t n, int in, int seed, int bias)
{
    const size_t half = (size_t)in / 2;
    const int weight = seed == SEED_WEIGHT;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n; i += gridDim.x * (size_t)THREADS) {
        const size_t row = i / (size_t)in, column = i % (size_t)in;
        float value = trial_value(row * half + (column < half ? column : column - half), (unsigned)seed);
        if (weight && column >= half) value = -value;
        if (bias && column == half) value = 0;
        if (bias && column == 0) value = weight ? -trial_value(row, SEED_BIAS) : 1;
        cuda_store(p + i, value);
    }
}

/* Adds a hash of the bits of y [rows][out] to *digest, the same in every order of threads. */
template <typename Y>
static __global__ void __launch_bounds__(THREADS) trial_digest(matmul_spec p, const Y *y, unsigned long long *digest)
{
    unsigned long long sum = 0;
    const size_t n = (size_t)p.rows * (size_t)p.out;
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n; i += gridDim.x * (size_t)THREADS) {
        const float value = cuda_float(y[i / (size_t)p.out * (size_t)p.y_stride + i % (size_t)p.out]);
        unsigned long long h = (i + 1) * 0x9e3779b97f4a7c15ull ^ (unsigned long long)__float_as_uint(value);
        h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
        h = (h ^ h >> 27) * 0x94d049bb133111ebull;
        sum += h ^ h >> 31;
    }
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (threadIdx.x % 32 == 0) atomicAdd(digest, sum);
}

/* Holds the stream for some 0.2 milliseconds, in which a host launches what is timed. */
static __global__ void trial_hold(void)
{
    const long long start = clock64();
    while (clock64() - start < 400000) continue;
}

/* Cuts the operands from `base`; returns their bytes. */
static size_t trial_lay_out(const cuda_device *d, const matmul_spec *p, char *base, trial *t)
{
    const size_t size = d->bf16 && !p->f32 ? sizeof(bf16) : sizeof(float);
    const size_t y_size = d->bf16 && !p->y_f32 ? sizeof(bf16) : sizeof(float);
    size_t used = 0;
    t->y_elements = (size_t)p->rows * (size_t)p->y_stride;
    t->x = arena_carve(base, &used, (size_t)p->rows * (size_t)p->in, size);
    t->weight = arena_carve(base, &used, (size_t)p->out * (size_t)p->in, size);
    t->bias = arena_carve(base, &used, (size_t)p->out, y_size);
    t->digest = (unsigned long long *)arena_carve(base, &used, PRODUCTS * CANDIDATES, sizeof *t->digest);
    t->y = arena_carve(base, &used, t->y_elements, y_size);
    return used;
}

static void trial_free(cuda_device *d)
{
    cuda_free(&d->base, d->trial);
    d->trial = NULL;
    d->trial_bytes = 0;
}

/* Waits for what a failed trial has begun: the memory serves the next trial, which may be another queue's. Frees that
 * of large ones. */
static void trial_close(cuda_queue *c, trial *t)
{
    enum { KEPT = 64 << 20 }; /* bytes */
    (void)cudaStreamSynchronize(c->stream);
    for (int i = 0; i <= CANDIDATES; i++)
        if (t->event[i]) (void)cudaEventDestroy(t->event[i]);
    if (t->error != cudaSuccess) (void)cudaGetLastError(); /* clears it */
    if (c->device->trial_bytes > KEPT) trial_free(c->device);
}

/* Returns 0 if there is not enough memory, which is no failure. */
static int trial_open(cuda_device *d, const matmul_spec *p, trial *t)
{
    *t = {};
    const size_t bytes = trial_lay_out(d, p, NULL, t);
    if (bytes > d->trial_most) return 0;
    if (bytes > d->trial_bytes) {
        trial_free(d);
        if (cuda_alloc(&d->base, bytes, &d->trial, NULL) != MAR_OK) return trial_ok(t, cudaErrorMemoryAllocation);
        d->trial_bytes = bytes;
    }
    trial_lay_out(d, p, (char *)d->trial, t);
    for (int i = 0; i <= CANDIDATES && t->error == cudaSuccess; i++) trial_ok(t, cudaEventCreate(&t->event[i]));
    return t->error == cudaSuccess;
}

static unsigned trial_blocks(const cuda_queue *c)
{
    return 4 * (unsigned)c->device->multiprocessors;
}

/* Fills x, weight and bias for one of the products. */
template <typename X, typename Y> static void trial_start(cuda_queue *c, const matmul_spec *p, trial *t, int which)
{
    const unsigned blocks = trial_blocks(c);
    const size_t x = (size_t)p->rows * (size_t)p->in, weight = (size_t)p->out * (size_t)p->in;
    if (which == CANCELLED) {
        trial_ok(t, cuda_launch_always(c, trial_cancel<X>, blocks, THREADS, 0, (X *)t->x, x, p->in, SEED_X, p->bias));
        trial_ok(t, cuda_launch_always(c, trial_cancel<X>, blocks, THREADS, 0, (X *)t->weight, weight, p->in,
                                       SEED_WEIGHT, p->bias));
    } else { /* the factor makes a sum's deviation about 1 */
        const float scale = 4 / sqrtf((float)p->in);
        trial_ok(t, cuda_launch_always(c, trial_fill<X>, blocks, THREADS, 0, (X *)t->x, x, SEED_X, scale));
        trial_ok(t, cuda_launch_always(c, trial_fill<X>, blocks, THREADS, 0, (X *)t->weight, weight, SEED_WEIGHT, 1.f));
    }
    trial_ok(t, cuda_launch_always(c, trial_fill<Y>, blocks, THREADS, 0, (Y *)t->bias, (size_t)p->out, SEED_BIAS, 1.f));
}

/* Whether the algorithm can compute the product. */
static int trial_product(cuda_queue *c, const struct cuda_matmul *m, const cublasLtMatmulHeuristicResult_t *found,
                         trial *t)
{
    struct cuda_matmul tried = *m;
    tried.algo = found->algo;
    if (found->state == CUBLAS_STATUS_SUCCESS &&
        library_matmul(c, &tried, t->x, t->weight, t->bias, t->y) == CUBLAS_STATUS_SUCCESS)
        return 1;
    (void)cudaGetLastError(); /* clears what cuBLASLt may have met */
    return 0;
}

/* Has the algorithms that can compute the product compute it, on y of zeros if sums are to cancel, and digests the
 * results. */
template <typename X, typename Y>
static void trial_run(cuda_queue *c, const struct cuda_matmul *m, trial *t,
                      const cublasLtMatmulHeuristicResult_t *found, int n, int which, int *can)
{
    const unsigned blocks = trial_blocks(c);
    trial_start<X, Y>(c, &m->spec, t, which);
    for (int i = 0; i < n && t->error == cudaSuccess && kern_live(&c->base); i++) {
        trial_ok(t, cuda_launch_always(c, trial_fill<Y>, blocks, THREADS, 0, (Y *)t->y, t->y_elements, SEED_Y,
                                       which == CANCELLED ? 0.f : 1.f));
        can[i] = can[i] && trial_product(c, m, &found[i], t);
        if (can[i])
            trial_ok(t, cuda_launch_always(c, trial_digest<Y>, blocks, THREADS, 0, m->spec, (const Y *)t->y,
                                           t->digest + which * CANDIDATES + i));
    }
}

/* Sets can[i] of those of the n algorithms that are candidates, and returns how many these are. */
static int trial_compare(cuda_queue *c, const struct cuda_matmul *m, trial *t,
                         const cublasLtMatmulHeuristicResult_t *found, int n, int *can)
{
    const int from_f32 = !c->device->bf16 || m->spec.f32, to_f32 = !c->device->bf16 || m->spec.y_f32;
    unsigned long long digest[PRODUCTS][CANDIDATES];
    int first = n, count = 0;
    for (int i = 0; i < n; i++) can[i] = 1;
    trial_ok(t, cudaMemsetAsync(t->digest, 0, sizeof digest, c->stream));
    for (int which = 0; which < PRODUCTS; which++)
        if (from_f32)
            trial_run<float, float>(c, m, t, found, n, which, can);
        else if (to_f32)
            trial_run<bf16, float>(c, m, t, found, n, which, can);
        else
            trial_run<bf16, bf16>(c, m, t, found, n, which, can);
    if (!trial_ok(t, cudaMemcpyAsync(digest, t->digest, sizeof digest, cudaMemcpyDeviceToHost, c->stream)) ||
        !trial_ok(t, cudaStreamSynchronize(c->stream)) || !kern_live(&c->base))
        return 0;
    for (int i = n - 1; i >= 0; i--)
        if (can[i]) first = i;
    for (int i = first; i < n; i++) {
        for (int which = 0; which < PRODUCTS; which++) can[i] &= digest[which][i] == digest[which][first];
        count += can[i];
    }
    return count;
}

/* Times the candidates once and lowers their least times. Returns the milliseconds of all. */
static double trial_time(cuda_queue *c, const struct cuda_matmul *m, trial *t,
                         const cublasLtMatmulHeuristicResult_t *found, int n, int *can, double *least)
{
    double all = 0;
    trial_ok(t, cuda_launch_always(c, trial_hold, 1, 1, 0));
    trial_ok(t, cudaEventRecord(t->event[0], c->stream));
    for (int i = 0; i < n && t->error == cudaSuccess; i++) {
        can[i] = can[i] && trial_product(c, m, &found[i], t);
        trial_ok(t, cudaEventRecord(t->event[i + 1], c->stream));
    }
    if (t->error == cudaSuccess) trial_ok(t, cudaEventSynchronize(t->event[n]));
    for (int i = 0; i < n && t->error == cudaSuccess; i++) {
        float ms = 0;
        trial_ok(t, cudaEventElapsedTime(&ms, t->event[i], t->event[i + 1]));
        if (ms < least[i]) least[i] = ms;
        all += ms;
    }
    return all;
}

/* Takes the fastest of the n algorithms that compute what the first does that can be run. The device's `tuning` is
 * locked. */
static void tune(cuda_queue *c, struct cuda_matmul *m, const cublasLtMatmulHeuristicResult_t *found, int n)
{
    cuda_device *d = c->device;
    trial t;
    int can[CANDIDATES] = {}, best = 0;
    double least[CANDIDATES], all = 0;
    const int count = trial_open(d, &m->spec, &t) ? trial_compare(c, m, &t, found, n, can) : 0;
    if (count > 0) {
        while (!can[best]) best++;
        m->algo = found[best].algo;
    }
    if (count > 1) {
        for (int i = 0; i < n; i++) least[i] = INFINITY;
        for (int round = 0; round < ROUNDS && all < product_ms && t.error == cudaSuccess && kern_live(&c->base);
             round++)
            all += trial_time(c, m, &t, found, n, can, least);
        while (!can[best] && best < n - 1) best++;
        for (int i = best; i < n; i++)
            if (can[i] && least[i] < least[best]) best = i;
        if (t.error == cudaSuccess && kern_live(&c->base) && can[best]) {
            m->algo = found[best].algo;
            (void)__atomic_fetch_add(&d->base.tuned, 1, __ATOMIC_RELAXED);
            (void)__atomic_fetch_add(&d->base.tuned_otherwise, best != 0, __ATOMIC_RELAXED);
        }
        (void)__atomic_fetch_add(&d->base.tuning_ns, (long long)(1e6 * all), __ATOMIC_RELAXED);
    }
    trial_close(c, &t);
}

/* CUBLAS_STATUS_NOT_SUPPORTED if cuBLASLt has no algorithm. Asks for several, and times them, if `timed`. */
static cublasStatus_t choose(cuda_queue *c, struct cuda_matmul *m, int timed)
{
    description d;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0;
    const CUcontext before = cuda_switch(c->device->context);
    cublasStatus_t s = describe(c->device, &m->spec, c->workspace, &d); /* as bias, any aligned address will do */
    if (!s) s = cublasLtMatmulPreferenceCreate(&preference);
    if (!s) s = limit(c, preference);
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(c->device->lt, &d.product, &d.weight, &d.x, &d.y, &d.y, preference,
                                           timed ? CANDIDATES : 1, found, &n);
    if (preference) (void)cublasLtMatmulPreferenceDestroy(preference);
    if (!s) s = n > 0 ? found[0].state : CUBLAS_STATUS_NOT_SUPPORTED;
    if (!s) m->algo = found[0].algo;
    if (!s && n > 1) tune(c, m, found, n);
    (void)cuda_switch(before);
    return s;
}

static mar_status make_plan(cuda_queue *c, const matmul_spec *spec, int timed, struct cuda_matmul **out, mar_err *err)
{
    struct cuda_matmul *m = (struct cuda_matmul *)calloc(1, sizeof *m);
    if (!m) return err_set(err, MAR_ENOMEM, "out of memory");
    m->spec = *spec;
    m->library = rows_aligned(c->device, spec);
    cublasStatus_t s = m->library ? choose(c, m, timed) : CUBLAS_STATUS_SUCCESS;
    if (s == CUBLAS_STATUS_NOT_SUPPORTED) m->library = 0, s = CUBLAS_STATUS_SUCCESS;
    if (s) {
        free(m);
        return cublas_status(s, spec, err);
    }
    *out = m;
    return MAR_OK;
}

/* Returns the plan for a shape, or NULL. If `made` is not NULL and there is none, that becomes the plan. */
static struct cuda_matmul *look_up(cuda_device *d, const matmul_spec *spec, struct cuda_matmul *made)
{
    uint32_t hash = 0;
    for (size_t i = 0; i < sizeof *spec / sizeof(int); i++)
        hash = (hash ^ (uint32_t)((const int *)spec)[i]) * 0x9e3779b1u;
    struct cuda_matmul **bucket = &d->matmuls[(hash >> 16) % BUCKETS];
    (void)pthread_mutex_lock(&d->lock);
    struct cuda_matmul *m = *bucket;
    while (m && memcmp(&m->spec, spec, sizeof *spec) != 0) m = m->next;
    if (!m && made) {
        made->next = *bucket;
        *bucket = m = made;
    }
    (void)pthread_mutex_unlock(&d->lock);
    return m;
}

/* Makes the plan for a shape, unless another queue is faster. */
static mar_status add_plan(cuda_queue *c, const matmul_spec *spec, int timed, const struct cuda_matmul **out,
                           mar_err *err)
{
    struct cuda_matmul *made = NULL;
    const mar_status status = make_plan(c, spec, timed, &made, err);
    if (status != MAR_OK) return status;
    *out = look_up(c->device, spec, made);
    if (*out != made) free(made);
    return MAR_OK;
}

/* Finds the plan for a shape, or makes it, without keeping other queues from theirs meanwhile. But one queue times at a
 * time, and none does inside a recording: a shape that is first met there is planned untimed, and stays so, since a
 * plan never changes. cuda_linear_plan before it is what has a shape timed. */
static mar_status plan(cuda_queue *c, const matmul_spec *spec, const struct cuda_matmul **out, mar_err *err)
{
    cuda_device *d = c->device;
    *out = look_up(d, spec, NULL);
    if (*out) return MAR_OK;
    if (!d->base.tune || cuda_in_recording(c) || !kern_live(&c->base)) return add_plan(c, spec, 0, out, err);
    (void)pthread_mutex_lock(&d->tuning);
    *out = look_up(d, spec, NULL);
    const int timed = (double)__atomic_load_n(&d->base.tuning_ns, __ATOMIC_RELAXED) < 1e6 * device_ms;
    const mar_status status = *out ? MAR_OK : add_plan(c, spec, timed, out, err);
    (void)pthread_mutex_unlock(&d->tuning);
    return status;
}

/* --- products --------------------------------------------------------------------------------------------- */

static __device__ inline float gelu(float x)
{
    return 0.5f * x * (1 + erff(x * 0.70710678f));
}

static __device__ inline float gelu_tanh(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static __device__ inline float activated(float x, kern_activation activation)
{
    return activation == KERN_SILU ? cuda_silu(x) : activation == KERN_GELU ? gelu(x) : gelu_tanh(x);
}

/* Takes any shape and alignment. A thread computes an element of y. */
template <typename X, typename Y>
static __global__ void matmul_kernel(matmul_spec p, const X *x, const X *weight, const Y *bias, Y *y)
{
    typedef float tile[TILE][TILE + 1];
    tile *shared = (tile *)cuda_shared();
    const int tx = (int)threadIdx.x, ty = (int)threadIdx.y;
    const int first = (int)blockIdx.x * TILE, row = first + ty;
    const int first_out = (int)blockIdx.y * TILE, column = first_out + tx;
    float sum = 0;
    for (int i = 0; i < p.in; i += TILE) {
        const int in = i + tx, out = first_out + ty;
        shared[0][ty][tx] = row < p.rows && in < p.in ? cuda_float(x[(size_t)row * p.in + in]) : 0;
        shared[1][ty][tx] = out < p.out && in < p.in ? cuda_float(weight[(size_t)out * p.in + in]) : 0;
        __syncthreads();
        for (int j = 0; j < TILE; j++) sum += shared[0][ty][j] * shared[1][tx][j];
        __syncthreads();
    }
    if (row >= p.rows || column >= p.out) return;
    Y *at = y + (size_t)row * p.y_stride + column;
    if (p.bias) sum += cuda_float(bias[column]);
    if (p.then == THEN_GELU) sum = gelu(sum);
    if (p.then == THEN_RELU && sum < 0) sum = 0;
    cuda_store(at, p.add ? cuda_float(*at) + sum : sum);
}

template <typename X, typename Y>
static void simple_matmul(cuda_queue *c, const matmul_spec *p, const void *x, const void *weight, const void *bias,
                          void *y)
{
    cuda_launch(c, matmul_kernel<X, Y>, dim3(cuda_blocks((size_t)p->rows, TILE), cuda_blocks((size_t)p->out, TILE)),
                dim3(TILE, TILE), 2 * TILE * (TILE + 1) * sizeof(float), *p, (const X *)x, (const X *)weight,
                (const Y *)bias, (Y *)y);
}

static void matmul(cuda_queue *c, const matmul_spec *spec, const void *x, const void *weight, const void *bias, void *y)
{
    if (!cuda_live(c)) return;
    const struct cuda_matmul *m;
    mar_err err = {};
    mar_status status = plan(c, spec, &m, &err);
    if (status == MAR_OK && m->library && aligned(x) && aligned(weight) && aligned(bias) && aligned(y))
        status = cublas_status(library_matmul(c, m, x, weight, bias, y), spec, &err);
    else if (status == MAR_OK && (!c->device->bf16 || spec->f32))
        simple_matmul<float, float>(c, spec, x, weight, bias, y);
    else if (status == MAR_OK && spec->y_f32)
        simple_matmul<bf16, float>(c, spec, x, weight, bias, y);
    else if (status == MAR_OK)
        simple_matmul<bf16, bf16>(c, spec, x, weight, bias, y);
    if (status != MAR_OK) kern_fail(&c->base, status, &err);
}

/* --- linear layers ---------------------------------------------------------------------------------------- */

/* Nothing of it changes after its creation. */
struct kern_linear {
    int out, in, flags, y_stride;
    kern_activation activation;
    int f32, y_f32; /* types of x and weight, and of y and bias: float, else bf16 */
    void *weight;   /* [out][in] */
    void *bias;     /* [out] or NULL */
    int fused;      /* the product does the activation */
};

void cuda_linear_spec(const kern_linear *l, kern_linear_spec *spec)
{
    *spec = {};
    spec->out = l->out, spec->in = l->in, spec->activation = l->activation, spec->flags = l->flags;
}

mar_status cuda_linear_create(kern_queue *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err)
{
    cuda_queue *c = cuda_of(k);
    *out = NULL;
    if ((spec->flags & KERN_IN_F32) && !(spec->flags & KERN_OUT_F32))
        return err_set(err, MAR_EARG, "a linear layer with f32 input needs f32 output");
    if ((spec->flags & KERN_OUT_ADD) && (spec->activation != KERN_LINEAR || !(spec->flags & KERN_OUT_F32)))
        return err_set(err, MAR_EARG, "a linear layer that adds to y needs f32 output and no activation");
    if ((spec->flags & KERN_RELU) && (spec->activation != KERN_LINEAR || (spec->flags & KERN_OUT_ADD)))
        return err_set(err, MAR_EARG, "a product with ReLU has no other activation, and is not added to y");
    kern_linear *l = (kern_linear *)calloc(1, sizeof *l);
    if (!l) return err_set(err, MAR_ENOMEM, "out of memory");
    l->out = spec->out;
    l->in = spec->in;
    l->flags = spec->flags;
    l->y_stride = spec->y_stride ? spec->y_stride : spec->out;
    l->activation = spec->activation;
    l->f32 = !c->device->bf16 || (spec->flags & KERN_IN_F32);
    l->y_f32 = !c->device->bf16 || (spec->flags & KERN_OUT_F32);
    l->fused = l->activation == KERN_GELU && !l->f32;
    mar_status status = cuda_alloc_floats(c, spec->weight, (size_t)l->out * (size_t)l->in, l->f32, &l->weight, err);
    if (status == MAR_OK && spec->bias)
        status = cuda_alloc_floats(c, spec->bias, (size_t)l->out, l->y_f32, &l->bias, err);
    if (status != MAR_OK) {
        cuda_linear_free(k->device, l);
        return status;
    }
    *out = l;
    return MAR_OK;
}

void cuda_linear_free(kern_device *d, kern_linear *l)
{
    if (!l) return;
    cuda_free(d, l->weight);
    cuda_free(d, l->bias);
    free(l);
}

static matmul_spec product(const kern_linear *l, int rows)
{
    matmul_spec p = {};
    p.rows = rows;
    p.out = l->out;
    p.in = l->in;
    p.y_stride = l->y_stride;
    p.f32 = l->f32;
    p.y_f32 = l->y_f32;
    p.bias = l->bias != NULL;
    p.add = (l->flags & KERN_OUT_ADD) != 0;
    p.then = l->fused ? THEN_GELU : l->flags & KERN_RELU ? THEN_RELU : THEN_NOTHING;
    return p;
}

mar_status cuda_linear_plan(kern_queue *k, const kern_linear *l, int rows, mar_err *err)
{
    const matmul_spec p = product(l, rows);
    const struct cuda_matmul *m;
    return rows > 0 ? plan(cuda_of(k), &p, &m, err) : MAR_OK;
}

/* y = SiLU(x) or a GELU(x) by rows of n vectors of N elements, whose starts are `stride` elements apart; y may be x. A
 * thread has a vector. Floor: each element is read and written once. */
template <int N, typename X, typename Y>
static __global__ void activate_kernel(const X *x, size_t vectors, int n, int stride, kern_activation activation, Y *y)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= vectors) return;
    const size_t at = i / (size_t)n * (size_t)stride + i % (size_t)n * N;
    cuda_floats<N> v = cuda_load<N>(x + at);
    for (int j = 0; j < N; j++) v.v[j] = activated(v.v[j], activation);
    cuda_store(y + at, v);
}

template <typename X, typename Y>
static void activate(cuda_queue *c, const X *x, size_t rows, int n, int stride, kern_activation activation, Y *y)
{
    const int wide = n % 8 == 0 && stride % 8 == 0 && aligned(x) && aligned(y) ? 8 : 1;
    const size_t vectors = rows * (size_t)(n / wide);
    cuda_launch(c, wide == 8 ? activate_kernel<8, X, Y> : activate_kernel<1, X, Y>, cuda_blocks(vectors, THREADS),
                THREADS, 0, x, vectors, n / wide, stride, activation, y);
}

void cuda_silu_rows(cuda_queue *c, const float *x, size_t rows, int n, int bf16_y, void *y)
{
    if (bf16_y)
        activate(c, x, rows, n, n, KERN_SILU, (bf16 *)y);
    else
        activate(c, x, rows, n, n, KERN_SILU, (float *)y);
}

void cuda_linear(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y)
{
    cuda_queue *c = cuda_of(k);
    if (rows <= 0) return;
    const matmul_spec p = product(l, rows);
    matmul(c, &p, x, l->weight, l->bias, y);
    if (l->activation == KERN_LINEAR || l->fused) return;
    if (l->y_f32)
        activate(c, (const float *)y, (size_t)rows, l->out, l->y_stride, l->activation, (float *)y);
    else /* rounds twice, the sum and what is made of it: a layer of operands that must not is f32 (cuda_silu_rows) */
        activate(c, (const bf16 *)y, (size_t)rows, l->out, l->y_stride, l->activation, (bf16 *)y);
}
