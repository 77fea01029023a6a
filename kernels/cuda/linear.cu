/* Matrix products by cuBLASLt, planned once per shape and device, and linear layers.
 *
 * The first algorithm of cuBLASLt's heuristic computes a product. Others are timed only on a device that is told to
 * (kern_cuda_tuning). It adds the fastest to a file, which other devices read when they are opened. */
#include "kernels/cuda/linear.h"

extern "C" {
#include "kernels/int4.h"
}

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE = 16,      /* rows and columns of a block of the simple kernel */
    THREADS = 256,  /* threads of a block of the activation kernel */
    ALIGNMENT = 16, /* bytes; of cuBLASLt's arrays */
    BUCKETS = sizeof(((cuda_device *)0)->matmuls) / sizeof(struct cuda_matmul *),
    CANDIDATES = 8,    /* algorithms that are timed */
    TRIALS = 5,        /* products for a time, the least */
    LINE = 512,        /* characters of a line of choices */
    CHANNELS = 16,     /* restored weights are those of a multiple of these: aligned in y */
    MOST_IN = 1 << 20, /* inputs of an int8 or int4 layer: CHANNELS restored channels fit in cuda_working_memory */
};

/* Plan of products. It is immutable once in the device's table, so all queues share it. */
struct cuda_matmul {
    cuda_product spec; /* `rows` is planned_rows of the products' */
    int library;       /* 1: cuBLASLt computes it, by `algo` */
    cublasLtMatmulAlgo_t algo;
    struct cuda_matmul *next;
};

/* cuBLASLt's descriptors of a product, including the address of its bias. Each call has its own. */
typedef struct {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t weight, x, y;
} description;

static mar_status cublas_status(cublasStatus_t returned, const cuda_product *p, mar_err *err)
{
    if (returned == CUBLAS_STATUS_SUCCESS) return MAR_OK;
    return err_set(err, MAR_EBACKEND, "cuBLASLt: a product of %d x %d by %d x %d: %s", p->rows, p->in, p->in, p->out,
                   cublasLtGetStatusString(returned));
}

/* --- plans ------------------------------------------------------------------------------------------------ */

void cuda_matmuls_free(cuda_device *d)
{
    for (int i = 0; i < BUCKETS; i++)
        while (d->matmuls[i]) {
            struct cuda_matmul *m = d->matmuls[i];
            d->matmuls[i] = m->next;
            free(m);
        }
    free(d->tuning);
}

