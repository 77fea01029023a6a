/* mar eval --images: judges images made elsewhere. */
#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/eval/batch.h"
#include "tools/eval/numbers.h"
#include "tools/eval/options.h"
#include "tools/eval/report.h"
#include "tools/generate/job.h"
#include "tools/images/source.h"
#include "tools/cli/interruption.h"
#include "tools/eval/judge.h"
#include "tools/generate/models.h"
#include "tools/generate/record.h"
#include "tools/eval/run_directory.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const eval_options *options;
    progress *bar;
    model_store store;
    mar *library;
    mar_features *network;
    eval_reference reference; /* {0}: none */
    judged images;
    int writes;              /* 1: --out was given */
    run_directory directory; /* RUN */
} images_job;

/* Writes "name (length and hash)", "name (a directory)", or for a built-in file the name alone. */
static int describe_file(const char *path, char *text, size_t size)
{
    char id[RECORD_ID] = "";
    const int is_directory = judge_is_directory(path);
    if (!is_directory && record_identify_file(path, id) != 0) return 1;
    snprintf(text, size, "%s%s%s%s", is_directory ? path : tool_base_name(path), *id || is_directory ? " (" : "",
             is_directory ? "a directory" : id, *id || is_directory ? ")" : "");
    return 0;
}

static int describe(const images_job *job, eval_result *r)
{
    char reference[EVAL_TEXT] = "none", weights[EVAL_TEXT] = "", images[EVAL_TEXT];
    const eval_options *o = job->options;
    if (o->stats && describe_file(o->stats, reference, sizeof reference) != 0) return 1;
    if (o->judge.inception && describe_file(o->judge.inception, weights, sizeof weights) != 0) return 1;
    if (describe_file(o->images, images, sizeof images) != 0) return 1;
    snprintf(r->protocol, sizeof r->protocol,
             "reference %s; features %s%s%s%s%s; %ld images of %dx%d in %s; Inception score in the order of NumPy's "
             "RandomState(2020), 10 splits; libmar %s",
             reference, mar_features_get_config(job->network)->name, *weights ? " in " : "",
             *weights ? judge_dtypes[o->judge.dtype] : "", *weights ? ", " : "", weights, job->images.images,
             job->images.width, job->images.height, images, mar_version());
    snprintf(r->backend, sizeof r->backend, "%s", mar_backend_description(job->library));
    return 0;
}

/* Judges images and reference. Features of single images are kept if precision and recall are requested, or if the
 * reference has the data for them. */
static int judge_both(images_job *job)
{
    const eval_options *o = job->options;
    job->store.quiet = o->quiet;
    if (judge_open(&o->judge, &job->store, &o->run.machine, o->batch, job->bar, &job->library, &job->network) != 0)
        return 1;
    judge request = {
        .library = job->library, .network = job->network, .batch = o->batch, .keep_features = 1, .bar = job->bar};
    if (o->stats && judge_reference(&request, o->stats, &job->reference) != 0) return 1;
    request.keep_features = o->precision_recall || job->reference.features;
    request.keep_scores = 1;
    return judge_images(&request, o->images, &job->images);
}

static int compute(images_job *job, eval_result *r)
{
    const double began = tool_seconds();
    const eval_gathered gathered = {.library = job->library,
                                    .network = mar_features_get_config(job->network),
                                    .reference = job->options->stats ? &job->reference : NULL,
                                    .images = &job->images};
    if (eval_numbers(&gathered, r) != 0) return 1;
    r->accuracy = NAN; /* the classes of the images are unknown */
    r->features_s = job->images.seconds;
    r->merge_s = tool_seconds() - began;
    r->processes = 1;
    return describe(job, r);
}

/* --- RUN ---------------------------------------------------------------------------------------------------------- */

enum { SHEET_BYTES = 64 << 20 }; /* maximum bytes of the pixels shown */

/* Checks the page's destination if --out was given: a run of a model, with a page of its own, is rejected. */
static int check_out(images_job *job)
{
    const eval_options *o = job->options;
    const option *out = options_find(o->given, "out");
    char path[RUN_PATH];
    if (!out->given) return 0;
    job->writes = 1;
    if (run_directory_check(o->out, &job->directory) != 0) return 1;
    if (access(run_path(&job->directory, "settings.json", path), F_OK) != 0) return 0;
    return tool_error("%s: is a run of a model, expected another --out for --images", o->out);
}

/* Reads the images for the page, in one block that sheet[0] begins. *count is 0 if they are too large. */
static int read_sheet(const images_job *job, eval_report_image sheet[EVAL_SHEET_MAX], int *count)
{
    const judged *d = &job->images;
    const size_t bytes = (size_t)d->width * (size_t)d->height * 3, room = SHEET_BYTES / bytes;
    const int most = room < EVAL_SHEET_MAX ? (int)room : EVAL_SHEET_MAX;
    const eval_layout layout = {.images = d->images, .samples = eval_sample_count(d->images, most)};
    image_source *source;
    *count = layout.samples;
    if (*count == 0) return 0;
    if (image_source_open(job->options->images, &source) != 0) return 1;
    uint8_t *rgb = malloc((size_t)*count * bytes);
    int failed = rgb ? 0 : tool_error("%s: out of memory for the pictures of the page", job->options->images);
    if (!failed && (image_source_count(source) != d->images || image_source_width(source) != d->width ||
                    image_source_height(source) != d->height))
        failed = tool_error("%s: has changed while it was judged", job->options->images);
    for (int i = 0; i < *count && !failed; i++) {
        const long index = eval_sample_at(&layout, i);
        sheet[i] = (eval_report_image){index, -1, 0, 0, rgb + (size_t)i * bytes, d->width, d->height};
        failed = image_source_read(source, index, 1, rgb + (size_t)i * bytes);
    }
    image_source_close(source);
    if (failed) free(rgb);
    return failed;
}

/* Writes RUN/report.html and RUN/result.json. */
static int write_files(images_job *job, const eval_result *r)
{
    eval_report_image sheet[EVAL_SHEET_MAX];
    char path[RUN_PATH];
    int count;
    if (!job->writes) return 0;
    if (read_sheet(job, sheet, &count) != 0) return 1;
    const eval_report_extras extras = {.title = job->options->images, .sheet = sheet, .sheet_count = count};
    const int failed = output_begin(&job->directory.out) ||
                       eval_report_write(r, &extras, run_path(&job->directory, "report.html", path)) ||
                       eval_result_write(r, run_path(&job->directory, "result.json", path));
    if (count) free((uint8_t *)(uintptr_t)sheet[0].rgb);
    if (failed) output_abandon(&job->directory.out);
    return failed;
}

int eval_images_run(const eval_options *o, progress *bar, eval_result *r)
{
    images_job job = {.options = o, .bar = bar};
    *r = (eval_result){0};
    interruption_ends();
    int status = check_out(&job);
    if (status == 0) status = judge_both(&job);
    if (status == 0) status = compute(&job, r);
    if (status == 0) status = write_files(&job, r);
    output_free(&job.directory.out);
    judged_free(&job.images);
    eval_reference_free(&job.reference);
    mar_features_free(job.network);
    models_free(&job.store);
    return status;
}
