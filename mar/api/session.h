/* Inside a session: for the tests. */
#ifndef MAR_SESSION_H
#define MAR_SESSION_H

#include "mar/core/engine.h"

mar_generation *mar_session_generation(mar_session *s);
kern_queue *mar_session_queue(mar_session *s);

#endif
