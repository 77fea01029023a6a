/* Adds up the shards of an evaluation, in the order of their numbers: whoever made them, and how many there were at a
 * time, the numbers have the same bits. Of all shards at a time there are only the sums in memory, four bytes an image
 * for the orders, and what precision and recall ask for. */
#include "tools/cli/command.h"
#include "tools/eval/job.h"
#include "tools/eval/numbers.h"
#include "tools/eval/pixels.h"
#include "tools/eval/reference_open.h"
#include "tools/eval/report.h"
#include "tools/cli/interruption.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 256 }; /* images whose logits are read at a time */

typedef struct {
    eval_job *job;
    eval_figures figures;
    eval_moments pooled, spatial;             /* of all shards so far */
    eval_moments shard_pooled, shard_spatial; /* of the one at hand */
    eval_score *score, *score_adm;
    float *logits;   /* [ROWS][classes] */
    float *features; /* [images][features]; NULL unless they are kept */
    uint32_t *crc;   /* [images]; NULL without --save_npz */
    uint64_t *processes;
    int process_count;

    /* For the report. The lists own the pixels. */
    eval_report_image sheet[EVAL_SHEET_MAX];
    eval_report_image rejected[EVAL_REJECTED_MAX + 1];
    int sheet_count, rejected_count;
} merger;

/* --- memory --------------------------------------------------------------------------------------------- */

static int allocate(merger *m)
{
    const eval_layout *l = &m->job->layout;
    const size_t n = (size_t)l->images;
    int lacks = eval_moments_create(l->features, &m->pooled) != MAR_OK ||
                eval_moments_create(l->features, &m->shard_pooled) != MAR_OK;
    if (l->spatial)
        lacks |= eval_moments_create(l->spatial, &m->spatial) != MAR_OK ||
                 eval_moments_create(l->spatial, &m->shard_spatial) != MAR_OK;
    lacks |= eval_score_create(EVAL_SCORE_TORCH_FIDELITY, l->images, l->classes, &m->score) != MAR_OK ||
             eval_score_create(EVAL_SCORE_ADM, l->images, l->classes, &m->score_adm) != MAR_OK;
    m->logits = malloc(ROWS * (size_t)l->classes * sizeof *m->logits);
    m->processes = malloc((size_t)eval_shard_count(l) * sizeof *m->processes);
    if (strcmp(eval_setting(m->job, "save_npz"), "on") == 0) lacks |= !(m->crc = malloc(n * sizeof *m->crc));
    if (lacks || !m->logits || !m->processes) return tool_error("out of memory for the sums");
    if (l->keeps_features) m->features = malloc(n * (size_t)l->features * sizeof *m->features);
    if (l->keeps_features && !m->features)
        return tool_error("out of memory for the features of %ld images, which precision and recall need", l->images);
    return 0;
}

static void release(merger *m)
{
    eval_moments_free(&m->pooled);
    eval_moments_free(&m->spatial);
    eval_moments_free(&m->shard_pooled);
    eval_moments_free(&m->shard_spatial);
    eval_score_free(m->score);
    eval_score_free(m->score_adm);
    free(m->logits);
    free(m->features);
    free(m->crc);
    free(m->processes);
    for (int i = 0; i < m->sheet_count; i++) free((uint8_t *)(uintptr_t)m->sheet[i].rgb);
    for (int i = 0; i < m->rejected_count; i++) free((uint8_t *)(uintptr_t)m->rejected[i].rgb);
}

/* --- one shard ------------------------------------------------------------------------------------------ */

static int add_rows(merger *m, const eval_shard *s)
{
    const size_t numbers = (size_t)m->job->layout.features;
    for (int at = 0; at < s->n; at += ROWS) {
        const int n = s->n - at < ROWS ? s->n - at : ROWS;
        if (eval_shard_logits(s, at, n, m->logits) != 0) return 1;
        eval_score_add(m->score, s->first + at, m->logits, n);
        eval_score_add(m->score_adm, s->first + at, m->logits, n);
        if (m->features && eval_shard_features(s, at, n, m->features + (size_t)(s->first + at) * numbers) != 0)
            return 1;
    }
    return m->crc ? eval_shard_crc(s, m->crc + s->first) : 0;
}

