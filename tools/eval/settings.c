/* The settings that an evaluation's numbers depend on: written with the first shard, compared when resumed. */
#include "tools/cli/command.h"

#include "mar_eval.h"
#include "mar_methods.h"
#include "tools/eval/job.h"
#include "tools/eval/protocol.h"
#include "tools/eval/report.h"
#include "tools/cli/file.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- made from the options ------------------------------------------------------------------------------ */

/* Returns the classes as "all 1000", or as a list; NULL without memory. */
static char *class_text(const eval_job *job)
{
    text_buffer text;
    const int total = mar_model_get_config(job->models.model)->classes;
    int all = job->class_count == total;
    FILE *out = text_open(&text);
    if (!out) return NULL;
    for (int i = 0; i < job->class_count && all; i++) all = job->classes[i] == i;
    if (all) fprintf(out, "all %d", total);
    for (int i = 0; i < job->class_count && !all; i++) fprintf(out, "%s%d", i ? "," : "", job->classes[i]);
    return text_close(out, &text) == 0 ? text.data : NULL;
}

static void add_flag(record_texts *texts, const char *name, int on)
{
    record_texts_add(texts, name, on ? "on" : "off");
}

/* Adds the settings of an evaluation beyond those of a run. */
static int add_evaluation(eval_job *job, const char *classes)
{
    const eval_options *o = job->options;
    const mar_model_config *c = mar_model_get_config(job->models.model);
    record_texts *texts = &job->settings;
    if (c->head == MAR_HEAD_FLOW) record_texts_add(texts, "family", "%s", c->family); /* others: from options */
    record_texts_add(texts, "num_images", "%d", o->num_images);
    texts->lacks |= !classes;
    if (classes) record_texts_add(texts, "class", "%s", classes);
    record_texts_add(texts, "class_sampling", o->class_sampling == EVAL_RANDOM ? "random" : "balanced");
    record_texts_add(texts, "batch", "%d", o->batch);
    record_texts_add(texts, "shard_images", "%d", o->shard_images);
    if (protocol_add_judging(texts, o, &job->judge.scorer) != 0) return 1;
    add_flag(texts, "precision_recall", job->layout.keeps_features);
    add_flag(texts, "save_images", o->save_images);
    add_flag(texts, "save_npz", o->save_npz);
    record_texts_add(texts, "image_size", "%dx%d", job->layout.width, job->layout.height);
    return 0;
}

/* Makes a kind of pieces: a name, and a hash of the texts besides the run of the images. */
static int make_kind(const char *name, record_texts *texts, char kind[STORE_KIND])
{
    if (record_texts_end(texts, "the settings") != 0) return 1;
    snprintf(kind, STORE_KIND, "%s-%016" PRIx64, name, store_hash(texts->texts, texts->count));
    record_texts_free(texts);
    return 0;
}

/* Makes the kinds of pieces: pixels, by what they depend on besides tokens, and the network's output. */
static int make_kinds(eval_job *job)
{
    record_texts pictures = {0}, findings = {0};
    record_texts_add_decoder(&pictures, &job->options->run, &job->models);
    if (make_kind("picture", &pictures, job->facts.pictures) != 0) return 1;
    record_texts_add(&findings, "pictures", "%s", job->facts.pictures);
    record_texts_add(&findings, "network", "%s",
                     job->judge.network ? mar_features_get_config(job->judge.network)->name : "none");
    record_texts_add(&findings, "inception_id", "%s", eval_setting(job, "inception_id"));
    if (job->judge.vgg) record_texts_add(&findings, "vgg_id", "%s", eval_setting(job, "vgg_id"));
    protocol_add_scores(&findings, &job->judge.scorer);
    record_texts_add(&findings, "features_dtype", "%s", judge_dtypes[job->options->judge.dtype]);
    if (job->options->judge.resize == JUDGE_CLEAN) record_texts_add(&findings, "resize", "clean");
    record_texts_add(&findings, "draft_steps", "%d", job->layout.steps);
    record_texts_add_arithmetic(&findings, job->judge.library);
    return make_kind("features", &findings, job->facts.judged);
}

int eval_settings_make(eval_job *job)
{
    record_texts *texts = &job->settings;
    char *classes = class_text(job);
    record_texts_add(texts, "Software", "libmar %s", mar_version());
    record_texts_add_run(texts, &job->options->run, &job->models);
    record_texts_add_prompts(texts, &job->options->run, &job->models);
    const int failed = add_evaluation(job, classes);
    free(classes);
    return failed || record_texts_end(texts, "the settings") || make_kinds(job);
}

