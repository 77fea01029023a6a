/* The jobs of the service. A job makes one or more images of one seed. Connections submit jobs and wait for them, one
 * engine makes their images. Every call may come from any thread. */
#ifndef TOOLS_SERVE_JOBS_H
#define TOOLS_SERVE_JOBS_H

#include "tools/generate/captions.h"
#include "tools/serve/metrics.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum {
    JOB_IMAGES_MAX = 10,        /* as OpenAI's */
    JOB_ID = 33,                /* 128 random bits in hexadecimal, and a NUL */
    JOB_WHY = 512,              /* room for the reason of a failure */
    JOBS_KEPT_MAX = 1024,       /* finished jobs that are kept */
    JOBS_KEPT_BYTES = 256 << 20 /* and their memory */
};

typedef enum { JOB_QUEUED, JOB_RUNNING, JOB_DONE, JOB_FAILED, JOB_CANCELLED } job_state;

/* Returns "queued", "running", "done", "failed" or "cancelled". */
const char *job_state_name(job_state state);

/* A prompt and its features without padding, one block of memory. */
typedef struct {
    caption rows;
    uint64_t sum; /* captions_sum */
} job_prompt;

/* What a job makes: images 0..n-1 of the seed. */
typedef struct {
    int label;          /* class, -1 for none, or number of the caption */
    job_prompt *prompt; /* NULL: none. The job owns it */
    int n;              /* 1..JOB_IMAGES_MAX */
    uint64_t seed;
    float cfg;
    uint8_t *picture; /* editing: [height][width][3]; NULL: none. The job owns it */
    uint8_t *known;   /* editing: [seq_len] 1: the token is kept; NULL: none. The job owns it */
    int kept_tokens;  /* number of these */
} job_spec;

typedef struct {
    job_state state;
    int step, steps;   /* autoregressive steps done, and in total; 0 of 0 before the first */
    uint8_t *rgb;      /* [height][width][3]; NULL once png is there */
    uint8_t *png;      /* [png_size] NULL until a client wants it */
    size_t png_size;   /* bytes */
    int encoding;      /* 1: a thread encodes rgb */
    uint8_t *preview;  /* [height][width][3], NULL until a client wants one */
    int preview_step;  /* the preview has the tokens of this many steps; -1: none yet */
    int wants_preview; /* 1: a client waits for a new one */
} job_image;

/* Fields below `lock` in the struct jobs guard: all but id, spec and created, which do not change. */
typedef struct job {
    char id[JOB_ID];
    job_spec spec;
    time_t created;
    job_image image[JOB_IMAGES_MAX];
    int claimed;      /* images that the engine has taken */
    int unfinished;   /* images */
    int cancelled;    /* 1: nothing more is made */
    int kept;         /* 1: stays for a while when it is finished */
    int references;   /* connections that use it, and the table */
    unsigned version; /* changes with every change a client can see */
    int watchers;     /* threads that wait for any change; others wait for the end */
    int code;         /* HTTP status of the failure */
    char why[JOB_WHY];
    double submitted, finished; /* tool_seconds */
    size_t bytes;               /* memory of its images */
    pthread_cond_t changed;
    struct job *next; /* a younger one */
} job;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t work; /* wakes the engine */
    pthread_cond_t idle; /* no job is unfinished */
    job *first, *last;   /* all jobs, the oldest first */
    int kept_count;      /* finished ones */
    size_t kept_bytes;
    job *unclaimed;     /* the oldest with an image that the engine has not taken; NULL: none */
    int unfinished;     /* images waiting or running */
    int running;        /* of these */
    int most;           /* images that may be unfinished */
    double keep_s;      /* seconds that finished jobs are kept */
    size_t image_bytes; /* of rgb */
    int changed;        /* 1: a job was cancelled, and the engine has not looked */
    int draining;       /* 1: no new jobs */
    int stopping;       /* 1: the engine ends */
    double image_s;     /* seconds an image takes, with others beside it; 0: unknown */
    metrics *metrics;
} jobs;

/* Sets up the table. At most `most` images are unfinished. An image has width x height pixels. */
void jobs_create(jobs *t, metrics *m, int most, double keep_s, int width, int height);
/* Frees all. No thread uses the table any more. */
void jobs_destroy(jobs *t);

