/* Compares the digit classifier with PyTorch, on real digits and on images of the demo. */
#include "tests/support/support.h"

#include "eval/classifier.h"

#include <stdlib.h>

enum { IMAGES = 8, PIXELS = EVAL_DIGIT_SIDE * EVAL_DIGIT_SIDE * 3 };

TEST_CASE(against_pytorch)
{
    wt_file *f = golden_open("classifier");
    float *expected = golden_f32(f, "logits", IMAGES * EVAL_DIGITS), logits[IMAGES * EVAL_DIGITS];
    float *expected_features = golden_f32(f, "features", IMAGES * EVAL_DIGIT_FEATURES);
    float features[IMAGES * EVAL_DIGIT_FEATURES];
    const wt_tensor *rgb = wt_find(f, "rgb");
    assert_non_null(rgb);
    assert_int_equal(rgb->dtype, WT_U8);
    assert_int_equal(rgb->count, IMAGES * PIXELS);
    static uint8_t pixels[IMAGES][PIXELS];
    mar_err err = {0};
    assert_ok(wt_read_bytes(f, rgb, 0, sizeof pixels, pixels, &err), &err);
    eval_classifier *c = NULL;
    char why[256] = "";
    if (eval_classifier_open(&c, why, sizeof why) != MAR_OK) fail_msg("%s", why);
    for (int i = 0; i < IMAGES; i++)
        eval_classify(c, pixels[i], features + (size_t)i * EVAL_DIGIT_FEATURES, logits + (size_t)i * EVAL_DIGITS);
    if (!(max_difference(logits, expected, IMAGES * EVAL_DIGITS) <= 1e-4))
        fail_msg("logits differ by %g", max_difference(logits, expected, IMAGES * EVAL_DIGITS));
    const double difference = max_difference(features, expected_features, IMAGES * EVAL_DIGIT_FEATURES);
    if (!(difference <= 1e-4)) fail_msg("features differ by %g", difference);
    float only[EVAL_DIGIT_FEATURES];
    eval_classify(c, pixels[1], only, NULL);
    assert_memory_equal(only, features + EVAL_DIGIT_FEATURES, sizeof only);
    /* digits 0, 1, 2, 3, 4 of the data set, then the demo's 3, 7, 0 (make_demo.py) */
    static const int digit[IMAGES] = {0, 1, 2, 3, 4, 3, 7, 0};
    for (int i = 0; i < IMAGES; i++) {
        int best = 0;
        for (int k = 1; k < EVAL_DIGITS; k++)
            if (logits[i * EVAL_DIGITS + k] > logits[i * EVAL_DIGITS + best]) best = k;
        assert_int_equal(best, digit[i]);
    }
    eval_classifier_close(c);
    free(expected);
    free(expected_features);
    wt_close(f);
}
