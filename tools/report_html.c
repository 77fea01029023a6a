/* The page of `mar fidelity`: verdicts, table, plots, acceptance maps, samples, and what was tested. */
#include "base/file.h"
#include "tools/command.h"
#include "tools/image.h"
#include "tools/report.h"

#include <inttypes.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    "body{font:16px/1.5 system-ui,sans-serif;color:#1d2530;max-width:68rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.7rem;margin:0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}h3{font-size:1rem;margin:0 0 .3rem}"
    ".sub{color:#5b6675;margin:.2rem 0 1.4rem}code{font:.92em ui-monospace,monospace}code span{white-space:nowrap}"
    ".card{border-left:6px solid;background:#f6f7f9;padding:.55rem 1rem;margin:.5rem 0}"
    ".same{border-color:#009e73}.unsure{border-color:#9aa3af}.close{border-color:#e69f00}.off{border-color:#d55e00}"
    ".card b{font-size:1.05rem}.card small{color:#5b6675;display:block}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}"
    "th,td{padding:.3rem .5rem;text-align:right;border-bottom:1px solid #dde1e7;white-space:nowrap}"
    "th{font-weight:600;font-size:.85rem;vertical-align:bottom;white-space:normal}"
    "th:first-child,td:first-child{text-align:left;white-space:normal}tr.floor td{color:#5b6675}"
    ".dot{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.45em}"
    ".row{display:flex;flex-wrap:wrap;gap:1.6rem}.map{image-rendering:pixelated;display:block}"
    ".maps{display:flex;flex-wrap:wrap;gap:.4rem}.maps img{outline:1px solid "
    "#c9ced6}figure{margin:0}figcaption{font-size:.85rem;color:#5b6675}"
    "svg text{font:12px system-ui,sans-serif;fill:#1d2530}svg .axis{stroke:#9aa3af}svg .grid{stroke:#e6e9ee}"
    ".wide{overflow-x:auto}";

/* Okabe and Ito's colours, told apart by nearly everybody; the reference is black. */
static const char *colour(int run)
{
    static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c00"};
    return run == 0 ? "#1d2530" : colours[(run - 1) % 7];
}

/* --- parts ---------------------------------------------------------------------------------------------- */

static void escape(FILE *out, const char *text)
{
    for (; *text; text++) switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc(*text, out);
        }
}

static void base64(FILE *out, const uint8_t *data, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        const uint32_t three = (uint32_t)data[i] << 16 | (uint32_t)(i + 1 < size ? data[i + 1] : 0) << 8 |
                               (uint32_t)(i + 2 < size ? data[i + 2] : 0);
        fputc(digits[three >> 18], out);
        fputc(digits[three >> 12 & 63], out);
        fputc(i + 1 < size ? digits[three >> 6 & 63] : '=', out);
        fputc(i + 2 < size ? digits[three & 63] : '=', out);
    }
}

/* <img> of the picture at `scale` CSS pixels a pixel. Returns 0, or 1 if it cannot be encoded. */
static int embed(FILE *out, const image *picture, int scale, const char *title)
{
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)picture->width,
                     .height = (png_uint_32)picture->height,
                     .format = PNG_FORMAT_RGB};
    png_alloc_size_t size = 0;
    uint8_t *data = NULL;
    int done = png_image_write_to_memory(&png, NULL, &size, 0, picture->rgb, 0, NULL) && (data = malloc(size)) &&
               png_image_write_to_memory(&png, data, &size, 0, picture->rgb, 0, NULL);
    if (done) {
        fprintf(out, "<img class=map width=%d height=%d alt=\"", picture->width * scale, picture->height * scale);
        escape(out, title);
        fputs("\" title=\"", out);
        escape(out, title);
        fputs("\" src=\"data:image/png;base64,", out);
        base64(out, data, size);
        fputs("\">\n", out);
    }
    free(data);
    return !done;
}

/* Options that break between, not within. */
static void write_options(FILE *out, const char *name)
{
    fputs("<code>", out);
    while (*name) {
        const char *next = strstr(name + 1, " --");
        const int length = next ? (int)(next - name) : (int)strlen(name);
        char one[512]; /* the longest: --draft and a file name */
        snprintf(one, sizeof one, "%.*s", length, name);
        fputs("<span>", out);
        escape(out, one);
        fputs(next ? "</span> " : "</span>", out);
        name += length + (next != NULL);
    }
    fputs("</code>", out);
}

