/* Passes for the requests of a sampler (llamagen/runner.h): the rows of a request, and its log
 * probabilities. */
#include "llamagen/runner.h"

#include "base/arena.h"
#include "llamagen/lines.h"
#include "llamagen/pass.h"
#include "llamagen/slots.h"

#include <stdlib.h>
#include <string.h>

enum { PREFIX_ROWS = 64 }; /* caption positions that a pass computes at a time: one word of mask */
enum { GIVEN_ROWS = 16 };  /* given tokens that a pass computes at a time, of all images, at least */

/* An image's cache, and the state of its request. */
typedef struct {
    gpt_slots slots;
    gpt_lines lines;  /* its request */
    uint8_t *mask[2]; /* by branch: [prefix] 1: later positions attend to it */
    int begin[2];     /* by branch: first position that is computed */
    float cfg;        /* guidance scale */
    int known;        /* tokens computed */
    int tokens;       /* tokens to compute in this pass, from token `known` on */
    int drafts;       /* first draft to compute */
    int from;         /* first site whose log probabilities are missing */
} gpt_image;

struct gpt_runner {
    kern_queue *k;
    const gpt_model *model;
    gpt_sampling sampling;
    int images, cfg_branches, drafts;
    int rows; /* maximum rows of a sequence in a pass */
    const char *part;
    gpt_image *image; /* [images] */
    uint8_t *mask;    /* [images][2][prefix], then [prefix] of the negative caption */
    gpt_pass pass;
    float *cfg;            /* [images * (drafts + 1)] guidance scale of an logit row */
    int *place;            /* [images * (drafts + 1)] row of log_probs that it becomes */
    int *index;            /* [images * branches] first row of a sequence's prefix in the embedding table */
    gpt_start *start;      /* [images] images that gpt_runner_begin starts */
    spec_request *request; /* [images] given tokens of the images that start */
    gpt_recordings recordings;
    gpt_runner_stats stats;

    /* Backend memory, from gpt_runner_lay_out. */
    float *caption;        /* [images + 1][prefix][caption_dim]; the last is the unconditional one. LlamaGen's */
    float *caption_hidden; /* [images + 1][prefix][D], likewise */
    float *caption_emb;    /* [images + 1][prefix][D] */
};

/* Returns the mask of the second branch's caption. */
static uint8_t *negative_mask(const gpt_runner *r)
{
    return r->mask + 2 * (size_t)r->images * (size_t)r->model->config.prefix;
}

static int lesser(int a, int b)
{
    return a < b ? a : b;
}

static int greater(int a, int b)
{
    return a > b ? a : b;
}

/* --- positions before the image tokens ---------------------------------------------------------------------------- */

/* Adds the slots of those positions 0 .. end - 1 that later ones attend to. Returns their number. */
static int add_visible(gpt_runner *r, const gpt_image *im, int branch, int sequence, int end)
{
    int n = 0;
    for (int i = im->begin[branch]; i < end; i++)
        if (im->mask[branch][i]) gpt_pass_add_slot(&r->pass, sequence, i), n++;
    return n;
}

/* Adds positions first .. end - 1 of a sequence. Each attends to the unmasked positions before it, and to itself. */
static void add_prefix(gpt_runner *r, int image, int branch, const int *embedding, int first, int end)
{
    gpt_pass *p = &r->pass;
    const gpt_image *im = &r->image[image];
    const int sequence = gpt_sequence(r->images, image, branch), begin = im->begin[branch];
    if (first < begin) first = begin;
    if (first >= end) return;
    gpt_pass_add_span(p);
    const int common = add_visible(r, im, branch, sequence, first);
    gpt_pass_set_common(p);
    for (int i = first; i < end; i++) gpt_pass_add_slot(p, sequence, i);
    for (int i = first; i < end; i++) {
        uint64_t *mask = gpt_pass_add_row(p, embedding[sequence] + i, i - begin, sequence, i);
        p->attended += common;
        for (int j = first; j <= i; j++)
            if (im->mask[branch][j] || j == i) gpt_mask_add(mask, j - first, 1), p->attended++;
    }
}

