/* Discrete methods by enumeration: the law of one round, computed from the methods' own criteria and resamplers over
 * every draft and every decision, and the theorems about it. */
#include "specdec/laws.h"
#include "specdec/neighbours.h"
#include "specdec/sampler.h"
#include "tests/support/statistics.h"
#include "tests/support/support.h"
#include "tests/support/toy.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 5, LENGTH = 5 }; /* vocabulary, tokens of a round at most */

/* G(y) given that `rejected` was; NULL: the method's. */
typedef void (*resampler)(const spec_site *s, int node, double *g);

typedef struct {
    const spec_method *m;
    const double *parameter;
    const toy *p, *q;
    int length; /* drafts */
    const int *neighbours;
    resampler g;
    double *law;            /* [size^(length+1)]: the output, extended to length + 1 tokens from p */
    double expected;        /* Cool-SD Eq. 3: E[tau + 1] */
    double counted;         /* the same, from the decisions */
    double bound;           /* Cool-SD Eq. 4 */
    double perturbation[2]; /* added to f of the first and of the second draft */
} enumeration;

static spec_site site_at(const enumeration *e, const int *x, int i)
{
    return (spec_site){.size = e->p->size,
                       .log_p = toy_law(e->p, x, i),
                       .log_q = toy_law(e->q, x, i),
                       .index = i + 1,
                       .length = e->length,
                       .neighbours = e->neighbours,
                       .neighbour_count = e->neighbours ? e->p->size : 0};
}

static double accept_of(const enumeration *e, const spec_site *s, int x)
{
    return exp(e->m->log_accept(s, e->parameter, (spec_token){.id = x}, spec_log_ratio(s, (spec_token){.id = x}))) +
           (s->index <= 2 ? e->perturbation[s->index - 1] : 0);
}

/* The sequence's first i tokens are decided: the rest is from p. */
static void extend(enumeration *e, int *x, int i, double weight)
{
    if (weight == 0) return;
    if (i > e->length) {
        e->law[toy_number(e->p, x, i)] += weight;
        return;
    }
    for (int y = 0; y < e->p->size; y++) {
        x[i] = y;
        extend(e, x, i + 1, weight * exp((double)toy_law(e->p, x, i)[y]));
    }
}

static int resample(const enumeration *e, const spec_site *s, int rejected, double *g)
{
    double total = 0;
    if (e->g) {
        e->g(s, s->index, g);
        return 1;
    }
    for (int y = 0; y < s->size; y++) total += g[y] = spec_residual_weight(e->m, e->parameter, s, y, rejected);
    for (int y = 0; y < s->size && total > 0; y++) g[y] /= total;
    return total > 0;
}

static void enumerate(enumeration *e, int *x, int i, double reach)
{
    if (i == e->length) {
        e->counted += reach * (i + 1);
        extend(e, x, i, reach);
        return;
    }
    const spec_site s = site_at(e, x, i);
    double gap[MOST], accepted[MOST];
    for (int y = 0; y < s.size; y++) {
        accepted[y] = exp((double)s.log_q[y]) * accept_of(e, &s, y);
        gap[y] = accepted[y] - exp((double)s.log_p[y]);
    }
    for (int r = 0; r < s.size; r++) {
        double g[MOST], rejected = exp((double)s.log_q[r]) - accepted[r];
        if (rejected == 0) continue;
        if (!resample(e, &s, r, g)) { /* p = q up to rounding */
            accepted[r] += rejected;
            continue;
        }
        for (int y = 0; y < s.size; y++) {
            gap[y] += rejected * g[y];
            x[i] = y;
            extend(e, x, i + 1, reach * rejected * g[y]);
        }
        e->counted += reach * rejected * (i + 1);
    }
    for (int y = 0; y < s.size; y++) {
        e->bound += 0.5 * reach * fabs(gap[y]);
        e->expected += reach * accepted[y];
        x[i] = y;
        enumerate(e, x, i + 1, reach * accepted[y]);
    }
}

static void run(enumeration *e)
{
    int x[LENGTH + 1];
    memset(e->law, 0, (size_t)toy_sequences(e->p, e->length + 1) * sizeof *e->law);
    e->expected = 1;
    e->counted = e->bound = 0;
    enumerate(e, x, 0, 1);
}

