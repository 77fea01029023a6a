#include "tests/support/path_spy.h"

#include "diffusion/paths.h"
#include "kernels/path.h"
#include "specdec/path.h"
#include "tests/support/masked.h"
#include "tests/support/statistics.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *spy_mutant_name(int mutant)
{
    if (mutant == SPY_ACCEPTS_ALL) return "drafts' Q taken from the pass that verifies them";
    if (mutant == SPY_KEEPS_BEHIND) return "a step kept behind a replacement";
    return path_mutant_names[mutant];
}

static void *grown(void *p, size_t n, size_t size)
{
    p = realloc(p, (n ? n : 1) * size);
    if (!p) fail_msg("out of memory");
    return p;
}

/* --- a session ---------------------------------------------------------------------------------------------------- */

static size_t row_floats(const path_spy *spy)
{
    return (size_t)spy->stride + (size_t)spy->steps * (size_t)spy->channels;
}

/* Stores a job's paths and the other distribution's means: P's, or Q's if the paths are candidates. A draft's record
 * has its means under Q. */
static void remember(path_spy *spy, const kern_path_job *job)
{
    spy->steps = job->steps, spy->channels = job->channels, spy->stride = job->stride;
    const size_t floats = row_floats(spy);
    if (spy->rows + job->paths > spy->room) {
        spy->room = 2 * (spy->rows + job->paths);
        spy->judged = grown(spy->judged, (size_t)spy->room * floats, sizeof *spy->judged);
    }
    for (int r = 0; r < job->paths; r++) {
        float *row = spy->judged + (size_t)spy->rows++ * floats, *mean = row + job->stride;
        memcpy(row, kern_path_record(job, r, 0), (size_t)job->stride * sizeof *row);
        for (int i = 0; i < job->steps; i++)
            for (int c = 0; c < job->channels; c++) mean[i * job->channels + c] = kern_path_mean(job, r, i, c);
    }
}

static void spied_ratio(kern_queue *k, const kern_path_job *job)
{
    path_spy *spy = (path_spy *)k->head;
    remember(spy, job);
    k->head = spy->inner;
    k->head->path_ratio(k, job);
    k->head = &spy->ops;
    for (int r = 0; spy->mutant == SPY_ACCEPTS_ALL && r < job->paths; r++) job->log_ratio[r] = 0;
}

/* Stores row r of a verdict as kept. */
static void keep(path_spy *spy, const kern_path_verdict *job, int r)
{
    const size_t floats = row_floats(spy), image = (size_t)(job->image[r] % SPEC_PATH_IMAGES - spy->first_image);
    const size_t place = image * (size_t)spy->seq_len + (size_t)job->position[r];
    float *to = spy->kept + place * floats;
    memcpy(to, spy->judged + (size_t)r * floats, floats * sizeof *to);
    spy->has[place] = job->candidates ? 2 : 1;
}

/* Returns the tokens of a group's step that a verdict rejects. */
static int rejected_in(const kern_path_verdict *job, int group, int step)
{
    int n = 0;
    for (int r = 0; r < job->rows; r++) n += job->group[r] == group && job->order[r] == step && job->marked[r];
    return n;
}

/* Lets rounds end one step later where the session has room to replace the rejected tokens of that step, too. */
static void keep_behind(const path_spy *spy, const kern_path_verdict *job)
{
    int left = spy->most_replaced;
    for (int g = 0; g < job->groups; g++) left -= rejected_in(job, g, job->first[g]);
    for (int g = 0; g < job->groups; g++) {
        if (job->first[g] == INT32_MAX) continue;
        const int behind = rejected_in(job, g, job->first[g] + 1);
        if (behind <= left) job->first[g]++, left -= behind;
    }
}

static void spied_decide(kern_queue *k, const kern_path_verdict *job)
{
    path_spy *spy = (path_spy *)k->head;
    k->head = spy->inner;
    k->head->path_decide(k, job);
    k->head = &spy->ops;
    if (spy->rows != job->rows) fail_msg("%d rows were judged and %d decided", spy->rows, job->rows);
    if (!spy->kept)
        spy->kept = grown(NULL, (size_t)spy->images * (size_t)spy->seq_len * row_floats(spy), sizeof *spy->kept);
    for (int r = 0; r < job->rows; r++)
        if (job->candidates ? job->marked[r] && job->order[r] == job->first[job->group[r]] : !job->marked[r])
            keep(spy, job, r);
    spy->rows = 0;
    if (spy->mutant == SPY_KEEPS_BEHIND && !job->candidates) keep_behind(spy, job);
}

