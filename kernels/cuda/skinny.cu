/* Products of up to 16 rows, as in decoding, where each weight is read for a few multiplications.
 *
 * The floor is reading the weights once. By Little's law 4.8 TB/s (H200) at a latency of 700 ns needs 3.4 MB in
 * flight: 25 KB for each of 132 multiprocessors. A warp has 4 KB in flight, in registers, 16 bytes a load. A block has
 * 8 warps, so two blocks, which 128 registers a thread permit, have 64 KB. Where there are fewer blocks than
 * multiprocessors a block has up to 16 warps.
 *
 * A block owns M tiles of 16 channels and N of 8 rows, and its warps divide the inputs. The weights are the operand A
 * of mma.m16n8k16, the rows operand B, so up to 8 rows cost no more than one. A sum may take its inputs in any order: a
 * lane has 8 neighbouring inputs of both operands where the instruction names pairs that are 8 apart. So fragments are
 * loaded as they are, by 16 bytes, without shared memory. For SwiGLU rows 0 to 7 of A are gates, and 8 to 15 the
 * channels that they multiply.
 *
 * The norm divides the sums, not the operands: norm(x) W = (x * weight) W / deviation(x). The warps sum x^2 as they
 * read x, so a block needs no pass over x before.
 *
 * int8 and int4 weights become integers in bf16, which has them exactly. Their scales multiply sums: a channel's at the
 * end, a group's sum of 32 products as soon as it is there. x stays bf16, where a CPU has int8. Restoring takes
 * instructions, so two tiles of channels share what it takes to load x. An int4 weight is restored plus 24, and a
 * group's sum begins at -24 times the sum of its inputs, which is the same for all channels.
 *
 * Weights are loaded before the kernel waits for the one before it (programmatic dependent launch): they travel while
 * that one ends. */
#include "kernels/cuda/low_bit.cuh"

enum {
    UNIT = 64,     /* bytes of a channel's weights for one load by four lanes, 16 bytes each */
    WARPS = 16,    /* maximum warps of a block */
    CHANNELS = 16, /* of a tile: rows of an mma */
};

/* A call, on the device. */
typedef struct {
    int rows, in, out; /* out: of y */
    int units, gated;  /* units: of a row of weights, the last one in part */
    int y_stride, y_f32, add;
    size_t row_bytes; /* of weights */
    const char *weight;
    const void *scale, *bias; /* scale: as kern_linear's */
    const void *x;
    const int *index;
    const float *norm;
    float eps;
    void *y;
    uint32_t offset[4]; /* int4: pairs of -24; four fields, so that ptxas keeps four registers, not one and copies */
} skinny_call;

/* Returns the row of x for row r of y. */
static __device__ inline const char *row_of(const skinny_call &p, int r, size_t element)
{
    return (const char *)p.x + (size_t)(p.index ? p.index[r] : r) * (size_t)p.in * element;
}

/* Returns where N inputs from number k on are read. Beyond the last input the weights are 0, so any inputs will do: a
 * branch would keep loads from being moved up. */
template <int N> static __device__ inline int place_of(const skinny_call &p, int k)
{
    return min(k, p.in - N);
}

/* Multiplies inputs from number k on by the norm's weight. Adds their squares. */
template <int N>
static __device__ inline void weigh(const skinny_call &p, const cuda_floats<N> &weight, int k, cuda_floats<N> *x,
                                    float *square)
{
    float sum = 0;
    for (int i = 0; i < N; i++) {
        sum += x->v[i] * x->v[i];
        x->v[i] *= weight.v[i];
    }
    *square += k < p.in ? sum : 0;
}

/* A lane's part of a unit of its channels. */
template <int M> struct skinny_unit {
    uint4 weight[M][2];
    uint16_t scale[M][2]; /* int4: bf16, of the group lane % 4 of the channel's four */
};

/* --- bf16: a lane's sums for M * 16 channels and N * 8 rows, as mma has them -------------------------------------- */

