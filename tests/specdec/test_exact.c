/* Discrete methods by enumeration. Computes the law of one round from the definitions of criterion and resampler, over
 * every draft and every decision. Checks the theorems about it, and compares it with the law of the real code. */
#include "tests/support/discrete.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 5, LENGTH = 5 }; /* largest vocabulary, most tokens of a round */

/* Writes G(y) after a rejection. NULL: the method's own G. */
typedef void (*resampler)(const position_laws *s, double *g);

typedef struct {
    const spec_method *m;
    const double *parameter;
    const toy *p, *q;
    int length; /* drafts */
    const int *neighbours;
    resampler g;
    double *law;            /* [size^(length+1)]: the output, extended with tokens from p to length + 1 */
    double expected;        /* Cool-SD Eq. 3: E[tau + 1] */
    double counted;         /* the same, from the decisions */
    double bound;           /* Cool-SD Eq. 4 */
    double perturbation[2]; /* added to f of the first and of the second draft */
} enumeration;

static position_laws laws_at(const enumeration *e, const int *x, int i)
{
    position_laws l = {
        .size = e->p->size, .rule = e->m->discrete_rule(e->parameter, i + 1, e->length), .neighbours = e->neighbours};
    for (int y = 0; y < l.size; y++) {
        l.p[y] = exp((double)toy_law(e->p, x, i)[y]);
        l.q[y] = exp((double)toy_law(e->q, x, i)[y]);
    }
    return l;
}

static double accept_of(const enumeration *e, const position_laws *s, int i, int x)
{
    return plain_accept(s, x) + (i < 2 ? e->perturbation[i] : 0);
}

/* Extends a sequence with tokens from p. Its first i tokens are decided. */
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

