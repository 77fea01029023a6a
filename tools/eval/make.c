/* Makes the shards of an evaluation: images, what the network says of them, and the journal of it. */
#include "tools/generate/class_names.h"
#include "tools/cli/command.h"
#include "tools/cli/dashed.h"
#include "tools/eval/job.h"
#include "tools/eval/pixels.h"
#include "tools/generate/images.h"
#include "tools/cli/interruption.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    eval_job *job;
    eval_pixels pixels;   /* where images are written to */
    eval_record record;   /* of the batch at hand */
    eval_journal journal; /* of the shard at hand */
    uint8_t *fates;       /* [batch][seq_len] mar_token_fate; NULL: no drafts are verified */
    int *steps;           /* [batch][seq_len] */
    int *late;            /* [batch][seq_len] mar_session_lateness */
    int *labels;          /* [shard_images] of the shard's images that are to be made */
} maker;

/* --- a batch -------------------------------------------------------------------------------------------- */

static int judge(maker *m, const image_batch *batch)
{
    const eval_layout *l = &m->job->layout;
    eval_record *r = &m->record;
    char text[1024];
    const double began = tool_seconds();
    if (mar_features_run(m->job->network, batch->rgb, batch->n, l->width, l->height, r->features, r->logits,
                         l->spatial ? r->spatial : NULL) != MAR_OK)
        return tool_error("images %ld to %ld: %s", batch->first, batch->first + batch->n - 1,
                          dashed(mar_error(m->job->library), 1, text, sizeof text));
    r->figures->features_s = tool_seconds() - began;
    for (int i = 0; m->job->facts.demo && i < batch->n; i++) {
        const float *logits = r->logits + (size_t)i * (size_t)l->classes;
        int best = 0;
        for (int k = 1; k < l->classes; k++)
            if (logits[k] > logits[best]) best = k;
        r->figures->recognised += best == batch->labels[i];
    }
    return 0;
}

/* Where a curve has a step; its last place is for all steps behind it, too. */
static int curve_place(int step)
{
    return step < EVAL_CURVE_MAX ? step : EVAL_CURVE_MAX - 1;
}

/* What became of the drafts of the batch's images. */
static int count_fates(maker *m, const image_batch *batch)
{
    eval_figures *f = m->record.figures;
    const int tokens = mar_model_get_config(m->job->models.model)->seq_len;
    if (!m->fates) return 0;
    if (mar_session_fates(batch->session, m->fates, m->steps) != MAR_OK ||
        mar_session_lateness(batch->session, m->late) != MAR_OK)
        return tool_error("%s", mar_session_error(batch->session));
    for (int i = 0; i < batch->n * tokens; i++) {
        const int step = curve_place(m->steps[i]), late = curve_place(m->late[i]);
        const int accepted = m->fates[i] == MAR_TOKEN_ACCEPTED, replaced = m->fates[i] == MAR_TOKEN_REPLACED;
        f->tokens[step]++;
        f->accepted[step] += accepted;
        f->replaced[step] += replaced;
        f->accepted_late[late] += accepted && late;
        f->replaced_late[late] += replaced && late;
        m->record.verified[i / tokens] += (uint32_t)(accepted + replaced);
        m->record.replaced[i / tokens] += (uint32_t)replaced;
    }
    return 0;
}

/* The image as a PNG, with the text that says what it is. */
static int write_picture(maker *m, long index, int label, const uint8_t *rgb)
{
    const eval_job *job = m->job;
    record_texts texts;
    char name[128];
    if (record_texts_begin(&texts) != 0) return tool_error("out of memory for the text in a picture");
    record_texts_add(&texts, "Software", "libmar %s", mar_version());
    record_texts_add(&texts, "class", "%d", label);
    if (*models_class_name(&job->models, label, name, sizeof name)) record_texts_add(&texts, "class_name", "%s", name);
    record_texts_add(&texts, "image", "%ld", index);
    record_texts_add_run(&texts, &job->options->run, &job->models, &job->ids);
    record_texts_add(&texts, "guarantee", "%s", job->facts.guarantee);
    if (record_texts_end(&texts) != 0) return tool_error("out of memory for the text in a picture");
    const int failed = eval_pixels_write_png(&m->pixels, index, rgb, texts.texts, texts.count);
    record_texts_free(&texts);
    return failed;
}

