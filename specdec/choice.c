#include "specdec/choice.h"

#include <math.h>

#define LOSS      0.01       /* largest loss against plain decoding, of a sequence's tokens */
#define PRIOR     0.7        /* acceptance of a draft before any is known */
#define FORGOTTEN (1. / 64.) /* of the sums, in each round */

double spec_choice_cost(const spec_choice *c, int drafts)
{
    int i = 0;
    while (i + 1 < c->widths && c->drafts[i] < drafts) i++;
    return c->widths ? c->cost[i] : 1;
}

double spec_choice_loss(int n)
{
    return LOSS * n;
}

void spec_past_begin(spec_past *past, int n, int given, int stale)
{
    *past = (spec_past){.n = n, .given = given, .known = given, .stale = stale};
}

/* Tells whether the next round's drafts are uninformed. */
static int past_is_uninformed(const spec_past *past)
{
    return past->stale && past->positions == 0;
}

static void past_fade(spec_past *past)
{
    for (int i = 0; i < SPEC_WIDTHS; i++) {
        past->width_rounds[i] *= 1 - FORGOTTEN;
        past->width_tokens[i] *= 1 - FORGOTTEN;
    }
    for (int i = 0; i < SPEC_CURVE; i++) {
        past->tested[i] *= 1 - FORGOTTEN;
        past->passed[i] *= 1 - FORGOTTEN;
    }
}

/* Adds a round's tokens to its width, and its verdicts to the curve of acceptance by depth. */
static void past_learn(spec_past *past, const spec_choice *c, int drafts, int positions, int accepted, int final)
{
    for (int i = 1; i < c->widths; i++) {
        if (c->drafts[i] != drafts) continue;
        past->width_rounds[i]++;
        past->width_tokens[i] += final;
    }
    for (int i = 0; i < SPEC_CURVE && i < positions && i <= accepted; i++) {
        past->tested[i]++;
        past->passed[i] += i < accepted;
    }
}

void spec_past_add(spec_past *past, const spec_choice *c, int drafts, int positions, int accepted, int final)
{
    past_fade(past);
    if (positions > 0 && !past_is_uninformed(past)) past_learn(past, c, drafts, positions, accepted, final);
    past->spent += spec_choice_cost(c, drafts);
    past->positions = positions, past->accepted = accepted;
    past->known += final;
    past->rounds++;
}

/* Returns what a sequence's rounds may have cost more than its tokens (choice.h). */
static double choice_allowance(const spec_past *past)
{
    const int all = past->n - past->given, drawn = past->known - past->given;
    return spec_choice_loss(all + drawn) / 2;
}

/* Returns the positions that the drafts of a width cover. */
static int choice_positions(const spec_choice *c, int width)
{
    return c->depth && c->depth < c->drafts[width] ? c->depth : c->drafts[width];
}

/* The tokens of a width are those of its own rounds, and as of one round those that the curve predicts. A depth's
 * acceptance is that of its own tests, and as of one test that of the depth before. */
int spec_choose(const spec_choice *c, const spec_past *past)
{
    const double loss = past->spent - (past->known - past->given), allowance = choice_allowance(past);
    const int trial = past_is_uninformed(past) ? 2 : 1; /* rounds until verdicts tell something */
    double best = 1, acceptance = PRIOR, reach = 1, predicted = 1;
    int drafts = 0;
    for (int i = 1, depth = 0; i < c->widths; i++) {
        for (; depth < choice_positions(c, i) && depth < SPEC_CURVE; depth++) {
            acceptance = (past->passed[depth] + acceptance) / (past->tested[depth] + 1);
            predicted += reach *= acceptance;
        }
        const double mean = (predicted + past->width_tokens[i]) / (1 + past->width_rounds[i]);
        const double rate = fmin(mean, past->n - past->known) / c->cost[i];
        if (loss + trial * (c->cost[i] - 1) > allowance || !(rate > best)) continue;
        best = rate;
        drafts = c->drafts[i];
    }
    return drafts;
}

double spec_past_left(const spec_past *past)
{
    return choice_allowance(past) - (past->spent - (past->known - past->given));
}

void spec_past_add_rounds(spec_past *past, const spec_choice *c, int drafts, const spec_rounds *r)
{
    past_fade(past);
    past->spent += r->spent;
    past->known += r->known;
    past->rounds++;
    past->tested[0] += r->tested, past->passed[0] += r->passed;
    for (int i = 1; i < c->widths; i++) {
        if (c->drafts[i] != drafts) continue;
        past->width_rounds[i] += r->rounds;
        past->width_tokens[i] += r->decided;
    }
}
