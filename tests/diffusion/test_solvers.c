/* Annealed chains, DDIM, DPM-Solver++ and LazyMAR's head against their published codes on random weights
 * (tests/golden/make_shortcuts.py). */
#include "tests/diffusion/fixture.h"

#include <math.h>
#include <stdio.h>

static float temperature_of(mar_sampler sampler)
{
    return sampler == MAR_SAMPLER_DDPM ? 0.9f : 1;
}

static void sample(const fixture *f, diff_chain *c, int steps, float *x)
{
    mar_err err = {0};
    float cfg[N];
    for (int r = 0; r < N; r++) cfg[r] = 2.9f;
    diff_chain_use(c, steps);
    assert_ok(diff_chain_plan(c, N, &err), &err);
    diff_chain_sample(c, f->z, N, cfg, seed, image, f->position, x);
    assert_ok(kern_check(f->k, &err), &err);
}

/* One chain serves all step counts of a sampler, as in a session. The order is such that each count follows a longer
 * and a shorter one in the same buffers. */
TEST_CASE(matches_published_codes)
{
    static const struct {
        const char *name;
        mar_sampler sampler;
        int top, steps[4], plain; /* plain: step count that also has a golden run without guidance */
    } cases[] = {{"annealed", MAR_SAMPLER_DDPM, DIFF_TOP_ANNEALED, {50, 5, 23, 50}, 23},
                 {"ddim", MAR_SAMPLER_DDIM, DIFF_TOP_SOLVER, {50, 7, 20, 50}, 20},
                 {"dpmpp", MAR_SAMPLER_DPMPP, DIFF_TOP_SOLVER, {50, 7, 20, 50}, 20}};
    fixture f;
    wt_file *golden = golden_open("shortcuts");
    open_fixture(&f, MAR_DTYPE_F32, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int guided = 0; guided < 2; guided++) {
            diff_chain c;
            mar_err err = {0};
            diff_spec specs[3];
            for (int j = 0; j < 3; j++)
                specs[j] = (diff_spec){cases[i].sampler, cases[i].steps[j], cases[i].top, .process = DIFF_DDPM};
            assert_ok(
                diff_chain_create_for(f.k, &f.head, specs, 3, temperature_of(cases[i].sampler), N, guided, &c, &err),
                &err);
            void *memory = lay_out(f.k, &c);
            for (int j = 0; j < 4; j++) {
                char name[48];
                float x[N * CHANNELS];
                const int steps = cases[i].steps[j];
                if (!guided && steps != cases[i].plain) continue;
                snprintf(name, sizeof name, "%s.%d.%s", cases[i].name, steps, guided ? "guided" : "plain");
                float *expected = golden_f32(golden, name, N * CHANNELS);
                sample(&f, &c, steps, x);
                assert_close(x, expected, N * CHANNELS, 1e-4);
                free(expected);
            }
            diff_chain_free(&c);
            f.k->core->free(f.k->device, memory);
        }
    close_fixture(&f);
    wt_close(golden);
}

/* LazyMAR's head is six blocks deep. */
TEST_CASE(reuses_as_released)
{
    enum { TOKENS = 4, SIZE = TOKENS * 5 };
    static const uint64_t images[TOKENS] = {0, 1, 2, (uint64_t)1 << 33};
    static const int positions[TOKENS] = {3, 63, 0, 17};
    wt_file *golden = golden_open("shortcuts"), *model = golden_open("lazy_small");
    float *z = golden_f32(golden, "reuse.z", 2 * TOKENS * 24), cfg[TOKENS] = {2.9f, 2.9f, 2.9f, 2.9f};
    for (int i = 0; i < 12; i++) {
        const int guided = i % 2, steps = i / 2 % 2 ? 100 : 30, chunks = i / 4; /* steps in a chunk of the modulation */
        char name[32];
        kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
        diff_head head;
        diff_chain c;
        mar_err err = {0};
        const diff_spec spec = {MAR_SAMPLER_DDPM, steps, DIFF_TOP_ANNEALED, .process = DIFF_DDPM};
        assert_ok(diff_head_load(k, model, &(diff_head_shape){.width = 16, .depth = 6, .channels = 5, .z_dim = 24}, 0,
                                 0, &head, &err),
                  &err);
        assert_ok(diff_chain_create_for(k, &head, &spec, 1, 0.9f, TOKENS, guided, &c, &err), &err);
        diff_chain_reuse(&c);
        if (chunks) c.mod_rows = chunks * (guided ? 2 : 1) * TOKENS;
        void *memory = lay_out(k, &c);
        assert_ok(diff_chain_plan(&c, TOKENS, &err), &err);
        snprintf(name, sizeof name, "reuse.%d.%s", steps, guided ? "guided" : "plain");
        float *expected = golden_f32(golden, name, SIZE), x[SIZE];
        diff_chain_sample(&c, z, TOKENS, cfg, seed, images, positions, x);
        assert_ok(kern_check(k, &err), &err);
        assert_close(x, expected, SIZE, 1e-4);
        free(expected);
        diff_chain_free(&c);
        k->core->free(k->device, memory);
        diff_head_free(&head);
        close_queue(k);
    }
    free(z);
    wt_close(golden), wt_close(model);
}

