/* RUN/report.html: the numbers, their protocol, what is published beside them, where the time went, what became of
 * drafts, images. */
#include "tools/eval/report.h"

#include "tools/generate/class_names.h"
#include "tools/eval/published.h"
#include "tools/page/markup.h"
#include "tools/page/page.h"
#include "tools/page/plot.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char style[] =
    ".figures{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0}"
    ".figures div{background:#f6f7f9;padding:.5rem .9rem;min-width:7rem}"
    ".figures b{display:block;font-size:1.5rem;line-height:1.3;font-variant-numeric:tabular-nums}"
    ".figures small{color:#5b6675}"
    ".protocol{background:#f6f7f9;padding:.55rem 1rem;font:.85rem/1.5 ui-monospace,monospace;overflow-wrap:anywhere}"
    ".bar{display:flex;height:1.6rem;margin:.6rem 0}.bar span{min-width:1px}"
    "h1{overflow-wrap:anywhere}h3{margin-top:1rem}.wide td:first-child{min-width:8rem}"
    "svg{max-width:100%;min-width:36rem;height:auto}td{overflow-wrap:anywhere}.ours "
    "td{font-weight:600;background:#f6f7f9}"
    ".ours small{font-weight:400}table.narrow{width:auto;min-width:min(100%,30rem)}"
    "table.narrow td{white-space:normal}table.narrow td+td{text-align:left}"
    ".sheet{display:flex;flex-wrap:wrap;gap:.6rem}.sheet figure{max-width:10rem}"
    ".sheet figcaption{font-size:.75rem;line-height:1.3;overflow-wrap:anywhere}.photos img{image-rendering:auto}"
    "@media(max-width:40rem){body{margin:1rem auto}.sub,.card{overflow-wrap:anywhere}}";

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static void write_head(FILE *out, const eval_result *r, const char *title)
{
    fputs("<h1>Evaluation: ", out);
    markup_escape(out, title);
    fprintf(out, "</h1>\n<p class=sub>%ld images", r->images);
    if (r->reference_images > 0) fprintf(out, " against %ld of the reference", r->reference_images);
    fputs(", on ", out);
    markup_escape(out, r->backend);
    if (*r->published) {
        fputs("; a model of the shape of ", out);
        markup_escape(out, r->published);
    }
    fputs(".", out);
    if (*r->model) {
        fputs(" Sampling: ", out);
        if (*r->ways)
            page_options(out, r->ways);
        else
            fputs("plain", out);
        fputs("; ", out);
        markup_escape(out, r->guarantee);
        fputs(".", out);
    }
    fputs("</p>\n", out);
}

static void write_figure(FILE *out, const char *name, double value, int digits, const char *more)
{
    if (!isfinite(value)) return;
    fprintf(out, "<div>%s<b>%.*f</b><small>%s</small></div>\n", name, digits, value, more);
}

static void write_reason(FILE *out, const char *what, double value, const char *why)
{
    if (isfinite(value) || !*why) return;
    fprintf(out, "<p>No %s: ", what);
    markup_escape(out, why);
    fputs("</p>\n", out);
}

static void write_figures(FILE *out, const eval_result *r)
{
    char deviation[64], rate[64];
    snprintf(deviation, sizeof deviation, "± %.2f over 10 splits", r->is_deviation);
    snprintf(rate, sizeof rate, "%.3g images/s in all", eval_result_rate(r));
    fputs("<div class=figures>\n", out);
    write_figure(out, eval_result_distance(r), r->fid, 2, isnan(r->accuracy) ? "" : "of the demo’s features");
    write_figure(out, "sFID", r->sfid, 2, "");
    write_figure(out, "Inception score", r->is_mean, 2, deviation);
    write_figure(out, "Inception score", r->is_adm, 2, "in ADM’s order");
    write_figure(out, "precision", r->precision, 3, "ADM-style");
    write_figure(out, "recall", r->recall, 3, "ADM-style");
    write_figure(out, "digits recognised", r->accuracy * 100, 1, "%");
    write_figure(out, "seconds per image", r->generate_s > 0 ? eval_result_seconds(r) : NAN, 4, rate);
    fputs("</div>\n", out);
    write_reason(out, eval_result_distance(r), r->fid, "there is no reference");
    write_reason(out, "sFID", r->sfid, r->why_no_sfid);
    write_reason(out, "precision and recall", r->precision, r->why_no_precision);
}

