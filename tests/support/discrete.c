#include "tests/support/discrete.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/weights.h"
#include "tests/support/race_region.h"
#include "tests/support/support.h"

#include <stdlib.h>

/* --- definitions --- */

static int neighbour_count(const position_laws *l, int x, double *mass)
{
    const double bound = l->rule.bound + l->rule.bound_p * l->p[x];
    double others = 0;
    int n = 1;
    while (n < l->rule.neighbours && n < l->size && others + l->p[l->neighbours[x * l->size + n]] < bound)
        others += l->p[l->neighbours[x * l->size + n++]];
    *mass = l->p[x] + others;
    return n;
}

double plain_accept(const position_laws *l, int x)
{
    double mass = exp(l->rule.log_omega) * l->p[x];
    if (l->rule.neighbours) neighbour_count(l, x, &mass);
    if (l->q[x] == 0) return 1;
    return mass < l->q[x] ? mass / l->q[x] : 1;
}

double plain_residual(const position_laws *l, int rejected, double *g)
{
    double total = 0, mass;
    for (int y = 0; y < l->size; y++) {
        g[y] = fmax(0, l->p[y] - l->q[y] * (l->rule.exclude_neighbours ? 1 : plain_accept(l, y)));
        total += g[y];
    }
    if (!l->rule.exclude_neighbours) return total;
    const int n = neighbour_count(l, rejected, &mass);
    for (int i = 0; i < n; i++) g[l->neighbours[rejected * l->size + i]] = 0;
    total = 0;
    for (int y = 0; y < l->size; y++) total += g[y];
    return total;
}

void circle(int size, int *table)
{
    for (int x = 0; x < size; x++)
        for (int i = 0; i < size; i++) table[x * size + i] = (x + (i % 2 ? (i + 1) / 2 : size - i / 2)) % size;
}

/* --- a sampler --- */

void sampling_open(sampling *g, int threads)
{
    *g = (sampling){.k = open_queue(MAR_DTYPE_F32, threads)};
    g->device = g->k->device;
}

void sampling_create(sampling *g, const spec_model *target, const spec_model *draft, const spec_sampler_options *o,
                     int sequences, int tokens)
{
    mar_err err;
    if (spec_sampler_create(g->k, target, draft, o, sequences, tokens, &g->s, &err) != MAR_OK) fail_msg("%s", err.text);
    g->memory = backend_memory(g->k, spec_sampler_lay_out(g->s, NULL));
    spec_sampler_lay_out(g->s, g->memory);
}

void sampling_close(sampling *g)
{
    spec_sampler_free(g->s);
    g->device->core->free(g->device, g->memory);
    close_queue(g->k);
}

void sampling_begin(spec_sampler *s, const spec_start *first, int sequences)
{
    spec_start start = *first;
    spec_sampler_begin(s);
    for (int i = 0; i < sequences; i++, start.image++) spec_sampler_admit(s, i, &start);
}

void sampling_run(sampling *g, uint64_t first_image, int sequences, int n)
{
    mar_err err;
    g->start.image = first_image;
    g->start.n = n;
    sampling_begin(g->s, &g->start, sequences);
    while (spec_sampler_running(g->s) > 0)
        if (spec_sampler_round(g->s, &err) != MAR_OK) fail_msg("%s", err.text);
    for (int i = 0; i < sequences; i++)
        if (spec_sampler_failed(g->s, i, &err) != MAR_OK) fail_msg("%s", err.text);
}

/* --- scripts --- */

enum { DECISIONS = 256, OUTCOMES = 16 };

/* The decisions of a run in order: chosen outcome, number of outcomes, and their probabilities. */
static struct {
    int length, at; /* number of fixed decisions; index of the next decision */
    int outcome[DECISIONS], outcomes[DECISIONS];
    double probability[DECISIONS][OUTCOMES];
} script;

static fault faulty;
static kern_rows faulty_rows;

