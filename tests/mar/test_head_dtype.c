/* Tests a head in f32 or f16 with a transformer in bf16: its purpose, its text in the handle's description, every use
 * of a head, and the end of FP16's range. Without bf16 in the processor the transformer is f32, and all checks hold as
 * well. */
#include "tests/support/changed.h"

#include "mar_measure.h"
#include "tests/support/demo.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, TOKENS = DEMO_TOKENS };

typedef struct {
    int warnings;
    char line[512]; /* the last warning */
} journal;

static void keep_warnings(void *user, mar_log_level level, const char *line)
{
    journal *j = user;
    if (level != MAR_LOG_WARNING) return;
    j->warnings++;
    snprintf(j->line, sizeof j->line, "%s", line);
}

/* Opens a handle on the CPU. dtype is bf16 where the processor has it. */
static demo open_file(const char *path, mar_dtype dtype, mar_dtype head, journal *j)
{
    demo d = {0};
    const mar_options options = {.size = sizeof options,
                                 .dtype = dtype,
                                 .head_dtype = head,
                                 .threads = 2,
                                 .backend = MAR_BACKEND_CPU,
                                 .log = j ? keep_warnings : NULL,
                                 .log_user = j};
    assert_int_equal(mar_open(&options, &d.m), MAR_OK);
    assert_library(d.m, mar_model_load(d.m, path, 0, &d.model));
    return d;
}

static demo open_demo(mar_dtype dtype, mar_dtype head, journal *j)
{
    return open_file("demo", dtype, head, j);
}

static int is_bf16(const demo *d)
{
    return strncmp(mar_backend_description(d->m), "cpu bf16", 8) == 0;
}

/* Generates the tokens of images 0..n-1, [n][TOKENS]; NULL: not wanted. */
static mar_stats generate(const demo *d, const mar_params *p, int n, float *tokens)
{
    int labels[N];
    mar_session *s;
    mar_stats stats = {.size = sizeof stats};
    for (int i = 0; i < n; i++) labels[i] = i;
    assert_library(d->m, mar_session_create(d->model, NULL, p, n, &s));
    assert_session(s, mar_session_begin(s, 0, labels, n));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    if (tokens) assert_session(s, mar_session_tokens(s, tokens));
    mar_session_get_stats(s, &stats);
    mar_session_free(s);
    return stats;
}

static mar_params path_params(void)
{
    mar_params p;
    mar_params_init(&p, sizeof p);
    p.spec = "path";
    p.gamma = 8;
    p.head_spec = 8;
    return p;
}

/* Tests acceptance of paths. The criterion compares two evaluations of one head at nearly equal conditions. */
TEST_CASE(paths_are_accepted_with_a_head_in_f32_or_f16)
{
    const mar_params p = path_params();
    for (int f16 = 0; f16 < 2; f16++) {
        demo d = open_demo(MAR_DTYPE_AUTO, f16 ? MAR_DTYPE_F16 : MAR_DTYPE_F32, NULL);
        const mar_stats stats = generate(&d, &p, f16 ? N : N / 2, NULL);
        const double accepted = (double)stats.accepted / (double)stats.drafted;
        print_message("%s: %.3f of %ld paths accepted\n", mar_backend_description(d.m), accepted, stats.drafted);
        assert_true(accepted > 0.8);
        demo_close(d);
    }
}

TEST_CASE(a_session_warns_of_a_head_in_bf16)
{
    mar_params path = path_params(), plain;
    mar_params_init(&plain, sizeof plain);
    for (int f32 = 0; f32 < 2; f32++) {
        journal j = {0};
        mar_session *s;
        demo d = open_demo(MAR_DTYPE_AUTO, f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO, &j);
        assert_library(d.m, mar_session_create(d.model, NULL, &plain, 1, &s));
        mar_session_free(s);
        assert_int_equal(j.warnings, 0);
        assert_library(d.m, mar_session_create(d.model, NULL, &path, 1, &s));
        mar_session_free(s);
        assert_int_equal(j.warnings, is_bf16(&d) && !f32);
        if (j.warnings)
            assert_string_equal(j.line, "criterion path with a head in bf16: its rounding alone rejects many drafts; "
                                        "--head_dtype f32 avoids that");
        demo_close(d);
    }
}

