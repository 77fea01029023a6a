/* The library handle behind mar.h. */
#ifndef MAR_HANDLE_H
#define MAR_HANDLE_H

#include "kernels/ops.h"

struct mar {
    kern_device *device;
    mar_backend backend; /* CPU or CUDA */
    mar_err err;         /* last error, for mar_error() */
};

#endif
