#include "tools/generate/images.h"

#include "tools/cli/command.h"
#include "tools/cli/interruption.h"
#include "tools/cli/run_options.h"
#include "tools/generate/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 8 };

typedef struct {
    const image_plan *plan;
    int *labels;           /* [batch] */
    float *features;       /* [batch][caption_tokens][caption_dim] of the largest run; NULL: no run has captions */
    uint8_t *mask;         /* [batch][caption_tokens] of the largest run; NULL: no run has captions */
    float *tokens;         /* [batch][seq_len][token_dim] of the largest run; NULL: no sink takes tokens */
    uint8_t *token_status; /* [batch][seq_len] of the largest run; NULL: no sink takes the status */
    int *steps;            /* likewise */
    int *staleness;        /* likewise */
    uint8_t *rgb;          /* [batch][height][width][3] of the largest run; NULL: no sink takes pixels */
    long finished;         /* images taken by the sinks, of all runs */
    long wanted;           /* images to make, of all runs */
    int decoded;           /* images of the current batch with all pixels */
    void *blocks[BLOCKS];  /* [block_count] the arrays above */
    int block_count;
    int lacks;        /* 1: one of them had no memory */
    int watch_failed; /* 1: plan.watch failed, and printed why */
} image_loop;

int image_plan_label(const image_plan *plan, long i)
{
    if (plan->labels) return plan->labels[i - plan->first];
    return plan->classes[i / plan->class_images % plan->class_count];
}

/* --- memory --------------------------------------------------------------------------------------------- */

/* Returns the floats in the tokens of one image. */
static size_t token_count(const image_run *r)
{
    const mar_model_config *config = mar_model_get_config(r->model);
    return (size_t)config->seq_len * (size_t)config->token_dim;
}

