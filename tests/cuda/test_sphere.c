/* SphereAR's loop on the CUDA backend, through the public API, against the CPU in f32. */
#include "mar.h"
#include "mar_measure.h"
#include "mar/core/handle.h"
#include "tests/support/device.h"

#include <string.h>

#define MODEL "tests/golden/data/sphere_model.safetensors"

enum { SEQ = 16, CHANNELS = 8, TOKENS = SEQ * CHANNELS, BATCH = 2 }; /* of the golden model */

static const int labels[BATCH] = {1, 3};

/* Makes BATCH images three times: with a session's second batch its steps are recorded, the third replays them. */
static mar_stats make(const library *l, const mar_params *params, int batches, float *tokens)
{
    mar_params p = *params;
    mar_session *s = NULL;
    mar_stats stats;
    mar_stats_init(&stats, sizeof stats);
    if (p.spec) p.draft = l->draft;
    assert_library(l->m, mar_session_create(l->model, NULL, &p, BATCH, &s));
    for (int i = 0; i < batches; i++) {
        assert_session(s, mar_session_begin(s, 5 + (uint64_t)i * BATCH, labels, BATCH));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_tokens(s, tokens + i * BATCH * TOKENS));
    }
    mar_session_get_stats(s, &stats);
    mar_session_free(s);
    return stats;
}

static const struct {
    const char *name, *params;
    int batches; /* 0: none with little time */
} cases[] = {
    {"plain", "num_iter 0, num_sampling_steps 4, cfg 3", 3},
    {"no guidance", "num_iter 0, num_sampling_steps 3, cfg 1", 0},
    {"dpmpp", "num_iter 0, num_sampling_steps 3, cfg 2, cfg_schedule constant, sampler dpmpp", 0},
    {"head_spec", "num_iter 0, num_sampling_steps 6, cfg 3, head_spec 3", 1},
    {"path", "num_iter 0, num_sampling_steps 3, cfg 3, spec path, gamma 3", 1},
};
enum { CASES = sizeof cases / sizeof *cases, BATCHES = 3 };

static void f32_is_the_cpu(void **state)
{
    (void)state;
    library cpu = open_library(MAR_BACKEND_CPU, MAR_DTYPE_F32, MODEL, MODEL, NULL),
            cuda = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_F32, MODEL, MODEL, NULL);
    for (int i = 0; i < CASES; i++) {
        const mar_params p = params_with(cases[i].params);
        const int batches = cases[i].batches && !cuda_test_brief() ? cases[i].batches : 1;
        if (cases[i].batches == 0 && cuda_test_brief()) continue;
        float expected[BATCHES * BATCH * TOKENS], tokens[BATCHES * BATCH * TOKENS];
        const mar_stats theirs = make(&cpu, &p, batches, expected), stats = make(&cuda, &p, batches, tokens);
        int others = 0;
        count_other_images(tokens, expected, batches * BATCH, TOKENS, 1e-3, &others);
        expect_decisions(cases[i].name, &stats, &theirs, others, theirs.drafted + theirs.proposals, SEQ);
        assert_true(others > 0 || stats.head_calls == theirs.head_calls);
    }
    close_library(&cpu);
    close_library(&cuda);
}

/* In bf16 the same products round otherwise: the chain's noise covers most of it. */
static void bf16_is_close(void **state)
{
    (void)state;
    library cpu = open_library(MAR_BACKEND_CPU, MAR_DTYPE_F32, MODEL, MODEL, NULL),
            cuda = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, MODEL, MODEL, NULL);
    const mar_params p = params_with(cases[0].params);
    float expected[BATCH * TOKENS], tokens[BATCH * TOKENS];
    make(&cpu, &p, 1, expected);
    make(&cuda, &p, 1, tokens);
    assert_close(tokens, expected, BATCH * TOKENS, 5e-2);
    close_library(&cpu);
    close_library(&cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_is_the_cpu),
        cmocka_unit_test(bf16_is_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
