/* The small CLIP of tests/golden/make_clip.py: its pictures and texts. */
#ifndef TESTS_CLIP_H
#define TESTS_CLIP_H

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>

enum { CLIP_PICTURES = 4, CLIP_TEXTS = 5, CLIP_EMBEDDING = 24 };

static const char clip_folder[] = "tests/golden/data/clip_tiny";
static const int clip_heights[CLIP_PICTURES] = {40, 33, 32, 17}, clip_widths[CLIP_PICTURES] = {32, 61, 32, 90};

#define CLIP_HAT "the cat sat on the mat and the hat, "
static const char *const clip_golden_texts[CLIP_TEXTS] = {
    "a cat", "A photo depicts  the cat on the mat!", "",
    "\xc3\x9c"
    "ber \xf0\x9f\x98\x80 caf\xc3\xa9 \xe6\xbc\xa2 1234",
    CLIP_HAT CLIP_HAT CLIP_HAT CLIP_HAT CLIP_HAT CLIP_HAT CLIP_HAT CLIP_HAT};

/* Reads picture i. The caller frees it. */
static inline uint8_t *clip_picture(const wt_file *golden, int i)
{
    char name[16];
    const size_t n = (size_t)clip_heights[i] * (size_t)clip_widths[i] * 3;
    snprintf(name, sizeof name, "%d.picture", i);
    float *values = golden_f32(golden, name, (int64_t)n);
    uint8_t *rgb = malloc(n);
    assert_non_null(rgb);
    for (size_t j = 0; j < n; j++) rgb[j] = (uint8_t)values[j];
    free(values);
    return rgb;
}

/* Checks embeddings float [n][CLIP_EMBEDDING] against those of the file, one by one. */
static inline void clip_check(const wt_file *golden, const char *name, const float *got, int n, double tolerance)
{
    float *expected = golden_f32(golden, name, -1);
    for (int i = 0; i < n; i++) {
        const double error = relative_error(got + i * CLIP_EMBEDDING, expected + i * CLIP_EMBEDDING, CLIP_EMBEDDING);
        if (!(error <= tolerance)) fail_msg("%s %d: relative error %.3g, allowed %.3g", name, i, error, tolerance);
    }
    free(expected);
}

#endif
