/* Tests the distribution of whole sessions of discrete tokens, by every lossless method. Mutants must be caught.
 *
 * There are two kinds of tests. The sharp one checks that finished tokens are draws from the target's distributions.
 * These are recomputed from the finished images (tests/support/discrete_law.h). The broad one compares token
 * frequencies with plain decoding of another seed: overall, by place and between neighbours.
 *
 * All seeds are fixed. With other seeds a correct session fails a sharp check with probability 1e-4, and there are
 * nineteen. It fails a broad check with probability 0.004, and there are three: 0.014 in all. The change lane has
 * thirteen and one. The mutants show what the tests find. Each line prints a shift of the mean of q / (p + q). A check
 * of that size detects it in half of all cases. With 2048 tokens the shift is 0.012 to 0.032. */
#include "eval/counts.h"

#include "mar_measure.h"
#include "tests/support/brief.h"
#include "tests/support/discrete_law.h"

#include <math.h>
#include <stdlib.h>

static const double rare = 1e-4, rare_of_counts = 0.004;
static const double caught_by_counts = 0.05; /* 0.003 to 0.009 by instruction set; mutants_are_caught is sharper */

enum { SEQ = 64, SIDE = 8, CLASSES = 10, BATCH = test_brief ? 4 : 32 };

typedef struct {
    mar *m;
    mar_model *target, *draft, *eagle;
} models;

static models open_models(void)
{
    models d = {.m = open_mar(MAR_DTYPE_AUTO, 2)};
    assert_library(d.m, mar_model_load(d.m, "demo-discrete", 0, &d.target));
    assert_library(d.m, mar_model_load(d.m, "demo-discrete-draft", 0, &d.draft));
    assert_library(d.m, mar_model_load(d.m, "demo-discrete-eagle", 0, &d.eagle));
    return d;
}

static void close_models(models d)
{
    mar_model_free(d.eagle);
    mar_model_free(d.draft);
    mar_model_free(d.target);
    mar_close(d.m);
}

typedef enum { NONE, SMALL, EAGLE } drafter;

static mar_params params_of(const models *d, drafter by, const char *options, const char *tree, uint64_t seed)
{
    mar_params p = params_with(options);
    p.num_iter = 0;
    p.draft = by == SMALL ? d->draft : by == EAGLE ? d->eagle : NULL;
    p.tree = tree;
    p.seed = seed;
    return p;
}

static void label(int first, int n, int *labels)
{
    for (int i = 0; i < n; i++) labels[i] = (first + i) % CLASSES;
}

/* Returns the target of a kind of drafts. Without a draft model the small one suffices: a tenth of the time. */
static mar_model *target_of(const models *d, const mar_params *p)
{
    return p->draft ? d->target : d->draft;
}

static law_test sums_of(const models *d, const mar_params *p, int batches, law_mutant m, const char *options)
{
    static float tokens[BATCH * SEQ];
    mar_session *s = law_session(target_of(d, p), p, BATCH, m);
    law_sums sums = {0};
    mar_stats stats = {.size = sizeof stats};
    double drafted = 0, accepted = 0;
    int labels[BATCH];
    for (int first = 0; first < batches * BATCH; first += BATCH) {
        label(first, BATCH, labels);
        law_generate(s, (uint64_t)first, labels, BATCH, tokens);
        mar_session_get_stats(s, &stats);
        drafted += (double)stats.drafted, accepted += (double)stats.accepted;
        law_add(target_of(d, p), p, labels, BATCH, tokens, &sums);
    }
    law_close_session(s);
    const law_test t = law_judge(&sums);
    print_message("%s, %s: %ld tokens, %.0f of %.0f drafts accepted, p of likely %.2g, favoured %.2g, repeated %.2g, "
                  "uniform %.2g; finds a shift of %.3f\n",
                  options, law_mutant_name(m), sums.tokens, accepted, drafted, t.likely, t.favoured, t.repeated,
                  t.uniform, t.shift);
    if (p->spec || p->draft) assert_true(accepted > 0 && accepted < drafted);
    return t;
}

/* The lane of a case. Cases of the nightly lane have kinds that others of the change lane have, too. */
enum { EACH, NIGHTLY };

