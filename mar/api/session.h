/* Inside a session: its memory, and what its calls share. They are in session.c (making one), session_batch.c (its
 * steps), session_images.c (tokens and pictures) and session_stats.c (statistics, measuring). */
#ifndef MAR_SESSION_H
#define MAR_SESSION_H

#include "mar/api/engine.h"
#include "mar/api/vae.h"

struct mar_session {
    mar_model *model, *draft; /* draft: NULL without. The session holds a reference on each */
    mar_vae *vae;             /* NULL: tokens only. Referred to, too */
    kern_queue *k;
    int cancel;  /* 1: a call on the session is to stop. Read and written atomically; the queue looks at it */
    mar_err err; /* of the last call that failed, for mar_session_error() */
    mar_progress_function *progress;
    void *progress_user;

    char guarantee[320]; /* mar_session_guarantee */
    int max_images;
    int grid; /* latent pixels a side */
    mar_generation *generation;
    vae_run *decoder; /* NULL without vae */
    void *arena;      /* backend memory, all there is */
    size_t arena_bytes;
    float *pixels; /* host, of an image that is none */
    int *found;    /* host [vae_run_images] of each image fetched, see vae_pictures */
    int planned;   /* number of images whose shapes are planned; 0: none */

    /* The batch in progress, or finished. */
    int images; /* 0: there was none yet */
    uint64_t first_image;
    int steps;          /* autoregressive steps it takes */
    int decoded;        /* images that the last mar_session_images has finished */
    mar_status dropped; /* why it was dropped; MAR_OK: it was not */
    mar_err why;        /* the message of that */
    int measured;       /* dropped because the session was measured, with success */
    double total_s, vae_s, vae_flop;
    int told; /* the log has a line that work cannot be recorded */

    int entered; /* 1: a call is at work, whose callbacks may make no other */
};

/* Begins a call with a status. Returns MAR_OK if there is a session, its handle can be used here, and this is no
 * callback of another call on it. The reason if not is the session's, or without one the thread's. */
mar_status mar_session_enter(mar_session *s);
/* Ends the call. Returns `status`. */
mar_status mar_session_leave(mar_session *s, mar_status status);
/* What the others begin with. */
int mar_session_is_usable(const mar_session *s);

/* Makes every primitive a batch of n images will use. */
mar_status mar_session_plan(mar_session *s, int n, mar_err *err);
/* Readies the session for a batch of n images. */
mar_status mar_session_prepare(mar_session *s, int n);
/* MAR_EARG if the session has no batch whose images are finished. */
mar_status mar_session_check_finished(mar_session *s);

/* Marks the end of a call that has failed with `status`, which it returns: the session forgets the batch. What the
 * queue's failure left unprepared or half recorded is made anew with the next one. */
mar_status mar_session_drop(mar_session *s, mar_status status);
/* The same for a call that was cancelled or failed when the images were finished. If cancelled, they can still be had.
 */
mar_status mar_session_stop_reading(mar_session *s, mar_status status);

/* Tells the host how far the batch is. MAR_EARG in a process that the host has forked there. */
mar_status mar_session_report(mar_session *s);
/* Tells the log, once, that the device refuses to record what the session repeats. */
void mar_session_tell_unrecorded(mar_session *s);

#endif
