/* Compares the runs with the reference: distances, p-values, times, and verdicts. */
#ifndef TOOLS_FIDELITY_COMPARE_H
#define TOOLS_FIDELITY_COMPARE_H

#include "tools/fidelity/job.h"

typedef enum {
    FIDELITY_SAME,   /* identical, or no difference found though one could have been */
    FIDELITY_UNSURE, /* no difference found, in too few images to find one or to measure the floor */
    FIDELITY_CLOSE,  /* differs by less than the floor */
    FIDELITY_OFF     /* differs */
} fidelity_finding;

/* Compares every run with the reference, once all images exist, and measures the floor. Returns the exit status, with
 * errors and interruptions printed. */
int fidelity_compare(fidelity *f);

/* Computes f->timed_turns and every run's seconds and speed.
 *
 * In a turn every run makes the same images, one run right after the other. Other load on the machine therefore affects
 * all runs equally. A run's speed is the median over the turns of the reference's seconds over its own. Only turns of
 * full batches are timed. The first one prepares memory and products, and is left out if there is another. Returns 0,
 * or 1 with the error printed. */
int fidelity_time(fidelity *f);
/* Returns whether the times have a spread; one timed turn has none. */
int fidelity_has_spread(const fidelity *f);

/* Returns an upper bound of the smallest p that a difference in `differing` images can reach. About one permutation in
 * 2^(differing-1) swaps all of these pairs or none, and so has the data's own distance. The bound allows three standard
 * deviations more. */
double fidelity_least_p(const fidelity *f, int differing);
int fidelity_tests(const fidelity *f); /* number of tests that fidelity_run.p is corrected for */
fidelity_finding fidelity_find(const fidelity *f, const fidelity_run *r);
const char *fidelity_verdict(const fidelity *f, const fidelity_run *r, char *text,
                             size_t size); /* writes the verdict; returns text */

#endif
