/* The simulated devices, all alike: their limits, errors, and checks of launches. */
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "fibres.h"
#include "runtime.h"

#include <map>
#include <memory>
#include <set>
#include <type_traits>

std::recursive_mutex runtime_mutex;

static thread_local cudaError_t last_error = cudaSuccess;
enum { MAX_DEVICES = 4 };
static thread_local long calls_left = LONG_MAX; /* calls before the next failure */

cudaError_t runtime_done(cudaError_t e)
{
    if (e != cudaSuccess && e != cudaErrorNotReady) last_error = e;
    return e;
}

void cudahost_fail_after(long calls)
{
    calls_left = calls < 0 ? LONG_MAX : calls;
}
static unsigned refused, refused_once;
static size_t refused_cluster;
void cudahost_refuse(unsigned what, int cluster)
{
    LOCK();
    refused = what;
    refused_cluster = (size_t)cluster;
}
unsigned cudahost_refuse_once(unsigned what)
{
    LOCK();
    const unsigned left = refused_once;
    refused_once = what;
    return left;
}
bool runtime_refuses(unsigned what)
{
    LOCK();
    const bool once = (refused_once & what) != 0;
    refused_once &= ~what;
    return once || (refused & what) != 0;
}
bool runtime_refuses_cluster(unsigned what, size_t blocks)
{
    LOCK();
    return blocks > 1 && blocks >= refused_cluster && runtime_refuses(what);
}
static cudaError_t lost[MAX_DEVICES];
void cudahost_lose(int device, int error)
{
    LOCK();
    lost[device] = (cudaError_t)error;
}
cudaError_t runtime_lost()
{
    LOCK();
    return lost[runtime_device()];
}
bool runtime_injected()
{
    if (calls_left == LONG_MAX) return false;
    return calls_left-- <= 0;
}

/* --- errors and the device --------------------------------------------------------------------------------------- */

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
};

const char *cudaGetErrorString(cudaError_t error)
{
    for (const auto &e : errors)
        if (e.error == error) return e.text;
    return "unrecognized error code";
}
const char *cudaGetErrorName(cudaError_t error)
{
    for (const auto &e : errors)
        if (e.error == error) return e.name;
    return "unrecognized error code";
}
cudaError_t cudaGetLastError()
{
    const cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

size_t runtime_environment(const char *name, size_t otherwise)
{
    const char *value = getenv(name);
    return value && *value ? (size_t)strtoull(value, nullptr, 10) : otherwise;
}

/* Returns an H100's limits with few multiprocessors, or with MAR_CUDAHOST_CAPABILITY those of 8.0
 * (A100), 8.6, 8.9, 10.0 or 12.0 (an RTX 5090, with clusters and 99 KB of shared memory). MAR_CUDAHOST_SMS is the
 * number of multiprocessors. MAR_CUDAHOST_SHARED is the shared memory of a block in bytes. There is room for
 * MAR_CUDAHOST_CLUSTERS clusters of up to MAR_CUDAHOST_CLUSTER blocks. */
cudaDeviceProp runtime_properties()
{
    const char *capability = getenv("MAR_CUDAHOST_CAPABILITY");
    cudaDeviceProp p = {};
    p.major = 9;
    if (capability) sscanf(capability, "%d.%d", &p.major, &p.minor);
    const bool hopper = p.major >= 9, small = p.major == 12 || (p.major == 8 && p.minor > 0);
    const size_t shared = (size_t)(small ? 99 : hopper ? 227 : 163) << 10; /* of a block */
    snprintf(p.name, sizeof(p.name), "CUDA on the CPU");
    p.totalGlobalMem = runtime_environment("MAR_CUDAHOST_MEMORY", (size_t)8 << 30);
    p.multiProcessorCount = (int)runtime_environment("MAR_CUDAHOST_SMS", 4);
    p.sharedMemPerBlockOptin = runtime_environment("MAR_CUDAHOST_SHARED", shared);
    p.sharedMemPerMultiprocessor = shared + (1 << 10);
    p.reservedSharedMemPerBlock = 1 << 10;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiProcessor = small ? 1536 : 2048;
    p.maxBlocksPerMultiProcessor = small ? 16 : 32;
    p.l2CacheSize = (int)runtime_environment("MAR_CUDAHOST_L2", (size_t)(hopper ? 50 : 40) << 20);
    return p;
}

static int driver_version()
{
    return (int)runtime_environment("MAR_CUDAHOST_DRIVER", CUDART_VERSION);
}
cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0; /* any driver of the runtime's major version is valid */
    if (driver_version() < CUDART_VERSION / 1000 * 1000) return runtime_done(cudaErrorInsufficientDriver);
    *count = (int)runtime_environment("MAR_CUDAHOST_DEVICES", 1);
    return runtime_done(*count ? cudaSuccess : cudaErrorNoDevice);
}
static bool device_exists(int device)
{
    return device >= 0 && (size_t)device < runtime_environment("MAR_CUDAHOST_DEVICES", 1) && device < MAX_DEVICES;
}

