/* Whole paths. Their records are the plain chain's states. Their ratios are those of the distributions that the chain
 * gives. The ratio of a path under its own distribution is 0. No bit depends on the paths drawn or judged together. The
 * heads are the demo models', with conditions of half-generated images. */
#include "diffusion/paths.h"
#include "tests/diffusion/demo_head.h"
#include "tests/support/brief.h"

#include <math.h>

/* Paths of the fixture's chain, with their own memory. */
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

/* Makes one token of each condition. */
static diff_tokens tokens_of(const fixture *f, const float *z)
{
    return (diff_tokens){.count = f->tokens,
                         .sources = f->tokens,
                         .z = z,
                         .cfg = f->cfg,
                         .seed = f->seed,
                         .image = f->image,
                         .position = f->position};
}

/* Returns a token's state before an index: [CHANNELS]. */
static float *state_of(const work *w, int token, int index)
{
    return w->path + (size_t)token * (size_t)w->p.stride + (size_t)index * KERN_EVALUATED * CHANNELS;
}

/* Makes conditions near the fixture's: each moves the fraction `way` towards the next token's. */
static float *other_conditions(const fixture *f, float way)
{
    const int d = f->chain->head->shape.z_dim, n = f->tokens, conditions = f->chain->guided ? 2 : 1;
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

/* Opens case i. Each token has its own seed and guidance. */
static int open_case(fixture *f, int i, mar_dtype dtype)
{
    const mar_params p = params_of(cases[i].steps, cases[i].cfg, MAR_CFG_CONSTANT, cases[i].temperature);
    if (!open_fixture(f, target_path, dtype, 1, p)) return 0;
    mix_seeds(f);
    for (int r = 0; r < f->tokens; r++) f->cfg[r] = 1.5f + 0.25f * (float)(r % 5);
    return 1;
}

/* Compares records with the plain chain, step by step: window 1. */
TEST_CASE(records_are_the_plain_chain)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int i = 0; i < CASES; i++) {
            fixture f;
            if (!test_all && bf16 && i > 1) continue;
            if (!open_case(&f, i, bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32)) continue;
            const diff_tokens t = tokens_of(&f, f.z);
            diff_speculation_stats stats = {0};
            mar_err err = {0};
            float x[MAX * CHANNELS];
            work w = open_work(f.chain, 1, 0);
            assert_ok(diff_paths_plan(&w.p, f.tokens, &err), &err);
            diff_paths_draw(&w.p, &t, w.x, w.path, &stats);
            diff_chain_start(f.chain, f.tokens, f.seed, f.image, f.position, x);
            for (int s = cases[i].steps - 1; s >= 0; s--) {
                for (int r = 0; r < f.tokens; r++)
                    assert_memory_equal(state_of(&w, r, s), x + r * CHANNELS, CHANNELS * sizeof *x);
                diff_chain_run(f.chain, f.z, f.tokens, f.cfg, f.seed, f.image, f.position, s, s, x, NULL);
            }
            assert_memory_equal(w.x, x, sizeof(float) * (size_t)f.tokens * CHANNELS);
            close_work(&w);
            close_fixture(&f);
        }
}