static cudaDataType_t library_type(int type)
{
    return type == MAR_DTYPE_F16 ? CUDA_R_16F : type == MAR_DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static int rows_aligned(const cuda_product *p)
{
    const int size = p->type == MAR_DTYPE_F32 ? 4 : 2, y_size = p->y_type == MAR_DTYPE_F32 ? 4 : 2;
    return p->x_stride * size % ALIGNMENT == 0 && p->weight_stride * size % ALIGNMENT == 0 &&
           p->y_stride * y_size % ALIGNMENT == 0;
}

/* Sets an attribute unless *s is an error already. */
template <typename V>
static void product_set(cublasStatus_t *s, cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t which,
                        const V &value)
{
    if (!*s) *s = cublasLtMatmulDescSetAttribute(product, which, &value, sizeof value);
}

static cublasStatus_t product_describe(const cuda_product *p, const void *bias, description *d)
{
    const cudaDataType_t from = library_type(p->type), to = library_type(p->y_type);
    const int32_t order = p->transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
    static const int32_t epilogues[][2] = {{CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS},
                                           {CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS},
                                           {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS}};
    const int32_t epilogue = epilogues[p->then][p->bias];
    /* cuBLAS is column-major: our rows are its columns, and y^T = weight x^T. */
    const uint64_t rows = (uint64_t)p->rows, out = (uint64_t)p->out, in = (uint64_t)p->in;
    cublasStatus_t s = cublasLtMatmulDescInit(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    product_set(&s, &d->product, CUBLASLT_MATMUL_DESC_TRANSA, order);
    product_set(&s, &d->product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (p->bias) product_set(&s, &d->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); /* of y's type */
    if (!s)
        s = cublasLtMatrixLayoutInit(&d->weight, from, p->transposed ? out : in, p->transposed ? in : out,
                                     p->weight_stride);
    if (!s) s = cublasLtMatrixLayoutInit(&d->x, from, in, rows, p->x_stride);
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
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* partial sums stay f32 */
    cublasStatus_t s = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                            &workspace, sizeof workspace);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                 sizeof reductions);
    for (int i = 0; !s && i < 4; i++)
        s = cublasLtMatmulPreferenceSetAttribute(preference, operands[i], &alignment, sizeof alignment);
    return s;
}

/* `algo` NULL: cuBLASLt chooses at every call. */
static cublasStatus_t library_matmul(cuda_queue *c, const cuda_product *p, const cublasLtMatmulAlgo_t *algo,
                                     const void *x, const void *weight, const void *bias, void *y)
{
    const float one = 1, beta = p->add ? 1 : 0;
    description d;
    const cublasStatus_t s = product_describe(p, bias, &d);
    if (s) return s;
    return cublasLtMatmul(c->device->lt, &d.product, &one, weight, &d.weight, x, &d.x, &beta, y, &d.y, y, &d.y, algo,
                          c->workspace, c->workspace_bytes, c->stream);
}

/* Returns the rows for which a product of `rows` is planned: 1 to 8, 10, 12, 14, 16, 20, ... An algorithm for them can
 * compute fewer rows. Rounds of paths differ in their rows: a plan for each number would ask cuBLASLt in most rounds.
 */
static int planned_rows(int rows)
{
    int step = 1;
    while ((rows - 1) / 8 >= step) step *= 2;
    return (rows + step - 1) / step * step;
}

/* Returns the plan for a shape, or NULL. If there is none and `made` is not NULL, enters and returns `made`. */
static struct cuda_matmul *look_up(cuda_device *d, const cuda_product *spec, struct cuda_matmul *made)
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

/* --- choices on file ------------------------------------------------------------------------------------- */

enum { FIELDS = sizeof(cuda_product) / sizeof(int), WORDS = 8 };
static_assert(sizeof(cublasLtMatmulAlgo_t) == WORDS * sizeof(uint64_t), "an algorithm is 8 words");

/* Reads what write_choice has written behind the name of the GPU. Returns 0 if it is something else. */
static int read_choice(const char *text, struct cuda_matmul *m)
{
    int *const field = (int *)&m->spec, used = 0;
    for (int i = 0; i < FIELDS; i++, text += used)
        if (sscanf(text, "%d%n", &field[i], &used) != 1 || field[i] < 0) return 0;
    for (int i = 0; i < WORDS; i++, text += used)
        if (sscanf(text, "%" SCNx64 "%n", &m->algo.data[i], &used) != 1) return 0;
    m->library = 1;
    return strcmp(text, "\n") == 0 && m->spec.then <= THEN_RELU && rows_aligned(&m->spec);
}

/* Adds a line to the file: the GPU, the product and the algorithm, which cuBLASLt permits to be stored. */
static mar_status write_choice(const cuda_device *d, const struct cuda_matmul *m, mar_err *err)
{
    char line[LINE];
    int n = snprintf(line, sizeof line, "%s:", d->gpu);
    for (int i = 0; i < FIELDS; i++) n += snprintf(line + n, sizeof line - n, " %d", ((const int *)&m->spec)[i]);
    for (int i = 0; i < WORDS; i++) n += snprintf(line + n, sizeof line - n, " %" PRIx64, m->algo.data[i]);
    FILE *f = fopen(d->tuning, "a");
    const int written = f && fprintf(f, "%s\n", line) > 0;
    if ((f && fclose(f) != 0) || !written)
        return err_set(err, MAR_EIO, "%s: cannot write: %s", d->tuning, strerror(errno));
    return MAR_OK;
}

/* Enters the choices of the open file. Writes what is in the device's description of them. */
static mar_status read_choices(cuda_device *d, FILE *f, const char *file, mar_err *err)
{
    const size_t name = strlen(d->gpu);
    uint32_t hash = 2166136261u; /* FNV-1a of the lines */
    int count = 0;
    char line[LINE], text[48];
    for (int number = 1; fgets(line, sizeof line, f); number++) {
        if (strncmp(line, d->gpu, name) != 0 || line[name] != ':') continue;
        struct cuda_matmul *m = (struct cuda_matmul *)calloc(1, sizeof *m);
        if (!m) return err_set(err, MAR_ENOMEM, "out of memory");
        const int valid = read_choice(line + name + 1, m), taken = valid && look_up(d, &m->spec, m) == m;
        if (!taken) free(m);
        if (!valid) return err_set(err, MAR_EFORMAT, "%s: line %d is not one of mar bench --tune", file, number);
        for (const char *p = line; *p; p++) hash = (hash ^ (unsigned char)*p) * 16777619u;
        count += taken;
    }
    if (ferror(f)) return err_set(err, MAR_EIO, "%s: cannot read: %s", file, strerror(errno));
    snprintf(text, sizeof text, ", tuning %08x of %d products", hash, count);
    cuda_describe(d, text);
    return MAR_OK;
}

extern "C" mar_status kern_cuda_tuning(kern_device *device, const char *file, int time, mar_err *err)
{
    cuda_device *d = cuda_device_of(device);
    FILE *f = fopen(file, time ? "a+" : "r");
    if (!f) return err_set(err, MAR_EIO, "%s: cannot open: %s", file, strerror(errno));
    const mar_status status = read_choices(d, f, file, err);
    (void)fclose(f);
    if (status != MAR_OK || !time) return status;
    d->tuning = strdup(file);
    return d->tuning ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
}

/* --- timing ----------------------------------------------------------------------------------------------- */

/* Operands of the products that are timed. */
typedef struct {
    void *memory; /* begins with `flushed` bytes; writing them drives the operands out of the cache */
    size_t flushed;
    char *x, *weight, *bias, *y;
    cudaEvent_t start, end;
} trial;

/* Fills n words with random numbers: each word is finite as f32, each half as bf16 and f16. A
 * product of zeros takes less power, so a GPU computes it 13 % faster than a model's. */
static __global__ void random_kernel(uint32_t *to, size_t n)
{
    const size_t step = gridDim.x * (size_t)blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += step) {
        uint32_t x = (uint32_t)i * 0x9e3779b1u; /* MurmurHash3's finalizer */
        x = (x ^ x >> 16) * 0x85ebca6bu;
        x = (x ^ x >> 13) * 0xc2b2ae35u;
        to[i] = ((x ^ x >> 16) & 0x87bf87bfu) | 0x38003800u;
    }
}

