/* The table of a file's tensors: a reader fills it, and lookups go through it. Private to weights/. */
#ifndef WEIGHTS_TABLE_H
#define WEIGHTS_TABLE_H

#include "base/file.h"
#include "weights/hash.h"
#include "weights/pool.h"
#include "weights/weights.h"

/* The largest dimension, 2^53: up to here numbers in safetensors' JSON are exact. Only an empty tensor can have it. */
#define WT_DIMENSION_MAX ((int64_t)1 << 53)

typedef struct {
    const char *key, *value;
} wt_pair;

struct wt_file {
    file_source source;  /* the file, or wt_open_memory's memory */
    const char *path;    /* or wt_open_memory's label */
    uint8_t start[24];   /* [n_start] how the file begins */
    size_t n_start;      /* all of it, if it is shorter */
    int allow_nonfinite; /* whether wt_load_f32 takes tensors with NaN and infinities */
    char format[64];     /* what wt_format returns */
    mar_weights weights; /* the set that is asked for */
    const char *set;     /* what wt_set returns, static */
    mar_weights other;   /* what wt_other_weights returns */
    char prefix[24];     /* the first prefix that a name has lost */
    int n_prefixed;      /* names that have lost one */
    wt_tensor *tensors;  /* [count] in file order */
    int count;           /* tensors in the table */
    int capacity;        /* tensors there is room for */
    int *slots;          /* [n_slots] hash table with open addressing: an index into tensors, or -1 */
    size_t n_slots;      /* a power of two */
    wt_hash_seed seed;   /* of the slots */
    wt_pair *metadata;   /* [n_metadata] safetensors' __metadata__ */
    int n_metadata;      /* pairs */
    wt_pool pool;        /* names, metadata, and copies of tensors that are not contiguous in the file */
};

/* Makes room for one more tensor; at most half of the slots are ever full. Returns 0 without memory. */
int wt_table_grow(wt_file *f);
/* MAR_EFORMAT unless text[length], a "tensor name" or the like, is UTF-8 without a NUL in it. Files come with all sorts
 * of bytes; what passes here can be shown, compared as a C string, and written as JSON. */
mar_status wt_check_text(const wt_file *f, const char *what, const char *text, size_t length, mar_err *err);
/* Adds t; the name, of name_length bytes, which wt_check_text has passed, is copied without the prefixes of wrappers.
 * MAR_EFORMAT for a duplicate. */
mar_status wt_add(wt_file *f, const wt_tensor *t, size_t name_length, mar_err *err);
/* Sets t->count from t->rank and t->shape, and *bytes to the size of the data. Returns 0 if either overflows. */
int wt_measure(wt_tensor *t, uint64_t *bytes);
/* "[1, 320, 768]"; returns buffer. */
const char *wt_format_shape(int rank, const int64_t *shape, char *buffer, size_t size);

/* dst[n] = elements first .. first+n-1 of t as f32; t is floating-point. MAR_EIO. */
mar_status wt_convert_f32(const wt_file *f, const wt_tensor *t, int64_t first, size_t n, float *dst, mar_err *err);
int wt_is_float(wt_dtype dtype);

#endif
