/* Probabilities of discrete tokens, sampling, and verification of drafts (kernels/discrete.h). */
#include "kernels/discrete.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/weights.h"

#include <math.h>
#include <string.h>

/* Multiply-adds equivalent to one entry of a distribution. */
enum { PROBS_WORK = 40, DRAW_WORK = 20, RACE_WORK = 40, TOP_WORK = 4, BLOCK_WORK = 100 };

static const kern_rows *discrete_rows(const kern_queue *k)
{
    return ((const cpu_queue *)(const void *)k)->d->rows;
}

/* --- probabilities --------------------------------------------------------------------------------------------- */

typedef struct {
    const kern_probs_job *job;
    const kern_rows *rows;
} probs_loop;

/* Writes row r's logits first .. first + n - 1 after guidance and temperature. */
static inline void piece_of_logits(const kern_probs_job *job, int r, int first, int n, float *y)
{
    const size_t size = (size_t)job->size, at = (size_t)r * size + (size_t)first;
    const float *with = job->logits + at, *without = with + (size_t)job->rows * size;
    const float divisor = job->temperature > 0 ? fmaxf(job->temperature, 1e-5f) : 1;
    if (job->conditions == 2 && job->cfg[r] > 1) {
        const float cfg = job->cfg[r];
        for (int i = 0; i < n; i++) y[i] = (without[i] + (with[i] - without[i]) * cfg) / divisor;
    } else {
        for (int i = 0; i < n; i++) y[i] = with[i] / divisor;
    }
}

/* Writes the row's logits in pieces of a constant length, so that the compiler vectorises them. */
static void logits_of(const kern_probs_job *job, int r, float *y)
{
    int i = 0;
    for (; i + WEIGHTS_PIECE <= job->size; i += WEIGHTS_PIECE) piece_of_logits(job, r, i, WEIGHTS_PIECE, y + i);
    piece_of_logits(job, r, i, job->size - i, y + i);
}