static double total_variation(const enumeration *e)
{
    const long n = toy_sequences(e->p, e->length + 1);
    double *p = malloc((size_t)n * sizeof *p), sum = 0;
    toy_probabilities(e->p, e->length + 1, p);
    for (long i = 0; i < n; i++) sum += 0.5 * fabs(p[i] - e->law[i]);
    free(p);
    return sum;
}

/* Neighbours of x on a circle: x, x+1, x-1, x+2, ... */
static void circle(int size, int *table)
{
    for (int x = 0; x < size; x++)
        for (int i = 0; i < size; i++) table[x * size + i] = (x + (i % 2 ? (i + 1) / 2 : size - i / 2)) % size;
}

/* Runs `check` on every case: sizes 3..5, lengths of the block to 4, spreads from near to far, laws with zeros. */
static void each_case(const spec_method *m, const double *parameter, void (*check)(enumeration *e))
{
    static const struct {
        int size, length;
        double apart;
        int p_zeros, q_zeros;
    } cases[] = {{3, 4, 0.5, 0, 0}, {3, 5, 0, 0, 0}, {4, 3, 2, 0, 0}, {5, 2, 1, 0, 0},
                 {4, 3, 1, 1, 1},   {4, 3, 1, 1, 0}, {3, 3, 4, 0, 0}, {5, 3, 0.3, 0, 0}};
    int table[MOST * MOST];
    double *law = malloc(4096 * sizeof *law);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int size = cases[i].size, length = cases[i].length;
        toy *base = toy_create(size, length, 100 + i, 1, NULL, 0);
        toy *p = toy_create(size, length, 5, 0, base, cases[i].p_zeros);
        toy *q = toy_create(size, length, cases[i].p_zeros && cases[i].q_zeros ? 5 : 6, cases[i].apart, base,
                            cases[i].q_zeros);
        circle(size, table);
        enumeration e = {.m = m, .parameter = parameter, .p = p, .q = q, .length = length - 1, .law = law};
        if (m->neighbours) e.neighbours = table;
        run(&e);
        check(&e);
        toy_free(base), toy_free(p), toy_free(q);
    }
    free(law);
}

static void defaults(const spec_method *m, double *parameter)
{
    for (int i = 0; m->parameters[i].name; i++) parameter[i] = m->parameters[i].value;
}

static void check_exact(enumeration *e)
{
    const double tv = total_variation(e);
    if (!(tv < 2e-6)) fail_msg("%s: total variation %g", e->m->name, tv);
    assert_true(fabs(e->expected - e->counted) < 2e-6);
}

static int wrong; /* cases in which a mutant is no longer exact */

static void count_wrong(enumeration *e)
{
    wrong += total_variation(e) > 1e-3;
}

static void check_bound(enumeration *e)
{
    const double tv = total_variation(e);
    if (!(tv <= e->bound + 2e-6)) fail_msg("%s: total variation %g above its bound %g", e->m->name, tv, e->bound);
    assert_true(fabs(e->expected - e->counted) < 2e-6);
}

/* Theorem 1 for the exact methods; Theorem 2, Eq. 3 and 4, for all. */
static void laws_of_all_methods(void **state)
{
    (void)state;
    int exact = 0, relaxed = 0;
    for (int i = 0; spec_methods()[i]; i++) {
        const spec_method *m = spec_methods()[i];
        double parameter[SPEC_PARAMETERS_MAX];
        if (!(m->tokens & SPEC_DISCRETE)) continue;
        defaults(m, parameter);
        each_case(m, parameter, m->exact ? check_exact : check_bound);
        if (m->exact) {
            exact++;
            continue;
        }
        relaxed++;
        wrong = 0;
        each_case(m, parameter, count_wrong);
        if (wrong == 0) fail_msg("%s: is relaxed, yet its law is the target's", m->name);
        parameter[m->neighbours ? 1 : 0] = m->neighbours ? 0 : 1; /* no relaxation left */
        if (strncmp(m->name, "cool", 4) != 0) each_case(m, parameter, check_exact);
    }
    assert_int_equal(exact, 3);
    assert_int_equal(relaxed, 7);
}

