/* Writes .npz files, byte for byte as numpy.savez and numpy.savez_compressed do; deflated data depend on zlib's
 * version. Local headers have ZIP64 sizes, filled in when they are known. The directory has ZIP64 records only for
 * entries of 2 GB or more. */
#include "weights/npz.h"

#include "base/file.h"
#include "weights/npy.h"
#include "weights/zip.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { NAME_MAX_LENGTH = 255, LOCAL_SIZE = 30, LOCAL_EXTRA = 20, CHUNK = 1 << 16 };

/* Python's zipfile uses ZIP64 above this, though 32 bits suffice: old readers have signed sizes. */
static const uint64_t zip64_limit = INT32_MAX;

/* An entry's description in the headers. */
typedef struct {
    char name[NAME_MAX_LENGTH + sizeof ".npy"];
    int deflated;
    uint32_t crc;
    uint64_t size, packed, offset; /* offset: of the local header */
} entry;

/* --- headers ------------------------------------------------------------------------------------------------------ */

typedef struct {
    uint8_t *data; /* allocated by the caller */
    size_t size;
} buffer;

static void npz_write_put(buffer *b, uint64_t value, int width)
{
    for (int i = 0; i < width; i++) b->data[b->size++] = (uint8_t)(value >> 8 * i);
}

static void put_bytes(buffer *b, const void *data, size_t n)
{
    memcpy(b->data + b->size, data, n);
    b->size += n;
}

/* Writes the 16 bytes that local header and directory share: version needed, flags (2048: UTF-8 name), method, time and
 * date (1 January 1980), CRC-32. */
static void put_common(buffer *b, const entry *e, int version)
{
    int flags = 0;
    for (const char *c = e->name; *c; c++)
        if ((unsigned char)*c >= 0x80) flags = 2048;
    npz_write_put(b, (uint64_t)version, 2);
    npz_write_put(b, (uint64_t)flags, 2);
    npz_write_put(b, e->deflated ? ZIP_DEFLATED : ZIP_STORED, 2);
    npz_write_put(b, 0, 2);
    npz_write_put(b, 1 << 5 | 1, 2);
    npz_write_put(b, e->crc, 4);
}

enum { LOCAL_MAX = LOCAL_SIZE + sizeof((entry *)0)->name + LOCAL_EXTRA };

/* Writes the local header to data. Returns its size. */
static size_t make_local(const entry *e, uint8_t data[LOCAL_MAX])
{
    buffer b = {.data = data};
    npz_write_put(&b, 0x04034b50, 4);
    put_common(&b, e, 45);
    npz_write_put(&b, UINT32_MAX, 4);
    npz_write_put(&b, UINT32_MAX, 4);
    npz_write_put(&b, strlen(e->name), 2);
    npz_write_put(&b, LOCAL_EXTRA, 2);
    put_bytes(&b, e->name, strlen(e->name));
    npz_write_put(&b, 1, 2);
    npz_write_put(&b, 16, 2);
    npz_write_put(&b, e->size, 8);
    npz_write_put(&b, e->packed, 8);
    return b.size;
}

enum { DIRECTORY_MAX = 46 + sizeof((entry *)0)->name + 28, END_MAX = 22 + 20 + 56 };

static void put_directory(buffer *b, const entry *e)
{
    const int big = e->size > zip64_limit || e->packed > zip64_limit, far = e->offset > zip64_limit;
    npz_write_put(b, 0x02014b50, 4);
    npz_write_put(b, 45 | 3 << 8, 2); /* made by version 4.5 on Unix */
    put_common(b, e, 45);
    npz_write_put(b, big ? UINT32_MAX : e->packed, 4);
    npz_write_put(b, big ? UINT32_MAX : e->size, 4);
    npz_write_put(b, strlen(e->name), 2);
    npz_write_put(b, big || far ? 4 + 16 * (uint64_t)big + 8 * (uint64_t)far : 0, 2);
    npz_write_put(b, 0, 2 + 2 + 2);   /* comment, disk, kind */
    npz_write_put(b, 0600u << 16, 4); /* file mode, as in zipfile */
    npz_write_put(b, far ? UINT32_MAX : e->offset, 4);
    put_bytes(b, e->name, strlen(e->name));
    if (!big && !far) return;
    npz_write_put(b, 1, 2);
    npz_write_put(b, 16 * (uint64_t)big + 8 * (uint64_t)far, 2);
    if (big) npz_write_put(b, e->size, 8);
    if (big) npz_write_put(b, e->packed, 8);
    if (far) npz_write_put(b, e->offset, 8);
}