static void count_pass(gpt_runner *r)
{
    r->stats.passes += r->pass.rows > 0; /* an image's first request needs no rows */
    r->stats.rows += r->pass.rows;
    r->stats.flop += gpt_pass_flop(&r->pass);
    r->stats.bytes += gpt_pass_bytes(&r->pass);
}

/* Computes all positions before the image tokens. r->index has the row of `table` where a sequence begins. Keeps the
 * residual stream of their last rows: the first token's distribution is computed from it. */
static void compute_prefixes(gpt_runner *r, const gpt_start *start, int n, const float *table)
{
    gpt_pass *p = &r->pass;
    const int prefix = r->model->config.prefix, d = r->model->config.width;
    const int chunk = r->rows < prefix ? r->rows : prefix;
    int end = prefix;
    for (int c = 0; c < r->cfg_branches; c++)
        for (int i = 0; i < n; i++) end = lesser(end, r->image[start[i].image].begin[c]);
    for (int first = end; first < prefix; first = end) {
        end = first + chunk < prefix ? first + chunk : prefix;
        gpt_pass_begin(p, table, NULL);
        for (int c = 0; c < r->cfg_branches; c++)
            for (int i = 0; i < n; i++) add_prefix(r, start[i].image, c, r->index, first, end);
        gpt_pass_rows(p);
        count_pass(r);
    }
    for (int s = 0; s < p->spans; s++) {
        p->slot[s] = p->rows_max + gpt_sequence(r->images, start[s % n].image, s / n);
        p->position[s] = p->row[s + 1] - 1;
    }
    r->k->core->copy_rows(r->k, p->x, p->slot, p->x, p->position, NULL, NULL, p->spans, d);
}

static void compute_class_prefixes(gpt_runner *r, const gpt_start *start, int n)
{
    const int classes = r->model->config.classes;
    for (int i = 0; i < n; i++) {
        r->index[gpt_sequence(r->images, start[i].image, 0)] = start[i].label < 0 ? classes : start[i].label;
        if (r->cfg_branches == 2) r->index[gpt_sequence(r->images, start[i].image, 1)] = classes;
    }
    compute_prefixes(r, start, n, r->model->class_emb);
}

/* Computes prompts, whose features are embeddings. The negative one is in its place already. */
static void compute_prompts(gpt_runner *r, const gpt_start *start, int n)
{
    const int prefix = r->model->config.prefix;
    const size_t d = (size_t)r->model->config.width;
    for (int i = 0; i < n; i++) {
        const size_t begin = (size_t)r->image[start[i].image].begin[0], rows = (size_t)prefix - begin;
        r->k->core->upload(r->k, r->caption_emb + ((size_t)(i * prefix) + begin) * d, start[i].features + begin * d,
                           rows * d * sizeof *start[i].features);
        r->index[gpt_sequence(r->images, start[i].image, 0)] = i * prefix;
        if (r->cfg_branches == 2) r->index[gpt_sequence(r->images, start[i].image, 1)] = r->images * prefix;
    }
    compute_prefixes(r, start, n, r->caption_emb);
}

static void compute_caption_prefixes(gpt_runner *r, const gpt_start *start, int n)
{
    kern_queue *k = r->k;
    const gpt_model *m = r->model;
    const int prefix = m->config.prefix, dim = m->config.caption_dim;
    const size_t caption = (size_t)prefix * (size_t)dim;
    const int rows = (n + r->cfg_branches - 1) * prefix;
    if (m->config.grammar) {
        compute_prompts(r, start, n);
        return;
    }
    for (int i = 0; i < n; i++) {
        k->core->upload(k, r->caption + (size_t)i * caption, start[i].features, caption * sizeof *start[i].features);
        r->index[gpt_sequence(r->images, start[i].image, 0)] = i * prefix;
        if (r->cfg_branches == 2) r->index[gpt_sequence(r->images, start[i].image, 1)] = n * prefix;
    }
    if (r->cfg_branches == 2)
        k->core->copy_rows(k, r->caption + (size_t)n * caption, NULL, m->no_caption, NULL, NULL, NULL, prefix, dim);
    k->core->linear(k, m->caption_fc1, r->caption, rows, r->caption_hidden);
    k->core->linear(k, m->caption_fc2, r->caption_hidden, rows, r->caption_emb);
    compute_prefixes(r, start, n, r->caption_emb);
    r->stats.flop += 2.0 * rows * m->config.width * (dim + m->config.width);
}