static int decide(const double *probability, int outcomes)
{
    const int at = script.at++;
    assert_true(at < DECISIONS && outcomes <= OUTCOMES);
    if (at == script.length) {
        script.length++;
        script.outcomes[at] = outcomes;
        memcpy(script.probability[at], probability, (size_t)outcomes * sizeof *probability);
        int first = 0;
        while (first < outcomes && !(probability[first] > 0)) first++;
        assert_true(first < outcomes);
        script.outcome[at] = first;
    }
    assert_int_equal(script.outcomes[at], outcomes);
    return script.outcome[at];
}

/* Advances to the next run: the last decision with outcomes left takes its next one. Returns 0 if none is left. */
static int advance(void)
{
    while (script.length > 0) {
        const int at = script.length - 1;
        do script.outcome[at]++;
        while (script.outcome[at] < script.outcomes[at] && !(script.probability[at][script.outcome[at]] > 0));
        if (script.outcome[at] < script.outcomes[at]) return 1;
        script.length--;
    }
    return 0;
}

/* --- races in scripts --- */

/* A run's noise by position, as far as its races have decided it. */
enum { POSITIONS = 32 };
static struct {
    int used; /* some draw was a race */
    race_region region[POSITIONS];
    uint32_t tested; /* position of the last test or replacement */
} noise;

static race_region *noise_at(uint32_t position)
{
    assert_true(position < POSITIONS);
    race_region *r = &noise.region[faulty == FAULT_SHARED_NOISE ? 0 : position];
    if (r->corners == 0) *r = race_region_all();
    return r;
}

/* Decides between parts of a position's noise, and keeps the part. */
static int decide_region(race_region *r, const race_region *part, int parts)
{
    double probability[OUTCOMES];
    const double whole = race_region_area(r);
    for (int i = 0; i < parts; i++) {
        probability[i] = race_region_area(&part[i]) / whole;
        if (probability[i] < 1e-10) probability[i] = 0; /* rounding on an edge */
    }
    const int i = decide(probability, parts);
    *r = part[i];
    return i;
}

/* Decides the winner of a race with these weights. Returns -1 if all are 0. */
static int scripted_race(const float *w, int size, uint32_t position)
{
    race_region part[RACE_TOKENS];
    double weight[RACE_TOKENS] = {0}, total = 0;
    for (int x = 0; x < size; x++) total += weight[x] = (double)w[x];
    if (!(total > 0)) return -1;
    for (int x = 0; x < size; x++) part[x] = race_region_won(noise_at(position), weight, size, x);
    return decide_region(noise_at(position), part, size);
}

/* Decides a test by a coin that is uniform by itself, the distribution function of E_0 / sum E. */
static int scripted_noise_passes(double f)
{
    const double below = 1 - sqrt(1 - f), h[] = {1 - below, -below, -below}, rest[] = {below - 1, below, below};
    race_region *r = noise_at(noise.tested), part[] = {race_region_cut(r, h), race_region_cut(r, rest)};
    return decide_region(r, part, 2) == 0;
}

void script_each(void (*body)(void *arg), void (*seen)(void *arg, double weight), void *arg)
{
    script.length = 0;
    do {
        double weight = 1;
        script.at = 0;
        memset(&noise, 0, sizeof noise);
        body(arg);
        assert_int_equal(script.at, script.length);
        for (int i = 0; i < script.length; i++) weight *= script.probability[i][script.outcome[i]];
        seen(arg, weight);
    } while (advance());
}

/* Makes the real decisions with uniforms from the middle of the interval that leads to the script's outcome. */

static int scripted_passes(double f)
{
    if (faulty == FAULT_ALWAYS || f >= 1) return 1;
    if (!(f > 0)) return 0;
    if (faulty == FAULT_NOISE_AS_COIN && noise.used) return scripted_noise_passes(f);
    const int rejected = decide((const double[]){f, 1 - f}, 2);
    const int passes = kern_draft_passes(f, rejected ? (1 + f) / 2 : f / 2);
    assert_int_equal(passes, !rejected);
    return passes;
}

