#include "tools/serve/jobs.h"

#include "tools/cli/command.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

const char *job_state_name(job_state state)
{
    static const char *const names[] = {"queued", "running", "done", "failed", "cancelled"};
    return names[state];
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* Initialises a condition whose times are those of CLOCK_MONOTONIC. */
static void make_condition(pthread_cond_t *c)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attributes);
    pthread_condattr_destroy(&attributes);
}

void jobs_create(jobs *t, metrics *m, int queue, int batch, double keep_s, int width, int height)
{
    *t = (jobs){.most = queue + batch,
                .batch = batch,
                .keep_s = keep_s,
                .image_bytes = (size_t)width * (size_t)height * 3,
                .metrics = m};
    pthread_mutex_init(&t->lock, NULL);
    make_condition(&t->work);
    make_condition(&t->text);
    make_condition(&t->idle);
}

static void free_images(job *j)
{
    for (int i = 0; i < j->spec.n; i++) {
        free(j->image[i].rgb);
        free(j->image[i].file);
        free(j->image[i].preview);
    }
}

void jobs_free_prompt(job_prompt *prompt)
{
    if (prompt) free(prompt->negative);
    free(prompt);
}

size_t jobs_text_bytes(const job_spec *spec)
{
    return (spec->text ? strlen(spec->text) + 1 : 0) + (spec->negative ? strlen(spec->negative) + 1 : 0);
}

void jobs_free_spec(const job_spec *spec)
{
    free(spec->text);
    free(spec->negative);
    free(spec->picture);
    free(spec->tokens);
    free(spec->known);
}

static void free_job(job *j)
{
    free_images(j);
    jobs_free_spec(&j->spec);
    jobs_free_prompt(j->prompt);
    pthread_cond_destroy(&j->changed);
    free(j);
}

