/* Requests: images that come and go one at a time (mar/api/session.h). A request waits for a free slot, and begins with
 * the next step. When its last step is done its tokens move to the host and the slot is free again. So a host that
 * takes its results late delays no one. */
#include "mar/api/session.h"

#include "mar/core/conditioning.h"
#include "mar/core/params.h"
#include "mar/core/sized.h"

#include <stdlib.h>
#include <string.h>

/* --- slots -------------------------------------------------------------------------------------------------------- */

static int is_pending(const mar_entry *e)
{
    return e->state == MAR_REQUEST_WAITING || e->state == MAR_REQUEST_RUNNING;
}

/* --- the list ----------------------------------------------------------------------------------------------------- */

static mar_entry *find_entry(const mar_session *s, uint64_t id)
{
    for (mar_entry *e = s->first_request; e; e = e->next)
        if (e->id == id) return e;
    for (int i = 0; i < s->images && s->dropped == MAR_OK; i++)
        if (s->batch[i].id == id) return &s->batch[i];
    return NULL;
}

static int is_of_batch(const mar_session *s, const mar_entry *e)
{
    return e >= s->batch && e < s->batch + s->max_images;
}

static mar_status requests_find(mar_session *s, uint64_t id, mar_entry **out)
{
    *out = find_entry(s, id);
    return *out ? MAR_OK
                : err_set(&s->err, MAR_EARG, "request %llu: expected one that was submitted and not taken or cancelled",
                          (unsigned long long)id);
}

static mar_status find_request(mar_session *s, uint64_t id, mar_entry **out)
{
    const mar_status status = requests_find(s, id, out);
    if (status != MAR_OK || !is_of_batch(s, *out)) return status;
    return err_set(&s->err, MAR_EARG,
                   "request %llu: is an image of a batch, whose results mar_session_tokens and mar_session_images give",
                   (unsigned long long)id);
}

/* Takes a request out of the list and frees it. */
static void remove_request(mar_session *s, mar_entry *e)
{
    mar_entry **link = &s->first_request;
    while (*link != e) link = &(*link)->next;
    *link = e->next;
    if (!e->next) s->last_request = link;
    s->requests--;
    s->pending -= is_pending(e);
    mar_session_release(s, e);
    free(e);
}

void mar_session_free_requests(mar_session *s)
{
    while (s->first_request) remove_request(s, s->first_request);
}

/* --- submitting --------------------------------------------------------------------------------------------------- */

void mar_request_init(const mar_session *s, mar_request *request, size_t size)
{
    const mar_params *p = mar_session_get_params(s);
    const mar_request all = {.label = -1, .seed = p ? p->seed : 0, .cfg = p ? p->cfg : 1};
    mar_sized_init(request, size, &all, sizeof all);
}

static mar_status check_cfg(mar_session *s, float cfg)
{
    const mar_param *o = mar_param_find("cfg");
    if (cfg >= 0 && cfg <= o->max) return MAR_OK;
    return err_set(&s->err, MAR_EARG, "cfg %g: expected a number from 0 to %g", (double)cfg, o->max);
}

/* Checks the known tokens: one of the vocabulary, or finite numbers. */
static mar_status check_known(mar_session *s, const mar_request *r)
{
    const mar_model_config *c = &s->model->config;
    if (!r->tokens && !r->known) return MAR_OK;
    if (!r->tokens || !r->known)
        return err_set(&s->err, MAR_EARG, "%s is NULL: expected tokens and known, or neither",
                       r->tokens ? "known" : "tokens");
    for (int i = 0; i < c->seq_len; i++)
        for (int j = 0; r->known[i] && j < c->token_dim; j++) {
            const float x = r->tokens[(size_t)i * (size_t)c->token_dim + (size_t)j];
            if (mar_session_is_token(s, x)) continue;
            return err_set(&s->err, MAR_EARG, "known token %d: number %d is %g, expected %s", i, j, (double)x,
                           c->vocabulary ? "one of the vocabulary" : "a finite one");
        }
    return MAR_OK;
}

