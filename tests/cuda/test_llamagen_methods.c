/* LlamaGen's models with the CUDA backend, through the public API, against the CPU in f32. The cases cover every method
 * to draft and verify discrete tokens. */
#include "mar.h"
#include "mar_measure.h"
#include "tests/support/device.h"
#include "tests/support/llamagen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 16, BATCH = 2, TOKENS = BATCH * SEQ, RGB = BATCH * 16 * 16 * 3 }; /* sizes of small_llamagen with vq.pth */

static const int labels[BATCH] = {3, 0};

typedef struct {
    char *directory, *target, *draft, *vq;
} files;

static int set_up(void **state)
{
    files *f = *state = calloc(1, sizeof *f);
    family_facts c = small_llamagen();
    assert_non_null(f);
    c.shape.heads = 1; /* attention over heads is slowest on a host; tests/ops/test_attention.c has more heads */
    f->directory = temporary_directory();
    f->target = write_llamagen(f->directory, "target.safetensors", &c, 1, 0, 1);
    f->draft = write_llamagen(f->directory, "draft.safetensors", &c, 1, 0.4, 1);
    f->vq = copy_vq(f->directory);
    return 0;
}

static int tear_down(void **state)
{
    files *f = *state;
    remove_directory(f->directory);
    free(f->target), free(f->draft), free(f->vq), free(f->directory), free(f);
    return 0;
}

static const struct {
    const char *params;
    int drafts, batches; /* the second batch is recorded if it was not before; the third replays */
    const char *costs;   /* NULL: none */
} cases[] = {
    {"cfg 2", 0, 3, NULL},
    {"cfg 2, temperature 0", 0, 1, NULL},
    {"cfg 1, temperature 0.8, top_k 7, top_p 0.9", 0, 1, NULL},
    {"cfg 4, cfg_interval 5", 0, 1, NULL},
    {"cfg 2, gamma 3", 1, 2, NULL},
    {"cfg 2, gamma 3, temperature 0", 1, 1, NULL},
    {"cfg 2, top_k 9, tree static", 1, 1, NULL},
    {"cfg 2, tree dynamic, gamma 4, tree_top 3, tree_total 9", 1, 1, NULL},
    {"cfg 2, spec cool-sd-exp, cool_nu 0.5, gamma 4", 1, 1, NULL},
    {"cfg 1, spec lantern, lantern_k 8, gamma 4", 1, 1, NULL},
    {"cfg 1, spec lantern-pp-gstar, lantern_lambda 3, gamma 3", 1, 1, NULL},
    {"cfg 2, spec sjd, window 6, first left", 0, 1, NULL},
    {"cfg 2, spec sjd-pac, window 8, first above", 0, 2, NULL},
    {"cfg 2, spec sjd-pac, window 16, temperature 0", 0, 1, NULL},
    {"cfg 2, spec scd, window 8, pac_children 4, first above", 0, 2, NULL},
    {"cfg 2, spec scd, window 16, temperature 0", 0, 1, NULL},
    {"cfg 2, spec sjd-pac, first above", 0, 2, "1.01,1.02,1.1,1.4"},
    {"cfg 2, spec scd", 0, 2, "1.05,2,3,4"},
};
enum { CASES = sizeof cases / sizeof *cases };

static mar_session *open_session(const library *l, int i)
{
    mar_session *s = NULL;
    mar_params p;
    mar_params_init(&p, sizeof p);
    p = params_set(p, cases[i].params);
    p.draft = cases[i].drafts ? l->draft : NULL;
    p.round_costs = cases[i].costs;
    assert_library(l->m, mar_session_create(l->model, l->vae, &p, BATCH, &s));
    return s;
}

static void make(mar_session *s, uint64_t first, float *tokens)
{
    assert_session(s, mar_session_begin(s, first, labels, BATCH));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
}

/* Makes images by requests: the second begins beside the first, the third in the place of one of them. Their guidance
 * differs, and the second has known tokens. */
