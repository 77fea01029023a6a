/* Private to the shim: declarations shared by the parts of the runtime. */
#ifndef CUDAHOST_RUNTIME_INTERNAL_H
#define CUDAHOST_RUNTIME_INTERNAL_H

#include "cuda_runtime.h"

#include <functional>
#include <mutex>

extern std::recursive_mutex runtime_mutex; /* one call at a time */
#define LOCK() std::lock_guard<std::recursive_mutex> lock(runtime_mutex)

/* Stores an error for cudaGetLastError, and returns it. */
cudaError_t runtime_done(cudaError_t e);
/* Returns a number from the environment, or `otherwise` if it is not set. */
size_t runtime_environment(const char *name, size_t otherwise);
cudaDeviceProp runtime_properties();

int runtime_device(); /* returns the thread's current device */
/* Makes the context of this call if the thread has none. */
void runtime_context();
/* Return whether tests have requested this refusal (cudahost_refuse). The second is for clusters of the given size. */
bool runtime_refuses(unsigned what);
bool runtime_refuses_cluster(unsigned what, size_t blocks);
bool runtime_is_capturing(cudaStream_t stream);
/* Returns whether cudahost_fail_after makes this call fail. */
bool runtime_injected();
/* Returns the error of every call on the current device (cudahost_lose), or success. */
cudaError_t runtime_lost();
/* Returns whether a stream belongs to the thread's current device. */
bool runtime_is_current(cudaStream_t stream);
/* Counts an object of a library: +1 when it is made, -1 when it is freed. */
void runtime_count(int change);

/* Counts a kernel or a product when it runs. */
void runtime_launched();
/* Returns 1 if the last work was a kernel or product that the host has not waited for. */
bool runtime_kernel_last();
/* Runs the work, or keeps it for later or for a graph. */
cudaError_t runtime_enqueue(cudaStream_t stream, std::function<void()> work);
/* Returns whether [p, p + bytes) lies in one allocation of the device. */
bool runtime_on_device(const void *p, size_t bytes);
/* Finds the device allocation that contains p. Returns false if there is none. */
bool runtime_device_range(const void *p, uintptr_t *first, size_t *bytes);
bool runtime_is_pinned(const void *p, size_t bytes);

#endif
