/* Tests passes over contexts against plain passes. On a CPU the conditions are equal, bit for bit. */
#include "tests/support/changed.h"
#include "tests/support/contexts.h"

#include "tests/support/failing_allocations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void assert_plain(context_fixture *f, const masked_contexts *c, const masked_context *list, int n)
{
    const size_t d = (size_t)f->width;
    int total = 0, before = 0;
    for (int i = 0; i < n; i++) total += list[i].n_queries;
    for (int i = 0; i < n; i++) {
        plain_pass(f, &list[i]);
        for (int condition = 0; condition < f->conditions; condition++)
            for (int a = 0; a < list[i].n_queries; a++) {
                const float *z = c->z + (size_t)(condition * total + before + a) * d;
                const float *plain = f->runner.net.z + (size_t)(condition * list[i].n_queries + a) * d;
                if (memcmp(z, plain, d * sizeof *z))
                    fail_msg("context %d of %d (image %d, %d known, %d asked), condition %d, token %d: relative error "
                             "%.3g, expected the same bits",
                             i, n, list[i].image, list[i].known, list[i].n_queries, condition, a,
                             relative_error(z, plain, d));
            }
        before += list[i].n_queries;
    }
}

static const char *const models[] = {"tests/golden/data/mar_small.safetensors", "demo"};
static const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};

TEST_CASE(as_plain)
{
    dice d = {20};
    mar_err err = {0};
    for (int way = 0; way < 8; way++) { /* model, dtype, guidance */
        context_fixture f;
        const int images = 1 + dice_below(&d, CONTEXT_IMAGES);
        mar *m = open_mar(dtypes[way >> 1 & 1], 2);
        if (!m) continue; /* no bf16 here */
        open_context_fixture(&f, m, models[way & 1], 1 + (way >> 2), images, &d);
        for (int round = 0; round < 6; round++) {
            static const int chunks[] = {CONTEXT_LIST, 1, 3};
            masked_context list[CONTEXT_LIST];
            masked_contexts c;
            void *memory;
            const int n = random_contexts(&f, &d, 1 + dice_below(&d, CONTEXT_GAMMA), list);
            open_contexts(&f, CONTEXT_LIST, chunks[round % 3], &c, &memory);
            for (int i = n - 1; round >= 3 && i > 0; i--) { /* in any order */
                const int j = dice_below(&d, i + 1);
                const masked_context t = list[i];
                list[i] = list[j];
                list[j] = t;
            }
            masked_recordings recordings = {0};
            for (int again = 0; again < 2; again++) { /* the second pass reuses the memory of the first */
                assert_ok(masked_contexts_plan(&c, &err), &err);
                masked_contexts_place(list, n);
                masked_contexts_run(&c, list, n, &f.runner.net.embedded, again ? &recordings : NULL);
                assert_ok(kern_check(f.k, &err), &err);
                assert_plain(&f, &c, list, n);
            }
            masked_recordings_free(f.k, &recordings);
            close_contexts(&f, &c, memory);
        }
        close_context_fixture(&f);
    }
}

/* What the hook between the towers expects of a pass over contexts, or over one of them. */
typedef struct {
    masked_between base;
    const context_fixture *f;
    const masked_context *list;
    int n, calls, plans;
    int branches_first; /* 1: a context's branches follow one another; 0: all contexts of a branch do */
    int first_row_only; /* 1: every row becomes the first */
} between_spy;

static void spy_between(masked_between *b, const masked_sequence *list, int sequences, const int *position, int rows,
                        float *x, act *out)
{
    between_spy *spy = (between_spy *)b;
    const context_fixture *f = spy->f;
    kern_queue *k = f->k;
    const int buffer = f->model->config.buffer;
    int row = 0;
    assert_int_equal(sequences, spy->n * f->conditions);
    for (int s = 0; s < sequences; s++) {
        const masked_context *c = &spy->list[spy->branches_first ? s / f->conditions : s % spy->n];
        assert_int_equal(list[s].image, c->image);
        assert_int_equal(list[s].branch, spy->branches_first ? s % f->conditions : s / spy->n);
        assert_int_equal(list[s].length, buffer + c->known);
        for (int i = 0; i < buffer; i++) assert_int_equal(position[row++], i);
        for (int i = 0; i < c->known; i++) assert_int_equal(position[row++], buffer + c->order[f->seq - c->known + i]);
    }
    assert_int_equal(row, rows);
    int *from = calloc((size_t)rows, sizeof *from);
    assert_non_null(from);
    for (int i = 0; i < rows; i++) from[i] = spy->first_row_only ? 0 : i;
    k->core->copy_rows(k, out, NULL, x, from, NULL, NULL, rows, f->width); /* operands are f32 */
    free(from);
    spy->calls++;
}

