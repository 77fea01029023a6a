/* Reports of `mar fidelity`: a table and JSON on stdout, a page, a plot. A function that takes a path writes the whole
 * file or nothing. It returns 0, or 1 with the error printed. */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include "tools/fidelity/job.h"

typedef struct cJSON cJSON;

void report_print_table(const fidelity *f);
int report_print_json(const fidelity *f); /* returns 0, or 1 with the error printed */
/* Returns the record that report_print_json prints, begun by tool_json. The caller deletes it. */
cJSON *report_record(const fidelity *f);

/* Writes the page (tools/page/page.h). */
int report_write_html(const fidelity *f, const char *path);

/* Writes the plot of distance against seconds as an SVG file, with a legend, on white. */
int report_write_plot(const fidelity *f, const char *path);

#endif
