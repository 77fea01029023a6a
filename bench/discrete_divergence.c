/* What relaxed methods accept, and how far they are from the target's distribution, on the discrete demo: computed, not
 * sampled.
 *
 *     discrete_divergence chain|tree FIRST IMAGES < methods     # one a line: "spec uniform-rsd, cool_delta 2"
 *
 * A session of spec vanilla makes the images, whose law is the target's, and meets blocks of drafts on the way: chains
 * of 5 drafts of demo-discrete-draft, or dynamic trees (EAGLE-2) as deep of demo-discrete-eagle, guidance 2.9. Behind
 * each verification every method of the list is asked what it would have made of the same block, by the verifier's own
 * formulas (kernels/cpu/discrete.c): with which probability it reaches a draft, and which law m its token there has,
 * given the prefix and, in a tree, the drafts. In a chain the draft is averaged over:
 *     m(y) = q(y) f(y) + sum_x q(x) (1 - f(x)) G(y | x).
 * So the sums over a block are Cool-SD's: the drafts accepted, Eq. 3, and its bound of the total variation, Eq. 4.
 *
 * The output is a line of JSON for each method. Its arrays have an entry per image: `rounds`, `accepted`, and the sums
 * over what a method reaches of the total variation of m and p, `tv`, and of their relative entropy KL(m || p) in nats,
 * `kl`. A line before them has what the session itself did: `rounds`, `tokens`, `accepted`, and sums over its tokens of
 * the entropy of p, `entropy`, and the largest p, `top`; `tv_draft` is the sum of TV(p, q) over its `drawn` tokens, in
 * whose place there was a draft drawn from q. */
#include "kernels/cpu/cpu.h"
#include "mar/raster_draft.h"
#include "mar/raster_options.h"
#include "mar/api/session.h"
#include "mar/core/neighbours.h"
#include "mar/accel/registry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define cpu_discrete_ops divergence_ops
#include "kernels/cpu/discrete.c"
#undef cpu_discrete_ops

enum { BATCH = 50, CLASSES = 10, SEQ = 64, SIZE = 256, DEPTH = 5, METHODS = 128, LINE = 512 };

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

/* Adds `weight` times the distribution after a rejection of the site's draft to m. p, q [SIZE]: as load_probs makes
 * them. */
static void add_rejection(const walk *w, site *s, double weight, const float *p, const float *q, double *m)
{
    const double p_draft = cpu_p_of(s, s->draft);
    memcpy(w->p, p, SIZE * sizeof *p), memcpy(w->q, q, SIZE * sizeof *q);
    s->p = w->p, s->q = w->q, s->total = 1;
    const double left = cpu_make_residual(w, s);
    if (kern_draft_stays(s->rule, p_draft, left)) {
        m[s->draft] += weight;
        return;
    }
    const double share = weight / weights_total(s->p, SIZE);
    for (int y = 0; y < SIZE; y++) m[y] += share * (double)s->p[y];
}

/* Adds to m the outcomes of a draft that was drawn from q. LANTERN's own residual depends on the draft; all others are
 * the same for every draft. So is taken to be that of drafts which are rejected with a probability of less than 1e-9:
 * all of them together change the law by 3e-7 at most. */
