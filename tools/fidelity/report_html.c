/* The page of `mar fidelity`: verdicts, table, plots, acceptance maps, samples, and what was tested. */
#include "tools/cli/command.h"
#include "tools/fidelity/compare.h"
#include "tools/images/image.h"
#include "tools/page/markup.h"
#include "tools/page/page.h"
#include "tools/fidelity/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- parts ---------------------------------------------------------------------------------------------- */

static void run_title(FILE *out, const fidelity *f, int run)
{
    fprintf(out, "<span class=dot style=\"background:%s\"></span>", markup_colour(run));
    if (run == 0)
        fputs("reference: ", out);
    else
        fprintf(out, "%d: ", run);
    page_options(out, f->runs[run].name);
}

/* --- head, verdicts, table ------------------------------------------------------------------------------ */

static void write_head(FILE *out, const fidelity *f)
{
    const run_options *o = &f->runs[0].options;
    fputs("<h1>Fidelity report: ", out);
    markup_escape(out, o->model);
    fprintf(out,
            "</h1>\n<p class=sub>%d images of %d class%s in each run, seed %" PRIu64 ", guidance %g%s, "
            "temperature %g",
            f->num, f->class_count, f->class_count > 1 ? "es" : "", f->seed, (double)o->params.cfg,
            f->vocabulary                              ? ""
            : o->params.cfg_schedule == MAR_CFG_LINEAR ? " (linear)"
                                                       : " (constant)",
            (double)o->params.temperature);
    if (f->vocabulary && o->params.top_k > 0) fprintf(out, ", top_k %d", o->params.top_k);
    if (f->vocabulary && o->params.top_p < 1) fprintf(out, ", top_p %g", (double)o->params.top_p);
    fprintf(out, ", %d at a time on ", f->batch);
    markup_escape(out, f->backend);
    fputs(". Every run is compared with the reference, ", out);
    page_options(out, f->runs[0].name);
    fprintf(out, ": %.4f s per image.</p>\n", f->runs[0].seconds.median);
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
        fprintf(out, "<br><b>%.2f× the speed, ", r->speed.median);
        markup_escape(out, fidelity_verdict(f, r, verdict, sizeof verdict));
        fputs("</b><small>", out);
        markup_escape(out, r->guarantee);
        fputs("</small></div>\n", out);
    }
}

static void write_speed_row(FILE *out, const fidelity *f, int run)
{
    const fidelity_run *r = &f->runs[run];
    fputs("<tr><td>", out);
    run_title(out, f, run);
    fprintf(out, "<td>%.4f", r->seconds.median);
    if (fidelity_has_spread(f)) fprintf(out, "<small>%.4f–%.4f</small>", r->seconds.low, r->seconds.high);
    fprintf(out, "<td>%.2f×", r->speed.median);
    if (run > 0 && fidelity_has_spread(f)) fprintf(out, "<small>%.2f–%.2f</small>", r->speed.low, r->speed.high);
    fprintf(out, "<td>%.1f", fidelity_passes(f, r));
    if (!f->vocabulary) fprintf(out, "<td>%.1f<td>%d", fidelity_head_calls(r), r->stats.head_calls_max);
    fprintf(out, "<td>%.1f", fidelity_calls_in_sequence(f, r));
    page_share(out, fidelity_token_acceptance(r));
    if (!f->vocabulary) page_share(out, fidelity_head_acceptance(r));
    if (run == 0)
        fputs("<td>–<td>–", out);
    else
        fprintf(out, "<td>%.5f<td>%.3f", r->image.distance, r->p);
    if (f->judged) page_share(out, (double)r->recognised / f->num);
    fputc('\n', out);
}

static void write_tables(FILE *out, const fidelity *f)
{
    fprintf(out,
            "<h2>Speed, acceptance, distance</h2>\n<div class=wide><table><tr><th>run<th>s per image<th>speed"
            "<th>passes for an image%s<th>drafts accepted%s<th>energy distance<th>p%s\n",
            f->vocabulary ? "<th>those of the draft, too"
                          : "<th>head calls of a token<th>at most<th>head calls for an image",
            f->vocabulary ? "" : "<th>accepted in the head", f->judged ? "<th>digits recognised" : "");
    for (int i = 0; i < f->run_count; i++) write_speed_row(out, f, i);
    if (f->has_floor)
        fprintf(out, "<tr class=floor><td>another seed, 95 %% below<td><td><td><td>%s<td><td>%.5f<td>%s\n",
                f->vocabulary ? "" : "<td><td><td>", f->image_floor, f->judged ? "<td>" : "");
    fputs("</table></div>\n", out);
}