static void write_protocol(FILE *out, const eval_result *r)
{
    for (int i = 0; i < r->warning_count; i++) {
        fputs("<div class=\"card close\">", out);
        markup_escape(out, r->warnings[i]);
        fputs("</div>\n", out);
    }
    fputs("<h2>Protocol</h2>\n<p>A number is comparable only with numbers of the same protocol.</p>\n"
          "<p class=protocol>",
          out);
    markup_escape(out, r->protocol);
    fputs("</p>\n", out);
}

static void cell(FILE *out, double value, int digits)
{
    if (isfinite(value))
        fprintf(out, "<td>%.*f", digits, value);
    else
        fputs("<td>–", out);
}

static void write_published_rows(FILE *out, const eval_result *r)
{
    const eval_published *p;
    for (int i = 0; (p = eval_published_get(r->published, i)) != NULL; i++) {
        fprintf(out, "<tr><td>%s, ", p->model);
        markup_escape(out, p->what);
        fputs("<small>", out);
        markup_escape(out, p->source);
        fputs("</small>", out);
        cell(out, p->fid, 2), cell(out, p->is, 1), cell(out, p->precision, 2), cell(out, p->recall, 2);
        fputc('\n', out);
    }
}

static void write_published(FILE *out, const eval_result *r)
{
    fputs("<h2>Beside what is published</h2>\n", out);
    if (isfinite(r->accuracy)) {
        fputs(
            "<p>There are no published numbers of the demo. The Fréchet distance here is that of Gaussians in the "
            "features of a classifier of handwritten digits, the one that also says how many digits it recognises: "
            "|μ − μ′|² + tr(Σ + Σ′ − 2(ΣΣ′)<sup>½</sup>), 0 for equal means and covariances. It means what FID means, "
            "but for digits: it falls as images and reference become alike, and it is no FID. It can be compared "
            "with distances in the same features, to the same reference, of as many images; fewer images make "
            "it larger.</p>\n",
            out);
    } else if (!*r->published) {
        fputs(*r->model
                  ? "<p>No numbers of a model of this shape are known here.</p>\n"
                  : "<p>The images were made elsewhere; what is published of their model is not known here.</p>\n",
              out);
    } else {
        fputs("<div class=wide><table><tr><th>images<th>FID<th>Inception score<th>precision<th>recall\n"
              "<tr class=ours><td>this run",
              out);
        if (*r->ways) {
            fputs("<small>", out);
            page_options(out, r->ways);
            fputs("</small>", out);
        }
        cell(out, r->fid, 2), cell(out, r->is_mean, 1), cell(out, r->precision, 2), cell(out, r->recall, 2);
        fputc('\n', out);
        write_published_rows(out, r);
        fputs("</table></div>\n<p>Published numbers are of 50&#8239;000 images and ADM’s statistics of ImageNet. "
              "A dash: not published, or not taken over here.</p>\n",
              out);
    }
}

/* --- time --------------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name, *colour;
    double seconds;
} time_part;

/* Decimals for three digits that say something. */
static int digits_of(double v)
{
    return v >= 100 ? 0 : v >= 10 ? 1 : v >= 1 ? 2 : v >= 0.1 ? 3 : v >= 0.01 ? 4 : v >= 0.001 ? 5 : 6;
}

/* Whether what was evaluated has no diffusion head: its transformer's passes, which mar_stats counts as the decoder's,
 * give its tokens. */
static int is_discrete(const mar_stats *s)
{
    return s->tokens > 0 && s->head_calls == 0;
}