const char *eval_setting(const eval_job *job, const char *key)
{
    return protocol_text(&job->settings, key);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Numbers of the layout that do not follow from the settings' texts, and facts. */
typedef struct {
    const char *name;
    int *number; /* 0..most; NULL: text[size] */
    int most;
    char *text;
    size_t size;
} fact;

enum {
    FACTS = 10,
    NUMBER_MAX = 1000000, /* images of an evaluation */
    BATCH_MAX = 1024
};

static void list_facts(eval_job *job, fact list[FACTS])
{
    eval_layout *l = &job->layout;
    eval_facts *f = &job->facts;
    const fact all[FACTS] = {{"width", &l->width, IMAGE_SIDE_MAX, NULL, 0},
                             {"height", &l->height, IMAGE_SIDE_MAX, NULL, 0},
                             {"classes", &f->classes, NUMBER_MAX, NULL, 0},
                             {"draft_steps", &l->steps, EVAL_CURVE_MAX, NULL, 0},
                             {"images", NULL, 0, f->images, sizeof f->images},
                             {"judged", NULL, 0, f->judged, sizeof f->judged},
                             {"pictures", NULL, 0, f->pictures, sizeof f->pictures},
                             {"published", NULL, 0, f->published, sizeof f->published},
                             {"guarantee", NULL, 0, f->guarantee, sizeof f->guarantee},
                             {"accelerators", NULL, 0, f->accelerators, sizeof f->accelerators}};
    memcpy(list, all, sizeof all);
}

static int write_settings_file(eval_job *job, const char *path)
{
    fact facts[FACTS];
    cJSON *record = tool_json(), *settings = cJSON_AddObjectToObject(record, "settings"),
          *facts_object = cJSON_AddObjectToObject(record, "facts");
    for (int i = 0; i < job->settings.count; i++)
        cJSON_AddStringToObject(settings, job->settings.texts[i].key, job->settings.texts[i].value);
    list_facts(job, facts);
    for (int i = 0; i < FACTS; i++)
        if (facts[i].number)
            cJSON_AddNumberToObject(facts_object, facts[i].name, *facts[i].number);
        else
            cJSON_AddStringToObject(facts_object, facts[i].name, facts[i].text);
    return json_file_write(record, path);
}

/* Reads the object "settings" or "facts" of the file. The caller deletes *record. Returns 0, or 1 with the error
 * printed. */
static int read_settings_file(const char *path, cJSON **record, cJSON **settings, cJSON **facts)
{
    if (json_file_read(path, "the settings of a run", record) != 0) return 1;
    *settings = cJSON_GetObjectItemCaseSensitive(*record, "settings");
    *facts = cJSON_GetObjectItemCaseSensitive(*record, "facts");
    int whole = cJSON_IsObject(*settings) && cJSON_IsObject(*facts);
    for (const cJSON *s = whole ? (*settings)->child : NULL; s; s = s->next) whole &= cJSON_IsString(s) && s->string;
    if (whole) return 0;
    cJSON_Delete(*record);
    *record = NULL;
    return tool_error("%s: lacks settings or facts, expected what mar eval writes", path);
}

/* --- comparison --------------------------------------------------------------------------------------------------- */

/* Writes the name as on the command line if it is an option's. Returns text. */
static const char *spell_setting(const char *key, const char *value, char *text, size_t size)
{
    static const char *const no_options[] = {
        "Software",   "model_id",   "vae_id", "captions_id", "prompts_id",   "draft_id", "inception_id",  "stats_id",
        "arithmetic", "image_size", "vgg_id", "clip_id",     "clip_prompts", "hps_id",   "imagereward_id"};
    const char *dashes = "--";
    for (size_t i = 0; i < sizeof no_options / sizeof *no_options; i++)
        if (strcmp(key, no_options[i]) == 0) dashes = "";
    if (strcmp(value, "on") == 0 || strcmp(value, "off") == 0)
        snprintf(text, size, "%s%s%s", strcmp(value, "on") == 0 ? "" : "no ", dashes, key);
    else
        snprintf(text, size, "%s%s %s", dashes, key, value);
    return text;
}

/* Prints the old and the new value of a setting; NULL: missing. Returns 1. */
static int refuse_difference(const eval_job *job, const char *key, const char *was, const char *is)
{
    char before[4400], after[4400], no[128];
    snprintf(no, sizeof no, "no --%s", key);
    return tool_error("%s: was begun with %s, this is %s; use another --out", job->directory.out.path,
                      was ? spell_setting(key, was, before, sizeof before) : no,
                      is ? spell_setting(key, is, after, sizeof after) : no);
}

static int compare_settings(const eval_job *job, const cJSON *found)
{
    for (int i = 0; i < job->settings.count; i++) {
        const image_text *t = &job->settings.texts[i];
        const cJSON *s = cJSON_GetObjectItemCaseSensitive(found, t->key);
        if (!s || strcmp(s->valuestring, t->value) != 0)
            return refuse_difference(job, t->key, s ? s->valuestring : NULL, t->value);
    }
    for (const cJSON *s = found->child; s; s = s->next)
        if (!*eval_setting(job, s->string)) return refuse_difference(job, s->string, s->valuestring, NULL);
    return 0;
}

int eval_settings_check_place(const eval_job *job)
{
    static const char *const names[] = {"result.json", "report.html", "images.npz", "images.npz.part", "images"};
    char path[RUN_PATH], settings[RUN_PATH];
    if (access(run_path(&job->directory, "shards", path), F_OK) == 0)
        return tool_error("%s: was begun by an older mar, whose shards this one does not go on with; use another --out",
                          job->directory.out.path);
    run_path(&job->directory, "settings.json", settings);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) /* a run that begins now writes its settings first */
        if (access(run_path(&job->directory, names[i], path), F_OK) == 0 && access(settings, F_OK) != 0)
            return tool_error("%s: has %s but no settings.json, so it is no run that can go on; use another --out",
                              job->directory.out.path, names[i]);
    return 0;
}

