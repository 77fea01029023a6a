#include "tests/support/discrete_law.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/weights.h"
#include "mar/api/session.h"
#include "tests/support/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ_MOST = 64, SIZE_MOST = 256, BATCH_MOST = 64 };

static law_mutant mutant;
static const kern_discrete_ops *real; /* of the session's queue */

const char *law_mutant_name(law_mutant m)
{
    static const char *const names[] = {
        [LAW_UNCHANGED] = "as it is",
        [LAW_UNGUIDED_DRAFT] = "the draft without guidance (a control)",
        [LAW_SWAPPED] = "p and q swapped",
        [LAW_NO_RESIDUAL] = "replacements from p",
        [LAW_UNFILTERED_Q] = "q before top-k",
        [LAW_STALE_Q] = "q of the round before",
        [LAW_SIBLINGS_Q] = "q of siblings not normalised",
        [LAW_POINT_AS_LAW] = "a point's q from the draft's law",
        [LAW_KEPT_SLOT] = "keys of rejected drafts kept",
    };
    return names[m];
}

/* --- mutants in the arithmetic ------------------------------------------------------------------------------------ */

static double mutant_accept(double mass, double q)
{
    return mutant == LAW_SWAPPED ? kern_draft_accept(q, mass) : kern_draft_accept(mass, q);
}

static double mutant_weight(double p, double q, double omega)
{
    return mutant == LAW_NO_RESIDUAL ? p : kern_residual_weight(p, q, omega);
}

static double mutant_total(const float *w, int size)
{
    return mutant == LAW_SIBLINGS_Q ? 1 : weights_total(w, size);
}

static double mutant_residual(const float *p, const float *q, int n, double omega, double scale, float *y)
{
    double sum = 0;
    for (int x = 0; x < n; x++) {
        const double w = mutant_weight((double)p[x], (double)q[x], omega) * scale;
        sum += w;
        if (y) y[x] = (float)w;
    }
    return sum;
}

#define kern_draft_accept(mass, q)    mutant_accept(mass, q)
#define kern_residual_weight(p, q, o) mutant_weight(p, q, o)
#define weights_total(w, size)        mutant_total(w, size)
#define cpu_discrete_ops              law_mutant_ops
#include "kernels/cpu/discrete.c"
#undef kern_draft_accept
#undef kern_residual_weight
#undef weights_total
#undef cpu_discrete_ops

/* --- mutants in verification ---------------------------------------------------------------------------------- */

/* Distributions kept beside those of the session. */
static struct {
    const float *of; /* the session's array; `rows` has a row for each of its rows */
    float *rows;
    size_t count; /* capacity in rows */
} beside[2];

static float *others_of(const float *log_probs, size_t rows, int size)
{
    int i = 0;
    while (i < 1 && beside[i].of && beside[i].of != log_probs) i++;
    if (beside[i].count < rows) {
        beside[i].rows = realloc(beside[i].rows, rows * (size_t)size * sizeof(float));
        assert_non_null(beside[i].rows);
        beside[i].count = rows;
    }
    beside[i].of = log_probs;
    return beside[i].rows;
}

static void spied_laws(kern_queue *k, const kern_probs_job *job)
{
    int last = 0;
    real->probs(k, job);
    if (mutant != LAW_UNFILTERED_Q) return;
    kern_probs_job unfiltered = *job;
    for (int r = 0; r < job->rows; r++) last = job->place[r] > last ? job->place[r] : last;
    unfiltered.top_k = 0, unfiltered.top_p = 1;
    unfiltered.log_probs = others_of(job->log_probs, (size_t)last + 4096, job->size);
    real->probs(k, &unfiltered);
}

/* The previous round's draft distribution of each image and position. */
static float *stale;
static uint8_t *has_stale;