static void write_time(FILE *out, const eval_result *r)
{
    const mar_stats *s = &r->stats;
    const double inside = s->encoder_s + s->decoder_s + s->head_s + s->draft_s + s->verify_s + s->vae_s;
    const time_part parts[] = {
        {"encoder", markup_colour(1), s->encoder_s},
        {is_discrete(s) ? "transformer" : "decoder", markup_colour(6), s->decoder_s},
        {"head", markup_colour(2), s->head_s},
        {"draft model", markup_colour(5), s->draft_s},
        {"verification", markup_colour(7), s->verify_s},
        {"image decoder", markup_colour(3), s->vae_s},
        {"the rest of making images", "#6b7686", fmax(r->generate_s - inside, 0)},
        {"judging", markup_colour(4), r->features_s},
        {"writing", MARKUP_AXIS, r->write_s},
        {"adding up, distances", MARKUP_INK, r->merge_s},
    };
    enum { PARTS = sizeof parts / sizeof parts[0] };
    double all = 0;
    for (int i = 0; i < PARTS; i++) all += parts[i].seconds;
    if (!(all > 0) || r->images < 1) return;
    fprintf(out, "<h2>Where the time went</h2>\n<p>%.4g s in all", all);
    if (r->processes > 1) fprintf(out, ", summed over %d processes", r->processes);
    fputs(".", out);
    if (r->generate_s > 0)
        fprintf(out, " An image takes %.4g s to make, and judging adds %.1f %% to that.", eval_result_seconds(r),
                100 * r->features_s / r->generate_s);
    fputs("</p>\n<div class=bar>", out);
    for (int i = 0; i < PARTS; i++)
        if (parts[i].seconds > 0)
            fprintf(out, "<span style=\"width:%.3f%%;background:%s\" title=\"%s: %.1f %%\"></span>",
                    100 * parts[i].seconds / all, parts[i].colour, parts[i].name, 100 * parts[i].seconds / all);
    fputs("</div>\n<div class=wide><table><tr><th>part<th>seconds<th>s per image<th>share\n", out);
    for (int i = 0; i < PARTS; i++)
        if (parts[i].seconds > 0)
            fprintf(out, "<tr><td><span class=dot style=\"background:%s\"></span>%s<td>%.*f<td>%.*f<td>%.1f %%\n",
                    parts[i].colour, parts[i].name, digits_of(parts[i].seconds), parts[i].seconds,
                    digits_of(parts[i].seconds / (double)r->images), parts[i].seconds / (double)r->images,
                    100 * parts[i].seconds / all);
    fputs("</table></div>\n", out);
}

/* --- drafts ------------------------------------------------------------------------------------------------------- */

/* The share of drafts accepted of those that `at` counts: by autoregressive step, or by lateness. */
typedef struct {
    const long *accepted, *replaced;
} drafts;

static double share_of(const void *of, int at)
{
    const drafts *d = of;
    const long verified = d->accepted[at] + d->replaced[at];
    return verified > 0 ? (double)d->accepted[at] / (double)verified : NAN;
}

/* That share for 0..n-1; the line breaks where no draft was verified. `unit` is what a place is: "step". */
static void write_curve(FILE *out, const char *axis, const char *unit, const long *accepted, const long *replaced,
                        const long *tokens, int n)
{
    const plot_frame frame = {720, 280, 0, n > 1 ? n - 1 : 1, 0, 1, 0};
    const drafts d = {accepted, replaced};
    fprintf(out, "<div class=wide><svg width=%d height=%d viewBox=\"0 0 %d %d\" role=img>", frame.width, frame.height,
            frame.width, frame.height);
    plot_axes(out, &frame, axis, "share of drafts accepted");
    plot_curve(out, &frame, markup_colour(1), share_of, &d, n);
    for (int i = 0; i < n; i++) {
        const double share = share_of(&d, i);
        if (isnan(share)) continue;
        fprintf(out, "<circle cx=%.1f cy=%.1f r=%d fill=\"%s\"><title>%s %d: %ld accepted, %ld replaced",
                plot_x(&frame, i), plot_y(&frame, share), n > 100 ? 2 : 3, markup_colour(1), unit, i, accepted[i],
                replaced[i]);
        if (tokens) fprintf(out, ", %ld tokens in all", tokens[i]);
        fputs("</title></circle>", out);
    }
    fputs("</svg></div>\n", out);
}

