/* Weights that are NaN or infinite. They are refused with a line that names file, tensor, number and place, unless
 * they are allowed. */
#include "tests/support/archive.h"
#include "tests/support/changed.h"
#include "tests/support/support.h"

#include "mar_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA "tests/weights/data/"

/* --- one tensor --------------------------------------------------------------------------------------------------- */

/* Loads `w`, [n] values of a dtype, from memory. */
static mar_status load(const char *dtype, const void *values, size_t size, int n, int allow, float *out, mar_err *err)
{
    char header[200];
    bytes b = {0};
    wt_file *f;
    float *loaded;
    snprintf(header, sizeof header, "{\"w\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,%zu]}}", dtype, n,
             size);
    bytes_number(&b, strlen(header), 8);
    bytes_text(&b, header);
    bytes_put(&b, values, size);
    assert_ok(wt_open_memory(b.data, b.size, "m.safetensors", &f, err), err);
    wt_allow_nonfinite(f, allow);
    const mar_status status = wt_load_f32(f, "w", 1, (int64_t[]){n}, &loaded, err);
    assert_true((loaded != NULL) == (status == MAR_OK));
    if (loaded && out) memcpy(out, loaded, (size_t)n * sizeof *out);
    free(loaded);
    wt_close(f);
    bytes_free(&b);
    return status;
}

static void expect(const char *dtype, const void *values, size_t size, int n, const char *found)
{
    mar_err err = {0};
    char line[300];
    assert_int_equal(load(dtype, values, size, n, 0, NULL, &err), MAR_EMODEL);
    snprintf(line, sizeof line,
             "m.safetensors: tensor w has %s: expected finite weights (--allow_nonfinite loads it all the same)",
             found);
    assert_string_equal(err.text, line);
    assert_ok(load(dtype, values, size, n, 1, NULL, &err), &err);
}

TEST_CASE(every_dtype)
{
    mar_err err = {0};
    float out[3];
    const float f32[3] = {1, NAN, -INFINITY};
    expect("F32", f32, sizeof f32, 3, "1 value that is NaN and 1 that is infinite, the first at 1");
    assert_ok(load("F32", f32, sizeof f32, 3, 1, out, &err), &err);
    assert_true(out[0] == 1 && isnan(out[1]) && out[2] == -INFINITY); /* they are unchanged */
    const uint16_t bf16[3] = {0x7f80, 0x3f80, 0xff80}, f16[3] = {0x7c01, 0xfe00, 0x7bff};
    expect("BF16", bf16, sizeof bf16, 3, "2 values that are infinite, the first at 0");
    expect("F16", f16, sizeof f16, 3, "2 values that are NaN, the first at 0");
    const double f64[3] = {1, 2, 1e39}; /* beyond f32 */
    expect("F64", f64, sizeof f64, 3, "1 value that is infinite, the first at 2");
    /* The largest and the smallest are finite. */
    const float good32[4] = {3.40282347e38f, -3.40282347e38f, 1e-45f, -0.0f};
    const uint16_t good_bf16[2] = {0x7f7f, 0xff7f}, good_f16[2] = {0x7bff, 0xfbff};
    const double good64[2] = {3.4028234663852886e38, -1e-300};
    assert_ok(load("F32", good32, sizeof good32, 4, 0, NULL, &err), &err);
    assert_ok(load("BF16", good_bf16, sizeof good_bf16, 2, 0, NULL, &err), &err);
    assert_ok(load("F16", good_f16, sizeof good_f16, 2, 0, NULL, &err), &err);
    assert_ok(load("F64", good64, sizeof good64, 2, 0, NULL, &err), &err);
}

/* Tests tensors of many pieces, with a value at any place. */
TEST_CASE(every_place)
{
    enum { N = 100003 };
    float *values = calloc(N, sizeof *values);
    assert_non_null(values);
    static const int places[] = {0, 1, 16383, 16384, 16385, 65535, 65536, N - 2, N - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char found[100];
        values[places[i]] = i % 2 ? NAN : -NAN;
        snprintf(found, sizeof found, "1 value that is NaN, the first at %d", places[i]);
        expect("F32", values, N * sizeof *values, N, found);
        values[places[i]] = 0;
    }
    for (int i = 77; i < N; i++) values[i] = i % 2 ? NAN : INFINITY;
    expect("F32", values, N * sizeof *values, N,
           "49963 values that are NaN and 49963 that are infinite, the first at 77");
    free(values);
}

/* --- models ------------------------------------------------------------------------------------------------------- */

/* Converts the model `from` to `to` as f32 and puts a NaN at element `at` of a tensor. `heads` is 0 for a model
 * without heads. */
static void spoil(mar *m, const char *from, int heads, const char *to, const char *tensor, int at)
{
    assert_library(m, mar_convert(m, from, to, MAR_DTYPE_F32, heads));
    write_nan(to, tensor, at);
}

TEST_CASE(models_and_vaes)
{
    char *dir = test_directory(), model_path[600], vae_path[600], out[600], line[800];
    mar *strict, *lax;
    mar_model *model;
    mar_vae *vae;
    snprintf(model_path, sizeof model_path, "%s/model.safetensors", dir);
    snprintf(vae_path, sizeof vae_path, "%s/vae.safetensors", dir);
    snprintf(out, sizeof out, "%s/out.safetensors", dir);
    strict = open_mar(MAR_DTYPE_F32, 1);
    const mar_options options = {
        .size = sizeof options, .dtype = MAR_DTYPE_F32, .threads = 1, .backend = MAR_BACKEND_CPU, .allow_nonfinite = 1};
    assert_library(lax, mar_open(&options, &lax));
    spoil(strict, DATA "mar.pth", 2, model_path, "z_proj.weight", 17);
    spoil(strict, DATA "vae.ckpt", 0, vae_path, "decoder.conv_in.bias", 3);

    assert_int_equal(mar_model_load(strict, model_path, 0, &model), MAR_EMODEL);
    assert_null(model);
    snprintf(line, sizeof line,
             "%s: tensor z_proj.weight has 1 value that is NaN, the first at 17: expected finite weights "
             "(--allow_nonfinite loads it all the same)",
             model_path);
    assert_string_equal(mar_error(strict), line);
    assert_int_equal(mar_vae_load(strict, vae_path, &vae), MAR_EMODEL);
    assert_null(vae);
    assert_non_null(strstr(mar_error(strict), "tensor decoder.conv_in.bias has 1 value that is NaN, the first at 3"));

    assert_library(lax, mar_model_load(lax, model_path, 0, &model));
    assert_library(lax, mar_vae_load(lax, vae_path, &vae));
    mar_model_free(model);
    mar_vae_free(vae);

    /* Inspecting needs no permission. Converting is refused even with it. */
    mar_report *r;
    assert_library(lax, mar_inspect(lax, model_path, 0, &r));
    assert_int_equal(mar_report_problem_count(r), 1);
    assert_string_equal(mar_report_problem(r, 0), "tensor z_proj.weight: 1 NaN and 0 Inf among 64 values");
    mar_report_free(r);
    assert_int_equal(mar_convert(lax, model_path, out, MAR_DTYPE_F32, 0), MAR_EMODEL);
    assert_int_equal(access(out, F_OK), -1);
    mar_close(strict);
    mar_close(lax);
}