/* --- contexts ---------------------------------------------------------------------------------------------------- */

struct CUctx_st {
    int device;
};
static CUctx_st contexts[MAX_DEVICES] = {{0}, {1}, {2}, {3}};
static unsigned contexts_made;
static thread_local CUcontext current;
static thread_local int chosen_device; /* set by cudaSetDevice */

static CUcontext make_context(int device)
{
    LOCK();
    contexts_made |= 1u << device;
    return &contexts[device];
}
unsigned cudahost_contexts()
{
    LOCK();
    const unsigned made = contexts_made;
    contexts_made = 0;
    return made;
}
int runtime_device()
{
    return current ? current->device : chosen_device;
}
void runtime_context()
{
    current = make_context(runtime_device());
}
cudaError_t cudaSetDevice(int device)
{
    if (!device_exists(device)) return runtime_done(cudaErrorInvalidDevice);
    chosen_device = device;
    current = make_context(device);
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = runtime_device();
    return cudaSuccess;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return device_exists(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (!device_exists(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (runtime_injected()) return CUDA_ERROR_OUT_OF_MEMORY;
    if (lost[device]) return (CUresult)lost[device];
    *context = make_context(device);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (runtime_refuses(CUDAHOST_CURRENT_CONTEXT)) return CUDA_ERROR_OUT_OF_MEMORY;
    *context = current;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned, unsigned long long)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        {"cuDeviceGet", (void *)cuDeviceGet},
        {"cuDevicePrimaryCtxRetain", (void *)cuDevicePrimaryCtxRetain},
        {"cuCtxGetCurrent", (void *)cuCtxGetCurrent},
        {"cuCtxSetCurrent", (void *)cuCtxSetCurrent},
        {"cuTensorMapEncodeTiled", (void *)cuTensorMapEncodeTiled},
    };
    *function = nullptr;
    for (const auto &f : functions)
        if (strcmp(f.name, symbol) == 0) *function = f.function;
    return cudaSuccess;
}

/* --- limits ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    *properties = runtime_properties();
    return runtime_done(device_exists(device) ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    if (!device_exists(device)) return runtime_done(cudaErrorInvalidDevice);
    *value = attribute == cudaDevAttrClockRate ? 1980000 : runtime_properties().l2CacheSize;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver_version();
    return cudaSuccess;
}

/* --- launches ---------------------------------------------------------------------------------------------------- */

struct kernel_attributes {
    size_t shared = 48 << 10;
    bool large_clusters = false;
};
static std::map<std::pair<int, const void *>, kernel_attributes> of_kernels; /* by device and kernel */
static kernel_attributes &attributes_of(const void *kernel)
{
    return of_kernels[{runtime_device(), kernel}];
}

cudaError_t cudahost_func_set(const void *kernel, cudaFuncAttribute attribute, int value)
{
    LOCK();
    runtime_context();
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || (size_t)value > runtime_properties().sharedMemPerBlockOptin)
            return runtime_done(cudaErrorInvalidValue);
        attributes_of(kernel).shared = (size_t)value;
    } else if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
        attributes_of(kernel).large_clusters = value != 0;
    }
    return cudaSuccess;
}
cudaError_t cudahost_func_get(cudaFuncAttributes *attributes, const void *)
{
    LOCK();
    runtime_context();
    attributes->ptxVersion = runtime_properties().major >= 9 ? 90 : 80;
    return cudaSuccess;
}