/* --- tokens and drafts -------------------------------------------------------------------------------------------- */

/* Returns the row of the embedding of a known token, as gpt_pass.embedding has it. */
static int embedding_of(const gpt_runner *r, const gpt_image *im, int i)
{
    if (!r->pass.drawn) return im->slots.token[i];
    return i == im->lines.drawn_at ? im->lines.request.last : -1 - im->slots.token[i];
}

/* Adds an image's rows in one branch: its next `tokens` tokens. The request's last pass adds its drafts from number
 * im->drafts on. Tokens and drafts have slots already. */
static void add_tokens(gpt_runner *r, int image, int branch, int last)
{
    gpt_pass *p = &r->pass;
    const gpt_image *im = &r->image[image];
    const gpt_slots *s = &im->slots;
    const spec_request *q = &im->lines.request;
    const int sequence = gpt_sequence(r->images, image, branch), prefix = s->prefix, end = im->known + im->tokens;
    const int drafts = last ? q->count : 0, first_draft = last ? im->drafts : 0, place = prefix - im->begin[branch];
    if (im->tokens + drafts - first_draft == 0) return;
    gpt_pass_add_span(p);
    const int common = add_visible(r, im, branch, sequence, prefix) + im->known;
    gpt_pass_add_slots(p, sequence, s->slot, im->known);
    gpt_pass_set_common(p);
    gpt_pass_add_slots(p, sequence, s->slot + im->known, im->tokens);
    gpt_pass_add_slots(p, sequence, s->draft_slot, drafts);
    for (int i = im->known; i < end; i++) {
        uint64_t *mask = gpt_pass_add_row(p, embedding_of(r, im, i), place + i, sequence, s->slot[i]);
        gpt_mask_add(mask, 0, i - im->known + 1);
        p->attended += common + i - im->known + 1;
    }
    for (int i = first_draft; i < drafts; i++) {
        const int depth = gpt_request_depth(q, i);
        uint64_t *mask = gpt_pass_add_row(p, s->draft[i], place + q->length + depth - 1, sequence, s->draft_slot[i]);
        gpt_mask_add(mask, 0, im->tokens);
        gpt_mask_add_path(mask, im->tokens, q->parent, i);
        p->attended += common + im->tokens + depth;
    }
}

/* Computes the next `tokens` tokens of the requests' images. */
static void compute_tokens(gpt_runner *r, const spec_request *request, int n)
{
    gpt_pass *p = &r->pass;
    gpt_pass_begin(p, r->model->token_emb, NULL);
    for (int c = 0; c < r->cfg_branches; c++)
        for (int i = 0; i < n; i++) add_tokens(r, request[i].sequence, c, 0);
    gpt_pass_rows(p);
    count_pass(r);
    for (int i = 0; i < n; i++) r->image[request[i].sequence].known += r->image[request[i].sequence].tokens;
}

/* Computes the first tokens of requests that have too many rows for one pass, until the rest fits. */
static void compute_ahead(gpt_runner *r, const spec_request *request, int n)
{
    for (;;) {
        int most = 0;
        for (int i = 0; i < n; i++) {
            gpt_image *im = &r->image[request[i].sequence];
            const int left = im->slots.known - im->known, drafts = im->lines.request.count - im->drafts;
            im->tokens = left + drafts <= r->rows ? 0 : left - 1 < r->rows ? left - 1 : r->rows;
            if (im->tokens > most) most = im->tokens;
        }
        if (most == 0) return;
        compute_tokens(r, request, n);
    }
}

