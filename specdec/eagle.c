#include "specdec/eagle.h"

#include "base/arena.h"
#include "nets/causal_lines.h"
#include "nets/causal_pass.h"
#include "nets/causal_slots.h"

#include <stdlib.h>

/* Slot of the target's feature before the image tokens; it has no keys and values. The slots behind it have those of
 * the drafter's rows before the image tokens. */
enum { BEFORE = 0 };
enum { TOKENS, DRAFTS };

/* An image's cache, and the state of its request. */
typedef struct {
    causal_slots slots;
    causal_lines lines; /* its request */
    int begin[2];       /* by branch: first row before the image tokens */
    float cfg;          /* guidance scale */
    int known;          /* tokens computed */
    int tokens;         /* tokens to compute in this pass, from token `known` on */
    int drafts;         /* first draft to compute */
    int from;           /* first site whose log probabilities are missing */
} eagle_image;

struct eagle_runner {
    kern_queue *k;
    const eagle_model *model;
    causal_runner *target;
    causal_sampling sampling;
    causal_model one;   /* the target with the drafter's layer in place of its layers: the model of the passes */
    causal_layer layer; /* the drafter's layer */
    int images, cfg_branches, drafts;
    int rows;                               /* maximum rows of a sequence in a pass */
    int prefix;                             /* rows before the image tokens (specdec/eagle_model.h) */
    eagle_image *image;                     /* [images] */
    causal_pass pass;                       /* its features are the drafter's own, by slot */
    int *feature;                           /* [rows_max] feature that a row reads */
    int *place_of_token, *place_of_feature; /* [rows_max] the halves of a row's input, as rows of D */
    int *site;                              /* [logit_rows_max] own feature that an logit row reads */
    float *cfg;                             /* [images * rows] guidance scale of an logit row */
    int *place;                             /* [images * rows] row of log_probs that it becomes */
    causal_start *start;                    /* [images] images that eagle_runner_begin starts */
    net_recordings recordings;
    causal_runner_stats stats;

    /* Backend memory, from eagle_runner_lay_out. */
    float *joined; /* [rows_max][2D] embedding, feature */
    act *input;    /* [rows_max][2D] */
};

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* Adds a row of an image that reads row `feature` of the features. `position` counts from the first image token.
 * Returns its mask. */
static uint64_t *eagle_add_row(eagle_runner *r, int token, int position, int image, int branch, int slot, int feature)
{
    const int place = r->one.shape.prefix - r->image[image].begin[branch] + position;
    r->feature[r->pass.rows] = feature;
    return causal_pass_add_row(&r->pass, token, place, causal_sequence(r->images, image, branch), slot);
}

/* Adds the slots of the rows before the image tokens, up to number end - 1. Returns their number. */
static int eagle_add_prefix_slots(eagle_runner *r, int image, int branch, int end)
{
    const int begin = r->image[image].begin[branch], sequence = causal_sequence(r->images, image, branch);
    for (int i = begin; i < end; i++) causal_pass_add_slot(&r->pass, sequence, BEFORE + 1 + i);
    return end > begin ? end - begin : 0;
}

/* Adds rows first .. end - 1 before the image tokens, behind the target's position of the same number: of LlamaGen with
 * token 0, else with the prompt's next token. A row's position is that of its token. */
static void eagle_add_prefix(eagle_runner *r, int image, int branch, int first, int end)
{
    causal_pass *p = &r->pass;
    const int sequence = causal_sequence(r->images, image, branch), positions = r->one.shape.prefix;
    const int next = r->one.shape.prompt ? causal_runner_prefix_row(r->target, image, branch) + 1 : -1;
    if (first < r->image[image].begin[branch]) first = r->image[image].begin[branch];
    if (first >= end) return;
    causal_pass_add_span(p);
    const int common = eagle_add_prefix_slots(r, image, branch, first);
    causal_pass_set_common(p);
    for (int i = first; i < end; i++) causal_pass_add_slot(p, sequence, BEFORE + 1 + i);
    for (int i = first; i < end; i++) {
        const int feature = causal_runner_slot(r->target, image, branch, i - positions);
        uint64_t *mask =
            eagle_add_row(r, next < 0 ? 0 : next + i, i + 1 - positions, image, branch, BEFORE + 1 + i, feature);
        causal_mask_add(mask, 0, i - first + 1);
        p->attended += common + i - first + 1;
    }
}