/* DiSA's clipped timesteps without duplicates, and a solver's timesteps. */
TEST_CASE(timesteps)
{
    static const int asked[3] = {5, 23, 50}, kept[3] = {5, 22, 48};
    wt_file *golden = golden_open("shortcuts");
    mar_err err = {0};
    diff_schedule s;
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "annealed.%d.t", asked[i]);
        float *t = golden_f32(golden, name, kept[i]);
        const diff_spec spec = {MAR_SAMPLER_DDPM, asked[i], DIFF_TOP_ANNEALED, .process = DIFF_DDPM};
        assert_ok(diff_schedule_create_for(&spec, 1, &s, &err), &err);
        assert_int_equal(s.steps, kept[i]);
        for (int j = 0; j < kept[i]; j++) assert_int_equal(s.t[j], (int)t[j]);
        diff_schedule_free(&s);
        free(t);
    }
    for (int steps = 2; steps <= DIFF_BASE_STEPS; steps += 7) {
        const diff_spec spec = {MAR_SAMPLER_DPMPP, steps, DIFF_TOP_SOLVER, .process = DIFF_DDPM};
        assert_ok(diff_schedule_create_for(&spec, 1, &s, &err), &err);
        assert_int_equal(s.t[0], 0);
        assert_int_equal(s.t[s.steps - 1], DIFF_TOP_SOLVER);
        assert_true(s.steps == steps || steps > DIFF_TOP_SOLVER + 1);
        for (int i = 0; i < s.steps; i++) {
            assert_true(i == 0 || s.t[i] > s.t[i - 1]);
            assert_true(isfinite(s.ode[i].coef_x + s.ode[i].coef_x0 + s.ode[i].coef_previous));
        }
        assert_true(s.ode[0].coef_x == 0 && s.ode[0].coef_x0 == 1 && s.ode[0].coef_previous == 0);
        diff_schedule_free(&s);
    }
    const diff_spec spec = {MAR_SAMPLER_DDIM, 20, DIFF_TOP_SOLVER, .process = DIFF_DDPM};
    assert_int_equal(diff_schedule_create_for(&spec, 0.9f, &s, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "--temperature 0.9: expected 1"));
    wt_close(golden);
}

/* Checks that a token's bits do not depend on the other tokens, the threads or the chain's step counts. */
TEST_CASE(tokens_stand_alone)
{
    const diff_spec specs[3] = {{MAR_SAMPLER_DDPM, 20, DIFF_TOP_ANNEALED, .process = DIFF_DDPM},
                                {MAR_SAMPLER_DDIM, 20, DIFF_TOP_SOLVER, .process = DIFF_DDPM},
                                {MAR_SAMPLER_DPMPP, 20, DIFF_TOP_SOLVER, .process = DIFF_DDPM}};
    for (int i = 0; i < 3 * DTYPES; i++) {
        const diff_spec *spec = &specs[i / DTYPES],
                        two[2] = {*spec, {spec->sampler, 33, spec->top, .process = DIFF_DDPM}};
        float all[N * CHANNELS], x[N * CHANNELS];
        for (int threads = 1; threads <= 3; threads++) {
            fixture f;
            diff_chain c;
            mar_err err = {0};
            if (!open_fixture(&f, dtypes[i % DTYPES], threads)) continue;
            const float temperature = temperature_of(spec->sampler);
            assert_ok(diff_chain_create_for(f.k, &f.head, two, 2, temperature, N, 1, &c, &err), &err);
            void *memory = lay_out(f.k, &c);
            sample(&f, &c, 20, x);
            if (threads == 1) memcpy(all, x, sizeof all);
            assert_memory_equal(x, all, sizeof all);
            diff_chain_free(&c);
            f.k->core->free(f.k->device, memory);
            assert_ok(diff_chain_create_for(f.k, &f.head, two, 1, temperature, 1, 1, &c, &err), &err);
            memory = lay_out(f.k, &c);
            assert_alone(&f, &c, all);
            diff_chain_free(&c);
            f.k->core->free(f.k->device, memory);
            close_fixture(&f);
        }
    }
}
