#include "mar/raster_state.h"

int raster_left(const mar_raster *g, int slot)
{
    const mar_slot *s = &g->slots.slot[slot];
    return s->busy && !s->failure.text[0] ? mar_slots_left(&g->slots, slot) : 0;
}

mar_status raster_create_target(mar_raster *g, const causal_sampling *sampling, int drafts, int keep, mar_err *err)
{
    const mar_status status =
        causal_runner_create(g->k, g->model->net, sampling, g->max_images, drafts, keep, &g->target, err);
    if (status == MAR_OK) causal_runner_set_cache(g->target, raster_cache_type(&g->plan.params));
    return status;
}
