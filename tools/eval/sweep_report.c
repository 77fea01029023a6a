#include "tools/eval/sweep_report.h"

#include "mar_measure.h"

#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/page/page.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- front and order ---------------------------------------------------------------------------------------------- */

void sweep_front(const double *distance, const double *seconds, int n, uint8_t *front)
{
    for (int i = 0; i < n; i++) {
        front[i] = isfinite(distance[i]) && isfinite(seconds[i]);
        for (int j = 0; j < n && front[i]; j++)
            if (distance[j] <= distance[i] && seconds[j] <= seconds[i] &&
                (distance[j] < distance[i] || seconds[j] < seconds[i]))
                front[i] = 0;
    }
}

static double seconds_of(const sweep_entry *e)
{
    return e->result ? eval_result_seconds(e->result) : NAN;
}

static double distance_of(const sweep_entry *e)
{
    return e->result ? e->result->fid : NAN;
}

int sweep_mark_front(sweep_table *t)
{
    const size_t n = (size_t)t->count;
    double *numbers = calloc(2 * n + 1, sizeof *numbers);
    uint8_t *front = calloc(n + 1, 1);
    const int lacks = !numbers || !front;
    for (size_t i = 0; i < n && !lacks; i++) {
        numbers[i] = distance_of(&t->entries[i]);
        numbers[n + i] = seconds_of(&t->entries[i]);
    }
    if (!lacks) sweep_front(numbers, numbers + n, t->count, front);
    for (size_t i = 0; i < n && !lacks; i++) t->entries[i].front = front[i];
    free(numbers);
    free(front);
    return lacks ? tool_error("out of memory for the table of %d points", t->count) : 0;
}

