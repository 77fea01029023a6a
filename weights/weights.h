/* Checkpoints: safetensors and PyTorch's files behind one interface of named, typed, shaped tensors, whose values
 * are read from the file when they are asked for. A pickle is parsed, never executed. */
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
    int64_t count;       /* product of shape */
    uint64_t offset;     /* of its data in the file: [count] contiguous, little-endian */
    const uint8_t *copy; /* its data, if they are not contiguous in the file; else NULL */
} wt_tensor;

typedef struct wt_file wt_file;

/* Opens a checkpoint and reads what it says of its tensors. The format is recognised by content, not by name. Every
 * length and offset is checked against the file before use. A PyTorch file shows the tensors of `model_ema`, else of
 * `model`, `module` or `state_dict`, else of the top level; a tensor that is not contiguous is copied. Names lose the
 * prefixes that wrappers of a training run put in front of them: "module.", "_orig_mod.", or both. MAR_EIO, MAR_EFORMAT
 * or MAR_ENOMEM, naming the path. */
mar_status wt_open(const char *path, wt_file **out, mar_err *err);
/* wt_open of one set of a training checkpoint's weights: EMA is `model_ema` or `ema`, MODEL is `model`, `module` or
 * `state_dict`. MAR_EARG if the file has other sets, but not this one. A file with one set that has no name has it. */
mar_status wt_open_weights(const char *path, mar_weights which, wt_file **out, mar_err *err);
/* Opens a checkpoint in memory; data must stay valid until wt_close. `label` takes the place of the path in messages.
 */
mar_status wt_open_memory(const void *data, size_t size, const char *label, wt_file **out, mar_err *err);
void wt_close(wt_file *f);
/* Whether wt_load_f32 takes tensors with values that are NaN or infinite: 0 after opening. */
void wt_allow_nonfinite(wt_file *f, int allow);
/* To be called when everything is read. Returns `status` if the file is as it was when it was opened, as far as its
 * size and its time of modification tell; else MAR_EIO, saying that it changed, whatever the reading came to. */
mar_status wt_settle(const wt_file *f, mar_status status, mar_err *err);

const char *wt_path(const wt_file *f);   /* the path or label */
const char *wt_format(const wt_file *f); /* "safetensors", "PyTorch zip (model_ema)", "PyTorch before 1.6", ... */
const char *wt_set(const wt_file *f);    /* the set of weights that it shows, "model_ema"; NULL: it has no name */
/* Another set of weights that the file has: EMA or MODEL; AUTO if there is none. */
mar_weights wt_other_weights(const wt_file *f);
/* The prefix that names have lost, "module.", and of how many tensors; NULL: none has. */
const char *wt_prefix(const wt_file *f, int *tensors);
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
/* Adds the elements of a tensor of this shape to the long that total points to: what visitors of tensors are given to
 * count a model's parameters. */
void wt_add_elements(void *total, const char *name, int rank, const int64_t *shape);

/* dst[n] = the n bytes of the tensor's data from byte `first` on, as they are stored. MAR_EIO. */
mar_status wt_read_bytes(const wt_file *f, const wt_tensor *t, uint64_t first, size_t n, void *dst, mar_err *err);
/* dst[t->count] = the tensor's values as f32. MAR_EMODEL unless it is floating-point (F64, F32, F16, BF16); MAR_EIO. */
mar_status wt_read_f32(const wt_file *f, const wt_tensor *t, float *dst, mar_err *err);
/* Finds `name`, checks its exact shape and reads it into a new array, which the caller frees. MAR_EMODEL, naming file,
 * tensor, found and expected shape, if it does not fit, or if values are NaN or infinite (wt_allow_nonfinite); MAR_EIO.
 */
mar_status wt_load_f32(const wt_file *f, const char *name, int rank, const int64_t *shape, float **out, mar_err *err);

/* Values that are no finite f32. A double beyond f32's range counts as infinite. */
typedef struct {
    int64_t nan, inf; /* how many there are */
    int64_t first;    /* the index of the first one, if there is any */
} wt_nonfinite;