/* Writes the end records of a file with a directory of `size` bytes at `offset`. */
static void put_end(buffer *b, uint64_t count, uint64_t size, uint64_t offset)
{
    const int zip64 = count > UINT16_MAX || size > zip64_limit || offset > zip64_limit;
    if (zip64) {
        npz_write_put(b, 0x06064b50, 4);
        npz_write_put(b, 44, 8);
        npz_write_put(b, 45, 2);
        npz_write_put(b, 45, 2);
        npz_write_put(b, 0, 4 + 4);
        npz_write_put(b, count, 8);
        npz_write_put(b, count, 8);
        npz_write_put(b, size, 8);
        npz_write_put(b, offset, 8);
        npz_write_put(b, 0x07064b50, 4);
        npz_write_put(b, 0, 4);
        npz_write_put(b, offset + size, 8);
        npz_write_put(b, 1, 4);
    }
    npz_write_put(b, 0x06054b50, 4);
    npz_write_put(b, 0, 4);
    npz_write_put(b, zip64 && count > UINT16_MAX ? UINT16_MAX : count, 2);
    npz_write_put(b, zip64 && count > UINT16_MAX ? UINT16_MAX : count, 2);
    npz_write_put(b, zip64 && size > UINT32_MAX ? UINT32_MAX : size, 4);
    npz_write_put(b, zip64 && offset > UINT32_MAX ? UINT32_MAX : offset, 4);
    npz_write_put(b, 0, 2);
}

/* --- the writer --------------------------------------------------------------------------------------------------- */

struct npz_writer {
    file_writer file;
    char *path;
    entry *entries; /* [count] of [capacity] */
    size_t count, capacity;
    int deflated;
    uint64_t at;        /* bytes written */
    uint64_t begin;     /* offset of the contents of the array that is being written */
    uint64_t left;      /* bytes of the array that are missing */
    z_stream z;         /* compresses it */
    int compressing;    /* 1: z is in use */
    uint8_t out[CHUNK]; /* output of deflate */
};

mar_status npz_writer_open(const char *path, int deflated, npz_writer **out, char *why)
{
    mar_err err = {0};
    npz_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w) w->path = strdup(path);
    if (!w || !w->path) {
        free(w);
        return npz_export_error(err_set(&err, MAR_ENOMEM, "%s: out of memory", path), &err, why);
    }
    w->deflated = deflated;
    const mar_status status = file_writer_open(path, &w->file, &err);
    if (status != MAR_OK)
        npz_writer_discard(w);
    else
        *out = w;
    return npz_export_error(status, &err, why);
}

void npz_writer_leave_unsynced(npz_writer *w)
{
    w->file.unsynced = 1;
}

/* Appends to the file. Fails if this or any earlier write failed. */
static mar_status npz_write_append(npz_writer *w, const void *data, size_t n, mar_err *err)
{
    errno = 0;
    if (n > 0) fwrite(data, 1, n, w->file.stream);
    if (ferror(w->file.stream))
        return err_set(err, MAR_EIO, "%s: cannot write: %s", w->path, strerror(errno ? errno : EIO));
    w->at += n;
    return MAR_OK;
}

