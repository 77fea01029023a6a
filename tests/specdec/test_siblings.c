/* Several drafts of one position. Computes the token's distribution by the definitions, over every draft and every
 * decision, and compares it with the real code's. */
#include "tests/support/discrete.h"
#include "tests/support/support.h"

#include <math.h>
#include <string.h>

enum { SIZE = 4 };

typedef struct {
    const spec_method *m;
    double parameter[SPEC_PARAMETERS_MAX];
    int table[SIZE * SIZE];
    toy *p, *q;
    int exact; /* whether the method is exact with these parameters */
} setup;

/* Sets up a method with its defaults. With `tight`, UniformRSD has delta 0.6 and is exact. It then leaves the rejected
 * token in the residual, where q no longer has it. Returns 0 if the combination does not apply. */
static int set_up(setup *u, const spec_method *m, int tight)
{
    const int scaled = strcmp(m->name, "uniform-rsd") == 0;
    if (!(m->tokens & SPEC_DISCRETE) || m->stale || (tight && !scaled)) return 0;
    *u = (setup){.m = m, .exact = m->exact || tight};
    for (int i = 0; m->parameters[i].name; i++) u->parameter[i] = m->parameters[i].value;
    if (m->neighbours) u->parameter[0] = 3;
    if (tight) u->parameter[0] = 0.6;
    circle(SIZE, u->table);
    u->p = toy_create(SIZE, 1, 92, 1, NULL, 0), u->q = toy_create(SIZE, 1, 193, 1.5, u->p, 0);
    return 1;
}

static position_laws laws_of(const setup *u)
{
    position_laws l = {.size = SIZE, .rule = u->m->discrete_rule(u->parameter, 1, 1), .neighbours = u->table};
    for (int x = 0; x < SIZE; x++) l.p[x] = exp((double)u->p->log_probs[x]), l.q[x] = exp((double)u->q->log_probs[x]);
    return l;
}

/* Compares the distribution of the first token with the real code's, and frees the models. */
static void compare(setup *u, spec_sampler_options o, const double *law)
{
    double sequences[SIZE * SIZE], real[SIZE] = {0};
    o.method = u->m, o.parameter = u->parameter, o.length = 1;
    o.neighbours = u->table, o.neighbour_count = SIZE;
    round_law(u->p, u->q, &o, 2, sequences);
    for (int x = 0; x < SIZE * SIZE; x++) real[x / SIZE] += sequences[x];
    for (int x = 0; x < SIZE; x++) {
        if (u->exact) assert_true(fabs(law[x] - exp((double)u->p->log_probs[x])) < 1e-6);
        if (!(fabs(real[x] - law[x]) < 1e-6))
            fail_msg("%s, token %d: %g, by the definitions %g", u->m->name, x, real[x], law[x]);
    }
    toy_free(u->p), toy_free(u->q);
}

/* Adds one position whose next child is drawn from q, with `left` children in all (SJD-PAC Eq. 7 and 8). */
static void children(position_laws s, int left, double weight, double *law)
{
    for (int x = 0; x < s.size; x++) {
        const double f = plain_accept(&s, x);
        double rest = 0, g[DISCRETE_MOST];
        if (s.q[x] == 0) continue;
        law[x] += weight * s.q[x] * f;
        if (f == 1) continue;
        const double total = plain_residual(&s, x, g);
        assert_true(total > 0);
        position_laws next = s;
        for (int y = 0; y < s.size; y++) rest += y == x ? 0 : s.q[y];
        for (int y = 0; y < s.size; y++) next.p[y] = g[y] / total, next.q[y] = y == x ? 0 : s.q[y] / rest;
        if (left > 1)
            children(next, left - 1, weight * s.q[x] * (1 - f), law);
        else
            for (int y = 0; y < s.size; y++) law[y] += weight * s.q[x] * (1 - f) * next.p[y];
    }
}

TEST_CASE(drawn_siblings)
{
    static const int parent[] = {-1, -1, -1};
    setup u;
    for (int i = 0; spec_methods()[i]; i++)
        for (int tight = 0; tight < 2; tight++)
            for (int count = 1; count <= 3 && set_up(&u, spec_methods()[i], tight); count++) {
                double law[SIZE] = {0};
                children(laws_of(&u), count, 1, law);
                compare(&u, (spec_sampler_options){.parent = parent, .count = count}, law);
            }
}

/* Children that are chosen, not drawn: the likeliest of q, each with a point distribution. */
TEST_CASE(chosen_siblings)
{
    setup u;
    for (int i = 0; spec_methods()[i]; i++)
        for (int tight = 0; tight < 2; tight++)
            for (int count = 1; count <= 3 && set_up(&u, spec_methods()[i], tight); count++) {
                position_laws s = laws_of(&u);
                double law[SIZE] = {0}, left = 1, chosen[SIZE] = {0};
                for (int k = 0; k < count; k++) {
                    int x = -1;
                    double g[DISCRETE_MOST];
                    for (int y = 0; y < SIZE; y++)
                        if (chosen[y] == 0 && (x < 0 || u.q->log_probs[y] > u.q->log_probs[x])) x = y;
                    chosen[x] = 1;
                    for (int y = 0; y < SIZE; y++) s.q[y] = y == x;
                    const double f = plain_accept(&s, x), total = plain_residual(&s, x, g);
                    law[x] += left * f;
                    left *= 1 - f;
                    for (int y = 0; y < SIZE && total > 0; y++) s.p[y] = g[y] / total;
                }
                for (int y = 0; y < SIZE; y++) law[y] += left * s.p[y];
                compare(&u, (spec_sampler_options){.top = count, .total = count}, law);
            }
}
