#include "tools/interruption.h"

#include "tools/command.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

static volatile sig_atomic_t noted; /* the signal's number */
static mar_session *_Atomic at_work;

static void on_signal(int number)
{
    noted = number;
    mar_session *session = at_work;
    if (session) mar_session_cancel(session);
}

void interruption_catch(void)
{
    struct sigaction old, action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND}; /* twice: die */
    sigemptyset(&action.sa_mask);
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) /* nohup stays in force */
            sigaction(numbers[i], &action, NULL);
}

void interruption_cancels(mar_session *session)
{
    at_work = session;
}

int interruption_came(void)
{
    return noted != 0;
}

int interruption_end(const char *format, ...)
{
    char text[4400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tool_error("interrupted: %s", text);
    return 128 + noted;
}
