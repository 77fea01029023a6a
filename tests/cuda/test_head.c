/* The diffusion head and whole chains, against the CPU in f32. */
#include "tests/support/device.h"
#include "tests/support/head_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 6, C = 16, STEPS = 5 }; /* LazyMAR treats blocks 0, 1 to 4, and 5 differently */
static const uint64_t seed = 0x5EED0123456789AB;

/* --- a head of random weights on both backends ---------------------------------------------------------------- */

typedef struct {
    kern_queue *k;
    kern_head *net;
    float *temb, *cond; /* [STEPS][W], [rows][W] */
    void *mod, *scratch;
} side;

typedef struct {
    int width;
    int rows;   /* the most of a call */
    int is_f32; /* the head */
    double tolerance;
    side cpu, cuda;
} fixture;

static float *some(size_t n, float scale)
{
    static uint64_t stream;
    return random_floats(n, scale, seed + ++stream);
}

static void create_side(side *s, const kern_head_spec *spec, const float *temb, const float *cond, int rows)
{
    const size_t w = (size_t)spec->width;
    kern_queue *k = s->k;
    mar_err err = {0};
    assert_ok(k->head->create(s->k, spec, &s->net, &err), &err);
    assert_ok(k->head->plan(s->k, s->net, rows, &err), &err);
    s->temb = to_device(s->k, temb, STEPS * w * sizeof(float));
    s->cond = to_device(s->k, cond, (size_t)rows * w * sizeof(float));
    s->mod = to_device(s->k, NULL, (size_t)(STEPS * rows) * k->head->mod_bytes(s->net));
    s->scratch = to_device(s->k, NULL, k->head->scratch_bytes(s->net, STEPS * rows));
}

/* The arithmetic of a device, and of the head on it. */
typedef enum { BF16, F32, F32_IN_BF16, ARITHMETICS } arithmetic;

static void open_fixture(fixture *f, arithmetic a, int width, int rows)
{
    const size_t w = (size_t)width;
    const float scale = 1 / sqrtf((float)width);
    *f = (fixture){.width = width, .rows = rows, .is_f32 = a != BF16, .tolerance = a == BF16 ? 2e-2 : 1e-4};
    kern_head_block blocks[DEPTH];
    float *arrays[DEPTH * 8 + 8], **next = arrays;
    for (int b = 0; b < DEPTH; b++) {
        blocks[b].ln_weight = *next++ = some(w, 1);
        blocks[b].ln_bias = *next++ = some(w, 0.3f);
        blocks[b].fc1_weight = *next++ = some(w * w, scale);
        blocks[b].fc1_bias = *next++ = some(w, 0.3f);
        blocks[b].fc2_weight = *next++ = some(w * w, scale);
        blocks[b].fc2_bias = *next++ = some(w, 0.3f);
        blocks[b].ada_weight = *next++ = some(3 * w * w, 0.7f * scale);
        blocks[b].ada_bias = *next++ = some(3 * w, 0.3f);
    }
    kern_head_spec spec = {.width = width, .depth = DEPTH, .channels = C, .blocks = blocks};
    spec.in_weight = *next++ = some(w * C, 0.25f);
    spec.in_bias = *next++ = some(w, 1);
    spec.ada_weight = *next++ = some(2 * w * w, 0.7f * scale);
    spec.ada_bias = *next++ = some(2 * w, 0.3f);
    spec.out_weight = *next++ = some(2 * C * w, 0.5f * scale);
    spec.out_bias = *next++ = some(2 * C, 0.3f);
    float *temb = *next++ = some(STEPS * w, 1), *cond = *next++ = some((size_t)rows * w, 1);
    f->cpu.k = open_cpu(), f->cuda.k = open_cuda(a == F32 ? MAR_DTYPE_F32 : MAR_DTYPE_BF16);
    create_side(&f->cpu, &spec, temb, cond, rows);
    spec.f32 = a == F32_IN_BF16;
    create_side(&f->cuda, &spec, temb, cond, rows);
    while (next > arrays) free(*--next);
}

