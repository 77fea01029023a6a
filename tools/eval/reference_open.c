#include "tools/eval/reference_open.h"

#include "tools/cli/command.h"
#include "tools/images/source.h"
#include "tools/eval/judge.h"
#include "tools/generate/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int eval_reference_is_directory(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

int eval_reference_identify(const char *path, char text[RECORD_ID])
{
    image_source *source;
    uint64_t sum;
    if (!path || strcmp(path, "demo") == 0 || !eval_reference_is_directory(path))
        return record_identify_file(path, text);
    if (image_source_open(path, &source) != 0) return 1;
    const int failed = image_source_sum(source, &sum);
    if (!failed) snprintf(text, RECORD_ID, "%lld images, %016" PRIx64, (long long)image_source_count(source), sum);
    image_source_close(source);
    return failed;
}

/* Moves mean and covariance out of the judged images. Returns 0, or 1 without memory. */
static int take_gaussian(const eval_moments *m, int *dim, double **mu, double **sigma)
{
    const size_t n = (size_t)m->dim;
    *mu = malloc(n * sizeof **mu);
    *sigma = malloc(n * n * sizeof **sigma);
    if (!*mu || !*sigma) return 1;
    eval_moments_finish(m, *mu, *sigma);
    *dim = m->dim;
    return 0;
}

int eval_reference_of(judged *d, const char *path, eval_reference *out)
{
    int failed = 0;
    if (d->images < 2) return tool_error("%s: has %ld image, expected 2 or more for a covariance", path, d->images);
    if (!out->dim) {
        failed |= take_gaussian(&d->pooled, &out->dim, &out->mu, &out->sigma);
        if (d->spatial.dim && !failed) failed |= take_gaussian(&d->spatial, &out->spatial, &out->mu_s, &out->sigma_s);
    }
    if (!out->features && d->features) {
        out->features = d->features;
        out->feature_count = d->images;
        d->features = NULL;
    }
    out->path = path;
    out->images = d->images;
    return failed ? tool_error("%s: out of memory for its statistics", path) : 0;
}

int eval_reference_open(const char *path, mar *library, mar_features *network, int batch, int want_features, int quiet,
                        eval_reference *out)
{
    char why[512];
    progress bar;
    judged d;
    *out = (eval_reference){.path = path};
    if (strcmp(path, "demo") == 0 || !eval_reference_is_directory(path)) {
        if (eval_reference_load(path, out, why, sizeof why) != MAR_OK) return tool_error("%s", why);
        if (out->dim && !(want_features && !out->features && out->has_images)) return 0;
        if (out->dim && out->dim != mar_features_get_config(network)->features) return 0; /* eval_numbers rejects it */
    }
    progress_start(&bar, quiet);
    const judge request = {.network = network, .batch = batch, .keep_features = want_features, .bar = &bar};
    int status = judge_images(&request, library, path, &d);
    if (status == 0) status = eval_reference_of(&d, path, out);
    judged_free(&d);
    if (status != 0) eval_reference_free(out);
    return status;
}