static mar_status spy_plan(masked_between *b, int sequences, int rows, mar_err *err)
{
    (void)err;
    assert_true(sequences > 0 && rows > 0);
    ((between_spy *)b)->plans++;
    return MAR_OK;
}

/* Checks what stands between the towers: it sees each pass's rows, and the decoder has what it writes. */
TEST_CASE(between_the_towers)
{
    dice d = {24};
    mar_err err = {0};
    context_fixture f;
    masked_contexts c;
    void *memory;
    masked_context list[CONTEXT_LIST];
    open_context_fixture(&f, open_mar(MAR_DTYPE_F32, 2), "demo", 2, 3, &d);
    open_contexts(&f, CONTEXT_LIST, CONTEXT_LIST, &c, &memory);
    assert_ok(masked_contexts_plan(&c, &err), &err);
    const int n = random_contexts(&f, &d, 4, list);
    between_spy spy = {.base = {spy_between, spy_plan}, .f = &f, .list = list, .n = n, .branches_first = 1},
                one = {.base = {spy_between, spy_plan}, .f = &f, .n = 1};
    masked_contexts_place(list, n);
    for (spy.first_row_only = 0; spy.first_row_only < 2; spy.first_row_only++) {
        c.work.between = &spy.base;
        masked_contexts_run(&c, list, n, &f.runner.net.embedded, NULL);
        if (!spy.first_row_only) assert_plain(&f, &c, list, n); /* as without it */
        for (int i = 0; i < n; i++) {
            const size_t floats = (size_t)list[i].n_queries * (size_t)f.width;
            const float *z = c.z + (size_t)list[i].z_row[0] * (size_t)f.width;
            f.runner.net.work.between = NULL;
            plain_pass(&f, &list[i]);
            assert_true(spy.first_row_only == (memcmp(z, f.runner.net.z, floats * sizeof *z) != 0));
            one.list = &list[i], one.first_row_only = spy.first_row_only;
            f.runner.net.work.between = &one.base;
            plain_pass(&f, &list[i]);
            if (!spy.first_row_only) assert_memory_equal(z, f.runner.net.z, floats * sizeof *z);
        }
        f.runner.net.work.between = NULL;
    }
    assert_int_equal(spy.calls, 2);
    assert_int_equal(one.calls, 2 * n);
    assert_ok(kern_check(f.k, &err), &err);
    close_contexts(&f, &c, memory);
    close_context_fixture(&f);
}

/* Measures the arithmetic of a pass over these contexts: encoder and decoder. */
static void measure(const context_fixture *f, masked_contexts *c, masked_context *list, int n, double flop[2])
{
    masked_contexts_begin(c);
    masked_contexts_place(list, n);
    masked_contexts_run(c, list, n, &f->runner.net.embedded, NULL);
    f->k->core->finish(f->k);
    flop[0] = c->encoder_flop;
    flop[1] = c->decoder_flop;
    assert_true(c->encoder_s > 0 && c->decoder_s > 0);
}

/* Checks that the arithmetic equals that of plain passes, one for each context. */
TEST_CASE(arithmetic)
{
    dice d = {21};
    for (int conditions = 1; conditions <= 2; conditions++) {
        context_fixture f;
        masked_contexts c;
        void *memory;
        double one[2], two[2], both[2];
        open_context_fixture(&f, open_mar(MAR_DTYPE_F32, 2), "demo", conditions, 2, &d);
        open_contexts(&f, 4, 4, &c, &memory);
        const masked_net *m = &mar_masked_model_of(f.model)->net;
        masked_context list[] = {{1, f.order[1], 5, 3, {0}}, {1, f.order[1], 9, 2, {0}}, {0, f.order[0], 9, 2, {0}}};
        measure(&f, &c, list, 1, one);
        measure(&f, &c, list + 1, 1, two);
        assert_float_equal(one[0], masked_encode_flop(m, conditions, 5), 1);
        assert_float_equal(one[1], masked_decode_flop(m, conditions, 5, 3), 1);
        measure(&f, &c, list, 2, both); /* two contexts of one image */
        assert_float_equal(both[0], one[0] + two[0], 1);
        assert_float_equal(both[1], one[1] + two[1], 1);
        measure(&f, &c, list + 1, 2, both); /* one context of each image */
        assert_float_equal(both[0], 2 * two[0], 1);
        close_contexts(&f, &c, memory);
        close_context_fixture(&f);
    }
}

