/* What `mar fidelity` says: a table and JSON on stdout, a page for the browser. */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include "tools/fidelity.h"

void report_print_table(const fidelity *f);
int report_print_json(const fidelity *f); /* 0, or 1 after printing an error */

/* One HTML file that needs no other: inline SVG, pictures as data URIs. Complete or not there. Returns 0, or 1 after
 * printing an error. */
int report_write_html(const fidelity *f, const char *path);

#endif
