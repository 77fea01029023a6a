/* Handling of SIGINT, SIGTERM and SIGHUP. A command ends at once while it has nothing to lose. Later it stops at the
 * next point where no file is half written. Either way the progress bar is removed first. */
#ifndef TOOLS_INTERRUPTION_H
#define TOOLS_INTERRUPTION_H

#include "mar.h"

#include <signal.h>

/* Makes the signals print "mar: interrupted" and end the process by their default action. Does so at once if
 * interruption_catch has noted one. An ignored signal (nohup) stays ignored, here and below. */
void interruption_ends(void);

/* Makes the handler note the signal, announce that the command stops, and cancel the sessions' work. The next signal of
 * the three has its default action. */
void interruption_catch(void);

/* Does the same in a command whose finished work is in files that are whole at any moment outside interruption_hold. If
 * it still runs a second after the signal, in work that no session cancels, it is ended, with the line "mar:
 * interrupted: the same command goes on"; a second later if a thread holds then. Its status after SIGTERM is then this
 * one, not 0, as that of interruption_status. */
void interruption_limit(int status_of_sigterm);

/* Takes the limit off, until the next interruption_limit: the work has ended, and its report is printed whole. */
void interruption_unlimit(void);

enum { INTERRUPTION_PLACES = 16 }; /* sessions at work at the same time */

/* Sets the session at this place that a noted signal cancels; NULL: none. */
void interruption_cancels(int place, mar_session *session);

/* Returns whether a signal was noted. */
int interruption_came(void);

/* Returns the exit status: 128 + the number of the noted signal, but for interruption_limit. */
int interruption_status(void);

/* Block and release the signals in this thread, and keep interruption_limit from ending the process in any. `before`
 * keeps the mask that release restores. */
void interruption_hold(sigset_t *before);
void interruption_release(const sigset_t *before);

/* Prints "mar: interrupted: ..." as one line. Returns interruption_status(). */
int interruption_end(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
