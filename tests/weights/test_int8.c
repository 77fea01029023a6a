/* int8 weights: written as kern_int8_quantise makes them, read as int8 and as restored values. Also malformed files. */
#include "tests/support/archive.h"
#include "tests/support/support.h"

#include "kernels/int8.h"
#include "weights/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- writing and reading back ------------------------------------------------------------------------------------- */

typedef struct {
    char *dir, path[600];
    int out, in;
    float *w, *scale, *restored; /* [out][in], [out], [out][in] as kern_int8_* have them */
    int8_t *q;                   /* [out][in] */
    wt_file *source;             /* "w" [out][in] in F32 */
} fixture;

static fixture set_up(int out, int in)
{
    fixture x = {.dir = test_directory(), .out = out, .in = in};
    const size_t n = (size_t)out * (size_t)in;
    char header[200];
    bytes b = {0};
    x.w = malloc(n * sizeof *x.w), x.restored = malloc(n * sizeof *x.restored);
    x.q = malloc(n), x.scale = malloc((size_t)out * sizeof *x.scale);
    for (size_t i = 0; i < n; i++) x.w[i] = sinf((float)i) * (1 + (float)(i / (size_t)in % 5));
    for (int i = 0; i < in; i++) x.w[(size_t)(out - 1) * (size_t)in + (size_t)i] = 0; /* a channel of zeros */
    kern_int8_quantise(x.w, out, in, x.q, x.scale);
    kern_int8_restore(x.q, x.scale, out, in, x.restored);
    snprintf(header, sizeof header, "{\"w\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[0,%zu]}}", out, in,
             4 * n);
    bytes_number(&b, strlen(header), 8);
    bytes_text(&b, header);
    bytes_put(&b, x.w, 4 * n);
    snprintf(x.path, sizeof x.path, "%s/in", x.dir);
    bytes_to_file(&b, x.path);
    bytes_free(&b);
    x.source = open_weights(x.path);
    snprintf(x.path, sizeof x.path, "%s/int8.safetensors", x.dir);
    return x;
}

static void tear_down(fixture *x)
{
    wt_close(x->source);
    free(x->w), free(x->scale), free(x->restored), free(x->q);
}

/* Writes the matrix in int8 to x->path, and opens it. */
static wt_file *write_int8(const fixture *x)
{
    const wt_tensor *w = wt_at(x->source, 0);
    const wt_output outputs[2] = {
        {"w", WT_I8, 2, {x->out, x->in}, x->source, w, WT_QUANTISED, NULL},
        {"w_scale", WT_F32, 1, {x->out}, x->source, w, WT_SCALES, NULL},
    };
    mar_err err = {0};
    assert_ok(wt_save_safetensors(x->path, outputs, 2, NULL, 0, &err), &err);
    wt_file *f = open_weights(x->path);
    return f;
}

static float rounded(float x, wt_dtype dtype)
{
    if (dtype == WT_BF16) return wt_f32_from_bf16(wt_bf16_from_f32(x));
    return dtype == WT_F16 ? wt_f32_from_f16(wt_f16_from_f32(x)) : x;
}

/* Checks the int8 file's matrix read as another type. */
static void check_restored(const fixture *x, const wt_file *f, wt_dtype dtype)
{
    const size_t n = (size_t)x->out * (size_t)x->in;
    char path[640];
    mar_err err = {0};
    const wt_output output = {"w", dtype, 2, {x->out, x->in}, f, wt_find(f, "w"), WT_DEQUANTISED, NULL};
    snprintf(path, sizeof path, "%s/restored.safetensors", x->dir);
    assert_ok(wt_save_safetensors(path, &output, 1, NULL, 0, &err), &err);
    wt_file *back = open_weights(path);
    assert_int_equal(wt_at(back, 0)->dtype, dtype);
    float *values = golden_f32(back, "w", (int64_t)n);
    for (size_t i = 0; i < n; i++)
        if (values[i] != rounded(x->restored[i], dtype)) fail_msg("%s, value %zu", wt_dtype_name(dtype), i);
    free(values);
    wt_close(back);
}

