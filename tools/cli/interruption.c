#include "tools/cli/interruption.h"

#include "tools/cli/command.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
enum { NUMBERS = sizeof numbers / sizeof numbers[0], LIMIT_S = 1, ENDING = INT_MIN / 2 };

static atomic_int holds = 1; /* of all threads, and one while there is no limit; below 0: the alarm ends the process */
static volatile sig_atomic_t noted;       /* number of the noted signal; 0: none */
static volatile sig_atomic_t term_status; /* of interruption_limit; 0: no limit */
static mar_session *_Atomic at_work[INTERRUPTION_PLACES];
static volatile sig_atomic_t limited;     /* 1: a noted signal starts the alarm */
static volatile sig_atomic_t on_terminal; /* 1: stderr is a terminal and may show a progress bar */

/* Makes writes to a broken pipe fail instead of ending the process and losing images: Ctrl-C may end a `tee`, too.
 * Async-signal-safe. */
static void ignore_broken_pipes(void)
{
    struct sigaction action = {.sa_handler = SIG_IGN};
    sigemptyset(&action.sa_mask);
    sigaction(SIGPIPE, &action, NULL);
}

/* Prints a line. Async-signal-safe: no stdio. */
static void print_line(const char *line)
{
    ignore_broken_pipes();
    const char *fresh_line = "\r\033[K";
    if (on_terminal && write(STDERR_FILENO, fresh_line, strlen(fresh_line)) < 0) return;
    if (write(STDERR_FILENO, line, strlen(line)) < 0) return; /* stderr is closed */
}

/* Sets the handler of the signals that are not ignored. */
static void interruption_handle(void (*handler)(int))
{
    struct sigaction old, action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NUMBERS; i++) sigaddset(&action.sa_mask, numbers[i]);
    for (int i = 0; i < NUMBERS; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) sigaction(numbers[i], &action, NULL);
}

static void end_at_once(int number)
{
    print_line("mar: interrupted\n");
    interruption_handle(SIG_DFL);
    raise(number); /* takes effect when the handler returns */
}

static void note(int number)
{
    const int reason = errno;
    noted = number;
    for (int i = 0; i < INTERRUPTION_PLACES; i++) {
        mar_session *session = at_work[i];
        if (session) mar_session_cancel(session);
    }
    print_line("mar: stopping; again to quit at once\n");
    interruption_handle(SIG_DFL);
    if (limited) alarm(LIMIT_S);
    errno = reason;
}

/* Ends the process unless a thread, this or another, holds it; then tries again later. */
static void end_late(int number)
{
    int none = 0;
    (void)number;
    if (!atomic_compare_exchange_strong(&holds, &none, ENDING)) {
        alarm(LIMIT_S);
        return;
    }
    print_line("mar: interrupted: the same command goes on\n");
    _exit(interruption_status());
}

void interruption_ends(void)
{
    on_terminal = isatty(STDERR_FILENO) == 1;
    if (noted)
        end_at_once(noted);
    else
        interruption_handle(end_at_once);
}

void interruption_catch(void)
{
    on_terminal = isatty(STDERR_FILENO) == 1;
    if (!noted) interruption_handle(note);
}

/* Keeps end_late from ending the process. If another thread is ending it, does not return. */
static void begin_hold(void)
{
    if (atomic_fetch_add(&holds, 1) < 0)
        for (;;) pause();
}

void interruption_limit(int status_of_sigterm)
{
    struct sigaction action = {.sa_handler = end_late, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    term_status = status_of_sigterm;
    if (!limited) atomic_fetch_sub(&holds, 1);
    limited = 1;
    interruption_catch();
}

void interruption_unlimit(void)
{
    if (!limited) return;
    begin_hold();
    limited = 0;
    alarm(0);
}

void interruption_cancels(int place, mar_session *session)
{
    at_work[place] = session;
}

int interruption_came(void)
{
    return noted != 0;
}

int interruption_status(void)
{
    return noted == SIGTERM && term_status ? term_status : 128 + noted;
}

void interruption_hold(sigset_t *before)
{
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGALRM); /* interruption_limit */
    for (int i = 0; i < NUMBERS; i++) sigaddset(&ending, numbers[i]);
    pthread_sigmask(SIG_BLOCK, &ending, before);
    begin_hold();
}

void interruption_release(const sigset_t *before)
{
    atomic_fetch_sub(&holds, 1);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

int interruption_end(const char *format, ...)
{
    char text[4400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tool_error("interrupted: %s", text);
    return interruption_status();
}
