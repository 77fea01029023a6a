/* CUDA's runtime on the CPU: the part that the backend uses (runtime.cpp). Work runs when it is enqueued. With
 * MAR_CUDAHOST_LAZY=1 it runs as late as CUDA permits. Enumerations have CUDA's values. Any number of the program's
 * threads may call it; calls run one at a time. */
#ifndef CUDAHOST_RUNTIME_H
#define CUDAHOST_RUNTIME_H

#include "control.h"
#include "cuda.h"
#include "cudahost_device.h"

#include <tuple>

#define CUDART_VERSION 13000

typedef enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidPitchValue = 12,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorDeviceUninitialized = 201,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorECCUncorrectable = 214,
    cudaErrorUnsupportedPtxVersion = 222,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorIllegalState = 401,
    cudaErrorNotReady = 600,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorContextIsDestroyed = 709,
    cudaErrorCooperativeLaunchTooLarge = 720,
    cudaErrorNotSupported = 801,
    cudaErrorSystemDriverMismatch = 803,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureImplicit = 906,
    cudaErrorInvalidClusterSize = 912,
    cudaErrorUnknown = 999,
} cudaError_t;

const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();

/* --- devices --------------------------------------------------------------------------------------------------- */

typedef struct {
    char name[256];
    size_t totalGlobalMem, sharedMemPerMultiprocessor, sharedMemPerBlockOptin, reservedSharedMemPerBlock;
    int major, minor, multiProcessorCount, l2CacheSize;
    int maxThreadsPerBlock, maxThreadsPerMultiProcessor, maxBlocksPerMultiProcessor;
} cudaDeviceProp;
typedef enum { cudaDevAttrClockRate = 13, cudaDevAttrL2CacheSize = 38 } cudaDeviceAttr;
cudaError_t cudaGetDeviceCount(int *count); /* MAR_CUDAHOST_DEVICES */
extern "C" cudaError_t cudaSetDevice(int device);
extern "C" cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
extern "C" cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDriverGetVersion(int *version); /* MAR_CUDAHOST_DRIVER, such as 12080; 0: no driver */
enum { cudaEnableDefault = 0 };
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags);

/* --- memory: MAR_CUDAHOST_MEMORY bytes, initialized with NaNs ---------------------------------------------------- */

typedef enum {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
} cudaMemcpyKind;
typedef struct CUstream_st *cudaStream_t;
#define cudaStreamLegacy    ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)

cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **p, size_t bytes);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = 0);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream = 0);
cudaError_t cudaMemset(void *p, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream = 0);
template <typename T> static inline cudaError_t cudaMalloc(T **p, size_t bytes)
{
    return cudaMalloc((void **)p, bytes);
}
template <typename T> static inline cudaError_t cudaMallocHost(T **p, size_t bytes)
{
    return cudaMallocHost((void **)p, bytes);
}

/* --- streams and events ------------------------------------------------------------------------------------------ */

typedef struct CUevent_st *cudaEvent_t;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = 0);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end);

/* --- graphs ------------------------------------------------------------------------------------------------------ */

typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef enum { cudaStreamCaptureModeRelaxed = 2 } cudaStreamCaptureMode; /* the others forbid threads to allocate */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

/* --- launches ---------------------------------------------------------------------------------------------------- */

typedef enum {
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
} cudaLaunchAttributeID;
typedef union {
    char pad[64];
    int cooperative, programmaticStreamSerializationAllowed;
    struct {
        unsigned x, y, z;
    } clusterDim;
} cudaLaunchAttributeValue;
typedef struct {
    cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
} cudaLaunchAttribute;
typedef struct {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
} cudaLaunchConfig_t;
typedef enum {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
    cudaFuncAttributeNonPortableClusterSizeAllowed = 14,
} cudaFuncAttribute;
enum { cudaSharedmemCarveoutMaxShared = 100 };
typedef struct {
    int ptxVersion;
} cudaFuncAttributes;

/* A kernel with its arguments. */
struct cudahost_call {
    size_t bytes; /* size of the whole object */
    virtual void run() const = 0;
    virtual ~cudahost_call() {}
};
template <typename... P> struct cudahost_call_of : cudahost_call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
    cudahost_call_of(void (*k)(P...), P... a) : kernel(k), arguments(a...)
    {
        bytes = sizeof(*this);
    }
    void run() const override
    {
        std::apply(kernel, arguments);
    }
};
/* Launches a kernel, and takes ownership of the call. */
cudaError_t cudahost_launch(const cudaLaunchConfig_t *config, const void *kernel, cudahost_call *call);
cudaError_t cudahost_func_set(const void *kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudahost_func_get(cudaFuncAttributes *attributes, const void *kernel);
cudaError_t cudahost_clusters(int *clusters, const void *kernel, const cudaLaunchConfig_t *config);

template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...arguments)
{
    return cudahost_launch(config, (const void *)kernel, new cudahost_call_of<P...>(kernel, P(arguments)...));
}
template <typename F> static inline cudaError_t cudaFuncSetAttribute(F kernel, cudaFuncAttribute attribute, int value)
{
    return cudahost_func_set((const void *)kernel, attribute, value);
}
template <typename F> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, F kernel)
{
    return cudahost_func_get(attributes, (const void *)kernel);
}
template <typename F>
static inline cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, F kernel, const cudaLaunchConfig_t *config)
{
    return cudahost_clusters(clusters, (const void *)kernel, config);
}

#endif
