/* Checks which steps of a chain run in int8: those at timesteps below the head's int8_below. The index is that of the
 * respacing in use. Covers each sampler, in the plain chain and with LazyMAR. A step at a higher timestep has the bits
 * of a head without int8. */
#include "tests/diffusion/fixture.h"

#include <math.h>

/* Runs all tokens from index `first` down to `last`. */
static void run(fixture *f, const diff_head *head, const diff_spec *specs, int n, int reuse, int first, int last,
                float *x)
{
    diff_chain c;
    mar_err err = {0};
    float cfg[N];
    for (int r = 0; r < N; r++) cfg[r] = 2.9f;
    assert_ok(diff_chain_create_for(f->k, head, specs, n, 1, N, 1, &c, &err), &err);
    if (reuse) diff_chain_reuse(&c);
    void *memory = lay_out(f->k, &c);
    for (int i = n - 1; i >= 0; i--) diff_chain_use(&c, specs[i].steps); /* ends with the first */
    assert_ok(diff_chain_plan(&c, N, &err), &err);
    diff_chain_start(&c, N, seed, image, f->position, x);
    diff_chain_run(&c, f->z, N, cfg, seed, image, f->position, first, last, x, NULL);
    assert_ok(kern_check(f->k, &err), &err);
    for (int i = 0; i < N * CHANNELS; i++) assert_true(isfinite(x[i]));
    diff_chain_free(&c);
    f->k->core->free(f->k->device, memory);
}

static diff_head load(fixture *f, int f32, int int8_below)
{
    diff_head head;
    mar_err err = {0};
    assert_ok(diff_head_load(f->k, f->model,
                             &(diff_head_shape){.width = WIDTH, .depth = DEPTH, .channels = CHANNELS, .z_dim = Z}, f32,
                             int8_below, &head, &err),
              &err);
    return head;
}

/* `fine`: indices without int8, from the top. 100 steps have timesteps 999, 989, 979, .., 908, 898, ..; 25 have 999,
 * 957, 916, 874, ... The annealed chain of 11 has 950, 899, ...; solvers of 50 steps have 980, 960, .., 900, 880. */
static const struct {
    diff_spec spec;
    int int8_below, fine;
} cases[] = {{{MAR_SAMPLER_DDPM, 100, DIFF_TOP, .process = DIFF_DDPM}, 985, 2},
             {{MAR_SAMPLER_DDPM, 100, DIFF_TOP, .process = DIFF_DDPM}, 1000, 0},
             {{MAR_SAMPLER_DDPM, 100, DIFF_TOP, .process = DIFF_DDPM}, 999, 1},
             {{MAR_SAMPLER_DDPM, 100, DIFF_TOP, .process = DIFF_DDPM}, 900, 10},
             {{MAR_SAMPLER_DDPM, 25, DIFF_TOP, .process = DIFF_DDPM}, 985, 1},
             {{MAR_SAMPLER_DDPM, 25, DIFF_TOP, .process = DIFF_DDPM}, 900, 3},
             {{MAR_SAMPLER_DDPM, 11, DIFF_TOP_ANNEALED, .process = DIFF_DDPM}, 985, 0},
             {{MAR_SAMPLER_DDPM, 11, DIFF_TOP_ANNEALED, .process = DIFF_DDPM}, 900, 1},
             {{MAR_SAMPLER_DDIM, 50, DIFF_TOP_SOLVER, .process = DIFF_DDPM}, 985, 0},
             {{MAR_SAMPLER_DDIM, 50, DIFF_TOP_SOLVER, .process = DIFF_DDPM}, 900, 5},
             {{MAR_SAMPLER_DPMPP, 50, DIFF_TOP_SOLVER, .process = DIFF_DDPM}, 980, 1},
             {{MAR_SAMPLER_DPMPP, 50, DIFF_TOP_SOLVER, .process = DIFF_DDPM}, 981, 0}};

TEST_CASE(the_boundary_is_at_its_timestep)
{
    fixture f;
    if (!open_fixture(&f, MAR_DTYPE_INT8, 2)) skip();
    diff_head without = load(&f, 0, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* As in an annealed session, the chain also has a respacing with other steps. */
        const diff_spec specs[2] = {cases[i].spec,
                                    {cases[i].spec.sampler, 37, cases[i].spec.top, .process = DIFF_DDPM}};
        const int top = cases[i].spec.steps - 1, last = top - cases[i].fine;
        diff_head head = load(&f, 0, cases[i].int8_below);
        for (int reuse = 0; reuse < 2; reuse++) {
            float want[N * CHANNELS], got[N * CHANNELS];
            if (cases[i].fine) { /* steps without int8 */
                run(&f, &without, specs, 2, reuse, top, last + 1, want);
                run(&f, &head, specs, 2, reuse, top, last + 1, got);
                assert_memory_equal(got, want, sizeof got);
            }
            /* The first int8 step runs alone. After steps from the top, its effect is lost in the states that random
             * weights make. */
            run(&f, &without, specs, 2, reuse, last, last, want);
            run(&f, &head, specs, 2, reuse, last, last, got);
            assert_memory_not_equal(got, want, sizeof got);
        }
        diff_head_free(&head);
    }
    diff_head_free(&without);
    close_fixture(&f);
}

/* Checks that int8_below has no effect on a device without int8, or on a head in f32. */
TEST_CASE(other_heads_have_no_boundary)
{
    const diff_spec spec = {MAR_SAMPLER_DDPM, 100, DIFF_TOP, .process = DIFF_DDPM};
    for (int i = 0; i < DTYPES; i++) {
        fixture f;
        if (!open_fixture(&f, dtypes[i], 2)) continue;
        for (int f32 = dtypes[i] == MAR_DTYPE_INT8; f32 < 2; f32++) {
            float want[N * CHANNELS], got[N * CHANNELS];
            diff_head with = load(&f, f32, 985), without = load(&f, f32, 0);
            run(&f, &without, &spec, 1, 0, 99, 90, want);
            run(&f, &with, &spec, 1, 0, 99, 90, got);
            assert_memory_equal(got, want, sizeof got);
            diff_head_free(&with), diff_head_free(&without);
        }
        close_fixture(&f);
    }
}
