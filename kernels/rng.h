/* Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011), key = seed, counter = address.
 *
 * A number's address is (purpose, image, position, step, channel). The four words of block b serve channels 4b..4b+3.
 * The counter's layout matches cuRAND: curand_init(seed, subsequence = image, offset = 4*(counter.y << 32 | counter.x))
 * yields the same words.
 *   counter.x = step << 16 | channel/4     step < 65536, channel < 262144
 *   counter.y = purpose << 24 | position   position < 2^24
 *   counter.z, counter.w = image, low and high word */
#ifndef KERNELS_RNG_H
#define KERNELS_RNG_H

#include <math.h>
#include <stdint.h>

/* KERN_FN is a function for host and device. A GPU kernel has one copy of a KERN_CALLED_FN and calls it. A host also
 * calls it: GCC 12 dropped the last rounding to float of one that it had inlined. */
#ifdef __CUDACC__
#define KERN_FN        static __host__ __device__ inline
#define KERN_CALLED_FN static __host__ __device__ __noinline__ __attribute__((unused))
#else
#define KERN_FN        static inline
#define KERN_CALLED_FN static __attribute__((noinline, unused))
#endif

typedef enum {
    KERN_NOISE_INIT = 0,     /* x_T of a token's chain; step 0 */
    KERN_NOISE_STEP = 1,     /* eps_t of a diffusion step; step = t of the 1000-step base process */
    KERN_NOISE_ORDER = 2,    /* random order of an image's tokens; position = draw */
    KERN_NOISE_VERIFY = 3,   /* uniform of a draft's acceptance test */
    KERN_NOISE_RESIDUAL = 4, /* candidates for the replacement of a rejected draft */
    KERN_NOISE_RACE = 5,     /* times of a race among a position's tokens (kernels/discrete.h) */
} kern_noise;

/* Runs the ten Philox rounds. */
KERN_FN void kern_philox(uint64_t seed, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Computes the four words at an address; `block` is channel/4. */
KERN_FN void kern_random_words(uint64_t seed, kern_noise purpose, uint64_t image, uint32_t position, uint32_t step,
                               uint32_t block, uint32_t out[4])
{
    const uint32_t counter[4] = {step << 16 | block, (uint32_t)purpose << 24 | position, (uint32_t)image,
                                 (uint32_t)(image >> 32)};
    kern_philox(seed, counter, out);
}

/* Computes two standard normals from two words by Box-Muller in floats, to 1e-6 of the exact ones: most GPUs have few
 * units for doubles. The word of the radius counts from its nearer end, that of the angle from the nearest quarter
 * turn, so no digits are lost. */
KERN_CALLED_FN void kern_normal2_float(const uint32_t words[2], float out[2])
{
    const uint32_t w = words[0], quarters = (words[1] + (1u << 29)) >> 30;
    const float log_u = w >> 31 ? log1pf(-((float)~w + 0.5f) * 0x1p-32f) : logf(((float)w + 0.5f) * 0x1p-32f);
    const float t = ((float)(int32_t)(words[1] - (quarters << 30)) + 0.5f) * 0x1p-31f, q = t * t; /* half turns */
    /* Taylor's series of sin(pi t) and cos(pi t), |t| <= 1/4 */
    const float sine =
        t * (3.14159265f + q * (-5.16771278f + q * (2.55016404f + q * (-0.59926453f + q * 0.08214589f))));
    const float cosine =
        1 + q * (-4.93480220f + q * (4.05871213f + q * (-1.33526277f + q * (0.23533063f - q * 0.02580689f))));
    const float radius = sqrtf(-2 * log_u), sign = quarters >> 1 & 1 ? -radius : radius;
    out[0] = sign * (quarters & 1 ? -sine : cosine);
    out[1] = sign * (quarters & 1 ? cosine : sine);
}

/* The same in doubles, for a host. */
KERN_CALLED_FN void kern_normal2(const uint32_t words[2], float out[2])
{
    /* (w + 1/2) / 2^32 lies in (0, 1): the logarithm is finite and both tails are reached alike. */
    const double unit = 1.0 / 4294967296.0;
    const double radius = sqrt(-2.0 * log((words[0] + 0.5) * unit));
    const double turn = (words[1] + 0.5) * unit;
    const double angle = 6.283185307179586476925 * turn;
    out[0] = (float)(radius * cos(angle));
    out[1] = (float)(radius * sin(angle));
}

/* Computes four standard normals from four words. */
KERN_FN void kern_normal4(const uint32_t words[4], float out[4])
{
#if defined(__CUDA_ARCH__) || defined(MAR_CUDAHOST)
    for (int i = 0; i < 4; i += 2) kern_normal2_float(words + i, out + i);
#else
    for (int i = 0; i < 4; i += 2) kern_normal2(words + i, out + i);
#endif
}

/* Writes a uniformly random permutation of 0..n-1 for one image to order int [n]: Fisher-Yates. */
void kern_random_order(uint64_t seed, uint64_t image, int n, int *order);

#endif
