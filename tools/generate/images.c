#include "tools/generate/images.h"

#include "mar_measure.h"

#include "tools/cli/command.h"
#include "tools/cli/interruption.h"
#include "tools/cli/run_options.h"
#include "tools/generate/stats.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 8 };

/* What the workers share. The lock guards all but `ended`; the sinks run without it, in the order of the turns. */
typedef struct {
    const image_plan *plan;
    const image_sink *sinks;
    int sink_count;
    pthread_mutex_t lock;
    pthread_cond_t turned; /* `out` has changed */
    long next;             /* where to look for the next batch */
    int turn;              /* number of the next turn to begin */
    int out;               /* turn whose batches go to the sinks */
    long finished;         /* images taken by the sinks, of all runs */
    long wanted;           /* images to make, of all runs */
    double begun;          /* sum of the workers' `part` */
    atomic_int ended;      /* exit status that ends the loop early; 0: none */
} image_loop;

/* A worker makes one turn at a time, with sessions of its own. */
typedef struct {
    image_loop *loop;
    const image_run *runs; /* [run_count] */
    int place;             /* number of the worker */
    double part;           /* images of the batch in progress, times the share that is made */
    int *labels;           /* [batch] */
    float *features;       /* [batch][caption_tokens][caption_dim] of the largest run; NULL: no run has captions */
    uint8_t *mask;         /* [batch][caption_tokens] of the largest run; NULL: no run has captions */
    float *tokens;         /* [batch][seq_len][token_dim] of the largest run; NULL: no sink takes tokens */
    uint8_t *token_status; /* [batch][seq_len] of the largest run; NULL: no sink takes the status */
    int *steps;            /* likewise */
    int *staleness;        /* likewise */
    uint8_t *rgb;          /* [batch][height][width][3] of the largest run; NULL: no sink takes pixels */
    int decoded;           /* images of the current batch with all pixels */
    void *blocks[BLOCKS];  /* [block_count] the arrays above */
    int block_count;
    int lacks; /* 1: one of them had no memory */
} image_worker;

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
static size_t images_pixel_bytes(const image_run *r)
{
    int width, height;
    mar_session_image_size(r->session, &width, &height);
    return (size_t)width * (size_t)height * 3;
}

static size_t images_larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Allocates an array of plan.batch elements; NULL if `bytes`, of one, is 0. */
static void *block(image_worker *w, size_t bytes)
{
    void *p = bytes ? malloc((size_t)w->loop->plan->batch * bytes) : NULL;
    w->lacks |= bytes && !p;
    if (p) w->blocks[w->block_count++] = p;
    return p;
}

static int images_allocate(image_worker *w)
{
    const image_plan *plan = w->loop->plan;
    const image_sink *sinks = w->loop->sinks;
    size_t tokens = 0, pixels = 0, features = 0, positions = 0, places = 0; /* of the largest run */
    int takes_tokens = 0, takes_pixels = 0, takes_status = 0;
    for (int i = 0; i < plan->run_count; i++) {
        const image_run *r = &w->runs[i];
        const captions *c = r->captions;
        features = images_larger(features, c ? (size_t)c->tokens * (size_t)c->dim : 0);
        positions = images_larger(positions, c ? (size_t)c->tokens : 0);
        tokens = images_larger(tokens, token_count(r));
        places = images_larger(places, (size_t)mar_model_get_config(r->model)->seq_len);
        pixels = images_larger(pixels, images_pixel_bytes(r));
        takes_tokens |= r->store != NULL;
        takes_status |= r->store != NULL && r->has_drafts;
    }
    for (int i = 0; i < w->loop->sink_count; i++) {
        takes_tokens |= sinks[i].takes_tokens;
        takes_pixels |= sinks[i].takes_pixels;
        takes_status |= sinks[i].takes_status;
    }
    w->labels = block(w, sizeof *w->labels);
    w->features = block(w, features * sizeof *w->features);
    w->mask = block(w, positions);
    if (takes_tokens) w->tokens = block(w, tokens * sizeof *w->tokens);
    if (takes_pixels) w->rgb = block(w, pixels);
    if (takes_status) {
        w->token_status = block(w, places);
        w->steps = block(w, places * sizeof *w->steps);
        w->staleness = block(w, places * sizeof *w->staleness);
    }
    return w->lacks ? tool_error("out of memory for %d images; a smaller --batch needs less", plan->batch) : 0;
}

