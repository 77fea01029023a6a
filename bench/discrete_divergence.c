/* How far the images of a relaxed method are from the target's law, on the discrete demo: computed, not sampled.
 *
 *     discrete_divergence FIRST IMAGES < options      # one line of options a run: "spec uniform-rsd, gamma 5, cfg 2.9"
 *                                                     # or "draft demo-discrete-eagle, tree dynamic, spec lantern,
 * cfg 2.9"
 *
 * A session draws the images, with chains of demo-discrete-draft. Then one pass of either model over the finished
 * tokens gives p and q behind every prefix, and the verifier's own formulas (kernels/cpu/discrete.c) give what the
 * method emits there, as a law over the vocabulary, for each place i in a block that the token may have had: m_i(y) =
 * q(y) f_i(y) + sum_x q(x) (1 - f_i(x)) G_i(y | x). Which place it had is not part of the image. Given the prefix it
 * has a law, too, which each token updates: it was an accepted draft, and the next place follows, or it was none, and a
 * block begins. So m, the mean of the m_i by that law, is exactly the law of the image's next token given those before
 * it, and sums over positions are exact: KL(images || target's images) = E[sum_t KL(m_t || p_t)], in nats.
 *
 * In a dynamic tree (EAGLE-2) the drafts are chosen, by more than the prefix that a token has in the end. There m is
 * the law given the tree and the place in it, as the session verifies them. What these laws are from the target's in
 * the mean is a bound, as the mean over trees may be nearer.
 *
 * One line of JSON a run; its arrays have an entry per image, sums over its tokens: `rounds` that it took and
 * `rounds_expected` by these laws, `tv` of m and p, `kl`, and `tv_places`, the mean of TV(m_i, p) by the law of i,
 * which is what Cool-SD's bound adds up (Eq. 4). `tv_best` and `kl_best` are those of m if each place had the resampler
 * G* (Cool-SD Eq. 5), behind the same prefixes, and `resampler` the total variation
 * between that and m. `surprise` and `surprise_variance` are the sum of log m(token) - E[log
 * m] and its variance: they show that the session draws from m. `entropy` is that of p in nats, `tv_draft` TV(p, q),
 * `top` the largest p. */
#include "kernels/cpu/cpu.h"
#include "mar/discrete.h"
#include "mar/neighbours.h"
#include "specdec/round.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define cpu_discrete_ops divergence_ops
#include "kernels/cpu/discrete.c"
#undef cpu_discrete_ops

enum { BATCH = 50, CLASSES = 10, SEQ = 64, SIZE = 256, PLACES = SEQ + 1 };

static void stop(const char *why)
{
    fprintf(stderr, "discrete_divergence: %s\n", why);
    exit(1);
}

static void check(mar_status status, const char *why)
{
    if (status != MAR_OK) stop(why);
}

/* --- what a method emits ------------------------------------------------------------------------------------------ */

/* Behind one prefix: by whether the token is the draft, accepted, or what comes in place of a rejected one. */
typedef struct {
    double accepted[SIZE], replaced[SIZE];
} emission;

static int same_rule(const kern_discrete_rule *a, const kern_discrete_rule *b)
{
    return a->log_omega == b->log_omega && a->neighbours == b->neighbours && a->bound == b->bound &&
           a->bound_p == b->bound_p && a->without == b->without;
}

/* Adds what becomes of `weight` rejections of the site's draft. p, q [SIZE]: the laws, as load_laws makes them. */
static void add_rejection(const walk *w, site *s, double weight, const float *p, const float *q, emission *e)
{
    const double p_draft = p_of(s, s->draft);
    memcpy(w->p, p, SIZE * sizeof *p), memcpy(w->q, q, SIZE * sizeof *q);
    s->p = w->p, s->q = w->q, s->total = 1;
    const double left = leave_residual(w, s);
    if (kern_draft_stays(s->rule, p_draft, left)) {
        e->accepted[s->draft] += weight;
        return;
    }
    const double share = weight / weights_total(s->p, SIZE);
    for (int y = 0; y < SIZE; y++) e->replaced[y] += share * (double)s->p[y];
}

/* LANTERN's own residual depends on the draft; all others are the same for every draft. So is taken to be that of
 * drafts which are rejected with a probability of less than 1e-9: all of them together change the law by 3e-7 at most.
 */
