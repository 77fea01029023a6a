/* Whole paths: their records are the plain chain's states, their ratios those of the laws that the chain gives, 0 for a
 * path under its own law, and no bit depends on what is drawn or judged together. The heads are the demo models', on
 * conditions of half-generated images. */
#include "diffusion/paths.h"
#include "tests/diffusion/demo_head.h"

#include <math.h>

enum { STEPS_MAX = 50 };

/* Paths of the fixture's chain, with memory of their own. */
typedef struct {
    diff_paths p;
    void *memory;
    float *path; /* [MAX][stride] */
    float x[MAX * CHANNELS], last[MAX * CHANNELS];
    double log_ratio[MAX];
} work;

static work open_work(diff_chain *chain, int window, int tokens)
{
    mar_err err = {0};
    work w;
    assert_ok(diff_paths_create(chain, window, tokens, &w.p, &err), &err);
    w.memory = memory(chain->k, diff_paths_lay_out(&w.p, NULL));
    diff_paths_lay_out(&w.p, w.memory);
    w.path = malloc(MAX * (size_t)w.p.stride * sizeof *w.path);
    assert_non_null(w.path);
    return w;
}

static void close_work(work *w)
{
    kern_queue *k = w->p.draws.target.chain->k;
    diff_paths_free(&w->p);
    k->core->free(k->device, w->memory);
    free(w->path);
}

/* One token of each condition. */
static diff_tokens tokens_of(const fixture *f, const float *z)
{
    return (diff_tokens){f->tokens, f->tokens, NULL, z, NULL, f->cfg, seed, f->image, f->position};
}

/* The state of a token before an index: [CHANNELS]. */
static float *state_of(const work *w, int token, int index)
{
    return w->path + (size_t)token * (size_t)w->p.stride + (size_t)index * KERN_EVALUATED * CHANNELS;
}

/* Conditions near those of the fixture: each some of the way to the next token's. */
static float *other_conditions(const fixture *f, float way)
{
    const int d = f->chain->head->z_dim, n = f->tokens, conditions = f->chain->guided ? 2 : 1;
    float *z = malloc((size_t)(conditions * n * d) * sizeof *z);
    assert_non_null(z);
    for (int r = 0; r < conditions * n; r++)
        for (int i = 0; i < d; i++) {
            const float here = f->z[r * d + i], next = f->z[(r / n * n + (r + 1) % n) * d + i];
            z[r * d + i] = here + way * (next - here);
        }
    return z;
}

static const struct {
    int steps, window;
    float cfg, temperature;
} cases[] = {{50, 1, 2.9f, 1}, {20, 8, 1, 1},      {33, 1, 3, 0.9f}, {2, 1, 3, 1},
             {10, 4, 3, 0},    {25, 16, 3, 0.95f}, {40, 5, 1, 1}};
enum { CASES = sizeof cases / sizeof *cases };

static int open_case(fixture *f, int i, mar_dtype dtype)
{
    return open_fixture(f, target_path, dtype, 1,
                        params_of(cases[i].steps, cases[i].cfg, MAR_CFG_CONSTANT, cases[i].temperature));
}

/* With window 1, step by step. */
static void records_are_the_plain_chain(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int i = 0; i < CASES; i++) {
            fixture f;
            if (!open_case(&f, i, bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32)) continue;
            const diff_tokens t = tokens_of(&f, f.z);
            diff_speculation_stats stats = {0};
            mar_err err = {0};
            float x[MAX * CHANNELS];
            work w = open_work(f.chain, 1, 0);
            assert_ok(diff_paths_plan(&w.p, f.tokens, f.tokens, &err), &err);
            diff_paths_draw(&w.p, &t, w.x, w.path, &stats);
            diff_chain_start(f.chain, f.tokens, seed, f.image, f.position, x);
            for (int s = cases[i].steps - 1; s >= 0; s--) {
                for (int r = 0; r < f.tokens; r++)
                    assert_memory_equal(state_of(&w, r, s), x + r * CHANNELS, CHANNELS * sizeof *x);
                diff_chain_run(f.chain, f.z, f.tokens, f.cfg, seed, f.image, f.position, s, s, x, NULL);
            }
            assert_memory_equal(w.x, x, sizeof(float) * (size_t)f.tokens * CHANNELS);
            close_work(&w);
            close_fixture(&f);
        }
}