void spy_begin(path_spy *spy, mar_session *s, uint64_t first_image, int images, int mutant)
{
    const mar_masked *g = mar_masked_of(s);
    spy_begin_on(spy, g->k, g->model->base.config.seq_len, g->max_images * g->max_tokens, first_image, images, mutant);
}

void spy_begin_on(path_spy *spy, kern_queue *k, int seq_len, int most_replaced, uint64_t first_image, int images,
                  int mutant)
{
    const int inner = mutant < SPY_PATH_MUTANTS ? mutant : PATH_UNCHANGED;
    *spy = (path_spy){.k = k,
                      .real = k->head,
                      .mutant = mutant,
                      .first_image = first_image,
                      .images = images,
                      .seq_len = seq_len,
                      .most_replaced = most_replaced};
    spy->has = calloc((size_t)images * (size_t)spy->seq_len, 1);
    if (!spy->has) fail_msg("out of memory");
    path_mutant_begin(&spy->mutation, k, inner, -1);
    spy->inner = k->head;
    spy->ops = *spy->inner;
    spy->ops.path_ratio = spied_ratio;
    spy->ops.path_decide = spied_decide;
    k->head = &spy->ops;
}

void spy_end(path_spy *spy)
{
    spy->k->head = spy->real;
    free(spy->judged), free(spy->kept), free(spy->has);
}

/* --- the distribution of the kept paths --------------------------------------------------------------------------- */

/* Replaces a queue's path_ratio and records innovations. */
typedef struct {
    kern_head_ops ops;
    const kern_head_ops *real;
    const path_spy *spy;
    const size_t *place; /* indices in spy->kept of the job's rows */
    innovations *out;
} whitener;

static float *entry(const innovations *v, float *array, int index, size_t token)
{
    return array + ((size_t)index * v->room + token) * (size_t)v->channels;
}

static void whiten(whitener *w, const kern_path_job *job, int r)
{
    innovations *v = w->out;
    const float *kept = w->spy->kept + *w->place * row_floats(w->spy), *mean_q = kept + job->stride;
    const int channels = job->channels, drafted = w->spy->has[*w->place] == 1;
    const size_t token = v->tokens++;
    memcpy(entry(v, v->u, job->steps, token), kern_path_record(job, r, job->steps - 1),
           sizeof(float) * (size_t)channels);
    for (int i = job->steps - 1; i > 0; i--)
        for (int c = 0; c < channels; c++) {
            const kern_chain_coef *coef = &job->coef[i];
            const float *record = kern_path_record(job, r, i), *out = kern_path_output(job, 0, r, i);
            const double std = exp((double)kern_chain_log_std(coef, kern_chain_fraction(out[channels + c])) +
                                   (double)job->log_temperature);
            const double mean = kern_path_mean(job, r, i, c), after = kern_path_record(job, r, i - 1)[c];
            const double q = drafted ? kern_chain_mean_of(coef, record[c], record[KERN_EVALUATED_X0 * channels + c])
                                     : mean_q[i * channels + c];
            entry(v, v->u, i, token)[c] = (float)((after - mean) / std);
            entry(v, v->gap, i, token)[c] = (float)((q - mean) / std);
        }
    w->place++;
}

static void whitened_ratio(kern_queue *k, const kern_path_job *job)
{
    whitener *w = (whitener *)k->head;
    w->real->path_ratio(k, job);
    for (int r = 0; r < job->paths; r++) whiten(w, job, r);
}

static void make_room(innovations *v, const path_spy *spy, size_t more)
{
    if (v->tokens + more <= v->room) return;
    const innovations old = *v;
    v->steps = spy->steps, v->channels = spy->channels, v->room = 2 * (v->tokens + more);
    const size_t count = ((size_t)v->steps + 1) * v->room * (size_t)v->channels;
    v->u = grown(NULL, count, sizeof(float)), v->gap = grown(NULL, count, sizeof(float));
    for (int i = 0; old.room && i <= v->steps; i++) {
        memcpy(entry(v, v->u, i, 0), entry(&old, old.u, i, 0), sizeof(float) * old.tokens * (size_t)v->channels);
        memcpy(entry(v, v->gap, i, 0), entry(&old, old.gap, i, 0), sizeof(float) * old.tokens * (size_t)v->channels);
    }
    free(old.u), free(old.gap);
}

