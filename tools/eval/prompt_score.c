#include "tools/eval/prompt_score.h"

#include "mar_eval.h"
#include "mar_methods.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/file_sum.h"
#include "tools/cli/text.h"
#include "tools/generate/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const mar_param score_rows[] = {
    {.name = OPTION("clip"),
     .offset = offsetof(score_options, clip),
     .group = "Scores of prompts",
     .type = MAR_TYPE_TEXT,
     .argument = "DIR",
     .help = "folder of a CLIP, for the score of images and prompts\n"
             "As Hugging Face writes it, such as openai/clip-vit-base-patch32: config.json, model.safetensors or "
             "pytorch_model.bin, vocab.json and merges.txt or tokenizer.json. It needs no --stats. Images of --images "
             "belong "
             "to the prompts of --prompts, image i to prompt i, in the order of the names, in which 9.png is before "
             "10.png."},
    {.name = OPTION("hps"),
     .offset = offsetof(score_options, hps),
     .type = MAR_TYPE_TEXT,
     .argument = "FILE",
     .help = "HPS v2's file, for its score of images and prompts\n"
             "HPS_v2.1_compressed.pt of xswu/HPSv2. vocab.json and merges.txt, or tokenizer.json, of one of OpenAI's "
             "CLIPs must lie beside it. Prompts and --stats are as for --clip."},
    {.name = OPTION("imagereward"),
     .offset = offsetof(score_options, reward),
     .type = MAR_TYPE_TEXT,
     .argument = "FILE",
     .help =
         "ImageReward's file, for its score of images and prompts\n"
         "ImageReward.pt of THUDM/ImageReward. vocab.txt of bert-base-uncased must lie beside it, or in a folder of "
         "that name there. Prompts and --stats are as for --clip."},
    {.name = OPTION("num"),
     .offset = offsetof(score_options, num),
     .type = MAR_TYPE_INT,
     .min = 1,
     .max = 1000000,
     .help = "images of each prompt in --images, one after another"},
    {0},
};

const char *scores_option(const score_options *o)
{
    return o->clip ? "--clip" : o->hps ? "--hps" : o->reward ? "--imagereward" : NULL;
}

score_columns scores_columns(int clip, int hps, int reward)
{
    return (score_columns){.clip = clip ? 0 : -1,
                           .hps = hps ? 2 * clip : -1,
                           .reward = reward ? 2 * clip + hps : -1,
                           .count = 2 * clip + hps + reward};
}

