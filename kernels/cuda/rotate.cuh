/* Rotary position embeddings, for `rotate` (causal.cu) and for attention that rotates (cache.cu). */
#ifndef KERNELS_CUDA_ROTATE_CUH
#define KERNELS_CUDA_ROTATE_CUH

#include "kernels/cuda/vectors.h"

/* Rotates N neighbouring numbers, whole pairs of a head, by as many numbers of a row of `rope` (kernels/ops.h,
 * rotate). */
template <int N, typename T> static __device__ inline void rotate_vector(const T *from, const float *rope, T *to)
{
    cuda_floats<N> x = cuda_load<N>(from);
    const cuda_floats<N> t = cuda_load<N>(rope);
    for (int j = 0; j < N; j += 2) {
        const float a = x.v[j], b = x.v[j + 1], cosine = t.v[j], sine = t.v[j + 1];
        x.v[j] = a * cosine - b * sine;
        x.v[j + 1] = b * cosine + a * sine;
    }
    cuda_store(to, x);
}

#endif
