/* The prompts of NextStep-1, and the sizes of its images. */
#include "families/nextstep.h"

#include <string.h>

int nextstep_recognise(const wt_file *f)
{
    return wt_find(f, "image_in_projector.weight") || wt_find(f, "image_head.net.input_proj.weight");
}

static int nextstep_is_language(const wt_file *f, const char *name)
{
    return (name && (strcmp(name, "NextStep") == 0 || strcmp(name, "nextstep") == 0)) || nextstep_recognise(f);
}

/* pipeline_nextstep.py (_add_prefix_ids) */
const language_family language_nextstep = {
    .name = "nextstep",
    .title = "NextStep-1",
    .prompt = "{prompt}<|image_area|>{rows}*{columns}<|begin_of_image|>",
    .negative = "{prompt}<|image_area|>{rows}*{columns}<|begin_of_image|>",
    .negative_prompt = "",
    .stride = 16,
    .unit = 16,
    .width = 512,
    .height = 512,
    .context = 32768,
    .recognise = nextstep_is_language,
};
