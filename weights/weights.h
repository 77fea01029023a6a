/* Checkpoints: safetensors and PyTorch files behind one interface of named, typed, shaped tensors. Values are read from
 * the file on demand. A pickle is parsed, never executed. */
#ifndef WEIGHTS_WEIGHTS_H
#define WEIGHTS_WEIGHTS_H

#include "mar.h"
#include "base/error.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

enum { WT_MAX_RANK = 8 };

typedef enum {
    WT_F64,
    WT_F32,
    WT_F16,
    WT_BF16,
    WT_I64,
    WT_I32,
    WT_I16,
    WT_I8,
    WT_U8,
    WT_BOOL,
    WT_F8_E4M3,
    WT_F8_E5M2,
    WT_I4,     /* int4 weights, two in a byte. A file has them as U8 of half the width; see below */
    WT_UNREAD, /* an entry of a type that is not read, which matters only to a model that needs it */
} wt_dtype;

typedef struct {
    const char *name;
    wt_dtype dtype;
    int rank;
    int64_t shape[WT_MAX_RANK];
    int64_t count;       /* product of shape */
    uint64_t offset;     /* of the data in the file: [count] contiguous, little-endian */
    const uint8_t *copy; /* data of a tensor that is noncontiguous in the file; else NULL */
    int part;            /* of a folder: the shard with the data */
    unsigned shortened;  /* bits of the parts that training adds and that were removed from its name */
    const char *type;    /* of WT_UNREAD: what the file says it is, "C64" or "int"; its shape may be unknown, [] */
} wt_tensor;

typedef struct wt_file wt_file;

/* Opens a checkpoint, recognised by content, and reads the descriptions of its tensors. Every length and offset is
 * checked against the file before use. A PyTorch file exposes the tensors of `model_ema`, else of `model`, `module` or
 * `state_dict`, else of the top level. Noncontiguous tensors are copied. The parts of names that training wrappers add,
 * "module.", "_orig_mod.", "_fsdp_wrapped_module." and "_checkpoint_wrapped_module.", are removed wherever they are.
 * Entries of a state dict that are no tensor, and types that are not read, are WT_UNREAD. Returns MAR_EIO, MAR_EFORMAT
 * or MAR_ENOMEM, naming the path. */
mar_status wt_open(const char *path, wt_file **out, mar_err *err);
/* Opens a checkpoint in memory. The memory must stay valid until wt_close. `label` replaces the path in messages. */
mar_status wt_open_memory(const void *data, size_t size, const char *label, wt_file **out, mar_err *err);
/* Opens the one of path, data and fd that `source` gives (mar.h); no other field but `name` counts. Memory and
 * descriptor must stay valid until wt_close. Opens one set of a training checkpoint's weights: EMA is `model_ema` or
 * `ema`; MODEL is `model`, `module` or `state_dict`. Returns MAR_EARG if the file has only other sets. A file with one
 * unnamed set always matches. */
mar_status wt_open_source(const mar_source *source, mar_weights which, wt_file **out, mar_err *err);
/* Opens a folder as Hugging Face writes it: model.safetensors, or model.safetensors.index.json with its shards, or
 * pytorch_model.bin, or pytorch_model.bin.index.json with its shards; or as Meta's releases, consolidated.pth, whose
 * params.json then stands for config.json; or checkpoint.pt. The first of the four formats that is complete counts. The
 * tensors of all shards are those of one file, whose path is the folder's. The names of those in vae/checkpoint.pt
 * begin with "vae." then. Reads config.json if there is one. An index may name tensors that no shard has, such as the
 * second name of a shared tensor. Returns MAR_EIO for a file that is missing, MAR_EFORMAT for one that is damaged or a
 * tensor in another shard than the index says, and what wt_open_source returns. */
mar_status wt_open_folder(const char *path, mar_weights which, wt_file **out, mar_err *err);
/* Returns 1 if the folder has one of the six names. */
int wt_is_folder(const char *path);
/* Makes one tensor, and its scales, readable as long as the file is open: copies it if the file is the caller's memory,
 * and the descriptor if it is the caller's. Returns MAR_ENOMEM or MAR_EIO. */
