/* The trade-off plot of `mar fidelity`: how far a run is from the reference against what it takes. SVG that is XML too,
 * for the page and for a file of its own. */
#include "tools/cli/command.h"
#include "tools/fidelity/compare.h"
#include "tools/cli/file.h"
#include "tools/page/markup.h"
#include "tools/page/plot.h"
#include "base/printable.h"
#include "tools/fidelity/report.h"
#include "tools/cli/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLOT_WIDTH = 500,
    PLOT_HEIGHT = 330,
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

static double root(double distance)
{
    return distance > 0 ? sqrt(distance) : 0;
}

/* --- parts ---------------------------------------------------------------------------------------------- */

/* The band that another seed stays in. */
static void write_floor(FILE *out, double y)
{
    fprintf(out,
            "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" fill=\"#eef3f1\"/>"
            "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"" MARKUP_SAME "\" stroke-dasharray=\"5 4\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" style=\"fill:#00704f\">another seed (95 %%)</text>",
            PLOT_LEFT, y, PLOT_WIDTH - PLOT_LEFT - PLOT_RIGHT, PLOT_HEIGHT - PLOT_BOTTOM - y, PLOT_LEFT,
            PLOT_WIDTH - PLOT_RIGHT, y, y, PLOT_WIDTH - PLOT_RIGHT - 4, y - 5);
}

static void write_point(FILE *out, const fidelity_run *r, const plot_frame *frame, plot_point p, int run)
{
    const double y = plot_y(frame, root(r->image.distance));
    if (p.high > p.low)
        fprintf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"/>",
                plot_x(frame, p.low), plot_x(frame, p.high), y, y, markup_colour(run));
    fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"6\" fill=\"%s\" stroke=\"#fff\"><title>", plot_x(frame, p.x), y,
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
static void write_numbers(FILE *out, const fidelity *f, const plot_frame *frame, const plot_point *points)
{
    double taken[2 * FIDELITY_RUNS_MAX][2];
    int count = 0;
    for (; count < f->run_count; count++) {
        taken[count][0] = plot_x(frame, points[count].x);
        taken[count][1] = plot_y(frame, root(f->runs[count].image.distance));
    }
    for (int i = 0; i < f->run_count; i++) {
        double place[2];
        plot_place(frame, (const double(*)[2])taken, count, i, place);
        write_number(out, i, place[0], place[1]);
        taken[count][0] = place[0];
        taken[count++][1] = place[1] - 4; /* it stands on its line */
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
    plot_frame range = {PLOT_WIDTH, PLOT_HEIGHT, 0, 0, 0, f->has_floor ? sqrt(f->image_floor) : 0, 0};
    for (int i = 0; i < f->run_count; i++) {
        points[i] = point(&f->runs[i], axis);
        range.x_high = fmax(range.x_high, fmax(1.12 * points[i].x, 1.02 * points[i].high));
        range.y_high = fmax(range.y_high, root(f->runs[i].image.distance));
    }
    range.y_high = range.y_high > 0 ? 1.12 * range.y_high : 1;
    if (f->has_floor) write_floor(out, plot_y(&range, sqrt(f->image_floor)));
    plot_axes(out, &range, axis == REPORT_SECONDS ? "seconds per image" : "sequential head calls per token",
              "√ energy distance of whole images");
    for (int i = 0; i < f->run_count; i++) write_point(out, &f->runs[i], &range, points[i], i);
    write_numbers(out, f, &range, points);
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
    const size_t room = (LEGEND_WIDTH_MAX - PLOT_LEFT - PLOT_RIGHT) / LETTER_WIDTH;
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
        write_number(out, i, PLOT_LEFT - 12, y + 4);
        fprintf(out, "<text class=\"name\" x=\"%d\" y=\"%.1f\">", PLOT_LEFT, y + 4);
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
    const int legend = PLOT_LEFT + (int)letters * LETTER_WIDTH + PLOT_RIGHT,
              width = legend > PLOT_WIDTH ? legend : PLOT_WIDTH;
    const int height = PLOT_HEIGHT + LEGEND_LINE * f->run_count + PLOT_TOP;
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