/* --- the code path: one round drawn, extended from p as the enumeration is --- */

static double drawn_round_p(enumeration *e, int rounds)
{
    const int n = e->length + 1;
    const long cells = toy_sequences(e->p, n);
    const spec_model target = {e->p->size, (void *)e->p, toy_laws}, draft = {e->q->size, (void *)e->q, toy_laws};
    const spec_sampler_options options = {.method = e->m,
                                          .parameter = e->parameter,
                                          .length = e->length,
                                          .neighbours = e->neighbours,
                                          .neighbour_count = e->p->size,
                                          .seed = 2024};
    spec_sampler *s = spec_sampler_create(&target, &draft, &options);
    long *count = calloc((size_t)cells, sizeof *count);
    double tokens = 0, squares = 0;
    for (int i = 0; i < rounds; i++) {
        int x[LENGTH + 1];
        spec_sampler_begin(s, (uint64_t)i, x, n);
        assert_int_equal(spec_sampler_round(s), 0);
        tokens += s->known, squares += s->known * s->known;
        for (int j = s->known; j < n; j++) {
            const spec_address a = {4202, (uint64_t)i, (uint32_t)j, 0};
            x[j] = spec_law_draw(toy_law(e->p, x, j), e->p->size, NULL, 0, kern_uniform_at(&a, KERN_NOISE_STEP, 0));
        }
        count[toy_number(e->p, x, n)]++;
    }
    const double p = stat_chi2_p(count, e->law, (int)cells);
    const double mean = tokens / rounds, deviation = sqrt((squares / rounds - mean * mean) / rounds);
    if (!(fabs(mean - e->expected) < 5 * deviation))
        fail_msg("%s: %g tokens a round, Eq. 3 says %g", e->m->name, mean, e->expected);
    free(count);
    spec_sampler_free(s);
    return p;
}

/* A million rounds of each method; p < 10^-6 would be a false alarm once in 10^5 choices of the seed. */
static void rounds_follow_the_enumeration(void **state)
{
    (void)state;
    int table[16];
    double law[256], parameter[SPEC_PARAMETERS_MAX];
    toy *p = toy_create(4, 3, 30, 1, NULL, 0), *q = toy_create(4, 3, 31, 1, p, 0);
    circle(4, table);
    for (int i = 0; spec_methods()[i]; i++) {
        enumeration e = {.m = spec_methods()[i],
                         .parameter = parameter,
                         .p = p,
                         .q = q,
                         .length = 3,
                         .law = law,
                         .neighbours = table};
        if (!(e.m->tokens & SPEC_DISCRETE) || e.m->stale) continue;
        defaults(e.m, parameter);
        if (e.m->neighbours) parameter[0] = 3;
        run(&e);
        const double p_value = drawn_round_p(&e, 1000000);
        if (!(p_value > 1e-6)) fail_msg("%s: p = %g", e.m->name, p_value);
    }
    toy_free(p), toy_free(q);
}

/* --- mutants --- */

static double swapped_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)s, (void)parameter, (void)x;
    return fmin(0, -log_ratio);
}

static double always(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)s, (void)parameter, (void)x, (void)log_ratio;
    return 0;
}

static double keep_all(const spec_site *s, const double *parameter, int candidate, int rejected, double log_ratio)
{
    (void)s, (void)parameter, (void)candidate, (void)rejected, (void)log_ratio;
    return 0;
}

static double keep_swapped(const spec_site *s, const double *parameter, int candidate, int rejected, double log_ratio)
{
    (void)s, (void)parameter, (void)candidate, (void)rejected;
    return log_ratio < 0 ? log1p(-exp(log_ratio)) : -INFINITY;
}

/* Cool-SD with Norm[p - q]+ where omega < 1. */
static double keep_vanilla(const spec_site *s, const double *parameter, int candidate, int rejected, double log_ratio)
{
    (void)s, (void)parameter, (void)candidate, (void)rejected;
    return log_ratio > 0 ? log1p(-exp(-log_ratio)) : -INFINITY;
}

