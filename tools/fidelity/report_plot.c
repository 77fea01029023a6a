/* --plot: distance to the reference against seconds per image, as an SVG file for a paper or a README. */
#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "base/printable.h"
#include "tools/cli/text.h"
#include "tools/fidelity/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 500,
    HEIGHT = 330,
    LEFT = 62, /* margins around the axes */
    RIGHT = 14,
    TOP = 14,
    BOTTOM = 48,
    LEGEND_LINE = 18,
    LETTER_WIDTH = 7, /* width of a legend letter, in monospace of 11.5 pixels, rounded up */
    NAME_SIZE = 104   /* bytes of a run's name in the legend, with a NUL; a longer one loses its middle */
};

static const char style[] = "text{font:12px system-ui,sans-serif;fill:#1d2530}.axis{stroke:#9aa3af}"
                            ".grid{stroke:#e6e9ee}.name{font:11.5px ui-monospace,monospace}";

/* The plot's limits; both axes begin at 0. */
typedef struct {
    double seconds, root; /* root: root of the energy distance */
} limits;

/* Returns the colour of a run: Okabe and Ito's, chosen for colour-blind readers. The reference is nearly black. */
static const char *colour_of(int run)
{
    static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c00"};
    return run == 0 ? "#1d2530" : colours[(run - 1) % 7];
}

/* Writes text as the content of an element. Characters that XML excludes are escaped as in base/printable.h. */
static void write_plot_text(FILE *out, const char *text)
{
    for (const char *const end = text + strlen(text); text < end;) {
        char shown[PRINTABLE_MAX];
        size_t length;
        const char c = *text;
        const char *entity = c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : NULL;
        text += printable_character(text, (size_t)(end - text), shown, &length);
        fprintf(out, "%.*s", entity ? (int)strlen(entity) : (int)length, entity ? entity : shown);
    }
}

static double plot_root(double distance)
{
    return distance > 0 ? sqrt(distance) : 0;
}

static double x_of(const limits *l, double seconds)
{
    return LEFT + seconds / l->seconds * (WIDTH - LEFT - RIGHT);
}

static double y_of(const limits *l, double r)
{
    return HEIGHT - BOTTOM - r / l->root * (HEIGHT - TOP - BOTTOM);
}

static void write_plot_line(FILE *out, const char *class, double x1, double y1, double x2, double y2)
{
    fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", class, x1, y1, x2, y2);
}

/* Returns 1, 2 or 5 times a power of ten, so that `span` has three to seven steps. */
static double tick_of(double span)
{
    const double power = pow(10, floor(log10(span / 3))), parts = span / 3 / power;
    return power * (parts < 2 ? 1 : parts < 5 ? 2 : 5);
}

/* Writes the axes in the table's units. The vertical one has a root scale. */
static void write_axes(FILE *out, const limits *l)
{
    const int bottom = HEIGHT - BOTTOM, right = WIDTH - RIGHT;
    const double x_tick = tick_of(l->seconds), y_tick = tick_of(l->root);
    for (double v = 0; v <= l->seconds + 0.0001 * x_tick; v += x_tick) {
        write_plot_line(out, "grid", x_of(l, v), TOP, x_of(l, v), bottom);
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.4g</text>", x_of(l, v), bottom + 17, v);
    }
    for (double v = 0; v <= l->root + 0.0001 * y_tick; v += y_tick) {
        write_plot_line(out, "grid", LEFT, y_of(l, v), right, y_of(l, v));
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>", LEFT - 6, y_of(l, v) + 4, v * v);
    }
    write_plot_line(out, "axis", LEFT, bottom, right, bottom);
    write_plot_line(out, "axis", LEFT, TOP, LEFT, bottom);
    fprintf(out,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">seconds per image</text>"
            "<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=\"middle\">energy distance of whole images, "
            "root scale</text>\n",
            (LEFT + right) / 2, HEIGHT - 8, (TOP + bottom) / 2);
}

/* Writes the band within which another seed stays. */
static void write_floor(FILE *out, double y)
{
    fprintf(out,
            "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" fill=\"#eef3f1\"/>"
            "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#009e73\" stroke-dasharray=\"5 4\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" style=\"fill:#00704f\">another seed (95 %%)</text>",
            LEFT, y, WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - y, LEFT, WIDTH - RIGHT, y, y, WIDTH - RIGHT - 4, y - 5);
}