/* Returns the bytes of one image; 0 without an image decoder. */
static size_t pixel_bytes(const image_run *r)
{
    int width, height;
    mar_session_image_size(r->session, &width, &height);
    return (size_t)width * (size_t)height * 3;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Allocates an array of plan.batch elements; NULL if `bytes`, of one, is 0. */
static void *block(image_loop *loop, size_t bytes)
{
    void *p = bytes ? malloc((size_t)loop->plan->batch * bytes) : NULL;
    loop->lacks |= bytes && !p;
    if (p) loop->blocks[loop->block_count++] = p;
    return p;
}

static int allocate(image_loop *loop, const image_sink *sinks, int sink_count)
{
    const image_plan *plan = loop->plan;
    size_t tokens = 0, pixels = 0, features = 0, positions = 0, places = 0; /* of the largest run */
    int takes_tokens = 0, takes_pixels = 0, takes_status = 0;
    for (int i = 0; i < plan->run_count; i++) {
        const image_run *r = &plan->runs[i];
        const captions *c = r->captions;
        features = larger(features, c ? (size_t)c->tokens * (size_t)c->dim : 0);
        positions = larger(positions, c ? (size_t)c->tokens : 0);
        tokens = larger(tokens, token_count(r));
        places = larger(places, (size_t)mar_model_get_config(r->model)->seq_len);
        pixels = larger(pixels, pixel_bytes(r));
        takes_tokens |= r->store != NULL;
        takes_status |= r->store != NULL && r->has_drafts;
    }
    for (int i = 0; i < sink_count; i++) {
        takes_tokens |= sinks[i].takes_tokens;
        takes_pixels |= sinks[i].takes_pixels;
        takes_status |= sinks[i].takes_status;
    }
    loop->labels = block(loop, sizeof *loop->labels);
    loop->features = block(loop, features * sizeof *loop->features);
    loop->mask = block(loop, positions);
    if (takes_tokens) loop->tokens = block(loop, tokens * sizeof *loop->tokens);
    if (takes_pixels) loop->rgb = block(loop, pixels);
    if (takes_status) {
        loop->token_status = block(loop, places);
        loop->steps = block(loop, places * sizeof *loop->steps);
        loop->staleness = block(loop, places * sizeof *loop->staleness);
    }
    return loop->lacks ? tool_error("out of memory for %d images; a smaller --batch needs less", plan->batch) : 0;
}

/* --- one batch ------------------------------------------------------------------------------------------ */

static void show(const image_loop *loop, double images)
{
    const image_plan *plan = loop->plan;
    const long total = plan->bar_total ? plan->bar_total : loop->wanted, done = plan->bar_before + loop->finished;
    if (plan->bar) progress_update(plan->bar, ((double)done + images) / (double)total, done, total);
}

/* Begins images first..first+n-1, of classes or captions. */
static mar_status begin(image_loop *loop, const image_run *r, long first, int n)
{
    const captions *c = r->captions;
    if (!c) return mar_session_begin(r->session, (uint64_t)first, loop->labels, n);
    const size_t positions = (size_t)c->tokens, numbers = positions * (size_t)c->dim;
    for (int i = 0; i < n; i++)
        captions_place(c, loop->labels[i], loop->features + (size_t)i * numbers, loop->mask + (size_t)i * positions);
    return mar_session_begin_captions(r->session, (uint64_t)first, loop->features, loop->mask, n);
}

/* Makes images first..first+n-1, and takes all but their pixels. Returns MAR_ECANCELLED after an interruption. */
static mar_status make_tokens(image_loop *loop, const image_run *r, long first, int n)
{
    mar_session *s = r->session;
    mar_status status = begin(loop, r, first, n);
    const double steps = mar_session_steps_left(s) + 1; /* the image decoder counts as one step */
    while (status == MAR_OK && !mar_session_done(s)) {
        const double left = mar_session_steps_left(s) + 1;
        show(loop, n * (1 - left / steps));
        if (interruption_came() && !loop->plan->finishes_batch)
            return MAR_ECANCELLED; /* begin clears an earlier cancel */
        status = mar_session_step(s);
        if (status == MAR_OK && loop->plan->watch && loop->plan->watch(loop->plan->watcher, s, n) != 0)
            return loop->watch_failed = 1, MAR_EIO;
    }
    if (status == MAR_OK && loop->tokens) status = mar_session_tokens(s, loop->tokens);
    if (status == MAR_OK && loop->token_status) status = mar_session_fates(s, loop->token_status, loop->steps);
    if (status == MAR_OK && loop->token_status) status = mar_session_lateness(s, loop->staleness);
    return status;
}

static void note_decoded(void *user, mar_session *s, const mar_progress *p)
{
    image_loop *loop = user;
    (void)s;
    loop->decoded = p->images;
}

/* Fetches the pixels of the batch. Without plan.takes_parts an interrupted batch is lost. */
static mar_status fetch_pixels(image_loop *loop, mar_session *s)
{
    loop->decoded = 0;
    if (loop->plan->takes_parts) mar_session_on_progress(s, note_decoded, loop);
    const mar_status status = mar_session_images(s, loop->rgb);
    mar_session_on_progress(s, NULL, NULL);
    return status;
}

/* Result of a batch. */
typedef enum {
    GOT,
    DROPPED, /* interrupted */
    FAILED   /* failed; the error is printed */
} outcome;

static outcome outcome_of(const image_loop *loop, const image_run *r, mar_status status)
{
    if (status == MAR_OK) return GOT;
    if (status == MAR_ECANCELLED) return DROPPED;
    if (!loop->watch_failed) tool_error("%s", mar_session_error(r->session));
    return FAILED;
}

/* --- the store ------------------------------------------------------------------------------------------ */

enum { ARRAYS = 6 };

static store_range range_of(const image_loop *loop, const image_batch *b)
{
    return (store_range){b->first, b->n, loop->labels};
}

/* Lists the arrays of a batch in the store. Returns their number. */
static int list_arrays(const image_loop *loop, const image_run *r, const image_batch *b, mar_stats *stats,
                       store_array list[ARRAYS])
{
    const mar_model_config *c = mar_model_get_config(r->model);
    const int64_t n = b->n, length = c->seq_len, dim = c->token_dim;
    const store_array all[ARRAYS] = {
        {"labels", NPZ_I32, 1, {n}, loop->labels},       {"tokens", NPZ_F32, 3, {n, length, dim}, loop->tokens},
        {"stats", NPZ_U8, 1, {sizeof *stats}, stats},    {"fates", NPZ_U8, 2, {n, length}, loop->token_status},
        {"steps", NPZ_I32, 2, {n, length}, loop->steps}, {"late", NPZ_I32, 2, {n, length}, loop->staleness}};
    memcpy(list, all, sizeof all);
    return r->has_drafts ? ARRAYS : 3;
}

/* Checks that the arrays read from the store fit the run. */
static int is_plausible(const image_loop *loop, const image_run *r, int n, const mar_stats *stats)
{
    const mar_model_config *c = mar_model_get_config(r->model);
    const size_t numbers = (size_t)n * token_count(r), places = (size_t)n * (size_t)c->seq_len;
    int can = stats_check(stats, n) && stats->total_s > 0;
    for (size_t i = 0; i < numbers && can; i++) {
        const float x = loop->tokens[i];
        can = c->vocabulary ? x >= 0 && x < (float)c->vocabulary && x == floorf(x) : isfinite(x);
    }
    for (size_t i = 0; i < places && can && r->has_drafts; i++)
        can = loop->token_status[i] <= MAR_TOKEN_REPLACED && loop->steps[i] >= 0 && loop->staleness[i] >= 0;
    return can;
}

static store_state read_stored(image_loop *loop, const image_run *r, const image_batch *b, mar_stats *stats)
{
    store_array arrays[ARRAYS];
    char path[STORE_PATH];
    const store_range at = range_of(loop, b);
    const size_t places = (size_t)b->n * (size_t)mar_model_get_config(r->model)->seq_len;
    const int count = list_arrays(loop, r, b, stats, arrays);
    arrays[0].data = NULL; /* the store's file name has their hash */
    const store_state state = store_read(r->store, &at, NULL, arrays, count);
    if (state != STORE_THERE) return state;
    if (loop->token_status && !r->has_drafts) {
        memset(loop->token_status, MAR_TOKEN_TARGET, places);
        memset(loop->steps, 0, places * sizeof *loop->steps);
        memset(loop->staleness, 0, places * sizeof *loop->staleness);
    }
    if (is_plausible(loop, r, b->n, stats)) return STORE_THERE;
    tool_error("%s: has numbers that no image of the run has, expected what mar wrote",
               store_path(r->store, &at, NULL, path));
    return STORE_DAMAGED;
}

/* Makes the tokens and writes them to the store, with their range locked. */
static outcome make_stored(image_loop *loop, const image_run *r, const image_batch *b, mar_stats *stats)
{
    store_array arrays[ARRAYS];
    const store_range at = range_of(loop, b);
    const mar_status status = make_tokens(loop, r, b->first, b->n);
    if (status != MAR_OK) return outcome_of(loop, r, status);
    mar_session_get_stats(r->session, stats);
    const int count = list_arrays(loop, r, b, stats, arrays);
    return store_write(r->store, &at, NULL, arrays, count) == 0 ? GOT : FAILED;
}

/* Gets the tokens of a run with a store, read or made. Waits for another process that makes them. */
static outcome get_stored(image_loop *loop, const image_run *r, const image_batch *b, mar_stats *stats, int *made)
{
    const store_range at = range_of(loop, b);
    store_state state = r->remakes ? STORE_DAMAGED : read_stored(loop, r, b, stats);
    *made = 0;
    if (state == STORE_THERE || state == STORE_ERROR) return state == STORE_THERE ? GOT : FAILED;
    const lock_status lock = store_lock_wait(r->store, &at, STORE_TOKENS);
    if (lock != LOCK_TAKEN) return lock == LOCK_BUSY ? DROPPED : FAILED;
    if (state == STORE_MISSING) state = read_stored(loop, r, b, stats); /* another process may have made it */
    outcome result = state == STORE_THERE ? GOT : FAILED;
    if (state == STORE_MISSING || state == STORE_DAMAGED) {
        result = make_stored(loop, r, b, stats);
        *made = 1;
    }
    store_unlock(r->store, &at, STORE_TOKENS);
    return result;
}

/* --- a batch -------------------------------------------------------------------------------------------- */

/* Decodes tokens that were read, and adds the time. */
static mar_status decode(image_loop *loop, const image_run *r, const image_batch *b, mar_stats *stats)
{
    mar_stats taken;
    mar_stats_init(&taken, sizeof taken);
    if (interruption_came() && !loop->plan->finishes_batch)
        return MAR_ECANCELLED; /* mar_session_decode forgets a cancel that came before it */
    const mar_status status = mar_session_decode(r->session, (uint64_t)b->first, loop->tokens, b->n, loop->rgb);
    mar_session_get_stats(r->session, &taken);
    stats->vae_s += taken.vae_s;
    stats->vae_flop += taken.vae_flop;
    stats->total_s += taken.total_s;
    return status;
}

/* Fills in what the sinks take of the batch. */
static outcome get(image_loop *loop, const image_run *r, image_batch *b, mar_stats *stats)
{
    int made = 1;
    mar_status status = MAR_OK;
    outcome result =
        r->store ? get_stored(loop, r, b, stats, &made) : outcome_of(loop, r, make_tokens(loop, r, b->first, b->n));
    if (result != GOT) return result;
    b->tokens = loop->tokens;
    b->token_status = loop->token_status;
    b->steps = loop->steps;
    b->staleness = loop->staleness;
    if (loop->rgb && pixel_bytes(r) > 0) {
        status = made ? fetch_pixels(loop, r->session) : decode(loop, r, b, stats);
        b->rgb = loop->rgb;
        if (status == MAR_ECANCELLED && made && loop->decoded > 0) {
            b->n = loop->decoded;
            status = MAR_OK;
        }
    }
    if (made) mar_session_get_stats(r->session, stats);
    b->stats = stats;
    if (status == MAR_OK && made && loop->plan->made) *loop->plan->made += b->n;
    return outcome_of(loop, r, status);
}

static int is_there(const image_plan *plan, long i)
{
    return plan->have && plan->have[i - plan->first];
}

/* Hands images first .. first+n-1 of the batch to the sinks. */
static int hand_part(image_loop *loop, const image_batch *b, int first, int n, const image_sink *sinks, int sink_count)
{
    static const mar_stats none = {.size = sizeof none};
    const image_run *r = &loop->plan->runs[b->run];
    const size_t at = (size_t)first, places = at * (size_t)mar_model_get_config(r->model)->seq_len;
    image_batch part = *b;
    part.first += first;
    part.n = n;
    part.labels += first;
    if (part.tokens) part.tokens += at * token_count(r);
    if (part.rgb) part.rgb += at * pixel_bytes(r);
    if (part.token_status) part.token_status += places, part.steps += places, part.staleness += places;
    if (first > 0) part.stats = &none; /* those of the batch are in its first part */
    for (int i = 0; i < sink_count; i++)
        if (sinks[i].take(sinks[i].self, &part) != 0) return 1;
    loop->finished += n;
    return 0;
}

/* Hands the missing images of the batch to the sinks. */
static int hand_out(image_loop *loop, const image_batch *b, const image_sink *sinks, int sink_count)
{
    for (int i = 0, n; i < b->n; i += n) {
        const int there = is_there(loop->plan, b->first + i);
        for (n = 1; i + n < b->n && is_there(loop->plan, b->first + i + n) == there;) n++;
        if (!there && hand_part(loop, b, i, n, sinks, sink_count) != 0) return 1;
    }
    return 0;
}

/* Makes a batch and hands it to the sinks. Returns 0, or 1 with the error printed. The sinks get nothing of an
 * interrupted batch, or with plan.takes_parts its finished images. */
static int make_batch(image_loop *loop, const image_batch *shape, const image_sink *sinks, int sink_count)
{
    const image_run *r = &loop->plan->runs[shape->run];
    image_batch batch = *shape;
    mar_stats stats;
    mar_stats_init(&stats, sizeof stats);
    batch.labels = loop->labels;
    for (int i = 0; i < batch.n; i++) loop->labels[i] = image_plan_label(loop->plan, batch.first + i);
    if (!loop->plan->finishes_batch) interruption_cancels(r->session);
    const outcome result = get(loop, r, &batch, &stats);
    interruption_cancels(NULL);
    if (result != GOT) return result == FAILED;
    if (hand_out(loop, &batch, sinks, sink_count) != 0) return 1;
    show(loop, 0);
    return 0;
}

/* --- the loop ------------------------------------------------------------------------------------------- */

/* Prints how the run ended, unless the caller does. Returns the exit status. */
static int end(const image_loop *loop)
{
    if (!loop->plan->kept) return interruption_status();
    if (loop->finished == 0) return interruption_end("no image was finished");
    return interruption_end("%ld of %ld images were made, %s", loop->finished, loop->wanted, loop->plan->kept);
}

/* Returns the images of the next batch from `first` on: to a multiple of plan.batch, or up to one that exists. A store
 * has whole batches, so with one they are whole if an image is missing. */
static int batch_from(const image_plan *plan, long first)
{
    const long left = plan->first + plan->images - first, rest = plan->batch - (first - plan->first) % plan->batch;
    const int most = (int)(left < rest ? left : rest);
    int missing = 0, n = 0;
    while (missing < most && !is_there(plan, first + missing)) missing++;
    while (n < most && is_there(plan, first + n)) n++;
    if (!plan->runs->store) return missing;
    return n < most ? most : 0;
}

static long count_missing(const image_plan *plan)
{
    long missing = 0;
    for (long i = 0; i < plan->images; i++) missing += !is_there(plan, plan->first + i);
    return missing;
}

/* Makes one turn. */
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
        const int n = batch_from(plan, i);
        if (n > 0) status = make_turn(loop, turn++, i, n, sinks, sink_count);
        i += n > 0 ? n : 1;
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
    for (int i = 0; i < loop.block_count; i++) free(loop.blocks[i]);
    return status;
}