static void mutants_are_caught(void **state)
{
    (void)state;
    const spec_method *vanilla = spec_method_find("vanilla");
    spec_method mutants[5];
    for (int i = 0; i < 5; i++) mutants[i] = *vanilla;
    mutants[0].log_accept = swapped_accept; /* p and q swapped */
    mutants[1].log_keep = keep_all;         /* residual dropped: the replacement is a draw from p */
    mutants[2].log_keep = keep_swapped;
    mutants[3].log_accept = always;
    mutants[4].log_accept = swapped_accept, mutants[4].log_keep = keep_vanilla;
    for (int i = 0; i < 5; i++) {
        wrong = 0;
        each_case(&mutants[i], NULL, count_wrong);
        if (wrong < 5) fail_msg("mutant %d is caught in %d cases only", i, wrong);
    }
}

/* --- Theorem 2: G* --- */

static uint32_t draws;

static void random_law(const spec_site *s, int node, double *g)
{
    double total = 0;
    (void)node;
    for (int y = 0; y < s->size; y++) {
        uint32_t w[4];
        kern_random_words(17, KERN_NOISE_INIT, draws++, 0, 0, 0, w);
        total += g[y] = pow(-log(kern_uniform(w)), 3); /* rough ones, too */
    }
    for (int y = 0; y < s->size; y++) g[y] /= total;
}

/* G* of the method in force, pushed a little towards a random law. */
static const enumeration *pushed;

static void near_best(const spec_site *s, int node, double *g)
{
    double other[MOST], total = 0;
    random_law(s, node, other);
    for (int y = 0; y < s->size; y++) total += spec_residual_weight(pushed->m, pushed->parameter, s, y, 0);
    for (int y = 0; y < s->size; y++)
        g[y] = 0.95 * spec_residual_weight(pushed->m, pushed->parameter, s, y, 0) / total + 0.05 * other[y];
}

static void best_resampler(void **state)
{
    (void)state;
    static const char *const names[] = {"uniform-rsd", "cool-sd-exp", "lantern-gstar", "lantern-pp-gstar", "vanilla"};
    int table[MOST * MOST];
    double law[256];
    circle(4, table);
    for (int i = 0; i < 5; i++) {
        double parameter[SPEC_PARAMETERS_MAX];
        toy *p = toy_create(4, 3, 40, 1, NULL, 0), *q = toy_create(4, 3, 41, 1, p, 0);
        enumeration e = {.m = spec_method_find(names[i]),
                         .parameter = parameter,
                         .p = p,
                         .q = q,
                         .length = 3,
                         .law = law,
                         .neighbours = table};
        defaults(e.m, parameter);
        run(&e);
        const double best = e.bound;
        pushed = &e;
        for (int trial = 0; trial < 200; trial++) {
            e.g = trial % 2 ? near_best : random_law;
            run(&e);
            if (!(e.bound > best)) fail_msg("%s: a random G has bound %g, G* %g", names[i], e.bound, best);
        }
        toy_free(p), toy_free(q);
    }
}

/* Minimisers of the bound are not unique: any G on the tokens with p > q f that gives none of them more than p - q f
 * after the rejection. LANTERN's own is one, too: with w_r the mass of the rejection of r, what it leaves outside A(r)
 * of [p - q]+ is at least the sum of all w. So at equal E[tau] the bound cannot tell it from G*. The total variation
 * itself can (Cool-SD Fig. 4). */
static void lantern_against_best_resampler(void **state)
{
    (void)state;
    int table[16];
    double law[256], parameter[] = {4, 0.2}, own = 0, best = 0;
    circle(4, table);
    for (uint64_t seed = 0; seed < 50; seed++) {
        toy *p = toy_create(4, 3, 50 + seed, 1, NULL, 0), *q = toy_create(4, 3, 150 + seed, 1.5, p, 0);
        enumeration e = {.m = spec_method_find("lantern"),
                         .parameter = parameter,
                         .p = p,
                         .q = q,
                         .length = 3,
                         .law = law,
                         .neighbours = table};
        run(&e);
        const double tau = e.expected, bound = e.bound;
        own += total_variation(&e);
        e.m = spec_method_find("lantern-gstar");
        run(&e);
        best += total_variation(&e);
        assert_true(fabs(e.expected - tau) < 1e-12);
        assert_true(fabs(e.bound - bound) < 1e-6);
        toy_free(p), toy_free(q);
    }
    if (!(best < 0.97 * own)) fail_msg("total variation %g with G*, %g with LANTERN's", best, own);
}