const char *scores_describe(const char *const models[3], const char *const ids[3], char *text, size_t size)
{
    static const char *const names[3] = {"CLIP", "HPS v2", "ImageReward"};
    *text = '\0';
    for (int i = 0; i < 3; i++)
        if (models[i] && *models[i]) text_append(text, size, "; %s %s (%s) in f32", names[i], models[i], ids[i]);
    return text;
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

/* Writes the embeddings of all prompts, with `prefix` before them, to a new array *out [count][embedding]. */
static int embed(prompt_scorer *s, mar_clip *clip, const char *prefix, progress *bar, float **out)
{
    const size_t size = (size_t)mar_clip_get_config(clip)->embedding;
    char **texts = calloc((size_t)s->batch, sizeof *texts);
    *out = malloc((size_t)s->count * size * sizeof **out);
    int failed = texts && *out ? 0 : tool_error("out of memory for %d prompts", s->count);
    for (int first = 0, n; first < s->count && !failed; first += n) {
        n = s->count - first < s->batch ? s->count - first : s->batch;
        progress_note(bar, "reading prompt %d of %d", first + 1, s->count);
        for (int i = 0; i < n && !failed; i++)
            if (asprintf(&texts[i], "%s%s", prefix, s->texts[first + i]) < 0) {
                texts[i] = NULL;
                failed = tool_error("out of memory for the prompts");
            }
        if (!failed && mar_clip_texts(clip, (const char *const *)texts, n, *out + (size_t)first * size) != MAR_OK)
            failed = tool_error("prompts %d to %d: %s", first + 1, first + n, mar_error(s->library));
        for (int i = 0; i < n; i++) {
            free(texts[i]);
            texts[i] = NULL;
        }
    }
    progress_clear(bar);
    free(texts);
    return failed;
}

int scores_read_prompts(const score_options *o, prompts *out)
{
    if (prompts_read(o->prompts, out) != 0) return 1;
    if (!out->skipped) return 0;
    return tool_error("--prompts %s: %d of its prompts cannot be used, expected none: an image belongs to each",
                      o->prompts, out->skipped);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Identifies the file of a CLIP's tensors in a folder, or the index of its shards. */
static int identify(const char *folder, char id[RECORD_ID])
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

/* Loads a CLIP, or HPS, which must be the one of the two that the option is for. */
static int load(prompt_scorer *s, const char *asked, const char *path, progress *bar, mar_clip **out)
{
    const int is_hps = strcmp(asked, "--hps") == 0;
    progress_note(bar, "loading %s", path);
    const mar_status status = mar_clip_load(s->library, path, s->batch, out);
    progress_clear(bar);
    if (status != MAR_OK) return tool_error("%s: %s", asked, mar_error(s->library));
    if (is_hps == (strcmp(mar_clip_get_config(*out)->name, "CLIP") != 0)) return 0;
    return tool_error("%s %s: is %s", asked, path,
                      is_hps ? "a folder of CLIP, expected a file of HPS v2"
                             : "a file of HPS v2, expected it for --hps");
}

static int load_reward(prompt_scorer *s, const char *path, progress *bar)
{
    progress_note(bar, "loading %s", path);
    const mar_status status = mar_reward_load(s->library, path, s->batch, &s->reward);
    progress_clear(bar);
    return status == MAR_OK ? 0 : tool_error("--imagereward: %s", mar_error(s->library));
}

/* Loads the models, and embeds the prompts. */
static int load_all(const score_options *o, prompt_scorer *s, progress *bar)
{
    if (o->clip && (load(s, "--clip", o->clip, bar, &s->clip) != 0 || identify(o->clip, s->clip_id) != 0)) return 1;
    if (o->hps && (load(s, "--hps", o->hps, bar, &s->hps) != 0 || record_identify_file(o->hps, s->hps_id) != 0))
        return 1;
    if (o->reward && (load_reward(s, o->reward, bar) != 0 || record_identify_file(o->reward, s->reward_id) != 0))
        return 1;
    if (s->clip && (embed(s, s->clip, "", bar, &s->plain) || embed(s, s->clip, CLIP_PREFIX, bar, &s->prefixed)))
        return 1;
    return s->hps && embed(s, s->hps, "", bar, &s->hps_plain);
}

/* Allocates what a batch needs. */
static int allocate(prompt_scorer *s)
{
    const size_t n = (size_t)s->batch;
    int size = s->clip ? mar_clip_get_config(s->clip)->embedding : 0;
    if (s->hps && mar_clip_get_config(s->hps)->embedding > size) size = mar_clip_get_config(s->hps)->embedding;
    s->embedding = malloc((n * (size_t)size + 1) * sizeof *s->embedding);
    s->prompts = malloc(n * sizeof *s->prompts);
    s->rgb = malloc(n * sizeof *s->rgb);
    s->widths = malloc(n * sizeof *s->widths);
    s->heights = malloc(n * sizeof *s->heights);
    s->rewards = malloc(n * sizeof *s->rewards);
    if (s->embedding && s->prompts && s->rgb && s->widths && s->heights && s->rewards) return 0;
    return tool_error("out of memory for the scores of %d images", s->batch);
}

int prompt_scorer_open(const score_options *o, model_store *store, const mar_options *machine, int batch, progress *bar,
                       const char *const *texts, int count, prompt_scorer *out)
{
    mar_options options = *machine;
    *out = (prompt_scorer){.texts = texts, .count = count, .batch = batch};
    options.dtype = MAR_DTYPE_F32;
    out->library = models_open(store, &options, scores_option(o) + 2);
    if (!out->library || load_all(o, out, bar) != 0 || allocate(out) != 0) return 1;
    out->columns = scores_columns(o->clip != NULL, o->hps != NULL, o->reward != NULL);
    uint64_t sum = 0;
    for (int i = 0; i < count; i++) sum = sum * 31 + memory_sum(texts[i], strlen(texts[i]));
    snprintf(out->prompts_id, sizeof out->prompts_id, "%d, %016" PRIx64, count, sum);
    return 0;
}

void prompt_scorer_close(prompt_scorer *s)
{
    mar_clip_free(s->clip);
    mar_clip_free(s->hps);
    mar_reward_free(s->reward);
    free(s->plain);
    free(s->prefixed);
    free(s->hps_plain);
    free(s->embedding);
    free(s->prompts);
    free(s->rgb);
    free(s->widths);
    free(s->heights);
    free(s->rewards);
    *s = (prompt_scorer){0};
}

/* --- images ------------------------------------------------------------------------------------------------------- */

int32_t *scores_pair(const score_options *o, int count, const char *path, const image_source *source)
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

/* Writes the cosines of the n embeddings and those of their prompts to a column. */
static void compare(const prompt_scorer *s, const mar_clip *clip, const float *texts, const int32_t *prompt, int n,
                    double *column)
{
    const int size = mar_clip_get_config(clip)->embedding;
    for (int i = 0; i < n; i++)
        column[i * s->columns.count] =
            cosine(s->embedding + (size_t)i * (size_t)size, texts + (size_t)prompt[i] * (size_t)size, size);
}

static int refuse(const prompt_scorer *s, long first, int n)
{
    return tool_error("images %ld to %ld: %s", first, first + n - 1, mar_error(s->library));
}

int prompt_scorer_run(prompt_scorer *s, const uint8_t *const *rgb, const int *widths, const int *heights,
                      const int32_t *prompt, long first, int n, double *scores)
{
    const score_columns *at = &s->columns;
    if (s->clip) {
        if (mar_clip_images_each(s->clip, rgb, widths, heights, n, s->embedding) != MAR_OK) return refuse(s, first, n);
        compare(s, s->clip, s->plain, prompt, n, scores + at->clip);
        compare(s, s->clip, s->prefixed, prompt, n, scores + at->clip + 1);
    }
    if (s->hps) {
        if (mar_clip_images_each(s->hps, rgb, widths, heights, n, s->embedding) != MAR_OK) return refuse(s, first, n);
        compare(s, s->hps, s->hps_plain, prompt, n, scores + at->hps);
    }
    if (!s->reward) return 0;
    for (int i = 0; i < n; i++) s->prompts[i] = s->texts[prompt[i]];
    if (mar_reward_score(s->reward, rgb, widths, heights, s->prompts, n, s->rewards) != MAR_OK)
        return refuse(s, first, n);
    for (int i = 0; i < n; i++) scores[i * at->count + at->reward] = s->rewards[i];
    return 0;
}

int prompt_scorer_run_batch(prompt_scorer *s, const uint8_t *rgb, int width, int height, const int *prompt, long first,
                            int n, double *scores)
{
    for (int i = 0; i < n; i++) {
        s->rgb[i] = rgb + (size_t)i * (size_t)width * (size_t)height * 3;
        s->widths[i] = width, s->heights[i] = height;
    }
    return prompt_scorer_run(s, s->rgb, s->widths, s->heights, prompt, first, n, scores);
}
