/* Messages whose number clients decide: at most one line a minute of each kind, with the number left out. */
#ifndef TOOLS_SERVE_LOG_H
#define TOOLS_SERVE_LOG_H

#include <pthread.h>

typedef enum { LOG_STEP, LOG_IMAGE, LOG_PROMPT, LOG_CUT, LOG_KINDS } log_kind;

typedef struct {
    pthread_mutex_t lock;
    struct {
        double printed; /* tool_seconds of the last line; 0: none */
        long left_out;  /* lines since then */
    } kind[LOG_KINDS];
} service_log;

void log_create(service_log *l);
/* Prints the numbers of lines left out, and frees all. */
void log_destroy(service_log *l);
/* Prints "mar: " and the message as one line, or counts it. */
void log_line(service_log *l, log_kind kind, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
