#include "tools/images.h"

#include "tools/command.h"
#include "tools/interruption.h"
#include "tools/run_options.h"

#include <stdlib.h>

typedef struct {
    const image_plan *plan;
    int *labels;   /* [batch] */
    float *tokens; /* [batch][seq_len][token_dim] of the largest run; NULL: no sink takes tokens */
    uint8_t *rgb;  /* [batch][height][width][3] of the largest run; NULL: no sink takes pixels */
    long finished; /* images that the sinks have taken, of all runs */
    long wanted;   /* images of all runs */
} image_loop;

int image_plan_label(const image_plan *plan, long i)
{
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
    size_t tokens = 0, pixels = 0;
    int takes_tokens = 0, takes_pixels = 0;
    for (int i = 0; i < plan->run_count; i++) {
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
    if (loop->labels && (loop->tokens || !takes_tokens) && (loop->rgb || !takes_pixels)) return 0;
    return tool_error("out of memory for %d images; a smaller --batch needs less", plan->batch);
}

/* --- one batch ------------------------------------------------------------------------------------------ */

static void show(const image_loop *loop, double images)
{
    if (!loop->plan->bar) return;
    progress_update(loop->plan->bar, ((double)loop->finished + images) / (double)loop->wanted, loop->finished,
                    loop->wanted);
}

/* All steps of images first..first+n-1. Ends early, with MAR_OK, after an interruption. */
static mar_status make_tokens(image_loop *loop, mar_session *s, long first, int n)
{
    for (int i = 0; i < n; i++) loop->labels[i] = image_plan_label(loop->plan, first + i);
    interruption_cancels(s);
    mar_status status = mar_session_begin(s, (uint64_t)first, loop->labels, n);
    const double steps = mar_session_steps_left(s) + 1; /* the image decoder counts as one more */
    while (status == MAR_OK && !mar_session_done(s)) {
        const double left = mar_session_steps_left(s) + 1;
        show(loop, n * (1 - left / steps));
        if (interruption_came()) break; /* before begin had forgotten older cancels */
        status = mar_session_step(s);
    }
    interruption_cancels(NULL);
    return status == MAR_ECANCELLED ? MAR_OK : status;
}

/* What the sinks take of the finished batch. */
static mar_status fetch(const image_loop *loop, const image_run *r, image_batch *batch, mar_stats *stats)
{
    mar_status status = MAR_OK;
    if (loop->tokens) {
        status = mar_session_tokens(r->session, loop->tokens);
        batch->tokens = loop->tokens;
    }
    if (status == MAR_OK && loop->rgb && pixel_bytes(r) > 0) {
        status = mar_session_images(r->session, loop->rgb);
        batch->rgb = loop->rgb;
    }
    mar_session_get_stats(r->session, stats);
    batch->stats = stats;
    return status;
}

/* Returns 0, or 1 after an error, which was printed. The sinks get nothing of a batch that was interrupted. */
static int make_batch(image_loop *loop, int turn, int run, const image_sink *sinks, int sink_count)
{
    const image_plan *plan = loop->plan;
    const image_run *r = &plan->runs[run];
    const long first = (long)turn * plan->batch, rest = plan->images - first;
    image_batch batch = {.run = run,
                         .turn = turn,
                         .first = first,
                         .n = rest < plan->batch ? (int)rest : plan->batch,
                         .labels = loop->labels,
                         .session = r->session};
    mar_stats stats;
    mar_status status = make_tokens(loop, r->session, first, batch.n);
    if (status == MAR_OK && interruption_came()) return 0;
    if (status == MAR_OK) status = fetch(loop, r, &batch, &stats);
    char text[1024];
    if (status != MAR_OK)
        return tool_error("%s", run_options_dashed(mar_session_error(r->session), 1, text, sizeof text));
    for (int i = 0; i < sink_count; i++)
        if (sinks[i].take(sinks[i].self, &batch) != 0) return 1;
    loop->finished += batch.n;
    show(loop, 0);
    return 0;
}

/* --- the loop ------------------------------------------------------------------------------------------- */

static int end(const image_loop *loop)
{
    if (loop->finished == 0) return interruption_end("no image was finished");
    return interruption_end("%ld of %ld images were made, %s", loop->finished, loop->wanted, loop->plan->kept);
}

static int make_all(image_loop *loop, const image_sink *sinks, int sink_count)
{
    const image_plan *plan = loop->plan;
    const int turns = image_plan_turns(plan);
    for (int turn = 0; turn < turns; turn++)
        for (int place = 0; place < plan->run_count; place++) {
            if (make_batch(loop, turn, (turn + place) % plan->run_count, sinks, sink_count) != 0) return 1;
            if (interruption_came() && loop->finished < loop->wanted) return end(loop);
        }
    return 0;
}

int run_images(const image_plan *plan, const image_sink *sinks, int sink_count)
{
    image_loop loop = {.plan = plan, .wanted = plan->images * plan->run_count};
    interruption_catch();
    if (plan->bar) progress_begin(plan->bar);
    int status = allocate(&loop, sinks, sink_count);
    if (status == 0) status = make_all(&loop, sinks, sink_count);
    if (plan->bar) progress_clear(plan->bar);
    free(loop.labels);
    free(loop.tokens);
    free(loop.rgb);
    return status;
}
