/* The head on the CPU: the layer norm folded into adaLN, element by element and against the official formulas, which do
 * not fold; and what is rounded to bf16. */
#include "kernels/adaln.h"
#include "tests/support/head_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 128, DEPTH = 3, CHANNELS = 8, ROWS = 48 };

static void an_element_is_folded(void **state)
{
    (void)state;
    enum { W = 24 };
    head_case h = make_head_case(W, 2, 4, 700);
    float *weight;
    const float *bias;
    mar_err err = {0};
    assert_ok(kern_head_adaln(&h.spec, &weight, &bias, &err), &err);
    for (int b = 0; b < 2; b++) {
        const kern_head_block *from = &h.blocks[b];
        const float *shift = weight + b * 3 * W * W, *scale = shift + W * W;
        for (int i = 0; i < W; i++) {
            const double lw = (double)from->ln_weight[i], lb = (double)from->ln_bias[i];
            for (int k = 0; k < W; k++) {
                const double s = (double)from->ada_weight[(W + i) * W + k], t = (double)from->ada_weight[i * W + k];
                assert_float_equal(scale[i * W + k], lw * s, 1e-7);
                assert_float_equal(shift[i * W + k], lb * s + t, 1e-7);
            }
            const double s = (double)from->ada_bias[W + i], t = (double)from->ada_bias[i];
            assert_float_equal(bias[b * 3 * W + W + i], lw * (1 + s) - 1, 1e-6);
            assert_float_equal(bias[b * 3 * W + i], lb * (1 + s) + t, 1e-6);
        }
        assert_memory_equal(scale + W * W, from->ada_weight + 2 * W * W, W * W * sizeof *weight); /* gates */
        assert_memory_equal(bias + b * 3 * W + 2 * W, from->ada_bias + 2 * W, W * sizeof *bias);
    }
    free(weight);
    free_head_case(&h);
}

static void a_norm_without_affine_changes_no_bit(void **state)
{
    (void)state;
    head_case h = make_head_case(WIDTH, 1, 4, 800);
    float ones[WIDTH], zeros[WIDTH] = {0}, *weight;
    for (int i = 0; i < WIDTH; i++) ones[i] = 1;
    h.blocks[0].ln_weight = ones, h.blocks[0].ln_bias = zeros;
    const float *bias;
    mar_err err = {0};
    assert_ok(kern_head_adaln(&h.spec, &weight, &bias, &err), &err);
    assert_memory_equal(weight, h.blocks[0].ada_weight, 3 * WIDTH * WIDTH * sizeof *weight);
    assert_memory_equal(bias, h.blocks[0].ada_bias, 3 * WIDTH * sizeof *bias);
    free(weight);
    free_head_case(&h);
}

/* `bound`: the error allowed in bf16, in units of the official form's own rounding. */
static void expect_official(const head_case *h, uint64_t seed, double bound)
{
    const double rounding = head_rounding(h, ROWS, seed);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        kern_queue *k = open_queue(bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32, 2);
        if (!k) continue;
        const double error = head_error(k, h, ROWS, 0, seed), allowed = bf16 ? bound * rounding : 2e-6;
        if (!(error <= allowed))
            fail_msg("%s, seed %d: relative error %.3g, allowed %.3g", bf16 ? "bf16" : "f32", (int)seed, error,
                     allowed);
        close_queue(k);
    }
}

/* In bf16 the folded modulation must not cost more than the rounding that the official form has anyhow. */
static void a_head_is_the_official_one(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        head_case h = make_head_case(WIDTH, DEPTH, CHANNELS, 1000 * seed);
        expect_official(&h, seed, 1.3);
        free_head_case(&h);
    }
}

/* Where the norms' weights are much below 1 it costs more (kernels/adaln.h): here at most twice as much. */
static void faint_norms_lose_some_digits(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        head_case h = make_faint_case(WIDTH, DEPTH, CHANNELS, 1000 * seed);
        expect_official(&h, seed, 2);
        free_head_case(&h);
    }
}