static void write_drafts(FILE *out, const eval_result *r)
{
    const mar_stats *s = &r->stats;
    const int discrete = is_discrete(s);
    if (s->drafted > 0) {
        fprintf(
            out,
            "<h2>Drafts</h2>\n<p>%ld of %ld verified drafts were accepted, %.1f %%%s. A round of verification advances "
            "%.2f autoregressive steps.",
            s->accepted, s->drafted, 100.0 * (double)s->accepted / (double)s->drafted,
            discrete ? ", those behind a rejection and on other branches of a tree included" : "",
            s->rounds > 0 ? (double)s->round_steps / (double)s->rounds : 0.0);
        if (!discrete && s->drafted > s->accepted &&
            s->proposals == 0) /* those inside the head are counted with them */
            fprintf(out, " A token that replaces a rejected draft took %.2f candidates.",
                    (double)s->residual_tries / (double)(s->drafted - s->accepted));
        if (!discrete)
            fprintf(out, " At the last index draft and target differ by %.3g a channel (root mean square).",
                    s->accepted_shift);
        fputs("</p>\n", out);
        if (r->steps > 0)
            write_curve(out, "autoregressive step", "step", r->accepted, r->replaced, r->tokens, r->steps);
        if (r->latest > 0)
            write_curve(out, "steps by which the draft’s conditions were late", "late by", r->accepted_late,
                        r->replaced_late, NULL, r->latest);
    }
    if (s->proposals > 0)
        fprintf(out,
                "<h2>Speculation inside the head</h2>\n<p>%ld of %ld proposed transitions were accepted, %.1f %%. The "
                "calls of "
                "the head one after another are %.1f for each token of an image, at most %d for one.</p>\n",
                s->proposals_accepted, s->proposals, 100.0 * (double)s->proposals_accepted / (double)s->proposals,
                s->tokens > 0 ? s->head_calls / (double)s->tokens : 0.0, s->head_calls_max);
}

/* --- images ------------------------------------------------------------------------------------------------------- */

/* "4", "207 golden retriever", "no class". */
static const char *label_text(const eval_report_extras *x, int label, char *text, size_t size)
{
    char name[128];
    if (label < 0)
        snprintf(text, size, "no class");
    else if (*class_name(label, x->classes, name, sizeof name))
        snprintf(text, size, "%d %s", label, name);
    else
        snprintf(text, size, "%d", label);
    return text;
}

/* Small pictures are shown twice as large, photographs smaller. Returns 0, or 1 if memory ran out. */
static int write_picture(FILE *out, const eval_report_image *i, const char *title)
{
    enum { SMALL = 64, LARGE = 128 };
    const image picture = {i->width, i->height, (uint8_t *)(uintptr_t)i->rgb}; /* which is only read */
    const int longer = i->width > i->height ? i->width : i->height;
    const double scale = longer <= SMALL ? 2 : longer > LARGE ? (double)LARGE / longer : 1;
    return page_picture(out, &picture, (int)lround(scale * i->width), (int)lround(scale * i->height), title);
}

static const char *sheet_kind(const eval_report_image *i)
{
    return i->width > 64 || i->height > 64 ? "sheet photos" : "sheet";
}

static int write_sheet(FILE *out, const eval_result *r, const eval_report_extras *x)
{
    int lacks = 0;
    char label[160], title[200];
    if (x->sheet_count < 1) return 0;
    const int foreign = !*r->model; /* their classes are not known */
    fprintf(out, "<h2>Images</h2>\n<p>%d of them, evenly spread over all, each with its %s.</p>\n<div class=\"%s\">\n",
            x->sheet_count, foreign ? "number" : "class", sheet_kind(x->sheet));
    for (int k = 0; k < x->sheet_count && !lacks; k++) {
        const eval_report_image *i = &x->sheet[k];
        label_text(x, i->label, label, sizeof label);
        if (foreign) snprintf(label, sizeof label, "%ld", i->index);
        snprintf(title, sizeof title, foreign ? "image %ld" : "image %ld, class %s", i->index, label);
        fputs("<figure>", out);
        lacks = write_picture(out, i, title);
        fputs("<figcaption>", out);
        markup_escape(out, label);
        fputs("</figcaption></figure>\n", out);
    }
    fputs("</div>\n", out);
    return lacks;
}