static void find_emission(const walk *w, const float *log_p, const float *log_q, const kern_discrete_rule *rule,
                          emission *e)
{
    float p[SIZE], q[SIZE];
    double rejected = 0, mass;
    int last = -1;
    kern_discrete_rule best = *rule;
    best.without = 0;
    memset(e, 0, sizeof *e);
    w->rows->exponentials(log_p, SIZE, 0, p);
    w->rows->exponentials(log_q, SIZE, 0, q);
    for (int x = 0; x < SIZE; x++) {
        site s = {.log_p = log_p, .log_q = log_q, .rule = rule, .draft = x};
        const double f = fmin(1, acceptance(w, &s)), weight = q_of(&s, x) * (1 - f);
        e->accepted[x] += q_of(&s, x) * f;
        if (rule->without && weight > 1e-9 && neighbour_set(w, &s, &mass) > 1)
            add_rejection(w, &s, weight, p, q, e);
        else if (weight > 0)
            rejected += weight, last = x;
    }
    if (last < 0) return;
    site s = {.log_p = log_p, .log_q = log_q, .rule = &best, .draft = last};
    add_rejection(w, &s, rejected, p, q, e);
}

/* --- an image ----------------------------------------------------------------------------------------------------- */

enum {
    ROUNDS,
    ROUNDS_EXPECTED,
    TV,
    KL,
    TV_PLACES,
    TV_BEST,
    KL_BEST,
    RESAMPLER,
    SURPRISE,
    SURPRISE_VARIANCE,
    ENTROPY,
    TV_DRAFT,
    TOP,
    SUMS
};
static const char *const sum_name[] = {"rounds",  "rounds_expected", "tv",        "kl",       "tv_places",
                                       "tv_best", "kl_best",         "resampler", "surprise", "surprise_variance",
                                       "entropy", "tv_draft",        "top"};

typedef struct {
    const mar_discrete_plan *plan;
    walk w;
    double place[PLACES]; /* probability of each place in a block that the next token may have: drafts before it */
    emission at[PLACES], best[PLACES]; /* best: with G* */
} image_laws;

static void add_draft_gap(const float *log_p, const float *log_q, double *sum)
{
    double top = 0;
    for (int y = 0; y < SIZE; y++) {
        const double p = exp((double)log_p[y]), q = exp((double)log_q[y]);
        if (p > 0) sum[ENTROPY] -= p * (double)log_p[y];
        sum[TV_DRAFT] += fabs(p - q) / 2;
        if (p > top) top = p;
    }
    sum[TOP] += top;
}

static double divergence(double m, double log_p)
{
    return m > 0 ? m * (log(m) - log_p) : 0;
}

/* Adds the numbers of a token, whose law is m, with G* in each place `best`. */
static void add_token(const image_laws *l, const float *log_p, const double *m, const double *best, int token,
                      double *sum)
{
    double mean = 0, square = 0, total = 0;
    for (int y = 0; y < SIZE; y++) {
        const double p = exp((double)log_p[y]), log_m = m[y] > 0 ? log(m[y]) : 0;
        total += m[y];
        sum[TV] += fabs(m[y] - p) / 2;
        sum[RESAMPLER] += fabs(m[y] - best[y]) / 2;
        sum[TV_BEST] += fabs(best[y] - p) / 2;
        sum[KL] += divergence(m[y], (double)log_p[y]);
        sum[KL_BEST] += divergence(best[y], (double)log_p[y]);
        mean += m[y] * log_m, square += m[y] * log_m * log_m;
        for (int i = 0; i < PLACES; i++)
            if (l->place[i] > 0)
                sum[TV_PLACES] += l->place[i] * fabs(l->at[i].accepted[y] + l->at[i].replaced[y] - p) / 2;
    }
    if (!(fabs(total - 1) < 1e-5)) stop("the law of a token does not sum to 1");
    sum[SURPRISE] += log(m[token]) - mean;
    sum[SURPRISE_VARIANCE] += square - mean * mean;
}

/* Drafts of the block in which token number t is that with number `place`, as spec_deepest in specdec/round.h has it.
 */
static int depth_of(const image_laws *l, int t, int place)
{
    return spec_lesser(l->plan->params.gamma, SEQ - (t - place) - 1);
}

/* What each place of a block emits behind a prefix, token number t to be. The last place has the bonus token, from p.
 */
