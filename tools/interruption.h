/* Handling of SIGINT, SIGTERM and SIGHUP. The command stops at the next point where no file is half written. */
#ifndef TOOLS_INTERRUPTION_H
#define TOOLS_INTERRUPTION_H

#include "mar.h"

/* From now on SIGINT, SIGTERM and SIGHUP are noted. The same signal a second time ends the process. A signal that is
 * ignored (nohup) stays ignored. */
void interruption_catch(void);

/* Until the next call, such a signal also cancels what the session is doing. NULL: nothing. */
void interruption_cancels(mar_session *session);

/* Whether such a signal has come. */
int interruption_came(void);

/* Prints "mar: interrupted: ..." as one line. Returns the exit status, 128 + the signal's number. */
int interruption_end(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