static void run_title(FILE *out, const fidelity *f, int run)
{
    fprintf(out, "<span class=dot style=\"background:%s\"></span>", colour(run));
    if (run == 0)
        fputs("reference: ", out);
    else
        fprintf(out, "%d: ", run);
    write_options(out, f->runs[run].name);
}

/* --- head, verdicts, table ------------------------------------------------------------------------------ */

static void write_head(FILE *out, const fidelity *f)
{
    const run_options *o = &f->runs[0].options;
    fprintf(out,
            "<!DOCTYPE html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">"
            "<title>Fidelity report</title><style>%s</style>\n<h1>Fidelity report: ",
            style);
    escape(out, o->model);
    fprintf(out,
            "</h1>\n<p class=sub>%d images of %d class%s in each run, seed %" PRIu64 ", guidance %g (%s), "
            "temperature %g, %d at a time on ",
            f->num, f->class_count, f->class_count > 1 ? "es" : "", f->seed, (double)o->params.cfg,
            o->params.cfg_schedule == MAR_CFG_LINEAR ? "linear" : "constant", (double)o->params.temperature, f->batch);
    escape(out, f->backend);
    fputs(". Every run is compared with the reference, ", out);
    write_options(out, f->runs[0].name);
    fprintf(out, ": %.4f s per image.</p>\n", fidelity_seconds(f, &f->runs[0]));
}

static void write_verdicts(FILE *out, const fidelity *f)
{
    static const char *const kinds[] = {
        [FIDELITY_SAME] = "same", [FIDELITY_UNSURE] = "unsure", [FIDELITY_CLOSE] = "close", [FIDELITY_OFF] = "off"};
    char verdict[160];
    for (int i = 1; i < f->run_count; i++) {
        const fidelity_run *r = &f->runs[i];
        fprintf(out, "<div class=\"card %s\">", kinds[fidelity_find(f, r)]);
        run_title(out, f, i);
        fprintf(out, "<br><b>%.2f× the speed, ", fidelity_seconds(f, &f->runs[0]) / fidelity_seconds(f, r));
        escape(out, fidelity_verdict(f, r, verdict, sizeof verdict));
        fputs("</b><small>", out);
        escape(out, r->guarantee);
        fputs("</small></div>\n", out);
    }
}

static void cell_share(FILE *out, double share)
{
    if (share < 0)
        fputs("<td>–", out);
    else
        fprintf(out, "<td>%.1f %%", 100 * share);
}

static void write_speed_row(FILE *out, const fidelity *f, int run)
{
    const fidelity_run *r = &f->runs[run];
    fputs("<tr><td>", out);
    run_title(out, f, run);
    fprintf(out, "<td>%.4f<td>%.2f×<td>%.1f<td>%d<td>%.1f", fidelity_seconds(f, r),
            fidelity_seconds(f, &f->runs[0]) / fidelity_seconds(f, r), fidelity_head_calls(r), r->stats.head_calls_max,
            fidelity_calls_in_sequence(f, r));
    cell_share(out, fidelity_token_acceptance(r));
    cell_share(out, fidelity_head_acceptance(r));
    if (run == 0)
        fputs("<td>–<td>–", out);
    else
        fprintf(out, "<td>%.5f<td>%.3f", r->image.distance, r->p);
    if (f->judged) cell_share(out, (double)r->recognised / f->num);
    fputc('\n', out);
}