/* Reads a floating-point tensor and counts. Errors are those of wt_read_f32. */
mar_status wt_count_nonfinite(const wt_file *f, const wt_tensor *t, wt_nonfinite *out, mar_err *err);

/* --- int8 weights: a matrix I8 [out][in], each weight its int8 times the scale of its output channel, and beside it
 * the tensor of these scales, F32 [out], whose name is the matrix's with "_scale" behind it --- */

enum { WT_INT8_NAME = 256 }; /* room for the name of the scales of a model's matrix */

/* A matrix of a model. wt_matrix_free frees what it points to. */
typedef struct {
    float *weight;     /* [out][in], or NULL: the next two are it */
    int8_t *quantised; /* [out][in] as the file has them, from -127 to 127, or NULL */
    float *scale;      /* [out] of them, or NULL */
} wt_matrix;

/* The name of the scales of a matrix `name`, to text, which it returns. */
const char *wt_scale_name(const char *name, char *text, size_t size);
/* The scales of t; NULL: it is not I8, or has none. */
const wt_tensor *wt_scale_of(const wt_file *f, const wt_tensor *t);
/* The I8 tensor whose scales a tensor is by its name; NULL: there is none. */
const wt_tensor *wt_int8_of(const wt_file *f, const wt_tensor *scale);
/* Whether the file has a tensor of that name, and it is I8. */
int wt_is_int8(const wt_file *f, const char *name);
/* Whether the name ends with ".LAYER.weight" of one of the layers, a list that ends with NULL. */
int wt_is_layer(const char *name, const char *const *layers);
/* Reads a matrix that may be int8 in the file: with `keep` as it is, else as the f32 that it stands for. One of another
 * type is read as by wt_load_f32, whose errors these are. MAR_EMODEL, too, if there are no scales, or not F32 [out], or
 * negative ones, or ones that are not finite (wt_allow_nonfinite), or if a weight is -128. */
mar_status wt_load_matrix(const wt_file *f, const char *name, int out, int in, int keep, wt_matrix *m, mar_err *err);
void wt_matrix_free(wt_matrix *m); /* and leaves it empty */

/* What an output is made of its source. */
typedef enum {
    WT_VALUES,    /* the source's values, as dtype F32, F16 or BF16 (round to nearest even) */
    WT_QUANTISED, /* the int8 of a floating-point matrix (kern_int8_quantise): I8 [out][in] */
    WT_SCALES,    /* the scales of these: F32 [out] */
    WT_RESTORED,  /* what a matrix I8 [out][in] stands for, as dtype F32, F16 or BF16 */
    WT_COPIED,    /* the source as it is, of any dtype */
} wt_content;

/* A tensor to write as safetensors. */
typedef struct {
    const char *name;
    wt_dtype dtype;
    int rank;
    int64_t shape[WT_MAX_RANK];
    const wt_file *file;     /* the file of `source` */
    const wt_tensor *source; /* with as many values as `shape`, but for WT_SCALES */
    wt_content content;
    const float *factor; /* [the last dimension of the source], or NULL: WT_QUANTISED and WT_SCALES are of the source
                          * times it, WT_VALUES are the source over it (kern_int8_smooth) */
} wt_output;

/* Writes a safetensors file, completely or not at all (base/file.h). metadata has n_metadata pairs of key and value.
 * MAR_EIO, too, if a source changed after it was opened. */
mar_status wt_save_safetensors(const char *path, const wt_output *tensors, int count, const char *const (*metadata)[2],
                               int n_metadata, mar_err *err);

/* The models built into the library. NULL if there is none of that name. */
typedef struct {
    const void *data;
    size_t size;
} wt_embedded;
/* "demo", "demo-draft"; of discrete tokens "demo-discrete", "demo-discrete-draft", "demo-discrete-eagle" */
const wt_embedded *wt_demo_mar(const char *name);
/* Their image decoders: "demo" or "demo-vae", "demo-discrete" or "demo-discrete-vq" */
const wt_embedded *wt_demo_vae(const char *name);

#endif
