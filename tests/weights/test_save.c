/* Rounding to half precision and bfloat16, and writing safetensors. */
#include "tests/support/archive.h"
#include "tests/support/support.h"

#include "base/file.h"
#include "weights/number.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/resource.h>

/* --- numbers ------------------------------------------------------------------------------------------------------ */

/* Returns a half's value by definition, in double arithmetic: every half is (-1)^s * m * 2^e. */
static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                       : exponent == 0 ? ldexp(mantissa, -24)
                                       : ldexp(mantissa + 1024, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

TEST_CASE(test_every_half)
{
    for (uint32_t h = 0; h <= 0xffff; h++) {
        float x = wt_f32_from_f16((uint16_t)h);
        double expected = half_value((uint16_t)h);
        if (isnan(expected)) {
            assert_true(isnan(x));
            assert_true(isnan(wt_f32_from_f16(wt_f16_from_f32(x))));
        } else {
            assert_true(x == expected && !signbit(x) == !signbit(expected));
            assert_int_equal(wt_f16_from_f32(x), h);
        }
    }
}

TEST_CASE(test_every_bfloat16)
{
    for (uint32_t h = 0; h <= 0xffff; h++) {
        float x = wt_f32_from_bf16((uint16_t)h);
        if (isnan(x))
            assert_true(isnan(wt_f32_from_bf16(wt_bf16_from_f32(x))));
        else
            assert_int_equal(wt_bf16_from_f32(x), h);
    }
}

/* Checks that a value between two neighbours rounds to the nearer, and the middle to the even one. */
TEST_CASE(test_rounding)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float low = wt_f32_from_f16((uint16_t)h), high = wt_f32_from_f16((uint16_t)(h + 1)), middle = (low + high) / 2;
        uint32_t even = h & 1 ? h + 1 : h;
        assert_int_equal(wt_f16_from_f32(middle), even);
        assert_int_equal(wt_f16_from_f32(-middle), even | 0x8000);
        assert_int_equal(wt_f16_from_f32(nextafterf(middle, 0)), h);
        assert_int_equal(wt_f16_from_f32(nextafterf(middle, INFINITY)), h + 1);
    }
    for (uint32_t h = 0; h < 0x7f7f; h++) {
        float middle = wt_f32_from_bits(h << 16 | 0x8000);
        uint32_t even = h & 1 ? h + 1 : h;
        assert_int_equal(wt_bf16_from_f32(middle), even);
        assert_int_equal(wt_bf16_from_f32(-middle), even | 0x8000);
        assert_int_equal(wt_bf16_from_f32(nextafterf(middle, 0)), h);
        assert_int_equal(wt_bf16_from_f32(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(wt_f16_from_f32(65519.996f), 0x7bff);
    assert_int_equal(wt_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(wt_f16_from_f32(1e-30f), 0);
    assert_int_equal(wt_bf16_from_f32(3.4e38f), 0x7f80);
    assert_int_equal(wt_bf16_from_f32(INFINITY), 0x7f80);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

typedef struct {
    char *dir, path[600];
    wt_file *source;
    wt_output output;
} fixture;

/* Makes a source of one f32 tensor "w" [2, n/2] with these values. */
static void set_up(fixture *x, const float *values, int n, wt_dtype dtype)
{
    char header[200];
    bytes b = {0};
    x->dir = test_directory();
    snprintf(x->path, sizeof x->path, "%s/in", x->dir);
    snprintf(header, sizeof header, "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,%d],\"data_offsets\":[0,%d]}}", n / 2,
             4 * n);
    bytes_number(&b, strlen(header), 8);
    bytes_text(&b, header);
    bytes_put(&b, values, sizeof *values * (size_t)n);
    bytes_to_file(&b, x->path);
    bytes_free(&b);
    x->source = open_weights(x->path);
    snprintf(x->path, sizeof x->path, "%s/out.safetensors", x->dir);
    x->output = (wt_output){"w", dtype, 2, {2, n / 2}, x->source, wt_at(x->source, 0), WT_VALUES, NULL};
}

static void tear_down(fixture *x)
{
    wt_close(x->source);
}

TEST_CASE(test_layout)
{
    fixture x;
    const float values[4] = {1.0f, -2.5f, 1.00390625f, 3e-42f}; /* 1 + 2^-8: a tie that rounds down in bf16 */
    static const char *const metadata[][2] = {{"format", "pt"}, {"quoted", "a \"b\"\n"}};
    mar_err err = {0};
    set_up(&x, values, 4, WT_BF16);
    assert_ok(wt_save_safetensors(x.path, &x.output, 1, metadata, 2, &err), &err);
    bytes b = bytes_from_file(x.path);
    uint64_t length;
    memcpy(&length, b.data, 8);
    assert_int_equal((8 + length) % 64, 0);
    assert_int_equal(b.size, 8 + length + 4 * 2);
    static const uint8_t expected[] = {0x80, 0x3f, 0x20, 0xc0, 0x80, 0x3f, 0, 0};
    assert_memory_equal(b.data + 8 + length, expected, sizeof expected);
    bytes_free(&b);
    wt_file *f = open_weights(x.path);
    assert_string_equal(wt_metadata(f, "quoted"), "a \"b\"\n");
    assert_int_equal(wt_at(f, 0)->dtype, WT_BF16);
    wt_close(f);
    assert_int_equal(count_files(x.dir), 2);
    tear_down(&x);
}

/* Writes several chunks, to check their borders, over an existing file. */
TEST_CASE(test_large_tensor)
{
    enum { N = 300002 };
    fixture x;
    mar_err err = {0};
    float *values = malloc(N * sizeof *values);
    for (int i = 0; i < N; i++) values[i] = (float)i;
    set_up(&x, values, N, WT_F32);
    for (int round = 0; round < 2; round++) assert_ok(wt_save_safetensors(x.path, &x.output, 1, NULL, 0, &err), &err);
    wt_file *f = open_weights(x.path);
    float *read = golden_f32(f, "w", N);
    assert_memory_equal(read, values, N * sizeof *values);
    free(read);
    free(values);
    wt_close(f);
    tear_down(&x);
}

TEST_CASE(test_overflow)
{
    fixture x;
    mar_err err = {0};
    set_up(&x, (float[]){1, 2, -65520.0f, 4}, 4, WT_F16);
    assert_int_equal(wt_save_safetensors(x.path, &x.output, 1, NULL, 0, &err), MAR_EMODEL);
    assert_non_null(strstr(err.text, "tensor w has a value too large for F16"));
    assert_int_equal(count_files(x.dir), 1);
    tear_down(&x);
    set_up(&x, (float[]){1, 2, -INFINITY, 65519.0f}, 4, WT_F16); /* an infinity is no overflow */
    assert_ok(wt_save_safetensors(x.path, &x.output, 1, NULL, 0, &err), &err);
    tear_down(&x);
}

TEST_CASE(test_bad_outputs)
{
    fixture x;
    mar_err err = {0};
    set_up(&x, (float[]){1, 2, 3, 4}, 4, WT_I32);
    assert_int_equal(wt_save_safetensors(x.path, &x.output, 1, NULL, 0, &err), MAR_EARG);
    x.output.dtype = WT_F32;
    x.output.shape[0] = 3;
    assert_int_equal(wt_save_safetensors(x.path, &x.output, 1, NULL, 0, &err), MAR_EARG);
    x.output.shape[0] = 2;
    assert_int_equal(wt_save_safetensors("/nonexistent/dir/out", &x.output, 1, NULL, 0, &err), MAR_EIO);
    assert_non_null(strstr(err.text, "/nonexistent/dir/out"));
    assert_int_equal(wt_save_safetensors(x.dir, &x.output, 1, NULL, 0, &err), MAR_EIO);
    assert_int_equal(count_files(x.dir), 1);
    tear_down(&x);
}

/* Simulates a full disk by a limit on file sizes: no output, no temporary file, and an existing file stays as it
 * was. */
TEST_CASE(test_full_disk)
{
    enum { N = 300000 };
    fixture x;
    mar_err err = {0};
    float *values = calloc(N, sizeof *values);
    set_up(&x, values, N, WT_F32);
    free(values);
    bytes old = {0};
    bytes_text(&old, "old contents");
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    for (int exists = 0; exists <= 1; exists++) {
        if (exists) bytes_to_file(&old, x.path);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        mar_status status = wt_save_safetensors(x.path, &x.output, 1, NULL, 0, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(status, MAR_EIO);
        assert_non_null(strstr(err.text, x.path));
        assert_int_equal(count_files(x.dir), 1 + exists);
    }
    bytes left = bytes_from_file(x.path);
    assert_int_equal(left.size, old.size);
    assert_memory_equal(left.data, old.data, old.size);
    bytes_free(&left);
    bytes_free(&old);
    tear_down(&x);
}

/* Checks that devices and pipes are refused. A rename would replace them by a file. */
TEST_CASE(devices_and_pipes_stay)
{
    char *path = test_path("pipe");
    mar_err err = {0};
    struct stat st;
    assert_int_equal(mkfifo(path, 0600), 0);
    file_writer w;
    assert_int_equal(file_writer_open(path, &w, &err), MAR_EIO);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
}
