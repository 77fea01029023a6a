/* Server-sent events of a job: "progress" whenever it changed, at last "done", "failed" or "cancelled". And those of a
 * request with "stream", as OpenAI's service sends them: "image_generation.partial_image" for a preview,
 * "image_generation.completed" for each image ("image_edit..." for an edit), or at last "error". */
#ifndef TOOLS_SERVE_EVENTS_H
#define TOOLS_SERVE_EVENTS_H

#include "tools/serve/exchange.h"

/* Writes the members "class", null for none, and "class_name". */
void events_write_class(const service *s, const job *j, FILE *out);
/* Writes the job as JSON, with the warnings, NULL: none; without a newline at its end. */
void events_write_job(const service *s, const job *j, const job_view *view, const warnings *w, FILE *out);

/* Returns a response that streams the events of x->job, or with `images` those of the request; NULL without memory. */
struct MHD_Response *events_response(exchange *x, int images);

#endif