/* On a CPU, whatever the window and the numbers of a call: not nearly 0, but 0. */
static void own_law_has_ratio_0(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int i = 0; i < CASES; i++) {
            fixture f;
            if (!open_case(&f, i, bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32)) continue;
            const diff_tokens t = tokens_of(&f, f.z);
            diff_speculation_stats stats = {0};
            work w = open_work(f.chain, cases[i].window, 0);
            w.p.most = 7;
            diff_paths_draw(&w.p, &t, w.x, w.path, &stats);
            diff_paths_judge(&w.p, &t, w.path, w.log_ratio, w.last, &stats);
            for (int r = 0; r < f.tokens; r++) assert_true(w.log_ratio[r] == 0);
            assert_memory_equal(w.last, w.x, sizeof(float) * (size_t)f.tokens * CHANNELS);
            close_work(&w);
            close_fixture(&f);
        }
}

/* The law of the transition from a path's states at an index, by the chain. */
static void chain_law(const fixture *f, const work *w, const float *z, int index, float *mean, float *log_std)
{
    float x[MAX * CHANNELS];
    diff_trace trace = {index, mean, log_std, NULL};
    for (int r = 0; r < f->tokens; r++) memcpy(x + r * CHANNELS, state_of(w, r, index), CHANNELS * sizeof *x);
    diff_chain_run(f->chain, z, f->tokens, f->cfg, seed, f->image, f->position, index, index, x, &trace);
}

/* log N(x; mean, exp(log_std)), without its constant. */
static double log_density(double x, double mean, double log_std)
{
    const double y = (x - mean) * exp(-log_std);
    return -log_std - 0.5 * y * y;
}

/* Under other conditions: the sum of the ratios of the laws that the chain gives, step by step. */
static void ratio_is_the_sum_of_the_steps(void **state)
{
    (void)state;
    static const float ways[] = {0.001f, 0.1f, 1};
    for (int i = 0; i < CASES; i++)
        for (size_t j = 0; j < sizeof ways / sizeof *ways; j++) {
            fixture f;
            if (cases[i].temperature == 0 || !open_case(&f, i, MAR_DTYPE_F32)) continue;
            float *z = other_conditions(&f, ways[j]);
            const diff_tokens own = tokens_of(&f, f.z), other = tokens_of(&f, z);
            diff_speculation_stats stats = {0};
            double sum[MAX] = {0}, worst = 0;
            float mean_p[MAX * CHANNELS], log_std_p[MAX * CHANNELS], mean_q[MAX * CHANNELS], log_std_q[MAX * CHANNELS];
            work w = open_work(f.chain, cases[i].window, 0);
            diff_paths_draw(&w.p, &own, w.x, w.path, &stats);
            diff_paths_judge(&w.p, &other, w.path, w.log_ratio, w.last, &stats);
            for (int s = cases[i].steps - 1; s > 0; s--) {
                chain_law(&f, &w, z, s, mean_p, log_std_p);
                chain_law(&f, &w, f.z, s, mean_q, log_std_q);
                for (int at = 0; at < f.tokens * CHANNELS; at++) {
                    const double x = state_of(&w, at / CHANNELS, s - 1)[at % CHANNELS];
                    sum[at / CHANNELS] +=
                        log_density(x, mean_p[at], log_std_p[at]) - log_density(x, mean_q[at], log_std_q[at]);
                }
            }
            for (int r = 0; r < f.tokens; r++) {
                worst = fmax(worst, fabs(w.log_ratio[r] - sum[r]) / (1 + fabs(sum[r])));
                assert_true(w.log_ratio[r] != 0);
            }
            print_message("%2d steps, way %5.3f: ratio of the first %10.4g, error at most %.1g\n", cases[i].steps,
                          (double)ways[j], w.log_ratio[0], worst);
            assert_true(worst < 1e-4);
            chain_law(&f, &w, z, 0, mean_p, log_std_p);
            assert_memory_equal(w.last, mean_p, sizeof(float) * (size_t)f.tokens * CHANNELS);
            close_work(&w);
            free(z);
            close_fixture(&f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_the_plain_chain),
        cmocka_unit_test(own_law_has_ratio_0),
        cmocka_unit_test(ratio_is_the_sum_of_the_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