static mar_status open_trial(cuda_queue *c, const cuda_product *p, trial *t, mar_err *err)
{
    kern_machine machine;
    c->device->base.measure->machine(&c->device->base, &machine);
    const size_t weight_rows = (size_t)(p->transposed ? p->in : p->out);
    const size_t sizes[] = {(size_t)machine.cache_bytes, (size_t)p->rows * (size_t)p->x_stride * sizeof(float),
                            weight_rows * (size_t)p->weight_stride * sizeof(float), (size_t)p->out * sizeof(float),
                            (size_t)p->rows * (size_t)p->y_stride * sizeof(float)};
    size_t at[6] = {};
    for (int i = 0; i < 5; i++) at[i + 1] = at[i] + (sizes[i] + 255) / 256 * 256;
    const mar_status status = cuda_alloc(&c->device->base, at[5], &t->memory, err);
    if (status != MAR_OK) return status;
    char *base = (char *)t->memory;
    t->flushed = sizes[0], t->x = base + at[1], t->weight = base + at[2], t->bias = base + at[3], t->y = base + at[4];
    cuda_launch(c, random_kernel, dim3(1024), 256, 0, (uint32_t *)t->x, (at[4] - at[1]) / sizeof(uint32_t));
    cudaError_t error = cudaEventCreate(&t->start);
    if (error == cudaSuccess) error = cudaEventCreate(&t->end);
    return cuda_status(error, "making an event", err);
}

