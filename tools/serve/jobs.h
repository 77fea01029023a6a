/* The jobs of the service. A job makes one or more images of one seed. Connections submit jobs and wait for them. One
 * thread encodes their prompts, one engine makes their images; both serve the clients in turn. Every call may come from
 * any thread. */
#ifndef TOOLS_SERVE_JOBS_H
#define TOOLS_SERVE_JOBS_H

#include "tools/generate/captions.h"
#include "tools/serve/client_key.h"
#include "tools/serve/metrics.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum {
    JOB_IMAGES_MAX = 10,         /* as OpenAI's */
    JOB_ID = 33,                 /* 128 random bits in hexadecimal, and a NUL */
    JOB_WHY = 512,               /* room for the reason of a failure */
    JOBS_KEPT_MAX = 1024,        /* finished jobs that are kept */
    JOBS_KEPT_BYTES = 256 << 20, /* and their memory */
    JOBS_INPUT_BYTES = 256 << 20 /* memory of the prompts, pictures and masks of unfinished jobs */
};

typedef enum { JOB_QUEUED, JOB_RUNNING, JOB_DONE, JOB_FAILED, JOB_CANCELLED } job_state;

/* Returns "queued", "running", "done", "failed" or "cancelled". */
const char *job_state_name(job_state state);

/* Features of a prompt without padding, one block of memory. */
typedef struct job_prompt {
    caption rows;
    uint64_t sum;                /* captions_sum */
    struct job_prompt *negative; /* of the job's negative prompt; NULL: the service's counts */
} job_prompt;

/* What a job makes: images 0..n-1 of the seed. */
typedef struct {
    int label;      /* class, -1 for none, or number of the caption */
    char *text;     /* prompt of a text-to-image model; NULL: none. The job owns it */
    char *negative; /* its negative prompt; NULL: the service's. The job owns it */
    int n;          /* 1..JOB_IMAGES_MAX */
    uint64_t seed;
    float cfg;
    int format;           /* image_format of its files */
    int quality;          /* 1..100, of JPEG and WebP */
    int is_edit;          /* 1: the next fields are set. The job owns their memory */
    uint8_t *picture;     /* [height][width][3]. It and the tokens are freed with the last image */
    uint64_t picture_sum; /* memory_sum of it */
    float *tokens;        /* [seq_len][token_dim] room for the picture's tokens */
    uint8_t *known;       /* [positions] 1: the token is kept */
    int positions;        /* seq_len */
    int kept_tokens;      /* number of these */
    size_t bytes;         /* memory of all that it owns */
    client_key client;    /* whose job it is */
} job_spec;

typedef struct {
    job_state state;
    int step, steps;   /* autoregressive steps done, and in total; 0 of 0 before the first */
    uint8_t *rgb;      /* [height][width][3]; NULL once the file is there */
    uint8_t *file;     /* [file_size] in the job's format; NULL until a client wants it */
    size_t file_size;  /* bytes */
    int encoding;      /* 1: a thread encodes rgb */
    uint8_t *preview;  /* [height][width][3], NULL until a client wants one */
    int preview_step;  /* the preview has the tokens of this many steps; -1: none yet */
    int wants_preview; /* 1: a client waits for a new one */
    int is_fetched;    /* 1: a client has had the picture */
} job_image;

/* The stages of a job for which clients wait in turn. */
typedef enum { STAGE_TEXT, STAGE_IMAGE, STAGES } job_stage;

/* A client with unfinished or kept jobs. */
typedef struct job_client {
    client_key key;
    int unfinished;        /* images */
    size_t input_bytes;    /* spec.bytes of its unfinished jobs */
    int kept_count;        /* finished jobs that are kept */
    size_t kept_bytes;     /* and their memory */
    uint64_t turn[STAGES]; /* jobs.turn when it last had its turn, or came */
    struct job_client *next;
} job_client;

