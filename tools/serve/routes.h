/* The paths of the service and their handlers. */
#ifndef TOOLS_SERVE_ROUTES_H
#define TOOLS_SERVE_ROUTES_H

#include "tools/serve/exchange.h"

/* Finds the route and checks method, origin, token and kind of body, before the body is read. An error is in
 * x->answer. */
void routes_check(exchange *x, const char *method, const char *url);
/* Returns whether the request only looks at a job while it is made. */
int routes_watches(const exchange *x);
/* Answers a whole request. It may wait for the job. */
void routes_answer(exchange *x, answer *a);

/* Returns the request's Origin if --cors lets its pages use the service; else NULL. */
const char *routes_allowed_origin(const exchange *x);
/* Returns the names of headers that a browser asks whether it may send; NULL: none. */
const char *routes_asked_headers(const exchange *x);

#endif
