#include "tools/serve/log.h"

#include "tools/cli/command.h"

#include <stdarg.h>
#include <stdio.h>

enum { SILENCE_S = 60 };

static const char *const names[LOG_KINDS] = {[LOG_STEP] = "failed steps",
                                             [LOG_IMAGE] = "failed images",
                                             [LOG_PROMPT] = "prompts not encoded",
                                             [LOG_CUT] = "prompts cut"};

void log_create(service_log *l)
{
    *l = (service_log){.kind[0].left_out = 0};
    pthread_mutex_init(&l->lock, NULL);
}

static void print_left_out(service_log *l, log_kind kind)
{
    if (l->kind[kind].left_out > 0) tool_error("%ld more %s", l->kind[kind].left_out, names[kind]);
    l->kind[kind].left_out = 0;
}

void log_destroy(service_log *l)
{
    for (int kind = 0; kind < LOG_KINDS; kind++) print_left_out(l, (log_kind)kind);
    pthread_mutex_destroy(&l->lock);
}

void log_line(service_log *l, log_kind kind, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const double now = tool_seconds();
    pthread_mutex_lock(&l->lock);
    if (l->kind[kind].printed > 0 && now - l->kind[kind].printed < SILENCE_S) {
        l->kind[kind].left_out++;
    } else {
        print_left_out(l, kind);
        tool_error("%s", text);
        l->kind[kind].printed = now;
    }
    pthread_mutex_unlock(&l->lock);
}
