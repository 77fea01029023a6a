/* Tests that exact accelerators have the distribution of plain sampling on a small Harmon whose towers and head are the
 * demo's (tests/support/harmon.h): a head that has learnt its noise, so that drafts are accepted and replaced. */
#include "tests/support/brief.h"
#include "tests/support/demo.h"
#include "tests/support/harmon.h"
#include "tests/support/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPTS = 3, CHANNELS = DEMO_CHANNELS, TOKENS = DEMO_TOKENS };
static const char *const prompts[PROMPTS] = {"a corgi in the snow", "two cats", "a bold seven"};

static const double rare = 0.002;

TEST_GROUP(harmon_set_up, harmon_tear_down)

static harmon open_trained(const harmon_files *f)
{
    harmon h = harmon_open(f, HARMON_TRAINED, MAR_DTYPE_F32, NULL, prompts, PROMPTS);
    harmon_load_draft(&h, f, HARMON_TRAINED_DRAFT);
    return h;
}

static const struct {
    const char *options;
    int draft;
} runs[] = {
    {"num_iter 8, num_sampling_steps 12, cfg 3, head_spec 4", 0},
    {"num_iter 16, num_sampling_steps 12, cfg 1, spec path, gamma 8, head_spec 4", 0},
    {"num_iter 8, num_sampling_steps 12, cfg 1, spec path, gamma 4, context full", 1},
    {"num_iter 8, num_sampling_steps 12, cfg 1, head_spec 4", 1},
    {"num_iter 8, num_sampling_steps 12, cfg 3, spec path, gamma 4", 0},
};
enum { RUNS = test_all ? sizeof runs / sizeof *runs : 3 };

/* A sanitizer makes an image ten times slower. */
enum { BATCH = 16, IMAGES = test_brief ? 16 : test_all ? 480 : 96, MOMENTS = 2 * TOKENS + CHANNELS + 2 };

/* Makes images of the prompts in turn: tokens [IMAGES][TOKENS]. */
static float *images_of(const harmon *h, const mar_params *p, mar_stats *stats)
{
    float *tokens = malloc(sizeof(float) * IMAGES * TOKENS), *ids = malloc(sizeof(float) * BATCH * (size_t)h->tokens);
    uint8_t *mask = malloc(BATCH * (size_t)h->tokens);
    mar_session *s = harmon_session(h, p, BATCH);
    assert_true(tokens && ids && mask);
    *stats = (mar_stats){.size = sizeof *stats};
    for (int first = 0; first < IMAGES; first += BATCH) {
        mar_stats some = {.size = sizeof some};
        for (int i = 0; i < BATCH; i++) {
            memcpy(ids + i * h->tokens, harmon_ids(h, (first + i) % PROMPTS), (size_t)h->tokens * sizeof *ids);
            memcpy(mask + i * h->tokens, harmon_mask(h, (first + i) % PROMPTS), (size_t)h->tokens);
        }
        assert_session(s, mar_session_begin_captions(s, (uint64_t)first, ids, mask, BATCH));
        demo_finish(s);
        assert_session(s, mar_session_tokens(s, tokens + (size_t)first * TOKENS));
        mar_session_get_stats(s, &some);
        stats->drafted += some.drafted, stats->accepted += some.accepted;
    }
    mar_session_free(s);
    free(ids);
    free(mask);
    return tokens;
}

/* Returns the least of the p-values of numbers of the images by Kolmogorov and Smirnov, corrected for their number:
 * each coordinate, its product with its neighbour's, and sums over a channel and over all. */
static double least_p(const float *a, const float *b)
{
    static float x[IMAGES], y[IMAGES];
    double least = 1;
    for (int k = 0; k < MOMENTS; k++) {
        for (int i = 0; i < IMAGES; i++)
            for (int side = 0; side < 2; side++) {
                const float *t = (side ? b : a) + (size_t)i * TOKENS;
                float sum = 0;
                for (int j = 0; k >= 2 * TOKENS && j < TOKENS; j++)
                    sum += k == MOMENTS - 1   ? t[j] * t[j]
                           : k == MOMENTS - 2 ? t[j]
                                              : (j % CHANNELS == k - 2 * TOKENS ? t[j] : 0);
                if (k < TOKENS) sum = t[k];
                if (k >= TOKENS && k < 2 * TOKENS) sum = t[k - TOKENS] * t[(k + CHANNELS) % TOKENS];
                (side ? y : x)[i] = sum;
            }
        least = fmin(least, MOMENTS * stat_ks_two_sample_p(x, IMAGES, y, IMAGES));
    }
    return fmin(least, 1);
}

/* Exact accelerators have the distribution of plain sampling in as many steps. With other seeds a correct session fails
 * with probability 0.002 at most a run. */
TEST_CASE(exact_accelerators_have_the_distribution_of_plain_sampling)
{
    harmon h = open_trained(*state);
    for (int run = 0; run < RUNS; run++) {
        mar_params p = params_with(runs[run].options), plain = p;
        mar_stats stats;
        if (runs[run].draft) p.draft = h.draft;
        plain.spec = NULL, plain.head_spec = 0;
        p.seed = 7, plain.seed = 1007;
        float *expected = images_of(&h, &plain, &stats), *made = images_of(&h, &p, &stats);
        const double found = least_p(expected, made);
        print_message("%s: %.0f of %.0f accepted, p %.3g\n", runs[run].options, (double)stats.accepted,
                      (double)stats.drafted, found);
        if (strstr(runs[run].options, "spec path")) assert_true(stats.accepted > 0 && stats.accepted < stats.drafted);
        if (!(found > rare)) fail_msg("%s: p = %.2g", runs[run].options, found);
        free(expected);
        free(made);
    }
    harmon_close(&h);
}

/* The comparison finds the draft's own distribution, a lower temperature. */
TEST_CASE(other_distributions_are_found)
{
    if (test_brief) skip();
    harmon h = open_trained(*state);
    mar_params p = params_with("num_iter 8, num_sampling_steps 12, cfg 1");
    mar_stats stats;
    float *expected = images_of(&h, &p, &stats);
    for (int mutant = 0; mutant < 2; mutant++) {
        harmon of = h;
        mar_params q = p;
        q.seed = 1007;
        if (mutant == 0) of.model = h.draft;
        if (mutant == 1) q.temperature = 0.9f;
        float *made = images_of(&of, &q, &stats);
        const double found = least_p(expected, made);
        print_message("mutant %d: p %.3g\n", mutant, found);
        if (!(found < rare)) fail_msg("mutant %d: p = %.2g, not found", mutant, found);
        free(made);
    }
    free(expected);
    harmon_close(&h);
}