static void find_emissions(image_laws *l, int t, const float *log_p, const float *log_q)
{
    int computed = -1; /* the last place that has been, by `rule` */
    kern_discrete_rule rule = {0};
    for (int i = 0; i < PLACES; i++) {
        const int depth = depth_of(l, t, i);
        emission *e = &l->at[i];
        if (!(l->place[i] > 0)) continue;
        if (i >= depth) {
            memset(e, 0, sizeof *e);
            for (int y = 0; y < SIZE; y++) e->replaced[y] = exp((double)log_p[y]);
            l->best[i] = *e;
            continue;
        }
        const kern_discrete_rule now = l->plan->method->discrete_rule(l->plan->parameter, i + 1, depth);
        if (computed >= 0 && same_rule(&now, &rule)) {
            *e = l->at[computed], l->best[i] = l->best[computed];
        } else {
            kern_discrete_rule other = now;
            other.without = 0;
            find_emission(&l->w, log_p, log_q, &now, e);
            if (now.without)
                find_emission(&l->w, log_p, log_q, &other, &l->best[i]);
            else
                l->best[i] = *e;
        }
        computed = i, rule = now;
    }
}

/* log_p, log_q [SEQ][SIZE]: the laws behind each prefix. */
static void add_image(image_laws *l, const float *log_p, const float *log_q, const int *token, double *sum)
{
    memset(l->place, 0, sizeof l->place);
    l->place[0] = 1;
    for (int t = 0; t < SEQ; t++, log_p += SIZE, log_q += SIZE) {
        double m[SIZE] = {0}, best[SIZE] = {0}, next[PLACES + 1] = {0};
        sum[ROUNDS_EXPECTED] += l->place[0];
        find_emissions(l, t, log_p, log_q);
        for (int i = 0; i < PLACES; i++) {
            const emission *e = &l->at[i], *b = &l->best[i];
            if (!(l->place[i] > 0)) continue;
            for (int y = 0; y < SIZE; y++) m[y] += l->place[i] * (e->accepted[y] + e->replaced[y]);
            for (int y = 0; y < SIZE; y++) best[y] += l->place[i] * (b->accepted[y] + b->replaced[y]);
            next[i + 1] += l->place[i] * e->accepted[token[t]];
            next[0] += l->place[i] * e->replaced[token[t]];
        }
        add_token(l, log_p, m, best, token[t], sum);
        add_draft_gap(log_p, log_q, sum);
        for (int i = 0; i < PLACES; i++) l->place[i] = next[i] / m[token[t]];
    }
}

/* --- trees of chosen drafts --------------------------------------------------------------------------------------- */

/* What the session at hand verifies. */
static struct {
    const kern_discrete_ops *real;
    const image_laws *l;
    uint64_t first_image;
    double (*sum)[SUMS]; /* [images] */
} spied;

/* The law of what follows site number `node` + 1 of a block: its drafts are tried in turn, as verify_children does. */
static void find_law(const walk *w, int node, int position, double *m)
{
    const kern_address none = {0};
    site s = site_of(w, node, position, &none);
    double weight = 1;
    memset(m, 0, SIZE * sizeof *m);
    for (int child = next_child(w, node, 0); child < w->drafts && weight > 0;) {
        const int next = next_child(w, node, child + 1);
        s.draft = w->draft[child];
        const double f = fmin(1, acceptance(w, &s)), p = p_of(&s, s.draft);
        m[s.draft] += weight * f;
        weight *= 1 - f;
        if (!(weight > 0)) return;
        load_laws(w, &s);
        const double left = leave_residual(w, &s);
        if (kern_draft_stays(s.rule, p, left)) {
            m[s.draft] += weight;
            return;
        }
        child = left > 0 && leave_out(w, &s) ? next : w->drafts;
    }
    load_laws(w, &s);
    const double share = weight / weights_total(s.p, SIZE);
    for (int y = 0; y < SIZE; y++) m[y] += share * (double)s.p[y];
}

static void spied_verify(kern_queue *k, const kern_block_job *job)
{
    spied.real->verify(k, job);
    for (int b = 0; b < job->blocks; b++) {
        walk w = spied.l->w;
        const int node = job->node[b];
        w.job = job, w.block = b, w.drafts = job->node[b + 1] - node;
        w.draft = job->draft + node, w.parent = job->parent + node;
        w.row_p = job->p + node + b, w.row_q = job->q + node + b;
        for (int d = 0; d < job->count[b * KERN_BLOCK_COUNTS + KERN_BLOCK_FINAL]; d++) {
            const int at = b * job->positions + d, of_site = job->law[at];
            double m[SIZE];
            find_law(&w, of_site - 1, d, m);
            add_token(spied.l, job->log_p + (size_t)w.row_p[of_site] * SIZE, m, m, job->id[at],
                      spied.sum[job->address[b].image - spied.first_image]);
        }
    }
}

static void spied_laws(kern_queue *k, const kern_law_job *job)
{
    spied.real->laws(k, job);
}