/* --- Proposition 1, and where it does not apply --- */

static double resampler_distance(const spec_method *m, const double *parameter, const spec_site *s)
{
    const spec_method *vanilla = spec_method_find("vanilla");
    double a[MOST], b[MOST], a_sum = 0, b_sum = 0, distance = 0;
    for (int y = 0; y < s->size; y++) {
        a_sum += a[y] = spec_residual_weight(m, parameter, s, y, 0);
        b_sum += b[y] = spec_residual_weight(vanilla, NULL, s, y, 0);
    }
    for (int y = 0; y < s->size; y++) distance += 0.5 * fabs(a[y] / a_sum - b[y] / b_sum);
    return distance;
}

static void proposition_1(void **state)
{
    (void)state;
    static const double omega[] = {2.85, 1.42, 0.70, 0.35, 0.17}; /* of delta 1.1, nu 0.7, L 5 */
    const double cool[] = {1.1, 0.7}, uniform[] = {1.3}, tight[] = {0.7};
    const spec_method *exp_ = spec_method_find("cool-sd-exp"), *rsd = spec_method_find("uniform-rsd");
    toy *p = toy_create(5, 2, 60, 1, NULL, 0), *q = toy_create(5, 2, 61, 1, p, 0);
    const float q_all[] = {-1, -1};
    for (int i = 0; i < 5; i++) {
        const spec_site far = {
            .size = 2, .log_p = (const float[]){-9, -9}, .log_q = q_all, .index = i + 1, .length = 5};
        const double f = exp_->log_accept(&far, cool, (spec_token){.id = 0}, -8);
        assert_true(fabs(exp(f + 8) - omega[i]) < 0.011);
        const int x[2] = {i % 5, (i + 2) % 5};
        spec_site s = {.size = 5, .log_p = toy_law(p, x, 2), .log_q = toy_law(q, x, 2), .index = i + 1, .length = 5};
        const double distance = resampler_distance(exp_, cool, &s);
        if (omega[i] > 1)
            assert_true(distance < 1e-12);
        else
            assert_true(distance > 1e-3);
        assert_true(resampler_distance(rsd, uniform, &s) < 1e-12);
        assert_true(resampler_distance(rsd, tight, &s) > 1e-3);
    }
    toy_free(p), toy_free(q);
}

/* The linear schedule: 1.1 * 5 * (8 - i) / 25 at l = 8; nothing is accepted from i = l on. */
static void linear_schedule(void **state)
{
    (void)state;
    const spec_method *m = spec_method_find("cool-sd-linear");
    const double parameter[] = {1.1, 8};
    spec_site s = {.length = 5};
    for (s.index = 1; s.index <= 5; s.index++)
        assert_true(fabs(m->log_accept(&s, parameter, (spec_token){.id = 0}, -8) + 8 - log(0.22 * (8 - s.index))) <
                    1e-12);
    s.index = 8, s.length = 9;
    assert_true(m->log_accept(&s, parameter, (spec_token){.id = 0}, 3) == -INFINITY);
}

/* The mutant: a cooled schedule with vanilla's resampler has the larger bound. */
static void cool_sd_needs_the_general_resampler(void **state)
{
    (void)state;
    const double parameter[] = {1.1, 0.7};
    double law[4096];
    toy *p = toy_create(3, 5, 62, 1, NULL, 0), *q = toy_create(3, 5, 63, 0.7, p, 0);
    enumeration e = {
        .m = spec_method_find("cool-sd-exp"), .parameter = parameter, .p = p, .q = q, .length = 5, .law = law};
    run(&e);
    const double best = e.bound;
    spec_method mutant = *e.m;
    mutant.log_keep = keep_vanilla;
    e.m = &mutant;
    run(&e);
    assert_true(e.bound > best * 1.01);
    toy_free(p), toy_free(q);
}

