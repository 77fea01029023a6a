#include "tests/support/demo.h"

#include "mar_measure.h"

#include "eval/classifier.h"

#include <math.h>
#include <string.h>

static const int labels[DEMO_BATCH] = {3, 4, 1};

demo demo_open(int threads)
{
    return demo_open_in(MAR_DTYPE_F32, threads);
}

demo demo_open_in(mar_dtype dtype, int threads)
{
    demo d = {.m = open_mar(dtype, threads)};
    if (!d.m) return d;
    assert_library(d.m, mar_model_load(d.m, "demo", 0, &d.model));
    assert_library(d.m, mar_model_load(d.m, "demo-draft", 0, &d.draft));
    assert_library(d.m, mar_vae_load(d.m, "demo", &d.vae));
    return d;
}

const struct demo_run demo_runs[DEMO_RUNS] = {
    {"num_iter 4, num_sampling_steps 8, cfg 2.9", 0},
    {"num_iter 4, num_sampling_steps 8, cfg 1", 0},
    {"num_iter 8, num_sampling_steps 14, cfg 2.9, lazy on, lazy_head on", 0},
    {"gtr on, gtr_generation_steps 3, num_sampling_steps 8, gtr_sampling_steps 4, cfg 2.9", 0},
    {"num_iter 4, num_sampling_steps 12, cfg 2.9, head_spec 4", 0},
    {"num_iter 4, num_sampling_steps 12, cfg 2.9, head_spec 4", 1},
    {"num_iter 8, num_sampling_steps 8, cfg 2.9, spec conditional, gamma 3", 1},
    {"num_iter 6, num_sampling_steps 4, cfg 2.9, spec paper, gamma 3, context full", 1},
    {"num_iter 6, num_sampling_steps 4, cfg 2.9, spec cspd, gamma 3, prefill 0", 1},
    {"num_iter 4, num_sampling_steps 8, cfg 2.9, sampler ddim", 0},
    {"num_iter 4, num_sampling_steps 8, cfg 2.9, sampler dpmpp", 0},
    {"num_iter 4, cfg 2.9, diff_annealing linear, diff_upper_steps 9", 0},
};

mar_params demo_params(const demo *d, int run)
{
    mar_params p = params_with(demo_runs[run].options);
    if (demo_runs[run].draft) p.draft = d->draft;
    return p;
}

void demo_close(demo d)
{
    mar_vae_free(d.vae);
    mar_model_free(d.draft);
    mar_model_free(d.model);
    mar_close(d.m);
}

mar_session *demo_session(const demo *d, const mar_params *p, int batch)
{
    mar_session *s;
    assert_library(d->m, mar_session_create(d->model, d->vae, p, batch, &s));
    return s;
}

void demo_begin(mar_session *s, int n)
{
    assert_session(s, mar_session_begin(s, DEMO_FIRST, labels, n));
}

void demo_finish(mar_session *s)
{
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
}

void demo_generate(mar_session *s, int n, float *tokens)
{
    demo_begin(s, n);
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
}

mar_status demo_run(mar_session *s, int n)
{
    mar_status status = mar_session_begin(s, DEMO_FIRST, labels, n);
    while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
    return status;
}

void demo_assert_dropped(mar_session *s, const char *why)
{
    static float tokens[DEMO_BATCH * DEMO_TOKENS];
    static uint8_t rgb[DEMO_BATCH * DEMO_BYTES];
    static int late[DEMO_BATCH * DEMO_SEQ];
    assert_int_equal(mar_session_done(s), 1);
    assert_int_equal(mar_session_steps_left(s), 0);
    assert_int_equal(mar_session_step(s), MAR_EARG);
    assert_int_equal(mar_session_tokens(s, tokens), MAR_EARG);
    assert_says(mar_session_error(s), why);
    assert_int_equal(mar_session_images(s, rgb), MAR_EARG);
    assert_says(mar_session_error(s), why);
    assert_int_equal(mar_session_token_status(s, NULL, NULL), MAR_EARG);
    assert_says(mar_session_error(s), why);
    assert_int_equal(mar_session_staleness(s, late), MAR_EARG);
    assert_says(mar_session_error(s), why);
}

int demo_recognised(const uint8_t *rgb, const int *label, int n)
{
    eval_classifier *judge;
    char why[256];
    int right = 0;
    assert_int_equal(eval_classifier_open(&judge, why, sizeof why), MAR_OK);
    for (int i = 0; i < n; i++) {
        float logits[EVAL_DIGITS];
        int best = 0;
        eval_classify(judge, rgb + (size_t)i * DEMO_BYTES, NULL, logits);
        for (int c = 1; c < EVAL_DIGITS; c++)
            if (logits[c] > logits[best]) best = c;
        right += best == label[i];
    }
    eval_classifier_close(judge);
    return right;
}

const char *const demo_names[10] = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"};

enum { CELL = 22, ROWS = 24 }; /* CELL and ROWS of demo/digits.py */

/* Returns a colour between pixels, x and y in pixels from the first one's centre. */
static uint8_t sample(const uint8_t *rgb, float x, float y, int colour)
{
    const int left = (int)fminf(fmaxf(x, 0), DEMO_SIDE - 2), top = (int)fminf(fmaxf(y, 0), DEMO_SIDE - 2);
    const float right = fminf(fmaxf(x - (float)left, 0), 1), down = fminf(fmaxf(y - (float)top, 0), 1);
    const uint8_t *at = rgb + 3 * (top * DEMO_SIDE + left) + colour;
    const float above = (float)at[0] * (1 - right) + (float)at[3] * right;
    const float below = (float)at[3 * DEMO_SIDE] * (1 - right) + (float)at[3 * DEMO_SIDE + 3] * right;
    return (uint8_t)lrintf(above * (1 - down) + below * down);
}

void demo_enlarge(const uint8_t *rgb, int place, uint8_t out[DEMO_BYTES])
{
    const int margin = (DEMO_SIDE - CELL) / 2;
    for (int i = 0; i < DEMO_BYTES; i++) {
        const int x = i / 3 % DEMO_SIDE - margin, y = i / 3 / DEMO_SIDE;
        const float from_x = ((float)(place * CELL + x) + 0.5f) * DEMO_SIDE / (3 * CELL) - 0.5f;
        const float from_y = ((float)y + 0.5f) * ROWS / DEMO_SIDE - 0.5f + (DEMO_SIDE - ROWS) / 2;
        out[i] = x < 0 || x >= CELL ? 0 : sample(rgb, from_x, from_y, i % 3);
    }
}

void assert_says(const char *error, const char *what)
{
    if (!strstr(error, what)) fail_msg("\"%s\" does not say \"%s\"", error, what);
}