static void add_drawn(const walk *w, const float *log_p, const float *log_q, const kern_discrete_rule *rule, double *m)
{
    float p[SIZE], q[SIZE];
    double rejected = 0, mass;
    int last = -1;
    kern_discrete_rule best = *rule;
    best.exclude_neighbours = 0;
    w->rows->exponentials(log_p, SIZE, 0, p);
    w->rows->exponentials(log_q, SIZE, 0, q);
    for (int x = 0; x < SIZE; x++) {
        site s = {.log_p = log_p, .log_q = log_q, .rule = rule, .draft = x};
        const double f = fmin(1, acceptance(w, &s)), weight = cpu_q_of(&s, x) * (1 - f);
        m[x] += cpu_q_of(&s, x) * f;
        if (rule->exclude_neighbours && weight > 1e-9 && cpu_neighbour_set(w, &s, &mass) > 1)
            add_rejection(w, &s, weight, p, q, m);
        else if (weight > 0)
            rejected += weight, last = x;
    }
    if (last < 0) return;
    site s = {.log_p = log_p, .log_q = log_q, .rule = &best, .draft = last};
    add_rejection(w, &s, rejected, p, q, m);
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

enum { ROUNDS, ACCEPTED, TV, KL, SUMS };
static const char *const sum_name[] = {"rounds", "accepted", "tv", "kl"};
enum { OF_ROUNDS, OF_TOKENS, OF_ACCEPTED, OF_ENTROPY, OF_TV_DRAFT, OF_TOP, OF_DRAWN, OF_SUMS };
static const char *const of_name[] = {"rounds", "tokens", "accepted", "entropy", "tv_draft", "top", "drawn"};

typedef struct {
    char options[LINE];
    raster_plan plan;
    double (*sum)[SUMS]; /* [images] */
} method;

/* What the session at hand verifies. */
static struct {
    const kern_discrete_ops *real;
    uint64_t first_image;
    method *methods;
    int count;
    double (*sum)[OF_SUMS]; /* [images] the session's own */
    int *near;              /* [SIZE][near_count] */
    int near_count;
    float workspace[2 * SIZE];
} spied;

static int depth_of(const walk *w, int node)
{
    int depth = 0;
    for (; node >= 0; node = w->parent[node]) depth++;
    return depth;
}

/* The law of the token behind `node`, and in reach[child], which has 0, the probability that a child is taken, times
 * that of the node. Children that were chosen are tried in turn, as verify_children does; one that was drawn is
 * averaged over. */
static void find_law(const walk *w, const kern_discrete_rule *rule, int node, double *m, double *reach)
{
    const float *log_p = w->job->log_p + (size_t)w->row_p[node + 1] * SIZE;
    const float *log_q = w->row_q[node + 1] < 0 ? NULL : w->job->log_q + (size_t)w->row_q[node + 1] * SIZE;
    const double before = node < 0 ? 1 : reach[node];
    site s = {.log_p = log_p, .log_q = log_q, .rule = rule};
    int child = cpu_next_child(w, node, 0);
    memset(m, 0, SIZE * sizeof *m);
    if (log_q) {
        s.draft = w->draft[child];
        reach[child] = before * fmin(1, acceptance(w, &s));
        add_drawn(w, log_p, log_q, rule, m);
        return;
    }
    double weight = 1;
    while (child < w->drafts && weight > 0) {
        const int next = cpu_next_child(w, node, child + 1);
        s.draft = w->draft[child];
        const double f = fmin(1, acceptance(w, &s)), p = cpu_p_of(&s, s.draft);
        cpu_load_probs(w, &s);
        const double left = f < 1 ? cpu_make_residual(w, &s) : 0;
        const double taken = f < 1 && kern_draft_stays(rule, p, left) ? 1 : f;
        m[s.draft] += weight * taken;
        reach[child] = before * weight * taken;
        weight *= 1 - taken;
        child = left > 0 ? next : w->drafts;
    }
    if (!(weight > 0)) return;
    const double share = weight / weights_total(s.p, SIZE);
    for (int y = 0; y < SIZE; y++) m[y] += share * (double)s.p[y];
}

static void add_law(const float *log_p, const double *m, double weight, double *sum)
{
    double total = 0;
    for (int y = 0; y < SIZE; y++) {
        total += m[y];
        sum[TV] += weight * fabs(m[y] - exp((double)log_p[y])) / 2;
        if (m[y] > 0) sum[KL] += weight * m[y] * (log(m[y]) - (double)log_p[y]);
    }
    if (!(fabs(total - 1) < 1e-5)) stop("the law of a token does not sum to 1");
}

/* Adds what a method makes of a block. Behind a draft without children it takes the bonus token, which is from p. */
static void add_block(const walk *w, const method *a, double *sum)
{
    double reach[RASTER_TREE_DRAFTS] = {0}, m[SIZE];
    int depth = 0;
    for (int n = 0; n < w->drafts; n++) depth = depth_of(w, n) > depth ? depth_of(w, n) : depth;
    sum[ROUNDS]++;
    for (int node = -1; node < w->drafts; node++) {
        const double weight = node < 0 ? 1 : reach[node];
        if (node >= 0) sum[ACCEPTED] += weight;
        if (!(weight > 0) || cpu_next_child(w, node, 0) == w->drafts) continue;
        const kern_discrete_rule rule = a->plan.method->discrete_rule(a->plan.parameter, depth_of(w, node) + 1, depth);
        find_law(w, &rule, node, m, reach);
        add_law(w->job->log_p + (size_t)w->row_p[node + 1] * SIZE, m, weight, sum);
    }
}

/* Adds what the session took of the block. */
static void add_own(const walk *w, const int *count, const int *law, double *sum)
{
    sum[OF_ROUNDS]++, sum[OF_TOKENS] += count[KERN_BLOCK_FINAL], sum[OF_ACCEPTED] += count[KERN_BLOCK_ACCEPTED];
    for (int d = 0; d < count[KERN_BLOCK_FINAL]; d++) {
        const float *log_p = w->job->log_p + (size_t)w->row_p[law[d]] * SIZE;
        const int drawn = w->row_q[law[d]] >= 0 && cpu_next_child(w, law[d] - 1, 0) < w->drafts;
        double top = 0;
        for (int y = 0; y < SIZE; y++) {
            const double p = exp((double)log_p[y]);
            if (p > 0) sum[OF_ENTROPY] -= p * (double)log_p[y];
            if (drawn)
                sum[OF_TV_DRAFT] +=
                    fabs(p - exp((double)w->job->log_q[(size_t)w->row_q[law[d]] * SIZE + (size_t)y])) / 2;
            top = p > top ? p : top;
        }
        sum[OF_TOP] += top, sum[OF_DRAWN] += drawn;
    }
}

static void spied_verify(kern_queue *k, const kern_block_job *given)
{
    kern_block_job job = *given;
    spied.real->verify(k, given);
    job.neighbours = spied.near, job.neighbour_count = spied.near_count;
    for (int b = 0; b < job.blocks; b++) {
        const int node = job.node[b];
        const uint64_t image = job.address[b].image - spied.first_image;
        const walk w = {.job = &job,
                        .rows = discrete_rows(k),
                        .drafts = job.node[b + 1] - node,
                        .draft = job.draft + node,
                        .parent = job.parent + node,
                        .row_p = job.p + node + b,
                        .row_q = job.q + node + b,
                        .p = spied.workspace,
                        .q = spied.workspace + SIZE};
        add_own(&w, job.count + b * KERN_BLOCK_COUNTS, job.site + b * job.positions, spied.sum[image]);
        for (int i = 0; i < spied.count; i++) add_block(&w, &spied.methods[i], spied.methods[i].sum[image]);
    }
}

static void spied_laws(kern_queue *k, const kern_probs_job *job)
{
    spied.real->probs(k, job);
}

static void spied_draw(kern_queue *k, const kern_draw_job *job)
{
    spied.real->draw(k, job);
}

static void spied_top(kern_queue *k, const float *log_probs, const int *source, int rows, int size, int count, int *id,
                      float *log_p)
{
    spied.real->top(k, log_probs, source, rows, size, count, id, log_p);
}

static const kern_discrete_ops spied_ops = {spied_laws, spied_draw, spied_verify, spied_top};

/* --- the run ------------------------------------------------------------------------------------------------------ */

static mar_params params_with(const mar_params *shared, const char *options)
{
    mar_params p = *shared;
    char copy[LINE], why[256];
    snprintf(copy, sizeof copy, "%s", options);
    for (char *rest = copy, *name; (name = strsep(&rest, ","));) {
        name += strspn(name, " ");
        char *value = strchr(name, ' ');
        if (!value) stop("expected options such as \"spec uniform-rsd, cool_delta 2\"");
        *value++ = '\0';
        check(mar_params_set(&p, name, value, why, sizeof why), why);
    }
    return p;
}

static void read_methods(const mar_model *target, const mar_params *shared, int images)
{
    extern const mar_engine mar_raster_ids_engine;
    static method methods[METHODS];
    char line[LINE];
    mar_err err = {0};
    spied.methods = methods, spied.near_count = 1;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (!*line) continue;
        if (spied.count == METHODS) stop("too many methods");
        method *a = &methods[spied.count++];
        snprintf(a->options, sizeof a->options, "%s", line);
        mar_params p = params_with(shared, line);
        mar_accels_on accels;
        check(mar_accels_resolve_params(&p, &mar_raster_ids_engine, &accels, &err), err.text);
        check(raster_resolve_ids(mar_raster_model_of(target), &p, BATCH, &a->plan, &err), err.text);
        if (!a->plan.method || a->plan.method->stale) stop("expected methods with a draft model");
        if (a->plan.neighbours > spied.near_count) spied.near_count = a->plan.neighbours;
        a->sum = calloc((size_t)images, sizeof *a->sum);
        if (!a->sum) stop("out of memory");
    }
}