/* Adds an image's next tokens in one branch. */
static void eagle_add_tokens(eagle_runner *r, int image, int branch)
{
    causal_pass *p = &r->pass;
    const eagle_image *im = &r->image[image];
    const causal_slots *s = &im->slots;
    const int sequence = causal_sequence(r->images, image, branch), end = im->known + im->tokens;
    if (im->tokens == 0) return;
    causal_pass_add_span(p);
    const int before = eagle_add_prefix_slots(r, image, branch, r->prefix);
    causal_pass_add_slots(p, sequence, s->slot, im->known);
    causal_pass_set_common(p);
    causal_pass_add_slots(p, sequence, s->slot + im->known, im->tokens);
    for (int i = im->known; i < end; i++) {
        const int feature = causal_runner_slot(r->target, image, branch, i - 1);
        uint64_t *mask = eagle_add_row(r, s->token[i], i, image, branch, s->slot[i], feature);
        causal_mask_add(mask, 0, i - im->known + 1);
        p->attended += before + i + 1;
    }
}

/* Returns the slot before the drafts without a parent. */
static int eagle_last_slot(const causal_slots *s)
{
    return s->known ? s->slot[s->known - 1] : BEFORE;
}

/* Returns the number of new drafts of an image's request at this depth. *end is one more than the last one's number. */
static int eagle_count_drafts(const eagle_image *im, int depth, int *end)
{
    const causal_request *q = &im->lines.request;
    int n = 0;
    *end = 0;
    for (int i = im->drafts; i < q->count; i++)
        if (causal_request_depth(q, i) == depth) n++, *end = i + 1;
    return n;
}

static void eagle_add_drafts(eagle_runner *r, int image, int branch, int depth)
{
    causal_pass *p = &r->pass;
    const eagle_image *im = &r->image[image];
    const causal_slots *s = &im->slots;
    const causal_request *q = &im->lines.request;
    const int sequence = causal_sequence(r->images, image, branch), own = sequence * s->count;
    int end;
    if (eagle_count_drafts(im, depth, &end) == 0) return;
    causal_pass_add_span(p);
    const int rows = eagle_add_prefix_slots(r, image, branch, r->prefix);
    causal_pass_add_slots(p, sequence, s->slot, s->known);
    causal_pass_set_common(p);
    causal_pass_add_slots(p, sequence, s->draft_slot, end);
    for (int i = im->drafts; i < end; i++) {
        if (causal_request_depth(q, i) != depth) continue;
        const int before = s->parent[i] < 0 ? eagle_last_slot(s) : s->draft_slot[s->parent[i]];
        uint64_t *mask =
            eagle_add_row(r, s->draft[i], s->known + depth - 1, image, branch, s->draft_slot[i], own + before);
        causal_mask_add_path(mask, 0, s->parent, i);
        p->attended += rows + s->known + depth;
    }
}