/* Syncs the file, so that it survives a failure of the machine: what follows depends on it. */
int eval_settings_write(eval_job *job)
{
    char path[RUN_PATH];
    const int directory = job->directory.out.directory;
    if (write_settings_file(job, run_path(&job->directory, "settings.json", path)) != 0) return 1;
    return directory && tool_sync(directory) != 0 ? tool_cannot_write(path) : 0;
}

int eval_settings_take_costs(eval_job *job)
{
    char path[RUN_PATH];
    cJSON *record, *settings, *facts;
    run_path(&job->directory, "settings.json", path);
    if (access(path, F_OK) != 0) return 0;
    if (read_settings_file(path, &record, &settings, &facts) != 0) return 1;
    run_take_costs(&job->options->run, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(settings, "round_costs")),
                   cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(settings, "head_costs")));
    cJSON_Delete(record);
    return 0;
}

int eval_settings_agree(const eval_job *job, int *is_new)
{
    char path[RUN_PATH];
    cJSON *record, *settings, *facts;
    run_path(&job->directory, "settings.json", path);
    *is_new = access(path, F_OK) != 0 && errno == ENOENT;
    if (*is_new) return 0;
    if (read_settings_file(path, &record, &settings, &facts) != 0) return 1;
    const int failed = compare_settings(job, settings);
    cJSON_Delete(record);
    return failed;
}

/* --- settings from the file --------------------------------------------------------------------------------------- */

/* Returns whether an option's setting may differ from its text: a list, a rounded number, 0 or auto for a default. */
static int is_resolved(const mar_param *p, const char *value)
{
    return strcmp(p->name, "class") == 0 || strcmp(p->name, "batch") == 0 || strcmp(p->name, "shard_images") == 0 ||
           strcmp(value, "0") == 0 || run_param_is_named(p, value);
}

/* Compares the given options with their settings. */
static int compare_given(const eval_job *job, const option_set *set)
{
    char text[4096];
    for (int i = 0; i < set->count; i++) {
        const option *o = &set->options[i];
        const char *was = eval_setting(job, o->param->name), *is;
        if (!o->given || !*was) continue;
        is = o->param->type == MAR_TYPE_MODEL ? run_draft(&job->options->run)
                                              : mar_param_text(o->param, o->fields, text, sizeof text);
        if (!is) continue;
        if (run_is_file(o->param)) is = tool_base_name(is);
        if (!is_resolved(o->param, is) && strcmp(was, is) != 0) return refuse_difference(job, o->param->name, was, is);
    }
    return 0;
}

/* Reads a number among the texts, 1 to `most`. Returns 0, or 1 after printing it. */
static int take_setting_number(const eval_job *job, const char *key, int most, int *out, const char *path)
{
    const char *text = eval_setting(job, key);
    const long n = strtol(text, NULL, 10);
    if (n < 1 || n > most) return tool_error("%s: %s is \"%s\", expected 1 to %d", path, key, text, most);
    *out = (int)n;
    return 0;
}

/* Returns 0, or 1 after printing an invalid number. */
static int take_fact(const fact *f, const cJSON *found, const char *path)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(found, f->name);
    if (f->number ? !cJSON_IsNumber(item) : !cJSON_IsString(item))
        return tool_error("%s: lacks %s, expected what mar eval writes", path, f->name);
    if (!f->number) {
        snprintf(f->text, f->size, "%s", item->valuestring);
        return 0;
    }
    if (!(item->valuedouble >= 0 && item->valuedouble <= f->most))
        return tool_error("%s: %s is %.10g, expected 0 to %d", path, f->name, item->valuedouble, f->most);
    *f->number = (int)item->valuedouble;
    return 0;
}

