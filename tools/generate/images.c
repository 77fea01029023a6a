#include "tools/generate/images.h"

#include "tools/cli/command.h"
#include "tools/cli/dashed.h"
#include "tools/cli/interruption.h"
#include "tools/cli/run_options.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const image_plan *plan;
    int *labels;     /* [batch] */
    float *features; /* [batch][caption_tokens][caption_dim] of the captions of the largest run; NULL: none has any */
    uint8_t *mask;   /* [batch][caption_tokens] of theirs; NULL likewise */
    float *tokens;   /* [batch][seq_len][token_dim] of the largest run; NULL: no sink takes tokens */
    uint8_t *rgb;    /* [batch][height][width][3] of the largest run; NULL: no sink takes pixels */
    long finished;   /* images that the sinks have taken, of all runs */
    long wanted;     /* images that are to be made, of all runs */
    int decoded;     /* images of the batch in hand that have all their pixels */
} image_loop;

int image_plan_label(const image_plan *plan, long i)
{
    if (plan->labels) return plan->labels[i - plan->first];
    return plan->classes[i / plan->class_images % plan->class_count];
}

int image_plan_turns(const image_plan *plan)
{
    return (int)((plan->images + plan->batch - 1) / plan->batch);
}

/* --- memory --------------------------------------------------------------------------------------------- */

/* Numbers in the tokens of one image. */
static size_t token_count(const image_run *r)
{
    const mar_model_config *config = mar_model_get_config(r->model);
    return (size_t)config->seq_len * (size_t)config->token_dim;
}

/* Bytes of one image, 0 without an image decoder. */
static size_t pixel_bytes(const image_run *r)
{
    int width, height;
    mar_session_image_size(r->session, &width, &height);
    return (size_t)width * (size_t)height * 3;
}

static int allocate(image_loop *loop, const image_sink *sinks, int sink_count)
{
    const image_plan *plan = loop->plan;
    const size_t batch = (size_t)plan->batch;
    size_t tokens = 0, pixels = 0, features = 0, positions = 0;
    int takes_tokens = 0, takes_pixels = 0;
    for (int i = 0; i < plan->run_count; i++) {
        const captions *c = plan->runs[i].captions;
        const size_t numbers = c ? (size_t)c->tokens * (size_t)c->dim : 0;
        if (numbers > features) features = numbers;
        if (c && (size_t)c->tokens > positions) positions = (size_t)c->tokens;
        if (token_count(&plan->runs[i]) > tokens) tokens = token_count(&plan->runs[i]);
        if (pixel_bytes(&plan->runs[i]) > pixels) pixels = pixel_bytes(&plan->runs[i]);
    }
    for (int i = 0; i < sink_count; i++) {
        takes_tokens |= sinks[i].takes_tokens;
        takes_pixels |= sinks[i].takes_pixels && pixels > 0;
    }
    loop->labels = malloc(batch * sizeof *loop->labels);
    if (takes_tokens) loop->tokens = malloc(batch * tokens * sizeof *loop->tokens);
    if (takes_pixels) loop->rgb = malloc(batch * pixels);
    if (features) loop->features = malloc(batch * features * sizeof *loop->features);
    if (features) loop->mask = malloc(batch * positions);
    const int has_captions = !features || (loop->features && loop->mask);
    if (loop->labels && has_captions && (loop->tokens || !takes_tokens) && (loop->rgb || !takes_pixels)) return 0;
    return tool_error("out of memory for %d images; a smaller --batch needs less", plan->batch);
}

/* --- one batch ------------------------------------------------------------------------------------------ */

static void show(const image_loop *loop, double images)
{
    const image_plan *plan = loop->plan;
    const long total = plan->bar_total ? plan->bar_total : loop->wanted, done = plan->bar_before + loop->finished;
    if (plan->bar) progress_update(plan->bar, ((double)done + images) / (double)total, done, total);
}

/* Begins images first..first+n-1, of classes or of captions. */
static mar_status begin(image_loop *loop, const image_run *r, long first, int n)
{
    const captions *c = r->captions;
    for (int i = 0; i < n; i++) loop->labels[i] = image_plan_label(loop->plan, first + i);
    if (!c) return mar_session_begin(r->session, (uint64_t)first, loop->labels, n);
    const size_t positions = (size_t)c->tokens, numbers = positions * (size_t)c->dim;
    for (int i = 0; i < n; i++) {
        const size_t at = (size_t)loop->labels[i];
        memcpy(loop->features + (size_t)i * numbers, c->features + at * numbers, numbers * sizeof *loop->features);
        memcpy(loop->mask + (size_t)i * positions, c->mask + at * positions, positions);
    }
    return mar_session_begin_captions(r->session, (uint64_t)first, loop->features, loop->mask, n);
}

/* All steps of images first..first+n-1. MAR_ECANCELLED after an interruption. */
static mar_status make_tokens(image_loop *loop, const image_run *r, long first, int n)
{
    mar_session *s = r->session;
    mar_status status = begin(loop, r, first, n);
    const double steps = mar_session_steps_left(s) + 1; /* the image decoder counts as one more */
    while (status == MAR_OK && !mar_session_done(s)) {
        const double left = mar_session_steps_left(s) + 1;
        show(loop, n * (1 - left / steps));
        if (interruption_came() && !loop->plan->finishes_batch)
            return MAR_ECANCELLED; /* begin forgets a cancel that came before it */
        status = mar_session_step(s);
    }
    return status;
}