static void close_side(side *s)
{
    void *arrays[] = {s->temb, s->cond, s->mod, s->scratch};
    check_kern(s->k);
    for (int i = 0; i < 4; i++) s->k->core->free(s->k->device, arrays[i]);
    s->k->head->free(s->k->device, s->net);
    close_queue(s->k);
}

static void close_fixture(fixture *f)
{
    close_side(&f->cpu);
    close_side(&f->cuda);
}

/* --- one evaluation ------------------------------------------------------------------------------------------- */

typedef struct {
    const float *x; /* host [rows][C] */
    const int *x_index, *mod_index;
    int rows;
} question;

/* The modulation of every step and condition. */
static void modulate(side *s, int rows)
{
    const int step[STEPS] = {3, 0, 4, 1, 2};
    s->k->head->modulate(s->k, s->net, s->temb, step, NULL, STEPS, s->cond, rows, s->mod, s->scratch);
}

/* Evaluates the head, with reuse unless `kept` is NULL. Returns the output [rows][2C], which the caller frees. */
static float *ask(side *s, const question *q, kern_head_reuse reuse, float *kept, int kept_rows)
{
    kern_queue *k = s->k;
    const size_t n = (size_t)q->rows * 2 * C;
    float *x = to_device(s->k, q->x, (size_t)q->rows * C * sizeof *x);
    float *out = to_device(s->k, NULL, n * sizeof *out), *host = malloc(n * sizeof *host);
    assert_non_null(host);
    if (kept)
        k->head->eval_reusing(s->k, s->net, x, q->x_index, s->mod, q->mod_index, q->rows, reuse, kept, kept_rows, out,
                              s->scratch);
    else
        k->head->eval(s->k, s->net, x, q->x_index, s->mod, q->mod_index, q->rows, out, s->scratch);
    from_device(s->k, host, out, n * sizeof *out);
    k->core->free(k->device, x), k->core->free(k->device, out);
    return host;
}

static void same_answers(fixture *f, const question *q, kern_head_reuse reuse, float *kept[2], int kept_rows)
{
    float *want = ask(&f->cpu, q, reuse, kept[0], kept_rows), *got = ask(&f->cuda, q, reuse, kept[1], kept_rows);
    assert_close(got, want, (size_t)q->rows * 2 * C, f->tolerance);
    free(want), free(got);
}

static void evaluation(void **state)
{
    (void)state;
    const int widths[] = {264, 40}; /* several warps a row, the last in part; one warp in part */
    for (int i = 0; i < 2 * ARITHMETICS; i++) {
        fixture f;
        open_fixture(&f, (arithmetic)(i / 2), widths[i % 2] * (cuda_test_scale() > 1 ? 4 : 1), 13 * cuda_test_scale());
        const int rows = f.rows;
        float *x = some((size_t)rows * C, 1), *none[2] = {NULL, NULL};
        int *x_index = malloc((size_t)rows * sizeof(int)), *mod_index = malloc((size_t)rows * sizeof(int));
        assert_non_null(x_index);
        assert_non_null(mod_index);
        for (int r = 0; r < rows; r++) x_index[r] = r * 5 % (rows / 2), mod_index[r] = (r * 17 + 3) % (STEPS * rows);
        modulate(&f.cpu, rows);
        modulate(&f.cuda, rows);
        same_answers(&f, &(question){x, NULL, NULL, rows}, KERN_HEAD_FRESH, none, 0);
        same_answers(&f, &(question){x, x_index, NULL, rows}, KERN_HEAD_FRESH, none, 0);
        same_answers(&f, &(question){x, NULL, mod_index, rows - 1}, KERN_HEAD_FRESH, none, 0);
        same_answers(&f, &(question){x, x_index, mod_index, 1}, KERN_HEAD_FRESH, none, 0);
        free(x), free(x_index), free(mod_index);
        close_fixture(&f);
    }
}

/* Against the formulas in double, which do not fold the layer norm into adaLN. The GPU's biases of operands are bf16,
 * too, which head_rounding leaves out. */
