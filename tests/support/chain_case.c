#include "tests/support/chain_case.h"

#include "tests/cudahost/control.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Draws n random floats around `mean`. */
static const float *draw(float **at, size_t n, float scale, float mean, uint64_t seed)
{
    float *x = random_floats(n, scale, seed), *to = *at;
    for (size_t i = 0; i < n; i++) to[i] = x[i] + mean;
    free(x);
    *at += n;
    return to;
}

kern_head_spec spec_of(shape s)
{
    return (kern_head_spec){.width = s.width,
                            .depth = s.depth,
                            .channels = s.channels,
                            .form = s.hidden ? KERN_HEAD_SWIGLU : KERN_HEAD_MLP,
                            .dtype = MAR_DTYPE_F16,
                            .hidden = s.hidden ? s.hidden : s.width,
                            .ada_layers = s.hidden ? s.ada_layers : s.depth};
}

network make_network(shape s, uint64_t seed)
{
    network n = {.s = s, .spec = spec_of(s)};
    const size_t w = (size_t)s.width, c = (size_t)s.channels, h = (size_t)n.spec.hidden, fc1 = s.hidden ? 2 * h : h;
    const float scale = 1 / sqrtf((float)w);
    const size_t of_block = 3 * w + fc1 * (w + 1) + h * w, of_layer = 3 * w * (w + 1);
    n.weights = malloc((w * (c + 1) + (size_t)s.depth * of_block + (size_t)n.spec.ada_layers * of_layer +
                        2 * w * (w + 1) + 2 * c * (w + 1)) *
                       sizeof(float));
    n.blocks = calloc((size_t)s.depth, sizeof *n.blocks);
    assert_non_null(n.weights);
    assert_non_null(n.blocks);
    float *p = n.weights;
    n.spec.blocks = n.blocks;
    n.spec.in_weight = draw(&p, w * c, 1 / sqrtf((float)c), 0, ++seed);
    n.spec.in_bias = draw(&p, w, 0.1f, 0.5f, ++seed); /* gives the input of LayerNorm a nonzero mean */
    for (int b = 0; b < s.depth; b++) {
        kern_head_block *block = &n.blocks[b];
        block->ln_weight = draw(&p, w, 0.2f, 1, ++seed);
        block->ln_bias = draw(&p, w, 0.2f, 0, ++seed);
        block->fc1_weight = draw(&p, fc1 * w, scale, 0, ++seed);
        block->fc1_bias = draw(&p, fc1, 0.2f, 0, ++seed);
        block->fc2_weight = draw(&p, w * h, scale, 0, ++seed);
        block->fc2_bias = draw(&p, w, 0.2f, 0, ++seed);
        if (b % (s.depth / n.spec.ada_layers)) continue;
        block->ada_weight = draw(&p, 3 * w * w, 0.5f * scale, 0, ++seed);
        block->ada_bias = draw(&p, 3 * w, 0.3f, 0.2f, ++seed);
    }
    n.spec.ada_weight = draw(&p, 2 * w * w, 0.5f * scale, 0, ++seed);
    n.spec.ada_bias = draw(&p, 2 * w, 0.3f, 0, ++seed);
    n.spec.out_weight = draw(&p, 2 * c * w, scale, 0, ++seed);
    n.spec.out_bias = draw(&p, 2 * c, 0.2f, 0, ++seed);
    return n;
}

void free_network(network *n)
{
    free(n->weights);
    free(n->blocks);
}

bench make_bench(kern_queue *k, const network *n, int most)
{
    bench b = {.k = k, .channels = n->s.channels, .most = most};
    const size_t w = (size_t)n->s.width, rows = (size_t)most;
    const int index[CHAIN_STEPS] = {2, 0, 1};
    mar_err err = {0};
    assert_ok(k->head->create(k, &n->spec, &b.h, &err), &err);
    assert_ok(k->head->plan(k, b.h, CHAIN_STEPS * most, &err), &err);
    assert_ok(k->head->plan(k, b.h, most, &err), &err);
    float *temb = random_floats(CHAIN_STEPS * w, 1, 77), *cond = random_floats(rows * w, 1, 78);
    void *device_temb = to_device(k, temb, CHAIN_STEPS * w * sizeof *temb);
    void *device_cond = to_device(k, cond, rows * w * sizeof *cond);
    void *scratch = to_device(k, NULL, k->head->scratch_bytes(b.h, CHAIN_STEPS * most));
    b.mod = to_device(k, NULL, CHAIN_STEPS * rows * k->head->mod_bytes(b.h));
    k->head->modulate(k, b.h, device_temb, index, NULL, CHAIN_STEPS, device_cond, most, b.mod, scratch);
    k->core->finish(k);
    check_kern(k);
    k->core->free(k->device, device_temb), k->core->free(k->device, device_cond), k->core->free(k->device, scratch);
    free(temb), free(cond);
    return b;
}

void free_bench(bench *b)
{
    b->k->head->free(b->k->device, b->h);
    b->k->core->free(b->k->device, b->mod);
    close_queue(b->k);
}

void chain_body(void *arg)
{
    chain *c = arg;
    c->b->k->fused->chain_run(c->b->k, c->b->h, &c->job);
}

