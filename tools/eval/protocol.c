#include "tools/eval/protocol.h"

#include "base/printable.h"
#include "tools/cli/command.h"
#include "tools/cli/text.h"

#include <stdio.h>
#include <string.h>

enum { LINE = 5 * EVAL_TEXT };

const char *protocol_text(const record_texts *texts, const char *key)
{
    for (int i = 0; i < texts->count; i++)
        if (strcmp(texts->texts[i].key, key) == 0) return texts->texts[i].value;
    return "";
}

/* --- texts about judging ------------------------------------------------------------------------------------------ */

/* Adds the name of a file or directory, and its identity. */
static int add_judging_file(record_texts *texts, const char *key, const char *id_key, const char *path)
{
    char id[RECORD_ID];
    if (!path) return 0;
    record_texts_add(texts, key, "%s", tool_base_name(path));
    if (judge_identify(path, id) != 0) return 1;
    if (*id) record_texts_add(texts, id_key, "%s", id);
    return 0;
}

void protocol_add_scores(record_texts *texts, const prompt_scorer *scorer)
{
    for (int i = 0; i < SCORE_MODELS; i++)
        if (*scorer->ids[i]) record_texts_add(texts, score_names[i].id, "%s", scorer->ids[i]);
    if (scorer->columns.count) record_texts_add(texts, "clip_prompts", "%s", scorer->prompts_id);
}

int protocol_add_judging(record_texts *texts, const eval_options *o, const prompt_scorer *scorer)
{
    const judge_options *j = &o->judge;
    record_texts_add(texts, "features", "%s", j->features);
    if (j->inception || j->vgg) record_texts_add(texts, "features_dtype", "%s", judge_dtypes[j->dtype]);
    if (j->resize == JUDGE_CLEAN) record_texts_add(texts, "resize", "%s", judge_resizes[JUDGE_CLEAN]);
    if (j->kid_subset != KID_SUBSET_DEFAULT) record_texts_add(texts, "kid_subset_size", "%d", j->kid_subset);
    if (add_judging_file(texts, "inception", "inception_id", j->inception) != 0 ||
        add_judging_file(texts, "vgg", "vgg_id", j->vgg) != 0)
        return 1;
    for (int i = 0; i < SCORE_MODELS; i++)
        if (o->scores.model[i])
            record_texts_add(texts, score_names[i].option, "%s", tool_base_name(o->scores.model[i]));
    protocol_add_scores(texts, scorer);
    return add_judging_file(texts, "stats", "stats_id", o->stats);
}

/* --- parts of the line -------------------------------------------------------------------------------------------- */

const char *protocol_file(const record_texts *texts, const char *key, char *text, size_t size)
{
    char id_key[32];
    snprintf(id_key, sizeof id_key, "%s_id", key);
    const char *id = protocol_text(texts, id_key);
    snprintf(text, size, "%s%s%s%s", protocol_text(texts, key), *id ? " (" : "", id, *id ? ")" : "");
    return text;
}

/* Appends the reference, the networks and the models of the scores. */
static void append_judging(const record_texts *texts, const mar_features_config *network, char *line)
{
    char file[EVAL_TEXT];
    const char *dtype = protocol_text(texts, "features_dtype");
    text_append(line, LINE, "reference %s; features %s",
                *protocol_text(texts, "stats") ? protocol_file(texts, "stats", file, sizeof file) : "none",
                network ? network->name : "none");
    if (*protocol_text(texts, "inception"))
        text_append(line, LINE, " in %s, %s", dtype, protocol_file(texts, "inception", file, sizeof file));
    if (*protocol_text(texts, "resize")) text_append(line, LINE, ", resized as clean-fid");
    if (*protocol_text(texts, "kid_subset_size"))
        text_append(line, LINE, "; KID of subsets of %s", protocol_text(texts, "kid_subset_size"));
    if (*protocol_text(texts, "vgg"))
        text_append(line, LINE, "; precision and recall on vgg16 (fc2 before its ReLU) in %s, %s", dtype,
                    protocol_file(texts, "vgg", file, sizeof file));
    for (int i = 0; i < SCORE_MODELS; i++)
        if (*protocol_text(texts, score_names[i].option))
            text_append(line, LINE, "; %s %s in f32", score_names[i].name,
                        protocol_file(texts, score_names[i].option, file, sizeof file));
    if (*protocol_text(texts, "clip_prompts"))
        text_append(line, LINE, ", prompts %s%s", protocol_text(texts, "clip_prompts"),
                    *protocol_text(texts, "clip") ? "; prefix \"" CLIP_PREFIX "\"" : "");
}