static void write_tables(FILE *out, const fidelity *f)
{
    fprintf(out,
            "<h2>Speed, acceptance, distance</h2>\n<div class=wide><table><tr><th>run<th>s per image<th>speed"
            "<th>head calls of a token<th>at most<th>head calls for an image<th>drafts accepted<th>accepted in the "
            "head<th>energy distance<th>p%s\n",
            f->judged ? "<th>digits recognised" : "");
    for (int i = 0; i < f->run_count; i++) write_speed_row(out, f, i);
    if (f->has_floor)
        fprintf(out, "<tr class=floor><td>another seed, 95 %% below<td><td><td><td><td><td><td><td>%.5f<td>%s\n",
                f->image_floor, f->judged ? "<td>" : "");
    fputs(
        "</table></div>\n<h2>Distance in detail</h2>\n<div class=wide><table><tr><th>run<th>image energy distance<th>p"
        "<th>token energy distance<th>p<th>largest KS (channel)<th>p<th>mean gap<th>covariance gap\n",
        out);
    for (int i = 1; i < f->run_count; i++) {
        const fidelity_run *r = &f->runs[i];
        fputs("<tr><td>", out);
        run_title(out, f, i);
        fprintf(out, "<td>%.5f<td>%.3f<td>%.5f<td>%.3f<td>%.4f (%d)<td>%.3f<td>%.4f<td>%.4f\n", r->image.distance,
                r->image.p, r->token.distance, r->token.p, r->ks[r->ks_channel], r->ks_channel, r->ks_p[r->ks_channel],
                r->mean_gap, r->covariance_gap);
    }
    if (f->has_floor)
        fprintf(out, "<tr class=floor><td>another seed, 95 %% below<td>%.5f<td><td>%.5f<td><td><td><td><td>\n",
                f->image_floor, f->token_floor);
    fputs("</table></div>\n", out);
}

/* --- plots ---------------------------------------------------------------------------------------------- */

enum { PLOT_WIDTH = 500, PLOT_HEIGHT = 330, LEFT = 62, RIGHT = 14, TOP = 14, BOTTOM = 48 };

/* 1, 2 or 5 times a power of ten, so that `largest` has three to seven steps. */
static double tick(double largest)
{
    const double power = pow(10, floor(log10(largest / 3)));
    const double parts = largest / 3 / power;
    return power * (parts < 2 ? 1 : parts < 5 ? 2 : 5);
}

typedef struct {
    double x, y; /* the largest values shown */
} plot_range;

static double plot_x(plot_range range, double v)
{
    return LEFT + v / range.x * (PLOT_WIDTH - LEFT - RIGHT);
}

static double plot_y(plot_range range, double v)
{
    return PLOT_HEIGHT - BOTTOM - v / range.y * (PLOT_HEIGHT - TOP - BOTTOM);
}

static void plot_axes(FILE *out, plot_range range, const char *x_label, const char *y_label)
{
    const int bottom = PLOT_HEIGHT - BOTTOM, right = PLOT_WIDTH - RIGHT;
    for (double v = 0; v <= range.x * 1.0001; v += tick(range.x))
        fprintf(out, "<line class=grid x1=%.1f x2=%.1f y1=%d y2=%d /><text x=%.1f y=%d text-anchor=middle>%.4g</text>",
                plot_x(range, v), plot_x(range, v), TOP, bottom, plot_x(range, v), bottom + 17, v);
    for (double v = 0; v <= range.y * 1.0001; v += tick(range.y))
        fprintf(out, "<line class=grid x1=%d x2=%d y1=%.1f y2=%.1f /><text x=%d y=%.1f text-anchor=end>%.4g</text>",
                LEFT, right, plot_y(range, v), plot_y(range, v), LEFT - 6, plot_y(range, v) + 4, v);
    fprintf(out,
            "<line class=axis x1=%d x2=%d y1=%d y2=%d /><line class=axis x1=%d x2=%d y1=%d y2=%d />"
            "<text x=%d y=%d text-anchor=middle>%s</text>"
            "<text transform=\"translate(14 %d) rotate(-90)\" text-anchor=middle>%s</text>\n",
            LEFT, right, bottom, bottom, LEFT, LEFT, TOP, bottom, (LEFT + right) / 2, PLOT_HEIGHT - 8, x_label,
            (TOP + bottom) / 2, y_label);
}

static double root(double distance)
{
    return distance > 0 ? sqrt(distance) : 0;
}

