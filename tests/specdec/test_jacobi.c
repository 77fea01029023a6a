/* Jacobi decoding: compares its rounds with an enumeration by the definitions, and checks the purpose of each method.
 * test_laws.c checks that its sequences have the target's distribution. */
#include "tests/support/discrete.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 3, LENGTH = 4 };

/* Enumeration of all drafts, decisions and replacements of every round. It knows the distribution behind each draft. */
typedef struct {
    const spec_method *m;
    const toy *p;
    double rounds, total;
} enumeration;

/* Sequence with `known` final tokens. The others are drafts; token i was drawn from q[i]. */
typedef struct {
    int known;
    int token[LENGTH];
    const float *q[LENGTH];
    double weight;
} jacobi_state;

static void round_of(enumeration *e, const jacobi_state *w);

/* Decides position i of a round that turns `w` into `next`. `first` is the first rejection, LENGTH if there is none
 * yet. */
static void position(enumeration *e, const jacobi_state *w, jacobi_state next, int i, int first)
{
    if (i == LENGTH) {
        jacobi_state copy = next; /* not `next` itself: GCC 12 made a loop of the recursion, and `next` changed in it */
        copy.known = first < LENGTH ? first + 1 : LENGTH;
        round_of(e, &copy);
        return;
    }
    position_laws s = {.size = SIZE};
    const float *log_p = toy_law(e->p, w->token, i);
    for (int y = 0; y < SIZE; y++) s.p[y] = exp((double)log_p[y]), s.q[y] = exp((double)w->q[i][y]);
    const double weight = next.weight;
    next.q[i] = log_p;
    if (first < LENGTH && e->m->policy == SPEC_STOP) { /* drawn anew */
        for (int y = 0; y < SIZE; y++) {
            next.token[i] = y;
            next.weight = weight * s.p[y];
            position(e, w, next, i + 1, first);
        }
        return;
    }
    double g[SIZE];
    const double f = plain_accept(&s, w->token[i]), total = plain_residual(&s, w->token[i], g);
    next.token[i] = w->token[i];
    next.weight = weight * f;
    if (f > 0) position(e, w, next, i + 1, first);
    for (int y = 0; y < SIZE && f < 1; y++) {
        next.token[i] = y;
        next.weight = weight * (1 - f) * g[y] / total;
        if (g[y] > 0) position(e, w, next, i + 1, first < LENGTH ? first : i);
    }
}

static void round_of(enumeration *e, const jacobi_state *w)
{
    if (w->known == LENGTH) {
        e->total += w->weight;
        return;
    }
    e->rounds += w->weight;
    position(e, w, *w, w->known, LENGTH);
}

static double mean_rounds(const spec_method *m, const toy *p)
{
    const float uniform[SIZE] = {-1.0986123f, -1.0986123f, -1.0986123f};
    enumeration e = {m, p, 0, 0};
    for (int n = 0; n < 81; n++) {
        jacobi_state w = {.weight = 1.0 / 81};
        for (int i = LENGTH - 1, rest = n; i >= 0; i--, rest /= SIZE) w.token[i] = rest % SIZE, w.q[i] = uniform;
        round_of(&e, &w);
    }
    assert_true(fabs(e.total - 1) < 1e-6);
    return e.rounds;
}

typedef struct {
    sampling g;
    double rounds;
} real_rounds;

static void one_run(void *arg)
{
    sampling_run(&((real_rounds *)arg)->g, 0, 1, LENGTH);
}

static void one_result(void *arg, double weight)
{
    real_rounds *r = arg;
    r->rounds += weight * (double)spec_sampler_get_stats(r->g.s)->rounds;
}

TEST_CASE(as_many_rounds_as_the_definitions_say)
{
    static const char *const names[] = {"sjd", "sjd-pac"};
    const double no_tree[] = {1, 0, 1};
    for (int m = 0; m < 2; m++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            toy *p = toy_create(SIZE, LENGTH, seed, 1, NULL, 0);
            const spec_model target = {SIZE, p, toy_laws, NULL};
            const spec_sampler_options o = {
                .method = spec_method_find(names[m]), .parameter = no_tree, .length = LENGTH};
            real_rounds r = {.rounds = 0};
            sampling_open(&r.g, 1);
            script_install(&r.g, FAULT_NONE);
            sampling_create(&r.g, &target, NULL, &o, 1, LENGTH);
            script_each(one_run, one_result, &r);
            sampling_close(&r.g);
            const double expected = mean_rounds(o.method, p);
            if (!(fabs(r.rounds - expected) < 1e-5))
                fail_msg("%s: %g rounds, expected %g", names[m], r.rounds, expected);
            toy_free(p);
        }
}

