/* The number of drafts of each round, chosen by cost and by the verdicts so far.
 *
 * A pass over more rows takes longer. How much longer depends on the machine, the type and the model. spec_choose takes
 * the drafts that finish the sequence soonest: cost[i] is the time of a round of drafts[i] drafts over that of a round
 * without drafts. The tokens of a round follow from the drafts accepted in this sequence so far, at each depth.
 *
 * Jacobi decoding. A draft is informed if the round before had its position, and did not decide it. A round of W
 * positions that draws f tokens leaves W - f of them. So rounds of this width have t informed drafts with t + f(t) = W,
 * where f(t) are the tokens that t of them bring. Other drafts are seldom accepted, and the prediction leaves them out.
 *
 * A draft model first computes the tokens of the plain rounds since it drafted last. `catch_up` is the cost of one.
 *
 * Loss. Let `spent` be the cost of a sequence's rounds, and t the tokens that they drew. Plain decoding would cost t. A
 * round of cost c, catching up included, draws at least one token, so it adds at most c - 1 to spent - t. spec_choose
 * takes it only if spent - t + c - 1 is within an allowance, 2 % of the sequence's tokens. So by the table, a sequence
 * alone takes at most 2 % longer than plain decoding, whatever is accepted. A width is tried again when its record has
 * faded, and if it can be paid. Behind a plain round of Jacobi decoding, whose drafts tell nothing, it is tried if
 * three rounds can be. In a batch this is no bound on time. Each sequence chooses by its own past, while a pass serves
 * all, and the costs are those of a full batch in which all have the same drafts.
 *
 * The distribution stays. Let k tokens be final, and let G(j) be all that the rounds so far have drawn and decided at
 * positions up to j: drafts, siblings, coins, replacements. A choice is a function of spec_past: k, the verdicts at
 * the final positions, and the choices before. By induction over rounds it is a function of G(k - 1); so it would be if
 * it knew the final tokens.
 *
 * 1. Draft model. The drafts are drawn after the choice, with noise of their own. Given G(k - 1), the choice is fixed,
 * and the block is one of a fixed length, which is exact.
 *
 * 2. Jacobi, SPEC_STOP. The tail is drawn anew after the choice, so this is case 1. Its rows q may depend on anything
 * before. With coupled noise the choice belongs to H of specdec/methods/scd.c: it depends on positions before k, and no
 * noise of a position from k on has entered it.
 *
 * 3. Jacobi, SPEC_CONTINUE. The draft of position j >= k is the token y_j that the last verification left there. Its
 * row q_j is the p_j of that round, a function of G(j - 1). Its draft then, x_j, had the distribution of its row given
 * G(j - 1), and acceptance or residual turned that into q_j. So y_j has q_j given G(j - 1). The choice is a function of
 * G(k - 1), which G(j - 1) contains: it may keep y_j, drop it or give it other siblings, and where y_j is tested, it
 * still has q_j given all that came before.
 *
 * 4. A position without a draft takes its token from p, with noise of its own.
 *
 * 5. Whole paths of continuous tokens: specdec/path.h.
 *
 * A choice must not depend on the tokens, verdicts or rows at positions from k on. Given that x_j was accepted, y_j no
 * longer has q_j. Nor has it given p_{j+1}, which tells x_j. tests/specdec/test_laws.c has choices that look at these,
 * and finds their distributions wrong. */
#ifndef SPECDEC_CHOICE_H
#define SPECDEC_CHOICE_H

enum { SPEC_WIDTHS = 8, SPEC_CURVE = 64 };

/* All that a choice knows: a sequence's number of final tokens, and the verdicts of their rounds. */
typedef struct {
    int n, given, known;     /* tokens of the whole sequence, those given, and final ones */
    int stale;               /* 1: drafts come from the round before (Jacobi) */
    int rounds;              /* so far */
    int positions, accepted; /* of the last round: positions drafted, and drafts accepted */
    int tail;                /* of the last round: positions drafted that it did not decide */
    int behind;              /* tokens of plain rounds since the last one with drafts */
    double spent;            /* cost of all rounds */
    /* Sums over past rounds, older ones weighing less. */
    double width_rounds[SPEC_WIDTHS], width_tokens[SPEC_WIDTHS]; /* rounds of a width, and tokens that they drew */
    double tested[SPEC_CURVE], passed[SPEC_CURVE];               /* drafts tested at a depth, and accepted */
} spec_past;

typedef struct spec_choice {
    /* Returns the drafts of the next round: 0 is a plain one, more than the sampler's are the sampler's. A static or
     * dynamic tree is drafted whole or not at all. */
    int (*choose)(const struct spec_choice *choice, const spec_past *past);
    int widths;               /* entries of the table; 0: every round counts as a plain one */
    int drafts[SPEC_WIDTHS];  /* [widths] increasing from 0 */
    int depth;                /* positions that they cover at most: the levels of a tree; 0: as many as drafts */
    double cost[SPEC_WIDTHS]; /* [widths] time of a round with these drafts; cost[0] = 1 */
    double catch_up;          /* time that a draft model takes for a token of a plain round, before it drafts again */
} spec_choice;

/* Implements spec_choice.choose by the table. */
int spec_choose(const spec_choice *choice, const spec_past *past);
/* Returns what a sequence of n tokens may lose against plain decoding, in costs of plain rounds. */
double spec_choice_loss(int n);
/* Returns the cost of a round that has nothing to catch up on: that of the first width of at least `drafts`. */
double spec_choice_cost(const spec_choice *choice, int drafts);
void spec_past_begin(spec_past *past, int n, int given, int stale);
/* Adds a round with `drafts` drafts, as chosen, at `positions` positions. Returns its cost. */
double spec_past_add(spec_past *past, const spec_choice *choice, int drafts, int positions, int accepted, int final);

/* Rounds of a whole chain inside the head (mar/accel/head_spec.c), where the account is in times of their own. */
typedef struct {
    double rounds, decided; /* rounds with drafts, and transitions that they decided */
    double tested, passed;  /* drafts tested, and accepted */
    double spent;           /* cost of all rounds */
    int known;              /* what they would cost without drafts */
} spec_rounds;

/* Returns by how much more the rounds may cost than plain ones (the allowance less the loss so far). */
double spec_past_left(const spec_past *past);
/* Adds rounds whose verdicts are known of all depths together: depths below the first are as it is. */
void spec_past_add_rounds(spec_past *past, const spec_choice *choice, int drafts, const spec_rounds *rounds);

#endif