/* The number of every point beside it, where no point or earlier label is. */
static void write_labels(FILE *out, const fidelity *f, plot_range range, const double *x)
{
    static const double place[][2] = {{10, -8},  {-10, -8},  {10, 16}, {-10, 16}, {0, -14},
                                      {18, 4},   {-18, 4},   {26, -8}, {-26, -8}, {0, -28},
                                      {14, -24}, {-14, -24}, {34, 4},  {-34, 4},  {0, -42}};
    enum { PLACES = sizeof place / sizeof place[0] };
    double taken[2 * FIDELITY_RUNS_MAX][2];
    int count = 0;
    for (; count < f->run_count; count++) {
        taken[count][0] = plot_x(range, x[count]);
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
        fprintf(out, "<text x=%.1f y=%.1f text-anchor=middle style=\"fill:%s;font-weight:600\">", px, py, colour(i));
        if (i == 0)
            fputs("R</text>", out);
        else
            fprintf(out, "%d</text>", i);
    }
}

/* Every run at (x [run_count], square root of its energy distance); the reference lies at 0. */
static void write_plot(FILE *out, const fidelity *f, const double *x, const char *x_label)
{
    plot_range range = {0, f->has_floor ? sqrt(f->image_floor) : 0};
    for (int i = 0; i < f->run_count; i++) {
        range.x = fmax(range.x, 1.12 * x[i]);
        range.y = fmax(range.y, root(f->runs[i].image.distance));
    }
    range.y = range.y > 0 ? 1.12 * range.y : 1;
    fprintf(out, "<svg width=%d height=%d viewBox=\"0 0 %d %d\" role=img>", PLOT_WIDTH, PLOT_HEIGHT, PLOT_WIDTH,
            PLOT_HEIGHT);
    if (f->has_floor) {
        const double y = plot_y(range, sqrt(f->image_floor));
        fprintf(out,
                "<rect x=%d y=%.1f width=%d height=%.1f fill=\"#eef3f1\" /><line x1=%d x2=%d y1=%.1f y2=%.1f "
                "stroke=\"#009e73\" stroke-dasharray=\"5 4\" /><text x=%d y=%.1f text-anchor=end "
                "style=\"fill:#00704f\">another seed (95 %%)</text>",
                LEFT, y, PLOT_WIDTH - LEFT - RIGHT, PLOT_HEIGHT - BOTTOM - y, LEFT, PLOT_WIDTH - RIGHT, y, y,
                PLOT_WIDTH - RIGHT - 4, y - 5);
    }
    plot_axes(out, range, x_label, "√ energy distance of whole images");
    for (int i = 0; i < f->run_count; i++) {
        fprintf(out, "<circle cx=%.1f cy=%.1f r=6 fill=\"%s\" stroke=\"#fff\"><title>", plot_x(range, x[i]),
                plot_y(range, root(f->runs[i].image.distance)), colour(i));
        escape(out, f->runs[i].name);
        fputs("</title></circle>", out);
    }
    write_labels(out, f, range, x);
    fputs("</svg>\n", out);
}

static void write_plots(FILE *out, const fidelity *f)
{
    double seconds[FIDELITY_RUNS_MAX], calls[FIDELITY_RUNS_MAX];
    for (int i = 0; i < f->run_count; i++) {
        seconds[i] = fidelity_seconds(f, &f->runs[i]);
        calls[i] = fidelity_head_calls(&f->runs[i]);
    }
    fputs("<h2>Trade-off</h2>\n<p>Left and low is better; R is the reference. In the shaded band a run is no farther "
          "from the reference "
          "than the reference with another seed is.</p><div class=row>\n",
          out);
    write_plot(out, f, seconds, "seconds per image");
    write_plot(out, f, calls, "sequential head calls per token");
    fputs("</div>\n", out);
}

