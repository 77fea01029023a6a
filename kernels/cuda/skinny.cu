/* Products of up to 16 rows, as in decoding, where each weight is read for a few multiplications.
 *
 * The floor is reading the weights once. By Little's law 4.8 TB/s (H200) at a latency of 700 ns needs 3.4 MB in
 * flight: 25 KB for each of 132 multiprocessors. Kernels of one image's step take 2 to 3 us each, so the weights of the
 * next ones must be on their way meanwhile (programmatic dependent launch): a block copies them to shared memory before
 * it waits for the kernel before. A warp has 8 KB there (4 KB of int4 weights): all of a layer of LlamaGen-L, 26 MB,
 * fits in the 30 MB of an H200. Behind the wait stands as little as possible: x is read once, by 16 or 32 bytes a lane;
 * what the end needs besides sums is in registers.
 *
 * A block owns M tiles of 16 channels and N of 8 rows, and its warps divide the inputs, 256 at a time. The weights are
 * the operand A of mma.m16n8k16, the rows operand B, so up to 8 rows cost no more than one. A sum may take its inputs
 * in any order: a lane has 8 neighbouring inputs of both operands where the instruction names pairs that are 8 apart.
 * So a lane copies the 16 bytes of weights that it multiplies, and needs no barrier for them. For SwiGLU rows 0 to 7 of
 * A are gates, and 8 to 15 the channels that they multiply.
 *
 * The norm divides the sums, not the operands: norm(x) W = (x * weight) W / deviation(x). The warps sum x^2 as they
 * read x, so a block needs no pass over x before.
 *
 * int8 and int4 weights become integers in bf16, which has them exactly. Their scales multiply sums: a channel's at the
 * end, a group's sum of 32 products as soon as it is there. x stays bf16, where a CPU has int8. Restoring takes
 * instructions, so two tiles of channels share what it takes to load x. An int4 weight is restored plus 24, and a
 * group's sum begins at -24 times the sum of its inputs, which is the same for all channels. */
#include "kernels/cuda/low_bit.cuh"

enum {
    UNIT = 64,     /* bytes of a channel's weights for one load by four lanes, 16 bytes each */
    CHANNELS = 16, /* of a tile: rows of an mma */
    CHUNK = 256,   /* inputs that a warp takes at a time, 8 a lane */
    BATCH = 2,     /* rows of x that a warp loads at a time */
    /* Bytes from one row of a warp's inputs to the next: two rows of four lanes are in 32 banks. */
    X_PITCH = CHUNK * 2 + 64,
};

/* A call, on the device. */
typedef struct {
    int rows, in, out; /* out: of y */
    int gated, y_stride, y_f32, add;
    int warp_bytes;     /* of shared memory: weights of a chunk, then rows of X_PITCH bytes */
    unsigned row_bytes; /* of weights */
    const char *weight;
    const void *scale, *bias; /* scale: as kern_linear's */
    const void *x;
    const int *index;
    const float *norm;
    float eps;
    void *y;
    uint32_t offset[4]; /* int4: pairs of -24; four fields, so that ptxas keeps four registers, not one and copies */
} skinny_call;

/* Sizes of a kernel for a form of weights and up to 8 * N rows. */
template <cuda_weights WEIGHTS, int TILES, int NORMS> struct skinny_form {
    static constexpr cuda_weights FORM = WEIGHTS;
    enum {
        N = TILES,
        NORM = NORMS,
        M = FORM == CUDA_BF16 ? 1 : 2,
        STEPS = low_bit<FORM>::STEPS,
        DEPTH = CHUNK / low_bit<FORM>::INPUTS,           /* units of a chunk */
        READY = DEPTH / 2,                               /* units that are in registers before x is */
        BYTES = DEPTH * M * 2 * 32 * (int)sizeof(uint4), /* of a warp's weights */
        SUMS = FORM == CUDA_BF16 ? 4 / N : 1,            /* of a tile, so that products do not wait for those before */
        /* Maximum warps of a block; blocks in a multiprocessor, at least: at most 96 registers, or 80. */
        WARPS = N > 1  ? 8
                : NORM ? 10
                       : 11,
        RESIDENT = N == 1 && FORM == CUDA_BF16 ? 2 : 1,
        PITCH = CHANNELS * M + 4, /* floats from one row of sums to the next; the warp's stores are then in 32 banks */
    };
};

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* Returns the row of weights of channel lane / 4 of a half tile, or of the last channel beyond it. */
template <int M> static __device__ inline int channel_of(const skinny_call &p, int tile, int half)
{
    const int g = (int)(threadIdx.x % 32 / 4), block = (int)blockIdx.x * M + tile;
    return p.gated ? min(8 * block + g, p.out - 1) + half * p.out : min(CHANNELS * block + 8 * half + g, p.out - 1);
}