/* --- one batch ------------------------------------------------------------------------------------------ */

/* Shows the progress, with the worker's part of a batch. */
static void show(image_worker *w, double part)
{
    image_loop *loop = w->loop;
    const image_plan *plan = loop->plan;
    if (!plan->bar) return;
    pthread_mutex_lock(&loop->lock);
    loop->begun += part - w->part;
    w->part = part;
    const long total = plan->bar_total ? plan->bar_total : loop->wanted, done = plan->bar_before + loop->finished;
    progress_update(plan->bar, ((double)done + loop->begun) / (double)total, done, total);
    pthread_mutex_unlock(&loop->lock);
}

/* Returns whether the batch in progress is given up: after a signal, or a failure of another worker. */
static int images_is_dropped(const image_loop *loop)
{
    return loop->ended == 1 || interruption_came();
}

/* Begins images first..first+n-1, of classes or captions. */
static mar_status images_begin(image_worker *w, const image_run *r, long first, int n)
{
    const captions *c = r->captions;
    if (!c) return mar_session_begin(r->session, (uint64_t)first, w->labels, n);
    const size_t positions = (size_t)c->tokens, numbers = positions * (size_t)c->dim;
    for (int i = 0; i < n; i++)
        captions_place(c, w->labels[i], w->features + (size_t)i * numbers, w->mask + (size_t)i * positions);
    return mar_session_begin_captions(r->session, (uint64_t)first, w->features, w->mask, n);
}

/* Calls plan.watch for the first worker. */
static void images_watch(const image_worker *w, mar_session *s, int n, const uint8_t *rgb)
{
    const image_plan *plan = w->loop->plan;
    if (w->place == 0 && plan->watch) plan->watch(plan->watcher, s, n, rgb);
}

/* Makes images first..first+n-1, and takes all but their pixels. Returns MAR_ECANCELLED after an interruption. */
static mar_status make_tokens(image_worker *w, const image_run *r, long first, int n)
{
    mar_session *s = r->session;
    mar_status status = images_begin(w, r, first, n);
    const double steps = mar_session_steps_left(s) + 1; /* the image decoder counts as one step */
    while (status == MAR_OK && !mar_session_done(s)) {
        const double left = mar_session_steps_left(s) + 1;
        show(w, n * (1 - left / steps));
        if (images_is_dropped(w->loop)) return MAR_ECANCELLED; /* begin clears an earlier cancel */
        status = mar_session_step(s);
        if (status == MAR_OK && !mar_session_done(s)) images_watch(w, s, n, NULL);
    }
    if (status == MAR_OK && w->tokens) status = mar_session_tokens(s, w->tokens);
    if (status == MAR_OK && w->token_status) status = mar_session_token_status(s, w->token_status, w->steps);
    if (status == MAR_OK && w->token_status) status = mar_session_staleness(s, w->staleness);
    return status;
}

static void note_decoded(void *user, mar_session *s, const mar_progress *p)
{
    image_worker *w = user;
    (void)s;
    w->decoded = p->images;
}

/* Fetches the pixels of the batch. Without plan.takes_parts an interrupted batch is lost. */
static mar_status fetch_pixels(image_worker *w, mar_session *s)
{
    w->decoded = 0;
    if (w->loop->plan->takes_parts) mar_session_on_progress(s, note_decoded, w);
    const mar_status status = mar_session_images(s, w->rgb);
    mar_session_on_progress(s, NULL, NULL);
    return status;
}

/* Result of a batch. */
typedef enum {
    GOT,
    DROPPED, /* interrupted */
    FAILED   /* failed; the error is printed */
} outcome;

static outcome outcome_of(const image_run *r, mar_status status)
{
    if (status == MAR_OK) return GOT;
    if (status == MAR_ECANCELLED) return DROPPED;
    tool_error("%s", mar_session_error(r->session));
    return FAILED;
}

/* --- the store ------------------------------------------------------------------------------------------ */

enum { ARRAYS = 6 };

static store_range range_of(const image_worker *w, const image_batch *b)
{
    return (store_range){b->first, b->n, w->labels};
}

