/* Server-sent events of a job: "progress" whenever it changed, at last "done", "failed" or "cancelled". */
#ifndef TOOLS_SERVE_EVENTS_H
#define TOOLS_SERVE_EVENTS_H

#include "tools/serve/exchange.h"

/* Writes the members "class", null for none, and "class_name". */
void events_write_class(const service *s, const job *j, FILE *out);
/* Writes the job as JSON, without a newline at its end. */
void events_write_job(const service *s, const job *j, const job_view *view, FILE *out);

/* Returns a response that streams the events of x->job; NULL without memory. */
struct MHD_Response *events_response(exchange *x);

#endif
