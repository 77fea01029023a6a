/* Tests of the shim's runtime: graphs, streams, threads of the program, contexts, limits, and refusals. */
#include "tests/cudahost/shim_support.h"

/* --- the runtime ------------------------------------------------------------------------------------------------- */

__global__ static void scale(float *y, const float *x, float factor, int n)
{
    for (int i = (int)(threadIdx.x + blockDim.x * blockIdx.x); i < n; i += (int)(blockDim.x * gridDim.x))
        y[i] = factor * x[i];
}
static void test_graph(void **)
{
    float *host, got[3];
    assert_cuda(cudaMallocHost(&host, 3 * sizeof(float)));
    float *x = (float *)device(3 * sizeof(float)), *y = (float *)device(3 * sizeof(float));
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 32;
    config.stream = stream;
    for (int i = 0; i < 3; i++) host[i] = (float)i;
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    assert_cuda(cudaMemcpyAsync(x, host, 3 * sizeof(float), cudaMemcpyHostToDevice, stream));
    assert_cuda(cudaMemsetAsync(y, 0, 3 * sizeof(float), stream));
    assert_cuda(cudaLaunchKernelEx(&config, scale, y, (const float *)x, 2.0f, 2));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
    assert_cuda(cudaGraphDestroy(graph));
    host_copy(got, y, 3);
    assert_true(isnan(got[0])); /* nothing has run, and memory starts with NaNs */
    for (int round = 1; round < 3; round++) {
        for (int i = 0; i < 3; i++) host[i] = (float)(10 * round + i);
        assert_cuda(cudaGraphLaunch(exec, stream));
        assert_cuda(cudaStreamSynchronize(stream));
        host_copy(got, y, 3);
        assert_true(got[0] == 20.0f * (float)round && got[1] == got[0] + 2 && got[2] == 0);
    }
    assert_cuda(cudaGraphExecDestroy(exec));

    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    cudaStreamDestroy(stream);
    cudaFree(x), cudaFree(y), cudaFreeHost(host);
}

/* --- threads of the program ----------------------------------------------------------------------------------------
 */

static __global__ void add_block(int *y, int n)
{
    int *s = (int *)cudahost_shared();
    s[threadIdx.x] = n;
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] += s[blockDim.x - 1 - threadIdx.x];
}

/* Works on its own stream repeatedly. Returns whether all results are as expected. */
static void *use_stream(void *arg)
{
    const int number = (int)(intptr_t)arg - 1;
    enum { N = 64, ROUNDS = 50 };
    int got[N], device_now = -1, good = 1;
    cudaStream_t stream;
    cudaLaunchConfig_t config = {};
    good &= cudaSetDevice(number % 2) == cudaSuccess;
    good &= cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
    config.gridDim = 2, config.blockDim = 32, config.dynamicSmemBytes = 32 * sizeof(int), config.stream = stream;
    for (int round = 0; round < ROUNDS; round++) {
        int *y = NULL;
        good &= cudaMalloc((void **)&y, sizeof got) == cudaSuccess;
        good &= cudaMemsetAsync(y, 0, sizeof got, stream) == cudaSuccess;
        for (int i = 0; i < 3; i++) good &= cudaLaunchKernelEx(&config, add_block, y, number + 1) == cudaSuccess;
        good &= cudaMemcpyAsync(got, y, sizeof got, cudaMemcpyDeviceToHost, stream) == cudaSuccess;
        good &= cudaStreamSynchronize(stream) == cudaSuccess;
        for (int i = 0; i < N; i++) good &= got[i] == 3 * (number + 1);
        if (number == 0) good &= cudaFree(&good) == cudaErrorInvalidValue; /* an error of this thread only */
        good &= cudaGetLastError() == (number == 0 ? cudaErrorInvalidValue : cudaSuccess);
        good &= cudaFree(y) == cudaSuccess;
    }
    good &= cudaGetDevice(&device_now) == cudaSuccess && device_now == number % 2;
    good &= cudaStreamDestroy(stream) == cudaSuccess;
    return good ? arg : NULL;
}