/* The tests of a run one by one. Those between the energies and the gaps are of one kind of tokens only. */
static void write_detail(FILE *out, const fidelity *f)
{
    fprintf(out,
            "<h2>Distance in detail</h2>\n<div class=wide><table><tr><th>run<th>image energy distance<th>p"
            "<th>token energy distance<th>p%s<th>mean gap<th>covariance gap\n",
            f->vocabulary ? "<th>tokens, total variation<th>p<th>tokens by place<th>p<th>neighbours<th>p"
                          : "<th>largest KS (channel)<th>p");
    for (int i = 1; i < f->run_count; i++) {
        const fidelity_run *r = &f->runs[i];
        fputs("<tr><td>", out);
        run_title(out, f, i);
        fprintf(out, "<td>%.5f<td>%.3f<td>%.5f<td>%.3f", r->image.distance, r->image.p, r->token.distance, r->token.p);
        for (int k = 0; k < FIDELITY_COUNTS && f->vocabulary; k++)
            fprintf(out, "<td>%.4f<small>same law: below %.4f</small><td>%.3f", r->counts[k].tv, r->counts[k].tv_95,
                    r->counts[k].p);
        if (!f->vocabulary)
            fprintf(out, "<td>%.4f (%d)<td>%.3f", r->ks[r->ks_channel], r->ks_channel, r->ks_p[r->ks_channel]);
        fprintf(out, "<td>%.4f<td>%.4f\n", r->mean_gap, r->covariance_gap);
    }
    if (f->has_floor)
        fprintf(out, "<tr class=floor><td>another seed, 95 %% below<td>%.5f<td><td>%.5f<td>%s<td><td>\n",
                f->image_floor, f->token_floor, f->vocabulary ? "<td><td><td><td><td><td>" : "<td><td>");
    fputs("</table></div>\n", out);
}

/* --- plots ---------------------------------------------------------------------------------------------- */

