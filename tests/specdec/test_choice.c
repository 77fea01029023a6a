/* The choice of the number of drafts by costs: its loss against plain decoding, and its gain. */
#include "kernels/discrete.h"
#include "specdec/costs.h"
#include "tests/support/support.h"

#include <math.h>

/* Acceptance of a draft at a token of the sequence. */
typedef double acceptance(int token, int n);

static double rate; /* of `constant` */

static double constant(int token, int n)
{
    (void)token, (void)n;
    return rate;
}

static double falling(int token, int n)
{
    return token < n / 2 ? 0.95 : 0;
}

static double rising(int token, int n)
{
    return token < n / 2 ? 0 : 0.95;
}

/* Good until the choice has learned it, then bad, and so on. */
static double contrary(int token, int n)
{
    (void)n;
    return token / 24 % 2 ? 0 : 0.95;
}

static uint64_t sequence; /* of the noise */

static int noisy_accept(double probability, int round, int draft)
{
    uint32_t w[4];
    kern_random_words(5, KERN_NOISE_INIT, sequence, (uint32_t)round, (uint32_t)draft, 0, w);
    return kern_uniform(w) < probability;
}

/* Decodes n tokens. Jacobi: only drafts are accepted whose positions the round before had, and left undecided. Returns
 * the cost over that of plain decoding, and in *mean the drafts of a round. */
static double decode(const spec_choice *c, int n, acceptance *accept, int stale, double *mean)
{
    spec_past past;
    double drafts = 0, spent = 0;
    int tail = 0, behind = 0;
    spec_past_begin(&past, n, 0, stale);
    while (past.known < n) {
        const int chosen = c->choose(c, &past), left = n - past.known - !stale;
        const int positions = chosen < left ? chosen : left, informed = stale && tail < positions ? tail : positions;
        int accepted = 0;
        while (accepted < informed && noisy_accept(accept(past.known + accepted, n), past.rounds, accepted)) accepted++;
        const int final = accepted + (past.known + accepted < n), drafted = positions > 0 ? chosen : 0;
        drafts += chosen;
        spent += spec_choice_cost(c, drafted) + (drafted > 0 ? c->catch_up * behind : 0);
        tail = positions > final ? positions - final : 0;
        behind = drafted > 0 ? 0 : behind + final;
        spec_past_add(&past, c, drafted, positions, accepted, final);
    }
    assert_int_equal(past.known, n);
    assert_true(fabs(past.spent - spent) < 1e-9 * n);
    if (mean) *mean = drafts / past.rounds;
    return spent / n;
}

/* Returns the mean of several sequences. */
static double decode_some(const spec_choice *c, int n, acceptance *accept, int stale)
{
    double sum = 0;
    for (sequence = 0; sequence < 8; sequence++) sum += decode(c, n, accept, stale, NULL) / 8;
    return sum;
}

/* Makes the table of 0, 1, 2, 4, ..., 64 drafts, each of which costs `each` rounds. */
static spec_choice linear(double each)
{
    spec_choice c = {.choose = spec_choose, .widths = SPEC_WIDTHS};
    for (int i = 0; i < SPEC_WIDTHS; i++) {
        c.drafts[i] = i ? 1 << (i - 1) : 0;
        c.cost[i] = 1 + each * c.drafts[i];
    }
    return c;
}

/* No acceptance and no cost makes a sequence more than 2 % slower, a draft model's catching up included. */
TEST_CASE(never_much_slower_than_plain)
{
    static const double costs[] = {0, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2}, catch_up[] = {0, 0.02, 0.3};
    acceptance *const kinds[] = {constant, falling, rising, contrary};
    for (size_t i = 0; i < 3 * sizeof costs / sizeof *costs; i++) {
        spec_choice c = linear(costs[i / 3]);
        c.catch_up = catch_up[i % 3];
        for (int n = 64; n <= 1024; n *= 4)
            for (int stale = 0; stale < 2; stale++)
                for (int a = 0; a < 14; a++) {
                    rate = a / 10.0;
                    const double cost = decode(&c, n, kinds[a > 10 ? a - 10 : 0], stale, NULL);
                    if (!(cost <= 1.02 + 1e-9))
                        fail_msg("%g a draft, %g behind, case %d, %d tokens: %g", costs[i / 3], c.catch_up, a, n, cost);
                }
    }
}

/* Where a row costs as much as a pass, decoding is plain. */
TEST_CASE(dear_drafts_are_not_tried)
{
    const spec_choice c = linear(1);
    for (int a = 0; a <= 10; a++) {
        double mean;
        rate = a / 10.0;
        assert_true(decode(&c, 1024, constant, 1, &mean) == 1 && mean == 0);
    }
}

/* Returns the least cost of the widths in turn, each for all rounds. */
static double best_fixed(const spec_choice *choice, int n, int stale)
{
    double best = 1;
    spec_choice c = *choice;
    c.choose = spec_costs_choose_last;
    for (c.widths = 2; c.widths <= choice->widths; c.widths++) best = fmin(best, decode_some(&c, n, constant, stale));
    return best;
}

