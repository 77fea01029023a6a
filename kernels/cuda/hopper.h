/* PTX that only GPUs of compute capability 9.0 have, where the compiler makes code for 9.0a: barriers in shared memory
 * that count bytes, copies of tiles by the tensor memory accelerator, and products of a warpgroup. As in ptx.h callers
 * use `fast::`. Only the products have plain twins: CUDA C has nothing like the others. On the host all are the shim's
 * (tests/cudahost). */
#ifndef KERNELS_CUDA_HOPPER_H
#define KERNELS_CUDA_HOPPER_H

#include "kernels/cuda/ptx.h"

/* Returns 1 if the device runs these kernels; else the error is CUDA_NEEDS_HOPPER. */
#if defined(MAR_CUDAHOST) || defined(MAR_CUDA_90A) /* cmake/cuda.cmake */
enum { CUDA_HAS_90A = 1 };
#else
enum { CUDA_HAS_90A = 0 };
#endif
#define CUDA_NEEDS_HOPPER "it needs a GPU of compute capability 9.0, and code for 9.0a"
static inline int cuda_runs_hopper(const cuda_device *d)
{
    return CUDA_HAS_90A && d->major == 9;
}

/* Kernels of this header have a body only where it is 1. */
#if defined(MAR_CUDAHOST) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CUDA_HOPPER 1
#else
#define CUDA_HOPPER 0
#endif

/* A tile has rows of 64 bf16, which are 128 bytes, and begins at a multiple of 1024 bytes. Piece p of row r, 16 bytes,
 * is where piece p ^ r % 8 would be without it (CU_TENSOR_MAP_SWIZZLE_128B), so 8 rows' pieces of one number are in
 * different banks. */
enum { TILE_WIDTH = 64, TILE_PITCH = 128, TILE_ALIGNMENT = 1024 };
static __device__ inline const void *tile_piece(const void *tile, int row, int piece)
{
    return (const char *)tile + row * TILE_PITCH + (piece ^ row % 8) * 16;
}