/* --- a longer model: each distribution depends on the token before ------------------------------------------------ */

enum { SEQUENCES = 64, TOKENS = 64 };

static double tokens_per_round(toy *t, const char *name, const double *parameter, spec_first first)
{
    const spec_model target = {t->size, t, toy_laws, NULL};
    const spec_sampler_options o = {
        .method = spec_method_find(name), .parameter = parameter, .length = 32, .first = first, .side = 8};
    sampling g;
    sampling_open(&g, 1);
    sampling_create(&g, &target, NULL, &o, SEQUENCES, TOKENS);
    g.start.seed = 5;
    sampling_run(&g, 0, SEQUENCES, TOKENS);
    const double rounds = (double)spec_sampler_get_stats(g.s)->rounds;
    sampling_close(&g);
    return SEQUENCES * TOKENS / rounds;
}

/* Checks the purpose of the methods (SJD-PAC Table 2). Continuing behind a rejection (AC) saves rounds. The tree (PD)
 * saves some with and without AC. */
TEST_CASE(continuation_and_tree_pay)
{
    toy *t = toy_create(16, 1, 9, 1.2, NULL, 0);
    t->markov = 1;
    const double neither[] = {1, 0, 0}, ac[] = {1, 0, 1}, pd[] = {4, 2, 0}, both[] = {4, 2, 1};
    const double plain = tokens_per_round(t, "sjd", NULL, SPEC_FIRST_UNIFORM),
                 off = tokens_per_round(t, "sjd-pac", neither, SPEC_FIRST_UNIFORM),
                 go_on = tokens_per_round(t, "sjd-pac", ac, SPEC_FIRST_UNIFORM),
                 tree = tokens_per_round(t, "sjd-pac", pd, SPEC_FIRST_UNIFORM),
                 all = tokens_per_round(t, "sjd-pac", both, SPEC_FIRST_UNIFORM);
    if (!(plain > 1.5 && off == plain && go_on > 1.3 * plain && tree > 1.1 * plain && all > 1.02 * go_on && all > tree))
        fail_msg("tokens a round: sjd %g, neither %g, AC %g, PD %g, both %g", plain, off, go_on, tree, all);
    toy_free(t);
}

/* Keeping the noise saves rounds, with and without a tree. */
TEST_CASE(coupling_pays)
{
    toy *t = toy_create(16, 1, 9, 1.2, NULL, 0);
    t->markov = 1;
    const double chain[] = {1, 0}, tree[] = {4, 2}, pd[] = {4, 2, 0};
    const double sjd = tokens_per_round(t, "sjd", NULL, SPEC_FIRST_UNIFORM),
                 sjd_tree = tokens_per_round(t, "sjd-pac", pd, SPEC_FIRST_UNIFORM),
                 scd = tokens_per_round(t, "scd", chain, SPEC_FIRST_UNIFORM),
                 scd_tree = tokens_per_round(t, "scd", tree, SPEC_FIRST_UNIFORM);
    if (!(scd > 1.2 * sjd && scd_tree > 1.2 * sjd_tree && scd_tree > scd))
        fail_msg("tokens a round: sjd %g, with a tree %g, scd %g, with a tree %g", sjd, sjd_tree, scd, scd_tree);
    toy_free(t);
}

/* The same draft in two rounds has a probability of at least (1 - TV) / (1 + TV). */
TEST_CASE(a_race_couples_distributions)
{
    enum { POSITIONS = 4000, ROWS = 2 * POSITIONS };
    int source[ROWS], wanted[ROWS], none[ROWS] = {0}, id[ROWS], drawn[ROWS], same = 0;
    kern_address *address = calloc(ROWS, sizeof *address);
    toy *p = toy_create(8, 0, 3, 1, NULL, 0), *q = toy_create(8, 0, 4, 0.5, p, 0);
    float law[16];
    double tv = 0;
    sampling g;
    memcpy(law, p->log_probs, 8 * sizeof *law), memcpy(law + 8, q->log_probs, 8 * sizeof *law);
    for (int x = 0; x < 8; x++) tv += 0.5 * fabs(exp((double)law[x]) - exp((double)law[8 + x]));
    for (int r = 0; r < ROWS; r++) {
        source[r] = r % 2, wanted[r] = 1;
        address[r] = (kern_address){1, 2, (uint32_t)(r / 2), (uint32_t)(r % 2)}; /* two rounds of a position */
    }
    sampling_open(&g, 1);
    g.k->discrete->draw(g.k, &(kern_draw_job){.rows = ROWS,
                                              .size = 8,
                                              .log_probs = law,
                                              .source = source,
                                              .max_draws = 1,
                                              .race = 1,
                                              .given = none,
                                              .wanted = wanted,
                                              .earlier = none,
                                              .address = address,
                                              .id = id,
                                              .drawn = drawn});
    close_queue(g.k);
    for (int r = 0; r < ROWS; r += 2) same += id[r] == id[r + 1];
    const double share = (double)same / POSITIONS;
    if (!(tv > 0.1 && share > (1 - tv) / (1 + tv) - 0.03 && share < 1 - tv + 0.03))
        fail_msg("total variation %g, the same draft in %g", tv, share);
    free(address), toy_free(p), toy_free(q);
}