static int write_rejected(FILE *out, const eval_report_extras *x)
{
    int lacks = 0;
    char label[160], title[200];
    if (x->rejected_count < 1) return 0;
    fprintf(out,
            "<h2>Most rejected</h2>\n<p>The images whose drafts were replaced most, with the share of their verified "
            "drafts.</p>\n<div class=\"%s\">\n",
            sheet_kind(x->rejected));
    for (int k = 0; k < x->rejected_count && !lacks; k++) {
        const eval_report_image *i = &x->rejected[k];
        snprintf(title, sizeof title, "image %ld, class %s", i->index, label_text(x, i->label, label, sizeof label));
        fputs("<figure>", out);
        lacks = write_picture(out, i, title);
        fprintf(out, "<figcaption><b>%.1f %%</b> (%ld of %ld)<br>image %ld, class ",
                i->verified > 0 ? 100.0 * (double)i->replaced / (double)i->verified : 0.0, i->replaced, i->verified,
                i->index);
        markup_escape(out, label);
        fputs("</figcaption></figure>\n", out);
    }
    fputs("</div>\n", out);
    return lacks;
}

/* --- settings ----------------------------------------------------------------------------------------------------- */

/* Returns 0, or 1 if memory ran out. */
static int write_value(FILE *out, const cJSON *value)
{
    if (cJSON_IsNull(value)) {
        fputs("–", out);
    } else if (cJSON_IsBool(value)) {
        fputs(cJSON_IsTrue(value) ? "on" : "off", out);
    } else if (cJSON_IsString(value) || cJSON_IsRaw(value)) {
        markup_escape(out, value->valuestring);
    } else {
        char *text = cJSON_PrintUnformatted(value);
        if (!text) return 1;
        markup_escape(out, text);
        cJSON_free(text);
    }
    return 0;
}

/* The items that are no objects, then a table for each that is one. */
static int write_table(FILE *out, const cJSON *object, const char *name)
{
    int lacks = 0, rows = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        if (cJSON_IsObject(item)) continue;
        if (rows++ == 0) {
            if (name) {
                fputs("<h3>", out);
                markup_escape(out, name);
                fputs("</h3>\n", out);
            }
            fputs("<div class=wide><table class=narrow>\n", out);
        }
        fputs("<tr><td>", out);
        markup_escape(out, item->string);
        fputs("<td>", out);
        lacks |= write_value(out, item);
        fputc('\n', out);
    }
    if (rows) fputs("</table></div>\n", out);
    return lacks;
}

static int write_settings(FILE *out, const eval_report_extras *x)
{
    if (!x->settings || !x->settings->child) return 0;
    fputs("<h2>Settings</h2>\n", out);
    int lacks = write_table(out, x->settings, NULL);
    const cJSON *item;
    cJSON_ArrayForEach(item, x->settings)
    {
        if (cJSON_IsObject(item)) lacks |= write_table(out, item, item->string);
    }
    return lacks;
}

int eval_report_write(const eval_result *r, const eval_report_extras *x, const char *path)
{
    text_buffer text;
    const char *title = x->title ? x->title : *r->model ? r->model : "images";
    FILE *out = page_open(&text, title, style, path);
    if (!out) return 1;
    write_head(out, r, title);
    write_figures(out, r);
    write_protocol(out, r);
    write_published(out, r);
    write_time(out, r);
    write_drafts(out, r);
    int lacks = write_sheet(out, r, x) != 0 || write_rejected(out, x) != 0;
    lacks |= write_settings(out, x);
    return page_close(out, &text, lacks, path);
}
