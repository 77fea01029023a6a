/* What a search says: a page with the front and a command line for each level, and the same in a terminal. */
#include "tools/cli/command.h"
#include "tools/fidelity/search.h"
#include "tools/page/markup.h"
#include "tools/page/page.h"
#include "tools/page/plot.h"
#include "base/printable.h"
#include "tools/cli/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- words -------------------------------------------------------------------------------------------------------- */

/* A file's name as a shell takes it. */
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
    for (int k = 0; k < mar_option_count(); k++) { /* seq_len and the like */
        const mar_param *p = mar_option_get(k);
        if (strcmp(p->group, "Model") == 0 && p->type != MAR_TYPE_FLAG && !mar_param_is_default(p, &o->machine))
            text_append(text, size, " --%s %s", p->name, mar_param_text(p, &o->machine, value, sizeof value));
    }
    for (int k = 0; k < mar_param_count(); k++) {
        const mar_param *p = mar_param_get(k);
        snprintf(name, sizeof name, "--%s ", p->name);
        if (i >= 0 && strstr(s->points[i].options, name)) continue; /* which says otherwise */
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

/* The points measured with all images (final 1), or with few only, by speed, the fastest first, to a list that the
 * caller frees. NULL if memory ran out. */
static int *sorted(const search *s, int final, int *n)
{
    int *list = malloc(((size_t)s->point_count + 1) * sizeof *list);
    *n = 0;
    for (int i = 0; i < s->point_count && list; i++) {
        const search_point *p = &s->points[i];
        if (final ? !p->final.images : !p->screened.images || p->final.images) continue;
        int at = (*n)++;
        const double speed = final ? p->final.speed : p->screened.speed;
        for (; at > 0; at--) {
            const search_point *before = &s->points[list[at - 1]];
            if ((final ? before->final.speed : before->screened.speed) >= speed) break;
            list[at] = list[at - 1];
        }
        list[at] = i;
    }
    return list;
}

/* --- printed ------------------------------------------------------------------------------------------------------ */

void search_print(const search *s)
{
    char text[4096], path[8192];
    int n;
    int *list = sorted(s, 1, &n);
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

/* --- the plot ----------------------------------------------------------------------------------------------------- */

static const char style[] = "svg{max-width:100%;min-width:38rem;height:auto}.front td{background:#eef3f1}"
                            "polyline.front{fill:none;stroke:" MARKUP_SAME ";stroke-width:2}"
                            "pre{background:#f6f7f9;padding:.5rem .8rem;overflow-x:auto;margin:.4rem 0 0}";

static double root(double distance)
{
    return distance > 0 ? sqrt(distance) : 0;
}

static double share_of_time(const search_figures *m)
{
    return 1 / m->speed;
}

static plot_frame frame_of(const search *s)
{
    plot_frame f = {820, 440, 1, 1, 0, 1.15 * sqrt(s->floor.image), 0};
    for (int i = 0; i < s->point_count; i++) {
        const search_point *p = &s->points[i];
        const search_figures *m = p->final.images ? &p->final : &p->screened;
        if (m->images == 0) continue;
        f.x_low = fmin(f.x_low, share_of_time(m));
        f.x_high = fmax(f.x_high, share_of_time(m));
        /* what is far outside of the last level is drawn at the upper edge */
        f.y_high =
            fmax(f.y_high, fmin(1.1 * root(m->distance), 1.3 * sqrt(search_reach(SEARCH_LEVELS) * s->floor.image)));
    }
    f.x_log = 1;
    f.x_low /= 1.15, f.x_high *= 1.15;
    return f;
}

/* The levels' limits, the first of them shaded below. */
static void write_limits(FILE *out, const search *s, const plot_frame *f)
{
    static const char *const names[] = {"another seed (95 %)", "twice as far: level 2", "four times: level 3"};
    for (int level = 1; level <= SEARCH_LEVELS; level++) {
        const double limit = sqrt(search_reach(level) * s->floor.image), y = plot_y(f, limit);
        if (limit > f->y_high) continue;
        if (level == 1)
            fprintf(out, "<rect x=%d y=%.1f width=%d height=%.1f fill=\"%s\" opacity=.12></rect>", PLOT_LEFT, y,
                    f->width - PLOT_LEFT - PLOT_RIGHT, f->height - PLOT_BOTTOM - y, MARKUP_SAME);
        fprintf(out,
                "<line x1=%d x2=%d y1=%.1f y2=%.1f stroke=\"%s\" stroke-dasharray=\"4 3\"/>"
                "<text x=%d y=%.1f text-anchor=end style=\"fill:#00704f\">%s</text>",
                PLOT_LEFT, f->width - PLOT_RIGHT, y, y, MARKUP_SAME, f->width - PLOT_RIGHT - 4, y - 5,
                names[level - 1]);
    }
}

static double height_of(const plot_frame *f, double distance)
{
    return plot_y(f, fmin(root(distance), f->y_high));
}

/* From the fastest point of the front to the nearest one. by_speed: the fastest first. */
static void write_stairs(FILE *out, const search *s, const int *by_speed, int n, const plot_frame *f)
{
    double before = NAN;
    fputs("<polyline class=front points=\"", out);
    for (int i = 0; i < n; i++) {
        const search_point *p = &s->points[by_speed[i]];
        if (!p->front) continue;
        const double x = plot_x(f, share_of_time(&p->final)), y = height_of(f, p->final.distance);
        fprintf(out, "%.1f,%.1f %.1f,%.1f ", x, isnan(before) ? PLOT_TOP : before, x, y);
        before = y;
    }
    if (!isnan(before)) fprintf(out, "%.1f,%.1f", plot_x(f, 1), before);
    fputs("\"/>", out);
}

/* A point, with a title. */
static void write_dot(FILE *out, const search_point *p, const search_figures *m, const plot_frame *f,
                      const char *colour)
{
    const int large = m == &p->final;
    fprintf(out, "<circle cx=%.1f cy=%.1f r=%d fill=\"%s\" stroke=\"#fff\"%s><title>", plot_x(f, share_of_time(m)),
            height_of(f, m->distance), large ? 6 : 4, colour, large ? "" : " opacity=.55");
    markup_escape(out, p->options);
    fprintf(out, ": %d images, speed %.2f, distance %.4f</title></circle>", m->images, m->speed, m->distance);
}

/* Returns 0, or 1 if memory ran out. */
static int write_plot(FILE *out, const search *s, const int *finals, int n, const int *others, int m)
{
    const plot_frame f = frame_of(s);
    double(*taken)[2] = calloc(2 * (size_t)n + 1, sizeof *taken);
    if (!taken) return 1;
    fputs(
        "<p>Left and low is better. Dots with numbers, those of the table, were measured with all images; the line is "
        "their front. Grey ones were screened with few, whose distances are rougher. What is farther than the plot is "
        "at its upper edge.</p>\n",
        out);
    fprintf(out, "<div class=wide><svg width=%d height=%d viewBox=\"0 0 %d %d\" role=img>", f.width, f.height, f.width,
            f.height);
    write_limits(out, s, &f);
    plot_axes(out, &f, "time, of the reference’s (logarithmic)", "√ energy distance of whole images");
    for (int i = 0; i < m; i++) write_dot(out, &s->points[others[i]], &s->points[others[i]].screened, &f, MARKUP_AXIS);
    write_stairs(out, s, finals, n, &f);
    for (int i = 0; i < n; i++) {
        const search_figures *of = &s->points[finals[i]].final;
        taken[i][0] = plot_x(&f, share_of_time(of)), taken[i][1] = height_of(&f, of->distance);
    }
    for (int i = 0; i < n; i++) {
        const search_point *p = &s->points[finals[i]];
        const char *colour = p->front ? MARKUP_SAME : MARKUP_INK;
        double place[2];
        write_dot(out, p, &p->final, &f, colour);
        plot_place(&f, (const double(*)[2])taken, n + i, i, place);
        fprintf(out, "<text x=%.1f y=%.1f text-anchor=middle style=\"fill:%s;font-weight:600\">%d</text>", place[0],
                place[1], colour, i + 1);
        taken[n + i][0] = place[0], taken[n + i][1] = place[1] - 4;
    }
    fputs("</svg></div>\n", out);
    free(taken);
    return 0;
}

/* --- the page ----------------------------------------------------------------------------------------------------- */

static void write_levels(FILE *out, const search *s)
{
    char text[4096];
    for (int level = 1; level <= SEARCH_LEVELS; level++) {
        const int chosen = s->chosen[level - 1];
        fprintf(out, "<div class=\"card %s\"><b>Level %d, %s: ",
                level == 1   ? "same"
                : level == 2 ? "close"
                             : "off",
                level, reach_in_words(level));
        if (chosen < 0) {
            fputs("nothing was found but the reference</b>", out);
        } else {
            const search_figures *m = &s->points[chosen].final;
            fprintf(out, "%.2f times as fast</b><small>distance %.4f, of single tokens %.5f; ", m->speed, m->distance,
                    m->token_distance);
            markup_escape(out, m->guarantee);
            /* which is of the steps that a run has */
            fputs(strstr(s->points[chosen].options, "--num_") ? ", in these steps</small>" : "</small>", out);
        }
        fputs("<pre>", out);
        markup_escape(out, search_command(s, chosen, text, sizeof text));
        fputs("</pre></div>\n", out);
    }
}

static void write_rows(FILE *out, const search *s, const int *list, int n, int final)
{
    fputs("<div class=wide><table><tr><th>options<th>speed<th>s per image<th>distance<th>of single tokens<th>p", out);
    if (s->f->judged) fputs("<th>digits recognised", out);
    fputc('\n', out);
    for (int i = 0; i < n; i++) {
        const search_point *p = &s->points[list[i]];
        const search_figures *m = final ? &p->final : &p->screened;
        fprintf(out, "<tr%s><td>", final && p->front ? " class=front" : "");
        if (final) fprintf(out, "%d: ", i + 1);
        page_options(out, p->options);
        fprintf(out, "<td>%.2f<td>%.4g<td>%.4f<td>%.5f<td>%.3f", m->speed, m->seconds, m->distance, m->token_distance,
                m->p);
        if (s->f->judged) page_share(out, m->recognised);
        fputc('\n', out);
    }
    const search_floor *floor = final ? &s->floor : &s->coarse;
    fprintf(out, "<tr class=floor><td>another seed stays below, 95 times in 100<td><td><td>%.4f<td>%.5f<td>%s\n",
            floor->image, floor->token, s->f->judged ? "<td>" : "");
    fputs("</table></div>\n", out);
}

static void write_refused(FILE *out, const search *s)
{
    int any = 0;
    for (int i = 0; i < s->point_count; i++) {
        const search_point *p = &s->points[i];
        if (!p->refused[0]) continue;
        if (!any++) fputs("<h2>Left out</h2>\n<ul>", out);
        fputs("<li>", out);
        page_options(out, p->options);
        fputs(": ", out);
        markup_escape(out, p->refused);
        fputc('\n', out);
    }
    if (any) fputs("</ul>\n", out);
}

/* What was searched, and how. */
static void write_protocol(FILE *out, const search *s)
{
    int known = 0;
    for (int i = 0; i < s->point_count; i++) known += s->points[i].screened.images > 0 || s->points[i].refused[0];
    char again[96] = "";
    if (s->screen != s->f->num)
        snprintf(again, sizeof again, " What was on the measured front was measured once more with %d.", s->f->num);
    fprintf(
        out,
        "<h2>How it was searched</h2>\n<p>%d of %d combinations were screened with %d images each, at most %d: every "
        "way alone, then combinations in the order in which the product of the ways’ speeds and the sum of their "
        "distances put them on the front.%s Images are "
        "compared with the reference’s of the same seeds and classes; the distance is the energy distance, in "
        "standard deviations of the reference’s channels, and p is of “the same law”, permuted within pairs. A "
        "speed is the median of turns that the reference made right beside it, %d images at a time.</p>\n<ul>",
        known, s->point_count, s->screen, s->budget, again, s->f->batch);
    for (int k = 0; k < s->axis_count; k++) {
        fputs("<li>none", out);
        for (int c = 1; c < s->axes[k].count; c++) {
            fputs(", ", out);
            page_options(out, s->axes[k].choices[c]);
        }
        fputc('\n', out);
    }
    fputs("</ul>\n", out);
}

static int write_all(FILE *out, const search *s, const int *finals, int n, const int *others, int m)
{
    fputs("<h1>Speed against distance: ", out);
    markup_escape(out, tool_base_name(s->base.model));
    fputs("</h1>\n<p class=sub>The reference is ", out);
    markup_escape(out, s->reference);
    fprintf(out, ", %.4g s per image on ", s->reference_seconds);
    markup_escape(out, s->f->backend);
    fprintf(out, "; %d images of %d class%s, seed %llu.</p>\n", s->f->num, s->f->class_count,
            s->f->class_count > 1 ? "es" : "", (unsigned long long)s->f->seed);
    write_levels(out, s);
    fputs("<h2>The front</h2>\n", out);
    const int lacks = write_plot(out, s, finals, n, others, m);
    if (n > 0) write_rows(out, s, finals, n, 1);
    if (m > 0) fprintf(out, "<h2>Screened with %d images</h2>\n", s->screen);
    if (m > 0) write_rows(out, s, others, m, 0);
    write_refused(out, s);
    write_protocol(out, s);
    return lacks;
}

int search_write_page(const search *s)
{
    text_buffer text;
    int n = 0, m = 0;
    int *finals = sorted(s, 1, &n), *others = sorted(s, 0, &m), failed;
    FILE *out = finals && others ? page_open(&text, "Speed against distance", style, s->page) : NULL;
    if (!out) {
        failed = finals && others ? 1 : tool_error("%s: out of memory for the page", s->page);
    } else {
        const int lacks = write_all(out, s, finals, n, others, m);
        failed = page_close(out, &text, lacks, s->page);
    }
    free(finals);
    free(others);
    return failed;
}