/* The drafts that pay are found: a sequence costs little more than with the best width in all its rounds. */
TEST_CASE(close_to_the_best_width)
{
    static const double costs[] = {0, 0.001, 0.01, 0.05, 0.25, 1};
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        for (int stale = 0; stale < 2; stale++)
            for (int a = 1; a <= 19; a += a < 15 ? 4 : 2) {
                const spec_choice c = linear(costs[i]);
                rate = a / 20.0;
                const double cost = decode_some(&c, 1024, constant, stale), best = best_fixed(&c, 1024, stale);
                if (!(cost < 1.1 * best + 0.02))
                    fail_msg("%g a draft, accepted %g, stale %d: %g, at best %g", costs[i], rate, stale, cost, best);
            }
}

/* 64 tokens allow for a trial that finds out that drafts pay. The times are LlamaGen-L's in bf16 (bench/RESULTS.md). */
TEST_CASE(short_sequences_try_drafts)
{
    const spec_choice c = {
        .choose = spec_choose, .widths = 5, .drafts = {0, 2, 4, 8, 16}, .cost = {1, 1.15, 1.6, 2, 3.4}};
    rate = 0.9;
    const double cost = decode_some(&c, 64, constant, 1), best = best_fixed(&c, 64, 1);
    if (!(cost < 1.25 * best)) fail_msg("%g, at best %g", cost, best);
}

/* Jacobi drafts behind a plain round tell nothing: they are tried if three rounds can be paid, whose loss stays within
 * the allowance. Behind a round with drafts it is enough if one can. */
TEST_CASE(trials_that_can_be_paid)
{
    spec_choice c = {.choose = spec_choose, .widths = 2, .drafts = {0, 64}, .cost = {1, 1}};
    spec_past past;
    spec_past_begin(&past, 256, 0, 1);
    for (int i = 0; i < 4; i++) spec_past_add(&past, &c, 64, 64, 31, 32);
    past.spent += spec_past_left(&past) - 3;
    for (int dear = 0; dear < 2; dear++) {
        const double loss = dear ? 0.01 : -0.01;
        double mean;
        spec_past behind = past;
        c.cost[1] = 4 + loss;
        assert_int_equal(spec_choose(&c, &behind), dear ? 0 : 64);
        spec_past_add(&behind, &c, 0, 0, 0, 1);
        c.cost[1] = 2 + loss;
        assert_int_equal(spec_choose(&c, &behind), dear ? 0 : 64);
        rate = 0;
        c.cost[1] = 1 + spec_choice_loss(256) / 3 + loss;
        assert_true(decode(&c, 256, constant, 1, &mean) <= 1.02 && (dear ? mean == 0 : mean > 0));
    }
}

/* Drafts that hardly pay are not worth a long catching up. Then they begin the sequence or are left out of it. */
TEST_CASE(catching_up_is_counted)
{
    spec_choice c = linear(0.3);
    spec_past past;
    spec_past_begin(&past, 1024, 0, 0);
    assert_true(spec_choose(&c, &past) > 0);
    for (int i = 0; i < 40; i++) assert_true(spec_past_add(&past, &c, 0, 0, 0, 1) == 1);
    assert_true(past.behind == 40 && spec_choose(&c, &past) > 0);
    c.catch_up = 0.6;
    assert_int_equal(spec_choose(&c, &past), 0);
    c.catch_up = 0.1;
    assert_true(fabs(spec_past_add(&past, &c, 2, 2, 2, 3) - 5.6) < 1e-9 && past.behind == 0);
    assert_true(fabs(spec_past_add(&past, &c, 2, 2, 2, 3) - 1.6) < 1e-9);
}

/* Drafts that cost nothing are all taken. */
TEST_CASE(free_drafts_are_taken)
{
    const spec_choice c = linear(0);
    double mean;
    rate = 0.98;
    assert_true(decode(&c, 1024, constant, 1, &mean) < 0.05 && mean > 55);
}

/* A change of acceptance is noticed in both directions. */
TEST_CASE(acceptance_that_changes)
{
    const spec_choice c = linear(0.05);
    double cost[2];
    rate = 0.95;
    const double good = decode_some(&c, 1024, constant, 1);
    cost[0] = decode_some(&c, 1024, falling, 1), cost[1] = decode_some(&c, 1024, rising, 1);
    for (int i = 0; i < 2; i++)
        if (!(cost[i] < (1 + good) / 2 + 0.15)) fail_msg("%g, where %g is for good", cost[i], good);
}

TEST_CASE(costs_between_widths)
{
    const spec_choice c = {.widths = 3, .drafts = {0, 2, 8}, .cost = {1, 1.5, 3}}, none = {.widths = 0};
    static const struct {
        int drafts;
        double cost;
    } cases[] = {{0, 1}, {1, 1.5}, {2, 1.5}, {3, 3}, {8, 3}, {9, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(spec_choice_cost(&c, cases[i].drafts) == cases[i].cost);
    assert_true(spec_choice_cost(&none, 5) == 1);
}