template <cuda_weights FORM, int M, int N, bool NORM> struct skinny_sums {
    const char *row[N]; /* of x: lane / 4 of each tile's, or the last, whose sums are then not stored */
    float d[M][N][4], square[N];

    __device__ void begin(const skinny_call &p)
    {
        for (int n = 0; n < N; n++) {
            const int r = 8 * n + (int)(threadIdx.x % 32 / 4);
            row[n] = row_of(p, min(r, p.rows - 1), NORM ? sizeof(float) : sizeof(bf16));
            square[n] = 0;
            for (int m = 0; m < M; m++)
                for (int i = 0; i < 4; i++) d[m][n][i] = 0;
        }
    }

    /* Loads 8 inputs from number k on as operands. */
    __device__ void load(const skinny_call &p, int n, int k, uint32_t b[4])
    {
        if constexpr (NORM) {
            cuda_floats<8> x = cuda_load<8>((const float *)row[n] + place_of<8>(p, k));
            weigh<8>(p, cuda_load<8>(p.norm + place_of<8>(p, k)), k, &x, &square[n]);
            for (int i = 0; i < 4; i++) b[i] = cuda_pack(x.v[2 * i], x.v[2 * i + 1]);
        } else {
            const uint4 x = *(const uint4 *)(row[n] + (size_t)place_of<8>(p, k) * sizeof(bf16));
            b[0] = x.x, b[1] = x.y, b[2] = x.z, b[3] = x.w;
        }
    }

    /* Adds a product of 32 inputs. */
    static __device__ void multiply(float sum[4], const uint32_t a[2][4], const uint32_t b[4])
    {
        for (int i = 0; i < 4; i += 2) {
            const uint32_t both[4] = {a[0][i], a[1][i], a[0][i + 1], a[1][i + 1]};
            fast::mma<bf16>(sum, both, b + i);
        }
    }

    __device__ void add(const skinny_call &p, int unit, const skinny_unit<M> &u)
    {
#pragma unroll
        for (int step = 0; step < low_bit<FORM>::STEPS; step++) {
            /* A branch, so that inputs of two steps are loaded at a time: registers do not hold those of four. */
            if (step == 2 && (unit * low_bit<FORM>::STEPS + step) * 32 >= p.in) break;
            const int k = (unit * low_bit<FORM>::STEPS + step) * 32 + (int)(threadIdx.x % 4 * 8);
            uint32_t a[2][4], b[N][4];
            float offset[N][4] = {};
            for (int n = 0; n < N; n++) {
                load(p, n, k, b[n]);
                for (int i = 0; i < 4 && FORM == CUDA_INT4; i += 2) fast::mma<bf16>(offset[n], p.offset, b[n] + i);
            }
            for (int m = 0; m < M; m++) {
                float scale[2] = {};
                for (int h = 0; h < 2; h++) {
                    low_bit_integers<FORM>(u.weight[m][h], step, a[h]);
                    if (FORM == CUDA_INT4) scale[h] = __shfl_sync(0xffffffffu, cuda_low(u.scale[m][h]), step, 4);
                }
                for (int n = 0; n < N; n++) {
                    if constexpr (FORM == CUDA_INT4) {
                        float group[4];
                        for (int i = 0; i < 4; i++) group[i] = offset[n][i];
                        multiply(group, a, b[n]);
                        for (int i = 0; i < 4; i++) d[m][n][i] += scale[i / 2] * group[i];
                    } else {
                        multiply(d[m][n], a, b[n]);
                    }
                }
            }
        }
    }

    __device__ void end(const skinny_call &)
    {
        for (int n = 0; n < N && NORM; n++)
            for (int bit = 1; bit < 4; bit *= 2) square[n] += __shfl_xor_sync(0xffffffffu, square[n], bit);
    }
};

/* --- f32: a lane multiplies its inputs of two channels a tile for every row ------------------------------------------
 */