static int add_sums(merger *m, const eval_shard *s)
{
    eval_figures *f = malloc(sizeof *f);
    if (!f) return tool_error("out of memory for the sums");
    const int failed = eval_shard_figures(s, f) || eval_shard_moments(s, &m->shard_pooled, &m->shard_spatial);
    if (!failed) {
        eval_figures_add(&m->figures, f);
        eval_moments_merge(&m->pooled, &m->shard_pooled);
        if (m->job->layout.spatial) eval_moments_merge(&m->spatial, &m->shard_spatial);
    }
    free(f);
    return failed;
}

static void count_process(merger *m, uint64_t process)
{
    for (int i = 0; i < m->process_count; i++)
        if (m->processes[i] == process) return;
    m->processes[m->process_count++] = process;
}

static void *copy_of(const void *data, size_t size)
{
    void *copy = malloc(size);
    return copy ? memcpy(copy, data, size) : NULL;
}

/* Puts the picture where the report shows it; its pixels, which were allocated, have an owner then. */
static int place_picture(merger *m, eval_report_image picture, int is_sample)
{
    const int before = m->rejected_count;
    if (is_sample && m->sheet_count < EVAL_SHEET_MAX) {
        m->sheet[m->sheet_count++] = picture;
        picture.rgb = copy_of(picture.rgb, eval_pixel_bytes(&m->job->layout)); /* for the other list */
        if (!picture.rgb) return tool_error("out of memory for a picture of the report");
    }
    if (eval_report_rank(m->rejected, &m->rejected_count, &picture) < 0)
        free((uint8_t *)(uintptr_t)picture.rgb);
    else if (before == EVAL_REJECTED_MAX)
        free((uint8_t *)(uintptr_t)m->rejected[EVAL_REJECTED_MAX].rgb);
    return 0;
}

static int add_pictures(merger *m, const eval_shard *s)
{
    const eval_layout *l = &m->job->layout;
    for (int i = 0; i < s->samples; i++) {
        eval_sample sample;
        uint8_t *rgb = malloc(eval_pixel_bytes(l));
        if (!rgb) return tool_error("out of memory for a picture of the report");
        if (eval_shard_sample(s, i, &sample, rgb) != 0) {
            free(rgb);
            return 1;
        }
        const eval_report_image picture = {(long)sample.image, sample.label, sample.verified, sample.replaced, rgb,
                                           l->width,           l->height};
        if (place_picture(m, picture, eval_is_sample(l, (long)sample.image)) != 0) return 1;
    }
    return 0;
}

/* 0, 1 after an error, or EVAL_MERGE_AGAIN. */
static int add_shard(merger *m, int shard)
{
    eval_shard s;
    char path[RUN_PATH];
    eval_job *job = m->job;
    const eval_shard_state state = eval_shard_open(&job->directory, &job->layout, shard, &s);
    if (state == EVAL_SHARD_DAMAGED && !job->options->merge)
        unlink(run_shard_path(&job->directory, shard, ".mars", path));
    if (state == EVAL_SHARD_DAMAGED || state == EVAL_SHARD_MISSING) return EVAL_MERGE_AGAIN;
    if (state == EVAL_SHARD_ERROR) return 1;
    const int failed = add_sums(m, &s) || add_rows(m, &s) || add_pictures(m, &s);
    count_process(m, s.process);
    eval_shard_close(&s);
    return failed;
}

/* --- all of them ---------------------------------------------------------------------------------------- */

static void set(char *to, const char *text)
{
    snprintf(to, EVAL_TEXT, "%s", text);
}

static const char *with_id(const eval_job *job, const char *key, const char *id_key, char *text, size_t size)
{
    const char *id = eval_setting(job, id_key);
    snprintf(text, size, "%s%s%s%s", eval_setting(job, key), *id ? " (" : "", id, *id ? ")" : "");
    return text;
}

