/* Lossless methods with real random numbers. Checks 60 000 sequences of each from a toy model against its distribution,
 * several at a time. The seeds are fixed. At p < 10^-6 a correct sampler would fail once in 10^6 choices of the seed.
 * test_laws.c shows what the comparison detects. */
#include "tests/support/discrete.h"
#include "tests/support/statistics.h"
#include "tests/support/support.h"

#include <stdlib.h>

enum { SIZE = 3, LENGTH = 5, SEQUENCES = 60000, BATCH = 200 };

/* Levels of 2, 4 and 4 drafts; the last level has single children. */
static const int tree[] = {-1, -1, 0, 0, 1, 1, 2, 3, 4, 5};

static const struct {
    const char *title, *method;
    double parameter[4];
    int length, is_tree, top, total, zeros;
    spec_first first;
    double least_rate; /* tokens a round */
} setups[] = {
    {.title = "plain"},
    {.title = "chain", .method = "vanilla", .length = 3, .least_rate = 1.5},
    {.title = "tree", .method = "vanilla", .length = 3, .is_tree = 1, .least_rate = 1.8},
    {.title = "cut tree", .method = "vanilla", .length = 2, .is_tree = 1, .least_rate = 1.5},
    {.title = "zeros", .method = "vanilla", .length = 3, .zeros = 1, .least_rate = 1.2},
    {.title = "dynamic tree", .method = "vanilla", .length = 3, .top = 2, .total = 6, .least_rate = 1.8},
    {.title = "unrelaxed", .method = "uniform-rsd", .parameter = {1}, .length = 3, .is_tree = 1, .least_rate = 1.8},
    {.title = "unrelaxed lantern",
     .method = "lantern",
     .parameter = {3, 0},
     .length = 3,
     .is_tree = 1,
     .least_rate = 1.8},
    {.title = "sjd", .method = "sjd", .length = 4, .least_rate = 1.2},
    {.title = "sjd above", .method = "sjd", .length = 4, .first = SPEC_FIRST_ABOVE, .least_rate = 1.2},
    {.title = "sjd-pac AC", .method = "sjd-pac", .parameter = {1, 0, 1}, .length = 4, .least_rate = 1.2},
    {.title = "sjd-pac PD", .method = "sjd-pac", .parameter = {3, 3, 0}, .length = 14, .least_rate = 1.2},
    {.title = "sjd-pac", .method = "sjd-pac", .parameter = {3, 3, 1}, .length = 14, .least_rate = 1.3},
    {.title = "scd", .method = "scd", .parameter = {1, 0}, .length = 4, .least_rate = 1.2},
    {.title = "scd above",
     .method = "scd",
     .parameter = {1, 0},
     .length = 4,
     .first = SPEC_FIRST_ABOVE,
     .least_rate = 1.2},
    {.title = "scd tree", .method = "scd", .parameter = {3, 3}, .length = 14, .zeros = 1, .least_rate = 1.2},
    {.title = "sjd-pac wide", .method = "sjd-pac", .parameter = {2, 4, 1}, .length = 15, .zeros = 1, .least_rate = 1.2},
};

TEST_CASE(sequences_have_the_law)
{
    int near[SIZE * SIZE];
    circle(SIZE, near);
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        toy *p = toy_create(SIZE, LENGTH, 11, 1, NULL, setups[i].zeros), *q = toy_create(SIZE, LENGTH, 12, 1, p, 0);
        const spec_model target = {SIZE, p, toy_laws, NULL}, draft = {SIZE, q, toy_laws, NULL};
        const spec_method *m = setups[i].method ? spec_method_find(setups[i].method) : NULL;
        const spec_sampler_options o = {.method = m,
                                        .parameter = setups[i].parameter,
                                        .length = setups[i].length,
                                        .parent = setups[i].is_tree ? tree : NULL,
                                        .count = setups[i].is_tree ? 10 : 0,
                                        .top = setups[i].top,
                                        .total = setups[i].total,
                                        .first = setups[i].first,
                                        .side = 2,
                                        .neighbours = near,
                                        .neighbour_count = SIZE};
        const int cells = (int)toy_sequences(p, LENGTH);
        long *count = calloc((size_t)cells, sizeof *count), rounds = 0;
        double *probability = malloc((size_t)cells * sizeof *probability);
        sampling g;
        sampling_open(&g, 1);
        g.start.seed = 7;
        sampling_create(&g, &target, m && !m->stale ? &draft : NULL, &o, BATCH, LENGTH);
        for (int n = 0; n < SEQUENCES; n += BATCH) {
            sampling_run(&g, (uint64_t)n, BATCH, LENGTH);
            for (int s = 0; s < BATCH; s++) count[toy_number(p, spec_sampler_tokens(g.s, s), LENGTH)]++;
            rounds += spec_sampler_get_stats(g.s)->rounds;
        }
        toy_probabilities(p, LENGTH, probability);
        const double p_value = stat_chi2_p(count, probability, cells),
                     rate = (double)SEQUENCES * LENGTH / (double)rounds;
        if (!(p_value > 1e-6)) fail_msg("%s: p = %g", setups[i].title, p_value);
        if (!(rate > setups[i].least_rate)) fail_msg("%s: %g tokens a round", setups[i].title, rate);
        free(count), free(probability);
        sampling_close(&g);
        toy_free(p), toy_free(q);
    }
}
