/* A session: memory, timing and images around a model family's engine (mar/core/engine.h). It has its own queue,
 * failure and cancel flag, and shares model and VAE with other sessions. From the bottom up: state.c has what all calls
 * use, pictures.c pixels, requests.c images that come and go, batch.c images that begin together, session.c creation
 * and figures. Private to mar/api, but for the last two functions. */
#ifndef MAR_SESSION_H
#define MAR_SESSION_H

#include "mar/api/guarantee.h"
#include "vae/vae.h"

/* A request, or an image of a batch. */
typedef struct mar_entry {
    struct mar_entry *next; /* the next younger request; of a batch: unused */
    uint64_t id;            /* never 0 */
    mar_request_state state;
    int slot;          /* the engine's place; -1: none */
    int steps;         /* autoregressive steps that it takes in all; 0 before it begins */
    mar_image image;   /* its arrays belong to the request */
    float *tokens;     /* host [seq_len][token_dim] a request's tokens, once it is DONE */
    mar_status status; /* of a FAILED request */
    mar_err why;
} mar_entry;

struct mar_session {
    mar_model *model, *draft; /* the session references each; draft NULL: none */
    mar_vae *vae;             /* NULL: tokens only; referenced */
    kern_queue *k;
    int cancel;  /* 1: stop the call in progress. Atomic; the queue reads it */
    mar_err err; /* of the last failed call, for mar_session_error() */
    mar_progress_function *progress;
    void *progress_user;

    mar_guarantee_text guarantee;
    int max_images;
    int grid_height, grid_width; /* of the image decoder's latent pixels; without one 0 */
    mar_engine_state *engine_state;
    vae_run *decoder; /* NULL without vae */
    void *arena;      /* backend: all memory of the session */
    size_t arena_bytes;
    float *latents; /* backend [seq_len][token_dim] tokens of one image, to decode; NULL without vae */
    float *pixels;  /* host: floats of one image */
    uint8_t *bytes; /* host: pixels of one image */
    int *found;     /* host [vae_run_images] flags of the images fetched, as in vae_pictures */
    float *tokens;  /* host [seq_len][token_dim] of one image */
    uint8_t *known; /* host [seq_len] */
    int planned;    /* images whose shapes are planned; 0: none */

    /* The images in progress. */
    mar_entry **at;           /* [max_images] by slot; NULL: free */
    int *admit_slot;          /* [max_images] scratch: slots and images that begin */
    mar_image *admit_image;   /* [max_images] */
    mar_entry **admit_entry;  /* [max_images] */
    mar_entry *first_request; /* the oldest */
    mar_entry **last_request; /* where the next younger one goes */
    int requests;             /* in the list */
    int pending;              /* of these WAITING or RUNNING */
    uint64_t last_id;         /* of requests and images of batches */

    /* Batch in progress, or finished. Its images are in slots 0 .. images - 1. */
    mar_entry *batch; /* [max_images] */
    int images;       /* 0: no batch yet */
    uint64_t first_image;
    int steps;          /* autoregressive steps of the batch */
    int decoded;        /* images finished by the last mar_session_images */
    mar_status dropped; /* reason for dropping the batch; MAR_OK: not dropped */
    mar_err why;        /* message of `dropped` */
    const char *since;  /* "was measured" or "has decoded ..." if that dropped the batch; else NULL */
    double total_s, vae_s, vae_flop;
    int warned; /* 1: the log knows that recording failed */

    int in_call; /* 1: a call is in progress; its callbacks may make no other */
};

/* --- state.c ------------------------------------------------------------------------------------------------------ */

/* Returns MAR_EARG: the session is at work in the call that this one interrupts. */
mar_status mar_session_refuse_callback(mar_session *s);
/* Begins a call that returns a status. Returns MAR_OK if the session exists, its handle can be used here, and no other
 * call on it is in progress. Otherwise the error is the session's, or the thread's if there is no session. */
mar_status mar_session_enter(mar_session *s);
/* Ends such a call. Returns status. */
mar_status mar_session_leave(mar_session *s, mar_status status);
/* Returns whether there is a session, which this process may use. */
int mar_session_is_usable(const mar_session *s);
/* Returns the numbers of an image's tokens. */
size_t mar_session_token_count(const mar_session *s);
/* Returns whether a number can be part of a token: one of the vocabulary, or a finite one. */
int mar_session_is_token(const mar_session *s, float x);

/* Prepares the shapes of n images. */
mar_status mar_session_plan(mar_session *s, int n, mar_err *err);
/* Prepares the queue and the shapes of n images. Clears a failure of the queue, and waits for its work. */
mar_status mar_session_prepare(mar_session *s, int n);
/* Logs, once, that the device refuses to record. */
void mar_session_log_unrecorded(mar_session *s);
/* Calls the host's progress callback, if there is one. */
mar_status mar_session_report(mar_session *s);

static inline int mar_entry_is_running(const mar_entry *e) /* e may be NULL */
{
    return e && e->state == MAR_REQUEST_RUNNING;
}

static inline int mar_entry_steps_left(const mar_session *s, const mar_entry *e)
{
    return s->model->engine->steps_left(s->engine_state, e->slot);
}

/* Returns whether no image is in progress. */
int mar_session_is_idle(const mar_session *s);
/* Begins the n images of s->admit_image in the slots s->admit_slot, with the queue bound. */
void mar_session_admit(mar_session *s, mar_entry *const *entries, int n);
/* Ends an image: frees its slot. */
void mar_session_release(mar_session *s, mar_entry *e);
/* Makes one step of all images in progress, with the queue bound, and updates s->total_s. *failed is the first image
 * with a non-finite token, whose error is in s->err, or NULL: then a failure concerns all. */
mar_status mar_session_run_step(mar_session *s, mar_entry **failed);
/* Returns MAR_EMODEL if a running image has a non-finite token, with its error in s->err: *failed is the first. */
mar_status mar_session_examine(mar_session *s, mar_entry **failed);

/* Drops the batch for `status`, whose reason is in s->err. Returns status. */
mar_status mar_session_drop(mar_session *s, mar_status status);
/* Drops the batch because the session was used for something else: "was measured". */
void mar_session_drop_since(mar_session *s, const char *since);
/* Ends the reading of results for `status`, not MAR_OK: a cancel leaves the batch whole. Returns status. */
mar_status mar_session_stop_reading(mar_session *s, mar_status status);
/* Returns MAR_EARG, with the reason, if the batch was dropped. */
mar_status mar_session_refuse_dropped(mar_session *s);
/* Returns MAR_EARG unless there is a batch and its last step is done. */
mar_status mar_session_check_finished(mar_session *s);
/* Returns MAR_EARG if there are requests, which a batch would take the place of. */
mar_status mar_session_refuse_requests(mar_session *s);

/* --- pictures.c --------------------------------------------------------------------------------------------------- */

/* Decodes one image of these tokens, host [seq_len][token_dim], to the host's pixels. With known, host [seq_len], cells
 * of unknown tokens are grey. number is the image's, for messages. */
mar_status mar_session_decode_one(mar_session *s, uint64_t number, const float *tokens, const uint8_t *known,
                                  const mar_pixels *pixels);

/* --- requests.c --------------------------------------------------------------------------------------------------- */

/* Makes one step of the requests: admits waiting ones, and finishes those that are complete. */
mar_status mar_session_step_requests(mar_session *s);
void mar_session_free_requests(mar_session *s);

/* --- for the tests ------------------------------------------------------------------------------------------------ */

mar_engine_state *mar_session_engine_state(mar_session *s);
kern_queue *mar_session_queue(mar_session *s);

#endif