static void spied_draw(kern_queue *k, const kern_draw_job *job)
{
    spied.real->draw(k, job);
}

static void spied_top(kern_queue *k, const float *log_law, const int *law, int rows, int size, int count, int *id,
                      float *log_p)
{
    spied.real->top(k, log_law, law, rows, size, count, id, log_p);
}

static const kern_discrete_ops spied_ops = {spied_laws, spied_draw, spied_verify, spied_top};

/* --- a run -------------------------------------------------------------------------------------------------------- */

typedef struct {
    mar *m;
    mar_model *target, *draft, *eagle;
    mar_vae *vae;
    kern_queue *k;
} demo;

/* A model that is asked about finished images: one pass over all tokens of each. */
typedef struct {
    gpt_runner *r;
    void *memory;
    float *rows; /* [BATCH][SEQ][SIZE] */
} reader;

static reader open_reader(const demo *d, const mar_model *model, const gpt_sampling *sampling)
{
    reader a = {0};
    mar_err err = {0};
    check(gpt_runner_create(d->k, mar_discrete_model_of(model)->gpt, sampling, BATCH, SEQ - 1, 0, &a.r, &err),
          err.text);
    check(d->k->core->alloc(d->k->device, gpt_runner_lay_out(a.r, NULL), &a.memory, &err), err.text);
    check(d->k->core->alloc(d->k->device, sizeof(float) * BATCH * SEQ * SIZE, (void **)&a.rows, &err), err.text);
    gpt_runner_lay_out(a.r, a.memory);
    check(gpt_runner_plan(a.r, BATCH, &err), err.text);
    return a;
}

static void close_reader(const demo *d, reader *a)
{
    gpt_runner_free(a->r);
    d->k->core->free(d->k->device, a->memory), d->k->core->free(d->k->device, a->rows);
}

static void read_laws(const reader *a, const int *label, int token[][SEQ])
{
    spec_request request[BATCH];
    int parent[SEQ];
    mar_err err = {0};
    for (int t = 0; t < SEQ; t++) parent[t] = t - 1;
    for (int i = 0; i < BATCH; i++)
        request[i] = (spec_request){
            .sequence = i, .prefix = token[i], .draft = token[i], .parent = parent, .count = SEQ - 1, .row = i * SEQ};
    gpt_runner_begin(a->r, BATCH, label);
    check(gpt_runner_laws(a->r, request, BATCH, a->rows, &err), err.text);
}

static void make_images(mar_session *s, int first, const int *label, int token[][SEQ], double *rounds)
{
    static float number[BATCH * SEQ];
    static int step[BATCH * SEQ];
    check(mar_session_begin(s, (uint64_t)first, label, BATCH), mar_session_error(s));
    while (!mar_session_done(s)) check(mar_session_step(s), mar_session_error(s));
    check(mar_session_tokens(s, number), mar_session_error(s));
    check(mar_session_fates(s, NULL, step), mar_session_error(s));
    for (int i = 0; i < BATCH; i++) {
        rounds[i] = step[i * SEQ + SEQ - 1] + 1;
        for (int t = 0; t < SEQ; t++) token[i][t] = (int)number[i * SEQ + t];
    }
}

static void print_run(const char *options, int first_image, double (*sum)[SUMS], int images)
{
    printf("{\"options\": \"%s\", \"first\": %d", options, first_image);
    for (int n = 0; n < SUMS; n++) {
        printf(", \"%s\": [", sum_name[n]);
        for (int i = 0; i < images; i++) printf("%s%.6g", i ? "," : "", sum[i][n]);
        printf("]");
    }
    printf("}\n");
    fflush(stdout);
}

static mar_params params_of(const demo *d, const char *options)
{
    mar_params p;
    char copy[512], why[256];
    mar_params_init(&p, sizeof p);
    p.draft = d->draft;
    snprintf(copy, sizeof copy, "%s", options);
    for (char *rest = copy, *name; (name = strsep(&rest, ","));) {
        name += strspn(name, " ");
        if (strcmp(name, "draft demo-discrete-eagle") == 0) {
            p.draft = d->eagle;
        } else if (strcmp(name, "tree dynamic") == 0) {
            p.tree = "dynamic";
        } else {
            char *value = strchr(name, ' ');
            if (!value) stop("expected options such as \"gamma 5, cfg 2.9\"");
            *value++ = '\0';
            check(mar_params_set(&p, name, value, why, sizeof why), why);
        }
    }
    return p;
}