/* Computes the blocks that fit. Registers are unknown, so they are ignored. */
static cudaError_t occupancy(int *blocks, const void *kernel, int threads, size_t shared)
{
    LOCK();
    runtime_context();
    const cudaDeviceProp p = runtime_properties();
    if (threads <= 0) return runtime_done(cudaErrorInvalidValue);
    *blocks = 0;
    if (threads > p.maxThreadsPerBlock || shared > attributes_of(kernel).shared) return cudaSuccess;
    const size_t by_shared = p.sharedMemPerMultiprocessor / (shared + p.reservedSharedMemPerBlock);
    *blocks = std::min(std::min(p.maxThreadsPerMultiProcessor / ((threads + 31) / 32 * 32), (int)by_shared),
                       p.maxBlocksPerMultiProcessor);
    return cudaSuccess;
}

static dim3 cluster_of(const cudaLaunchConfig_t *config)
{
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
            return dim3(config->attrs[i].val.clusterDim.x, config->attrs[i].val.clusterDim.y,
                        config->attrs[i].val.clusterDim.z);
    return dim3(1);
}

cudaError_t cudahost_clusters(int *clusters, const void *kernel, const cudaLaunchConfig_t *config)
{
    const dim3 cluster = cluster_of(config);
    const dim3 block = config->blockDim;
    int blocks;
    *clusters = 0;
    if (runtime_refuses_cluster(CUDAHOST_CLUSTER_ROOM, (size_t)cluster.x * cluster.y * cluster.z)) return cudaSuccess;
    if (const cudaError_t e = occupancy(&blocks, kernel, (int)(block.x * block.y * block.z), config->dynamicSmemBytes))
        return e;
    const size_t each = (size_t)cluster.x * cluster.y * cluster.z;
    *clusters = blocks * runtime_properties().multiProcessorCount / (int)each;
    *clusters = std::min(*clusters, (int)runtime_environment("MAR_CUDAHOST_CLUSTERS", INT_MAX));
    if (each > runtime_environment("MAR_CUDAHOST_CLUSTER", 8)) *clusters = 0;
    return cudaSuccess;
}

static std::set<const void *> launched_together;
int cudahost_launched_together()
{
    LOCK();
    const int kernels = (int)launched_together.size();
    launched_together.clear();
    return kernels;
}

static std::map<std::pair<const void *, unsigned>, long> ran; /* by kernel and cluster */
long cudahost_ran(const char *kernel, unsigned cluster)
{
    LOCK();
    long launches = 0;
    for (const auto &r : ran)
        if ((!cluster || r.first.second == cluster) &&
            (!*kernel || fibre_symbol(r.first.first, false).find(kernel) != std::string::npos))
            launches += r.second;
    ran.clear();
    return launches;
}