/* Gives the request's tokens and drafts slots, and finds which of them are computed already. */
static void prepare_request(gpt_runner *r, const spec_request *asked)
{
    gpt_image *im = &r->image[asked->sequence];
    gpt_slots *s = &im->slots;
    const spec_request *q = &im->lines.request;
    gpt_lines_expand(&im->lines, &r->model->config, asked);
    im->from = gpt_slots_continues(s, q) ? asked->from : 0;
    im->drafts = im->from ? q->from - 1 : 0;
    if (im->from) {
        gpt_slots_drop_drafts(s, im->drafts);
    } else {
        gpt_slots_follow(s, q->prefix, q->length);
        if (s->known == q->length && q->length > 0)
            gpt_slots_drop_tokens(s, q->length - 1); /* its log probabilities are not kept */
    }
    im->known = s->known;
    gpt_slots_add(s, q);
}

static int left_of(const gpt_runner *r, const spec_request *q)
{
    return r->image[q->sequence].slots.known - r->image[q->sequence].known;
}

/* Computes the given tokens but the last, whose pass gives the first distribution. Images that have some share the rows
 * that a pass has for all images. */
static void compute_given(gpt_runner *r, const gpt_start *start, int n)
{
    int requests = 0;
    for (int i = 0; i < n; i++) {
        if (start[i].given < 2) continue;
        r->request[requests] =
            (spec_request){.sequence = start[i].image, .prefix = start[i].token, .length = start[i].given - 1};
        prepare_request(r, &r->request[requests++]);
    }
    for (;;) {
        int unfinished = 0;
        for (int i = 0; i < requests; i++) unfinished += left_of(r, &r->request[i]) > 0;
        if (unfinished == 0) return;
        const int most = lesser(r->images * r->rows / unfinished, 64 * r->pass.words);
        for (int i = 0; i < requests; i++)
            r->image[r->request[i].sequence].tokens = lesser(left_of(r, &r->request[i]), most);
        compute_tokens(r, r->request, requests);
    }
}

/* Adds the logit rows of a request's sites from im->from on. `row` is its first row in the pass. */
static void add_logit_rows(gpt_runner *r, const spec_request *q, int branch, int row)
{
    gpt_pass *p = &r->pass;
    const gpt_image *im = &r->image[q->sequence];
    for (int site = im->from; site <= q->count; site++) {
        const int draft = site - 1;
        if (branch == 0) {
            r->cfg[p->logit_rows] = gpt_guidance(&r->sampling, im->cfg, q->length + gpt_request_depth(q, draft));
            r->place[p->logit_rows] = q->row + site;
        }
        const int behind = gpt_lines_site(&im->lines, site);
        if (site == 0)
            p->logit_row[p->logit_rows++] =
                q->length ? row + im->tokens - 1 : p->rows_max + gpt_sequence(r->images, q->sequence, branch);
        else
            p->logit_row[p->logit_rows++] = row + im->tokens + behind - im->drafts;
    }
}

/* --- images that start -------------------------------------------------------------------------------------------- */

void gpt_runner_set_negative(gpt_runner *r, const float *features, const uint8_t *mask)
{
    const size_t prefix = (size_t)r->model->config.prefix, d = (size_t)r->model->config.width;
    memcpy(negative_mask(r), mask, prefix);
    r->k->core->upload(r->k, r->caption_emb + (size_t)r->images * prefix * d, features, prefix * d * sizeof *features);
}

/* Sets the masks of an image that starts, and where its sequences begin. */
static void begin_masks(gpt_runner *r, gpt_image *im, const uint8_t *given)
{
    const gpt_config *c = &r->model->config;
    const size_t prefix = (size_t)c->prefix;
    for (int b = 0; b < r->cfg_branches; b++) {
        const uint8_t *mask = b == 1 && c->grammar ? negative_mask(r) : given;
        if (c->caption_dim && mask)
            memcpy(im->mask[b], mask, prefix);
        else
            memset(im->mask[b], 1, prefix);
        im->begin[b] = 0;
        while (c->grammar && im->begin[b] + 1 < c->prefix && !im->mask[b][im->begin[b]]) im->begin[b]++;
    }
}

