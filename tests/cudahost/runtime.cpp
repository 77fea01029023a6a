/* The CUDA runtime of one simulated device: memory, streams, copies, events and graphs. */
#include "runtime.h"
#include "fibres.h"

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <sys/mman.h>

#if CUDAHOST_ASAN
#include <sanitizer/asan_interface.h>
#endif

/* --- memory ------------------------------------------------------------------------------------------------------ */

struct allocation {
    size_t bytes, pages; /* requested bytes; mapped bytes, in whole pages */
    unsigned long born;  /* `works` at the allocation */
};
static std::map<uintptr_t, allocation> device_memory;
static std::map<uintptr_t, size_t> pinned_memory;
static size_t device_used;
static unsigned long works; /* work items given to any stream */
static const size_t page = 4096;

bool runtime_is_pinned(const void *p, size_t bytes)
{
    LOCK();
    auto next = pinned_memory.upper_bound((uintptr_t)p);
    if (next == pinned_memory.begin()) return false;
    --next;
    return (uintptr_t)p + bytes <= next->first + next->second;
}

bool runtime_device_range(const void *p, uintptr_t *first, size_t *bytes)
{
    LOCK();
    auto next = device_memory.upper_bound((uintptr_t)p);
    if (next == device_memory.begin()) return false;
    --next;
    *first = next->first, *bytes = next->second.bytes;
    return (uintptr_t)p < *first + *bytes;
}
bool runtime_on_device(const void *p, size_t bytes)
{
    uintptr_t first;
    size_t size;
    return runtime_device_range(p, &first, &size) && (uintptr_t)p + bytes <= first + size;
}
/* Permits host code to access device memory, or forbids it. Under AddressSanitizer a forbidden access is reported,
 * while at most 16 MiB of device memory are in use. */
static void allow_device_memory(bool allowed)
{
#if CUDAHOST_ASAN
    static bool is_allowed = true;
    if (device_used > (size_t)16 << 20) allowed = true;
    if (allowed && is_allowed) return;
    for (const auto &a : device_memory)
        if (allowed)
            ASAN_UNPOISON_MEMORY_REGION((void *)a.first, a.second.bytes);
        else
            ASAN_POISON_MEMORY_REGION((void *)a.first, a.second.bytes);
    is_allowed = allowed;
#else
    (void)allowed;
#endif
}

static long hasty_frees, instantiated, graph_launches, launches, waits;
static bool kernel_last; /* the last work was a kernel that the host has not waited for */
bool runtime_kernel_last()
{
    LOCK();
    return kernel_last;
}

static void perform_one(const std::function<void()> &work)
{
    const long before = launches;
    work();
    kernel_last = launches != before;
}

/* Runs work of the device. */
static void perform(const std::function<void()> &work)
{
    allow_device_memory(true);
    perform_one(work);
    allow_device_memory(false);
}

static void finish_all();
static bool any_pending(unsigned long since);

