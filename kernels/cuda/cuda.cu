/* The CUDA backend: devices, their memory and their queues, the core table. */
#include "kernels/cuda/cuda.h"

extern "C" {
#include "base/printable.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORKSPACE_BYTES = 32 << 20, /* NVIDIA's recommendation for Hopper */
    WORKING_BYTES = 36 << 20,   /* within the 50 MB of an H100's L2 */
    STAGED_BYTES = 64 << 10,    /* a larger upload waits instead of being staged */
    IMAGE_BYTES = 640 << 20,    /* 8 images of 256x256 pixels by KL-16. On 132 multiprocessors its products take, per
                                 * image, 129 thousand waves of tiles times K with 1 image at a time, 72 with 4, 64 with
                                 * 8 and 63 with 16 (counted) */
};

mar_status cuda_read_wish(const char *name, const char *digits, const char *expected, int *value, mar_err *err)
{
    char shown[64];
    const char *text = getenv(name);
    if (!text) return MAR_OK;
    if (strlen(text) != 1 || !strchr(digits, *text))
        return err_set(err, MAR_EARG, "the environment variable %s is '%s', expected %s", name,
                       printable(text, shown, sizeof shown), expected);
    *value = *text - '0';
    return MAR_OK;
}

static const char *size_text(size_t bytes, char text[32])
{
    const double mb = (double)bytes / (1 << 20);
    snprintf(text, 32, mb < 1000 ? "%.1f MB" : "%.1f GB", mb < 1000 ? mb : mb / 1024);
    return text;
}

/* Writes ", 1.5 GB of 80.0 GB free"; nothing if the GPU does not say. Returns text. */
static const char *memory_text(char text[80])
{
    char left[32], all[32];
    size_t unused = 0, total = 0;
    text[0] = '\0';
    if (cudaMemGetInfo(&unused, &total) == cudaSuccess && total > 0)
        snprintf(text, 80, ", %s of %s free", size_text(unused, left), size_text(total, all));
    (void)cudaGetLastError(); /* clears it */
    return text;
}

/* Returns what the user can do about an error that comes from outside the program; "" for others. */
static const char *advice(cudaError_t error)
{
    switch (error) {
    case cudaErrorDevicesUnavailable:
        return "; another process has this GPU for itself, or its compute mode forbids processes: wait, or choose "
               "another by --device";
    case cudaErrorNoDevice:
    case cudaErrorDeviceUninitialized:
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalState:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
        return "; the GPU may be lost: the kernel's log (dmesg) then has the driver's reason after Xid; reset it, or "
               "choose another by --device";
    case cudaErrorNoKernelImageForDevice:
        return "; this libmar has no code for this GPU: build it with its compute capability in CUDAARCHS";
    case cudaErrorUnsupportedPtxVersion:
        return "; this libmar has only PTX for this GPU, of a newer toolkit than the driver's: update the driver";
    case cudaErrorSystemDriverMismatch:
        return "; the driver was replaced while it was in use: restart the machine";
    default:
        return "";
    }
}

mar_status cuda_status(cudaError_t error, const char *what, mar_err *err)
{
    char left[80];
    if (error == cudaSuccess) return MAR_OK;
    (void)cudaGetLastError(); /* clears it */
    if (error == cudaErrorMemoryAllocation)
        return err_set(err, MAR_ENOMEM, "%s: out of GPU memory%s", what, memory_text(left));
    return err_set(err, MAR_EBACKEND, "%s: %s%s", what, cudaGetErrorString(error), advice(error));
}

int cuda_ok(cuda_queue *c, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return 1;
    mar_err err = {};
    kern_fail(&c->base, cuda_status(error, what, &err), &err);
    return 0;
}

cudaError_t cuda_tried(const cuda_queue *c, cudaError_t e)
{
    const cudaError_t waited = cudaStreamSynchronize(c->stream);
    if (e == cudaSuccess) return waited;
    (void)cudaGetLastError(); /* clears it */
    return e;
}

void cuda_fail(cuda_queue *c, mar_status status, const char *format, ...)
{
    mar_err err;
    va_list arguments;
    va_start(arguments, format);
    err_line_v(err.text, sizeof err.text, format, arguments);
    va_end(arguments);
    kern_fail(&c->base, status, &err);
}

/* --- contexts --------------------------------------------------------------------------------------------- */