static void write_channels(FILE *out, const fidelity *f)
{
    enum { BAR = 14, GAP = 4, HEIGHT = 90, MARGIN = 40 };
    double largest = 0;
    for (int i = 1; i < f->run_count; i++)
        for (int c = 0; c < f->channels; c++) largest = fmax(largest, f->runs[i].ks[c]);
    fputs("<h2>Channels</h2>\n<p>Kolmogorov-Smirnov statistic of every token channel. Filled: differs at the level of "
          "0.01, corrected for the number of channels.</p>\n<div class=row>\n",
          out);
    for (int i = 1; i < f->run_count; i++) {
        const fidelity_run *r = &f->runs[i];
        const int width = MARGIN + f->channels * (BAR + GAP);
        fprintf(out, "<figure><svg width=%d height=%d role=img>", width, HEIGHT + 22);
        fprintf(out,
                "<line class=axis x1=%d x2=%d y1=%d y2=%d /><text x=%d y=14 text-anchor=end>%.3f</text>"
                "<text x=%d y=%d text-anchor=end>0</text>",
                MARGIN - 3, width, HEIGHT + 2, HEIGHT + 2, MARGIN - 5, largest, MARGIN - 5, HEIGHT + 4);
        for (int c = 0; c < f->channels; c++) {
            const double height = largest > 0 ? r->ks[c] / largest * (HEIGHT - 6) : 0;
            const int x = MARGIN + c * (BAR + GAP);
            fprintf(out,
                    "<rect x=%d y=%.1f width=%d height=%.1f stroke=\"%s\" fill=\"%s\"><title>channel %d: %.4f, p = "
                    "%.3f</title></rect><text x=%d y=%d text-anchor=middle style=\"font-size:10px\">%d</text>",
                    x, HEIGHT + 2 - height, BAR, height, colour(i),
                    r->ks_p[c] <= FIDELITY_LEVEL ? colour(i) : "#ffffff", c, r->ks[c], r->ks_p[c], x + BAR / 2,
                    HEIGHT + 17, c);
        }
        fputs("</svg><figcaption>", out);
        run_title(out, f, i);
        fputs("</figcaption></figure>\n", out);
    }
    fputs("</div>\n", out);
}

/* --- acceptance maps ------------------------------------------------------------------------------------ */

/* The share of drafts accepted at each position: from white to blue; grey where nothing was drafted. */
static void paint_rates(const fidelity *f, const acceptance *a, uint8_t *rgb)
{
    for (int p = 0; p < f->positions; p++) {
        const double rate = a->verified_at[p] ? (double)a->taken_at[p] / (double)a->verified_at[p] : 0;
        const uint8_t shade[3] = {(uint8_t)(255 - 255 * rate), (uint8_t)(255 - 141 * rate), (uint8_t)(255 - 77 * rate)};
        memcpy(rgb + 3 * p, a->verified_at[p] ? shade : (const uint8_t[3]){190, 190, 190}, 3);
    }
}

static int write_map(FILE *out, const fidelity *f, int run)
{
    const fidelity_run *r = &f->runs[run];
    const size_t size = 3 * (size_t)f->side * (size_t)f->side;
    const int scale = f->side < 96 ? 96 / f->side : 1;
    image map = {f->side, f->side, malloc(size)};
    if (!map.rgb) return 1;
    fputs("<figure><div class=maps>", out);
    paint_rates(f, &r->accepted, map.rgb);
    int failed = embed(out, &map, scale, "share of drafts accepted at each position");
    for (int i = 0; i < r->map_count && !failed; i++) {
        char title[64];
        snprintf(title, sizeof title, "image %d", i);
        memcpy(map.rgb, r->maps + (size_t)i * size, size);
        failed = embed(out, &map, scale, title);
    }
    fputs("</div><figcaption>", out);
    run_title(out, f, run);
    fprintf(out, ": %.1f %% accepted</figcaption></figure>\n", 100 * fidelity_token_acceptance(r));
    free(map.rgb);
    return failed;
}

static int write_maps(FILE *out, const fidelity *f)
{
    int failed = 0, drafting = 0;
    for (int i = 0; i < f->run_count; i++) drafting += f->runs[i].stats.drafted > 0;
    if (!drafting) return 0;
    fputs("<h2>Acceptance maps</h2>\n<p>First the share of drafts accepted at each position, white 0 to blue 1; then "
          "single images: dark green accepted, light green replaced, grey made by the target alone.</p>\n"
          "<div class=row>\n",
          out);
    for (int i = 0; i < f->run_count && !failed; i++)
        if (f->runs[i].stats.drafted > 0) failed = write_map(out, f, i);
    fputs("</div>\n", out);
    return failed;
}

/* --- samples -------------------------------------------------------------------------------------------- */

