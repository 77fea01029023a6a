/* Published numbers of the official models, and of other ways to make these faster: what a report shows beside its own.
 */
#ifndef TOOLS_EVAL_PUBLISHED_H
#define TOOLS_EVAL_PUBLISHED_H

#include "mar.h"

/* A published result; a number that was not published is NaN. */
typedef struct {
    const char *model;  /* "MAR-B" */
    const char *what;   /* "with guidance", "LazyMAR, 2.83 times as fast" */
    const char *source; /* who published it */
    double fid, is;     /* Inception score */
    double precision, recall;
} eval_published;

/* The published model that has this shape: "MAR-B", "MAR-L", "MAR-H"; "" for none. Static. */
const char *eval_published_model(const mar_model_config *config);

/* Result i of a model, in the order in which they are shown: i = 0, 1, ...; NULL behind the last one. Static. */
const eval_published *eval_published_get(const char *model, int i);

#endif
