/* The engine: one thread that makes the images of all jobs with the service's session. */
#ifndef TOOLS_SERVE_ENGINE_H
#define TOOLS_SERVE_ENGINE_H

#include "tools/serve/service.h"

#include <pthread.h>

/* An image in the session. */
typedef struct {
    job *job; /* a reference */
    int image;
    uint64_t id; /* of the session's request */
} engine_work;

typedef struct {
    service *service;
    pthread_t thread;
    engine_work *work; /* [options.batch] */
    int count;         /* of work */
    uint8_t *rgb;      /* [height][width][3] of a preview */
    float *features;   /* [2][caption_tokens][caption_dim] of a caption, and of its negative prompt */
    uint8_t *mask;     /* [2][caption_tokens] of them */
    double busy_s;     /* seconds of steps since an image was finished */
    int next_preview;  /* place in work after that of the last preview */
} engine;

/* Starts the thread. Returns 0, or 1 with the error printed. */
int engine_start(engine *e, service *s);
/* Ends it after jobs_stop, and frees all. */
void engine_end(engine *e);

#endif
