/* Passes for the requests of a sampler: the rows of a request, and its log probabilities. */
#include "nets/causal_state.h"

#include <string.h>

/* --- tokens and drafts -------------------------------------------------------------------------------------------- */

/* Returns the row of the embedding of a known token, as causal_pass.embedding has it. */
static int embedding_of(const causal_runner *r, const causal_image *im, int i)
{
    if (!r->pass.drawn) return im->slots.token[i];
    return i == im->lines.drawn_at ? im->lines.request.last : -1 - im->slots.token[i];
}

/* Adds an image's rows in one branch: its next `tokens` tokens. The request's last pass adds its drafts from number
 * im->drafts on. Tokens and drafts have slots already. */
static void requests_add_tokens(causal_runner *r, int image, int branch, int last)
{
    causal_pass *p = &r->pass;
    const causal_image *im = &r->image[image];
    const causal_slots *s = &im->slots;
    const causal_request *q = &im->lines.request;
    const int sequence = causal_sequence(r->images, image, branch), prefix = s->prefix, end = im->known + im->tokens;
    const int drafts = last ? q->count : 0, first_draft = last ? im->drafts : 0, place = prefix - im->begin[branch];
    if (im->tokens + drafts - first_draft == 0) return;
    causal_pass_add_span(p);
    const int common = causal_add_visible(r, im, branch, sequence, prefix) + im->known;
    causal_pass_add_slots(p, sequence, s->slot, im->known);
    causal_pass_set_common(p);
    causal_pass_add_slots(p, sequence, s->slot + im->known, im->tokens);
    causal_pass_add_slots(p, sequence, s->draft_slot, drafts);
    for (int i = im->known; i < end; i++) {
        uint64_t *mask = causal_pass_add_row(p, embedding_of(r, im, i), place + i, sequence, s->slot[i]);
        causal_mask_add(mask, 0, i - im->known + 1);
        p->attended += common + i - im->known + 1;
    }
    for (int i = first_draft; i < drafts; i++) {
        const int depth = causal_request_depth(q, i);
        uint64_t *mask = causal_pass_add_row(p, s->draft[i], place + q->length + depth - 1, sequence, s->draft_slot[i]);
        causal_mask_add(mask, 0, im->tokens);
        causal_mask_add_path(mask, im->tokens, q->parent, i);
        p->attended += common + im->tokens + depth;
    }
}

/* Computes the next `tokens` tokens of the requests' images. */
static void compute_tokens(causal_runner *r, const causal_request *request, int n)
{
    causal_pass *p = &r->pass;
    causal_pass_begin(p, r->model->token_emb, NULL);
    for (int c = 0; c < r->cfg_branches; c++)
        for (int i = 0; i < n; i++) requests_add_tokens(r, request[i].sequence, c, 0);
    causal_pass_rows(p);
    causal_count_pass(r);
    for (int i = 0; i < n; i++) r->image[request[i].sequence].known += r->image[request[i].sequence].tokens;
}

/* Computes the first tokens of requests that have too many rows for one pass, until the rest fits. */
static void compute_ahead(causal_runner *r, const causal_request *request, int n)
{
    for (;;) {
        int most = 0;
        for (int i = 0; i < n; i++) {
            causal_image *im = &r->image[request[i].sequence];
            const int left = im->slots.known - im->known, drafts = im->lines.request.count - im->drafts;
            im->tokens = left + drafts <= r->rows ? 0 : left - 1 < r->rows ? left - 1 : r->rows;
            if (im->tokens > most) most = im->tokens;
        }
        if (most == 0) return;
        compute_tokens(r, request, n);
    }
}

/* Gives the request's tokens and drafts slots, and finds which of them are computed already. */
static void requests_prepare_request(causal_runner *r, const causal_request *asked)
{
    causal_image *im = &r->image[asked->sequence];
    causal_slots *s = &im->slots;
    const causal_request *q = &im->lines.request;
    causal_lines_expand(&im->lines, &r->model->shape, asked);
    im->from = causal_slots_continues(s, q) ? asked->from : 0;
    im->drafts = im->from ? q->from - 1 : 0;
    if (im->from) {
        causal_slots_drop_drafts(s, im->drafts);
    } else {
        causal_slots_follow(s, q->prefix, q->length);
        if (s->known == q->length && q->length > 0)
            causal_slots_drop_tokens(s, q->length - 1); /* its log probabilities are not kept */
    }
    im->known = s->known;
    causal_slots_add(s, q);
}

static int left_of(const causal_runner *r, const causal_request *q)
{
    return r->image[q->sequence].slots.known - r->image[q->sequence].known;
}

void causal_compute_given(causal_runner *r, const causal_start *start, int n)
{
    int requests = 0;
    for (int i = 0; i < n; i++) {
        if (start[i].given < 2) continue;
        r->request[requests] =
            (causal_request){.sequence = start[i].image, .prefix = start[i].token, .length = start[i].given - 1};
        requests_prepare_request(r, &r->request[requests++]);
    }
    for (;;) {
        int unfinished = 0;
        for (int i = 0; i < requests; i++) unfinished += left_of(r, &r->request[i]) > 0;
        if (unfinished == 0) return;
        const int most = causal_lesser(r->images * r->rows / unfinished, 64 * r->pass.words);
        for (int i = 0; i < requests; i++)
            r->image[r->request[i].sequence].tokens = causal_lesser(left_of(r, &r->request[i]), most);
        compute_tokens(r, r->request, requests);
    }
}

