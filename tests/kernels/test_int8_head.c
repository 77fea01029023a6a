/* Tests the int8 head against an oracle in plain C with the same integer products. A row's bits must not depend on
 * other rows, also in calls that mix both arithmetics. Rows marked `fine` must equal those of a head without int8. */
#include "kernels/adaln.h"
#include "kernels/int8.h"
#include "tests/support/head_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 128,
    DEPTH = 3,
    DEEP = 6,
    CHANNELS = 8,
    OUT = 2 * CHANNELS,
    ROWS = 96,
    STEPS = 3,
    HIDDEN = 100,
    LONG = 300
};

static const char *const isas[] = {"", "avx512", "avx_vnni", "avx2", "generic"};
enum { ISAS = sizeof isas / sizeof *isas };

static kern_queue *open_as(const char *isa, mar_dtype dtype, int threads)
{
    setenv("MAR_ISA", isa, 1);
    kern_queue *k = open_queue(dtype, threads);
    unsetenv("MAR_ISA");
    return k;
}

/* --- the oracle --------------------------------------------------------------------------------------------------- */

static float to_act(float x, size_t act_size)
{
    uint32_t bits;
    if (act_size == sizeof x) return x;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

static float silu(float x)
{
    return (float)((double)x / (1 + exp(-(double)x)));
}

/* Computes y [rows][out] = x [rows][in] w^T + bias with integers. x is quantised by row, w by output channel. */
static void int8_product(const float *w, const float *bias, int out, int in, const float *x, int rows, float *y)
{
    int8_t *q = malloc((size_t)out * (size_t)in);
    float *scale = malloc((size_t)out * sizeof *scale);
    int *integers = malloc((size_t)in * sizeof *integers);
    assert_true(q && scale && integers);
    kern_int8_quantise(w, out, in, q, scale);
    for (int r = 0; r < rows; r++, x += in, y += out) {
        float most = 0;
        for (int i = 0; i < in; i++) most = fmaxf(most, fabsf(x[i]));
        const float factor = 127.0f / most;
        for (int i = 0; i < in; i++) integers[i] = (int)nearbyint((double)x[i] * (double)factor);
        for (int o = 0; o < out; o++) {
            long sum = 0;
            for (int i = 0; i < in; i++) sum += integers[i] * (long)q[(size_t)o * (size_t)in + (size_t)i];
            y[o] = (float)sum * (most / 127.0f * scale[o]) + bias[o];
        }
    }
    free(q), free(scale), free(integers);
}

/* Computes the same in double, with weights rounded to operands. */
static void fine_product(const float *w, const float *bias, int out, int in, const float *x, int rows, size_t act_size,
                         float *y)
{
    for (int r = 0; r < rows; r++, x += in, y += out)
        for (int o = 0; o < out; o++) {
            double sum = (double)bias[o];
            for (int i = 0; i < in; i++)
                sum += (double)to_act(w[(size_t)o * (size_t)in + (size_t)i], act_size) * (double)x[i];
            y[o] = (float)sum;
        }
}

/* Arguments of the oracle. kept: [depth][rows][WIDTH], or NULL, as in kern_head_ops.eval_reusing. */
typedef struct {
    const head_case *h;
    size_t act_size;
    int int8, rows;
    kern_head_reuse reuse;
    float *kept;
} call;

static void product_of(const call *c, const float *w, const float *bias, int out, int in, const float *x, float *y)
{
    if (c->int8)
        int8_product(w, bias, out, in, x, c->rows, y);
    else
        fine_product(w, bias, out, in, x, c->rows, c->act_size, y);
}

/* Computes a row's operand. norm: block whose layer norm has its own weight and bias, or NULL. */
static void modulated(const float *x, const kern_head_block *norm, const float *shift, const float *scale,
                      size_t act_size, float *u)
{
    double mean = 0, square = 0;
    for (int i = 0; i < WIDTH; i++) mean += (double)x[i] / WIDTH;
    for (int i = 0; i < WIDTH; i++) square += ((double)x[i] - mean) * ((double)x[i] - mean) / WIDTH;
    for (int i = 0; i < WIDTH; i++) {
        double n = ((double)x[i] - mean) / sqrt(square + 1e-6);
        if (norm) n = n * (double)norm->ln_weight[i] + (double)norm->ln_bias[i];
        u[i] = to_act((float)(n * (1 + (double)scale[i]) + (double)shift[i]), act_size);
    }
}

/* Adds block b with modulation rows mod [rows][3*ada_layers*WIDTH]. work [rows][WIDTH + 3 hidden]. */
static void add_block(const call *c, int b, const float *mod, float *x, float *work)
{
    const kern_head_block *block = &c->h->blocks[b];
    const kern_head_spec *s = &c->h->spec;
    const int inner = b >= 1 && b <= 4, n = c->rows * WIDTH, stride = 3 * WIDTH * s->ada_layers, hidden = s->hidden;
    const int swiglu = s->form == KERN_HEAD_SWIGLU, fc1 = swiglu ? 2 * hidden : hidden;
    const int computed = !c->kept || c->reuse == KERN_HEAD_FRESH || (c->reuse == KERN_HEAD_WARM && !inner);
    float *u = work, *v = work + n, *ab = v + c->rows * hidden, *kept = c->kept ? c->kept + b * n : u;
    mod += 3 * WIDTH * (b / (s->depth / s->ada_layers));
    if (computed) {
        for (int r = 0; r < c->rows; r++)
            modulated(x + r * WIDTH, swiglu ? block : NULL, mod + r * stride, mod + r * stride + WIDTH, c->act_size,
                      u + r * WIDTH);
        product_of(c, block->fc1_weight, block->fc1_bias, fc1, WIDTH, u, ab);
        for (int i = 0; i < c->rows * hidden; i++) {
            const float *a = ab + i / hidden * fc1 + i % hidden;
            v[i] = to_act(swiglu ? silu(a[0]) * a[hidden] : silu(a[0]), c->act_size);
        }
        product_of(c, block->fc2_weight, block->fc2_bias, WIDTH, hidden, v, kept);
    }
    for (int i = 0; i < n; i++) {
        const float gate = mod[i / WIDTH * stride + 2 * WIDTH + i % WIDTH];
        if (c->kept && inner && computed) kept[i] *= gate;
        x[i] += c->kept && inner ? kept[i] : gate * kept[i];
    }
}

/* Computes out [rows][OUT]: the head at states [rows][CHANNELS] and condition sums cond [rows][WIDTH]. */
static void oracle(const call *c, const float *states, const float *cond, float *out)
{
    const kern_head_spec *s = &c->h->spec;
    const size_t n = (size_t)c->rows * WIDTH, f = sizeof(float), blocks = 3 * (size_t)s->ada_layers;
    float *x = malloc(n * f), *mod = malloc(blocks * n * f), *last = malloc(2 * n * f);
    float *work = malloc((n + 3 * (size_t)(c->rows * s->hidden)) * f);
    float *u = calloc(n, f), *weight;
    const float *bias;
    mar_err err = {0};
    assert_true(x && work && mod && last && u);
    assert_ok(kern_head_adaln(s, &weight, &bias, &err), &err);
    for (size_t i = 0; i < n; i++) u[i] = to_act(silu(cond[i]), c->act_size);
    product_of(c, weight, bias, (int)blocks * WIDTH, WIDTH, u, mod);
    for (size_t i = 0; i < blocks * n; i++) mod[i] = to_act(mod[i], c->act_size);
    fine_product(s->ada_weight, s->ada_bias, 2 * WIDTH, WIDTH, u, c->rows, c->act_size, last);
    fine_product(s->in_weight, s->in_bias, WIDTH, CHANNELS, states, c->rows, f, x);
    for (int b = 0; b < s->depth; b++) add_block(c, b, mod, x, work);
    for (int r = 0; r < c->rows; r++)
        modulated(x + r * WIDTH, NULL, last + r * 2 * WIDTH, last + r * 2 * WIDTH + WIDTH, f, u + r * WIDTH);
    fine_product(s->out_weight, s->out_bias, OUT, WIDTH, u, c->rows, f, out);
    free(x), free(work), free(mod), free(last), free(u), free(weight);
}

/* --- a head on a queue -------------------------------------------------------------------------------------------- */

/* A head with modulation rows of STEPS steps for `rows` conditions. */
typedef struct {
    kern_queue *k;
    kern_head *net;
    int rows;
    float *temb, *cond, *x; /* [STEPS][WIDTH], [rows][WIDTH], [rows][CHANNELS] */
    char *mod;
    void *scratch;
} rig;

static rig open_rig(kern_queue *k, const head_case *h, int int8, const uint8_t *fine, int rows)
{
    static const int steps[STEPS] = {0, 1, 2};
    rig g = {.k = k, .rows = rows};
    kern_head_spec spec = h->spec;
    mar_err err = {0};
    spec.int8 = int8;
    g.temb = even_floats(STEPS * WIDTH, -1, 1, 60);
    g.cond = even_floats((size_t)rows * WIDTH, -2, 2, 61);
    g.x = even_floats((size_t)rows * CHANNELS, -2, 2, 62);
    assert_ok(k->head->create(k, &spec, &g.net, &err), &err);
    assert_ok(k->head->plan(k, g.net, STEPS * rows, &err), &err);
    g.mod = backend_memory(k, STEPS * (size_t)rows * k->head->mod_bytes(g.net));
    g.scratch = backend_memory(k, k->head->scratch_bytes(g.net, STEPS * rows));
    k->head->modulate(k, g.net, g.temb, steps, fine, STEPS, g.cond, rows, g.mod, g.scratch);
    return g;
}

static void close_rig(rig *g)
{
    g->k->core->free(g->k->device, g->mod), g->k->core->free(g->k->device, g->scratch);
    g->k->head->free(g->k->device, g->net);
    free(g->temb), free(g->cond), free(g->x);
}

static const char *mod_of(const rig *g, int step)
{
    return g->mod + (size_t)(step * g->rows) * g->k->head->mod_bytes(g->net);
}

/* Computes the oracle's output at a step's conditions. */
static void expected(const rig *g, int step, call c, float *out)
{
    const size_t n = (size_t)g->rows * WIDTH;
    float *sum = malloc(n * sizeof *sum);
    assert_non_null(sum);
    for (size_t i = 0; i < n; i++) sum[i] = g->temb[step * WIDTH + (int)(i % WIDTH)] + g->cond[i];
    c.act_size = g->k->device->act_size, c.rows = g->rows;
    oracle(&c, g->x, sum, out);
    free(sum);
}

/* Compares rows. Another summation order changes one operand in thousands to the neighbouring integer or bf16. This
 * shows in the row's digits. Most rows must agree to f32 precision; none may be off by more than a few such steps. An
 * integer step is 1/127 of its row's greatest number. */
static void expect_rows(const float *got, const float *want, int rows, const char *what)
{
    double worst = 0;
    int near = 0;
    for (int r = 0; r < rows; r++) {
        const double error = relative_error(got + r * OUT, want + r * OUT, OUT);
        worst = fmax(worst, error);
        near += error < 1e-5;
    }
    print_message("    %s: %d of %d rows as f32, the worst %.2g\n", what, near, rows, worst);
    if (!(worst < 2e-2) || near < rows * 3 / 4) fail_msg("%s: %d of %d rows, the worst %.3g", what, near, rows, worst);
}

static const uint8_t second_fine[STEPS] = {0, 1, 0}, all_fine[STEPS] = {1, 1, 1}, none_fine[STEPS] = {0, 0, 0};

/* --- tests -------------------------------------------------------------------------------------------------------- */

/* Makes a head of either form. The width of a SwiGLU block's operand is no multiple of a vector's words. */
static head_case make_form_of(kern_head_form form, int hidden, int depth, int ada_layers, uint64_t seed)
{
    return form == KERN_HEAD_MLP ? make_head_case(WIDTH, depth, CHANNELS, seed)
                                 : make_swiglu_case(WIDTH, depth, CHANNELS, hidden, ada_layers, seed);
}

static head_case make_form(kern_head_form form, int depth, int ada_layers, uint64_t seed)
{
    return make_form_of(form, HIDDEN, depth, ada_layers, seed);
}

TEST_CASE(the_head_is_the_oracle_s)
{
    static float got[ROWS * OUT], want[ROWS * OUT], other[ROWS * OUT];
    for (int isa = 0; isa < ISAS; isa++) {
        kern_queue *k = open_as(isas[isa], MAR_DTYPE_INT8, 2);
        if (!k) continue;
        print_message("%s\n", k->device->unit);
        for (uint64_t seed = 1; seed <= 5; seed++) { /* 4: SwiGLU with one adaLN layer, 5: with one for each block */
            head_case h = make_form(seed > 3, DEPTH, seed == 4 ? 1 : DEPTH, 1000 * seed);
            rig g = open_rig(k, &h, 1, second_fine, ROWS);
            for (int step = 0; step < 2; step++) {
                k->head->eval(k, g.net, g.x, NULL, mod_of(&g, step), NULL, ROWS, got, g.scratch);
                expected(&g, step, (call){.h = &h, .int8 = !second_fine[step]}, want);
                expect_rows(got, want, ROWS, step ? "fine" : "int8");
                expected(&g, step, (call){.h = &h, .int8 = second_fine[step]}, other);
                assert_true(relative_error(got, other, ROWS * OUT) > 3e-3); /* the other arithmetic differs */
            }
            close_rig(&g);
            free_head_case(&h);
        }
        close_queue(k);
    }
}

/* Checks LazyMAR's reuse of outputs kept by the same or the other arithmetic. */
TEST_CASE(reuse_is_the_oracle_s)
{
    static float got[ROWS * OUT], want[ROWS * OUT], plain[ROWS * OUT], kept[DEEP * ROWS * WIDTH];
    kern_queue *k = open_as("", MAR_DTYPE_INT8, 2);
    if (!k) skip();
    head_case h = make_head_case(WIDTH, DEEP, CHANNELS, 900);
    rig g = open_rig(k, &h, 1, second_fine, ROWS);
    float *own = backend_memory(k, sizeof kept);
    for (int turn = 0; turn < 6; turn++) { /* a fresh call at some step, then both kinds of reuse at other steps */
        static const int steps[6] = {0, 2, 1, 1, 0, 2};
        const kern_head_reuse reuse[3] = {KERN_HEAD_FRESH, KERN_HEAD_WARM, KERN_HEAD_KEPT};
        const int step = steps[turn];
        k->head->eval_reusing(k, g.net, g.x, NULL, mod_of(&g, step), NULL, ROWS, reuse[turn % 3], own, ROWS, got,
                              g.scratch);
        expected(&g, step, (call){.h = &h, .int8 = !second_fine[step], .reuse = reuse[turn % 3], .kept = kept}, want);
        expect_rows(got, want, ROWS, "reuse");
        k->head->eval(k, g.net, g.x, NULL, mod_of(&g, step), NULL, ROWS, plain, g.scratch);
        assert_int_equal(relative_error(got, plain, ROWS * OUT) > 3e-3, turn % 3 != 0);
    }
    k->core->free(k->device, own);
    close_rig(&g);
    free_head_case(&h);
    close_queue(k);
}

/* Checks calls that mix rows of all steps, in shuffled order and with separate states. Threads that evaluate rows of
 * their own have operands of WIDTH and LONG at the same time. */
static void check_bits(kern_head_form form)
{
    static float all[ROWS * OUT], first[ROWS * OUT], one[OUT];
    int x_index[ROWS], mod_index[ROWS];
    head_case h = make_form_of(form, LONG, DEPTH, 1, 900);
    for (int r = 0; r < ROWS; r++) x_index[r] = 11 * r % ROWS / 2, mod_index[r] = 37 * r % (STEPS * ROWS);
    for (int isa = 0; isa < ISAS; isa++)
        for (int threads = 1; threads <= 3; threads++) {
            kern_queue *k = open_as(isas[isa], MAR_DTYPE_INT8, threads);
            if (!k) continue;
            rig g = open_rig(k, &h, 1, second_fine, ROWS);
            for (int turn = 0; turn < (threads == 1 ? 1 : 8); turn++) {
                k->head->eval(k, g.net, g.x, x_index, g.mod, mod_index, ROWS, all, g.scratch);
                if (threads == 1) memcpy(first, all, sizeof all);
                assert_memory_equal(all, first, sizeof all);
            }
            for (int r = 0; r < ROWS; r++) {
                k->head->eval(k, g.net, g.x, x_index + r, g.mod, mod_index + r, 1, one, g.scratch);
                assert_memory_equal(one, all + r * OUT, sizeof one);
            }
            for (int step = 0; step < STEPS; step++) { /* unmixed: all rows of one step */
                static float some[ROWS * OUT];
                int row[ROWS], xs[ROWS], mods[ROWS], n = 0;
                for (int r = 0; r < ROWS; r++)
                    if (mod_index[r] / ROWS == step) row[n] = r, xs[n] = x_index[r], mods[n++] = mod_index[r];
                assert_true(n > 1);
                k->head->eval(k, g.net, g.x, xs, g.mod, mods, n, some, g.scratch);
                for (int i = 0; i < n; i++) assert_memory_equal(some + i * OUT, all + row[i] * OUT, sizeof one);
            }
            close_rig(&g);
            close_queue(k);
        }
    free_head_case(&h);
}

TEST_CASE(a_row_s_bits_are_its_own)
{
    check_bits(KERN_HEAD_MLP);
    check_bits(KERN_HEAD_SWIGLU);
}

/* Computes the outputs at all steps, [STEPS][ROWS][OUT]. */
static void at_all_steps(kern_queue *k, const head_case *h, int int8, const uint8_t *fine, float *out)
{
    rig g = open_rig(k, h, int8, fine, ROWS);
    for (int step = 0; step < STEPS; step++)
        k->head->eval(k, g.net, g.x, NULL, mod_of(&g, step), NULL, ROWS, out + step * ROWS * OUT, g.scratch);
    close_rig(&g);
}

static void check_fine_rows(kern_head_form form)
{
    enum { STEP = ROWS * OUT, ALL = STEPS * STEP };
    static float without[ALL], with[ALL], bf16[ALL], in_int8[ALL];
    const size_t size = STEP * sizeof *with;
    head_case h = make_form(form, DEPTH, DEPTH, 900);
    for (int isa = 0; isa < ISAS; isa++) {
        kern_queue *k = open_as(isas[isa], MAR_DTYPE_INT8, 2);
        const int f32 = k && k->device->act_size == sizeof(float);
        kern_queue *plain = open_as(isas[isa], f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO, 1);
        if (k) {
            at_all_steps(k, &h, 0, NULL, without);
            at_all_steps(plain, &h, 1, NULL, bf16); /* a device without int8 ignores the request */
            assert_memory_equal(bf16, without, sizeof bf16);
            at_all_steps(k, &h, 1, all_fine, with);
            assert_memory_equal(with, without, sizeof with);
            at_all_steps(k, &h, 1, NULL, in_int8);
            at_all_steps(k, &h, 1, none_fine, with);
            assert_memory_equal(with, in_int8, sizeof with);
            at_all_steps(k, &h, 1, second_fine, with);
            for (int step = 0; step < STEPS; step++) {
                const float *at = with + step * STEP;
                assert_memory_equal(at, (second_fine[step] ? without : in_int8) + step * STEP, size);
                assert_memory_not_equal(at, (second_fine[step] ? in_int8 : without) + step * STEP, size);
            }
            h.spec.dtype = MAR_DTYPE_F32; /* a head in f32 has no int8 */
            at_all_steps(k, &h, 0, NULL, without);
            at_all_steps(k, &h, 1, NULL, with);
            assert_memory_equal(with, without, sizeof with);
            h.spec.dtype = MAR_DTYPE_AUTO;
            close_queue(k);
        }
        close_queue(plain);
    }
    free_head_case(&h);
}

TEST_CASE(fine_rows_are_those_of_a_head_without_int8)
{
    check_fine_rows(KERN_HEAD_MLP);
    check_fine_rows(KERN_HEAD_SWIGLU);
}

/* Checks that the layer with a non-finite weight is named. The watch must read a row's modulation in its own format. */
TEST_CASE(what_is_not_finite_is_found)
{
    static const char *const layers[2][4] = {
        [KERN_HEAD_MLP] = {"diffloss.net.res_blocks.1", "diffloss.net.res_blocks.1",
                           "diffloss.net.res_blocks.1.adaLN_modulation.1"},
        [KERN_HEAD_SWIGLU] = {"head.net.res_blocks.1", "head.net.res_blocks.1", "head.net.ada_ln_blocks.1",
                              "head.net.res_blocks.1"},
    };
    static float out[ROWS * OUT];
    kern_queue *k = open_as("", MAR_DTYPE_INT8, 2);
    if (!k) skip();
    for (int way = 0; way < 8; way++)
        for (int infinite = 0; infinite < 2 && layers[way / 4][way % 4]; infinite++) {
            head_case h = make_form(way / 4, DEPTH, DEPTH, 900);
            const kern_head_block *b = &h.blocks[1];
            const float *weights[4] = {b->fc1_weight, b->fc2_weight, b->ada_weight, b->ln_weight};
            ((float *)(uintptr_t)weights[way % 4])[way % 4 < 3 ? 5 * WIDTH + 7 : 7] =
                infinite ? (float)INFINITY : (float)NAN;
            kern_watch_begin(k);
            k->watch.on = 1;
            rig g = open_rig(k, &h, 1, second_fine, ROWS);
            for (int step = 0; step < STEPS; step += 2)
                k->head->eval(k, g.net, g.x, NULL, mod_of(&g, step), NULL, ROWS, out, g.scratch);
            assert_string_equal(k->watch.layer, layers[way / 4][way % 4]);
            k->watch.on = 0;
            close_rig(&g);
            free_head_case(&h);
        }
    close_queue(k);
}

TEST_CASE(a_head_says_its_arithmetic)
{
    head_case h = make_head_case(WIDTH, 1, CHANNELS, 900);
    for (int isa = 0; isa < ISAS; isa++) {
        kern_queue *k = open_as(isas[isa], MAR_DTYPE_INT8, 1);
        if (!k) continue;
        rig g = open_rig(k, &h, 1, NULL, 1);
        assert_string_equal(k->head->describe(g.net), k->device->act_size == sizeof(float)
                                                          ? "matrix products in int8 and f32"
                                                          : "matrix products in int8 and bf16");
        close_rig(&g);
        close_queue(k);
    }
    free_head_case(&h);
}