static void close_trial(cuda_queue *c, trial *t)
{
    if (t->start) (void)cudaEventDestroy(t->start);
    if (t->end) (void)cudaEventDestroy(t->end);
    cuda_free(&c->device->base, t->memory);
}

/* Writes the least milliseconds of some products; INFINITY if the algorithm cannot compute them. */
static cudaError_t time_algorithm(cuda_queue *c, const cuda_product *p, const cublasLtMatmulAlgo_t *algo, trial *t,
                                  float *least)
{
    *least = INFINITY;
    for (int i = 0; i < TRIALS; i++) {
        float ms = 0;
        cudaError_t error = cudaMemsetAsync(t->memory, 0, t->flushed, c->stream);
        if (error == cudaSuccess) error = cudaEventRecord(t->start, c->stream);
        if (error == cudaSuccess && library_matmul(c, p, algo, t->x, t->weight, t->bias, t->y)) break;
        if (error == cudaSuccess) error = cudaEventRecord(t->end, c->stream);
        if (error == cudaSuccess) error = cudaEventSynchronize(t->end);
        if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, t->start, t->end);
        if (error != cudaSuccess) return error;
        if (ms < *least) *least = ms;
    }
    return cudaSuccess;
}

/* Takes the fastest of the n algorithms, and adds it to the file. The first stays unless another takes 3 % less. */
static mar_status choose_by_time(cuda_queue *c, struct cuda_matmul *m, const cublasLtMatmulHeuristicResult_t *found,
                                 int n, mar_err *err)
{
    trial t = {};
    float least = INFINITY;
    mar_status status = open_trial(c, &m->spec, &t, err);
    for (int i = 0; i < n && status == MAR_OK; i++) {
        float ms;
        status = cuda_status(time_algorithm(c, &m->spec, &found[i].algo, &t, &ms), "timing a product", err);
        if (!(ms < 0.97f * least)) continue;
        least = ms;
        m->algo = found[i].algo;
    }
    close_trial(c, &t);
    return status == MAR_OK ? write_choice(c->device, m, err) : status;
}

/* --- choosing --------------------------------------------------------------------------------------------- */

/* Takes the first algorithm of cuBLASLt's heuristic, or clears m->library if there is none. A device that times takes
 * the fastest. A recording plans nothing: its operations have run before it. */
static mar_status product_choose(cuda_queue *c, struct cuda_matmul *m, mar_err *err)
{
    const int most = c->device->tuning ? CANDIDATES : 1;
    description d;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0;
    const CUcontext before = cuda_switch(c->device->context);
    const void *any = c->workspace; /* any aligned address will do */
    cublasStatus_t s = product_describe(&m->spec, any, &d);
    if (!s) s = cublasLtMatmulPreferenceCreate(&preference);
    if (!s) s = limit(c, preference);
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(c->device->lt, &d.product, &d.weight, &d.x, &d.y, &d.y, preference, most,
                                           found, &n);
    if (preference) (void)cublasLtMatmulPreferenceDestroy(preference);
    if (!s) s = n > 0 ? found[0].state : CUBLAS_STATUS_NOT_SUPPORTED;
    m->library = s == CUBLAS_STATUS_SUCCESS;
    if (m->library) m->algo = found[0].algo;
    mar_status status = s == CUBLAS_STATUS_NOT_SUPPORTED ? MAR_OK : cublas_status(s, &m->spec, err);
    if (m->library && most > 1) status = choose_by_time(c, m, found, n, err);
    (void)cuda_switch(before);
    return status;
}

/* Finds or makes the plan for a product. cuBLASLt is asked without the lock, so other queues are not blocked; the first
 * plan entered stays. */
