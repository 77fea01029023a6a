/* Private to the shim: shared by the parts of the runtime. */
#ifndef CUDAHOST_RUNTIME_INTERNAL_H
#define CUDAHOST_RUNTIME_INTERNAL_H

#include "cuda_runtime.h"

#include <functional>
#include <mutex>

extern std::recursive_mutex runtime_mutex; /* one call at a time */
#define LOCK() std::lock_guard<std::recursive_mutex> lock(runtime_mutex)

/* Remembers an error for cudaGetLastError, and returns it. */
cudaError_t runtime_done(cudaError_t e);
/* A number from the environment. */
size_t runtime_environment(const char *name, size_t otherwise);
cudaDeviceProp runtime_properties();

int runtime_device(); /* the thread's current one */
/* Makes the context that this call works in, if the thread has none. */
void runtime_context();
/* Whether tests have asked for this refusal (cudahost_refuse); the second is of clusters of so many blocks. */
bool runtime_refuses(unsigned what);
bool runtime_refuses_cluster(unsigned what, size_t blocks);
bool runtime_is_capturing(cudaStream_t stream);
/* Whether this call is the one that cudahost_fail_after lets fail. */
bool runtime_injected();
/* Whether a stream is of the thread's current device. */
bool runtime_is_current(cudaStream_t stream);
/* Counts an object of a library, +1 when it is made and -1 when it is freed. */
void runtime_count(int change);

/* Counts a kernel or a product, when it is run. */
void runtime_launched();
/* Does the work, or keeps it for later or for a graph. */
cudaError_t runtime_enqueue(cudaStream_t stream, std::function<void()> work);
/* Whether [p, p + bytes) lies in one allocation of the device. */
bool runtime_on_device(const void *p, size_t bytes);
/* The allocation of the device that p lies in. */
bool runtime_device_range(const void *p, uintptr_t *first, size_t *bytes);
bool runtime_is_pinned(const void *p, size_t bytes);

#endif