static void test_threads(void **)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    setenv("MAR_CUDAHOST_DEVICES", "2", 1);
    for (intptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_stream, (void *)(i + 1)), 0);
    for (intptr_t i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, (void *)(i + 1));
    }
    int now = -1;
    assert_cuda(cudaGetDevice(&now));
    assert_int_equal(now, 0);

    cudaStream_t other; /* a launch needs a stream of the current device */
    assert_cuda(cudaSetDevice(1));
    assert_cuda(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    assert_cuda(cudaSetDevice(0));
    int *y = (int *)device(64 * sizeof(int));
    cudaLaunchConfig_t config = {};
    config.gridDim = 1, config.blockDim = 32, config.dynamicSmemBytes = 32 * sizeof(int), config.stream = other;
    assert_int_equal(cudaLaunchKernelEx(&config, add_block, y, 1), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
    cudaStreamDestroy(other), cudaFree(y);
    unsetenv("MAR_CUDAHOST_DEVICES");
}

static void *allocate(void *)
{
    void *p = NULL;
    const cudaError_t error = cudaMalloc(&p, 16);
    cudaFree(p);
    return (void *)(intptr_t)error;
}
static cudaError_t allocate_elsewhere()
{
    pthread_t thread;
    void *error = NULL;
    assert_int_equal(pthread_create(&thread, NULL, allocate, NULL), 0);
    pthread_join(thread, &error);
    return (cudaError_t)(intptr_t)error;
}

__global__ static void nothing() {}
static void test_injection(void **)
{
    const long before = cudahost_objects();
    void *p = NULL;
    cudahost_fail_after(1);
    assert_cuda(cudaMalloc(&p, 16));
    assert_int_equal(cudahost_objects(), before + 1);
    assert_int_equal(allocate_elsewhere(), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(p, 0, 16, 0), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    cudahost_fail_after(-1);
    assert_cuda(cudaMemsetAsync(p, 0, 16, 0));
    cudaFree(p);
    assert_int_equal(cudahost_objects(), before);
}

/* Checks that cudahost_refuse refuses exactly the requested features. A wait for the device invalidates captures of
 * every mode. */
static void test_refusals(void **)
{
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const unsigned refusals[] = {0, CUDAHOST_BEGIN_CAPTURE, CUDAHOST_END_CAPTURE, CUDAHOST_INSTANTIATE,
                                 CUDAHOST_GRAPH_LAUNCH};
    for (unsigned refused : refusals) {
        const long before = cudahost_objects(), instantiated = cudahost_instantiated();
        cudahost_refuse(refused, 2);
        unsigned failed = 0;
        if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed))
            failed = CUDAHOST_BEGIN_CAPTURE;
        else if (cudaStreamEndCapture(stream, &graph))
            failed = CUDAHOST_END_CAPTURE;
        else if (cudaGraphInstantiate(&exec, graph, 0))
            failed = CUDAHOST_INSTANTIATE;
        else if (cudaGraphLaunch(exec, stream))
            failed = CUDAHOST_GRAPH_LAUNCH;
        cudahost_refuse(0, 2);
        assert_int_equal(failed, refused);
        assert_int_equal(cudahost_instantiated() - instantiated, exec ? 1 : 0);
        if (exec) cudaGraphExecDestroy(exec);
        if (graph) cudaGraphDestroy(graph);
        exec = NULL, graph = NULL;
        cudaGetLastError();
        assert_int_equal(cudahost_objects(), before);
    }
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);

    cudahost_refuse(CUDAHOST_COOPERATIVE, 2);
    assert_int_equal(launch_together(nothing, 2, 1, 32, 0), cudaErrorNotSupported);
    assert_cuda(launch(nothing, 2, 32, 0));
    cudahost_refuse(CUDAHOST_CLUSTERS, 4);
    assert_int_equal(launch_together(nothing, 4, 4, 32, 0), cudaErrorInvalidClusterSize);
    assert_cuda(launch_together(nothing, 4, 2, 32, 0));
    cudahost_refuse(0, 2);
    cudaGetLastError();
    cudaStreamDestroy(stream);
}

