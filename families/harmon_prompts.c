/* The prompts of Harmon and UniPic-1, and what their files say of images' sizes. */
#include "families/harmon.h"

#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

/* MAR's official models, as config.json names them. */
const harmon_tower harmon_towers[HARMON_TOWERS] = {
    {"mar_base", 768, 12}, {"mar_large", 1024, 16}, {"mar_huge", 1280, 16}};
const json_value *harmon_mar(const wt_file *f)
{
    const json_value *part = wt_config(f) ? json_member(wt_config(f), "mar") : NULL;
    return part && part->type == JSON_OBJECT ? part : NULL;
}

mar_status harmon_number(const wt_file *f, const char *key, int *out, mar_err *err)
{
    const json_value *part = harmon_mar(f), *v = part ? json_member(part, key) : NULL;
    int64_t number;
    if (!v || v->type == JSON_NULL) return MAR_OK;
    if (!json_integer(v, &number) || number < 1 || number > LANGUAGE_SIDE_MAX)
        return err_set(err, MAR_EMODEL, "%s: config.json has no whole number from 1 to %d for mar.%s", wt_path(f),
                       LANGUAGE_SIDE_MAX, key);
    *out = (int)number;
    return MAR_OK;
}

int harmon_recognise(const wt_file *f)
{
    return wt_find(f, "proj_in.0.weight") && wt_find(f, "proj_out.0.weight") &&
           wt_find(f, "model.embed_tokens.weight") && wt_find(f, "diffloss.net.input_proj.weight");
}

/* UniPic-1 has an image encoder beside it, which images of prompts do not need. Where that was taken out, its position
 * tables of 32x32 tokens tell it from Harmon-1.5B, whose are 16x16. */
int harmon_is_unipic(const wt_file *f)
{
    static const char *const encoder[] = {"siglip2", NULL};
    const char *release = wt_metadata(f, "mar.release");
    const wt_tensor *positions = wt_find(f, "diffusion_pos_embed_learned");
    if (release) return strcmp(release, "unipic") == 0;
    return wt_sum_elements(f, encoder) > 0 || (positions && positions->rank == 3 && positions->shape[1] == 32 * 32 &&
                                               positions->shape[2] == harmon_towers[HARMON_TOWERS - 1].width);
}

/* UniPic-1's code adds this token to Qwen2.5's (src/models/skywork_unipic_siglip.py). The rows of a picture to
 * understand stand in its place, so that its own embedding means nothing. To Harmon it is text. */
static const char harmon_picture[] = "<image>";

/* Returns the side of the grid that the position tables are of; 0 if they are of none. */
static int harmon_side(const wt_file *f)
{
    const wt_tensor *t = wt_find(f, "diffusion_pos_embed_learned");
    return t && t->rank == 3 && t->shape[1] <= WT_DIM_MAX ? causal_side((int)t->shape[1]) : 0;
}

/* Reads the stride, and the size of images: official models make them twice as large as their position tables are
 * (scripts/text2image.py). */
static mar_status harmon_read(const wt_file *f, language *l, mar_err *err)
{
    const wt_tensor *z = wt_find(f, "z_proj.weight");
    const int side = harmon_side(f);
    int patch = 1, official = 0;
    long stride = 0;
    mar_status status = harmon_number(f, "vae_stride", &l->stride, err);
    if (status == MAR_OK) status = harmon_number(f, "patch_size", &patch, err);
    if (status == MAR_OK) status = wt_metadata_number(f, "mar.stride", &stride, err);
    if (status != MAR_OK) return status;
    l->stride = stride > 0 && stride <= LANGUAGE_SIDE_MAX ? (int)stride : l->stride * patch;
    l->unit = l->stride;
    l->picture = harmon_recognise(f) && !harmon_is_unipic(f) ? NULL : harmon_picture;
    if (!side) return MAR_OK; /* Qwen2 alone, for its tokenizer */
    for (int i = 0; z && i < HARMON_TOWERS; i++) official |= z->shape[0] == harmon_towers[i].width;
    l->width = l->height = (official ? 2 : 1) * side * l->stride;
    return MAR_OK;
}

static int harmon_is_language(const wt_file *f, const char *name)
{
    static const char *const names[] = {"HarmonModel", "harmon", "Qwen2ForCausalLM", "qwen2", NULL};
    for (int i = 0; name && names[i]; i++)
        if (strcmp(name, names[i]) == 0) return 1;
    return harmon_recognise(f);
}

/* harmon.py (prepare_text_conditions) and scripts/text2image.py */
const language_family language_harmon = {
    .name = "harmon",
    .title = "Harmon",
    .prompt = "<|im_start|>user\nGenerate an image: {prompt}<|im_end|>\n<|im_start|>assistant\n",
    .negative = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n",
    .negative_prompt = "Generate an image.",
    .stride = 16,
    .unit = 16,
    .width = 512,
    .height = 512,
    .context = 32768,
    .behind = 64, /* the buffer */
    .recognise = harmon_is_language,
    .read = harmon_read,
};

int language_open_tokenizer(const text_tokenizer *t, language *out)
{
    const language_family *f = &language_harmon;
    if (text_tokenizer_find(t, "<|im_start|>") < 0) return 0;
    *out = (language){.family = f,
                      .vocabulary = {.rows = text_tokenizer_size(t), .line_end = -1},
                      .context = f->context,
                      .width = f->width,
                      .height = f->height,
                      .stride = f->stride,
                      .unit = f->unit,
                      .picture = harmon_picture};
    return 1;
}