static void make_images(mar_session *s, int first, int images)
{
    int label[BATCH];
    spied.first_image = (uint64_t)first;
    for (int done = 0; done < images; done += BATCH) {
        for (int i = 0; i < BATCH; i++) label[i] = (first + done + i) % CLASSES;
        check(mar_session_begin(s, (uint64_t)(first + done), label, BATCH), mar_session_error(s));
        while (!mar_session_done(s)) check(mar_session_step(s), mar_session_error(s));
    }
}

static void print_sums(const char *options, int first, int images, const char *const *name, int count,
                       const double *sum)
{
    printf("{\"options\": \"%s\", \"first\": %d", options, first);
    for (int n = 0; n < count; n++) {
        printf(", \"%s\": [", name[n]);
        for (int i = 0; i < images; i++) printf("%s%.6g", i ? "," : "", sum[i * count + n]);
        printf("]");
    }
    printf("}\n");
}

int main(int count, char **argument)
{
    const int tree = count == 4 && strcmp(argument[1], "tree") == 0;
    const int first = count == 4 ? atoi(argument[2]) : -1, images = count == 4 ? atoi(argument[3]) : 0;
    const mar_options options = {.size = sizeof options, .threads = 1, .backend = MAR_BACKEND_CPU};
    mar *m = NULL;
    mar_model *target, *draft;
    mar_vae *vae;
    mar_session *s;
    mar_params p;
    mar_err err = {0};
    if (first < 0 || images < BATCH || images % BATCH)
        stop("expected chain or tree, the number of the first image, and how many, a multiple of 50");
    check(mar_open(&options, &m), "mar_open failed");
    check(mar_model_load(m, "demo-discrete", 0, &target), mar_error(m));
    check(mar_model_load(m, tree ? "demo-discrete-eagle" : "demo-discrete-draft", 0, &draft), mar_error(m));
    check(mar_vae_load(m, "demo-discrete", &vae), mar_error(m));
    if (target->config.seq_len != SEQ || target->config.vocabulary != SIZE) stop("the demo has another shape");
    mar_params_init(&p, sizeof p);
    p.draft = draft, p.gamma = DEPTH, p.cfg = 2.9f, p.tree = tree ? "dynamic" : NULL;
    read_methods(target, &p, images);
    spied.near = malloc(sizeof(int) * SIZE * (size_t)spied.near_count);
    spied.sum = calloc((size_t)images, sizeof *spied.sum);
    if (!spied.near || !spied.sum) stop("out of memory");
    check(mar_neighbours(vae, p.lantern_metric, spied.near_count, spied.near, &err), err.text);
    p.spec = "vanilla";
    check(mar_session_create(target, vae, &p, BATCH, &s), mar_error(m));
    kern_queue *k = mar_session_queue(s);
    spied.real = k->discrete, k->discrete = &spied_ops;
    make_images(s, first, images);
    print_sums(argument[1], first, images, of_name, OF_SUMS, &spied.sum[0][0]);
    for (int i = 0; i < spied.count; i++)
        print_sums(spied.methods[i].options, first, images, sum_name, SUMS, &spied.methods[i].sum[0][0]);
    k->discrete = spied.real;
    mar_session_free(s);
    for (int i = 0; i < spied.count; i++) free(spied.methods[i].sum);
    free(spied.sum), free(spied.near);
    mar_vae_free(vae);
    mar_model_free(draft);
    mar_model_free(target);
    mar_close(m);
    return 0;
}
