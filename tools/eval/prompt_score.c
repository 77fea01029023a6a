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
     .offset = offsetof(score_options, model) + SCORE_CLIP * sizeof(char *),
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
     .offset = offsetof(score_options, model) + SCORE_HPS * sizeof(char *),
     .type = MAR_TYPE_TEXT,
     .argument = "FILE",
     .help = "HPS v2's file, for its score of images and prompts\n"
             "HPS_v2.1_compressed.pt of xswu/HPSv2. vocab.json and merges.txt, or tokenizer.json, of one of OpenAI's "
             "CLIPs must lie beside it. Prompts and --stats are as for --clip."},
    {.name = OPTION("imagereward"),
     .offset = offsetof(score_options, model) + SCORE_REWARD * sizeof(char *),
     .type = MAR_TYPE_TEXT,
     .argument = "FILE",
     .help =
         "ImageReward's file, for its score of images and prompts\n"
         "ImageReward.pt of THUDM/ImageReward. vocab.txt of bert-base-uncased must lie beside it, or in a folder of "
         "that name there. Prompts and --stats are as for --clip."},
    {OPTION_INT(score_options, num, 1, 1000000), .help = "images of each prompt in --images, one after another"},
    {0},
};

const score_name score_names[SCORE_MODELS] = {[SCORE_CLIP] = {"clip", "clip_id", "CLIP"},
                                              [SCORE_HPS] = {"hps", "hps_id", "HPS v2"},
                                              [SCORE_REWARD] = {"imagereward", "imagereward_id", "ImageReward"}};

const char *scores_option(const score_options *o)
{
    static const char *const options[] = {"--clip", "--hps", "--imagereward"};
    for (int i = 0; i < SCORE_MODELS; i++)
        if (o->model[i]) return options[i];
    return NULL;
}

