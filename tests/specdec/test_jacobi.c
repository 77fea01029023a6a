/* Jacobi decoding by enumeration of all drafts, decisions and replacements of every round, with the laws that each
 * draft was really drawn from. The output has the target's law with STOP and with CONTINUE. With an older q it has not.
 */
#include "specdec/laws.h"
#include "specdec/sampler.h"
#include "tests/support/support.h"
#include "tests/support/toy.h"

#include <stdlib.h>
#include <string.h>

enum { SIZE = 3, LENGTH = 4 };

typedef enum { RIGHT, STALE_Q, KEPT_TAIL } variant;

typedef struct {
    const spec_method *m;
    variant variant;
    const toy *p;
    double *law; /* [SIZE^LENGTH] */
    double rounds;
} enumeration;

/* A sequence with `known` final tokens; the others are drafts, token i drawn from q[i]. */
typedef struct {
    int known;
    int token[LENGTH];
    const float *q[LENGTH];
    double weight;
} jacobi_state;

static void round_of(enumeration *e, const jacobi_state *w);

/* Position i of a round that turns `w` into `next`; `first` is the first rejection, LENGTH if there is none yet. */
static void position(enumeration *e, const jacobi_state *w, jacobi_state next, int i, int first)
{
    if (i == LENGTH) {
        next.known = first < LENGTH ? first + 1 : LENGTH;
        round_of(e, &next);
        return;
    }
    const spec_site s = {.size = SIZE,
                         .log_p = toy_law(e->p, w->token, i),
                         .log_q = w->q[i],
                         .index = i - w->known + 1,
                         .length = LENGTH - w->known};
    const double weight = next.weight;
    next.q[i] = e->variant == STALE_Q && first < LENGTH ? s.log_q : s.log_p;
    if (first < LENGTH && e->m->policy == SPEC_STOP && e->variant != KEPT_TAIL) { /* drawn anew */
        for (int y = 0; y < SIZE; y++) {
            next.token[i] = y;
            next.weight = weight * exp((double)s.log_p[y]);
            position(e, w, next, i + 1, first);
        }
        return;
    }
    if (first < LENGTH && e->m->policy == SPEC_STOP) {
        next.token[i] = w->token[i];
        position(e, w, next, i + 1, first);
        return;
    }
    const spec_token x = {.id = w->token[i]};
    const double f = exp(e->m->log_accept(&s, NULL, x, spec_log_ratio(&s, x)));
    next.token[i] = x.id;
    next.weight = weight * f;
    if (f > 0) position(e, w, next, i + 1, first);
    double total = 0, g[SIZE];
    for (int y = 0; y < SIZE; y++) total += g[y] = spec_residual_weight(e->m, NULL, &s, y, x.id);
    for (int y = 0; y < SIZE && f < 1; y++) {
        next.token[i] = y;
        next.weight = weight * (1 - f) * g[y] / total;
        if (g[y] > 0) position(e, w, next, i + 1, first < LENGTH ? first : i);
    }
}

static void round_of(enumeration *e, const jacobi_state *w)
{
    if (w->known == LENGTH) {
        e->law[toy_number(e->p, w->token, LENGTH)] += w->weight;
        return;
    }
    e->rounds += w->weight;
    position(e, w, *w, w->known, LENGTH);
}

static double total_variation(const spec_method *m, variant v, uint64_t seed, double *rounds)
{
    double law[81] = {0}, p[81], sum = 0;
    const float uniform[SIZE] = {-1.0986123f, -1.0986123f, -1.0986123f};
    toy *target = toy_create(SIZE, LENGTH, seed, 1, NULL, 0);
    enumeration e = {m, v, target, law, 0};
    for (int n = 0; n < 81; n++) {
        jacobi_state w = {.weight = 1.0 / 81};
        for (int i = LENGTH - 1, rest = n; i >= 0; i--, rest /= SIZE) w.token[i] = rest % SIZE, w.q[i] = uniform;
        round_of(&e, &w);
    }
    toy_probabilities(target, LENGTH, p);
    for (int n = 0; n < 81; n++) sum += 0.5 * fabs(p[n] - law[n]);
    toy_free(target);
    if (rounds) *rounds = e.rounds;
    return sum;
}

static void jacobi_is_exact(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        assert_true(total_variation(spec_method_find("sjd"), RIGHT, seed, NULL) < 2e-6);
        assert_true(total_variation(spec_method_find("sjd-pac"), RIGHT, seed, NULL) < 2e-6);
    }
}