/* The driver's functions, obtained through the runtime: nothing is linked with the driver. */
static struct {
    CUresult (*device_get)(CUdevice *device, int number);
    CUresult (*retain)(CUcontext *context, CUdevice device);
    CUresult (*get_current)(CUcontext *context);
    CUresult (*set_current)(CUcontext context);
    decltype(cuTensorMapEncodeTiled) *describe_tiles; /* NULL in drivers older than 12.0 */
} driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

template <typename F> static void find_function(const char *name, F *function)
{
    void *found = NULL;
    const unsigned version = 12000; /* of the function's interface; every driver new enough has it */
    if (cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault) != cudaSuccess) {
        (void)cudaGetLastError();
        found = NULL;
    }
    *function = (F)found;
}

static void find_driver(void)
{
    find_function("cuDeviceGet", &driver.device_get);
    find_function("cuDevicePrimaryCtxRetain", &driver.retain);
    find_function("cuCtxGetCurrent", &driver.get_current);
    find_function("cuCtxSetCurrent", &driver.set_current);
    find_function("cuTensorMapEncodeTiled", &driver.describe_tiles);
}

CUcontext cuda_switch(CUcontext context)
{
    CUcontext before = NULL;
    const int known = driver.get_current(&before) == CUDA_SUCCESS;
    if (!known || before != context) (void)driver.set_current(context); /* if this fails, the next call reports it */
    return known ? before : context;
}

/* Takes the primary context of the GPU. It is never released: the runtime works in it and keeps it until the process
 * ends. */
static mar_status take_context(cuda_device *d, mar_err *err)
{
    CUdevice device = 0;
    (void)pthread_once(&driver_once, find_driver);
    if (!driver.device_get || !driver.retain || !driver.get_current || !driver.set_current)
        return err_set(err, MAR_EBACKEND, "the NVIDIA driver has no functions for contexts; use the CPU backend");
    CUresult error = driver.device_get(&device, d->number);
    if (error == CUDA_SUCCESS) error = driver.retain(&d->context, device);
    return cuda_status((cudaError_t)error, "choosing the GPU", err); /* the driver's errors have the same numbers */
}

int cuda_can_describe_tiles(void)
{
    (void)pthread_once(&driver_once, find_driver);
    return driver.describe_tiles != NULL;
}

void cuda_describe_tiles(cuda_queue *c, CUtensorMap *map, const bf16 *x, int rows, int columns, int tile_rows)
{
    const cuuint64_t size[] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitch[] = {(cuuint64_t)columns * sizeof *x};
    const cuuint32_t box[] = {64, (cuuint32_t)tile_rows}, step[] = {1, 1}; /* TILE_WIDTH */
    const CUresult error = driver.describe_tiles(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)x, size, pitch, box,
                                                 step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    cuda_ok(c, (cudaError_t)error, "describing a product's operands");
}

/* --- memory ----------------------------------------------------------------------------------------------- */

static mar_status cuda_out_of_memory(size_t bytes, mar_err *err)
{
    char asked[32], left[80];
    (void)cudaGetLastError();
    return err_set(err, MAR_ENOMEM, "out of GPU memory: %s asked%s", size_text(bytes, asked), memory_text(left));
}

/* Clears the memory at once, on the device's own stream: the queue that will use it is unknown, and may be
 * recording. */
static cudaError_t alloc_cleared(cuda_device *d, size_t bytes, void **out)
{
    *out = NULL;
    cudaError_t error = cudaMalloc(out, bytes);
    if (error == cudaSuccess) error = cudaMemsetAsync(*out, 0, bytes, d->zeroing);
    if (error == cudaSuccess) error = cudaStreamSynchronize(d->zeroing);
    if (error != cudaSuccess) {
        (void)cudaFree(*out);
        *out = NULL;
    }
    return error;
}

mar_status cuda_alloc(kern_device *device, size_t bytes, void **out, mar_err *err)
{
    cuda_device *d = cuda_device_of(device);
    const size_t size = bytes ? bytes : 1;
    const CUcontext before = cuda_switch(d->context);
    const cudaError_t error = alloc_cleared(d, size, out);
    const mar_status status = error == cudaErrorMemoryAllocation ? cuda_out_of_memory(size, err)
                                                                 : cuda_status(error, "allocating GPU memory", err);
    (void)cuda_switch(before);
    return status;
}

