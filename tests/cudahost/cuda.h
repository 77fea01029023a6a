/* CUDA's driver interface on the CPU: the contexts that the backend uses. A thread gets a context from cudaSetDevice,
 * from cuCtxSetCurrent, or from a call that needs one. */
#ifndef CUDAHOST_CUDA_H
#define CUDAHOST_CUDA_H

typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_INVALID_DEVICE = 101,
} CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;

CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);

#endif
