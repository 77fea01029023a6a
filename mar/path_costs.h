/* The lengths of rounds of whole paths (specdec/path.h): fixed, or chosen by the costs of rounds, measured or given. */
#ifndef MAR_PATH_COSTS_H
#define MAR_PATH_COSTS_H

#include "mar/core/measure_session.h"
#include "mar/raster_options.h"
#include "specdec/path.h"

typedef struct {
    /* Of rounds of 0, 2, 4, 8, ... drafted steps; widths 0: all rounds have params.gamma. */
    spec_choice choice;
    int never;    /* 1: no round has drafts: the table has plain rounds alone */
    int measures; /* 1: its costs are not known yet */
    char text[SPEC_COSTS_TEXT];
} path_costs;

/* Resolves gamma and checks it with round_costs for images of `steps` steps. gamma becomes -1 where no round has
 * drafts: by default on a CPU, since no standard costs are safe there; 0: its rounds are to be measured. Returns
 * MAR_EARG for costs that do not suit, and with context prefix, where the length decides the distribution. */
mar_status path_costs_check(const mar_model *model, mar_params *p, int steps, mar_err *err);
/* Returns the most steps of a round with parameters that have been checked. */
int path_costs_gamma(const mar_params *p, int steps);
/* Makes the costs of parameters that have been checked. gamma becomes the most steps of a round, and round_costs the
 * text of the costs, if there are any. *c must outlive p. */
mar_status path_costs_create(mar_params *p, int steps, path_costs *c, mar_err *err);
/* Returns the choice for spec_path_options. */
spec_choice path_costs_choice(const path_costs *c);
/* Measures rounds of any images, and sets gamma and round_costs. They begin at step `middle`, or before where rounds
 * need more steps, but not before step `first`, up to which the engine takes its own. Leaves no image in progress. */
mar_status path_costs_measure(path_costs *c, const mar_measured_parts *parts, spec_path *rounds, int first, int middle,
                              mar_params *p, mar_err *err);

#endif
