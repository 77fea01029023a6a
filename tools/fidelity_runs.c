#include "tools/fidelity_runs.h"

#include "eval/classifier.h"
#include "tools/classes.h"
#include "tools/command.h"
#include "tools/images.h"
#include "tools/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)MODELS_RUNS_MAX >= (int)FIDELITY_RUNS_MAX, "the store is too small");

enum {
    SHOWN_PIXELS = 100000, /* of a run's samples on the page */
    SHOWN_MIN = 8,
    SHOWN_MAX = 60,
    CLASSES_MAX = 10 /* of a model whose classes are all compared if none are listed */
};

/* --- sessions ------------------------------------------------------------------------------------------- */

static int open_session(const fidelity *f, fidelity_run *r, progress *bar, model_store *store, run_models *models,
                        mar_session **session)
{
    if (models_load(store, &r->options, bar, models) != 0) return 1;
    if (models_session(models, &r->options, f->batch, session) != 0) return 1;
    snprintf(r->guarantee, sizeof r->guarantee, "%s", mar_session_guarantee(*session));
    snprintf(r->backend, sizeof r->backend, "%s", mar_backend_description(models->library));
    return 0;
}

/* Takes sizes from the reference. */
static int resolve(fidelity *f, const run_models *models, const mar_session *session)
{
    const mar_model_config *model = mar_model_get_config(models->model);
    f->class_total = models->class_count;
    f->positions = model->seq_len;
    f->channels = model->token_dim;
    f->vocabulary = model->vocabulary;
    f->side = (int)lround(sqrt(f->positions));
    if (f->vocabulary) {
        f->codebook = mar_vae_codebook(models->vae);
        if (!f->codebook)
            return tool_error("--vae is missing: the tokens of %s are discrete, and only an image decoder's codebook "
                              "tells how far apart they are",
                              f->runs[0].options.model);
        f->channels = mar_vae_get_config(models->vae)->z_channels;
    }
    mar_session_image_size(session, &f->width, &f->height);
    f->judged = model->classes == EVAL_DIGITS && f->width == EVAL_DIGIT_SIDE && f->height == EVAL_DIGIT_SIDE;
    if (f->width) {
        f->shown = SHOWN_PIXELS / (f->width * f->height);
        if (f->shown < SHOWN_MIN) f->shown = SHOWN_MIN;
        if (f->shown > SHOWN_MAX) f->shown = SHOWN_MAX;
        if (f->shown > f->num) f->shown = f->num;
    }
    snprintf(f->backend, sizeof f->backend, "%s", mar_backend_description(models->library));
    const int all = run_is_demo(f->runs[0].options.model) || f->class_total <= CLASSES_MAX;
    return classes_choose(f->class_list, f->class_total, all, &f->classes, &f->class_count);
}

/* "a vocabulary of 16384" or "continuous numbers", to text, which is returned. */
static const char *kind_of(const mar_model_config *model, char text[48])
{
    if (model->vocabulary == 0) return "continuous numbers";
    snprintf(text, 48, "a vocabulary of %d", model->vocabulary);
    return text;
}

