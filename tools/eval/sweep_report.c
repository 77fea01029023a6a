#include "tools/eval/sweep_report.h"

#include "tools/cli/command.h"
#include "tools/cli/json_file.h"
#include "tools/page/markup.h"
#include "tools/page/page.h"
#include "tools/page/plot.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the front, and orders ---------------------------------------------------------------------------------------- */

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

/* By distance; what has none comes last; then by name, so that the order is always the same. */
static int by_distance(const void *a, const void *b)
{
    const sweep_entry *x = *(const sweep_entry *const *)a, *y = *(const sweep_entry *const *)b;
    const double of_x = distance_of(x), of_y = distance_of(y);
    if (isnan(of_x) != isnan(of_y)) return isnan(of_x) ? 1 : -1;
    if (of_x < of_y || of_x > of_y) return of_x < of_y ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_seconds(const void *a, const void *b)
{
    const double of_x = seconds_of(*(const sweep_entry *const *)a), of_y = seconds_of(*(const sweep_entry *const *)b);
    return of_x < of_y ? -1 : of_x > of_y ? 1 : by_distance(a, b);
}

/* The points that are there, to a list of *n that the caller frees. NULL if memory ran out. */
static const sweep_entry **sorted(const sweep_table *t, int (*order)(const void *, const void *), int *n)
{
    const sweep_entry **list = malloc(((size_t)t->count + 1) * sizeof *list);
    *n = 0;
    for (int i = 0; i < t->count && list; i++)
        if (t->entries[i].result) list[(*n)++] = &t->entries[i];
    if (list) qsort(list, (size_t)*n, sizeof *list, order);
    return list;
}

/* Whether an earlier entry has the same settings, seed included: two spellings of one point. */
static int is_again(const sweep_table *t, int i)
{
    for (int j = 0; j < i; j++)
        if (t->entries[j].settings == t->entries[i].settings) return 1;
    return 0;
}

/* What points of one group say of chance. */
typedef struct {
    int n;                                  /* different seeds */
    double least, largest, mean, deviation; /* of the distance; deviation with n - 1 */
} noise;

static noise noise_of(const sweep_table *t, uint64_t group)
{
    noise s = {0, INFINITY, -INFINITY, 0, 0};
    for (int i = 0; i < t->count; i++) {
        const double d = distance_of(&t->entries[i]);
        if (t->entries[i].group != group || !isfinite(d) || is_again(t, i)) continue;
        s.n++, s.mean += d, s.least = fmin(s.least, d), s.largest = fmax(s.largest, d);
    }
    if (s.n > 0) s.mean /= s.n;
    for (int i = 0; i < t->count; i++) {
        const double d = distance_of(&t->entries[i]);
        if (t->entries[i].group == group && isfinite(d) && !is_again(t, i)) s.deviation += (d - s.mean) * (d - s.mean);
    }
    if (s.n > 1) s.deviation = sqrt(s.deviation / (s.n - 1));
    return s;
}

/* Whether entry i is the first of its group that has a distance. */
static int is_first_of_group(const sweep_table *t, int i)
{
    if (!isfinite(distance_of(&t->entries[i]))) return 0;
    for (int j = 0; j < i; j++)
        if (t->entries[j].group == t->entries[i].group && isfinite(distance_of(&t->entries[j]))) return 0;
    return 1;
}

/* --- columns ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const char *title, *short_title; /* of the page, and of the printed table */
    double (*value)(const eval_result *r);
    int digits;
} column;

static double column_fid(const eval_result *r)
{
    return r->fid;
}

static double column_sfid(const eval_result *r)
{
    return r->sfid;
}

static double column_is(const eval_result *r)
{
    return r->is_mean;
}

static double column_is_deviation(const eval_result *r)
{
    return isfinite(r->is_mean) ? r->is_deviation : NAN;
}

static double column_precision(const eval_result *r)
{
    return r->precision;
}

static double column_recall(const eval_result *r)
{
    return r->recall;
}

static double column_accuracy(const eval_result *r)
{
    return 100 * r->accuracy;
}

static double column_seconds(const eval_result *r)
{
    return r->generate_s > 0 ? eval_result_seconds(r) : NAN;
}

static double column_accepted(const eval_result *r)
{
    return r->stats.drafted > 0 ? 100.0 * (double)r->stats.accepted / (double)r->stats.drafted : NAN;
}

static double column_proposals(const eval_result *r)
{
    return r->stats.proposals > 0 ? 100.0 * (double)r->stats.proposals_accepted / (double)r->stats.proposals : NAN;
}

