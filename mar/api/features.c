/* Public calls of the networks that judge images. */
#include "eval/classifier.h"
#include "eval/inception.h"
#include "eval/kernel_distance.h"
#include "eval/manifold.h"
#include "eval/vgg.h"
#include "mar/api/judge.h"
#include "mar/api/kinds.h"
#include "mar/api/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct mar_features {
    mar_judge judge;
    mar_features_config config;
    eval_classifier *digits; /* the network is one of these three */
    eval_inception *inception;
    eval_vgg *vgg;
    mar_resize resize;
};

static mar_status load_digits(mar_features *f, mar_err *err)
{
    char why[ERR_TEXT_MAX];
    const mar_status status = eval_classifier_open(&f->digits, why, sizeof why);
    if (status != MAR_OK) return err_set(err, status, "%s", why);
    f->config = (mar_features_config){.size = sizeof f->config,
                                      .name = "demo digits",
                                      .features = EVAL_DIGIT_FEATURES,
                                      .classes = EVAL_DIGITS,
                                      .parameters = eval_classifier_parameters(f->digits)};
    return MAR_OK;
}

static void features_describe(mar_features *f)
{
    f->config = (mar_features_config){.size = sizeof f->config};
    if (f->vgg) {
        const eval_vgg_config *c = eval_vgg_get_config(f->vgg);
        f->config.name = "vgg16";
        f->config.features = c->features;
        f->config.parameters = c->parameters;
    } else {
        const eval_inception_config *c = eval_inception_get_config(f->inception);
        f->config.name = "inception-v3";
        f->config.features = c->features;
        f->config.classes = c->classes;
        f->config.spatial = c->spatial;
        f->config.parameters = c->parameters;
    }
}

/* Loads the network on a queue of its own. */
static mar_status features_load_network(mar_features *f, const wt_file *file, mar_err *err)
{
    mar_status status = mar_check_kind(file, 1 << MAR_KIND_INCEPTION | 1 << MAR_KIND_VGG16,
                                       "Inception-v3 with TensorFlow's weights of 2015-12-05, or VGG16", err);
    mar_judge *j = &f->judge;
    if (status == MAR_OK) status = mar_judge_begin_load(j, err);
    if (status != MAR_OK) return status;
    status = mar_kind_of(file)->kind == MAR_KIND_VGG16
                 ? eval_vgg_create(j->k, file, j->batch, &f->vgg, err)
                 : eval_inception_create(j->k, file, j->batch, &f->inception, err);
    status = mar_judge_end_load(j, file, status, err);
    if (status == MAR_OK) features_describe(f);
    return status;
}

static mar_status features_load_file(mar_features *f, const char *path, mar_err *err)
{
    wt_file *file = NULL;
    mar_status status = mar_open_checkpoint(path, 0, MAR_WEIGHTS_AUTO, &file, err);
    if (status != MAR_OK) return status;
    wt_allow_nonfinite(file, f->judge.m->allow_nonfinite);
    status = features_load_network(f, file, err);
    wt_close(file);
    return status;
}

static void features_destroy(mar_features *f)
{
    mar_judge_stop(&f->judge);
    eval_inception_free(f->inception);
    eval_vgg_free(f->vgg);
    mar_judge_close(&f->judge);
    eval_classifier_close(f->digits);
    free(f);
}