static mar_status requests_check_negative(mar_session *s, const mar_request *r)
{
    if (r->negative_mask && !r->negative)
        return err_set(&s->err, MAR_EARG, "mar_request.negative_mask without negative: expected both or neither");
    if (!r->negative || s->model->config.conditioning == MAR_CONDITION_IDS) return MAR_OK;
    return err_set(&s->err, MAR_EARG, "mar_request.negative: the model has no negative prompt, expected NULL");
}

static mar_status check_request(mar_session *s, const mar_request *r)
{
    const mar_conditions of = {.labels = r->features ? NULL : &r->label, .features = r->features, .mask = r->mask};
    const mar_image image = {r->label, r->features, r->mask,  r->seed,     r->image,
                             r->cfg,   r->tokens,   r->known, r->negative, r->negative_mask};
    mar_status status = mar_conditioning_check(&of, &s->model->config, 1, &s->err);
    if (status == MAR_OK) status = check_cfg(s, r->cfg);
    if (status == MAR_OK) status = check_known(s, r);
    if (status == MAR_OK) status = requests_check_negative(s, r);
    if (status == MAR_OK) status = s->model->engine->check(s->engine_state, &image, &s->err);
    return status;
}

/* Copies n numbers to *at, and moves it behind them. Returns the copy; NULL for NULL. */
static const float *copy_floats(float **at, const float *from, size_t n)
{
    float *copy = *at;
    if (!from) return NULL;
    memcpy(copy, from, n * sizeof *copy);
    *at += n;
    return copy;
}

static const uint8_t *copy_flags(uint8_t **at, const uint8_t *from, size_t n)
{
    uint8_t *copy = *at;
    if (!from) return NULL;
    memcpy(copy, from, n);
    *at += n;
    return copy;
}

/* Creates a request in one block: the request, its tokens, and copies of the arrays. */
static mar_entry *requests_create(const mar_session *s, const mar_request *r)
{
    const mar_model_config *c = &s->model->config;
    const size_t tokens = mar_session_token_count(s), positions = (size_t)c->caption_tokens;
    const size_t features = positions * (size_t)c->caption_dim;
    const size_t numbers =
        tokens + ((r->features != NULL) + (r->negative != NULL)) * features + (r->tokens ? tokens : 0);
    const size_t flags =
        ((r->mask != NULL) + (r->negative_mask != NULL)) * positions + (r->known ? (size_t)c->seq_len : 0);
    mar_entry *e = calloc(1, sizeof *e + numbers * sizeof(float) + flags);
    if (!e) return NULL;
    float *at = (float *)(e + 1);
    e->tokens = at, at += tokens;
    e->image = (mar_image){.label = r->label, .seed = r->seed, .number = r->image, .cfg = r->cfg};
    e->image.features = copy_floats(&at, r->features, features);
    e->image.negative = copy_floats(&at, r->negative, features);
    e->image.tokens = copy_floats(&at, r->tokens, tokens);
    uint8_t *flag = (uint8_t *)at;
    e->image.mask = copy_flags(&flag, r->mask, positions);
    e->image.negative_mask = copy_flags(&flag, r->negative_mask, positions);
    e->image.known = copy_flags(&flag, r->known, (size_t)c->seq_len);
    e->slot = -1;
    e->state = MAR_REQUEST_WAITING;
    return e;
}

static mar_status requests_submit(mar_session *s, const mar_request *request, uint64_t *id)
{
    mar_request r;
    mar_request_init(s, &r, sizeof r);
    mar_status status = mar_check_given(id, "id", &s->err);
    if (status == MAR_OK) status = mar_sized_read(request, &r, sizeof r, "mar_request", &s->err);
    if (status == MAR_OK) status = check_request(s, &r);
    if (status != MAR_OK) return status;
    mar_entry *e = requests_create(s, &r);
    if (!e) return err_set(&s->err, MAR_ENOMEM, "out of memory for a request");
    if (s->images && s->dropped == MAR_OK) mar_session_drop_since(s, "was given requests");
    *id = e->id = ++s->last_id;
    *s->last_request = e;
    s->last_request = &e->next;
    s->requests++;
    s->pending++;
    return MAR_OK;
}

