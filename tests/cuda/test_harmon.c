/* Harmon's language model between MAR's towers on the CUDA backend, through the public API, against the CPU in f32. */
#include "mar.h"
#include "mar_measure.h"
#include "mar/core/handle.h"
#include "tests/support/device.h"
#include "tests/support/harmon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { IMAGES = 2, TOKENS = HARMON_SEQ * HARMON_CHANNELS, WORDS = 5 };

typedef struct {
    mar *m;
    mar_model *model;
    mar_session *s;
    float *ids; /* [IMAGES + 1][positions] the last is the second branch's */
    uint8_t *mask;
} library;

static library open_library(const char *folder, mar_backend backend, mar_dtype dtype)
{
    const mar_params p = params_with("num_iter 5, num_sampling_steps 4, cfg 3, cfg_schedule constant");
    mar_options options;
    library l = {0};
    mar_options_init(&options, sizeof options);
    options.dtype = dtype, options.threads = 1, options.backend = backend;
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

static void close_library(library *l)
{
    mar_session_free(l->s);
    mar_model_free(l->model);
    mar_close(l->m);
    free(l->ids);
    free(l->mask);
}

static void make(const library *l, float *tokens)
{
    assert_session(l->s, mar_session_begin_captions(l->s, 5, l->ids, l->mask, IMAGES));
    while (!mar_session_done(l->s)) assert_session(l->s, mar_session_step(l->s));
    assert_session(l->s, mar_session_tokens(l->s, tokens));
}

static void is_the_cpu(void **state)
{
    char folder[] = "/tmp/mar-test-XXXXXX", path[64];
    float expected[IMAGES * TOKENS], tokens[IMAGES * TOKENS];
    (void)state;
    assert_non_null(mkdtemp(folder));
    harmon_write(folder, HARMON_FOLDER);
    library cpu = open_library(folder, MAR_BACKEND_CPU, MAR_DTYPE_F32);
    library cuda = open_library(folder, MAR_BACKEND_CUDA, MAR_DTYPE_F32);
    make(&cpu, expected);
    for (int again = 0; again < (cuda_test_brief() ? 1 : 2); again++) { /* the prompts are there the second time */
        make(&cuda, tokens);
        assert_close(tokens, expected, IMAGES * TOKENS, 1e-3);
    }
    close_library(&cpu);
    close_library(&cuda);
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_the_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
