/* RUN/report.html: the record of the result with published numbers, images and settings. */
#include "tools/eval/report.h"

#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/page/page.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- published numbers
 * ------------------------------------------------------------------------------------------------ */

enum { OFFICIAL_TOKENS = 256, OFFICIAL_CHANNELS = 16, IMAGENET = 1000 };

/* Also in tools/dev/random_checkpoint.py. */
static const struct {
    const char *name;
    int width, encoder_depth, decoder_depth;
    int head_width, head_depth;
} shapes[] = {{"MAR-B", 768, 12, 12, 1024, 6},      {"MAR-L", 1024, 16, 16, 1280, 8},
              {"MAR-H", 1280, 20, 20, 1536, 12},    {"SphereAR-B", 768, 0, 24, 768, 6},
              {"SphereAR-L", 1024, 0, 32, 1024, 8}, {"SphereAR-H", 1280, 0, 40, 1280, 12}};

const char *eval_published_model(const mar_model_config *c)
{
    if (c->seq_len != OFFICIAL_TOKENS || c->token_dim != OFFICIAL_CHANNELS || c->classes != IMAGENET) return "";
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (c->width == shapes[i].width && c->encoder_depth == shapes[i].encoder_depth &&
            c->decoder_depth == shapes[i].decoder_depth && c->head_width == shapes[i].head_width &&
            c->head_depth == shapes[i].head_depth)
            return shapes[i].name;
    return "";
}

static const char paper[] = "Li et al., 2024 (arXiv 2406.11838), 256 autoregressive steps";
static const char sphere[] = "Ke and Xue, 2025 (arXiv 2509.24335) and its release";
static const char lazy[] = "Yan et al., 2025 (arXiv 2503.12450) and its release";

static const eval_published results[] = {
    {"MAR-B", "without guidance", paper, 3.48, 192.4, 0.78, 0.58},
    {"MAR-B", "with guidance", paper, 2.31, 281.7, 0.82, 0.57},
    {"MAR-B", "LazyMAR", lazy, 2.45, 281.3, NAN, NAN},
    {"MAR-L", "without guidance", paper, 2.60, 221.4, 0.79, 0.60},
    {"MAR-L", "with guidance", paper, 1.78, 296.0, 0.81, 0.60},
    {"MAR-L", "LazyMAR", lazy, 1.93, 297.4, NAN, NAN},
    {"MAR-H", "without guidance", paper, 2.35, 227.8, 0.79, 0.62},
    {"MAR-H", "with guidance", paper, 1.55, 303.7, 0.81, 0.62},
    {"MAR-H", "LazyMAR, 2.83 times as fast", lazy, 1.69, 299.2, NAN, NAN},
    {"MAR-H", "GtR, 3.72 times as fast", "Yan et al., 2025 (arXiv 2510.17171)", 1.59, 304.4, NAN, NAN},
    {"MAR-H", "DiSA, 5 to 10 times as fast, guidance 3.3", "Zhao et al., 2025 (arXiv 2505.20297)", NAN, NAN, NAN, NAN},
    {"MAR-H", "CSpD, up to 2.33 times as fast", "Wang et al., 2024 (arXiv 2411.11925), Table 2", NAN, NAN, NAN, NAN},
    {"MAR-H", "MARVAL: a head distilled to one step, more than 30 times as fast", "arXiv 2511.15190", 2.00, NAN, NAN,
     NAN},
    {"SphereAR-B", "guidance 4.5", sphere, 1.92, NAN, NAN, NAN},
    {"SphereAR-L", "guidance 4.6", sphere, 1.54, NAN, NAN, NAN},
    {"SphereAR-H", "guidance 4.5", sphere, 1.34, NAN, NAN, NAN},
};

const eval_published *eval_published_get(const char *model, int i)
{
    for (size_t k = 0; k < sizeof results / sizeof results[0]; k++)
        if (strcmp(results[k].model, model) == 0 && i-- == 0) return &results[k];
    return NULL;
}

