#include "specdec/choice.h"

#include <math.h>

#define LOSS      0.02       /* largest loss against plain decoding, of a sequence's tokens */
#define PRIOR     0.7        /* acceptance of a draft before any is known */
#define TESTS     3.         /* as of so many tests a depth has the acceptance of the depth before */
#define ROUNDS    8.         /* as of so many rounds a width has the tokens that the curve of acceptance predicts */
#define TRIALS    3          /* rounds that can be paid, where the first one's drafts tell nothing yet */
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

/* Tells whether the next round's drafts are all uninformed, as behind a plain round. */
static int past_is_uninformed(const spec_past *past)
{
    return past->stale && past->positions == 0;
}

/* Returns what a round with drafts costs to catch up. */
static double past_catch_up(const spec_past *past, const spec_choice *c)
{
    return c->catch_up * past->behind;
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

/* Adds a round's tokens to its width, and its verdicts about informed drafts to the curve of acceptance by depth. */
static void past_learn(spec_past *past, const spec_choice *c, int drafts, int positions, int accepted, int final)
{
    for (int i = 1; i < c->widths; i++) {
        if (c->drafts[i] != drafts) continue;
        past->width_rounds[i]++;
        past->width_tokens[i] += final;
    }
    const int informed = past->stale && past->tail < positions ? past->tail : positions;
    for (int i = 0; i < SPEC_CURVE && i < informed && i <= accepted; i++) {
        past->tested[i]++;
        past->passed[i] += i < accepted;
    }
}

double spec_past_add(spec_past *past, const spec_choice *c, int drafts, int positions, int accepted, int final)
{
    const double cost = spec_choice_cost(c, drafts) + (drafts > 0 ? past_catch_up(past, c) : 0);
    past_fade(past);
    if (positions > 0 && !past_is_uninformed(past)) past_learn(past, c, drafts, positions, accepted, final);
    past->spent += cost;
    past->behind = drafts > 0 ? 0 : past->behind + final;
    past->positions = positions, past->accepted = accepted;
    past->tail = positions > final ? positions - final : 0;
    past->known += final;
    past->rounds++;
    return cost;
}

double spec_past_left(const spec_past *past)
{
    return spec_choice_loss(past->n - past->given) - (past->spent - (past->known - past->given));
}

/* Returns the positions that the drafts of a width cover. */
static int choice_positions(const spec_choice *c, int width)
{
    return c->depth && c->depth < c->drafts[width] ? c->depth : c->drafts[width];
}

/* Informed drafts of a round, and what they bring. */
typedef struct {
    int depth;
    double acceptance, reach; /* of the last of them; of all, one after the other */
    double tokens;            /* of a round */
} prediction;

/* Returns the tokens of a round of so many positions. Extends the prediction to as many informed drafts as these allow
 * (choice.h). */
static double choice_predict(prediction *p, const spec_past *past, int positions)
{
    for (; p->depth < SPEC_CURVE; p->depth++) {
        const double acceptance = (past->passed[p->depth] + TESTS * p->acceptance) / (past->tested[p->depth] + TESTS);
        const double reach = p->reach * acceptance, each = past->stale ? 1 + reach : 1;
        const double left = positions - p->depth - (past->stale ? p->tokens : 0);
        if (left < each) return p->tokens + reach * left / each;
        p->acceptance = acceptance, p->reach = reach;
        p->tokens += reach;
    }
    return p->tokens;
}

/* Compares the times that the rest of the sequence would take. */
int spec_choose(const spec_choice *c, const spec_past *past)
{
    const int uninformed = past_is_uninformed(past); /* rounds that draw a token only */
    const double left = past->n - past->known, allowance = spec_past_left(past), once = past_catch_up(past, c);
    prediction p = {0, PRIOR, 1, 1};
    double best = left;
    int drafts = 0;
    for (int i = 1; i < c->widths; i++) {
        const double predicted = choice_predict(&p, past, choice_positions(c, i));
        const double mean = (ROUNDS * predicted + past->width_tokens[i]) / (ROUNDS + past->width_rounds[i]);
        const double rest = once + c->cost[i] * (uninformed + fmax(1, (left - uninformed) / mean));
        if (once + (uninformed ? TRIALS : 1) * (c->cost[i] - 1) > allowance || !(rest < best)) continue;
        best = rest;
        drafts = c->drafts[i];
    }
    return drafts;
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
