/* Staging: transfer of operations' host arrays to the device.
 *
 * A host array is copied to pinned memory; the stream then copies it to the device. Outside a recording the pinned
 * memory is a slot of a ring, and one copy precedes the next work. In a recording it is a slot of the recording's own
 * area, and one copy of the whole area precedes each replay. Slots are assigned in the order of the calls, the same at
 * each run of the recording's body. */
#include "kernels/cuda/recording.h"

#include <stdlib.h>
#include <string.h>

enum {
    PARTS = 4,            /* parts of the ring: one is filled while the stream reads the others */
    PART_BYTES = 2 << 20, /* initial size of a part; the ring grows */
    PART_ARRAYS = 8,      /* arrays that fit in a part, so that the ring has room for all of an operation */
    SLOT = 128,           /* alignment of a slot, one cache line */
};

typedef struct ring {
    char *pinned, *device;      /* [PARTS][part_bytes] */
    size_t part_bytes;          /* of each part */
    size_t used;                /* of the current part */
    int part;                   /* the current part */
    cudaEvent_t fetched[PARTS]; /* the stream has copied the part */
    struct ring *older;         /* smaller predecessor; an operation may still read it */
} ring;

/* --- memory on both sides --------------------------------------------------------------------------------- */

mar_status cuda_stage_alloc(cuda_queue *c, size_t bytes, char **pinned, char **device, mar_err *err)
{
    mar_status status = cuda_status(cudaMallocHost((void **)pinned, bytes), "allocating pinned memory", err);
    return status == MAR_OK ? cuda_alloc(&c->device->base, bytes, (void **)device, err) : status;
}

void cuda_stage_free(cuda_queue *c, char *pinned, char *device)
{
    cuda_free(&c->device->base, device);
    if (pinned) (void)cudaFreeHost(pinned);
}

static void ring_free(cuda_queue *c, ring *r)
{
    if (!r) return;
    cuda_stage_free(c, r->pinned, r->device);
    for (int i = 0; i < PARTS; i++)
        if (r->fetched[i]) (void)cudaEventDestroy(r->fetched[i]);
    free(r);
}

static mar_status ring_create(cuda_queue *c, size_t part_bytes, ring **out, mar_err *err)
{
    *out = NULL;
    ring *r = (ring *)calloc(1, sizeof *r);
    if (!r) return err_set(err, MAR_ENOMEM, "out of memory");
    r->part_bytes = part_bytes;
    mar_status status = cuda_stage_alloc(c, PARTS * part_bytes, &r->pinned, &r->device, err);
    for (int i = 0; status == MAR_OK && i < PARTS; i++)
        status = cuda_status(cudaEventCreateWithFlags(&r->fetched[i], cudaEventDisableTiming), "making an event", err);
    if (status != MAR_OK) {
        ring_free(c, r);
        return status;
    }
    *out = r;
    return MAR_OK;
}

static size_t staging_slot_bytes(size_t bytes)
{
    return (bytes + SLOT - 1) / SLOT * SLOT;
}

/* --- staging ---------------------------------------------------------------------------------------------- */

/* Makes a ring with room for arrays of this size current. Returns 0 if that fails. */
static int staging_grow(cuda_queue *c, size_t bytes)
{
    mar_err err = {};
    ring *larger = NULL;
    const mar_status status = ring_create(c, PART_ARRAYS * staging_slot_bytes(bytes), &larger, &err);
    if (status != MAR_OK) {
        kern_fail(&c->base, status, &err);
        return 0;
    }
    larger->older = c->stage->now;
    c->stage->now = larger;
    return 1;
}

void cuda_stage_send(cuda_queue *c)
{
    struct cuda_stage *s = c->stage;
    const size_t first = s->unsent, bytes = s->unsent_end - first;
    s->unsent = s->unsent_end = 0;
    if (bytes == 0) return;
    cuda_ok(c,
            cudaMemcpyAsync(s->now->device + first, s->now->pinned + first, bytes, cudaMemcpyHostToDevice, c->stream),
            "copying host arrays");
}

