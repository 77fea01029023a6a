/* The networks that judge images, through the public calls: the demo's digits against PyTorch. */
#include "tests/support/demo.h"

#include <stdlib.h>
#include <string.h>

enum { DIGITS = 8, CLASSES = 10, FEATURES = 64 }; /* images of the golden file */

static mar_features *load(mar *m, const char *path, int batch)
{
    mar_features *f = NULL;
    assert_library(m, mar_features_load(m, path, batch, &f));
    assert_non_null(f);
    return f;
}

static void refused(mar *m, mar_status status, mar_status expected, const char *what)
{
    if (status != expected) fail_msg("%s, expected %s: %s", mar_status_name(status), mar_status_name(expected), what);
    assert_says(mar_error(m), what);
}

static void digits_against_pytorch(void **state)
{
    (void)state;
    wt_file *golden = golden_open("classifier");
    float *expected = golden_f32(golden, "features", DIGITS * FEATURES);
    float *expected_logits = golden_f32(golden, "logits", DIGITS * CLASSES);
    float features[DIGITS * FEATURES], logits[DIGITS * CLASSES], one[FEATURES];
    static uint8_t rgb[DIGITS * DEMO_BYTES];
    mar_err err = {0};
    assert_ok(wt_read_bytes(golden, wt_find(golden, "rgb"), 0, sizeof rgb, rgb, &err), &err);
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_features *f = load(m, "demo", DIGITS);
    mar_close(m); /* which the network needs, too */
    const mar_features_config *config = mar_features_get_config(f);
    assert_string_equal(config->name, "demo digits");
    assert_int_equal(config->features, FEATURES);
    assert_int_equal(config->classes, CLASSES);
    assert_int_equal(config->spatial, 0);
    assert_int_equal(config->parameters, 89546);
    assert_library(m, mar_features_run(f, rgb, DIGITS, DEMO_SIDE, DEMO_SIDE, features, logits, NULL));
    assert_true(max_difference(features, expected, DIGITS * FEATURES) <= 1e-4);
    assert_true(max_difference(logits, expected_logits, DIGITS * CLASSES) <= 1e-4);
    assert_library(m, mar_features_run(f, rgb + DEMO_BYTES, 1, DEMO_SIDE, DEMO_SIDE, one, NULL, NULL));
    assert_memory_equal(one, features + FEATURES, sizeof one);
    refused(m, mar_features_run(f, rgb, 1, 64, 16, one, NULL, NULL), MAR_EARG,
            "images of 64x16 pixels: the demo's features are those of 32x32");
    mar_features_free(f);
    free(expected);
    free(expected_logits);
    wt_close(golden);
}

/* What is no such network is called by its name. */
static void others_are_named(void **state)
{
    (void)state;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_features *f;
    refused(m, mar_features_load(m, "demo-draft", 1, &f), MAR_EMODEL, "demo-draft: is a MAR model, expected Inception");
    refused(m, mar_features_load(m, "demo-vae", 1, &f), MAR_EMODEL, "demo-vae: is an image decoder (KL autoencoder)");
    refused(m, mar_features_load(m, "tests/golden/data/classifier.safetensors", 1, &f), MAR_EMODEL, "no Inception-v3");
    refused(m, mar_features_load(m, "/nowhere/at.all", 1, &f), MAR_EIO, "/nowhere/at.all");
    assert_null(f);
    mar_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits_against_pytorch),
        cmocka_unit_test(others_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
