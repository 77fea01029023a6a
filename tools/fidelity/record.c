/* The record of a search, one JSON object, replaced after every measured point. It is a report: a resumed search takes
 * its images and times from the run store. */
#include "tools/cli/command.h"
#include "tools/fidelity/search.h"
#include "tools/cli/json.h"
#include "base/printable.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char expected[] = "what mar fidelity --search wrote";

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Adds the settings, each a text, in which the file must agree with the search that replaces it. */
static void add_settings(const search *s, cJSON *o)
{
    const fidelity *f = s->f;
    char text[4200];
    cJSON_AddStringToObject(o, "model", tool_base_name(s->base.model));
    cJSON_AddStringToObject(o, "draft", s->draft ? tool_base_name(s->draft) : "");
    cJSON_AddStringToObject(o, "reference", s->reference);
    cJSON_AddStringToObject(o, "backend", f->backend);
    snprintf(text, sizeof text, "%d", f->num);
    cJSON_AddStringToObject(o, "num", text);
    snprintf(text, sizeof text, "%d", s->screen);
    cJSON_AddStringToObject(o, "screen", text);
    snprintf(text, sizeof text, "%d", f->batch);
    cJSON_AddStringToObject(o, "batch", text);
    snprintf(text, sizeof text, "%" PRIu64, f->seed);
    cJSON_AddStringToObject(o, "seed", text);
    snprintf(text, sizeof text, "%s", f->class_list ? f->class_list : "");
    cJSON_AddStringToObject(o, "class", text);
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
        cJSON_AddStringToObject(o, "command", search_command(s, chosen, text, sizeof text));
        tool_json_append(levels, o);
    }
}

cJSON *search_record(const search *s)
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

/* --- reading ------------------------------------------------------------------------------------------------------ */

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
