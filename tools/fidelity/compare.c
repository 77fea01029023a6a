#include "tools/fidelity/compare.h"

#include "tools/cli/command.h"
#include "tools/cli/interruption.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- distances ------------------------------------------------------------------------------------------ */

/* Reports the only failure of the statistics. Returns 1. */
static int no_memory_for_statistics(void)
{
    return tool_error("out of memory for the statistics of two runs; a smaller --num needs less");
}

/* Runs the tests for this kind of tokens, and writes their p-values to p. */
static mar_status compare_tokens(const fidelity *f, fidelity_run *r, const eval_pairs *pairs, double *p)
{
    if (f->vocabulary) {
        const eval_token_pairs numbers = {pairs->images, f->columns, f->rows, r->numbers, f->runs[0].numbers};
        const mar_status status = eval_token_counts(&numbers, FIDELITY_PERMUTATIONS, &r->counts[FIDELITY_TOKENS],
                                                    &r->counts[FIDELITY_PLACES], &r->counts[FIDELITY_NEIGHBOURS]);
        for (int i = 0; i < FIDELITY_COUNTS; i++) p[i] = r->counts[i].p;
        return status;
    }
    const mar_status status = eval_ks(pairs, FIDELITY_PERMUTATIONS, r->ks, r->ks_p);
    p[0] = 1;
    for (int c = 0; c < f->channels && status == MAR_OK; c++) p[0] = fmin(p[0], r->ks_p[c]);
    return status;
}

static int compare_run(const fidelity *f, fidelity_run *r)
{
    const eval_pairs pairs = {f->num, f->positions, f->channels, r->tokens, f->runs[0].tokens};
    const size_t size = (size_t)f->positions * (size_t)f->channels;
    double p[2 + FIDELITY_COUNTS];
    mar_status status = eval_energy(&pairs, FIDELITY_PERMUTATIONS, &r->image, &r->token);
    if (status == MAR_OK) status = compare_tokens(f, r, &pairs, p + 2);
    if (status == MAR_OK) status = eval_moment_gaps(&pairs, &r->mean_gap, &r->covariance_gap);
    if (status != MAR_OK) return no_memory_for_statistics();
    for (int i = 0; i < f->num; i++)
        r->differing +=
            memcmp(r->tokens + (size_t)i * size, f->runs[0].tokens + (size_t)i * size, size * sizeof *r->tokens) != 0;
    p[0] = r->image.p, p[1] = r->token.p;
    eval_holm(p, fidelity_tests(f));
    r->p = p[0];
    for (int i = 1; i < fidelity_tests(f); i++) r->p = fmin(r->p, p[i]);
    return 0;
}

/* Compares the reference with itself: image i of a class with the next of that class, swapped at random. Halves of
 * num/2 images lie twice as far apart as runs of num. */
static int measure_floor(const fidelity *f, fidelity_floor *out)
{
    const int turns = f->num / f->class_count / 2, half = turns * f->class_count;
    const size_t turn = (size_t)f->class_count * (size_t)f->positions * (size_t)f->channels;
    *out = (fidelity_floor){.measured = half >= 2};
    if (!out->measured) return 0;
    float *a = malloc((size_t)turns * turn * sizeof *a), *b = malloc((size_t)turns * turn * sizeof *b);
    eval_energy_test whole, single;
    mar_status status = a && b ? MAR_OK : MAR_ENOMEM;
    for (size_t i = 0; status == MAR_OK && i < (size_t)turns; i++) {
        memcpy(a + i * turn, f->runs[0].tokens + 2 * i * turn, turn * sizeof *a);
        memcpy(b + i * turn, f->runs[0].tokens + (2 * i + 1) * turn, turn * sizeof *b);
    }
    const eval_pairs pairs = {half, f->positions, f->channels, a, b};
    if (status == MAR_OK) status = eval_energy(&pairs, FIDELITY_PERMUTATIONS, &whole, &single);
    free(a);
    free(b);
    if (status != MAR_OK) return no_memory_for_statistics();
    const double share = (double)half / f->num;
    out->image = share * whole.null_95;
    out->token = share * single.null_95;
    return 0;
}

int fidelity_compare(fidelity *f)
{
    if (interruption_came()) return interruption_end("%s is not written", f->out);
    interruption_ends(); /* a partial comparison is not kept */
    progress_note(f->bar, "comparing");
    int status = measure_floor(f, &f->floor);
    for (int i = 1; i < f->run_count && status == 0; i++) {
        progress_note(f->bar, "comparing run %d of %d", i, f->run_count - 1);
        status = compare_run(f, &f->runs[i]);
    }
    progress_clear(f->bar);
    return status;
}