/* SiLU takes fc1's f32 sums, and is rounded once. */
static void silu_is_rounded_once(void **state)
{
    (void)state;
    for (int rows = 1; rows <= 70; rows += 69) {
        kern_queue *k = open_queue(MAR_DTYPE_BF16, 2);
        if (!k) continue;
        head_case h = make_rounding_case(96, CHANNELS, 40);
        const double error = head_error(k, &h, rows, 1, 41);
        if (!(error <= 2e-5)) fail_msg("%d rows: relative error %.3g", rows, error);
        close_queue(k);
        free_head_case(&h);
    }
}

/* --- a head in f32 ------------------------------------------------------------------------------------------------ */

enum { STEPS = 3, DEEP = 6, TURNS = 6, OUTPUTS = TURNS * ROWS * 2 * CHANNELS };

/* Everything that a head computes: outputs by themselves, with indices, by LazyMAR's reuse, and the states of a chain,
 * each in its own ROWS rows of out. */
static void everything(kern_queue *k, const head_case *h, int rows, float *out)
{
    const size_t n = (size_t)rows, w = WIDTH, c = CHANNELS;
    const int temb_index[STEPS] = {2, 0, 1};
    float *temb = even_floats(STEPS * w, -1, 1, 60), *cond = even_floats(n * w, -2, 2, 61);
    float *x = even_floats(n * c, -2, 2, 62);
    kern_head *net = NULL;
    mar_err err = {0};
    assert_ok(k->head->create(k, &h->spec, &net, &err), &err);
    assert_ok(k->head->plan(k, net, rows, &err), &err);
    char *mod = backend_memory(k, STEPS * n * k->head->mod_bytes(net));
    void *scratch = backend_memory(k, k->head->scratch_bytes(net, STEPS * rows));
    float *kept = backend_memory(k, DEEP * n * w * sizeof *kept), *law = backend_memory(k, n * 2 * c * sizeof *law);
    k->watch.on = 1;
    k->head->modulate(k, net, temb, temb_index, NULL, STEPS, cond, rows, mod, scratch);
    int x_index[ROWS], mod_index[ROWS], position[ROWS], t[STEPS] = {0, 300, 600};
    uint64_t image[ROWS];
    for (int r = 0; r < rows; r++) {
        x_index[r] = r / 2, mod_index[r] = (7 * r + 1) % (STEPS * rows);
        image[r] = (uint64_t)r, position[r] = r;
    }
    memset(out, 0, OUTPUTS * sizeof *out);
    const size_t turn = (size_t)ROWS * 2 * CHANNELS;
    k->head->eval(k, net, x, NULL, mod, NULL, rows, out, scratch);
    k->head->eval(k, net, x, x_index, mod, mod_index, rows, out + turn, scratch);
    for (int reuse = KERN_HEAD_FRESH; reuse <= KERN_HEAD_KEPT; reuse++) /* each at its own modulation */
        k->head->eval_reusing(k, net, x, NULL, mod + (size_t)reuse * n * k->head->mod_bytes(net), NULL, rows,
                              (kern_head_reuse)reuse, kept, rows, out + (size_t)(2 + reuse) * turn, scratch);
    const kern_chain_coef coef[STEPS] = {
        {1.1f, 0.4f, 0.5f, 0.5f, -6, -5, 0}, {1.2f, 0.6f, 0.4f, 0.6f, -5, -4, 1}, {1.5f, 1, 0.3f, 0.6f, -4, -3, 1}};
    const kern_chain_job job = {.tokens = rows,
                                .conditions = 1,
                                .first = STEPS - 1,
                                .mod = mod,
                                .x = x,
                                .coef = coef,
                                .t = t,
                                .seed = 5,
                                .image = image,
                                .position = position,
                                .out = law,
                                .scratch = scratch};
    k->head->chain_run(k, net, &job);
    memcpy(out + 5 * turn, x, n * c * sizeof *x);
    assert_ok(kern_check(k, &err), &err);
    if (k->watch.layer[0]) fail_msg("%s is not finite", k->watch.layer);
    void *memory[] = {mod, scratch, kept, law};
    for (int i = 0; i < 4; i++) k->core->free(k->device, memory[i]);
    k->head->free(k->device, net);
    free(temb), free(cond), free(x);
}

