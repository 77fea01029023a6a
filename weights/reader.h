/* What the readers of the formats share: the table of tensors they fill. Inside weights/ only. */
#ifndef WEIGHTS_READER_H
#define WEIGHTS_READER_H

#include "base/file.h"
#include "weights/pool.h"
#include "weights/weights.h"

typedef struct {
    const char *key, *value;
} wt_pair;

struct wt_file {
    file_map map;        /* empty for wt_open_memory */
    const uint8_t *data; /* [size] the whole file */
    size_t size;
    const char *path;
    char format[64];
    wt_tensor *tensors; /* [count], file order */
    int count, capacity;
    int *slots; /* [n_slots] open addressing: index into tensors, or -1 */
    size_t n_slots;
    wt_pair *metadata; /* [n_metadata] */
    int n_metadata;
    wt_pool pool; /* names, metadata, and copies of tensors that are not contiguous in the file */
};

/* Adds t (the name is copied). Refuses a duplicate or a name with a NUL in it. */
mar_status wt_add(wt_file *f, const wt_tensor *t, size_t name_length, mar_err *err);
/* t->count from t->rank and t->shape, and the size in bytes; 0 if either overflows. */
int wt_measure(wt_tensor *t, uint64_t *bytes);

int wt_safetensors_recognise(const wt_file *f);
mar_status wt_safetensors_read(wt_file *f, mar_err *err);
int wt_pytorch_recognise(const wt_file *f);
mar_status wt_pytorch_read(wt_file *f, mar_err *err);

/* dst[n] = elements first .. first+n-1 of t as f32; t is floating-point. */
void wt_convert_f32(const wt_tensor *t, int64_t first, size_t n, float *dst);
int wt_is_float(wt_dtype dtype);

static inline uint16_t wt_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t wt_le32(const uint8_t *p)
{
    return (uint32_t)wt_le16(p) | (uint32_t)wt_le16(p + 2) << 16;
}
static inline uint64_t wt_le64(const uint8_t *p)
{
    return (uint64_t)wt_le32(p) | (uint64_t)wt_le32(p + 4) << 32;
}

#endif