static void verify_stale(kern_queue *k, kern_block_job *job, uint64_t first_image)
{
    const size_t size = (size_t)job->size, sites = (size_t)(job->node[job->blocks] + job->blocks);
    float *q = malloc((sites + 1) * size * sizeof *q);
    int *row = malloc((sites + 1) * sizeof *row);
    assert_true(q && row);
    for (int b = 0; b < job->blocks; b++)
        for (int n = 0, at = job->node[b] + b; n <= job->node[b + 1] - job->node[b]; n++, at++) {
            const size_t image = (size_t)(job->address[b].image - first_image);
            const size_t place = image * 2 * SEQ_MOST + (size_t)job->address[b].position + (size_t)n;
            float *old = stale + place * size;
            row[at] = job->q[at] < 0 ? -1 : at;
            if (job->q[at] < 0) continue;
            const float *now = job->log_q + (size_t)job->q[at] * size;
            memcpy(q + (size_t)at * size, has_stale[place] ? old : now, size * sizeof *q);
            memcpy(old, now, size * sizeof *q);
            has_stale[place] = 1;
        }
    job->log_q = q, job->q = row;
    law_mutant_ops.verify(k, job);
    free(q), free(row);
}

/* Verifies chains with the rows of the draft model's distributions: consecutive rows of each sequence. */
static void verify_points(kern_queue *k, kern_block_job *job, uint64_t first_image, int length)
{
    const int sites = job->node[job->blocks] + job->blocks;
    int *row = malloc((size_t)sites * sizeof *row);
    assert_non_null(row);
    for (int b = 0; b < job->blocks; b++)
        for (int n = 0, at = job->node[b] + b; n <= job->node[b + 1] - job->node[b]; n++, at++)
            row[at] =
                n < job->node[b + 1] - job->node[b] ? (int)(job->address[b].image - first_image) * length + n : -1;
    job->q = row;
    law_mutant_ops.verify(k, job);
    free(row);
}

static uint64_t batch_first;
static int batch_length;

/* Draft distributions of the final tokens, by image and position. They are the site's distribution, or the drafts
 * themselves where these were chosen. has 0: no drafts. */
static struct {
    float *q; /* [BATCH_MOST][SEQ_MOST][SIZE_MOST] */
    uint8_t has[BATCH_MOST * SEQ_MOST];
} origin;

static int drafts_behind(const kern_block_job *job, int block, int of_site, float *q)
{
    int found = 0;
    for (int n = job->node[block]; n < job->node[block + 1]; n++) {
        if (job->parent[n] != of_site - 1) continue;
        if (q) q[job->draft[n]] = 1;
        found = 1;
    }
    return found;
}

static void remember_q(const kern_block_job *job, int b)
{
    const size_t size = (size_t)job->size;
    for (int d = 0; d < job->count[b * KERN_BLOCK_COUNTS + KERN_BLOCK_FINAL]; d++) {
        const int of_site = job->site[b * job->positions + d], row = job->q[job->node[b] + b + of_site];
        const size_t place =
            (size_t)(job->address[b].image - batch_first) * SEQ_MOST + job->address[b].position + (size_t)d;
        float *q = origin.q + place * SIZE_MOST;
        origin.has[place] = drafts_behind(job, b, of_site, NULL) > 0;
        if (!origin.has[place]) continue;
        if (row >= 0) {
            for (size_t x = 0; x < size; x++) q[x] = expf(job->log_q[(size_t)row * size + x]);
        } else {
            memset(q, 0, size * sizeof *q);
            drafts_behind(job, b, of_site, q);
        }
    }
}

static void spied_verify(kern_queue *k, const kern_block_job *given)
{
    kern_block_job job = *given;
    const kern_discrete_ops *ops = mutant <= LAW_UNGUIDED_DRAFT ? real : &law_mutant_ops;
    if (mutant == LAW_STALE_Q) {
        verify_stale(k, &job, batch_first);
    } else if (mutant == LAW_POINT_AS_LAW) {
        verify_points(k, &job, batch_first, batch_length);
    } else {
        for (int i = 0; mutant == LAW_UNFILTERED_Q && i < 2; i++)
            if (beside[i].of == given->log_q) job.log_q = beside[i].rows;
        ops->verify(k, &job);
    }
    for (int b = 0; b < job.blocks; b++) remember_q(given, b);
}