/* Returns bits whose unsigned order is that of the floats; -0 maps to 0. */
static uint32_t key_of(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The point where the running sum of weights by falling x passes a limit. */
typedef struct {
    int passes;
    uint32_t key; /* key_of the x there */
    double above; /* sum over all larger x */
} crossing;

enum { KEY_DIGIT = 11, KEY_DIGITS = 1 << KEY_DIGIT };

/* Finds the crossing; weight NULL counts each as 1. Finds the key's three digits, highest first. Each digit needs the
 * sums of the entries that share the digits found so far. */
static crossing cpu_find_crossing(const float *x, const float *weight, int size, double limit)
{
    static const int shift[] = {21, 10, 0};
    crossing c = {1, 0, 0};
    for (int step = 0; step < 3 && c.passes; step++) {
        double sum[KEY_DIGITS] = {0};
        const uint32_t known = step == 0 ? 0 : ~0u << shift[step - 1];
        for (int i = 0; i < size; i++) {
            const uint32_t key = key_of(x[i]);
            if ((key & known) == c.key) sum[key >> shift[step] & (KEY_DIGITS - 1)] += weight ? (double)weight[i] : 1;
        }
        int digit = KEY_DIGITS - 1;
        while (digit >= 0 && !(c.above + sum[digit] > limit)) c.above += sum[digit--];
        c.passes = digit >= 0;
        c.key |= (uint32_t)(digit < 0 ? 0 : digit) << shift[step];
    }
    return c;
}

/* Removes tokens below the top_k-th largest logit. */
static void cpu_keep_top_k(float *row, int size, int top_k)
{
    if (top_k <= 0 || top_k >= size) return;
    const crossing c = cpu_find_crossing(row, NULL, size, top_k - 0.5);
    for (int x = 0; x < size; x++)
        if (key_of(row[x]) < c.key) row[x] = -INFINITY;
}

/* Restricts a row of logits, the largest `top`, to the top-p tokens. A token stays if the running sum over more likely
 * tokens, and equal ones before it, has not passed p. Meanwhile the row holds exponentials. */
static void cpu_keep_top_p(const probs_loop *l, int r, float *row, float top)
{
    const kern_probs_job *job = l->job;
    if (!(job->top_p < 1)) return;
    const double limit = (double)job->top_p * l->rows->exponentials(row, job->size, top, row);
    crossing c = cpu_find_crossing(row, row, job->size, limit);
    for (int x = 0; x < job->size; x++) {
        const uint32_t key = key_of(row[x]);
        const double e = (double)row[x];
        const int stays = !c.passes || key > c.key || (key == c.key && c.above <= limit);
        if (c.passes && key == c.key) c.above += e;
        if (stays && e > 0)
            piece_of_logits(job, r, x, 1, &row[x]);
        else
            row[x] = -INFINITY;
    }
}

static void make_probs(const probs_loop *l, int r)
{
    const kern_probs_job *job = l->job;
    const int size = job->size;
    float *row = job->log_probs + (size_t)job->place[r] * (size_t)size;
    logits_of(job, r, row);
    const float top = l->rows->maximum(row, size);
    if (!isfinite(top)) {
        for (int x = 0; x < size; x++) row[x] = NAN;
        return;
    }
    if (!(job->temperature > 0)) {
        int first = 0;
        while (row[first] < top) first++;
        for (int x = 0; x < size; x++) row[x] = x == first ? 0 : -INFINITY;
        return;
    }
    cpu_keep_top_k(row, size, job->top_k);
    cpu_keep_top_p(l, r, row, top);
    const double log_sum = (double)top + log(l->rows->exponentials(row, size, top, NULL));
    for (int x = 0; x < size; x++) row[x] = (float)((double)row[x] - log_sum);
}

static void probs_body(void *arg, int first, int last, int thread)
{
    (void)thread;
    for (int r = first; r < last; r++) make_probs(arg, r);
}

static void cpu_probs(kern_queue *k, const kern_probs_job *job)
{
    probs_loop l = {job, discrete_rows(k)};
    if (kern_live(k)) cpu_for(cpu_of(k), job->rows, (double)PROBS_WORK * job->rows * job->size, probs_body, &l);
}

/* --- draws ----------------------------------------------------------------------------------------------------- */

enum { PARTS = 256 }; /* parts of a distribution: a draw searches one of them */

typedef struct {
    const kern_draw_job *job;
    const kern_rows *rows;
} draw_loop;

/* A row to draw from: its distribution, the drawn tokens, and the others' weights. */
typedef struct {
    const draw_loop *l;
    const float *log_probs;
    const int *id;
    int drawn;
    int part; /* tokens of a part, a multiple of WEIGHTS_PIECE */
    double sum[PARTS];
} draw_row;

/* Computes the weights of the tokens of a piece from `first`, without the drawn ones; returns their number. */
static int weigh_piece(const draw_row *d, int first, float weight[WEIGHTS_PIECE])
{
    const int left = d->l->job->size - first, n = left < WEIGHTS_PIECE ? left : WEIGHTS_PIECE;
    d->l->rows->exponentials(d->log_probs + first, n, 0, weight);
    for (int i = 0; i < d->drawn; i++)
        if (d->id[i] >= first && d->id[i] < first + n) weight[d->id[i] - first] = 0;
    return n;
}

static int part_end(const draw_row *d, int part)
{
    const int end = (part + 1) * d->part;
    return end < d->l->job->size ? end : d->l->job->size;
}

static void weigh_part(draw_row *d, int part)
{
    d->sum[part] = 0;
    for (int i = part * d->part; i < part_end(d, part); i += WEIGHTS_PIECE) {
        float weight[WEIGHTS_PIECE];
        d->sum[part] += weights_sum(weight, weigh_piece(d, i, weight));
    }
}

static int draw_token(const draw_row *d, int parts, double uniform)
{
    double total = 0;
    for (int i = 0; i < parts; i++) total += d->sum[i];
    if (!(total > 0)) return -1;
    double rest = uniform * total;
    int part = 0;
    for (int i = 0; i < parts; i++) {
        if (d->sum[i] > 0) part = i;
        if (d->sum[i] > rest) break;
        if (i + 1 < parts) rest -= d->sum[i];
    }
    int token = -1;
    for (int i = part * d->part; i < part_end(d, part); i += WEIGHTS_PIECE) {
        float weight[WEIGHTS_PIECE];
        const int n = weigh_piece(d, i, weight), found = weights_find(weight, n, rest);
        const double sum = weights_sum(weight, n);
        if (found >= 0) token = i + found;
        if (sum > rest) break;
        rest -= sum;
    }
    return token;
}

static void draw_body(void *arg, int first, int last, int thread)
{
    const draw_loop *l = arg;
    const kern_draw_job *job = l->job;
    const int piece = WEIGHTS_PIECE * cpu_divide_up(job->size, WEIGHTS_PIECE * PARTS);
    const int parts = cpu_divide_up(job->size, piece);
    (void)thread;
    for (int r = first; r < last; r++) {
        int *id = job->id + (size_t)r * (size_t)job->max_draws;
        draw_row d = {.l = l,
                      .log_probs = job->log_probs + (size_t)job->source[r] * (size_t)job->size,
                      .id = id,
                      .drawn = job->given[r],
                      .part = piece};
        for (int i = 0; i < d.drawn; i++) id[i] = job->earlier[(size_t)r * (size_t)job->max_draws + (size_t)i];
        for (int i = 0; i < parts && d.drawn < job->wanted[r]; i++) weigh_part(&d, i);
        while (d.drawn < job->wanted[r]) {
            const int x = draw_token(&d, parts, kern_uniform_at(&job->address[r], KERN_NOISE_STEP, (uint32_t)d.drawn));
            if (x < 0) break;
            id[d.drawn++] = x;
            weigh_part(&d, x / d.part);
        }
        job->drawn[r] = d.drawn;
    }
}

/* The tokens of the least times so far, least first. */
typedef struct {
    int count, wanted;
    int id[KERN_RACE_MOST];
    double time[KERN_RACE_MOST];
    double limit; /* times from here on do not count */
} podium;

static void podium_enter(podium *d, int token, double time)
{
    if (!(time < d->limit)) return;
    int place = d->count < d->wanted ? d->count++ : d->count - 1;
    for (; place > 0 && time < d->time[place - 1]; place--)
        d->id[place] = d->id[place - 1], d->time[place] = d->time[place - 1];
    d->id[place] = token, d->time[place] = time;
    if (d->count == d->wanted) d->limit = d->time[d->count - 1];
}

/* Runs row r's race among tokens with times below `limit`. The noise of a piece of tokens is in registers only. */
static podium run_race(const draw_loop *l, int r, double limit)
{
    const kern_draw_job *job = l->job;
    const kern_address *a = &job->address[r];
    const float *log_probs = job->log_probs + (size_t)job->source[r] * (size_t)job->size;
    podium d = {.wanted = job->wanted[r], .limit = limit};
    for (int i = 0; i < job->size && d.wanted > 0; i += KERN_RACE_PIECE) {
        const int n = cpu_lesser(job->size - i, KERN_RACE_PIECE);
        uint64_t open = l->rows->race(log_probs + i, n, a->seed, a->image, a->position, i, kern_race_limit(d.limit));
        for (; open; open &= open - 1) {
            const int x = i + __builtin_ctzll(open);
            if (log_probs[x] >= -87) podium_enter(&d, x, kern_race_time(a, x, (double)log_probs[x]));
        }
    }
    return d;
}

static void race_body(void *arg, int first, int last, int thread)
{
    const draw_loop *l = arg;
    const kern_draw_job *job = l->job;
    (void)thread;
    for (int r = first; r < last; r++) {
        podium d = run_race(l, r, KERN_RACE_FIRST);
        if (d.count < d.wanted) d = run_race(l, r, INFINITY);
        memcpy(job->id + (size_t)r * (size_t)job->max_draws, d.id, (size_t)d.count * sizeof *d.id);
        job->drawn[r] = d.count;
    }
}

static void cpu_draw(kern_queue *k, const kern_draw_job *job)
{
    draw_loop l = {job, discrete_rows(k)};
    const double work = (double)(job->race ? RACE_WORK : DRAW_WORK) * job->rows * job->size;
    if (kern_live(k)) cpu_for(cpu_of(k), job->rows, work, job->race ? race_body : draw_body, &l);
}

/* --- verification ---------------------------------------------------------------------------------------------- */

typedef struct {
    const kern_block_job *job;
    const kern_rows *rows;
} block_loop;

/* A block under verification. */
typedef struct {
    const kern_block_job *job;
    const kern_rows *rows;
    int block, drafts;
    const int *draft, *parent; /* of the block */
    const int *row_p, *row_q;  /* rows of the block's sites */
    int *verdict, *id, *site;  /* of the block */
    float *p, *q;              /* in the block's workspace */
} walk;

/* A site under verification: log probabilities until an array of probabilities is needed. */
typedef struct {
    const float *log_p, *log_q; /* log_q NULL: q is the point `draft` */
    float *p, *q;               /* NULL at first; q stays NULL if it is a point */
    double total;               /* normaliser of p */
    const kern_discrete_rule *rule;
    const kern_address *address;
    int draft; /* current draft */
} site;

static double cpu_p_of(const site *s, int x)
{
    return s->p ? (double)s->p[x] / s->total : exp((double)s->log_p[x]);
}

static double cpu_q_of(const site *s, int x)
{
    return !s->log_q ? x == s->draft : s->q ? (double)s->q[x] : exp((double)s->log_q[x]);
}

static kern_address cpu_address_of(const walk *w, int position)
{
    kern_address a = w->job->address[w->block];
    a.position += (uint32_t)position;
    return a;
}

static site cpu_site_of(const walk *w, int node, int position, const kern_address *address)
{
    const size_t size = (size_t)w->job->size;
    const int row_q = w->row_q[node + 1];
    return (site){.log_p = w->job->log_p + (size_t)w->row_p[node + 1] * size,
                  .log_q = row_q < 0 ? NULL : w->job->log_q + (size_t)row_q * size,
                  .rule = &w->job->rule[(size_t)w->block * (size_t)w->job->positions + (size_t)position],
                  .address = address};
}

/* Returns the first draft numbered `from` or more that follows `node` (-1: the prefix); w->drafts if there is none. */
static int cpu_next_child(const walk *w, int node, int from)
{
    while (from < w->drafts && w->parent[from] != node) from++;
    return from;
}

static void load_p(const walk *w, site *s)
{
    w->rows->exponentials(s->log_p, w->job->size, 0, w->p);
    s->p = w->p;
    s->total = 1;
}

static void cpu_load_probs(const walk *w, site *s)
{
    if (s->p) return;
    load_p(w, s);
    if (!s->log_q) return;
    w->rows->exponentials(s->log_q, w->job->size, 0, w->q);
    s->q = w->q;
}

static const int *cpu_nearest_to(const walk *w, int draft)
{
    return w->job->neighbours + (size_t)draft * (size_t)w->job->neighbour_count;
}

/* Returns the number of tokens of A, the neighbours of the draft with itself first, and their total p in *mass. */
static int cpu_neighbour_set(const walk *w, const site *s, double *mass)
{
    const int *nearest = cpu_nearest_to(w, s->draft);
    const int most = cpu_lesser(s->rule->neighbours, w->job->neighbour_count);
    const double p = cpu_p_of(s, s->draft), bound = kern_neighbour_bound(s->rule, p);
    double others = 0;
    int count = 1;
    for (; count < most; count++) {
        const double next = others + cpu_p_of(s, nearest[count]);
        if (!(next < bound)) break;
        others = next;
    }
    *mass = p + others;
    return count;
}

/* Returns f of the draft, not capped at 1. */
static double acceptance(const walk *w, const site *s)
{
    double mass;
    if (s->rule->neighbours)
        cpu_neighbour_set(w, s, &mass);
    else
        mass = exp(s->rule->log_omega) * cpu_p_of(s, s->draft);
    return kern_draft_accept(mass, cpu_q_of(s, s->draft));
}

static int cpu_accepts_token(const walk *w, const site *s, int sibling)
{
    const double uniform = kern_uniform_at(s->address, KERN_NOISE_VERIFY, (uint32_t)sibling);
    return kern_draft_passes(acceptance(w, s), uniform);
}

/* Replaces p by the draft's residual. Returns the sum of its weights. */
static double cpu_make_residual(const walk *w, site *s)
{
    const int size = w->job->size;
    const double omega = kern_residual_omega(s->rule), p = cpu_p_of(s, s->draft);
    if (s->rule->neighbours && s->rule->exclude_neighbours) {
        double mass;
        const int *nearest = cpu_nearest_to(w, s->draft);
        for (int i = cpu_neighbour_set(w, s, &mass) - 1; i >= 0; i--) s->p[nearest[i]] = 0;
    } else if (!s->q) {
        s->p[s->draft] = (float)(kern_residual_weight(p, 1, omega) * s->total);
    }
    if (!s->q) return s->total = weights_total(s->p, size);
    const double total = w->rows->residual(s->p, s->q, size, omega, 1, NULL);
    if (total > 0) w->rows->residual(s->p, s->q, size, omega, 1 / total, s->p);
    return total;
}

/* Removes the draft from q. Returns 0 if q is empty then. */
static int cpu_remove_draft(const walk *w, const site *s)
{
    if (!s->q) return 1;
    s->q[s->draft] = 0;
    const double rest = weights_total(s->q, w->job->size);
    for (int x = 0; x < w->job->size && rest > 0; x++) s->q[x] = (float)((double)s->q[x] / rest);
    return rest > 0;
}

/* Outcome of a draft's rejection. */
typedef enum {
    NEXT_SIBLING, /* the site has the distributions for it */
    REPLACED,     /* *id is the replacement; -1 if p has a NaN */
    KEPT          /* p = q up to rounding: nothing can replace the draft */
} outcome;

static outcome cpu_reject_block(const walk *w, site *s, int has_next, int *id)
{
    const double uniform = kern_uniform_at(s->address, KERN_NOISE_RESIDUAL, 0), p = cpu_p_of(s, s->draft);
    cpu_load_probs(w, s);
    const double total = cpu_make_residual(w, s);
    if (kern_draft_stays(s->rule, p, total)) return KEPT;
    if (total > 0 && has_next && cpu_remove_draft(w, s)) return NEXT_SIBLING;
    *id = weights_draw(s->p, w->job->size, uniform);
    return REPLACED;
}

/* Verifies the drafts that follow `node` one by one, from draft number `child` on; with `first_only` that one alone.
 * Returns the accepted one, or -1 with the replacement in *id. */
static int cpu_verify_children(const walk *w, int node, int position, int child, int first_only, int *id)
{
    const kern_address address = cpu_address_of(w, position);
    site s = cpu_site_of(w, node, position, &address);
    for (int sibling = 0;; sibling++) {
        const int next = first_only ? w->drafts : cpu_next_child(w, node, child + 1);
        *id = s.draft = w->draft[child];
        if (cpu_accepts_token(w, &s, sibling)) break;
        const outcome o = cpu_reject_block(w, &s, next < w->drafts, id);
        if (o == KEPT) break;
        if (o == REPLACED) {
            w->verdict[child] = KERN_DRAFT_REPLACED;
            return -1;
        }
        child = next;
    }
    w->verdict[child] = KERN_DRAFT_ACCEPTED;
    return child;
}

/* Draws a token from p alone. */
static int cpu_draw_bonus(const walk *w, int node, int position)
{
    const kern_address a = cpu_address_of(w, position);
    site s = cpu_site_of(w, node, position, &a);
    load_p(w, &s);
    return weights_draw(s.p, w->job->size, kern_uniform_at(&a, KERN_NOISE_RESIDUAL, 0));
}

/* Follows accepted drafts down from the prefix, then writes the replacement or the bonus token. */
static void cpu_walk_down(const walk *w, int *count)
{
    for (int node = -1;;) {
        const int position = count[KERN_BLOCK_FINAL], child = cpu_next_child(w, node, 0);
        w->site[position] = node + 1;
        if (child == w->drafts) {
            if (w->row_p[node + 1] < 0) return;
            w->id[position] = cpu_draw_bonus(w, node, position);
            count[KERN_BLOCK_FINAL]++;
            return;
        }
        node = cpu_verify_children(w, node, position, child, 0, &w->id[position]);
        count[KERN_BLOCK_FINAL]++;
        if (node < 0) return;
        count[KERN_BLOCK_ACCEPTED]++;
    }
}

/* Follows the first path behind the final tokens: records its sites, and verifies its drafts with past_rejection. */
static void cpu_walk_tail(const walk *w, int *count)
{
    count[KERN_BLOCK_LENGTH] = count[KERN_BLOCK_FINAL];
    for (int node = -1, position = 0;; position++) {
        const int child = cpu_next_child(w, node, 0);
        if (child == w->drafts) return;
        if (position >= count[KERN_BLOCK_FINAL]) {
            w->site[position] = node + 1;
            if (w->job->past_rejection) {
                cpu_verify_children(w, node, position, child, 1, &w->id[position]);
                count[KERN_BLOCK_LENGTH] = position + 1;
            }
        }
        node = child;
    }
}

static void blocks_body(void *arg, int first, int last, int thread)
{
    const block_loop *l = arg;
    const kern_block_job *job = l->job;
    (void)thread;
    for (int b = first; b < last; b++) {
        const int node = job->node[b], sites = node + b;
        const size_t positions = (size_t)b * (size_t)job->positions;
        const size_t place = (size_t)(job->place ? job->place[b] : b) * (size_t)job->positions;
        float *workspace = job->workspace + (size_t)b * 2 * (size_t)job->size;
        const walk w = {.job = job,
                        .rows = l->rows,
                        .block = b,
                        .drafts = job->node[b + 1] - node,
                        .draft = job->draft + node,
                        .parent = job->parent + node,
                        .row_p = job->p + sites,
                        .row_q = job->q + sites,
                        .verdict = job->verdict + node,
                        .id = job->id + place,
                        .site = job->site + positions,
                        .p = workspace,
                        .q = workspace + job->size};
        int *count = job->count + (size_t)b * KERN_BLOCK_COUNTS;
        for (int n = 0; n < w.drafts; n++) w.verdict[n] = KERN_DRAFT_DROPPED;
        for (int i = 0; i < KERN_BLOCK_COUNTS; i++) count[i] = 0;
        cpu_walk_down(&w, count);
        cpu_walk_tail(&w, count);
    }
}

static void cpu_verify_blocks(kern_queue *k, const kern_block_job *job)
{
    block_loop l = {job, discrete_rows(k)};
    if (kern_live(k)) cpu_for(cpu_of(k), job->blocks, (double)BLOCK_WORK * job->blocks * job->size, blocks_body, &l);
}

/* --- most likely tokens ----------------------------------------------------------------------------------------- */

typedef struct {
    const float *log_probs;
    const int *source;
    int size, count;
    int *id;
    float *log_p;
} top_loop;

static void top_body(void *arg, int first, int last, int thread)
{
    const top_loop *l = arg;
    (void)thread;
    for (int r = first; r < last; r++) {
        const float *row = l->log_probs + (size_t)l->source[r] * (size_t)l->size;
        int *id = l->id + (size_t)r * (size_t)l->count;
        float *log_p = l->log_p + (size_t)r * (size_t)l->count;
        for (int i = 0; i < l->count; i++) id[i] = -1, log_p[i] = -INFINITY;
        for (int x = 0; x < l->size; x++) {
            int place = l->count;
            if (!(row[x] > log_p[place - 1])) continue;
            for (place--; place > 0 && row[x] > log_p[place - 1]; place--)
                id[place] = id[place - 1], log_p[place] = log_p[place - 1];
            id[place] = x, log_p[place] = row[x];
        }
    }
}

static void cpu_top(kern_queue *k, const float *log_probs, const int *source, int rows, int size, int count, int *id,
                    float *log_p)
{
    top_loop l = {log_probs, source, size, count, id, log_p};
    if (kern_live(k) && count > 0) cpu_for(cpu_of(k), rows, (double)TOP_WORK * rows * size, top_body, &l);
}

const kern_discrete_ops cpu_discrete_ops = {cpu_probs, cpu_draw, cpu_verify_blocks, cpu_top};