/* --- times ---------------------------------------------------------------------------------------------- */

static int ascending_times(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Returns a quantile of sorted values [n], interpolated linearly (Hyndman and Fan 1996, definition 7). */
static double time_quantile(const double *values, int n, double q)
{
    const double at = q * (n - 1);
    const int below = (int)at, above = below + 1 < n ? below + 1 : below;
    return values[below] + (at - below) * (values[above] - values[below]);
}

/* Sorts values [n] and returns their spread. */
static fidelity_spread time_spread(double *values, int n)
{
    const double end = n >= FIDELITY_QUARTILES_MIN ? 0.25 : 0;
    qsort(values, (size_t)n, sizeof *values, ascending_times);
    return (fidelity_spread){time_quantile(values, n, 0.5), time_quantile(values, n, end),
                             time_quantile(values, n, 1 - end)};
}

int fidelity_time(fidelity *f)
{
    const int full = f->num / f->batch, first = full > 1, n = full - first;
    double *values = malloc((size_t)n * sizeof *values);
    if (!values) return tool_error("out of memory for the times of %d turns", n);
    f->timed_turns = n;
    for (int i = 0; i < f->run_count; i++) {
        const double *seconds = f->runs[i].turn_seconds + first, *reference = f->runs[0].turn_seconds + first;
        for (int t = 0; t < n; t++) values[t] = seconds[t];
        f->runs[i].seconds = time_spread(values, n);
        for (int t = 0; t < n; t++) values[t] = reference[t] / seconds[t];
        f->runs[i].speed = time_spread(values, n);
    }
    free(values);
    return 0;
}

int fidelity_has_spread(const fidelity *f)
{
    return f->timed_turns > 1;
}

/* --- verdicts ----------------------------------------------------------------------------------------- */

int fidelity_tests(const fidelity *f)
{
    return 2 + (f->vocabulary ? FIDELITY_COUNTS : 1);
}

double fidelity_least_p(const fidelity *f, int differing)
{
    const double repeats = FIDELITY_PERMUTATIONS * fmin(1, ldexp(1, 1 - differing));
    return fmin(1, fidelity_tests(f) * (1 + repeats + 3 * sqrt(repeats)) / (1 + FIDELITY_PERMUTATIONS));
}

fidelity_finding fidelity_find(const fidelity *f, const fidelity_run *r)
{
    const int could_differ = fidelity_least_p(f, r->differing) <= FIDELITY_LEVEL;
    if (r->differing == 0) return FIDELITY_SAME;
    if (r->p > FIDELITY_LEVEL) return could_differ && f->floor.measured ? FIDELITY_SAME : FIDELITY_UNSURE;
    const int below = f->floor.measured && r->image.distance <= f->floor.image && r->token.distance <= f->floor.token;
    return below ? FIDELITY_CLOSE : FIDELITY_OFF;
}

const char *fidelity_verdict(const fidelity *f, const fidelity_run *r, char *text, size_t size)
{
    const fidelity_finding finding = fidelity_find(f, r);
    if (r->differing == 0)
        snprintf(text, size, "identical to the reference: the same tokens to the last bit");
    else if (finding == FIDELITY_UNSURE && fidelity_least_p(f, r->differing) > FIDELITY_LEVEL)
        snprintf(text, size, "too few images to tell: %d of %d differ at all", r->differing, f->num);
    else if (finding == FIDELITY_UNSURE)
        snprintf(
            text, size,
            "indistinguishable from the reference at %d images (p = %.3f), too few for the difference of another seed",
            f->num, r->p);
    else if (finding == FIDELITY_SAME)
        snprintf(text, size, "indistinguishable from the reference at %d images (p = %.3f)", f->num, r->p);
    else if (finding == FIDELITY_CLOSE)
        snprintf(text, size, "differs (p = %.3f), by less than another seed does", r->p);
    else if (!f->floor.measured)
        snprintf(text, size, "differs (p = %.3f)", r->p);
    else
        snprintf(text, size, "differs (p = %.3f), %.1f times what another seed makes", r->p,
                 fmax(r->image.distance / f->floor.image, r->token.distance / f->floor.token));
    return text;
}