void spy_judge(const path_spy *spy, kern_queue *k, diff_paths *by, const diff_tokens *t, const size_t *place,
               float *path, double *log_ratio, float *last, innovations *out)
{
    diff_speculation_stats stats = {0};
    for (int r = 0; r < t->count; r++)
        k->core->upload(k, path + (size_t)r * (size_t)spy->stride, spy->kept + place[r] * row_floats(spy),
                        sizeof(float) * (size_t)spy->stride);
    make_room(out, spy, (size_t)t->count);
    whitener w = {*k->head, k->head, spy, place, out};
    w.ops.path_ratio = whitened_ratio;
    k->head = &w.ops;
    diff_paths_judge(by, t, path, log_ratio, last, &stats);
    k->head = w.real;
}

/* Returns the distance of an image's token from its path's end under the distribution of its draw. */
static double token_off(const path_spy *spy, const kern_chain_coef *coef, size_t place, const float *token)
{
    const float *record = spy->kept + place * row_floats(spy);
    double most = 0;
    for (int c = 0; c < spy->channels; c++) {
        const float x0 = record[KERN_EVALUATED_X0 * spy->channels + c];
        most = fmax(most, fabs((double)kern_chain_mean_of(coef, record[c], x0) - token[c]));
    }
    return most;
}

/* A plain run over the finished images. */
typedef struct {
    kern_queue *k;
    mar_runner runner;
    diff_paths paths;
    void *memory, *paths_memory;
    float *path, *tokens, *last;
    double *log_ratio;
    int **order;
} plain_run;

static void open_run(plain_run *run, const path_spy *spy, const mar_model *target, const mar_params *p,
                     const int *label)
{
    mar_err err = {0};
    const int seq = spy->seq_len, rows = spy->images * seq;
    *run = (plain_run){.k = queue_of(target->m)};
    assert_ok(plain_runner(run->k, target, spy->images, p->cfg == 1 ? 1 : 2, seq, p, &run->runner, &err), &err);
    run->memory = backend_memory(run->k, mar_runner_lay_out(&run->runner, NULL));
    mar_runner_lay_out(&run->runner, run->memory);
    assert_ok(diff_paths_create(&run->runner.chain, 1, rows, &run->paths, &err), &err);
    run->paths_memory = backend_memory(run->k, diff_paths_lay_out(&run->paths, NULL));
    diff_paths_lay_out(&run->paths, run->paths_memory);
    run->path = backend_memory(run->k, sizeof(float) * (size_t)rows * (size_t)spy->stride);
    run->tokens = backend_memory(run->k, sizeof(float) * (size_t)rows * (size_t)spy->channels);
    run->last = backend_memory(run->k, sizeof(float) * (size_t)rows * (size_t)spy->channels);
    run->log_ratio = backend_memory(run->k, sizeof(double) * (size_t)rows);
    run->order = calloc((size_t)spy->images, sizeof *run->order);
    for (int i = 0; i < spy->images; i++) {
        run->order[i] = grown(NULL, (size_t)seq, sizeof(int));
        kern_random_order(p->seed, spy->first_image + (uint64_t)i, seq, run->order[i]);
    }
    mar_runner_begin(&run->runner, spy->images, label);
}

static void close_run(plain_run *run, const path_spy *spy)
{
    void *memory[] = {run->memory, run->paths_memory, run->path, run->tokens, run->last, run->log_ratio};
    for (int i = 0; i < spy->images; i++) free(run->order[i]);
    free(run->order);
    diff_paths_free(&run->paths);
    mar_runner_free(&run->runner);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) run->k->core->free(run->k->device, memory[i]);
    free_queue(run->k);
}

