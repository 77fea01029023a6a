/* The built-in NextStep-1: the digits of its images are those of the prompts, with accelerators and in few bits, too.
 */
#include "mar_measure.h"
#include "tests/support/brief.h"
#include "tests/support/demo.h"
#include "tests/support/raster.h"
#include "tests/support/statistics.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 20, DIGITS = 3 * IMAGES, SEQ = 16, CHANNELS = 16, TOKENS = SEQ * CHANNELS };
static const char name[] = "demo-nextstep";
static const struct {
    mar_dtype dtype;
    const char *name;
    double most; /* distance of the head's conditions from those of f32, relative to them */
} dtypes[] = {{MAR_DTYPE_BF16, "bf16", 0.02}, {MAR_DTYPE_INT8, "int8", 0.05}, {MAR_DTYPE_INT4, "int4", 0.3}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* Opens the demo with n prompts of `each` digits, whose labels are [n][each]. */
static harmon open_prompts(mar_dtype dtype, int n, int each, int *label)
{
    char text[IMAGES][64];
    const char *prompts[IMAGES];
    for (int i = 0; i < n; i++) {
        const int *l = &label[i * each];
        for (int j = 0; j < each; j++)
            label[i * each + j] = each == 1 ? i % 10 : (7 * (3 * i + j) + (3 * i + j) / 10) % 10;
        if (each == 1)
            snprintf(text[i], sizeof text[i], "a %s %s", i < 10 ? "bold" : "thin", demo_names[*l]);
        else
            snprintf(text[i], sizeof text[i], "three digits: %d %d %d", l[0], l[1], l[2]);
        prompts[i] = text[i];
    }
    return harmon_open_paths(name, name, name, dtype, NULL, prompts, n, NULL);
}

static mar_params own_params(const char *options)
{
    mar_params p;
    mar_params_init(&p, sizeof p);
    return *options ? params_set(p, options) : p;
}

/* Makes one image of each prompt, with the model's guidance and steps where `options` has no others. */
static mar_stats draw(const harmon *h, const char *options, uint64_t first, float *tokens, uint8_t *rgb)
{
    const mar_params p = own_params(options);
    mar_stats stats;
    mar_session *s = harmon_session(h, &p, h->prompts);
    assert_session(s, mar_session_begin_captions(s, first, h->ids, h->mask, h->prompts));
    demo_finish(s);
    if (tokens) assert_session(s, mar_session_tokens(s, tokens));
    if (rgb) assert_session(s, mar_session_images(s, rgb));
    mar_stats_init(&stats, sizeof stats);
    mar_session_get_stats(s, &stats);
    mar_session_free(s);
    return stats;
}

/* Checks that nine tenths of the digits are recognised; weights/demo/README.md says how many are of more images. */
static void check_digits(mar_dtype dtype, int each, const char *options)
{
    static uint8_t images[IMAGES * DEMO_BYTES], cells[DIGITS * DEMO_BYTES];
    int label[DIGITS];
    harmon h = open_prompts(dtype, IMAGES, each, label);
    draw(&h, options, 0, NULL, images);
    for (int i = 0; each == 3 && i < DIGITS; i++)
        demo_enlarge(images + i / 3 * DEMO_BYTES, i % 3, cells + i * DEMO_BYTES);
    const int found = demo_recognised(each == 3 ? cells : images, label, each * IMAGES);
    print_message("\"%s\": %d of %d digits\n", options, found, each * IMAGES);
    if (10 * found < 9 * each * IMAGES) fail_msg("%d of %d digits recognised", found, each * IMAGES);
    harmon_close(&h);
}

TEST_CASE(one_digit)
{
    check_digits(MAR_DTYPE_F32, 1, "");
}

TEST_CASE(three_digits)
{
    check_digits(MAR_DTYPE_F32, 3, "");
}

TEST_CASE(digits_with_accelerators)
{
    check_digits(MAR_DTYPE_F32, 1, "head_spec 16");
    check_digits(MAR_DTYPE_F32, 3, "head_spec 8");
    check_digits(MAR_DTYPE_F32, 1, "diff_annealing linear");
    check_digits(MAR_DTYPE_F32, 3, "diff_annealing linear, head_spec 16");
}

/* Returns 0 if the processor has no arithmetic of this type. */
static int can_compute(mar_dtype dtype)
{
    mar *m = open_mar(dtype, 1);
    mar_close(m);
    return m != NULL;
}

TEST_CASE(digits_in_few_bits)
{
    for (int i = 0; i < DTYPES; i++) {
        print_message("%s\n", dtypes[i].name);
        for (int each = 1; can_compute(dtypes[i].dtype) && each <= 3; each += 2)
            check_digits(dtypes[i].dtype, each, "");
    }
}

/* The conditions of the head behind given tokens. */
TEST_CASE(rows_in_few_bits)
{
    float tokens[TOKENS];
    int label[1];
    harmon h = open_prompts(MAR_DTYPE_F32, 1, 1, label);
    const int n = 2 * SEQ * mar_model_get_config(h.model)->width;
    draw(&h, "", 0, tokens, NULL);
    float *exact = raster_conditions(&h, tokens, SEQ - 1, 1, KERN_CACHE_ACT);
    harmon_close(&h);
    for (int i = 0; i < DTYPES; i++) {
        double away = 0, all = 0;
        if (!can_compute(dtypes[i].dtype)) continue;
        h = open_prompts(dtypes[i].dtype, 1, 1, label);
        float *rows = raster_conditions(&h, tokens, SEQ - 1, 1, KERN_CACHE_ACT);
        for (int j = 0; j < n; j++) {
            away += ((double)rows[j] - (double)exact[j]) * ((double)rows[j] - (double)exact[j]);
            all += (double)exact[j] * (double)exact[j];
        }
        print_message("%s: %.4f from f32\n", dtypes[i].name, sqrt(away / all));
        assert_true(away > 0 && sqrt(away / all) < dtypes[i].most);
        free(rows);
        harmon_close(&h);
    }
    free(exact);
}

/* --- speculation inside the head ---------------------------------------------------------------------------------- */

enum { BATCHES = test_brief ? 1 : test_all ? 20 : 8, N = BATCHES * IMAGES };

/* Draws N images, tokens [N][TOKENS]. */
static mar_stats draw_many(const harmon *h, const char *options, uint64_t first, float *tokens)
{
    mar_stats stats = {0};
    for (int i = 0; i < BATCHES; i++)
        stats = draw(h, options, first + (uint64_t)(i * IMAGES), tokens + (size_t)i * IMAGES * TOKENS, NULL);
    return stats;
}

/* Returns whether images are distributed as plain ones: the energy distance of whole images, and Kolmogorov-Smirnov's
 * test of every number. */
static int same_law(const float *x, const float *plain)
{
    const double energy = stat_energy_p(x, plain, N, TOKENS, 0, 5);
    float a[N], b[N];
    double least = 1;
    for (int c = 0; c < TOKENS; c++) {
        for (int i = 0; i < N; i++) a[i] = x[i * TOKENS + c], b[i] = plain[i * TOKENS + c];
        least = fmin(least, stat_ks_two_sample_p(a, N, b, N));
    }
    print_message("    energy distance p = %.2f, least Kolmogorov-Smirnov p = %.2g of %d\n", energy, least, TOKENS);
    return energy > 0.01 && least > 1e-6;
}

/* A colder chain is told from the plain one by the same tests. */
TEST_CASE(speculation_inside_the_head)
{
    const char *prompts[IMAGES];
    float *plain = malloc(2 * (size_t)N * TOKENS * sizeof *plain), *x = plain + (size_t)N * TOKENS;
    assert_non_null(plain);
    for (int i = 0; i < IMAGES; i++) prompts[i] = "a seven";
    harmon h = harmon_open_paths(name, name, name, MAR_DTYPE_F32, NULL, prompts, IMAGES, NULL);
    draw_many(&h, "", 0, plain);
    const mar_stats stats = draw_many(&h, "head_spec 16", 100000, x);
    print_message("%.2f calls a token of 50\n", stats.head_calls / (double)stats.tokens);
    assert_true(stats.head_calls / (double)stats.tokens < 25);
    assert_true(same_law(x, plain));
    draw_many(&h, "temperature 0.5", 200000, x);
    assert_true(test_brief || !same_law(x, plain));
    free(plain);
    harmon_close(&h);
}
