/* The heads of the demo models, with conditions of half-generated images. */
#ifndef TESTS_DIFFUSION_DEMO_HEAD_H
#define TESTS_DIFFUSION_DEMO_HEAD_H

#include "diffusion/chain.h"
#include "mar/core/handle.h"
#include "mar/masked_runner.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

static const char target_path[] = "weights/demo/target.safetensors", draft_path[] = "weights/demo/draft.safetensors";
static const uint64_t seed = 20250611;

static const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16, MAR_DTYPE_INT8};

enum { DTYPES = sizeof dtypes / sizeof *dtypes };
enum { IMAGES = 5, NUM_ITER = 8, AT = 4, SEQ = 64, CHANNELS = 8, MAX = IMAGES * 16 };

/* A model, with conditions of the tokens that step AT predicts in images of several classes. */
typedef struct {
    mar *m;
    kern_queue *k;
    mar_model *model;
    mar_runner runner;
    void *memory;      /* working memory of the runner */
    diff_chain *chain; /* owned by the runner */
    int tokens;        /* tokens of all images */
    float *z;          /* [2*tokens or tokens][width] */
    uint64_t seed[MAX], image[MAX];
    int position[MAX];
    float cfg[MAX];
} fixture;

static mar_params params_of(int steps, float cfg, mar_cfg_schedule schedule, float temperature)
{
    mar_params p = plain_params();
    p.num_iter = NUM_ITER;
    p.num_sampling_steps = steps;
    p.cfg = cfg;
    p.cfg_schedule = schedule;
    p.temperature = temperature;
    return p;
}

static void list_tokens(fixture *f, const mar_step *step, const int *const *order, int *slot)
{
    f->tokens = IMAGES * step->predicted;
    for (int i = 0; i < f->tokens; i++) {
        slot[i] = i / step->predicted;
        f->seed[i] = seed;
        f->image[i] = (uint64_t)slot[i] + ((uint64_t)1 << 33);
        f->position[i] = order[slot[i]][SEQ - step->known - step->predicted + i % step->predicted];
        f->cfg[i] = step->cfg;
    }
}

/* Returns working memory. The caller frees it. */
static void *memory(kern_queue *k, size_t bytes)
{
    void *p = NULL;
    mar_err err = {0};
    assert_ok(k->core->alloc(k->device, bytes, &p, &err), &err);
    return p;
}

/* Opens the fixture. dtype F16 is the head's, the rest in f32. Returns 0 if the processor does not support dtype. */
static int open_fixture(fixture *f, const char *path, mar_dtype dtype, int threads, mar_params p)
{
    int order_data[IMAGES][SEQ], label[IMAGES], slot[MAX];
    const int *order[IMAGES];
    float x[MAX * CHANNELS];
    mar_step steps[NUM_ITER];
    memset(f, 0, sizeof *f);
    f->m = open_mar(dtype == MAR_DTYPE_F16 ? MAR_DTYPE_F32 : dtype, threads);
    if (!f->m) return 0;
    if (dtype == MAR_DTYPE_F16) f->m->head_dtype = dtype;
    f->k = queue_of(f->m);
    mar_err reason = {0}, *err = &reason;
    assert_library(f->m, mar_model_load(f->m, path, 0, &f->model));
    assert_ok(plain_runner(f->k, f->model, IMAGES, p.cfg == 1 ? 1 : 2, 16, &p, &f->runner, err), err);
    f->memory = memory(f->k, mar_runner_lay_out(&f->runner, NULL));
    mar_runner_lay_out(&f->runner, f->memory);
    for (int i = 0; i < IMAGES; i++) {
        kern_random_order(seed, (uint64_t)i, SEQ, order_data[i]);
        order[i] = order_data[i];
        label[i] = 2 * i;
    }
    mar_steps_plan(NUM_ITER, SEQ, p.cfg, p.cfg_schedule, steps);
    mar_runner_begin(&f->runner, IMAGES, label);
    const mar_batch batch = {.images = IMAGES, .order = order};
    for (int i = 0; i <= AT; i++) {
        list_tokens(f, &steps[i], order, slot);
        assert_ok(mar_runner_plan(&f->runner, IMAGES, &steps[i], err), err);
        assert_ok(diff_chain_plan(&f->runner.chain, f->tokens, err), err);
        mar_runner_predict(&f->runner, &batch, &steps[i], 0, f->tokens, NULL);
        if (i == AT) break;
        const mar_draw draw = {f->tokens, f->seed, f->image, f->position, f->cfg};
        mar_runner_draw(&f->runner, 0, &draw, p.num_sampling_steps - 1, 0, x, NULL, NULL);
        masked_runner_add_known_tokens(&f->runner.net, x, f->tokens, slot, f->position, NULL);
    }
    f->chain = &f->runner.chain;
    f->z = f->runner.net.z;
    assert_ok(kern_check(f->k, err), err);
    return 1;
}

static void close_fixture(fixture *f)
{
    mar_runner_free(&f->runner);
    f->k->core->free(f->k->device, f->memory);
    free_queue(f->k);
    mar_model_free(f->model);
    mar_close(f->m);
}

/* Gives each token a seed of its own. Both words of the keys differ. */
__attribute__((unused)) static void mix_seeds(fixture *f)
{
    for (int i = 0; i < f->tokens; i++) f->seed[i] = seed + (uint64_t)i * 0x100000001;
}

__attribute__((unused)) static void *lay_out_chain(diff_chain *c)
{
    void *p = memory(c->k, diff_chain_lay_out(c, NULL));
    diff_chain_lay_out(c, p);
    return p;
}

#endif