/* Whitens the plan's steps first .. last of all images, in one context. */
static void whiten_block(plain_run *run, const path_spy *spy, const mar_step *steps, int first, int last,
                         const float *tokens, innovations *out)
{
    const int seq = spy->seq_len, known = steps[first].known, until = steps[last].known + steps[last].predicted;
    const int n = until - known, rows = spy->images * n, channels = spy->channels;
    const mar_step step = {.known = known, .predicted = n, .cfg_branches = run->runner.net.cfg_branches};
    const mar_batch batch = {.images = spy->images, .order = (const int *const *)run->order};
    int *image = grown(NULL, (size_t)rows, sizeof(int)), *position = grown(NULL, (size_t)rows, sizeof(int));
    size_t *place = grown(NULL, (size_t)rows, sizeof *place);
    float *cfg = grown(NULL, (size_t)rows, sizeof *cfg);
    int kept = 1;
    for (int r = 0; r < rows; r++) {
        int of = first;
        image[r] = r / n, position[r] = run->order[r / n][seq - until + r % n];
        while (seq - until + r % n < seq - steps[of].known - steps[of].predicted) of++;
        cfg[r] = steps[of].cfg;
        place[r] = (size_t)image[r] * (size_t)seq + (size_t)position[r];
        kept &= spy->has[place[r]] > 0;
        run->k->core->upload(run->k, run->tokens + (size_t)r * (size_t)channels, tokens + place[r] * (size_t)channels,
                             sizeof(float) * (size_t)channels);
        if (!kept) continue;
        out->off = fmax(
            out->off, token_off(spy, run->runner.chain.schedule.coef, place[r], tokens + place[r] * (size_t)channels));
    }
    mar_err err = {0};
    assert_ok(mar_runner_plan(&run->runner, spy->images, &step, &err), &err);
    assert_ok(diff_paths_plan(&run->paths, rows, &err), &err);
    mar_runner_predict(&run->runner, &batch, &step, 0, rows, NULL);
    if (kept) {
        const diff_tokens t = {.count = rows, .sources = rows, .z = run->runner.net.z, .cfg = cfg};
        spy_judge(spy, run->k, &run->paths, &t, place, run->path, run->log_ratio, run->last, out);
    }
    masked_runner_add_known_tokens(&run->runner.net, run->tokens, rows, image, position, NULL);
    free(image), free(position), free(place), free(cfg);
}

void spy_whiten(const path_spy *spy, const mar_model *target, const mar_params *p, int block, const int *label,
                const float *tokens, innovations *out)
{
    plain_run run;
    mar_step steps[1024];
    mar_steps_plan(p->num_iter, spy->seq_len, p->cfg, p->cfg_schedule, steps);
    open_run(&run, spy, target, p, label);
    for (int i = 0, last; i < p->num_iter; i = last + 1) {
        last = i + block < p->num_iter ? i + block - 1 : p->num_iter - 1;
        whiten_block(&run, spy, steps, i, last, tokens, out);
    }
    close_run(&run, spy);
}

void innovations_free(innovations *v)
{
    free(v->u), free(v->gap);
    *v = (innovations){0};
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static double two_sided(double z)
{
    return isnan(z) ? 0 : erfc(fabs(z) / sqrt(2));
}

/* Computes coordinates along the gap of an index. Also sums gap times innovation, and the gap's square. */
static void along_gap(const innovations *v, int index, float *w, double *balance, double *square)
{
    for (size_t t = 0; t < v->tokens; t++) {
        const float *u = entry(v, v->u, index, t), *gap = entry(v, v->gap, index, t);
        double product = 0, length = 0;
        for (int c = 0; c < v->channels; c++) product += (double)gap[c] * u[c], length += (double)gap[c] * gap[c];
        w[t] = length > 0 ? (float)(product / sqrt(length)) : u[0];
        *balance += product, *square += length;
    }
}

innovation_test innovations_test(const innovations *v)
{
    const int n = (int)v->tokens, channels = v->channels;
    float *x = grown(NULL, v->tokens * (size_t)channels, sizeof *x);
    innovation_test r = {1, 1, 1, 1, 1, 0};
    double balance = 0, gaps = 0, squares = 0;
    for (int i = 1; i <= v->steps; i++) {
        memcpy(x, entry(v, v->u, i, 0), v->tokens * (size_t)channels * sizeof *x);
        for (int j = 0; j < n * channels; j++) squares += (double)x[j] * x[j];
        r.normal = fmin(r.normal, v->steps * stat_ks_normal_p(x, n * channels, 0, 1));
        if (i == v->steps) continue;
        along_gap(v, i, x, &balance, &gaps);
        r.along = fmin(r.along, (v->steps - 1) * stat_ks_normal_p(x, n, 0, 1));
    }
    const double numbers = (double)n * channels * v->steps;
    r.balance = two_sided(balance / sqrt(gaps));
    r.square = two_sided((squares - numbers) / sqrt(2 * numbers));
    r.worst = fmin(1, 4 * fmin(fmin(r.normal, r.along), fmin(r.balance, r.square)));
    r.mean_gap = sqrt(gaps / n);
    free(x);
    return r;
}
