/* The table of LANTERN's neighbours. */
#include "specdec/neighbours.h"
#include "kernels/rng.h"
#include "tests/support/support.h"

#include <math.h>
#include <string.h>

/* Compares the table with a sort of all distances. Entries are whole numbers, so that many distances are equal. */
TEST_CASE(neighbour_table)
{
    enum { SIZE = 150, DIM = 3 };
    float codebook[SIZE * DIM];
    static int table[SIZE * SIZE];
    for (int i = 0; i < SIZE * DIM; i++) {
        uint32_t w[4];
        kern_random_words(3, KERN_NOISE_INIT, (uint64_t)i, 0, 0, 0, w);
        codebook[i] = (float)((int)(w[0] >> 29) - 3);
    }
    memset(codebook + 5 * DIM, 0, DIM * sizeof *codebook);
    memcpy(codebook + 7 * DIM, codebook + 3 * DIM, DIM * sizeof *codebook); /* twins: each must be its own nearest */
    for (int metric = SPEC_METRIC_L2; metric <= SPEC_METRIC_COSINE; metric++)
        for (int k = 1; k <= SIZE; k += k == 1 ? 19 : 130) {
            assert_int_equal(spec_neighbour_table(codebook, SIZE, DIM, k, (spec_metric)metric, table), 0);
            for (int x = 0; x < SIZE; x++) {
                double distance[SIZE], last = -1;
                char listed[SIZE] = {0};
                for (int y = 0; y < SIZE; y++) {
                    double dot = 0, xx = 0, yy = 0;
                    for (int i = 0; i < DIM; i++) {
                        const double a = codebook[x * DIM + i], b = codebook[y * DIM + i];
                        dot += a * b, xx += a * a, yy += b * b;
                    }
                    distance[y] = xx - 2 * dot + yy;
                    if (metric == SPEC_METRIC_COSINE) /* 2 * (1 - cosine) */
                        distance[y] = xx > 0 && yy > 0 ? 2 - 2 * dot / sqrt(xx * yy) : 2;
                    if (distance[y] < 1e-12) distance[y] = 0;
                }
                for (int i = 0; i < k; i++) {
                    const int y = table[x * k + i];
                    assert_true(i > 0 || y == x);
                    assert_false(listed[y]);
                    listed[y] = 1;
                    if (i == 0) continue;
                    if (!(distance[y] >= last - 1e-5))
                        fail_msg("metric %d, token %d: number %d: %.9g after %.9g", metric, x, i, distance[y], last);
                    if (metric == SPEC_METRIC_L2 && i > 1 && distance[y] == last) assert_true(y > table[x * k + i - 1]);
                    last = distance[y];
                }
                for (int y = 0; y < SIZE; y++) assert_true(listed[y] || distance[y] >= last - 1e-5);
            }
        }
    assert_int_equal(table[7 * SIZE + 1], 3);
}