/* --- Proposition 2 --- */

/* One node of a model that meets the proposition's assumptions: half of q's mass where p >= q f, TV below 2/5. */
static void halved(uint64_t number, float *p, float *q)
{
    double u[4], half[2];
    for (int i = 0; i < 4; i++) {
        uint32_t w[4];
        kern_random_words(77, KERN_NOISE_INIT, number, (uint32_t)i, 0, 0, w);
        u[i] = kern_uniform(w);
    }
    const double moved = 0.05 + 0.3 * u[2];
    half[0] = 0.15 + 0.2 * u[0], half[1] = 0.15 + 0.2 * u[1];
    const double mass[] = {half[0], 0.5 - half[0], half[1], 0.5 - half[1]};
    for (int i = 0; i < 4; i++) {
        q[i] = (float)log(mass[i]);
        p[i] = (float)log(mass[i] * (1 + (i < 2 ? 2 : -2) * moved));
    }
}

static void proposition_2(void **state)
{
    (void)state;
    const double parameter[] = {1.3};
    double law[64];
    toy *p = toy_create(4, 2, 1, 0, NULL, 0), *q = toy_create(4, 2, 1, 0, NULL, 0);
    for (int trial = 0; trial < 200; trial++) {
        for (long node = 0; node < p->nodes; node++)
            halved((uint64_t)(trial * 1000 + node), p->log_law + 4 * node, q->log_law + 4 * node);
        enumeration e = {
            .m = spec_method_find("uniform-rsd"), .parameter = parameter, .p = p, .q = q, .length = 2, .law = law};
        double f1 = 0, f2 = 0, bound[2], expected[2]; /* E[f1], E[f2] under q */
        for (int a = 0; a < 4; a++) {
            const spec_site s1 = site_at(&e, &a, 0), s2 = site_at(&e, &a, 1);
            f1 += exp((double)s1.log_q[a]) * accept_of(&e, &s1, a);
            for (int b = 0; b < 4; b++)
                f2 += exp((double)s1.log_q[a]) * exp((double)s2.log_q[b]) * accept_of(&e, &s2, b);
        }
        run(&e);
        const double plain = e.expected;
        for (int sign = 0; sign < 2; sign++) {                                    /* annealed, then the reverse */
            const double c2 = sign ? 0.01 : -0.01, c1 = -f1 * c2 / (1 + f2 + c2); /* Eq. 59 */
            e.perturbation[0] = c1, e.perturbation[1] = c2;
            run(&e);
            bound[sign] = e.bound, expected[sign] = e.expected;
        }
        assert_true(fabs(expected[0] - plain) < 1e-6 && fabs(expected[1] - plain) < 1e-6);
        assert_true(bound[0] < bound[1]);
    }
    toy_free(p), toy_free(q);
}

/* The schedule itself: falling omega against the same omega rising, each at the budget that gives E[tau + 1] = 3.2. */
static double bound_at_equal_length(enumeration *e, double nu)
{
    double parameter[2] = {1, nu}, low = 0.01, high = 100;
    e->parameter = parameter;
    for (int i = 0; i < 40; i++) {
        parameter[0] = sqrt(low * high);
        run(e);
        if (e->expected > 3.2)
            high = parameter[0];
        else
            low = parameter[0];
    }
    assert_true(fabs(e->expected - 3.2) < 1e-6);
    return e->bound;
}

static void annealing_pays(void **state)
{
    (void)state;
    double law[729], falling = 0, rising = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        toy *p = toy_create(3, 4, 70 + seed, 1, NULL, 0), *q = toy_create(3, 4, 170 + seed, 0.8, p, 0);
        enumeration e = {.m = spec_method_find("cool-sd-exp"), .p = p, .q = q, .length = 4, .law = law};
        falling += bound_at_equal_length(&e, 0.3);
        rising += bound_at_equal_length(&e, -0.3);
        toy_free(p), toy_free(q);
    }
    assert_true(falling < rising);
}

