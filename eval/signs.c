#include "eval/signs.h"

#include "kernels/rng.h"

#include <stdint.h>
#include <stdlib.h>

float *eval_signs(int permutations, int n)
{
    static const uint64_t seed = 0x6669646c; /* fixed: reports are reproducible */
    float *signs = malloc((size_t)(permutations + 1) * (size_t)n * sizeof *signs);
    if (!signs) return NULL;
    for (int i = 0; i < n; i++) signs[i] = 1;
    for (int k = 1; k <= permutations; k++)
        for (int i = 0; i < n; i += 128) {
            const uint32_t counter[4] = {(uint32_t)i / 128, (uint32_t)k, 0, 0};
            uint32_t bits[4];
            kern_philox(seed, counter, bits);
            for (int j = 0; j < 128 && i + j < n; j++)
                signs[(size_t)k * (size_t)n + (size_t)(i + j)] = bits[j / 32] >> j % 32 & 1 ? -1 : 1;
        }
    return signs;
}
