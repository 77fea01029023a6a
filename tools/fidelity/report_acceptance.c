/* On the page of `mar fidelity`: the share of drafts accepted, by autoregressive step and by how late the drafts were.
 */
#include "tools/fidelity/compare.h"
#include "tools/page/markup.h"
#include "tools/page/plot.h"
#include "tools/fidelity/report.h"

#include <math.h>

enum { WIDTH = 500, HEIGHT = 280 };

/* Drafts of a run, by step or by lateness. */
typedef struct {
    const long *taken, *verified; /* [n] */
    int n;
} counts;

static counts by_step(const fidelity_run *r)
{
    return (counts){r->accepted.taken_in, r->accepted.verified_in, r->accepted.steps};
}

static counts by_lateness(const fidelity_run *r)
{
    return (counts){r->accepted.taken_late, r->accepted.verified_late, acceptance_latest(&r->accepted)};
}

/* NaN where no draft was verified. */
static double share_of(const void *of, int i)
{
    const counts *c = of;
    return c->verified[i] > 0 ? (double)c->taken[i] / (double)c->verified[i] : NAN;
}

/* A run's line, and its points. */
static void write_line(FILE *out, const plot_frame *frame, const counts *c, int run)
{
    plot_curve(out, frame, markup_colour(run), share_of, c, c->n);
    for (int i = 0; i < c->n; i++)
        if (c->verified[i] > 0)
            fprintf(out,
                    "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"%s\"><title>run %d, %d: %ld of %ld drafts "
                    "accepted</title></circle>",
                    plot_x(frame, i), plot_y(frame, share_of(c, i)), c->n > 100 ? 2 : 3, markup_colour(run), run, i,
                    c->taken[i], c->verified[i]);
}

/* Nothing if no run has drafts to count. */
static void write_plot(FILE *out, const fidelity *f, const char *axis, counts (*counts_of)(const fidelity_run *r))
{
    plot_frame frame = {WIDTH, HEIGHT, 0, 0, 0, 1, 0};
    for (int i = 0; i < f->run_count; i++) {
        const counts c = counts_of(&f->runs[i]);
        if (f->runs[i].stats.drafted > 0 && c.n - 1 > frame.x_high) frame.x_high = c.n - 1;
    }
    if (frame.x_high == 0) return;
    fprintf(out, "<svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">", WIDTH, HEIGHT, WIDTH, HEIGHT);
    plot_axes(out, &frame, axis, "share of drafts accepted");
    for (int i = 0; i < f->run_count; i++) {
        const counts c = counts_of(&f->runs[i]);
        if (f->runs[i].stats.drafted > 0) write_line(out, &frame, &c, i);
    }
    fputs("</svg>\n", out);
}

void report_acceptance(FILE *out, const fidelity *f)
{
    write_plot(out, f, "autoregressive step", by_step);
    write_plot(out, f, "steps by which the draft’s conditions were late", by_lateness);
}