static const column columns[] = {
    {"distance", "distance", column_fid, 3},
    {"s per image", "s/image", column_seconds, 4},
    {"sFID", "sFID", column_sfid, 3},
    {"Inception score", "IS", column_is, 2},
    {"± of its splits", "±", column_is_deviation, 2},
    {"precision", "precision", column_precision, 4},
    {"recall", "recall", column_recall, 4},
    {"digits recognised, %", "digits %", column_accuracy, 1},
    {"drafts accepted, %", "drafts %", column_accepted, 1},
    {"accepted in the head, %", "head %", column_proposals, 1},
};

enum { COLUMNS = sizeof columns / sizeof columns[0] };

/* Which columns any of the points has a number for. */
static void used_columns(const sweep_entry *const *list, int n, uint8_t used[COLUMNS])
{
    for (int c = 0; c < COLUMNS; c++) {
        used[c] = 0;
        for (int i = 0; i < n; i++) used[c] |= isfinite(columns[c].value(list[i]->result)) != 0;
    }
}

static const char *title_of(const sweep_entry *const *list, int n, int c, int is_short)
{
    if (c == 0 && n > 0) return eval_result_distance(list[0]->result);
    return is_short ? columns[c].short_title : columns[c].title;
}

static const char *options_or_none(const sweep_entry *e)
{
    return *e->options ? e->options : "no options";
}

/* --- printed ------------------------------------------------------------------------------------------------------ */