static cudaError_t check_launch(const cudaLaunchConfig_t *c, const void *kernel, device_launch *l)
{
    const cudaDeviceProp p = runtime_properties();
    const dim3 g = c->gridDim, b = c->blockDim;
    bool cooperative = false, early = false;
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == cudaLaunchAttributeCooperative) cooperative |= c->attrs[i].val.cooperative != 0;
        if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            early |= c->attrs[i].val.programmaticStreamSerializationAllowed != 0;
    }
    const bool captured = runtime_is_capturing(c->stream);
    if (cooperative && runtime_refuses(CUDAHOST_COOPERATIVE)) return cudaErrorNotSupported;
    if (cooperative && captured && runtime_refuses(CUDAHOST_COOPERATIVE_CAPTURED))
        return cudaErrorStreamCaptureUnsupported;
    if (!kernel) return cudaErrorInvalidValue;
    if (early && p.major < 9) return cudaErrorNotSupported;
    if (!g.x || !g.y || !g.z || g.x > INT_MAX || g.y > 65535 || g.z > 65535) return cudaErrorInvalidConfiguration;
    if (!b.x || !b.y || !b.z || b.x > 1024 || b.y > 1024 || b.z > 64 || (size_t)b.x * b.y * b.z > 1024)
        return cudaErrorInvalidConfiguration;
    const size_t blocks = (size_t)g.x * g.y * g.z;
    if (c->dynamicSmemBytes > attributes_of(kernel).shared) return cudaErrorInvalidValue;
    *l = {kernel, nullptr, g, b, cluster_of(c), c->dynamicSmemBytes, cooperative, early};
    const dim3 k = l->cluster;
    const size_t in_cluster = (size_t)k.x * k.y * k.z;
    if (!in_cluster || (in_cluster > 1 && p.major < 9)) return cudaErrorInvalidClusterSize;
    if (runtime_refuses_cluster(CUDAHOST_CLUSTERS, in_cluster)) return cudaErrorInvalidClusterSize;
    if (in_cluster > (attributes_of(kernel).large_clusters ? 16 : 8)) return cudaErrorInvalidClusterSize;
    if (g.x % k.x || g.y % k.y || g.z % k.z) return cudaErrorInvalidConfiguration;
    int at_once;
    if (const cudaError_t e = occupancy(&at_once, kernel, (int)(b.x * b.y * b.z), c->dynamicSmemBytes)) return e;
    const bool fits = blocks <= (size_t)at_once * (size_t)p.multiProcessorCount;
    if (cooperative && !fits) return cudaErrorCooperativeLaunchTooLarge;
    if (cooperative) launched_together.insert(kernel);
    if (in_cluster > 1 && fits) l->together = true;
    return cudaSuccess;
}

cudaError_t cudahost_launch(const cudaLaunchConfig_t *config, const void *kernel, cudahost_call *call)
{
    LOCK();
    std::shared_ptr<cudahost_call> owned(call);
    device_launch l;
    runtime_context();
    if (runtime_injected()) return runtime_done(cudaErrorLaunchOutOfResources);
    if (const cudaError_t e = check_launch(config, kernel, &l)) return runtime_done(e);
    if (!runtime_is_current(config->stream)) return runtime_done(cudaErrorInvalidResourceHandle);
    return runtime_done(runtime_enqueue(config->stream, [l, owned] {
        device_launch launch = l;
        launch.call = owned.get();
        ran[{l.kernel, l.cluster.x * l.cluster.y * l.cluster.z}]++;
        launch.early = l.early && runtime_kernel_last(); /* after a copy or a wait it is a launch as any */
        runtime_launched();
        fibre_run(&launch);
    }));
}

/* --- products of a warp ------------------------------------------------------------------------------------------- */

template <typename T> static float2 two_of(uint32_t bits)
{
    if (std::is_same<T, __half>::value)
        return make_float2(cudahost_f16_float((unsigned short)bits), cudahost_f16_float((unsigned short)(bits >> 16)));
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}

