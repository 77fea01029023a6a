/* The table of a file's tensors: a reader fills it, and lookups go through it. Private to weights/. */
#ifndef WEIGHTS_TABLE_H
#define WEIGHTS_TABLE_H

#include "base/file.h"
#include "weights/pool.h"
#include "weights/weights.h"

typedef struct {
    const char *key, *value;
} wt_pair;

struct wt_file {
    file_map map;        /* the mapping of the file; empty for wt_open_memory */
    const uint8_t *data; /* [size] the whole file */
    size_t size;         /* bytes */
    const char *path;    /* or wt_open_memory's label */
    char format[64];     /* what wt_format returns */
    wt_tensor *tensors;  /* [count] in file order */
    int count;           /* tensors in the table */
    int capacity;        /* tensors there is room for */
    int *slots;          /* [n_slots] hash table with open addressing: an index into tensors, or -1 */
    size_t n_slots;      /* a power of two */
    wt_pair *metadata;   /* [n_metadata] safetensors' __metadata__ */
    int n_metadata;      /* pairs */
    wt_pool pool;        /* names, metadata, and copies of tensors that are not contiguous in the file */
};

/* Makes room for one more tensor; at most half of the slots are ever full. Returns 0 without memory. */
int wt_table_grow(wt_file *f);
/* Adds t; the name, of name_length bytes, is copied. MAR_EFORMAT for a duplicate or a name with a NUL in it. */
mar_status wt_add(wt_file *f, const wt_tensor *t, size_t name_length, mar_err *err);
/* Sets t->count from t->rank and t->shape, and *bytes to the size of the data. Returns 0 if either overflows. */
int wt_measure(wt_tensor *t, uint64_t *bytes);
/* "[1, 320, 768]"; returns buffer. */
const char *wt_format_shape(int rank, const int64_t *shape, char *buffer, size_t size);

/* dst[n] = elements first .. first+n-1 of t as f32; t is floating-point. */
void wt_convert_f32(const wt_tensor *t, int64_t first, size_t n, float *dst);
int wt_is_float(wt_dtype dtype);

#endif