/* Characters of UTF-8. */
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
    const sweep_entry **list = sorted(t, by_distance, &n);
    if (!list) return;
    used_columns(list, n, used);
    for (int c = 0; c < COLUMNS; c++) {
        const char *title = title_of(list, n, c, 1);
        if (used[c] && c == 0)
            printf("%*s%s", 16 - letters_of(title) > 0 ? 16 - letters_of(title) : 0, "", title);
        else if (used[c])
            printf("%*s%s", WIDTH - letters_of(title), "", title);
    }
    puts("     options");
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < COLUMNS; c++) {
            const double v = columns[c].value(list[i]->result);
            const int width = c == 0 ? 16 : WIDTH;
            if (!used[c]) continue;
            if (isfinite(v))
                printf("%*.*f", width, columns[c].digits, v);
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

static const char style[] = "svg{max-width:100%;min-width:38rem;height:auto}.front td{background:#eef3f1}"
                            ".front polyline,polyline.front{fill:none;stroke:" MARKUP_SAME ";stroke-width:2}"
                            "a{color:#0072b2}.protocol{font:.8rem/1.5 ui-monospace,monospace;overflow-wrap:anywhere}";

/* Points of one group have one colour; groups take them in turn. */
static int colour_of(const sweep_table *t, uint64_t group)
{
    int number = 0;
    for (int i = 0; i < t->count; i++) {
        if (t->entries[i].group == group) break;
        int first = 1;
        for (int j = 0; j < i && first; j++) first = t->entries[j].group != t->entries[i].group;
        number += first;
    }
    return number;
}

static plot_frame frame_of(const sweep_entry *const *list, int n)
{
    enum { LOG_FROM = 4 }; /* the slowest takes this many times as long as the fastest */
    plot_frame f = {760, 420, 0, 0, INFINITY, -INFINITY, 0};
    double fastest = INFINITY;
    for (int i = 0; i < n; i++) {
        if (!isfinite(distance_of(list[i])) || !isfinite(seconds_of(list[i]))) continue;
        f.x_high = fmax(f.x_high, seconds_of(list[i]));
        fastest = fmin(fastest, seconds_of(list[i]));
        f.y_low = fmin(f.y_low, distance_of(list[i]));
        f.y_high = fmax(f.y_high, distance_of(list[i]));
    }
    const double span = f.y_high - f.y_low, margin = span > 0 ? 0.1 * span : 0.1 * fabs(f.y_high) + 1e-6;
    f.y_low = f.y_low >= 0 && f.y_low < 0.5 * f.y_high ? 0 : f.y_low - margin;
    f.y_high += margin;
    f.x_log = fastest > 0 && f.x_high > LOG_FROM * fastest;
    if (f.x_log) f.x_low = fastest / 1.15;
    f.x_high *= f.x_log ? 1.15 : 1.08;
    return f;
}

/* Seconds that a group's points span. */
static void span_of(const sweep_table *t, uint64_t group, double *low, double *high)
{
    *low = INFINITY, *high = -INFINITY;
    for (int i = 0; i < t->count; i++) {
        const sweep_entry *e = &t->entries[i];
        if (e->group != group || !isfinite(distance_of(e))) continue;
        *low = fmin(*low, seconds_of(e)), *high = fmax(*high, seconds_of(e));
    }
}

/* What several seeds span: over all of the plot, so that other points can be compared with it; of many groups only
 * where their points are. */
static void write_noise(FILE *out, const sweep_table *t, const plot_frame *f)
{
    enum { BANDS_MAX = 2, BESIDE = 14 };
    int groups = 0;
    for (int i = 0; i < t->count; i++) groups += is_first_of_group(t, i) && noise_of(t, t->entries[i].group).n > 1;
    for (int i = 0; i < t->count; i++) {
        const sweep_entry *e = &t->entries[i];
        const noise s = noise_of(t, e->group);
        if (!is_first_of_group(t, i) || s.n < 2) continue;
        const double top = plot_y(f, s.largest), bottom = plot_y(f, s.least);
        double left, right;
        span_of(t, e->group, &left, &right);
        left = groups > BANDS_MAX ? fmax(plot_x(f, left) - BESIDE, PLOT_LEFT) : PLOT_LEFT;
        right = groups > BANDS_MAX ? plot_x(f, right) + BESIDE : f->width - PLOT_RIGHT;
        fprintf(out,
                "<rect x=%.1f y=%.1f width=%.1f height=%.1f fill=\"%s\" opacity=.12><title>%d seeds of the same point: "
                "%.3f to %.3f</title></rect>",
                left, top, right - left, fmax(bottom - top, 1), markup_colour(colour_of(t, e->group)), s.n, s.least,
                s.largest);
    }
}

/* From the fastest point of the front to the best one: what lies right of the stairs and above is beaten. */
static void write_stairs(FILE *out, const sweep_entry *const *by_time, int n, const plot_frame *f)
{
    double before = NAN;
    fputs("<polyline class=front points=\"", out);
    for (int i = 0; i < n; i++) {
        const sweep_entry *e = by_time[i];
        if (!e->front) continue;
        const double x = plot_x(f, seconds_of(e)), y = plot_y(f, distance_of(e));
        fprintf(out, "%.1f,%.1f %.1f,%.1f ", x, isnan(before) ? PLOT_TOP : before, x, y);
        before = y;
    }
    if (!isnan(before)) fprintf(out, "%d,%.1f", f->width - PLOT_RIGHT, before);
    fputs("\"/>", out);
}

/* The points of the list that have a distance, with their numbers beside them. taken [2 n]. */
static void write_points(FILE *out, const sweep_table *t, const sweep_entry *const *list, int n, const plot_frame *f,
                         double (*taken)[2])
{
    for (int i = 0; i < n; i++) {
        taken[i][0] = plot_x(f, seconds_of(list[i]));
        taken[i][1] = isfinite(distance_of(list[i])) ? plot_y(f, distance_of(list[i])) : -1000;
    }
    for (int i = 0, count = n; i < n; i++) {
        double place[2];
        if (!isfinite(distance_of(list[i]))) continue;
        const char *colour = markup_colour(colour_of(t, list[i]->group));
        plot_place(f, (const double(*)[2])taken, count, i, place);
        fprintf(out, "<a href=\"%s/report.html\"><circle cx=%.1f cy=%.1f r=%d fill=\"%s\" stroke=\"#fff\"><title>",
                list[i]->name, taken[i][0], taken[i][1], list[i]->front ? 7 : 5, colour);
        markup_escape(out, options_or_none(list[i]));
        fprintf(out, "</title></circle></a><text x=%.1f y=%.1f text-anchor=middle style=\"fill:%s\">%d</text>",
                place[0], place[1], colour, i + 1);
        taken[count][0] = place[0];
        taken[count++][1] = place[1] - 4;
    }
}

/* Returns 0, or 1 if memory ran out. */
static int write_plot(FILE *out, const sweep_table *t, const sweep_entry *const *list, int n)
{
    int drawn = 0, of_time;
    for (int i = 0; i < n; i++) drawn += isfinite(distance_of(list[i])) && seconds_of(list[i]) > 0;
    if (drawn == 0) return 0;
    const plot_frame f = frame_of(list, n);
    const sweep_entry **by_time = sorted(t, by_seconds, &of_time);
    double(*taken)[2] = calloc(2 * (size_t)n, sizeof *taken);
    const int lacks = !by_time || !taken;
    if (!lacks) {
        fputs(
            "<p>Left and low is better. The line is the front: what lies above or right of it is beaten by a point on "
            "it. Shaded: what several seeds of the same point span. Numbers are those of the table.</p>\n",
            out);
        fprintf(out, "<div class=wide><svg width=%d height=%d viewBox=\"0 0 %d %d\" role=img>", f.width, f.height,
                f.width, f.height);
        write_noise(out, t, &f);
        plot_axes(out, &f, f.x_log ? "seconds per image, logarithmic" : "seconds per image",
                  eval_result_distance(list[0]->result));
        write_stairs(out, by_time, of_time, &f);
        write_points(out, t, list, n, &f, taken);
        fputs("</svg></div>\n", out);
    }
    free(by_time);
    free(taken);
    return lacks;
}

static void write_rows(FILE *out, const sweep_table *t, const sweep_entry *const *list, int n)
{
    uint8_t used[COLUMNS];
    used_columns(list, n, used);
    fputs("<div class=wide><table><tr><th>point", out);
    for (int c = 0; c < COLUMNS; c++)
        if (used[c]) fprintf(out, "<th>%s", title_of(list, n, c, 0));
    fputc('\n', out);
    for (int i = 0; i < n; i++) {
        fprintf(out, "<tr%s><td><span class=dot style=\"background:%s\"></span>%d: <a href=\"%s/report.html\">",
                list[i]->front ? " class=front" : "", markup_colour(colour_of(t, list[i]->group)), i + 1,
                list[i]->name);
        page_options(out, options_or_none(list[i]));
        fputs("</a>", out);
        for (int c = 0; c < COLUMNS; c++) {
            const double v = columns[c].value(list[i]->result);
            if (used[c] && isfinite(v))
                fprintf(out, "<td>%.*f", columns[c].digits, v);
            else if (used[c])
                fputs("<td>–", out);
        }
        fputc('\n', out);
    }
    fputs("</table></div>\n", out);
}

static void write_chance(FILE *out, const sweep_table *t)
{
    int any = 0;
    for (int i = 0; i < t->count; i++) {
        const noise s = noise_of(t, t->entries[i].group);
        if (!is_first_of_group(t, i) || s.n < 2) continue;
        if (!any++)
            fputs("<h2>Chance</h2>\n<p>Points that differ in nothing but the seed. A difference that is smaller says "
                  "little.</p>\n<div class=wide><table><tr><th>point<th>seeds<th>mean<th>standard deviation<th>least"
                  "<th>largest\n",
                  out);
        fputs("<tr><td>", out);
        page_options(out, options_or_none(&t->entries[i]));
        fprintf(out, "<td>%d<td>%.3f<td>%.3f<td>%.3f<td>%.3f\n", s.n, s.mean, s.deviation, s.least, s.largest);
    }
    if (any) fputs("</table></div>\n", out);
}

static void write_protocol(FILE *out, const sweep_entry *const *list, int n)
{
    if (n < 1) return;
    const eval_result *r = list[0]->result;
    fputs("<h2>Protocol</h2>\n<p>Of the first point; the others differ by their options.</p>\n<p class=protocol>", out);
    markup_escape(out, r->protocol);
    fputs("</p>\n", out);
    for (int i = 0; i < r->warning_count; i++) {
        fputs("<div class=\"card close\">", out);
        markup_escape(out, r->warnings[i]);
        fputs("</div>\n", out);
    }
}

int sweep_write_html(const sweep_table *t, const char *path)
{
    text_buffer text;
    int n;
    const sweep_entry **list = sorted(t, by_distance, &n);
    FILE *out = list ? page_open(&text, "Sweep", style, path) : NULL;
    if (!out) {
        if (!list) tool_error("%s: out of memory for the page", path);
        free(list);
        return 1;
    }
    fputs("<h1>Sweep: ", out);
    markup_escape(out, tool_base_name(t->file));
    fprintf(out, "</h1>\n<p class=sub>%d of %d points", n, t->count);
    if (n > 0) {
        fprintf(out, ", %ld images each, ", list[0]->result->images);
        markup_escape(out, list[0]->result->model);
        fputs(" on ", out);
        markup_escape(out, list[0]->result->backend);
    }
    fputs(".</p>\n", out);
    const int lacks = write_plot(out, t, list, n);
    if (n > 0) write_rows(out, t, list, n);
    write_chance(out, t);
    write_protocol(out, list, n);
    free(list);
    return page_close(out, &text, lacks, path);
}