static int same_shape(const fidelity *f, const fidelity_run *r, const run_models *models,
                      const mar_model *reference_model, const mar_session *session)
{
    const mar_model_config *model = mar_model_get_config(models->model);
    char kind[2][48];
    int width, height;
    mar_session_image_size(session, &width, &height);
    const mar_model_config *reference = mar_model_get_config(reference_model);
    if (model->vocabulary != f->vocabulary)
        return tool_error("%s: tokens of %s, expected those of %s as in the reference %s", r->options.model,
                          kind_of(model, kind[0]), kind_of(reference, kind[1]), f->runs[0].options.model);
    if (model->seq_len != f->positions || model->token_dim != reference->token_dim ||
        models->class_count != f->class_total)
        return tool_error(
            "%s: %d tokens of %d channels and %d classes, expected %d of %d and %d as in the reference %s",
            r->options.model, model->seq_len, model->token_dim, models->class_count, f->positions, reference->token_dim,
            f->class_total, f->runs[0].options.model);
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

int fidelity_open(fidelity *f, progress *bar, fidelity_sessions *open)
{
    if (f->batch > f->num) f->batch = f->num;
    open->store.quiet = f->quiet;
    for (int i = 0; i < f->run_count; i++) {
        fidelity_run *r = &f->runs[i];
        if (open_session(f, r, bar, &open->store, &open->models[i], &open->sessions[i]) != 0) return 1;
        const int failed = i == 0 ? resolve(f, &open->models[i], open->sessions[i])
                                  : same_shape(f, r, &open->models[i], open->models[0].model, open->sessions[i]);
        if (failed) return 1;
    }
    return 0;
}

void fidelity_close(fidelity_sessions *open)
{
    for (int i = 0; i < FIDELITY_RUNS_MAX; i++) mar_session_free(open->sessions[i]);
    models_free(&open->store);
    *open = (fidelity_sessions){0};
}

/* --- sinks ---------------------------------------------------------------------------------------------- */

static int take_tokens(void *self, const image_batch *batch)
{
    fidelity *f = self;
    const size_t size = (size_t)f->positions * (size_t)f->channels, count = (size_t)batch->n * size;
    for (size_t i = 0; i < count; i++)
        if (!isfinite(batch->tokens[i]))
            return tool_error("%s: image %zu has a token that is no number, expected finite ones",
                              f->runs[batch->run].name, (size_t)batch->first + i / size);
    memcpy(f->runs[batch->run].tokens + (size_t)batch->first * size, batch->tokens, count * sizeof *batch->tokens);
    return 0;
}

/* Discrete tokens: their numbers, and what the codebook has for them. */
static int take_numbers(void *self, const image_batch *batch)
{
    fidelity *f = self;
    const fidelity_run *r = &f->runs[batch->run];
    const size_t first = (size_t)batch->first * (size_t)f->positions, channels = (size_t)f->channels;
    memcpy(r->numbers + first, batch->tokens, (size_t)batch->n * (size_t)f->positions * sizeof *r->numbers);
    for (size_t i = 0; i < (size_t)batch->n * (size_t)f->positions; i++)
        memcpy(r->tokens + (first + i) * channels, f->codebook + (size_t)batch->tokens[i] * channels,
               channels * sizeof *r->tokens);
    return 0;
}

/* The first images, for the page. */
static int take_samples(void *self, const image_batch *batch)
{
    fidelity *f = self;
    const size_t bytes = (size_t)f->width * (size_t)f->height * 3;
    const long rest = f->shown - batch->first, n = rest < batch->n ? rest : batch->n;
    if (n > 0) memcpy(f->runs[batch->run].rgb + (size_t)batch->first * bytes, batch->rgb, (size_t)n * bytes);
    return 0;
}

/* Times, counts, and what became of the drafted tokens. */
static int take_figures(void *self, const image_batch *batch)
{
    fidelity *f = self;
    fidelity_run *r = &f->runs[batch->run];
    const size_t map = 3 * (size_t)f->side * (size_t)f->side;
    stats_add(&r->stats, batch->stats);
    r->turn_seconds[batch->turn] = batch->stats->total_s / batch->n;
    if (acceptance_add(&r->accepted, batch->session, batch->n) != MAR_OK)
        return tool_error("%s: the fates of its tokens cannot be had", r->name);
    for (int i = 0; i < batch->n && r->map_count < FIDELITY_MAPS; i++)
        acceptance_draw(&r->accepted, i, f->side, f->side, r->maps + map * (size_t)r->map_count++);
    return 0;
}

typedef struct {
    fidelity *f;
    eval_classifier *classifier;
} digit_reader;

/* Counts the images in which the classifier sees the digit that they are labelled with. */
static int take_digits(void *self, const image_batch *batch)
{
    digit_reader *reader = self;
    for (int i = 0; i < batch->n; i++) {
        float logits[EVAL_DIGITS];
        int best = 0;
        eval_classify(reader->classifier, batch->rgb + (size_t)i * EVAL_DIGIT_SIDE * EVAL_DIGIT_SIDE * 3, NULL, logits);
        for (int k = 1; k < EVAL_DIGITS; k++)
            if (logits[k] > logits[best]) best = k;
        reader->f->runs[batch->run].recognised += best == batch->labels[i];
    }
    return 0;
}

/* --- images --------------------------------------------------------------------------------------------- */

static int allocate_run(const fidelity *f, fidelity_run *r)
{
    const size_t image_size = (size_t)f->positions * (size_t)f->channels;
    r->turn_seconds = malloc((size_t)f->turns * sizeof *r->turn_seconds);
    r->tokens = malloc((size_t)f->num * image_size * sizeof *r->tokens);
    if (f->vocabulary) r->numbers = malloc((size_t)f->num * (size_t)f->positions * sizeof *r->numbers);
    r->maps = malloc(3 * FIDELITY_MAPS * (size_t)f->side * (size_t)f->side);
    r->rgb = malloc((size_t)f->shown * (size_t)f->width * (size_t)f->height * 3 + 1);
    r->ks = malloc((size_t)f->channels * sizeof *r->ks);
    r->ks_p = malloc((size_t)f->channels * sizeof *r->ks_p);
    if (r->turn_seconds && r->tokens && (r->numbers || !f->vocabulary) && r->maps && r->rgb && r->ks && r->ks_p &&
        acceptance_create(f->positions, r->options.used.num_iter, f->batch, &r->accepted) == 0)
        return 0;
    return tool_error("out of memory for the tokens of %d images; a smaller --num needs less", f->num);
}

int fidelity_make_images(fidelity *f, progress *bar, const fidelity_sessions *open)
{
    char kept[4200], why[256];
    image_run runs[FIDELITY_RUNS_MAX];
    for (int i = 0; i < f->run_count; i++)
        runs[i] = (image_run){open->models[i].model, open->sessions[i], open->models[i].captions};
    snprintf(kept, sizeof kept, "%s is not written", f->out);
    const image_plan plan = {.runs = runs,
                             .run_count = f->run_count,
                             .images = f->num,
                             .batch = f->batch,
                             .classes = f->classes,
                             .class_count = f->class_count,
                             .class_images = 1,
                             .bar = bar,
                             .kept = kept};
    f->turns = image_plan_turns(&plan);
    for (int i = 0; i < f->run_count; i++)
        if (allocate_run(f, &f->runs[i]) != 0) return 1;

    digit_reader reader = {f, NULL};
    image_sink sinks[4] = {{f->vocabulary ? take_numbers : take_tokens, f, 1, 0}, {take_figures, f, 0, 0}};
    int sink_count = 2;
    if (f->width) sinks[sink_count++] = (image_sink){take_samples, f, 0, 1};
    if (f->judged) sinks[sink_count++] = (image_sink){take_digits, &reader, 0, 1};
    if (f->judged && eval_classifier_open(&reader.classifier, why, sizeof why) != MAR_OK) return tool_error("%s", why);
    const int status = run_images(&plan, sinks, sink_count);
    eval_classifier_close(reader.classifier);
    return status;
}
