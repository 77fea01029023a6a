/* Reports of a search: one record, as the JSON file and on a page, and a table. A resumed search takes its images and
 * times from the run store, not from here. */
#include "tools/cli/command.h"

#include "mar_methods.h"
#include "tools/cli/json.h"
#include "tools/fidelity/search.h"
#include "tools/page/page.h"
#include "base/printable.h"
#include "tools/cli/text.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the record --------------------------------------------------------------------------------------------------- */

/* Writes the command line that makes images as point i does, or for -1 the reference. Returns text. */
static const char *write_command(const search *s, int i, char *text, size_t size)
{
    const run_options *o = &s->f->runs[0].options;
    char value[512], name[80];
    *text = '\0';
    text_append(text, size, "mar generate");
    text_append_file(text, size, "model", o->model);
    if (s->f->shared.vae) text_append_file(text, size, "vae", s->f->shared.vae);
    if (o->captions) text_append_file(text, size, "captions", o->captions);
    for (int k = 0; k < o->prompt_count; k++) text_append_file(text, size, "prompt", o->prompt[k]);
    if (o->prompts) text_append_file(text, size, "prompts", o->prompts);
    if (o->negative) text_append_file(text, size, "negative", o->negative);
    if (o->t5 && o->t5 != o->model && !run_demo_t5(o->model)) text_append_file(text, size, "t5", o->t5);
    if (o->clean == MAR_CLEAN_OFF) text_append(text, size, " --clean off");
    if (o->heads) text_append(text, size, " --heads %s", o->heads);
    for (int k = 0; k < mar_option_count(); k++) { /* options of the handle, such as seq_len */
        const mar_param *p = mar_option_get(k);
        if (strcmp(p->group, "Model") == 0 && p->type != MAR_TYPE_FLAG && !mar_param_is_default(p, &o->machine))
            text_append(text, size, " --%s %s", p->name, mar_param_text(p, &o->machine, value, sizeof value));
    }
    for (int k = 0; k < mar_param_count(); k++) {
        const mar_param *p = mar_param_get(k);
        snprintf(name, sizeof name, "--%s ", p->name);
        if (i >= 0 && strstr(s->points[i].options, name)) continue; /* the point sets it */
        if (run_param_is_basic(p) && strcmp(p->name, "seed") != 0 && !mar_param_is_default(p, &o->params))
            text_append(text, size, " --%s %s", p->name, mar_param_text(p, &o->params, value, sizeof value));
    }
    if (i >= 0) text_append(text, size, " %s", s->points[i].options);
    return text;
}

/* Adds the settings, each a text, in which the file must agree with the search that replaces it. */
static void add_settings(const search *s, cJSON *o)
{
    const fidelity *f = s->f;
    char text[32];
    cJSON_AddStringToObject(o, "model", tool_base_name(s->f->runs[0].options.model));
    cJSON_AddStringToObject(o, "draft", s->f->search_draft ? tool_base_name(s->f->search_draft) : "");
    cJSON_AddStringToObject(o, "reference", s->f->runs[0].name);
    cJSON_AddStringToObject(o, "backend", f->runs[0].backend);
    const struct {
        const char *name;
        int value;
    } numbers[] = {{"num", f->num}, {"screen", f->screen}, {"batch", f->batch}};
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%d", numbers[i].value);
        cJSON_AddStringToObject(o, numbers[i].name, text);
    }
    snprintf(text, sizeof text, "%" PRIu64, f->shared.params.seed);
    cJSON_AddStringToObject(o, "seed", text);
    cJSON_AddStringToObject(o, "class", f->class_list ? f->class_list : "");
    snprintf(text, sizeof text, "%016" PRIx64, s->reference_sum); /* differs with model, seed and arithmetic */
    cJSON_AddStringToObject(o, "reference_tokens", text);
    cJSON_AddStringToObject(o, "run", s->run);
}

static void add_figures(cJSON *points, const search_point *p, const search_figures *m)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "options", p->options);
    cJSON_AddNumberToObject(o, "images", m->images);
    cJSON_AddNumberToObject(o, "seconds_per_image", m->seconds);
    cJSON_AddNumberToObject(o, "speed", m->speed);
    cJSON_AddNumberToObject(o, "speed_low", m->speed_low);
    cJSON_AddNumberToObject(o, "speed_high", m->speed_high);
    cJSON_AddNumberToObject(o, "distance", m->distance);
    cJSON_AddNumberToObject(o, "token_distance", m->token_distance);
    cJSON_AddNumberToObject(o, "p", m->p);
    if (m->recognised >= 0) cJSON_AddNumberToObject(o, "classifier_accuracy", m->recognised);
    cJSON_AddStringToObject(o, "guarantee", m->guarantee);
    cJSON_AddBoolToObject(o, "front", m == &p->final && p->front);
    tool_json_append(points, o);
}