static void the_official_formulas(void **state)
{
    (void)state;
    const int rows = 40 * cuda_test_scale();
    for (uint64_t head = 1; head <= 2; head++) {
        head_case h = make_head_case(128, 3, 8, 1000 * head);
        const double rounding = head_rounding(&h, rows, head);
        for (int a = 0; a < ARITHMETICS; a++) {
            kern_queue *k = open_cuda(a == F32 ? MAR_DTYPE_F32 : MAR_DTYPE_BF16);
            h.spec.f32 = a == F32_IN_BF16;
            const double error = head_error(k, &h, rows, 0, head), allowed = a == BF16 ? 1.3 * rounding : 3e-6;
            if (!(error <= allowed))
                fail_msg("arithmetic %d, head %d: relative error %.3g, allowed %.3g", a, (int)head, error, allowed);
            close_queue(k);
        }
        free_head_case(&h);
    }
}

/* SiLU takes fc1's f32 sums, and is rounded once, as in a persistent kernel. */
static void silu_is_rounded_once(void **state)
{
    (void)state;
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    head_case h = make_rounding_case(96, C, 40);
    const double error = head_error(k, &h, 70, 1, 41);
    if (!(error <= 2e-5)) fail_msg("relative error %.3g", error);
    close_queue(k);
    free_head_case(&h);
}

/* The final layer must be nearly f32, in bf16, too: at the first diffusion index an error of eps is multiplied by 2e4.
 * With a block that adds nothing and a modulation that is its bias, it and the input projection are all there is. */
static void the_final_layer(void **state)
{
    (void)state;
    static const struct {
        int width, channels;
    } shapes[] = {{40, 16}, {264, 16}, {520, 3}, {768, 8}, {1288, 16}, {1536, 16}, {1544, 4}, {64, 24}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += cuda_test_brief() ? 3 : 1) {
        const int w = shapes[i].width;
        head_case h = make_head_case(w, 1, shapes[i].channels, 500 + i);
        memset((void *)(uintptr_t)h.blocks[0].ada_weight, 0, 3 * (size_t)w * (size_t)w * sizeof(float));
        memset((void *)(uintptr_t)h.blocks[0].ada_bias, 0, 3 * (size_t)w * sizeof(float));
        memset((void *)(uintptr_t)h.spec.ada_weight, 0, 2 * (size_t)w * (size_t)w * sizeof(float));
        for (int a = 0; a < ARITHMETICS; a++) {
            kern_queue *k = open_cuda(a == F32 ? MAR_DTYPE_F32 : MAR_DTYPE_BF16);
            h.spec.f32 = a == F32_IN_BF16;
            const double error = head_error(k, &h, 21, 0, 600 + i), allowed = a == BF16 ? 6e-6 : 1e-6;
            if (!(error <= allowed))
                fail_msg("width %d, arithmetic %d: relative error %.3g, allowed %.3g", w, a, error, allowed);
            close_queue(k);
        }
        free_head_case(&h);
    }
}

/* Each call after the first has another state and other modulations, so that reuse makes a difference. */
static void reuse(void **state)
{
    (void)state;
    const kern_head_reuse respacing[] = {KERN_HEAD_FRESH, KERN_HEAD_KEPT, KERN_HEAD_WARM, KERN_HEAD_KEPT,
                                         KERN_HEAD_FRESH};
    for (int i = 0; i < ARITHMETICS; i++) {
        fixture f;
        open_fixture(&f, (arithmetic)i, 72 * cuda_test_scale(), 12 * cuda_test_scale());
        const int rows = f.rows, kept_rows = rows + 3;
        const size_t bytes = (size_t)(DEPTH * kept_rows * f.width) * sizeof(float);
        float *kept[2] = {to_device(f.cpu.k, NULL, bytes), to_device(f.cuda.k, NULL, bytes)};
        modulate(&f.cpu, rows);
        modulate(&f.cuda, rows);
        for (int s = 0; s < 5; s++) {
            float *x = some((size_t)rows * C, 1);
            int *mod_index = malloc((size_t)rows * sizeof(int));
            assert_non_null(mod_index);
            for (int r = 0; r < rows; r++) mod_index[r] = s * rows + r;
            same_answers(&f, &(question){x, NULL, mod_index, s == 0 || s == 4 ? rows : rows / 2}, respacing[s], kept,
                         kept_rows);
            free(x), free(mod_index);
        }
        f.cpu.k->core->free(f.cpu.k->device, kept[0]), f.cuda.k->core->free(f.cuda.k->device, kept[1]);
        close_fixture(&f);
    }
}