static mar_status product_plan(cuda_queue *c, const cuda_product *spec, const struct cuda_matmul **out, mar_err *err)
{
    cuda_product planned = *spec;
    planned.rows = planned_rows(spec->rows);
    *out = look_up(c->device, &planned, NULL);
    if (*out) return MAR_OK;
    struct cuda_matmul *made = (struct cuda_matmul *)calloc(1, sizeof *made);
    if (!made) return err_set(err, MAR_ENOMEM, "out of memory");
    made->spec = planned;
    const mar_status status = rows_aligned(&planned) ? product_choose(c, made, err) : MAR_OK;
    if (status == MAR_OK) *out = look_up(c->device, &planned, made);
    if (*out != made) free(made);
    return status;
}

mar_status cuda_product_plan(cuda_queue *c, const cuda_product *p, mar_err *err)
{
    const struct cuda_matmul *m;
    return product_plan(c, p, &m, err);
}

/* --- products --------------------------------------------------------------------------------------------- */

/* Takes any shape and alignment. A thread computes an element of y. */
template <typename X, typename Y>
static __global__ void matmul_kernel(cuda_product p, const void *x, const void *weight, const void *bias, void *y)
{
    typedef float tile[TILE][TILE + 1];
    tile *shared = (tile *)cuda_shared();
    const int tx = (int)threadIdx.x, ty = (int)threadIdx.y;
    const int first = (int)blockIdx.x * TILE, row = first + ty;
    const int first_out = (int)blockIdx.y * TILE, column = first_out + tx;
    float sum = 0;
    for (int i = 0; i < p.in; i += TILE) {
        const int in = i + tx, out = first_out + ty;
        const size_t at = (size_t)(p.transposed ? in : out) * p.weight_stride + (p.transposed ? out : in);
        shared[0][ty][tx] = row < p.rows && in < p.in ? cuda_float(((const X *)x)[(size_t)row * p.x_stride + in]) : 0;
        shared[1][ty][tx] = out < p.out && in < p.in ? cuda_float(((const X *)weight)[at]) : 0;
        __syncthreads();
        for (int j = 0; j < TILE; j++) sum += shared[0][ty][j] * shared[1][tx][j];
        __syncthreads();
    }
    if (row >= p.rows || column >= p.out) return;
    Y *at = (Y *)y + (size_t)row * p.y_stride + column;
    if (p.bias) sum += cuda_float(((const Y *)bias)[column]);
    if (p.then == THEN_GELU) sum = cuda_gelu(sum);
    if (p.then == THEN_RELU && sum < 0) sum = 0;
    cuda_store(at, p.add ? cuda_float(*at) + sum : sum);
}

static void simple_matmul(cuda_queue *c, const cuda_product *p, const void *x, const void *weight, const void *bias,
                          void *y)
{
    const int f32 = p->y_type == MAR_DTYPE_F32;
    const auto of_f16 = f32 ? matmul_kernel<f16, float> : matmul_kernel<f16, f16>;
    const auto of_bf16 = f32 ? matmul_kernel<bf16, float> : matmul_kernel<bf16, bf16>;
    const auto kernel = p->type == MAR_DTYPE_F32   ? matmul_kernel<float, float>
                        : p->type == MAR_DTYPE_F16 ? of_f16
                                                   : of_bf16;
    cuda_launch(c, kernel, dim3(cuda_blocks((size_t)p->rows, TILE), cuda_blocks((size_t)p->out, TILE)),
                dim3(TILE, TILE), 2 * TILE * (TILE + 1) * sizeof(float), *p, x, weight, bias, y);
}

/* Has cuBLASLt choose again if the plan's algorithm refuses the product's rows. */
static cublasStatus_t planned_matmul(cuda_queue *c, const struct cuda_matmul *m, const cuda_product *spec,
                                     const void *x, const void *weight, const void *bias, void *y)
{
    const cublasStatus_t s = library_matmul(c, spec, &m->algo, x, weight, bias, y);
    const int refused = s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE;
    return refused ? library_matmul(c, spec, NULL, x, weight, bias, y) : s;
}