static void add_points(const search *s, cJSON *points)
{
    for (int i = 0; i < s->point_count; i++) {
        const search_point *p = &s->points[i];
        if (p->refused[0]) {
            cJSON *o = cJSON_CreateObject();
            cJSON_AddStringToObject(o, "options", p->options);
            cJSON_AddStringToObject(o, "refused", p->refused);
            tool_json_append(points, o);
        }
        if (p->screened.images && p->screened.images != s->f->num) add_figures(points, p, &p->screened);
        if (p->final.images) add_figures(points, p, &p->final);
    }
}

static void add_levels(const search *s, cJSON *levels)
{
    char text[4096];
    for (int level = 1; level <= SEARCH_LEVELS; level++) {
        const int chosen = s->chosen[level - 1];
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "level", level);
        cJSON_AddNumberToObject(o, "distance_at_most", search_reach(level) * s->floor.image);
        cJSON_AddStringToObject(o, "options", chosen < 0 ? "" : s->points[chosen].options);
        cJSON_AddStringToObject(o, "command", write_command(s, chosen, text, sizeof text));
        tool_json_append(levels, o);
    }
}

static cJSON *search_record(const search *s)
{
    cJSON *record = tool_json();
    cJSON_AddStringToObject(record, "version", mar_version());
    add_settings(s, cJSON_AddObjectToObject(record, "search"));
    cJSON_AddNumberToObject(record, "reference_seconds_per_image", s->reference_seconds);
    cJSON *floor = cJSON_AddObjectToObject(record, "floor");
    cJSON_AddNumberToObject(floor, "image_95", s->floor.image);
    cJSON_AddNumberToObject(floor, "token_95", s->floor.token);
    cJSON_AddNumberToObject(floor, "screen_image_95", s->coarse.image);
    cJSON_AddNumberToObject(floor, "screen_token_95", s->coarse.token);
    add_points(s, cJSON_AddArrayToObject(record, "points"));
    add_levels(s, cJSON_AddArrayToObject(record, "levels"));
    return record;
}

int search_write(const search *s)
{
    return json_file_write(search_record(s), s->json);
}

int search_print_json(const search *s)
{
    return tool_print_json(search_record(s), 1);
}

/* --- the JSON file that is replaced ------------------------------------------------------------------------------- */

static const char expected[] = "what mar fidelity --search wrote";

/* Returns 0, or 1 after printing the setting that differs. */
static int check_settings(const search *s, const cJSON *found)
{
    char text[2][512];
    int failed = 0;
    cJSON *own = tool_json();
    const cJSON *item;
    add_settings(s, own);
    cJSON_ArrayForEach(item, own)
    {
        const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(found, item->string));
        if (failed || (value && strcmp(value, item->valuestring) == 0)) continue;
        failed =
            tool_error("%s: a search of other settings is in it, %s %s, expected %s; another --out begins a new one",
                       s->json, item->string, value ? printable(value, text[0], sizeof text[0]) : "is missing",
                       printable(item->valuestring, text[1], sizeof text[1]));
    }
    cJSON_Delete(own);
    return failed;
}