static void refuses_odd_widths(void **state)
{
    (void)state;
    const kern_head_spec spec = {.width = 36, .depth = 0, .channels = C};
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    kern_head *head = NULL;
    mar_err err = {0};
    assert_int_equal(k->head->create(k, &spec, &head, &err), MAR_EBACKEND);
    assert_string_equal(err.text, "a diffusion head of width 36: expected a multiple of 8 up to 4096 on a GPU");
    assert_null(head);
    close_queue(k);
}

/* --- whole chains --------------------------------------------------------------------------------------------- */

/* A job of indices STEPS-1 .. 1. Its host arrays may change between runs. */
typedef struct {
    fixture *f;
    kern_chain_job job; /* without the arrays of one backend */
    kern_chain_coef coef[STEPS];
    kern_ode_coef ode[STEPS];
    int t[STEPS];
    float *cfg, *x; /* host [tokens], [tokens][C] */
    uint64_t *image;
    int *position;
    float *device_x, *device_x0, *device_out; /* of the CUDA side */
} respacing;

static void begin_course(respacing *c, fixture *f, int tokens, int conditions, int solver)
{
    const size_t n = (size_t)tokens;
    memset(c, 0, sizeof *c);
    c->f = f;
    c->image = malloc(n * sizeof *c->image), c->position = malloc(n * sizeof *c->position);
    assert_non_null(c->image);
    assert_non_null(c->position);
    for (int i = 0; i < STEPS; i++) {
        const float u = (float)i / STEPS;
        c->coef[i] = (kern_chain_coef){1 + u, 0.5f + u, 0.5f - 0.3f * u, 0.4f + 0.3f * u, -5 + u, -2 + u, 0.9f};
        c->ode[i] = (kern_ode_coef){1 + u, 0.5f + u, 0.6f, 0.3f, i == STEPS - 1 ? 0 : 0.1f};
        c->t[i] = i * 200 + 1;
    }
    c->job = (kern_chain_job){.tokens = tokens,
                              .conditions = conditions,
                              .first = STEPS - 1,
                              .last = 1,
                              .coef = solver ? NULL : c->coef,
                              .ode = solver ? c->ode : NULL,
                              .t = c->t,
                              .seed = seed,
                              .image = c->image,
                              .position = c->position};
    c->device_x = to_device(f->cuda.k, NULL, n * C * sizeof(float));
    c->device_x0 = to_device(f->cuda.k, NULL, n * C * sizeof(float));
    c->device_out = to_device(f->cuda.k, NULL, n * 4 * C * sizeof(float));
}

/* New noise, states and guidance. */
static void change_course(respacing *c, int salt)
{
    const int tokens = c->job.tokens;
    free(c->cfg), free(c->x);
    c->cfg = some((size_t)tokens, 1.5f);
    c->x = some((size_t)tokens * C, 1);
    c->job.cfg = c->cfg;
    for (int i = 0; i < tokens; i++) {
        c->image[i] = (uint64_t)salt << 32 | (uint64_t)(i / 3);
        c->position[i] = i * 31 + salt;
    }
}

static void end_course(respacing *c)
{
    void *arrays[] = {c->device_x, c->device_x0, c->device_out};
    for (int i = 0; i < 3; i++) c->f->cuda.k->core->free(c->f->cuda.k->device, arrays[i]);
    free(c->cfg), free(c->x), free(c->image), free(c->position);
}

