/* Format of numpy/lib/format.py: "\x93NUMPY", two bytes of version, the dictionary's length in 2 (version 1.0) or 4
 * bytes, and {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }. Spaces and a newline pad the dictionary. */
#include "weights/npy.h"
#include "weights/number.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *descr;
    size_t size;
} dtypes[] = {
    [NPZ_U8] = {"uint8", "|u1", 1},    [NPZ_I32] = {"int32", "<i4", 4},   [NPZ_I64] = {"int64", "<i8", 8},
    [NPZ_F16] = {"float16", "<f2", 2}, [NPZ_F32] = {"float32", "<f4", 4}, [NPZ_F64] = {"float64", "<f8", 8},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes, DESCR_MAX = 64, DEPTH_MAX = 32 };

size_t npy_item_size(npz_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *npz_dtype_name(npz_dtype dtype)
{
    return dtypes[dtype].name;
}

mar_status npy_measure(const uint8_t *prefix, const char *what, size_t *header, size_t *dictionary, mar_err *err)
{
    if (memcmp(prefix, "\x93NUMPY", 6) != 0)
        return err_set(err, MAR_EFORMAT, "%s does not begin as NumPy's arrays do, with \\x93NUMPY", what);
    const int major = prefix[6], minor = prefix[7];
    if (major < 1 || major > 3 || minor != 0)
        return err_set(err, MAR_EFORMAT, "%s has version %d.%d of NumPy's format, expected 1.0, 2.0 or 3.0", what,
                       major, minor);
    const uint64_t length = major == 1 ? wt_le16(prefix + 8) : wt_le32(prefix + 8);
    *dictionary = major == 1 ? 10 : 12;
    if (length > NPY_HEADER_MAX - *dictionary)
        return err_set(err, MAR_EFORMAT, "%s has a header of %llu bytes, more than the %d allowed", what,
                       (unsigned long long)length, NPY_HEADER_MAX);
    *header = *dictionary + (size_t)length;
    return MAR_OK;
}

/* --- the dictionary ----------------------------------------------------------------------------------------------- */

/* Reading position in a Python literal. Each take_* function moves past its item and returns 1, or returns 0 if it is
 * not there. */
typedef struct {
    const char *at, *end;
} cursor;

static void npy_skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r')) c->at++;
}

static int npy_take(cursor *c, char wanted)
{
    npy_skip_space(c);
    if (c->at == c->end || *c->at != wanted) return 0;
    c->at++;
    return 1;
}

static int take_word(cursor *c, const char *word)
{
    const size_t n = strlen(word);
    npy_skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return 0;
    c->at += n;
    return 1;
}

/* Takes a string of any length, unescaped; keeps its first size-1 bytes. */
static int npy_take_string(cursor *c, char *text, size_t size)
{
    npy_skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return 0;
    const char quote = *c->at++;
    size_t n = 0;
    for (; c->at < c->end && *c->at != quote; c->at++) {
        if (*c->at == '\n' || *c->at == '\0') return 0;
        if (*c->at == '\\' && (++c->at == c->end || *c->at == '\n' || *c->at == '\0')) return 0;
        if (n + 1 < size) text[n++] = *c->at;
    }
    text[n] = '\0';
    if (c->at == c->end) return 0;
    c->at++;
    return 1;
}

/* Takes a number that is not negative; Python 2 may append an L. */
static int npy_take_number(cursor *c, int64_t *value)
{
    npy_skip_space(c);
    const char *begin = c->at;
    *value = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, *c->at - '0', value)) return 0;
    if (c->at == begin) return 0;
    if (c->at < c->end && *c->at == 'L') c->at++;
    return 1;
}

/* Takes (), (3,) or (3, 4). Keeps the first NPZ_RANK_MAX sizes and counts the others. */
static int take_shape(cursor *c, npz_array *out)
{
    int comma = 1;
    if (!npy_take(c, '(')) return 0;
    for (out->rank = 0; !npy_take(c, ')'); out->rank++) {
        int64_t size;
        if (!comma || !npy_take_number(c, &size)) return 0;
        if (out->rank < NPZ_RANK_MAX) out->shape[out->rank] = size;
        comma = npy_take(c, ',');
    }
    return out->rank != 1 || comma; /* "(3)" is a number, not a tuple */
}

/* Takes the list that describes a structured type. */
static int take_fields(cursor *c)
{
    char open[DEPTH_MAX], text[1];
    int depth = 0;
    int64_t number;
    do {
        npy_skip_space(c);
        if (c->at == c->end) return 0;
        if (*c->at == '[' || *c->at == '(') {
            if (depth == DEPTH_MAX) return 0;
            open[depth++] = *c->at++ == '[' ? ']' : ')';
        } else if (*c->at == open[depth - 1]) {
            depth--;
            c->at++;
        } else if (!npy_take(c, ',') && !npy_take_string(c, text, sizeof text) && !npy_take_number(c, &number)) {
            return 0;
        }
    } while (depth > 0);
    return 1;
}

