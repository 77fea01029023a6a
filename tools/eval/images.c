/* mar eval --images: judges images made elsewhere. */
#include "tools/cli/command.h"

#include "mar_eval.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"
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
    mar_features *network;    /* NULL: none */
    mar_features *vgg;        /* NULL: none */
    prompt_scorer scorer;     /* {0}: none */
    prompts prompts;          /* of the images */
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

/* Returns whether the images of a directory may have any sizes: no network resizes them without antialiasing. */
static int takes_any_size(const eval_options *o)
{
    return judge_is_none(&o->judge) || o->judge.resize == JUDGE_CLEAN;
}

/* Describes VGG16 and the models of the scores. */
static int describe_more(const images_job *job, char *text, size_t size)
{
    const eval_options *o = job->options;
    char file[EVAL_TEXT];
    if (o->judge.vgg) {
        if (describe_file(o->judge.vgg, file, sizeof file) != 0) return 1;
        text_append(text, size, "; precision and recall on vgg16 (fc2 before its ReLU) in %s, %s",
                    judge_dtypes[o->judge.dtype], file);
    }
    if (!job->scorer.columns.count) return 0;
    const score_options *s = &o->scores;
    const char *const models[3] = {s->clip ? tool_base_name(s->clip) : "", s->hps ? tool_base_name(s->hps) : "",
                                   s->reward ? tool_base_name(s->reward) : ""};
    const char *const ids[3] = {job->scorer.clip_id, job->scorer.hps_id, job->scorer.reward_id};
    text_append(text, size, "%s", scores_describe(models, ids, file, sizeof file));
    text_append(text, size, ", prompts %s, %d image%s each%s", tool_base_name(s->prompts), s->num > 1 ? s->num : 1,
                s->num > 1 ? "s" : "", s->clip ? "; prefix \"" CLIP_PREFIX "\"" : "");
    return 0;
}

static int describe(const images_job *job, eval_result *r)
{
    char reference[EVAL_TEXT] = "none", weights[EVAL_TEXT] = "", images[EVAL_TEXT], more[EVAL_TEXT] = "";
    const eval_options *o = job->options;
    const mar_features_config *network = mar_features_get_config(job->network);
    if (o->stats && describe_file(o->stats, reference, sizeof reference) != 0) return 1;
    if (o->judge.inception && describe_file(o->judge.inception, weights, sizeof weights) != 0) return 1;
    if (describe_file(o->images, images, sizeof images) != 0) return 1;
    if (describe_more(job, more, sizeof more) != 0) return 1;
    snprintf(r->protocol, sizeof r->protocol,
             "reference %s; features %s%s%s%s%s%s%s; %ld images of %dx%d%s in %s%s; libmar %s", reference,
             network ? network->name : "none", *weights ? " in " : "", *weights ? judge_dtypes[o->judge.dtype] : "",
             *weights ? ", " : "", weights, o->judge.resize == JUDGE_CLEAN ? ", resized as clean-fid" : "", more,
             job->images.images, job->images.width, job->images.height, takes_any_size(o) ? " and other sizes" : "",
             images, network ? "; Inception score in the order of NumPy's RandomState(2020), 10 splits" : "",
             mar_version());
    snprintf(r->backend, sizeof r->backend, "%s", mar_backend_description(job->library));
    return 0;
}

static int open_scorer(images_job *job)
{
    const eval_options *o = job->options;
    if (scores_read_prompts(&o->scores, &job->prompts) != 0) return 1;
    return prompt_scorer_open(&o->scores, &job->store, &o->run.machine, o->batch, job->bar,
                              (const char *const *)job->prompts.text, job->prompts.count, &job->scorer);
}

/* Judges images and reference. Features of single images are kept if precision and recall are requested, or if the
 * reference has the data for them. */
static int judge_both(images_job *job)
{
    const eval_options *o = job->options;
    job->store.quiet = o->quiet;
    if (judge_open(&o->judge, &job->store, &o->run.machine, o->batch, job->bar, &job->library, &job->network) != 0)
        return 1;
    if (judge_open_vgg(&o->judge, job->library, o->batch, job->bar, &job->vgg) != 0) return 1;
    if (scores_option(&o->scores) && open_scorer(job) != 0) return 1;
    judge request = {.library = job->library,
                     .network = job->network,
                     .vgg = job->vgg,
                     .batch = o->batch,
                     .keep_features = 1,
                     .any_size = takes_any_size(o),
                     .bar = job->bar};
    if (o->stats && judge_reference(&request, o->stats, &job->reference) != 0) return 1;
    request.keep_features = o->precision_recall || job->reference.features;
    request.keep_scores = 1;
    request.scorer = job->scorer.columns.count ? &job->scorer : NULL;
    request.pairs = &o->scores;
    return judge_images(&request, o->images, &job->images);
}

static int compute(images_job *job, eval_result *r)
{
    const double began = tool_seconds();
    const eval_gathered gathered = {.library = job->library,
                                    .network = mar_features_get_config(job->network),
                                    .vgg = mar_features_get_config(job->vgg),
                                    .clean = job->options->judge.resize == JUDGE_CLEAN,
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

static void free_sheet(const eval_report_image *sheet, int count)
{
    for (int i = 0; i < count; i++) free((uint8_t *)(uintptr_t)sheet[i].rgb);
}

/* Reads the images for the page, *count of them; none if they are too large. free_sheet frees them. */
static int read_sheet(const images_job *job, eval_report_image sheet[EVAL_SHEET_MAX], int *count)
{
    const eval_options *o = job->options;
    const judged *d = &job->images;
    const size_t bytes = (size_t)d->width * (size_t)d->height * 3, room = SHEET_BYTES / bytes;
    const int most = room < EVAL_SHEET_MAX ? (int)room : EVAL_SHEET_MAX;
    const eval_layout layout = {.images = d->images, .samples = eval_sample_count(d->images, most)};
    image_source *source;
    *count = 0;
    if (layout.samples == 0) return 0;
    if ((takes_any_size(o) ? image_source_open_any : image_source_open)(o->images, &source) != 0) return 1;
    int failed = 0;
    if (image_source_count(source) != d->images || image_source_width(source) != d->width ||
        image_source_height(source) != d->height)
        failed = tool_error("%s: has changed while it was judged", o->images);
    for (int i = 0; i < layout.samples && !failed; i++) {
        const long index = eval_sample_at(&layout, i);
        image picture;
        failed = image_source_read_pictures(source, index, 1, &picture) < 0;
        if (!failed)
            sheet[(*count)++] = (eval_report_image){index, -1, 0, 0, picture.rgb, picture.width, picture.height};
    }
    image_source_close(source);
    if (failed) free_sheet(sheet, *count);
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
    free_sheet(sheet, count);
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
    mar_features_free(job.vgg);
    prompt_scorer_close(&job.scorer);
    prompts_free(&job.prompts);
    models_free(&job.store);
    return status;
}