static void spied_draw(kern_queue *k, const kern_draw_job *job)
{
    real->draw(k, job);
}

static void spied_top(kern_queue *k, const float *log_probs, const int *source, int rows, int size, int count, int *id,
                      float *log_p)
{
    real->top(k, log_probs, source, rows, size, count, id, log_p);
}

static const kern_discrete_ops spied_ops = {spied_laws, spied_draw, spied_verify, spied_top};

/* --- mutants in the engine ---------------------------------------------------------------------------------------- */

/* An image's tokens as the target sees them: rejected drafts stand in place of their replacements. */
static struct {
    int draft[SEQ_MOST], drafts, length; /* of the last request, a chain */
    int kept[SEQ_MOST];                  /* the rejected draft at a position, or -1 */
    int token[SEQ_MOST];
} believed[BATCH_MOST];

static mar_status kept_slot_laws(causal_runner *r, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    causal_request changed[BATCH_MOST];
    assert_true(n <= BATCH_MOST);
    for (int i = 0; i < n; i++) {
        const causal_request *q = &request[i];
        const int s = q->sequence, before = q->length ? believed[s].length : 0;
        changed[i] = *q;
        for (int at = before; at < q->length; at++) {
            const int had = at - before < believed[s].drafts;
            believed[s].kept[at] =
                had && believed[s].draft[at - before] != q->prefix[at] ? believed[s].draft[at - before] : -1;
        }
        for (int at = 0; at < q->length; at++)
            believed[s].token[at] =
                at + 1 < q->length && believed[s].kept[at] >= 0 ? believed[s].kept[at] : q->prefix[at];
        changed[i].prefix = believed[s].token;
        believed[s].length = q->length;
        believed[s].drafts = q->count;
        memcpy(believed[s].draft, q->draft, (size_t)q->count * sizeof *q->draft);
    }
    return causal_runner_log_probs(r, changed, n, log_probs, err);
}

static mar_status mutant_target(causal_runner *r, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    return mutant == LAW_KEPT_SLOT ? kept_slot_laws(r, request, n, log_probs, err)
                                   : causal_runner_log_probs(r, request, n, log_probs, err);
}

static mar_status mutant_drafter(kern_queue *k, const mar_model *draft, const mar_raster_model *model,
                                 causal_runner *target, const causal_sampling *sampling, int images, int drafts,
                                 raster_drafter *out, mar_err *err)
{
    causal_sampling unguided = *sampling;
    if (mutant == LAW_UNGUIDED_DRAFT) unguided.cfg = 1;
    return raster_drafter_create(k, draft, model, target, &unguided, images, drafts, out, err);
}

#define causal_runner_log_probs mutant_target
#define raster_drafter_create   mutant_drafter
#define raster_softmax_head     law_mutant_head
#include "mar/raster_softmax.c"
#undef causal_runner_log_probs
#undef raster_drafter_create
#undef raster_softmax_head

static mar_status create_mutant(mar_model *model, const mar_vae *vae, kern_queue *k, const mar_params *params,
                                const mar_accel *const *accels, int max_images, mar_engine_state **out, mar_err *err)
{
    return mar_raster_create(&law_mutant_head, model, vae, k, params, accels, max_images, out, err);
}

/* --- sessions ----------------------------------------------------------------------------------------------------- */

static struct {
    mar_model *model[2];
    const mar_engine *engine[2];
    mar_engine mutants[2]; /* theirs, with the mutants' create */
    cpu_device *device;
    const kern_rows *rows;
    kern_rows changed;
} installed;

/* Gives the model the engine compiled with the mutants, unless it has an EAGLE drafter. */
static void change_engine(mar_model *m, int i)
{
    installed.model[i] = m;
    if (!m) return;
    installed.engine[i] = m->engine;
    if (raster_eagle_of(m)) return;
    installed.mutants[i] = *m->engine;
    installed.mutants[i].create = create_mutant;
    m->engine = &installed.mutants[i];
}