typedef struct {
    char descr[DESCR_MAX]; /* the type; "" if it is structured */
    int has_descr, has_order, has_shape;
} dictionary;

static int take_pair(cursor *c, dictionary *d, npz_array *out)
{
    char key[16];
    if (!npy_take_string(c, key, sizeof key) || !npy_take(c, ':')) return 0;
    if (strcmp(key, "descr") == 0 && !d->has_descr) {
        npy_skip_space(c);
        d->has_descr = 1;
        return c->at < c->end && *c->at == '[' ? take_fields(c)
                                               : npy_take_string(c, d->descr, sizeof d->descr) && *d->descr;
    }
    if (strcmp(key, "fortran_order") == 0 && !d->has_order) {
        d->has_order = 1;
        out->fortran = take_word(c, "True");
        return out->fortran || take_word(c, "False");
    }
    if (strcmp(key, "shape") == 0 && !d->has_shape) return d->has_shape = take_shape(c, out);
    return 0;
}

static int take_dictionary(cursor *c, dictionary *d, npz_array *out)
{
    int comma = 1;
    if (!npy_take(c, '{')) return 0;
    for (; !npy_take(c, '}'); comma = npy_take(c, ','))
        if (!comma || !take_pair(c, d, out)) return 0;
    npy_skip_space(c);
    return c->at == c->end && d->has_descr && d->has_order && d->has_shape;
}

/* Finds the type of a description. Returns 0, with the reason in err, if it is unsupported. */
static int find_dtype(const char *descr, const char *what, npz_dtype *out, mar_err *err)
{
    for (int i = 0; i < DTYPES; i++) {
        const int order = dtypes[i].size > 1 ? *descr == '<' : *descr == '|' || *descr == '<' || *descr == '>';
        if (order && strcmp(descr + 1, dtypes[i].descr + 1) == 0) {
            *out = (npz_dtype)i;
            return 1;
        }
    }
    if (!*descr)
        err_set(err, MAR_EFORMAT, "%s has a structured type, expected numbers", what);
    else if (strchr(descr, 'O'))
        err_set(err, MAR_EFORMAT, "%s holds Python objects (%s), which are never loaded; expected numbers", what,
                descr);
    else if (*descr == '>')
        err_set(err, MAR_EFORMAT, "%s is big-endian (%s), expected little-endian numbers", what, descr);
    else
        err_set(err, MAR_EFORMAT, "%s has the type %s, expected float16, float32, float64, uint8, int32 or int64 (%s)",
                what, descr, "<f2, <f4, <f8, |u1, <i4, <i8");
    return 0;
}

mar_status npy_parse(const char *text, size_t n, const char *what, npz_array *out, int *readable, mar_err *err)
{
    cursor c = {text, text + n};
    dictionary d = {.descr = ""};
    *out = (npz_array){.name = out->name, .count = 1};
    *readable = 0;
    if (!take_dictionary(&c, &d, out))
        return err_set(err, MAR_EFORMAT,
                       "%s has a malformed header at its byte %td, expected {'descr': ..., 'fortran_order': ..., "
                       "'shape': (...), }",
                       what, c.at - text);
    if (out->rank > NPZ_RANK_MAX) {
        err_set(err, MAR_EFORMAT, "%s has %d dimensions, expected at most %d", what, out->rank, NPZ_RANK_MAX);
        return MAR_OK;
    }
    for (int i = 0; i < out->rank; i++)
        if (__builtin_mul_overflow(out->count, out->shape[i], &out->count))
            return err_set(err, MAR_EFORMAT, "%s has a shape whose sizes cannot be multiplied in 64 bits", what);
    *readable = find_dtype(d.descr, what, &out->dtype, err);
    if (*readable && out->count > INT64_MAX / 8)
        return err_set(err, MAR_EFORMAT, "%s has %lld numbers, more than any file", what, (long long)out->count);
    return MAR_OK;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

size_t npy_write(npz_dtype dtype, int rank, const int64_t *shape, uint8_t *text)
{
    /* As NumPy does: room for the first size to grow to 21 digits, and data aligned to 64 bytes. */
    enum { PREFIX = 10, DIGITS = 21, ALIGN = 64 };
    char dict[NPY_WRITTEN_MAX - PREFIX];
    int n = snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (", dtypes[dtype].descr);
    for (int i = 0; i < rank; i++)
        n += snprintf(dict + n, sizeof dict - (size_t)n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    n += snprintf(dict + n, sizeof dict - (size_t)n, "%s), }", rank == 1 ? "," : "");
    if (rank > 0) n += DIGITS - snprintf(NULL, 0, "%lld", (long long)shape[0]);
    const size_t size = (PREFIX + (size_t)n + 1 + ALIGN - 1) / ALIGN * ALIGN, length = size - PREFIX;
    memset(text, ' ', size);
    memcpy(text, "\x93NUMPY\1\0", 8);
    text[8] = (uint8_t)length;
    text[9] = (uint8_t)(length >> 8);
    memcpy(text + PREFIX, dict, strlen(dict));
    text[size - 1] = '\n';
    return size;
}
