/* Table of a file's tensors: filled by a reader, searched by name. Private to weights/. */
#ifndef WEIGHTS_TABLE_H
#define WEIGHTS_TABLE_H

#include "base/file.h"
#include "base/json.h"
#include "weights/hash.h"
#include "weights/pool.h"
#include "weights/weights.h"

/* Largest dimension, 2^53: integers up to here are exact in safetensors' JSON. Only an empty tensor can have it. */
#define WT_DIMENSION_MAX ((int64_t)1 << 53)

typedef struct {
    const char *key, *value;
} wt_pair;

/* A tensor's part of the hash of the tensors read (wt_digest_begin). */
typedef struct {
    unsigned __int128 sum; /* over the words read, each times the key of its place */
    uint64_t bytes;        /* read; more than the tensor has are not added */
} wt_digest;

struct wt_file {
    file_source source;    /* the file, descriptor or memory */
    const char *path;      /* or the label of memory or a descriptor, or wt_set_label's */
    const char *place;     /* the path without such a label: other files are beside it */
    uint8_t start[24];     /* [n_start] first bytes of the file */
    size_t n_start;        /* less than sizeof start for a shorter file */
    int allow_nonfinite;   /* 1: wt_load_f32 accepts NaN and infinities */
    wt_progress *progress; /* NULL: reads report nothing */
    wt_digest *digests;    /* [count] NULL: reads are not hashed */
    const wt_file *whole;  /* of a view: the file it is of, which has the bytes, texts and parts; else NULL */
    char format[64];       /* returned by wt_format */
    mar_weights weights;   /* the requested set */
    const char *set;       /* returned by wt_set, static */
    mar_weights other;     /* returned by wt_other_weights */
    unsigned removed;      /* bits of the parts removed from names, those of `tensors` */
    char prefix[96];       /* their names */
    wt_tensor *tensors;    /* [count] in file order */
    int count;             /* tensors used */
    int capacity;          /* tensors allocated */
    int *slots;            /* [n_slots] hash table with open addressing: index of a tensor, or -1 */
    size_t n_slots;        /* a power of two */
    wt_hash_seed seed;     /* key of the slots' hash */
    wt_pair *metadata;     /* [n_metadata] safetensors' __metadata__; PyTorch: options of the training run */
    int n_metadata;        /* pairs */
    wt_pool pool;          /* names, metadata, and copies of noncontiguous tensors */
    wt_file **parts;       /* [n_parts] the files of a folder; NULL: `source` has the data */
    int n_parts;
    char *config_text;    /* a folder's config.json, or NULL */
    json config;          /* its values, which point into the text; none without it */
    uint64_t config_hash; /* of the text as it is in the file; 0 without it */
};

/* Creates a file without tensors or bytes. Returns NULL without memory; wt_close frees it. */
wt_file *wt_file_new(const char *path, mar_weights which);
/* Makes room for one more tensor, so that at most half of the slots are full. Returns 0 without memory. */
int wt_table_grow(wt_file *f);
/* Returns MAR_EFORMAT unless text[length] is UTF-8 without a NUL; `what` is "tensor name" or the like. Text that passes
 * can be printed, compared as a C string, and written as JSON. */
mar_status wt_check_text(const wt_file *f, const char *what, const char *text, size_t length, mar_err *err);
/* Adds t. Copies its name of name_length bytes without the parts that training wrappers add, and the type of WT_UNREAD,
 * whose count it sets. The name must have passed wt_check_text. Returns MAR_EFORMAT for a duplicate. */
mar_status wt_add(wt_file *f, const wt_tensor *t, size_t name_length, mar_err *err);
/* Sets t->count from t->rank and t->shape, and *bytes to the size of the data. Returns 0 on overflow. */
int wt_measure(wt_tensor *t, uint64_t *bytes);
/* Adds data[n], a tensor's bytes from `first` on. */
void wt_digest_add(wt_digest *d, uint64_t first, size_t n, const uint8_t *data);
/* Return `hash`, extended by a number or a text. */
uint64_t wt_number_digest(uint64_t hash, uint64_t number);
uint64_t wt_text_digest(uint64_t hash, const char *text);
/* Makes WT_I4 of the U8 matrices beside scales of int4. */
void wt_find_int4(wt_file *f);
/* Writes "[1, 320, 768]" to buffer and returns it. */
const char *wt_format_shape(int rank, const int64_t *shape, char *buffer, size_t size);

/* Reads elements first .. first+n-1 of t, a floating-point tensor, to dst[n] as f32. Returns MAR_EIO. */
mar_status wt_convert_f32(const wt_file *f, const wt_tensor *t, int64_t first, size_t n, float *dst, mar_err *err);
static inline int wt_is_fp8(wt_dtype dtype)
{
    return dtype == WT_F8_E4M3 || dtype == WT_F8_E5M2;
}
/* Scales of an fp8 tensor: which elements share one. */
typedef struct {
    const wt_tensor *scale;
    int64_t rows, columns; /* of a block; the matrix has `width` columns, and `blocks` blocks beside each other */
    int64_t width, blocks;
} wt_scale_layout;
/* Finds the scales of t, fp8; out->scale is NULL if there are none. Returns MAR_EMODEL for scales of another form. */
mar_status wt_find_scales(const wt_file *f, const wt_tensor *t, wt_scale_layout *out, mar_err *err);
/* Notes that these parts, bits, were removed from names. */
void wt_note_removed(wt_file *f, unsigned bits);
/* Returns MAR_EMODEL with the numbers of NaNs and infinities of the whole tensor, or the error of reading it. */
mar_status wt_refuse_nonfinite(const wt_file *f, const wt_tensor *t, mar_err *err);
/* Dequantises rows first .. first+n-1 of t, I8 or I4, to dst [n][t->shape[1]]. Errors are those of wt_load_matrix_rows.
 */
mar_status wt_restore_rows(const wt_file *f, const wt_tensor *t, int first, int n, float *dst, mar_err *err);

#endif
