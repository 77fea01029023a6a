/* Checkpoints: safetensors and PyTorch's zip format behind one view - named, typed, shaped tensors in a
 * read-only mapping. A pickle is parsed, never executed. */
#ifndef WEIGHTS_WEIGHTS_H
#define WEIGHTS_WEIGHTS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { WT_MAX_RANK = 8 };

typedef enum { WT_F64, WT_F32, WT_F16, WT_BF16, WT_I64, WT_I32, WT_I16, WT_I8, WT_U8, WT_BOOL } wt_dtype;

typedef struct {
    const char *name;
    wt_dtype dtype;
    int rank;
    int64_t shape[WT_MAX_RANK];
    int64_t count;    /* product of shape */
    const void *data; /* contiguous, little-endian, count elements; alignment not guaranteed */
} wt_tensor;

typedef struct wt_file wt_file;

/* Opens a checkpoint; the format is recognised by content, not by name. Every length and offset is checked
 * against the file before use. Of a PyTorch file the tensors of `model_ema`, else of `model`, else of
 * `state_dict`, else of the top level are shown; one that is not contiguous is copied. MAR_EIO, MAR_EFORMAT or
 * MAR_ENOMEM with a message that names the path. */
mar_status wt_open(const char *path, wt_file **out, mar_err *err);
/* The same over bytes that stay valid until wt_close; `label` stands for the path in messages. */
mar_status wt_open_memory(const void *data, size_t size, const char *label, wt_file **out, mar_err *err);
void wt_close(wt_file *f);

const char *wt_path(const wt_file *f);   /* or label */
const char *wt_format(const wt_file *f); /* "safetensors", "PyTorch zip (model_ema)", ... */
int wt_count(const wt_file *f);
const wt_tensor *wt_at(const wt_file *f, int i);              /* in file order */
const wt_tensor *wt_find(const wt_file *f, const char *name); /* NULL if absent */
const char *wt_metadata(const wt_file *f, const char *key);   /* safetensors __metadata__; NULL if absent */
int wt_metadata_count(const wt_file *f);
const char *wt_metadata_at(const wt_file *f, int i, const char **value); /* the key */

const char *wt_dtype_name(wt_dtype dtype); /* "F32", as safetensors spells it */
size_t wt_dtype_size(wt_dtype dtype);
/* "[1, 320, 768]" */
const char *wt_shape_text(const wt_tensor *t, char *buffer, size_t size);

/* dst[t->count] = the tensor's values as f32. Only floating-point tensors (F64, F32, F16, BF16): MAR_EMODEL else. */
mar_status wt_read_f32(const wt_file *f, const wt_tensor *t, float *dst, mar_err *err);
/* Finds `name`, checks its exact shape and reads it into a new array (caller frees). MAR_EMODEL with file, tensor,
 * found and expected shape otherwise. */
mar_status wt_load_f32(const wt_file *f, const char *name, int rank, const int64_t *shape, float **out, mar_err *err);

/* Writing safetensors. Tensor data is float [count]; stored as dtype F32, F16 or BF16 (round to nearest even). */
typedef struct {
    const char *name;
    wt_dtype dtype;
    int rank;
    int64_t shape[WT_MAX_RANK];
    const wt_file *file; /* where it comes from */
    const wt_tensor *source;
} wt_output;

/* `metadata`: n_metadata pairs key, value. The file is complete or not there (base/file.h). */
mar_status wt_save_safetensors(const char *path, const wt_output *tensors, int count, const char *const (*metadata)[2],
                               int n_metadata, mar_err *err);

/* Models built into the library: "demo" and "demo-draft" (MAR), "demo" or "demo-vae" (VAE). NULL if there is none of
 * that name. */
typedef struct {
    const void *data;
    size_t size;
} wt_embedded;
const wt_embedded *wt_demo_mar(const char *name);
const wt_embedded *wt_demo_vae(const char *name);

#endif
