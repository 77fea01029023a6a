/* The trade-off plot of `mar fidelity`: how far a run is from the reference against what it takes. SVG that is XML too,
 * for the page and for a file of its own. */
#include "tools/command.h"
#include "tools/fidelity_compare.h"
#include "tools/file.h"
#include "tools/markup.h"
#include "tools/printable.h"
#include "tools/report.h"
#include "tools/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLOT_WIDTH = 500,
    PLOT_HEIGHT = 330,
    LEFT = 62, /* margins around the axes */
    RIGHT = 14,
    TOP = 14,
    BOTTOM = 48,
    LEGEND_LINE = 18, /* of a file */
    LEGEND_WIDTH_MAX = 800,
    LETTER_WIDTH = 7 /* of the legend, in monospace of 11.5 pixels, rounded up */
};

/* Of a file; the page has its own. */
static const char style[] = MARKUP_PLOT_STYLE ".name{font:11.5px ui-monospace,monospace}";

/* A run's place on the horizontal axis. */
typedef struct {
    double x;
    double low, high; /* the ends of its bar; x without one */
} plot_point;

typedef struct {
    double x, y; /* the largest values shown */
} plot_range;

/* 1, 2 or 5 times a power of ten, so that `largest` has three to seven steps. */
static double tick(double largest)
{
    const double power = pow(10, floor(log10(largest / 3)));
    const double parts = largest / 3 / power;
    return power * (parts < 2 ? 1 : parts < 5 ? 2 : 5);
}

static double plot_x(plot_range range, double v)
{
    return LEFT + v / range.x * (PLOT_WIDTH - LEFT - RIGHT);
}

static double plot_y(plot_range range, double v)
{
    return PLOT_HEIGHT - BOTTOM - v / range.y * (PLOT_HEIGHT - TOP - BOTTOM);
}

static double root(double distance)
{
    return distance > 0 ? sqrt(distance) : 0;
}

/* --- parts ---------------------------------------------------------------------------------------------- */

static void write_line(FILE *out, const char *class, double x1, double y1, double x2, double y2)
{
    fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", class, x1, y1, x2, y2);
}

static void write_axes(FILE *out, plot_range range, const char *x_label)
{
    const int bottom = PLOT_HEIGHT - BOTTOM, right = PLOT_WIDTH - RIGHT;
    for (double v = 0; v <= range.x * 1.0001; v += tick(range.x)) {
        write_line(out, "grid", plot_x(range, v), TOP, plot_x(range, v), bottom);
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.4g</text>", plot_x(range, v), bottom + 17, v);
    }
    for (double v = 0; v <= range.y * 1.0001; v += tick(range.y)) {
        write_line(out, "grid", LEFT, plot_y(range, v), right, plot_y(range, v));
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>", LEFT - 6, plot_y(range, v) + 4, v);
    }
    write_line(out, "axis", LEFT, bottom, right, bottom);
    write_line(out, "axis", LEFT, TOP, LEFT, bottom);
    fprintf(out,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>"
            "<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"middle\">√ energy distance of whole "
            "images</text>\n",
            (LEFT + right) / 2, PLOT_HEIGHT - 8, x_label, (TOP + bottom) / 2);
}

/* The band that another seed stays in. */
static void write_floor(FILE *out, double y)
{
    fprintf(out,
            "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" fill=\"#eef3f1\"/>"
            "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"" MARKUP_SAME "\" stroke-dasharray=\"5 4\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" style=\"fill:#00704f\">another seed (95 %%)</text>",
            LEFT, y, PLOT_WIDTH - LEFT - RIGHT, PLOT_HEIGHT - BOTTOM - y, LEFT, PLOT_WIDTH - RIGHT, y, y,
            PLOT_WIDTH - RIGHT - 4, y - 5);
}

static void write_point(FILE *out, const fidelity_run *r, plot_range range, plot_point p, int run)
{
    const double y = plot_y(range, root(r->image.distance));
    if (p.high > p.low)
        fprintf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"/>",
                plot_x(range, p.low), plot_x(range, p.high), y, y, markup_colour(run));
    fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"6\" fill=\"%s\" stroke=\"#fff\"><title>", plot_x(range, p.x), y,
            markup_colour(run));
    markup_escape(out, r->name);
    fputs("</title></circle>", out);
}

/* The number of a run, "R" for the reference. */
static void write_number(FILE *out, int run, double x, double y)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" style=\"fill:%s;font-weight:600\">", x, y,
            markup_colour(run));
    if (run == 0)
        fputs("R</text>", out);
    else
        fprintf(out, "%d</text>", run);
}