/* Adds the logit row of a site. It reads the feature in this slot. */
static void eagle_add_logit_row(eagle_runner *r, const causal_request *q, int branch, int site, int slot)
{
    causal_pass *p = &r->pass;
    if (branch == 0) {
        r->cfg[p->logit_rows] =
            causal_guidance(&r->sampling, r->image[q->sequence].cfg, q->length + causal_request_depth(q, site - 1));
        r->place[p->logit_rows] = q->row + site;
    }
    r->site[p->logit_rows++] =
        causal_sequence(r->images, q->sequence, branch) * r->image[q->sequence].slots.count + slot;
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

/* Argument of a recording's body. */
typedef struct {
    eagle_runner *r;
    const float *features; /* the target's for tokens, the drafter's own for drafts */
    float *log_probs;
} call;

static void eagle_compute_rows(const call *c)
{
    const eagle_runner *r = c->r;
    const causal_pass *p = &r->pass;
    kern_queue *k = r->k;
    const int d = r->one.shape.width;
    k->core->copy_rows(k, r->joined, r->place_of_token, p->table, p->embedding, NULL, NULL, p->rows, d);
    k->core->copy_rows(k, r->joined, r->place_of_feature, c->features, r->feature, NULL, NULL, p->rows, d);
    k->core->to_act(k, r->joined, (size_t)p->rows * 2 * (size_t)d, r->input);
    k->core->linear(k, r->model->fc, r->input, p->rows, p->x);
    kern_watch(k, p->x, MAR_DTYPE_F32, p->rows, d, d, "fc");
    causal_pass_layers(p);
    k->core->copy_rows(k, p->features, p->slot, p->x, NULL, NULL, NULL, p->rows, d);
}

static void eagle_compute_log_probs(const call *c)
{
    const eagle_runner *r = c->r;
    const causal_pass *p = &r->pass;
    kern_queue *k = r->k;
    const int d = r->one.shape.width, vocabulary = r->one.shape.vocabulary;
    k->core->copy_rows(k, p->kept, NULL, p->features, r->site, NULL, NULL, p->logit_rows, d);
    k->core->to_act(k, p->kept, (size_t)p->logit_rows * (size_t)d, p->normed);
    k->core->linear(k, r->one.output, p->normed, p->logit_rows, p->logits);
    kern_watch(k, p->logits, MAR_DTYPE_F32, p->logit_rows, vocabulary, vocabulary, "output");
    causal_pass_log_probs(p, &r->sampling, r->cfg, r->place, c->log_probs);
}

static void eagle_compute(void *arg)
{
    const call *c = arg;
    if (c->r->pass.rows > 0) eagle_compute_rows(c);
    if (c->r->pass.logit_rows > 0) eagle_compute_log_probs(c);
}

/* Returns the bytes that a pass must read besides its layer, the output layer, and keys and values: fc, and each row's
 * embedding and feature. An logit row whose row is not in this pass adds its feature. */
static double eagle_input_bytes(const eagle_runner *r)
{
    const causal_pass *p = &r->pass;
    const double d = r->one.shape.width, weights = p->rows ? 2 * d * d : 0;
    const double earlier = p->logit_rows > p->rows ? p->logit_rows - p->rows : 0;
    return (double)r->k->device->act_size * weights + sizeof(float) * (2 * p->rows + earlier) * d;
}

static void eagle_count_pass(eagle_runner *r)
{
    const double d = r->one.shape.width;
    r->stats.passes++;
    r->stats.rows += r->pass.rows;
    r->stats.flop += causal_pass_flop(&r->pass) + 4 * r->pass.rows * d * d;
    r->stats.bytes += causal_pass_bytes(&r->pass) + eagle_input_bytes(r);
}

/* Runs the listed pass. */
static void eagle_run(eagle_runner *r, int kind, float *log_probs)
{
    const causal_pass *p = &r->pass;
    call body = {r, kind == TOKENS ? causal_runner_features(r->target) : p->features, log_probs};
    const net_recording_shape shape = {
        .kind = kind, .rows = p->rows, .spans = p->spans, .logit_rows = p->logit_rows, .out = log_probs};
    if (p->rows == 0 && p->logit_rows == 0) return;
    net_recordings_run(r->k, &r->recordings, &shape, eagle_compute, &body);
    eagle_count_pass(r);
}

/* Computes the rows before the image tokens of images that start. */
static void eagle_compute_prefixes(eagle_runner *r, const causal_start *start, int n)
{
    const float *table = r->one.shape.prompt ? causal_runner_prefix_table(r->target) : r->one.token_emb;
    const call body = {r, causal_runner_features(r->target), NULL};
    r->k->watch.part = "draft: eagle.";
    for (int first = 0, end; first < r->prefix; first = end) {
        end = first + r->rows < r->prefix ? first + r->rows : r->prefix;
        causal_pass_begin(&r->pass, table, NULL);
        for (int c = 0; c < r->cfg_branches; c++)
            for (int i = 0; i < n; i++) eagle_add_prefix(r, start[i].image, c, first, end);
        if (r->pass.rows == 0) continue;
        eagle_compute_rows(&body);
        eagle_count_pass(r);
    }
}

/* Computes the missing tokens, as many at a time as fit. The last pass gives the distributions after the prefix, but
 * for prefixes with a line end as a draft. */
static void eagle_run_tokens(eagle_runner *r, const causal_request *request, int n, float *log_probs)
{
    causal_pass *p = &r->pass;
    for (int last = 0; !last;) {
        last = 1;
        for (int i = 0; i < n; i++) {
            eagle_image *im = &r->image[request[i].sequence];
            const int left = im->slots.known - im->known;
            im->tokens = left < r->rows ? left : r->rows;
            last &= im->tokens == left;
        }
        causal_pass_begin(p, r->one.token_emb, NULL);
        for (int c = 0; c < r->cfg_branches; c++)
            for (int i = 0; i < n; i++) {
                const eagle_image *im = &r->image[request[i].sequence];
                eagle_add_tokens(r, request[i].sequence, c);
                if (last && im->from == 0 && causal_lines_site(&im->lines, 0) < 0)
                    eagle_add_logit_row(r, &request[i], c, 0, eagle_last_slot(&im->slots));
            }
        eagle_run(r, TOKENS, log_probs);
        for (int i = 0; i < n; i++) r->image[request[i].sequence].known += r->image[request[i].sequence].tokens;
    }
}

/* Computes the new drafts of one level, and the distributions after them. Returns 0 if there are none. */
static int eagle_run_drafts(eagle_runner *r, const causal_request *request, int n, int depth, float *log_probs)
{
    causal_pass *p = &r->pass;
    int end;
    causal_pass_begin(p, r->one.token_emb, NULL);
    for (int c = 0; c < r->cfg_branches; c++)
        for (int i = 0; i < n; i++) {
            const causal_request *q = &request[i];
            const eagle_image *im = &r->image[q->sequence];
            if (eagle_count_drafts(im, depth, &end) == 0) continue;
            eagle_add_drafts(r, q->sequence, c, depth);
            for (int site = im->from; site <= q->count; site++) {
                const int j = causal_lines_site(&im->lines, site);
                if (causal_request_depth(&im->lines.request, j) == depth)
                    eagle_add_logit_row(r, q, c, site, im->slots.draft_slot[j]);
            }
        }
    eagle_run(r, DRAFTS, log_probs);
    return p->rows > 0;
}

/* --- a call ------------------------------------------------------------------------------------------------------- */

/* Gives the request's tokens and drafts slots, and finds which of them are computed already. */
static mar_status eagle_prepare_request(eagle_runner *r, const causal_request *asked, mar_err *err)
{
    eagle_image *im = &r->image[asked->sequence];
    causal_slots *s = &im->slots;
    const causal_request *q = &im->lines.request;
    causal_lines_expand(&im->lines, &r->one.shape, asked);
    im->from = causal_slots_continues(s, q) ? asked->from : 0;
    im->drafts = im->from ? q->from - 1 : 0;
    causal_slots_drop_drafts(s, im->drafts);
    if (im->from == 0) {
        causal_runner_follow(r->target, q->sequence, q->prefix, q->length);
        if (q->length > 1 && causal_runner_slot(r->target, q->sequence, 0, q->length - 2) < 0)
            return err_set(err, MAR_EARG, "the model has not computed token %d of image %d, which its drafter follows",
                           q->length - 2, q->sequence);
        causal_slots_follow(s, q->prefix, q->length);
    }
    im->known = s->known;
    causal_slots_add(s, q);
    return MAR_OK;
}

mar_status eagle_runner_log_probs(void *runner, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    eagle_runner *r = runner;
    int deepest = 0;
    mar_status status = kern_check(r->k, err);
    for (int i = 0; status == MAR_OK && i < n; i++)
        status = causal_request_check(&r->one.shape, r->images, r->drafts, &request[i], err);
    for (int i = 0; status == MAR_OK && i < n; i++) status = eagle_prepare_request(r, &request[i], err);
    if (status != MAR_OK) return status;
    for (int i = 0; i < n; i++) {
        const eagle_image *im = &r->image[request[i].sequence];
        for (int j = im->drafts; j < im->lines.request.count; j++) {
            const int depth = causal_request_depth(&im->lines.request, j);
            if (depth > deepest) deepest = depth;
        }
    }
    r->k->watch.part = "draft: eagle.";
    eagle_run_tokens(r, request, n, log_probs);
    for (int depth = 1; depth <= deepest; depth++) eagle_run_drafts(r, request, n, depth, log_probs);
    return kern_check(r->k, err);
}

void eagle_runner_admit(eagle_runner *r, const causal_start *start, int n)
{
    const causal_pass *p = &r->pass;
    int rows = 0;
    for (int i = 0; i < n; i++) {
        eagle_image *im = &r->image[start[i].image];
        causal_slots_begin(&im->slots);
        im->cfg = start[i].cfg;
        for (int c = 0; c < r->cfg_branches; c++) im->begin[c] = causal_runner_begin_of(r->target, start[i].image, c);
    }
    for (int c = 0; c < r->cfg_branches; c++)
        for (int i = 0; i < n; i++, rows++) {
            r->feature[rows] = causal_runner_slot(r->target, start[i].image, c, -1);
            p->slot[rows] = causal_sequence(r->images, start[i].image, c) * p->slots + BEFORE;
        }
    r->k->core->copy_rows(r->k, p->features, p->slot, causal_runner_features(r->target), r->feature, NULL, NULL, rows,
                          r->one.shape.width);
    eagle_compute_prefixes(r, start, n);
}

void eagle_runner_clear_stats(eagle_runner *r)
{
    r->stats = (causal_runner_stats){0};
}

void eagle_runner_begin(eagle_runner *r, int images)
{
    for (int i = 0; i < images; i++) r->start[i] = (causal_start){.image = i, .cfg = r->sampling.cfg};
    eagle_runner_clear_stats(r);
    eagle_runner_admit(r, r->start, images);
}

const causal_runner_stats *eagle_runner_get_stats(const eagle_runner *r)
{
    return &r->stats;
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

static mar_status eagle_create_lists(eagle_runner *r, mar_err *err)
{
    const causal_shape *c = &r->one.shape;
    const size_t logit_rows = (size_t)r->images * (size_t)r->rows, rows = (size_t)r->cfg_branches * logit_rows;
    mar_status status = MAR_OK;
    r->image = calloc((size_t)r->images, sizeof *r->image);
    r->feature = calloc(rows, sizeof *r->feature);
    r->place_of_token = calloc(rows, sizeof *r->place_of_token);
    r->place_of_feature = calloc(rows, sizeof *r->place_of_feature);
    r->site = calloc(rows, sizeof *r->site);
    r->cfg = calloc(logit_rows, sizeof *r->cfg);
    r->place = calloc(logit_rows, sizeof *r->place);
    r->start = calloc((size_t)r->images, sizeof *r->start);
    if (!r->image || !r->feature || !r->place_of_token || !r->place_of_feature || !r->site || !r->cfg || !r->place ||
        !r->start)
        return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", r->images);
    for (size_t i = 0; i < rows; i++) {
        r->place_of_token[i] = 2 * (int)i;
        r->place_of_feature[i] = 2 * (int)i + 1;
    }
    for (int i = 0; status == MAR_OK && i < r->images; i++)
        status = causal_slots_create(BEFORE + 1 + r->prefix, causal_positions(c), causal_lines_drafts(c, r->drafts + 1),
                                     &r->image[i].slots, err);
    for (int i = 0; status == MAR_OK && i < r->images; i++) {
        status = causal_lines_create(c, r->drafts, &r->image[i].lines, err);
        r->image[i].lines.last_is_draft = 1;
    }
    return status;
}

mar_status eagle_runner_create(kern_queue *k, const eagle_model *model, const causal_model *gpt, causal_runner *target,
                               const causal_sampling *sampling, int images, int drafts, eagle_runner **out,
                               mar_err *err)
{
    *out = NULL;
    mar_status status = eagle_config_fits(&model->config, &gpt->shape, err);
    if (status != MAR_OK) return status;
    eagle_runner *r = calloc(1, sizeof *r);
    if (!r) return err_set(err, MAR_ENOMEM, "out of memory");
    *r = (eagle_runner){.k = k,
                        .model = model,
                        .target = target,
                        .sampling = *sampling,
                        .one = *gpt,
                        .layer = model->layer,
                        .images = images,
                        .cfg_branches = causal_cfg_branches(sampling),
                        .drafts = drafts,
                        .rows = causal_lines_drafts(&gpt->shape, drafts + 1)};
    r->one.layers = &r->layer;
    r->one.shape.depth = 1;
    r->one.shape.hidden = model->config.hidden;
    r->one.shape.kv_heads = gpt->shape.heads;
    if (model->config.published) r->prefix = gpt->shape.prefix - 1;
    if (model->config.published && !gpt->shape.prompt) r->one.shape.eps = 1e-6f;
    if (model->token_emb) r->one.token_emb = model->token_emb;
    status = eagle_create_lists(r, err);
    if (status == MAR_OK)
        status = causal_pass_create(k, &r->one, images * r->cfg_branches, r->image[0].slots.count, r->rows, r->rows, 1,
                                    &r->pass, err);
    if (status == MAR_OK)
        *out = r;
    else
        eagle_runner_free(r);
    return status;
}

void eagle_runner_free(eagle_runner *r)
{
    if (!r) return;
    net_recordings_free(r->k, &r->recordings);
    for (int i = 0; r->image && i < r->images; i++) {
        causal_slots_free(&r->image[i].slots);
        causal_lines_free(&r->image[i].lines);
    }
    causal_pass_free(&r->pass);
    free(r->image);
    int *lists[] = {r->feature, r->place_of_token, r->place_of_feature, r->site, r->place};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
    free(r->cfg);
    free(r->start);
    free(r);
}

void eagle_runner_set_cache(eagle_runner *r, kern_cache_type type)
{
    r->pass.cache_type = type;
}

size_t eagle_runner_lay_out(eagle_runner *r, char *base)
{
    const size_t n = (size_t)r->pass.rows_max * 2 * (size_t)r->one.shape.width;
    size_t used = 0;
    if (base) net_recordings_free(r->k, &r->recordings); /* they hold addresses */
    r->joined = arena_carve(base, &used, n, sizeof(float));
    r->input = arena_carve(base, &used, n, r->k->device->act_size);
    used += causal_pass_lay_out(&r->pass, base ? base + used : NULL);
    return used;
}

static mar_status eagle_plan_rows(const eagle_runner *r, int rows, mar_err *err)
{
    const mar_status status = r->k->core->linear_plan(r->k, r->model->fc, rows, err);
    return status == MAR_OK ? causal_pass_plan(&r->pass, rows, rows, err) : status;
}

mar_status eagle_runner_plan(eagle_runner *r, int images, mar_err *err)
{
    mar_status status = MAR_OK;
    net_recordings_free(r->k, &r->recordings);
    for (int n = 1; status == MAR_OK && n <= images * r->rows; n++)
        status = eagle_plan_rows(r, r->cfg_branches * n, err);
    return status;
}