/* Checks that on a CPU the ratio is exactly 0, for any window and any sizes of calls. */
TEST_CASE(own_law_has_ratio_0)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int i = 0; i < CASES; i++) {
            fixture f;
            if (!test_all && bf16 && i > 1) continue;
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

/* Computes with the chain the distribution of the transition from a path's states at an index. */
static void chain_law(const fixture *f, const work *w, const float *z, int index, float *mean, float *log_std)
{
    float x[MAX * CHANNELS];
    diff_trace trace = {index, mean, log_std, NULL};
    for (int r = 0; r < f->tokens; r++) memcpy(x + r * CHANNELS, state_of(w, r, index), CHANNELS * sizeof *x);
    diff_chain_run(f->chain, z, f->tokens, f->cfg, f->seed, f->image, f->position, index, index, x, &trace);
}

/* Returns log N(x; mean, exp(log_std)), without its constant. */
static double log_density(double x, double mean, double log_std)
{
    const double y = (x - mean) * exp(-log_std);
    return -log_std - 0.5 * y * y;
}

/* Returns the largest error of the log ratios of paths. The reference sums the log ratios of the distributions that the
 * two chains give, step by step. */
static double sum_error(const work *drawn, const work *judged, const fixture *p, const float *z_p, const fixture *q,
                        const float *z_q)
{
    float mean_p[MAX * CHANNELS], log_std_p[MAX * CHANNELS], mean_q[MAX * CHANNELS], log_std_q[MAX * CHANNELS];
    double sum[MAX] = {0}, worst = 0;
    for (int s = p->chain->schedule.steps - 1; s > 0; s--) {
        chain_law(p, drawn, z_p, s, mean_p, log_std_p);
        chain_law(q, drawn, z_q, s, mean_q, log_std_q);
        for (int at = 0; at < p->tokens * CHANNELS; at++) {
            const double x = state_of(drawn, at / CHANNELS, s - 1)[at % CHANNELS];
            sum[at / CHANNELS] += log_density(x, mean_p[at], log_std_p[at]) - log_density(x, mean_q[at], log_std_q[at]);
        }
    }
    for (int r = 0; r < p->tokens; r++) worst = fmax(worst, fabs(judged->log_ratio[r] - sum[r]) / (1 + fabs(sum[r])));
    return worst;
}

/* Judges paths under other conditions. */
TEST_CASE(ratio_is_the_sum_of_the_steps)
{
    static const float ways[] = {0.001f, 0.1f, 1};
    for (int i = 0; i < CASES; i++) {
        fixture f;
        if (cases[i].temperature == 0 || !open_case(&f, i, MAR_DTYPE_F32)) continue;
        for (size_t j = 0; j < sizeof ways / sizeof *ways; j++) {
            float *z = other_conditions(&f, ways[j]);
            const diff_tokens own = tokens_of(&f, f.z), other = tokens_of(&f, z);
            diff_speculation_stats stats = {0};
            float mean[MAX * CHANNELS], log_std[MAX * CHANNELS];
            work w = open_work(f.chain, cases[i].window, 0);
            diff_paths_draw(&w.p, &own, w.x, w.path, &stats);
            diff_paths_judge(&w.p, &other, w.path, w.log_ratio, w.last, &stats);
            const double worst = sum_error(&w, &w, &f, z, &f, f.z);
            for (int r = 0; r < f.tokens; r++) assert_true(w.log_ratio[r] != 0);
            print_message("%2d steps, way %5.3f: ratio of the first %10.4g, error at most %.1g\n", cases[i].steps,
                          (double)ways[j], w.log_ratio[0], worst);
            assert_true(worst < 1e-4);
            chain_law(&f, &w, z, 0, mean, log_std);
            assert_memory_equal(w.last, mean, sizeof(float) * (size_t)f.tokens * CHANNELS);
            close_work(&w);
            free(z);
        }
        close_fixture(&f);
    }
}

/* Judges the draft head's paths under the target's distribution, as drafts are verified. Then judges the target's paths
 * under the draft's, as candidates are. */
TEST_CASE(heads_judge_each_others_paths)
{
    fixture f[2];
    const mar_params p = params_of(25, 2.9f, MAR_CFG_CONSTANT, 1);
    assert_true(open_fixture(&f[0], target_path, MAR_DTYPE_F32, 1, p));
    assert_true(open_fixture(&f[1], draft_path, MAR_DTYPE_F32, 1, p));
    work w[2] = {open_work(f[0].chain, 4, 0), open_work(f[1].chain, 1, 0)};
    for (int i = 0; i < 2; i++) {
        diff_speculation_stats stats = {0};
        const diff_tokens own = tokens_of(&f[i], f[i].z), other = tokens_of(&f[1 - i], f[1 - i].z);
        diff_paths_draw(&w[i].p, &own, w[i].x, w[i].path, &stats);
        diff_paths_judge(&w[1 - i].p, &other, w[i].path, w[1 - i].log_ratio, w[1 - i].last, &stats);
        assert_true(sum_error(&w[i], &w[1 - i], &f[1 - i], f[1 - i].z, &f[i], f[i].z) < 1e-4);
    }
    for (int i = 0; i < 2; i++) {
        close_work(&w[i]);
        close_fixture(&f[i]);
    }
}

/* Several tokens share conditions, as candidates do. The bits equal those with separate conditions for each, and those
 * with fewer tokens and paths at a time. Batched evaluations are counted. */
TEST_CASE(shared_conditions_change_no_bit)
{
    enum { COPIES = 3, SOME = 5, ALL = COPIES * SOME, T = 20 };
    for (int bf16 = 0; bf16 < 2; bf16++) {
        fixture f;
        if (!open_fixture(&f, target_path, bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32, 1,
                          params_of(T, 3, MAR_CFG_CONSTANT, 1)))
            continue;
        const int d = f.chain->head->shape.z_dim;
        float *z = malloc((size_t)(2 * ALL * d) * sizeof *z);
        float *other = other_conditions(&f, 0.1f);
        int source[ALL], position[ALL];
        uint64_t seeds[ALL], image[ALL];
        float cfg[ALL];
        assert_non_null(z);
        for (int i = 0; i < ALL; i++) {
            source[i] = i / COPIES + (i / COPIES > 2); /* condition 3 has no token */
            seeds[i] = f.seed[source[i]];
            image[i] = f.image[source[i]] + ((uint64_t)(i % COPIES) << 40);
            position[i] = f.position[source[i]];
            cfg[i] = f.cfg[source[i]];
        }
        /* work 0: separate conditions; 1: shared; 2: shared, few at a time */
        work w[3] = {open_work(f.chain, 8, ALL), open_work(f.chain, 8, ALL), open_work(f.chain, 8, 4)};
        diff_speculation_stats stats[3] = {{0}};
        w[2].p.draws.sources = 2;
        for (int i = 0; i < 3; i++) {
            const int sources = i ? SOME + 1 : ALL;
            for (int judged = 0; judged < 2; judged++) {
                const float *from = judged ? other : f.z;
                for (int c = 0; c < 2; c++)
                    for (int r = 0; r < sources; r++)
                        memcpy(z + (c * sources + r) * d, from + (c * f.tokens + (i ? r : source[r])) * d,
                               (size_t)d * sizeof *z);
                const diff_tokens t = {.count = ALL,
                                       .sources = sources,
                                       .source = i ? source : NULL,
                                       .z = z,
                                       .cfg = cfg,
                                       .seed = seeds,
                                       .image = image,
                                       .position = position};
                const long batched = stats[i].batched;
                if (judged)
                    diff_paths_judge(&w[i].p, &t, w[i].path, w[i].log_ratio, w[i].last, &stats[i]);
                else
                    diff_paths_draw(&w[i].p, &t, w[i].x, w[i].path, &stats[i]);
                if (judged) assert_int_equal(stats[i].batched - batched, i == 2 ? 3 : 1); /* conditions 0 1, 2, 4 5 */
            }
            assert_memory_equal(w[i].x, w[0].x, sizeof(float) * ALL * CHANNELS);
            assert_memory_equal(w[i].path, w[0].path, sizeof(float) * ALL * (size_t)w[0].p.stride);
            assert_memory_equal(w[i].log_ratio, w[0].log_ratio, sizeof(double) * ALL);
            assert_memory_equal(w[i].last, w[0].last, sizeof(float) * ALL * CHANNELS);
            assert_int_equal(stats[i].sources, 2 * sources);
            assert_int_equal(stats[i].evaluations, stats[0].evaluations);
        }
        assert_int_equal(stats[0].modulations, 2 * ALL * T);
        assert_int_equal(stats[1].modulations, 2 * (SOME + 1) * T);
        assert_true(stats[2].modulations > stats[1].modulations && stats[2].batched > stats[1].batched);
        assert_true(stats[0].flop > stats[1].flop && stats[1].flop > 0);
        for (int i = 0; i < 3; i++) close_work(&w[i]);
        free(z), free(other);
        close_fixture(&f);
    }
}

/* Checks the statistics of a judgement alone. */
TEST_CASE(judgements_are_counted)
{
    fixture f;
    mar_err err = {0};
    assert_true(open_fixture(&f, draft_path, MAR_DTYPE_F32, 1, params_of(10, 3, MAR_CFG_CONSTANT, 1)));
    const diff_head *h = f.chain->head;
    const diff_tokens t = tokens_of(&f, f.z);
    diff_speculation_stats drawn = {0}, stats = {0};
    work w = open_work(f.chain, 4, 0);
    w.p.most = (f.tokens + 2) / 3;
    assert_ok(diff_paths_plan(&w.p, f.tokens, &err), &err);
    diff_paths_draw(&w.p, &t, w.x, w.path, &drawn);
    for (int i = 0; i < 2; i++) /* statistics accumulate */
        diff_paths_judge(&w.p, &t, w.path, w.log_ratio, w.last, &stats);
    assert_int_equal(stats.batched, 2 * 3);
    assert_int_equal(stats.evaluations, 2 * f.tokens * 10);
    assert_int_equal(stats.modulations, 2 * f.tokens * 10);
    assert_int_equal(stats.sources, 2 * f.tokens);
    assert_int_equal(stats.tokens + stats.calls + stats.accepted + stats.rejected, 0);
    const double n = 2 * f.tokens * 10, embedded = 2.0 * f.tokens * h->shape.z_dim * h->shape.width;
    assert_true(fabs(stats.flop - 2 * 2 * (diff_head_macs(h, n, n) + embedded)) < 1e-9 * stats.flop);
    const diff_tokens none = {.count = 0};
    const diff_speculation_stats before = stats;
    diff_paths_judge(&w.p, &none, w.path, w.log_ratio, w.last, &stats);
    diff_paths_draw(&w.p, &none, w.x, w.path, &stats);
    assert_memory_equal(&stats, &before, sizeof stats);
    close_work(&w);
    close_fixture(&f);
}

/* The chain's number of steps changes from call to call. A path keeps its stride, and is judged in the respacing it was
 * drawn in. Its bits are those of a chain with that respacing alone. */
TEST_CASE(respacings)
{
    static const diff_spec specs[] = {{MAR_SAMPLER_DDPM, 50, 950, .process = DIFF_DDPM},
                                      {MAR_SAMPLER_DDPM, 11, 950, .process = DIFF_DDPM}};
    fixture f;
    mar_err err = {0};
    assert_true(open_fixture(&f, target_path, MAR_DTYPE_F32, 1, params_of(10, 3, MAR_CFG_CONSTANT, 1)));
    float *z = other_conditions(&f, 0.1f);
    const diff_tokens own = tokens_of(&f, f.z), other = tokens_of(&f, z);
    diff_chain both, one[2];
    void *arena[3];
    assert_ok(diff_chain_create_for(f.k, f.chain->head, specs, 2, 1, MAX, 1, &both, &err), &err);
    arena[2] = lay_out_chain(&both);
    work w = open_work(&both, 8, 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(diff_chain_create_for(f.k, f.chain->head, &specs[i], 1, 1, MAX, 1, &one[i], &err), &err);
        arena[i] = lay_out_chain(&one[i]);
    }
    for (int i = 0; i < 4; i++) {
        diff_speculation_stats stats = {0};
        work alone = open_work(&one[i % 2], 8, 0);
        diff_paths_draw(&alone.p, &own, alone.x, alone.path, &stats);
        diff_paths_judge(&alone.p, &other, alone.path, alone.log_ratio, alone.last, &stats);
        diff_chain_use(&both, specs[i % 2].steps);
        diff_paths_draw(&w.p, &own, w.x, w.path, &stats);
        diff_paths_judge(&w.p, &own, w.path, w.log_ratio, w.last, &stats);
        for (int r = 0; r < f.tokens; r++) assert_true(w.log_ratio[r] == 0);
        diff_paths_judge(&w.p, &other, w.path, w.log_ratio, w.last, &stats);
        assert_memory_equal(w.x, alone.x, sizeof(float) * (size_t)f.tokens * CHANNELS);
        assert_memory_equal(w.log_ratio, alone.log_ratio, sizeof(double) * (size_t)f.tokens);
        assert_memory_equal(w.last, alone.last, sizeof(float) * (size_t)f.tokens * CHANNELS);
        close_work(&alone);
    }
    close_work(&w);
    diff_chain *chains[] = {&one[0], &one[1], &both};
    for (int i = 0; i < 3; i++) {
        diff_chain_free(chains[i]);
        f.k->core->free(f.k->device, arena[i]);
    }
    free(z);
    close_fixture(&f);
}

/* Checks that a failed judgement or draw leaves no trace in the next judgement. */
TEST_CASE(failures_leave_nothing)
{
    fixture f;
    mar_err err = {0};
    assert_true(open_fixture(&f, draft_path, MAR_DTYPE_F32, 1, params_of(10, 3, MAR_CFG_CONSTANT, 1)));
    float *z = other_conditions(&f, 0.2f);
    const diff_tokens own = tokens_of(&f, f.z), other = tokens_of(&f, z);
    double expected[MAX];
    for (int failing = 0; failing < 3; failing++) { /* nothing fails, the draw fails, the judgement fails */
        diff_speculation_stats stats = {0};
        work w = open_work(f.chain, 4, 0);
        if (failing == 1) kern_fail(f.k, err_set(&err, MAR_EBACKEND, "injected"), &err);
        diff_paths_draw(&w.p, &own, w.x, w.path, &stats);
        if (failing == 1) {
            f.k->core->recover(f.k);
            diff_paths_draw(&w.p, &own, w.x, w.path, &stats);
        }
        w.log_ratio[0] = 77;
        if (failing == 2) kern_fail(f.k, err_set(&err, MAR_EBACKEND, "injected"), &err);
        diff_paths_judge(&w.p, &other, w.path, w.log_ratio, w.last, &stats);
        if (failing == 2) {
            assert_true(w.log_ratio[0] == 77);
            f.k->core->recover(f.k);
            diff_paths_judge(&w.p, &other, w.path, w.log_ratio, w.last, &stats);
        }
        assert_ok(kern_check(f.k, &err), &err);
        if (failing == 0) memcpy(expected, w.log_ratio, sizeof expected);
        assert_memory_equal(w.log_ratio, expected, sizeof(double) * (size_t)f.tokens);
        close_work(&w);
    }
    free(z);
    close_fixture(&f);
}

/* A NaN in a condition makes its paths' ratios NaN and leaves the other bits. The search for non-finite layers names
 * its layer. */
TEST_CASE(a_nan_shows)
{
    fixture f;
    assert_true(open_fixture(&f, draft_path, MAR_DTYPE_F32, 1, params_of(10, 3, MAR_CFG_CONSTANT, 1)));
    float *z = other_conditions(&f, 0.2f);
    const diff_tokens own = tokens_of(&f, f.z), other = tokens_of(&f, z);
    diff_speculation_stats stats = {0};
    double expected[MAX];
    work w = open_work(f.chain, 4, 0);
    diff_paths_draw(&w.p, &own, w.x, w.path, &stats);
    f.k->watch.on = 1;
    kern_watch_begin(f.k);
    diff_paths_judge(&w.p, &other, w.path, expected, w.last, &stats);
    assert_string_equal(f.k->watch.layer, "");
    z[3 * f.chain->head->shape.z_dim] = NAN;
    diff_paths_judge(&w.p, &other, w.path, w.log_ratio, w.last, &stats);
    assert_string_equal(f.k->watch.layer, "diffusion_pos_embed_learned");
    for (int r = 0; r < f.tokens; r++) assert_true(r == 3 ? isnan(w.log_ratio[r]) : w.log_ratio[r] == expected[r]);
    state_of(&w, 5, 4)[2] = NAN; /* a NaN in a state: the head is the first layer to see it */
    kern_watch_begin(f.k);
    z[3 * f.chain->head->shape.z_dim] = 0;
    diff_paths_judge(&w.p, &other, w.path, w.log_ratio, w.last, &stats);
    assert_string_equal(f.k->watch.layer, "diffloss.net.input_proj");
    assert_true(isnan(w.log_ratio[5]) && w.log_ratio[6] == expected[6]);
    f.k->watch.on = 0;
    free(z);
    close_work(&w);
    close_fixture(&f);
}

TEST_CASE(bad_arguments)
{
    fixture f;
    mar_err err = {0};
    diff_paths p;
    diff_chain ode;
    assert_true(open_fixture(&f, draft_path, MAR_DTYPE_F32, 1, params_of(10, 3, MAR_CFG_CONSTANT, 1)));
    assert_int_equal(diff_paths_create(f.chain, 0, 0, &p, &err), MAR_EARG);
    const diff_spec ddim = {MAR_SAMPLER_DDIM, 10, DIFF_TOP_SOLVER, .process = DIFF_DDPM};
    assert_ok(diff_chain_create_for(f.k, f.chain->head, &ddim, 1, 1, f.chain->max_tokens, 1, &ode, &err), &err);
    assert_int_equal(diff_paths_create(&ode, 1, 0, &p, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "ddpm"));
    diff_chain_free(&ode);
    close_fixture(&f);
}
