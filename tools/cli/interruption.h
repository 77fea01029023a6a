/* Handling of SIGINT, SIGTERM and SIGHUP. A command either ends at once, as long as it has nothing to lose, or stops at
 * the next point where no file is half written. Either way a progress bar is removed first. */
#ifndef TOOLS_INTERRUPTION_H
#define TOOLS_INTERRUPTION_H

#include "mar.h"

#include <signal.h>

/* From now on SIGINT, SIGTERM and SIGHUP print "mar: interrupted" and end the process by their default action. Does so
 * at once if interruption_catch has noted one. A signal that is ignored (nohup) stays ignored, here and below. */
void interruption_ends(void);

/* From now on they are noted: the handler says that the command stops, and cancels what the session is doing. The next
 * signal of any of the three has its default action. */
void interruption_catch(void);

/* Until the next call, a signal that is noted also cancels what the session is doing. NULL: nothing. */
void interruption_cancels(mar_session *session);

/* Whether a signal was noted. */
int interruption_came(void);

/* 128 + the number of the signal that was noted: the exit status. */
int interruption_status(void);

/* The signals wait from hold to release. `before` keeps what release restores. */
void interruption_hold(sigset_t *before);
void interruption_release(const sigset_t *before);

/* Prints "mar: interrupted: ..." as one line. Returns interruption_status(). */
int interruption_end(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
