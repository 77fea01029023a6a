/* Files of NumPy arrays: .npy, and .npz, a zip of .npy files, stored or deflated. Every length is checked against the
 * file before use. Data are returned in C order, whatever the order in the file. */
#ifndef WEIGHTS_NPZ_H
#define WEIGHTS_NPZ_H

#include "mar.h"

#include <stdint.h>

enum { NPZ_RANK_MAX = 8, NPZ_WHY_MAX = 512 };

typedef enum { NPZ_U8, NPZ_I32, NPZ_I64, NPZ_F16, NPZ_F32, NPZ_F64 } npz_dtype;

typedef struct {
    const char *name; /* without .npy: "arr_0"; "" for a .npy file */
    npz_dtype dtype;
    int rank;                    /* 0..NPZ_RANK_MAX */
    int64_t shape[NPZ_RANK_MAX]; /* sizes */
    int64_t count;               /* product of shape */
    int fortran;                 /* 1: the file has Fortran order */
    int deflated;                /* 1: compressed; count may be a thousand times the bytes in the file */
} npz_array;

typedef struct npz npz;

/* Opens a .npz or .npy, recognised by content, and reads the headers of its arrays: the zip entries named *.npy.
 * Headers must agree with the sizes in the file. Big-endian data, other types and objects (pickles) are refused at
 * npz_find, not here. On failure *out is NULL, and `why`, char [NPZ_WHY_MAX], has one line that names the path. Returns
 * MAR_EIO, MAR_EFORMAT or MAR_ENOMEM. */
mar_status npz_open(const char *path, npz **out, char *why);
/* Opens a file in memory; the memory must stay valid. `label` replaces its path in messages. */
mar_status npz_open_memory(const void *data, size_t size, const char *label, npz **out, char *why);
void npz_close(npz *z);                                    /* NULL is fine */
int npz_count(const npz *z);                               /* number of arrays, readable or not */
const char *npz_name_at(const npz *z, int i);              /* name of array i */
const npz_array *npz_find(const npz *z, const char *name); /* NULL if it is absent or unreadable */
/* Writes to `why` the reason why npz_find returned NULL: the names that exist, or why the array is unreadable. */
void npz_explain(const npz *z, const char *name, char *why);

const char *npz_dtype_name(npz_dtype dtype); /* "uint8" */
/* Writes "float32 [50000, 256, 256, 3]" to text, char [NPZ_WHY_MAX], and returns it. */
const char *npz_describe(const npz_array *a, char *text);

/* Reads an array of any number type to dst [count]. Returns MAR_EIO, MAR_ENOMEM, or MAR_EFORMAT for damaged data. */
mar_status npz_read_f64(npz *z, const npz_array *a, double *dst, char *why);
mar_status npz_read_f32(npz *z, const npz_array *a, float *dst, char *why);

/* Streams a uint8 array in C order from its beginning, in constant memory. A file has one stream at a time.
 * npz_stream_begin returns MAR_EFORMAT for another type or order. npz_stream_read returns MAR_EFORMAT at the first
 * damage; a wrong CRC-32 shows at the last byte. After a failure, begin again. */
mar_status npz_stream_begin(npz *z, const npz_array *a, char *why);
mar_status npz_stream_read(npz *z, size_t n, uint8_t *dst, char *why);

/* Writes an npz: arrays are added one after another, deflated or stored. The file appears, complete, at commit. ZIP64
 * is used if needed. `data` is in C order. After a failed addition, discard the writer. Commit and discard both close
 * it. Returns MAR_EIO, MAR_ENOMEM, or MAR_EARG (a duplicate name, an invalid shape). */
typedef struct npz_writer npz_writer;
mar_status npz_writer_open(const char *path, int deflated, npz_writer **out, char *why);
void npz_writer_leave_unsynced(npz_writer *w); /* see file_writer: for a file that can be made again */
mar_status npz_writer_add(npz_writer *w, const char *name, npz_dtype dtype, int rank, const int64_t *shape,
                          const void *data, char *why);
/* Adds an array in pieces, in constant memory: begin, then `put` until all its bytes are there, in C order, then end.
 * npz_writer_end returns MAR_EARG if bytes are missing, npz_writer_put if there are too many. */
mar_status npz_writer_begin(npz_writer *w, const char *name, npz_dtype dtype, int rank, const int64_t *shape,
                            char *why);
mar_status npz_writer_put(npz_writer *w, const void *data, size_t bytes, char *why);
mar_status npz_writer_end(npz_writer *w, char *why);
mar_status npz_writer_commit(npz_writer *w, char *why);
void npz_writer_discard(npz_writer *w); /* NULL is fine */

/* An uncompressed npz with one uint8 array `arr_0` [n][item bytes...], whose items any number of processes write in any
 * order. npz_slots_layout computes where item p begins. The caller writes items with pwrite and keeps each CRC-32.
 * npz_slots_finish writes the headers and the directory, and fsyncs. It combines the CRC-32 of the whole from crc [n]
 * without reading items again. Finishing twice is fine. */
typedef struct {
    int64_t n;        /* items */
    int64_t shape[3]; /* height, width, 3 of an item */
    uint64_t item;    /* bytes of an item */
    uint64_t first;   /* offset of item 0 in the file; item p is at first + p * item */
    uint64_t size;    /* bytes of the finished file */
} npz_slots;
void npz_slots_layout(int64_t n, const int64_t shape[3], npz_slots *out);
uint32_t npz_crc(const void *data, size_t n);
mar_status npz_slots_finish(int fd, const char *path, const npz_slots *s, const uint32_t *crc, char *why);

#endif
