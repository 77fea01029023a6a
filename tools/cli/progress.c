#include "tools/cli/progress.h"

#include "tools/cli/command.h"
#include "base/printable.h"
#include "tools/cli/interruption.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { BAR_MAX = 30, MANY = 1000 }; /* cells; images from which on the rate is shown */

void progress_start(progress *p, int quiet)
{
    *p = (progress){.shown = !quiet && isatty(STDERR_FILENO)};
}

void progress_clear(progress *p)
{
    if (p->shown) fputs("\r\033[K", stderr);
}

/* Draws the line unless a signal's message is there. */
static void progress_draw(const char *line)
{
    sigset_t before;
    interruption_hold(&before);
    if (!interruption_came()) fprintf(stderr, "\r%s\033[K", line);
    interruption_release(&before);
}

void progress_note(progress *p, const char *format, ...)
{
    char text[4200], line[71]; /* room for a path */
    va_list arguments;
    if (!p->shown) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    progress_draw(printable(text, line, sizeof line));
}

void progress_begin(progress *p)
{
    p->began = tool_seconds();
    p->last_drawn = 0;
    p->finished_then = -1;
}

static void duration(double seconds, char *text, size_t size)
{
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, size, "%ld:%02ld", s / 60, s % 60);
}

void progress_update(progress *p, double done, long finished, long wanted)
{
    if (!p->shown) return;
    double now = tool_seconds();
    if (p->finished_then < 0) {
        p->finished_then = finished;
        p->done_then = done;
    }
    if (done < 1 && now - p->last_drawn < 0.1) return;
    p->last_drawn = now;

    char numbers[128], left[32] = "", rate[32] = "", line[256];
    const double seconds = now - p->began;
    if (done > p->done_then) {
        duration(seconds * (1 - done) / (done - p->done_then), left, sizeof left);
        strcat(left, " left");
    }
    if (wanted >= MANY && finished > p->finished_then)
        snprintf(rate, sizeof rate, "%.3g per s  ", (double)(finished - p->finished_then) / seconds);
    int used =
        snprintf(numbers, sizeof numbers, "%3.0f%%  %ld of %ld images  %s%s", 100 * done, finished, wanted, rate, left);

    /* The line must not wrap: \r returns to the beginning of one line only. */
    struct winsize window;
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col ? window.ws_col : 80;
    int bar = columns - used - 5;
    if (bar > BAR_MAX) bar = BAR_MAX;
    if (bar < 4) {
        snprintf(line, sizeof line, "%3.0f%%", 100 * done);
        progress_draw(line);
        return;
    }
    char cells[BAR_MAX + 1];
    memset(cells, '.', (size_t)bar);
    memset(cells, '#', (size_t)(done * bar));
    cells[bar] = '\0';
    snprintf(line, sizeof line, "[%s] %s", cells, numbers);
    progress_draw(line);
}