/* Tests matrices of one piece, of several, and with rows longer than a piece. */
TEST_CASE(written_and_read_back)
{
    static const int shapes[][2] = {{3, 4}, {1, 1}, {700, 331}, {5, 70001}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        fixture x = set_up(shapes[i][0], shapes[i][1]);
        const size_t n = (size_t)x.out * (size_t)x.in;
        mar_err err = {0};
        wt_file *f = write_int8(&x);
        assert_true(wt_is_int8(f, "w") && !wt_is_int8(f, "w_scale") && !wt_is_int8(x.source, "w"));
        assert_ptr_equal(wt_scale_of(f, wt_find(f, "w")), wt_find(f, "w_scale"));
        assert_ptr_equal(wt_matrix_of(f, wt_find(f, "w_scale")), wt_find(f, "w"));
        assert_null(wt_matrix_of(f, wt_find(f, "w")));
        int8_t *q = malloc(n);
        float *scale = malloc((size_t)x.out * sizeof *scale), *rows = malloc(n * sizeof *rows);
        assert_ok(wt_load_int8(f, "w", x.out, x.in, 0, x.out, q, scale, &err), &err);
        assert_memory_equal(q, x.q, n);
        assert_memory_equal(scale, x.scale, (size_t)x.out * sizeof *x.scale);
        assert_ok(wt_load_matrix_rows(f, "w", x.out, x.in, 0, x.out, rows, &err), &err);
        assert_memory_equal(rows, x.restored, n * sizeof *rows);
        assert_ok(wt_load_matrix_rows(x.source, "w", x.out, x.in, 0, x.out, rows, &err), &err); /* f32 stays f32 */
        assert_memory_equal(rows, x.w, n * sizeof *rows);
        free(q), free(scale), free(rows);
        check_restored(&x, f, WT_F32);
        check_restored(&x, f, WT_BF16);
        check_restored(&x, f, WT_F16);
        wt_close(f);
        tear_down(&x);
    }
}

/* Checks that copies have the bytes of the source, whatever its type. */
TEST_CASE(copied)
{
    fixture x = set_up(300, 400);
    wt_file *f = write_int8(&x), *back;
    mar_err err = {0};
    const wt_output outputs[2] = {{"w", WT_I8, 2, {300, 400}, f, wt_find(f, "w"), WT_COPIED, NULL},
                                  {"w_scale", WT_F32, 1, {300}, f, wt_find(f, "w_scale"), WT_COPIED, NULL}};
    char path[640];
    snprintf(path, sizeof path, "%s/copy.safetensors", x.dir);
    assert_ok(wt_save_safetensors(path, outputs, 2, NULL, 0, &err), &err);
    bytes a = bytes_from_file(x.path), b = bytes_from_file(path);
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    bytes_free(&a), bytes_free(&b);
    back = open_weights(path);
    wt_close(back), wt_close(f);
    tear_down(&x);
}

/* Checks that an output that cannot be written is refused before a file exists. */
TEST_CASE(bad_outputs)
{
    fixture x = set_up(3, 4);
    wt_file *f = write_int8(&x);
    const wt_tensor *w = wt_at(x.source, 0), *q = wt_find(f, "w"), *scale = wt_find(f, "w_scale");
    const struct {
        wt_output output;
        const char *words;
    } cases[] = {
        {{"w", WT_I8, 2, {3, 4}, x.source, w, WT_VALUES, NULL}, "cannot be written as I8 from F32"},
        {{"w", WT_BF16, 2, {3, 4}, x.source, w, WT_QUANTISED, NULL}, "cannot be written as BF16 from F32"},
        {{"w", WT_I4, 2, {3, 4}, x.source, w, WT_QUANTISED, NULL}, "cannot be written as I4 from F32"},
        {{"w", WT_I8, 1, {3}, f, scale, WT_QUANTISED, NULL}, "cannot be written as I8 from F32"},
        {{"w", WT_BF16, 1, {3}, x.source, w, WT_SCALES, NULL}, "cannot be written as BF16 from F32"},
        {{"w", WT_F32, 1, {4}, x.source, w, WT_SCALES, NULL}, "has 3 values, its new shape 4"},
        {{"w", WT_F32, 2, {3, 4}, f, q, WT_VALUES, NULL}, "cannot be written as F32 from I8"},
        {{"w", WT_F32, 2, {3, 4}, x.source, w, WT_DEQUANTISED, NULL}, "cannot be written as F32 from F32"},
        {{"w", WT_I8, 2, {3, 4}, f, q, WT_DEQUANTISED, NULL}, "cannot be written as I8 from I8"},
        {{"w", WT_F32, 2, {3, 4}, f, q, WT_COPIED, NULL}, "cannot be written as F32 from I8"},
    };
    char path[640];
    snprintf(path, sizeof path, "%s/bad.safetensors", x.dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_err err = {0};
        if (wt_save_safetensors(path, &cases[i].output, 1, NULL, 0, &err) != MAR_EARG) fail_msg("case %zu", i);
        if (!strstr(err.text, cases[i].words)) fail_msg("\"%s\" has no \"%s\"", err.text, cases[i].words);
    }
    wt_close(f);
    tear_down(&x);
}

/* --- files with something wrong ----------------------------------------------------------------------------------- */

/* Header of "a" I8 [2, 3], bytes 0 to 5, and a second tensor. SCALES makes that tensor: scales of "a". */
#define FILE_OF(second) "{\"a\":{\"dtype\":\"I8\",\"shape\":[2,3],\"data_offsets\":[0,6]}" second "}"
#define SCALES(dtype, shape, end)                                                                                      \
    ",\"a_scale\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[6," end "]}"

