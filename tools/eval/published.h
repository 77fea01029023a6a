/* Published numbers of the official models, and of other accelerators of them. A page shows them beside its own. */
#ifndef TOOLS_EVAL_PUBLISHED_H
#define TOOLS_EVAL_PUBLISHED_H

#include "mar.h"

/* A published result; NaN: not published. */
typedef struct {
    const char *model;   /* "MAR-B" */
    const char *setting; /* "with guidance", "LazyMAR, 2.83 times as fast" */
    const char *source;  /* who published it */
    double fid, is;      /* Inception score */
    double precision, recall;
} eval_published;

/* Returns the published model of this shape: "MAR-B", "MAR-L", "MAR-H"; "" if there is none. Static. */
const char *eval_published_model(const mar_model_config *config);

/* Returns result i of a model, in the order of the page; NULL behind the last one. Static. */
const eval_published *eval_published_get(const char *model, int i);

#endif
