/* Staging of host arrays, recordings, times.
 *
 * Staging. A host array of an operation is copied to pinned memory; the stream then copies it to the device. Outside a
 * recording the pinned memory is a slot of a ring, and the copy starts at once. In a recording it is a slot of the
 * recording's own area, and one copy of the whole area precedes each replay. Slots are assigned in the order of the
 * calls, which is the same at each run of the recording's body.
 *
 * Recordings. The body is run
 *   - to MEASURE the area, before the first replay; then
 *   - to RECORD the work as a CUDA graph, which contains the slots' addresses;
 *   - to REFILL the slots, before each later replay. */
#include "kernels/cuda/cuda.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARTS = 4,            /* parts of the ring: one is filled while the stream reads the others */
    PART_BYTES = 2 << 20, /* of a part at first; the ring grows */
    PART_ARRAYS = 8,      /* arrays a part has room for, so that the ring has room for all of an operation */
    SLOT = 128,           /* alignment of a slot, one cache line */
    LAPS = 4096,          /* between two waits */
};

typedef struct ring {
    char *pinned, *device;      /* [PARTS][part_bytes] */
    size_t part_bytes;          /* of each part */
    size_t used;                /* of the current part */
    int part;                   /* the current part */
    cudaEvent_t fetched[PARTS]; /* the stream has copied the part */
    struct ring *older;         /* a smaller ring before this one; an operation may still read it */
} ring;

struct kern_recording {
    char *pinned, *device; /* [bytes] the area of slots, on both sides */
    size_t bytes;          /* of the area */
    size_t used;           /* bytes staged in this run of the body */
    uint64_t calls;        /* a hash of the sizes staged in this run */
    uint64_t recorded;     /* that hash when the work was recorded; it must not change */
    cudaEvent_t fetched;   /* the stream has copied the area for the last replay */
    cudaGraphExec_t graph;
};

typedef enum { DIRECT, MEASURE, RECORD, REFILL } stage_mode;

struct cuda_stage {
    ring *now;
    stage_mode mode;
    kern_recording *recording; /* unless DIRECT */
};

struct cuda_laps {
    cudaEvent_t event[LAPS];
    double *seconds[LAPS]; /* where to add the time since the event before; may be NULL */
    int made;              /* events created */
    int count;             /* events recorded since the last wait */
};

int cuda_live(cuda_queue *c)
{
    const stage_mode mode = c->stage->mode;
    if (!kern_live(&c->base) || mode == MEASURE || mode == REFILL) return 0;
    (void)cudaSetDevice(c->device->number);
    return 1;
}

int cuda_in_recording(const cuda_queue *c)
{
    return c->stage && c->stage->mode != DIRECT;
}

int cuda_outside_recording(cuda_queue *c, const char *what)
{
    if (!cuda_in_recording(c)) return 1;
    mar_err err = {};
    kern_fail(&c->base, err_set(&err, MAR_EBACKEND, "internal error: %s inside a recording", what), &err);
    return 0;
}

/* --- memory on both sides --------------------------------------------------------------------------------- */

static mar_status alloc_pair(cuda_queue *c, size_t bytes, char **pinned, char **device, mar_err *err)
{
    mar_status status = cuda_status(cudaMallocHost((void **)pinned, bytes), "allocating pinned memory", err);
    return status == MAR_OK ? cuda_alloc(&c->device->base, bytes, (void **)device, err) : status;
}

static void free_pair(cuda_queue *c, char *pinned, char *device)
{
    cuda_free(&c->device->base, device);
    if (pinned) (void)cudaFreeHost(pinned);
}

static void ring_free(cuda_queue *c, ring *r)
{
    if (!r) return;
    free_pair(c, r->pinned, r->device);
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
    mar_status status = alloc_pair(c, PARTS * part_bytes, &r->pinned, &r->device, err);
    for (int i = 0; status == MAR_OK && i < PARTS; i++)
        status = cuda_status(cudaEventCreateWithFlags(&r->fetched[i], cudaEventDisableTiming), "making an event", err);
    if (status != MAR_OK) {
        ring_free(c, r);
        return status;
    }
    *out = r;
    return MAR_OK;
}

static size_t slot_bytes(size_t bytes)
{
    return (bytes + SLOT - 1) / SLOT * SLOT;
}

/* --- staging ---------------------------------------------------------------------------------------------- */

/* Makes a ring with room for arrays of this size the current one. Returns 0 if it fails. */
static int grow(cuda_queue *c, size_t bytes)
{
    mar_err err = {};
    ring *larger = NULL;
    const mar_status status = ring_create(c, PART_ARRAYS * slot_bytes(bytes), &larger, &err);
    if (status != MAR_OK) {
        kern_fail(&c->base, status, &err);
        return 0;
    }
    larger->older = c->stage->now;
    c->stage->now = larger;
    return 1;
}

