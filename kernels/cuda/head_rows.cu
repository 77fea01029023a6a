/* Row kernels of the diffusion head: the work between its products, and the final layer. */
#include "kernels/cuda/head.h"
#include "kernels/cuda/ptx.h"

#include <stdlib.h>
#include <string.h>

enum { LANES = CUDA_HEAD_LANES, NORM_SHARED = 64 * sizeof(float) };
typedef cuda_floats<LANES> lanes;

/* --- the condition ------------------------------------------------------------------------------------------- */

/* Computes a row per block. Floor: 2W bytes written in f16; temb and cond stay in the L2. */
template <typename T>
static __global__ void condition_kernel(const float *temb, const int *temb_index, const float *cond, int rows,
                                        int width, act *y)
{
    const int i = LANES * (int)threadIdx.x, s = (int)blockIdx.x / rows, r = (int)blockIdx.x % rows;
    if (i >= width) return;
    lanes a = cuda_load<LANES>(temb + (size_t)temb_index[s] * width + i);
    const lanes b = cuda_load<LANES>(cond + (size_t)r * width + i);
    for (int j = 0; j < LANES; j++) a.v[j] = cuda_silu(a.v[j] + b.v[j]);
    cuda_store((T *)y + (size_t)blockIdx.x * width + i, a);
}

void cuda_head_condition(cuda_queue *c, const kern_head *h, const float *temb, const int *temb_index, int total,
                         const float *cond, int rows, act *y)
{
    cuda_launch(c, h->f16 ? condition_kernel<f16> : condition_kernel<float>, dim3((unsigned)total),
                cuda_head_threads(h), 0, temb, temb_index, cond, rows, h->width, y);
}

/* --- between two blocks ---------------------------------------------------------------------------------------- */

/* A sum, and its normalisation and modulation. */
typedef struct {
    cuda_residual s;
    int rows, width;
    float *x;             /* [rows][W] receives the sum; NULL if nothing reads it again */
    const char *mod;      /* modulation rows */
    const int *mod_index; /* [rows] modulation row of row r; NULL: r */
    size_t mod_bytes;     /* of a modulation row */
    size_t shift;         /* offset of the next layer's shift in a modulation row; its scale follows */
    size_t gate;          /* offset of the addend's gate in a modulation row */
    const float *norm;    /* [2][W] weight and bias of the layer norm; NULL: none */
} residual_norm;

static residual_norm residual_norm_of(const cuda_evaluation *e, const cuda_residual *s, int b)
{
    const kern_head *h = e->h;
    residual_norm n = {};
    n.s = *s;
    n.rows = e->rows, n.width = h->width;
    n.mod = e->mod, n.mod_index = e->mod_index, n.mod_bytes = cuda_head_mod_bytes(h);
    n.shift = b < h->depth ? cuda_mod_block_offset(h, b) : cuda_mod_final_offset(h);
    if (s->y) n.gate = cuda_mod_block_offset(h, s->block) + 2 * (size_t)h->width * h->act_size;
    n.norm = h->norms && b < h->depth ? h->norms + 2 * (size_t)b * (size_t)h->width : NULL;
    return n;
}

static __device__ inline const char *cuda_mod_row(const residual_norm &n, int r)
{
    return n.mod + (size_t)(n.mod_index ? n.mod_index[r] : r) * n.mod_bytes;
}

/* Returns elements i .. i + 7 of row r of the sum. T is the type of gates. */
template <typename T> static __device__ inline lanes residual_sum(const residual_norm &n, const char *mod, int r, int i)
{
    const size_t at = (size_t)r * n.width + i;
    lanes x = cuda_load<LANES>(n.s.from + (size_t)(r % n.s.from_rows) * n.width + i);
    if (n.s.y) {
        lanes y = cuda_load<LANES>(n.s.y + at);
        const lanes gate = cuda_load_once((const T *)(mod + n.gate) + i);
        for (int j = 0; j < LANES; j++) x.v[j] += y.v[j] *= gate.v[j];
        if (n.s.keep) cuda_store(n.s.keep + at, y);
    }
    if (n.x) cuda_store(n.x + at, x);
    return x;
}

/* A thread block holds a row in registers: x is read once, and the variance is computed from differences to the mean. u
 * [rows][W] receives n * (1 + scale) + shift, n the normalised sum, with the layer norm's weight and bias if AFFINE. T
 * is the type of gates, S that of shift, scale and u. Floor in f16, bytes a row: x 4W + y 4W read, x 4W + u 2W
 * written, in the L2 for up to a few thousand rows. Gate, shift and scale are 6W from memory: at 4.8 TB/s 1.3 ns a row
 * of W = 1024. All loads precede the first sum: a thread has 112 bytes in flight, a multiprocessor's 1024 threads 112
 * KiB. */
