/* Exact discrete methods on the real code path: a million sequences of each from a toy model, against the enumerated
 * law. With fixed seeds; at p < 10^-6 a correct sampler would fail once in 10^6 choices of the seed. */
#include "specdec/laws.h"
#include "specdec/sampler.h"
#include "tests/support/brief.h"
#include "tests/support/statistics.h"
#include "tests/support/support.h"
#include "tests/support/toy.h"

#include <stdlib.h>
#include <string.h>

enum { SIZE = 3, LENGTH = 5, SOME = 100000, SEQUENCES = test_brief ? SOME : 10 * SOME };

/* Called after every round: a mutant that changes what the next round gets. */
typedef void (*tamper)(spec_sampler *s, int final, const float *old_q, const int *old_token);

typedef struct {
    const spec_method *method;
    const double *parameter;
    int length;
    const int *parent; /* static tree */
    int count;
    int zeros;
    const int *neighbours;
    tamper tamper;
} setup;

/* The p-value of the sequences of a setup, and tokens per round. */
static double sequences_p(const setup *u, int sequences, double *rate)
{
    const int jacobi = u->method->stale;
    toy *p = toy_create(SIZE, LENGTH, 11, 1, NULL, u->zeros), *q = toy_create(SIZE, LENGTH, 12, 1, p, 0);
    const spec_model target = {SIZE, p, toy_laws}, draft = {SIZE, q, toy_laws};
    const spec_sampler_options options = {.method = u->method,
                                          .parameter = u->parameter,
                                          .length = u->length,
                                          .parent = u->parent,
                                          .count = u->count,
                                          .neighbours = u->neighbours,
                                          .neighbour_count = SIZE,
                                          .seed = 7};
    const long cells = toy_sequences(p, LENGTH);
    long *count = calloc((size_t)cells, sizeof *count), rounds = 0;
    double *probability = malloc((size_t)cells * sizeof *probability);
    spec_sampler *s = spec_sampler_create(&target, jacobi ? NULL : &draft, &options);
    assert_non_null(s);
    for (int i = 0; i < sequences; i++) {
        int x[LENGTH];
        spec_sampler_begin(s, (uint64_t)i, x, LENGTH);
        while (s->known < LENGTH) {
            float old_q[SIZE * LENGTH];
            int old_token[LENGTH], before = s->known;
            if (u->tamper) {
                memcpy(old_q, s->draft_q, sizeof *old_q * SIZE * (size_t)u->length);
                for (int j = 0; j < u->length; j++) old_token[j] = s->candidate[j * s->children];
            }
            assert_int_equal(spec_sampler_round(s), 0);
            assert_true(s->known > before);
            if (u->tamper) u->tamper(s, s->known - before, old_q, old_token);
        }
        rounds += s->stats.rounds;
        count[toy_number(p, x, LENGTH)]++;
    }
    toy_probabilities(p, LENGTH, probability);
    const double p_value = stat_chi2_p(count, probability, (int)cells);
    if (rate) *rate = (double)sequences * LENGTH / (double)rounds;
    free(count), free(probability);
    spec_sampler_free(s);
    toy_free(p), toy_free(q);
    return p_value;
}

/* Levels of 2, 4 and 4 drafts; the last level has single children. */
static const int tree[] = {-1, -1, 0, 0, 1, 1, 2, 3, 4, 5};
static const double no_tree[] = {1, 0}, pac[] = {3, 2}, wide[] = {2, 4};

static void check(const char *name, const setup *u, double least_rate)
{
    double rate;
    const double p = sequences_p(u, SEQUENCES, &rate);
    if (!(p > 1e-6)) fail_msg("%s: p = %g", name, p);
    if (!(rate > least_rate)) fail_msg("%s: %g tokens a round", name, rate);
}

static void check_mutant(const char *name, const setup *u)
{
    const double p = sequences_p(u, SOME, NULL);
    if (!(p < 1e-6)) fail_msg("%s is not caught: p = %g", name, p);
}

