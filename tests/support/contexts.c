#include "tests/support/contexts.h"

#include <stdlib.h>

static uint32_t roll(dice *d)
{
    d->state = d->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(d->state >> 33);
}

int dice_below(dice *d, int n)
{
    return (int)(roll(d) % (uint32_t)n);
}

static float uniform(dice *d)
{
    return (float)roll(d) / (float)(1u << 30) - 1;
}

void dice_shuffle(dice *d, int *x, int n)
{
    for (int i = n - 1; i > 0; i--) {
        const int j = dice_below(d, i + 1), t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

void open_context_fixture(context_fixture *f, mar *m, const char *path, int conditions, int images, dice *d)
{
    mar_err err = {0};
    *f = (context_fixture){.m = m, .conditions = conditions, .images = images};
    f->k = queue_of(f->m);
    assert_library(f->m, mar_model_load(f->m, path, 0, &f->model));
    const mar_model_config *c = &f->model->config;
    f->seq = c->seq_len;
    f->width = c->width;
    assert_true(f->seq <= CONTEXT_SEQ);
    mar_params p = plain_params();
    p.num_sampling_steps = 2;
    assert_ok(plain_runner(f->k, f->model, images, conditions, f->seq, &p, &f->runner, &err), &err);
    f->memory = backend_memory(f->k, mar_runner_lay_out(&f->runner, NULL));
    mar_runner_lay_out(&f->runner, f->memory);
    const int n = images * f->seq;
    const size_t bytes = (size_t)(n * c->token_dim) * sizeof(float);
    float *tokens = malloc(bytes), *there = backend_memory(f->k, bytes);
    int *image = malloc((size_t)n * sizeof *image), *position = malloc((size_t)n * sizeof *position);
    assert_true(tokens && image && position);
    for (int i = 0; i < n; i++) {
        image[i] = i / f->seq;
        position[i] = i % f->seq;
    }
    for (int i = 0; i < n * c->token_dim; i++) tokens[i] = uniform(d);
    for (int i = 0; i < images; i++) {
        f->labels[i] = dice_below(d, c->classes);
        for (int j = 0; j < f->seq; j++) f->order[i][j] = j;
        dice_shuffle(d, f->order[i], f->seq);
    }
    mar_runner_begin(&f->runner, images, f->labels);
    f->k->core->upload(f->k, there, tokens, bytes);
    assert_ok(masked_runner_plan_known_tokens(&f->runner.net, n, &err), &err);
    masked_runner_add_known_tokens(&f->runner.net, there, n, image, position, NULL);
    f->k->core->finish(f->k);
    assert_ok(kern_check(f->k, &err), &err);
    f->k->core->free(f->k->device, there);
    free(tokens), free(image), free(position);
}

void close_context_fixture(context_fixture *f)
{
    f->k->core->free(f->k->device, f->memory);
    mar_runner_free(&f->runner);
    free_queue(f->k);
    mar_model_free(f->model);
    mar_close(f->m);
}

void open_contexts(const context_fixture *f, int max_contexts, int chunk, masked_contexts *c, void **memory)
{
    mar_err err = {0};
    assert_ok(masked_contexts_create(f->k, &mar_masked_model_of(f->model)->net, max_contexts, max_contexts * f->seq,
                                     f->conditions, c, &err),
              &err);
    assert_int_equal(c->chunk, max_contexts); /* the contexts are small */
    if (chunk < c->chunk) c->chunk = chunk;
    *memory = backend_memory(f->k, masked_contexts_lay_out(c, NULL));
    masked_contexts_lay_out(c, *memory);
    masked_contexts_begin(c);
}

void close_contexts(const context_fixture *f, masked_contexts *c, void *memory)
{
    f->k->core->finish(f->k);
    f->k->core->free(f->k->device, memory);
    masked_contexts_free(c);
}

void plain_pass(context_fixture *f, const masked_context *x)
{
    mar_runner *r = &f->runner;
    const int *order = x->order;
    const mar_batch batch = {.images = 1, .order = &order, .first = x->image};
    const mar_step step = {.known = x->known, .predicted = x->n_queries, .cfg_branches = f->conditions};
    mar_err err = {0};
    assert_ok(mar_runner_plan(r, 1, &step, &err), &err);
    mar_runner_predict(r, &batch, &step, 0, x->n_queries, NULL);
}

int random_contexts(const context_fixture *f, dice *d, int gamma, masked_context *list)
{
    int n = 0;
    for (int i = 0; i < f->images; i++) {
        int known = i == 0 ? 0 : dice_below(d, f->seq);
        for (int j = 0; j < gamma && known < f->seq; j++) {
            const int left = f->seq - known, step = 1 + dice_below(d, left < 4 ? left : 4);
            const int more = dice_below(d, 3) ? 0 : dice_below(d, left - step + 1);
            list[n++] = (masked_context){.image = i, .order = f->order[i], .known = known, .n_queries = step + more};
            known += step;
        }
    }
    assert_true(n <= CONTEXT_LIST);
    return n;
}