template <typename T, typename S, int AFFINE>
static __global__ void __launch_bounds__(CUDA_HEAD_WIDTH / LANES) residual_norm_kernel(residual_norm n, void *u)
{
    float *part = (float *)cuda_shared();
    const int r = (int)blockIdx.x, i = LANES * (int)threadIdx.x, mine = i < n.width;
    const char *mod = cuda_mod_row(n, r);
    lanes x = {}, shift = {}, scale = {}, weight = {}, bias = {};
    if (mine && AFFINE) {
        weight = cuda_load<LANES>(n.norm + i);
        bias = cuda_load<LANES>(n.norm + n.width + i);
    }
    if (mine) {
        const S *next = (const S *)(mod + n.shift);
        shift = cuda_load_once(next + i);
        scale = cuda_load_once(next + n.width + i);
        x = residual_sum<T>(n, mod, r, i);
    }
    float sum = 0, squares = 0;
    for (int j = 0; j < LANES; j++) sum += x.v[j];
    const float mean = cuda_block_sum(sum, part) / n.width;
    for (int j = 0; j < LANES && mine; j++) squares += (x.v[j] - mean) * (x.v[j] - mean);
    const float inv = cuda_inverse_deviation(cuda_block_sum(squares, part + 32) / n.width, 1e-6f);
    if (!mine) return;
    for (int j = 0; j < LANES; j++) {
        const float y = (x.v[j] - mean) * inv;
        x.v[j] = (AFFINE ? y * weight.v[j] + bias.v[j] : y) * (1 + scale.v[j]) + shift.v[j];
    }
    cuda_store((S *)u + (size_t)r * n.width + i, x);
}

void cuda_head_norm(const cuda_evaluation *e, cuda_residual *s, int b)
{
    cuda_queue *c = e->c;
    kern_queue *k = &c->base;
    const int width = e->h->width;
    residual_norm n = residual_norm_of(e, s, b);
    n.x = s->y ? e->x : NULL;
    const auto plain = e->h->f16 ? residual_norm_kernel<f16, f16, 0> : residual_norm_kernel<float, float, 0>;
    const auto affine = e->h->f16 ? residual_norm_kernel<f16, f16, 1> : residual_norm_kernel<float, float, 1>;
    cuda_launch(c, n.norm ? affine : plain, dim3((unsigned)e->rows), cuda_head_threads(e->h), NORM_SHARED, n, e->u);
    if (b == 0) kern_watch(k, s->from, MAR_DTYPE_F32, s->from_rows, width, width, KERN_HEAD_INPUT, e->h->prefix);
    if (!s->y) return;
    kern_watch(k, e->x, MAR_DTYPE_F32, e->rows, width, width, KERN_HEAD_BLOCK, e->h->prefix, s->block);
    *s = cuda_residual_of(e->x, e->rows);
}

/* --- the final layer ------------------------------------------------------------------------------------------- */

/* The final layer is f32 (reason: kernels/cpu/head.c). Tensor cores multiply bf16, so each operand is split into a part
 * rounded to bf16 and a remainder rounded to bf16. The smallest of the four products is dropped; sums are f32. A number
 * is off by at most 2^-17 of itself. The dropped product is at most 2^-16 of its term, so a term is off by at most
 * 2^-15. Over random operands the three errors have deviations of 2.4e-6, 2.4e-6 and 2.2e-6 of the term's, together
 * 4e-6, a hundredth of f16's error in the blocks. An output's error is that of its terms, also where they cancel
 * (tests/ops/test_head.c).
 *
 * A block of 8 warps has 16 rows and all outputs. Groups of 32 channels are dealt to the warps. Thread t of four has
 * channels 8t .. 8t + 7 of a group, of rows g and g + 8. As in persistent_layers.cuh these are the operands of two
 * mmas. So a thread multiplies what it has loaded and normalised itself, and only sums cross warps.
 *
 * Floor, bytes a row: x 4W + y 4W + gate 2W read, shift and scale 8W from memory, 8C written, and 256W of weight for 16
 * rows, from the L2. A separate normalising kernel and f32 product would add 4W written and 4W read for u. 6 * 32 W
 * flop a row on the tensor cores: 0.25 ns a row of W = 1024 at 790 TFLOP/s. */
enum { OUT_ROWS = 16, OUT_WARPS = 8, OUT_TILES = 4, OUT_GROUPS = 6, OUTPUTS = 8 * OUT_TILES };

typedef struct {
    int outputs;         /* 2C, at most OUTPUTS */
    const uint4 *weight; /* [groups][OUT_TILES][high, low][lane]: 8 channels of output 8 * tile + lane / 4 */
    const float *bias;   /* [2C] */
    float *out;          /* [rows][2C] */
} final_layer;