static const void *ring_slot(cuda_queue *c, const void *host, size_t bytes)
{
    if (PART_ARRAYS * slot_bytes(bytes) > c->stage->now->part_bytes && !grow(c, bytes)) return NULL;
    ring *r = c->stage->now;
    if (r->used + bytes > r->part_bytes) {
        if (!cuda_ok(c, cudaEventRecord(r->fetched[r->part], c->stream), "recording an event")) return NULL;
        r->part = (r->part + 1) % PARTS;
        r->used = 0;
        if (!cuda_ok(c, cudaEventSynchronize(r->fetched[r->part]), "waiting for host arrays")) return NULL;
    }
    const size_t at = (size_t)r->part * r->part_bytes + r->used;
    r->used += slot_bytes(bytes);
    memcpy(r->pinned + at, host, bytes);
    cuda_ok(c, cudaMemcpyAsync(r->device + at, r->pinned + at, bytes, cudaMemcpyHostToDevice, c->stream),
            "copying a host array");
    return r->device + at;
}

static void fail_changed(cuda_queue *c)
{
    mar_err err = {};
    kern_fail(&c->base,
              err_set(&err, MAR_EBACKEND, "internal error: a recording's host arrays are not those that were recorded"),
              &err);
}

static const void *recording_slot(cuda_queue *c, const void *host, size_t bytes)
{
    kern_recording *rec = c->stage->recording;
    rec->calls = (rec->calls ^ (host ? bytes : SIZE_MAX)) * 0x100000001b3u; /* FNV-1a */
    if (!host) return NULL;
    const size_t at = rec->used;
    rec->used += slot_bytes(bytes);
    if (c->stage->mode == MEASURE) return host; /* nothing is launched, so any pointer but NULL will do */
    if (rec->used > rec->bytes) {
        fail_changed(c);
        return NULL;
    }
    memcpy(rec->pinned + at, host, bytes);
    return rec->device + at;
}

const void *cuda_stage_bytes(cuda_queue *c, const void *host, size_t bytes)
{
    if (cuda_in_recording(c)) return recording_slot(c, host, bytes);
    return host && cuda_live(c) ? ring_slot(c, host, bytes) : NULL;
}

mar_status cuda_stage_open(cuda_queue *c, mar_err *err)
{
    c->stage = (struct cuda_stage *)calloc(1, sizeof *c->stage);
    c->laps = (struct cuda_laps *)calloc(1, sizeof *c->laps);
    if (!c->stage || !c->laps) return err_set(err, MAR_ENOMEM, "out of memory");
    return ring_create(c, PART_BYTES, &c->stage->now, err);
}

static void free_rings(cuda_queue *c, ring **first)
{
    while (*first) {
        ring *r = *first;
        *first = r->older;
        ring_free(c, r);
    }
}

void cuda_stage_close(cuda_queue *c)
{
    if (c->stage) free_rings(c, &c->stage->now);
    for (int i = 0; c->laps && i < c->laps->made; i++) (void)cudaEventDestroy(c->laps->event[i]);
    free(c->stage);
    free(c->laps);
}

/* --- recordings ------------------------------------------------------------------------------------------------ */

static void run_body(cuda_queue *c, kern_recording *rec, stage_mode mode, void (*body)(void *arg), void *arg)
{
    rec->used = 0;
    rec->calls = 0xcbf29ce484222325u;
    c->stage->recording = rec;
    c->stage->mode = mode;
    body(arg);
    c->stage->mode = DIRECT;
    c->stage->recording = NULL;
}

/* Held by threads that record, together; and alone by one that may wait for the whole GPU. */
static pthread_rwlock_t recorders = PTHREAD_RWLOCK_INITIALIZER;

void cuda_disturb_begin(void)
{
    (void)pthread_rwlock_wrlock(&recorders);
}

void cuda_disturb_end(void)
{
    (void)pthread_rwlock_unlock(&recorders);
}

/* Records the body's work as a graph. It is captured on the queue's own stream: the caller's may be one that cannot be
 * captured, or one that other work of the caller's depends on. The first launch of a kernel may be inside a capture:
 * every driver that this runtime accepts can load it then (CUDA 12.3 and later). The mode is relaxed because cuBLASLt
 * may load and allocate at its first product, and so that other threads may allocate meanwhile. It permits no thread to
 * wait for the whole GPU: hence the lock. cuda_outside_recording refuses our own calls that must not be captured. */
static mar_status capture(cuda_queue *c, kern_recording *rec, void (*body)(void *arg), void *arg, mar_err *err)
{
    cudaGraph_t graph = NULL;
    cudaStream_t const stream = c->stream;
    (void)pthread_rwlock_rdlock(&recorders);
    mar_status status =
        cuda_status(cudaStreamBeginCapture(c->own, cudaStreamCaptureModeRelaxed), "starting a recording", err);
    if (status == MAR_OK) {
        c->stream = c->own;
        run_body(c, rec, RECORD, body, arg);
        c->stream = stream;
        mar_err why = {};
        const mar_status ended = cuda_status(cudaStreamEndCapture(c->own, &graph), "ending a recording", &why);
        status = kern_check(&c->base, err); /* the cause, if an operation made the capture fail */
        if (status == MAR_OK && ended != MAR_OK) status = err_set(err, ended, "%s", why.text);
    }
    (void)pthread_rwlock_unlock(&recorders);
    if (status == MAR_OK)
        status = cuda_status(cudaGraphInstantiate(&rec->graph, graph, 0), "preparing a recording", err);
    if (graph) (void)cudaGraphDestroy(graph);
    return status;
}