static int write_pixels(maker *m, const image_batch *batch)
{
    const size_t bytes = eval_pixel_bytes(&m->job->layout);
    const double began = tool_seconds();
    for (int i = 0; i < batch->n; i++) {
        const uint8_t *rgb = batch->rgb + (size_t)i * bytes;
        m->record.crc[i] = npz_crc(rgb, bytes);
        m->record.labels[i] = batch->labels[i];
        if (m->pixels.images && write_picture(m, batch->first + i, batch->labels[i], rgb) != 0) return 1;
        if (m->pixels.npz && eval_pixels_write_slot(&m->pixels, batch->first + i, rgb) != 0) return 1;
    }
    m->record.figures->write_s = tool_seconds() - began;
    return 0;
}

/* A sink. What the journal has of a batch is true of the files that were written before. */
static int take_batch(void *self, const image_batch *batch)
{
    maker *m = self;
    eval_record_begin(&m->job->layout, batch->first, &m->record);
    m->record.figures->stats = *batch->stats;
    m->record.figures->generate_s = batch->stats->total_s;
    if (judge(m, batch) != 0 || count_fates(m, batch) != 0 || write_pixels(m, batch) != 0) return 1;
    eval_record_finish(&m->job->layout, batch->rgb, &m->record);
    if (eval_journal_append(&m->journal, &m->record) != 0) return 1;
    m->job->made += batch->n;
    return 0;
}

/* --- a shard -------------------------------------------------------------------------------------------- */

/* Images of the shards that are there. */
static long images_there(const eval_job *job)
{
    char path[RUN_PATH];
    long n = 0;
    for (int s = 0; s < eval_shard_count(&job->layout); s++)
        if (eval_shard_exists(&job->directory, s, path)) n += eval_shard_size(&job->layout, s);
    return n;
}

/* Goes to the end of what the journal has, as far as the pixels that go with it are there. */
static int go_on(maker *m)
{
    int status;
    while ((status = eval_journal_read(&m->journal, &m->record)) == 1)
        if (!eval_pixels_have(&m->pixels, &m->record)) {
            eval_journal_drop(&m->journal, &m->record);
            return 0;
        }
    return status < 0;
}

/* The images of the shard that the journal lacks. Returns 0, 1 after an error, or another status after a signal. */
static int make_images(maker *m, int shard)
{
    const eval_job *job = m->job;
    const eval_layout *l = &job->layout;
    const long first = m->journal.next, behind = eval_shard_first(l, shard) + eval_shard_size(l, shard);
    if (first == behind) return 0;
    for (long i = first; i < behind; i++) m->labels[i - first] = eval_label(job, i);
    const image_run run = {job->models.model, job->session, job->models.captions};
    const image_plan plan = {.runs = &run,
                             .run_count = 1,
                             .first = first,
                             .images = behind - first,
                             .batch = l->batch,
                             .labels = m->labels,
                             .finishes_batch = 1,
                             .bar = job->bar,
                             .bar_before = images_there(job) + first - eval_shard_first(l, shard),
                             .bar_total = l->images};
    const image_sink sink = {take_batch, m, 0, 1};
    return run_images(&plan, &sink, 1);
}

/* The shard is locked. */
static int make_shard(maker *m, int shard)
{
    const eval_job *job = m->job;
    if (eval_journal_open(&job->directory, &job->layout, shard, &m->journal) != 0) return 1;
    int status = go_on(m);
    if (status == 0) status = make_images(m, shard);
    if (status == 0) status = eval_pixels_sync(&m->pixels); /* the shard's file says that they are there */
    if (status == 0) status = eval_shard_write(&job->directory, &job->layout, &m->journal, job->who.index, &m->record);
    eval_journal_close(&m->journal);
    return status;
}