mar_session *law_session(mar_model *model, const mar_params *p, int batch, law_mutant m)
{
    mar_session *s;
    mutant = m;
    batch_length = p->gamma;
    assert_true(batch <= BATCH_MOST && model->config.seq_len <= SEQ_MOST && model->config.vocabulary <= SIZE_MOST);
    if (m != LAW_UNCHANGED) change_engine(model, 0), change_engine((mar_model *)(uintptr_t)p->draft, 1);
    if (mar_session_create(model, NULL, p, batch, &s) != MAR_OK) fail_msg("%s", mar_error(model->m));
    kern_queue *k = mar_session_queue(s);
    installed.device = (cpu_device *)(void *)k->device;
    installed.rows = installed.device->rows;
    installed.changed = *installed.rows;
    if (m == LAW_NO_RESIDUAL) {
        installed.changed.residual = mutant_residual;
        installed.device->rows = &installed.changed;
    }
    real = k->discrete;
    k->discrete = &spied_ops;
    origin.q = malloc(sizeof(float) * BATCH_MOST * SEQ_MOST * SIZE_MOST);
    assert_non_null(origin.q);
    const size_t places = (size_t)BATCH_MOST * 2 * SEQ_MOST;
    if (m == LAW_STALE_Q) {
        stale = malloc(places * SIZE_MOST * sizeof *stale), has_stale = malloc(places);
        assert_true(stale && has_stale);
    }
    return s;
}

void law_close_session(mar_session *s)
{
    mar_session_free(s);
    installed.device->rows = installed.rows;
    for (int i = 0; i < 2; i++) {
        if (installed.model[i]) installed.model[i]->engine = installed.engine[i];
        free(beside[i].rows);
    }
    free(stale), free(has_stale), free(origin.q);
    stale = NULL, has_stale = NULL;
    memset(beside, 0, sizeof beside);
    memset(&installed, 0, sizeof installed);
    mutant = LAW_UNCHANGED;
}

void law_generate(mar_session *s, uint64_t first_image, const int *label, int images, float *tokens)
{
    batch_first = first_image;
    if (has_stale) memset(has_stale, 0, (size_t)BATCH_MOST * 2 * SEQ_MOST);
    memset(origin.has, 0, sizeof origin.has);
    memset(believed, 0, sizeof believed);
    assert_session(s, mar_session_begin(s, first_image, label, images));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
}

/* --- the distributions of finished images ------------------------------------------------------------------------- */

/* log_probs host [images][seq_len][size]: the distribution of each token given those before it. */
static void laws_of_images(const mar_model *model, const mar_params *p, const int *label, int images,
                           const float *tokens, float *log_probs)
{
    const int n = model->config.seq_len, size = model->config.vocabulary;
    const size_t laws = (size_t)images * (size_t)n * (size_t)size * sizeof *log_probs;
    const causal_sampling sampling = {p->cfg, p->cfg_interval, p->temperature, p->top_k, p->top_p};
    kern_queue *k = queue_of(model->m);
    causal_runner *r;
    mar_err err = {0};
    causal_request request[BATCH_MOST];
    static int token[BATCH_MOST][SEQ_MOST], parent[SEQ_MOST];
    assert_true(images <= BATCH_MOST);
    assert_ok(causal_runner_create(k, mar_raster_model_of(model)->net, &sampling, images, n - 1, 0, &r, &err), &err);
    void *memory = backend_memory(k, causal_runner_lay_out(r, NULL)), *rows = backend_memory(k, laws);
    causal_runner_lay_out(r, memory);
    assert_ok(causal_runner_plan(r, images, &err), &err);
    causal_runner_begin(r, images, label);
    for (int t = 0; t < n; t++) parent[t] = t - 1;
    for (int i = 0; i < images; i++) {
        for (int t = 0; t < n; t++) token[i][t] = (int)tokens[i * n + t];
        request[i] = (causal_request){
            .sequence = i, .prefix = token[i], .draft = token[i], .parent = parent, .count = n - 1, .row = i * n};
    }
    assert_ok(causal_runner_log_probs(r, request, images, rows, &err), &err);
    k->core->download(k, log_probs, rows, laws);
    k->core->finish(k);
    causal_runner_free(r);
    k->core->free(k->device, memory), k->core->free(k->device, rows);
    free_queue(k);
}