/* --- LANTERN's neighbourhoods --- */

static void neighbour_sets(void **state)
{
    (void)state;
    enum { SIZE = 64, DIM = 3, K = 20 };
    float codebook[SIZE * DIM];
    int table[SIZE * K];
    const double delta = 0.2;
    for (int i = 0; i < SIZE; i++)
        for (int j = 0; j < DIM; j++) {
            uint32_t w[4];
            kern_random_words(3, KERN_NOISE_INIT, (uint64_t)i, (uint32_t)j, 0, 0, w);
            codebook[i * DIM + j] = (float)(w[0] >> 24);
        }
    memcpy(codebook + 7 * DIM, codebook + 3 * DIM, DIM * sizeof *codebook); /* twins: each is its own nearest */
    assert_int_equal(spec_neighbour_table(codebook, SIZE, DIM, K, table), 0);
    assert_int_equal(table[7 * K], 7);
    assert_int_equal(table[7 * K + 1], 3);
    toy *p = toy_create(SIZE, 0, 80, 2, NULL, 0);
    const spec_site s = {
        .size = SIZE, .log_p = p->log_law, .log_q = p->log_law, .neighbours = table, .neighbour_count = K};
    int stopped = 0;
    for (int x = 0; x < SIZE; x++) {
        double distance[K], others = 0, sum;
        for (int i = 0; i < K; i++) {
            distance[i] = 0;
            for (int j = 0; j < DIM; j++)
                distance[i] += pow(codebook[x * DIM + j] - codebook[table[x * K + i] * DIM + j], 2);
            assert_true(i == 0 ? table[x * K] == x : distance[i] >= distance[i - 1]);
        }
        const int count = spec_neighbour_set(&s, x, K, delta, &sum);
        for (int i = 1; i < count; i++) others += exp((double)s.log_p[table[x * K + i]]);
        assert_true(others < delta); /* the TVD of p and p with A's mass on x */
        assert_true(fabs(sum - others - exp((double)s.log_p[x])) < 1e-12);
        if (count < K) {
            stopped++;
            assert_true(others + exp((double)s.log_p[table[x * K + count]]) >= delta);
        }
        assert_int_equal(spec_neighbour_set(&s, x, 5, 2, &sum), 5); /* k counts x itself */
        assert_int_equal(spec_neighbour_set(&s, x, K, 0, &sum), 1);
    }
    assert_true(stopped > SIZE / 2);
    toy_free(p);
}

/* --- children without replacement: SJD-PAC Eq. 7 and 8 --- */

/* The law of one position whose next child is drawn from log_q, `left` children in all: every child, every decision. */
static void children(const enumeration *e, const float *log_p, const float *log_q, int left, double weight, double *law)
{
    const int size = e->p->size;
    spec_site s = site_at(e, NULL, 0);
    s.log_p = log_p, s.log_q = log_q;
    for (int x = 0; x < size; x++) {
        const double q = exp((double)log_q[x]), f = accept_of(e, &s, x);
        double rest = 0, g[MOST];
        float next_p[MOST], next_q[MOST];
        if (q == 0) continue;
        law[x] += weight * q * f;
        if (f == 1) continue;
        assert_true(resample(e, &s, x, g));
        for (int y = 0; y < size; y++) rest += y == x ? 0 : exp((double)log_q[y]);
        for (int y = 0; y < size; y++) {
            next_p[y] = (float)log(g[y]);
            next_q[y] = y == x ? -INFINITY : (float)(log_q[y] - log(rest));
        }
        if (left > 1)
            children(e, next_p, next_q, left - 1, weight * q * (1 - f), law);
        else
            for (int y = 0; y < size; y++) law[y] += weight * q * (1 - f) * g[y];
    }
}