/* Creates a network. *out stays NULL on failure. */
static mar_status features_create(mar *m, const char *path, int batch, mar_features **out, mar_err *err)
{
    mar_features *f = calloc(1, sizeof *f);
    if (!f) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_status status = mar_judge_open(&f->judge, m, batch, err);
    if (status == MAR_OK) status = strcmp(path, "demo") == 0 ? load_digits(f, err) : features_load_file(f, path, err);
    if (status != MAR_OK) {
        features_destroy(f);
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
    mar_status status = mar_judge_check_load(m, path, batch, out, &err);
    if (status == MAR_OK) status = features_create(m, path, batch, out, &err);
    if (status == MAR_OK)
        mar_log(m, MAR_LOG_INFO, "features %s: %s, %ld parameters, loaded in %.3g s", path, (*out)->config.name,
                (*out)->config.parameters, mar_now() - start);
    return mar_result(m, status, &err);
}

void mar_features_free(mar_features *f)
{
    if (!f || mar_in_forked_child(f->judge.m)) return;
    mar *m = f->judge.m;
    features_destroy(f);
    mar_release(m);
}

const mar_features_config *mar_features_get_config(const mar_features *f)
{
    return f ? &f->config : NULL;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Destinations of a call's results, image after image. NULL: not wanted. */
typedef struct {
    float *features, *logits, *spatial;
} results;

/* Runs the network of digits on the pictures taken. */
static mar_status run_digits(mar_features *f, int n, const results *r, mar_err *err)
{
    const eval_picture *p = f->judge.pictures;
    for (int i = 0; i < n; i++)
        if (p[i].width != EVAL_DIGIT_SIDE || p[i].height != EVAL_DIGIT_SIDE)
            return err_set(err, MAR_EARG, "images of %dx%d pixels: the demo's features are those of %dx%d", p[i].width,
                           p[i].height, EVAL_DIGIT_SIDE, EVAL_DIGIT_SIDE);
    for (size_t i = 0; i < (size_t)n; i++)
        eval_classify(f->digits, p[i].rgb, r->features ? r->features + i * EVAL_DIGIT_FEATURES : NULL,
                      r->logits ? r->logits + i * EVAL_DIGITS : NULL);
    return MAR_OK;
}

/* Returns the index of the first NaN or infinity of n values; -1 if there is none. */
static long find_nonfinite(const float *x, size_t n)
{
    for (size_t i = 0; x && i < n; i++)
        if (!isfinite(x[i])) return (long)i;
    return -1;
}

static mar_status check_results(const mar_features *f, int n, const results *r, mar_err *err)
{
    const struct {
        const char *name;
        const float *x;
        int width;
    } all[] = {{"features", r->features, f->config.features},
               {"logits", r->logits, f->config.classes},
               {"spatial features", r->spatial, f->config.spatial}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const long at = find_nonfinite(all[i].x, (size_t)n * (size_t)all[i].width);
        if (at < 0) continue;
        return err_set(err, MAR_EMODEL,
                       "image %ld of the batch: its %s have a NaN or an infinity: the weights are damaged, or their "
                       "numbers too large",
                       at / all[i].width, all[i].name);
    }
    return MAR_OK;
}

/* Runs another one. */
static mar_status run_network(mar_features *f, int n, const results *r, mar_err *err)
{
    mar_judge *j = &f->judge;
    mar_status status = MAR_OK;
    mar_judge_begin_run(j);
    if (f->vgg && r->features)
        status = eval_vgg_run(f->vgg, j->pictures, n, r->features, err);
    else if (f->inception)
        status = eval_inception_run(f->inception, j->pictures, n,
                                    f->resize == MAR_RESIZE_CLEAN ? EVAL_INCEPTION_CLEAN : EVAL_INCEPTION_TF1,
                                    r->features, r->logits, r->spatial, err);
    status = mar_judge_end_run(j, status, err);
    return status == MAR_OK ? check_results(f, n, r, err) : status;
}

static mar_status features_run(mar_features *f, int n, const results *r, mar_err *err)
{
    return f->digits ? run_digits(f, n, r, err) : run_network(f, n, r, err);
}

mar_status mar_features_run(mar_features *f, const uint8_t *rgb, int n, int width, int height, float *features,
                            float *logits, float *spatial)
{
    mar_err err = {0};
    if (!f) return mar_result(NULL, err_set(&err, MAR_EARG, "the features are NULL"), &err);
    const results r = {features, logits, spatial};
    mar_status status = mar_check_handle(f->judge.m, &err);
    if (status == MAR_OK) status = mar_judge_take(&f->judge, rgb, n, width, height, &err);
    if (status == MAR_OK) status = features_run(f, n, &r, &err);
    return mar_result(f->judge.m, status, &err);
}

mar_status mar_features_run_each(mar_features *f, const uint8_t *const *rgb, const int *widths, const int *heights,
                                 int n, float *features, float *logits, float *spatial)
{
    mar_err err = {0};
    if (!f) return mar_result(NULL, err_set(&err, MAR_EARG, "the features are NULL"), &err);
    const results r = {features, logits, spatial};
    mar_status status = mar_check_handle(f->judge.m, &err);
    if (status == MAR_OK) status = mar_judge_take_each(&f->judge, rgb, widths, heights, n, &err);
    if (status == MAR_OK) status = features_run(f, n, &r, &err);
    return mar_result(f->judge.m, status, &err);
}

mar_status mar_features_set_resize(mar_features *f, mar_resize how)
{
    mar_err err = {0};
    if (!f) return mar_result(NULL, err_set(&err, MAR_EARG, "the features are NULL"), &err);
    mar_status status = mar_check_handle(f->judge.m, &err);
    if (status == MAR_OK && how != MAR_RESIZE_DEFAULT && how != MAR_RESIZE_CLEAN)
        status = err_set(&err, MAR_EARG, "resize %d: expected MAR_RESIZE_DEFAULT or MAR_RESIZE_CLEAN", (int)how);
    if (status == MAR_OK && how == MAR_RESIZE_CLEAN && !f->inception)
        status = err_set(&err, MAR_EARG, "resize: clean-fid's is for Inception, these features are %s", f->config.name);
    if (status == MAR_OK) f->resize = how;
    return mar_result(f->judge.m, status, &err);
}

mar_status mar_precision_recall(mar *m, const float *reference, int reference_count, const float *images, int count,
                                int dim, int k, double *precision, double *recall)
{
    mar_err err = {0};
    if (precision) *precision = 0;
    if (recall) *recall = 0;
    mar_status status = mar_check_handle(m, &err);
    if (status == MAR_OK) status = mar_check_given(reference, "reference", &err);
    if (status == MAR_OK) status = mar_check_given(images, "images", &err);
    if (status == MAR_OK) status = mar_check_given(precision, "precision", &err);
    if (status == MAR_OK) status = mar_check_given(recall, "recall", &err);
    if (status == MAR_OK)
        status = eval_precision_recall(m->device, reference, reference_count, images, count, dim, k, precision, recall,
                                       &err);
    return mar_result(m, status, &err);
}

mar_status mar_kernel_distance(mar *m, const float *reference, int reference_count, const float *images, int count,
                               int dim, int subsets, int subset_size, double *mean, double *deviation)
{
    mar_err err = {0};
    if (mean) *mean = 0;
    if (deviation) *deviation = 0;
    mar_status status = mar_check_handle(m, &err);
    if (status == MAR_OK) status = mar_check_given(reference, "reference", &err);
    if (status == MAR_OK) status = mar_check_given(images, "images", &err);
    if (status == MAR_OK) status = mar_check_given(mean, "mean", &err);
    if (status == MAR_OK) status = mar_check_given(deviation, "deviation", &err);
    if (status == MAR_OK)
        status = eval_kernel_distance(m->device, reference, reference_count, images, count, dim, subsets, subset_size,
                                      mean, deviation, &err);
    return mar_result(m, status, &err);
}