/* The classes, of a long list its beginning: the line has room for all that follows them. RUN/settings.json has them
 * all. */
static const char *class_list(const eval_job *job, char *text, size_t size)
{
    enum { SHOWN = 150 };
    const char *list = eval_setting(job, "class");
    int count = 1, shown = 0;
    if (strlen(list) <= SHOWN) return list;
    for (const char *c = list; *c; c++) {
        if (*c != ',') continue;
        count++;
        if (c - list <= SHOWN) shown = (int)(c - list);
    }
    snprintf(text, size, "%.*s, ... %d in all", shown, list, count);
    return text;
}

/* How the tokens were drawn. The settings have only what has an effect on the model's kind of tokens. */
static const char *sampling(const eval_job *job, char text[256])
{
    const char *cfg = eval_setting(job, "cfg"), *temperature = eval_setting(job, "temperature");
    if (*eval_setting(job, "num_sampling_steps"))
        snprintf(text, 256, "num_iter %s, num_sampling_steps %s, cfg %s (%s), temperature %s",
                 eval_setting(job, "num_iter"), eval_setting(job, "num_sampling_steps"), cfg,
                 eval_setting(job, "cfg_schedule"), temperature);
    else
        snprintf(text, 256, "cfg %s, cfg_interval %s, top_k %s, top_p %s, temperature %s", cfg,
                 eval_setting(job, "cfg_interval"), eval_setting(job, "top_k"), eval_setting(job, "top_p"),
                 temperature);
    return text;
}

/* How a value of the image decoder becomes a byte (kernels/pixels.h). */
static const char *bytes(const eval_job *job)
{
    return *eval_setting(job, "num_sampling_steps") ? "round(127.5 (v + 1))" : "trunc(127.5 v + 128)";
}

/* The protocol, one line. */
static void describe(const eval_job *job, eval_result *r)
{
    char weights[256], stats[256], model[256], vae[256], draft[300] = "", classes[200], drawn[256];
    const int demo = job->facts.demo;
    if (*eval_setting(job, "draft")) {
        char name[256];
        snprintf(draft, sizeof draft, ", draft %s", with_id(job, "draft", "draft_id", name, sizeof name));
    }
    snprintf(r->protocol, sizeof r->protocol,
             "reference %s; features %s%s%s%s%s; model %s, decoder %s%s; %s images of %s, classes %s (%s); 8 bit = "
             "%s, clipped; Inception score in the order of NumPy's RandomState(2020), 10 splits; "
             "%s, seed %s%s%s; %s",
             *eval_setting(job, "stats") ? with_id(job, "stats", "stats_id", stats, sizeof stats) : "none",
             job->facts.network, demo ? "" : " in ", demo ? "" : eval_setting(job, "features_dtype"), demo ? "" : ", ",
             demo ? "" : with_id(job, "inception", "inception_id", weights, sizeof weights),
             with_id(job, "model", "model_id", model, sizeof model), with_id(job, "vae", "vae_id", vae, sizeof vae),
             draft, eval_setting(job, "num_images"), eval_setting(job, "image_size"),
             eval_setting(job, "class_sampling"), class_list(job, classes, sizeof classes), bytes(job),
             sampling(job, drawn), eval_setting(job, "seed"), *job->facts.ways ? ", " : "", job->facts.ways,
             eval_setting(job, "Software"));
}

static void fill(const merger *m, eval_result *r)
{
    const eval_job *job = m->job;
    const eval_figures *f = &m->figures;
    describe(job, r);
    set(r->model, eval_setting(job, "model"));
    set(r->published, job->facts.published);
    set(r->guarantee, job->facts.guarantee);
    set(r->ways, job->facts.ways);
    set(r->backend, eval_setting(job, "backend"));
    r->accuracy = job->facts.demo ? (double)f->recognised / (double)job->layout.images : NAN;
    r->generate_s = f->generate_s;
    r->features_s = f->features_s;
    r->write_s = f->write_s;
    r->processes = m->process_count;
    r->stats = f->stats;
    r->steps = job->facts.steps;
    for (int i = 0; i < r->steps; i++) {
        r->accepted_late[i] = (long)f->accepted_late[i];
        r->replaced_late[i] = (long)f->replaced_late[i];
        if (f->accepted_late[i] + f->replaced_late[i] > 0) r->latest = i + 1;
    }
    for (int i = 0; i < r->steps; i++) {
        r->accepted[i] = (long)f->accepted[i];
        r->replaced[i] = (long)f->replaced[i];
        r->tokens[i] = (long)f->tokens[i];
    }
}

