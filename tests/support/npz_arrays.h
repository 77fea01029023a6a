/* The arrays that tests/weights/make_npz.py writes, and their readers, for the tests of NumPy files. */
#ifndef TESTS_NPZ_ARRAYS_H
#define TESTS_NPZ_ARRAYS_H

#include "tests/support/archive.h"
#include "tests/support/support.h"

#include "weights/npz.h"
#include "weights/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/weights/data/npz/"

/* The arrays of arrays.npz, in its order. */
static const struct {
    const char *name;
    npz_dtype dtype;
    int rank;
    int64_t shape[3];
} arrays[] = {
    {"u8", NPZ_U8, 3, {2, 3, 5}},      {"i32", NPZ_I32, 1, {7}},     {"i64", NPZ_I64, 2, {2, 3}},
    {"f16", NPZ_F16, 1, {29}},         {"f32", NPZ_F32, 2, {1, 29}}, {"f64", NPZ_F64, 2, {5, 4}},
    {"sigma_ä€", NPZ_F64, 2, {3, 3}},  {"scalar", NPZ_F64, 0, {0}},  {"empty", NPZ_F16, 1, {0}},
    {"hollow", NPZ_I32, 3, {3, 0, 2}},
};
enum { ARRAYS = sizeof arrays / sizeof *arrays };

static char why[NPZ_WHY_MAX];

#define assert_npz(call)                                                                                               \
    do {                                                                                                               \
        mar_status status_ = (call);                                                                                   \
        if (status_ != MAR_OK) fail_msg("%s: %s", mar_status_name(status_), why);                                      \
    } while (0)

#define assert_refused(call, status, words)                                                                            \
    do {                                                                                                               \
        strcpy(why, "nothing");                                                                                        \
        assert_int_equal(call, status);                                                                                \
        if (!strstr(why, words)) fail_msg("\"%s\" does not say \"%s\"", why, words);                                   \
    } while (0)

static inline wt_file *open_expected(void)
{
    wt_file *f = open_weights(DATA "expected.safetensors");
    return f;
}

/* Returns the bytes of a tensor of expected.safetensors. The caller frees them. */
static inline void *expected_bytes(const wt_file *f, const char *name, size_t *size)
{
    const wt_tensor *t = wt_find(f, name);
    mar_err err = {0};
    if (!t) fail_msg("no %s in expected.safetensors", name);
    *size = (size_t)t->count * wt_dtype_size(t->dtype);
    void *data = malloc(*size + 1);
    assert_non_null(data);
    assert_ok(wt_read_bytes(f, t, 0, *size, data, &err), &err);
    return data;
}

static inline int same_number(double a, double b)
{
    return isnan(b) ? isnan(a) : a == b && signbit(a) == signbit(b);
}

/* Tells whether array a of z can be read in both precisions and equals NAME.f64. `why` has a read error's reason. */
static inline int reads_as(npz *z, const npz_array *a, const wt_file *expected, const char *name)
{
    char key[64];
    size_t size;
    snprintf(key, sizeof key, "%s.f64", name);
    double *wanted = expected_bytes(expected, key, &size), *f64 = malloc(size + 1);
    float *f32 = malloc(size + 1);
    assert_true(f64 && f32);
    int same = (size_t)a->count * sizeof *wanted == size;
    *why = '\0';
    if (same) same = npz_read_f64(z, a, f64, why) == MAR_OK && npz_read_f32(z, a, f32, why) == MAR_OK;
    for (int64_t i = 0; i < a->count && same; i++)
        same = same_number(f64[i], wanted[i]) && same_number((double)f32[i], (double)(float)wanted[i]);
    free(wanted);
    free(f64);
    free(f32);
    return same;
}

static inline void check_arrays(npz *z, const char *path, const wt_file *expected)
{
    assert_int_equal(npz_count(z), ARRAYS);
    for (int i = 0; i < ARRAYS; i++) {
        const npz_array *a = npz_find(z, arrays[i].name);
        if (!a) fail_msg("%s: no %s", path, arrays[i].name);
        assert_string_equal(a->name, arrays[i].name);
        assert_int_equal(a->dtype, arrays[i].dtype);
        if (i != 7 || a->rank == 0) { /* asfortranarray turns a scalar into [1] */
            assert_int_equal(a->rank, arrays[i].rank);
            assert_memory_equal(a->shape, arrays[i].shape, (size_t)a->rank * sizeof *a->shape);
        }
        assert_int_equal(a->fortran && strstr(path, "fortran") == NULL, 0);
        if (!reads_as(z, a, expected, a->name)) fail_msg("%s: other numbers in %s %s", path, a->name, why);
    }
}

/* Returns the start of the directory entry of this name. */
static inline uint8_t *find_entry(bytes *b, const char *name)
{
    for (size_t at = 0; at + 46 + strlen(name) <= b->size; at++)
        if (wt_le32(b->data + at) == 0x02014b50 && memcmp(b->data + at + 46, name, strlen(name)) == 0)
            return b->data + at;
    fail_msg("no %s", name);
    return NULL;
}

/* Makes a .npy file with this dictionary, and `data` bytes of data: 0, 1, 2, ... */
static inline bytes make_npy(const char *dictionary, int version, int data)
{
    bytes b = {0};
    bytes_text(&b, "\x93NUMPY");
    bytes_number(&b, (uint64_t)version, 2);
    bytes_number(&b, strlen(dictionary), version == 1 ? 2 : 4);
    bytes_text(&b, dictionary);
    for (int i = 0; i < data; i++) bytes_number(&b, (uint64_t)i, 1);
    return b;
}

#endif
