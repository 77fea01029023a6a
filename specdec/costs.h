/* The table of a choice (specdec/choice.h): its widths, its costs from measured times, and its text. */
#ifndef SPECDEC_COSTS_H
#define SPECDEC_COSTS_H

#include "specdec/choice.h"

#include <stddef.h>

enum {
    SPEC_COSTS_TEXT = 16 * SPEC_WIDTHS,
    SPEC_COST_MOST = 1000,
    SPEC_COSTS_BEHIND = 5 /* plain rounds on which a measured draft model catches up */
};

/* Makes the choice among 0, first, 2 * first, 4 * first, ... drafts, at most `most`, whose costs are 1 until they are
 * known. Keeps out->depth. */
void spec_costs_begin(spec_choice *out, int first, int most);
/* Implements spec_choice.choose for rounds to measure: takes the last width of the table. */
int spec_costs_choose_last(const spec_choice *choice, const spec_past *past);
/* Sets the costs from the seconds [widths] of rounds. No cost is below the one before. caught_up: seconds of a round of
 * the first width behind SPEC_COSTS_BEHIND plain ones, which a draft model catches up on; 0: there is none. */
void spec_costs_take(spec_choice *choice, const double *seconds, double caught_up);
/* Reads "1.05,1.1,1.3": the costs of `first`, 2 * first, ... drafts, at most `most`. With may_catch_up "+0.02" behind
 * them is the cost of catching up on a token. Keeps out->depth. Returns 0 for other text. Jacobi's first is 2: a single
 * draft never comes from the round before. */
int spec_costs_read(const char *text, int first, int most, int may_catch_up, spec_choice *out);
/* Writes the costs [SPEC_COSTS_TEXT] with three digits, which spec_costs_read reads, and rounds them to these. Returns
 * text. */
const char *spec_costs_write(spec_choice *choice, char *text);

#endif