static int scripted_draw(const float *w, int size)
{
    double total = 0, probability[OUTCOMES], below = 0;
    if (faulty == FAULT_SPENT_NOISE && noise.used) return scripted_race(w, size, noise.tested);
    for (int x = 0; x < size; x++) total += (double)w[x];
    if (!(total > 0)) return -1;
    for (int x = 0; x < size; x++) probability[x] = (double)w[x] / total;
    const int x = decide(probability, size);
    for (int y = 0; y < x; y++) below += probability[y];
    assert_int_equal(weights_draw(w, size, below + probability[x] / 2), x);
    return x;
}

static double faulty_accept(double mass, double q)
{
    return faulty == FAULT_SWAPPED ? kern_draft_accept(q, mass) : kern_draft_accept(mass, q);
}

/* Total of q without its elder siblings, or of p without a point. */
static double faulty_total(const float *w, int size)
{
    return faulty == FAULT_SIBLINGS_Q ? 1 : weights_total(w, size);
}

static double faulty_weight(double p, double q, double omega)
{
    return faulty == FAULT_NO_RESIDUAL        ? p
           : faulty == FAULT_SWAPPED_RESIDUAL ? kern_residual_weight(q, p, omega)
                                              : kern_residual_weight(p, q, omega);
}

static double faulty_residual(const float *p, const float *q, int n, double omega, double scale, float *y)
{
    double sum = 0;
    for (int x = 0; x < n; x++) {
        const double w = faulty_weight((double)p[x], (double)q[x], omega);
        sum += w * scale;
        if (y) y[x] = (float)(w * scale);
    }
    return sum;
}

#define kern_draft_passes(f, uniform)  ((void)(uniform), scripted_passes(f))
#define weights_draw(w, size, uniform) ((void)(uniform), scripted_draw(w, size))
#define kern_draft_accept(mass, q)     faulty_accept(mass, q)
#define weights_total(w, size)         faulty_total(w, size)
#define kern_residual_weight(p, q, o)  faulty_weight(p, q, o)
#define cpu_discrete_ops               decided_ops
#define kern_uniform_at(a, purpose, b) (noise.tested = (a)->position, kern_uniform_at(a, purpose, b))
#include "kernels/cpu/discrete.c"
#undef weights_draw
#undef weights_total

/* Drafts of the previous round by position, for FAULT_STALE_Q and FAULT_KEPT_TAIL. */
enum { ROWS = 512 };
static struct {
    int token[POSITIONS];
    float q[POSITIONS][DISCRETE_MOST];
    int has[POSITIONS];
} before;

static void draw_row_by_script(const kern_draw_job *job, int r)
{
    const float *log_probs = job->log_probs + (size_t)job->source[r] * (size_t)job->size;
    int *id = job->id + (size_t)r * (size_t)job->max_draws, n = job->given[r];
    const uint32_t position = job->address[r].position;
    noise.used |= job->race;
    memcpy(id, job->earlier + (size_t)r * (size_t)job->max_draws, (size_t)n * sizeof *id);
    if (faulty == FAULT_KEPT_TAIL && n == 0 && before.has[position] && job->address[r].step > 0)
        id[n++] = before.token[position];
    while (n < job->wanted[r]) {
        float w[DISCRETE_MOST];
        for (int x = 0; x < job->size; x++) w[x] = (float)exp((double)log_probs[x]);
        for (int i = 0; i < n && faulty != FAULT_WITH_REPLACEMENT; i++) w[id[i]] = 0;
        const int x = job->race ? scripted_race(w, job->size, position) : scripted_draw(w, job->size);
        if (x < 0) break;
        id[n++] = x;
    }
    for (int i = 1; i < n && faulty == FAULT_SORTED_SIBLINGS; i++)
        for (int j = i; j > 0 && id[j] < id[j - 1]; j--) {
            const int swap = id[j];
            id[j] = id[j - 1], id[j - 1] = swap;
        }
    job->drawn[r] = n;
}

static void draw_by_script(kern_queue *k, const kern_draw_job *job)
{
    (void)k;
    for (int r = 0; r < job->rows; r++) draw_row_by_script(job, r);
}