static void vanilla_chain(void **state)
{
    (void)state;
    check("chain", &(setup){.method = spec_method_find("vanilla"), .length = 3}, 1.5);
}

static void vanilla_tree(void **state)
{
    (void)state;
    check("tree", &(setup){.method = spec_method_find("vanilla"), .length = 3, .parent = tree, .count = 10}, 1.8);
}

static void vanilla_zeros(void **state)
{
    (void)state; /* p excludes a token everywhere, q none */
    check("zeros", &(setup){.method = spec_method_find("vanilla"), .length = 3, .zeros = 1}, 1.2);
}

static void jacobi(void **state)
{
    (void)state;
    check("sjd", &(setup){.method = spec_method_find("sjd"), .length = 4}, 1.2);
}

static void jacobi_continued(void **state)
{
    (void)state;
    check("sjd-pac AC", &(setup){.method = spec_method_find("sjd-pac"), .parameter = no_tree, .length = 4}, 1.2);
}

static void jacobi_continued_tree(void **state)
{
    (void)state;
    check("sjd-pac", &(setup){.method = spec_method_find("sjd-pac"), .parameter = pac, .length = 4}, 1.3);
}

static void jacobi_tree_longer_than_block(void **state)
{
    (void)state;
    check("sjd-pac wide", &(setup){.method = spec_method_find("sjd-pac"), .parameter = wide, .length = 3, .zeros = 1},
          1.2);
}

/* Relaxed methods with no relaxation left are exact, also in a tree, where they meet residuals and neighbours. */
static void unrelaxed_trees(void **state)
{
    (void)state;
    static const int circle[] = {0, 1, 2, 1, 2, 0, 2, 0, 1};
    static const double one[] = {1}, none[] = {3, 0};
    static const char *const names[] = {"uniform-rsd", "lantern", "lantern-pp", "lantern-gstar", "lantern-pp-gstar"};
    for (int i = 0; i < 5; i++) {
        const setup u = {.method = spec_method_find(names[i]),
                         .parameter = i == 0 ? one : none,
                         .length = 3,
                         .parent = tree,
                         .count = 10,
                         .neighbours = circle};
        const double p = sequences_p(&u, SOME, NULL);
        if (!(p > 1e-6)) fail_msg("%s: p = %g", names[i], p);
    }
}

/* --- what the sampler refuses, and what it returns --- */

static int failing_laws(void *state, const int *prefix, int length, const int *draft, const int *parent, int count,
                        float *log_law)
{
    toy *t = state;
    return t->calls == 2 ? 77 : toy_laws(state, prefix, length, draft, parent, count, log_law);
}

static void a_models_failure_ends_the_round(void **state)
{
    (void)state;
    for (int jacobi = 0; jacobi < 2; jacobi++) {
        toy *p = toy_create(SIZE, LENGTH, 11, 1, NULL, 0);
        const spec_model model = {SIZE, p, failing_laws};
        const spec_sampler_options options = {.method = spec_method_find(jacobi ? "sjd" : "vanilla"), .length = 1};
        spec_sampler *s = spec_sampler_create(&model, jacobi ? NULL : &model, &options);
        int x[LENGTH], status = 0;
        spec_sampler_begin(s, 0, x, LENGTH);
        while (s->known < LENGTH && status == 0) status = spec_sampler_round(s);
        assert_int_equal(status, 77);
        assert_true(s->known < LENGTH);
        spec_sampler_free(s);
        toy_free(p);
    }
}

static int empty_laws(void *state, const int *prefix, int length, const int *draft, const int *parent, int count,
                      float *log_law)
{
    (void)prefix, (void)length, (void)draft, (void)parent;
    for (int i = 0; i < (count + 1) * ((toy *)state)->size; i++) log_law[i] = NAN;
    return 0;
}

