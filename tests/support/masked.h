/* The masked engine inside a session. */
#ifndef TESTS_MASKED_H
#define TESTS_MASKED_H

#include "mar/api/session.h"
#include "mar/masked/masked.h"

/* Returns the engine of a session whose model is a MAR model. */
static inline mar_masked *mar_masked_of(mar_session *s)
{
    return (mar_masked *)mar_session_engine_state(s);
}

#endif