/* Fields below `lock` in the struct jobs guard: all but id, spec and created, which do not change. */
typedef struct job {
    char id[JOB_ID];
    job_spec spec;
    time_t created;
    job_client *client;  /* NULL once it is off the table */
    int needs_text;      /* 1: the prompt is not encoded yet */
    job_prompt *prompt;  /* NULL: none, not encoded yet, or finished */
    uint64_t prompt_sum; /* its sum */
    int has_tokens;      /* 1: spec.tokens are the picture's. The engine's alone */
    job_image image[JOB_IMAGES_MAX];
    int claimed;      /* images that the engine has taken, or that never begin */
    int unfinished;   /* images */
    int cancelled;    /* 1: nothing more is made */
    int kept;         /* 1: stays for a while when it is finished */
    int references;   /* connections that use it, and the table */
    unsigned version; /* changes with every change a client can see */
    int watchers;     /* threads that wait for any change; others wait for the end */
    int code;         /* HTTP status of the failure */
    char why[JOB_WHY];
    const char *param;          /* static: the field at fault; NULL: none */
    int is_seen;                /* 1: a client knows that it is finished */
    double submitted, finished; /* tool_seconds */
    size_t bytes;               /* its memory once it is finished */
    pthread_cond_t changed;
    struct job *next; /* a younger one */
} job;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t work; /* wakes the engine */
    pthread_cond_t text; /* wakes the thread that encodes prompts */
    pthread_cond_t idle; /* no job is unfinished */
    job *first, *last;   /* all jobs, the oldest first */
    int kept_count;      /* finished ones */
    size_t kept_bytes;
    size_t input_bytes;  /* spec.bytes of the unfinished ones */
    job_client *clients; /* with unfinished or kept jobs */
    uint64_t turn;       /* turns that clients have had */
    job *unclaimed;      /* the oldest with an image that the engine has not taken; NULL: none */
    int unencoded;       /* jobs whose prompts are not encoded */
    int ready;           /* images that the engine may take */
    int unfinished;      /* images waiting or running */
    int running;         /* of these */
    int most;            /* images that may be unfinished */
    int batch;           /* images that the engine makes at a time */
    double keep_s;       /* seconds that finished jobs are kept */
    size_t image_bytes;  /* of rgb */
    int changed;         /* 1: a job was cancelled, and the engine has not looked */
    int draining;        /* 1: no new jobs */
    int stopping;        /* 1: the engine ends */
    double image_s;      /* seconds an image takes, with others beside it; 0: unknown */
    metrics *metrics;
} jobs;

/* Sets up the table. `queue` images may wait beside the `batch` that are made. An image has width x height pixels. */
void jobs_create(jobs *t, metrics *m, int queue, int batch, double keep_s, int width, int height);
/* Frees all. No thread uses the table any more. */
void jobs_destroy(jobs *t);

typedef enum {
    SUBMIT_OK,
    SUBMIT_FULL,        /* the images do not fit */
    SUBMIT_FULL_BYTES,  /* their inputs do not */
    SUBMIT_SHARE,       /* the client would have more images than places are left for others */
    SUBMIT_SHARE_BYTES, /* or more memory */
    SUBMIT_DRAINING,
    SUBMIT_NO_MEMORY
} submit_result;
/* Queues a job. A client without unfinished images may have any places that are free, others must leave as many free
 * as they have: clients that come later find some. So it is with the memory of inputs. Takes over all that spec owns,
 * whatever the result. *out has a reference. */