/* The same by single operations of the CPU. Returns x and x0, [2][tokens][C], which the caller frees. */
static float *step_by_step(respacing *c)
{
    side *s = &c->f->cpu;
    kern_queue *k = s->k;
    const kern_chain_job *j = &c->job;
    const int rows = j->tokens * j->conditions;
    const size_t n = (size_t)j->tokens * C;
    const float *cfg = j->conditions == 2 ? c->cfg : NULL;
    float *x = calloc(2 * n, sizeof *x), *out = calloc((size_t)rows * 2 * C, sizeof *out);
    int *x_index = malloc((size_t)rows * sizeof *x_index);
    assert_non_null(x);
    assert_non_null(out);
    assert_non_null(x_index);
    memcpy(x, c->x, n * sizeof *x);
    for (int r = 0; r < rows; r++) x_index[r] = r % j->tokens;
    for (int i = j->first; i >= j->last; i--) {
        const char *mod = (const char *)s->mod + (size_t)((j->first - i) * rows) * k->head->mod_bytes(s->net);
        k->head->eval(s->k, s->net, x, x_index, mod, NULL, rows, out, s->scratch);
        if (j->coef)
            k->head->chain_step(s->k, x, out, j->tokens, C, cfg, &j->coef[i], seed, c->image, c->position, c->t[i]);
        else
            k->head->chain_ode_step(s->k, x, x + n, out, j->tokens, C, cfg, &j->ode[i]);
    }
    free(out), free(x_index);
    return x;
}

static void run_course(void *arg)
{
    respacing *c = arg;
    side *s = &c->f->cuda;
    kern_chain_job job = c->job;
    job.mod = s->mod, job.scratch = s->scratch;
    job.x = c->device_x, job.x0 = job.ode ? c->device_x0 : NULL, job.out = c->device_out;
    s->k->head->chain_run(s->k, s->net, &job);
}

/* Runs it on the GPU, in a recording if one is given, and compares. */
static void check_course(respacing *c, kern_recording **recording)
{
    kern_queue *k = c->f->cuda.k;
    const size_t n = (size_t)c->job.tokens * C;
    float *want = step_by_step(c), *got = malloc(2 * n * sizeof *got);
    assert_non_null(got);
    k->core->upload(k, c->device_x, c->x, n * sizeof *got);
    if (recording)
        k->core->replay(k, recording, run_course, c);
    else
        run_course(c);
    from_device(k, got, c->device_x, n * sizeof *got);
    from_device(k, got + n, c->device_x0, n * sizeof *got);
    const double tolerance = c->f->is_f32 ? 1e-4 : 5e-2;
    assert_close(got, want, n, tolerance);
    if (c->job.ode) assert_close(got + n, want + n, n, tolerance);
    free(want), free(got);
}

static void chains(arithmetic a, int most_rows)
{
    fixture f;
    open_fixture(&f, a, 64 * (cuda_test_scale() > 1 ? 4 : 1), most_rows);
    for (int conditions = 1; conditions <= 2; conditions++) {
        const int tokens = most_rows / conditions;
        modulate(&f.cpu, tokens * conditions);
        modulate(&f.cuda, tokens * conditions);
        for (int solver = 0; solver <= 1; solver++) {
            respacing c;
            kern_recording *recording = NULL;
            begin_course(&c, &f, tokens, conditions, solver);
            change_course(&c, 1);
            check_course(&c, NULL);
            /* run, recorded, then replayed with other host arrays; where time is short, with guidance only */
            for (int run = 2; run <= (cuda_test_brief() && conditions == 1 ? 1 : 5); run++) {
                change_course(&c, run);
                check_course(&c, &recording);
            }
            f.cuda.k->core->recording_free(f.cuda.k, recording);
            end_course(&c);
        }
    }
    close_fixture(&f);
}

static void chains_of_many_rows(void **state)
{
    (void)state;
    chains(BF16, 70 * cuda_test_scale());
    chains(F32, 70);
    chains(F32_IN_BF16, 70);
}

static void chains_of_few_rows(void **state)
{
    (void)state;
    chains(BF16, 6);
    chains(F32, 6);
    chains(F32_IN_BF16, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation),
        cmocka_unit_test(the_official_formulas),
        cmocka_unit_test(silu_is_rounded_once),
        cmocka_unit_test(the_final_layer),
        cmocka_unit_test(reuse),
        cmocka_unit_test(refuses_odd_widths),
        cmocka_unit_test(chains_of_many_rows),
        cmocka_unit_test(chains_of_few_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
