/* Vectors of neighbouring elements, and sums over a warp or a block, for row kernels. Included through cuda.h. */
#ifndef KERNELS_CUDA_VECTORS_H
#define KERNELS_CUDA_VECTORS_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

typedef __nv_bfloat16 bf16; /* operands of the models */
typedef __half f16;         /* operands of the diffusion head */

/* Division by a kernel argument as multiplication by its inverse: exact for 0 <= x < 2^31. GPUs have no integer
 * division instruction. */
typedef struct {
    int by; /* 1 or more */
    unsigned inverse, shift;
} cuda_divisor;

static inline cuda_divisor cuda_divide_by(int by)
{
    cuda_divisor d = {by, 0, 0};
    while (1ull << d.shift < (unsigned)by) d.shift++;
    d.inverse = (unsigned)((((1ull << d.shift) - (unsigned)by) << 32) / (unsigned)by + 1);
    return d;
}

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

static __device__ inline int cuda_quotient(int x, cuda_divisor d)
{
    return (int)((__umulhi((unsigned)x, d.inverse) + (unsigned)x) >> d.shift);
}

/* Convert elements of an array, float, bf16 or f16. */
template <typename T> static __device__ inline float cuda_float(T x)
{
    return (float)x;
}
template <typename T> static __device__ inline void cuda_store(T *p, float x)
{
    *p = (T)x;
}

/* Two bf16 or f16 in a word, the lower index in the low half. */
static __device__ inline float cuda_low(uint32_t two)
{
    return __uint_as_float(two << 16);
}
static __device__ inline float cuda_high(uint32_t two)
{
    return __uint_as_float(two & 0xffff0000u);
}
template <typename T> static __device__ inline float2 cuda_two(uint32_t two);
template <> __device__ inline float2 cuda_two<bf16>(uint32_t two)
{
    return make_float2(cuda_low(two), cuda_high(two));
}
template <> __device__ inline float2 cuda_two<f16>(uint32_t two)
{
    __half2 x;
    memcpy(&x, &two, sizeof x);
    return __half22float2(x);
}
template <typename T = bf16> static __device__ inline uint32_t cuda_pack(float low, float high);
template <> __device__ inline uint32_t cuda_pack<bf16>(float low, float high)
{
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &two, sizeof bits);
    return bits;
}
template <> __device__ inline uint32_t cuda_pack<f16>(float low, float high)
{
    const __half2 two = __floats2half2_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &two, sizeof bits);
    return bits;
}

/* N neighbouring elements of an array as floats. Arrays are aligned to the vector, or to 16 bytes if that is less. A
 * vector moves by the fewest accesses of up to 16 bytes. */
template <int N> struct alignas(N < 4 ? 4 * N : 16) cuda_floats {
    float v[N];
};
/* The same for bf16 or f16 in memory: N/2 pairs, the lower index in the low half. */
template <int N> struct alignas(2 * N) cuda_pairs {
    uint32_t pair[N / 2];
};
/* Either of them: N elements as they are in an array of T. */
template <typename T, int N>
using cuda_stored = std::conditional_t<std::is_same_v<T, float>, cuda_floats<N>, cuda_pairs<N>>;

template <typename T, int N> static __device__ inline cuda_floats<N> cuda_unpack(const cuda_pairs<N> &p)
{
    cuda_floats<N> x;
    for (int i = 0; i < N / 2; i++) {
        const float2 two = cuda_two<T>(p.pair[i]);
        x.v[2 * i] = two.x;
        x.v[2 * i + 1] = two.y;
    }
    return x;
}

template <typename T, int N> static __device__ inline cuda_floats<N> cuda_unpack(const cuda_floats<N> &x)
{
    return x;
}

template <int N, typename T> static __device__ inline cuda_floats<N> cuda_load(const T *p)
{
    if constexpr (N == 1)
        return {{cuda_float(*p)}};
    else
        return cuda_unpack<T>(*(const cuda_stored<T, N> *)p);
}

/* Streaming loads of eight elements read once, so that other data stays in the L2 cache. */
static __device__ inline cuda_floats<8> cuda_load_once(const float *p)
{
    const float4 a = __ldcs((const float4 *)p), b = __ldcs((const float4 *)p + 1);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
template <typename T> static __device__ inline cuda_floats<8> cuda_load_once(const T *p)
{
    const uint4 a = __ldcs((const uint4 *)p);
    return cuda_unpack<T>(cuda_pairs<8>{{a.x, a.y, a.z, a.w}});
}

template <int N, typename T> static __device__ inline void cuda_store(T *p, const cuda_floats<N> &x)
{
    if constexpr (N == 1) {
        cuda_store(p, x.v[0]);
    } else if constexpr (std::is_same_v<T, float>) {
        *(cuda_floats<N> *)p = x;
    } else {
        cuda_pairs<N> packed;
        for (int i = 0; i < N / 2; i++) packed.pair[i] = cuda_pack<T>(x.v[2 * i], x.v[2 * i + 1]);
        *(cuda_pairs<N> *)p = packed;
    }
}

static __device__ inline float cuda_silu(float x)
{
    return x / (1 + expf(-x));
}
/* The same for a result of 16 bits: approximations of 22 suffice. */
static __device__ inline float cuda_fast_silu(float x)
{
    return __fdividef(x, 1 + __expf(-x));
}

static __device__ inline float cuda_gelu_tanh(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static __device__ inline float cuda_gelu(float x)
{
    return 0.5f * x * (1 + erff(x * 0.70710678f));
}

static __device__ inline float cuda_activated(float x, kern_activation activation)
{
    if (activation == KERN_LINEAR) return x;
    return activation == KERN_SILU ? cuda_silu(x) : activation == KERN_GELU ? cuda_gelu(x) : cuda_gelu_tanh(x);
}

static __device__ inline float cuda_dot(const float4 &x, const float4 &y)
{
    return (x.x * y.x + x.y * y.y) + (x.z * y.z + x.w * y.w);
}

/* Returns the sum over the warp, the same in every lane. */
template <typename T> static __device__ inline T cuda_warp_sum(T x)
{
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
/* Returns the largest number of the warp, ignoring NaNs. */
static __device__ inline float cuda_warp_max(float x)
{
    for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
/* Returns the sum over a quad, four neighbouring lanes. */
static __device__ inline float cuda_quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Returns the sum over a block of WARPS warps (0: of blockDim.x / 32), the same in every thread and in every run. All
 * threads of the block call it. `part` float [warps] is in shared memory; two calls may share it only with a block
 * barrier between them. */
template <int WARPS = 0> static __device__ inline float cuda_block_sum(float x, float *part)
{
    const unsigned warps = WARPS ? (unsigned)WARPS : blockDim.x / 32;
    x = cuda_warp_sum(x);
    if (WARPS == 1) return x;
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    for (unsigned w = 0; w < warps; w++) sum += part[w];
    return sum;
}

#endif

#endif