/* The number of every point beside it, where no point or earlier label is. */
static void write_numbers(FILE *out, const fidelity *f, plot_range range, const plot_point *points)
{
    static const double place[][2] = {{10, -8},  {-10, -8},  {10, 16}, {-10, 16}, {0, -14},
                                      {18, 4},   {-18, 4},   {26, -8}, {-26, -8}, {0, -28},
                                      {14, -24}, {-14, -24}, {34, 4},  {-34, 4},  {0, -42}};
    enum { PLACES = sizeof place / sizeof place[0] };
    double taken[2 * FIDELITY_RUNS_MAX][2];
    int count = 0;
    for (; count < f->run_count; count++) {
        taken[count][0] = plot_x(range, points[count].x);
        taken[count][1] = plot_y(range, root(f->runs[count].image.distance)) + 4;
    }
    for (int i = 0; i < f->run_count; i++) {
        double px = 0, py = 0;
        int clear = 0;
        for (int k = 0; k < PLACES && !clear; k++) {
            px = taken[i][0] + place[k][0];
            py = taken[i][1] + place[k][1];
            clear = py < PLOT_HEIGHT - BOTTOM && px < PLOT_WIDTH - RIGHT && px > LEFT;
            for (int j = 0; j < count && clear; j++)
                clear = fabs(taken[j][0] - px) >= 11 || fabs(taken[j][1] - py) >= 12 || j == i;
        }
        taken[count][0] = px;
        taken[count++][1] = py;
        write_number(out, i, px, py);
    }
}

/* --- the plot ------------------------------------------------------------------------------------------- */

static plot_point point(const fidelity_run *r, report_axis axis)
{
    const double calls = fidelity_head_calls(r);
    return axis == REPORT_SECONDS ? (plot_point){r->seconds.median, r->seconds.low, r->seconds.high}
                                  : (plot_point){calls, calls, calls};
}

/* All that is inside <svg>. */
static void write_plot(FILE *out, const fidelity *f, report_axis axis)
{
    plot_point points[FIDELITY_RUNS_MAX];
    plot_range range = {0, f->has_floor ? sqrt(f->image_floor) : 0};
    for (int i = 0; i < f->run_count; i++) {
        points[i] = point(&f->runs[i], axis);
        range.x = fmax(range.x, fmax(1.12 * points[i].x, 1.02 * points[i].high));
        range.y = fmax(range.y, root(f->runs[i].image.distance));
    }
    range.y = range.y > 0 ? 1.12 * range.y : 1;
    if (f->has_floor) write_floor(out, plot_y(range, sqrt(f->image_floor)));
    write_axes(out, range, axis == REPORT_SECONDS ? "seconds per image" : "sequential head calls per token");
    for (int i = 0; i < f->run_count; i++) write_point(out, &f->runs[i], range, points[i], i);
    write_numbers(out, f, range, points);
}

void report_plot(FILE *out, const fidelity *f, report_axis axis)
{
    fprintf(out, "<svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">", PLOT_WIDTH, PLOT_HEIGHT,
            PLOT_WIDTH, PLOT_HEIGHT);
    write_plot(out, f, axis);
    fputs("</svg>\n", out);
}

/* --- the file ------------------------------------------------------------------------------------------- */

/* Letters of a run's name that have room in the legend. The name is cut after a whole option or word. */
static size_t legend_letters(const char *name)
{
    const size_t room = (LEGEND_WIDTH_MAX - LEFT - RIGHT) / LETTER_WIDTH;
    size_t n = strlen(name);
    if (n <= room) return n;
    for (n = room; n > room / 2 && name[n] != ' '; n--) {
    }
    return printable_whole(name, n);
}

static void write_legend(FILE *out, const fidelity *f)
{
    for (int i = 0; i < f->run_count; i++) {
        const char *name = f->runs[i].name;
        const size_t n = legend_letters(name);
        const double y = PLOT_HEIGHT + LEGEND_LINE * (i + 0.5);
        write_number(out, i, LEFT - 12, y + 4);
        fprintf(out, "<text class=\"name\" x=\"%d\" y=\"%.1f\">", LEFT, y + 4);
        markup_escape_part(out, name, n);
        fprintf(out, "%s</text>", name[n] ? " …" : "");
    }
}

int report_write_plot(const fidelity *f, const char *path)
{
    text_buffer text;
    size_t letters = 0;
    for (int i = 0; i < f->run_count; i++) {
        const size_t n = legend_letters(f->runs[i].name) + 2;
        if (n > letters) letters = n;
    }
    const int legend = LEFT + (int)letters * LETTER_WIDTH + RIGHT, width = legend > PLOT_WIDTH ? legend : PLOT_WIDTH;
    const int height = PLOT_HEIGHT + LEGEND_LINE * f->run_count + TOP;
    FILE *out = text_open(&text);
    if (!out) return tool_error("%s: out of memory for the plot", path);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
            "<title>Distance to the reference and seconds per image</title><style>%s</style>"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", /* for readers with a dark ground */
            width, height, width, height, style, width, height);
    write_plot(out, f, REPORT_SECONDS);
    write_legend(out, f);
    fputs("\n</svg>\n", out);
    if (text_close(out, &text) != 0) return tool_error("%s: out of memory for the plot", path);
    const int failed = tool_write_file(path, text.data, text.size);
    free(text.data);
    return failed;
}