mar_status wt_outlive_source(wt_file *f, const char *tensor, mar_err *err);
void wt_close(wt_file *f);
/* Makes a second table of an open file's tensors, which can be narrowed, renamed and read by itself. The file must stay
 * open, and its table as it is, until the view is closed. */
mar_status wt_view(const wt_file *f, wt_file **out, mar_err *err);
/* Adds tensors mean and std, float [channels], from stats.pkl in the file's folder (weights/statistics.c): of its only
 * tokenizer, or of the one whose name begins the file's. Returns MAR_EIO if there is no such file, MAR_EMODEL if none
 * of its tokenizers fits, and MAR_EFORMAT. */
mar_status wt_add_statistics(wt_file *f, int channels, mar_err *err);
/* Adds a key and value[length] to the metadata of a file that has no view. Returns MAR_ENOMEM. */
mar_status wt_add_metadata(wt_file *f, const char *key, const char *value, size_t length, mar_err *err);
/* Replaces the path in messages from now on. The label must stay valid until wt_close. */
void wt_set_label(wt_file *f, const char *label);
/* Lets wt_load_f32 accept tensors with NaN or infinite values; 0, the state after opening, refuses them. */
void wt_allow_nonfinite(wt_file *f, int allow);
/* Returns `status` if the file's size and modification time are those of its opening, else MAR_EIO. Call it after the
 * last read: a change may explain any error but a cancel. */
mar_status wt_check_unchanged(const wt_file *f, mar_status status, mar_err *err);

/* Progress of reading a file's tensors. The caller owns it, and sets `report` and `user`. */
typedef struct {
    mar_load_progress_function *report; /* called at most WT_PROGRESS_STEPS + 2 times; returns nonzero to cancel */
    void *user;
    uint64_t done, total; /* bytes read, and of all tensors; `done` exceeds `total` if some are read twice */
    uint64_t next;        /* value of `done` to report next */
} wt_progress;
enum { WT_PROGRESS_STEPS = 200 };
/* Reports that 0 bytes are read. Later reads of tensors report theirs to p, and return MAR_ECANCELLED if it cancels. */
mar_status wt_progress_begin(wt_file *f, wt_progress *p, mar_err *err);
/* Reports all bytes, those of tensors that nobody read included. Later reads report nothing. */
mar_status wt_progress_end(wt_file *f, mar_err *err);

/* Let later reads of tensors be hashed, and return the hash: of the names, types, shapes and bytes of the tensors that
 * were read, in the table's order, and of metadata and config.json. The division into reads does not matter. Two files
 * that differ in one word of 8 bytes have different sums; others are equal with a probability of 2^-64. The hash is
 * fast, not cryptographic. The table must not change between begin and end. wt_digest_end may read scales once
 * more; without a begin it does nothing. */
mar_status wt_digest_begin(wt_file *f, mar_err *err);
/* Reads all of a tensor for that hash, before anything else reads a part of it. */
mar_status wt_digest_tensor(const wt_file *f, const wt_tensor *t, mar_err *err);
mar_status wt_digest_end(wt_file *f, uint64_t *hash, mar_err *err);

const char *wt_path(const wt_file *f);   /* the path or label */
const char *wt_format(const wt_file *f); /* "safetensors", "PyTorch zip (model_ema)", "PyTorch before 1.6", ... */
const char *wt_set(const wt_file *f);    /* the exposed set, "model_ema"; NULL if it has no name */
/* Returns the kind of another set in the file, EMA or MODEL, or AUTO if there is none. */
mar_weights wt_other_weights(const wt_file *f);
/* Returns the parts removed from names, "module. and _orig_mod.", and the number of tensors with such names; NULL if
 * there are none. Entries that are not read (WT_UNREAD) do not count. */
const char *wt_prefix(const wt_file *f, int *tensors);
int wt_count(const wt_file *f);
const wt_tensor *wt_at(const wt_file *f, int i);              /* in file order */
const wt_tensor *wt_find(const wt_file *f, const char *name); /* NULL if absent */
const char *wt_metadata(const wt_file *f, const char *key);   /* NULL if absent */
int wt_metadata_count(const wt_file *f);
const char *wt_metadata_at(const wt_file *f, int i, const char **value); /* returns key i */