/* Returns whether a text of the file can be part of a name in the store. */
static int is_piece_name(const char *text)
{
    return *text && !text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-")];
}

/* Reads the classes of class_text's text. */
static int take_classes(eval_job *job, const char *path)
{
    const char *text = eval_setting(job, "class");
    int total = 0, count = 1, end = 0;
    if (sscanf(text, "all %d%n", &total, &end) == 1 && !text[end] && total >= 1 && total <= NUMBER_MAX) count = total;
    for (const char *c = text; *c && !total; c++) count += *c == ',';
    job->classes = malloc((size_t)count * sizeof *job->classes);
    job->class_count = count;
    if (!job->classes) return tool_error("out of memory for %d classes", count);
    for (int i = 0; i < count; i++) job->classes[i] = i;
    for (int i = 0; i < count && !total; i++) {
        char *behind;
        const long label = strtol(text, &behind, 10);
        if (behind == text || label < -1 || label > NUMBER_MAX || *behind != (i + 1 < count ? ',' : '\0'))
            return tool_error("%s: class is \"%s\", expected a list of classes", path, eval_setting(job, "class"));
        job->classes[i] = (int)label;
        text = behind + 1;
    }
    return 0;
}

/* Sets the size of KID's subsets, which the settings have unless it is the default. */
static int take_kid_subset(eval_job *job, const option_set *given, const char *path)
{
    static const char key[] = "kid_subset_size";
    int *size = &job->options->judge.kid_subset, was = KID_SUBSET_DEFAULT;
    const char *text = eval_setting(job, key);
    const option *o = options_find(given, key);
    char is[16];
    if (*text && take_setting_number(job, key, NUMBER_MAX, &was, path) != 0) return 1;
    snprintf(is, sizeof is, "%d", *size);
    if (o && o->given && *size != was) return refuse_difference(job, key, *text ? text : NULL, is);
    *size = was;
    return 0;
}

static int take_facts(eval_job *job, const cJSON *found, const char *path)
{
    fact facts[FACTS];
    list_facts(job, facts);
    for (int i = 0; i < FACTS; i++)
        if (take_fact(&facts[i], found, path) != 0) return 1;
    int images = 0, scored[SCORE_MODELS];
    eval_layout *l = &job->layout;
    if (take_setting_number(job, "num_images", NUMBER_MAX, &images, path) != 0 ||
        take_setting_number(job, "batch", BATCH_MAX, &l->batch, path) != 0 ||
        take_setting_number(job, "shard_images", NUMBER_MAX, &l->shard_images, path) != 0)
        return 1;
    l->images = images;
    l->samples = eval_sample_count(images, EVAL_SHEET_MAX);
    l->keeps_features = strcmp(eval_setting(job, "precision_recall"), "on") == 0;
    job->facts.demo = strcmp(eval_setting(job, "features"), "demo") == 0;
    for (int i = 0; i < SCORE_MODELS; i++) scored[i] = *eval_setting(job, score_names[i].option) != '\0';
    l->columns = scores_columns(scored);
    job->is_random = strcmp(eval_setting(job, "class_sampling"), "random") == 0;
    job->seed = strtoull(eval_setting(job, "seed"), NULL, 10);
    if (!is_piece_name(job->facts.images) || !is_piece_name(job->facts.judged) || !is_piece_name(job->facts.pictures))
        return tool_error("%s: has no names of pieces in the store, expected what mar eval writes", path);
    if (l->images < 2 || l->shard_images % l->batch != 0)
        return tool_error(
            "%s: is of %ld images in shards of %d and batches of %d, expected 2 or more and whole batches", path,
            l->images, l->shard_images, l->batch);
    if (!l->width || !l->height)
        return tool_error("%s: is of images of %dx%d, expected 1 pixel or more", path, l->width, l->height);
    return take_classes(job, path);
}

int eval_settings_take(eval_job *job, const option_set *given)
{
    char path[RUN_PATH];
    cJSON *settings, *facts;
    run_path(&job->directory, "settings.json", path);
    if (read_settings_file(path, &job->taken, &settings, &facts) != 0) return 1;
    for (const cJSON *s = settings->child; s; s = s->next)
        record_texts_add(&job->settings, s->string, "%s", s->valuestring);
    if (record_texts_end(&job->settings, "the settings") != 0) return 1;
    return take_facts(job, facts, path) || compare_given(job, given) || take_kid_subset(job, given, path);
}
