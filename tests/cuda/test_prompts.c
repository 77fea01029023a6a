/* Models of prompts with continuous tokens on the CUDA backend, through the public API, against the CPU in f32:
 * Harmon's language model between MAR's towers, and NextStep-1 and 1.1. */
#include "mar.h"
#include "mar_measure.h"
#include "mar/core/handle.h"
#include "tests/support/device.h"
#include "tests/support/nextstep.h"

#include <stdlib.h>

enum { IMAGES = 2, WORDS = 5 };

typedef struct {
    mar *m;
    mar_model *model;
    mar_session *s;
    float *ids; /* [IMAGES + 1][positions] the last is the second branch's */
    uint8_t *mask;
} prompted;

static prompted open_prompted(const char *folder, const char *size, const char *list, mar_backend backend,
                              mar_dtype dtype)
{
    mar_params p;
    mar_options options;
    prompted l = {0};
    mar_options_init(&options, sizeof options);
    options.dtype = dtype, options.threads = 1, options.backend = backend, options.image_size = size;
    mar_params_init(&p, sizeof p);
    p = params_set(p, list);
    assert_library(l.m, mar_open(&options, &l.m));
    assert_library(l.m, mar_model_load(l.m, folder, 0, &l.model));
    assert_library(l.m, mar_session_create(l.model, NULL, &p, IMAGES, &l.s));
    const size_t positions = (size_t)mar_model_get_config(l.model)->caption_tokens, n = (IMAGES + 1) * positions;
    l.ids = calloc(n, sizeof *l.ids);
    l.mask = calloc(n, 1);
    assert_true(l.ids && l.mask);
    for (size_t i = 0; i <= IMAGES; i++)
        for (size_t j = positions - WORDS - i; j < positions; j++) {
            l.ids[i * positions + j] = (float)(7 * i + j % 31);
            l.mask[i * positions + j] = 1;
        }
    assert_session(l.s, mar_session_set_negative(l.s, l.ids + IMAGES * positions, l.mask + IMAGES * positions));
    return l;
}

static void close_prompted(prompted *l)
{
    mar_session_free(l->s);
    mar_model_free(l->model);
    mar_close(l->m);
    free(l->ids);
    free(l->mask);
}

static void make(const prompted *l, float *tokens)
{
    assert_session(l->s, mar_session_begin_captions(l->s, 5, l->ids, l->mask, IMAGES));
    while (!mar_session_done(l->s)) assert_session(l->s, mar_session_step(l->s));
    assert_session(l->s, mar_session_tokens(l->s, tokens));
}

/* Compares images of a model in a folder, n numbers each. */
static void compare(const char *folder, const char *size, const char *list, int n)
{
    float *expected = calloc((size_t)(IMAGES * n), sizeof *expected),
          *tokens = calloc((size_t)(IMAGES * n), sizeof *tokens);
    prompted cpu = open_prompted(folder, size, list, MAR_BACKEND_CPU, MAR_DTYPE_F32);
    prompted cuda = open_prompted(folder, size, list, MAR_BACKEND_CUDA, MAR_DTYPE_F32);
    assert_true(expected && tokens);
    make(&cpu, expected);
    for (int again = 0; again < (cuda_test_brief() ? 1 : 2); again++) { /* the prompts are there the second time */
        make(&cuda, tokens);
        assert_close(tokens, expected, (size_t)(IMAGES * n), 1e-3);
    }
    close_prompted(&cpu);
    close_prompted(&cuda);
    free(expected);
    free(tokens);
}

/* Compares the same in bf16, by cuBLASLt and by a transformer's own products: both are as near. */
static void compare_products(const char *folder, const char *size, const char *list, int n)
{
    float *tokens[3];
    double error[2];
    setenv("MAR_CUDA_PRODUCTS", "1", 1);
    const int has = cuda_has_asked();
    unsetenv("MAR_CUDA_PRODUCTS");
    if (!has) skip();
    for (int i = 0; i < 3; i++) {
        const int cpu = i == 2;
        assert_non_null(tokens[i] = calloc((size_t)(IMAGES * n), sizeof **tokens));
        setenv("MAR_CUDA_PRODUCTS", i == 1 ? "1" : "0", 1);
        prompted l = open_prompted(folder, size, list, cpu ? MAR_BACKEND_CPU : MAR_BACKEND_CUDA,
                                   cpu ? MAR_DTYPE_F32 : MAR_DTYPE_BF16);
        make(&l, tokens[i]);
        close_prompted(&l);
    }
    unsetenv("MAR_CUDA_PRODUCTS");
    for (int i = 0; i < 2; i++) error[i] = relative_error(tokens[i], tokens[2], (size_t)(IMAGES * n));
    if (!(error[1] <= 2 * error[0])) fail_msg("relative error %.3g, that of cuBLASLt %.3g", error[1], error[0]);
    for (int i = 0; i < 3; i++) free(tokens[i]);
}

static void harmon_is_the_cpus(void **state)
{
    const char *folder = test_directory();
    (void)state;
    harmon_write(folder, HARMON_FOLDER);
    compare(folder, NULL, "num_iter 5, num_sampling_steps 4, cfg 3", HARMON_SEQ * HARMON_CHANNELS);
    compare_products(folder, NULL, "num_iter 2, num_sampling_steps 4, cfg 3", HARMON_SEQ * HARMON_CHANNELS);
}

static void nextstep_is_the_cpus(void **state)
{
    static const struct {
        nextstep_kind kind;
        const char *options;
    } cases[] = {{NEXTSTEP_NEWER, "num_sampling_steps 4, cfg 3"},
                 {NEXTSTEP_POSITIONS, "num_sampling_steps 4, cfg 3, time_shift 2, cfg_schedule linear"}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *folder = test_directory();
        nextstep_write(folder, cases[i].kind);
        compare(folder, "64x64", cases[i].options, NEXTSTEP_SEQ * NEXTSTEP_CHANNELS);
        if (i == 0) compare_products(folder, "64x64", cases[i].options, NEXTSTEP_SEQ * NEXTSTEP_CHANNELS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(harmon_is_the_cpus), cmocka_unit_test(nextstep_is_the_cpus)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