void cuda_multiply(cuda_queue *c, const cuda_product *spec, const void *x, const void *weight, const void *bias,
                   void *y)
{
    if (!cuda_live(c)) return;
    const struct cuda_matmul *m;
    mar_err err = {};
    mar_status status = product_plan(c, spec, &m, &err);
    if (status == MAR_OK && m->library && cuda_aligned(x) && cuda_aligned(weight) && cuda_aligned(bias) &&
        cuda_aligned(y))
        status = cublas_status(planned_matmul(c, m, spec, x, weight, bias, y), spec, &err);
    else if (status == MAR_OK)
        simple_matmul(c, spec, x, weight, bias, y);
    if (status != MAR_OK) kern_fail(&c->base, status, &err);
}

/* --- linear layers ---------------------------------------------------------------------------------------- */

void cuda_linear_spec(const kern_linear *l, kern_linear_spec *spec)
{
    *spec = {};
    spec->out = l->out, spec->in = l->in, spec->activation = l->activation, spec->flags = l->flags;
}

/* Returns how a device has the weights of a layer. */
static cuda_weights form_of(const cuda_device *d, const kern_linear_spec *spec)
{
    const int low = spec->flags & KERN_LOW && spec->in <= MOST_IN;
    if (spec->flags & KERN_IN_F32) return CUDA_F32;
    if (spec->flags & KERN_F16) return CUDA_F16;
    if (!d->bf16) return CUDA_F32;
    if (low && d->base.int8 && spec->in % 8 == 0) return CUDA_INT8;
    return low && d->base.int4 && spec->in % KERN_INT4_GROUP == 0 ? CUDA_INT4 : CUDA_BF16;
}

/* Allocates l->unit. */
static mar_status make_unit(cuda_queue *c, kern_linear *l, mar_err *err)
{
    float *host = (float *)calloc(2 * (size_t)l->in, sizeof *host);
    if (!host) return err_set(err, MAR_ENOMEM, "out of memory");
    for (int i = 0; i < l->in; i++) host[i] = 1;
    const mar_status status = cuda_alloc_copy(c, host, 2 * (size_t)l->in * sizeof *host, (void **)&l->unit, err);
    free(host);
    return status;
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
    l->form = form_of(c->device, spec);
    l->y_type = spec->flags & KERN_OUT_F32 ? MAR_DTYPE_F32 : cuda_operands(l->form);
    l->fused = l->activation == KERN_GELU && l->form != CUDA_F32;
    const int folded = spec->norm && c->device->base.product_rows && l->form == CUDA_BF16;
    float *bias = (float *)calloc((size_t)l->out, sizeof *bias);
    mar_status status = bias ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK && spec->bias) memcpy(bias, spec->bias, (size_t)l->out * sizeof *bias);
    if (status == MAR_OK && folded) status = make_unit(c, l, err);
    if (status == MAR_OK) status = cuda_load_weights(c, spec, l, bias, err);
    if (status == MAR_OK && (spec->bias || (folded && spec->norm_bias)))
        status = cuda_alloc_floats(c, bias, (size_t)l->out, l->y_type, &l->bias, err);
    free(bias);
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
    cuda_free(d, l->scale);
    cuda_free(d, l->bias);
    cuda_free(d, l->unit);
    free(l);
}

static cuda_product linear_product(const kern_linear *l, int rows)
{
    cuda_product p = {};
    p.rows = rows;
    p.out = l->out;
    p.in = p.x_stride = p.weight_stride = l->in;
    p.y_stride = l->y_stride;
    p.type = cuda_operands(l->form);
    p.y_type = l->y_type;
    p.bias = l->bias != NULL;
    p.add = (l->flags & KERN_OUT_ADD) != 0;
    p.then = l->fused ? THEN_GELU : l->flags & KERN_RELU ? THEN_RELU : THEN_NOTHING;
    return p;
}

/* Returns the channels that are multiplied at a time: those whose restored weights fit in the queue's memory. */
static int channels_at_once(const cuda_queue *c, const kern_linear *l)
{
    if (l->form < CUDA_INT8) return l->out;
    return (int)(c->working_bytes / ((size_t)l->in * sizeof(bf16))) / CHANNELS * CHANNELS;
}