static void add_to(double sum[2], const double *p, const double *g, int size, int token)
{
    double mean = 0, square = 0;
    for (int x = 0; x < size; x++) mean += p[x] * g[x], square += p[x] * g[x] * g[x];
    sum[0] += g[token] - mean;
    sum[1] += square - mean * mean;
}

/* Adds a token to the sums. q is NULL if its place had no draft. */
static void add_token(law_sums *sums, const float *log_p, const float *q, int size, int token, int before)
{
    double p[SIZE_MOST] = {0}, g[SIZE_MOST] = {0}, below = 0;
    uint32_t words[4];
    if (!(log_p[token] > -INFINITY)) sums->impossible++;
    for (int x = 0; x < size; x++) p[x] = exp((double)log_p[x]);
    for (int x = 0; x < size; x++) g[x] = p[x] > 0 ? (double)log_p[x] : 0;
    add_to(sums->likely, p, g, size, token);
    for (int x = 0; q && x < size; x++) g[x] = p[x] + (double)q[x] > 0 ? (double)q[x] / (p[x] + (double)q[x]) : 0;
    if (q) add_to(sums->favoured, p, g, size, token), sums->drafted++;
    for (int x = 0; x < size; x++) g[x] = x == before;
    add_to(sums->repeated, p, g, size, token);
    for (int x = 0; x < token; x++) below += p[x];
    kern_random_words(77, KERN_NOISE_STEP, (uint64_t)sums->tokens++, 0, 0, 0, words);
    const double u = below + p[token] * ((words[0] + 0.5) / 4294967296.0);
    sums->uniform[u < 1 ? (int)(16 * u) : 15]++;
}

void law_add(const mar_model *model, const mar_params *p, const int *label, int images, const float *tokens,
             law_sums *sums)
{
    const int n = model->config.seq_len, size = model->config.vocabulary;
    float *log_p = malloc((size_t)images * (size_t)n * (size_t)size * sizeof *log_p);
    assert_non_null(log_p);
    laws_of_images(model, p, label, images, tokens, log_p);
    for (int i = 0; i < images; i++)
        for (int t = 0; t < n; t++) {
            const size_t at = (size_t)i * (size_t)n + (size_t)t, place = (size_t)i * SEQ_MOST + (size_t)t;
            add_token(sums, log_p + at * (size_t)size, origin.has[place] ? origin.q + place * SIZE_MOST : NULL, size,
                      (int)tokens[at], t ? (int)tokens[at - 1] : -1);
        }
    free(log_p);
}

static double p_of_sum(const double sum[2])
{
    const double z = sum[0] / sqrt(sum[1]);
    return sum[1] > 0 ? erfc(fabs(z) / sqrt(2)) : 1;
}

law_test law_judge(const law_sums *s)
{
    double sixteenth[16];
    for (int i = 0; i < 16; i++) sixteenth[i] = 1.0 / 16;
    law_test t = {p_of_sum(s->likely),
                  p_of_sum(s->favoured),
                  p_of_sum(s->repeated),
                  stat_chi2_p(s->uniform, sixteenth, 16),
                  0,
                  0};
    if (s->drafted) t.shift = 4.21 * sqrt(s->favoured[1]) / (double)s->drafted; /* 4.21: two-sided p of 1e-4 / 4 */
    t.worst = fmin(1, 4 * fmin(fmin(t.likely, t.favoured), fmin(t.repeated, t.uniform)));
    if (s->impossible) t.worst = 0;
    return t;
}