static const struct {
    drafter by;
    const char *tree, *options;
    int batches, lane;
} lossless[] = {
    {NONE, NULL, "cfg 2.9, top_k 40, top_p 0.9", 1, EACH},
    {SMALL, NULL, "cfg 1, gamma 4", 2, EACH},
    {SMALL, NULL, "cfg 2.9, gamma 4", 1, NIGHTLY},
    {SMALL, NULL, "cfg 1, gamma 4, top_k 30, top_p 0.8, temperature 0.9", 1, EACH},
    {SMALL, "3,2,1", "cfg 1", 1, EACH},
    {SMALL, "static", "cfg 2.9", 1, EACH},
    {EAGLE, NULL, "cfg 2.9, gamma 3", 1, EACH},
    {EAGLE, "4,2", "cfg 1", 1, NIGHTLY},
    {EAGLE, "dynamic", "cfg 1, gamma 4, tree_top 3, tree_total 10", 1, NIGHTLY},
    {EAGLE, "dynamic", "cfg 2.9, gamma 3, tree_top 2, tree_total 5, top_k 30", 1, EACH},
    {SMALL, "dynamic", "cfg 2.9, gamma 3, tree_top 2, tree_total 5", 1, NIGHTLY},
    {NONE, NULL, "cfg 1, spec sjd, window 16", 2, EACH},
    {NONE, NULL, "cfg 2.9, spec sjd, window 8, first left", 1, EACH},
    {NONE, NULL, "cfg 1, spec sjd-pac, window 12", 1, NIGHTLY},
    {NONE, NULL, "cfg 2.9, spec sjd-pac, window 8, pac_children 2, first above", 1, EACH},
    {NONE, NULL, "cfg 1, spec sjd-pac, window 8, pac_children 2, pac_continue off", 1, EACH},
    {NONE, NULL, "cfg 1, spec sjd-pac, window 8, pac_depth 0", 1, EACH},
    {NONE, NULL, "cfg 1, spec sjd-pac, window 8, pac_children 2, pac_depth 2, top_k 30, top_p 0.8", 1, NIGHTLY},
    {NONE, NULL, "cfg 2.9, spec scd, window 8, pac_children 2, first above", 1, EACH},
};

TEST_CASE(tokens_have_the_targets_law)
{
    models d = open_models();
    for (size_t i = 0; i < sizeof lossless / sizeof *lossless; i++) {
        if (lossless[i].lane == NIGHTLY && !test_all) continue;
        const mar_params p = params_of(&d, lossless[i].by, lossless[i].options, lossless[i].tree, 100 + i);
        const law_test t = sums_of(&d, &p, lossless[i].batches, LAW_UNCHANGED, lossless[i].options);
        if (!(t.worst > rare)) fail_msg("%s: p = %.2g", lossless[i].options, t.worst);
    }
    close_models(d);
}

/* One of these mutants keeps the distribution: drafts may come from any distribution, if q is that one. It shows that
 * the tests do not merely detect a difference. */
static const struct {
    law_mutant mutant;
    drafter by;
    const char *tree, *options;
    int batches, lane;
} mutants[] = {
    {LAW_SWAPPED, SMALL, NULL, "cfg 1, gamma 4", 1, EACH},
    {LAW_UNGUIDED_DRAFT, SMALL, NULL, "cfg 2.9, gamma 4", 2, EACH},
    {LAW_SWAPPED, SMALL, "static", "cfg 2.9", 1, NIGHTLY},
    {LAW_SWAPPED, NONE, NULL, "cfg 1, spec sjd-pac, window 8, pac_children 2", 1, EACH},
    {LAW_NO_RESIDUAL, SMALL, NULL, "cfg 1, gamma 4", 1, NIGHTLY},
    {LAW_NO_RESIDUAL, EAGLE, "dynamic", "cfg 1, gamma 3, tree_top 2, tree_total 6", 1, EACH},
    {LAW_NO_RESIDUAL, NONE, NULL, "cfg 1, spec sjd, window 8", 1, EACH},
    {LAW_NO_RESIDUAL, NONE, NULL, "cfg 1, spec sjd-pac, window 8, pac_children 2", 1, NIGHTLY},
    {LAW_UNFILTERED_Q, SMALL, NULL, "cfg 1, gamma 4, top_k 8", 2, EACH},
    {LAW_STALE_Q, NONE, NULL, "cfg 1, spec sjd, window 8", 1, EACH},
    {LAW_STALE_Q, NONE, NULL, "cfg 1, spec sjd-pac, window 8, pac_depth 0", 1, NIGHTLY},
    {LAW_STALE_Q, NONE, NULL, "cfg 1, spec scd, window 8", 1, EACH},
    {LAW_SIBLINGS_Q, SMALL, "8", "cfg 2.9, top_k 8, temperature 1.3", 4, EACH},
    {LAW_POINT_AS_LAW, EAGLE, "dynamic", "cfg 1, gamma 4, tree_top 1, tree_total 4", 1, EACH},
    {LAW_KEPT_SLOT, SMALL, NULL, "cfg 1, gamma 4", 1, EACH},
};