/* Adds the logit rows of a request's sites from im->from on. `row` is its first row in the pass. */
static void add_logit_rows(causal_runner *r, const causal_request *q, int branch, int row)
{
    causal_pass *p = &r->pass;
    const causal_image *im = &r->image[q->sequence];
    for (int site = im->from; site <= q->count; site++) {
        const int draft = site - 1;
        if (branch == 0) {
            r->cfg[p->logit_rows] = causal_guidance(&r->sampling, im->cfg, q->length + causal_request_depth(q, draft));
            r->place[p->logit_rows] = q->row + site;
        }
        const int behind = causal_lines_site(&im->lines, site);
        if (site == 0)
            p->logit_row[p->logit_rows++] =
                q->length ? row + im->tokens - 1 : p->rows_max + causal_sequence(r->images, q->sequence, branch);
        else
            p->logit_row[p->logit_rows++] = row + im->tokens + behind - im->drafts;
    }
}

/* --- a call ------------------------------------------------------------------------------------------------------- */

/* Argument of a recording's body. */
typedef struct {
    causal_runner *r;
    float *log_probs;
    const causal_continuation *continuation; /* or NULL */
} log_probs_call;

static void requests_compute_log_probs(void *arg)
{
    const log_probs_call *c = arg;
    const causal_runner *r = c->r;
    const causal_pass *p = &r->pass;
    causal_pass_rows(p);
    causal_pass_logits(p);
    causal_pass_log_probs(p, &r->sampling, r->cfg, r->place, c->log_probs);
    if (c->continuation) c->continuation->run(c->continuation->arg);
}

/* Runs the listed pass: embeddings, layers, log probabilities and the continuation as one recording, by its shape. */
static void run_log_probs(causal_runner *r, float *log_probs, const causal_continuation *continuation)
{
    const causal_pass *p = &r->pass;
    net_recording_shape shape = {.rows = p->rows,
                                 .spans = p->spans,
                                 .logit_rows = p->logit_rows,
                                 .out = log_probs,
                                 .drawn = p->drawn,
                                 .with_continuation = continuation != NULL};
    log_probs_call body = {r, log_probs, continuation};
    if (continuation) memcpy(shape.continuation, continuation->shape, sizeof shape.continuation);
    net_recordings_run(r->k, &r->recordings, &shape, requests_compute_log_probs, &body);
    causal_count_pass(r);
}

/* Lists the rows and logit rows of the requests' last pass. */
static void list_requests(causal_runner *r, const causal_request *request, int n)
{
    causal_pass *p = &r->pass;
    causal_pass_begin(p, r->model->token_emb, request[0].drawn);
    for (int c = 0; c < r->cfg_branches; c++)
        for (int i = 0; i < n; i++) {
            causal_image *im = &r->image[request[i].sequence];
            const int row = p->rows;
            im->tokens = im->slots.known - im->known;
            requests_add_tokens(r, request[i].sequence, c, 1);
            add_logit_rows(r, &request[i], c, row);
        }
}

static mar_status check_requests(const causal_runner *r, const causal_request *request, int n, mar_err *err)
{
    mar_status status = kern_check(r->k, err);
    for (int i = 0; status == MAR_OK && i < n; i++)
        status = causal_request_check(&r->model->shape, r->images, r->drafts, &request[i], err);
    for (int i = 1; status == MAR_OK && i < n; i++)
        if (request[i].drawn != request[0].drawn)
            status = err_set(err, MAR_EARG, "image %d's token is not where that of image %d is", request[i].sequence,
                             request[0].sequence);
    return status;
}

/* Checks that a token on the device is the only one of its image that the pass computes. */
static mar_status check_drawn(const causal_runner *r, const causal_request *request, int n, mar_err *err)
{
    for (int i = 0; i < n; i++)
        if (request[i].drawn && r->image[request[i].sequence].known != r->image[request[i].sequence].lines.drawn_at)
            return err_set(
                err, MAR_EARG, "image %d has a token on the device behind %d tokens, of which %d are computed",
                request[i].sequence, r->image[request[i].sequence].lines.drawn_at, r->image[request[i].sequence].known);
    return MAR_OK;
}

mar_status causal_runner_log_probs_then(void *runner, const causal_request *request, int n, float *log_probs,
                                        const causal_continuation *continuation, mar_err *err)
{
    causal_runner *r = runner;
    mar_status status = check_requests(r, request, n, err);
    if (status != MAR_OK || n == 0) return status;
    r->k->watch.part = r->part;
    for (int i = 0; i < n; i++) requests_prepare_request(r, &request[i]);
    status = check_drawn(r, request, n, err);
    if (status != MAR_OK) return status;
    compute_ahead(r, request, n);
    list_requests(r, request, n);
    if (r->pass.logit_rows > 0)
        run_log_probs(r, log_probs, continuation);
    else if (continuation)
        continuation->run(continuation->arg);
    return kern_check(r->k, err);
}

mar_status causal_runner_log_probs(void *runner, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    return causal_runner_log_probs_then(runner, request, n, log_probs, NULL, err);
}