long cudahost_launches()
{
    LOCK();
    return launches;
}
void runtime_launched()
{
    launches++;
}
static size_t set_bytes;
size_t cudahost_set_bytes()
{
    LOCK();
    return set_bytes;
}
long cudahost_waits()
{
    LOCK();
    return waits;
}
long cudahost_hasty_frees()
{
    LOCK();
    return hasty_frees;
}
long cudahost_instantiated()
{
    LOCK();
    return instantiated;
}
long cudahost_graph_launches()
{
    LOCK();
    return graph_launches;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    LOCK();
    runtime_context();
    if (runtime_injected()) return runtime_done(cudaErrorMemoryAllocation);
    if (const cudaError_t e = runtime_lost()) return runtime_done(e);
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    const size_t pages = (bytes + page - 1) / page * page;
    if (bytes > runtime_properties().totalGlobalMem || pages > runtime_properties().totalGlobalMem - device_used)
        return runtime_done(cudaErrorMemoryAllocation);
    unsigned char *memory =
        (unsigned char *)mmap(nullptr, pages + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return runtime_done(cudaErrorMemoryAllocation);
    memory += page; /* guard pages on both sides */
    if (mprotect(memory, pages, PROT_READ | PROT_WRITE)) return runtime_done(cudaErrorMemoryAllocation);
    memset(memory, 0xff, pages);
    device_memory[(uintptr_t)memory] = {bytes, pages, works};
    device_used += pages;
#if CUDAHOST_ASAN
    ASAN_POISON_MEMORY_REGION(memory + bytes, pages - bytes);
#endif
    allow_device_memory(true);
    allow_device_memory(false);
    *p = memory;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    LOCK();
    if (!p) return cudaSuccess;
    runtime_context();
    const auto a = device_memory.find((uintptr_t)p);
    if (a != device_memory.end()) hasty_frees += any_pending(a->second.born);
    finish_all();
    if (a == device_memory.end()) return runtime_done(cudaErrorInvalidValue);
#if CUDAHOST_ASAN
    ASAN_UNPOISON_MEMORY_REGION(p, a->second.pages);
#endif
    /* Addresses are not reused, so a use after free is found. */
    if (mmap(p, a->second.pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != p)
        return runtime_done(cudaErrorUnknown);
    if (cudahost_race) cudahost_race->memory_ends(p);
    device_used -= a->second.pages;
    device_memory.erase(a);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    LOCK();
    runtime_context();
    if (runtime_injected() || runtime_refuses(CUDAHOST_PINNED)) return runtime_done(cudaErrorMemoryAllocation);
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (posix_memalign(p, 256, bytes)) return runtime_done(cudaErrorMemoryAllocation);
    memset(*p, 0xff, bytes);
    pinned_memory[(uintptr_t)*p] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p)
{
    LOCK();
    if (!p) return cudaSuccess;
    runtime_context();
    finish_all();
    if (!pinned_memory.erase((uintptr_t)p)) return runtime_done(cudaErrorInvalidValue);
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    LOCK();
    runtime_context();
    *total = runtime_properties().totalGlobalMem;
    *available = *total > device_used ? *total - device_used : 0;
    return cudaSuccess;
}

/* --- streams ----------------------------------------------------------------------------------------------------- */

struct CUgraph_st {
    std::vector<std::function<void()>> nodes;
    bool invalid = false;
};
struct CUgraphExec_st {
    std::vector<std::function<void()>> nodes;
};
struct CUstream_st {
    bool blocking = true; /* synchronizes with the legacy stream */
    int device = 0;
    std::deque<std::function<void()>> pending;
    unsigned long enqueued = 0, performed = 0;
    unsigned long last = 0; /* `works` when it last got work */
    CUgraph_st *capture = nullptr;
};
struct CUevent_st {
    int device = 0;
    CUstream_st *stream = nullptr; /* where it was recorded; NULL: nowhere */
    unsigned long ticket = 0;
    CUgraph_st *captured = nullptr;
    bool timing = true;
    long long nanoseconds = 0;
};

static CUstream_st legacy;
static std::set<CUstream_st *> streams = {&legacy};
static std::set<CUevent_st *> events;

static bool lazy()
{
    return runtime_environment("MAR_CUDAHOST_LAZY", 0) != 0;
}

static CUstream_st *stream_of(cudaStream_t s)
{
    if (!s || s == cudaStreamLegacy) return &legacy;
    return streams.count(s) ? s : nullptr;
}

static void perform_until(CUstream_st *s, unsigned long ticket)
{
    while (s->performed < ticket && !s->pending.empty()) {
        const std::function<void()> work = std::move(s->pending.front());
        s->pending.pop_front();
        s->performed++;
        perform(work);
    }
}
static void finish(CUstream_st *s)
{
    perform_until(s, s->enqueued);
}
/* Returns whether work is pending on a stream that got work after item `since`. */
static bool any_pending(unsigned long since)
{
    for (CUstream_st *s : streams)
        if (!s->pending.empty() && s->last > since) return true;
    return false;
}
static void finish_all()
{
    for (CUstream_st *s : streams) finish(s);
}

bool runtime_is_capturing(cudaStream_t stream)
{
    LOCK();
    const CUstream_st *s = stream_of(stream);
    return s && s->capture;
}
bool runtime_is_current(cudaStream_t stream)
{
    LOCK();
    const CUstream_st *s = stream_of(stream);
    return !s || s == &legacy || s->device == runtime_device(); /* runtime_enqueue refuses invalid streams */
}

static long graphs, others;
void runtime_count(int change)
{
    LOCK();
    others += change;
}
long cudahost_objects()
{
    LOCK();
    return (long)(device_memory.size() + pinned_memory.size() + streams.size() + events.size()) + graphs + others;
}

/* Returns the error of work on the legacy stream while a blocking stream captures, or success. The work invalidates the
 * capture. */
static cudaError_t legacy_unsafe()
{
    for (CUstream_st *s : streams) {
        if (!s->capture || !s->blocking) continue;
        s->capture->invalid = true;
        return cudaErrorStreamCaptureImplicit;
    }
    return cudaSuccess;
}

cudaError_t runtime_enqueue(cudaStream_t stream, std::function<void()> work)
{
    LOCK();
    CUstream_st *s = stream_of(stream);
    if (!s) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t e = runtime_lost()) return e;
    if (s->capture) {
        if (s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
        s->capture->nodes.push_back(std::move(work));
        return cudaSuccess;
    }
    if (s == &legacy) {
        if (const cudaError_t e = legacy_unsafe()) return e;
        for (CUstream_st *other : streams)
            if (other->blocking) finish(other);
    } else if (s->blocking) {
        finish(&legacy);
    }
    s->enqueued++;
    s->last = ++works;
    s->pending.push_back(std::move(work));
    if (!lazy()) finish(s);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    LOCK();
    runtime_context();
    if (runtime_injected()) return runtime_done(cudaErrorMemoryAllocation);
    *stream = new CUstream_st();
    (*stream)->blocking = !(flags & cudaStreamNonBlocking);
    (*stream)->device = runtime_device();
    streams.insert(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    LOCK();
    runtime_context();
    CUstream_st *s = stream_of(stream);
    if (!s || s == &legacy) return runtime_done(cudaErrorInvalidResourceHandle);
    finish(s);
    for (CUevent_st *e : events)
        if (e->stream == s) e->stream = &legacy, e->ticket = 0;
    streams.erase(s);
    delete s;
    return cudaSuccess;
}

static cudaError_t synchronize(cudaStream_t stream)
{
    CUstream_st *s = stream_of(stream);
    if (!s) return cudaErrorInvalidResourceHandle;
    if (s->capture) {
        s->capture->invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    if (s == &legacy) {
        if (const cudaError_t e = legacy_unsafe()) return e;
        for (CUstream_st *other : streams)
            if (other->blocking) finish(other);
    }
    finish(s);
    kernel_last = false;
    return runtime_lost();
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    LOCK();
    runtime_context();
    waits++;
    return runtime_done(synchronize(stream));
}
cudaError_t cudaDeviceSynchronize()
{
    LOCK();
    runtime_context();
    bool captures = false; /* the call also waits for streams that capture */
    for (CUstream_st *s : streams)
        if (s->capture) captures = s->capture->invalid = true;
    if (captures) return runtime_done(cudaErrorStreamCaptureUnsupported);
    finish_all();
    return cudaSuccess;
}

/* --- copies ------------------------------------------------------------------------------------------------------ */

static cudaError_t check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    const bool to_device = runtime_on_device(to, 1), from_device = runtime_on_device(from, 1);
    const bool wants_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool wants_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (wants_to != to_device || wants_from != from_device) return cudaErrorInvalidValue;
    if ((to_device && !runtime_on_device(to, bytes)) || (from_device && !runtime_on_device(from, bytes)))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    LOCK();
    runtime_context();
    if (runtime_injected()) return runtime_done(cudaErrorMemoryAllocation);
    if (bytes == 0) return cudaSuccess;
    if (const cudaError_t e = check_copy(to, from, bytes, kind)) return runtime_done(e);
    CUstream_st *s = stream_of(stream);
    if (!s) return runtime_done(cudaErrorInvalidResourceHandle);
    if (!s->capture && kind == cudaMemcpyHostToDevice && !runtime_is_pinned(from, bytes)) { /* read before it returns */
        auto copy = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
        return runtime_done(runtime_enqueue(stream, [to, copy] { memcpy(to, copy->data(), copy->size()); }));
    }
    const cudaError_t e = runtime_enqueue(stream, [to, from, bytes] { memmove(to, from, bytes); });
    if (e) return runtime_done(e);
    if (!s->capture && kind == cudaMemcpyDeviceToHost && !runtime_is_pinned(to, bytes))
        return runtime_done(synchronize(stream));
    return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    LOCK();
    if (width > to_pitch || width > from_pitch) return runtime_done(cudaErrorInvalidPitchValue);
    for (size_t i = 0; i < height; i++)
        if (const cudaError_t e =
                cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind, stream))
            return e;
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    LOCK();
    const cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    return e ? e : runtime_done(synchronize(nullptr));
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    LOCK();
    runtime_context();
    if (runtime_injected()) return runtime_done(cudaErrorMemoryAllocation);
    if (bytes == 0) return cudaSuccess;
    if (!runtime_on_device(p, bytes)) return runtime_done(cudaErrorInvalidValue);
    set_bytes += bytes;
    return runtime_done(runtime_enqueue(stream, [p, value, bytes] { memset(p, value, bytes); }));
}
cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    LOCK();
    runtime_context();
    return cudaMemsetAsync(p, value, bytes, nullptr);
}

/* --- events ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    LOCK();
    runtime_context();
    if (runtime_injected()) return runtime_done(cudaErrorMemoryAllocation);
    *event = new CUevent_st();
    (*event)->timing = !(flags & cudaEventDisableTiming);
    (*event)->device = runtime_device();
    events.insert(*event);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    LOCK();
    runtime_context();
    if (!events.erase(event)) return runtime_done(cudaErrorInvalidResourceHandle);
    if (event->stream) perform_until(event->stream, event->ticket);
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    LOCK();
    runtime_context();
    if (runtime_injected()) return runtime_done(cudaErrorMemoryAllocation);
    CUstream_st *s = stream_of(stream);
    if (!s || !events.count(event) || (s != &legacy && s->device != event->device))
        return runtime_done(cudaErrorInvalidResourceHandle);
    const auto take = [event] {
        event->nanoseconds = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    };
    if (s->capture) {
        event->captured = s->capture;
        return cudaSuccess;
    }
    const cudaError_t e = runtime_enqueue(stream, take);
    if (e) return runtime_done(e);
    event->captured = nullptr;
    event->stream = s;
    event->ticket = s->enqueued;
    return cudaSuccess;
}
/* Also returns success for an event that was never recorded. */
static cudaError_t check_event(cudaEvent_t event)
{
    if (!events.count(event)) return cudaErrorInvalidResourceHandle;
    if (event->captured) return cudaErrorStreamCaptureUnsupported;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    LOCK();
    if (const cudaError_t e = check_event(event)) return runtime_done(e);
    if (event->stream) perform_until(event->stream, event->ticket);
    kernel_last = false;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    LOCK();
    for (cudaEvent_t event : {start, end}) {
        if (const cudaError_t e = check_event(event)) return runtime_done(e);
        if (!event->timing || !event->stream) return runtime_done(cudaErrorInvalidResourceHandle);
        if (event->stream->performed < event->ticket) return cudaErrorNotReady;
    }
    *milliseconds = (float)((double)(end->nanoseconds - start->nanoseconds) * 1e-6);
    return cudaSuccess;
}

/* --- graphs ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    LOCK();
    runtime_context();
    if (runtime_injected()) return runtime_done(cudaErrorMemoryAllocation);
    CUstream_st *s = stream_of(stream);
    if (!s) return runtime_done(cudaErrorInvalidResourceHandle);
    if (s == &legacy) return runtime_done(cudaErrorStreamCaptureUnsupported);
    if (s->capture) return runtime_done(cudaErrorInvalidValue);
    if (runtime_refuses(CUDAHOST_BEGIN_CAPTURE)) return runtime_done(cudaErrorNotSupported);
    s->capture = new CUgraph_st();
    graphs++;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    LOCK();
    CUstream_st *s = stream_of(stream);
    *graph = nullptr;
    if (!s) return runtime_done(cudaErrorInvalidResourceHandle);
    CUgraph_st *g = s->capture;
    if (!g) return runtime_done(cudaErrorInvalidValue);
    s->capture = nullptr;
    for (CUevent_st *e : events)
        if (e->captured == g) e->captured = nullptr, e->stream = nullptr;
    if (runtime_refuses(CUDAHOST_END_CAPTURE)) g->invalid = true;
    if (g->invalid) {
        delete g;
        graphs--;
        return runtime_done(cudaErrorStreamCaptureInvalidated);
    }
    *graph = g;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    LOCK();
    runtime_context();
    if (runtime_injected()) return runtime_done(cudaErrorMemoryAllocation);
    if (!graph) return runtime_done(cudaErrorInvalidValue);
    if (runtime_refuses(CUDAHOST_INSTANTIATE)) return runtime_done(cudaErrorNotSupported);
    instantiated++;
    *exec = new CUgraphExec_st();
    (*exec)->nodes = graph->nodes;
    graphs++;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    LOCK();
    runtime_context();
    if (runtime_injected()) return runtime_done(cudaErrorLaunchOutOfResources);
    if (!exec) return runtime_done(cudaErrorInvalidValue);
    if (runtime_refuses(CUDAHOST_GRAPH_LAUNCH)) return runtime_done(cudaErrorNotSupported);
    graph_launches++;
    return runtime_done(runtime_enqueue(stream, [nodes = exec->nodes] {
        for (const auto &node : nodes) perform_one(node);
    }));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    LOCK();
    runtime_context();
    if (!exec) return runtime_done(cudaErrorInvalidValue);
    delete exec;
    graphs--;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    LOCK();
    if (!graph) return runtime_done(cudaErrorInvalidValue);
    delete graph;
    graphs--;
    return cudaSuccess;
}