/* --- choice of images --------------------------------------------------------------------------------- */

/* Returns whether a precedes b: the larger share replaced / verified, then the smaller number. */
static int is_more_rejected(const eval_report_image *a, const eval_report_image *b)
{
    const double of_a = (double)a->replaced * (double)b->verified, of_b = (double)b->replaced * (double)a->verified;
    return of_a > of_b || (of_a == of_b && a->index < b->index);
}

int eval_report_rank(eval_report_image list[EVAL_REJECTED_MAX + 1], int *count, const eval_report_image *candidate)
{
    int at = 0;
    if (candidate->verified <= 0) return -1;
    while (at < *count && is_more_rejected(&list[at], candidate)) at++;
    if (at == EVAL_REJECTED_MAX) return -1;
    memmove(list + at + 1, list + at, (size_t)(*count - at) * sizeof *list);
    list[at] = *candidate;
    if (*count < EVAL_REJECTED_MAX) (*count)++;
    return at;
}

/* --- the page ----------------------------------------------------------------------------------------- */

static void add_published(cJSON *list, const char *model)
{
    const eval_published *p;
    for (int i = 0; (p = eval_published_get(model, i)) != NULL; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "model", p->model);
        cJSON_AddStringToObject(o, "what", p->setting);
        cJSON_AddStringToObject(o, "source", p->source);
        cJSON_AddNumberToObject(o, "fid", p->fid); /* NaN is null */
        cJSON_AddNumberToObject(o, "is", p->is);
        cJSON_AddNumberToObject(o, "precision", p->precision);
        cJSON_AddNumberToObject(o, "recall", p->recall);
        tool_json_append(list, o);
    }
}

static void add_images(cJSON *list, const eval_report_image *images, int count, const class_table *names)
{
    char name[CLASS_NAME_MAX + 2], label[160];
    for (int k = 0; k < count; k++) {
        const eval_report_image *i = &images[k];
        const image picture = {i->width, i->height, i->rgb};
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "index", (double)i->index);
        if (*class_name(names, i->label, name, sizeof name))
            snprintf(label, sizeof label, "%d %s", i->label, name);
        else
            snprintf(label, sizeof label, i->label < 0 ? "no class" : "%d", i->label);
        cJSON_AddStringToObject(o, "label", label);
        cJSON_AddNumberToObject(o, "verified", (double)i->verified);
        cJSON_AddNumberToObject(o, "replaced", (double)i->replaced);
        page_add_picture(cJSON_AddArrayToObject(o, "pictures"), &picture);
        tool_json_append(list, o);
    }
}

int eval_report_write(const eval_result *r, const eval_report_extras *x, const char *path)
{
    cJSON *record = eval_result_json(r), *extras = page_add_extras(record, "eval");
    cJSON_AddStringToObject(extras, "title", x->title ? x->title : *r->model ? r->model : "images");
    cJSON_AddStringToObject(extras, "distance", eval_result_distance(r));
    cJSON_AddStringToObject(extras, "kernel", eval_result_kernel(r));
    cJSON_AddNumberToObject(extras, "images_per_second", eval_result_rate(r));
    add_published(cJSON_AddArrayToObject(extras, "published"), r->published);
    cJSON_AddStringToObject(extras, "labels", x->has_prompts ? "prompt" : "class");
    cJSON *settings = cJSON_AddObjectToObject(extras, "settings");
    for (int i = 0; i < x->setting_count; i++)
        cJSON_AddStringToObject(settings, x->settings[i].key, x->settings[i].value);
    add_images(cJSON_AddArrayToObject(extras, "sheet"), x->sheet, x->sheet_count, x->names);
    add_images(cJSON_AddArrayToObject(extras, "rejected"), x->rejected, x->rejected_count, x->names);
    return page_write(record, path);
}