static void refuse(const char *header, const void *data, size_t size, int allow_nonfinite, const char *message)
{
    bytes b = {0};
    wt_file *f;
    mar_err err = {0};
    bytes_number(&b, strlen(header), 8);
    bytes_text(&b, header);
    bytes_put(&b, data, size);
    assert_ok(wt_open_memory(b.data, b.size, "file", &f, &err), &err);
    wt_allow_nonfinite(f, allow_nonfinite);
    const int as_int8 = wt_is_int8(f, "a") && wt_find(f, "a")->shape[0] == 2;
    for (int restored = !as_int8; restored < 2; restored++) {
        int8_t q[6];
        float scale[2], rows[6];
        const mar_status status = restored ? wt_load_matrix_rows(f, "a", 2, 3, 0, 2, rows, &err)
                                           : wt_load_int8(f, "a", 2, 3, 0, 2, q, scale, &err);
        if (message && status != MAR_EMODEL) fail_msg("loaded, expected \"%s\"", message);
        if (message) assert_string_equal(err.text, message);
        if (!message) assert_ok(status, &err);
    }
    wt_close(f);
    bytes_free(&b);
}

TEST_CASE(wrong_files)
{
    static const char good[] = FILE_OF(SCALES("F32", "[2]", "14"));
    struct {
        int8_t q[6];
        float scale[2];
    } __attribute__((packed)) data = {{1, -127, 127, 0, 5, -5}, {0.5f, 0}};
    refuse(good, &data, 14, 0, NULL);
    refuse(FILE_OF(""), &data, 6, 0, "file: tensor a_scale is missing, expected shape [2]");
    refuse(FILE_OF(SCALES("F32", "[1]", "10")), &data, 10, 0, "file: tensor a_scale has shape [1], expected [2]");
    refuse(FILE_OF(SCALES("F32", "[2,1]", "14")), &data, 14, 0, "file: tensor a_scale has shape [2, 1], expected [2]");
    refuse(FILE_OF(SCALES("BF16", "[2]", "10")), &data, 10, 0,
           "file: tensor a_scale has dtype BF16, expected F32, the scales of int8 weights");
    refuse(FILE_OF(SCALES("I8", "[2]", "8")), &data, 8, 0,
           "file: tensor a_scale has dtype I8, expected F32, the scales of int8 weights");
    data.scale[1] = -0.25f;
    refuse(good, &data, 14, 1, "file: tensor a_scale has the value -0.25 at 1, expected scales of 0 or more");
    data.scale[1] = NAN;
    refuse(good, &data, 14, 0,
           "file: tensor a_scale has 1 value that is NaN, the first at 1: expected finite weights (--allow_nonfinite "
           "loads it all the same)");
    refuse(good, &data, 14, 1, NULL);
    data.scale[1] = INFINITY;
    refuse(good, &data, 14, 0,
           "file: tensor a_scale has 1 value that is infinite, the first at 1: expected finite weights "
           "(--allow_nonfinite loads it all the same)");
    data.scale[1] = 1;
    data.q[4] = -128;
    refuse(good, &data, 14, 1, "file: tensor a has the value -128 at 4, expected int8 weights from -127 to 127");
    refuse("{\"a\":{\"dtype\":\"I8\",\"shape\":[3,2],\"data_offsets\":[0,6]}}", &data, 6, 0,
           "file: tensor a has shape [3, 2], expected [2, 3]");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]}}", &data, 6, 0,
           "file: tensor a has dtype U8, expected F32, BF16, F16, F64, F8_E4M3 or F8_E5M2");
}

/* Checks that wt_load_f32 refuses int8, and which names are layers. */
TEST_CASE(not_for_others)
{
    static const char header[] = FILE_OF(SCALES("F32", "[2]", "14"));
    bytes b = make_safetensors(header, 14);
    wt_file *f;
    mar_err err = {0};
    float *values;
    assert_ok(wt_open_memory(b.data, b.size, "file", &f, &err), &err);
    assert_int_equal(wt_load_f32(f, "a", 2, (int64_t[]){2, 3}, &values, &err), MAR_EMODEL);
    assert_string_equal(err.text, "file: tensor a has dtype I8, expected F32, BF16, F16, F64, F8_E4M3 or F8_E5M2");
    wt_close(f);
    bytes_free(&b);
    static const char *const layers[] = {"attn.qkv", "mlp.fc1", NULL};
    assert_true(wt_is_layer("blocks.0.attn.qkv.weight", layers) && wt_is_layer("x.mlp.fc1.weight", layers));
    assert_false(wt_is_layer("blocks.0.attn.qkv.bias", layers) || wt_is_layer("attn.qkv.weight", layers) ||
                 wt_is_layer("blocks.0.xattn.qkv.weight", layers) || wt_is_layer("", layers));
}
