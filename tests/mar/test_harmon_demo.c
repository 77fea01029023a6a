/* The built-in model with a language model between MAR's towers: the digits of its images are those of the prompts. */
#include "tests/support/demo.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SIDE = 32, PIXELS = SIDE * SIDE * 3, IMAGES = 20, CELL = 22, ROWS = 24, DIGITS = 3 * IMAGES };

static mar_pipeline *open_pipeline(mar **m)
{
    mar_options options;
    mar_pipeline *p;
    mar_options_init(&options, sizeof options);
    options.dtype = MAR_DTYPE_F32;
    options.threads = 2;
    assert_library(*m, mar_open(&options, m));
    assert_library(*m, mar_pipeline_load(*m, "demo-harmon", NULL, NULL, &p));
    return p;
}

/* Makes image `image` of the prompt with the model's guidance and few steps. The caller frees it. */
static uint8_t *draw(mar *m, mar_pipeline *p, const char *prompt, int image)
{
    mar_params params;
    mar_job job;
    uint8_t *rgb;
    int width, height;
    mar_params_init(&params, sizeof params);
    params.cfg = 3;
    params.cfg_schedule = MAR_CFG_CONSTANT;
    params.num_iter = 32;
    params.num_sampling_steps = 50;
    mar_job_init(&job, sizeof job);
    job.prompt = prompt;
    job.image = (uint64_t)image;
    job.params = &params;
    assert_library(m, mar_generate(p, &job, &rgb, &width, &height));
    assert_true(width == SIDE && height == SIDE);
    return rgb;
}

/* Returns a colour between pixels, x and y in pixels from the first one's centre. */
static uint8_t sample(const uint8_t *rgb, float x, float y, int colour)
{
    const int left = (int)fminf(fmaxf(x, 0), SIDE - 2), top = (int)fminf(fmaxf(y, 0), SIDE - 2);
    const float right = fminf(fmaxf(x - (float)left, 0), 1), down = fminf(fmaxf(y - (float)top, 0), 1);
    const uint8_t *at = rgb + 3 * (top * SIDE + left) + colour;
    const float above = (float)at[0] * (1 - right) + (float)at[3] * right;
    const float below = (float)at[3 * SIDE] * (1 - right) + (float)at[3 * SIDE + 3] * right;
    return (uint8_t)lrintf(above * (1 - down) + below * down);
}

/* Enlarges the digit at `place` of three in a row to a whole image (separate in demo/train_harmon.py). */
static void enlarge(const uint8_t *rgb, int place, uint8_t out[PIXELS])
{
    const int margin = (SIDE - CELL) / 2;
    for (int i = 0; i < PIXELS; i++) {
        const int x = i / 3 % SIDE - margin, y = i / 3 / SIDE;
        const float from_x = ((float)(place * CELL + x) + 0.5f) * SIDE / (3 * CELL) - 0.5f;
        const float from_y = ((float)y + 0.5f) * ROWS / SIDE - 0.5f + (SIDE - ROWS) / 2;
        out[i] = x < 0 || x >= CELL ? 0 : sample(rgb, from_x, from_y, i % 3);
    }
}

TEST_CASE(one_digit)
{
    static const char *const names[10] = {"zero", "one", "two",   "three", "four",
                                          "five", "six", "seven", "eight", "nine"};
    static uint8_t images[IMAGES * PIXELS];
    int label[IMAGES];
    mar *m = NULL;
    mar_pipeline *p = open_pipeline(&m);
    for (int i = 0; i < IMAGES; i++) {
        char prompt[64];
        snprintf(prompt, sizeof prompt, "a %s %s", i < 10 ? "bold" : "thin", names[i % 10]);
        uint8_t *rgb = draw(m, p, prompt, i);
        memcpy(images + i * PIXELS, rgb, PIXELS);
        label[i] = i % 10;
        mar_rgb_free(rgb);
    }
    const int found = demo_recognised(images, label, IMAGES);
    if (found < 18) fail_msg("%d of %d digits recognised", found, IMAGES);
    mar_pipeline_free(p);
    mar_close(m);
}

TEST_CASE(three_digits)
{
    static uint8_t cells[DIGITS * PIXELS];
    int label[DIGITS];
    mar *m = NULL;
    mar_pipeline *p = open_pipeline(&m);
    for (int i = 0; i < DIGITS; i++) label[i] = (7 * i + i / 10) % 10;
    for (int i = 0; i < IMAGES; i++) {
        char prompt[64];
        snprintf(prompt, sizeof prompt, "three digits: %d %d %d", label[3 * i], label[3 * i + 1], label[3 * i + 2]);
        uint8_t *rgb = draw(m, p, prompt, i);
        for (int place = 0; place < 3; place++) enlarge(rgb, place, cells + (3 * i + place) * PIXELS);
        mar_rgb_free(rgb);
    }
    const int found = demo_recognised(cells, label, DIGITS);
    if (found < 54) fail_msg("%d of %d digits recognised", found, DIGITS);
    mar_pipeline_free(p);
    mar_close(m);
}
