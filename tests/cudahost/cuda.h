/* CUDA's driver interface on the CPU: the contexts that the backend uses. A thread gets a context from cudaSetDevice,
 * from cuCtxSetCurrent, or from a call that needs one. */
#ifndef CUDAHOST_CUDA_H
#define CUDAHOST_CUDA_H

#include <stdint.h>

typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_INVALID_DEVICE = 101,
} CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;

CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);

/* Descriptions of matrices for copies of tiles (hopper.cpp). */
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef struct alignas(64) CUtensorMap {
    cuuint64_t opaque[16];
} CUtensorMap;
typedef enum { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9 } CUtensorMapDataType;
typedef enum { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 } CUtensorMapInterleave;
typedef enum { CU_TENSOR_MAP_SWIZZLE_128B = 3 } CUtensorMapSwizzle;
typedef enum { CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 } CUtensorMapL2promotion;
typedef enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 } CUtensorMapFloatOOBfill;
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *size, const cuuint64_t *pitch, const cuuint32_t *box,
                                const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

#endif