mar_status mar_session_submit(mar_session *s, const mar_request *request, uint64_t *id)
{
    if (id) *id = 0;
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, requests_submit(s, request, id)) : status;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Gives free slots to the requests that wait, the oldest first. */
static void admit_waiting(mar_session *s)
{
    int n = 0, slot = 0;
    if (!mar_session_is_idle(s) && s->model->engine->together(s->engine_state)) return;
    for (mar_entry *e = s->first_request; e; e = e->next) {
        if (e->state != MAR_REQUEST_WAITING) continue;
        while (slot < s->max_images && s->at[slot]) slot++;
        if (slot == s->max_images) break;
        s->admit_slot[n] = slot;
        s->admit_image[n] = e->image;
        s->admit_entry[n++] = e;
        slot++;
    }
    if (n) mar_session_admit(s, s->admit_entry, n);
}

static void requests_fail(mar_session *s, mar_entry *e, mar_status status)
{
    e->state = MAR_REQUEST_FAILED;
    e->status = status;
    e->why = s->err;
    s->pending--;
    mar_session_release(s, e);
    if (status != MAR_ECANCELLED)
        mar_log(s->model->m, MAR_LOG_WARNING, "request %llu failed: %s", (unsigned long long)e->id, e->why.text);
    s->err = e->why; /* the log callback may have made a refused call */
}

/* Moves the tokens of finished requests to the host, with the queue bound. */
static void finish_requests(mar_session *s)
{
    for (int i = 0; i < s->max_images; i++) {
        mar_entry *e = s->at[i];
        if (!mar_entry_is_running(e) || mar_entry_steps_left(s, e) > 0) continue;
        s->model->engine->snapshot(s->engine_state, i, e->tokens, s->known);
        if (kern_check(s->k, NULL) != MAR_OK) return;
        e->state = MAR_REQUEST_DONE;
        s->pending--;
        mar_session_release(s, e);
    }
}

/* Makes the step, with the queue bound. Requests with a non-finite token are listed in s->admit_entry, their errors in
 * their `why`. */
static mar_status run_requests(mar_session *s, int *bad)
{
    mar_entry *failed = NULL;
    mar_status status = mar_session_is_idle(s) ? mar_session_prepare(s, s->max_images) : MAR_OK;
    if (status != MAR_OK) return status;
    admit_waiting(s);
    status = mar_session_run_step(s, &failed);
    for (*bad = 0; status == MAR_EMODEL && failed; (*bad)++) {
        s->admit_entry[*bad] = failed;
        failed->state = MAR_REQUEST_FAILED; /* is examined no more */
        failed->why = s->err;
        status = mar_session_examine(s, &failed);
    }
    if (*bad) kern_watch_begin(s->k); /* its layer has been named; the others go on */
    if (status == MAR_OK) status = kern_check(s->k, &s->err);
    if (status == MAR_OK) finish_requests(s);
    if (status == MAR_OK) status = kern_check(s->k, &s->err);
    return status;
}

mar_status mar_session_step_requests(mar_session *s)
{
    int bad = 0;
    if (s->pending == 0) return err_set(&s->err, MAR_EARG, "no request is waiting or in progress: submit one first");
    s->k->core->bind(s->k);
    const mar_status status = run_requests(s, &bad);
    s->k->core->unbind(s->k);
    mar_session_log_unrecorded(s);
    const mar_err kept = s->err;
    for (int i = 0; i < bad; i++) {
        s->err = s->admit_entry[i]->why;
        requests_fail(s, s->admit_entry[i], MAR_EMODEL);
    }
    if (status == MAR_OK) return mar_check_handle(s->model->m, &s->err); /* the log's callback may have forked */
    s->err = kept;
    for (int i = 0; status != MAR_OK && i < s->max_images; i++)
        if (mar_entry_is_running(s->at[i])) requests_fail(s, s->at[i], status);
    if (status == MAR_ECANCELLED) __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
    return status;
}

/* --- results ------------------------------------------------------------------------------------------------------ */

