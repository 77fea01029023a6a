/* What `mar fidelity` says: a table and JSON on stdout, a page for the browser, a plot for a paper or a README. A
 * function that takes a path writes the whole file or nothing, and returns 0, or 1 after printing an error. */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include "tools/fidelity/job.h"

#include <stdio.h>

void report_print_table(const fidelity *f);
int report_print_json(const fidelity *f); /* 0, or 1 after printing an error */

/* One HTML file that needs no other: inline SVG, pictures as data URIs. */
int report_write_html(const fidelity *f, const char *path);

/* The plot of distance against seconds as an SVG file, with a legend, on white. */
int report_write_plot(const fidelity *f, const char *path);

/* What a plot has on its horizontal axis. */
typedef enum {
    REPORT_SECONDS, /* per image, with their spread */
    REPORT_CALLS    /* sequential head calls per token */
} report_axis;

/* Every run at its seconds or calls, and at the square root of its energy distance: an <svg> for the page, which has
 * the styles. The reference lies at distance 0. */
void report_plot(FILE *out, const fidelity *f, report_axis axis);

/* The share of drafts accepted by autoregressive step, a line for each run that drafts, and the same by lateness if
 * there is any: an <svg> each. */
void report_acceptance(FILE *out, const fidelity *f);

#endif
