/* Sums the stored results of an evaluation in the order of the images, first within each shard. The numbers have the
 * same bits for any number of processes. Memory holds sums, four bytes an image for the orders, and the features that
 * precision and recall need. */
#include "tools/cli/command.h"

#include "mar_eval.h"
#include "tools/eval/job.h"
#include "tools/eval/numbers.h"
#include "tools/eval/pictures.h"
#include "tools/eval/protocol.h"
#include "tools/eval/report.h"
#include "tools/cli/interruption.h"
#include "tools/generate/stats.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    POOLED = 128
}; /* images added to the sums at a time: each addition passes over whole matrices (eval/products.h) */

typedef struct {
    eval_job *job;
    eval_result *r;                           /* counts and seconds are summed in it */
    eval_batch batch;                         /* current batch */
    judged sums;                              /* of all shards so far */
    eval_moments shard_pooled, shard_spatial; /* of the current shard */
    float *waiting, *waiting_spatial;         /* [waiting_count][] features not yet added to them */
    int waiting_count;
    uint32_t *crc;  /* [images] */
    int *processes; /* [r->processes] */
    int lacks;      /* 1: a piece is missing or damaged, nothing is added any more */

    /* For the page. The lists own the pixels, read at the end. */
    eval_report_image sheet[EVAL_SHEET_MAX];
    eval_report_image rejected[EVAL_REJECTED_MAX + 1];
    int sheet_count, rejected_count;
} merger;

/* --- memory --------------------------------------------------------------------------------------------- */

static int merger_create(merger *m)
{
    const eval_layout *l = &m->job->layout;
    const mar_features_config sizes = {.features = l->features, .classes = l->classes, .spatial = l->spatial};
    const size_t n = (size_t)l->images, room = (size_t)(l->batch > POOLED ? l->batch : POOLED);
    m->sums = (judged){.images = l->images, .width = l->width, .height = l->height};
    int lacks = judged_create(l->features ? &sizes : NULL, 1, EVAL_SCORE_ADM,
                              l->keeps_features ? eval_feature_dim(l) : 0, &l->columns, &m->sums) != 0;
    if (l->features) lacks |= eval_moments_create(l->features, &m->shard_pooled) != MAR_OK;
    if (l->spatial) lacks |= eval_moments_create(l->spatial, &m->shard_spatial) != MAR_OK;
    m->waiting = malloc(room * (size_t)l->features * sizeof *m->waiting + 1);
    m->waiting_spatial = malloc(room * (size_t)l->spatial * sizeof *m->waiting_spatial + 1);
    m->processes = malloc((n / (size_t)l->batch + 1) * sizeof *m->processes);
    m->crc = malloc(n * sizeof *m->crc);
    if (lacks || !m->crc || !m->processes || !m->waiting || !m->waiting_spatial)
        return tool_error("out of memory for the sums of %ld images%s", l->images,
                          l->keeps_features ? " and their features, which precision and recall need" : "");
    return eval_batch_create(l, &m->batch);
}

static void merger_free(merger *m)
{
    judged_free(&m->sums);
    eval_moments_free(&m->shard_pooled);
    eval_moments_free(&m->shard_spatial);
    eval_batch_free(&m->batch);
    free(m->waiting);
    free(m->waiting_spatial);
    free(m->crc);
    free(m->processes);
    for (int i = 0; i < m->sheet_count; i++) free(m->sheet[i].rgb);
    for (int i = 0; i < m->rejected_count; i++) free(m->rejected[i].rgb);
}

/* --- one batch ---------------------------------------------------------------------------------------------------- */

static void count_process(merger *m, int process)
{
    for (int i = 0; i < m->r->processes; i++)
        if (m->processes[i] == process) return;
    m->processes[m->r->processes++] = process;
}

/* Returns whether the classifier of digits gives the label the greatest logit. */
static int is_recognised(const eval_batch *b, int i, int classes)
{
    const float *logits = b->logits + (size_t)i * (size_t)classes;
    int best = 0;
    for (int k = 1; k < classes; k++)
        if (logits[k] > logits[best]) best = k;
    return best == b->labels[i];
}

/* Returns whether the labels are digits that the network knows, not prompts. */
static int has_digits(const eval_job *job)
{
    return job->facts.demo && !*eval_setting(job, "prompts_id") && !*eval_setting(job, "captions");
}