/* Writes the number of a run, "R" for the reference. */
static void write_number(FILE *out, int run, double x, double y)
{
    char number[16] = "R";
    if (run > 0) snprintf(number, sizeof number, "%d", run);
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" style=\"fill:%s;font-weight:600\">%s</text>", x, y,
            colour_of(run), number);
}

/* Finds a place beside point `own` for its number, clear of taken[0..count), points and numbers. */
static void find_place(const double (*taken)[2], int count, int own, double place[2])
{
    static const double offset[][2] = {{10, -8},  {-10, -8},  {10, 16}, {-10, 16}, {0, -14},
                                       {18, 4},   {-18, 4},   {26, -8}, {-26, -8}, {0, -28},
                                       {14, -24}, {-14, -24}, {34, 4},  {-34, 4},  {0, -42}};
    int clear = 0;
    for (size_t k = 0; k < sizeof offset / sizeof offset[0] && !clear; k++) {
        place[0] = taken[own][0] + offset[k][0];
        place[1] = taken[own][1] + 4 + offset[k][1];
        clear = place[1] < HEIGHT - BOTTOM && place[0] < WIDTH - RIGHT && place[0] > LEFT;
        for (int j = 0; j < count && clear; j++)
            clear = fabs(taken[j][0] - place[0]) >= 11 || fabs(taken[j][1] + 4 - place[1]) >= 12 || j == own;
    }
}

/* Writes the points, the spread of their times, and their numbers. */
static void write_points(FILE *out, const fidelity *f, const limits *l)
{
    double taken[2 * FIDELITY_RUNS_MAX][2];
    for (int i = 0; i < f->run_count; i++) {
        const fidelity_run *r = &f->runs[i];
        const double x = taken[i][0] = x_of(l, r->seconds.median),
                     y = taken[i][1] = y_of(l, plot_root(r->image.distance));
        fprintf(out,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"/>"
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"6\" fill=\"%s\" stroke=\"#fff\"><title>",
                x_of(l, r->seconds.low), x_of(l, r->seconds.high), y, y, colour_of(i), x, y, colour_of(i));
        write_plot_text(out, r->name);
        fputs("</title></circle>", out);
    }
    for (int i = 0, count = f->run_count; i < f->run_count; i++, count++) {
        double place[2];
        find_place((const double(*)[2])taken, count, i, place);
        write_number(out, i, place[0], place[1]);
        taken[count][0] = place[0], taken[count][1] = place[1] - 4; /* centre of the number, above its baseline */
    }
}

static void write_legend(FILE *out, const fidelity *f)
{
    char line[NAME_SIZE];
    for (int i = 0; i < f->run_count; i++) {
        const double y = HEIGHT + LEGEND_LINE * (i + 0.5) + 4;
        write_number(out, i, LEFT - 12, y);
        fprintf(out, "<text class=\"name\" x=\"%d\" y=\"%.1f\">", LEFT, y);
        write_plot_text(out, printable(f->runs[i].name, line, sizeof line));
        fputs("</text>", out);
    }
}

static void write_plot(FILE *out, const fidelity *f)
{
    limits l = {0, f->floor.measured ? sqrt(f->floor.image) : 0};
    char line[NAME_SIZE];
    int width = WIDTH;
    const int height = HEIGHT + LEGEND_LINE * f->run_count + TOP;
    for (int i = 0; i < f->run_count; i++) {
        const fidelity_run *r = &f->runs[i];
        const int legend = LEFT + (int)strlen(printable(r->name, line, sizeof line)) * LETTER_WIDTH + RIGHT;
        if (legend > width) width = legend;
        l.seconds = fmax(l.seconds, fmax(1.12 * r->seconds.median, 1.02 * r->seconds.high));
        l.root = fmax(l.root, plot_root(r->image.distance));
    }
    l.root = l.root > 0 ? 1.12 * l.root : 1;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
            "<title>Distance to the reference and seconds per image</title><style>%s</style>"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", /* for readers with a dark background */
            width, height, width, height, style, width, height);
    if (f->floor.measured) write_floor(out, y_of(&l, sqrt(f->floor.image)));
    write_axes(out, &l);
    write_points(out, f, &l);
    write_legend(out, f);
    fputs("\n</svg>\n", out);
}

int report_write_plot(const fidelity *f, const char *path)
{
    text_buffer text;
    FILE *out = text_open(&text);
    if (!out) return tool_error("%s: out of memory for the plot", path);
    write_plot(out, f);
    if (text_close(out, &text) != 0) return tool_error("%s: out of memory for the plot", path);
    const int failed = tool_write_file(path, text.data, text.size);
    free(text.data);
    return failed;
}