static void a_law_without_tokens_is_an_error(void **state)
{
    (void)state;
    for (int jacobi = 0; jacobi < 3; jacobi++) {
        toy *p = toy_create(SIZE, LENGTH, 11, 1, NULL, 0);
        const spec_model model = {SIZE, p, empty_laws};
        const spec_sampler_options options = {.method = spec_method_find(jacobi == 0   ? "vanilla"
                                                                         : jacobi == 1 ? "sjd"
                                                                                       : "sjd-pac"),
                                              .parameter = pac,
                                              .length = 3};
        spec_sampler *s = spec_sampler_create(&model, jacobi ? NULL : &model, &options);
        int x[LENGTH], status = 0;
        spec_sampler_begin(s, 0, x, LENGTH);
        for (int i = 0; i < LENGTH && status == 0; i++) status = spec_sampler_round(s);
        assert_int_equal(status, SPEC_EMPTY_LAW);
        spec_sampler_free(s);
        toy_free(p);
    }
}

/* A tree deeper than the block is cut. */
static void deep_tree_is_cut(void **state)
{
    (void)state;
    check("cut tree", &(setup){.method = spec_method_find("vanilla"), .length = 2, .parent = tree, .count = 10}, 1.5);
}

static void options_must_fit(void **state)
{
    (void)state;
    static const int bad_tree[] = {-1, 1}, not_by_levels[] = {-1, 0, -1};
    toy *p = toy_create(SIZE, LENGTH, 11, 1, NULL, 0);
    const spec_model model = {SIZE, p, toy_laws};
    const spec_method *vanilla = spec_method_find("vanilla"), *sjd = spec_method_find("sjd");
    const spec_sampler_options bad[] = {
        {.method = vanilla},                                      /* no length */
        {.method = sjd, .length = 3},                             /* Jacobi with a draft model */
        {.method = spec_method_find("lantern"), .length = 3},     /* no neighbours */
        {.method = spec_method_find("conditional"), .length = 3}, /* continuous */
        {.method = vanilla, .length = 3, .parent = bad_tree, .count = 2},
        {.method = vanilla, .length = 3, .parent = not_by_levels, .count = 3},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_null(spec_sampler_create(&model, &model, &bad[i]));
    assert_null(spec_sampler_create(&model, NULL, &(spec_sampler_options){.method = vanilla, .length = 3}));
    spec_sampler_free(NULL);
    toy_free(p);
}

/* 0/0 is 1; a draft that rounding rejects where p = q stays; nothing of probability 0 comes out. */
static void corners(void **state)
{
    (void)state;
    const float p[] = {-0.6931472f, -INFINITY, -0.6931472f}, q[] = {-0.6931472f, -INFINITY, -0.6931472f};
    const spec_site s = {.size = 3, .log_p = p, .log_q = q, .index = 1, .length = 1};
    const spec_address a = {1, 2, 3, 4};
    int id = -1;
    assert_true(spec_log_ratio(&s, (spec_token){.id = 1}) == 0);
    assert_int_equal(spec_replace(spec_method_find("vanilla"), NULL, &s, 2, &a, &id), SPEC_ACCEPTED);
    assert_int_equal(id, 2);
    assert_int_equal(spec_replace(spec_method_find("vanilla"), NULL, &s, 1, &a, &id), SPEC_REPLACED);
    assert_true(id == 0 || id == 2);
    int candidate[4];
    assert_int_equal(spec_draw_candidates(q, 3, &a, 0, 4, candidate), 2); /* q has no more */
    assert_true(candidate[0] != candidate[1] && candidate[0] != 1 && candidate[1] != 1);
}

/* --- mutants --- */

static double swapped_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)s, (void)parameter, (void)x;
    return fmin(0, -log_ratio);
}

static double keep_all(const spec_site *s, const double *parameter, int candidate, int rejected, double log_ratio)
{
    (void)s, (void)parameter, (void)candidate, (void)rejected, (void)log_ratio;
    return 0;
}