/* Lists the arrays of a batch in the store. Returns their number. */
static int list_arrays(const image_worker *w, const image_run *r, const image_batch *b, mar_stats *stats,
                       store_array list[ARRAYS])
{
    const mar_model_config *c = mar_model_get_config(r->model);
    const int64_t n = b->n, length = c->seq_len, dim = c->token_dim;
    const store_array all[ARRAYS] = {
        {"labels", NPZ_I32, 1, {n}, w->labels},       {"tokens", NPZ_F32, 3, {n, length, dim}, w->tokens},
        {"stats", NPZ_U8, 1, {sizeof *stats}, stats}, {"fates", NPZ_U8, 2, {n, length}, w->token_status},
        {"steps", NPZ_I32, 2, {n, length}, w->steps}, {"late", NPZ_I32, 2, {n, length}, w->staleness}};
    memcpy(list, all, sizeof all);
    return r->has_drafts ? ARRAYS : 3;
}

/* Checks that the arrays read from the store fit the run. */
static int is_plausible(const image_worker *w, const image_run *r, int n, const mar_stats *stats)
{
    const mar_model_config *c = mar_model_get_config(r->model);
    const size_t numbers = (size_t)n * token_count(r), places = (size_t)n * (size_t)c->seq_len;
    int can = stats_check(stats, n) && stats->total_s > 0;
    for (size_t i = 0; i < numbers && can; i++) {
        const float x = w->tokens[i];
        can = c->vocabulary ? x >= 0 && x < (float)c->vocabulary && x == floorf(x) : isfinite(x);
    }
    for (size_t i = 0; i < places && can && r->has_drafts; i++)
        can = w->token_status[i] <= MAR_TOKEN_REPLACED && w->steps[i] >= 0 && w->staleness[i] >= 0;
    return can;
}

static store_state read_stored(image_worker *w, const image_run *r, const image_batch *b, mar_stats *stats)
{
    store_array arrays[ARRAYS];
    char path[STORE_PATH];
    const store_range at = range_of(w, b);
    const size_t places = (size_t)b->n * (size_t)mar_model_get_config(r->model)->seq_len;
    const int count = list_arrays(w, r, b, stats, arrays);
    arrays[0].data = NULL; /* the store's file name has their hash */
    const store_state state = store_read(r->store, &at, NULL, arrays, count);
    if (state != STORE_THERE) return state;
    if (w->token_status && !r->has_drafts) {
        memset(w->token_status, MAR_TOKEN_TARGET, places);
        memset(w->steps, 0, places * sizeof *w->steps);
        memset(w->staleness, 0, places * sizeof *w->staleness);
    }
    if (is_plausible(w, r, b->n, stats)) return STORE_THERE;
    tool_error("%s: has numbers that no image of the run has, expected what mar wrote",
               store_path(r->store, &at, NULL, path));
    return STORE_DAMAGED;
}

/* Makes the tokens and writes them to the store, with their range locked. */
static outcome make_stored(image_worker *w, const image_run *r, const image_batch *b, mar_stats *stats)
{
    store_array arrays[ARRAYS];
    const store_range at = range_of(w, b);
    const mar_status status = make_tokens(w, r, b->first, b->n);
    if (status != MAR_OK) return outcome_of(r, status);
    mar_session_get_stats(r->session, stats);
    const int count = list_arrays(w, r, b, stats, arrays);
    return store_write(r->store, &at, NULL, arrays, count) == 0 ? GOT : FAILED;
}

/* Gets the tokens of a run with a store, read or made. Waits for another process that makes them. */
static outcome get_stored(image_worker *w, const image_run *r, const image_batch *b, mar_stats *stats, int *made)
{
    const store_range at = range_of(w, b);
    store_state state = read_stored(w, r, b, stats);
    *made = 0;
    if (state == STORE_THERE || state == STORE_ERROR) return state == STORE_THERE ? GOT : FAILED;
    const lock_status lock = store_lock_wait(r->store, &at, STORE_TOKENS);
    if (lock != LOCK_TAKEN) return lock == LOCK_BUSY ? DROPPED : FAILED;
    if (state == STORE_MISSING) state = read_stored(w, r, b, stats); /* another process may have made it */
    outcome result = state == STORE_THERE ? GOT : FAILED;
    if (state == STORE_MISSING || state == STORE_DAMAGED) {
        result = make_stored(w, r, b, stats);
        *made = 1;
    }
    store_unlock(r->store, &at, STORE_TOKENS);
    return result;
}

/* --- a batch -------------------------------------------------------------------------------------------- */