template <int M, int N, bool NORM> struct skinny_sums<CUDA_F32, M, N, NORM> {
    float sum[M][2][8 * N], squares[8 * N];
    float d[M][N][4], square[N]; /* as above, at the end */

    __device__ void begin(const skinny_call &)
    {
        for (int r = 0; r < 8 * N; r++) {
            squares[r] = square[r / 8] = 0;
            for (int m = 0; m < 2 * M; m++) sum[m / 2][m % 2][r] = d[m / 2][r / 8][m % 2 * 2 + r % 2] = 0;
        }
    }

    __device__ void add(const skinny_call &p, int unit, const skinny_unit<M> &u)
    {
        const int k = unit * 16 + (int)(threadIdx.x % 4 * 4), at = place_of<4>(p, k);
        const cuda_floats<4> weight = NORM ? cuda_load<4>(p.norm + at) : cuda_floats<4>{};
#pragma unroll
        for (int r = 0; r < 8 * N; r++) {
            if (r >= p.rows) break;
            cuda_floats<4> x = cuda_load<4>((const float *)row_of(p, r, sizeof(float)) + at);
            if (NORM) weigh<4>(p, weight, k, &x, &squares[r]);
            for (int m = 0; m < 2 * M; m++) {
                const uint4 w = u.weight[m / 2][m % 2];
                float *to = &sum[m / 2][m % 2][r];
                *to += __uint_as_float(w.x) * x.v[0];
                *to += __uint_as_float(w.y) * x.v[1];
                *to += __uint_as_float(w.z) * x.v[2];
                *to += __uint_as_float(w.w) * x.v[3];
            }
        }
    }

    static __device__ float of_quad(float x)
    {
        for (int bit = 1; bit < 4; bit *= 2) x += __shfl_xor_sync(0xffffffffu, x, bit);
        return x;
    }

    __device__ void end(const skinny_call &p)
    {
        const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
#pragma unroll
        for (int r = 0; r < 8 * N; r++) {
            if (r >= p.rows) break;
            const float all = of_quad(squares[r]);
            if (r % 8 == g) square[r / 8] = all;
            for (int m = 0; m < 2 * M; m++) {
                const float x = of_quad(sum[m / 2][m % 2][r]);
                if (r % 8 / 2 == t) d[m / 2][r / 8][m % 2 * 2 + r % 2] = x;
            }
        }
    }
};

/* --- the kernel -----------------------------------------------------------------------------------------------------
 */

/* Floats from one row to the next in shared memory; the warp's stores are then in 32 banks. */
template <int M> constexpr int pitch = CHANNELS *M + 4;

/* Returns the row of weights of channel lane / 4 of a half tile, or of the last channel beyond it. */
template <int M> static __device__ inline int channel_of(const skinny_call &p, int tile, int half)
{
    const int g = (int)(threadIdx.x % 32 / 4), block = (int)blockIdx.x * M + tile;
    return p.gated ? min(8 * block + g, p.out - 1) + half * p.out : min(CHANNELS * block + 8 * half + g, p.out - 1);
}

template <cuda_weights FORM, int M>
static __device__ inline void load_unit(const skinny_call &p, const int channel[M][2], int unit, skinny_unit<M> *u)
{
    const size_t at = (size_t)unit * UNIT + threadIdx.x % 4 * 16;
    const int last = min(unit, p.units - 1);
    for (int m = 0; m < M; m++)
        for (int h = 0; h < 2; h++) {
            const unsigned i = (unsigned)channel[m][h] + (unsigned)last;
            if (low_bit<FORM>::STEPS > 1) /* whole units; one beyond the last is not multiplied */
                u->weight[m][h] = fast::load_weights((const uint4 *)p.weight + (i * 4 + threadIdx.x % 4));
            else
                u->weight[m][h] = at < p.row_bytes
                                      ? fast::load_weights(p.weight + (size_t)channel[m][h] * p.row_bytes + at)
                                      : uint4{};
            if (FORM == CUDA_INT4) u->scale[m][h] = ((const uint16_t *)p.scale)[i * 4 + threadIdx.x % 4];
        }
}

