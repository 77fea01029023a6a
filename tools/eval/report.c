/* RUN/report.html: the record of the result with published numbers, images and settings. */
#include "tools/eval/report.h"

#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/eval/published.h"
#include "tools/generate/class_names.h"
#include "tools/page/page.h"

#include <cjson/cJSON.h>
#include <stdio.h>

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

static void add_images(cJSON *list, const eval_report_image *images, int count, int classes)
{
    char name[128], label[160];
    for (int k = 0; k < count; k++) {
        const eval_report_image *i = &images[k];
        const image picture = {i->width, i->height,
                               (uint8_t *)(uintptr_t)i->rgb}; /* the cast is safe: the pixels are only read */
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "index", (double)i->index);
        if (i->label >= 0 && *class_name(i->label, classes, name, sizeof name))
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
    cJSON_AddNumberToObject(extras, "images_per_second", eval_result_rate(r));
    add_published(cJSON_AddArrayToObject(extras, "published"), r->published);
    if (x->settings) tool_json_add(extras, "settings", cJSON_Duplicate(x->settings, 1));
    add_images(cJSON_AddArrayToObject(extras, "sheet"), x->sheet, x->sheet_count, x->classes);
    add_images(cJSON_AddArrayToObject(extras, "rejected"), x->rejected, x->rejected_count, x->classes);
    return page_write(record, path);
}
