/* What `mar fidelity` says: a table and JSON on stdout, a page for the browser, a plot for a paper or a README. A
 * function that takes a path writes the whole file or nothing, and returns 0, or 1 after printing an error. */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include "tools/fidelity/job.h"

typedef struct cJSON cJSON;

void report_print_table(const fidelity *f);
int report_print_json(const fidelity *f); /* 0, or 1 after printing an error */
/* Returns what that prints, begun by tool_json; the caller deletes it. */
cJSON *report_record(const fidelity *f);

/* The page (tools/page/page.h). */
int report_write_html(const fidelity *f, const char *path);

/* The plot of distance against seconds as an SVG file, with a legend, on white. */
int report_write_plot(const fidelity *f, const char *path);

#endif
