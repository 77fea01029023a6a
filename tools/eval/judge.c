#include "tools/eval/judge.h"

#include "tools/cli/command.h"
#include "tools/images/source.h"
#include "tools/cli/interruption.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
    const char *path;
    image_source *source;
    reading batches[2];
    float *features; /* [batch][features] */
    float *logits;   /* [batch][classes]; NULL: not wanted */
    float *spatial;  /* [batch][spatial]; NULL: the network has none */
    judged *out;
} judging;

/* --- the network -------------------------------------------------------------------------------------------------- */

static const char *const networks[] = {"inception", "demo", NULL};
const char *const judge_dtypes[] = {[JUDGE_F32] = "f32", [JUDGE_BF16] = "bf16", NULL};

const mar_param judge_rows[] = {
    {.name = OPTION("features"),
     .offset = offsetof(judge_options, features),
     .group = "Judging",
     .type = MAR_TYPE_NAME,
     .choices = networks,
     .help = "network that judges; default demo for the demo, else inception\n"
             "inception is Inception-v3, which defines FID and the others. demo is the built-in classifier of "
             "digits, images of 32x32 pixels by 64 numbers, for the demo's Frechet distance."},
    {.name = OPTION("inception"),
     .offset = offsetof(judge_options, inception),
     .type = MAR_TYPE_TEXT,
     .argument = "FILE",
     .help = "Inception-v3's weights, .pth or .safetensors\n"
             "weights-inception-2015-12-05-6726825d.pth of torch-fidelity, or pt_inception-2015-12-05-6726825d.pth of "
             "pytorch-fid."},
    {.name = OPTION("features_dtype"),
     .offset = offsetof(judge_options, dtype),
     .type = MAR_TYPE_CHOICE,
     .choices = judge_dtypes,
     .help = "arithmetic of Inception-v3\n"
             "f32 agrees with torch-fidelity; compare published numbers with it. bf16 is faster on processors and "
             "GPUs that have it, and changes FID: compare its numbers only with one another, and use the same in mar "
             "stats and mar eval. --dtype is for the model only."},
    {0},
};

int judge_is_demo(const judge_options *o)
{
    return strcmp(o->features, "demo") == 0;
}

int judge_options_done(judge_options *o, const option_set *set, const char *features, const char *hint)
{
    if (!o->features) o->features = o->inception ? "inception" : features;
    const int demo = judge_is_demo(o);
    if (demo && o->inception) return tool_error("--inception: has no effect with --features demo");
    if (demo && options_find(set, "features_dtype")->given)
        return tool_error("--features_dtype: has no effect with --features demo, which is f32");
    if (demo || o->inception) return 0;
    return tool_error("--inception is missing, expected Inception-v3's weights, such as "
                      "weights-inception-2015-12-05-6726825d.pth of torch-fidelity%s",
                      hint);
}

int judge_open(const judge_options *o, model_store *store, const mar_options *machine, int batch, progress *bar,
               mar **library, mar_features **network)
{
    const char *path = o->inception ? o->inception : "demo";
    mar_options options = *machine;
    if (o->inception) options.dtype = o->dtype == JUDGE_BF16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32;
    *library = models_open(store, &options, "features_dtype");
    if (!*library) return 1;
    progress_note(bar, "loading %s", path);
    const mar_status status = mar_features_load(*library, path, batch, network);
    progress_clear(bar);
    if (status == MAR_OK) return 0;
    return tool_error("%s%s", mar_error(*library),
                      status == MAR_ENOMEM && batch > 1 ? "; a smaller --batch needs less" : "");
}

/* --- what it says ------------------------------------------------------------------------------------------------- */

int judged_create(const mar_features_config *c, int keeps_scores, eval_score_order adm, int keeps_features, judged *d)
{
    int lacks = eval_moments_create(c->features, &d->pooled) != MAR_OK;
    if (c->spatial) lacks |= eval_moments_create(c->spatial, &d->spatial) != MAR_OK;
    if (keeps_scores)
        lacks |= eval_score_create(EVAL_SCORE_TORCH_FIDELITY, d->images, c->classes, &d->score) != MAR_OK ||
                 eval_score_create(adm, d->images, c->classes, &d->adm) != MAR_OK;
    if (!keeps_features) return lacks;
    d->feature_count = d->images;
    d->features = malloc((size_t)d->images * (size_t)c->features * sizeof *d->features);
    return lacks || !d->features;
}

void judged_add(judged *d, long first, int n, const float *features, const float *logits)
{
    const size_t dim = (size_t)d->pooled.dim;
    if (d->score) eval_score_add(d->score, first, logits, n);
    if (d->adm) eval_score_add(d->adm, first, logits, n);
    if (d->features) memcpy(d->features + (size_t)first * dim, features, (size_t)n * dim * sizeof *features);
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

/* --- images made elsewhere ---------------------------------------------------------------------------------------- */

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
    if (j->judge->keep_scores) j->logits = malloc(batch * (size_t)c->classes * sizeof(float));
    failed |= j->judge->keep_scores && !j->logits;
    failed |= judged_create(c, j->judge->keep_scores, adm, j->judge->keep_features, out);
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
    const double start = tool_seconds();
    if (mar_features_run(j->judge->network, r->rgb, r->n, out->width, out->height, j->features, j->logits,
                         j->spatial) != MAR_OK)
        return tool_error("%s: images %ld to %ld: %s", j->path, r->first, r->first + r->n - 1,
                          mar_error(j->judge->library));
    eval_moments_add(&out->pooled, j->features, r->n);
    if (j->spatial) eval_moments_add(&out->spatial, j->spatial, r->n);
    judged_add(out, r->first, r->n, j->features, j->logits);
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

int judge_images(const judge *request, const char *path, judged *out)
{
    judging j = {.judge = request, .path = path, .out = out};
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

/* --- references --------------------------------------------------------------------------------------------------- */

int judge_is_directory(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

int judge_identify(const char *path, char text[RECORD_ID])
{
    image_source *source;
    uint64_t sum;
    if (!path || strcmp(path, "demo") == 0 || !judge_is_directory(path)) return record_identify_file(path, text);
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

int judge_reference_of(judged *d, const char *path, eval_reference *out)
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

int judge_reference(const judge *j, const char *path, eval_reference *out)
{
    char why[512];
    judged d;
    *out = (eval_reference){.path = path};
    if (strcmp(path, "demo") == 0 || !judge_is_directory(path)) {
        if (eval_reference_load(path, out, why, sizeof why) != MAR_OK) return tool_error("%s", why);
        if (out->dim && !(j->keep_features && !out->features && out->has_images)) return 0;
        if (out->dim && out->dim != mar_features_get_config(j->network)->features)
            return 0; /* eval_numbers rejects it */
    }
    int status = judge_images(j, path, &d);
    if (status == 0) status = judge_reference_of(&d, path, out);
    judged_free(&d);
    if (status != 0) eval_reference_free(out);
    return status;
}