score_columns scores_columns(const int computed[SCORE_MODELS])
{
    score_columns c = {.count = 0};
    for (int i = 0; i < SCORE_MODELS; i++) {
        c.of[i] = computed[i] ? c.count : -1;
        if (computed[i]) c.count += i == SCORE_CLIP ? 2 : 1;
    }
    return c;
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

/* Writes the embeddings of all prompts, with `prefix` before them, to a new array *out [count][embedding]. */
static int embed_prompts(prompt_scorer *s, mar_clip *clip, const char *prefix, progress *bar, float **out)
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
static int identify_clip(const char *folder, char id[RECORD_ID])
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

/* Loads model i of the scores, and identifies its file. A CLIP must not be HPS v2, and the other way round. */
static int load_score_model(prompt_scorer *s, int i, const char *path, progress *bar)
{
    mar_clip **clip = i == SCORE_CLIP ? &s->clip : &s->hps;
    progress_note(bar, "loading %s", path);
    const mar_status status = i == SCORE_REWARD ? mar_reward_load(s->library, path, s->batch, &s->reward)
                                                : mar_clip_load(s->library, path, s->batch, clip);
    progress_clear(bar);
    if (status != MAR_OK) return tool_error("--%s: %s", score_names[i].option, mar_error(s->library));
    if (i != SCORE_REWARD && (i == SCORE_HPS) == (strcmp(mar_clip_get_config(*clip)->name, "CLIP") == 0))
        return tool_error("--%s %s: is %s", score_names[i].option, path,
                          i == SCORE_HPS ? "a folder of CLIP, expected a file of HPS v2"
                                         : "a file of HPS v2, expected it for --hps");
    return i == SCORE_CLIP ? identify_clip(path, s->ids[i]) : record_identify_file(path, s->ids[i]);
}

/* Loads the models, and embeds the prompts. */
static int load_score_models(const score_options *o, prompt_scorer *s, progress *bar)
{
    for (int i = 0; i < SCORE_MODELS; i++)
        if (o->model[i] && load_score_model(s, i, o->model[i], bar) != 0) return 1;
    if (s->clip && (embed_prompts(s, s->clip, "", bar, &s->plain) != 0 ||
                    embed_prompts(s, s->clip, CLIP_PREFIX, bar, &s->prefixed) != 0))
        return 1;
    return s->hps && embed_prompts(s, s->hps, "", bar, &s->hps_plain);
}

/* Allocates what a batch needs. */
static int allocate_scorer(prompt_scorer *s)
{
    const size_t n = (size_t)s->batch;
    int size = s->clip ? mar_clip_get_config(s->clip)->embedding : 0;
    if (s->hps && mar_clip_get_config(s->hps)->embedding > size) size = mar_clip_get_config(s->hps)->embedding;
    s->embedding = malloc((n * (size_t)size + 1) * sizeof *s->embedding);
    s->prompts = malloc(n * sizeof *s->prompts);
    s->rewards = malloc(n * sizeof *s->rewards);
    if (s->embedding && s->prompts && s->rewards) return 0;
    return tool_error("out of memory for the scores of %d images", s->batch);
}

int prompt_scorer_open(const score_options *o, model_store *store, const mar_options *machine, int batch, progress *bar,
                       const char *const *texts, int count, prompt_scorer *out)
{
    mar_options options = *machine;
    *out = (prompt_scorer){.texts = texts, .count = count, .num = o->num > 0 ? o->num : 1, .batch = batch};
    options.dtype = MAR_DTYPE_F32;
    out->library = models_open(store, &options, scores_option(o) + strlen("--"));
    if (!out->library || load_score_models(o, out, bar) != 0 || allocate_scorer(out) != 0) return 1;
    const int computed[SCORE_MODELS] = {out->clip != NULL, out->hps != NULL, out->reward != NULL};
    out->columns = scores_columns(computed);
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
    free(s->rewards);
    *s = (prompt_scorer){0};
}

/* --- images ------------------------------------------------------------------------------------------------------- */

int32_t *scores_pair(const prompt_scorer *s, const char *path, const image_source *source)
{
    const int num = s->num, count = s->count;
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

/* Writes the cosines of the n embeddings and those of their prompts to a column. */
static void write_cosines(const prompt_scorer *s, const mar_clip *clip, const float *texts, const int32_t *prompt,
                          int n, double *column)
{
    const size_t size = (size_t)mar_clip_get_config(clip)->embedding;
    for (int i = 0; i < n; i++) {
        const float *a = s->embedding + (size_t)i * size, *b = texts + (size_t)prompt[i] * size;
        double sum = 0;
        for (size_t k = 0; k < size; k++) sum += (double)a[k] * (double)b[k];
        column[i * s->columns.count] = sum;
    }
}

static int refuse_scores(const prompt_scorer *s, long first, int n)
{
    return tool_error("images %ld to %ld: %s", first, first + n - 1, mar_error(s->library));
}

int prompt_scorer_run(prompt_scorer *s, const uint8_t *const *rgb, const int *widths, const int *heights,
                      const int32_t *prompt, long first, int n, double *scores)
{
    const int *column = s->columns.of;
    if (s->clip) {
        if (mar_clip_images_each(s->clip, rgb, widths, heights, n, s->embedding) != MAR_OK)
            return refuse_scores(s, first, n);
        write_cosines(s, s->clip, s->plain, prompt, n, scores + column[SCORE_CLIP]);
        write_cosines(s, s->clip, s->prefixed, prompt, n, scores + column[SCORE_CLIP] + 1);
    }
    if (s->hps) {
        if (mar_clip_images_each(s->hps, rgb, widths, heights, n, s->embedding) != MAR_OK)
            return refuse_scores(s, first, n);
        write_cosines(s, s->hps, s->hps_plain, prompt, n, scores + column[SCORE_HPS]);
    }
    if (!s->reward) return 0;
    for (int i = 0; i < n; i++) s->prompts[i] = s->texts[prompt[i]];
    if (mar_reward_score(s->reward, rgb, widths, heights, s->prompts, n, s->rewards) != MAR_OK)
        return refuse_scores(s, first, n);
    for (int i = 0; i < n; i++) scores[i * s->columns.count + column[SCORE_REWARD]] = s->rewards[i];
    return 0;
}
