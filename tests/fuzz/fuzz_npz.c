/* NumPy's files. The mutator takes the archive apart, makes other arrays, and changes their headers as text, or the
 * entries. It puts the archive together again, stored or deflated, with right checksums or with one error. */
#include "tests/fuzz/archives.h"

#include "weights/npy.h"
#include "weights/npz.h"
#include "weights/number.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* --- what holds of every file ------------------------------------------------------------------------------ */

static char why[NPZ_WHY_MAX];

static void check_status(const char *what, mar_status status)
{
    mar_err err = {0};
    if (status != MAR_OK) memcpy(err.text, why, sizeof why);
    fuzz_check_error(what, status, &err);
}

/* Returns the numbers of an array, freed by the caller; NULL if they cannot be read. Reading as float and as double
 * must agree. */
static double *read_numbers(npz *z, const npz_array *a)
{
    const size_t n = (size_t)a->count;
    double *f64 = malloc(n * sizeof *f64 + 1);
    float *f32 = malloc(n * sizeof *f32 + 1);
    if (!f64 || !f32) fuzz_fail("%s: no memory for %zu numbers", a->name, n);
    const mar_status status = npz_read_f64(z, a, f64, why);
    check_status("npz_read_f64", status);
    if (npz_read_f32(z, a, f32, why) != status) fuzz_fail("%s: as float other than as double", a->name);
    for (size_t i = 0; status == MAR_OK && i < n; i++)
        if (f64[i] == f64[i] ? (float)f64[i] != f32[i] : f32[i] == f32[i]) fuzz_fail("%s: number %zu", a->name, i);
    free(f32);
    if (status == MAR_OK) return f64;
    free(f64);
    return NULL;
}

/* Reads the array as a stream, in two pieces, and compares it with `numbers`, NULL if they cannot be read. */
static void check_stream(npz *z, const npz_array *a, const double *numbers)
{
    const size_t n = (size_t)a->count, piece = n / 3;
    uint8_t *data = malloc(n + 1);
    if (!data) fuzz_fail("%s: no memory for %zu bytes", a->name, n);
    mar_status status = npz_stream_begin(z, a, why);
    check_status("npz_stream_begin", status);
    const int wrong_kind = a->dtype != NPZ_U8 || (a->fortran && a->rank > 1);
    if (wrong_kind && status == MAR_OK) fuzz_fail("%s: is no stream, but begins as one", a->name);
    if (status == MAR_OK) status = npz_stream_read(z, piece, data, why);
    if (status == MAR_OK) status = npz_stream_read(z, n - piece, data + piece, why);
    check_status("npz_stream_read", status);
    if (!wrong_kind && (status == MAR_OK) != (numbers != NULL)) fuzz_fail("%s: the stream ends otherwise", a->name);
    for (size_t i = 0; status == MAR_OK && i < n; i++)
        if ((double)data[i] != numbers[i]) fuzz_fail("%s: byte %zu of the stream is %d", a->name, i, data[i]);
    free(data);
}

/* Checks array i. `again` is a second opening to compare with, for one input in four, else NULL. */
static void check_array(npz *z, npz *again, int i)
{
    const char *name = npz_name_at(z, i);
    const npz_array *a = npz_find(z, name), *b = again ? npz_find(again, name) : a;
    int64_t count = 1;
    if (again && (strcmp(name, npz_name_at(again, i)) != 0 || !a != !b)) fuzz_fail("%s: another the second time", name);
    npz_explain(z, name, why);
    fuzz_check_line("npz_explain", why);
    if (!a) return;
    if (a->rank < 0 || a->rank > NPZ_RANK_MAX) fuzz_fail("%s: rank %d", name, a->rank);
    for (int d = 0; d < a->rank; d++)
        if (a->shape[d] < 0 || __builtin_mul_overflow(count, a->shape[d], &count) || a->shape[d] != b->shape[d])
            fuzz_fail("%s: dimension %d is %lld", name, d, (long long)a->shape[d]);
    if (a->count != count || a->rank != b->rank || a->dtype != b->dtype) fuzz_fail("%s: another the second time", name);
    fuzz_check_line("npz_describe", npz_describe(a, why));
    double *x = read_numbers(z, a), *y = again ? read_numbers(again, b) : NULL;
    if (again && (!x != !y || (x && memcmp(x, y, (size_t)count * sizeof *x) != 0)))
        fuzz_fail("%s: other numbers the second time", name);
    check_stream(z, a, x);
    free(x);
    free(y);
}

