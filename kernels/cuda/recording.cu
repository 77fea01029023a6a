/* Recordings: repeated work of a queue, as CUDA graphs.
 *
 * The first use of a recording runs its body directly: capturing and instantiating a graph costs more than a replay
 * saves. A session of one batch would otherwise pay for two hundred graphs and replay none. At the second use the body
 * is run
 *   - to MEASURE the area of its host arrays (staging.cu), then
 *   - to RECORD the work as a graph containing the slots' addresses, and the graph is launched. Each later use runs it
 *   - to REFILL the slots, and launches the graph.
 *
 * If CUDA refuses to capture, instantiate or launch the graph, the body runs directly from then on. The queue keeps the
 * reason (kern_queue.unrecorded). Without memory for the area it runs directly at this use, and the next one tries
 * again. A capture is tried twice: another thread that waits for the whole GPU at that moment invalidates it. The
 * body's own mistakes remain errors, and so do failures that also occur without a recording. */
#include "kernels/cuda/recording.h"

#include <stdlib.h>

enum { ATTEMPTS = 2 }; /* to capture */

int cuda_live(cuda_queue *c)
{
    const cuda_stage_mode mode = c->stage->mode;
    if (!kern_live(&c->base) || mode == CUDA_MEASURE || mode == CUDA_REFILL) return 0;
    (void)cuda_switch(c->device->context);
    cuda_stage_send(c);
    return kern_live(&c->base);
}

int cuda_in_recording(const cuda_queue *c)
{
    return c->stage && c->stage->mode != CUDA_DIRECT;
}

int cuda_outside_recording(cuda_queue *c, const char *what)
{
    if (!cuda_in_recording(c)) return 1;
    c->stage->misused = 1;
    cuda_fail(c, MAR_EBACKEND, "internal error: %s inside a recording", what);
    return 0;
}

/* --- runs of the body ------------------------------------------------------------------------------------- */

/* A recording's body, and the recording. */
typedef struct {
    kern_recording *recording;
    void (*body)(void *arg);
    void *arg;
} recorded_work;

static void run_body(cuda_queue *c, const recorded_work *w, cuda_stage_mode mode)
{
    w->recording->used = 0;
    w->recording->calls = 0xcbf29ce484222325u;
    c->stage->recording = w->recording;
    c->stage->mode = mode;
    c->stage->lists = 0;
    w->body(w->arg);
    c->stage->mode = CUDA_DIRECT;
    c->stage->recording = NULL;
}

static void run_directly(cuda_queue *c, void (*body)(void *arg), void *arg)
{
    c->stage->unrecorded = 1;
    body(arg);
    c->stage->unrecorded = 0;
}

/* --- capturing -------------------------------------------------------------------------------------------- */

/* Held shared by threads that record, and exclusively by one that may wait for the whole GPU. */
static pthread_rwlock_t recorders = PTHREAD_RWLOCK_INITIALIZER;

void cuda_exclusive_begin(void)
{
    (void)pthread_rwlock_wrlock(&recorders);
}

void cuda_exclusive_end(void)
{
    (void)pthread_rwlock_unlock(&recorders);
}

/* Returns 1 if a run without a recording would fail the same way. */
static int is_final(const cuda_queue *c)
{
    return c->base.failed == MAR_ECANCELLED || c->stage->misused;
}

/* Captures work on the queue's own stream: the caller's stream may not be capturable, or other work may depend on it. A
 * kernel's first launch may be inside a capture: every driver this runtime accepts can load it then (CUDA 12.3 and
 * later). The mode is relaxed because cuBLASLt may load and allocate at its first product. Other threads may allocate
 * meanwhile, too. It permits no thread to wait for the whole GPU: hence the lock. cuda_outside_recording refuses our
 * own calls that must not be captured. */
static mar_status capture(cuda_queue *c, const recorded_work *w, cudaGraphExec_t *graph, mar_err *err)
{
    cudaGraph_t captured = NULL;
    cudaStream_t const stream = c->stream;
    *graph = NULL;
    (void)pthread_rwlock_rdlock(&recorders);
    mar_status status =
        cuda_status(cudaStreamBeginCapture(c->own, cudaStreamCaptureModeRelaxed), "starting a recording", err);
    if (status == MAR_OK) {
        c->stream = c->own;
        run_body(c, w, CUDA_RECORD);
        c->stream = stream;
        status = cuda_status(cudaStreamEndCapture(c->own, &captured), "ending a recording", err);
    }
    (void)pthread_rwlock_unlock(&recorders);
    if (status == MAR_OK) status = cuda_status(cudaGraphInstantiate(graph, captured, 0), "preparing a recording", err);
    if (captured) (void)cudaGraphDestroy(captured);
    if (status != MAR_OK) *graph = NULL;
    return status;
}

/* An operation's failure in the capture causes the failure at its end. Unless it is final the queue forgets it: no work
 * has been done, and it will be tried again. */
static mar_status capture_once(cuda_queue *c, const recorded_work *w, cudaGraphExec_t *graph, mar_err *err)
{
    mar_status status = capture(c, w, graph, err);
    if (c->base.failed == MAR_OK) return status;
    status = err_set(err, c->base.failed, "%s", c->base.failure.text);
    if (*graph) (void)cudaGraphExecDestroy(*graph);
    *graph = NULL;
    if (!is_final(c)) c->base.failed = MAR_OK;
    return status;
}

