#include "tools/fidelity/job.h"

#include "mar_measure.h"

#include "eval/classifier.h"
#include "tools/generate/classes.h"
#include "tools/cli/command.h"
#include "tools/generate/images.h"
#include "tools/generate/record.h"
#include "tools/generate/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)MODELS_RUNS_MAX >= (int)FIDELITY_RUNS_MAX, "the store is too small");

enum {
    SHOWN_PIXELS = 100000, /* pixels of a run's samples on the page */
    SHOWN_MIN = 8,
    SHOWN_MAX = 60,
    CLASSES_MAX = 10 /* maximum classes that are compared unless some are listed */
};

/* --- sessions ------------------------------------------------------------------------------------------- */

/* Takes sizes from the reference. */
static int take_sizes(fidelity *f)
{
    const run_models *models = &f->runs[0].models;
    const mar_model_config *model = mar_model_get_config(models->model);
    f->class_total = models->classes.count;
    f->positions = model->seq_len;
    f->channels = model->token_dim;
    f->vocabulary = model->vocabulary;
    f->columns = model->grid_width;
    f->rows = f->positions / f->columns;
    if (f->vocabulary) {
        f->codebook = mar_vae_codebook(models->vae);
        if (!f->codebook)
            return tool_error("--vae is missing: the tokens of %s are discrete, and only an image decoder's codebook "
                              "tells how far apart they are",
                              f->runs[0].options.model);
        f->channels = mar_vae_get_config(models->vae)->z_channels;
    }
    mar_session_image_size(f->runs[0].session, &f->width, &f->height);
    f->judged = model->classes == EVAL_DIGITS && f->width == EVAL_DIGIT_SIDE && f->height == EVAL_DIGIT_SIDE;
    if (f->width) {
        f->shown = SHOWN_PIXELS / (f->width * f->height);
        if (f->shown < SHOWN_MIN) f->shown = SHOWN_MIN;
        if (f->shown > SHOWN_MAX) f->shown = SHOWN_MAX;
        if (f->shown > f->num) f->shown = f->num;
    }
    if (models_refuse_classes(&f->runs[0].options, f->class) != 0) return 1;
    const int all = run_is_demo(f->runs[0].options.model) || f->class_total <= CLASSES_MAX;
    class_choices choices = models->classes;
    choices.no_none = "mar fidelity compares images of classes";
    return classes_choose(f->class, &choices, all, &f->classes, &f->class_count);
}

/* Writes "a vocabulary of 16384" or "continuous numbers" to text. Returns text. */
static const char *kind_of_tokens(const mar_model_config *model, char text[48])
{
    if (model->vocabulary == 0) return "continuous numbers";
    snprintf(text, 48, "a vocabulary of %d", model->vocabulary);
    return text;
}

static int check_same_shape(const fidelity *f, const fidelity_run *r)
{
    const mar_model_config *model = mar_model_get_config(r->models.model),
                           *reference = mar_model_get_config(f->runs[0].models.model);
    char kind[2][48];
    int width, height;
    mar_session_image_size(r->session, &width, &height);
    if (model->vocabulary != f->vocabulary)
        return tool_error("%s: tokens of %s, expected those of %s as in the reference %s", r->options.model,
                          kind_of_tokens(model, kind[0]), kind_of_tokens(reference, kind[1]), f->runs[0].options.model);
    if (model->seq_len != f->positions || model->token_dim != reference->token_dim ||
        r->models.classes.count != f->class_total)
        return tool_error(
            "%s: %d tokens of %d channels and %d classes, expected %d of %d and %d as in the reference %s",
            r->options.model, model->seq_len, model->token_dim, r->models.classes.count, f->positions,
            reference->token_dim, f->class_total, f->runs[0].options.model);
    if (width > 0 && f->width == 0)
        return tool_error("--vae is missing: the reference %s has no image decoder, but %s brings its own",
                          f->runs[0].options.model, r->options.model);
    if (width == 0 && f->width > 0)
        return tool_error("--vae is missing: %s has no image decoder, but the reference %s brings its own",
                          r->options.model, f->runs[0].options.model);
    if (width != f->width || height != f->height)
        return tool_error("--vae: images of %dx%d, expected %dx%d as in the reference", width, height, f->width,
                          f->height);
    return 0;
}