void jobs_destroy(jobs *t)
{
    for (job *j = t->first, *next; j; j = next) {
        next = j->next;
        free_job(j);
    }
    for (job_client *c = t->clients, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    pthread_cond_destroy(&t->idle);
    pthread_cond_destroy(&t->text);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
}

/* Below, a function whose name does not begin with jobs_ is called with the lock held. */

static void jobs_drop(job *j, int references)
{
    j->references -= references;
    if (j->references == 0) free_job(j);
}

void locked_add_kept(jobs *t, const job *j, int count, size_t bytes)
{
    t->kept_count += count;
    t->kept_bytes += bytes;
    j->client->kept_count += count;
    j->client->kept_bytes += bytes;
}

/* Takes a finished job off its client's account, which goes with the last. */
static void leave_client(jobs *t, job *j)
{
    job_client *c = j->client, **at = &t->clients;
    j->client = NULL;
    if (c->unfinished > 0 || c->kept_count > 0) return;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    free(c);
}

/* Takes a finished job off the table, whose reference remains. */
static void remove_job(jobs *t, job *j)
{
    job **at = &t->first, *before = NULL;
    for (; *at != j; at = &(*at)->next) before = *at;
    *at = j->next;
    if (t->last == j) t->last = before;
    if (j->kept) locked_add_kept(t, j, -1, 0 - j->bytes);
    j->kept = 0;
    leave_client(t, j);
}

/* What a finished job is still good for. */
typedef enum {
    WORTH_NOTHING, /* it has no picture, and a client knows that it is finished */
    WORTH_LINK,    /* all its pictures were fetched */
    WORTH_RESULT   /* a client has not had all */
} job_worth;

static job_worth worth_of(const job *j)
{
    int done = 0, fetched = 0;
    for (int i = 0; i < j->spec.n; i++) {
        done += j->image[i].state == JOB_DONE;
        fetched += j->image[i].is_fetched;
    }
    if (done == 0) return j->is_seen ? WORTH_NOTHING : WORTH_RESULT;
    return fetched < done ? WORTH_RESULT : WORTH_LINK;
}

/* Returns what a client keeps, as bytes. A job counts as its part of them, too, so that one number tells how much. */
static size_t jobs_share_of(const job_client *c)
{
    return c->kept_bytes + (size_t)c->kept_count * (JOBS_KEPT_BYTES / JOBS_KEPT_MAX);
}

/* Returns whether j goes before an older job if too much is kept: first what is worth nothing, then what the client
 * with the most keeps, links before results. */
static int goes_before(const job *j, const job *older)
{
    const job_worth worth = worth_of(j), other = worth_of(older);
    const size_t share = jobs_share_of(j->client), other_share = jobs_share_of(older->client);
    if ((worth == WORTH_NOTHING) != (other == WORTH_NOTHING)) return worth == WORTH_NOTHING;
    return share != other_share ? share > other_share : worth < other;
}

/* Returns the kept job that goes next; NULL: none has to. */
static job *next_to_go(const jobs *t)
{
    const int is_full = t->kept_count > JOBS_KEPT_MAX || t->kept_bytes > JOBS_KEPT_BYTES;
    const double oldest = tool_seconds() - t->keep_s;
    job *found = NULL;
    for (job *j = t->first; j; j = j->next) {
        if (!j->kept || j->unfinished > 0) continue;
        if (j->finished < oldest) return j;
        if (is_full && (!found || goes_before(j, found))) found = j;
    }
    return found;
}

static void expire(jobs *t)
{
    for (job *j; (j = next_to_go(t));) {
        remove_job(t, j);
        jobs_drop(j, 1);
    }
}

void locked_announce(job *j)
{
    j->version++;
    if (j->watchers > 0 || j->unfinished == 0) pthread_cond_broadcast(&j->changed);
}

/* Waits for `c` until `end`, seconds of tool_seconds. Returns 0 at that time. */
static int wait_until(jobs *t, pthread_cond_t *c, double end)
{
    const struct timespec at = {.tv_sec = (time_t)end, .tv_nsec = (long)(1e9 * (end - floor(end)))};
    return pthread_cond_timedwait(c, &t->lock, &at) == 0;
}

/* --- the ends of images ------------------------------------------------------------------------------------------- */

/* Frees what only the engine uses. */
static void free_inputs(job *j)
{
    free(j->spec.picture);
    free(j->spec.tokens);
    jobs_free_prompt(j->prompt);
    j->spec.picture = NULL;
    j->spec.tokens = NULL;
    j->prompt = NULL;
}

/* Ends a job whose last image was finished. Drops the table's reference unless the job is kept. */
static void end_job(jobs *t, job *j)
{
    j->finished = tool_seconds();
    metrics_job(t->metrics, j->finished - j->submitted);
    t->input_bytes -= j->spec.bytes;
    j->client->input_bytes -= j->spec.bytes;
    free_inputs(j);
    if (t->unfinished == 0) pthread_cond_broadcast(&t->idle);
    if (j->kept) {
        locked_add_kept(t, j, 1, j->bytes);
        return;
    }
    remove_job(t, j);
    jobs_drop(j, 1);
}

/* Ends an image. The caller has a reference. */
static void serve_jobs_finish(jobs *t, job *j, int i, job_state state, int code, const char *why)
{
    static const metric_end ends[] = {
        [JOB_DONE] = METRIC_DONE, [JOB_FAILED] = METRIC_FAILED, [JOB_CANCELLED] = METRIC_CANCELLED};
    job_image *image = &j->image[i];
    metrics_image(t->metrics, ends[state]);
    if (image->state == JOB_RUNNING) t->running--;
    image->state = state;
    image->wants_preview = 0;
    free(image->preview);
    image->preview = NULL;
    if (state == JOB_DONE) {
        image->step = image->steps;
    } else {
        free(image->rgb);
        image->rgb = NULL;
        j->bytes -= t->image_bytes;
    }
    if (state == JOB_FAILED && !j->code) {
        j->code = code;
        memcpy(j->why, why, strnlen(why, sizeof j->why - 1));
    }
    t->unfinished--;
    j->unfinished--;
    j->client->unfinished--;
    locked_announce(j);
    if (j->unfinished == 0) end_job(t, j);
}

/* Notes that the engine takes images up to `claimed`. */
static void set_claimed(jobs *t, job *j, int claimed)
{
    if (j->needs_text && claimed == j->spec.n) {
        j->needs_text = 0;
        t->unencoded--;
    } else if (!j->needs_text) {
        t->ready -= claimed - j->claimed;
    }
    j->claimed = claimed;
    while (t->unclaimed && t->unclaimed->claimed == t->unclaimed->spec.n) t->unclaimed = t->unclaimed->next;
    pthread_cond_signal(&t->text);
}

/* Ends the images that have not begun. The caller has a reference. */
static void finish_unclaimed(jobs *t, job *j, job_state state, int code, const char *why)
{
    const int first = j->claimed;
    set_claimed(t, j, j->spec.n);
    for (int i = first; i < j->spec.n; i++) serve_jobs_finish(t, j, i, state, code, why);
}

/* --- clients ------------------------------------------------------------------------------------------------------ */

/* Returns a job that is in no table; NULL without memory. */
static job *new_job(const jobs *t, const job_spec *spec, int kept)
{
    uint8_t random[JOB_ID / 2];
    job *j = calloc(1, sizeof *j);
    if (!j) return NULL;
    make_condition(&j->changed);
    j->spec = *spec;
    j->kept = kept;
    j->needs_text = spec->text != NULL;
    j->client = calloc(1, sizeof *j->client);
    int lacks = !j->client || getrandom(random, sizeof random, 0) != (ssize_t)sizeof random;
    for (int i = 0; i < JOB_ID / 2; i++) {
        static const char digits[] = "0123456789abcdef";
        j->id[2 * i] = digits[random[i] >> 4];
        j->id[2 * i + 1] = digits[random[i] & 15];
    }
    for (int i = 0; i < spec->n; i++) {
        j->image[i].preview_step = -1;
        j->image[i].rgb = malloc(t->image_bytes);
        lacks |= !j->image[i].rgb;
    }
    j->bytes = (size_t)spec->n * t->image_bytes + sizeof *j + jobs_text_bytes(spec) + (size_t)spec->positions;
    if (!lacks) return j;
    free(j->client);
    j->spec = (job_spec){.n = spec->n}; /* the caller frees the rest */
    free_job(j);
    return NULL;
}

static job_client *find_client(const jobs *t, const client_key *key)
{
    job_client *c = t->clients;
    while (c && memcmp(&c->key, key, sizeof *key) != 0) c = c->next;
    return c;
}

/* Adds the job to its client's account. A client without unfinished jobs comes behind those that wait. */
static void join_client(jobs *t, job *j)
{
    job_client *c = find_client(t, &j->spec.client);
    if (c) {
        free(j->client);
    } else {
        c = j->client;
        *c = (job_client){.key = j->spec.client, .next = t->clients};
        t->clients = c;
    }
    for (int stage = 0; c->unfinished == 0 && stage < STAGES; stage++) c->turn[stage] = t->turn;
    c->unfinished += j->spec.n;
    c->input_bytes += j->spec.bytes;
    j->client = c;
}

/* Adds the job to the end of the table. */
static void add_job(jobs *t, job *j)
{
    j->created = time(NULL);
    j->submitted = tool_seconds();
    j->unfinished = j->spec.n;
    j->references = 2;
    if (t->last)
        t->last->next = j;
    else
        t->first = j;
    t->last = j;
    if (!t->unclaimed) t->unclaimed = j;
    t->unfinished += j->spec.n;
    t->input_bytes += j->spec.bytes;
    join_client(t, j);
    if (j->needs_text)
        t->unencoded++;
    else
        t->ready += j->spec.n;
    pthread_cond_signal(j->needs_text ? &t->text : &t->work);
}

static submit_result ask_room(const jobs *t, const job_spec *spec)
{
    static const job_client nobody;
    const job_client *c = find_client(t, &spec->client);
    const int left = t->most - t->unfinished - spec->n;
    const size_t input_bytes = t->input_bytes + spec->bytes;
    if (t->draining) return SUBMIT_DRAINING;
    if (left < 0) return SUBMIT_FULL;
    if (input_bytes > JOBS_INPUT_BYTES) return SUBMIT_FULL_BYTES;
    if (!c) c = &nobody;
    if (c->unfinished > 0 && c->unfinished + spec->n > left) return SUBMIT_SHARE;
    return c->input_bytes > 0 && c->input_bytes + spec->bytes > JOBS_INPUT_BYTES - input_bytes ? SUBMIT_SHARE_BYTES
                                                                                               : SUBMIT_OK;
}

submit_result jobs_submit(jobs *t, const job_spec *spec, int kept, job **out)
{
    job *j = new_job(t, spec, kept);
    pthread_mutex_lock(&t->lock);
    submit_result result = ask_room(t, spec);
    if (result == SUBMIT_OK && !j) result = SUBMIT_NO_MEMORY;
    if (result == SUBMIT_OK) add_job(t, j);
    pthread_mutex_unlock(&t->lock);
    *out = result == SUBMIT_OK ? j : NULL;
    if (result == SUBMIT_OK) return result;
    if (j) {
        free(j->client);
        free_job(j);
    } else {
        jobs_free_spec(spec);
    }
    return result;
}

job *jobs_find(jobs *t, const char *id)
{
    pthread_mutex_lock(&t->lock);
    job *j = t->first;
    while (j && strcmp(j->id, id) != 0) j = j->next;
    if (j) j->references++;
    pthread_mutex_unlock(&t->lock);
    return j;
}

void jobs_release(jobs *t, job *j)
{
    if (!j) return;
    pthread_mutex_lock(&t->lock);
    jobs_drop(j, 1);
    pthread_mutex_unlock(&t->lock);
}

static void serve_jobs_cancel(jobs *t, job *j)
{
    if (j->unfinished == 0 || j->cancelled) return;
    j->cancelled = 1;
    t->changed = 1;
    pthread_cond_signal(&t->work);
    locked_announce(j);
    finish_unclaimed(t, j, JOB_CANCELLED, 0, NULL);
}

void jobs_cancel(jobs *t, job *j)
{
    pthread_mutex_lock(&t->lock);
    serve_jobs_cancel(t, j);
    expire(t);
    pthread_mutex_unlock(&t->lock);
}

static int jobs_is_of(const job *j, const client_key *client)
{
    return j->unfinished > 0 && memcmp(&j->spec.client, client, sizeof *client) == 0;
}

void jobs_cancel_client(jobs *t, const client_key *client)
{
    pthread_mutex_lock(&t->lock);
    for (job *j = t->first; j; j = j->next)
        if (jobs_is_of(j, client)) serve_jobs_cancel(t, j);
    expire(t);
    pthread_mutex_unlock(&t->lock);
}

void jobs_client_progress(jobs *t, const client_key *client, client_progress *out)
{
    *out = (client_progress){.jobs = 0};
    pthread_mutex_lock(&t->lock);
    for (const job *j = t->first; j; j = j->next) {
        if (!jobs_is_of(j, client)) continue;
        out->jobs++;
        out->images += j->spec.n;
        for (int i = 0; i < j->spec.n; i++) {
            const job_image *image = &j->image[i];
            const int is_over = image->state != JOB_QUEUED && image->state != JOB_RUNNING;
            out->done += is_over ? 1 : image->steps ? (double)image->step / image->steps : 0;
            if (is_over || image->step <= out->step) continue;
            out->step = image->step;
            out->steps = image->steps;
        }
    }
    out->seconds = t->image_s * (out->images - out->done);
    pthread_mutex_unlock(&t->lock);
}

void jobs_abandon(jobs *t, job *j)
{
    pthread_mutex_lock(&t->lock);
    if (j->unfinished > 0) j->kept = 0;
    serve_jobs_cancel(t, j);
    pthread_mutex_unlock(&t->lock);
}

void jobs_count(jobs *t, int *waiting, int *running, int *unencoded)
{
    pthread_mutex_lock(&t->lock);
    *unencoded = t->unencoded;
    *running = t->running;
    *waiting = t->unfinished - t->running;
    pthread_mutex_unlock(&t->lock);
}

int jobs_retry_after(jobs *t)
{
    enum { LONGEST = 600 };
    pthread_mutex_lock(&t->lock);
    const double seconds = ceil(t->image_s * (t->unfinished - t->running));
    pthread_mutex_unlock(&t->lock);
    return seconds > LONGEST ? LONGEST : seconds > 1 ? (int)seconds : 1;
}

static job_state state_of(const job *j)
{
    int states[JOB_CANCELLED + 1] = {0};
    for (int i = 0; i < j->spec.n; i++) states[j->image[i].state]++;
    if (j->cancelled && (j->unfinished > 0 || states[JOB_CANCELLED] > 0)) return JOB_CANCELLED;
    if (states[JOB_FAILED] > 0) return JOB_FAILED;
    if (j->unfinished == 0) return JOB_DONE;
    return states[JOB_QUEUED] == j->spec.n ? JOB_QUEUED : JOB_RUNNING;
}

void jobs_view(jobs *t, job *j, job_view *out)
{
    pthread_mutex_lock(&t->lock);
    *out = (job_view){
        .state = state_of(j), .version = j->version, .code = j->code, .over = j->unfinished == 0, .param = j->param};
    memcpy(out->why, j->why, sizeof out->why);
    for (int i = 0; i < j->spec.n; i++) {
        const job_image *image = &j->image[i];
        out->image[i].state = image->state;
        out->image[i].step = image->step;
        out->image[i].steps = image->steps;
        out->step += image->step;
        out->steps += image->steps;
    }
    pthread_mutex_unlock(&t->lock);
}

void jobs_wait_end(jobs *t, job *j, int ms)
{
    const double end = tool_seconds() + 1e-3 * ms;
    pthread_mutex_lock(&t->lock);
    while (j->unfinished > 0 && wait_until(t, &j->changed, end)) {
    }
    pthread_mutex_unlock(&t->lock);
}

void jobs_wait_change(jobs *t, job *j, unsigned seen, int ms)
{
    const double end = tool_seconds() + 1e-3 * ms;
    pthread_mutex_lock(&t->lock);
    j->watchers++;
    while (j->version == seen && wait_until(t, &j->changed, end)) {
    }
    j->watchers--;
    pthread_mutex_unlock(&t->lock);
}

/* --- the service -------------------------------------------------------------------------------------------------- */

int jobs_wait_idle(jobs *t, int ms)
{
    const double end = tool_seconds() + 1e-3 * ms;
    pthread_mutex_lock(&t->lock);
    while (t->unfinished > 0 && wait_until(t, &t->idle, end)) {
    }
    const int idle = t->unfinished == 0;
    pthread_mutex_unlock(&t->lock);
    return idle;
}

void jobs_note_fetched(jobs *t, job *j, int i)
{
    pthread_mutex_lock(&t->lock);
    j->image[i].is_fetched = 1;
    pthread_mutex_unlock(&t->lock);
}

void jobs_note_seen(jobs *t, job *j)
{
    pthread_mutex_lock(&t->lock);
    j->is_seen = 1;
    pthread_mutex_unlock(&t->lock);
}

int jobs_are_wanted(jobs *t, double grace_s)
{
    const double now = tool_seconds();
    pthread_mutex_lock(&t->lock);
    const job *j = t->first;
    while (j && (j->unfinished > 0 || now - j->finished >= grace_s || worth_of(j) < WORTH_RESULT)) j = j->next;
    pthread_mutex_unlock(&t->lock);
    return j != NULL;
}

void jobs_expire(jobs *t)
{
    pthread_mutex_lock(&t->lock);
    expire(t);
    pthread_mutex_unlock(&t->lock);
}

void jobs_drain(jobs *t)
{
    pthread_mutex_lock(&t->lock);
    t->draining = 1;
    pthread_mutex_unlock(&t->lock);
}

int jobs_is_draining(jobs *t)
{
    pthread_mutex_lock(&t->lock);
    const int draining = t->draining;
    pthread_mutex_unlock(&t->lock);
    return draining;
}

void jobs_stop(jobs *t)
{
    pthread_mutex_lock(&t->lock);
    t->stopping = 1;
    pthread_cond_signal(&t->work);
    pthread_cond_signal(&t->text);
    pthread_mutex_unlock(&t->lock);
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

/* Returns the job that is next at a stage: the oldest of the client whose last turn is the longest ago. */
static job *next_job(const jobs *t, job_stage stage)
{
    job *found = NULL;
    for (job *j = t->unclaimed; j; j = j->next)
        if (j->claimed < j->spec.n && j->needs_text == (stage == STAGE_TEXT) &&
            (!found || j->client->turn[stage] < found->client->turn[stage]))
            found = j;
    return found;
}

/* Takes the next job with a reference; NULL: none. */
static job *take_turn(jobs *t, job_stage stage)
{
    job *j = next_job(t, stage);
    if (!j) return NULL;
    j->client->turn[stage] = ++t->turn;
    j->references++;
    return j;
}

job *jobs_await_prompt(jobs *t)
{
    pthread_mutex_lock(&t->lock);
    while (!t->stopping && (t->unencoded == 0 || t->ready >= t->batch)) pthread_cond_wait(&t->text, &t->lock);
    job *j = t->stopping ? NULL : take_turn(t, STAGE_TEXT);
    pthread_mutex_unlock(&t->lock);
    return j;
}

void jobs_put_prompt(jobs *t, job *j, job_prompt *prompt, int code, const char *param, const char *why)
{
    pthread_mutex_lock(&t->lock);
    if (!j->needs_text) { /* cancelled meanwhile */
        jobs_free_prompt(prompt);
    } else if (prompt) {
        j->prompt = prompt;
        j->prompt_sum = prompt->sum;
        j->needs_text = 0;
        t->unencoded--;
        t->ready += j->spec.n - j->claimed;
        pthread_cond_signal(&t->work);
    } else {
        j->param = param;
        finish_unclaimed(t, j, JOB_FAILED, code, why);
    }
    jobs_drop(j, 1);
    expire(t);
    pthread_mutex_unlock(&t->lock);
}

/* --- the engine's side -------------------------------------------------------------------------------------------- */

int jobs_await(jobs *t, int busy)
{
    pthread_mutex_lock(&t->lock);
    while (!busy && t->ready == 0 && !t->changed && !t->stopping) pthread_cond_wait(&t->work, &t->lock);
    t->changed = 0;
    const int goes_on = !t->stopping;
    pthread_mutex_unlock(&t->lock);
    return goes_on;
}

job *jobs_claim(jobs *t, int *image)
{
    pthread_mutex_lock(&t->lock);
    job *j = take_turn(t, STAGE_IMAGE);
    if (j) {
        *image = j->claimed;
        set_claimed(t, j, j->claimed + 1);
    }
    pthread_mutex_unlock(&t->lock);
    return j;
}

int jobs_is_cancelled(jobs *t, job *j)
{
    pthread_mutex_lock(&t->lock);
    const int cancelled = j->cancelled;
    pthread_mutex_unlock(&t->lock);
    return cancelled;
}

void jobs_progress(jobs *t, job *j, int i, int step, int steps)
{
    job_image *image = &j->image[i];
    pthread_mutex_lock(&t->lock);
    if (image->state == JOB_QUEUED) {
        if (state_of(j) == JOB_QUEUED) metrics_wait(t->metrics, tool_seconds() - j->submitted);
        image->state = JOB_RUNNING;
        t->running++;
    }
    if (image->step != step || image->steps != steps) {
        image->step = step;
        image->steps = steps;
        locked_announce(j);
    }
    pthread_mutex_unlock(&t->lock);
}

void jobs_finish(jobs *t, job *j, int i, job_state state, int code, const char *why)
{
    pthread_mutex_lock(&t->lock);
    serve_jobs_finish(t, j, i, state, code, why);
    jobs_drop(j, 1);
    expire(t);
    pthread_mutex_unlock(&t->lock);
}

void jobs_note_pace(jobs *t, double seconds, int images)
{
    pthread_mutex_lock(&t->lock);
    t->image_s = t->image_s > 0 ? 0.9 * t->image_s + 0.1 * seconds / images : seconds / images;
    pthread_mutex_unlock(&t->lock);
}
