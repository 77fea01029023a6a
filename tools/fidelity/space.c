#include "tools/cli/command.h"
#include "tools/generate/fast.h"
#include "tools/fidelity/search.h"
#include "tools/eval/sweep_report.h"
#include "tools/cli/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- axes --------------------------------------------------------------------------------------------------------- */

static search_axis *add_axis(search *s)
{
    search_axis *a = &s->axes[s->axis_count++];
    a->count = 1; /* the plain alternative */
    return a;
}

/* Adds an alternative unless it is listed. */
static void add(search_axis *a, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(search_axis *a, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(a->choices[a->count], sizeof a->choices[0], format, arguments);
    va_end(arguments);
    for (int i = 0; i < a->count; i++)
        if (strcmp(a->choices[i], a->choices[a->count]) == 0) return;
    a->count++;
}

/* Adds the autoregressive steps of a MAR model. */
static void add_iterations(search *s)
{
    const int iterations = s->f->runs[0].options.used.num_iter;
    search_axis *a = add_axis(s);
    for (int part = 2; part <= 8; part *= 2)
        if (iterations / part > 0) add(a, "--num_iter %d", iterations / part);
    add(a, "--gtr");
}

/* Adds the chain of the head. */
static void add_chain(search *s, int is_mar)
{
    const int steps = s->f->runs[0].options.used.num_sampling_steps;
    search_axis *a = add_axis(s);
    add(a, "--head_spec 8");
    for (int part = 2; part <= 4; part *= 2)
        if (steps / part >= 2) add(a, "--num_sampling_steps %d", steps / part);
    if (is_mar) add(a, "--diff_annealing linear");
    for (int part = 5; part <= 10; part *= 2)
        if (steps / part >= 2) add(a, "--sampler dpmpp --num_sampling_steps %d", steps / part);
}

static void add_continuous(search *s)
{
    const int is_mar = !s->f->is_sphere;
    search_axis *a;
    if (is_mar) add_iterations(s);
    add_chain(s, is_mar);
    if (is_mar) {
        a = add_axis(s);
        add(a, "--lazy");
        add(a, "--lazy --lazy_head");
    }
    if (s->f->runs[0].options.used.cfg == 1) return;
    a = add_axis(s);
    add(a, "--cfg_interval 0.1,1");
    add(a, "--cfg_interval 0.25,1");
}

/* Adds the verifiers; all but sjd need the draft. Of the relaxed ones only those of a level of --fast are listed. */
static void add_speculation(search *s)
{
    const int is_mar = !s->f->vocabulary && !s->f->is_sphere;
    search_axis *a = add_axis(s);
    if (is_mar && s->f->search_draft) add(a, "--spec cspd");
    if (is_mar && s->f->search_draft) add(a, "--spec conditional");
    if (s->f->is_sphere) add(a, "--spec path");
    if (s->f->vocabulary) add(a, "--spec sjd");
    if (!s->f->vocabulary || !s->f->search_draft) return;
    add(a, "--spec vanilla");
    add(a, "--spec cool-sd-exp");
    add(a, "--spec lantern");
}

/* Returns whether an alternative of the last axis uses the draft model. */
static int needs_draft(const char *choice)
{
    return strncmp(choice, "--spec", 6) == 0 && strcmp(choice, "--spec sjd") != 0;
}

/* Writes the options of a point, with the draft's file if it uses it. */
static void write_options(const search *s, search_point *p)
{
    for (int k = 0; k < s->axis_count; k++) {
        const char *choice = s->axes[k].choices[p->choice[k]];
        if (!*choice) continue;
        if (needs_draft(choice)) text_append_file(p->options, sizeof p->options, "draft", s->f->search_draft);
        text_append(p->options, sizeof p->options, "%s%s", *p->options ? " " : "", choice);
    }
}

/* Returns the number of axes on which a point is not plain. */
static int axes_changed(const search_point *p)
{
    int n = 0;
    for (int k = 0; k < SEARCH_AXES; k++) n += p->choice[k] > 0;
    return n;
}

static int by_axes(const void *a, const void *b)
{
    const search_point *x = a, *y = b;
    const int of_x = axes_changed(x), of_y = axes_changed(y);
    if (of_x != of_y) return of_x - of_y;
    for (int k = 0; k < SEARCH_AXES; k++) { /* of single-axis points: the order of axes and alternatives */
        if ((x->choice[k] > 0) != (y->choice[k] > 0)) return x->choice[k] > 0 ? -1 : 1;
        if (x->choice[k] != y->choice[k]) return x->choice[k] - y->choice[k];
    }
    return 0;
}

int search_list(search *s)
{
    s->axis_count = 0;
    if (!s->f->vocabulary) add_continuous(s);
    const run_options *o = &s->f->runs[0].options; /* a converted decoder has set its dtype */
    if (!run_was_given(o, "dtype") && o->machine.dtype == MAR_DTYPE_AUTO && fast_has_int8(&o->machine))
        add(add_axis(s), "--dtype int8");
    if (s->f->search_draft || s->f->vocabulary) add_speculation(s);
    int total = 1;
    for (int k = 0; k < s->axis_count; k++) total *= s->axes[k].count;
    s->points = calloc((size_t)total, sizeof *s->points);
    if (!s->points) return tool_error("out of memory for %d points", total);
    s->point_count = total - 1;
    for (int i = 0; i < s->point_count; i++) {
        search_point *p = &s->points[i];
        for (int k = 0, rest = i + 1; k < s->axis_count; rest /= s->axes[k++].count)
            p->choice[k] = rest % s->axes[k].count;
        write_options(s, p);
    }
    qsort(s->points, (size_t)s->point_count, sizeof *s->points, by_axes);
    return 0;
}

/* --- the order ---------------------------------------------------------------------------------------------------- */

/* Returns the point with alternative `choice` of axis k alone; NULL if there is none. */
static const search_point *single(const search *s, int k, int choice)
{
    for (int i = 0; i < s->point_count; i++)
        if (s->points[i].choice[k] == choice && axes_changed(&s->points[i]) == 1) return &s->points[i];
    return NULL;
}

/* Predicts a point from its single-axis points: speeds multiply, distances add up. Returns 0 if one of them was refused
 * or is not screened. */
static int predict(const search *s, const search_point *p, double *seconds, double *distance)
{
    *seconds = 1, *distance = 0;
    for (int k = 0; k < s->axis_count; k++) {
        if (p->choice[k] == 0) continue;
        const search_point *one = single(s, k, p->choice[k]);
        if (one->refused[0] || one->screened.images == 0 || !(one->screened.speed > 0)) return 0;
        *seconds /= one->screened.speed;
        *distance += fmax(0, one->screened.distance);
    }
    return 1;
}

double search_reach(int level)
{
    return level == 1 ? 1 : level == 2 ? 4 : 16;
}

/* Returns whether a predicted distance is near enough to the last level to be worth measuring. */
static int is_promising(const search *s, double distance)
{
    return distance <= 2 * search_reach(SEARCH_LEVELS) * s->floor.image;
}

void search_rank(search *s)
{
    static double seconds[SEARCH_POINTS_MAX], distance[SEARCH_POINTS_MAX];
    static uint8_t front[SEARCH_POINTS_MAX];
    int left = 0;
    for (int i = 0; i < s->point_count; i++) {
        const int known = predict(s, &s->points[i], &seconds[i], &distance[i]) && is_promising(s, distance[i]);
        s->points[i].rank = -1;
        if (!known) seconds[i] = NAN;
        left += known;
    }
    for (int rank = 0; left > 0; rank++) {
        sweep_front(distance, seconds, s->point_count, front);
        for (int i = 0; i < s->point_count; i++) {
            if (!front[i]) continue;
            s->points[i].rank = rank;
            seconds[i] = NAN;
            left--;
        }
    }
}

static int is_done(const search_point *p)
{
    return p->refused[0] || p->screened.images > 0;
}

int search_next(const search *s)
{
    int spent = 0, best = -1;
    double best_seconds = 0;
    for (int i = 0; i < s->point_count; i++) spent += is_done(&s->points[i]);
    if (spent >= s->f->points) return -1;
    for (int i = 0; i < s->point_count && axes_changed(&s->points[i]) == 1; i++)
        if (!is_done(&s->points[i])) return i;
    for (int i = 0; i < s->point_count; i++) {
        const search_point *p = &s->points[i];
        double seconds, distance;
        if (p->rank < 0 || is_done(p) || !predict(s, p, &seconds, &distance)) continue;
        if (best >= 0 &&
            (p->rank > s->points[best].rank || (p->rank == s->points[best].rank && seconds >= best_seconds)))
            continue;
        best = i, best_seconds = seconds;
    }
    return best;
}

const char *search_why_untried(const search *s, int i, char *why, size_t size)
{
    const search_point *p = &s->points[i];
    double seconds, distance;
    why[0] = '\0';
    if (p->refused[0]) {
        snprintf(why, size, "%s", p->refused);
        return why;
    }
    if (is_done(p) || p->final.images) return why;
    for (int k = 0; k < s->axis_count; k++) {
        const search_point *one = p->choice[k] > 0 ? single(s, k, p->choice[k]) : p;
        if (one->refused[0]) {
            snprintf(why, size, "%s is not possible", one->options);
            return why;
        }
    }
    if (predict(s, p, &seconds, &distance) && !is_promising(s, distance))
        snprintf(why, size, "the distances of the parts add up to far more than the last level has");
    else
        snprintf(why, size, "the %d points of --points were spent", s->f->points);
    return why;
}

/* --- the front ---------------------------------------------------------------------------------------------------- */

/* Lists the front, sorted by time. Negative distances are chance and count as 0. */
static int sorted_front(const search *s, int final, int *list)
{
    static double seconds[SEARCH_POINTS_MAX], distance[SEARCH_POINTS_MAX];
    static uint8_t front[SEARCH_POINTS_MAX];
    int n = 0;
    for (int i = 0; i < s->point_count; i++) {
        const search_figures *m = final ? &s->points[i].final : &s->points[i].screened;
        distance[i] = fmax(0, m->distance);
        /* the reference beats slower points */
        const int counts = m->images && m->speed > 1 && (final || is_promising(s, distance[i]));
        seconds[i] = counts ? 1 / m->speed : NAN;
    }
    sweep_front(distance, seconds, s->point_count, front);
    for (int i = 0; i < s->point_count; i++) {
        if (!front[i]) continue;
        int at = n++;
        for (; at > 0 && seconds[list[at - 1]] > seconds[i]; at--) list[at] = list[at - 1];
        list[at] = i;
    }
    return n;
}

int search_finals(const search *s, int *list)
{
    static int front[SEARCH_POINTS_MAX];
    const int n = sorted_front(s, 0, front), kept = n < SEARCH_FINALS ? n : SEARCH_FINALS;
    for (int i = 0; i < kept; i++) /* thins a long front evenly, keeping both ends */
        list[i] = front[kept > 1 ? (int)((double)i * (n - 1) / (kept - 1) + 0.5) : 0];
    return kept;
}

void search_choose(search *s)
{
    static int front[SEARCH_POINTS_MAX];
    const int n = sorted_front(s, 1, front);
    for (int i = 0; i < s->point_count; i++) s->points[i].front = 0;
    for (int i = 0; i < n; i++) s->points[front[i]].front = 1;
    for (int level = 1; level <= SEARCH_LEVELS; level++) {
        const double reach = search_reach(level);
        int chosen = -1;
        for (int i = 0; i < s->point_count; i++) {
            const search_figures *m = &s->points[i].final;
            if (m->images == 0 || m->distance > reach * s->floor.image || m->token_distance > reach * s->floor.token)
                continue;
            if (m->speed > (chosen < 0 ? 1 : s->points[chosen].final.speed)) chosen = i;
        }
        s->chosen[level - 1] = chosen;
    }
}