/* Checks that the search for the first non-finite layer finds the same layer as in a plain pass. */
TEST_CASE(watched)
{
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
    char *directory = test_directory();
    const mar_options options = {
        .size = sizeof options, .dtype = MAR_DTYPE_F32, .threads = 1, .backend = MAR_BACKEND_CPU, .allow_nonfinite = 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dice d = {22 + i};
        context_fixture f;
        mar *m;
        assert_int_equal(mar_open(&options, &m), MAR_OK);
        masked_contexts c;
        void *memory;
        char *path = write_changed(m, directory, "changed.safetensors", "demo", cases[i].tensor, 3, 1, NAN);
        open_context_fixture(&f, m, path, 2, 1, &d);
        f.k->watch.on = 1;
        kern_watch_begin(f.k);
        mar_runner_begin(&f.runner, 1, f.labels);
        masked_context list[] = {{0, f.order[0], 4, 2, {0}}, {0, f.order[0], 6, 3, {0}}};
        plain_pass(&f, list);
        assert_string_equal(f.k->watch.layer, cases[i].layer);
        open_contexts(&f, 2, 2, &c, &memory);
        c.part = f.runner.net.part = "draft: ";
        kern_watch_begin(f.k);
        mar_runner_begin(&f.runner, 1, f.labels);
        masked_contexts_place(list, 2);
        masked_contexts_run(&c, list, 2, &f.runner.net.embedded, NULL);
        char expected[128];
        snprintf(expected, sizeof expected, "draft: %s", cases[i].layer);
        assert_string_equal(f.k->watch.layer, expected);
        close_contexts(&f, &c, memory);
        close_context_fixture(&f);
        free(path);
    }
}

#ifndef HAS_SANITIZER

/* Fails every allocation of creating and planning once. Each gives a reason and leaks nothing. A planned pass allocates
 * nothing. */
TEST_CASE(no_memory)
{
    dice d = {40};
    context_fixture f;
    masked_contexts c;
    void *memory;
    mar_err err = {0};
    masked_context list[CONTEXT_LIST];
    open_context_fixture(&f, open_mar(MAR_DTYPE_F32, 2), models[0], 2, 2, &d);
    open_contexts(&f, CONTEXT_LIST, 5, &c, &memory); /* the device caches its products */
    close_contexts(&f, &c, memory);
    const long before = held;
    long round = 0;
    for (mar_status status = MAR_ENOMEM; status != MAR_OK; round++) {
        until_failure = round;
        status = masked_contexts_create(f.k, &mar_masked_model_of(f.model)->net, CONTEXT_LIST, 2 * f.seq, 2, &c, &err);
        until_failure = -1;
        if (status != MAR_OK) {
            assert_int_equal(status, MAR_ENOMEM);
            assert_true(*err.text && !strchr(err.text, '\n'));
        } else
            masked_contexts_free(&c);
        assert_int_equal(held, before);
    }
    assert_true(round > 9);
    open_contexts(&f, CONTEXT_LIST, 5, &c, &memory);
    const int n = random_contexts(&f, &d, CONTEXT_GAMMA, list);
    round = 0;
    for (mar_status status = MAR_ENOMEM; status != MAR_OK; round++) {
        until_failure = round;
        status = masked_contexts_plan(&c, &err);
        until_failure = -1;
        if (status != MAR_OK) assert_int_equal(status, MAR_ENOMEM);
    }
    assert_true(round > 1);
    until_failure = 0, failures = 0, failures_last = 1;
    masked_contexts_begin(&c);
    masked_contexts_place(list, n);
    masked_contexts_run(&c, list, n, &f.runner.net.embedded, NULL);
    until_failure = -1, failures_last = 0;
    assert_int_equal(failures, 0);
    assert_ok(kern_check(f.k, &err), &err);
    assert_plain(&f, &c, list, n);
    close_contexts(&f, &c, memory);
    close_context_fixture(&f);
}

#endif