int fidelity_open(fidelity *f)
{
    if (f->batch > f->num) f->batch = f->num;
    f->files.quiet = f->quiet;
    f->files.needs_all = 1;
    for (int i = 0; i < f->run_count; i++) {
        fidelity_run *r = &f->runs[i];
        if (models_load(&f->files, &r->options, f->bar, &r->models) != 0) return 1;
        if (models_session(&r->models, &r->options, f->batch, &r->session) != 0) return 1;
        snprintf(r->guarantee, sizeof r->guarantee, "%s", mar_session_guarantee(r->session));
        snprintf(r->backend, sizeof r->backend, "%s", mar_backend_description(r->models.library));
        if ((i == 0 ? take_sizes(f) : check_same_shape(f, r)) != 0) return 1;
    }
    return 0;
}

/* Names a run by its difference to the reference, or the reference by its difference to plain sampling. */
static void name_run(const fidelity *f, fidelity_run *r)
{
    const run_options *o = &r->options;
    run_options plain;
    if (r != f->runs) {
        if (!*run_options_differences(o, &f->runs[0].options, r->name, sizeof r->name))
            snprintf(r->name, sizeof r->name, "the same options");
    } else if (!*run_options_accelerators(o, r->name, sizeof r->name)) {
        const int n = snprintf(r->name, sizeof r->name, "plain sampling, %d autoregressive steps", o->used.num_iter);
        if (!f->vocabulary) snprintf(r->name + n, sizeof r->name - (size_t)n, " of %d", o->used.num_sampling_steps);
    } else {
        run_options_inherit(&plain, o);
        run_options_differences(o, &plain, r->name, sizeof r->name);
    }
}

int fidelity_open_stores(fidelity *f)
{
    for (int i = 0; i < f->run_count; i++) name_run(f, &f->runs[i]);
    if (!f->store) return 0;
    if (record_check_store(f->store, &f->directory) != 0 || output_begin(&f->directory) != 0) return 1;
    for (fidelity_run *r = f->runs; r < &f->runs[f->run_count]; r++) {
        const run_options *o = &r->options;
        if (record_identify(o, &r->models) != 0) return 1;
        if (record_open_store(f->store, o, &r->models, f->batch, &r->store) != 0) return 1;
    }
    return 0;
}

static void close_run(fidelity_run *r)
{
    mar_session_free(r->session);
    r->session = NULL;
    store_close(&r->store);
}

void fidelity_close(fidelity *f)
{
    for (int i = 0; i < f->run_count; i++) close_run(&f->runs[i]);
    output_free(&f->directory);
    models_free(&f->files);
}

/* --- images ------------------------------------------------------------------------------------------------------- */

/* The object of the sink. */
typedef struct {
    fidelity *f;
    eval_classifier *classifier; /* NULL: no digits */
} run_sink;

static int take_run_tokens(const fidelity *f, fidelity_run *r, const image_batch *batch)
{
    const size_t size = (size_t)f->positions * (size_t)f->channels, count = (size_t)batch->n * size;
    for (size_t i = 0; i < count; i++)
        if (!isfinite(batch->tokens[i]))
            return tool_error("%s: image %zu has a token that is no number, expected finite ones", r->name,
                              (size_t)batch->first + i / size);
    memcpy(r->tokens + (size_t)batch->first * size, batch->tokens, count * sizeof *batch->tokens);
    return 0;
}

/* Takes discrete token ids and their codebook vectors. */
static void take_numbers(const fidelity *f, fidelity_run *r, const image_batch *batch)
{
    const size_t first = (size_t)batch->first * (size_t)f->positions, channels = (size_t)f->channels;
    memcpy(r->numbers + first, batch->tokens, (size_t)batch->n * (size_t)f->positions * sizeof *r->numbers);
    for (size_t i = 0; i < (size_t)batch->n * (size_t)f->positions; i++)
        memcpy(r->tokens + (first + i) * channels, f->codebook + (size_t)batch->tokens[i] * channels,
               channels * sizeof *r->tokens);
}

/* Takes the first images, for the page. */
static void take_samples(const fidelity *f, fidelity_run *r, const image_batch *batch)
{
    const size_t bytes = (size_t)f->width * (size_t)f->height * 3;
    const long rest = f->shown - batch->first, n = rest < batch->n ? rest : batch->n;
    if (n > 0) memcpy(r->rgb + (size_t)batch->first * bytes, batch->rgb, (size_t)n * bytes);
}

