/* WMMA on the CPU: a warp's fragments of 16x16x16 bf16 products summed in f32. CUDA specifies only the number of a
 * fragment's elements per lane. Here element i of lane l is entry 8 l + i of the matrix, row by row. */
#ifndef CUDAHOST_MMA_H
#define CUDAHOST_MMA_H

#include "cuda_bf16.h"

namespace nvcuda
{
namespace wmma
{

struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void> struct fragment {
    static_assert(M == 16 && N == 16 && K == 16, "the shape that is used");
    enum { num_elements = 8 };
    T x[num_elements];
};

template <typename F, typename T> static inline void fill_fragment(F &f, const T &value)
{
    for (int i = 0; i < F::num_elements; i++) f.x[i] = value;
}

static inline size_t cudahost_fragment_offset(int i, unsigned ld, bool by_rows)
{
    const unsigned at = 8 * (unsigned)cudahost_lane() + (unsigned)i, row = at / 16, column = at % 16;
    return by_rows ? (size_t)row * ld + column : (size_t)column * ld + row;
}
template <typename T> struct cudahost_by_rows {
    static const bool value = false;
};
template <> struct cudahost_by_rows<row_major> {
    static const bool value = true;
};

/* Checks the tile of a load or store: ld must be a multiple of 16 bytes, and p 32-byte aligned. */
template <typename T> static inline void cudahost_check_tile(const T *p, unsigned ld, const char *file, int line)
{
    if ((uintptr_t)p % 32 || ld * sizeof(T) % 16) cudahost_trap(file, line);
}

template <typename Use, typename T, typename Layout>
static inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout> &f, const T *p, unsigned ld, CUDAHOST_HERE)
{
    cudahost_check_tile(p, ld, file, line);
    cudahost_sync_warp(CUDAHOST_VOTE, ~0u, 0, file, line);
    for (int i = 0; i < 8; i++) f.x[i] = p[cudahost_fragment_offset(i, ld, cudahost_by_rows<Layout>::value)];
}
template <typename T>
static inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, T> &f, const T *p, unsigned ld, layout_t layout,
                                    CUDAHOST_HERE)
{
    cudahost_check_tile(p, ld, file, line);
    cudahost_sync_warp(CUDAHOST_VOTE, ~0u, 0, file, line);
    for (int i = 0; i < 8; i++) f.x[i] = p[cudahost_fragment_offset(i, ld, layout == mem_row_major)];
}
template <typename T>
static inline void store_matrix_sync(T *p, const fragment<accumulator, 16, 16, 16, T> &f, unsigned ld, layout_t layout,
                                     CUDAHOST_HERE)
{
    cudahost_check_tile(p, ld, file, line);
    cudahost_sync_warp(CUDAHOST_VOTE, ~0u, 0, file, line);
    for (int i = 0; i < 8; i++) p[cudahost_fragment_offset(i, ld, layout == mem_row_major)] = f.x[i];
}

/* Computes d = a b + c. The eight elements of a lane lie in one row. */
template <typename LayoutA, typename LayoutB>
static inline void mma_sync(fragment<accumulator, 16, 16, 16, float> &d,
                            const fragment<matrix_a, 16, 16, 16, __nv_bfloat16, LayoutA> &a,
                            const fragment<matrix_b, 16, 16, 16, __nv_bfloat16, LayoutB> &b,
                            const fragment<accumulator, 16, 16, 16, float> &c, CUDAHOST_HERE)
{
    const int row = cudahost_lane() / 2, first = cudahost_lane() % 2 * 8;
    float sum[8];
    for (int i = 0; i < 8; i++) sum[i] = c.x[i];
    for (int k = 0; k < 16; k++) {
        float mine[8], factor = 0;
        for (int i = 0; i < 8; i++) { /* fetches element k of the row of a, and this lane's columns of row k of b */
            const float x = __shfl_sync(~0u, (float)a.x[i], 2 * row + k / 8, 32, file, line);
            if (i == k % 8) factor = x;
            mine[i] = __shfl_sync(~0u, (float)b.x[i], 2 * k + first / 8, 32, file, line);
        }
        for (int i = 0; i < 8; i++) sum[i] += factor * mine[i];
    }
    for (int i = 0; i < 8; i++) d.x[i] = sum[i];
}

} // namespace wmma
} // namespace nvcuda

#endif