/* Adds counts and seconds. accuracy counts the recognised images. */
static void add_figures(merger *m)
{
    const eval_layout *l = &m->job->layout;
    const eval_batch *b = &m->batch;
    eval_result *r = m->r;
    long *const curves[EVAL_CURVES] = {r->accepted, r->replaced, r->tokens, r->accepted_late, r->replaced_late};
    stats_add(&r->stats, b->stats);
    r->features_s += b->seconds[0];
    r->write_s += b->seconds[1];
    for (int i = 0; i < b->n && has_digits(m->job); i++) r->accuracy += is_recognised(b, i, l->classes);
    for (int k = 0; k < EVAL_CURVES; k++)
        for (int i = 0; i < l->steps; i++) curves[k][i] += (long)b->curves[k * l->steps + i];
    count_process(m, *b->process);
}

static void add_waiting(merger *m)
{
    if (m->job->layout.features) eval_moments_add(&m->shard_pooled, m->waiting, m->waiting_count);
    if (m->job->layout.spatial) eval_moments_add(&m->shard_spatial, m->waiting_spatial, m->waiting_count);
    m->waiting_count = 0;
}

static void add_moments(merger *m)
{
    const eval_batch *b = &m->batch;
    const size_t size = (size_t)m->job->layout.features, spatial = (size_t)m->job->layout.spatial;
    if (m->waiting_count + b->n > POOLED) add_waiting(m);
    const size_t at = (size_t)m->waiting_count, n = (size_t)b->n;
    memcpy(m->waiting + at * size, b->features, n * size * sizeof *b->features);
    memcpy(m->waiting_spatial + at * spatial, b->spatial, n * spatial * sizeof *b->spatial);
    m->waiting_count += b->n;
}

/* Lists images that the page may show, without their pixels. */
static void list_pictures(merger *m, long first)
{
    const eval_layout *l = &m->job->layout;
    const eval_batch *b = &m->batch;
    for (int i = 0; i < b->n; i++) {
        const eval_report_image picture = {first + i, b->labels[i], b->verified[i], b->replaced[i],
                                           NULL,      l->width,     l->height};
        if (eval_is_sample(l, first + i)) m->sheet[m->sheet_count++] = picture;
        eval_report_rank(m->rejected, &m->rejected_count, &picture);
    }
}

/* Adds a batch. After a missing or damaged piece it only checks, so that all are made again in one round. Returns 0, or
 * 1 after an error. */
static int add_batch(merger *m, long first)
{
    eval_job *job = m->job;
    const eval_layout *l = &job->layout;
    eval_batch *b = &m->batch;
    char path[STORE_PATH];
    const store_range at = eval_range(job, first);
    const store_state state = eval_batch_read(&job->store, &at, job->facts.judged, l, b);
    if (state == STORE_DAMAGED && !job->options->merge) unlink(store_path(&job->store, &at, job->facts.judged, path));
    if (state == STORE_ERROR) return 1;
    if (state != STORE_THERE) m->lacks = 1;
    if (m->lacks) return 0;
    add_figures(m);
    list_pictures(m, first);
    add_moments(m);
    judged_add(&m->sums, first, b->n, l->vgg ? b->vgg : b->features, b->logits);
    if (l->columns.count)
        memcpy(m->sums.scores + l->columns.count * first, b->scores,
               (size_t)l->columns.count * (size_t)b->n * sizeof *b->scores);
    for (int i = 0; i < b->n; i++) m->crc[first + i] = (uint32_t)b->crc[i];
    return 0;
}

static void clear_moments(eval_moments *m)
{
    const size_t n = (size_t)m->dim;
    m->count = 0;
    if (n) memset(m->sum, 0, n * sizeof *m->sum);
    if (n) memset(m->products, 0, n * (n + 1) / 2 * sizeof *m->products);
}

/* Adds a shard to the sums: sums of sums, whose bits depend on the size of a shard alone. Returns as add_batch. */
static int add_shard(merger *m, int shard)
{
    const eval_layout *l = &m->job->layout;
    clear_moments(&m->shard_pooled);
    clear_moments(&m->shard_spatial);
    for (long i = eval_shard_first(l, shard); i < eval_shard_end(l, shard); i += l->batch) {
        const int status = add_batch(m, i);
        if (status != 0) return status;
    }
    add_waiting(m);
    if (l->features) eval_moments_merge(&m->sums.pooled, &m->shard_pooled);
    if (l->spatial) eval_moments_merge(&m->sums.spatial, &m->shard_spatial);
    return 0;
}

