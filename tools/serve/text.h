/* The T5 of the service, which encodes a request's prompt. */
#ifndef TOOLS_SERVE_TEXT_H
#define TOOLS_SERVE_TEXT_H

#include "tools/generate/prompt_encoder.h"
#include "tools/serve/answer.h"
#include "tools/serve/jobs.h"

#include <pthread.h>

typedef struct {
    pthread_mutex_t lock; /* of the encoder: one request's prompt at a time */
    prompt_encoder *encoder;
} text_service;

/* Sets up the service of an encoder, which stays its owner's. */
void text_service_create(text_service *t, prompt_encoder *encoder);
void text_service_destroy(text_service *t);

/* Encodes a prompt. Returns 0 with *out, to be freed, or 1 with the error in *a: 400 for a prompt that cannot be
 * encoded. */
int text_service_encode(text_service *t, const char *prompt, job_prompt **out, answer *a);

#endif