/* Decodes tokens that were read, and adds the time. */
static mar_status images_decode(image_worker *w, const image_run *r, const image_batch *b, mar_stats *stats)
{
    mar_stats taken;
    mar_stats_init(&taken, sizeof taken);
    if (images_is_dropped(w->loop)) return MAR_ECANCELLED; /* mar_session_decode forgets a cancel that came before it */
    const mar_status status = mar_session_decode(r->session, (uint64_t)b->first, w->tokens, b->n, w->rgb);
    mar_session_get_stats(r->session, &taken);
    stats->vae_s += taken.vae_s;
    stats->vae_flop += taken.vae_flop;
    stats->total_s += taken.total_s;
    return status;
}

static void count_made(image_loop *loop, int n)
{
    pthread_mutex_lock(&loop->lock);
    if (loop->plan->made) *loop->plan->made += n;
    pthread_mutex_unlock(&loop->lock);
}

/* Fills in the batch's data for the sinks. */
static outcome get(image_worker *w, const image_run *r, image_batch *b, mar_stats *stats)
{
    int made = 1;
    mar_status status = MAR_OK;
    outcome result = r->store ? get_stored(w, r, b, stats, &made) : outcome_of(r, make_tokens(w, r, b->first, b->n));
    if (result != GOT) return result;
    b->tokens = w->tokens;
    b->token_status = w->token_status;
    b->steps = w->steps;
    b->staleness = w->staleness;
    if (w->rgb && images_pixel_bytes(r) > 0) {
        status = made ? fetch_pixels(w, r->session) : images_decode(w, r, b, stats);
        b->rgb = w->rgb;
        if (status == MAR_ECANCELLED && made && w->decoded > 0) {
            b->n = w->decoded;
            status = MAR_OK;
        }
    }
    if (made) mar_session_get_stats(r->session, stats);
    b->stats = stats;
    if (status == MAR_OK && made) count_made(w->loop, b->n);
    return outcome_of(r, status);
}

static int is_there(const image_plan *plan, long i)
{
    return plan->have && plan->have[i - plan->first];
}

/* Hands images first .. first+n-1 of the batch to the sinks. */
static int hand_part(image_worker *w, const image_batch *b, int first, int n)
{
    static const mar_stats none = {.size = sizeof none};
    image_loop *loop = w->loop;
    const image_run *r = &w->runs[b->run];
    const size_t at = (size_t)first, places = at * (size_t)mar_model_get_config(r->model)->seq_len;
    image_batch part = *b;
    part.first += first;
    part.n = n;
    part.labels += first;
    if (part.tokens) part.tokens += at * token_count(r);
    if (part.rgb) part.rgb += at * images_pixel_bytes(r);
    if (part.token_status) part.token_status += places, part.steps += places, part.staleness += places;
    if (first > 0) part.stats = &none; /* those of the batch are in its first part */
    for (int i = 0; i < loop->sink_count; i++)
        if (loop->sinks[i].take(loop->sinks[i].self, &part) != 0) return 1;
    pthread_mutex_lock(&loop->lock);
    loop->finished += n;
    loop->begun -= w->part;
    w->part = 0;
    pthread_mutex_unlock(&loop->lock);
    return 0;
}

/* Hands the missing images of the batch to the sinks. */
static int hand_out(image_worker *w, const image_batch *b)
{
    const image_plan *plan = w->loop->plan;
    for (int i = 0, n; i < b->n; i += n) {
        const int there = is_there(plan, b->first + i);
        for (n = 1; i + n < b->n && is_there(plan, b->first + i + n) == there;) n++;
        if (!there && hand_part(w, b, i, n) != 0) return 1;
    }
    return 0;
}

/* Waits until the batches of all earlier turns are with the sinks. Returns 1 if the loop has ended before. */
static int wait_for_turn(image_loop *loop, int turn)
{
    pthread_mutex_lock(&loop->lock);
    while (loop->out != turn) pthread_cond_wait(&loop->turned, &loop->lock);
    pthread_mutex_unlock(&loop->lock);
    return loop->ended != 0;
}

/* Makes a batch and hands it to the sinks. Returns 0; 1 with the error printed; or the status of an interruption. The
 * sinks get nothing of an interrupted batch, or with plan.takes_parts its finished images. */