submit_result jobs_submit(jobs *t, const job_spec *spec, int kept, job **out);
/* Frees what a spec owns. */
void jobs_free_spec(const job_spec *spec);
void jobs_free_prompt(job_prompt *prompt); /* NULL is fine */
/* Returns the memory of a spec's texts. */
size_t jobs_text_bytes(const job_spec *spec);
/* Returns a reference on the job with that id; NULL: there is none. */
job *jobs_find(jobs *t, const char *id);
/* Drops a reference; j may be NULL. */
void jobs_release(jobs *t, job *j);
/* Stops making its images, those that have not begun at once. Does nothing to a finished job. */
void jobs_cancel(jobs *t, job *j);
/* Does the same for a client that left, and does not keep the job. */
void jobs_abandon(jobs *t, job *j);
/* Cancels the unfinished jobs of a client. */
void jobs_cancel_client(jobs *t, const client_key *client);
/* A client's unfinished jobs. */
typedef struct {
    int jobs, images;
    double done;     /* images, with the parts of those that are made */
    double seconds;  /* that the rest takes, by the last images; 0: unknown */
    int step, steps; /* of the image that has the most steps done */
} client_progress;
void jobs_client_progress(jobs *t, const client_key *client, client_progress *out);
/* Writes the images that wait and run, and the jobs whose prompts are not encoded. */
void jobs_count(jobs *t, int *waiting, int *running, int *unencoded);
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
    const char *param; /* static: the field at fault; NULL: none */
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
/* Notes that a client has had the picture of image i, or knows that the job is finished. */
void jobs_note_fetched(jobs *t, job *j, int i);
void jobs_note_seen(jobs *t, job *j);
/* Returns whether a client may still come for a finished job: one that ended less than `grace_s` seconds ago with a
 * picture that was not fetched, or without one and unseen. */
int jobs_are_wanted(jobs *t, double grace_s);
/* Drops finished jobs whose time is over. If more are kept than JOBS_KEPT_MAX or JOBS_KEPT_BYTES, those go first that
 * have no picture and were seen, then those of the client that keeps the most: fetched ones, then the oldest. */
void jobs_expire(jobs *t);
/* Refuses new jobs. */
void jobs_drain(jobs *t);
int jobs_is_draining(jobs *t);
/* Ends the engine and the thread that encodes prompts. */
void jobs_stop(jobs *t);

/* --- pictures ----------------------------------------------------------------------------------------------------- */

/* Begins to encode image i. Returns its pixels, which stay until jobs_encoded. Returns NULL and *file with *size bytes
 * if it is encoded, after waiting for another thread that does it. Returns NULL and *file NULL if the image is not
 * done. */
const uint8_t *jobs_encode(jobs *t, job *j, int i, const uint8_t **file, size_t *size);
/* Ends it. The job owns the file, or if it is NULL keeps the pixels. */
void jobs_encoded(jobs *t, job *j, int i, uint8_t *file, size_t size);

/* Asks the engine for a preview of image i, unless there is one of its current step. Returns 0, or 1 without memory. */
int jobs_ask_preview(jobs *t, job *j, int i);
/* Copies the preview that was asked for to rgb, uint8_t [height][width][3]. Returns its step, or -1 if the engine has
 * not made it. */
int jobs_get_preview(jobs *t, job *j, int i, uint8_t *rgb);

/* --- prompts ------------------------------------------------------------------------------------------------------ */

/* Waits for a prompt to encode. Returns its job with a reference; NULL at the end. Prompts of at most a batch are
 * encoded ahead of the engine. */
job *jobs_await_prompt(jobs *t);
/* Gives the job its features, or if they are NULL fails it with `code` and `why`. `param`: static, the field at fault,
 * or NULL. Drops the reference. Takes over the prompt. */
void jobs_put_prompt(jobs *t, job *j, job_prompt *prompt, int code, const char *param, const char *why);

/* --- the engine's side -------------------------------------------------------------------------------------------- */

/* Waits for work: an image that may begin, a cancelled job, or the end. Returns at once if `busy`. Returns 0 at the
 * end. */
int jobs_await(jobs *t, int busy);
/* Takes the next image that may begin: the oldest of the client whose last turn is the longest ago. Returns its job
 * with a reference; NULL: none. */
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

/* --- for jobs_pictures.c, with the lock held ---------------------------------------------------------------------- */

/* Notes a change that clients can see, and wakes those who wait for it. */
void locked_announce(job *j);
/* Adds to the kept number and bytes, in all and of the job's client; modulo 2^64, so that it subtracts as well. */
void locked_add_kept(jobs *t, const job *j, int count, size_t bytes);

#endif