static void write_plots(FILE *out, const fidelity *f)
{
    fputs("<h2>Trade-off</h2>\n<p>Left and low is better; R is the reference. In the shaded band a run is no farther "
          "from the reference than the reference with another seed is. A bar through a point is the spread of the "
          "times, if there is one.</p><div class=row>\n",
          out);
    report_plot(out, f, REPORT_SECONDS);
    if (!f->vocabulary) report_plot(out, f, REPORT_CALLS);
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
                    x, HEIGHT + 2 - height, BAR, height, markup_colour(i),
                    r->ks_p[c] <= FIDELITY_LEVEL ? markup_colour(i) : "#ffffff", c, r->ks[c], r->ks_p[c], x + BAR / 2,
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
    int failed = page_picture(out, &map, scale * f->side, scale * f->side, "share of drafts accepted at each position");
    for (int i = 0; i < r->map_count && !failed; i++) {
        char title[64];
        snprintf(title, sizeof title, "image %d", i);
        memcpy(map.rgb, r->maps + (size_t)i * size, size);
        failed = page_picture(out, &map, scale * f->side, scale * f->side, title);
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
    fputs("<h2>Acceptance</h2>\n<p>The share of verified drafts that were accepted; a line for each run that "
          "drafts.</p>\n"
          "<div class=row>\n",
          out);
    report_acceptance(out, f);
    fputs("</div>\n", out);
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
    fprintf(out, "<h2>Samples</h2>\n<p>The same place has the same class%s in every run.</p>\n<div class=row>\n",
            f->vocabulary ? "" : ", seed and noise");
    for (int i = 0; i < f->run_count && !failed; i++) {
        image grid;
        if (image_grid_create(rows, columns, f->width, f->height, &grid) != 0) return 1;
        for (int k = 0; k < f->shown; k++)
            image_grid_set(&grid, k / columns, k % columns, f->width, f->height,
                           f->runs[i].rgb + (size_t)k * (size_t)f->width * (size_t)f->height * 3);
        fputs("<figure>", out);
        failed = page_picture(out, &grid, grid.width, grid.height, f->runs[i].name);
        fputs("<figcaption>", out);
        run_title(out, f, i);
        fputs("</figcaption></figure>\n", out);
        free(grid.rgb);
    }
    fputs("</div>\n", out);
    return failed;
}

/* --- method --------------------------------------------------------------------------------------------- */

static void write_times(FILE *out, const fidelity *f)
{
    char turns[64] = "those of one turn";
    const char *ends = f->timed_turns >= FIDELITY_QUARTILES_MIN
                           ? "Below a median stand the first and the third quartile."
                           : "Below a median stand the least and the largest.";
    if (!fidelity_has_spread(f)) ends = "One turn has no spread.";
    if (fidelity_has_spread(f)) snprintf(turns, sizeof turns, "medians over %d turns", f->timed_turns);
    fprintf(out,
            "<h2>How it is timed</h2>\n"
            "<p>The runs take turns: in each all of them make the same %d images, one run right after the other, and "
            "another run comes first in the next. What else the machine does meanwhile so meets all runs alike. "
            "<b>Seconds</b> and <b>speed</b> are %s; the speed of a run in a turn is the "
            "reference's seconds in that turn over its own. %s %s</p>\n"
            "<p>Seconds depend on the machine and on the images made at a time. %s</p>\n",
            f->batch, turns,
            f->num / f->batch > 1
                ? "The first turn, which prepares memory and products, and a last one of fewer images are not counted."
                : "It is the only full one, and so has the preparation of memory and products in it.",
            ends,
            f->vocabulary
                ? "Passes do not depend on the machine, but those for an image are shared by its batch, which goes "
                  "on until its slowest image is done."
                : "Sequential head calls do not depend on the machine; those for an image are of target and "
                  "draft, one after another, and shared by its batch. So are the passes of the target's "
                  "transformer.");
}

static void write_method(FILE *out, const fidelity *f)
{
    char own[768]; /* the tests that this kind of tokens alone has */
    if (f->vocabulary)
        snprintf(
            own, sizeof own,
            "<li><b>Tokens, tokens by place, neighbours</b>: how often each token occurs, each token at each place, "
            "and each ordered pair of neighbours (right and below). Chi-square, the sum of (A − B)²/(A + B), "
            "decides; total variation is half the sum of the differences of frequencies, and of two runs of one law "
            "it is not 0 but below what stands beside it, 95 times of 100.\n");
    else
        snprintf(
            own, sizeof own,
            "<li><b>KS</b>: the largest difference of the two distribution functions of a channel, over all tokens; "
            "its p is corrected for %d channels by the largest statistic of each permutation (Westfall and Young).\n",
            f->channels);
    fprintf(
        out,
        "<h2>What is tested</h2>\n"
        "<p>The hypothesis is that a run's images have the same law as the reference's. Image <i>i</i> of both runs "
        "has the same class and %s, so the images come in pairs; a "
        "permutation swaps each pair or not, by a fair coin. p is the share of %d permutations (and the data "
        "itself) at least as far apart as the data. All tests are made on tokens, %s.</p>\n"
        "<ul><li><b>Image energy distance</b>: 2E|A−B| − E|A−A′| − E|B−B′| of whole images, %d tokens × %d channels "
        "as one vector, each channel in "
        "standard deviations of the reference. Estimated without bias: around 0 where the laws are the same, so that "
        "small values can be "
        "negative.\n"
        "<li><b>Token energy distance</b>: the same of single tokens, averaged over the %d positions.\n"
        "%s<li><b>Mean gap</b>: root mean square difference of channel means in standard deviations. <b>Covariance "
        "gap</b>: Frobenius norm of the difference of the channel covariances over that of the reference.\n"
        "<li><b>Another seed</b>: images of the reference against other images of the same classes of the reference, "
        "scaled to %d images. A paired difference can be real (small p) and yet lie far below it.\n"
        "<li><b>Verdict</b>: the least p of the %d tests, corrected for their number (Holm), against %.2g. "
        "“Indistinguishable” says that %d images show no difference, not that there is none.</ul>\n"
        "<p>%s</p>\n",
        f->vocabulary ? "the same seed, though a run that drafts uses other random numbers for nearly all tokens"
                      : "shares its noise as far as the method allows",
        FIDELITY_PERMUTATIONS,
        f->vocabulary ? "discrete ones, and on what the image decoder's codebook has for them"
                      : "the scaled latents the image decoder is given, so p needs no image decoder",
        f->positions, f->channels, f->positions, own, f->num, fidelity_tests(f), FIDELITY_LEVEL, f->num,
        f->judged ? "Digits are judged by a classifier that recognises 99 % of real ones." : "");
}

int report_write_html(const fidelity *f, const char *path)
{
    text_buffer text;
    FILE *out = page_open(&text, "Fidelity report", "", path);
    if (!out) return 1;
    write_head(out, f);
    write_verdicts(out, f);
    write_tables(out, f);
    write_detail(out, f);
    write_plots(out, f);
    if (!f->vocabulary) write_channels(out, f);
    const int lacks = write_maps(out, f) != 0 || write_samples(out, f) != 0;
    write_method(out, f);
    write_times(out, f);
    return page_close(out, &text, lacks, path);
}