static int make_batch(image_worker *w, const image_batch *shape)
{
    const image_run *r = &w->runs[shape->run];
    image_batch batch = *shape;
    mar_stats stats;
    mar_stats_init(&stats, sizeof stats);
    batch.labels = w->labels;
    interruption_cancels(w->place, r->session);
    const outcome result = get(w, r, &batch, &stats);
    interruption_cancels(w->place, NULL);
    if (result == FAILED) return 1;
    if (wait_for_turn(w->loop, shape->turn) != 0) return w->loop->ended;
    if (result == GOT && hand_out(w, &batch) != 0) return 1;
    if (result == GOT && batch.rgb) images_watch(w, r->session, batch.n, batch.rgb);
    show(w, 0);
    return result == DROPPED || batch.n < shape->n ? interruption_status() : 0;
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

/* Chooses the next batch of the plan's numbers; plan.choose for a plan without its own. */
static int choose_next(image_loop *loop, store_range *at)
{
    const image_plan *plan = loop->plan;
    const long end = plan->first + plan->images;
    at->n = 0;
    while (loop->next < end && (at->n = batch_from(plan, loop->next)) == 0) loop->next++;
    at->first = loop->next;
    loop->next += at->n;
    return at->n && interruption_came() ? interruption_status() : 0;
}

/* Begins the next turn: sets *batch and the worker's labels. Returns 0 if there is none. */
static int begin_turn(image_worker *w, image_batch *batch)
{
    image_loop *loop = w->loop;
    const image_plan *plan = loop->plan;
    store_range at = {0};
    pthread_mutex_lock(&loop->lock);
    int status = loop->ended;
    if (status == 0) status = plan->choose ? plan->choose(plan->chooser, &at) : choose_next(loop, &at);
    if (status == 0)
        for (int i = 0; i < at.n; i++) w->labels[i] = at.labels ? at.labels[i] : image_plan_label(plan, at.first + i);
    else
        loop->ended = status;
    *batch = (image_batch){.turn = loop->turn, .first = at.first, .n = at.n};
    const int begun = status == 0 && at.n > 0;
    loop->turn += begun;
    pthread_mutex_unlock(&loop->lock);
    return begun;
}

/* Makes turns until none is left, or one fails. */
static void *make_turns(void *worker)
{
    image_worker *w = worker;
    image_loop *loop = w->loop;
    const int runs = loop->plan->run_count;
    image_batch batch;
    while (begin_turn(w, &batch)) {
        int status = 0;
        for (int place = 0; place < runs && status == 0; place++) {
            if (place > 0 && interruption_came()) status = interruption_status();
            batch.run = (batch.turn + place) % runs;
            if (status == 0) status = make_batch(w, &batch);
        }
        pthread_mutex_lock(&loop->lock);
        if (loop->ended == 0) loop->ended = status;
        pthread_mutex_unlock(&loop->lock);
        (void)wait_for_turn(loop, batch.turn);
        pthread_mutex_lock(&loop->lock);
        loop->out++;
        pthread_cond_broadcast(&loop->turned);
        pthread_mutex_unlock(&loop->lock);
    }
    return NULL;
}

/* Runs the workers, the first on this thread. If the system has no thread for one, the others do its work. */
static void make_all(image_worker *workers, int count)
{
    pthread_t threads[INTERRUPTION_PLACES];
    int started = 1;
    while (started < count && pthread_create(&threads[started], NULL, make_turns, &workers[started]) == 0) started++;
    make_turns(&workers[0]);
    for (int i = 1; i < started; i++) pthread_join(threads[i], NULL);
}

int run_images(const image_plan *plan, const image_sink *sinks, int sink_count)
{
    const int count = plan->workers > 1 ? plan->workers : 1;
    image_loop loop = {.plan = plan,
                       .sinks = sinks,
                       .sink_count = sink_count,
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .turned = PTHREAD_COND_INITIALIZER,
                       .next = plan->first,
                       .wanted = count_missing(plan) * plan->run_count};
    image_worker *workers = calloc((size_t)count, sizeof *workers);
    if (!workers) return tool_error("out of memory");
    interruption_catch();
    if (plan->bar && !plan->bar_total) progress_begin(plan->bar);
    for (int i = 0; i < count && loop.ended == 0; i++) {
        workers[i] = (image_worker){.loop = &loop, .runs = plan->runs + i * plan->run_count, .place = i};
        loop.ended = images_allocate(&workers[i]);
    }
    if (loop.ended == 0) make_all(workers, count);
    if (plan->bar) progress_clear(plan->bar);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < workers[i].block_count; k++) free(workers[i].blocks[k]);
    free(workers);
    return loop.ended > 1 ? end(&loop) : loop.ended;
}