/* Starts to copy a lane's weights of a chunk to `to`, [DEPTH][M][2] uint4 that are 32 apart. Beyond the last input x is
 * 0, so any weights of the row will do. scale: int4's, bf16, of the group lane % 4 of each unit. */
template <typename F>
static __device__ inline void copy_weights(const skinny_call &p, int chunk, uint4 *to,
                                           uint16_t scale[F::DEPTH][F::M][2])
{
    for (int i = 0; i < 2 * F::M; i++) {
        const size_t row = (size_t)channel_of<F::M>(p, i / 2, i % 2) * p.row_bytes;
        for (int j = 0; j < F::DEPTH; j++) {
            const unsigned at = (unsigned)(chunk * F::DEPTH + j) * UNIT + threadIdx.x % 4 * 16;
            fast::copy16(to + (j * 2 * F::M + i) * 32, p.weight + row + min(at, p.row_bytes - 16));
            if (F::FORM == CUDA_INT4)
                scale[j][i / 2][i % 2] = at < p.row_bytes ? ((const uint16_t *)p.scale)[(row + at) / 16] : 0;
        }
    }
    fast::copy_commit();
}

/* A lane's part of a unit of its channels. */
template <int M> struct skinny_unit {
    uint4 weight[M][2];
};

template <int M> static __device__ inline skinny_unit<M> read_unit(const uint4 *from, int j)
{
    skinny_unit<M> u;
    for (int i = 0; i < 2 * M; i++) u.weight[i / 2][i % 2] = from[(j * 2 * M + i) * 32];
    return u;
}

/* --- inputs ------------------------------------------------------------------------------------------------------- */

/* Eight neighbouring inputs as they are in memory: float before a norm, else bf16. */
template <int NORM> struct skinny_inputs {
    cuda_stored<std::conditional_t<NORM, float, bf16>, 8> x;
};

/* Returns where 8 inputs from number k on are read: within the row. */
static __device__ inline int skinny_find_place(const skinny_call &p, int k)
{
    return min(k, p.in - 8);
}

/* Loads inputs from number k on of BATCH rows. */
template <int NORM>
static __device__ inline void skinny_load_rows(const skinny_call &p, int first, int k, skinny_inputs<NORM> x[BATCH])
{
    for (int i = 0; i < BATCH; i++) {
        if (first + i >= p.rows) continue;
        const size_t row = (size_t)(p.index ? p.index[first + i] : first + i) * (size_t)p.in;
        x[i] = *(const skinny_inputs<NORM> *)((const char *)p.x + (row + (size_t)skinny_find_place(p, k)) *
                                                                      (NORM ? sizeof(float) : sizeof(bf16)));
    }
}

/* Stores them as operands, times the norm's weight, to the lane's place in row 0 of the warp's inputs. square: sums of
 * the lane's squares. */
template <int NORM>
static __device__ inline void store_rows(const skinny_call &p, int first, int k, const cuda_floats<8> &norm,
                                         const skinny_inputs<NORM> x[BATCH], char *to, float square[BATCH])
{
    for (int i = 0; i < BATCH; i++) {
        square[i] = 0;
        if (first + i >= p.rows) continue;
        cuda_pairs<8> operand;
        if constexpr (NORM) {
            for (int j = 0; j < 8; j++) square[i] += x[i].x.v[j] * x[i].x.v[j];
            for (int j = 0; j < 4; j++)
                operand.pair[j] = cuda_pack(x[i].x.v[2 * j] * norm.v[2 * j], x[i].x.v[2 * j + 1] * norm.v[2 * j + 1]);
        } else {
            operand = x[i].x;
        }
        if (k >= p.in) operand = {}, square[i] = 0;
        *(cuda_pairs<8> *)(to + (first + i) * X_PITCH) = operand;
    }
}

/* Adds the warp's squares of BATCH rows; lane r has the sum of row r. */
static __device__ inline void add_squares(int first, const float square[BATCH], float *sum)
{
    for (int i = 0; i < BATCH; i++) {
        const float all = cuda_warp_sum(square[i]);
        if ((int)(threadIdx.x % 32) == first + i) *sum += all;
    }
}