void cuda_free(kern_device *d, void *p)
{
    if (!p) return;
    const CUcontext before = cuda_switch(cuda_device_of(d)->context);
    (void)cudaFree(p);
    (void)cuda_switch(before);
}

mar_status cuda_working_memory(cuda_queue *c, mar_err *err)
{
    if (c->working) return MAR_OK;
    const mar_status status = cuda_alloc(&c->device->base, WORKING_BYTES, &c->working, err);
    c->working_bytes = c->working ? WORKING_BYTES : 0;
    return status;
}

int cuda_has_working(cuda_queue *c)
{
    mar_err err = {};
    const mar_status status = cuda_working_memory(c, &err);
    if (status != MAR_OK) kern_fail(&c->base, status, &err);
    return status == MAR_OK;
}

static void cuda_upload(kern_queue *k, void *dst, const void *src, size_t bytes)
{
    cuda_queue *c = cuda_of(k);
    if (bytes == 0) return;
    if (bytes <= STAGED_BYTES || cuda_in_recording(c)) {
        const void *staged = cuda_stage_bytes(c, src, bytes);
        if (cuda_live(c))
            cuda_ok(c, cudaMemcpyAsync(dst, staged, bytes, cudaMemcpyDeviceToDevice, c->stream), "uploading");
    } else if (cuda_live(c) &&
               cuda_ok(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, c->stream), "uploading")) {
        cuda_ok(c, cudaStreamSynchronize(c->stream), "uploading");
    }
}

/* Runs the work due when the stream is idle. */
static void on_idle(cuda_queue *c)
{
    cuda_timer_read(c);
    cuda_stage_free_old(c);
}

static void wait(cuda_queue *c, const char *what)
{
    if (!cuda_ok(c, cudaStreamSynchronize(c->stream), what)) return;
    on_idle(c);
    if (!*c->gave_up) return;
    *c->gave_up = 0;
    cuda_fail(c, MAR_EBACKEND,
              "%s: the GPU ran only a part of a kernel that needs all of it; other processes or streams hold the rest "
              "of it",
              what);
}

/* Waits also after a failure or a cancel: earlier work may still run. */
static void cuda_finish(kern_queue *k)
{
    cuda_queue *c = cuda_of(k);
    if (cuda_outside_recording(c, "a wait")) wait(c, "waiting for the GPU");
}

static void cuda_download(kern_queue *k, void *dst, const void *src, size_t bytes)
{
    cuda_queue *c = cuda_of(k);
    if (cuda_outside_recording(c, "a download")) {
        if (bytes > 0 && cuda_live(c))
            cuda_ok(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, c->stream), "downloading");
        wait(c, "downloading");
    }
    if (k->failed != MAR_OK) memset(dst, 0, bytes); /* a caller that checks later must not read garbage */
}

/* The device converts to bf16 and f16; the floats are first copied to the workspace. */
mar_status cuda_upload_floats(cuda_queue *c, const float *host, size_t n, mar_dtype type, void *to, mar_err *err)
{
    (void)cuda_outside_recording(c, "a load");
    mar_status status = kern_check(&c->base, err);
    const int convert = type != MAR_DTYPE_F32;
    const size_t most = convert ? c->workspace_bytes / sizeof *host : n;
    for (size_t i = 0; status == MAR_OK && i < n; i += most) {
        const size_t part = n - i < most ? n - i : most;
        float *at = convert ? (float *)c->workspace : (float *)to + i;
        status = cuda_status(cudaMemcpyAsync(at, host + i, part * sizeof *host, cudaMemcpyHostToDevice, c->stream),
                             "uploading weights", err);
        if (status == MAR_OK && convert) cuda_to_halves(c, at, part, type, (uint16_t *)to + i);
    }
    const cudaError_t idle = cudaStreamSynchronize(c->stream); /* after a failure, too: a copy may still read `host` */
    if (status == MAR_OK) status = cuda_status(idle, "uploading weights", err);
    return status == MAR_OK ? kern_check(&c->base, err) : status;
}

mar_status cuda_alloc_floats(cuda_queue *c, const float *host, size_t n, mar_dtype type, void **out, mar_err *err)
{
    const size_t size = type == MAR_DTYPE_F32 ? sizeof *host : sizeof(bf16);
    mar_status status = cuda_alloc(&c->device->base, n * size, out, err);
    if (status == MAR_OK) status = cuda_upload_floats(c, host, n, type, *out, err);
    if (status == MAR_OK) return MAR_OK;
    cuda_free(&c->device->base, *out);
    *out = NULL;
    return status;
}