/* The same from the sampler: one token, `count` drafts of it. */
static double drawn_children_p(const enumeration *e, int count, const double *law)
{
    static const int parent[] = {-1, -1, -1, -1};
    const spec_model target = {MOST, (void *)e->p, toy_laws}, draft = {MOST, (void *)e->q, toy_laws};
    const spec_sampler_options options = {.method = e->m,
                                          .parameter = e->parameter,
                                          .length = 1,
                                          .parent = parent,
                                          .count = count,
                                          .neighbours = e->neighbours,
                                          .neighbour_count = MOST,
                                          .seed = 606};
    spec_sampler *s = spec_sampler_create(&target, &draft, &options);
    long drawn[MOST] = {0};
    for (int i = 0; i < 40000; i++) {
        int x;
        spec_sampler_begin(s, (uint64_t)i, &x, 1);
        assert_int_equal(spec_sampler_round(s), 0);
        drawn[x]++;
    }
    spec_sampler_free(s);
    return stat_chi2_p(drawn, law, MOST);
}

/* Exact methods give p for any number of children; UniformRSD with delta < 1 does, too, and leaves the rejected token
 * in the residual, where q no longer has it. Relaxed ones give what the enumeration says. */
static void siblings(void **state)
{
    (void)state;
    int table[MOST * MOST];
    double parameter[SPEC_PARAMETERS_MAX];
    circle(MOST, table);
    for (int i = 0; spec_methods()[i]; i++)
        for (int tight = 0; tight < 2; tight++)
            for (int count = 1; count <= 4; count++) {
                toy *p = toy_create(MOST, 0, 92, 1, NULL, 0), *q = toy_create(MOST, 0, 193, 1.5, p, 0);
                double law[MOST] = {0};
                const enumeration e = {
                    .m = spec_methods()[i], .parameter = parameter, .p = p, .q = q, .length = 1, .neighbours = table};
                const int scaled = strcmp(e.m->name, "uniform-rsd") == 0;
                if (e.m->tokens & SPEC_DISCRETE && (scaled || !tight)) {
                    defaults(e.m, parameter);
                    if (e.m->neighbours) parameter[0] = 3;
                    if (tight) parameter[0] = 0.6;
                    children(&e, p->log_law, q->log_law, count, 1, law);
                    for (int x = 0; x < MOST && (e.m->exact || tight); x++)
                        assert_true(fabs(law[x] - exp((double)p->log_law[x])) < 1e-6);
                    if (!e.m->stale) {
                        const double p_value = drawn_children_p(&e, count, law);
                        if (!(p_value > 1e-6)) fail_msg("%s, %d children: p = %g", e.m->name, count, p_value);
                    }
                }
                toy_free(p), toy_free(q);
            }
}

/* --- continuous SD Eq. 35 --- */

static void walltime_formula(void **state)
{
    (void)state;
    enum { ROUNDS = 200000 };
    assert_true(spec_walltime_improvement(1, 8, 0) == 9);
    assert_true(fabs(spec_walltime_improvement(0.999999, 8, 0.1) - 5) < 1e-4);
    for (int gamma = 4; gamma <= 32; gamma *= 2) { /* a process of independent acceptances, in target calls */
        const double alpha = 0.7, c = 0.38;
        double tokens = 0;
        uint32_t w[4];
        for (int i = 0; i < ROUNDS; i++) {
            int tau = 0;
            while (tau < gamma) {
                kern_random_words(8, KERN_NOISE_VERIFY, (uint64_t)i, (uint32_t)tau, (uint32_t)gamma, 0, w);
                if (kern_uniform(w) >= alpha) break;
                tau++;
            }
            tokens += tau + 1;
        }
        const double simulated = tokens / (ROUNDS * (gamma * c + 1));
        assert_true(fabs(simulated / spec_walltime_improvement(alpha, gamma, c) - 1) < 0.01); /* 6 sigma */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(laws_of_all_methods),
        cmocka_unit_test(rounds_follow_the_enumeration),
        cmocka_unit_test(mutants_are_caught),
        cmocka_unit_test(best_resampler),
        cmocka_unit_test(lantern_against_best_resampler),
        cmocka_unit_test(proposition_1),
        cmocka_unit_test(linear_schedule),
        cmocka_unit_test(cool_sd_needs_the_general_resampler),
        cmocka_unit_test(proposition_2),
        cmocka_unit_test(annealing_pays),
        cmocka_unit_test(neighbour_sets),
        cmocka_unit_test(siblings),
        cmocka_unit_test(walltime_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