const char *wt_dtype_name(wt_dtype dtype); /* "F32", as in safetensors */
size_t wt_dtype_size(wt_dtype dtype);      /* bytes of an element; 0 for WT_I4 and WT_UNREAD */
uint64_t wt_bytes_of(const wt_tensor *t);  /* bytes of its data; 0 for WT_UNREAD */
int wt_is_float(wt_dtype dtype);           /* F64, F32, F16, BF16, F8_E4M3, F8_E5M2 */
/* Returns MAR_EMODEL, with the tensor's type, unless it is floating-point. */
mar_status wt_check_float(const wt_file *f, const wt_tensor *t, mar_err *err);
/* Returns the number of elements of all tensors but I64, which are positions and counters, and scales of fp8. */
long wt_count_parameters(const wt_file *f);
/* Writes "[1, 320, 768]" to buffer and returns it. Adds the type of WT_UNREAD. */
const char *wt_shape_text(const wt_tensor *t, char *buffer, size_t size);
/* Adds the number of elements of this shape to *(long *)total. A tensor visitor that counts a model's parameters. */
void wt_add_elements(void *total, const char *name, int rank, const int64_t *shape);

/* Reads n bytes of the tensor's data, from byte `first`, to dst as stored. Returns MAR_EIO. */
mar_status wt_read_bytes(const wt_file *f, const wt_tensor *t, uint64_t first, size_t n, void *dst, mar_err *err);
/* Reads the tensor to dst[t->count] as f32. Returns MAR_EMODEL unless it is floating-point (wt_is_float), or for scales
 * of fp8 that are not understood, or MAR_EIO. */
mar_status wt_read_f32(const wt_file *f, const wt_tensor *t, float *dst, mar_err *err);
/* Finds `name`, checks its exact shape, and reads it into a new array for the caller to free. Returns MAR_EMODEL, with
 * file, tensor, found and expected shape, if it does not match. Returns MAR_EMODEL also for NaN or infinite values
 * (wt_allow_nonfinite), and MAR_EIO. */
mar_status wt_load_f32(const wt_file *f, const char *name, int rank, const int64_t *shape, float **out, mar_err *err);

/* Does the same with rows first .. first + n - 1 of a matrix [rows][columns], to dst [n][columns]. */
mar_status wt_load_rows(const wt_file *f, const char *name, int rows, int columns, int first, int n, float *dst,
                        mar_err *err);

/* Values of a tensor that are not finite as f32. A double beyond f32's range counts as infinite. */
typedef struct {
    int64_t nan, inf; /* number of each */
    int64_t first;    /* index of the first, if any */
} wt_nonfinite;

/* Counts the values of a floating-point tensor that are not finite. Errors are those of wt_read_f32. */
mar_status wt_count_nonfinite(const wt_file *f, const wt_tensor *t, wt_nonfinite *out, mar_err *err);

/* Low-bit weights are a matrix and its scales, named NAME and NAME_scale.
 *
 * fp8 weights (weights/scales.c) are read as floats like any others, multiplied by their scales if the file has some:
 * one number or one for each row named NAME_scale, or X.scale_weight for X.weight, or NAME_scale_inv with one for each
 * block of 128x128 of a matrix. */

/* --- int8 weights: a matrix I8 [out][in] and its scales F32 [out]; a weight is its int8
 * times the scale of its output channel --- */

enum { WT_INT8_NAME = 256 }; /* room for the name of a matrix's scales */

/* Writes the name of the scales of matrix `name` to text and returns it. */
const char *wt_scale_name(const char *name, char *text, size_t size);
/* Returns the scales of t, or NULL if t is neither I8, I4 nor fp8 or has none. */
const wt_tensor *wt_scale_of(const wt_file *f, const wt_tensor *t);
/* Returns the I8, I4 or fp8 tensor that `scale` belongs to by its name, or NULL if there is none. */
const wt_tensor *wt_matrix_of(const wt_file *f, const wt_tensor *scale);
/* Returns 1 if the file has an I8 tensor `name`. */
int wt_is_int8(const wt_file *f, const char *name);
/* Returns 1 if the name ends with ".LAYER.weight" for one of the layers, a list that ends with NULL. */
int wt_is_layer(const char *name, const char *const *layers);
/* Reads rows first .. first + n - 1 of a matrix of any type to dst [n][in]. int8 and int4 weights are dequantised,
 * others read by wt_load_rows, whose errors these are. Returns MAR_EMODEL also for a weight of -128, and for scales
 * that are missing or invalid. Valid scales are F32 [out], not negative, and finite (wt_allow_nonfinite). */