static int resample(const enumeration *e, const position_laws *s, int rejected, double *g)
{
    if (e->g) {
        e->g(s, g);
        return 1;
    }
    const double total = plain_residual(s, rejected, g);
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
    const position_laws s = laws_at(e, x, i);
    double gap[MOST], accepted[MOST];
    for (int y = 0; y < s.size; y++) {
        accepted[y] = s.q[y] * accept_of(e, &s, i, y);
        gap[y] = accepted[y] - s.p[y];
    }
    for (int r = 0; r < s.size; r++) {
        double g[MOST], rejected = s.q[r] - accepted[r];
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

/* Runs `check` on every case: sizes 3..5, blocks of up to 4 drafts, spreads from near to far, with zeros too. */
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

/* Checks Theorem 1 for the exact methods, and Theorem 2 with Eq. 3 and 4 for all methods. */
TEST_CASE(laws_of_all_methods)
{
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
    assert_int_equal(exact, 4);
    assert_int_equal(relaxed, 7);
}

/* --- the real code --- */

TEST_CASE(the_code_follows_the_definitions)
{
    int table[16];
    double law[64], parameter[SPEC_PARAMETERS_MAX];
    circle(4, table);
    for (int i = 0; spec_methods()[i]; i++)
        for (uint64_t seed = 0; seed < 6; seed++) {
            toy *p = toy_create(4, 2, 30 + seed, 1, NULL, seed == 5), *q = toy_create(4, 2, 130 + seed, 1, p, 0);
            enumeration e = {.m = spec_methods()[i],
                             .parameter = parameter,
                             .p = p,
                             .q = q,
                             .length = 2,
                             .law = law,
                             .neighbours = table};
            if (e.m->tokens & SPEC_DISCRETE && !e.m->stale) {
                double real[64];
                defaults(e.m, parameter);
                if (e.m->neighbours) parameter[0] = seed % 2 ? 3 : 4;
                run(&e);
                const double expected = round_law(
                    p, q,
                    &(spec_sampler_options){
                        .method = e.m, .parameter = parameter, .length = 2, .neighbours = table, .neighbour_count = 4},
                    3, real);
                for (int x = 0; x < 64; x++)
                    if (!(fabs(real[x] - law[x]) < 1e-6))
                        fail_msg("%s, sequence %d: %g, by the definitions %g", e.m->name, x, real[x], law[x]);
                assert_true(fabs(expected - e.expected) < 2e-6);
            }
            toy_free(p), toy_free(q);
        }
}

/* --- Theorem 2: G* --- */

static uint32_t draws;

static void random_law(const position_laws *s, double *g)
{
    double total = 0;
    for (int y = 0; y < s->size; y++) {
        uint32_t w[4];
        kern_random_words(17, KERN_NOISE_INIT, draws++, 0, 0, 0, w);
        total += g[y] = pow(-log(kern_uniform(w)), 3); /* rough distributions are included */
    }
    for (int y = 0; y < s->size; y++) g[y] /= total;
}

/* Writes G* of the method under test, moved a little towards a random distribution. */
static void near_best(const position_laws *s, double *g)
{
    double other[MOST];
    random_law(s, other);
    const double total = plain_residual(s, 0, g);
    for (int y = 0; y < s->size; y++) g[y] = 0.95 * g[y] / total + 0.05 * other[y];
}

TEST_CASE(best_resampler)
{
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
        for (int trial = 0; trial < 200; trial++) {
            e.g = trial % 2 ? near_best : random_law;
            run(&e);
            if (!(e.bound > best)) fail_msg("%s: a random G has bound %g, G* %g", names[i], e.bound, best);
        }
        toy_free(p), toy_free(q);
    }
}

/* The bound has several minimisers: any G on the tokens with p > q f that gives each at most p - q f after the
 * rejection. LANTERN's own resampler is one. Let w_r be the mass of the rejection of r: what it leaves of [p - q]+
 * outside A(r) is at least the sum of all w. So at equal E[tau] the bound cannot tell it from G*. The total variation
 * itself can (Cool-SD Fig. 4). */
TEST_CASE(lantern_against_best_resampler)
{
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

static double resampler_distance(const spec_method *m, const double *parameter, position_laws s, int i)
{
    double a[MOST], b[MOST], distance = 0;
    s.rule = m->discrete_rule(parameter, i + 1, 5);
    const double a_sum = plain_residual(&s, 0, a);
    s.rule = spec_method_find("vanilla")->discrete_rule(NULL, i + 1, 5);
    const double b_sum = plain_residual(&s, 0, b);
    for (int y = 0; y < s.size; y++) distance += 0.5 * fabs(a[y] / a_sum - b[y] / b_sum);
    return distance;
}

TEST_CASE(proposition_1)
{
    static const double omega[] = {2.85, 1.42, 0.70, 0.35, 0.17}; /* of delta 1.1, nu 0.7, L 5 */
    const double cool[] = {1.1, 0.7}, uniform[] = {1.3}, tight[] = {0.7};
    const spec_method *exp_ = spec_method_find("cool-sd-exp"), *rsd = spec_method_find("uniform-rsd");
    toy *p = toy_create(5, 2, 60, 1, NULL, 0), *q = toy_create(5, 2, 61, 1, p, 0);
    const enumeration e = {.m = exp_, .parameter = cool, .p = p, .q = q, .length = 5};
    for (int i = 0; i < 5; i++) {
        assert_true(fabs(exp(exp_->discrete_rule(cool, i + 1, 5).log_omega) - omega[i]) < 0.011);
        const int x[2] = {i % 5, (i + 2) % 5};
        const position_laws s = laws_at(&e, x, 2);
        const double distance = resampler_distance(exp_, cool, s, i);
        if (omega[i] > 1)
            assert_true(distance < 1e-12);
        else
            assert_true(distance > 1e-3);
        assert_true(resampler_distance(rsd, uniform, s, i) < 1e-12);
        assert_true(resampler_distance(rsd, tight, s, i) > 1e-3);
    }
    toy_free(p), toy_free(q);
}

/* The linear schedule: 1.1 * 5 * (8 - i) / 25 at l = 8. Nothing is accepted from i = l on. */
TEST_CASE(linear_schedule)
{
    const spec_method *m = spec_method_find("cool-sd-linear");
    const double parameter[] = {1.1, 8};
    for (int i = 1; i <= 5; i++)
        assert_true(fabs(m->discrete_rule(parameter, i, 5).log_omega - log(0.22 * (8 - i))) < 1e-12);
    assert_true(m->discrete_rule(parameter, 8, 9).log_omega == -INFINITY);
    const double defaults[] = {m->parameters[0].value,
                               m->parameters[1].value}; /* the last draft of 8 can be accepted */
    assert_true(fabs(m->discrete_rule(defaults, 8, 8).log_omega - log(1.1 * 8 / 36)) < 1e-12);
}

/* The mutant: a cooled schedule with vanilla's resampler has the larger bound. */
static void vanilla_residual(const position_laws *s, double *g)
{
    double total = 0;
    for (int y = 0; y < s->size; y++) total += g[y] = fmax(0, s->p[y] - s->q[y]);
    for (int y = 0; y < s->size; y++) g[y] /= total;
}

TEST_CASE(cool_sd_needs_the_general_resampler)
{
    const double parameter[] = {1.1, 0.7};
    double law[4096];
    toy *p = toy_create(3, 5, 62, 1, NULL, 0), *q = toy_create(3, 5, 63, 0.7, p, 0);
    enumeration e = {
        .m = spec_method_find("cool-sd-exp"), .parameter = parameter, .p = p, .q = q, .length = 5, .law = law};
    run(&e);
    const double best = e.bound;
    e.g = vanilla_residual;
    run(&e);
    assert_true(e.bound > best * 1.01);
    toy_free(p), toy_free(q);
}

/* --- Proposition 2 --- */

/* Makes one node of a model that meets the proposition's assumptions: half of q's mass where p >= q f, TV below 2/5. */
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

TEST_CASE(proposition_2)
{
    const double parameter[] = {1.3};
    double law[64];
    toy *p = toy_create(4, 2, 1, 0, NULL, 0), *q = toy_create(4, 2, 1, 0, NULL, 0);
    for (int trial = 0; trial < 200; trial++) {
        for (long node = 0; node < p->nodes; node++)
            halved((uint64_t)(trial * 1000 + node), p->log_probs + 4 * node, q->log_probs + 4 * node);
        enumeration e = {
            .m = spec_method_find("uniform-rsd"), .parameter = parameter, .p = p, .q = q, .length = 2, .law = law};
        double f1 = 0, f2 = 0, bound[2], expected[2]; /* E[f1], E[f2] under q */
        for (int a = 0; a < 4; a++) {
            const position_laws s1 = laws_at(&e, &a, 0), s2 = laws_at(&e, &a, 1);
            f1 += s1.q[a] * accept_of(&e, &s1, 0, a);
            for (int b = 0; b < 4; b++) f2 += s1.q[a] * s2.q[b] * accept_of(&e, &s2, 1, b);
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

/* Returns the bound of a schedule at the budget that gives E[tau + 1] = 3.2. The test compares falling omega with the
 * same omega rising. */
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

TEST_CASE(annealing_pays)
{
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
