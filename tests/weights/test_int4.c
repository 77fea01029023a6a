/* int4 weights: written as kern_int4_quantise makes them, read as int4, by rows and as restored values. Also malformed
 * files, and the source of a layer's rows. */
#include "tests/support/archive.h"
#include "tests/support/support.h"

#include "kernels/int4.h"
#include "kernels/int8.h"
#include "weights/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUT = 6, IN = 96, N = OUT * IN, GROUPS = N / KERN_INT4_GROUP };

typedef struct {
    float w[N], restored[N];
    uint8_t q[N / 2];
    uint16_t scale[GROUPS];
} weights;

static void make(weights *x)
{
    for (int i = 0; i < N; i++) x->w[i] = sinf((float)i * 1.7f) * (1 + (float)(i / 40 % 5));
    memset(x->w + 64, 0, 32 * sizeof *x->w); /* a group of zeros */
    kern_int4_quantise(x->w, OUT, IN, x->q, x->scale);
    kern_int4_restore(x->q, x->scale, OUT, IN, x->restored);
}

/* Opens a file of "w" in F32. */
static wt_file *source_of(const weights *x, char *path)
{
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[6,96],\"data_offsets\":[0,2304]}}";
    bytes b = {0};
    bytes_number(&b, strlen(header), 8);
    bytes_text(&b, header);
    bytes_put(&b, x->w, sizeof x->w);
    bytes_to_file(&b, path);
    bytes_free(&b);
    return open_weights(path);
}

/* Writes "w" as int4 twice, as "w" and "v", and opens the file. */
static wt_file *write_int4(const wt_file *source, const char *path)
{
    const wt_tensor *w = wt_find(source, "w");
    const wt_output outputs[] = {{"w", WT_I4, 2, {OUT, IN}, source, w, WT_QUANTISED, NULL},
                                 {"w_scale", WT_BF16, 2, {OUT, IN / 32}, source, w, WT_SCALES, NULL},
                                 {"v_scale", WT_BF16, 2, {OUT, IN / 32}, source, w, WT_SCALES, NULL},
                                 {"v", WT_I4, 2, {OUT, IN}, source, w, WT_QUANTISED, NULL}};
    mar_err err = {0};
    assert_ok(wt_save_safetensors(path, outputs, 4, NULL, 0, &err), &err);
    return open_weights(path);
}

TEST_CASE(written_and_read)
{
    weights x;
    char path[600];
    uint8_t q[N / 2];
    uint16_t scale[GROUPS];
    float rows[2 * IN];
    mar_err err = {0};
    make(&x);
    snprintf(path, sizeof path, "%s/f32", test_directory());
    wt_file *source = source_of(&x, path), *f = write_int4(source, path);
    assert_true(wt_is_int4(f, "w") && !wt_is_int4(f, "w_scale") && !wt_is_int4(source, "w") && !wt_is_int8(f, "w"));
    assert_ptr_equal(wt_scale_of(f, wt_find(f, "w")), wt_find(f, "w_scale"));
    assert_ptr_equal(wt_matrix_of(f, wt_find(f, "w_scale")), wt_find(f, "w"));
    assert_int_equal(wt_bytes_of(wt_find(f, "w")), N / 2);
    assert_ok(wt_load_int4(f, "w", OUT, IN, 0, OUT, q, scale, &err), &err);
    assert_memory_equal(q, x.q, sizeof q);
    assert_memory_equal(scale, x.scale, sizeof scale);
    assert_ok(wt_load_int4(f, "w", OUT, IN, 3, 2, q, scale, &err), &err);
    assert_memory_equal(q, x.q + 3 * IN / 2, IN);
    assert_memory_equal(scale, x.scale + 3 * IN / 32, 2 * IN / 32 * sizeof *scale);
    assert_ok(wt_load_matrix_rows(f, "w", OUT, IN, 4, 2, rows, &err), &err);
    assert_memory_equal(rows, x.restored + 4 * IN, sizeof rows);
    assert_int_equal(wt_load_int4(f, "w", OUT, IN / 2, 0, 1, q, scale, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "tensor w is [6, 96], expected int4 weights [6, 48]"));
    wt_close(f), wt_close(source);
}