/* Counts the images in which the classifier recognises the digit of their label. */
static void take_digits(eval_classifier *classifier, fidelity_run *r, const image_batch *batch)
{
    for (int i = 0; i < batch->n; i++) {
        float logits[EVAL_DIGITS];
        int best = 0;
        eval_classify(classifier, batch->rgb + (size_t)i * EVAL_DIGIT_SIDE * EVAL_DIGIT_SIDE * 3, NULL, logits);
        for (int k = 1; k < EVAL_DIGITS; k++)
            if (logits[k] > logits[best]) best = k;
        r->recognised += best == batch->labels[i];
    }
}

/* An image_sink. */
static int take_run_batch(void *self, const image_batch *batch)
{
    const run_sink *m = self;
    const fidelity *f = m->f;
    fidelity_run *r = &m->f->runs[batch->run];
    const size_t map = 3 * (size_t)f->positions;
    r->turn_seconds[batch->first / f->batch] = batch->stats->total_s / batch->n;
    if (f->vocabulary)
        take_numbers(f, r, batch);
    else if (take_run_tokens(f, r, batch) != 0)
        return 1;
    stats_add(&r->stats, batch->stats);
    acceptance_add(&r->accepted, batch->token_status, batch->steps, batch->staleness, batch->n);
    for (int i = 0; i < batch->n && r->map_count < FIDELITY_MAPS; i++)
        acceptance_draw(&r->accepted, i, f->columns, f->rows, r->maps + map * (size_t)r->map_count++);
    if (f->width) take_samples(f, r, batch);
    if (f->judged) take_digits(m->classifier, r, batch);
    return 0;
}

static int allocate_run(const fidelity *f, fidelity_run *r)
{
    const size_t image_size = (size_t)f->positions * (size_t)f->channels;
    r->turn_seconds = malloc((size_t)f->turns * sizeof *r->turn_seconds);
    r->tokens = malloc((size_t)f->num * image_size * sizeof *r->tokens);
    if (f->vocabulary) r->numbers = malloc((size_t)f->num * (size_t)f->positions * sizeof *r->numbers);
    r->maps = malloc(3 * FIDELITY_MAPS * (size_t)f->positions);
    r->rgb = malloc((size_t)f->shown * (size_t)f->width * (size_t)f->height * 3 + 1);
    r->ks = malloc((size_t)f->channels * sizeof *r->ks);
    r->ks_p = malloc((size_t)f->channels * sizeof *r->ks_p);
    if (r->turn_seconds && r->tokens && (r->numbers || !f->vocabulary) && r->maps && r->rgb && r->ks && r->ks_p &&
        acceptance_create(f->positions, f->columns, r->options.used.num_iter, &r->accepted) == 0)
        return 0;
    return tool_error("out of memory for the tokens of %d images; a smaller --num needs less", f->num);
}

void fidelity_free_run(fidelity_run *r)
{
    close_run(r);
    free(r->turn_seconds);
    free(r->tokens);
    free(r->numbers);
    free(r->maps);
    acceptance_free(&r->accepted);
    free(r->rgb);
    free(r->ks);
    free(r->ks_p);
    *r = (fidelity_run){.options = r->options};
}

int fidelity_make_images(fidelity *f)
{
    char why[256], kept[8400];
    image_run runs[FIDELITY_RUNS_MAX];
    snprintf(kept, sizeof kept, "%s is not written%s%s%s", f->out, f->store ? "; images are in " : "",
             f->store ? f->store : "", f->store ? ", the same command goes on" : "");
    f->turns = (f->num + f->batch - 1) / f->batch;
    for (int i = 0; i < f->run_count; i++) {
        fidelity_run *r = &f->runs[i];
        if (allocate_run(f, r) != 0) return 1;
        runs[i] = (image_run){.store = r->store.lock ? &r->store : NULL,
                              .has_drafts = run_verifies_drafts(&r->options),
                              .model = r->models.model,
                              .session = r->session,
                              .captions = r->models.captions};
    }
    const image_plan plan = {.runs = runs,
                             .run_count = f->run_count,
                             .images = f->num,
                             .batch = f->batch,
                             .classes = f->classes,
                             .class_count = f->class_count,
                             .class_images = 1,
                             .bar = f->bar,
                             .kept = kept};
    run_sink m = {f, NULL};
    const image_sink sink = {take_run_batch, &m, 1, 1, 1};
    if (f->judged && eval_classifier_open(&m.classifier, why, sizeof why) != MAR_OK) return tool_error("%s", why);
    const int status = run_images(&plan, &sink, 1);
    eval_classifier_close(m.classifier);
    return status;
}