static void mutants_are_caught(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        assert_true(total_variation(spec_method_find("sjd-pac"), STALE_Q, seed, NULL) > 1e-3);
        assert_true(total_variation(spec_method_find("sjd"), STALE_Q, seed, NULL) > 1e-3);
        assert_true(total_variation(spec_method_find("sjd"), KEPT_TAIL, seed, NULL) > 1e-3);
    }
}

/* The sampler's rounds are the enumeration's: their mean over 200 000 sequences, within 5 deviations. */
static void sampler_takes_as_many_rounds(void **state)
{
    (void)state;
    const char *const names[] = {"sjd", "sjd-pac"};
    const double no_tree[] = {1, 0};
    enum { SEQUENCES = 200000 };
    for (int m = 0; m < 2; m++) {
        double expected, sum = 0, squares = 0;
        total_variation(spec_method_find(names[m]), RIGHT, 1, &expected);
        toy *p = toy_create(SIZE, LENGTH, 1, 1, NULL, 0);
        const spec_model target = {SIZE, p, toy_laws};
        const spec_sampler_options options = {
            .method = spec_method_find(names[m]), .parameter = no_tree, .length = LENGTH, .seed = 3};
        spec_sampler *s = spec_sampler_create(&target, NULL, &options);
        for (int i = 0; i < SEQUENCES; i++) {
            int x[LENGTH];
            spec_sampler_begin(s, (uint64_t)i, x, LENGTH);
            while (s->known < LENGTH) spec_sampler_round(s);
            sum += (double)s->stats.rounds, squares += (double)(s->stats.rounds * s->stats.rounds);
        }
        const double mean = sum / SEQUENCES, deviation = sqrt((squares / SEQUENCES - mean * mean) / SEQUENCES);
        if (!(fabs(mean - expected) < 5 * deviation)) fail_msg("%s: %g rounds, expected %g", names[m], mean, expected);
        assert_int_equal(p->calls, sum); /* one forward pass a round */
        spec_sampler_free(s);
        toy_free(p);
    }
}

/* A longer model: 16 tokens, each law a function of the token before. */
static int markov_laws(void *state, const int *prefix, int length, const int *draft, const int *parent, int count,
                       float *log_law)
{
    const toy *t = state; /* its laws behind one token */
    (void)parent;
    for (int i = 0; i <= count; i++) {
        const int before = i > 0 ? draft[i - 1] : length > 0 ? prefix[length - 1] : 0;
        memcpy(log_law + i * t->size, toy_law(t, &before, 1), (size_t)t->size * sizeof *log_law);
    }
    return 0;
}

static double tokens_per_round(const toy *t, const char *name, const double *parameter)
{
    enum { SEQUENCES = 200, TOKENS = 64 };
    const spec_model target = {t->size, (void *)t, markov_laws};
    const spec_sampler_options options = {
        .method = spec_method_find(name), .parameter = parameter, .length = 16, .seed = 5};
    spec_sampler *s = spec_sampler_create(&target, NULL, &options);
    double rounds = 0;
    for (int i = 0; i < SEQUENCES; i++) {
        int x[TOKENS];
        spec_sampler_begin(s, (uint64_t)i, x, TOKENS);
        while (s->known < TOKENS) spec_sampler_round(s);
        rounds += (double)s->stats.rounds;
    }
    spec_sampler_free(s);
    return SEQUENCES * TOKENS / rounds;
}

/* The purpose of the methods (SJD-PAC Table 2): going on after a rejection saves rounds, and the tree saves more. */
static void continuation_and_tree_pay(void **state)
{
    (void)state;
    toy *t = toy_create(16, 1, 9, 1.2, NULL, 0);
    const double no_tree[] = {1, 0}, tree[] = {4, 2};
    const double plain = tokens_per_round(t, "sjd", NULL), go_on = tokens_per_round(t, "sjd-pac", no_tree),
                 both = tokens_per_round(t, "sjd-pac", tree);
    if (!(plain > 1.5 && go_on > 1.5 * plain && both > 1.04 * go_on))
        fail_msg("tokens a round: %g, continued %g, with tree %g", plain, go_on, both);
    toy_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jacobi_is_exact),
        cmocka_unit_test(mutants_are_caught),
        cmocka_unit_test(sampler_takes_as_many_rounds),
        cmocka_unit_test(continuation_and_tree_pay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