static __device__ inline float element(const void *p, size_t i, int f32)
{
    return f32 ? ((const float *)p)[i] : cuda_float(((const bf16 *)p)[i]);
}

/* Adds up the warps' sums of a row and channel of the block. */
template <int M, int N> static __device__ inline float sum_of(const float *sums, int row, int channel)
{
    float sum = 0;
    for (int w = 0; w < (int)(blockDim.x / 32); w++) sum += sums[(w * 8 * N + row) * pitch<M> + channel];
    return sum;
}

/* Stores an element of y: of a row, and of channel `own` of the block. */
template <bool INT8, int M, int N>
static __device__ inline void store_result(const skinny_call &p, const float *sums, const float *squares, int row,
                                           int own, int channel)
{
    float scale = 1;
    if (p.norm) {
        float square = 0;
        for (int w = 0; w < (int)(blockDim.x / 32); w++) square += squares[w * 8 * N + row];
        scale = cuda_inverse_deviation(square / (float)p.in, p.eps);
    }
    const int first = p.gated ? own / 8 * CHANNELS + own % 8 : own;
    float y = sum_of<M, N>(sums, row, first) * scale;
    if (INT8) y *= ((const float *)p.scale)[channel];
    if (p.bias) y += element(p.bias, (size_t)channel, p.y_f32);
    if (p.gated) {
        float up = sum_of<M, N>(sums, row, first + 8) * scale;
        if (INT8) up *= ((const float *)p.scale)[p.out + channel];
        if (p.bias) up += element(p.bias, (size_t)(p.out + channel), p.y_f32);
        y = cuda_silu(y) * up;
    }
    const size_t at = (size_t)row * (size_t)p.y_stride + (size_t)channel;
    if (p.add) y += ((const float *)p.y)[at];
    if (p.y_f32)
        ((float *)p.y)[at] = y;
    else
        cuda_store((bf16 *)p.y + at, y);
}

/* Units that a warp takes at a time: as many as fit in registers. */
template <cuda_weights FORM, int M, int N>
constexpr int depth_of = (FORM == CUDA_INT4 && N > 1) || (FORM == CUDA_F32 && M > 1) ? 1 : 4 / M;

template <cuda_weights FORM, int M, int N, bool NORM>
static __global__ void __launch_bounds__(32 * WARPS, 1) skinny_kernel(skinny_call p)
{
    enum { DEPTH = depth_of<FORM, M, N> };
    const int warps = (int)(blockDim.x / 32), warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32);
    float *all = (float *)cuda_shared(), *sums = all + warp * 8 * N * pitch<M>;
    float *all_squares = all + warps * 8 * N * pitch<M>;
    int channel[M][2];
    skinny_unit<M> u[DEPTH];
    skinny_sums<FORM, M, N, NORM> s;
    fast::start_next();
    for (int m = 0; m < M; m++)
        for (int h = 0; h < 2; h++) channel[m][h] = channel_of<M>(p, m, h) * (low_bit<FORM>::STEPS > 1 ? p.units : 1);
    for (int j = 0; j < DEPTH; j++) load_unit<FORM, M>(p, channel, warp * DEPTH + j, &u[j]);
    fast::wait_for_previous();
    s.begin(p);
    for (int unit = warp * DEPTH; unit < p.units; unit += warps * DEPTH)