/* --- all of them ---------------------------------------------------------------------------------------- */

static int is_missing(const eval_job *job, int shard)
{
    const eval_shard_state state = eval_shard_look(&job->directory, &job->layout, shard);
    return state == EVAL_SHARD_ERROR ? -1 : state != EVAL_SHARD_THERE;
}

/* Makes the shard if it is missing and nobody else makes it. Sets *busy if somebody does. */
static int try_shard(maker *m, int shard, int *busy)
{
    eval_job *job = m->job;
    char path[RUN_PATH];
    int missing = eval_shard_exists(&job->directory, shard, path) ? is_missing(job, shard) : 1;
    if (missing <= 0) return missing < 0;
    const run_lock_status lock = run_lock(&job->directory, RUN_LOCK_SHARDS + shard);
    if (lock == RUN_FAILED) return 1;
    if (lock == RUN_BUSY) {
        *busy = 1;
        return 0;
    }
    missing = eval_shard_exists(&job->directory, shard, path) ? is_missing(job, shard) : 1; /* it may be there now */
    const int status = missing < 0 ? 1 : missing ? make_shard(m, shard) : 0;
    run_unlock(&job->directory, RUN_LOCK_SHARDS + shard);
    return status;
}

/* One way through the shards that this process may make, beginning at its own. */
static int pass(maker *m, int *busy)
{
    const launch *who = &m->job->who;
    const int count = eval_shard_count(&m->job->layout);
    const int from = who->kind == LAUNCH_MPI ? (int)((long long)who->index * count / who->count) : 0;
    for (int k = 0; k < count; k++) {
        const int shard = (from + k) % count;
        if (who->kind == LAUNCH_SHARD && shard % who->count != who->index) continue;
        const int status = interruption_came() ? interruption_status() : try_shard(m, shard, busy);
        if (status != 0) return status;
    }
    return 0;
}

static int make_all(maker *m)
{
    for (;;) {
        int busy = 0;
        const int status = pass(m, &busy);
        if (status != 0 || !busy || m->job->who.kind != LAUNCH_MPI) return status;
        run_pause(); /* a rank that ends early leaves its shard to the others */
    }
}

static int allocate(maker *m)
{
    const eval_job *job = m->job;
    const size_t tokens = (size_t)job->layout.batch * (size_t)mar_model_get_config(job->models.model)->seq_len;
    m->labels = malloc((size_t)job->layout.shard_images * sizeof *m->labels);
    const int drafts = run_verifies_drafts(&job->options->run);
    if (drafts) {
        m->fates = malloc(tokens * sizeof *m->fates);
        m->steps = malloc(tokens * sizeof *m->steps);
        m->late = malloc(tokens * sizeof *m->late);
    }
    if (!m->labels || (drafts && (!m->fates || !m->steps || !m->late))) return tool_error("out of memory");
    return eval_record_create(&job->layout, &m->record);
}

int eval_make_shards(eval_job *job)
{
    maker m = {.job = job, .journal.fd = -1};
    int status = allocate(&m);
    progress_begin(job->bar);
    if (status == 0 && eval_missing_shards(job) > 0) {
        status = eval_pixels_open(job, &m.pixels);
        const int is_finished = job->options->save_npz && !m.pixels.npz;
        if (status == 0 && !is_finished) status = make_all(&m);
    }
    eval_pixels_close(&m.pixels);
    eval_record_free(&m.record);
    free(m.fates);
    free(m.steps);
    free(m.late);
    free(m.labels);
    return status;
}

int eval_missing_shards(const eval_job *job)
{
    char path[RUN_PATH];
    int missing = 0;
    for (int s = 0; s < eval_shard_count(&job->layout); s++) missing += !eval_shard_exists(&job->directory, s, path);
    return missing;
}
