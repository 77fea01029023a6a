#include "tools/eval/judge.h"

#include "tools/cli/command.h"
#include "tools/images/source.h"
#include "tools/cli/interruption.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Images first .. first+n-1, read into rgb [batch][height][width][3]. */
typedef struct {
    image_source *source;
    uint8_t *rgb;
    long first;
    int n;      /* 0: nothing to read */
    int status; /* of image_source_read */
    int threaded;
    pthread_t thread;
} reading;

/* Buffers of two batches, one judged while the other is read, and the results. */
typedef struct {
    const judge *judge;
    mar *library;
    const char *path;
    image_source *source;
    reading batches[2];
    float *features; /* [batch][features] */
    float *logits;   /* [batch][classes]; NULL: not wanted */
    float *spatial;  /* [batch][spatial]; NULL: the network has none */
    judged *out;
} judging;

const char *const judge_dtypes[] = {[JUDGE_F32] = "f32", [JUDGE_BF16] = "bf16", NULL};

mar *judge_open(model_store *store, const mar_options *machine, const char *path, judge_dtype dtype)
{
    mar_options options = *machine;
    if (strcmp(path, "demo") != 0) options.dtype = dtype == JUDGE_BF16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32;
    return models_open(store, &options, "features_dtype");
}

int judge_load(mar *library, const char *path, int batch, progress *bar, mar_features **out)
{
    progress_note(bar, "loading %s", path);
    const mar_status status = mar_features_load(library, path, batch, out);
    progress_clear(bar);
    return status == MAR_OK ? 0 : tool_error("%s", mar_error(library));
}

void judged_free(judged *d)
{
    eval_moments_free(&d->pooled);
    eval_moments_free(&d->spatial);
    eval_score_free(d->score);
    eval_score_free(d->adm);
    free(d->features);
    *d = (judged){0};
}

static int no_memory(const judging *j)
{
    return tool_error("%s: out of memory for judging %ld images, %d at a time", j->path, j->out->images,
                      j->judge->batch);
}

static int allocate(judging *j)
{
    const mar_features_config *c = mar_features_get_config(j->judge->network);
    judged *out = j->out;
    const size_t batch = (size_t)j->judge->batch;
    const eval_score_order adm = image_source_name(j->source, 0) ? EVAL_SCORE_ADM : EVAL_SCORE_ADM_AS_GIVEN;
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        j->batches[i].source = j->source;
        j->batches[i].rgb = malloc(batch * (size_t)out->width * (size_t)out->height * 3);
        failed |= !j->batches[i].rgb;
    }
    j->features = malloc(batch * (size_t)c->features * sizeof(float));
    if (c->spatial) j->spatial = malloc(batch * (size_t)c->spatial * sizeof(float));
    failed |= !j->features || (c->spatial && !j->spatial);
    failed |= eval_moments_create(c->features, &out->pooled) != MAR_OK;
    failed |= c->spatial && eval_moments_create(c->spatial, &out->spatial) != MAR_OK;
    if (j->judge->keep_scores) {
        j->logits = malloc(batch * (size_t)c->classes * sizeof(float));
        failed |= !j->logits;
        failed |= eval_score_create(EVAL_SCORE_TORCH_FIDELITY, out->images, c->classes, &out->score) != MAR_OK;
        failed |= eval_score_create(adm, out->images, c->classes, &out->adm) != MAR_OK;
    }
    if (j->judge->keep_features) {
        out->features = malloc((size_t)out->images * (size_t)c->features * sizeof(float));
        failed |= !out->features;
    }
    return failed ? no_memory(j) : 0;
}

/* --- reading ahead ------------------------------------------------------------------------------------------------ */

static void *read_images(void *arg)
{
    reading *r = arg;
    r->status = image_source_read(r->source, r->first, r->n, r->rgb);
    return NULL;
}

/* Begins to read the batch whose first image is `first`. If no thread can be started, reads it at once. */
static void begin_reading(judging *j, reading *r, long first)
{
    const long left = j->out->images - first;
    sigset_t before;
    r->first = first;
    r->n = left < 0 ? 0 : left < j->judge->batch ? (int)left : j->judge->batch;
    if (r->n == 0) return;
    interruption_hold(&before); /* older threads handle the signals */
    r->threaded = pthread_create(&r->thread, NULL, read_images, r) == 0;
    interruption_release(&before);
    if (!r->threaded) read_images(r);
}

/* Returns 0, or 1 if reading failed, with the error printed. */
static int end_reading(reading *r)
{
    if (r->threaded) pthread_join(r->thread, NULL);
    r->threaded = 0;
    return r->n ? r->status : 0;
}

/* --- judging ------------------------------------------------------------------------------------------------------ */

static int judge_batch(judging *j, const reading *r)
{
    judged *out = j->out;
    const size_t dim = (size_t)out->pooled.dim;
    const double start = tool_seconds();
    if (mar_features_run(j->judge->network, r->rgb, r->n, out->width, out->height, j->features, j->logits,
                         j->spatial) != MAR_OK)
        return tool_error("%s: images %ld to %ld: %s", j->path, r->first, r->first + r->n - 1, mar_error(j->library));
    eval_moments_add(&out->pooled, j->features, r->n);
    if (j->spatial) eval_moments_add(&out->spatial, j->spatial, r->n);
    if (out->score) eval_score_add(out->score, r->first, j->logits, r->n);
    if (out->adm) eval_score_add(out->adm, r->first, j->logits, r->n);
    if (out->features) memcpy(out->features + (size_t)r->first * dim, j->features, (size_t)r->n * dim * sizeof(float));
    out->seconds += tool_seconds() - start;
    return 0;
}

static int judge_all(judging *j)
{
    progress *bar = j->judge->bar;
    const long images = j->out->images;
    int status = 0;
    progress_begin(bar);
    begin_reading(j, &j->batches[0], 0);
    for (int i = 0; status == 0 && j->batches[i].n > 0; i = !i) {
        const reading *r = &j->batches[i];
        status = end_reading(&j->batches[i]);
        if (status == 0 && interruption_came()) status = interruption_status();
        if (status != 0) break;
        begin_reading(j, &j->batches[!i], r->first + r->n);
        progress_update(bar, (double)r->first / (double)images, r->first, images);
        status = judge_batch(j, r);
    }
    for (int i = 0; i < 2; i++)
        if (j->batches[i].threaded && end_reading(&j->batches[i]) != 0 && status == 0) status = 1;
    progress_clear(bar);
    return status;
}

int judge_images(const judge *request, mar *library, const char *path, judged *out)
{
    judging j = {.judge = request, .library = library, .path = path, .out = out};
    *out = (judged){0};
    if (image_source_open(path, &j.source) != 0) return 1;
    out->images = (long)image_source_count(j.source);
    out->width = image_source_width(j.source);
    out->height = image_source_height(j.source);
    int status = out->images > INT_MAX
                     ? tool_error("%s: has %ld images, expected %d at most", path, out->images, INT_MAX)
                     : allocate(&j);
    if (status == 0) status = judge_all(&j);
    image_source_close(j.source);
    for (int i = 0; i < 2; i++) free(j.batches[i].rgb);
    free(j.features);
    free(j.logits);
    free(j.spatial);
    return status;
}
