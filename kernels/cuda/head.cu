/* The diffusion head for many rows: products by cuBLASLt, and two kernels a block between them. In a chain's step the
 * input projection runs once a token, because both conditions share the token's state. */
#include "kernels/cuda/head.h"

#include <stdlib.h>
#include <string.h>

/* A thread has LANES neighbouring elements of a row; a block of threads has the whole row. */
enum { LANES = 8, MAX_WIDTH = LANES * 512 };

static dim3 row_threads(const kern_head *h)
{
    return dim3((unsigned)(h->width / LANES + 31) / 32 * 32);
}

/* --- kernels ------------------------------------------------------------------------------------------------- */

static __device__ inline void load(const float *p, float v[LANES])
{
    const float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
static __device__ inline void unpack(uint4 a, float v[LANES])
{
    const uint32_t pair[4] = {a.x, a.y, a.z, a.w};
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(pair[i] << 16);
        v[2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000u);
    }
}
static __device__ inline void load(const bf16 *p, float v[LANES])
{
    unpack(*(const uint4 *)p, v);
}
static __device__ inline void store(float *p, const float v[LANES])
{
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
}
static __device__ inline void store(bf16 *p, const float v[LANES])
{
    __nv_bfloat162 pair[4];
    uint4 packed;
    for (int i = 0; i < 4; i++) pair[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    memcpy(&packed, pair, sizeof packed);
    *(uint4 *)p = packed;
}
/* Streaming loads of modulation rows, which are read once: x and the weights stay in the L2. */
static __device__ inline void load_once(const float *p, float v[LANES])
{
    const float4 a = __ldcs((const float4 *)p), b = __ldcs((const float4 *)(p + 4));
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
static __device__ inline void load_once(const bf16 *p, float v[LANES])
{
    unpack(__ldcs((const uint4 *)p), v);
}

/* Sum over the block, the same in every thread and in every run. partial float [32] must not be used by another call.
 */
static __device__ inline float block_sum(float x, float *partial)
{
    const unsigned lane = threadIdx.x % 32;
    x = cuda_warp_sum(x);
    if (lane == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    return cuda_warp_sum(lane < blockDim.x / 32 ? partial[lane] : 0);
}

/* y[s*rows + r] = silu(temb[temb_index[s]] + cond[r]); a block computes a row. Floor: 2W bytes written in bf16; temb
 * and cond stay in the L2. */
template <typename T>
static __global__ void condition_kernel(const float *temb, const int *temb_index, const float *cond, int rows,
                                        int width, T *y)
{
    const int i = LANES * (int)threadIdx.x, s = (int)blockIdx.x / rows, r = (int)blockIdx.x % rows;
    if (i >= width) return;
    float a[LANES], b[LANES];
    load(temb + (size_t)temb_index[s] * width + i, a);
    load(cond + (size_t)r * width + i, b);
    for (int j = 0; j < LANES; j++) a[j] = cuda_silu(a[j] + b[j]);
    store(y + (size_t)blockIdx.x * width + i, a);
}

/* x = silu(x), after fc1: cuBLASLt has no such epilogue. Floor: 4 bytes an element in bf16, in the L2. */
template <typename T> static __global__ void silu_kernel(T *x, size_t n)
{
    const size_t i = LANES * ((size_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    float v[LANES];
    load(x + i, v);
    for (int j = 0; j < LANES; j++) v[j] = cuda_silu(v[j]);
    store(x + i, v);
}

/* LazyMAR's rule: of blocks 1 to 4 the gated output of the MLP is kept, of the others the ungated output. */
static __host__ __device__ inline int keeps_addition(int b)
{
    return b >= 1 && b <= 4;
}

/* What lies between two MLPs: adds the gated outputs of some blocks' MLPs to the residual stream, then normalises and
 * modulates it as the input of the next block's MLP or of the final layer. */
typedef struct {
    int width;
    const float *from;    /* [from_rows][W] the residual stream; row r reads row r % from_rows */
    int from_rows;        /* rows, or a divisor of it */
    int block;            /* the first block whose output is added */
    int blocks;           /* how many blocks' outputs are added, in order */
    const float *y;       /* [blocks][..][W] the outputs of these blocks' MLPs */
    size_t y_stride;      /* floats from a block's output to the next block's */
    int y_kept;           /* y is what LazyMAR kept: outputs of blocks 1 to 4 are gated already */
    float *keep;          /* [rows][W] receives the gated output; or NULL */
    float *x;             /* [rows][W] receives the sum; NULL if nothing reads it again */
    const char *mod;      /* modulation rows */
    const int *mod_index; /* [rows] modulation row of row r; NULL: r */
    size_t mod_bytes;     /* of a modulation row */
    size_t shift;         /* offset in a modulation row of the next layer's shift; its scale follows */
    const float *ln;      /* [2][W] the next layer's weight, bias; NULL: 1, 0 */
    void *u;              /* [rows][W] receives LN(x) * (1 + scale) + shift */
} residual_norm;

/* A block of threads has a row, in registers: x is read once, and the variance is computed from the differences to the
 * mean. T is the type of gates, S that of shift, scale and u.
 * Floor in bf16, bytes a row: x 4W + y 4W read, x 4W + u 2W written, in the L2 as long as a few thousand rows fit, and
 * gate, shift, scale 6W from memory: at 4.8 TB/s 1.3 ns a row of W = 1024. Everything is loaded before the first sum:
 * a thread has 112 bytes in flight, a multiprocessor's 1024 threads 112 KiB. */
template <typename T, typename S>
static __global__ void __launch_bounds__(MAX_WIDTH / LANES) residual_norm_kernel(residual_norm n)
{
    float *partial = (float *)cuda_shared();
    const int r = (int)blockIdx.x, i = LANES * (int)threadIdx.x, mine = i < n.width;
    const size_t at = (size_t)r * n.width + i;
    const char *mod = n.mod + (size_t)(n.mod_index ? n.mod_index[r] : r) * n.mod_bytes;
    float x[LANES] = {}, shift[LANES] = {}, scale[LANES] = {}, weight[LANES], bias[LANES] = {};
    for (int j = 0; j < LANES; j++) weight[j] = 1;
    if (mine) {
        const S *next = (const S *)(mod + n.shift);
        load(n.from + (size_t)(r % n.from_rows) * n.width + i, x);
        load_once(next + i, shift);
        load_once(next + n.width + i, scale);
        if (n.ln) {
            load(n.ln + i, weight);
            load(n.ln + n.width + i, bias);
        }
        for (int k = 0; k < n.blocks; k++) {
            const int block = n.block + k;
            float y[LANES], gate[LANES];
            load(n.y + k * n.y_stride + at, y);
            if (!(n.y_kept && keeps_addition(block))) {
                load_once((const T *)mod + (3 * (size_t)block + 2) * n.width + i, gate);
                for (int j = 0; j < LANES; j++) y[j] *= gate[j];
            }
            if (n.keep) store(n.keep + at, y);
            for (int j = 0; j < LANES; j++) x[j] += y[j];
        }
        if (n.x) store(n.x + at, x);
    }
    float sum = 0, squares = 0;
    for (int j = 0; j < LANES; j++) sum += x[j];
    const float mean = block_sum(sum, partial) / n.width;
    for (int j = 0; j < LANES && mine; j++) squares += (x[j] - mean) * (x[j] - mean);
    const float inv = cuda_inverse_deviation(block_sum(squares, partial + 32) / n.width, 1e-6f);
    if (!mine) return;
    for (int j = 0; j < LANES; j++) x[j] = ((x[j] - mean) * inv * weight[j] + bias[j]) * (1 + scale[j]) + shift[j];
    store((S *)n.u + at, x);
}

/* --- the layers ---------------------------------------------------------------------------------------------- */

size_t cuda_head_mod_bytes(const kern_head *h)
{
    return cuda_mod_final_offset(h) + 2u * (size_t)h->width * sizeof(float);
}

static mar_status create_linear(kern_queue *k, int out, int in, const float *weight, const float *bias, int flags,
                                int y_stride, kern_linear **l, mar_err *err)
{
    const kern_linear_spec spec = {out, in, weight, bias, KERN_LINEAR, flags, y_stride};
    return cuda_linear_create(k, &spec, l, err);
}

/* Layer norm's affine is folded into shift and scale, which are linear in the condition: with its weight w and bias b,
 * (n w + b) (1 + scale) + shift = n (1 + scale') + shift', scale' = w (1 + scale) - 1, shift' = b (1 + scale) + shift.
 */
static void fold_norm(const float *w, const float *b, size_t width, float *weight, float *bias)
{
    float *shift = weight, *scale = weight + width * width;
    for (size_t i = 0; i < width; i++)
        for (size_t k = 0; k < width; k++) {
            shift[i * width + k] += b[i] * scale[i * width + k];
            scale[i * width + k] *= w[i];
        }
    for (size_t i = 0; i < width; i++) {
        bias[i] += b[i] * (1 + bias[width + i]);
        bias[width + i] = w[i] * (1 + bias[width + i]) - 1;
    }
}

/* The adaLN layers of all blocks as one layer: [depth*3W][W]. */
static mar_status create_modulation(kern_queue *k, const kern_head_spec *spec, kern_head *h, mar_err *err)
{
    const size_t w = (size_t)h->width, rows = 3 * w * (size_t)h->depth;
    float *weight = (float *)malloc((rows * w + rows + 1) * sizeof *weight), *bias = weight + rows * w;
    if (!weight)
        return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes for the head's modulation weights", rows * w * 4);
    for (int b = 0; b < h->depth; b++) {
        memcpy(weight + (size_t)b * 3 * w * w, spec->blocks[b].ada_weight, 3 * w * w * sizeof *weight);
        memcpy(bias + (size_t)b * 3 * w, spec->blocks[b].ada_bias, 3 * w * sizeof *bias);
        fold_norm(spec->blocks[b].ln_weight, spec->blocks[b].ln_bias, w, weight + (size_t)b * 3 * w * w,
                  bias + (size_t)b * 3 * w);
    }
    const int row = (int)(cuda_head_mod_bytes(h) / h->act_size);
    mar_status status = create_linear(k, (int)rows, h->width, weight, bias, 0, row, &h->ada_blocks, err);
    free(weight);
    if (status == MAR_OK)
        status = create_linear(k, 2 * h->width, h->width, spec->ada_weight, spec->ada_bias, KERN_OUT_F32,
                               (int)(cuda_head_mod_bytes(h) / sizeof(float)), &h->ada_final, err);
    return status;
}

static mar_status create_block(kern_queue *k, const kern_head_block *from, kern_head *h, int b, mar_err *err)
{
    const int w = h->width;
    const size_t bytes = (size_t)w * sizeof(float);
    void *ln = NULL;
    mar_status status = cuda_alloc(k->device, 2 * bytes, &ln, err);
    if (status != MAR_OK) return status;
    h->block[b].ln = (float *)ln;
    k->core->upload(k, h->block[b].ln, from->ln_weight, bytes);
    k->core->upload(k, h->block[b].ln + w, from->ln_bias, bytes);
    status = create_linear(k, w, w, from->fc1_weight, from->fc1_bias, 0, 0, &h->block[b].fc1, err);
    if (status == MAR_OK)
        status = create_linear(k, w, w, from->fc2_weight, from->fc2_bias, KERN_OUT_F32, 0, &h->block[b].fc2, err);
    return status;
}

static mar_status create_layers(kern_queue *k, const kern_head_spec *spec, kern_head *h, mar_err *err)
{
    const int w = h->width, c = h->channels, f32 = KERN_IN_F32 | KERN_OUT_F32;
    h->block = (struct kern_head::kern_head_layers *)calloc((size_t)h->depth + 1, sizeof *h->block);
    if (!h->block) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_status status = create_linear(k, w, c, spec->in_weight, spec->in_bias, f32, 0, &h->in, err);
    for (int b = 0; status == MAR_OK && b < h->depth; b++) status = create_block(k, &spec->blocks[b], h, b, err);
    if (status == MAR_OK) status = create_modulation(k, spec, h, err);
    if (status == MAR_OK) status = create_linear(k, 2 * c, w, spec->out_weight, spec->out_bias, f32, 0, &h->out, err);
    if (status == MAR_OK && cuda_of(k)->device->bf16) status = persistent_create(cuda_of(k), spec, &h->persistent, err);
    return status;
}

mar_status cuda_head_create(kern_queue *k, const kern_head_spec *spec, kern_head **out, mar_err *err)
{
    *out = NULL;
    if (spec->width % LANES || spec->width > MAX_WIDTH)
        return err_set(err, MAR_EBACKEND, "a diffusion head of width %d: expected a multiple of %d up to %d on a GPU",
                       spec->width, (int)LANES, (int)MAX_WIDTH);
    kern_head *h = (kern_head *)calloc(1, sizeof *h);
    if (!h) return err_set(err, MAR_ENOMEM, "out of memory");
    h->width = spec->width;
    h->depth = spec->depth;
    h->channels = spec->channels;
    h->act_size = k->device->act_size;
    mar_status status = create_layers(k, spec, h, err);
    if (status == MAR_OK) status = kern_check(k, err); /* of the uploads */
    if (status != MAR_OK) {
        cuda_head_free(k->device, h);
        return status;
    }
    *out = h;
    return MAR_OK;
}

void cuda_head_free(kern_device *d, kern_head *h)
{
    if (!h) return;
    for (int b = 0; h->block && b < h->depth; b++) {
        cuda_free(d, h->block[b].ln);
        cuda_linear_free(d, h->block[b].fc1);
        cuda_linear_free(d, h->block[b].fc2);
    }
    free(h->block);
    cuda_linear_free(d, h->in);
    cuda_linear_free(d, h->ada_blocks);
    cuda_linear_free(d, h->ada_final);
    cuda_linear_free(d, h->out);
    if (h->persistent) persistent_free(d, h->persistent);
    free(h);
}

mar_status cuda_head_plan(kern_queue *k, const kern_head *h, int rows, mar_err *err)
{
    mar_status status = cuda_linear_plan(k, h->in, rows, err);
    if (status == MAR_OK && rows % 2 == 0)
        status = cuda_linear_plan(k, h->in, rows / 2, err); /* tokens with guidance */
    if (status == MAR_OK) status = cuda_linear_plan(k, h->out, rows, err);
    if (status == MAR_OK) status = cuda_linear_plan(k, h->ada_blocks, rows, err);
    if (status == MAR_OK) status = cuda_linear_plan(k, h->ada_final, rows, err);
    for (int b = 0; status == MAR_OK && b < h->depth; b++) {
        status = cuda_linear_plan(k, h->block[b].fc1, rows, err);
        if (status == MAR_OK) status = cuda_linear_plan(k, h->block[b].fc2, rows, err);
    }
    if (status == MAR_OK && h->persistent) status = persistent_plan(cuda_of(k), h->persistent, err);
    return status;
}

void cuda_head_modulate(kern_queue *k, const kern_head *h, const float *temb, const int *temb_index, int steps,
                        const float *cond, int rows, void *mod, void *scratch)
{
    cuda_queue *c = cuda_of(k);
    const int total = steps * rows;
    temb_index = cuda_stage(c, temb_index, (size_t)steps);
    if (total <= 0) return;
    const dim3 grid((unsigned)total);
    if (c->device->bf16)
        cuda_launch(c, condition_kernel<bf16>, grid, row_threads(h), 0, temb, temb_index, cond, rows, h->width,
                    (bf16 *)scratch);
    else
        cuda_launch(c, condition_kernel<float>, grid, row_threads(h), 0, temb, temb_index, cond, rows, h->width,
                    (float *)scratch);
    cuda_linear(k, h->ada_blocks, scratch, total, mod);
    cuda_linear(k, h->ada_final, scratch, total, (char *)mod + cuda_mod_final_offset(h));
    kern_watch_modulation(k, mod, total, h->depth, h->width, cuda_head_mod_bytes(h));
}

/* --- evaluation ---------------------------------------------------------------------------------------------- */

/* An evaluation of the head; all arrays are on the device. */
typedef struct {
    cuda_queue *c;
    const kern_head *h;
    const void *mod;
    const int *mod_index;
    int rows;
    float *x, *y; /* [rows][W] */
    float *entry; /* [rows][C] the gathered states, or [rows/2][W] the input projection of the tokens */
    act *u, *v;   /* [rows][W] */
    float *kept;  /* [depth][kept_rows][W] outputs kept for reuse; NULL: no reuse */
    int kept_rows;
    kern_head_reuse reuse;
} evaluation;

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256; /* as cuBLASLt likes it */
}

size_t cuda_head_scratch_bytes(const kern_head *h, int rows)
{
    const size_t n = (size_t)rows * (size_t)h->width, states = (size_t)rows * (size_t)h->channels;
    return 2 * aligned(n * sizeof(float)) + 2 * aligned(n * h->act_size) +
           aligned((n / 2 > states ? n / 2 : states) * sizeof(float));
}

static evaluation evaluation_in(cuda_queue *c, const kern_head *h, const void *mod, const int *mod_index, int rows,
                                void *scratch)
{
    const size_t n = (size_t)rows * (size_t)h->width;
    evaluation e = {};
    char *p = (char *)scratch;
    e.c = c, e.h = h, e.mod = mod, e.mod_index = mod_index, e.rows = rows;
    e.x = (float *)p, p += aligned(n * sizeof(float));
    e.y = (float *)p, p += aligned(n * sizeof(float));
    e.u = p, p += aligned(n * h->act_size);
    e.v = p, p += aligned(n * h->act_size);
    e.entry = (float *)p;
    return e;
}

static float *kept_of(const evaluation *e, int b)
{
    return e->kept + (size_t)b * (size_t)e->kept_rows * (size_t)e->h->width;
}

/* y = MLP of block b at e->u. */
static void block_products(const evaluation *e, int b, float *y)
{
    cuda_queue *c = e->c;
    const size_t n = (size_t)e->rows * (size_t)e->h->width;
    enum { THREADS = 256 };
    cuda_linear(&c->base, e->h->block[b].fc1, e->u, e->rows, e->v);
    if (c->device->bf16)
        cuda_launch(c, silu_kernel<bf16>, cuda_blocks(n, LANES * THREADS), THREADS, 0, (bf16 *)e->v, n);
    else
        cuda_launch(c, silu_kernel<float>, cuda_blocks(n, LANES * THREADS), THREADS, 0, (float *)e->v, n);
    cuda_linear(&c->base, e->h->block[b].fc2, e->v, e->rows, y);
}

/* Shows the search for layers (kern_watch) what is in front of layer b: the sum with the outputs that n lists, which is
 * not kept in front of the final layer; u tells of it there. */
static void watch_sum(const evaluation *e, const residual_norm *n, int b)
{
    kern_queue *k = &e->c->base;
    const int width = e->h->width;
    if (n->blocks == 0)
        kern_watch(k, n->from, 1, n->from_rows, width, width, KERN_HEAD_INPUT);
    else
        kern_watch(k, n->x ? n->x : (const float *)n->u, 1, e->rows, width, width, KERN_HEAD_BLOCK, b - 1);
}

/* Adds the outputs that n lists and prepares the input of layer b, which is e->u, or e->y for the final layer
 * b == depth. After it n lists no outputs. */
static void prepare(const evaluation *e, residual_norm *n, int b)
{
    cuda_queue *c = e->c;
    const kern_head *h = e->h;
    const int final = b == h->depth;
    const dim3 grid((unsigned)e->rows), threads = row_threads(h);
    const size_t shared = 64 * sizeof(float);
    n->x = final || n->blocks == 0 ? NULL : e->x;
    n->shift = final ? cuda_mod_final_offset(h) : 3 * (size_t)b * (size_t)h->width * h->act_size;
    n->ln = NULL; /* folded into the modulation */
    n->u = final ? e->y : e->u;
    if (!c->device->bf16)
        cuda_launch(c, residual_norm_kernel<float, float>, grid, threads, shared, *n);
    else if (final)
        cuda_launch(c, residual_norm_kernel<bf16, float>, grid, threads, shared, *n);
    else
        cuda_launch(c, residual_norm_kernel<bf16, bf16>, grid, threads, shared, *n);
    watch_sum(e, n, b);
    if (n->blocks) n->from = e->x, n->from_rows = e->rows;
    n->blocks = 0;
    n->keep = NULL;
}

/* out = the head at the residual stream `from` [from_rows][W], from_rows a divisor of rows. */
static void evaluate(const evaluation *e, const float *from, int from_rows, float *out)
{
    const kern_head *h = e->h;
    residual_norm n = {};
    n.width = h->width, n.from = from, n.from_rows = from_rows;
    n.mod = (const char *)e->mod, n.mod_index = e->mod_index, n.mod_bytes = cuda_head_mod_bytes(h);
    n.y_stride = (size_t)e->kept_rows * (size_t)h->width;
    for (int b = 0; b < h->depth && cuda_live(e->c); b++) {
        const int addition = keeps_addition(b);
        const int computed = !e->kept || e->reuse == KERN_HEAD_FRESH || (e->reuse == KERN_HEAD_WARM && !addition);
        if (computed) {
            prepare(e, &n, b);
            block_products(e, b, e->kept && !addition ? kept_of(e, b) : e->y);
        }
        const int through_y = computed && (!e->kept || addition);
        if (n.blocks == 0) {
            n.block = b;
            n.y = through_y ? e->y : kept_of(e, b);
            n.y_kept = !through_y;
            n.keep = through_y && e->kept ? kept_of(e, b) : NULL;
        }
        n.blocks++; /* after a block that is not through_y, only such blocks follow before the next `prepare` */
    }
    prepare(e, &n, h->depth);
    cuda_linear(&e->c->base, h->out, e->y, e->rows, out);
    kern_watch(&e->c->base, out, 1, e->rows, 2 * h->channels, 2 * h->channels, KERN_HEAD_FINAL);
}

void cuda_head_eval(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                    const int *mod_index, int rows, float *out, void *scratch)
{
    cuda_head_eval_reusing(k, h, x, x_index, mod, mod_index, rows, KERN_HEAD_FRESH, NULL, 0, out, scratch);
}

void cuda_head_eval_reusing(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                            const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows,
                            float *out, void *scratch)
{
    cuda_queue *c = cuda_of(k);
    mod_index = cuda_stage(c, mod_index, (size_t)rows);
    evaluation e = evaluation_in(c, h, mod, mod_index, rows, scratch);
    e.kept = kept, e.kept_rows = kept_rows, e.reuse = reuse;
    if (x_index) {
        cuda_copy_rows(k, e.entry, NULL, x, x_index, NULL, NULL, rows, h->channels);
        x = e.entry;
    }
    if (rows <= 0 || !cuda_live(c)) return;
    cuda_linear(k, h->in, x, rows, e.x);
    evaluate(&e, e.x, rows, out);
}

void cuda_head_eval_at(cuda_queue *c, const kern_head *h, const float *x, int states, const void *mod,
                       const int *mod_index, int rows, float *out, void *scratch)
{
    const evaluation e = evaluation_in(c, h, mod, mod_index, rows, scratch);
    float *entry = states < rows ? e.entry : e.x; /* not e.x, because several rows read a state's projection */
    if (!cuda_live(c)) return;
    cuda_linear(&c->base, h->in, x, states, entry);
    evaluate(&e, entry, states, out);
}

/* --- the chain ----------------------------------------------------------------------------------------------- */

void cuda_chain_run(kern_queue *k, const kern_head *h, const kern_chain_job *job)
{
    cuda_queue *c = cuda_of(k);
    const int rows = job->tokens * job->conditions, last = job->last;
    if (rows <= 0 || job->first < last) return;
    if (h->persistent && rows <= PERSISTENT_ROWS) {
        persistent_run(c, h, job);
        return;
    }
    const size_t tokens = (size_t)job->tokens, steps = (size_t)(job->first - last + 1);
    const float *cfg = cuda_stage(c, job->conditions == 2 ? job->cfg : NULL, tokens);
    const uint64_t *image = cuda_stage(c, job->image, tokens);
    const int *position = cuda_stage(c, job->position, tokens);
    const int *t = cuda_stage(c, job->t ? job->t + last : NULL, steps);
    const kern_chain_coef *coef = cuda_stage(c, job->coef ? job->coef + last : NULL, steps);
    const kern_ode_coef *ode = cuda_stage(c, job->coef ? NULL : job->ode + last, steps);
    if (!cuda_live(c)) return;
    const cuda_chain_state s = {job->tokens, h->channels, job->x, job->x0, job->out, cfg, job->seed, image, position};
    evaluation e = evaluation_in(c, h, job->mod, NULL, rows, job->scratch);
    /* Not e.x with two conditions: both conditions' rows read a token's projection. */
    float *entry = job->conditions == 2 ? e.entry : e.x;
    for (int i = job->first; i >= last && cuda_live(c); i--) {
        k->watch.index = i;
        cuda_linear(k, h->in, job->x, job->tokens, entry);
        evaluate(&e, entry, job->tokens, job->out);
        if (coef)
            cuda_chain_advance(c, &s, coef + (i - last), t + (i - last));
        else
            cuda_chain_ode_advance(c, &s, ode + (i - last));
        e.mod = (const char *)e.mod + (size_t)rows * cuda_head_mod_bytes(h);
    }
    k->watch.index = -1;
}