/* x = high + low + an error beyond two bf16. */
static __device__ inline void final_split(const lanes &x, uint32_t high[4], uint32_t low[4])
{
    cuda_pairs<LANES> packed;
    lanes rest;
    cuda_store((bf16 *)&packed, x);
    const lanes top = cuda_unpack<bf16>(packed);
    for (int i = 0; i < 4; i++) high[i] = packed.pair[i];
    for (int j = 0; j < LANES; j++) rest.v[j] = x.v[j] - top.v[j];
    cuda_store((bf16 *)&packed, rest);
    for (int i = 0; i < 4; i++) low[i] = packed.pair[i];
}

/* d += A B^T over 32 channels: two rows of A per thread, a column of B. */
static __device__ inline void final_multiply(float d[4], const uint32_t a[2][4], const uint4 &b)
{
    const uint32_t a0[4] = {a[0][0], a[1][0], a[0][1], a[1][1]}, b0[2] = {b.x, b.y};
    const uint32_t a1[4] = {a[0][2], a[1][2], a[0][3], a[1][3]}, b1[2] = {b.z, b.w};
    fast::mma<bf16>(d, a0, b0);
    fast::mma<bf16>(d, a1, b1);
}

/* Returns the sums of the block's rows g and g + 8; x [2] has the thread's share. part [OUT_WARPS][OUT_ROWS]. */
static __device__ inline void row_sums(float x[2], float *part)
{
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4;
    for (int h = 0; h < 2; h++) {
        x[h] = cuda_quad_sum(x[h]);
        if (threadIdx.x % 4 == 0) part[warp * OUT_ROWS + 8 * h + g] = x[h];
    }
    __syncthreads();
    for (int h = 0; h < 2; h++) {
        x[h] = 0;
        for (int w = 0; w < OUT_WARPS; w++) x[h] += part[w * OUT_ROWS + 8 * h + g];
    }
}

template <int GROUPS>
static __global__ void __launch_bounds__(32 * OUT_WARPS) final_kernel(residual_norm n, final_layer f)
{
    float4 *sums = (float4 *)cuda_shared(); /* [OUT_WARPS][OUT_TILES][lane] */
    float *part = (float *)(sums + OUT_WARPS * OUT_TILES * 32);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, first = (int)blockIdx.x * OUT_ROWS;
    lanes x[GROUPS][2];
    float sum[2] = {0, 0}, squares[2] = {0, 0}, d[OUT_TILES][4] = {};
    const float *next[2];
    int row[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        row[h] = first + 8 * h + lane / 4;
        const char *mod = row[h] < n.rows ? cuda_mod_row(n, row[h]) : NULL;
        next[h] = (const float *)(mod + n.shift);
#pragma unroll
        for (int p = 0; p < GROUPS; p++) {
            const int i = 32 * (p * OUT_WARPS + warp) + LANES * (lane % 4);
            x[p][h] = {};
            if (!mod || i >= n.width) continue;
            if (lane % 4 == 0) fast::prefetch_l2(next[h] + i), fast::prefetch_l2(next[h] + n.width + i);
            x[p][h] = residual_sum<f16>(n, mod, row[h], i);
            for (int j = 0; j < LANES; j++) sum[h] += x[p][h].v[j];
        }
    }
    row_sums(sum, part);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int p = 0; p < GROUPS; p++) {
            if (32 * (p * OUT_WARPS + warp) + LANES * (lane % 4) >= n.width) continue;
            for (int j = 0; j < LANES; j++) {
                x[p][h].v[j] -= sum[h] / n.width;
                squares[h] += x[p][h].v[j] * x[p][h].v[j];
            }
        }
    row_sums(squares, part + OUT_WARPS * OUT_ROWS);
#pragma unroll
    for (int p = 0; p < GROUPS; p++) {
        const int group = p * OUT_WARPS + warp, i = 32 * group + LANES * (lane % 4);
        uint32_t high[2][4] = {}, low[2][4] = {};
        if (32 * group >= n.width) break; /* uniform within the warp */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (row[h] >= n.rows || i >= n.width) continue;
            const lanes shift = cuda_load_once(next[h] + i), scale = cuda_load_once(next[h] + n.width + i);
            const float inv = cuda_inverse_deviation(squares[h] / n.width, 1e-6f);
            for (int j = 0; j < LANES; j++) x[p][h].v[j] = x[p][h].v[j] * inv * (1 + scale.v[j]) + shift.v[j];
            final_split(x[p][h], high[h], low[h]);
        }
        const uint4 *weight = f.weight + group * OUT_TILES * 2 * 32 + lane;