mar_status cuda_alloc_copy(cuda_queue *c, const void *host, size_t bytes, void **out, mar_err *err)
{
    return cuda_alloc_floats(c, (const float *)host, bytes / sizeof(float), MAR_DTYPE_F32, out, err); /* as they are */
}

/* --- queues ----------------------------------------------------------------------------------------------- */

static void queue_free(kern_queue *k)
{
    if (!k) return;
    cuda_queue *c = cuda_of(k);
    const CUcontext before = cuda_switch(c->device->context);
    if (c->stream) (void)cudaStreamSynchronize(c->stream);
    cuda_stage_close(c);
    cuda_timer_close(c);
    cuda_free(&c->device->base, c->working);
    cuda_free(&c->device->base, c->workspace);
    if (c->gave_up) (void)cudaFreeHost(c->gave_up);
    if (c->own) (void)cudaStreamDestroy(c->own);
    (void)cuda_switch(before);
    free(c);
}

static mar_status open_parts(cuda_queue *c, mar_err *err)
{
    mar_status status = cuda_status(cudaStreamCreateWithFlags(&c->own, cudaStreamNonBlocking), "opening a stream", err);
    c->stream = c->own;
    if (status == MAR_OK)
        status = cuda_status(cudaMallocHost((void **)&c->gave_up, sizeof *c->gave_up), "allocating pinned memory", err);
    if (status == MAR_OK) *c->gave_up = 0;
    if (status == MAR_OK) status = cuda_stage_open(c, err);
    if (status == MAR_OK) status = cuda_timer_open(c, err);
    c->workspace_bytes = WORKSPACE_BYTES;
    if (status == MAR_OK) status = cuda_alloc(&c->device->base, c->workspace_bytes, &c->workspace, err);
    return status;
}

static mar_status queue_create(kern_device *d, kern_queue **out, mar_err *err)
{
    *out = NULL;
    cuda_queue *c = (cuda_queue *)calloc(1, sizeof *c);
    if (!c) return err_set(err, MAR_ENOMEM, "out of memory");
    kern_queue_init(&c->base, d);
    c->device = cuda_device_of(d);
    const CUcontext before = cuda_switch(c->device->context);
    const mar_status status = open_parts(c, err);
    (void)cuda_switch(before);
    if (status != MAR_OK) {
        queue_free(&c->base);
        return status;
    }
    *out = &c->base;
    return MAR_OK;
}

static void bind_queue(kern_queue *k)
{
    cuda_queue *c = cuda_of(k);
    const CUcontext before = cuda_switch(c->device->context);
    if (c->bound++ == 0) c->outside = before;
}

static void unbind_queue(kern_queue *k)
{
    cuda_queue *c = cuda_of(k);
    if (--c->bound == 0) (void)cuda_switch(c->outside);
}

static void recover(kern_queue *k)
{
    cuda_queue *c = cuda_of(k);
    if (!cuda_outside_recording(c, "a recovery")) return;
    const cudaError_t error = cudaStreamSynchronize(c->stream);
    (void)cudaGetLastError(); /* clears it */
    cuda_timer_forget(c);
    k->failed = MAR_OK;
    *c->gave_up = 0;
    if (cuda_ok(c, error, "waiting for the GPU")) on_idle(c); /* a permanent error is returned by every call */
}

static mar_status cuda_set_stream(kern_queue *k, void *stream, mar_err *err)
{
    cuda_queue *c = cuda_of(k);
    if (!cuda_outside_recording(c, "another stream")) return kern_check(k, err);
    if (stream == (void *)cudaStreamPerThread)
        return err_set(err, MAR_EARG,
                       "the stream is cudaStreamPerThread, which is another one on every thread: expected a stream "
                       "that was created, cudaStreamLegacy, or NULL");
    const cudaError_t error = cudaStreamSynchronize(c->stream);
    if (error == cudaSuccess) {
        on_idle(c);
        c->stream = stream ? (cudaStream_t)stream : c->own;
    }
    return cuda_status(error, "waiting for the GPU", err);
}

/* --- devices ---------------------------------------------------------------------------------------------- */

/* Explains why CUDA finds no GPU. The runtime needs a driver of its own major version. The message names it as
 * nvidia-smi does, by its supported CUDA version. Without any driver the runtime reports one that is too old. */