typedef enum { SUBMIT_OK, SUBMIT_FULL, SUBMIT_DRAINING, SUBMIT_NO_MEMORY } submit_result;
/* Returns what a submission of n images would now, but for memory. */
submit_result jobs_ask_room(jobs *t, int n);
/* Queues a job. Takes over all that spec owns, whatever the result. *out has a reference. */
submit_result jobs_submit(jobs *t, const job_spec *spec, int kept, job **out);
/* Frees what a spec owns. */
void jobs_free_spec(const job_spec *spec);
/* Returns a reference on the job with that id; NULL: there is none. */
job *jobs_find(jobs *t, const char *id);
/* Drops a reference; j may be NULL. */
void jobs_release(jobs *t, job *j);
/* Stops making its images. Does nothing to a finished job. */
void jobs_cancel(jobs *t, job *j);
/* Does the same for a client that left, and does not keep the job. */
void jobs_abandon(jobs *t, job *j);
/* Writes the images that wait and run. */
void jobs_count(jobs *t, int *waiting, int *running);
/* Returns the seconds after which a refused client may try again, 1 or more. */
int jobs_retry_after(jobs *t);

/* A job at one moment. */
typedef struct {
    job_state state;
    unsigned version;
    int step, steps; /* sums over the images; steps is 0 before the first */
    int over;        /* 1: no image can change */
    int code;        /* HTTP status of a failure; else 0 */
    char why[JOB_WHY];
    struct {
        job_state state;
        int step, steps;
    } image[JOB_IMAGES_MAX];
} job_view;
void jobs_view(jobs *t, job *j, job_view *out);

/* Wait until the job is over, or differs from version `seen`, or `ms` have passed. */
void jobs_wait_end(jobs *t, job *j, int ms);
void jobs_wait_change(jobs *t, job *j, unsigned seen, int ms);

/* Waits at most `ms` until nothing is unfinished. Returns whether that is so. */
int jobs_wait_idle(jobs *t, int ms);
/* Drops finished jobs whose time is over. */
void jobs_expire(jobs *t);
/* Refuses new jobs. */
void jobs_drain(jobs *t);
int jobs_is_draining(jobs *t);
/* Ends the engine. */
void jobs_stop(jobs *t);

/* --- pictures ----------------------------------------------------------------------------------------------------- */

/* Begins to encode image i. Returns its pixels, which stay until jobs_encoded. Returns NULL and *png with *size bytes
 * if it is encoded, after waiting for another thread that does it. Returns NULL and *png NULL if the image is not done.
 */
const uint8_t *jobs_encode(jobs *t, job *j, int i, const uint8_t **png, size_t *size);
/* Ends it. The job owns png, or if it is NULL keeps the pixels. */
void jobs_encoded(jobs *t, job *j, int i, uint8_t *png, size_t size);

/* Asks the engine for a preview of image i, unless there is one of its current step. Returns 0, or 1 without memory. */
int jobs_ask_preview(jobs *t, job *j, int i);
/* Copies the preview that was asked for to rgb, uint8_t [height][width][3]. Returns its step, or -1 if the engine has
 * not made it. */
int jobs_get_preview(jobs *t, job *j, int i, uint8_t *rgb);

/* --- the engine's side -------------------------------------------------------------------------------------------- */

/* Waits for work: an unclaimed image, a cancelled job, or the end. Returns at once if `busy`. Returns 0 at the end. */
int jobs_await(jobs *t, int busy);
/* Takes the next image that waits. Returns its job with a reference; NULL: none. */
job *jobs_claim(jobs *t, int *image);
int jobs_is_cancelled(jobs *t, job *j);
/* Notes the steps of an image; the first note of a step says that it runs. */
void jobs_progress(jobs *t, job *j, int i, int step, int steps);
/* Ends an image: `state` is JOB_DONE, JOB_FAILED or JOB_CANCELLED. `code` and `why` are those of a failure. Drops the
 * engine's reference. */
void jobs_finish(jobs *t, job *j, int i, job_state state, int code, const char *why);
/* Returns whether a client waits for a preview of the image; and takes it, uint8_t [height][width][3]. */
int jobs_wants_preview(jobs *t, job *j, int i);
void jobs_put_preview(jobs *t, job *j, int i, int step, const uint8_t *rgb);
/* Notes the seconds of `images` finished images. */
void jobs_note_pace(jobs *t, double seconds, int images);

#endif
