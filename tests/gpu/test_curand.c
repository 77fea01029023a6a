/* Our Philox against cuRAND's, bit for bit, on cuRAND's host generator, which needs no GPU. The generator takes blocks
 * of four words from the subsequences in turn. Block b of its sequence has subsequence b mod 65536 and place b / 65536
 * in it. So the word of an address is 4*((y << 32 | x) * 65536 + i): purpose 0, image i, counter words x, y. It holds
 * for i < 65536 and y < 2^14. */
#include "kernels/rng.h"
#include "tests/support/support.h"

#include <curand.h>
#include <string.h>

enum { SUBSEQUENCES = 65536 };

static void check(curandStatus_t status)
{
    if (status != CURAND_STATUS_SUCCESS) fail_msg("cuRAND: status %d", (int)status);
}

static curandGenerator_t open_generator(uint64_t seed)
{
    curandGenerator_t g;
    check(curandCreateGeneratorHost(&g, CURAND_RNG_PSEUDO_PHILOX4_32_10));
    check(curandSetPseudoRandomGeneratorSeed(g, seed));
    return g;
}

static const uint64_t seeds[] = {0, 1, 0x1234567890ABCDEF, UINT64_MAX};

/* Checks the first words, over several rounds of the subsequences. */
static void rounds(void **state)
{
    (void)state;
    enum { BLOCKS = 3 * SUBSEQUENCES };
    static uint32_t words[4 * BLOCKS];
    for (int s = 0; s < 4; s++) {
        curandGenerator_t g = open_generator(seeds[s]);
        check(curandGenerate(g, words, 4 * BLOCKS));
        for (uint32_t b = 0; b < BLOCKS; b++) {
            const uint32_t counter[4] = {b / SUBSEQUENCES, 0, b % SUBSEQUENCES, 0};
            uint32_t expected[4];
            kern_philox(seeds[s], counter, expected);
            assert_memory_equal(words + 4 * b, expected, sizeof expected);
        }
        check(curandDestroyGenerator(g));
    }
}

static void addresses(void **state)
{
    (void)state;
    const uint32_t image[] = {0, 1, 40000, SUBSEQUENCES - 1}, position[] = {0, 1, 255, 16383};
    const uint32_t step[] = {0, 1, 999, 65535}, block[] = {0, 3, 65535};
    for (int s = 0; s < 4; s++) {
        curandGenerator_t g = open_generator(seeds[s]);
        for (int i = 0; i < 4 * 4 * 4 * 3; i++) {
            const uint32_t at[4] = {image[i % 4], position[i / 4 % 4], step[i / 16 % 4], block[i / 64]};
            const uint64_t counter = (uint64_t)at[1] << 32 | at[2] << 16 | at[3];
            uint32_t words[4], expected[4];
            check(curandSetGeneratorOffset(g, 4 * (counter * SUBSEQUENCES + at[0])));
            check(curandGenerate(g, words, 4));
            kern_random_words(seeds[s], KERN_NOISE_INIT, at[0], at[1], at[2], at[3], expected);
            assert_memory_equal(words, expected, sizeof expected);
        }
        check(curandDestroyGenerator(g));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounds), cmocka_unit_test(addresses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