void fill_chain(chain *c, const run *r)
{
    for (int i = 0; i <= CHAIN_STEPS; i++) {
        const float noise = i > 1 ? r->temperature : 0;
        c->coef[i] = (kern_chain_coef){1.1f + 0.02f * (float)i, 0.5f + 0.05f * (float)i, 0.4f, 0.55f, -4, -2.5f, noise};
        c->ode[i] = (kern_ode_coef){1.1f, 0.5f, 0.7f, 0.25f, i < r->steps ? -0.1f * (float)i : 0};
        c->t[i] = 100 * i + 7;
    }
    if (r->steps == 1) c->ode[1] = (kern_ode_coef){0, -1, 0, 1, 0}; /* x becomes the head's eps */
    for (int i = 0; i < r->tokens * r->conditions; i++) c->x_index[i] = i % r->tokens;
    for (int i = 0; i < r->tokens; i++) {
        const int token = r->from + i;
        c->cfg[i] = 1.5f + 0.1f * (float)token;
        c->seed[i] = 0x123456789abcdef + (uint64_t)(token % 5) * 0x100000001; /* both words of the key differ */
        c->image[i] = (uint64_t)token << 31 | 5;
        c->position[i] = 3 * token + 1;
    }
}

void open_chain(const bench *b, const run *r, chain *c)
{
    kern_queue *k = b->k;
    const size_t n = (size_t)r->tokens * (size_t)b->channels, mod_bytes = k->head->mod_bytes(b->h);
    const int rows = r->tokens * r->conditions;
    memset(c, 0, sizeof *c);
    c->b = b;
    fill_chain(c, r);
    c->mod = to_device(k, NULL, (size_t)(r->steps * rows) * mod_bytes);
    for (int s = 0; s < r->steps; s++)
        for (int i = 0; i < rows; i++) {
            const int from = r->from + i % r->tokens, condition = i / r->tokens;
            const int row = s * b->most + (condition ? b->most - 1 - from : from);
            const float *source = (const float *)(b->mod + (size_t)row * mod_bytes);
            k->core->copy_rows(k, (float *)((char *)c->mod + (size_t)(s * rows + i) * mod_bytes), NULL, source, NULL,
                               NULL, NULL, 1, (int)(mod_bytes / sizeof(float)));
        }
    float *x = random_floats(CHAIN_MOST * (size_t)b->channels, 1, 99);
    c->job = (kern_chain_job){
        .tokens = r->tokens,
        .conditions = r->conditions,
        .first = r->steps,
        .last = 1,
        .mod = c->mod,
        .x = to_device(k, x + (size_t)r->from * (size_t)b->channels, n * sizeof *x),
        .x0 = r->ode ? to_device(k, NULL, n * sizeof *x) : NULL,
        .coef = r->ode ? NULL : c->coef,
        .ode = r->ode ? c->ode : NULL,
        .t = c->t,
        .x_index = c->x_index,
        .cfg = c->cfg,
        .seed = c->seed,
        .image = c->image,
        .position = c->position,
        .out = to_device(k, NULL, (size_t)rows * 2 * (size_t)b->channels * sizeof *x),
        .scratch = to_device(k, NULL, k->head->scratch_bytes(b->h, rows)),
    };
    free(x);
}

void close_chain(chain *c, float *x, float *x0)
{
    kern_queue *k = c->b->k;
    const size_t bytes = (size_t)c->job.tokens * (size_t)c->b->channels * sizeof *x;
    if (x) from_device(k, x, c->job.x, bytes);
    if (x0) from_device(k, x0, c->job.x0, bytes);
    k->core->free(k->device, c->mod), k->core->free(k->device, c->job.x), k->core->free(k->device, c->job.x0);
    k->core->free(k->device, c->job.out), k->core->free(k->device, c->job.scratch);
}

void run_chain(const bench *b, const run *r, float *x, float *x0)
{
    chain c;
    open_chain(b, r, &c);
    chain_body(&c);
    close_chain(&c, x, x0);
}

void compare_chains(const bench *cuda, const bench *cpu, const run *r, size_t number)
{
    static float got[2][CHAIN_MOST * 32], want[2][CHAIN_MOST * 32];
    run_chain(cuda, r, got[0], r->ode ? got[1] : NULL);
    run_chain(cpu, r, want[0], r->ode ? want[1] : NULL);
    /* in the shim 4e-7 with one step and 1.2e-4 with more; on a GPU, which adds in another order, 2.4e-4 */
    const double allowed = r->steps == 1 && cudahost_objects ? 2e-4 : 1e-3;
    for (int a = 0; a < 1 + r->ode; a++) {
        const double error = relative_error(got[a], want[a], (size_t)(r->tokens * cuda->channels));
        if (!(error <= allowed))
            fail_msg("%s, run %zu, array %d: relative error %.3g, allowed %.3g", cuda->k->head->describe(cuda->h),
                     number, a, error, allowed);
    }
}

bench open_cuda_bench(const network *n, int most)
{
    setenv("MAR_CUDAHOST_SMS", n->s.multiprocessors, 1); /* ignored by a GPU */
    return make_bench(open_cuda(MAR_DTYPE_BF16), n, most);
}