static const char *order_of_score(const mar_features_config *network)
{
    return network ? "; Inception score in the order of NumPy's RandomState(2020), 10 splits" : "";
}

/* Appends the classes; of a long list the beginning, to leave room on the line. The settings have them all. */
static void append_classes(const char *list, char *line)
{
    enum { SHOWN = 150 };
    int count = 1, shown = 0;
    for (const char *c = list; *c; c++) {
        if (*c != ',') continue;
        count++;
        if (c - list <= SHOWN) shown = (int)(c - list);
    }
    if (strlen(list) <= SHOWN)
        text_append(line, LINE, "%s", list);
    else
        text_append(line, LINE, "%.*s, ... %d in all", shown, list, count);
}

/* Appends the text that stands for all prompts of the run, if it has one. */
static void append_prompt(const record_texts *s, const char *name, char *line)
{
    char shown[100];
    const char *text = protocol_text(s, name);
    if (*text) text_append(line, LINE, ", %s prompt \"%s\"", name, printable(text, shown, sizeof shown));
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

/* The settings have only options that affect the model's kind of tokens. */
void protocol_of_run(const record_texts *s, const mar_features_config *network, const char *accelerators, char *line)
{
    char model[256], vae[256], draft[256], file[256];
    const char *from_prompts = protocol_text(s, "prompts_id"), *steps = protocol_text(s, "num_sampling_steps");
    const char *shift = protocol_text(s, "time_shift"), *norm = protocol_text(s, "token_norm");
    const int from_captions = *protocol_text(s, "captions") != '\0';
    const int cuts = strcmp(protocol_text(s, "family"), "spherear") == 0; /* kernels/pixels.h */
    const int rounds = *steps && !cuts;
    *line = '\0';
    append_judging(s, network, line);
    text_append(line, LINE, "; model %s, decoder %s", protocol_file(s, "model", model, sizeof model),
                protocol_file(s, "vae", vae, sizeof vae));
    if (*protocol_text(s, "draft"))
        text_append(line, LINE, ", draft %s", protocol_file(s, "draft", draft, sizeof draft));
    text_append(
        line, LINE, "; %s images of %s, %s%s %s (", protocol_text(s, "num_images"), protocol_text(s, "image_size"),
        from_captions   ? "captions of "
        : *from_prompts ? "prompts"
                        : "classes",
        from_captions ? protocol_file(s, "captions", file, sizeof file) : "", protocol_text(s, "class_sampling"));
    append_classes(*from_prompts ? from_prompts : protocol_text(s, "class"), line);
    text_append(line, LINE, "); 8 bit = %s, clipped%s; ", rounds ? "round(127.5 (v + 1))" : "trunc(127.5 v + 128)",
                order_of_score(network));
    if (*steps)
        text_append(line, LINE, "num_iter %s, num_sampling_steps %s%s%s%s%s, cfg %s (%s)", protocol_text(s, "num_iter"),
                    steps, *shift ? ", time_shift " : "", shift, *norm ? ", token_norm " : "", norm,
                    protocol_text(s, "cfg"), protocol_text(s, "cfg_schedule"));
    else
        text_append(line, LINE, "cfg %s, cfg_interval %s, top_k %s, top_p %s", protocol_text(s, "cfg"),
                    protocol_text(s, "cfg_interval"), protocol_text(s, "top_k"), protocol_text(s, "top_p"));
    append_prompt(s, "negative", line);
    append_prompt(s, "positive", line);
    text_append(line, LINE, ", temperature %s, seed %s%s%s; %s", protocol_text(s, "temperature"),
                protocol_text(s, "seed"), *accelerators ? ", " : "", accelerators, protocol_text(s, "Software"));
}

void protocol_of_images(const record_texts *judging, const mar_features_config *network, const judged *d, char *line)
{
    char images[EVAL_TEXT];
    const char *num = protocol_text(judging, "num");
    *line = '\0';
    append_judging(judging, network, line);
    text_append(line, LINE, "%s%s%s; %ld images of %dx%d%s in %s%s; libmar %s", *num ? ", " : "", num,
                *num ? " images of each prompt" : "", d->images, d->width, d->height,
                d->other_sizes ? " and other sizes" : "", protocol_file(judging, "images", images, sizeof images),
                order_of_score(network), mar_version());
}