void gpt_runner_admit(gpt_runner *r, const gpt_start *start, int n)
{
    r->k->watch.part = r->part;
    r->k->core->timer_mark(r->k, NULL);
    for (int i = 0; i < n; i++) {
        gpt_image *im = &r->image[start[i].image];
        gpt_slots_begin(&im->slots);
        im->cfg = start[i].cfg;
        begin_masks(r, im, start[i].mask);
    }
    if (r->model->config.caption_dim)
        compute_caption_prefixes(r, start, n);
    else
        compute_class_prefixes(r, start, n);
    compute_given(r, start, n);
    r->k->core->timer_mark(r->k, &r->stats.prefix_s);
}

void gpt_runner_clear_stats(gpt_runner *r)
{
    r->stats = (gpt_runner_stats){0};
}

void gpt_runner_begin(gpt_runner *r, int images, const int *label)
{
    for (int i = 0; i < images; i++) r->start[i] = (gpt_start){.image = i, .label = label[i], .cfg = r->sampling.cfg};
    gpt_runner_clear_stats(r);
    gpt_runner_admit(r, r->start, images);
}

void gpt_runner_begin_captions(gpt_runner *r, int images, const float *features, const uint8_t *mask)
{
    const size_t prefix = (size_t)r->model->config.prefix, caption = prefix * (size_t)r->model->config.caption_dim;
    for (int i = 0; i < images; i++)
        r->start[i] = (gpt_start){.image = i,
                                  .features = features + (size_t)i * caption,
                                  .mask = mask + (size_t)i * prefix,
                                  .cfg = r->sampling.cfg};
    gpt_runner_clear_stats(r);
    gpt_runner_admit(r, r->start, images);
}

/* --- a call ------------------------------------------------------------------------------------------------------- */

/* Argument of a recording's body. */
typedef struct {
    gpt_runner *r;
    float *log_probs;
    const spec_continuation *continuation; /* or NULL */
} call;

static void compute_log_probs(void *arg)
{
    const call *c = arg;
    const gpt_runner *r = c->r;
    const gpt_pass *p = &r->pass;
    gpt_pass_rows(p);
    gpt_pass_logits(p);
    gpt_pass_log_probs(p, &r->sampling, r->cfg, r->place, c->log_probs);
    if (c->continuation) c->continuation->run(c->continuation->arg);
}

/* Runs the listed pass: embeddings, layers, log probabilities and the continuation as one recording, by its shape. */
static void run_log_probs(gpt_runner *r, float *log_probs, const spec_continuation *continuation)
{
    const gpt_pass *p = &r->pass;
    gpt_shape shape = {.rows = p->rows,
                       .spans = p->spans,
                       .logit_rows = p->logit_rows,
                       .log_probs = log_probs,
                       .drawn = p->drawn,
                       .with_continuation = continuation != NULL};
    call body = {r, log_probs, continuation};
    if (continuation) memcpy(shape.continuation, continuation->shape, sizeof shape.continuation);
    if (r->k->watch.on) /* the search for a non-finite layer waits between layers */
        compute_log_probs(&body);
    else
        r->k->core->replay(r->k, gpt_recordings_find(r->k, &r->recordings, &shape), compute_log_probs, &body);
    count_pass(r);
}

/* Lists the rows and logit rows of the requests' last pass. */
static void list_requests(gpt_runner *r, const spec_request *request, int n)
{
    gpt_pass *p = &r->pass;
    gpt_pass_begin(p, r->model->token_emb, request[0].drawn);
    for (int c = 0; c < r->cfg_branches; c++)
        for (int i = 0; i < n; i++) {
            gpt_image *im = &r->image[request[i].sequence];
            const int row = p->rows;
            im->tokens = im->slots.known - im->known;
            add_tokens(r, request[i].sequence, c, 1);
            add_logit_rows(r, &request[i], c, row);
        }
}

static mar_status check_requests(const gpt_runner *r, const spec_request *request, int n, mar_err *err)
{
    mar_status status = kern_check(r->k, err);
    for (int i = 0; status == MAR_OK && i < n; i++)
        status = gpt_request_check(&r->model->config, r->images, r->drafts, &request[i], err);
    for (int i = 1; status == MAR_OK && i < n; i++)
        if (request[i].drawn != request[0].drawn)
            status = err_set(err, MAR_EARG, "image %d's token is not where that of image %d is", request[i].sequence,
                             request[0].sequence);
    return status;
}

