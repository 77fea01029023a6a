/* Makes what the run store of an evaluation lacks: images, and the network's output on them. */
#include "tools/cli/command.h"

#include "mar_measure.h"
#include "tools/cli/interruption.h"
#include "tools/eval/job.h"
#include "tools/eval/pictures.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    eval_job *job;
    eval_pixels pixels;                                /* destinations of the pictures */
    eval_batch batch;                                  /* current batch */
    int shard;                                         /* shards looked at, from the process's first on */
    long next;                                         /* batch to look at; -1: the next shard's first */
    int busy;                                          /* 1: other processes make some of the missing batches */
    eval_report_image rejected[EVAL_REJECTED_MAX + 1]; /* images with the most rejected drafts so far, without pixels */
    int rejected_count;
} maker;

/* --- a batch -------------------------------------------------------------------------------------------- */

static int judge_made_batch(maker *m, const image_batch *batch)
{
    judge *j = &m->job->judge;
    const eval_layout *l = &m->job->layout;
    eval_batch *b = &m->batch;
    const judge_output to = {.features = b->features,
                             .logits = b->logits,
                             .spatial = l->spatial ? b->spatial : NULL,
                             .vgg = l->vgg ? b->vgg : NULL,
                             .scores = l->columns.count ? b->scores : NULL};
    const double began = tool_seconds();
    for (int i = 0; i < batch->n; i++) {
        j->rgb[i] = batch->rgb + (size_t)i * eval_pixel_bytes(l);
        j->widths[i] = l->width, j->heights[i] = l->height;
    }
    if (judge_run(j, batch->labels, batch->first, batch->n, &to) != 0) return 1;
    b->seconds[0] = tool_seconds() - began;
    return 0;
}

/* Counts the status of the drafts of the batch's images. The last entry of a curve covers all later steps, too. */
static void count_batch_drafts(maker *m, const image_batch *batch)
{
    const int last = m->job->layout.steps - 1, tokens = mar_model_get_config(m->job->models.model)->seq_len;
    double *curve[EVAL_CURVES];
    if (last < 0) return;
    for (int i = 0; i < EVAL_CURVES; i++) curve[i] = m->batch.curves + i * (last + 1);
    for (int i = 0; i < batch->n * tokens; i++) {
        const int step = batch->steps[i] < last ? batch->steps[i] : last;
        const int staleness = batch->staleness[i] < last ? batch->staleness[i] : last;
        const int accepted = batch->token_status[i] == MAR_TOKEN_ACCEPTED,
                  replaced = batch->token_status[i] == MAR_TOKEN_REPLACED;
        curve[EVAL_TOKENS][step]++;
        curve[EVAL_ACCEPTED][step] += accepted;
        curve[EVAL_REPLACED][step] += replaced;
        curve[EVAL_ACCEPTED_LATE][staleness] += accepted && staleness;
        curve[EVAL_REPLACED_LATE][staleness] += replaced && staleness;
        m->batch.verified[i / tokens] += accepted + replaced;
        m->batch.replaced[i / tokens] += replaced;
    }
}

/* Returns whether the page may show image i of the batch: a sample, or one of those with the most rejected drafts so
 * far. The run's final ones have been among these. */
static int is_on_page(maker *m, long first, int i)
{
    const eval_report_image candidate = {
        .index = first + i, .verified = m->batch.verified[i], .replaced = m->batch.replaced[i]};
    const int is_rejected = eval_report_rank(m->rejected, &m->rejected_count, &candidate) >= 0;
    return is_rejected || eval_is_sample(&m->job->layout, first + i);
}