mar_status wt_load_matrix_rows(const wt_file *f, const char *name, int out, int in, int first, int n, float *dst,
                               mar_err *err);
/* Reads such rows of an int8 matrix (wt_is_int8) to q [n][in] and their scales to scale [n], with the same errors. */
mar_status wt_load_int8(const wt_file *f, const char *name, int out, int in, int first, int n, int8_t *q, float *scale,
                        mar_err *err);

/* --- int4 weights (kernels/int4.h): a matrix U8 [out][in/2] and its scales BF16 [out][in/32]. A U8 matrix beside such
 * scales is opened as WT_I4 [out][in]. Scales are finite (wt_allow_nonfinite) --- */

/* Returns 1 if the file has int4 weights `name`. */
int wt_is_int4(const wt_file *f, const char *name);
/* Reads rows first .. first + n - 1 of an int4 matrix [out][in] to q [n][in/2] and their scales to scale [n][in/32]. */
mar_status wt_load_int4(const wt_file *f, const char *name, int out, int in, int first, int n, uint8_t *q,
                        uint16_t *scale, mar_err *err);

/* How an output is made from its source. */
typedef enum {
    WT_VALUES,      /* the source's values as F32, F16 or BF16, rounded to nearest even */
    WT_QUANTISED,   /* I8 or I4 [out][in] of a matrix (kern_int8_quantise, kern_int4_quantise) */
    WT_SCALES,      /* F32 [out] or BF16 [out][in/32], the scales of WT_QUANTISED as I8 or I4 */
    WT_DEQUANTISED, /* an I8 or I4 matrix [out][in] dequantised to F32, F16 or BF16 */
    WT_COPIED,      /* the source unchanged, any dtype */
} wt_content;

/* A tensor to write as safetensors. */
typedef struct {
    const char *name;
    wt_dtype dtype;
    int rank;
    int64_t shape[WT_MAX_RANK];
    const wt_file *file;     /* the file of `source` */
    const wt_tensor *source; /* as many values as `shape`, except for WT_SCALES */
    wt_content content;
    /* [last dimension of the source], or NULL (kern_int8_smooth). WT_QUANTISED and WT_SCALES multiply the source by it,
     * WT_VALUES divides. */
    const float *factor;
} wt_output;

/* Writes a safetensors file, completely or not at all (base/file.h), with n_metadata pairs of key and value. Returns
 * MAR_EIO also if a source changed after its opening. */
mar_status wt_save_safetensors(const char *path, const wt_output *tensors, int count, const char *const (*metadata)[2],
                               int n_metadata, mar_err *err);

/* A demo model, a file or folder that comes with the library (base/data.h). */
typedef struct {
    const char *name; /* label in messages */
    const char *file; /* in demo/ of the data folder; a folder's name has no dot */
} wt_demo;
/* Returns a demo model: "demo", "demo-draft"; with discrete tokens "demo-discrete", "demo-discrete-draft",
 * "demo-discrete-eagle"; SphereAR's "demo-sphere", "demo-sphere-draft"; of prompts "demo-t2i", and the folders
 * "demo-mgpt", "demo-harmon" and "demo-nextstep". Returns NULL for another name. */
const wt_demo *wt_demo_mar(const char *name);
/* Returns a demo's image decoder: "demo" or "demo-vae", "demo-sphere", "demo-discrete" or "demo-discrete-vq",
 * "demo-mgpt" or "demo-mgpt-vq", "demo-harmon", "demo-nextstep"; NULL for another name. */
const wt_demo *wt_demo_vae(const char *name);
/* Write the path of a built-in folder with a tokenizer ("demo-t5", "demo-mgpt", "demo-harmon", "demo-nextstep"), or ""
 * for another name; and open a demo, labelled with its name. Errors of opening name the path, or the folders without
 * it. */
mar_status wt_demo_folder(const char *name, char path[PATH_MAX], mar_err *err);
mar_status wt_open_demo(const wt_demo *demo, wt_file **out, mar_err *err);

#endif