/* Checks that a token on the device is the only one of its image that the pass computes. */
static mar_status check_drawn(const gpt_runner *r, const spec_request *request, int n, mar_err *err)
{
    for (int i = 0; i < n; i++)
        if (request[i].drawn && r->image[request[i].sequence].known != r->image[request[i].sequence].lines.drawn_at)
            return err_set(
                err, MAR_EARG, "image %d has a token on the device behind %d tokens, of which %d are computed",
                request[i].sequence, r->image[request[i].sequence].lines.drawn_at, r->image[request[i].sequence].known);
    return MAR_OK;
}

mar_status gpt_runner_log_probs_then(void *runner, const spec_request *request, int n, float *log_probs,
                                     const spec_continuation *continuation, mar_err *err)
{
    gpt_runner *r = runner;
    mar_status status = check_requests(r, request, n, err);
    if (status != MAR_OK || n == 0) return status;
    r->k->watch.part = r->part;
    for (int i = 0; i < n; i++) prepare_request(r, &request[i]);
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

mar_status gpt_runner_log_probs(void *runner, const spec_request *request, int n, float *log_probs, mar_err *err)
{
    return gpt_runner_log_probs_then(runner, request, n, log_probs, NULL, err);
}

void gpt_runner_follow(gpt_runner *r, int image, const int *prefix, int length)
{
    gpt_slots_follow(&r->image[image].slots, prefix, length);
}

const float *gpt_runner_features(const gpt_runner *r)
{
    return r->pass.features;
}

int gpt_runner_slot(const gpt_runner *r, int image, int branch, int position)
{
    const gpt_slots *s = &r->image[image].slots;
    if (position >= s->known) return -1;
    return gpt_sequence(r->images, image, branch) * s->count +
           (position < 0 ? s->prefix + position : s->slot[position]);
}

const float *gpt_runner_prefix_table(const gpt_runner *r)
{
    return r->model->config.caption_dim ? r->caption_emb : r->model->class_emb;
}

int gpt_runner_prefix_row(const gpt_runner *r, int image, int branch)
{
    return r->index[gpt_sequence(r->images, image, branch)];
}

int gpt_runner_begin_of(const gpt_runner *r, int image, int branch)
{
    return r->image[image].begin[branch];
}

const gpt_runner_stats *gpt_runner_get_stats(const gpt_runner *r)
{
    return &r->stats;
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

void gpt_runner_name(gpt_runner *r, const char *part)
{
    r->part = part;
}

/* Returns the rows of a sequence in a pass: the last known token, one that was drafted but not computed, the drafts,
 * and line ends. Prefix positions may need more, and given tokens in a runner for few images. */
static int rows_of(const gpt_config *c, int images, int drafts)
{
    const int rows = greater(gpt_lines_drafts(c, drafts + 2), lesser(c->prefix, PREFIX_ROWS));
    return greater(rows, (GIVEN_ROWS + images - 1) / images);
}

static mar_status create_images(gpt_runner *r, mar_err *err)
{
    const gpt_config *c = &r->model->config;
    const size_t images = (size_t)r->images, logit_rows = images * (size_t)(r->drafts + 1), prefix = (size_t)c->prefix;
    mar_status status = MAR_OK;
    r->image = calloc(images, sizeof *r->image);
    r->mask = malloc((2 * images + 1) * prefix);
    r->cfg = calloc(logit_rows, sizeof *r->cfg);
    r->place = calloc(logit_rows, sizeof *r->place);
    r->index = calloc(2 * images, sizeof *r->index);
    r->start = calloc(images, sizeof *r->start);
    r->request = calloc(images, sizeof *r->request);
    if (!r->image || !r->mask || !r->cfg || !r->place || !r->index || !r->start || !r->request)
        return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", r->images);
    memset(r->mask, 1, (2 * images + 1) * prefix);
    if (c->grammar) memset(negative_mask(r), 0, prefix - 1); /* before gpt_runner_set_negative: one position */
    for (int i = 0; status == MAR_OK && i < r->images; i++) {
        gpt_image *im = &r->image[i];
        for (int b = 0; b < 2; b++) im->mask[b] = r->mask + (size_t)(2 * i + b) * prefix;
        status = gpt_slots_create(c->prefix, gpt_positions(c), gpt_lines_drafts(c, r->drafts), &im->slots, err);
        if (status == MAR_OK) status = gpt_lines_create(c, r->drafts, &im->lines, err);
    }
    return status;
}

mar_status gpt_runner_create(kern_queue *k, const gpt_model *model, const gpt_sampling *sampling, int images,
                             int drafts, int keep, gpt_runner **out, mar_err *err)
{
    gpt_runner *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return err_set(err, MAR_ENOMEM, "out of memory");
    *r = (gpt_runner){.k = k,
                      .model = model,
                      .sampling = *sampling,
                      .images = images,
                      .cfg_branches = gpt_cfg_branches(sampling),
                      .drafts = drafts,
                      .rows = rows_of(&model->config, images, drafts),
                      .part = ""};
    mar_status status = create_images(r, err);
    if (status == MAR_OK)
        status = gpt_pass_create(k, model, images * r->cfg_branches, r->image[0].slots.count, r->rows, drafts + 1, keep,
                                 &r->pass, err);
    if (status == MAR_OK)
        *out = r;
    else
        gpt_runner_free(r);
    return status;
}

void gpt_runner_free(gpt_runner *r)
{
    if (!r) return;
    gpt_recordings_free(r->k, &r->recordings);
    for (int i = 0; r->image && i < r->images; i++) {
        gpt_slots_free(&r->image[i].slots);
        gpt_lines_free(&r->image[i].lines);
    }
    gpt_pass_free(&r->pass);
    free(r->image);
    free(r->mask);
    free(r->cfg);
    free(r->place);
    free(r->index);
    free(r->start);
    free(r->request);
    free(r);
}

void gpt_runner_set_cache(gpt_runner *r, kern_cache_type type)
{
    r->pass.cache_type = type;
}

size_t gpt_runner_lay_out(gpt_runner *r, char *base)
{
    const gpt_config *c = &r->model->config;
    size_t used = 0;
    if (base) gpt_recordings_free(r->k, &r->recordings); /* they hold addresses */
    if (c->caption_dim) {
        const size_t rows = ((size_t)r->images + 1) * (size_t)c->prefix, d = (size_t)c->width;
        if (!c->grammar) r->caption = arena_carve(base, &used, rows * (size_t)c->caption_dim, sizeof(float));
        if (!c->grammar) r->caption_hidden = arena_carve(base, &used, rows * d, sizeof(float));
        r->caption_emb = arena_carve(base, &used, rows * d, sizeof(float));
    }
    used += gpt_pass_lay_out(&r->pass, base ? base + used : NULL);
    return used;
}

/* Prepares passes of all images with this many rows and logit rows each. */
static mar_status plan_shape(const gpt_runner *r, int images, int rows, int logit_rows, mar_err *err)
{
    return gpt_pass_plan(&r->pass, images * r->cfg_branches * rows, images * r->cfg_branches * logit_rows, err);
}

mar_status gpt_runner_plan(gpt_runner *r, int images, mar_err *err)
{
    const gpt_model *m = r->model;
    mar_status status = MAR_OK;
    gpt_recordings_free(r->k, &r->recordings);
    for (int n = 1; status == MAR_OK && m->caption_fc1 && n <= images; n++) {
        const int rows = (n + r->cfg_branches - 1) * m->config.prefix;
        status = r->k->core->linear_plan(r->k, m->caption_fc1, rows, err);
        if (status == MAR_OK) status = r->k->core->linear_plan(r->k, m->caption_fc2, rows, err);
    }
    /* Plain steps and whole blocks are the most frequent passes. */
    if (status == MAR_OK) status = plan_shape(r, images, 1, 1, err);
    if (status == MAR_OK) status = plan_shape(r, images, r->drafts + 1, r->drafts + 1, err);
    for (int n = 1; status == MAR_OK && n <= images * r->rows; n++)
        status = plan_shape(r, 1, n, n < images * (r->drafts + 1) ? n : images * (r->drafts + 1), err);
    return status;
}
