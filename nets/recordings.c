#include "nets/recordings.h"

#include <string.h>

static int recordings_same_shape(const net_recording_shape *a, const net_recording_shape *b)
{
    return a->kind == b->kind && a->rows == b->rows && a->spans == b->spans && a->logit_rows == b->logit_rows &&
           a->in == b->in && a->out == b->out && a->drawn == b->drawn && a->with_continuation == b->with_continuation &&
           memcmp(a->continuation, b->continuation, sizeof a->continuation) == 0;
}

kern_recording **net_recordings_find(kern_queue *k, net_recordings *r, const net_recording_shape *shape)
{
    int i = 0, oldest = 0;
    for (; i < r->count && !recordings_same_shape(&r->entry[i].shape, shape); i++)
        if (r->entry[i].used < r->entry[oldest].used) oldest = i;
    if (i == NET_RECORDINGS) {
        i = oldest;
        k->core->recording_free(k, r->entry[i].recording);
        r->entry[i].recording = NULL;
    } else if (i == r->count) {
        r->count++;
        r->entry[i].recording = NULL;
    }
    r->entry[i].shape = *shape;
    r->entry[i].used = ++r->uses;
    return &r->entry[i].recording;
}

void net_recordings_run(kern_queue *k, net_recordings *r, const net_recording_shape *shape, void (*body)(void *arg),
                        void *arg)
{
    if (k->watch.on) /* the search for a non-finite layer waits between layers */
        body(arg);
    else
        k->core->replay(k, net_recordings_find(k, r, shape), body, arg);
}

void net_recordings_free(kern_queue *k, net_recordings *r)
{
    for (int i = 0; i < r->count; i++) k->core->recording_free(k, r->entry[i].recording);
    r->count = 0;
}
