/* Recordings of passes by their shape. */
#ifndef NETS_RECORDINGS_H
#define NETS_RECORDINGS_H

#include "kernels/ops.h"

/* Key of a recording. Passes of one recording differ only in contents of host arrays. The key has numbers summed over
 * sequences. The arrays say to which sequence a row belongs. */
typedef struct {
    int kind; /* chosen by the caller */
    int rows, spans, logit_rows;
    const float *in, *out; /* backend arrays that are not the pass's own */
    const int *drawn;
    int with_continuation; /* 1: the recording includes a continuation of this shape */
    int continuation[4];   /* causal_continuation.shape */
} net_recording_shape;

enum { NET_RECORDINGS = 32 };

/* The least recently used recording makes room for a new one. Shapes recur even if the images of a batch are at
 * different places. With chains or trees of fixed size, each unfinished image has a fixed number of rows; a draft
 * model's pass has one or two rows more for some images. Rows are not padded to make all passes alike: where shapes
 * recur padding gains nothing, and a product of more rows may round differently. Shapes at an image's end, and of trees
 * that lack tokens, do not recur, and run unrecorded. */
typedef struct {
    struct {
        net_recording_shape shape;
        long used; /* value of `uses` at the last use */
        kern_recording *recording;
    } entry[NET_RECORDINGS];
    int count;
    long uses;
} net_recordings;

/* Returns the place of the recording for this shape; it holds NULL if there is none yet. */
kern_recording **net_recordings_find(kern_queue *k, net_recordings *r, const net_recording_shape *shape);
/* Runs body(arg), a sequence of operations, as the recording of this shape (kern_core_ops.replay). */
void net_recordings_run(kern_queue *k, net_recordings *r, const net_recording_shape *shape, void (*body)(void *arg),
                        void *arg);
void net_recordings_free(kern_queue *k, net_recordings *r); /* leaves it empty */

#endif