TEST_CASE(mutants_are_caught)
{
    models d = open_models();
    for (size_t i = 0; i < (test_brief ? 2 : sizeof mutants / sizeof *mutants); i++) {
        if (mutants[i].lane == NIGHTLY && !test_all) continue;
        const mar_params p = params_of(&d, mutants[i].by, mutants[i].options, mutants[i].tree, 100 + i);
        const law_test t = sums_of(&d, &p, mutants[i].batches, mutants[i].mutant, mutants[i].options);
        if ((mutants[i].mutant == LAW_UNGUIDED_DRAFT) != (t.worst > rare))
            fail_msg("%s, %s: p = %.2g", law_mutant_name(mutants[i].mutant), mutants[i].options, t.worst);
    }
    close_models(d);
}

/* --- counts ------------------------------------------------------------------------------------------------------- */

/* Uses the small model, which takes a tenth of the time per image. */
enum { IMAGES = test_brief ? 64 : test_all ? 1280 : 640, AT_A_TIME = test_brief ? 32 : 64, PERMUTATIONS = 999 };

static float *images_of(const models *d, const char *options, uint64_t seed, law_mutant m)
{
    float *tokens = malloc(sizeof(float) * IMAGES * SEQ);
    int labels[AT_A_TIME];
    const mar_params p = params_of(d, NONE, options, NULL, seed);
    mar_session *s = law_session(d->draft, &p, AT_A_TIME, m);
    assert_non_null(tokens);
    for (int first = 0; first < IMAGES; first += AT_A_TIME) {
        label(first, AT_A_TIME, labels);
        law_generate(s, (uint64_t)first, labels, AT_A_TIME, tokens + (size_t)first * SEQ);
    }
    law_close_session(s);
    return tokens;
}

/* Returns the least p-value of the three tests, corrected for their number. */
static double counts_p(const float *a, const float *b, const char *name)
{
    const eval_token_pairs pairs = {IMAGES, SIDE, SIDE, a, b};
    eval_counts_test tokens, places, neighbours;
    assert_int_equal(eval_token_counts(&pairs, PERMUTATIONS, &tokens, &places, &neighbours), MAR_OK);
    print_message("%s: %d images; tokens p %.3f, total variation %.4f (95 %%: %.4f); places %.3f, %.4f (%.4f); "
                  "neighbours %.3f, %.4f (%.4f)\n",
                  name, IMAGES, tokens.p, tokens.tv, tokens.tv_95, places.p, places.tv, places.tv_95, neighbours.p,
                  neighbours.tv, neighbours.tv_95);
    return 3 * fmin(tokens.p, fmin(places.p, neighbours.p));
}

TEST_CASE(counts_are_those_of_plain_decoding)
{
    static const char *const right[] = {"cfg 1", "cfg 1, spec sjd, window 8",
                                        "cfg 1, spec sjd-pac, window 8, pac_children 2"};
    static const law_mutant wrong[] = {LAW_SWAPPED, LAW_NO_RESIDUAL, LAW_STALE_Q};
    models d = open_models();
    float *plain = images_of(&d, "cfg 1", 300, LAW_UNCHANGED);
    for (int i = test_all ? 0 : 2; i < 3; i++) {
        float *images = images_of(&d, right[i], 301 + (uint64_t)i, LAW_UNCHANGED);
        assert_true(counts_p(images, plain, right[i]) > rare_of_counts);
        free(images);
    }
    for (int i = 0; i < (test_brief ? 0 : test_all ? 3 : 1); i++) {
        float *images = images_of(&d, right[1], 302, wrong[i]);
        assert_true(counts_p(images, plain, law_mutant_name(wrong[i])) < caught_by_counts);
        free(images);
    }
    free(plain);
    close_models(d);
}
