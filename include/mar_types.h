/* Types that the other headers share. Include mar.h. */
#ifndef LIBMAR_TYPES_H
#define LIBMAR_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* MAR_STATIC: the program links the static library. MAR_BUILDING: the library itself is compiled. */
#if defined(_WIN32) && !defined(MAR_STATIC)
#ifdef MAR_BUILDING
#define MAR_API __declspec(dllexport)
#else
#define MAR_API __declspec(dllimport)
#endif
#elif defined(__GNUC__) && !defined(_WIN32)
#define MAR_API __attribute__((visibility("default")))
#else
#define MAR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    MAR_OK = 0,
    MAR_EARG,    /* an option or argument is invalid */
    MAR_ENOMEM,  /* an allocation failed; the message names the size */
    MAR_EIO,     /* a file cannot be opened, read or written */
    MAR_EFORMAT, /* a file is truncated, malformed, or not of the format its name or magic says */
    /* a file's tensors are no model (missing, extra, wrong shape, NaN), or a generated token or pixel is not finite */
    MAR_EMODEL,
    MAR_EBACKEND,   /* the compute backend failed or is missing */
    MAR_ECANCELLED, /* mar_session_cancel, or the progress function of a load, stopped the call */
} mar_status;
/* Returns the name of a status: "bad argument". */
MAR_API const char *mar_status_name(mar_status status);

typedef enum {
    MAR_DTYPE_AUTO = 0,
    MAR_DTYPE_F32,
    MAR_DTYPE_BF16,
    MAR_DTYPE_INT8,
    MAR_DTYPE_F16,
    MAR_DTYPE_INT4
} mar_dtype;

/* Sampler of the head: the model's own chain (DDPM with learned variances; SphereAR: Euler-Maruyama steps of a linear
 * flow, and one Euler step), or an ODE solver: DDIM (Song et al., 2021, eta 0) or DPM-Solver++ (Lu et al., 2022,
 * second-order multistep). */
typedef enum { MAR_SAMPLER_DDPM = 0, MAR_SAMPLER_DDIM, MAR_SAMPLER_DPMPP } mar_sampler;

/* Choice among the weights of a training checkpoint (mar_options.weights). */
typedef enum { MAR_WEIGHTS_AUTO = 0, MAR_WEIGHTS_EMA, MAR_WEIGHTS_MODEL } mar_weights;

/* Memory of the host (mar_options.alloc). Returns `bytes` bytes at a multiple of `alignment`, a power of two; or NULL:
 * the call then returns MAR_ENOMEM and names the size. Another address is given back at once, and is MAR_EARG. The
 * library writes zeros where it needs them, and does not compare the size with the system's available memory.
 *
 * These functions run on the thread of the call that needs or frees memory, so on several at a time if several threads
 * use the handle. They must not call the library. They must work until the last object of the handle is freed. Small
 * structs, the tensor that a load is packing, and a copy of a VQ codebook come from the C library. */
typedef void *mar_alloc_function(void *user, size_t bytes, size_t alignment);
/* Takes back memory with the `bytes` that it was asked with. Never called with NULL. */
typedef void mar_free_function(void *user, void *p, size_t bytes);

/* Progress of a load: bytes of the file's tensors read so far, and of all. It runs on the loading thread, at most some
 * hundred times: first with done 0, last with done == total, when everything else has succeeded. done never falls.
 * Tensors that the model does not need count in the last call only. Returning nonzero cancels the load: it frees
 * everything and returns MAR_ECANCELLED. The function may call the library, also to load another file, but must not
 * close the handle. */
typedef int mar_load_progress_function(void *user, uint64_t done, uint64_t total);

#ifdef __cplusplus
}
#endif
#endif