/* Checks the rows of two matrices, with factors, across their border. */
TEST_CASE(rows_of_two_matrices)
{
    weights x;
    char path[600];
    uint8_t q[N / 2];
    uint16_t scale[GROUPS];
    float rows[4 * IN], restored[4 * IN];
    mar_err err = {0};
    make(&x);
    snprintf(path, sizeof path, "%s/f32", test_directory());
    wt_file *source = source_of(&x, path), *f = write_int4(source, path);
    wt_rows two = {.file = f,
                   .in = IN,
                   .count = 2,
                   .piece = {{.name = "w", .rows = OUT}, {.name = "v", .rows = OUT, .factor = 4}}};
    const kern_linear_rows r = wt_linear_rows(&two);
    assert_true(r.read && r.read_int4 && !r.read_int8);
    assert_ok(r.read(r.user, OUT - 1, 4, rows, &err), &err);
    assert_ok(r.read_int4(r.user, OUT - 1, 4, q, scale, &err), &err);
    kern_int4_restore(q, scale, 4, IN, restored);
    for (int i = 0; i < 4 * IN; i++) {
        assert_true(rows[i] == restored[i]);
        assert_true(rows[i] == (i < IN ? x.restored[(OUT - 1) * IN + i] : 4 * x.restored[i - IN]));
    }
    wt_rows one = {.file = source, .in = IN, .count = 1, .piece = {{.name = "w", .rows = OUT}}};
    assert_null(wt_linear_rows(&one).read_int4);
    wt_close(f), wt_close(source);
}

/* Opens a matrix U8 [2, 16] with a second tensor, in *b, which must outlive it. */
static wt_file *open_with(const char *second, const void *data, size_t size, bytes *b)
{
    char header[300];
    wt_file *f;
    mar_err err = {0};
    snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[2,16],\"data_offsets\":[0,32]}%s}", second);
    *b = (bytes){0};
    bytes_number(b, strlen(header), 8);
    bytes_text(b, header);
    bytes_put(b, data, size);
    assert_ok(wt_open_memory(b->data, b->size, "file", &f, &err), &err);
    return f;
}

#define SCALES(dtype, shape, end)                                                                                      \
    ",\"a_scale\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[32," end "]}"

/* U8 without the scales of int4 stays U8; scales that are not finite are refused. */
TEST_CASE(wrong_files)
{
    static const struct {
        const char *second;
        size_t bytes;
    } others[] = {{"", 32},
                  {SCALES("F16", "[2,1]", "36"), 36},
                  {SCALES("BF16", "[2]", "36"), 36},
                  {SCALES("BF16", "[1,2]", "36"), 36},
                  {SCALES("BF16", "[2,2]", "40"), 40}};
    struct {
        uint8_t q[32];
        uint16_t scale[4];
    } data = {{0x12, 0xf0}, {0x3f80, 0x7fc0, 0, 0}};
    uint8_t q[32];
    uint16_t scale[2];
    float w[64];
    mar_err err = {0};
    bytes b;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        wt_file *f = open_with(others[i].second, &data, others[i].bytes, &b);
        assert_int_equal(wt_find(f, "a")->dtype, WT_U8);
        assert_int_equal(wt_load_int4(f, "a", 2, 32, 0, 2, q, scale, &err), MAR_EMODEL);
        assert_int_equal(wt_load_matrix_rows(f, "a", 2, 32, 0, 2, w, &err), MAR_EMODEL);
        wt_close(f);
        bytes_free(&b);
    }
    wt_file *f = open_with(SCALES("BF16", "[2,1]", "36"), &data, 36, &b);
    assert_int_equal(wt_load_matrix_rows(f, "a", 2, 32, 0, 2, w, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "file: tensor a_scale has 1 value that is NaN, the first at 1: expected finite"));
    assert_ok(wt_load_matrix_rows(f, "a", 2, 32, 0, 1, w, &err), &err);
    assert_true(w[0] == -6 && w[1] == -7 && w[2] == -8 && w[3] == 7);
    wt_allow_nonfinite(f, 1);
    assert_ok(wt_load_matrix_rows(f, "a", 2, 32, 0, 2, w, &err), &err);
    assert_true(isnan(w[32]));
    wt_close(f);
    bytes_free(&b);
}