/* FID and the others. Returns 0, 1 after an error, or the exit status after a signal: a reference of many images takes
 * long. */
static int compute(merger *m, eval_result *r)
{
    const eval_job *job = m->job;
    const eval_layout *l = &job->layout;
    eval_reference reference = {0};
    const mar_features_config *network = mar_features_get_config(job->network);
    int status = 0;
    if (job->options->stats)
        status = eval_reference_open(job->options->stats, job->library, job->network, l->batch, l->keeps_features,
                                     job->options->quiet, &reference);
    if (status != 0) return status;
    const eval_gathered g = {.library = job->library,
                             .network = network,
                             .reference = job->options->stats ? &reference : NULL,
                             .pooled = &m->pooled,
                             .spatial = l->spatial ? &m->spatial : NULL,
                             .score = m->score,
                             .score_adm = m->score_adm,
                             .features = m->features,
                             .feature_count = m->features ? l->images : 0,
                             .images = l->images,
                             .width = l->width,
                             .height = l->height};
    status = eval_numbers(&g, r);
    eval_reference_free(&reference);
    return status;
}

static int write_report(const merger *m, const eval_result *r)
{
    const eval_job *job = m->job;
    char path[RUN_PATH];
    cJSON *settings = tool_json();
    for (int i = 0; i < job->settings.count; i++)
        cJSON_AddStringToObject(settings, job->settings.texts[i].key, job->settings.texts[i].value);
    const eval_report_extras extras = {.title = eval_setting(job, "model"),
                                       .settings = settings,
                                       .sheet = m->sheet,
                                       .sheet_count = m->sheet_count,
                                       .rejected = m->rejected,
                                       .rejected_count = m->rejected_count,
                                       .classes = job->facts.classes};
    const int failed = eval_report_write(r, &extras, run_path(&job->directory, "report.html", path));
    cJSON_Delete(settings);
    cJSON_InitHooks(NULL);
    return failed;
}

/* result.json comes last: it says that all is done. */
static int write_files(merger *m, const eval_result *r)
{
    eval_job *job = m->job;
    char path[RUN_PATH];
    if (m->crc && eval_pixels_finish_npz(job, m->crc) != 0) return 1;
    if (write_report(m, r) != 0) return 1;
    return eval_result_write(r, run_path(&job->directory, "result.json", path));
}

/* Journals that a process has left which was killed when it had finished the shard. */
static void remove_journals(const eval_job *job)
{
    char path[RUN_PATH];
    for (int s = 0; s < eval_shard_count(&job->layout); s++) unlink(run_shard_path(&job->directory, s, ".part", path));
}

static int merge(merger *m, eval_result *r)
{
    const double began = tool_seconds();
    int status = allocate(m);
    for (int s = 0; status == 0 && s < eval_shard_count(&m->job->layout); s++) {
        if (interruption_came()) return interruption_status();
        progress_note(m->job->bar, "adding up");
        status = add_shard(m, s);
    }
    if (status != 0) return status;
    fill(m, r);
    status = compute(m, r);
    if (status != 0) return status;
    r->merge_s = tool_seconds() - began;
    progress_clear(m->job->bar);
    if (write_files(m, r) != 0) return 1;
    remove_journals(m->job);
    return 0;
}

int eval_merge(eval_job *job, eval_result *r)
{
    merger *m = calloc(1, sizeof *m);
    if (!m) return tool_error("out of memory for the sums");
    m->job = job;
    *r = (eval_result){0};
    const int status = merge(m, r);
    progress_clear(job->bar);
    release(m);
    free(m);
    return status;
}