static void *set_device_of_thread(void *)
{
    static const char wrong[] = "wrong";
    CUcontext context = NULL;
    int now = -1;
    void *p = NULL;
    (void)cudahost_contexts();
    if (cuCtxGetCurrent(&context) || context || cudahost_contexts()) return (void *)wrong;
    if (cuDevicePrimaryCtxRetain(&context, 1) || cuCtxSetCurrent(context)) return (void *)wrong;
    if (cudaGetDevice(&now) || now != 1 || cudaMalloc(&p, 16) || cudahost_contexts() != 2) return (void *)wrong;
    if (cuCtxSetCurrent(NULL) || cudaGetDevice(&now) || now != 0 || cudahost_contexts()) return (void *)wrong;
    if (cudaFree(p) || cudahost_contexts() != 1) return (void *)wrong; /* such calls make a context */
    return cudaSetDevice(1) || cudahost_contexts() != 2 ? (void *)wrong : NULL;
}

static void test_contexts(void **)
{
    pthread_t thread;
    void *wrong = NULL;
    setenv("MAR_CUDAHOST_DEVICES", "2", 1);
    assert_int_equal(pthread_create(&thread, NULL, set_device_of_thread, NULL), 0);
    pthread_join(thread, &wrong);
    assert_null(wrong);
    unsetenv("MAR_CUDAHOST_DEVICES");
}

static void test_late(void **)
{
    setenv("MAR_CUDAHOST_LAZY", "1", 1);
    float pageable[2] = {1, 2}, *pinned, got[2];
    cudaStream_t stream;
    cudaEvent_t event;
    assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_cuda(cudaEventCreate(&event));
    assert_cuda(cudaMallocHost(&pinned, sizeof(got)));
    float *x = (float *)device(sizeof(got)), *y = (float *)device(sizeof(got));
    pinned[0] = pinned[1] = 3;
    assert_cuda(cudaMemcpyAsync(x, pageable, sizeof(got), cudaMemcpyHostToDevice, stream));
    assert_cuda(cudaMemcpyAsync(y, pinned, sizeof(got), cudaMemcpyHostToDevice, stream));
    assert_cuda(cudaEventRecord(event, stream));
    pageable[0] = pinned[0] = 9; /* after the read of pageable memory, before that of pinned memory */
    assert_cuda(cudaStreamSynchronize(stream));
    host_copy(got, x, 2);
    assert_true(got[0] == 1 && got[1] == 2);
    host_copy(got, y, 2);
    assert_true(got[0] == 9 && got[1] == 3);
    cudaFree(x), cudaFree(y), cudaFreeHost(pinned);
    cudaEventDestroy(event), cudaStreamDestroy(stream);
    unsetenv("MAR_CUDAHOST_LAZY");
}

__global__ static void unwritten(int *y)
{
    volatile const float *s = (const float *)cuda_shared();
    y[threadIdx.x] = isnan(s[threadIdx.x]);
}
static void test_limits(void **)
{
    void *p, *q;
    setenv("MAR_CUDAHOST_MEMORY", "1000000", 1);
    assert_int_equal(cudaMalloc(&q, 1000001), cudaErrorMemoryAllocation);
    assert_cuda(cudaMalloc(&p, 600000));
    assert_int_equal(cudaMalloc(&q, 600000), cudaErrorMemoryAllocation);
    assert_cuda(cudaFree(p));
    assert_cuda(cudaMalloc(&q, 600000));
    assert_cuda(cudaFree(q));
    unsetenv("MAR_CUDAHOST_MEMORY");

    assert_int_equal(launch(nothing, 1, 1025, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch(nothing, 0, 32, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch(nothing, 1, 32, 49153), cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449),
                     cudaErrorInvalidValue);
    assert_cuda(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448));
    assert_cuda(launch(nothing, 1, 32, 232448));
    assert_cuda(launch_together(nothing, 4, 1, 1024, 232448));
    assert_int_equal(launch_together(nothing, 5, 1, 1024, 232448), cudaErrorCooperativeLaunchTooLarge);
    assert_int_equal(launch_together(nothing, 9, 9, 32, 0), cudaErrorInvalidClusterSize);
    assert_int_equal(launch_together(nothing, 9, 2, 32, 0), cudaErrorInvalidConfiguration);

    int fresh[32];
    int *y = (int *)device(sizeof(fresh));
    assert_cuda(launch(unwritten, 1, 32, 128, y));
    host_copy(fresh, y, 32);
    for (int i = 0; i < 32; i++) assert_true(fresh[i]);
    cudaFree(y);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph),    cmocka_unit_test(test_threads),  cmocka_unit_test(test_injection),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_contexts), cmocka_unit_test(test_late),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