TEST_CASE(the_handle_says_it)
{
    demo d = open_demo(MAR_DTYPE_AUTO, MAR_DTYPE_AUTO, NULL), e = open_demo(MAR_DTYPE_AUTO, MAR_DTYPE_F32, NULL);
    demo f = open_demo(MAR_DTYPE_F32, MAR_DTYPE_F32, NULL), g = open_demo(MAR_DTYPE_F32, MAR_DTYPE_F16, NULL);
    const char *plain = mar_backend_description(d.m), *mixed = mar_backend_description(e.m);
    char expected[256];
    assert_null(strstr(plain, "head"));
    assert_null(strstr(mar_backend_description(f.m), "head"));
    assert_memory_equal(mar_backend_description(g.m), "cpu f32, head f16 (", 19);
    if (is_bf16(&d)) {
        snprintf(expected, sizeof expected, "cpu bf16, head f32%s", plain + strlen("cpu bf16"));
        assert_string_equal(mixed, expected);
    } else {
        assert_string_equal(mixed, plain);
    }
    demo_close(d), demo_close(e), demo_close(f), demo_close(g);
}

TEST_CASE(a_head_in_bf16_needs_it)
{
    const mar_options options = {.size = sizeof options,
                                 .dtype = MAR_DTYPE_F32,
                                 .head_dtype = MAR_DTYPE_BF16,
                                 .threads = 1,
                                 .backend = MAR_BACKEND_CPU};
    mar *m;
    mar_model *model;
    assert_int_equal(mar_open(&options, &m), MAR_EARG);
    assert_string_equal(mar_error(m),
                        "--head_dtype bf16: the other products are in f32 with --dtype f32, expected auto, f16 or f32");
    assert_string_equal(mar_backend_description(m), "");
    assert_int_equal(mar_model_load(m, "demo", 0, &model), MAR_EARG);
    mar_close(m);
    mar *half = NULL;
    const mar_options both = {.size = sizeof both,
                              .dtype = MAR_DTYPE_BF16,
                              .head_dtype = MAR_DTYPE_BF16,
                              .threads = 1,
                              .backend = MAR_BACKEND_CPU};
    if (mar_open(&both, &half) == MAR_OK) assert_null(strstr(mar_backend_description(half), "head"));
    mar_close(half);
}

static double distance(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / (double)n);
}

/* Tests plain chains, speculation inside the head, solvers and LazyMAR's reuse. --check finds nothing and changes
 * nothing. */
TEST_CASE(every_use_of_a_head)
{
    static float mixed[2 * TOKENS], checked[2 * TOKENS], half[2 * TOKENS], single[2 * TOKENS];
    demo e = open_demo(MAR_DTYPE_AUTO, MAR_DTYPE_F16, NULL), d = open_demo(MAR_DTYPE_AUTO, MAR_DTYPE_AUTO, NULL);
    demo f = open_demo(MAR_DTYPE_F32, MAR_DTYPE_AUTO, NULL);
    for (int way = 0; way < 5; way++) {
        mar_params p;
        mar_params_init(&p, sizeof p);
        p.num_iter = 12, p.num_sampling_steps = 8;
        p.head_spec = way == 1 ? 6 : 0;
        p.sampler = way == 2 ? MAR_SAMPLER_DDIM : MAR_SAMPLER_DDPM;
        p.lazy = p.lazy_head = way == 3;
        if (way == 4) p.spec = "path", p.gamma = 4, p.head_spec = 4;
        generate(&e, &p, 2, mixed);
        generate(&d, &p, 2, half);
        generate(&f, &p, 2, single);
        p.check = 1;
        generate(&e, &p, 2, checked);
        assert_memory_equal(mixed, checked, sizeof mixed);
        for (int i = 0; i < 2 * TOKENS; i++) assert_true(isfinite(mixed[i]));
        assert_true(distance(mixed, half, 2 * TOKENS) > 0);
        assert_true(distance(mixed, single, 2 * TOKENS) > 0);
    }
    demo_close(d), demo_close(e), demo_close(f);
}