static int write_samples(FILE *out, const fidelity *f)
{
    int failed = 0;
    if (!f->shown) return 0;
    const int columns = f->class_count <= 10 && f->class_count > 1 ? f->class_count : (int)ceil(sqrt(f->shown));
    const int rows = (f->shown + columns - 1) / columns;
    fputs("<h2>Samples</h2>\n<p>The same place has the same class, seed and noise in every run.</p>\n<div class=row>\n",
          out);
    for (int i = 0; i < f->run_count && !failed; i++) {
        image grid;
        if (image_grid_create(rows, columns, f->width, f->height, &grid) != 0) return 1;
        for (int k = 0; k < f->shown; k++)
            image_grid_set(&grid, k / columns, k % columns, f->width, f->height,
                           f->runs[i].rgb + (size_t)k * (size_t)f->width * (size_t)f->height * 3);
        fputs("<figure>", out);
        failed = embed(out, &grid, 1, f->runs[i].name);
        fputs("<figcaption>", out);
        run_title(out, f, i);
        fputs("</figcaption></figure>\n", out);
        free(grid.rgb);
    }
    fputs("</div>\n", out);
    return failed;
}

/* --- method --------------------------------------------------------------------------------------------- */

static void write_method(FILE *out, const fidelity *f)
{
    fprintf(
        out,
        "<h2>What is tested</h2>\n"
        "<p>The hypothesis is that a run's images have the same law as the reference's. Image <i>i</i> of both runs "
        "has the same class and shares its noise as far as the method allows, so the images come in pairs; a "
        "permutation swaps each pair or not, by a fair coin. p is the share of %d permutations (and the data "
        "itself) at least as far apart as the data. All tests are made on tokens, the scaled latents the image "
        "decoder is given, so p needs no image decoder.</p>\n"
        "<ul><li><b>Image energy distance</b>: 2E|A−B| − E|A−A′| − E|B−B′| of whole images, %d tokens × %d channels "
        "as one vector, each channel in "
        "standard deviations of the reference. Estimated without bias: around 0 where the laws are the same, so that "
        "small values can be "
        "negative.\n"
        "<li><b>Token energy distance</b>: the same of single tokens, averaged over the %d positions.\n"
        "<li><b>KS</b>: the largest difference of the two distribution functions of a channel, over all tokens; its p "
        "is corrected for %d channels by the largest statistic of each permutation (Westfall and Young).\n"
        "<li><b>Mean gap</b>: root mean square difference of channel means in standard deviations. <b>Covariance "
        "gap</b>: Frobenius norm of the difference of the channel covariances over that of the reference.\n"
        "<li><b>Another seed</b>: images of the reference against other images of the same classes of the reference, "
        "scaled to %d images. A paired difference can be real (small p) and yet lie far below it.\n"
        "<li><b>Verdict</b>: the least p of the three tests, corrected for three (Holm), against %.2g. "
        "“Indistinguishable” says that %d images show no difference, not that there is none.</ul>\n"
        "<p>Seconds depend on the machine and on the images made at a time; sequential head calls do not depend on "
        "the machine; those for an image are of target and draft, one after another, and shared by its "
        "batch.%s</p>\n<p class=sub>libmar %s</p>\n",
        FIDELITY_PERMUTATIONS, f->positions, f->channels, f->positions, f->channels, f->num, FIDELITY_LEVEL, f->num,
        f->judged ? " Digits are judged by a classifier that recognises 99 % of real ones." : "", mar_version());
}

int report_write_html(const fidelity *f, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    mar_err err = {0};
    FILE *out = open_memstream(&text, &size);
    if (!out) return tool_error("%s: out of memory for the page", path);
    write_head(out, f);
    write_verdicts(out, f);
    write_tables(out, f);
    write_plots(out, f);
    write_channels(out, f);
    int failed = write_maps(out, f) != 0 || write_samples(out, f) != 0;
    write_method(out, f);
    fputs("</html>\n", out);
    if (fclose(out) != 0 || failed) {
        free(text);
        return tool_error("%s: out of memory for the page", path);
    }
    failed = file_write(path, text, size, &err) != MAR_OK;
    free(text);
    return failed ? tool_error("%s", err.text) : 0;
}
