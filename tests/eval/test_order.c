/* Compares orders of images with NumPy's RandomState.permutation. */
#include "tests/support/support.h"

#include "eval/order.h"

#include <stdio.h>
#include <stdlib.h>

enum { LARGE = 50000 };

TEST_CASE(against_numpy)
{
    static const struct {
        uint32_t seed;
        int n;
    } cases[] = {{0, 1}, {0, 2}, {1, 3}, {2020, 10}, {2020, 257}, {4294967295u, 1000}, {12345, 4096}};
    wt_file *f = golden_open("numbers");
    static int order[4096];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        snprintf(name, sizeof name, "order.%u.%d", cases[i].seed, cases[i].n);
        float *expected = golden_f32(f, name, cases[i].n);
        eval_permutation(cases[i].seed, cases[i].n, order);
        for (int j = 0; j < cases[i].n; j++)
            if (order[j] != (int)expected[j])
                fail_msg("%s: place %d has %d, expected %d", name, j, order[j], (int)expected[j]);
        free(expected);
    }
    wt_close(f);
}

/* Checks the order behind the Inception score of 50000 images. */
TEST_CASE(checksum)
{
    wt_file *f = golden_open("numbers");
    float *expected = golden_f32(f, "checksum.50000", 1);
    static int order[LARGE];
    eval_permutation(2020, LARGE, order);
    long value = 0;
    for (int i = 0; i < LARGE; i++) value = (value * 31 + order[i] + 1) % 16777213;
    assert_int_equal(value, (long)expected[0]);
    free(expected);
    wt_close(f);
}
