/* Head and chain against PyTorch on random weights, at the tolerances of f32, bf16 and int8. */
#include "tests/diffusion/fixture.h"

#include <stdio.h>

static const float timestep[N] = {0, 1, 10, 101, 500, 989, 999};

/* Evaluates the net once at N different timesteps, with rows in the order of x_index and mod_index. */
static void eval(fixture *f, int guided, float *out)
{
    kern_queue *k = f->k;
    const int rows = guided ? 2 * N : N;
    mar_err err = {0};
    float *temb = NULL, *x = golden_f32(f->golden, "head.x", N * CHANNELS);
    void *cond = NULL, *mod = NULL, *scratch = NULL;
    assert_ok(diff_head_time_embeddings(k, &f->head, timestep, N, &temb, &err), &err);
    assert_ok(k->core->alloc(k->device, (size_t)rows * WIDTH * 4, &cond, &err), &err);
    /* Every condition at every timestep. Only the diagonal is used. */
    assert_ok(k->core->alloc(k->device, (size_t)rows * N * k->head->mod_bytes(f->head.net), &mod, &err), &err);
    assert_ok(k->core->alloc(k->device, k->head->scratch_bytes(f->head.net, rows * N), &scratch, &err), &err);
    int steps[N], x_index[2 * N], mod_index[2 * N];
    for (int i = 0; i < N; i++) steps[i] = i;
    for (int r = 0; r < rows; r++) {
        x_index[r] = r % N;
        mod_index[r] = r % N * rows + r;
    }
    assert_ok(k->core->linear_plan(k, f->head.cond, rows, &err), &err);
    assert_ok(k->head->plan(k, f->head.net, rows * N, &err), &err);
    k->core->linear(k, f->head.cond, f->z, rows, cond);
    k->head->modulate(k, f->head.net, temb, steps, NULL, N, cond, rows, mod, scratch);
    k->head->eval(k, f->head.net, x, x_index, mod, mod_index, rows, out, scratch);
    assert_ok(kern_check(k, &err), &err);
    k->core->free(k->device, temb), k->core->free(k->device, cond), k->core->free(k->device, mod),
        k->core->free(k->device, scratch);
    free(x);
}

TEST_CASE(head)
{
    static const double tolerances[DTYPES] = {1e-5, 2e-2, 5e-2};
    for (int i = 0; i < DTYPES; i++) {
        fixture f;
        if (!open_fixture(&f, dtypes[i], 2)) continue;
        const double tolerance = tolerances[i];
        float out[2 * N][2 * CHANNELS];
        float *plain = golden_f32(f.golden, "head.plain", N * 2 * CHANNELS);
        float *guided = golden_f32(f.golden, "head.guided", N * 2 * CHANNELS);
        eval(&f, 0, out[0]);
        assert_close(out[0], plain, N * 2 * CHANNELS, tolerance);
        eval(&f, 1, out[0]);
        for (int r = 0; r < N; r++)
            for (int c = 0; c < CHANNELS; c++) out[r][c] = out[N + r][c] + 2.9f * (out[r][c] - out[N + r][c]);
        assert_close(out[0], guided, N * 2 * CHANNELS, tolerance);
        free(plain), free(guided);
        close_fixture(&f);
    }
}

static void run_chain(fixture *f, int steps, int first, int guided, float *x)
{
    kern_queue *k = f->k;
    diff_chain c;
    mar_err err = {0};
    float cfg[N];
    for (int r = 0; r < N; r++) cfg[r] = 2.9f;
    assert_ok(diff_chain_create(f->k, &f->head, steps, 0.9f, N, guided, &c, &err), &err);
    void *memory = lay_out(k, &c);
    assert_ok(diff_chain_plan(&c, N, &err), &err);
    if (first == steps - 1) {
        diff_chain_sample(&c, f->z, N, cfg, seed, image, f->position, x);
    } else {
        diff_chain_start(&c, N, seed, image, f->position, x);
        diff_chain_run(&c, f->z, N, cfg, seed, image, f->position, first, 0, x, NULL);
    }
    assert_ok(kern_check(k, &err), &err);
    diff_chain_free(&c);
    k->core->free(k->device, memory);
}

/* Whole chains on addressed noise. With random weights, chains from t = 999 explode: an error of eps grows by 2e4. So
 * bf16 is judged on the chain that starts lower. */
TEST_CASE(chains)
{
    static const struct {
        int steps, first, guided;
    } cases[] = {{100, 99, 0}, {100, 99, 1}, {25, 24, 0}, {25, 24, 1}, {100, 60, 0}, {100, 60, 1}};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        fixture f;
        if (!open_fixture(&f, bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32, 2)) continue;
        for (size_t i = bf16 ? 4 : 0; i < sizeof cases / sizeof *cases; i++) {
            char name[48];
            float x[N * CHANNELS];
            snprintf(name, sizeof name, "chain.%d.%d.%s", cases[i].steps, cases[i].first,
                     cases[i].guided ? "guided" : "plain");
            float *expected = golden_f32(f.golden, name, N * CHANNELS);
            run_chain(&f, cases[i].steps, cases[i].first, cases[i].guided, x);
            assert_close(x, expected, N * CHANNELS, bf16 ? 5e-2 : 1e-3);
            free(expected);
        }
        close_fixture(&f);
    }
}

/* Checks that a token's bits do not depend on the other tokens, the threads or the chunks of the modulation. */
TEST_CASE(tokens_stand_alone)
{
    for (int i = 0; i < DTYPES; i++) {
        float all[N * CHANNELS];
        for (int threads = 1; threads <= 3; threads++) {
            fixture f;
            if (!open_fixture(&f, dtypes[i], threads)) continue;
            float x[N * CHANNELS];
            run_chain(&f, 25, 24, 1, x);
            if (threads == 1) memcpy(all, x, sizeof all);
            assert_memory_equal(x, all, sizeof all);
            diff_chain c;
            mar_err err = {0};
            assert_ok(diff_chain_create(f.k, &f.head, 25, 0.9f, 1, 1, &c, &err), &err);
            c.mod_rows = 2 * threads; /* chunks of as many steps as threads */
            void *memory = lay_out(f.k, &c);
            assert_alone(&f, &c, all);
            diff_chain_free(&c);
            f.k->core->free(f.k->device, memory);
            close_fixture(&f);
        }
    }
}
