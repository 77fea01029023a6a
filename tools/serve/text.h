/* The thread that encodes the prompts of jobs with the service's T5, one at a time. */
#ifndef TOOLS_SERVE_TEXT_H
#define TOOLS_SERVE_TEXT_H

#include "tools/generate/prompt_encoder.h"
#include "tools/serve/jobs.h"
#include "tools/serve/log.h"

#include <pthread.h>

typedef struct {
    prompt_encoder *encoder;
    jobs *jobs;
    service_log *log;
    pthread_t thread;
} text_service;

/* Starts the thread. The encoder stays its owner's, and is the thread's alone. Returns 0, or 1 with *t empty and the
 * error printed. */
int text_start(text_service *t, prompt_encoder *encoder, jobs *all, service_log *log);
/* Ends it after jobs_stop. An empty *t is fine. */
void text_end(text_service *t);

#endif