/* Verifies blocks of one sequence. They are chains for faults that use the previous round. */
static void verify_by_script(kern_queue *k, const kern_block_job *real)
{
    kern_block_job job = *real;
    float q[ROWS * DISCRETE_MOST];
    int row[ROWS], row_p[ROWS];
    const int sites = job.node[job.blocks] + job.blocks;
    const uint32_t first = job.address[0].position;
    assert_true(sites <= ROWS && job.size <= DISCRETE_MOST);
    for (int i = 0; i < sites; i++) {
        row[i] = job.q[i] < 0 ? -1 : i;
        row_p[i] = faulty == FAULT_WRONG_BONUS && i == sites - 1 && job.p[i] >= 0 ? job.p[0] : job.p[i];
        if (job.q[i] >= 0)
            memcpy(q + i * job.size, job.log_q + (size_t)job.q[i] * (size_t)job.size, (size_t)job.size * sizeof *q);
        if (faulty == FAULT_STALE_Q && job.address[0].step > 0 && row[i] >= 0 && before.has[first + (uint32_t)i])
            memcpy(q + i * job.size, before.q[first + (uint32_t)i], (size_t)job.size * sizeof *q);
        if (faulty == FAULT_POINT_AS_LAW && row[i] < 0 && i < sites - 1) {
            row[i] = i;
            for (int x = 0; x < job.size; x++) q[i * job.size + x] = (float)-log(job.size);
        }
    }
    memset(before.has, 0, sizeof before.has);
    for (int n = 0; n < job.node[1] && job.blocks == 1; n++) {
        if (job.parent[n] != n - 1 || first + (uint32_t)n >= POSITIONS || job.q[n] < 0) break;
        before.has[first + (uint32_t)n] = 1;
        before.token[first + (uint32_t)n] = job.draft[n];
        memcpy(before.q[first + (uint32_t)n], job.log_q + (size_t)job.q[n] * (size_t)job.size,
               (size_t)job.size * sizeof *q);
    }
    job.log_q = q, job.q = row, job.p = row_p;
    decided_ops.verify(k, &job);
}

static const kern_discrete_ops scripted_ops = {cpu_probs, draw_by_script, verify_by_script, cpu_top};

void script_install(sampling *g, fault f)
{
    cpu_device *d = (cpu_device *)(void *)g->device;
    if (d->rows != &faulty_rows) faulty_rows = *d->rows;
    faulty_rows.residual = faulty_residual;
    d->rows = &faulty_rows;
    faulty = f;
    g->k->discrete = &scripted_ops;
}

typedef struct {
    sampling g;
    const toy *p;
    int n;
    double *law, expected;
} one_round;

static void run_round(void *arg)
{
    one_round *r = arg;
    mar_err err;
    sampling_begin(r->g.s, &(spec_start){.n = r->n}, 1);
    assert_ok(spec_sampler_round(r->g.s, &err), &err);
}

static void extend(const one_round *r, int *x, int i, double weight)
{
    if (i == r->n) {
        r->law[toy_number(r->p, x, i)] += weight;
        return;
    }
    for (int y = 0; y < r->p->size; y++) {
        x[i] = y;
        extend(r, x, i + 1, weight * exp((double)toy_law(r->p, x, i)[y]));
    }
}

static void round_seen(void *arg, double weight)
{
    one_round *r = arg;
    const int known = spec_sampler_known(r->g.s, 0);
    int x[32];
    memcpy(x, spec_sampler_tokens(r->g.s, 0), (size_t)known * sizeof *x);
    r->expected += weight * known;
    extend(r, x, known, weight);
}

double round_law(const toy *p, const toy *q, const spec_sampler_options *o, int n, double *law)
{
    const spec_model target = {p->size, (void *)(uintptr_t)p, toy_laws, NULL},
                     draft = {q->size, (void *)(uintptr_t)q, toy_laws, NULL};
    one_round r = {.p = p, .n = n, .law = law};
    memset(law, 0, (size_t)toy_sequences(p, n) * sizeof *law);
    sampling_open(&r.g, 1);
    script_install(&r.g, FAULT_NONE);
    sampling_create(&r.g, &target, &draft, o, 1, n);
    script_each(run_round, round_seen, &r);
    sampling_close(&r.g);
    return r.expected;
}