int search_check(const search *s)
{
    cJSON *record;
    if (access(s->json, F_OK) != 0) return 0;
    if (json_file_read(s->json, expected, &record) != 0) return 1;
    const cJSON *settings = cJSON_GetObjectItemCaseSensitive(record, "search");
    const int failed = cJSON_IsObject(settings)
                           ? check_settings(s, settings)
                           : tool_error("%s: has no settings of a search, expected %s", s->json, expected);
    cJSON_Delete(record);
    return failed;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static const char *reach_in_words(int level)
{
    return level == 1   ? "as near as another seed"
           : level == 2 ? "at most twice as far as another seed"
                        : "at most four times as far as another seed";
}

/* Lists the *n final points, the fastest first. The caller frees the list. Returns NULL without memory. */
static int *sorted(const search *s, int *n)
{
    int *list = malloc(((size_t)s->point_count + 1) * sizeof *list);
    *n = 0;
    for (int i = 0; i < s->point_count && list; i++) {
        const search_figures *m = &s->points[i].final;
        if (!m->images) continue;
        int at = (*n)++;
        for (; at > 0 && s->points[list[at - 1]].final.speed < m->speed; at--) list[at] = list[at - 1];
        list[at] = i;
    }
    return list;
}

void search_print(const search *s)
{
    char text[4096], path[8192];
    double lowest = 0;
    int n;
    int *list = sorted(s, &n);
    if (!list) return;
    printf("\n%s on %s\n", printable(s->f->runs[0].options.model, path, sizeof path), s->f->runs[0].backend);
    printf("%d images of each, another seed makes %.4f (95 %%); the reference is %s\n\n", s->f->num, s->floor.image,
           s->f->runs[0].name);
    printf("%10s %10s %10s %8s\n", "speed", "distance", "token", "p");
    for (int i = 0; i < n; i++) {
        const search_point *p = &s->points[list[i]];
        printf("%9.2fx %10.4f %10.5f %8.3f %s %s\n", p->final.speed, p->final.distance, p->final.token_distance,
               p->final.p, p->front ? "*" : " ", p->options);
        lowest = fmin(lowest, fmin(p->final.distance, p->final.token_distance));
    }
    printf("* no other point is as near and as fast\n");
    report_explain_negative(lowest);
    putchar('\n');
    for (int level = 1; level <= SEARCH_LEVELS; level++) {
        const int chosen = s->chosen[level - 1];
        printf("level %d, %s: ", level, reach_in_words(level));
        if (chosen < 0)
            printf("nothing found but the reference\n");
        else
            printf("%.2f times as fast\n  %s\n", s->points[chosen].final.speed,
                   write_command(s, chosen, text, sizeof text));
    }
    printf("wrote %s and %s\n", printable(s->f->out, path, sizeof path), tool_base_name(s->json));
    free(list);
}

/* --- the page ----------------------------------------------------------------------------------------------------- */

/* Adds an accelerator that is no axis of this search, and why. */
static void add_left_out(cJSON *list, const char *accelerator, const char *why)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "options", accelerator);
    cJSON_AddStringToObject(o, "why", why);
    tool_json_append(list, o);
}

static void add_accelerators_left_out(cJSON *list, const search *s)
{
    const run_options *o = &s->f->runs[0].options;
    int has_int8 = 0;
    for (int k = 0; k < s->axis_count; k++) has_int8 |= strcmp(s->axes[k].choices[1], "--dtype int8") == 0;
    if (!has_int8)
        add_left_out(list, "--dtype int8",
                     run_was_given(o, "dtype")            ? "the command line gives --dtype"
                     : o->machine.dtype != MAR_DTYPE_AUTO ? "the model runs in the type of its weights"
                                                          : "this machine has no arithmetic for it");
    if (!s->f->search_draft) add_left_out(list, "--spec with a draft model", "no draft was given (--draft FILE)");
    if (!s->f->vocabulary && o->used.cfg == 1) add_left_out(list, "--cfg_interval", "there is no guidance (--cfg 1)");
}

static void add_points_left_out(cJSON *list, const search *s)
{
    char why[SEARCH_TEXT + 64];
    for (int i = 0; i < s->point_count; i++)
        if (*search_why_untried(s, i, why, sizeof why)) add_left_out(list, s->points[i].options, why);
}

int search_write_page(const search *s)
{
    cJSON *record = search_record(s), *extras = page_add_extras(record, "search");
    int known = 0;
    for (int i = 0; i < s->point_count; i++) known += s->points[i].screened.images > 0 || s->points[i].refused[0];
    cJSON_AddNumberToObject(extras, "images", s->f->num);
    cJSON_AddNumberToObject(extras, "screen", s->f->screen);
    cJSON_AddNumberToObject(extras, "classes", s->f->class_count);
    cJSON_AddNumberToObject(extras, "batch", s->f->batch);
    cJSON_AddNumberToObject(extras, "points", s->point_count);
    cJSON_AddNumberToObject(extras, "screened", known);
    cJSON_AddNumberToObject(extras, "budget", s->f->points);
    cJSON *axes = cJSON_AddArrayToObject(extras, "axes");
    for (int k = 0; k < s->axis_count; k++) {
        cJSON *axis = cJSON_CreateArray();
        for (int c = 1; c < s->axes[k].count; c++) tool_json_append(axis, cJSON_CreateString(s->axes[k].choices[c]));
        tool_json_append(axes, axis);
    }
    cJSON *left_out = cJSON_AddArrayToObject(extras, "left_out");
    add_accelerators_left_out(left_out, s);
    add_points_left_out(left_out, s);
    return page_write(record, s->f->out);
}