/* --- all batches -------------------------------------------------------------------------------------------------- */

static void copy_result_text(char *to, const char *text)
{
    snprintf(to, EVAL_TEXT, "%s", text);
}

/* Fills in all but the numbers, behind the last batch. */
static void fill_result(const merger *m)
{
    const eval_job *job = m->job;
    eval_result *r = m->r;
    protocol_of_run(&job->settings, mar_features_get_config(job->judge.network), job->facts.accelerators, r->protocol);
    copy_result_text(r->model, eval_setting(job, "model"));
    copy_result_text(r->published, job->facts.published);
    copy_result_text(r->guarantee, job->facts.guarantee);
    copy_result_text(r->accelerators, job->facts.accelerators);
    copy_result_text(r->backend, eval_setting(job, "arithmetic"));
    r->accuracy = has_digits(job) ? r->accuracy / (double)job->layout.images : NAN;
    r->generate_s = r->stats.total_s;
    r->steps = job->layout.steps;
    for (int i = 0; i < r->steps; i++)
        if (r->accepted_late[i] + r->replaced_late[i] > 0) r->latest = i + 1;
}

/* Computes FID and the others. Returns 0, 1 with the error printed, or the exit status after a signal: a reference of
 * many images takes long. */
static int merge_numbers(const merger *m)
{
    eval_job *job = m->job;
    const char *stats = job->options->stats;
    eval_reference reference = {0};
    job->judge.keep_features = job->layout.keeps_features;
    int status = 0;
    if (stats && (job->judge.network || job->judge.vgg)) status = judge_reference(&job->judge, stats, &reference);
    if (status == 0) status = eval_judged_numbers(&job->judge, stats ? &reference : NULL, &m->sums, m->r);
    eval_reference_free(&reference);
    return status;
}

static int write_report(const merger *m)
{
    const eval_job *job = m->job;
    char path[RUN_PATH];
    const eval_report_extras extras = {
        .title = eval_setting(job, "model"),
        .settings = job->settings.texts,
        .setting_count = job->settings.count,
        .sheet = m->sheet,
        .sheet_count = m->sheet_count,
        .rejected = m->rejected,
        .rejected_count = m->rejected_count,
        .has_prompts = *eval_setting(job, "prompts_id") || *eval_setting(job, "captions"),
        .names = job->models.model ? job->models.classes.names : class_table_of(job->facts.classes)};
    return eval_report_write(m->r, &extras, run_path(&job->directory, "report.html", path));
}

/* Writes the files, result.json last: it marks the run as done. Returns as eval_make_shards. */
static int write_run_files(merger *m)
{
    eval_job *job = m->job;
    char path[RUN_PATH];
    int status = eval_pictures_finish(job, m->crc);
    if (status == 0) status = eval_pictures_get(job, m->sheet, &m->sheet_count);
    if (status == 0) status = eval_pictures_get(job, m->rejected, &m->rejected_count);
    if (status == 0) status = write_report(m);
    return status != 0 ? status : eval_result_write(m->r, run_path(&job->directory, "result.json", path));
}

static int merge_shards(merger *m)
{
    const double began = tool_seconds();
    int status = merger_create(m);
    for (int s = 0; status == 0 && s < eval_shard_count(&m->job->layout); s++) {
        if (interruption_came()) return interruption_status();
        progress_note(m->job->bar, "adding up");
        status = add_shard(m, s);
    }
    if (status == 0 && m->lacks) status = EVAL_MERGE_AGAIN;
    if (status != 0) return status;
    fill_result(m);
    status = merge_numbers(m);
    if (status != 0) return status;
    m->r->merge_s = tool_seconds() - began;
    progress_clear(m->job->bar);
    return write_run_files(m);
}

int eval_merge(eval_job *job, eval_result *r)
{
    merger *m = calloc(1, sizeof *m);
    if (!m) return tool_error("out of memory for the sums");
    m->job = job;
    m->r = r;
    *r = (eval_result){0};
    const int status = merge_shards(m);
    progress_clear(job->bar);
    merger_free(m);
    free(m);
    return status;
}