/* Compresses and appends data[n]; with Z_FINISH also ends the stream. */
static mar_status append_deflated(npz_writer *w, const void *data, size_t n, int flush, mar_err *err)
{
    const uint8_t *from = data;
    z_stream *z = &w->z;
    mar_status status = MAR_OK;
    int result = Z_OK;
    do {
        const uInt piece = n < INT_MAX ? (uInt)n : INT_MAX;
        z->next_in = (Bytef *)(uintptr_t)from; /* zlib only reads it */
        z->avail_in = piece;
        do {
            z->next_out = w->out;
            z->avail_out = CHUNK;
            result = deflate(z, n > piece ? Z_NO_FLUSH : flush); /* Z_BUF_ERROR: nothing left to do */
            status = npz_write_append(w, w->out, CHUNK - z->avail_out, err);
        } while (status == MAR_OK && z->avail_out == 0);
        if (n > piece) from += piece;
        n -= piece;
    } while (n > 0 && status == MAR_OK);
    if (status == MAR_OK && flush == Z_FINISH && result != Z_STREAM_END)
        return err_set(err, MAR_EIO, "%s: zlib cannot compress: error %d", w->path, result);
    return status;
}

/* Appends contents of the array that is being written, compressed if the writer compresses. */
static mar_status append_contents(npz_writer *w, const void *data, size_t n, mar_err *err)
{
    entry *e = &w->entries[w->count - 1];
    e->crc = (uint32_t)crc32_z(e->crc, data, n);
    e->size += n;
    return w->compressing ? append_deflated(w, data, n, Z_NO_FLUSH, err) : npz_write_append(w, data, n, err);
}

