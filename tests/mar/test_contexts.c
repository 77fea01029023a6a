/* Passes over contexts against the plain passes: the same conditions, bit for bit on a CPU. */
#include "mar/contexts.h"
#include "tests/support/changed.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IMAGES = 4, MAX_CONTEXTS = 24, MAX_SEQ = 64, BLOCKS = 6 };

typedef struct {
    uint64_t state;
} dice;

static uint32_t roll(dice *d)
{
    d->state = d->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(d->state >> 33);
}

/* 0 .. n-1 */
static int below(dice *d, int n)
{
    return (int)(roll(d) % (uint32_t)n);
}

static float uniform(dice *d)
{
    return (float)roll(d) / (float)(1u << 30) - 1;
}

static void shuffle(dice *d, int *x, int n)
{
    for (int i = n - 1; i > 0; i--) {
        const int j = below(d, i + 1), t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

/* A model with images whose tokens are all known to its runner: a pass sees those that it is told are known. */
typedef struct {
    mar *m;
    mar_model *model;
    kern_queue *k;
    int conditions, images, seq, width;
    mar_runner runner;
    void *memory;
    float *class_rows; /* of one image: mar_batch's */
    int labels[MAX_IMAGES], order[MAX_IMAGES][MAX_SEQ];
} fixture;

/* The handle is closed with it. */
static void open_fixture(fixture *f, mar *m, const char *path, int conditions, int images, dice *d)
{
    mar_err err = {0};
    *f = (fixture){.m = m, .conditions = conditions, .images = images};
    f->k = queue_of(f->m);
    assert_library(f->m, mar_model_load(f->m, path, 0, &f->model));
    const mar_model_config *c = &f->model->config;
    f->seq = c->seq_len;
    f->width = c->width;
    assert_true(f->seq <= MAX_SEQ);
    mar_params p = plain_params();
    p.num_sampling_steps = 2;
    assert_ok(plain_runner(f->k, f->model, images, conditions, f->seq, &p, &f->runner, &err), &err);
    f->memory = backend_memory(f->k, mar_runner_lay_out(&f->runner, NULL));
    mar_runner_lay_out(&f->runner, f->memory);
    f->class_rows = backend_memory(f->k, (size_t)(conditions * c->buffer * c->width) * sizeof(float));
    const int n = images * f->seq;
    float *tokens = backend_memory(f->k, (size_t)(n * c->token_dim) * sizeof *tokens);
    int *image = malloc((size_t)n * sizeof *image), *position = malloc((size_t)n * sizeof *position);
    assert_true(image && position);
    for (int i = 0; i < n; i++) {
        image[i] = i / f->seq;
        position[i] = i % f->seq;
    }
    for (int i = 0; i < n * c->token_dim; i++) tokens[i] = uniform(d);
    for (int i = 0; i < images; i++) {
        f->labels[i] = below(d, c->classes);
        for (int j = 0; j < f->seq; j++) f->order[i][j] = j;
        shuffle(d, f->order[i], f->seq);
    }
    mar_runner_begin(&f->runner, images, f->labels);
    mar_runner_learn(&f->runner, tokens, n, image, position, NULL);
    assert_ok(kern_check(f->k, &err), &err);
    f->k->core->free(f->k->device, tokens);
    free(image), free(position);
}

static void close_fixture(fixture *f)
{
    f->k->core->free(f->k->device, f->class_rows);
    f->k->core->free(f->k->device, f->memory);
    mar_runner_free(&f->runner);
    free_queue(f->k);
    mar_model_free(f->model);
    mar_close(f->m);
}

static void open_contexts(const fixture *f, int max_contexts, int chunk, mar_contexts *c, void **memory)
{
    mar_err err = {0};
    assert_ok(mar_contexts_create(f->k, mar_masked_model_of(f->model), f->images, max_contexts, max_contexts * f->seq,
                                  f->conditions, c, &err),
              &err);
    assert_int_equal(c->chunk, max_contexts); /* they are small */
    if (chunk < c->chunk) c->chunk = chunk;
    *memory = backend_memory(f->k, mar_contexts_lay_out(c, NULL));
    mar_contexts_lay_out(c, *memory);
    mar_contexts_begin(c);
}

static void close_contexts(const fixture *f, mar_contexts *c, void *memory)
{
    f->k->core->free(f->k->device, memory);
    mar_contexts_free(c);
}

/* r->z [conditions][asked][D] by the plain passes of one image. */
static void plain_pass(fixture *f, const mar_image_context *x)
{
    mar_runner *r = &f->runner;
    const int *order = x->order, labels[2] = {f->labels[x->image], f->model->config.classes};
    const mar_batch batch = {.images = 1,
                             .order = &order,
                             .token_rows = r->token_rows + (size_t)x->image * (size_t)(f->seq * f->width),
                             .class_rows = f->class_rows};
    const mar_step step = {.known = x->known, .predicted = x->asked};
    mar_embed_classes(r->model, &r->work, f->conditions, labels, f->class_rows);
    mar_runner_predict(r, &batch, &step, 0, x->asked, NULL);
}

static void assert_plain(fixture *f, const mar_contexts *c, const mar_image_context *list, int n)
{
    const size_t d = (size_t)f->width;
    int total = 0, before = 0;
    for (int i = 0; i < n; i++) total += list[i].asked;
    for (int i = 0; i < n; i++) {
        plain_pass(f, &list[i]);
        for (int condition = 0; condition < f->conditions; condition++)
            for (int a = 0; a < list[i].asked; a++) {
                const float *z = c->z + (size_t)(condition * total + before + a) * d;
                const float *plain = f->runner.z + (size_t)(condition * list[i].asked + a) * d;
                if (memcmp(z, plain, d * sizeof *z))
                    fail_msg("context %d of %d (image %d, %d known, %d asked), condition %d, token %d: relative error "
                             "%.3g, expected the same bits",
                             i, n, list[i].image, list[i].known, list[i].asked, condition, a,
                             relative_error(z, plain, d));
            }
        before += list[i].asked;
    }
}

/* Contexts as a round of speculation has them: each image's steps one after another, from some step on. Some ask for
 * more than their step. */
static int make_list(fixture *f, dice *d, int gamma, mar_image_context *list)
{
    int n = 0;
    for (int i = 0; i < f->images; i++) {
        int known = i == 0 ? 0 : below(d, f->seq);
        for (int j = 0; j < gamma && known < f->seq; j++) {
            const int left = f->seq - known, step = 1 + below(d, left < 4 ? left : 4);
            const int more = below(d, 3) ? 0 : below(d, left - step + 1);
            list[n++] = (mar_image_context){.image = i, .order = f->order[i], .known = known, .asked = step + more};
            known += step;
        }
    }
    assert_true(n <= MAX_CONTEXTS);
    return n;
}

static const char *const models[] = {"tests/golden/data/mar_small.safetensors", "demo"};
static const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};

static void as_plain(void **state)
{
    (void)state;
    dice d = {20};
    mar_err err = {0};
    for (int way = 0; way < 8; way++) { /* model, dtype, guidance */
        fixture f;
        const int images = 1 + below(&d, MAX_IMAGES);
        mar *m = open_mar(dtypes[way >> 1 & 1], 2);
        if (!m) continue; /* no bf16 here */
        open_fixture(&f, m, models[way & 1], 1 + (way >> 2), images, &d);
        for (int round = 0; round < 6; round++) {
            static const int chunks[] = {MAX_CONTEXTS, 1, 3};
            mar_image_context list[MAX_CONTEXTS];
            mar_contexts c;
            void *memory;
            const int n = make_list(&f, &d, 1 + below(&d, BLOCKS), list);
            open_contexts(&f, MAX_CONTEXTS, chunks[round % 3], &c, &memory);
            for (int i = n - 1; round >= 3 && i > 0; i--) { /* in any order */
                const int j = below(&d, i + 1);
                const mar_image_context t = list[i];
                list[i] = list[j];
                list[j] = t;
            }
            mar_recordings recordings = {0};
            for (int again = 0; again < 2; again++) { /* the second time with what the first left behind */
                assert_ok(mar_contexts_plan(&c, list, n, &err), &err);
                mar_contexts_run(&c, list, n, images, f.runner.token_rows, f.runner.class_rows,
                                 again ? &recordings : NULL);
                assert_ok(kern_check(f.k, &err), &err);
                assert_plain(&f, &c, list, n);
            }
            mar_recordings_free(f.k, &recordings);
            close_contexts(&f, &c, memory);
        }
        close_fixture(&f);
    }
}

/* What a pass of these contexts takes, without the masks of the batch. */
static void measure(const fixture *f, mar_contexts *c, const mar_image_context *list, int n, double flop[2])
{
    const double d = f->width, masks = 2 * f->seq * 3 * d * d;
    mar_contexts_begin(c);
    mar_contexts_run(c, list, n, f->images, f->runner.token_rows, f->runner.class_rows, NULL);
    f->k->core->finish(f->k);
    flop[0] = c->encoder_flop;
    flop[1] = c->decoder_flop - masks;
    assert_true(c->encoder_s > 0 && c->decoder_s > 0);
}

/* The arithmetic is that of plain passes but for what is shared. */
static void arithmetic(void **state)
{
    (void)state;
    dice d = {21};
    for (int conditions = 1; conditions <= 2; conditions++) {
        fixture f;
        mar_contexts c;
        void *memory;
        double one[2], two[2], both[2];
        open_fixture(&f, open_mar(MAR_DTYPE_F32, 2), "demo", conditions, 2, &d);
        open_contexts(&f, 4, 4, &c, &memory);
        const mar_masked_model *m = mar_masked_model_of(f.model);
        const double w = f.width, operands = 2 * 3 * w * w, buffer = m->base.config.buffer;
        const mar_image_context list[] = {{1, f.order[1], 5, 3}, {1, f.order[1], 9, 2}, {0, f.order[0], 9, 2}};
        measure(&f, &c, list, 1, one);
        measure(&f, &c, list + 1, 1, two);
        /* of the tokens, guidance computes the second condition's for nothing; of the decoder all masked positions */
        assert_float_equal(one[0], mar_encode_flop(m, conditions, 5) - (conditions - 1) * 5 * operands, 1);
        const double masked = conditions * (f.seq - 5.0), embed = 2 * w * w;
        assert_float_equal(one[1], mar_decode_flop(m, conditions, 3) - masked * (operands + embed), 1);
        measure(&f, &c, list, 2, both); /* an image's */
        assert_float_equal(both[0], one[0] + two[0] - (conditions * buffer + 5) * operands, 1);
        assert_float_equal(both[1], one[1] + two[1], 1);
        measure(&f, &c, list + 1, 2, both); /* two images' */
        assert_float_equal(both[0], 2 * two[0], 1);
        close_contexts(&f, &c, memory);
        close_fixture(&f);
    }
}

/* The search for the first layer that is not finite finds the one that it finds in a plain pass. */
static void watched(void **state)
{
    (void)state;
    static const struct {
        const char *tensor, *layer;
    } cases[] = {
        {"encoder_blocks.0.norm1.weight", "encoder_blocks.0.norm1"},
        {"encoder_blocks.0.attn.qkv.bias", "encoder_blocks.0.attn.qkv"},
        {"encoder_blocks.0.attn.proj.weight", "encoder_blocks.0.attn.proj"},
        {"encoder_blocks.1.mlp.fc1.bias", "encoder_blocks.1.mlp.fc1"},
        {"encoder_norm.bias", "encoder_norm"},
        {"decoder_embed.weight", "decoder_embed"},
        {"mask_token", "decoder_pos_embed_learned"},
        {"decoder_blocks.0.norm1.bias", "decoder_blocks.0.norm1"},
        {"decoder_blocks.0.attn.qkv.weight", "decoder_blocks.0.attn.qkv"},
        {"decoder_norm.weight", "decoder_norm"},
    };
    char *directory = temporary_directory();
    const mar_options options = {
        .dtype = MAR_DTYPE_F32, .threads = 1, .backend = MAR_BACKEND_CPU, .allow_nonfinite = 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dice d = {22 + i};
        fixture f;
        mar *m;
        assert_int_equal(mar_open(&options, &m), MAR_OK);
        mar_contexts c;
        void *memory;
        char *path = write_changed(m, directory, "changed.safetensors", "demo", cases[i].tensor, 3, 1, NAN);
        open_fixture(&f, m, path, 2, 1, &d);
        f.k->watch.on = 1;
        kern_watch_begin(f.k);
        const mar_image_context list[] = {{0, f.order[0], 4, 2}, {0, f.order[0], 6, 3}};
        plain_pass(&f, list);
        assert_string_equal(f.k->watch.layer, cases[i].layer);
        open_contexts(&f, 2, 2, &c, &memory);
        c.part = "draft: ";
        kern_watch_begin(f.k);
        mar_contexts_run(&c, list, 2, 1, f.runner.token_rows, f.runner.class_rows, NULL);
        char expected[128];
        snprintf(expected, sizeof expected, "draft: %s", cases[i].layer);
        assert_string_equal(f.k->watch.layer, expected);
        close_contexts(&f, &c, memory);
        close_fixture(&f);
        free(path);
    }
    remove_directory(directory);
    free(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_plain), cmocka_unit_test(arithmetic),
                                       cmocka_unit_test(watched)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
