/* Reads files of NumPy arrays. weights/npy.c parses their headers, weights/zip.c the directory. */
#include "weights/npz.h"
#include "weights/npy.h"
#include "weights/number.h"
#include "weights/start.h"
#include "weights/zip.h"
#include "weights/zip_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An array of the file. */
typedef struct {
    npz_array array;
    char *name;       /* owned, like the next two */
    char *what;       /* path and name, for messages */
    char *unreadable; /* why it is unreadable; NULL: it is readable */
    zip_place place;
    size_t header; /* bytes of the header at the start of its contents */
} member;

struct npz {
    char *path;
    file_source source;
    zip_directory zip; /* empty for a .npy */
    member *members;   /* [count] */
    int count;
    zip_stream *stream; /* for npz_stream_begin, and for headers during opening */
};

static mar_status npz_read_no_memory(const npz *z, mar_err *err)
{
    return err_set(err, MAR_ENOMEM, "%s: out of memory", z->path ? z->path : "npz");
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Sets the fields derived from the member's name. Returns 0 without memory, also if the name's allocation failed. */
static int name_member(const npz *z, member *m)
{
    if (!m->name) return 0;
    const size_t size = strlen(z->path) + strlen(m->name) + sizeof ": the array";
    m->array.name = m->name;
    m->what = malloc(size);
    if (m->what) snprintf(m->what, size, *m->name ? "%s: \"%s\"" : "%s: the array", z->path, m->name);
    return m->what != NULL;
}

/* Checks that the member has exactly the bytes that its header implies. */
static mar_status npz_read_check_size(const member *m, mar_err *err)
{
    uint64_t expected = 0;
    if (!__builtin_mul_overflow((uint64_t)m->array.count, npy_item_size(m->array.dtype), &expected) &&
        !__builtin_add_overflow(expected, m->header, &expected) && expected == m->place.size)
        return MAR_OK;
    return err_set(err, MAR_EFORMAT, "%s has %llu bytes, expected %llu by its header", m->what,
                   (unsigned long long)m->place.size, (unsigned long long)expected);
}

static mar_status npz_read_read_header(npz *z, member *m, char *text, mar_err *err)
{
    uint8_t prefix[NPY_PREFIX_MAX] = {0};
    size_t dictionary = 0;
    int readable = 0;
    if (m->place.size < sizeof prefix)
        return err_set(err, MAR_EFORMAT, "%s has %llu bytes, too few for one of NumPy's arrays", m->what,
                       (unsigned long long)m->place.size);
    mar_status status = zip_stream_read(z->stream, sizeof prefix, prefix, err);
    if (status == MAR_OK) status = npy_measure(prefix, m->what, &m->header, &dictionary, err);
    if (status == MAR_OK && (m->header > m->place.size || m->header < sizeof prefix))
        status = err_set(err, MAR_EFORMAT, "%s has a header of %zu bytes and %llu bytes in all", m->what, m->header,
                         (unsigned long long)m->place.size);
    if (status != MAR_OK) return status;
    memcpy(text, prefix, sizeof prefix);
    status = zip_stream_read(z->stream, m->header - sizeof prefix, text + sizeof prefix, err);
    if (status == MAR_OK)
        status = npy_parse(text + dictionary, m->header - dictionary, m->what, &m->array, &readable, err);
    if (status == MAR_OK && readable) status = npz_read_check_size(m, err);
    if (status == MAR_OK && !readable) {
        m->unreadable = strdup(err->text);
        if (!m->unreadable) status = npz_read_no_memory(z, err);
    }
    return status;
}

/* Reads the header of a member with a known place. */
static mar_status open_member(npz *z, member *m, mar_err *err)
{
    char *text = malloc(NPY_HEADER_MAX);
    mar_status status = text ? zip_stream_open(z->stream, &m->place, err) : npz_read_no_memory(z, err);
    if (status == MAR_OK) status = npz_read_read_header(z, m, text, err);
    zip_stream_close(z->stream);
    free(text);
    m->array.deflated = m->place.deflated;
    return status;
}

/* Returns why a directory entry is unreadable, or NULL. */
static const char *why_unreadable(const zip_entry *e)
{
    if (zip_is_encrypted(e)) return "is encrypted";
    if (e->method != ZIP_STORED && e->method != ZIP_DEFLATED)
        return "is compressed in a way that is not known here, expected stored or deflated";
    return NULL;
}

static mar_status place_member(npz *z, const zip_entry *e, member *m, mar_err *err)
{
    enum { RATIO = 1032 }; /* deflate's best ratio: 258 bytes from two bits */
    m->place = (zip_place){.source = &z->source,
                           .what = m->what,
                           .packed = e->packed,
                           .size = e->size,
                           .deflated = e->method == ZIP_DEFLATED,
                           .has_crc = 1,
                           .crc = e->crc};
    if (m->place.deflated ? e->size / RATIO > e->packed : e->size != e->packed)
        return err_set(err, MAR_EFORMAT, "%s has %llu bytes in the file, which cannot be %llu bytes of data", m->what,
                       (unsigned long long)e->packed, (unsigned long long)e->size);
    return zip_locate(&z->zip, e, &m->place.offset, err);
}

static mar_status npz_read_add_entry(npz *z, const zip_entry *e, mar_err *err)
{
    const size_t suffix = 4; /* ".npy" */
    if (e->name_length < suffix || memcmp(e->name + e->name_length - suffix, ".npy", suffix) != 0) return MAR_OK;
    if (memchr(e->name, '\0', e->name_length))
        return err_set(err, MAR_EFORMAT, "%s: the name \"%s\" in its directory goes on after a NUL", z->path, e->name);
    member *m = &z->members[z->count++];
    const char *unreadable = why_unreadable(e);
    char line[ERR_TEXT_MAX + 64];
    m->name = strndup(e->name, e->name_length - suffix);
    if (!name_member(z, m)) return npz_read_no_memory(z, err);
    if (!unreadable) {
        const mar_status status = place_member(z, e, m, err);
        return status == MAR_OK ? open_member(z, m, err) : status;
    }
    err_line(line, ERR_TEXT_MAX, "%s %s", m->what, unreadable);
    m->unreadable = strdup(line);
    return m->unreadable ? MAR_OK : npz_read_no_memory(z, err);
}

/* Opening reads every array's header, and directory entries may share one array. */
enum { ARRAYS_MAX = 4096 };

/* Returns whether an archive has a pickle, as torch.save writes it. */
static int is_torch(const zip_directory *zip)
{
    static const char end[] = "/data.pkl";
    const size_t n = sizeof end - 1;
    for (size_t i = 0; i < zip->count; i++) {
        const zip_entry *e = &zip->entries[i];
        if (e->name_length >= n && memcmp(e->name + e->name_length - n, end, n) == 0) return 1;
    }
    return 0;
}

static mar_status open_npz(npz *z, mar_err *err)
{
    mar_status status = zip_open(&z->source, &z->zip, err);
    if (status != MAR_OK) return status;
    if (is_torch(&z->zip))
        return err_set(err, MAR_EFORMAT,
                       "%s: is a file of torch.save, expected a .npz: numpy.savez(\"stats.npz\", mu=mu, sigma=sigma)",
                       z->path);
    if (z->zip.count > ARRAYS_MAX)
        return err_set(err, MAR_EFORMAT, "%s: its zip directory has %zu entries, expected at most %d", z->path,
                       z->zip.count, ARRAYS_MAX);
    z->members = calloc(z->zip.count + 1, sizeof *z->members);
    if (!z->members) return npz_read_no_memory(z, err);
    for (size_t i = 0; i < z->zip.count && status == MAR_OK; i++)
        status = npz_read_add_entry(z, &z->zip.entries[i], err);
    return status;
}

static mar_status open_npy(npz *z, mar_err *err)
{
    z->members = calloc(1, sizeof *z->members);
    if (!z->members) return npz_read_no_memory(z, err);
    member *m = z->members;
    z->count = 1;
    m->name = strdup("");
    if (!name_member(z, m)) return npz_read_no_memory(z, err);
    m->place = (zip_place){.source = &z->source, .what = m->what, .packed = z->source.size, .size = z->source.size};
    return open_member(z, m, err);
}

static mar_status open_any(npz *z, mar_err *err)
{
    uint8_t start[16] = {0};
    char text[sizeof start + 1];
    const size_t n = z->source.size < sizeof start ? (size_t)z->source.size : sizeof start;
    const mar_status status = file_source_read(&z->source, 0, n, start, err);
    if (status != MAR_OK) return status;
    if (wt_le32(start) == 0x04034b50 || wt_le32(start) == 0x06054b50)
        return open_npz(z, err); /* "PK": a zip with entries, or empty */
    if (memcmp(start, "\x93NUMPY", 6) == 0) return open_npy(z, err);
    return err_set(err, MAR_EFORMAT, "%s: %llu bytes that begin with \"%s\", expected a .npz or .npy file of NumPy's",
                   z->path, (unsigned long long)z->source.size, wt_start_text(start, n, text));
}

static mar_status npz_read_open_file(const char *path, const void *data, size_t size, npz **out, mar_err *err)
{
    *out = NULL;
    npz *z = calloc(1, sizeof *z);
    if (!z) return err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    z->source.fd = -1;
    z->path = strdup(path);
    z->stream = calloc(1, sizeof *z->stream);
    mar_status status = MAR_OK;
    if (!z->path || !z->stream)
        status = err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    else if (data)
        z->source = file_source_of_memory(data, size, z->path);
    else
        status = file_source_open(z->path, &z->source, err);
    if (status == MAR_OK) status = open_any(z, err);
    if (status != MAR_OK) {
        const mar_status changed = file_source_check(&z->source, err); /* a change of the file may explain the error */
        if (changed != MAR_OK) status = changed;
        npz_close(z);
    } else {
        *out = z;
    }
    return status;
}

mar_status npz_open(const char *path, npz **out, char *why)
{
    mar_err err = {0};
    return npz_export_error(npz_read_open_file(path, NULL, 0, out, &err), &err, why);
}

mar_status npz_open_memory(const void *data, size_t size, const char *label, npz **out, char *why)
{
    mar_err err = {0};
    return npz_export_error(npz_read_open_file(label, data ? data : "", data ? size : 0, out, &err), &err, why);
}

void npz_close(npz *z)
{
    if (!z) return;
    for (int i = 0; i < z->count; i++) {
        free(z->members[i].name);
        free(z->members[i].what);
        free(z->members[i].unreadable);
    }
    if (z->stream) zip_stream_close(z->stream);
    free(z->stream);
    free(z->members);
    zip_close(&z->zip);
    file_source_close(&z->source);
    free(z->path);
    free(z);
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

static const member *npz_read_find(const npz *z, const char *name)
{
    for (int i = 0; i < z->count; i++)
        if (strcmp(z->members[i].name, name) == 0) return &z->members[i];
    return NULL;
}

int npz_count(const npz *z)
{
    return z->count;
}

const char *npz_name_at(const npz *z, int i)
{
    return z->members[i].name;
}

const npz_array *npz_find(const npz *z, const char *name)
{
    const member *m = npz_read_find(z, name);
    return m && !m->unreadable ? &m->array : NULL;
}

void npz_explain(const npz *z, const char *name, char *why)
{
    enum { SHOWN = 8 };
    char names[ERR_TEXT_MAX / 2];
    size_t n = 0;
    const member *m = npz_read_find(z, name);
    if (m) {
        err_line(why, NPZ_WHY_MAX, m->unreadable ? "%s" : "%s can be read", m->unreadable ? m->unreadable : m->what);
        return;
    }
    names[0] = '\0';
    for (int i = 0; i < z->count && i < SHOWN && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s\"%s\"", i ? ", " : "", z->members[i].name);
    if (z->count == 1 && !*z->members[0].name)
        err_line(why, NPZ_WHY_MAX, "%s: is a .npy file, one array without a name, expected a .npz with \"%s\"", z->path,
                 name);
    else if (z->count == 0)
        err_line(why, NPZ_WHY_MAX, "%s: has no arrays, expected \"%s\"", z->path, name);
    else
        err_line(why, NPZ_WHY_MAX, "%s: has no array \"%s\"; it has %s%s", z->path, name, names,
                 z->count > SHOWN || n >= sizeof names ? " and more" : "");
}

const char *npz_describe(const npz_array *a, char *text)
{
    size_t n = (size_t)snprintf(text, NPZ_WHY_MAX, "%s [", npz_dtype_name(a->dtype));
    for (int i = 0; i < a->rank; i++) /* eight sizes of 20 digits fit */
        n += (size_t)snprintf(text + n, NPZ_WHY_MAX - n, i ? ", %lld" : "%lld", (long long)a->shape[i]);
    snprintf(text + n, NPZ_WHY_MAX - n, "]");
    return text;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Opens a stream over the member's contents, after the header. */
static mar_status open_contents(npz *z, const npz_array *a, zip_stream *s, mar_err *err)
{
    const member *m = (const member *)(const void *)((const char *)a - offsetof(member, array));
    char *header = malloc(m->header);
    mar_status status = header ? zip_stream_open(s, &m->place, err) : npz_read_no_memory(z, err);
    if (status == MAR_OK) status = zip_stream_read(s, m->header, header, err);
    free(header);
    return status;
}

/* Returns number i of raw data. */
static double npz_read_number_at(const uint8_t *raw, npz_dtype dtype, size_t i)
{
    const uint64_t bits = dtype == NPZ_I64 || dtype == NPZ_F64 ? wt_le64(raw + 8 * i) : 0;
    double x;
    switch (dtype) {
    case NPZ_U8:
        return raw[i];
    case NPZ_I32:
        return (int32_t)wt_le32(raw + 4 * i);
    case NPZ_I64:
        return (double)(int64_t)bits;
    case NPZ_F16:
        return (double)wt_f32_from_f16(wt_le16(raw + 2 * i));
    case NPZ_F32:
        return (double)wt_f32_from_bits(wt_le32(raw + 4 * i));
    case NPZ_F64:
        break;
    }
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Maps the file's order of numbers to C order. Left empty for an array without numbers: the product of its other sizes
 * may exceed 64 bits. */
typedef struct {
    int rank;
    int64_t index[NPZ_RANK_MAX]; /* of the next number; Fortran order, the first index changes fastest */
    int64_t shape[NPZ_RANK_MAX];
    int64_t stride[NPZ_RANK_MAX]; /* C-order stride, in numbers */
} transposer;

static int64_t next_place(transposer *t)
{
    int64_t place = 0;
    for (int d = 0; d < t->rank; d++) place += t->index[d] * t->stride[d];
    for (int d = 0; d < t->rank && ++t->index[d] == t->shape[d]; d++) t->index[d] = 0;
    return place;
}

static transposer transposer_of(const npz_array *a)
{
    transposer t = {.rank = a->rank};
    int64_t stride = 1;
    for (int d = a->rank - 1; d >= 0 && a->count > 0; stride *= a->shape[d--]) {
        t.shape[d] = a->shape[d];
        t.stride[d] = stride;
    }
    return t;
}

/* Reads all numbers to f64 or f32, whichever is not NULL. */
static mar_status read_numbers(npz *z, const npz_array *a, double *f64, float *f32, mar_err *err)
{
    enum { CHUNK = 4096 };
    zip_stream *s = calloc(1, sizeof *s);
    uint8_t *raw = malloc(CHUNK * sizeof(double));
    const size_t size = npy_item_size(a->dtype);
    transposer t = transposer_of(a);
    mar_status status = s && raw ? open_contents(z, a, s, err) : npz_read_no_memory(z, err);
    for (int64_t first = 0; first < a->count && status == MAR_OK; first += CHUNK) {
        const size_t n = a->count - first < CHUNK ? (size_t)(a->count - first) : CHUNK;
        status = zip_stream_read(s, n * size, raw, err);
        for (size_t i = 0; i < n && status == MAR_OK; i++) {
            const int64_t place = a->fortran ? next_place(&t) : first + (int64_t)i;
            const double x = npz_read_number_at(raw, a->dtype, i);
            if (f64)
                f64[place] = x;
            else
                f32[place] = (float)x;
        }
    }
    if (s) zip_stream_close(s);
    free(s);
    free(raw);
    return status;
}

mar_status npz_read_f64(npz *z, const npz_array *a, double *dst, char *why)
{
    mar_err err = {0};
    return npz_export_error(read_numbers(z, a, dst, NULL, &err), &err, why);
}

mar_status npz_read_f32(npz *z, const npz_array *a, float *dst, char *why)
{
    mar_err err = {0};
    return npz_export_error(read_numbers(z, a, NULL, dst, &err), &err, why);
}

mar_status npz_stream_begin(npz *z, const npz_array *a, char *why)
{
    const member *m = (const member *)(const void *)((const char *)a - offsetof(member, array));
    char shape[NPZ_WHY_MAX];
    mar_err err = {0};
    mar_status status = MAR_OK;
    zip_stream_close(z->stream);
    if (a->dtype != NPZ_U8)
        status = err_set(&err, MAR_EFORMAT, "%s is %s, expected uint8", m->what, npz_describe(a, shape));
    else if (a->fortran && a->rank > 1)
        status = err_set(&err, MAR_EFORMAT, "%s is in Fortran order, expected C order", m->what);
    else
        status = open_contents(z, a, z->stream, &err);
    if (status != MAR_OK) zip_stream_close(z->stream);
    return npz_export_error(status, &err, why);
}

mar_status npz_stream_read(npz *z, size_t n, uint8_t *dst, char *why)
{
    mar_err err = {0};
    mar_status status = MAR_OK;
    if (!z->stream->is_open)
        status = err_set(&err, MAR_EARG, "%s: no array was begun to be read", z->path);
    else
        status = zip_stream_read(z->stream, n, dst, &err);
    if (status != MAR_OK) zip_stream_close(z->stream);
    return npz_export_error(status, &err, why);
}