/* The tail keeps the law it had before: not the p it was last coupled to. */
static void stale_q(spec_sampler *s, int final, const float *old_q, const int *old_token)
{
    (void)old_token;
    const int tail = s->options.length - final;
    if (tail > 0) memcpy(s->draft_q, old_q + SIZE * final, sizeof *old_q * SIZE * (size_t)tail);
}

/* Siblings drawn with replacement. */
static void with_replacement(spec_sampler *s, int final, const float *old_q, const int *old_token)
{
    (void) final, (void)old_q, (void)old_token;
    for (int i = 0; i < s->tree; i++)
        for (int k = 1; k < s->candidates[i]; k++) {
            const spec_address a = {99, s->image, (uint32_t)(s->known + i), s->step};
            s->candidate[i * s->children + k] =
                spec_law_draw(s->draft_q + SIZE * i, SIZE, NULL, 0, kern_uniform_at(&a, KERN_NOISE_STEP, (uint32_t)k));
        }
}

/* STOP without drawing the tail anew: old tokens, new laws. */
static void kept_tail(spec_sampler *s, int final, const float *old_q, const int *old_token)
{
    (void)old_q;
    for (int i = 0; i < s->drafted && i + final < s->options.length; i++)
        s->candidate[i * s->children] = old_token[i + final];
}

/* The siblings in the order of their number, not of their draw. */
static void sorted_siblings(spec_sampler *s, int final, const float *old_q, const int *old_token)
{
    (void) final, (void)old_q, (void)old_token;
    for (int i = 0; i < s->tree; i++) {
        int *c = s->candidate + i * s->children;
        for (int j = 1; j < s->candidates[i]; j++)
            for (int k = j; k > 0 && c[k] < c[k - 1]; k--) {
                const int swap = c[k];
                c[k] = c[k - 1], c[k - 1] = swap;
            }
    }
}

static void mutants_are_caught(void **state)
{
    (void)state;
    const spec_method *sjd_pac = spec_method_find("sjd-pac"), *sjd = spec_method_find("sjd");
    spec_method swapped = *spec_method_find("vanilla"), dropped = swapped, pac_swapped = *sjd_pac;
    swapped.log_accept = pac_swapped.log_accept = swapped_accept;
    dropped.log_keep = keep_all;
    check_mutant("p and q swapped", &(setup){.method = &swapped, .length = 3});
    check_mutant("residual dropped", &(setup){.method = &dropped, .length = 3});
    check_mutant("residual dropped in a tree", &(setup){.method = &dropped, .length = 3, .parent = tree, .count = 10});
    check_mutant("p and q swapped in sjd-pac", &(setup){.method = &pac_swapped, .parameter = pac, .length = 4});
    check_mutant("stale q", &(setup){.method = sjd_pac, .parameter = no_tree, .length = 4, .tamper = stale_q});
    check_mutant("stale q in sjd", &(setup){.method = sjd, .length = 4, .tamper = stale_q});
    check_mutant("kept tail", &(setup){.method = sjd, .length = 4, .tamper = kept_tail});
    check_mutant("with replacement",
                 &(setup){.method = sjd_pac, .parameter = pac, .length = 4, .tamper = with_replacement});
    check_mutant("sorted siblings",
                 &(setup){.method = sjd_pac, .parameter = pac, .length = 4, .tamper = sorted_siblings});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vanilla_chain),
        cmocka_unit_test(vanilla_tree),
        cmocka_unit_test(vanilla_zeros),
        cmocka_unit_test(jacobi),
        cmocka_unit_test(jacobi_continued),
        cmocka_unit_test(jacobi_continued_tree),
        cmocka_unit_test(jacobi_tree_longer_than_block),
        cmocka_unit_test(unrelaxed_trees),
        cmocka_unit_test(a_models_failure_ends_the_round),
        cmocka_unit_test(options_must_fit),
        cmocka_unit_test(a_law_without_tokens_is_an_error),
        cmocka_unit_test(deep_tree_is_cut),
        cmocka_unit_test(corners),
        cmocka_unit_test(mutants_are_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