static void a_head_in_f32_beside_bf16_is_that_of_f32(void **state)
{
    (void)state;
    static float want[OUTPUTS], got[OUTPUTS], rounded[OUTPUTS];
    kern_queue *single = open_queue(MAR_DTYPE_F32, 2), *half = open_queue(MAR_DTYPE_BF16, 2);
    head_case h = make_head_case(WIDTH, DEEP, CHANNELS, 900);
    for (int rows = 1; half && rows <= ROWS; rows += ROWS - 1) {
        h.spec.f32 = 0;
        everything(single, &h, rows, want);
        everything(half, &h, rows, rounded);
        assert_memory_not_equal(rounded, want, sizeof want);
        h.spec.f32 = 1;
        everything(half, &h, rows, got);
        assert_memory_equal(got, want, sizeof want);
        everything(single, &h, rows, got); /* it is nothing new there */
        assert_memory_equal(got, want, sizeof want);
    }
    free_head_case(&h);
    if (half) close_queue(half);
    close_queue(single);
}

static void a_head_says_its_arithmetic(void **state)
{
    (void)state;
    head_case h = make_head_case(WIDTH, DEPTH, CHANNELS, 900);
    for (int way = 0; way < 4; way++) {
        kern_queue *k = open_queue(way / 2 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32, 1);
        const char *says = way == 2 ? "matrix products in bf16" : "matrix products in f32";
        kern_head *net = NULL;
        kern_head_spec spec;
        mar_err err = {0};
        if (!k) continue;
        h.spec.f32 = way % 2;
        assert_ok(k->head->create(k, &h.spec, &net, &err), &err);
        assert_string_equal(k->head->describe(net), says);
        k->device->measure->head_spec(net, &spec);
        assert_int_equal(spec.f32, way % 2);
        k->head->free(k->device, net);
        close_queue(k);
    }
    free_head_case(&h);
}

/* The search for layers reads a modulation row as what it is. */
static void what_is_not_finite_is_found_in_f32(void **state)
{
    (void)state;
    kern_queue *k = open_queue(MAR_DTYPE_BF16, 1);
    head_case h = make_head_case(WIDTH, DEPTH, CHANNELS, 900);
    float *x = even_floats(CHANNELS, -2, 2, 1), *cond = even_floats(WIDTH, -2, 2, 2), out[2 * CHANNELS];
    float *gates = (float *)(uintptr_t)h.blocks[1].ada_bias + 2 * WIDTH;
    const int step = 0;
    kern_head *net = NULL;
    mar_err err = {0};
    gates[WIDTH - 1] = (float)INFINITY;
    h.spec.f32 = 1;
    if (k) {
        assert_ok(k->head->create(k, &h.spec, &net, &err), &err);
        float *temb = backend_memory(k, WIDTH * sizeof *temb);
        void *mod = backend_memory(k, k->head->mod_bytes(net));
        void *scratch = backend_memory(k, k->head->scratch_bytes(net, 1));
        k->watch.on = 1;
        k->head->modulate(k, net, temb, &step, NULL, 1, cond, 1, mod, scratch);
        assert_string_equal(k->watch.layer, "diffloss.net.res_blocks.1.adaLN_modulation.1");
        k->head->eval(k, net, x, NULL, mod, NULL, 1, out, scratch);
        k->core->free(k->device, temb), k->core->free(k->device, mod), k->core->free(k->device, scratch);
        k->head->free(k->device, net);
        close_queue(k);
    }
    free(x), free(cond);
    free_head_case(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_element_is_folded),       cmocka_unit_test(a_norm_without_affine_changes_no_bit),
        cmocka_unit_test(a_head_is_the_official_one), cmocka_unit_test(faint_norms_lose_some_digits),
        cmocka_unit_test(silu_is_rounded_once),       cmocka_unit_test(a_head_in_f32_beside_bf16_is_that_of_f32),
        cmocka_unit_test(a_head_says_its_arithmetic), cmocka_unit_test(what_is_not_finite_is_found_in_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