static const void *ring_slot(cuda_queue *c, const void *host, size_t bytes)
{
    struct cuda_stage *s = c->stage;
    const int too_large = PART_ARRAYS * staging_slot_bytes(bytes) > s->now->part_bytes;
    if (too_large || s->now->used + bytes > s->now->part_bytes) cuda_stage_send(c);
    if (too_large && !staging_grow(c, bytes)) return NULL;
    ring *r = s->now;
    if (r->used + bytes > r->part_bytes) {
        if (!cuda_ok(c, cudaEventRecord(r->fetched[r->part], c->stream), "recording an event")) return NULL;
        r->part = (r->part + 1) % PARTS;
        r->used = 0;
        if (!cuda_ok(c, cudaEventSynchronize(r->fetched[r->part]), "waiting for host arrays")) return NULL;
    }
    const size_t at = (size_t)r->part * r->part_bytes + r->used;
    r->used += staging_slot_bytes(bytes);
    memcpy(r->pinned + at, host, bytes);
    if (s->unsent_end == 0) s->unsent = at;
    s->unsent_end = at + bytes;
    return r->device + at;
}

void cuda_stage_changed(cuda_queue *c)
{
    c->stage->misused = 1;
    cuda_fail(c, MAR_EBACKEND, "internal error: a recording's host arrays are not those that were recorded");
}

/* Fills `bytes` of a slot of `room` bytes. */
static const void *recording_slot(cuda_queue *c, const void *host, size_t bytes, size_t room)
{
    kern_recording *rec = c->stage->recording;
    rec->calls = (rec->calls ^ (host ? room : SIZE_MAX)) * 0x100000001b3u; /* FNV-1a */
    if (!host) return NULL;
    const size_t at = rec->used;
    rec->used += staging_slot_bytes(room);
    if (c->stage->mode == CUDA_MEASURE) return host; /* nothing is launched: any pointer but NULL will do */
    if (rec->used > rec->bytes || bytes > room) {
        cuda_stage_changed(c);
        return NULL;
    }
    memcpy(rec->pinned + at, host, bytes);
    return rec->device + at;
}

const void *cuda_stage_bytes(cuda_queue *c, const void *host, size_t bytes)
{
    if (cuda_in_recording(c)) return recording_slot(c, host, bytes, bytes);
    if (!host || !kern_live(&c->base)) return NULL;
    (void)cuda_switch(c->device->context);
    return ring_slot(c, host, bytes);
}

const void *cuda_stage_list_bytes(cuda_queue *c, const void *host, size_t bytes, size_t room)
{
    struct cuda_stage *s = c->stage;
    if (!host || !cuda_in_recording(c)) return cuda_stage_bytes(c, host, bytes);
    for (int i = 0; i < s->lists && i < CUDA_LISTS; i++)
        if (s->list[i].host == host && s->list[i].room == room) return s->list[i].device;
    const void *device = recording_slot(c, host, bytes, room);
    s->list[s->lists++ % CUDA_LISTS] = {host, device, room};
    return device;
}

mar_status cuda_stage_open(cuda_queue *c, mar_err *err)
{
    c->stage = (struct cuda_stage *)calloc(1, sizeof *c->stage);
    return c->stage ? ring_create(c, PART_BYTES, &c->stage->now, err) : err_set(err, MAR_ENOMEM, "out of memory");
}

static void free_rings(cuda_queue *c, ring **first)
{
    while (*first) {
        ring *r = *first;
        *first = r->older;
        ring_free(c, r);
    }
}

void cuda_stage_free_old(cuda_queue *c)
{
    free_rings(c, &c->stage->now->older);
}

void cuda_stage_close(cuda_queue *c)
{
    if (c->stage) free_rings(c, &c->stage->now);
    free(c->stage);
}