static mar_status no_gpu(cudaError_t error, mar_err *err)
{
    int version = 0;
    const int needed = CUDART_VERSION / 1000;
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&version) != cudaSuccess) (void)cudaGetLastError();
    if (version == 0) return err_set(err, MAR_EBACKEND, "no GPU: there is no NVIDIA driver; use the CPU backend");
    if (error == cudaErrorInsufficientDriver || version < 1000 * needed)
        return err_set(err, MAR_EBACKEND,
                       "the NVIDIA driver is too old: it supports CUDA %d.%d, expected CUDA %d.0 or later%s; use the "
                       "CPU backend",
                       version / 1000, version % 1000 / 10, needed,
                       needed == 13 ? " (driver R580 or later), or a libmar built with CUDA 12.8 (R570 or later)" : "");
    return err_set(err, MAR_EBACKEND, "no GPU: %s; use the CPU backend", cudaGetErrorString(error));
}

static mar_status check_device(int device, cudaDeviceProp *properties, mar_err *err)
{
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) return no_gpu(error != cudaSuccess ? error : cudaErrorNoDevice, err);
    if (device < 0 || device >= devices)
        return err_set(err, MAR_EARG, "GPU number %d: expected 0..%d, there %s %d", device, devices - 1,
                       devices == 1 ? "is" : "are", devices);
    mar_status status =
        cuda_status(cudaGetDeviceProperties(properties, device), "asking for the GPU's properties", err);
    if (status == MAR_OK && properties->major < 8)
        status = err_set(err, MAR_EBACKEND,
                         "GPU number %d (%s) has compute capability %d.%d, expected 8.0 or later; use the CPU backend",
                         device, properties->name, properties->major, properties->minor);
    return status;
}

void cuda_describe(cuda_device *d, const char *tuning)
{
    char products[36] = "";
    if (*d->products.text) snprintf(products, sizeof products, ", MAR_CUDA_PRODUCTS=%s", d->products.text);
    snprintf(d->base.unit, sizeof d->base.unit, "%s%s%s%s", d->gpu, products,
             d->warpgroup_attention ? ", MAR_CUDA_ATTENTION=1" : "", tuning);
}

static void device_describe(cuda_device *d, const cudaDeviceProp *p)
{
    d->multiprocessors = p->multiProcessorCount;
    d->major = p->major;
    d->shared_bytes = p->sharedMemPerBlockOptin;
    d->base.act_size = d->bf16 ? sizeof(bf16) : sizeof(float);
    d->base.draft_budget = 64; /* SJD-PAC's */
    const size_t budget = p->totalGlobalMem / 32;
    d->base.image_budget = budget < (size_t)IMAGE_BYTES ? budget : (size_t)IMAGE_BYTES;
    snprintf(d->gpu, sizeof d->gpu, "%.60s, sm_%d%d, %d multiprocessors, %zu GB, cuBLASLt %zu", p->name, p->major,
             p->minor, p->multiProcessorCount, (size_t)p->totalGlobalMem >> 30, cublasLtGetVersion());
}

static mar_status open_device(cuda_device *d, mar_err *err)
{
    int major = 0;
    size_t unused = 0, total = 0;
    mar_status status = cuda_status(cuda_code_major(&major), "looking for the GPU's code", err);
    if (status == MAR_OK) status = cuda_status(cudaMemGetInfo(&unused, &total), "asking for the GPU's memory", err);
    if (status != MAR_OK) return status;
    if (major < d->major) d->major = major;
    /* The rest is for weights, and for other sessions. A product of the modulation then has fewer than 2^31
     * results. */
    d->base.mod_budget = unused / 8 < (size_t)4 << 30 ? unused / 8 : ((size_t)4 << 30) - 1;
    const cublasStatus_t created = cublasLtCreate(&d->lt);
    if (created != CUBLAS_STATUS_SUCCESS)
        return err_set(err, MAR_EBACKEND, "opening cuBLASLt: %s", cublasLtGetStatusString(created));
    return cuda_status(cudaStreamCreateWithFlags(&d->zeroing, cudaStreamNonBlocking), "opening a stream", err);
}