void mar_request_info_init(mar_request_info *info, size_t size)
{
    mar_sized_init(info, size, &(const mar_request_info){0}, sizeof *info);
}

static mar_status get_request(mar_session *s, uint64_t id, mar_request_info *info)
{
    mar_request_info all = {.why = ""};
    mar_status status = mar_sized_check(info, sizeof *info, "mar_request_info", &s->err);
    if (status != MAR_OK) return status;
    const mar_entry *e = find_entry(s, id);
    if (e) {
        all.state = e->state;
        all.steps = e->steps;
        all.step = e->state == MAR_REQUEST_RUNNING ? e->steps - mar_entry_steps_left(s, e)
                   : e->state == MAR_REQUEST_DONE  ? e->steps
                                                   : 0;
        all.status = e->status;
        all.why = e->why.text;
    }
    mar_sized_write(info, &all, sizeof all);
    return MAR_OK;
}

mar_status mar_session_get_request(mar_session *s, uint64_t id, mar_request_info *info)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, get_request(s, id, info)) : status;
}

int mar_session_pending(const mar_session *s)
{
    return mar_session_is_usable(s) ? s->pending : 0;
}

uint64_t mar_session_next_finished(const mar_session *s)
{
    if (!mar_session_is_usable(s)) return 0;
    for (const mar_entry *e = s->first_request; e; e = e->next)
        if (!is_pending(e)) return e->id;
    return 0;
}

static mar_status requests_take(mar_session *s, uint64_t id, float *tokens, mar_pixels *pixels)
{
    mar_entry *e;
    mar_status status = find_request(s, id, &e);
    if (status != MAR_OK) return status;
    if (e->state == MAR_REQUEST_WAITING)
        return err_set(&s->err, MAR_EARG, "request %llu has not begun: step the session first", (unsigned long long)id);
    if (e->state == MAR_REQUEST_RUNNING)
        return err_set(&s->err, MAR_EARG, "request %llu is not finished: %d steps left", (unsigned long long)id,
                       mar_entry_steps_left(s, e));
    if (e->state == MAR_REQUEST_FAILED) {
        status = e->status;
        s->err = e->why;
        remove_request(s, e);
        return status;
    }
    if (pixels) status = mar_session_decode_one(s, e->image.number, e->tokens, NULL, pixels);
    if (status != MAR_OK) return status;
    if (tokens) memcpy(tokens, e->tokens, mar_session_token_count(s) * sizeof *tokens);
    remove_request(s, e);
    return MAR_OK;
}

mar_status mar_session_take(mar_session *s, uint64_t id, float *tokens, mar_pixels *pixels)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, requests_take(s, id, tokens, pixels)) : status;
}

static mar_status requests_cancel(mar_session *s, uint64_t id)
{
    mar_entry *e;
    const mar_status status = find_request(s, id, &e);
    if (status == MAR_OK) remove_request(s, e);
    return status;
}

mar_status mar_session_cancel_request(mar_session *s, uint64_t id)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, requests_cancel(s, id)) : status;
}

static mar_status preview(mar_session *s, uint64_t id, mar_pixels *pixels)
{
    mar_entry *e;
    mar_status status = requests_find(s, id, &e);
    if (status != MAR_OK) return status;
    if (e->state == MAR_REQUEST_WAITING || e->state == MAR_REQUEST_FAILED)
        return err_set(&s->err, MAR_EARG, "request %llu %s: expected one in progress or finished",
                       (unsigned long long)id, e->state == MAR_REQUEST_FAILED ? "has failed" : "has not begun");
    if (e->slot < 0) return mar_session_decode_one(s, e->image.number, e->tokens, NULL, pixels);
    s->k->core->bind(s->k);
    s->model->engine->snapshot(s->engine_state, e->slot, s->tokens, s->known);
    s->k->core->unbind(s->k);
    status = kern_check(s->k, &s->err);
    return status == MAR_OK ? mar_session_decode_one(s, e->image.number, s->tokens, s->known, pixels) : status;
}

mar_status mar_session_preview(mar_session *s, uint64_t id, mar_pixels *pixels)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, preview(s, id, pixels)) : status;
}
