#include "tools/eval/judge.h"

#include "mar_eval.h"
#include "mar_methods.h"

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

/* Images first .. first+n-1. */
typedef struct {
    image_source *source;
    image *pictures; /* [batch]; each of the first n has its pixels once it is read */
    long first;
    int n;      /* 0: nothing to read; once read, as many as were read */
    int failed; /* the error is printed */
    int threaded;
    pthread_t thread;
} reading;

/* Buffers of two batches, one judged while the other is read, and the results. */
typedef struct {
    judge *judge;
    const char *path;
    image_source *source;
    reading batches[2];
    judge_output output; /* [batch][] of the current batch; its scores are in *out */
    int32_t *prompt;     /* [images] prompt of each image; NULL: no scores */
    judged *out;
} judging;

/* --- the network -------------------------------------------------------------------------------------------------- */

static const char *const networks[] = {"inception", "demo", "none", NULL};
const char *const judge_resizes[] = {[JUDGE_TF1] = "tf1", [JUDGE_CLEAN] = "clean", NULL};
const char *const judge_dtypes[] = {[JUDGE_F32] = "f32", [JUDGE_BF16] = "bf16", NULL};

const mar_param judge_rows[] = {
    {.name = OPTION("features"),
     .offset = offsetof(judge_options, features),
     .group = "Judging",
     .type = MAR_TYPE_NAME,
     .choices = networks,
     .help = "network that judges; default demo for the demo, else inception\n"
             "inception is Inception-v3, which defines FID and the others. demo is the built-in classifier of "
             "digits, images of 32x32 pixels by 64 numbers, for the demo's Frechet distance. none leaves the scores of "
             "prompts and precision and recall on VGG16, if they are asked for; it is the default with --clip, --hps, "
             "--imagereward or --vgg and without --inception."},
    {OPTION_TEXT(judge_options, inception, "FILE"),
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
    {OPTION_CHOICE(judge_options, resize, judge_resizes),
     .help = "how images become 299x299 for Inception-v3\n"
             "tf1 is TensorFlow 1's bilinear resize, as in torch-fidelity and ADM's evaluator. clean is clean-fid's: "
             "bicubic with antialiasing, without rounding. With --resize images of a directory may have any sizes, as "
             "those of COCO, and each is resized by itself; without it all must have one size. Use the same in mar "
             "stats and mar eval."},
    {0},
};

int judge_is_demo(const judge_options *o)
{
    return strcmp(o->features, "demo") == 0;
}

int judge_is_none(const judge_options *o)
{
    return strcmp(o->features, "none") == 0;
}

int judge_options_done(judge_options *o, const option_set *set, const char *features, const char *hint)
{
    o->gives_resize = options_find(set, "resize")->given;
    if (!o->features) o->features = o->inception ? "inception" : features;
    const int demo = judge_is_demo(o);
    if (demo && o->inception) return tool_error("--inception: has no effect with --features demo");
    if (demo && options_find(set, "features_dtype")->given)
        return tool_error("--features_dtype: has no effect with --features demo, which is f32");
    if (o->gives_resize && !o->inception) return tool_error("--resize: has no effect without --inception");
    if (judge_is_none(o) && o->inception) return tool_error("--inception: has no effect with --features none");
    if (demo || o->inception || judge_is_none(o)) return 0;
    return tool_error("--inception is missing, expected Inception-v3's weights, such as "
                      "weights-inception-2015-12-05-6726825d.pth of torch-fidelity%s",
                      hint);
}

static int load_judge_network(mar *library, const char *path, int batch, progress *bar, mar_features **out)
{
    progress_note(bar, "loading %s", path);
    const mar_status status = mar_features_load(library, path, batch, out);
    progress_clear(bar);
    if (status == MAR_OK) return 0;
    return tool_error("%s%s", mar_error(library),
                      status == MAR_ENOMEM && batch > 1 ? "; a smaller --batch needs less" : "");
}

int judge_open(const judge_options *o, model_store *store, const mar_options *machine, int batch, progress *bar,
               judge *out)
{
    mar_options options = *machine;
    *out = (judge){.batch = batch,
                   .clean = o->resize == JUDGE_CLEAN,
                   .any_size = o->gives_resize,
                   .kid_subset = o->kid_subset,
                   .bar = bar};
    if (o->inception || o->vgg) options.dtype = o->dtype == JUDGE_BF16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32;
    out->library = models_open(store, &options, "features_dtype");
    if (!out->library) return 1;
    out->rgb = malloc((size_t)batch * sizeof *out->rgb);
    out->widths = malloc((size_t)batch * sizeof *out->widths);
    out->heights = malloc((size_t)batch * sizeof *out->heights);
    if (!out->rgb || !out->widths || !out->heights) return tool_error("out of memory for %d images", batch);
    if (o->vgg && load_judge_network(out->library, o->vgg, batch, bar, &out->vgg) != 0) return 1;
    const char *name = out->vgg ? mar_features_get_config(out->vgg)->name : "vgg16";
    if (strcmp(name, "vgg16") != 0) return tool_error("--vgg %s: is %s, expected VGG16", o->vgg, name);
    if (judge_is_none(o)) return 0;
    const char *path = o->inception ? o->inception : "demo";
    if (load_judge_network(out->library, path, batch, bar, &out->network) != 0) return 1;
    name = mar_features_get_config(out->network)->name;
    if (strcmp(name, "vgg16") == 0) return tool_error("--inception %s: is %s, expected it for --vgg", path, name);
    if (!out->clean || mar_features_set_resize(out->network, MAR_RESIZE_CLEAN) == MAR_OK) return 0;
    return tool_error("--resize clean: %s", mar_error(out->library));
}

void judge_close(judge *j)
{
    mar_features_free(j->network);
    mar_features_free(j->vgg);
    prompt_scorer_close(&j->scorer);
    free(j->rgb);
    free(j->widths);
    free(j->heights);
    *j = (judge){0};
}

int judge_takes_any_size(const judge *j)
{
    return j->any_size || !j->network;
}

int judge_feature_dim(const judge *j)
{
    const mar_features *of = j->vgg ? j->vgg : j->network;
    return of ? mar_features_get_config(of)->features : 0;
}

int judge_run(judge *j, const int32_t *prompt, long first, int n, const judge_output *out)
{
    mar_status status = MAR_OK;
    if (j->network)
        status = mar_features_run_each(j->network, j->rgb, j->widths, j->heights, n, out->features, out->logits,
                                       out->spatial);
    if (status == MAR_OK && out->vgg)
        status = mar_features_run_each(j->vgg, j->rgb, j->widths, j->heights, n, out->vgg, NULL, NULL);
    if (status != MAR_OK)
        return tool_error("%s%simages %ld to %ld: %s", j->path ? j->path : "", j->path ? ": " : "", first,
                          first + n - 1, mar_error(j->library));
    return out->scores ? prompt_scorer_run(&j->scorer, j->rgb, j->widths, j->heights, prompt, first, n, out->scores)
                       : 0;
}

/* --- results ------------------------------------------------------------------------------------------------------ */

int judged_create(const mar_features_config *c, int keeps_scores, eval_score_order adm, int feature_dim,
                  const score_columns *columns, judged *d)
{
    const size_t n = (size_t)d->images;
    int lacks = c && eval_moments_create(c->features, &d->pooled) != MAR_OK;
    if (c && c->spatial) lacks |= eval_moments_create(c->spatial, &d->spatial) != MAR_OK;
    if (c && keeps_scores)
        lacks |= eval_score_create(EVAL_SCORE_TORCH_FIDELITY, d->images, c->classes, &d->score) != MAR_OK ||
                 eval_score_create(adm, d->images, c->classes, &d->adm) != MAR_OK;
    d->columns = *columns;
    if (columns->count) lacks |= !(d->scores = malloc(n * (size_t)columns->count * sizeof *d->scores));
    if (!feature_dim) return lacks;
    d->feature_count = d->images;
    d->feature_dim = feature_dim;
    d->features = malloc(n * (size_t)feature_dim * sizeof *d->features);
    return lacks || !d->features;
}

void judged_add(judged *d, long first, int n, const float *features, const float *logits)
{
    const size_t dim = (size_t)d->feature_dim;
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
    free(d->scores);
    *d = (judged){0};
}

/* --- images made elsewhere ---------------------------------------------------------------------------------------- */

static int allocate_judging(judging *j)
{
    const judge *request = j->judge;
    const mar_features_config *c = mar_features_get_config(request->network);
    const size_t batch = (size_t)request->batch;
    const int dim = request->keep_features ? judge_feature_dim(request) : 0;
    const eval_score_order adm = image_source_name(j->source, 0) ? EVAL_SCORE_ADM : EVAL_SCORE_ADM_AS_GIVEN;
    const score_columns none = {.count = 0};
    judge_output *to = &j->output;
    int lacks = 0;
    for (int i = 0; i < 2; i++) {
        j->batches[i].source = j->source;
        lacks |= !(j->batches[i].pictures = calloc(batch, sizeof(image)));
    }
    if (c) lacks |= !(to->features = malloc(batch * (size_t)c->features * sizeof(float)));
    if (c && c->spatial) lacks |= !(to->spatial = malloc(batch * (size_t)c->spatial * sizeof(float)));
    if (c && request->keep_scores) lacks |= !(to->logits = malloc(batch * (size_t)c->classes * sizeof(float)));
    if (request->vgg && dim) lacks |= !(to->vgg = malloc(batch * (size_t)dim * sizeof(float)));
    lacks |= judged_create(c, request->keep_scores, adm, dim, j->prompt ? &request->scorer.columns : &none, j->out);
    return lacks ? tool_error("%s: out of memory for judging %ld images, %d at a time", j->path, j->out->images,
                              request->batch)
                 : 0;
}

/* --- reading ahead ------------------------------------------------------------------------------------------------ */

static void *read_ahead(void *arg)
{
    reading *r = arg;
    const int64_t n = image_source_read_pictures(r->source, r->first, r->n, r->pictures);
    r->failed = n < 0;
    if (n > 0) r->n = (int)n;
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
    r->threaded = pthread_create(&r->thread, NULL, read_ahead, r) == 0;
    interruption_release(&before);
    if (!r->threaded) read_ahead(r);
}

/* Returns 0, or 1 if reading failed, with the error printed. */
static int end_reading(reading *r)
{
    if (r->threaded) pthread_join(r->thread, NULL);
    r->threaded = 0;
    return r->n ? r->failed : 0;
}

/* --- judging ------------------------------------------------------------------------------------------------------ */

static void free_pictures(reading *r)
{
    for (int i = 0; r->pictures && i < r->n; i++) {
        free(r->pictures[i].rgb);
        r->pictures[i].rgb = NULL;
    }
}

static int judge_read_batch(judging *j, const reading *r)
{
    judge *request = j->judge;
    judge_output *to = &j->output;
    judged *out = j->out;
    const double start = tool_seconds();
    for (int i = 0; i < r->n; i++) {
        request->rgb[i] = r->pictures[i].rgb;
        request->widths[i] = r->pictures[i].width, request->heights[i] = r->pictures[i].height;
        out->other_sizes |= r->pictures[i].width != out->width || r->pictures[i].height != out->height;
    }
    to->scores = j->prompt ? out->scores + out->columns.count * r->first : NULL;
    if (judge_run(request, j->prompt ? j->prompt + r->first : NULL, r->first, r->n, to) != 0) return 1;
    if (to->features) eval_moments_add(&out->pooled, to->features, r->n);
    if (to->spatial) eval_moments_add(&out->spatial, to->spatial, r->n);
    judged_add(out, r->first, r->n, to->vgg ? to->vgg : to->features, to->logits);
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
        status = judge_read_batch(j, r);
        free_pictures(&j->batches[i]);
    }
    for (int i = 0; i < 2; i++) {
        if (j->batches[i].threaded && end_reading(&j->batches[i]) != 0 && status == 0) status = 1;
        free_pictures(&j->batches[i]);
    }
    progress_clear(bar);
    return status;
}

