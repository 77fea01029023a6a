/* Fused operations made of required ones, for backends without kernels of their own. */
#include "kernels/causal.h"

#include "kernels/speculation.h"

void kern_chain_steps(kern_queue *k, const kern_head *h, const kern_chain_job *j)
{
    kern_head_spec shape;
    k->device->measure->head_spec(h, &shape);
    const int rows = j->tokens * j->conditions;
    const int *x_index = j->conditions == 2 ? j->x_index : NULL;
    const float *cfg = j->conditions == 2 ? j->cfg : NULL;
    const char *mod = j->mod;
    for (int i = j->first; i >= j->last && kern_live(k); i--, mod += (size_t)rows * k->head->mod_bytes(h)) {
        k->watch.index = i;
        k->head->eval(k, h, j->x, x_index, mod, NULL, rows, j->out, j->scratch);
        if (j->coef)
            k->head->chain_step(k, j->x, j->out, j->tokens, shape.channels, cfg, &j->coef[i], j->seed, j->image,
                                j->position, j->t[i]);
        else
            k->head->chain_ode_step(k, j->x, j->x0, j->out, j->tokens, shape.channels, cfg, &j->ode[i]);
    }
    k->watch.index = -1;
}

void kern_speculate_rounds(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft,
                           const kern_speculation_head *target)
{
    /* After a failure operations do nothing, so the result of propose means nothing: hence kern_live. */
    for (;;) {
        k->watch.part = draft ? draft->part : target->part;
        if (!kern_live(k) || !k->head->speculate_propose(k, w, draft)) return;
        k->watch.part = target->part;
        k->head->speculate_walk(k, w, target);
    }
}

static int no_skinny_kernel(kern_queue *k, const kern_linear *l, const kern_skinny_job *job)
{
    (void)k, (void)l, (void)job;
    return 0;
}

static mar_status no_decoder(kern_queue *k, const kern_decoder_spec *spec, kern_decoder **out, mar_err *err)
{
    (void)k, (void)spec, (void)err;
    *out = NULL;
    return MAR_OK;
}

void kern_linear_then_gated(kern_queue *k, const kern_linear *l, const act *x, int rows, kern_activation activation,
                            act *hidden, act *y)
{
    kern_linear_spec shape;
    k->device->measure->linear_spec(l, &shape);
    k->core->linear(k, l, x, rows, hidden);
    k->core->gated(k, hidden, rows, shape.out / 2, activation, y);
}

void kern_fused_complete(kern_device *d)
{
    if (!d->fused.chain_run) d->fused.chain_run = kern_chain_steps;
    if (!d->fused.speculate_run) d->fused.speculate_run = kern_speculate_rounds;
    if (!d->fused.skinny) d->fused.skinny = no_skinny_kernel;
    if (!d->fused.decoder_create) d->fused.decoder_create = no_decoder;
    if (!d->fused.linear_gated) d->fused.linear_gated = kern_linear_then_gated;
}