static mar_status start_compressing(npz_writer *w, mar_err *err)
{
    w->z = (z_stream){0};
    if (deflateInit2(&w->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return err_set(err, MAR_ENOMEM, "%s: out of memory for compressing", w->path);
    w->compressing = 1;
    return MAR_OK;
}

static void stop_compressing(npz_writer *w)
{
    if (w->compressing) deflateEnd(&w->z);
    w->compressing = 0;
}

/* Rewrites the entry's local header with its final sizes and CRC. */
static mar_status rewrite_local(npz_writer *w, const entry *e, mar_err *err)
{
    uint8_t local[LOCAL_MAX];
    const size_t n = make_local(e, local);
    if (fseeko(w->file.stream, (off_t)e->offset, SEEK_SET) != 0 || fwrite(local, 1, n, w->file.stream) != n ||
        fseeko(w->file.stream, (off_t)w->at, SEEK_SET) != 0)
        return err_set(err, MAR_EIO, "%s: cannot write: %s", w->path, strerror(errno));
    return MAR_OK;
}

/* Checks name and shape. Sets *n to the bytes of the data. */
static mar_status check_array(const npz_writer *w, const char *name, npz_dtype dtype, int rank, const int64_t *shape,
                              uint64_t *n, mar_err *err)
{
    int valid = rank >= 0 && rank <= NPZ_RANK_MAX && *name && strlen(name) <= NAME_MAX_LENGTH;
    *n = npy_item_size(dtype);
    for (int i = 0; i < rank && valid; i++)
        valid = shape[i] >= 0 && !__builtin_mul_overflow(*n, (uint64_t)shape[i], n) && *n <= INT64_MAX;
    if (!valid)
        return err_set(err, MAR_EARG, "%s: cannot write an array \"%s\" of rank %d: its name or shape is not valid",
                       w->path, name, rank);
    for (size_t i = 0; i < w->count; i++)
        if (strncmp(w->entries[i].name, name, strlen(name)) == 0 &&
            strcmp(w->entries[i].name + strlen(name), ".npy") == 0)
            return err_set(err, MAR_EARG, "%s: the array \"%s\" is written twice", w->path, name);
    return MAR_OK;
}

static entry *npz_write_add_entry(npz_writer *w)
{
    if (w->count == w->capacity) {
        const size_t capacity = 2 * w->capacity + 8;
        entry *grown = realloc(w->entries, capacity * sizeof *grown);
        if (!grown) return NULL;
        w->entries = grown;
        w->capacity = capacity;
    }
    w->entries[w->count] = (entry){.offset = w->at, .deflated = w->deflated};
    return &w->entries[w->count++];
}

static mar_status begin_array(npz_writer *w, const char *name, npz_dtype dtype, int rank, const int64_t *shape,
                              mar_err *err)
{
    uint8_t header[NPY_WRITTEN_MAX], local[LOCAL_MAX];
    mar_status status = check_array(w, name, dtype, rank, shape, &w->left, err);
    if (status != MAR_OK) return status;
    entry *e = npz_write_add_entry(w);
    if (!e) return err_set(err, MAR_ENOMEM, "%s: out of memory", w->path);
    strcpy(stpcpy(e->name, name), ".npy");
    const size_t header_size = npy_write(dtype, rank, shape, header);
    status = npz_write_append(w, local, make_local(e, local), err);
    w->begin = w->at;
    if (status == MAR_OK && w->deflated) status = start_compressing(w, err);
    return status == MAR_OK ? append_contents(w, header, header_size, err) : status;
}

static mar_status put_data(npz_writer *w, const void *data, size_t n, mar_err *err)
{
    if (n > w->left)
        return err_set(err, MAR_EARG, "%s: %zu bytes for an array that lacks %llu", w->path, n,
                       (unsigned long long)w->left);
    w->left -= n;
    return n > 0 ? append_contents(w, data, n, err) : MAR_OK;
}

static mar_status end_array(npz_writer *w, mar_err *err)
{
    entry *e = &w->entries[w->count - 1];
    mar_status status = MAR_OK;
    if (w->left > 0)
        return err_set(err, MAR_EARG, "%s: an array lacks %llu bytes", w->path, (unsigned long long)w->left);
    if (w->compressing) status = append_deflated(w, NULL, 0, Z_FINISH, err);
    stop_compressing(w);
    e->packed = w->at - w->begin;
    return status == MAR_OK ? rewrite_local(w, e, err) : status;
}

mar_status npz_writer_begin(npz_writer *w, const char *name, npz_dtype dtype, int rank, const int64_t *shape, char *why)
{
    mar_err err = {0};
    return npz_export_error(begin_array(w, name, dtype, rank, shape, &err), &err, why);
}

mar_status npz_writer_put(npz_writer *w, const void *data, size_t bytes, char *why)
{
    mar_err err = {0};
    return npz_export_error(put_data(w, data, bytes, &err), &err, why);
}

mar_status npz_writer_end(npz_writer *w, char *why)
{
    mar_err err = {0};
    return npz_export_error(end_array(w, &err), &err, why);
}

mar_status npz_writer_add(npz_writer *w, const char *name, npz_dtype dtype, int rank, const int64_t *shape,
                          const void *data, char *why)
{
    mar_err err = {0};
    mar_status status = begin_array(w, name, dtype, rank, shape, &err);
    if (status == MAR_OK) status = put_data(w, data, (size_t)w->left, &err);
    if (status == MAR_OK) status = end_array(w, &err);
    return npz_export_error(status, &err, why);
}

static mar_status write_directory(npz_writer *w, mar_err *err)
{
    buffer b = {.data = malloc(w->count * DIRECTORY_MAX + END_MAX)};
    if (!b.data) return err_set(err, MAR_ENOMEM, "%s: out of memory for its directory", w->path);
    for (size_t i = 0; i < w->count; i++) put_directory(&b, &w->entries[i]);
    put_end(&b, w->count, b.size, w->at);
    const mar_status status = npz_write_append(w, b.data, b.size, err);
    free(b.data);
    return status;
}

mar_status npz_writer_commit(npz_writer *w, char *why)
{
    mar_err err = {0};
    mar_status status = write_directory(w, &err);
    if (status == MAR_OK) status = file_writer_commit(&w->file, &err);
    npz_writer_discard(w);
    return npz_export_error(status, &err, why);
}

void npz_writer_discard(npz_writer *w)
{
    if (!w) return;
    stop_compressing(w);
    if (w->file.stream) file_writer_discard(&w->file);
    free(w->entries);
    free(w->path);
    free(w);
}

/* --- slots -------------------------------------------------------------------------------------------------------- */

/* Builds all parts of the file but the items: local header and array header in `begin`, directory in `end`. Returns the
 * size of `begin`. */
static size_t slots_frame(const npz_slots *s, uint32_t crc, uint8_t *begin, buffer *end)
{
    const int64_t shape[4] = {s->n, s->shape[0], s->shape[1], s->shape[2]};
    uint8_t header[NPY_WRITTEN_MAX];
    const size_t n = npy_write(NPZ_U8, 4, shape, header);
    const uint64_t size = n + (uint64_t)s->n * s->item;
    const entry e = {.name = "arr_0.npy", .crc = crc, .size = size, .packed = size};
    const size_t local = make_local(&e, begin);
    memcpy(begin + local, header, n);
    put_directory(end, &e);
    put_end(end, 1, end->size, local + size);
    return local + n;
}

enum { BEGIN_MAX = LOCAL_MAX + NPY_WRITTEN_MAX };

void npz_slots_layout(int64_t n, const int64_t shape[3], npz_slots *out)
{
    uint8_t begin[BEGIN_MAX], directory[DIRECTORY_MAX + END_MAX];
    buffer end = {.data = directory};
    *out = (npz_slots){.n = n,
                       .shape = {shape[0], shape[1], shape[2]},
                       .item = (uint64_t)shape[0] * (uint64_t)shape[1] * (uint64_t)shape[2]};
    out->first = slots_frame(out, 0, begin, &end);
    out->size = out->first + (uint64_t)n * out->item + end.size;
}

uint32_t npz_crc(const void *data, size_t n)
{
    return (uint32_t)crc32_z(0, data, n);
}

static mar_status write_at(int fd, const char *path, const uint8_t *data, size_t n, uint64_t offset, mar_err *err)
{
    while (n > 0) {
        const ssize_t put_now = pwrite(fd, data, n, (off_t)offset);
        if (put_now < 0 && errno == EINTR) continue;
        if (put_now <= 0) return err_set(err, MAR_EIO, "%s: cannot write: %s", path, strerror(errno));
        data += put_now;
        offset += (uint64_t)put_now;
        n -= (size_t)put_now;
    }
    return MAR_OK;
}

/* Returns the CRC-32 of the array's header and all items. The header follows the local header in `begin`. */
static uint32_t slots_crc(const npz_slots *s, const uint32_t *crc, const uint8_t *begin)
{
    const size_t local = LOCAL_SIZE + strlen("arr_0.npy") + LOCAL_EXTRA;
    const z_off_t item = (z_off_t)s->item;
    uLong all = crc32_z(0, begin + local, s->first - local);
    for (int64_t i = 0; i < s->n; i++) all = crc32_combine(all, crc[i], item);
    return (uint32_t)all;
}

mar_status npz_slots_finish(int fd, const char *path, const npz_slots *s, const uint32_t *crc, char *why)
{
    mar_err err = {0};
    mar_status status = MAR_OK;
    struct stat st;
    uint8_t begin[BEGIN_MAX], directory[2 * (DIRECTORY_MAX + END_MAX)];
    buffer end = {.data = directory};
    const uint64_t items_end = s->first + (uint64_t)s->n * s->item;
    slots_frame(s, 0, begin, &end);
    end.size = 0;
    slots_frame(s, slots_crc(s, crc, begin), begin, &end);
    if (fstat(fd, &st) != 0)
        status = err_set(&err, MAR_EIO, "%s: cannot stat: %s", path, strerror(errno));
    else if ((uint64_t)st.st_size < items_end || (uint64_t)st.st_size > s->size)
        status = err_set(&err, MAR_EFORMAT, "%s: has %llu bytes, expected the %llu up to the end of %lld images", path,
                         (unsigned long long)st.st_size, (unsigned long long)items_end, (long long)s->n);
    if (status == MAR_OK) status = write_at(fd, path, end.data, end.size, items_end, &err);
    if (status == MAR_OK) status = write_at(fd, path, begin, s->first, 0, &err);
    if (status == MAR_OK && fsync(fd) != 0 && errno != EINVAL)
        status = err_set(&err, MAR_EIO, "%s: cannot write: %s", path, strerror(errno));
    return npz_export_error(status, &err, why);
}
