/* Reports of a search: a page with the front and a command line for each level, and a table. */
#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/fidelity/search.h"
#include "tools/page/page.h"
#include "base/printable.h"
#include "tools/cli/text.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- text --------------------------------------------------------------------------------------------------------- */

/* Appends an option with a file's name, quoted for a shell. */
static void add_file(char *text, size_t size, const char *name, const char *path)
{
    const char *quote = strpbrk(path, " \t'\"\\$`*?&;|<>()#~") ? "'" : "";
    text_append(text, size, " --%s %s%s%s", name, quote, path, quote);
}

const char *search_command(const search *s, int i, char *text, size_t size)
{
    const run_options *o = &s->base;
    char value[512], name[80];
    *text = '\0';
    text_append(text, size, "mar generate");
    add_file(text, size, "model", o->model);
    if (s->f->vae) add_file(text, size, "vae", s->f->vae);
    if (o->captions) add_file(text, size, "captions", o->captions);
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

/* --- table -------------------------------------------------------------------------------------------------------- */

void search_print(const search *s)
{
    char text[4096], path[8192];
    int n;
    int *list = sorted(s, &n);
    if (!list) return;
    printf("\n%s on %s\n", printable(s->base.model, path, sizeof path), s->f->backend);
    printf("%d images of each, another seed makes %.4f (95 %%); the reference is %s\n\n", s->f->num, s->floor.image,
           s->reference);
    printf("%10s %10s %10s %8s\n", "speed", "distance", "token", "p");
    for (int i = 0; i < n; i++) {
        const search_point *p = &s->points[list[i]];
        printf("%9.2fx %10.4f %10.5f %8.3f %s %s\n", p->final.speed, p->final.distance, p->final.token_distance,
               p->final.p, p->front ? "*" : " ", p->options);
    }
    printf("* no other point is as near and as fast\n\n");
    for (int level = 1; level <= SEARCH_LEVELS; level++) {
        const int chosen = s->chosen[level - 1];
        printf("level %d, %s: ", level, reach_in_words(level));
        if (chosen < 0)
            printf("nothing found but the reference\n");
        else
            printf("%.2f times as fast\n  %s\n", s->points[chosen].final.speed,
                   search_command(s, chosen, text, sizeof text));
    }
    printf("wrote %s and %s\n", printable(s->page, path, sizeof path), tool_base_name(s->json));
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
    const mar_params *used = &s->f->runs[0].options.used;
    int has_int8 = 0;
    for (int k = 0; k < s->axis_count; k++) has_int8 |= strcmp(s->axes[k].choices[1], "--dtype int8") == 0;
    if (!has_int8)
        add_left_out(list, "--dtype int8",
                     run_was_given(&s->base, "dtype") ? "the command line gives --dtype"
                                                      : "this machine has no arithmetic for it");
    if (!s->draft) add_left_out(list, "--spec with a draft model", "no draft was given (--draft FILE)");
    if (!s->f->vocabulary && used->cfg == 1) add_left_out(list, "--cfg_interval", "there is no guidance (--cfg 1)");
}

static void add_points_left_out(cJSON *list, const search *s)
{
    char why[SEARCH_TEXT + 64];
    for (int i = 0; i < s->point_count; i++)
        if (*search_why_untried(s, i, why, sizeof why)) add_left_out(list, s->points[i].options, why);
}

int search_write_page(const search *s, cJSON *record)
{
    cJSON *extras = page_add_extras(record, "search");
    int known = 0;
    for (int i = 0; i < s->point_count; i++) known += s->points[i].screened.images > 0 || s->points[i].refused[0];
    cJSON_AddNumberToObject(extras, "images", s->f->num);
    cJSON_AddNumberToObject(extras, "screen", s->screen);
    cJSON_AddNumberToObject(extras, "classes", s->f->class_count);
    cJSON_AddNumberToObject(extras, "batch", s->f->batch);
    cJSON_AddNumberToObject(extras, "points", s->point_count);
    cJSON_AddNumberToObject(extras, "screened", known);
    cJSON_AddNumberToObject(extras, "budget", s->budget);
    cJSON *axes = cJSON_AddArrayToObject(extras, "axes");
    for (int k = 0; k < s->axis_count; k++) {
        cJSON *axis = cJSON_CreateArray();
        for (int c = 1; c < s->axes[k].count; c++) tool_json_append(axis, cJSON_CreateString(s->axes[k].choices[c]));
        tool_json_append(axes, axis);
    }
    cJSON *left_out = cJSON_AddArrayToObject(extras, "left_out");
    add_accelerators_left_out(left_out, s);
    add_points_left_out(left_out, s);
    return page_write(record, s->page);
}