/* Writes all readable arrays as float64, and compares what is read back. */
static void check_written(npz *z, int deflated)
{
    npz_writer *w = NULL;
    npz *back = NULL;
    double **numbers = calloc((size_t)npz_count(z) + 1, sizeof *numbers);
    check_status("npz_writer_open", npz_writer_open("written", deflated, &w, why));
    int written = 0;
    for (int i = 0; i < npz_count(z); i++) {
        const npz_array *a = npz_find(z, npz_name_at(z, i));
        if (a && *a->name && a->count < 100000) numbers[i] = read_numbers(z, a);
        if (!numbers[i]) continue;
        const mar_status status = npz_writer_add(w, a->name, NPZ_F64, a->rank, a->shape, numbers[i], why);
        check_status("npz_writer_add", status);
        if (status != MAR_OK) fuzz_fail("%s: is not written: %s", a->name, why);
        written++;
    }
    check_status("npz_writer_commit", npz_writer_commit(w, why));
    if (npz_open_memory(fuzz_written, fuzz_written_size, "written", &back, why) != MAR_OK)
        fuzz_fail("the file written cannot be read: %s", why);
    if (npz_count(back) != written) fuzz_fail("%d arrays written, %d read back", written, npz_count(back));
    for (int i = 0; i < npz_count(z); i++) {
        if (!numbers[i]) continue;
        const npz_array *a = npz_find(z, npz_name_at(z, i)), *b = npz_find(back, a->name);
        if (!b || b->dtype != NPZ_F64 || b->rank != a->rank || b->fortran ||
            memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) != 0)
            fuzz_fail("%s: read back as another", a->name);
        double *found = read_numbers(back, b);
        if (!found || memcmp(found, numbers[i], (size_t)a->count * sizeof *found) != 0)
            fuzz_fail("%s: other numbers are read back", a->name);
        free(found);
        free(numbers[i]);
    }
    npz_close(back);
    fuzz_forget_written();
    free(numbers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    npz *z = NULL, *again = NULL;
    char first[NPZ_WHY_MAX] = "";
    const mar_status status = npz_open_memory(data, size, "input", &z, why);
    check_status("npz_open_memory", status);
    if ((status == MAR_OK) != (z != NULL)) fuzz_fail("npz_open_memory: a file and a failure");
    if (status != MAR_OK) {
        if (strncmp(why, "input: ", 7) != 0) fuzz_fail("does not name the file: %s", why);
        strcpy(first, why);
    }
    const uint32_t h = fuzz_hash(data, size);
    if (h / 16 % 4 == 0 &&
        (npz_open_memory(data, size, "input", &again, why) != status || (status != MAR_OK && strcmp(first, why) != 0)))
        fuzz_fail("the second opening: \"%s\", the first: \"%s\"", why, first);
    if (status != MAR_OK) return 0;
    if (again && npz_count(z) != npz_count(again)) fuzz_fail("%d arrays, then %d", npz_count(z), npz_count(again));
    for (int i = 0; i < npz_count(z); i++) check_array(z, again, i);
    if (npz_find(z, "no such array")) fuzz_fail("finds what is not there");
    npz_explain(z, "no such array", why);
    fuzz_check_line("npz_explain", why);
    if (h % 8 == 0) check_written(z, h / 8 % 2);
    npz_close(again);
    npz_close(z);
    return 0;
}

/* --- the mutator ------------------------------------------------------------------------------------------- */

enum { CONTENTS_MAX = 2048, DATA_MAX = 512, HEADER = 10 };

/* The unpacked contents of the archive's parts during the changes. */
static struct {
    uint8_t data[CONTENTS_MAX]; /* [size] */
    size_t size;
    int deflated;
} contents[ARCHIVE_PARTS];