template <typename T>
void cudahost_mma(float d[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line)
{
    struct operands {
        const uint32_t *a, *b;
    };
    const operands mine = {a, b};
    const uint64_t *given = cudahost_sync_warp(CUDAHOST_SHUFFLE, ~0u, (uint64_t)(uintptr_t)&mine, file, line);
    const auto of = [given](unsigned lane) { return (const operands *)(uintptr_t)given[lane]; };
    const unsigned lane = static_cast<device_thread *>(cudahost_now)->number % 32, g = lane / 4, t = lane % 4;
    float sum[4]; /* in registers, like the operands: sanitizers check each read of memory */
    memcpy(sum, d, sizeof(sum));
    for (unsigned quad = 0; quad < 4; quad++) {
        float2 row[4], column[2][2];
        for (unsigned i = 0; i < 4; i++) row[i] = two_of<T>(of(4 * g + quad)->a[i]);
        for (unsigned j = 0; j < 2; j++)
            for (unsigned i = 0; i < 2; i++) column[j][i] = two_of<T>(of(4 * (2 * t + j) + quad)->b[i]);
        for (unsigned half = 0; half < 2; half++)
            for (unsigned i = 0; i < 2; i++)
                for (unsigned j = 0; j < 2; j++) {
                    sum[2 * i + j] += row[2 * half + i].x * column[j][half].x;
                    sum[2 * i + j] += row[2 * half + i].y * column[j][half].y;
                }
    }
    memcpy(d, sum, sizeof(sum));
    cudahost_sync_warp(CUDAHOST_SHUFFLE, ~0u, 0, file, line); /* waits until all lanes have read */
}
template void cudahost_mma<__nv_bfloat16>(float d[4], const uint32_t a[4], const uint32_t b[2], const char *, int);
template void cudahost_mma<__half>(float d[4], const uint32_t a[4], const uint32_t b[2], const char *, int);

/* --- copies to shared memory -------------------------------------------------------------------------------------- */

void cudahost_copy16(void *shared, const void *global, const char *file, int line)
{
    device_thread *me = static_cast<device_thread *>(cudahost_now);
    const size_t offset = (size_t)((unsigned char *)shared - me->block->shared);
    if (offset >= fibre_running->shared_bytes || fibre_running->shared_bytes - offset < 16)
        fibre_fail(me, "cp.async at %s:%d to an address outside of shared memory", file, line);
    if (((uintptr_t)shared | (uintptr_t)global) % 16)
        fibre_fail(me, "cp.async at %s:%d of misaligned addresses", file, line);
    me->copies.push_back({shared, global, me->groups, __builtin_return_address(0), file, line});
    if (cudahost_race) cudahost_race->copy_begins(&me->copies.back());
}
void cudahost_copy_commit()
{
    static_cast<device_thread *>(cudahost_now)->groups++;
}
void cudahost_copy_wait(unsigned open)
{
    device_thread *me = static_cast<device_thread *>(cudahost_now);
    size_t n = 0; /* copies are in the order of their groups */
    for (; n < me->copies.size() && me->copies[n].group + open < me->groups; n++) {
        const device_copy &c = me->copies[n];
        if (cudahost_race) cudahost_race->copy_ends(&c);
        memcpy(c.to, c.from, 16);
    }
    if (n && !me->unfenced) me->unfenced = true, me->block->unfenced++;
    me->copies.erase(me->copies.begin(), me->copies.begin() + (long)n);
}

void cudahost_wait_for_previous()
{
    static_cast<device_thread *>(cudahost_now)->waited = true;
}

/* --- atomics ----------------------------------------------------------------------------------------------------- */

#define ATOMIC(T, name, arguments, update)                                                                             \
    T name arguments                                                                                                   \
    {                                                                                                                  \
        if (cudahost_race) cudahost_race->atomic(p, sizeof(*p), __builtin_return_address(0));                          \
        const T old = *p;                                                                                              \
        *p = (update);                                                                                                 \
        return old;                                                                                                    \
    }
#define ATOMICS(T)                                                                                                     \
    ATOMIC(T, atomicMax, (T * p, T v), old < v ? v : old)                                                              \
    ATOMIC(T, atomicMin, (T * p, T v), v < old ? v : old)
ATOMICS(int)
ATOMICS(unsigned)
ATOMICS(unsigned long long)
ATOMIC(int, atomicAdd, (int *p, int v), (int)((unsigned)old + (unsigned)v))
ATOMIC(int, atomicSub, (int *p, int v), (int)((unsigned)old - (unsigned)v))
ATOMIC(unsigned, atomicAdd, (unsigned *p, unsigned v), old + v)
ATOMIC(unsigned long long, atomicAdd, (unsigned long long *p, unsigned long long v), old + v)
ATOMIC(float, atomicAdd, (float *p, float v), old + v)
ATOMIC(int, atomicOr, (int *p, int v), old | v)
ATOMIC(unsigned, atomicOr, (unsigned *p, unsigned v), old | v)