static void cuda_close(kern_device *device)
{
    cuda_device *d = cuda_device_of(device);
    if (d->context) {
        const CUcontext before = cuda_switch(d->context);
        cuda_matmuls_free(d);
        if (d->zeroing) (void)cudaStreamDestroy(d->zeroing);
        cuda_exclusive_begin();
        if (d->lt) (void)cublasLtDestroy(d->lt);
        cuda_exclusive_end();
        (void)cuda_switch(before);
    }
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
}

static double attribute(const kern_device *d, cudaDeviceAttr which)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, ((const cuda_device *)d)->number) == cudaSuccess) return value;
    (void)cudaGetLastError();
    return 0;
}

void cuda_machine(const kern_device *d, kern_machine *out)
{
    out->clock = 1000 * attribute(d, cudaDevAttrClockRate);
    out->cache_bytes = attribute(d, cudaDevAttrL2CacheSize);
    out->processors = ((const cuda_device *)d)->multiprocessors;
}

/* --- the tables ------------------------------------------------------------------------------------------- */

#define ENTRY(table, entry, function) .entry = function,

static const kern_core_ops core_table = {.close = cuda_close,
                                         .queue_create = queue_create,
                                         .queue_free = queue_free,
                                         .bind = bind_queue,
                                         .unbind = unbind_queue,
                                         .recover = recover,
                                         .set_stream = cuda_set_stream,
                                         .alloc = cuda_alloc,
                                         .free = cuda_free,
                                         .upload = cuda_upload,
                                         .download = cuda_download,
                                         .finish = cuda_finish,
                                         CUDA_CORE_OPS(ENTRY)};
static const kern_head_ops head_table = {CUDA_HEAD_OPS(ENTRY)};
static const kern_conv_ops conv_table = {CUDA_CONV_OPS(ENTRY)};
static const kern_discrete_ops discrete_table = {CUDA_DISCRETE_OPS(ENTRY)};
static const kern_measure_ops measure_table = {CUDA_MEASURE_OPS(ENTRY)};
static const kern_fused_ops fused_table = {CUDA_FUSED_OPS(ENTRY).linear_gated = kern_linear_then_gated};

extern "C" mar_status kern_cuda_open(mar_dtype dtype, int device, kern_device **out, mar_err *err)
{
    *out = NULL;
    if ((int)dtype < MAR_DTYPE_AUTO || (int)dtype > MAR_DTYPE_INT4)
        return err_set(err, MAR_EARG, "--dtype %d: expected auto, f32, bf16, int8 or int4", (int)dtype);
    if (dtype == MAR_DTYPE_F16)
        return err_set(err, MAR_EARG, "--dtype f16: the CUDA backend computes in f32, bf16, int8 or int4");
    cudaDeviceProp properties;
    mar_status status = check_device(device, &properties, err);
    if (status != MAR_OK) return status;
    cuda_device *d = (cuda_device *)calloc(1, sizeof *d);
    if (!d || pthread_mutex_init(&d->lock, NULL) != 0) {
        free(d);
        return err_set(err, MAR_ENOMEM, "out of memory");
    }
    d->base.core = &core_table;
    d->base.head = &head_table;
    d->base.conv = &conv_table;
    d->base.discrete = &discrete_table;
    d->base.measure = &measure_table;
    d->base.fused = fused_table;
    kern_fused_complete(&d->base);
    d->base.asynchronous = 1;
    d->number = device;
    d->bf16 = dtype != MAR_DTYPE_F32;
    d->base.skinny_rows = d->bf16 ? KERN_SKINNY_ROWS : 0;
    d->base.int8 = dtype == MAR_DTYPE_INT8, d->base.int4 = dtype == MAR_DTYPE_INT4;
    device_describe(d, &properties);
    status = cuda_choose_products(d, err);
    if (status == MAR_OK) status = cuda_choose_attention(d, err);
    cuda_describe(d, "");
    if (status == MAR_OK) status = take_context(d, err);
    if (status == MAR_OK) {
        const CUcontext before = cuda_switch(d->context);
        status = open_device(d, err);
        (void)cuda_switch(before);
    }
    if (status != MAR_OK) {
        cuda_close(&d->base);
        return status;
    }
    *out = &d->base;
    return MAR_OK;
}

/* Counts from GPU 0 up to the first that is too old. */
extern "C" int kern_cuda_devices(mar_err *why)
{
    int usable = 0;
    cudaDeviceProp properties;
    while (check_device(usable, &properties, why) == MAR_OK) usable++;
    return usable;
}