static void unpack(archive *a)
{
    for (int i = 0; i < a->count; i++) {
        archive_part *e = &a->parts[i];
        uLong size = CONTENTS_MAX;
        z_stream z = {0};
        contents[i].deflated = e->method == 8;
        contents[i].size = 0;
        if (!contents[i].deflated) {
            contents[i].size = e->size < CONTENTS_MAX ? e->size : CONTENTS_MAX;
            memcpy(contents[i].data, e->data, contents[i].size);
        } else if (inflateInit2(&z, -MAX_WBITS) == Z_OK) {
            z.next_in = (Bytef *)(uintptr_t)e->data;
            z.avail_in = (uInt)e->size;
            z.next_out = contents[i].data;
            z.avail_out = (uInt)size;
            inflate(&z, Z_FINISH);
            contents[i].size = CONTENTS_MAX - z.avail_out;
            inflateEnd(&z);
        }
    }
}

/* Puts the contents into the parts, deflated where `deflated` is set. */
static void pack(archive *a, fuzz_random *r)
{
    static uint8_t packed[ARCHIVE_PARTS][CONTENTS_MAX + 64];
    for (int i = 0; i < a->count; i++) {
        archive_part *e = &a->parts[i];
        e->data = contents[i].data;
        e->size = contents[i].size;
        e->is_packed = 0;
        if (!contents[i].deflated) continue;
        z_stream z = {.next_in = contents[i].data, .avail_in = (uInt)contents[i].size};
        z.next_out = packed[i];
        z.avail_out = sizeof packed[i];
        if (deflateInit2(&z, (int)fuzz_next(r, 10), Z_DEFLATED, -MAX_WBITS, 1, Z_DEFAULT_STRATEGY) != Z_OK) continue;
        if (deflate(&z, Z_FINISH) == Z_STREAM_END) {
            e->is_packed = 1;
            e->method = 8;
            e->contents_size = contents[i].size;
            e->contents_crc = (uint32_t)crc32(0, contents[i].data, (uInt)contents[i].size);
            e->data = packed[i];
            e->size = sizeof packed[i] - z.avail_out;
            if (fuzz_one_in(r, 32)) LLVMFuzzerMutate(packed[i], e->size, e->size);
        }
        deflateEnd(&z);
    }
}

/* Makes an array of any type and a small shape. */
static void make_array(int i, fuzz_random *r)
{
    static const npz_dtype dtypes[] = {NPZ_U8, NPZ_I32, NPZ_I64, NPZ_F16, NPZ_F32, NPZ_F64};
    const npz_dtype dtype = dtypes[fuzz_next(r, 6)];
    int64_t shape[4];
    const int rank = (int)fuzz_next(r, 5);
    size_t size = npy_item_size(dtype);
    for (int d = 0; d < rank; d++) size *= (size_t)(shape[d] = fuzz_next(r, 5));
    if (size > DATA_MAX) size = DATA_MAX;
    contents[i].size = npy_write(dtype, rank, shape, contents[i].data);
    for (; size > 0; size--) contents[i].data[contents[i].size++] = (uint8_t)fuzz_next(r, 256);
    contents[i].deflated = fuzz_one_in(r, 2);
}

/* Replaces one word of the header, the first that begins at or after a random byte. */
static void change_word(int i, fuzz_random *r)
{
    static const char *const words[] = {"<f2",
                                        "<f4",
                                        "<f8",
                                        "|u1",
                                        "<i4",
                                        "<i8",
                                        ">f4",
                                        "|O",
                                        "()",
                                        "(2,)",
                                        "(2, 3)",
                                        "(3, 1, 2)",
                                        "(2L,)",
                                        "True",
                                        "False",
                                        "'",
                                        ",",
                                        "}",
                                        "[('a', '<f4')]",
                                        "shape",
                                        "descr",
                                        "\\",
                                        "{",
                                        " ",
                                        "(-1,)",
                                        "(4294967296, 4294967296)",
                                        "0",
                                        "\""};
    uint8_t *data = contents[i].data;
    const size_t header = HEADER + (contents[i].size >= HEADER ? wt_le16(data + 8) : 0);
    if (header > contents[i].size || header <= HEADER) return;
    const char *word = words[fuzz_next(r, sizeof words / sizeof *words)];
    const size_t n = strlen(word), at = HEADER + fuzz_next(r, (uint32_t)(header - HEADER));
    if (n > header - at) return;
    memcpy(data + at, word, n);
}