#pragma unroll
        for (int tile = 0; tile < OUT_TILES; tile++, weight += 64) {
            const uint4 w = weight[0];
            final_multiply(d[tile], low, w);
            final_multiply(d[tile], high, weight[32]);
            final_multiply(d[tile], high, w);
        }
    }
#pragma unroll
    for (int tile = 0; tile < OUT_TILES; tile++)
        sums[(warp * OUT_TILES + tile) * 32 + lane] = make_float4(d[tile][0], d[tile][1], d[tile][2], d[tile][3]);
    __syncthreads();
    /* Thread i adds up two outputs: element i of [OUT_TILES][lane][rows g, g + 8]. */
    const int i = (int)threadIdx.x, r = first + i % 64 / 8 + i % 2 * 8, column = i / 64 * 8 + i % 8 / 2 * 2;
    if (r >= n.rows || column >= f.outputs) return;
    float2 y = *(const float2 *)(f.bias + column);
    for (int w = 0; w < OUT_WARPS; w++) {
        const float2 more = ((const float2 *)sums)[w * 2 * OUT_TILES * 32 + i];
        y.x += more.x, y.y += more.y;
    }
    *(float2 *)(f.out + (size_t)r * f.outputs + column) = y;
}

mar_status cuda_head_pack_out(cuda_queue *c, const kern_head_spec *spec, kern_head *h, mar_err *err)
{
    const int w = h->width, outputs = 2 * h->channels, groups = (w + 31) / 32;
    if (!h->f16 || outputs > OUTPUTS || groups > OUT_GROUPS * OUT_WARPS) return MAR_OK;
    const size_t n = (size_t)groups * OUT_TILES * 2 * 32 * LANES;
    bf16 *packed = (bf16 *)calloc(n, sizeof *packed), *to = packed;
    if (!packed) return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of weights", n * sizeof *packed);
    for (size_t i = 0; i < n; i++, to++) {
        const int j = (int)(i % LANES), lane = (int)(i / LANES % 32), low = (int)(i / (LANES * 32) % 2);
        const int tile = (int)(i / (LANES * 64) % OUT_TILES), group = (int)(i / (LANES * 64 * OUT_TILES));
        const int o = 8 * tile + lane / 4, k = 32 * group + LANES * (lane % 4) + j;
        if (o >= outputs || k >= w) continue;
        const float x = spec->out_weight[(size_t)o * (size_t)w + (size_t)k];
        const bf16 high = __float2bfloat16(x);
        *to = low ? __float2bfloat16(x - __bfloat162float(high)) : high;
    }
    const mar_status status = cuda_alloc_copy(c, packed, n * sizeof *packed, &h->out_packed, err);
    free(packed);
    return status == MAR_OK ? kern_new_array(&c->base, spec->out_bias, (size_t)outputs, &h->out_bias, err) : status;
}

void cuda_head_final(const cuda_evaluation *e, const cuda_residual *s, float *out)
{
    cuda_queue *c = e->c;
    kern_queue *k = &c->base;
    const kern_head *h = e->h;
    const int width = h->width, outputs = 2 * h->channels, groups = (int)cuda_blocks((size_t)width, 32 * OUT_WARPS);
    residual_norm n = residual_norm_of(e, s, h->depth);
    n.x = s->y && k->watch.on ? e->x : NULL; /* only kern_watch reads it again */
    if (h->out_packed) {
        const final_layer f = {outputs, (const uint4 *)h->out_packed, h->out_bias, out};
        void (*kernel)(residual_norm, final_layer) = groups <= 2   ? final_kernel<2>
                                                     : groups <= 4 ? final_kernel<4>
                                                     : groups <= 5 ? final_kernel<5>
                                                                   : final_kernel<OUT_GROUPS>;
        cuda_launch(c, kernel, cuda_blocks((size_t)e->rows, OUT_ROWS), 32 * OUT_WARPS,
                    OUT_WARPS * (OUT_TILES * 32 * sizeof(float4) + 2 * OUT_ROWS * sizeof(float)), n, f);
    } else {
        cuda_launch(c, h->f16 ? residual_norm_kernel<f16, float, 0> : residual_norm_kernel<float, float, 0>,
                    dim3((unsigned)e->rows), cuda_head_threads(h), NORM_SHARED, n, e->y);
        cuda_linear(k, h->out, e->y, e->rows, out);
    }
    if (s->y) kern_watch(k, e->x, MAR_DTYPE_F32, e->rows, width, width, KERN_HEAD_BLOCK, h->prefix, s->block);
    kern_watch(k, out, MAR_DTYPE_F32, e->rows, outputs, outputs, KERN_HEAD_FINAL, h->prefix);
}