int judge_images(judge *request, const char *path, judged *out)
{
    judging j = {.judge = request, .path = path, .out = out};
    const int any_size = judge_takes_any_size(request);
    *out = (judged){0};
    request->path = path;
    if ((any_size ? image_source_open_any : image_source_open)(path, &j.source) != 0) return 1;
    out->images = (long)image_source_count(j.source);
    out->width = image_source_width(j.source);
    out->height = image_source_height(j.source);
    int status = 0;
    if (out->images > INT_MAX)
        status = tool_error("%s: has %ld images, expected %d at most", path, out->images, INT_MAX);
    if (status == 0 && request->scorer.columns.count) {
        j.prompt = scores_pair(&request->scorer, path, j.source);
        status = !j.prompt;
    }
    if (status == 0) status = allocate_judging(&j);
    if (status == 0) status = judge_all(&j);
    image_source_close(j.source);
    for (int i = 0; i < 2; i++) free(j.batches[i].pictures);
    free(j.prompt);
    free(j.output.vgg);
    free(j.output.features);
    free(j.output.logits);
    free(j.output.spatial);
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
    if (image_source_open_any(path, &source) != 0) return 1;
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
    if (!out->dim) out->images = d->images; /* else mu and sigma are the file's, of images that it may not have */
    if (!out->dim && d->pooled.dim) {
        failed |= take_gaussian(&d->pooled, &out->dim, &out->mu, &out->sigma);
        if (d->spatial.dim && !failed) failed |= take_gaussian(&d->spatial, &out->spatial, &out->mu_s, &out->sigma_s);
    }
    if (!out->features && d->features) {
        out->features = d->features;
        out->feature_dim = d->feature_dim;
        out->feature_count = d->images;
        d->features = NULL;
    }
    out->path = path;
    return failed ? tool_error("%s: out of memory for its statistics", path) : 0;
}

/* Returns whether nothing is left to be judged of a loaded file. */
static int has_all_statistics(const judge *j, const eval_reference *r)
{
    const int wants_features = j->keep_features && !r->features && r->pictures;
    if (!j->network) return !wants_features;
    if (r->dim && r->dim != mar_features_get_config(j->network)->features) return 1; /* eval_numbers rejects it */
    return r->dim && !wants_features;
}

int judge_reference(judge *j, const char *path, eval_reference *out)
{
    char why[512];
    judged d;
    judge request = *j;
    request.scorer = (prompt_scorer){0};
    request.keep_scores = 0;
    *out = (eval_reference){.path = path, .resize = -1}; /* images are resized as the others */
    if (strcmp(path, "demo") == 0 || !judge_is_directory(path)) {
        if (eval_reference_load(path, out, why, sizeof why) != MAR_OK) return tool_error("%s", why);
        if (j->vgg) { /* those of the file are another network's */
            free(out->features);
            out->features = NULL;
            out->feature_count = 0;
        }
        if (has_all_statistics(j, out)) return 0;
    }
    int status = judge_images(&request, path, &d);
    if (status == 0) status = judge_reference_of(&d, path, out);
    judged_free(&d);
    if (status != 0) eval_reference_free(out);
    return status;
}
