/* Static trees of drafts of discrete tokens, whose depth they say themselves. mar/raster_softmax.c runs them. */
#include "mar/accel.h"

#include <string.h>

static int is_on(const mar_params *p)
{
    return strcmp(p->tree, "chain") != 0 && strcmp(p->tree, "dynamic") != 0;
}

const mar_accel mar_accel_levels = {
    .name = "tree",
    .asks_for = "draft",
    .exact = 1,
    .replaces = "gamma",
    .in_place = "the levels of --tree",
    .exceptions = (const mar_accel_exception[]){{"tree_top", NULL}, {"tree_total", NULL}, {0}},
    .is_on = is_on,
};