#pragma unroll
        for (int j = 0; j < DEPTH; j++) {
            if (low_bit<FORM>::STEPS > 1 && j > 0 && unit + j >= p.units) break;
            s.add(p, unit + j, u[j]);
            load_unit<FORM, M>(p, channel, unit + warps * DEPTH + j, &u[j]);
        }
    s.end(p);
    for (int n = 0; n < N; n++) {
        for (int m = 0; m < M; m++)
            for (int i = 0; i < 4; i++)
                sums[(8 * n + lane % 4 * 2 + i % 2) * pitch<M> + CHANNELS * m + i / 2 * 8 + lane / 4] = s.d[m][n][i];
        if (NORM && lane % 4 == 0) all_squares[(warp * N + n) * 8 + lane / 4] = s.square[n];
    }
    __syncthreads();
    const int channels = (p.gated ? 8 : CHANNELS) * M;
    for (int i = (int)threadIdx.x; i < p.rows * channels; i += (int)blockDim.x) {
        const int row = i / channels, own = i - row * channels, of_y = (int)blockIdx.x * channels + own;
        if (of_y < p.out) store_result<FORM == CUDA_INT8, M, N>(p, all, all_squares, row, own, of_y);
    }
}

/* --- launches -------------------------------------------------------------------------------------------------------
 */

template <cuda_weights FORM, int M, int N> static void launch(cuda_queue *c, const skinny_call &p)
{
    const unsigned blocks = cuda_blocks((size_t)p.out, (size_t)((p.gated ? 8 : CHANNELS) * M));
    const int most = blocks <= (unsigned)c->device->multiprocessors ? WARPS : WARPS / 2, depth = depth_of<FORM, M, N>;
    const int busy = (p.units + depth - 1) / depth, warps = busy < most ? busy : most;
    void (*kernel)(skinny_call) = p.norm ? skinny_kernel<FORM, M, N, true> : skinny_kernel<FORM, M, N, false>;
    cuda_launch_early(c, kernel, blocks, 32 * (unsigned)warps, (size_t)(warps * 8 * N * (pitch<M> + 1)) * sizeof(float),
                      p);
}

template <cuda_weights FORM> static void launch_of(cuda_queue *c, const skinny_call &p)
{
    if (p.rows <= 8)
        launch<FORM, FORM == CUDA_INT8 || FORM == CUDA_INT4 ? 2 : 1, 1>(c, p);
    else
        launch<FORM, 2, 2>(c, p);
}

cudaError_t cuda_code_major(int *major)
{
    cudaFuncAttributes code = {};
    const cudaError_t error = cudaFuncGetAttributes(&code, skinny_kernel<CUDA_BF16, 1, 1, false>);
    *major = code.ptxVersion / 10;
    return error;
}

static int aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

int cuda_skinny(kern_queue *k, const kern_linear *l, const kern_skinny_job *job)
{
    cuda_queue *c = cuda_of(k);
    if (job->rows > KERN_SKINNY_ROWS || l->form == CUDA_FP8 || l->form == CUDA_F16 || l->in % 8 != 0 ||
        l->activation != KERN_LINEAR || (l->form == CUDA_F32) == c->device->bf16 || !aligned(job->x) ||
        !aligned(job->norm))
        return 0;
    if (job->rows <= 0) return 1;
    skinny_call p = {};
    p.rows = job->rows, p.in = l->in, p.gated = job->gated, p.out = job->gated ? l->out / 2 : l->out;
    p.row_bytes = l->row_bytes, p.units = (int)((l->row_bytes + UNIT - 1) / UNIT);
    p.weight = (const char *)l->weight, p.scale = l->scale, p.bias = l->bias;
    p.y_stride = job->gated ? p.out : l->y_stride, p.y_f32 = l->y_type == MAR_DTYPE_F32,
    p.add = (l->flags & KERN_OUT_ADD) != 0;
    p.x = job->x, p.index = cuda_stage(c, job->index, (size_t)job->rows);
    p.norm = job->norm, p.eps = job->eps, p.y = job->y;
    for (int i = 0; i < 4; i++) p.offset[i] = 0xc1c0c1c0;
    if (l->form == CUDA_F32)
        launch_of<CUDA_F32>(c, p);
    else if (l->form == CUDA_BF16)
        launch_of<CUDA_BF16>(c, p);
    else if (l->form == CUDA_INT8)
        launch_of<CUDA_INT8>(c, p);
    else
        launch_of<CUDA_INT4>(c, p);
    return 1;
}
