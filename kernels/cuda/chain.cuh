/* A step of the chain in kernels whose blocks each have a copy of the states, and exchange the head's outputs as words
 * (resident.cu, streamed.cu). */
#ifndef KERNELS_CUDA_CHAIN_CUH
#define KERNELS_CUDA_CHAIN_CUH

#include "kernels/cuda/persistent_exchange.cuh"

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

/* Takes a step of four channels of a token, once the outputs have come: x, and a solver's last x0. The noise is made
 * before the wait. out: words [rows][2C] uint2 of this number. A: arguments with `arrivals`. */
template <typename A>
static __device__ __forceinline__ void chain_step(const A &a, const kern_chain_job &j, int step, int channels,
                                                  int token, int channel, const uint4 *out, unsigned number, float *x,
                                                  float *x0)
{
    float noise[4] = {}, of[3][4]; /* prediction, variance fraction, prediction without condition */
    const kern_chain_coef coef = j.coef ? j.coef[step] : kern_chain_coef{};
    const kern_ode_coef ode = j.ode ? j.ode[step] : kern_ode_coef{};
    if (coef.noise != 0) cuda_step_noise(j, step, token, channel, noise);
    const uint4 *at = out + (token * 2 * channels + channel) / 2;
    const uint4 *uncond = at + (j.conditions - 1) * j.tokens * channels;
    uint4 w[4][2]; /* prediction and variance fraction, also without condition */
    unsigned late, polls = 0;
    do {
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i / 2][i % 2] = fast::load_two_words((i < 4 ? at : uncond) + i / 2 % 2 * (channels / 2) + i % 2);
        late = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) late |= (w[i / 2][i % 2].y ^ number) | (w[i / 2][i % 2].w ^ number);
    } while (!persistent_polled(a, late != 0, &polls));
#pragma unroll
    for (int n = 0; n < 12; n++)
        of[n / 4][n % 4] = __uint_as_float(n % 2 ? w[n / 4][n % 4 / 2].z : w[n / 4][n % 4 / 2].x);
    const float cfg = j.conditions == 2 ? j.cfg[token] : 0;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float guided = j.conditions == 2 ? kern_chain_eps(of[0][n], of[2][n], cfg) : of[0][n];
        x[n] = j.ode ? kern_chain_ode_next(&ode, x[n], guided, &x0[n])
                     : kern_chain_next(&coef, x[n], guided, of[1][n], noise[n]);
    }
}

#endif

#endif