static void mutate_array(int i, fuzz_random *r)
{
    uint8_t *data = contents[i].data;
    const size_t size = contents[i].size;
    const uint8_t *order;
    switch (fuzz_next(r, 8)) {
    case 0:
        make_array(i, r);
        break;
    case 1:
        contents[i].size = fuzz_next(r, (uint32_t)size + 1);
        break;
    case 2:
        contents[i].deflated = !contents[i].deflated;
        break;
    case 3: /* the whole array as bytes */
        contents[i].size = LLVMFuzzerMutate(data, size, CONTENTS_MAX);
        break;
    case 4: /* version 2 or 3: two more bytes of length, taken from the padding */
        if (size < 64 || data[6] != 1) break;
        memmove(data + 12, data + 10, (size_t)wt_le16(data + 8) - 3 < size - 16 ? (size_t)wt_le16(data + 8) - 3 : 0);
        data[6] = (uint8_t)(2 + fuzz_next(r, 2));
        data[8] = (uint8_t)(data[8] - 2);
        data[10] = data[11] = 0;
        break;
    case 5: /* the other order */
        order = memmem(data, size, "False", 5);
        if (order) memcpy(data + (order - data), "True ", 5);
        break;
    default:
        change_word(i, r);
    }
}

static void mutate_entry(archive *a, int i, fuzz_random *r)
{
    static const char *const names[] = {"arr_0.npy", "mu.npy", "sigma.npy", "\xc3\xa4.npy", ".npy", "mu", "a\nb.npy"};
    archive_part *e = &a->parts[i];
    const char *name = names[fuzz_next(r, sizeof names / sizeof *names)];
    switch (fuzz_next(r, 6)) {
    case 0:
        e->name_length = strlen(name);
        memcpy(e->name, name, e->name_length);
        break;
    case 1:
        e->name_length = LLVMFuzzerMutate((uint8_t *)e->name, e->name_length, ARCHIVE_NAME);
        break;
    case 2:
        e->method = fuzz_one_in(r, 2) ? 0 : (int)fuzz_next(r, 10);
        e->flags = fuzz_one_in(r, 2) ? 0 : (int)fuzz_next(r, 16);
        break;
    case 3:
        if (archive_add(a, name, NULL, 0)) make_array(a->count - 1, r);
        break;
    case 4:
        if (i < a->count - 1) contents[i] = contents[a->count - 1];
        *e = a->parts[--a->count];
        break;
    default:
        if (fuzz_one_in(r, 2))
            a->zip64 = !a->zip64;
        else
            a->descriptor = !a->descriptor;
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static uint8_t made[32 * 1024];
    static archive a;
    fuzz_random r = {seed};
    fuzz_next(&r, 1);
    if (fuzz_plain_wanted(&r)) return LLVMFuzzerMutate(data, size, max_size);
    archive_read(&a, data, size);
    const int alone = size > HEADER && memcmp(data, "\x93NUMPY", 6) == 0;
    if (alone) archive_add(&a, "arr_0.npy", data, size);
    unpack(&a);
    if (a.count == 0 || fuzz_one_in(&r, 16)) {
        a = (archive){.zip64 = fuzz_one_in(&r, 4), .descriptor = fuzz_one_in(&r, 8)};
        archive_add(&a, "arr_0.npy", NULL, 0);
        make_array(0, &r);
    }
    for (uint32_t n = 1 + fuzz_next(&r, 2); n > 0 && a.count > 0; n--) {
        const int i = (int)fuzz_next(&r, (uint32_t)a.count);
        if (fuzz_one_in(&r, 3))
            mutate_entry(&a, i, &r);
        else
            mutate_array(i, &r);
    }
    if (a.count > 0 && alone != fuzz_one_in(&r, 16)) {
        const size_t n = contents[0].size < max_size ? contents[0].size : max_size;
        memcpy(data, contents[0].data, n);
        return n;
    }
    pack(&a, &r);
    fuzz_bytes out = {.data = made, .capacity = max_size < sizeof made ? max_size : sizeof made};
    archive_write(&a, &r, &out);
    if (out.full) return LLVMFuzzerMutate(data, size, max_size);
    memcpy(data, made, out.size);
    return out.size;
}