/* Tests tokens of the same noise: FP16 is eight times as fine as bf16. */
TEST_CASE(f16_is_nearer_to_f32_than_bf16)
{
    static float bf16[N * TOKENS], f16[N * TOKENS], f32[N * TOKENS];
    demo d = open_demo(MAR_DTYPE_AUTO, MAR_DTYPE_AUTO, NULL), e = open_demo(MAR_DTYPE_AUTO, MAR_DTYPE_F16, NULL);
    demo f = open_demo(MAR_DTYPE_AUTO, MAR_DTYPE_F32, NULL);
    mar_params p;
    mar_params_init(&p, sizeof p);
    p.num_iter = 1, p.num_sampling_steps = 20; /* later steps would amplify differences */
    generate(&d, &p, N, bf16), generate(&e, &p, N, f16), generate(&f, &p, N, f32);
    const double coarse = distance(bf16, f32, N * TOKENS), fine = distance(f16, f32, N * TOKENS);
    print_message("distances to f32: bf16 %.3g, f16 %.3g\n", coarse, fine);
    assert_true(fine > 0);
    if (is_bf16(&d)) assert_true(fine < coarse / 5);
    demo_close(d), demo_close(e), demo_close(f);
}

/* Tests a weight beyond FP16's range, and an activation: a bias is not rounded, what it becomes is. */
TEST_CASE(a_head_beyond_its_range_is_in_f32)
{
    static const struct {
        const char *tensor;
        float value;
    } cases[] = {{"diffloss.net.res_blocks.0.mlp.2.weight", 7e4f}, {"diffloss.net.res_blocks.1.mlp.0.bias", 1e5f}};
    char *directory = temporary_directory();
    mar_params p;
    mar_params_init(&p, sizeof p);
    p.num_iter = 2, p.num_sampling_steps = 4;
    for (int i = 0; i < 2; i++) {
        static float tokens[2][TOKENS];
        mar *m = open_mar(MAR_DTYPE_F32, 1);
        char *path = write_changed(m, directory, "changed.safetensors", "demo", cases[i].tensor, 0, 0, cases[i].value);
        journal j = {0};
        demo d = open_file(path, MAR_DTYPE_F32, MAR_DTYPE_F16, &j),
             e = open_file(path, MAR_DTYPE_F32, MAR_DTYPE_F32, NULL);
        assert_int_equal(j.warnings, 1);
        assert_non_null(strstr(j.line,
                               "changed.safetensors: the diffusion head computes in f32: f16 ends at 65504, and a "
                               "weight or an activation is beyond it"));
        generate(&d, &p, 1, tokens[0]), generate(&e, &p, 1, tokens[1]);
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        demo_close(d), demo_close(e);
        mar_close(m);
        free(path);
    }
    remove_directory(directory);
    free(directory);
}

/* Tests an activation that loading cannot foresee: it follows from the token's position. */
TEST_CASE(what_exceeds_the_range_later_is_an_error)
{
    char *directory = temporary_directory();
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    char *path = write_changed(m, directory, "changed.safetensors", "demo", "diffusion_pos_embed_learned", 0, 5, 1e8f);
    demo d = open_file(path, MAR_DTYPE_F32, MAR_DTYPE_F16, NULL);
    mar_params p;
    mar_session *s;
    mar_params_init(&p, sizeof p);
    p.num_iter = 1, p.num_sampling_steps = 4;
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    assert_session(s, mar_session_begin(s, 0, (int[]){3}, 1));
    assert_int_equal(mar_session_step(s), MAR_EMODEL);
    assert_non_null(
        strstr(mar_session_error(s), "; the head is in f16, which ends at 65504: --head_dtype f32 does not"));
    mar_session_free(s);
    demo_close(d);
    mar_close(m);
    free(path);
    remove_directory(directory);
    free(directory);
}
