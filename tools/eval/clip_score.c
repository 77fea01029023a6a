#include "tools/eval/clip_score.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"
#include "tools/generate/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const mar_param clip_rows[] = {
    {.name = OPTION("clip"),
     .offset = offsetof(clip_options, folder),
     .group = "CLIP score",
     .type = MAR_TYPE_TEXT,
     .argument = "DIR",
     .help = "folder of a CLIP, for the score of images and prompts\n"
             "As Hugging Face writes it, such as openai/clip-vit-base-patch32: config.json, model.safetensors or "
             "pytorch_model.bin, vocab.json and merges.txt or tokenizer.json. It needs no --stats. Images of --images "
             "belong "
             "to the prompts of --prompts, image i to prompt i, in the order of the names, in which 9.png is before "
             "10.png."},
    {.name = OPTION("num"),
     .offset = offsetof(clip_options, num),
     .type = MAR_TYPE_INT,
     .min = 1,
     .max = 1000000,
     .help = "images of each prompt in --images, one after another"},
    {0},
};

/* --- prompts ------------------------------------------------------------------------------------------------------ */

/* Writes the embeddings of all prompts, with `prefix` before them, to out [count][embedding]. */
static int embed(clip_scorer *c, const char *prefix, progress *bar, float *out)
{
    const size_t size = (size_t)mar_clip_get_config(c->clip)->embedding;
    char **texts = calloc((size_t)c->batch, sizeof *texts);
    int failed = texts ? 0 : tool_error("out of memory for the prompts");
    for (int first = 0, n; first < c->count && !failed; first += n) {
        n = c->count - first < c->batch ? c->count - first : c->batch;
        progress_note(bar, "reading prompt %d of %d", first + 1, c->count);
        for (int i = 0; i < n && !failed; i++)
            if (asprintf(&texts[i], "%s%s", prefix, c->texts[first + i]) < 0) {
                texts[i] = NULL;
                failed = tool_error("out of memory for the prompts");
            }
        if (!failed && mar_clip_texts(c->clip, (const char *const *)texts, n, out + (size_t)first * size) != MAR_OK)
            failed = tool_error("prompts %d to %d: %s", first + 1, first + n, mar_error(c->library));
        for (int i = 0; i < n; i++) {
            free(texts[i]);
            texts[i] = NULL;
        }
    }
    progress_clear(bar);
    free(texts);
    return failed;
}

int clip_read_prompts(const clip_options *o, prompts *out)
{
    if (prompts_read(o->prompts, out) != 0) return 1;
    if (!out->skipped) return 0;
    return tool_error("--prompts %s: %d of its prompts cannot be used, expected none: an image belongs to each",
                      o->prompts, out->skipped);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

int clip_identify(const char *folder, char id[RECORD_ID])
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                        "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = tool_join(folder, names[i]);
        if (!path) return 1;
        const int there = access(path, F_OK) == 0, failed = there && record_identify_file(path, id) != 0;
        free(path);
        if (there) return failed;
    }
    return tool_error("--clip %s: has neither %s nor %s", folder, names[0], names[2]);
}

static int load(const char *folder, model_store *store, const mar_options *machine, progress *bar, clip_scorer *c)
{
    mar_options options = *machine;
    options.dtype = MAR_DTYPE_F32;
    c->library = models_open(store, &options, "clip");
    if (!c->library) return 1;
    progress_note(bar, "loading %s", folder);
    const mar_status status = mar_clip_load(c->library, folder, c->batch, &c->clip);
    progress_clear(bar);
    if (status != MAR_OK) return tool_error("--clip: %s", mar_error(c->library));
    return clip_identify(folder, c->id);
}

int clip_scorer_open(const char *folder, model_store *store, const mar_options *machine, int batch, progress *bar,
                     const char *const *texts, int count, clip_scorer *out)
{
    *out = (clip_scorer){.texts = texts, .count = count, .batch = batch};
    if (load(folder, store, machine, bar, out) != 0) return 1;
    const size_t size = (size_t)mar_clip_get_config(out->clip)->embedding;
    out->plain = malloc((size_t)count * size * sizeof *out->plain);
    out->prefixed = malloc((size_t)count * size * sizeof *out->prefixed);
    out->embedding = malloc((size_t)batch * size * sizeof *out->embedding);
    if (!out->plain || !out->prefixed || !out->embedding) return tool_error("out of memory for %d prompts", count);
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) sum = sum * 31 + memory_sum(texts[i], strlen(texts[i]));
    snprintf(out->prompts_id, sizeof out->prompts_id, "%d, %016" PRIx64, count, sum);
    return embed(out, "", bar, out->plain) || embed(out, CLIP_PREFIX, bar, out->prefixed);
}

void clip_scorer_close(clip_scorer *c)
{
    mar_clip_free(c->clip);
    free(c->plain);
    free(c->prefixed);
    free(c->embedding);
    *c = (clip_scorer){0};
}

/* --- images ------------------------------------------------------------------------------------------------------- */

int32_t *clip_pair(const clip_options *o, int count, const char *path, const image_source *source)
{
    const int num = o->num > 0 ? o->num : 1;
    const int64_t images = image_source_count(source), wanted = (int64_t)count * num;
    int32_t *prompt;
    if (images != wanted) {
        tool_error("%s: has %lld images, expected %lld, %d for each of %d prompts; --num says how many", path,
                   (long long)images, (long long)wanted, num, count);
        return NULL;
    }
    prompt = malloc((size_t)images * sizeof *prompt);
    if (!prompt || image_source_rank(source, prompt) != 0) {
        tool_error("out of memory for the order of %lld images", (long long)images);
        free(prompt);
        return NULL;
    }
    for (int64_t i = 0; i < images; i++) prompt[i] /= num;
    return prompt;
}

static double cosine(const float *a, const float *b, int size)
{
    double sum = 0;
    for (int i = 0; i < size; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Computes the cosines of the n embeddings in c->embedding. */
static void compare(const clip_scorer *c, const int32_t *prompt, int n, double *cosines)
{
    const int size = mar_clip_get_config(c->clip)->embedding;
    for (int i = 0; i < n; i++) {
        const size_t at = (size_t)prompt[i] * (size_t)size;
        const float *x = c->embedding + (size_t)i * (size_t)size;
        cosines[2 * i] = cosine(x, c->plain + at, size);
        cosines[2 * i + 1] = cosine(x, c->prefixed + at, size);
    }
}

static int refuse(const clip_scorer *c, long first, int n)
{
    return tool_error("images %ld to %ld: %s", first, first + n - 1, mar_error(c->library));
}

int clip_scorer_run(clip_scorer *c, const uint8_t *const *rgb, const int *widths, const int *heights,
                    const int32_t *prompt, long first, int n, double *cosines)
{
    if (mar_clip_images_each(c->clip, rgb, widths, heights, n, c->embedding) != MAR_OK) return refuse(c, first, n);
    compare(c, prompt, n, cosines);
    return 0;
}

int clip_scorer_run_batch(clip_scorer *c, const uint8_t *rgb, int width, int height, const int *prompt, long first,
                          int n, double *cosines)
{
    if (mar_clip_images(c->clip, rgb, n, width, height, c->embedding) != MAR_OK) return refuse(c, first, n);
    compare(c, prompt, n, cosines);
    return 0;
}