/* --- the window --- */

enum { DEEPEST = 80, LONG = 200 };

/* A model that records the number of drafts at each depth of the largest request. */
typedef struct {
    toy *t;
    int most, levels[DEEPEST];
} noted;

static mar_status noted_laws(void *state, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    noted *m = state;
    for (int r = 0; r < n; r++) {
        if (request[r].count < m->most) continue;
        m->most = request[r].count;
        memset(m->levels, 0, sizeof m->levels);
        for (int i = 0; i < request[r].count; i++) {
            int depth = 0;
            for (int p = request[r].parent[i]; p >= 0; p = request[r].parent[p]) depth++;
            assert_in_range(depth, 0, DEEPEST - 1);
            m->levels[depth]++;
        }
    }
    return toy_laws(m->t, request, n, log_probs, err);
}

/* Checks that the tree's drafts count in the window. With its L 64, K 4 and D 3, the authors' code has 4, 16 and a
 * chain of 43 drafts behind the token in front. */
TEST_CASE(a_tree_is_part_of_the_window)
{
    static const struct {
        int window, children, depth, levels[3], chain;
    } cases[] = {
        {63, 4, 3, {4, 16}, 43}, {64, 4, 3, {4, 16}, 44}, {64, 4, 4, {4, 16}, 44}, {64, 2, 4, {2, 4, 8}, 50},
        {21, 4, 3, {4, 16}, 1},  {20, 4, 3, {4}, 16},     {5, 4, 3, {4}, 1},       {4, 4, 3, {0}, 4},
        {64, 8, 5, {8}, 56},     {64, 4, 1, {0}, 64},     {64, 4, 0, {0}, 64},     {64, 1, 3, {0}, 64},
    };
    noted m = {.t = toy_create(16, 1, 9, 1.2, NULL, 0)};
    m.t->markov = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double parameter[] = {cases[i].children, cases[i].depth, 1};
        const spec_model target = {16, &m, noted_laws, NULL};
        const spec_sampler_options o = {
            .method = spec_method_find("sjd-pac"), .parameter = parameter, .length = cases[i].window};
        sampling g;
        int depth = 0;
        m.most = 0;
        sampling_open(&g, 1);
        sampling_create(&g, &target, NULL, &o, 1, LONG);
        assert_int_equal(spec_sampler_target_drafts(g.s), cases[i].window);
        assert_int_equal(spec_sampler_draft_drafts(g.s), 0);
        g.start.seed = 5;
        sampling_run(&g, 0, 1, LONG);
        sampling_close(&g);
        assert_int_equal(m.most, cases[i].window);
        for (; depth < 3 && cases[i].levels[depth]; depth++) assert_int_equal(m.levels[depth], cases[i].levels[depth]);
        for (int c = 0; c < cases[i].chain; c++) assert_int_equal(m.levels[depth + c], 1);
        assert_int_equal(m.levels[depth + cases[i].chain], 0);
    }
    toy_free(m.t);
}

/* Where tokens repeat their neighbour, a copy of the neighbour is the better first draft. */
TEST_CASE(copies_of_neighbours_pay)
{
    toy *t = toy_create(16, 1, 9, 0.3, NULL, 0);
    t->markov = 1;
    for (int x = 0; x < 16; x++) { /* repeats the token before with probability 0.9 */
        float *law = t->log_probs + 16 * (1 + x);
        for (int y = 0; y < 16; y++) law[y] = (float)log(y == x ? 0.9 : 0.1 / 15);
    }
    const double uniform = tokens_per_round(t, "sjd", NULL, SPEC_FIRST_UNIFORM),
                 left = tokens_per_round(t, "sjd", NULL, SPEC_FIRST_LEFT);
    if (!(left > 1.05 * uniform)) fail_msg("tokens a round: uniform %g, left %g", uniform, left);
    toy_free(t);
}