namespace plain
{

/* d += A B^T for the 128 threads of a warpgroup: wgmma.m64nNk16 in bf16 with f32 sums. A: 64 rows of 16 numbers, warp w
 * having rows 16 w .. 16 w + 15 as mma has them in a[4]. B: numbers k .. k + 15 of the tile's N rows. d[4 n + i] is
 * what mma has in d[i] for columns 8 n .. 8 n + 7. It computes while the threads go on: between warpgroup_begin and
 * warpgroup_wait nobody touches a and d, and the tile stays. */
template <int N>
static __device__ inline void warpgroup_mma(float d[N / 2], const uint32_t a[4], const void *tile, int k)
{
    const int lane = (int)(threadIdx.x % 32), t = lane % 4;
    uint32_t row[4][4]; /* of each lane of the quad */
    for (int quad = 0; quad < 4; quad++)
        for (int i = 0; i < 4; i++) row[quad][i] = __shfl_sync(0xffffffffu, a[i], lane - t + quad);
    for (int n = 0; n < N / 8; n++)
        for (int j = 0; j < 2; j++)
            for (int half = 0; half < 2; half++) {
                const uint4 piece = *(const uint4 *)tile_piece(tile, 8 * n + 2 * t + j, k / 8 + half);
                const uint32_t column[4] = {piece.x, piece.y, piece.z, piece.w};
                for (int quad = 0; quad < 4; quad++)
                    for (int i = 0; i < 2; i++) {
                        const float2 x = cuda_two<bf16>(row[quad][2 * half + i]), y = cuda_two<bf16>(column[quad]);
                        d[4 * n + 2 * i + j] += x.x * y.x;
                        d[4 * n + 2 * i + j] += x.y * y.y;
                    }
            }
}
/* The same with A in shared memory, numbers k .. k + 15 of a tile of 64 rows. If !add, d is overwritten. */
template <int N>
static __device__ inline void warpgroup_mma_tiles(float d[N / 2], const void *x, const void *tile, int k, int add)
{
    const int lane = (int)(threadIdx.x % 32), row = (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
    uint32_t a[4];
    for (int i = 0; i < 4; i++) a[i] = ((const uint32_t *)tile_piece(x, row + i % 2 * 8, k / 8 + i / 2))[lane % 4];
    for (int i = 0; i < N / 2 && !add; i++) d[i] = 0;
    warpgroup_mma<N>(d, a, tile, k);
}
/* d += A B: B's 16 rows are rows k .. k + 15 of the tile, of 64 numbers. */
static __device__ inline void warpgroup_mma_rows(float d[TILE_WIDTH / 2], const uint32_t a[4], const void *tile, int k)
{
    const int lane = (int)(threadIdx.x % 32), t = lane % 4;
    for (int quad = 0; quad < 4; quad++)
        for (int i = 0; i < 4; i++) {
            const float2 x = cuda_two<bf16>(__shfl_sync(0xffffffffu, a[i], lane - t + quad));
            for (int n = 0; n < TILE_WIDTH / 8; n++)
                for (int j = 0; j < 2; j++) {
                    const int row = k + 2 * quad + i / 2 * 8;
                    const bf16 *first = (const bf16 *)tile_piece(tile, row, n) + 2 * t + j;
                    const bf16 *second = (const bf16 *)tile_piece(tile, row + 1, n) + 2 * t + j;
                    d[4 * n + i % 2 * 2 + j] += x.x * cuda_float(*first) + x.y * cuda_float(*second);
                }
        }
}

} // namespace plain

#ifdef MAR_CUDAHOST
namespace fast
{
static inline void barrier_create(uint64_t *barrier, unsigned arrivals)
{
    cudahost_barrier_create(barrier, arrivals);
}
static inline void barriers_created()
{
    cudahost_barriers_created();
}
static inline void barrier_expect(uint64_t *barrier, unsigned bytes)
{
    cudahost_barrier_arrive(barrier, bytes);
}
static inline void barrier_arrive(uint64_t *barrier, unsigned rank)
{
    cudahost_barrier_arrive((uint64_t *)cudahost_cluster_map(barrier, rank, __FILE__, __LINE__), 0);
}
static inline void barrier_wait(uint64_t *barrier, unsigned parity)
{
    cudahost_barrier_wait(barrier, parity);
}
static inline void tile_copy(void *shared, const CUtensorMap *map, int column, int row, uint64_t *barrier,
                             unsigned blocks)
{
    cudahost_tile_copy(shared, map, column, row, barrier, blocks);
}
static inline void tile_prefetch(const CUtensorMap *, int, int) {}
static inline void warpgroup_begin()
{
    cudahost_multiply_begin();
}
/* It multiplies at the wait, as late as the instruction may, with the result of the twin. */
template <int N> static inline void warpgroup_mma(float d[N / 2], const uint32_t a[4], const void *tile, int k)
{
    cudahost_multiply_later(CUDAHOST_COLUMNS, N, d, a, NULL, tile, k, 1);
}
template <int N> static inline void warpgroup_mma_tiles(float d[N / 2], const void *x, const void *tile, int k, int add)
{
    cudahost_multiply_later(CUDAHOST_COLUMNS, N, d, NULL, x, tile, k, add);
}
static inline void warpgroup_mma_rows(float d[TILE_WIDTH / 2], const uint32_t a[4], const void *tile, int k)
{
    cudahost_multiply_later(CUDAHOST_ROWS, TILE_WIDTH, d, a, NULL, tile, k, 1);
}
static inline void warpgroup_end()
{
    cudahost_multiply_end();
}
static inline void tiles_written()
{
    cudahost_tiles_written();
}
template <int N> static inline void warpgroup_wait(float (&)[N])
{
    cudahost_multiply_now();
}
template <int N> static inline void warpgroup_wait(float (&)[N], uint32_t (&)[4][4])
{
    cudahost_multiply_now();
}
} // namespace fast
#else
namespace ptx
{

static __device__ inline unsigned shared_address(const void *shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

/* A barrier of a block's shared memory has phases of parity 0, 1, 0, ... Each ends when `arrivals` have come and as
 * many bytes as they expect. One thread creates the barriers and calls barriers_created; the cluster's threads meet
 * before they use them. barrier_expect arrives, and expects bytes, which may have come before; barrier_arrive arrives
 * in block `rank` of the cluster. Behind barrier_wait for the phase of a parity the bytes have come, and what threads
 * of this block did before they arrived precedes; of another block only that it has read its own shared memory, whose
 * order takes no fence. It returns at once where that phase has ended and the next has not. */
static __device__ inline void barrier_create(uint64_t *barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
static __device__ inline void barriers_created()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ inline void barrier_expect(uint64_t *barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
static __device__ inline void barrier_arrive(uint64_t *barrier, unsigned rank)
{
    asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(shared_address(barrier)),
                 "r"(rank)
                 : "memory");
}
static __device__ inline void barrier_wait(uint64_t *barrier, unsigned parity)
{
    unsigned ended;
    do
        asm volatile("{\n\t.reg .pred ended;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, ended;\n\t}"
                     : "=r"(ended)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    while (!ended);
}

/* Starts to copy the map's box of numbers from (row, column) on to a tile at `shared` in each block of the cluster
 * whose bit is set; what lies outside the matrix comes as 0. Each of these blocks' `barrier` counts the box's bytes. */
static __device__ inline void tile_copy(void *shared, const CUtensorMap *map, int column, int row, uint64_t *barrier,
                                        unsigned blocks)
{
    if (blocks & (blocks - 1))
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
                     "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"((unsigned short)blocks)
                     : "memory");
    else /* this block only */
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(shared)),
                     "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
                     : "memory");
}
/* Prefetches a box into the L2 cache. */
static __device__ inline void tile_prefetch(const CUtensorMap *map, int column, int row)
{
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(column), "r"(row)
                 : "memory");
}

/* Describes a tile for wgmma, from byte `offset` on: its address in 16 bytes, of which 14 bits have room for all shared
 * memory, 1024 bytes from 8 rows to the next 8, and how its pieces lie. */
static __device__ inline uint64_t tile_descriptor(const void *tile, int offset)
{
    const uint64_t whole = (uint64_t)(shared_address(tile) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
    return whole + (uint64_t)(offset / 16);
}
/* A thread's own stores and copies to tiles precede products behind the next barrier. */
static __device__ inline void tiles_written()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
static __device__ inline void warpgroup_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int N>
static __device__ inline void warpgroup_mma(float d[N / 2], const uint32_t a[4], const void *tile, int k);
#define SUMS_8(i)                                                                                                      \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define SUMS_16(i) SUMS_8(i), SUMS_8(i + 8)
#define NAMES_32                                                                                                       \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                           \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_48 NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_64 NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PTX_WARPGROUP_MMA(N, name, sums, rest, ...)                                                                    \
    template <> __device__ inline void warpgroup_mma<N>(float d[N / 2], const uint32_t a[4], const void *tile, int k)  \
    {                                                                                                                  \
        asm volatile("{\n\t.reg .pred add;\n\tsetp.eq.b32 add, 0, 0;\n\t"                                              \
                     "wgmma.mma_async.sync.aligned.m64n" name "k16.f32.bf16.bf16 {" sums "}, " rest                    \
                     ", add, 1, 1, 0;\n\t}"                                                                            \
                     : __VA_ARGS__                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile_descriptor(tile, k * 2)));                 \
    }
/* A tile's rows are 128 bytes either way, and 8 of them 1024: rows of B are its columns turned. */
static __device__ inline void warpgroup_mma_rows(float d[TILE_WIDTH / 2], const uint32_t a[4], const void *tile, int k)
{
    asm volatile("{\n\t.reg .pred add;\n\tsetp.eq.b32 add, 0, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, {%32,%33,%34,%35}, %36"
                 ", add, 1, 1, 1;\n\t}"
                 : SUMS_16(0), SUMS_16(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile_descriptor(tile, k * TILE_PITCH)));
}
template <int N>
static __device__ inline void warpgroup_mma_tiles(float d[N / 2], const void *x, const void *tile, int k, int add)
{
    static_assert(N == 64, "a product that is used");
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, %32, %33, add, 1, 1, 0, 0;\n\t}"
                 : SUMS_16(0), SUMS_16(16)
                 : "l"(tile_descriptor(x, k * 2)), "l"(tile_descriptor(tile, k * 2)), "r"(add));
}
PTX_WARPGROUP_MMA(64, "64", NAMES_32, "{%32,%33,%34,%35}, %36", SUMS_16(0), SUMS_16(16))
PTX_WARPGROUP_MMA(96, "96", NAMES_48, "{%48,%49,%50,%51}, %52", SUMS_16(0), SUMS_16(16), SUMS_16(32))
PTX_WARPGROUP_MMA(128, "128", NAMES_64, "{%64,%65,%66,%67}, %68", SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48))
#undef PTX_WARPGROUP_MMA
#undef NAMES_64
#undef NAMES_48
#undef NAMES_32
#undef SUMS_16
#undef SUMS_8
static __device__ inline void warpgroup_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits for all products. The compiler keeps d and a until here, and reads d behind it. */
template <int N> static __device__ inline void warpgroup_wait(float (&d)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> static __device__ inline void warpgroup_wait(float (&d)[N], uint32_t (&a)[4][4])
{
    warpgroup_wait(d);
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

} // namespace ptx
#endif

#endif
