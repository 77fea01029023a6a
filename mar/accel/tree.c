/* Dynamic trees of drafts of discrete tokens (EAGLE-2), which have options of their own. mar/raster_softmax.c runs
 * them.
 */
#include "mar/accel.h"

#include <string.h>

static int is_on(const mar_params *p)
{
    return strcmp(p->tree, "dynamic") == 0;
}

const mar_accel mar_accel_tree = {
    .name = "tree",
    .asks_for = "draft",
    .exact = 1,
    .is_on = is_on,
};