/* Returns the norm's weights of inputs from number k on. */
template <int NORM> static __device__ inline cuda_floats<8> norm_of(const skinny_call &p, int k)
{
    cuda_floats<8> w = {};
    for (int i = 0; i < 2 && NORM; i++) {
        const uint4 part = fast::load_weights(p.norm + skinny_find_place(p, k) + 4 * i);
        w.v[4 * i] = __uint_as_float(part.x), w.v[4 * i + 1] = __uint_as_float(part.y);
        w.v[4 * i + 2] = __uint_as_float(part.z), w.v[4 * i + 3] = __uint_as_float(part.w);
    }
    return w;
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* A lane's sums for M * 16 channels and N * 8 rows, as mma has them. */
template <int M, int N> struct skinny_tiles {
    float d[M][N][4];
};

static __device__ inline cuda_pairs<4> half_of(const uint4 &x, int h)
{
    return h ? cuda_pairs<4>{{x.z, x.w}} : cuda_pairs<4>{{x.x, x.y}};
}

/* Adds the products of 32 inputs of a unit to sums[0], or alternately to the first two. */
template <typename F>
static __device__ inline void add_step(const skinny_call &p, const skinny_unit<F::M> &u, const uint16_t scale[F::M][2],
                                       int step, const uint4 x[F::N], skinny_tiles<F::M, F::N> *sums)
{
    uint32_t a[2][4];
    float offset[F::N][4] = {};
    for (int n = 0; n < F::N && F::FORM == CUDA_INT4; n++)
        for (int h = 0; h < 2; h++) fast::mma<bf16>(offset[n], p.offset, half_of(x[n], h).pair);
    for (int m = 0; m < F::M; m++) {
        float factor[2] = {};
        for (int h = 0; h < 2; h++) {
            low_bit_integers<F::FORM>(u.weight[m][h], step, a[h]);
            if (F::FORM == CUDA_INT4) factor[h] = __shfl_sync(0xffffffffu, cuda_low(scale[m][h]), step, 4);
        }
        for (int n = 0; n < F::N; n++) {
            float group[4];
            for (int i = 0; i < 4; i++) group[i] = offset[n][i];
            for (int h = 0; h < 2; h++) {
                const uint32_t both[4] = {a[0][2 * h], a[1][2 * h], a[0][2 * h + 1], a[1][2 * h + 1]};
                float *sum = F::FORM == CUDA_INT4 ? group : sums[F::SUMS > 1 ? h : 0].d[m][n];
                fast::mma<bf16>(sum, both, half_of(x[n], h).pair);
            }
            for (int i = 0; i < 4 && F::FORM == CUDA_INT4; i++) sums[0].d[m][n][i] += factor[i / 2] * group[i];
        }
    }
}

/* Adds the products of a chunk. x: the warp's inputs; from: the lane's weights, of which `ready` are the first. */
template <typename F>
static __device__ inline void add_chunk(const skinny_call &p, const skinny_unit<F::M> ready[F::READY],
                                        const uint4 *from, const uint16_t scale[F::DEPTH][F::M][2], const char *x,
                                        skinny_tiles<F::M, F::N> *total)
{
    const int g = (int)(threadIdx.x % 32 / 4), t = (int)(threadIdx.x % 4);
    skinny_tiles<F::M, F::N> sums[F::SUMS] = {};
#pragma unroll
    for (int j = 0; j < F::DEPTH; j++) {
        const skinny_unit<F::M> u = j < F::READY ? ready[j] : read_unit<F::M>(from, j);
#pragma unroll
        for (int step = 0; step < F::STEPS; step++) {
            const int s = j * F::STEPS + step;
            uint4 b[F::N];
            for (int n = 0; n < F::N; n++)
                b[n] = 8 * n + g < p.rows ? *(const uint4 *)(x + (8 * n + g) * X_PITCH + s * 64 + t * 16) : uint4{};
            add_step<F>(p, u, scale[j], step, b, sums + 2 * s % F::SUMS);
        }
    }
    for (int i = 0; i < F::SUMS * F::M * F::N * 4; i++)
        total->d[i / 4 / F::N % F::M][i / 4 % F::N][i % 4] +=
            sums[i / 4 / F::N / F::M].d[i / 4 / F::N % F::M][i / 4 % F::N][i % 4];
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

/* Element i of a block's y. */
typedef struct {
    int row, own, channel; /* own: its channel in the block; channel: of y, or beyond the last */
    size_t at;             /* in y */
} skinny_place;

static __device__ inline skinny_place place_in_y(const skinny_call &p, int channels, int i)
{
    const int row = (int)((unsigned)i / (unsigned)channels), own = i - row * channels,
              channel = (int)blockIdx.x * channels + own;
    return {row, own, channel, (size_t)row * (size_t)p.y_stride + (size_t)channel};
}

/* What a channel's sums are multiplied by (int8) and added to; [1]: of the channel that a gate multiplies. */
typedef struct {
    float scale[2], bias[2];
} skinny_channel;

template <bool INT8> static __device__ inline skinny_channel channel_at(const skinny_call &p, const skinny_place &y)
{
    skinny_channel c = {{1, 1}, {0, 0}};
    if (y.channel >= p.out) return c;
    for (int i = 0; i < 2; i++) {
        if (i > p.gated) continue;
        const size_t channel = (size_t)(i * p.out + y.channel);
        if (INT8) c.scale[i] = ((const float *)p.scale)[channel];
        if (p.bias)
            c.bias[i] = p.y_f32 ? ((const float *)p.bias)[channel] : cuda_float(((const bf16 *)p.bias)[channel]);
    }
    return c;
}

/* Returns what y has before, which is added to, or 0. */
static __device__ inline float addend_at(const skinny_call &p, const skinny_place &y)
{
    return p.add && y.row < p.rows && y.channel < p.out ? ((const float *)p.y)[y.at] : 0;
}

/* Stores an element of y. sums: of the first warp, [8 * N][PITCH] and the squares [8 * N]. */
template <typename F>
static __device__ inline void skinny_store(const skinny_call &p, const float *sums, const skinny_place &place,
                                           const skinny_channel &c)
{
    float sum[2] = {}, square = 0, scale = 1;
    const int first = place.row * F::PITCH + (p.gated ? place.own / 8 * CHANNELS + place.own % 8 : place.own);
#pragma unroll 4
    for (int w = 0; w < (int)(blockDim.x / 32); w++) {
        const float *of_warp = sums + w * p.warp_bytes / (int)sizeof(float);
        sum[0] += of_warp[first];
        if (p.gated) sum[1] += of_warp[first + 8];
        if (F::NORM) square += of_warp[8 * F::N * F::PITCH + place.row];
    }
    if (F::NORM) scale = cuda_inverse_deviation(square / (float)p.in, p.eps);
    float y = sum[0] * scale * c.scale[0] + c.bias[0];
    if (p.gated) y = cuda_silu(y) * (sum[1] * scale * c.scale[1] + c.bias[1]);
    if (p.y_f32)
        ((float *)p.y)[place.at] = y;
    else
        cuda_store((bf16 *)p.y + place.at, y);
}

template <typename F> static __global__ void __launch_bounds__(32 * F::WARPS, F::RESIDENT) skinny_kernel(skinny_call p)
{
    const int lane = (int)(threadIdx.x % 32);
    const int channels = p.gated ? 8 * F::M : CHANNELS * F::M;
    char *shared = (char *)cuda_shared(), *mine = shared + (int)(threadIdx.x / 32) * p.warp_bytes;
    char *inputs = mine + F::BYTES;
    uint4 *weights = (uint4 *)mine + lane;
    uint16_t scale[F::DEPTH][F::M][2];
    skinny_tiles<F::M, F::N> total = {};
    float square = 0;
    fast::start_next();
    int chunk = (int)(threadIdx.x / 32);
    copy_weights<F>(p, chunk, weights, scale);
    cuda_floats<8> norm = norm_of<F::NORM>(p, chunk * CHUNK + lane * 8);
    skinny_channel c = channel_at<F::FORM == CUDA_INT8>(p, place_in_y(p, channels, (int)threadIdx.x));
    fast::wait_for_previous();
    c.bias[0] += addend_at(p, place_in_y(p, channels, (int)threadIdx.x));
    while (chunk * CHUNK < p.in) {
        const int k = chunk * CHUNK + lane * 8;
        skinny_inputs<F::NORM> x[BATCH];
        skinny_unit<F::M> ready[F::READY];
        float first_squares[BATCH], squares[BATCH];
        skinny_load_rows<F::NORM>(p, 0, k, x);
        fast::copy_wait<0>();
        for (int j = 0; j < F::READY; j++) ready[j] = read_unit<F::M>(weights, j);
        store_rows<F::NORM>(p, 0, k, norm, x, inputs + lane * 16, first_squares);
#pragma unroll 1
        for (int r = BATCH; r < p.rows; r += BATCH) {
            skinny_load_rows<F::NORM>(p, r, k, x);
            store_rows<F::NORM>(p, r, k, norm, x, inputs + lane * 16, squares);
            if (F::NORM) add_squares(r, squares, &square);
        }
        __syncwarp();
        add_chunk<F>(p, ready, weights, scale, inputs, &total);
        if (F::NORM) add_squares(0, first_squares, &square);
        __syncwarp(); /* nobody reads the inputs any more */
        chunk += (int)(blockDim.x / 32);
        if (chunk * CHUNK >= p.in) break;
        copy_weights<F>(p, chunk, weights, scale);
        norm = norm_of<F::NORM>(p, chunk * CHUNK + lane * 8);
    }
    float *sums = (float *)mine;
    for (int i = 0; i < 4 * F::N * F::M; i++) {
        const int n = i / 4 % F::N, m = i / 4 / F::N;
        sums[(8 * n + lane % 4 * 2 + i % 2) * F::PITCH + CHANNELS * m + i % 4 / 2 * 8 + lane / 4] =
            total.d[m][n][i % 4];
    }
    if (F::NORM && lane < 8 * F::N) sums[8 * F::N * F::PITCH + lane] = square;
    __syncthreads();
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < p.rows * channels; i += (int)blockDim.x) {
        const skinny_place y = place_in_y(p, channels, i);
        if (i != (int)threadIdx.x) {
            c = channel_at<F::FORM == CUDA_INT8>(p, y);
            c.bias[0] += addend_at(p, y);
        }
        if (y.channel < p.out) skinny_store<F>(p, (const float *)shared, y, c);
    }
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

/* Takes as many warps as let two blocks fit in a multiprocessor, which keeps 1 KB of each for itself. */
template <typename F> static void launch(cuda_queue *c, skinny_call &p)
{
    p.warp_bytes = F::BYTES + p.rows * X_PITCH;
    const int room = (int)((c->device->shared_bytes - 1024) / 2) / p.warp_bytes, chunks = (p.in + CHUNK - 1) / CHUNK;
    const int most = room < 1 ? 1 : room < F::WARPS ? room : F::WARPS, turns = (chunks + most - 1) / most;
    const int warps = (chunks + turns - 1) / turns;
    cuda_large_shared(c, skinny_kernel<F>);
    cuda_launch_early(c, skinny_kernel<F>, cuda_blocks((size_t)p.out, (size_t)((p.gated ? 8 : CHANNELS) * F::M)),
                      32 * (unsigned)warps, (size_t)(warps * p.warp_bytes), p);
}

template <cuda_weights FORM> static void launch_of(cuda_queue *c, skinny_call &p)
{
    if (p.rows > 8)
        p.norm ? launch<skinny_form<FORM, 2, 1>>(c, p) : launch<skinny_form<FORM, 2, 0>>(c, p);
    else
        p.norm ? launch<skinny_form<FORM, 1, 1>>(c, p) : launch<skinny_form<FORM, 1, 0>>(c, p);
}

cudaError_t cuda_code_major(int *major)
{
    cudaFuncAttributes code = {};
    const cudaError_t error = cudaFuncGetAttributes(&code, skinny_kernel<skinny_form<CUDA_BF16, 1, 0>>);
    *major = code.ptxVersion / 10;
    return error;
}

int cuda_skinny(kern_queue *k, const kern_linear *l, const kern_skinny_job *job)
{
    cuda_queue *c = cuda_of(k);
    if (job->rows > KERN_SKINNY_ROWS || (l->form != CUDA_BF16 && l->form != CUDA_INT8 && l->form != CUDA_INT4) ||
        l->in % 8 != 0 || l->activation != KERN_LINEAR || !c->device->bf16 || !cuda_aligned(job->x) ||
        !cuda_aligned(job->norm) || job->norm_bias)
        return cuda_fused_product(c, l, job);
    if (job->rows <= 0) return KERN_SKINNY_DONE;
    skinny_call p = {};
    p.rows = job->rows, p.in = l->in, p.gated = job->gated, p.out = job->gated ? l->out / 2 : l->out;
    p.row_bytes = (unsigned)l->row_bytes;
    p.weight = (const char *)l->weight, p.scale = l->scale, p.bias = l->bias;
    p.y_stride = job->gated ? p.out : l->y_stride, p.y_f32 = l->y_type == MAR_DTYPE_F32,
    p.add = (l->flags & KERN_OUT_ADD) && !job->gated;
    p.x = job->x, p.index = cuda_stage(c, job->index, (size_t)job->rows);
    p.norm = l->unit && job->norm ? l->unit : job->norm, p.eps = job->eps, p.y = job->y;
    for (int i = 0; i < 4; i++) p.offset[i] = 0xc1c0c1c0;
    const auto launch = l->form == CUDA_BF16   ? launch_of<CUDA_BF16>
                        : l->form == CUDA_INT8 ? launch_of<CUDA_INT8>
                                               : launch_of<CUDA_INT4>;
    launch(c, p);
    return KERN_SKINNY_DONE;
}
