/* The access log: a line for each request on standard error, when it has been answered. */
#ifndef TOOLS_SERVE_ACCESS_H
#define TOOLS_SERVE_ACCESS_H

#include "tools/serve/exchange.h"

typedef enum { ACCESS_OFF, ACCESS_TEXT, ACCESS_JSON } access_format;

/* Writes the line of an exchange. is_whole: the client had the whole answer. A path has * in place of its secret. */
void access_note(const exchange *x, int is_whole);

#endif