static void note_decoded(void *user, mar_session *s, const mar_progress *p)
{
    image_loop *loop = user;
    (void)s;
    loop->decoded = p->images;
}

/* The pixels of the batch. Without plan.takes_parts nothing of it counts if it is interrupted. */
static mar_status fetch_pixels(image_loop *loop, mar_session *s)
{
    loop->decoded = 0;
    if (loop->plan->takes_parts) mar_session_on_progress(s, note_decoded, loop);
    const mar_status status = mar_session_images(s, loop->rgb);
    mar_session_on_progress(s, NULL, NULL);
    return status;
}

/* What the sinks take of the finished batch. */
static mar_status fetch(image_loop *loop, const image_run *r, image_batch *batch, mar_stats *stats)
{
    mar_status status = MAR_OK;
    if (loop->tokens) {
        status = mar_session_tokens(r->session, loop->tokens);
        batch->tokens = loop->tokens;
    }
    if (status == MAR_OK && loop->rgb && pixel_bytes(r) > 0) {
        status = fetch_pixels(loop, r->session);
        batch->rgb = loop->rgb;
        if (status == MAR_ECANCELLED && loop->decoded > 0) {
            batch->n = loop->decoded;
            status = MAR_OK;
        }
    }
    mar_session_get_stats(r->session, stats);
    batch->stats = stats;
    return status;
}

/* Returns 0, or 1 after an error, which was printed. The sinks get nothing of a batch that was interrupted, or, with
 * plan.takes_parts, what was finished. */
static int make_batch(image_loop *loop, const image_batch *shape, const image_sink *sinks, int sink_count)
{
    const image_run *r = &loop->plan->runs[shape->run];
    image_batch batch = *shape;
    mar_stats stats;
    batch.labels = loop->labels;
    batch.session = r->session;
    if (!loop->plan->finishes_batch) interruption_cancels(r->session);
    mar_status status = make_tokens(loop, r, batch.first, batch.n);
    if (status == MAR_OK) status = fetch(loop, r, &batch, &stats);
    interruption_cancels(NULL);
    if (status == MAR_ECANCELLED) return 0;
    char text[1024];
    if (status != MAR_OK) return tool_error("%s", dashed(mar_session_error(r->session), 1, text, sizeof text));
    for (int i = 0; i < sink_count; i++)
        if (sinks[i].take(sinks[i].self, &batch) != 0) return 1;
    loop->finished += batch.n;
    show(loop, 0);
    return 0;
}

/* --- the loop ------------------------------------------------------------------------------------------- */

/* Prints what became of the run, unless the caller does. Returns the exit status. */
static int end(const image_loop *loop)
{
    if (!loop->plan->kept) return interruption_status();
    if (loop->finished == 0) return interruption_end("no image was finished");
    return interruption_end("%ld of %ld images were made, %s", loop->finished, loop->wanted, loop->plan->kept);
}

static int is_there(const image_plan *plan, long i)
{
    return plan->have && plan->have[i - plan->first];
}

/* How many images from `first` on make the next batch: up to one that is there, and to a multiple of plan.batch. */
static int batch_from(const image_plan *plan, long first)
{
    const long rest = plan->batch - (first - plan->first) % plan->batch, end = plan->first + plan->images;
    int n = 1;
    while (n < rest && first + n < end && !is_there(plan, first + n)) n++;
    return n;
}

static long count_missing(const image_plan *plan)
{
    long missing = 0;
    for (long i = 0; i < plan->images; i++) missing += !is_there(plan, plan->first + i);
    return missing;
}

/* A turn. */
static int make_turn(image_loop *loop, int turn, long first, int n, const image_sink *sinks, int sink_count)
{
    const int runs = loop->plan->run_count;
    for (int place = 0; place < runs; place++) {
        const image_batch batch = {.run = (turn + place) % runs, .turn = turn, .first = first, .n = n};
        if (make_batch(loop, &batch, sinks, sink_count) != 0) return 1;
        if (interruption_came() && loop->finished < loop->wanted) return end(loop);
    }
    return 0;
}

static int make_all(image_loop *loop, const image_sink *sinks, int sink_count)
{
    const image_plan *plan = loop->plan;
    int turn = 0, status = 0;
    for (long i = plan->first; status == 0 && i < plan->first + plan->images;) {
        const int n = is_there(plan, i) ? 1 : batch_from(plan, i);
        if (!is_there(plan, i)) status = make_turn(loop, turn++, i, n, sinks, sink_count);
        i += n;
    }
    return status;
}

int run_images(const image_plan *plan, const image_sink *sinks, int sink_count)
{
    image_loop loop = {.plan = plan, .wanted = count_missing(plan) * plan->run_count};
    interruption_catch();
    if (plan->bar && !plan->bar_total) progress_begin(plan->bar);
    int status = allocate(&loop, sinks, sink_count);
    if (status == 0) status = make_all(&loop, sinks, sink_count);
    if (plan->bar) progress_clear(plan->bar);
    free(loop.labels);
    free(loop.features);
    free(loop.mask);
    free(loop.tokens);
    free(loop.rgb);
    return status;
}