mar_status cuda_linear_plan(kern_queue *k, const kern_linear *l, int rows, mar_err *err)
{
    cuda_queue *c = cuda_of(k);
    cuda_product p;
    if (rows <= 0) return MAR_OK;
    mar_status status = l->form < CUDA_INT8 ? MAR_OK : cuda_working_memory(c, err);
    const int n = status == MAR_OK ? channels_at_once(c, l) : 0;
    for (int first = 0; status == MAR_OK && first < l->out; first += n) {
        p = linear_product(l, rows);
        p.out = l->out - first < n ? l->out - first : n;
        status = cuda_product_plan(c, &p, err);
    }
    return status;
}

/* y = SiLU(x) or a GELU(x) for rows of n vectors of N elements, `stride` elements apart; y may be x. A thread has a
 * vector. Floor: each element is read and written once. */
template <int N, typename X, typename Y>
static __global__ void activate_kernel(const void *x, size_t vectors, int n, int stride, kern_activation activation,
                                       void *y)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= vectors) return;
    const size_t at = i / (size_t)n * (size_t)stride + i % (size_t)n * N;
    cuda_floats<N> v = cuda_load<N>((const X *)x + at);
    for (int j = 0; j < N; j++) v.v[j] = cuda_activated(v.v[j], activation);
    cuda_store((Y *)y + at, v);
}

template <typename X, typename Y>
static void activate(cuda_queue *c, const void *x, size_t rows, int n, int stride, kern_activation activation, void *y)
{
    const int wide = n % 8 == 0 && stride % 8 == 0 && cuda_aligned(x) && cuda_aligned(y) ? 8 : 1;
    const size_t vectors = rows * (size_t)(n / wide);
    cuda_launch(c, wide == 8 ? activate_kernel<8, X, Y> : activate_kernel<1, X, Y>, cuda_blocks(vectors, THREADS),
                THREADS, 0, x, vectors, n / wide, stride, activation, y);
}

void cuda_silu_rows(cuda_queue *c, const float *x, size_t rows, int n, int f16_y, void *y)
{
    (f16_y ? activate<float, f16> : activate<float, float>)(c, x, rows, n, n, KERN_SILU, y);
}

/* Applies the activation to rows of y, unless their product has. */
static void activate_rows(cuda_queue *c, const kern_linear *l, int rows, void *y)
{
    if (l->activation == KERN_LINEAR || l->fused) return;
    /* In bf16 it rounds twice, the sum and its activation; a layer that must not is f32 (cuda_silu_rows). */
    const auto apply = l->y_type == MAR_DTYPE_F32 ? activate<float, float> : activate<bf16, bf16>;
    apply(c, y, (size_t)rows, l->out, l->y_stride, l->activation, y);
}

/* Restores weights of some channels at a time, and multiplies. */
static void restored_linear(cuda_queue *c, const kern_linear *l, const void *x, int rows, char *y, size_t size)
{
    cuda_product p = linear_product(l, rows);
    if (!cuda_has_working(c)) return; /* it exists, but for a layer without a plan */
    for (int first = 0, n = channels_at_once(c, l); first < l->out; first += n) {
        const size_t at = (size_t)first * size;
        p.out = l->out - first < n ? l->out - first : n;
        cuda_low_bit_restore(c, l, first, p.out, (bf16 *)c->working);
        cuda_multiply(c, &p, x, c->working, l->bias ? (const char *)l->bias + at : NULL, y + at);
    }
    activate_rows(c, l, rows, y);
}

void cuda_linear(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y)
{
    cuda_queue *c = cuda_of(k);
    const size_t size = l->y_type == MAR_DTYPE_F32 ? sizeof(float) : sizeof(bf16);
    kern_skinny_job job = {};
    job.rows = rows, job.x = x, job.y = y;
    if (rows <= 0 || (rows > KERN_SKINNY_ROWS && cuda_fused_product(c, l, &job))) return;
    if (l->form >= CUDA_INT8) {
        restored_linear(c, l, x, rows, (char *)y, size);
    } else {
        const cuda_product p = linear_product(l, rows);
        cuda_multiply(c, &p, x, l->weight, l->bias, y);
        activate_rows(c, l, rows, y);
    }
}
