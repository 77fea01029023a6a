#include "kernels/rng.h"

/* Returns number `draw` of an image's order stream, uniform on 0..n-1. Multiplying a 64-bit word by n leaves a bias
 * below n / 2^64. */
static uint32_t order_draw(uint64_t seed, uint64_t image, uint32_t draw, uint32_t n)
{
    uint32_t w[4];
    kern_random_words(seed, KERN_NOISE_ORDER, image, draw, 0, 0, w);
    uint64_t word = (uint64_t)w[0] << 32 | w[1];
    return (uint32_t)(((unsigned __int128)word * n) >> 64);
}

void kern_random_order(uint64_t seed, uint64_t image, int n, int *order)
{
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)order_draw(seed, image, (uint32_t)i, (uint32_t)i + 1);
        int swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}
