/* The built-in model with a language model between MAR's towers: the digits of its images are those of the prompts. */
#include "tests/support/demo.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

enum { IMAGES = 20, DIGITS = 3 * IMAGES };

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
    assert_true(width == DEMO_SIDE && height == DEMO_SIDE);
    return rgb;
}

TEST_CASE(one_digit)
{
    static uint8_t images[IMAGES * DEMO_BYTES];
    int label[IMAGES];
    mar *m = NULL;
    mar_pipeline *p = open_pipeline(&m);
    for (int i = 0; i < IMAGES; i++) {
        char prompt[64];
        snprintf(prompt, sizeof prompt, "a %s %s", i < 10 ? "bold" : "thin", demo_names[i % 10]);
        uint8_t *rgb = draw(m, p, prompt, i);
        memcpy(images + i * DEMO_BYTES, rgb, DEMO_BYTES);
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
    static uint8_t cells[DIGITS * DEMO_BYTES];
    int label[DIGITS];
    mar *m = NULL;
    mar_pipeline *p = open_pipeline(&m);
    for (int i = 0; i < DIGITS; i++) label[i] = (7 * i + i / 10) % 10;
    for (int i = 0; i < IMAGES; i++) {
        char prompt[64];
        snprintf(prompt, sizeof prompt, "three digits: %d %d %d", label[3 * i], label[3 * i + 1], label[3 * i + 2]);
        uint8_t *rgb = draw(m, p, prompt, i);
        for (int place = 0; place < 3; place++) demo_enlarge(rgb, place, cells + (3 * i + place) * DEMO_BYTES);
        mar_rgb_free(rgb);
    }
    const int found = demo_recognised(cells, label, DIGITS);
    if (found < 54) fail_msg("%d of %d digits recognised", found, DIGITS);
    mar_pipeline_free(p);
    mar_close(m);
}
