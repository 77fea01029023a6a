/* Tests the transformer's layers with dtype int8. Outlier channels made by norms cost no digits. A layer with a
 * non-finite output is found. */
#include "tests/support/changed.h"

#include "mar_files.h"
#include "tests/support/demo.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 3, TOKENS = DEMO_TOKENS, WIDTH = 64, OUTLIERS = 2 };
static const int outlier[OUTLIERS] = {7, 40};
static const float size = 64;

/* Multiplies numbers i with i % WIDTH in outlier[] of a tensor. */
static void scale(const bytes *file, const char *tensor, float factor)
{
    long n;
    char *at = file_tensor(file, tensor, &n);
    for (long i = 0; i < n; i++)
        for (int j = 0; j < OUTLIERS; j++) {
            float value;
            if (i % WIDTH != outlier[j]) continue;
            memcpy(&value, at + (size_t)i * sizeof value, sizeof value);
            value *= factor;
            memcpy(at + (size_t)i * sizeof value, &value, sizeof value);
        }
}

/* Writes the demo with other weights that compute the same function. Every block's norms make two channels `size` times
 * as large; the next layers undo that. The caller removes the file and frees its name. */
static char *write_outliers(mar *m, const char *directory)
{
    static const char *const stacks[] = {"encoder", "decoder"};
    char *path, name[64];
    assert_true(asprintf(&path, "%s/outliers.safetensors", directory) > 0);
    assert_library(m, mar_convert(m, "demo", path, MAR_DTYPE_F32, 0));
    bytes file = bytes_from_file(path);
    for (int block = 0; block < 4; block++)
        for (int norm = 1; norm <= 2; norm++) {
            const char *stack = stacks[block / 2];
            for (int bias = 0; bias < 2; bias++) {
                snprintf(name, sizeof name, "%s_blocks.%d.norm%d.%s", stack, block % 2, norm, bias ? "bias" : "weight");
                scale(&file, name, size);
            }
            snprintf(name, sizeof name, "%s_blocks.%d.%s.weight", stack, block % 2, norm == 1 ? "attn.qkv" : "mlp.fc1");
            scale(&file, name, 1 / size);
        }
    bytes_to_file(&file, path);
    bytes_free(&file);
    return path;
}

static void generate(mar *m, const char *path, float *tokens)
{
    demo d = {.m = m};
    const mar_params p = params_with("num_iter 8, num_sampling_steps 10, cfg 2.9");
    assert_library(m, mar_model_load(m, path, 0, &d.model));
    mar_session *s = demo_session(&d, &p, IMAGES);
    demo_generate(s, IMAGES, tokens);
    mar_session_free(s);
    mar_model_free(d.model);
}

/* Checks that smoothing restores the original weights. Without int8 the outputs are equal to the bit, too. */
TEST_CASE(outliers_of_norms_cost_nothing)
{
    static const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16, MAR_DTYPE_INT8};
    char *directory = test_directory();
    for (int i = 0; i < 3; i++) {
        static float plain[IMAGES * TOKENS], outliers[IMAGES * TOKENS];
        mar *m = open_mar(dtypes[i], 2);
        if (!m) continue;
        char *path = write_outliers(m, directory);
        generate(m, "demo", plain);
        generate(m, path, outliers);
        assert_memory_equal(outliers, plain, sizeof plain);
        free(path);
        mar_close(m);
    }
}

/* Checks that mar_convert smooths, too: it writes the weights that loading computes. */
TEST_CASE(files_are_smoothed_too)
{
    static float plain[IMAGES * TOKENS], outliers[IMAGES * TOKENS];
    mar *m = open_mar(MAR_DTYPE_INT8, 2);
    if (!m) skip();
    char *directory = test_directory(), *path = write_outliers(m, directory), *of_plain, *of_outliers;
    assert_true(asprintf(&of_plain, "%s/plain_int8.safetensors", directory) > 0);
    assert_true(asprintf(&of_outliers, "%s/outliers_int8.safetensors", directory) > 0);
    assert_library(m, mar_convert(m, "demo", of_plain, MAR_DTYPE_INT8, 0));
    assert_library(m, mar_convert(m, path, of_outliers, MAR_DTYPE_INT8, 0));
    generate(m, of_plain, plain);
    generate(m, of_outliers, outliers);
    assert_memory_equal(outliers, plain, sizeof plain);
    mar_close(m);
    free(path), free(of_plain), free(of_outliers);
}

static const struct {
    const char *tensor;
    const char *layer; /* first layer with a non-finite output */
} weights[] = {
    {"encoder_blocks.0.norm1.weight", "encoder_blocks.0.norm1"},
    {"encoder_blocks.0.attn.qkv.weight", "encoder_blocks.0.attn.qkv"},
    {"encoder_blocks.1.attn.proj.weight", "encoder_blocks.1.attn.proj"},
    {"encoder_blocks.1.mlp.fc1.weight", "encoder_blocks.1.mlp.fc1"},
    {"decoder_blocks.0.mlp.fc2.weight", "decoder_blocks.0.mlp.fc2"},
    {"decoder_blocks.1.attn.qkv.weight", "decoder_blocks.1.attn.qkv"},
    {"diffloss.net.res_blocks.1.adaLN_modulation.1.weight", "diffloss.net.res_blocks.1.adaLN_modulation.1"},
    {"diffloss.net.res_blocks.0.mlp.0.weight", "diffloss.net.res_blocks.0"},
    {"diffloss.net.res_blocks.1.mlp.2.weight", "diffloss.net.res_blocks.1"},
};

/* Sets a weight to NaN, at all timesteps in int8. */
TEST_CASE(check_names_the_layer)
{
    const mar_options options = {.size = sizeof options,
                                 .dtype = MAR_DTYPE_INT8,
                                 .threads = 2,
                                 .backend = MAR_BACKEND_CPU,
                                 .allow_nonfinite = 1,
                                 .int8_below = 1000};
    char *directory = test_directory();
    mar *m = NULL;
    const mar_status opened = mar_open(&options, &m);
    for (size_t i = 0; opened == MAR_OK && i < sizeof weights / sizeof *weights; i++)
        for (int head_spec = 0; head_spec < 2; head_spec++) {
            demo d = {.m = m};
            char expected[160];
            mar_params p = params_with(head_spec ? "num_iter 4, num_sampling_steps 8, cfg 2.9, head_spec 4"
                                                 : "num_iter 4, num_sampling_steps 8, cfg 2.9");
            char *path = write_changed(m, directory, "nan.safetensors", "demo", weights[i].tensor, 9, 1, (float)NAN);
            assert_library(m, mar_model_load(m, path, 0, &d.model));
            p.check = 1;
            mar_session *s = demo_session(&d, &p, IMAGES);
            assert_int_equal(demo_run(s, IMAGES), MAR_EMODEL);
            snprintf(expected, sizeof expected, "the first layer whose output is not finite: %s", weights[i].layer);
            assert_says(mar_session_error(s), expected);
            mar_session_free(s);
            mar_model_free(d.model);
            free(path);
        }
    mar_close(m);
    if (opened != MAR_OK) skip();
}
