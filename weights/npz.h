/* NumPy's arrays in files: .npy, and .npz, a zip of them, stored or deflated. Reading checks every length against the
 * file before use, as the other readers do; data comes out in C order, whatever the order in the file. */
#ifndef WEIGHTS_NPZ_H
#define WEIGHTS_NPZ_H

#include "mar.h"

#include <stdint.h>

enum { NPZ_RANK_MAX = 8, NPZ_WHY_MAX = 512 };

typedef enum { NPZ_U8, NPZ_I32, NPZ_I64, NPZ_F16, NPZ_F32, NPZ_F64 } npz_dtype;

typedef struct {
    const char *name; /* "arr_0": without .npy; of a .npy file "" */
    npz_dtype dtype;
    int rank;                    /* 0..NPZ_RANK_MAX */
    int64_t shape[NPZ_RANK_MAX]; /* sizes */
    int64_t count;               /* product of shape */
    int fortran;                 /* 1: the file has it in Fortran order */
    int deflated;                /* 1: it is compressed, so count may be a thousand times the bytes in the file */
} npz_array;

typedef struct npz npz;

/* Opens a .npz or .npy, recognised by content, and reads the headers of its arrays, which are the entries of the zip
 * whose names end with .npy. Headers must agree with the sizes in the file. Big-endian data, other types and objects
 * (pickles) are refused when they are asked for, not here. On failure *out is NULL and `why`, char
 * [NPZ_WHY_MAX], has one line that names the path: MAR_EIO, MAR_EFORMAT, MAR_ENOMEM. */
mar_status npz_open(const char *path, npz **out, char *why);
/* The same of a file in memory, which must stay valid; `label` stands for its path. */
mar_status npz_open_memory(const void *data, size_t size, const char *label, npz **out, char *why);
void npz_close(npz *z);                                    /* NULL is fine */
int npz_count(const npz *z);                               /* its arrays, readable or not */
const char *npz_name_at(const npz *z, int i);              /* of array i */
const npz_array *npz_find(const npz *z, const char *name); /* NULL: none, or none that can be read */
/* Why npz_find has found nothing of that name: there is none (which ones there are), or what is in the way. */
void npz_explain(const npz *z, const char *name, char *why);

const char *npz_dtype_name(npz_dtype dtype); /* "uint8" */
/* "float32 [50000, 256, 256, 3]", in text, char [NPZ_WHY_MAX], which it returns. */
const char *npz_describe(const npz_array *a, char *text);

/* dst double [count], any number type. MAR_EIO, MAR_ENOMEM, MAR_EFORMAT (deflated data are damaged, or CRC-32 differs).
 */
mar_status npz_read_f64(npz *z, const npz_array *a, double *dst, char *why);
mar_status npz_read_f32(npz *z, const npz_array *a, float *dst, char *why);

/* Reads a uint8 array in C order from its beginning, piece by piece: memory stays small however large it is. One stream
 * of a file at a time. npz_stream_begin fails with MAR_EFORMAT for another type or order. npz_stream_read fails with it
 * where damage shows, which for a wrong CRC-32 is the last byte; after a failure the stream must be begun again. */
mar_status npz_stream_begin(npz *z, const npz_array *a, char *why);
mar_status npz_stream_read(npz *z, size_t n, uint8_t *dst, char *why);

/* Writing: arrays are added one after another, deflated or stored, and the file is there, whole, after commit. ZIP64 if
 * it is needed. `data` is in C order. After a failed addition the writer can only be discarded. MAR_EIO, MAR_ENOMEM,
 * MAR_EARG (a name twice, a shape that no array has). Commit and discard close the writer. */
typedef struct npz_writer npz_writer;
mar_status npz_writer_open(const char *path, int deflated, npz_writer **out, char *why);
void npz_writer_leave_unsynced(npz_writer *w); /* see file_writer: for a file that can be made again */
mar_status npz_writer_add(npz_writer *w, const char *name, npz_dtype dtype, int rank, const int64_t *shape,
                          const void *data, char *why);
mar_status npz_writer_commit(npz_writer *w, char *why);
void npz_writer_discard(npz_writer *w); /* NULL is fine */

/* A stored npz with one uint8 array `arr_0` [n][item bytes...] whose items are written in any order, by any number of
 * processes: npz_slots_layout says where item p begins and how the file begins; the caller writes items with pwrite and
 * keeps each one's CRC-32; npz_slots_finish writes headers and directory with the CRC-32 of the whole, combined from
 * crc [n], and fsyncs. Nothing of the items is read again. Finishing a finished file again is fine. */
typedef struct {
    int64_t n;        /* items */
    int64_t shape[3]; /* of an item: height, width, 3 */
    uint64_t item;    /* bytes of an item */
    uint64_t first;   /* offset of item 0 in the file; item p is at first + p * item */
    uint64_t size;    /* bytes of the finished file */
} npz_slots;
void npz_slots_layout(int64_t n, const int64_t shape[3], npz_slots *out);
uint32_t npz_crc(const void *data, size_t n);
mar_status npz_slots_finish(int fd, const char *path, const npz_slots *s, const uint32_t *crc, char *why);

#endif
