/* Internals of a session, for the tests. */
#ifndef MAR_SESSION_H
#define MAR_SESSION_H

#include "mar/core/engine.h"

mar_engine_state *mar_session_engine_state(mar_session *s);
kern_queue *mar_session_queue(mar_session *s);

#endif