/* Compares by distance, missing ones last, then by name, so that the order is unique. */
static int by_distance(const void *a, const void *b)
{
    const sweep_entry *x = *(const sweep_entry *const *)a, *y = *(const sweep_entry *const *)b;
    const double of_x = distance_of(x), of_y = distance_of(y);
    if (isnan(of_x) != isnan(of_y)) return isnan(of_x) ? 1 : -1;
    if (of_x < of_y || of_x > of_y) return of_x < of_y ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Lists the *n finished points by distance. The caller frees the list. Returns NULL without memory. */
static const sweep_entry **sorted(const sweep_table *t, int *n)
{
    const sweep_entry **list = malloc(((size_t)t->count + 1) * sizeof *list);
    *n = 0;
    for (int i = 0; i < t->count && list; i++)
        if (t->entries[i].result) list[(*n)++] = &t->entries[i];
    if (list) qsort(list, (size_t)*n, sizeof *list, by_distance);
    return list;
}

/* Returns whether an earlier entry has the same settings and seed: two spellings of one point. */
static int is_duplicate(const sweep_table *t, int i)
{
    for (int j = 0; j < i; j++)
        if (t->entries[j].settings == t->entries[i].settings) return 1;
    return 0;
}

/* The distances of one group's points. The points differ by seed. */
typedef struct {
    int n;                                  /* different seeds */
    double least, largest, mean, deviation; /* deviation with n - 1 */
} noise;

static noise noise_of(const sweep_table *t, uint64_t group)
{
    noise s = {0, INFINITY, -INFINITY, 0, 0};
    for (int i = 0; i < t->count; i++) {
        const double d = distance_of(&t->entries[i]);
        if (t->entries[i].group != group || !isfinite(d) || is_duplicate(t, i)) continue;
        s.n++, s.mean += d, s.least = fmin(s.least, d), s.largest = fmax(s.largest, d);
    }
    if (s.n > 0) s.mean /= s.n;
    for (int i = 0; i < t->count; i++) {
        const double d = distance_of(&t->entries[i]);
        if (t->entries[i].group == group && isfinite(d) && !is_duplicate(t, i))
            s.deviation += (d - s.mean) * (d - s.mean);
    }
    if (s.n > 1) s.deviation = sqrt(s.deviation / (s.n - 1));
    return s;
}

/* Returns whether entry i is the first of its group with a distance. */
static int is_first_of_group(const sweep_table *t, int i)
{
    if (!isfinite(distance_of(&t->entries[i]))) return 0;
    for (int j = 0; j < i; j++)
        if (t->entries[j].group == t->entries[i].group && isfinite(distance_of(&t->entries[j]))) return 0;
    return 1;
}

/* --- columns ------------------------------------------------------------------------------------------------------ */

enum { COLUMNS = 13 };

static const struct {
    const char *title;
    int digits;
} columns[COLUMNS] = {{"distance", 3},  {"s/image", 4},  {"sFID", 3},  {"IS", 2},  {"±", 2},
                      {"precision", 4}, {"recall", 4},   {"CLIP", 3},  {"HPS", 3}, {"ImageReward", 4},
                      {"digits %", 1},  {"drafts %", 1}, {"head %", 1}};

/* Writes the numbers of a point, NaN for a missing one. */
static void find_values(const sweep_entry *e, double values[COLUMNS])
{
    const eval_result *r = e->result;
    const mar_stats *s = &r->stats;
    const double all[COLUMNS] = {r->fid,
                                 r->generate_s > 0 ? eval_result_seconds(r) : NAN,
                                 r->sfid,
                                 r->is_mean,
                                 isfinite(r->is_mean) ? r->is_deviation : NAN,
                                 r->precision,
                                 r->recall,
                                 r->clip_score,
                                 r->hps_score,
                                 r->image_reward,
                                 100 * r->accuracy,
                                 s->drafted > 0 ? 100.0 * (double)s->accepted / (double)s->drafted : NAN,
                                 s->proposals > 0 ? 100.0 * (double)s->proposals_accepted / (double)s->proposals : NAN};
    memcpy(values, all, sizeof all);
}

/* Finds the columns for which any point has a number. */
static void used_columns(const sweep_entry *const *list, int n, uint8_t used[COLUMNS])
{
    double values[COLUMNS];
    memset(used, 0, COLUMNS);
    for (int i = 0; i < n; i++) {
        find_values(list[i], values);
        for (int c = 0; c < COLUMNS; c++) used[c] |= isfinite(values[c]) != 0;
    }
}

static const char *title_of(const sweep_entry *const *list, int n, int c)
{
    return c == 0 && n > 0 ? eval_result_distance(list[0]->result) : columns[c].title;
}

static const char *options_or_none(const sweep_entry *e)
{
    return *e->options ? e->options : "no options";
}

/* --- table -------------------------------------------------------------------------------------------------------- */

/* Returns the characters of UTF-8. */
static int letters_of(const char *text)
{
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

void sweep_print(const sweep_table *t)
{
    enum { WIDTH = 11 };
    int n;
    uint8_t used[COLUMNS];
    const sweep_entry **list = sorted(t, &n);
    if (!list) return;
    used_columns(list, n, used);
    for (int c = 0; c < COLUMNS; c++) {
        const char *title = title_of(list, n, c);
        if (used[c] && c == 0)
            printf("%*s%s", 16 - letters_of(title) > 0 ? 16 - letters_of(title) : 0, "", title);
        else if (used[c])
            printf("%*s%s", WIDTH - letters_of(title), "", title);
    }
    puts("     options");
    for (int i = 0; i < n; i++) {
        double values[COLUMNS];
        find_values(list[i], values);
        for (int c = 0; c < COLUMNS; c++) {
            const int width = c == 0 ? 16 : WIDTH;
            if (!used[c]) continue;
            if (isfinite(values[c]))
                printf("%*.*f", width, columns[c].digits, values[c]);
            else
                printf("%*s–", width - 1, "");
        }
        printf("  %s  %s\n", list[i]->front ? "*" : " ", options_or_none(list[i]));
    }
    if (n > 0) puts("* no other point is as good and as fast");
    for (int i = 0; i < t->count; i++) {
        const noise s = noise_of(t, t->entries[i].group);
        if (is_first_of_group(t, i) && s.n > 1)
            printf("chance: %s and %d other seed%s: %.3f ± %.3f (%.3f to %.3f)\n", options_or_none(&t->entries[i]),
                   s.n - 1, s.n > 2 ? "s" : "", s.mean, s.deviation, s.least, s.largest);
    }
    if (n < t->count) printf("%d of %d points are there\n", n, t->count);
    free(list);
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static cJSON *record_of(const sweep_table *t)
{
    cJSON *record = tool_json();
    cJSON_AddStringToObject(record, "version", mar_version());
    cJSON_AddStringToObject(record, "sweep", tool_base_name(t->file));
    cJSON *points = cJSON_AddArrayToObject(record, "points");
    for (int i = 0; i < t->count; i++) {
        const sweep_entry *e = &t->entries[i];
        char settings[17];
        cJSON *o = cJSON_CreateObject();
        snprintf(settings, sizeof settings, "%016" PRIx64, e->settings);
        cJSON_AddStringToObject(o, "name", e->name);
        cJSON_AddStringToObject(o, "options", e->options);
        cJSON_AddBoolToObject(o, "done", e->result != NULL);
        if (e->result) {
            cJSON_AddStringToObject(o, "settings", settings);
            cJSON_AddBoolToObject(o, "front", e->front);
            eval_result_add(e->result, o);
        }
        tool_json_append(points, o);
    }
    return record;
}

int sweep_write_json(const sweep_table *t, const char *path)
{
    return json_file_write(record_of(t), path);
}

int sweep_print_json(const sweep_table *t)
{
    return tool_print_json(record_of(t), 1);
}

/* --- the page ----------------------------------------------------------------------------------------------------- */

enum { THUMBNAILS = 6, PATH = 4096 };

/* Adds the first pictures of the point's page, if there is one. `path`: the sweep's page. */
static void add_thumbnails(cJSON *list, const sweep_entry *e, const char *path)
{
    static const char begin[] = "data:image/png;base64,";
    char page[PATH];
    const int n = snprintf(page, sizeof page, "%.*s%s/report.html", (int)(tool_base_name(path) - path), path, e->name);
    cJSON *record = e->result && n < PATH ? page_read(page) : NULL;
    const cJSON *sheet = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(record, "extras"), "sheet");
    for (int i = 0; i < THUMBNAILS; i++) {
        const cJSON *pictures = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(sheet, i), "pictures");
        const char *text = cJSON_GetStringValue(cJSON_GetArrayItem(pictures, 0));
        if (text && strncmp(text, begin, sizeof begin - 1) == 0) tool_json_append(list, cJSON_CreateString(text));
    }
    cJSON_Delete(record);
}

int sweep_write_html(const sweep_table *t, const char *path)
{
    cJSON *record = record_of(t), *extras = page_add_extras(record, "sweep");
    const sweep_entry *first = NULL; /* with a result */
    cJSON *points = cJSON_AddArrayToObject(extras, "points");
    for (int i = 0; i < t->count; i++) {
        const sweep_entry *e = &t->entries[i];
        char group[17];
        cJSON *o = cJSON_CreateObject();
        if (!first && e->result) first = e;
        snprintf(group, sizeof group, "%016" PRIx64, e->group);
        cJSON_AddStringToObject(o, "group", group);
        add_thumbnails(cJSON_AddArrayToObject(o, "pictures"), e, path);
        tool_json_append(points, o);
    }
    cJSON_AddStringToObject(extras, "distance", first ? eval_result_distance(first->result) : "FID");
    return page_write(record, path);
}