/* An image_sink. Pictures are synced before the store gets the batch. */
static int take_made_batch(void *self, const image_batch *batch)
{
    maker *m = self;
    eval_job *job = m->job;
    eval_batch *b = &m->batch;
    const size_t bytes = eval_pixel_bytes(&job->layout);
    eval_batch_begin(&job->layout, batch->n, b);
    *b->stats = *batch->stats;
    *b->process = job->process.index;
    memcpy(b->labels, batch->labels, (size_t)batch->n * sizeof *b->labels);
    if (judge_made_batch(m, batch) != 0) return 1;
    count_batch_drafts(m, batch);
    const double began = tool_seconds();
    for (int i = 0; i < batch->n; i++) {
        const uint8_t *rgb = batch->rgb + (size_t)i * bytes;
        b->crc[i] = (int32_t)npz_crc(rgb, bytes);
        if (eval_pixels_write(&m->pixels, batch->first + i, batch->labels[i], rgb) != 0) return 1;
        if (is_on_page(m, batch->first, i) && eval_picture_write(job, batch->first + i, batch->labels[i], rgb) != 0)
            return 1;
    }
    b->seconds[1] = tool_seconds() - began;
    memset(job->written + batch->first, 1, (size_t)batch->n);
    const store_range at = {batch->first, batch->n, batch->labels};
    const int failed = eval_batch_write(&job->store, &at, job->facts.judged, &job->layout, b);
    store_unlock(&job->store, &at, STORE_DERIVED);
    return failed;
}

/* --- all ranges ------------------------------------------------------------------------------------------ */

/* Sets m->next to the next batch of the shards that this process may make, beginning at its own. Returns 0 after the
 * last. */
static int next_batch(maker *m)
{
    const launch *process = &m->job->process;
    const eval_layout *l = &m->job->layout;
    const int count = eval_shard_count(l);
    const int from = process->kind == LAUNCH_MPI ? (int)((long long)process->index * count / process->count) : 0;
    for (; m->shard < count; m->shard++, m->next = -1) {
        const int shard = (from + m->shard) % count;
        if (process->kind == LAUNCH_SHARD && shard % process->count != process->index) continue;
        m->next = m->next < 0 ? eval_shard_first(l, shard) : m->next + l->batch;
        if (m->next < eval_shard_end(l, shard)) return 1;
    }
    return 0;
}

/* Chooses the next missing range that no other process makes, and locks it (image_plan.choose). take_batch unlocks
 * it. */
static int choose_missing_range(void *self, store_range *at)
{
    maker *m = self;
    eval_job *job = m->job;
    while (next_batch(m)) {
        *at = eval_range(job, m->next);
        if (store_has(&job->store, at, job->facts.judged)) continue;
        if (interruption_came()) return interruption_status();
        const lock_status lock = store_lock(&job->store, at, STORE_DERIVED);
        m->busy |= lock == LOCK_BUSY;
        if (lock == LOCK_FAILED) return 1;
        if (lock == LOCK_BUSY) continue;
        if (!store_has(&job->store, at, job->facts.judged)) return 0;
        store_unlock(&job->store, at, STORE_DERIVED); /* another process has made it */
    }
    at->n = 0;
    return 0;
}

static int make_missing_ranges(maker *m)
{
    const image_sink sink = {take_made_batch, m, 0, 1, m->job->layout.steps > 0};
    for (;;) {
        image_plan plan = {.images = m->job->layout.images,
                           .choose = choose_missing_range,
                           .chooser = m,
                           .bar_before = eval_images_there(m->job)};
        m->shard = m->busy = 0;
        m->next = -1;
        const int status = eval_make_images(m->job, &plan, &sink);
        if (status != 0 || !m->busy) return status;
        lock_pause(); /* a process that dies leaves its range to the others */
    }
}

int eval_make_shards(eval_job *job)
{
    maker m = {.job = job};
    progress_begin(job->bar);
    if (eval_missing_shards(job) == 0) return 0;
    int status = eval_batch_create(&job->layout, &m.batch);
    if (status == 0) status = eval_pixels_open(job, &m.pixels);
    if (status == 0) status = make_missing_ranges(&m);
    if (status == 0) status = eval_pixels_sync(&m.pixels);
    eval_pixels_close(&m.pixels);
    eval_batch_free(&m.batch);
    return status;
}