/* Captures the work of the body, and instantiates the graph. On failure *graph is NULL and err says which step failed.
 */
static mar_status capture_twice(cuda_queue *c, const recorded_work *w, cudaGraphExec_t *graph, mar_err *err)
{
    (void)cuda_live(c); /* no array is copied inside */
    mar_status status = capture_once(c, w, graph, err);
    for (int i = 1; i < ATTEMPTS && status != MAR_OK && !is_final(c); i++) status = capture_once(c, w, graph, err);
    return status;
}

/* --- recordings ------------------------------------------------------------------------------------------- */

static mar_status alloc_area(cuda_queue *c, kern_recording *rec, mar_err *err)
{
    const mar_status status =
        rec->bytes > 0 ? cuda_stage_alloc(c, rec->bytes, &rec->pinned, &rec->device, err) : MAR_OK;
    if (rec->device) c->base.recorded_bytes += rec->bytes;
    if (status != MAR_OK) return status;
    return cuda_status(cudaEventCreateWithFlags(&rec->fetched, cudaEventDisableTiming), "making an event", err);
}

/* Frees a recording's resources, after the work that uses them. */
static void recording_release(cuda_queue *c, kern_recording *rec)
{
    (void)cudaStreamSynchronize(c->stream);
    if (rec->graph) (void)cudaGraphExecDestroy(rec->graph);
    if (rec->fetched) (void)cudaEventDestroy(rec->fetched);
    if (rec->device) c->base.recorded_bytes -= rec->bytes;
    cuda_stage_free(c, rec->pinned, rec->device);
    if (rec->state == CUDA_RECORDED) c->base.recordings--;
    *rec = {};
}

static void give_up(cuda_queue *c, kern_recording *rec, const mar_err *why)
{
    (void)cudaGetLastError(); /* of the invalidated capture */
    recording_release(c, rec);
    rec->state = CUDA_UNRECORDED;
    if (c->base.unrecorded++ == 0) c->base.why_unrecorded = *why;
}

static void record(cuda_queue *c, recorded_work *w)
{
    kern_recording *rec = w->recording;
    mar_err why = {};
    c->stage->misused = 0;
    run_body(c, w, CUDA_MEASURE);
    if (!kern_live(&c->base)) return; /* no CUDA call has been made */
    rec->bytes = rec->used;
    rec->recorded = rec->calls;
    const mar_status area = alloc_area(c, rec, &why);
    if (area == MAR_OK) (void)capture_twice(c, w, &rec->graph, &why);
    if (rec->graph) {
        rec->state = CUDA_RECORDED;
        c->base.recordings++;
    } else if (is_final(c) || area == MAR_ENOMEM) {
        recording_release(c, rec); /* the next use counts as the second again */
    } else {
        give_up(c, rec, &why);
    }
}

/* Launches the graph. If CUDA refuses, no work has been done. */
static void recording_launch(cuda_queue *c, kern_recording *rec)
{
    mar_err why = {};
    if (rec->bytes > 0 &&
        !cuda_ok(c, cudaMemcpyAsync(rec->device, rec->pinned, rec->bytes, cudaMemcpyHostToDevice, c->stream),
                 "copying a recording's host arrays"))
        return;
    if (!cuda_ok(c, cudaEventRecord(rec->fetched, c->stream), "recording an event")) return;
    if (cuda_status(cudaGraphLaunch(rec->graph, c->stream), "replaying a recording", &why) != MAR_OK)
        give_up(c, rec, &why);
}

void cuda_replay(kern_queue *k, kern_recording **recording, void (*body)(void *arg), void *arg)
{
    cuda_queue *c = cuda_of(k);
    if (cuda_in_recording(c) || c->stage->unrecorded) { /* part of the current recording */
        body(arg);
        return;
    }
    if (!cuda_live(c)) return;
    recorded_work w = {*recording, body, arg};
    kern_recording *rec = w.recording;
    if (!rec) {
        *recording = (kern_recording *)calloc(1, sizeof *rec); /* NULL: the next use counts as the first again */
        run_directly(c, body, arg);
        return;
    }
    if (rec->state == CUDA_SEEN)
        record(c, &w);
    else if (rec->state == CUDA_RECORDED &&
             cuda_ok(c, cudaEventSynchronize(rec->fetched), "waiting for a recording's host arrays"))
        run_body(c, &w, CUDA_REFILL);
    if (!cuda_live(c)) return;
    if (rec->state == CUDA_RECORDED && rec->calls != rec->recorded) {
        cuda_stage_changed(c);
        return;
    }
    if (rec->state == CUDA_RECORDED) recording_launch(c, rec);
    if (rec->state != CUDA_RECORDED && cuda_live(c)) run_directly(c, body, arg);
}

void cuda_recording_free(kern_queue *k, kern_recording *rec)
{
    cuda_queue *c = cuda_of(k);
    if (!rec) return;
    const CUcontext before = cuda_switch(c->device->context);
    if (rec->state == CUDA_UNRECORDED) c->base.unrecorded--;
    recording_release(c, rec);
    (void)cuda_switch(before);
    free(rec);
}
