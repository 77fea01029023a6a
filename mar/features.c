/* The networks that judge images: their public calls. */
#include "mar/features.h"

#include "mar/config.h"
#include "vae/vae.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH_MAX = 1024 };

static mar_status load_digits(mar_features *f, mar_err *err)
{
    char why[ERR_TEXT_MAX];
    const mar_status status = eval_classifier_open(&f->digits, why, sizeof why);
    if (status != MAR_OK) return err_set(err, status, "%s", why);
    f->config = (mar_features_config){.name = "demo digits",
                                      .features = EVAL_DIGIT_FEATURES,
                                      .classes = EVAL_DIGITS,
                                      .parameters = eval_classifier_parameters(f->digits)};
    return MAR_OK;
}

/* MAR_EMODEL, saying what the file is. */
static mar_status refuse_file(const wt_file *file, mar_err *err)
{
    const char *kind = "no Inception-v3 (no Mixed_5b.branch1x1.conv.weight)";
    if (vae_config_recognise(file))
        kind = "an image decoder (KL autoencoder)";
    else if (mar_config_recognise(file))
        kind = "a MAR model";
    return err_set(err, MAR_EMODEL, "%s: is %s, expected Inception-v3 with TensorFlow's weights of 2015-12-05",
                   wt_path(file), kind);
}

static mar_status load_file(mar_features *f, const char *path, mar_err *err)
{
    wt_file *file = NULL;
    const wt_embedded *demo = wt_demo_mar(path); /* to say what it is */
    if (!demo) demo = wt_demo_vae(path);
    mar_status status = demo ? wt_open_memory(demo->data, demo->size, path, &file, err) : wt_open(path, &file, err);
    if (status != MAR_OK) return status;
    wt_allow_nonfinite(file, f->m->allow_nonfinite);
    status = refuse_file(file, err);
    wt_close(file);
    return status;
}

static void destroy(mar_features *f)
{
    eval_classifier_close(f->digits);
    free(f);
}

/* Makes a network; *out stays NULL if that fails. */
static mar_status create(mar *m, const char *path, int batch, mar_features **out, mar_err *err)
{
    mar_features *f = calloc(1, sizeof *f);
    if (!f) return err_set(err, MAR_ENOMEM, "out of memory");
    f->m = m;
    f->batch = batch;
    const mar_status status = strcmp(path, "demo") == 0 ? load_digits(f, err) : load_file(f, path, err);
    if (status != MAR_OK) {
        destroy(f);
        return status;
    }
    mar_retain(m);
    *out = f;
    return MAR_OK;
}

mar_status mar_features_load(mar *m, const char *path, int batch, mar_features **out)
{
    const double start = mar_now();
    mar_err err = {0};
    if (out) *out = NULL;
    mar_status status = mar_check_handle(m, &err);
    if (status == MAR_OK) status = mar_check_given(path, "path", &err);
    if (status == MAR_OK) status = mar_check_given(out, "out", &err);
    if (status == MAR_OK && (batch < 1 || batch > BATCH_MAX))
        status = err_set(&err, MAR_EARG, "batch of %d images: expected 1..%d", batch, BATCH_MAX);
    if (status == MAR_OK) status = create(m, path, batch, out, &err);
    if (status == MAR_OK)
        mar_log(m, MAR_LOG_INFO, "features %s: %s, %ld parameters, loaded in %.3g s", path, (*out)->config.name,
                (*out)->config.parameters, mar_now() - start);
    return mar_result(m, status, &err);
}

void mar_features_free(mar_features *f)
{
    if (!f || mar_is_elsewhere(f->m)) return;
    mar *m = f->m;
    destroy(f);
    mar_release(m);
}

const mar_features_config *mar_features_get_config(const mar_features *f)
{
    return f ? &f->config : NULL;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Where the results of a call go: of its images one after another; NULL: they are not wanted. */
typedef struct {
    float *features, *logits, *spatial;
} results;

static mar_status check_images(const mar_features *f, int n, int width, int height, mar_err *err)
{
    if (n < 1 || n > f->batch)
        return err_set(err, MAR_EARG, "%d images: expected 1..%d, the batch they were prepared for", n, f->batch);
    if (f->digits && (width != EVAL_DIGIT_SIDE || height != EVAL_DIGIT_SIDE))
        return err_set(err, MAR_EARG, "images of %dx%d pixels: the demo's features are those of %dx%d", width, height,
                       EVAL_DIGIT_SIDE, EVAL_DIGIT_SIDE);
    return MAR_OK;
}

static void run_digits(mar_features *f, const uint8_t *rgb, int n, const results *r)
{
    const size_t bytes = (size_t)EVAL_DIGIT_SIDE * EVAL_DIGIT_SIDE * 3;
    for (size_t i = 0; i < (size_t)n; i++)
        eval_classify(f->digits, rgb + i * bytes, r->features ? r->features + i * EVAL_DIGIT_FEATURES : NULL,
                      r->logits ? r->logits + i * EVAL_DIGITS : NULL);
}

mar_status mar_features_run(mar_features *f, const uint8_t *rgb, int n, int width, int height, float *features,
                            float *logits, float *spatial)
{
    mar_err err = {0};
    if (!f) return mar_result(NULL, err_set(&err, MAR_EARG, "the features are NULL"), &err);
    const results r = {features, logits, spatial};
    mar_status status = mar_check_handle(f->m, &err);
    if (status == MAR_OK) status = mar_check_given(rgb, "rgb", &err);
    if (status == MAR_OK) status = check_images(f, n, width, height, &err);
    if (status == MAR_OK) run_digits(f, rgb, n, &r);
    return mar_result(f->m, status, &err);
}
