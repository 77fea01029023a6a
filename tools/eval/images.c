/* mar eval --images: judges images made elsewhere. */
#include "tools/cli/command.h"

#include "mar_eval.h"
#include "mar_measure.h"
#include "tools/eval/batch.h"
#include "tools/eval/numbers.h"
#include "tools/eval/options.h"
#include "tools/eval/protocol.h"
#include "tools/eval/report.h"
#include "tools/generate/job.h"
#include "tools/images/source.h"
#include "tools/cli/interruption.h"
#include "tools/eval/judge.h"
#include "tools/generate/models.h"
#include "tools/eval/run_directory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const eval_options *options;
    progress *bar;
    model_store store;
    judge judge;
    prompts prompts;          /* of the images */
    eval_reference reference; /* {0}: none */
    judged images;
    record_texts texts;      /* what the judging depends on */
    int writes;              /* 1: --out was given */
    run_directory directory; /* RUN */
} images_job;

/* Adds the identity of the images to what the judging depends on, which the page shows, too. */
static int describe_images(images_job *job, eval_result *r)
{
    const eval_options *o = job->options;
    char id[RECORD_ID];
    if (protocol_add_judging(&job->texts, o, &job->judge.scorer) != 0 || judge_identify(o->images, id) != 0) return 1;
    record_texts_add(&job->texts, "images", "%s", tool_base_name(o->images));
    record_texts_add(&job->texts, "images_id", "%s", id);
    if (o->scores.num > 1) record_texts_add(&job->texts, "num", "%d", o->scores.num);
    if (record_texts_end(&job->texts, "the protocol") != 0) return 1;
    protocol_of_images(&job->texts, mar_features_get_config(job->judge.network), &job->images, r->protocol);
    snprintf(r->backend, sizeof r->backend, "%s", mar_backend_description(job->judge.library));
    return 0;
}

/* Judges images and reference. Features of single images are kept if precision and recall are requested, or if the
 * reference has the data for them. */
static int judge_both(images_job *job)
{
    const eval_options *o = job->options;
    judge *j = &job->judge;
    job->store.quiet = o->quiet;
    if (judge_open(&o->judge, &job->store, &o->run.machine, o->batch, job->bar, j) != 0) return 1;
    if (scores_option(&o->scores) &&
        (scores_read_prompts(&o->scores, &job->prompts) != 0 ||
         prompt_scorer_open(&o->scores, &job->store, &o->run.machine, o->batch, job->bar,
                            (const char *const *)job->prompts.text, job->prompts.count, &j->scorer) != 0))
        return 1;
    j->keep_features = 1;
    if (o->stats && judge_reference(j, o->stats, &job->reference) != 0) return 1;
    j->keep_features = o->precision_recall || job->reference.features;
    j->keep_scores = 1;
    return judge_images(j, o->images, &job->images);
}

static int compute_images_result(images_job *job, eval_result *r)
{
    const double began = tool_seconds();
    const eval_reference *reference = job->options->stats ? &job->reference : NULL;
    if (eval_judged_numbers(&job->judge, reference, &job->images, r) != 0) return 1;
    r->accuracy = NAN; /* the classes of the images are unknown */
    r->features_s = job->images.seconds;
    r->merge_s = tool_seconds() - began;
    r->processes = 1;
    return describe_images(job, r);
}

/* --- RUN ---------------------------------------------------------------------------------------------------------- */

enum { SHEET_BYTES = 64 << 20 }; /* maximum bytes of the pixels shown */

/* Checks the page's destination if --out was given: a run of a model, with a page of its own, is rejected. */
static int check_images_out(images_job *job)
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
    for (int i = 0; i < count; i++) free(sheet[i].rgb);
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
    if ((judge_takes_any_size(&job->judge) ? image_source_open_any : image_source_open)(o->images, &source) != 0)
        return 1;
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
static int write_images_report(images_job *job, const eval_result *r)
{
    eval_report_image sheet[EVAL_SHEET_MAX];
    char path[RUN_PATH];
    int count;
    if (!job->writes) return 0;
    if (read_sheet(job, sheet, &count) != 0) return 1;
    const eval_report_extras extras = {.title = job->options->images,
                                       .settings = job->texts.texts,
                                       .setting_count = job->texts.count,
                                       .sheet = sheet,
                                       .sheet_count = count};
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
    int status = check_images_out(&job);
    if (status == 0) status = judge_both(&job);
    if (status == 0) status = compute_images_result(&job, r);
    if (status == 0) status = write_images_report(&job, r);
    output_free(&job.directory.out);
    judged_free(&job.images);
    record_texts_free(&job.texts);
    eval_reference_free(&job.reference);
    judge_close(&job.judge);
    prompts_free(&job.prompts);
    models_free(&job.store);
    return status;
}