static mar_status record(cuda_queue *c, kern_recording *rec, void (*body)(void *arg), void *arg, mar_err *err)
{
    run_body(c, rec, MEASURE, body, arg);
    mar_status status = kern_check(&c->base, err);
    rec->bytes = rec->used;
    rec->recorded = rec->calls;
    if (status == MAR_OK && rec->bytes > 0) status = alloc_pair(c, rec->bytes, &rec->pinned, &rec->device, err);
    if (rec->device) c->base.recorded_bytes += rec->bytes;
    if (status == MAR_OK)
        status = cuda_status(cudaEventCreateWithFlags(&rec->fetched, cudaEventDisableTiming), "making an event", err);
    return status == MAR_OK ? capture(c, rec, body, arg, err) : status;
}

static kern_recording *new_recording(cuda_queue *c, void (*body)(void *arg), void *arg)
{
    mar_err err = {};
    kern_recording *rec = (kern_recording *)calloc(1, sizeof *rec);
    mar_status status = rec ? record(c, rec, body, arg, &err) : err_set(&err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) return rec;
    kern_fail(&c->base, status, &err);
    cuda_recording_free(&c->base, rec);
    return NULL;
}

void cuda_replay(kern_queue *k, kern_recording **recording, void (*body)(void *arg), void *arg)
{
    cuda_queue *c = cuda_of(k);
    if (cuda_in_recording(c)) { /* becomes a part of that recording */
        body(arg);
        return;
    }
    if (!cuda_live(c)) return;
    if (!*recording)
        *recording = new_recording(c, body, arg);
    else if (cuda_ok(c, cudaEventSynchronize((*recording)->fetched), "waiting for a recording's host arrays"))
        run_body(c, *recording, REFILL, body, arg);
    if (!cuda_live(c)) return;
    kern_recording *rec = *recording;
    if (rec->calls != rec->recorded) {
        fail_changed(c);
        return;
    }
    if (rec->bytes > 0 &&
        !cuda_ok(c, cudaMemcpyAsync(rec->device, rec->pinned, rec->bytes, cudaMemcpyHostToDevice, c->stream),
                 "copying a recording's host arrays"))
        return;
    if (cuda_ok(c, cudaEventRecord(rec->fetched, c->stream), "recording an event"))
        cuda_ok(c, cudaGraphLaunch(rec->graph, c->stream), "replaying a recording");
}

void cuda_recording_free(kern_queue *k, kern_recording *rec)
{
    cuda_queue *c = cuda_of(k);
    if (!rec) return;
    const int before = cuda_switch(c->device->number);
    (void)cudaStreamSynchronize(c->stream);
    if (rec->graph) (void)cudaGraphExecDestroy(rec->graph);
    if (rec->fetched) (void)cudaEventDestroy(rec->fetched);
    if (rec->device) c->base.recorded_bytes -= rec->bytes;
    free_pair(c, rec->pinned, rec->device);
    (void)cuda_switch(before);
    free(rec);
}

/* --- times ------------------------------------------------------------------------------------------------ */

void cuda_lap(kern_queue *k, double *seconds)
{
    cuda_queue *c = cuda_of(k);
    struct cuda_laps *l = c->laps;
    if (!cuda_outside_recording(c, "a lap") || !cuda_live(c)) return;
    if (l->count == LAPS) {
        if (!cuda_ok(c, cudaStreamSynchronize(c->stream), "waiting for the GPU")) return;
        cuda_settle(c);
    }
    if (l->count == l->made) {
        if (!cuda_ok(c, cudaEventCreate(&l->event[l->made]), "making an event")) return;
        l->made++;
    }
    l->seconds[l->count] = seconds;
    if (cuda_ok(c, cudaEventRecord(l->event[l->count], c->stream), "recording an event")) l->count++;
}

void cuda_forget_laps(cuda_queue *c)
{
    c->laps->count = 0;
}

void cuda_settle(cuda_queue *c)
{
    struct cuda_laps *l = c->laps;
    for (int i = 1; i < l->count; i++) {
        float ms = 0;
        if (l->seconds[i] &&
            cuda_ok(c, cudaEventElapsedTime(&ms, l->event[i - 1], l->event[i]), "reading a lap's time"))
            *l->seconds[i] += ms / 1000;
    }
    if (l->count > 1) { /* the next lap begins with the last event */
        cudaEvent_t last = l->event[l->count - 1];
        l->event[l->count - 1] = l->event[0];
        l->event[0] = last;
        l->count = 1;
    }
    free_rings(c, &c->stage->now->older);
}