static void make_requests(mar_session *s, float *tokens)
{
    enum { REQUESTS = 3, KNOWN = 6 };
    float given[SEQ];
    uint8_t known[SEQ];
    uint64_t id[REQUESTS];
    for (int k = 0; k < SEQ; k++) given[k] = (float)(3 * k % 50), known[k] = k < KNOWN;
    for (int i = 0; i < REQUESTS; i++) {
        mar_request r;
        mar_request_init(s, &r, sizeof r);
        r.label = i, r.seed = (uint64_t)i, r.cfg = 1 + 0.8f * (float)i;
        if (i == 1) r.tokens = given, r.known = known;
        assert_session(s, mar_session_submit(s, &r, &id[i]));
        for (int step = 0; i == 0 && step < 3; step++) assert_session(s, mar_session_step(s));
    }
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    for (int i = 0; i < REQUESTS; i++) assert_session(s, mar_session_take(s, id[i], tokens + i * SEQ, NULL));
    for (int k = 0; k < KNOWN; k++) assert_true(tokens[SEQ + k] == given[k]);
}

/* Checks that tokens are equal, but for images in which a decision fell otherwise. */
static void f32_is_the_cpu(void **state)
{
    const files *f = *state;
    library cpu = open_library(MAR_BACKEND_CPU, MAR_DTYPE_F32, f->target, f->draft, f->vq);
    library cuda = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_F32, f->target, f->draft, f->vq);
    for (int i = 0; i < CASES; i++) {
        if (cuda_test_brief() && i % 4) continue;
        mar_session *a = open_session(&cpu, i), *b = open_session(&cuda, i);
        int others = 0;
        for (int j = 0; j < cases[i].batches; j++) {
            float expected[TOKENS], tokens[TOKENS];
            make(a, 5 + (uint64_t)j, expected);
            make(b, 5 + (uint64_t)j, tokens);
            count_other_images(tokens, expected, BATCH, SEQ, 0, &others);
        }
        mar_stats stats = {.size = sizeof stats}, theirs = {.size = sizeof theirs};
        mar_session_get_stats(a, &theirs);
        mar_session_get_stats(b, &stats);
        expect_decisions(cases[i].params, &stats, &theirs, others, theirs.drafted + cases[i].batches * TOKENS, SEQ);
        if (i == 0 && others == 0) {
            static uint8_t rgb[RGB], theirs_rgb[RGB];
            assert_session(a, mar_session_images(a, theirs_rgb));
            assert_session(b, mar_session_images(b, rgb));
            for (int k = 0; k < RGB; k++) assert_true(abs(rgb[k] - theirs_rgb[k]) <= 1);
        }
        if (i == 0 || i == CASES - 2) {
            float expected[3 * SEQ], tokens[3 * SEQ];
            make_requests(a, expected);
            make_requests(b, tokens);
            others = 0;
            count_other_images(tokens, expected, 3, SEQ, 0, &others);
            assert_true(others <= flips_allowed(3 * SEQ));
        }
        mar_session_free(a);
        mar_session_free(b);
    }
    close_library(&cpu);
    close_library(&cuda);
}

/* Checks that bf16 runs repeat their tokens, recorded or not. The tokens differ from those of f32. */
static void bf16_repeats_itself(void **state)
{
    const files *f = *state;
    library l = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, f->target, f->draft, f->vq);
    for (int i = 0; i < CASES; i += 6) {
        float tokens[TOKENS], again[TOKENS];
        mar_session *s = open_session(&l, i);
        make(s, 5, tokens);
        make(s, 5, again);
        assert_memory_equal(again, tokens, sizeof tokens);
        for (int k = 0; k < TOKENS; k++) assert_true(tokens[k] >= 0 && tokens[k] < 50);
        mar_session_free(s);
    }
    close_library(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_is_the_cpu),
        cmocka_unit_test(bf16_repeats_itself),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
