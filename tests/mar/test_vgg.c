/* VGG16's features against PyTorch, through the public calls: the published file's names, pictures of several sizes. */
#include "tests/support/support.h"

#include "mar_eval.h"
#include "mar_files.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PICTURES = 3, FEATURES = 10 };

static const char path[] = "tests/golden/data/vgg_tiny.pth";
static const int heights[PICTURES] = {23, 61, 224}, widths[PICTURES] = {37, 40, 224};

/* Reads the pictures. The caller frees each. */
static void read_pictures(const wt_file *golden, uint8_t *rgb[PICTURES])
{
    for (int i = 0; i < PICTURES; i++) {
        const size_t n = (size_t)heights[i] * (size_t)widths[i] * 3;
        rgb[i] = malloc(n);
        assert_non_null(rgb[i]);
        memset(rgb[i], 77, n);
        if (i == 2) continue;
        float *values = golden_f32(golden, i ? "1.picture" : "0.picture", (int64_t)n);
        for (size_t j = 0; j < n; j++) rgb[i][j] = (uint8_t)values[j];
        free(values);
    }
}

static void check(const wt_file *golden, int i, const float *features, double tolerance)
{
    static const char *const names[PICTURES] = {"0.features", "1.features", "2.features"};
    float *expected = golden_f32(golden, names[i], FEATURES);
    const double error = relative_error(features, expected, FEATURES);
    if (!(error <= tolerance)) fail_msg("picture %d: relative error %.3g, allowed %.3g", i, error, tolerance);
    free(expected);
}

static void compare(mar_dtype dtype, double tolerance)
{
    mar *m = open_mar(dtype, 1);
    mar_features *f;
    uint8_t *rgb[PICTURES];
    float features[PICTURES][FEATURES];
    if (!m) return; /* no bf16 on this processor */
    wt_file *golden = golden_open("vgg");
    read_pictures(golden, rgb);
    assert_library(m, mar_features_load(m, path, PICTURES, &f));
    const mar_features_config *c = mar_features_get_config(f);
    assert_string_equal(c->name, "vgg16");
    assert_int_equal(c->features, FEATURES);
    assert_int_equal(c->classes, 0);
    assert_int_equal(c->spatial, 0);
    assert_library(
        m, mar_features_run_each(f, (const uint8_t *const *)rgb, widths, heights, PICTURES, features[0], NULL, NULL));
    for (int i = 0; i < PICTURES; i++) check(golden, i, features[i], tolerance);
    for (int i = 0; i < PICTURES; i++) { /* one by one: the same bits */
        float alone[FEATURES];
        assert_library(m, mar_features_run(f, rgb[i], 1, widths[i], heights[i], alone, NULL, NULL));
        assert_memory_equal(alone, features[i], sizeof alone);
        free(rgb[i]);
    }
    assert_int_equal(mar_features_set_resize(f, MAR_RESIZE_CLEAN), MAR_EARG);
    mar_features_free(f);
    mar_close(m);
    wt_close(golden);
}

TEST_CASE(against_pytorch)
{
    compare(MAR_DTYPE_F32, 1e-5);
}

TEST_CASE(in_bf16)
{
    compare(MAR_DTYPE_BF16, 0.03);
}

TEST_CASE(is_recognised)
{
    mar *m;
    mar_report *r;
    assert_library(m, mar_open(NULL, &m));
    assert_library(m, mar_inspect(m, path, 0, &r));
    assert_int_equal(mar_report_kind(r), MAR_KIND_VGG16);
    assert_int_equal(mar_report_problem_count(r), 0);
    mar_report_free(r);
    mar_close(m);
}