/* Chains: what the images' tokens could have been, by the models' laws behind each prefix. */
static void add_images(const demo *d, const gpt_sampling *sampling, image_laws *l, const int *label, int token[][SEQ],
                       double (*sum)[SUMS])
{
    reader target = open_reader(d, d->target, sampling), draft = open_reader(d, d->draft, sampling);
    read_laws(&target, label, token), read_laws(&draft, label, token);
    for (int i = 0; i < BATCH; i++)
        add_image(l, target.rows + i * SEQ * SIZE, draft.rows + i * SEQ * SIZE, token[i], sum[i]);
    close_reader(d, &draft), close_reader(d, &target);
}

static void run(const demo *d, const char *options, int first_image, int images)
{
    const mar_params p = params_of(d, options);
    const gpt_sampling sampling = {p.cfg, p.cfg_interval, p.temperature, p.top_k, p.top_p};
    mar_discrete_plan plan;
    mar_session *s;
    mar_err err = {0};
    int label[BATCH], token[BATCH][SEQ];
    double(*sum)[SUMS] = calloc((size_t)images, sizeof *sum), rounds[BATCH];
    image_laws *l = calloc(1, sizeof *l);
    float *workspace = malloc(2 * SIZE * sizeof *workspace);
    check(mar_session_create(d->target, d->vae, &p, BATCH, &s), mar_error(d->m));
    check(mar_discrete_settle(mar_discrete_model_of(d->target), &p, BATCH, &plan, &err), err.text);
    if (!sum || !l || !workspace) stop("out of memory");
    const int tree = p.tree != NULL;
    if (!plan.method || plan.method->stale || (!tree && p.draft != d->draft))
        stop("expected chains of the small model, or a dynamic tree");
    int *near = calloc((size_t)SIZE * (size_t)(plan.neighbours + 1), sizeof *near);
    if (!near) stop("out of memory");
    if (plan.neighbours)
        check(mar_neighbours(d->vae, plan.params.lantern_metric, plan.neighbours, near, &err), err.text);
    const kern_block_job job = {.size = SIZE, .neighbours = near, .neighbour_count = plan.neighbours};
    l->plan = &plan;
    l->w = (walk){.job = &job, .rows = rows_of(d->k), .p = workspace, .q = workspace + SIZE};
    kern_queue *k = mar_session_queue(s);
    spied.real = k->discrete, spied.l = l;
    if (tree) k->discrete = &spied_ops;
    for (int first = 0; first < images; first += BATCH) {
        for (int i = 0; i < BATCH; i++) label[i] = (first_image + first + i) % CLASSES;
        spied.first_image = (uint64_t)(first_image + first), spied.sum = sum + first;
        make_images(s, first_image + first, label, token, rounds);
        for (int i = 0; i < BATCH; i++) sum[first + i][ROUNDS] = rounds[i];
        for (int i = 0; i < BATCH && tree; i++) sum[first + i][ROUNDS_EXPECTED] = rounds[i];
        if (!tree) add_images(d, &sampling, l, label, token, sum + first);
    }
    print_run(options, first_image, sum, images);
    k->discrete = spied.real;
    mar_session_free(s);
    free(near), free(workspace), free(l), free(sum);
}

int main(int count, char **argument)
{
    const int first = count == 3 ? atoi(argument[1]) : -1, images = count == 3 ? atoi(argument[2]) : 0;
    const mar_options options = {.threads = 1, .backend = MAR_BACKEND_CPU};
    char line[512];
    demo d = {0};
    mar_err err = {0};
    if (first < 0 || images < BATCH || images % BATCH)
        stop("expected the number of the first image, and how many of a run, a multiple of 50");
    check(mar_open(&options, &d.m), "mar_open failed");
    check(mar_model_load(d.m, "demo-discrete", 0, &d.target), mar_error(d.m));
    check(mar_model_load(d.m, "demo-discrete-draft", 0, &d.draft), mar_error(d.m));
    check(mar_model_load(d.m, "demo-discrete-eagle", 0, &d.eagle), mar_error(d.m));
    check(mar_vae_load(d.m, "demo-discrete", &d.vae), mar_error(d.m));
    if (d.target->config.seq_len != SEQ || d.target->config.vocabulary != SIZE) stop("the demo has another shape");
    check(d.m->device->core->queue_create(d.m->device, &d.k, &err), err.text);
    d.k->core->enter(d.k);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (*line) run(&d, line, first, images);
    }
    d.k->core->leave(d.k);
    d.k->core->queue_free(d.k);
    mar_vae_free(d.vae);
    mar_model_free(d.eagle);
    mar_model_free(d.draft);
    mar_model_free(d.target);
    mar_close(d.m);
    return 0;
}
