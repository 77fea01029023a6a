/* The distribution of the path verifier alone. Drafts come from one linear-Gaussian chain. The real operations verify
 * and replace them against another chain. The result must have the other chain's distribution, whose marginals are
 * known in closed form. Gaps between the two chains range from none to disjoint. The same tests must catch mutants.
 *
 * A chain is a head that knows its Gaussian data exactly: its x0 is linear in the state. The operations get its output
 * as eps and v. All seeds are fixed. Each of the 121 checks fails a correct verifier with probability 1e-6 at most. So
 * about one choice of all seeds in eight thousand fails. */
#include "kernels/path.h"
#include "tests/support/brief.h"
#include "tests/support/path_mutants.h"
#include "tests/support/statistics.h"
#include "tests/support/support.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 20, CHANNELS_MAX = 2, TOKENS = 500, SIDE_BY_SIDE = 2, ROWS = TOKENS * SIDE_BY_SIDE };
static const uint64_t seed = 20260711;
static const double rare = 1e-6, sigmas = 4.9; /* both tails of a normal beyond 4.9 sigmas together have 1e-6 */

/* --- chains ------------------------------------------------------------------------------------------------------- */

typedef double vector[CHANNELS_MAX];
typedef double matrix[CHANNELS_MAX][CHANNELS_MAX];

/* Gaussian data, and the step width of chains to it */
typedef struct {
    double mean, variance, covariance; /* of every channel, and between two channels */
    double v;                          /* of the head's output, at all indices */
} data;

/* A chain's distribution: at index i the head predicts x0 = slope[i] x + offset[i]. */
typedef struct {
    int steps, channels;
    double log_temperature;
    kern_chain_coef coef[STEPS_MAX];
    matrix slope[STEPS_MAX];
    vector offset[STEPS_MAX];
    double v;
} chain;

/* The top step is long, so that it matters like the others. */
static double abar_of(int index, int steps)
{
    if (index < 0) return 1;
    if (steps == 2) return index ? 0.2 : 0.8;
    if (index == steps - 1) return 0.02;
    const double cosine = cos((index + 1) * 1.2 / steps);
    return cosine * cosine;
}

static kern_chain_coef coef_of(int index, int steps)
{
    const double abar = abar_of(index, steps), before = abar_of(index - 1, steps), beta = 1 - abar / before;
    const double least = index ? beta * (1 - before) / (1 - abar) : 0.5 * beta;
    return (kern_chain_coef){.x0_x = (float)sqrt(1 / abar),
                             .x0_prediction = (float)sqrt(1 / abar - 1),
                             .coef_x0 = (float)(sqrt(before) * beta / (1 - abar)),
                             .coef_xt = (float)(sqrt(abar / before) * (1 - before) / (1 - abar)),
                             .log_var_min = (float)log(least),
                             .log_var_max = (float)log(beta),
                             .noise = index ? 1 : 0};
}

/* E[x0 | x] = m + A (x - a m), A = a S (a^2 S + (1 - a^2) I)^-1, a = sqrt(abar), S the data's covariance. Both matrices
 * have equal diagonals, so that sums and differences of the channels do not mix. */
static chain chain_of(int steps, int channels, double temperature, const data *d)
{
    chain l = {.steps = steps, .channels = channels, .log_temperature = log(temperature), .v = d->v};
    for (int i = 0; i < steps; i++) {
        const double abar = abar_of(i, steps), a = sqrt(abar);
        const double c = channels == 2 ? d->covariance : 0, sum = d->variance + c, difference = d->variance - c;
        const double along = a * sum / (abar * sum + 1 - abar);
        const double across = a * difference / (abar * difference + 1 - abar);
        l.coef[i] = coef_of(i, steps);
        l.slope[i][0][0] = l.slope[i][1][1] = (along + across) / 2;
        l.slope[i][0][1] = l.slope[i][1][0] = channels == 2 ? (along - across) / 2 : 0;
        for (int j = 0; j < 2; j++) l.offset[i][j] = d->mean * (1 - a * along);
    }
    return l;
}

/* The mean after an index is a x + b y + offset, where y is the other channel. */
typedef struct {
    double a, b, offset, std;
} transition;

static transition transition_of(const chain *l, int i)
{
    const kern_chain_coef *c = &l->coef[i];
    const double part = (l->v + 1) / 2, log_var = part * c->log_var_max + (1 - part) * c->log_var_min;
    return (transition){c->coef_x0 * l->slope[i][0][0] + c->coef_xt, c->coef_x0 * l->slope[i][0][1],
                        c->coef_x0 * l->offset[i][0], exp(0.5 * log_var + l->log_temperature)};
}

/* Writes mean and standard deviation of a channel of the state before an index. Index -1 means the token. */
static void marginal(const chain *l, int index, double *mean, double *std)
{
    double m = 0, variance = 1, covariance = 0;
    for (int i = l->steps - 1; i > index; i--) {
        const transition t = transition_of(l, i);
        const double v = variance, c = covariance;
        m = (t.a + t.b) * m + t.offset;
        variance = (t.a * t.a + t.b * t.b) * v + 2 * t.a * t.b * c + (i ? t.std * t.std : 0);
        covariance = (t.a * t.a + t.b * t.b) * c + 2 * t.a * t.b * v;
    }
    *mean = m;
    *std = sqrt(variance);
}

/* --- paths -------------------------------------------------------------------------------------------------------- */

/* Writes the head's output [2C] at a state. */
static void say(const chain *l, int index, const float *x, float *out)
{
    for (int c = 0; c < l->channels; c++) {
        const double x0 =
            l->slope[index][c][0] * x[0] + (l->channels == 2 ? l->slope[index][c][1] * x[1] : 0) + l->offset[index][c];
        out[c] = (float)((l->coef[index].x0_x * x[c] - x0) / l->coef[index].x0_prediction);
        out[l->channels + c] = (float)l->v;
    }
}

static void draw_normals(uint64_t key, uint64_t image, int step, float *out)
{
    uint32_t words[4];
    kern_random_words(key, step ? KERN_NOISE_STEP : KERN_NOISE_INIT, image, 0, (uint32_t)step, 0, words);
    kern_normal2(words, out);
}

/* Draws a path: its record [steps][KERN_EVALUATED][C], and the token. */
static void draw_path(const chain *l, uint64_t key, uint64_t image, float *record, float *token)
{
    const int channels = l->channels;
    float x[2], out[4], eps[2];
    draw_normals(key, image, 0, x);
    for (int i = l->steps - 1; i >= 0; i--) {
        float *at = record + i * KERN_EVALUATED * channels;
        say(l, i, x, out);
        draw_normals(key, image, i + 1, eps);
        for (int c = 0; c < channels; c++) {
            const float mean = kern_chain_mean(&l->coef[i], x[c], out[c]),
                        part = kern_chain_fraction(out[channels + c]);
            at[c] = x[c];
            at[KERN_EVALUATED_X0 * channels + c] = kern_speculation_x0(&l->coef[i], x[c], mean);
            at[KERN_EVALUATED_FRACTION * channels + c] = part;
            x[c] = mean +
                   expf(kern_chain_log_std(&l->coef[i], part) + (float)l->log_temperature) * eps[c] * l->coef[i].noise;
        }
    }
    memcpy(token, x, (size_t)channels * sizeof *x);
}

/* Statistics of an accepted or replaced token */
enum { TOKEN, TOP, MIDDLE, LOWEST, NOISE_TOP, NOISE_MIDDLE, NOISE_LOWEST, NEIGHBOURS, PRODUCT, SEEN };
static const char *const seen_names[SEEN] = {"token",
                                             "x_T",
                                             "middle state",
                                             "lowest state",
                                             "noise of the top step",
                                             "noise of the middle step",
                                             "noise of the last noisy step",
                                             "neighbouring states",
                                             "product"};

/* Returns the noise that chain l must have added after an index; it is a standard normal. */
static float noise_of(const chain *l, const float *record, int index)
{
    const float *x = record + index * KERN_EVALUATED * l->channels, *after = x - KERN_EVALUATED * l->channels;
    const transition t = transition_of(l, index);
    return (float)((after[0] - t.a * x[0] - (l->channels == 2 ? t.b * x[1] : 0) - t.offset) / t.std);
}

static void see(const chain *l, const float *record, const float *token, float *seen[SEEN], int n)
{
    const int row = KERN_EVALUATED * l->channels, middle = l->steps / 2;
    seen[TOKEN][n] = token[0];
    seen[TOP][n] = record[(l->steps - 1) * row];
    seen[MIDDLE][n] = record[middle * row];
    seen[LOWEST][n] = record[0];
    seen[NOISE_TOP][n] = noise_of(l, record, l->steps - 1);
    seen[NOISE_MIDDLE][n] = noise_of(l, record, middle);
    seen[NOISE_LOWEST][n] = noise_of(l, record, 1);
    seen[NEIGHBOURS][n] = record[middle * row] * record[(middle - 1) * row];
    seen[PRODUCT][n] = l->channels == 2 ? token[0] * token[1] : token[0] * record[(l->steps - 1) * row];
}

/* --- the verifier ------------------------------------------------------------------------------------------------- */

typedef struct {
    kern_queue *k;
    chain p, q;
    float *record; /* [ROWS][steps][KERN_EVALUATED][C] rows drawn from one distribution */
    float *out;    /* [ROWS][steps][2C] head output of the other distribution */
    float token[ROWS * CHANNELS_MAX], last[ROWS * CHANNELS_MAX];
    double log_ratio[ROWS];
    uint64_t seed[ROWS], image[ROWS];
    int position[ROWS], group[ROWS], order[ROWS], marked[ROWS], first[ROWS];
    float *seen[SEEN], *plain[SEEN]; /* [n] of the verifier's tokens, and of chain p's tokens */
    long n, accepted, candidates;    /* candidates up to the kept one, over replaced tokens */
    double overlap, overlap_squares; /* sums of min(1, P/Q) and its square over drafts, by the test's own densities */
    int endless;                     /* too many candidates were rejected in a row */
} verifier;

/* Draws rows from one distribution, and compares them with the other's. */
static void draw_and_compare(verifier *v, const chain *from, const chain *other, int rows)
{
    const int row = from->steps * KERN_EVALUATED * from->channels, words = from->steps * 2 * from->channels;
    for (int r = 0; r < rows; r++) {
        v->seed[r] = seed;
        draw_path(from, seed, v->image[r], v->record + r * row, v->token + r * from->channels);
        for (int i = 0; i < from->steps; i++)
            say(other, i, v->record + r * row + i * KERN_EVALUATED * from->channels,
                v->out + r * words + i * 2 * from->channels);
    }
    const kern_path_job job = {.paths = rows,
                               .channels = from->channels,
                               .conditions = 1,
                               .steps = from->steps,
                               .stride = row,
                               .path = v->record,
                               .out = v->out,
                               .coef = from->coef,
                               .log_temperature = (float)from->log_temperature,
                               .log_ratio = v->log_ratio,
                               .last = v->last};
    v->k->head->path_ratio(v->k, &job);
}

static void decide(verifier *v, int candidates, int rows, int groups)
{
    const kern_path_verdict job = {.rows = rows,
                                   .candidates = candidates,
                                   .log_ratio = v->log_ratio,
                                   .step = 1,
                                   .seed = v->seed,
                                   .image = v->image,
                                   .position = v->position,
                                   .group = v->group,
                                   .order = v->order,
                                   .groups = groups,
                                   .marked = v->marked,
                                   .first = v->first};
    v->k->head->path_decide(v->k, &job);
}

/* Returns log P/Q of a path, by the test's own densities. */
static double own_log_ratio(const verifier *v, const float *record)
{
    const int channels = v->p.channels;
    double sum = 0;
    for (int i = v->p.steps - 1; i > 0; i--) {
        const float *x = record + i * KERN_EVALUATED * channels, *after = x - KERN_EVALUATED * channels;
        const transition p = transition_of(&v->p, i), q = transition_of(&v->q, i);
        for (int c = 0; c < channels; c++) {
            const double y = channels == 2 ? x[1 - c] : 0;
            const double a = (after[c] - p.a * x[c] - p.b * y - p.offset) / p.std;
            const double b = (after[c] - q.a * x[c] - q.b * y - q.offset) / q.std;
            sum += log(q.std / p.std) + 0.5 * (b * b - a * a);
        }
    }
    return sum;
}

/* Replaces the tokens numbered in `tokens` by residual draws, with several candidates of each side by side. Candidate n
 * of a token has the noise of image number token + (n + 1) 2^40. */
static void replace(verifier *v, int *tokens, int count)
{
    enum { LONG = 100000 };
    const int row = v->p.steps * KERN_EVALUATED * v->p.channels;
    for (int drawn = 0; count && !(v->endless |= drawn > LONG); drawn += SIDE_BY_SIDE) {
        int left = 0;
        for (int r = 0; r < count * SIDE_BY_SIDE; r++) {
            const int number = drawn + r % SIDE_BY_SIDE;
            v->group[r] = r / SIDE_BY_SIDE;
            v->order[r] = number;
            v->image[r] = (uint64_t)tokens[r / SIDE_BY_SIDE] + ((uint64_t)(number + 1) << 40);
        }
        draw_and_compare(v, &v->p, &v->q, count * SIDE_BY_SIDE);
        decide(v, 1, count * SIDE_BY_SIDE, count);
        for (int g = 0; g < count; g++) {
            if (v->first[g] == INT_MAX) {
                tokens[left++] = tokens[g];
                continue;
            }
            const int r = g * SIDE_BY_SIDE + v->first[g] - drawn;
            see(&v->p, v->record + r * row, v->token + r * v->p.channels, v->seen, tokens[g]);
            v->candidates += v->first[g] + 1;
        }
        count = left;
    }
}

/* Verifies tokens first .. first+TOKENS-1. An accepted draft becomes P's token from the draft's last state. */
static void verify_some(verifier *v, int first)
{
    const int row = v->p.steps * KERN_EVALUATED * v->p.channels;
    int rejected[TOKENS], count = 0;
    for (int r = 0; r < TOKENS; r++) {
        v->image[r] = (uint64_t)(first + r);
        v->group[r] = v->order[r] = r;
    }
    draw_and_compare(v, &v->q, &v->p, TOKENS);
    for (int r = 0; r < TOKENS; r++) {
        const double overlap = exp(fmin(0, own_log_ratio(v, v->record + r * row)));
        v->overlap += overlap;
        v->overlap_squares += overlap * overlap;
    }
    decide(v, 0, TOKENS, TOKENS);
    for (int r = 0; r < TOKENS; r++) {
        assert_int_equal(v->first[r], v->marked[r] ? r : INT_MAX);
        if (v->marked[r])
            rejected[count++] = first + r;
        else
            see(&v->p, v->record + r * row, v->last + r * v->p.channels, v->seen, first + r);
    }
    v->n += TOKENS;
    v->accepted += TOKENS - count;
    replace(v, rejected, count);
}

static void draw_plain(verifier *v, int n)
{
    for (int i = 0; i < n; i++) {
        draw_path(&v->p, seed + 1, (uint64_t)i, v->record, v->token);
        see(&v->p, v->record, v->token, v->plain, i);
    }
}

static verifier *open_verifier(kern_queue *k, int steps, int channels, double temperature, const data *p, const data *q,
                               int n)
{
    verifier *v = calloc(1, sizeof *v);
    assert_non_null(v);
    v->k = k;
    v->p = chain_of(steps, channels, temperature, p);
    v->q = chain_of(steps, channels, temperature, q);
    v->record = malloc((size_t)(ROWS * steps * KERN_EVALUATED * channels) * sizeof *v->record);
    v->out = malloc((size_t)(ROWS * steps * 2 * channels) * sizeof *v->out);
    assert_true(v->record && v->out);
    for (int i = 0; i < SEEN; i++) {
        v->seen[i] = malloc((size_t)n * sizeof *v->seen[i]);
        v->plain[i] = malloc((size_t)n * sizeof *v->plain[i]);
        assert_true(v->seen[i] && v->plain[i]);
    }
    return v;
}

static void close_verifier(verifier *v)
{
    for (int i = 0; i < SEEN; i++) free(v->seen[i]), free(v->plain[i]);
    free(v->record), free(v->out), free(v);
}

/* --- the distribution --------------------------------------------------------------------------------------------- */

/* Returns the least p-value of all statistics. */
static double least_p(verifier *v, int *which)
{
    static const int states[SEEN] = {[TOKEN] = -1, [TOP] = 0, [MIDDLE] = 0, [LOWEST] = 0};
    double least = 1;
    for (int i = 0; i < SEEN; i++) {
        const int index = i == TOP ? v->p.steps - 1 : i == MIDDLE ? v->p.steps / 2 : states[i];
        double mean, std;
        marginal(&v->p, index, &mean, &std);
        if (i >= NOISE_TOP) mean = 0, std = 1;
        const double p = i < NEIGHBOURS ? stat_ks_normal_p(v->seen[i], (int)v->n, mean, std)
                                        : stat_ks_two_sample_p(v->seen[i], (int)v->n, v->plain[i], (int)v->n);
        if (p < least) least = p, *which = i;
    }
    return least;
}

/* Returns the integral of min(P, Q) of a chain of two steps and one channel, by the midpoint rule in both states. */
static double integrated_overlap(const verifier *v)
{
    enum { ACROSS = 400, ALONG = 4000 };
    const transition p = transition_of(&v->p, 1), q = transition_of(&v->q, 1);
    double sum = 0;
    for (int i = 0; i < ACROSS; i++) {
        const double x = -8 + 16 * (i + 0.5) / ACROSS, mean_p = p.a * x + p.offset, mean_q = q.a * x + q.offset;
        const double low = fmin(mean_p - 9 * p.std, mean_q - 9 * q.std);
        const double width = fmax(mean_p + 9 * p.std, mean_q + 9 * q.std) - low;
        double within = 0;
        for (int j = 0; j < ALONG; j++) {
            const double y = low + width * (j + 0.5) / ALONG, a = (y - mean_p) / p.std, b = (y - mean_q) / q.std;
            within += fmin(exp(-0.5 * a * a) / p.std, exp(-0.5 * b * b) / q.std);
        }
        sum += exp(-0.5 * x * x) * 16 / ACROSS * within * width / ALONG;
    }
    return sum / 6.283185307179586; /* for the two normals */
}

enum { WRONG_RATE = 1, WRONG_CANDIDATES = 2, WRONG_LAW = 4, ENDLESS = 8 };

/* Runs n tokens through the verifier and all checks. `shown` prints the statistics. Returns the WRONG_ flags, or
 * ENDLESS. */
static int run(verifier *v, int n, int shown)
{
    for (int first = 0; first < n && !v->endless; first += TOKENS) verify_some(v, first);
    if (v->endless) return ENDLESS;
    draw_plain(v, n);
    int which = 0;
    const double p = least_p(v, &which), tokens = (double)v->n, replaced = (double)(v->n - v->accepted);
    const double rate = (double)v->accepted / tokens, estimate = v->overlap / tokens;
    const double variance = fmax(0, v->overlap_squares / tokens - estimate * estimate);
    const int integrated = v->p.steps == 2;
    const double overlap = integrated ? integrated_overlap(v) : estimate;
    /* An estimate uses the same drafts, so that only the decisions on them add a difference. */
    const double spread = sqrt(fmax(0, overlap * (1 - overlap) - (integrated ? 0 : variance)) / tokens) + 1e-9;
    const double tv = 1 - overlap, mean = replaced > 0 ? (double)v->candidates / replaced : 0;
    const double off = fabs(rate - overlap) / spread;
    /* The number of candidates is geometric with mean 1/TV. The estimate of TV has an error of its own. */
    const double own = integrated ? 0 : sqrt(variance / tokens) / (tv * tv);
    const double mean_spread = sqrt((1 - tv) / (tv * tv) / fmax(1, replaced) + own * own) + 1e-9;
    const double mean_off = replaced > 0 && tv > 0 ? fabs(mean - 1 / tv) / mean_spread : 0;
    if (shown)
        print_message("    accepted %.4f, 1 - TV %.4f (%.1f sigma); %.3f candidates, 1/TV %.4g (%.1f sigma); "
                      "least p %.2g (%s)\n",
                      rate, overlap, off, mean, tv > 0 ? 1 / tv : 0, mean_off, p, seen_names[which]);
    return (off < sigmas ? 0 : WRONG_RATE) | (mean_off < sigmas ? 0 : WRONG_CANDIDATES) | (p > rare ? 0 : WRONG_LAW);
}

typedef struct {
    const char *name;
    int steps, channels;
    double temperature;
    data p, q;
    int n;
} gap;

/* A million draws in all. The change lane makes a quarter of them with two steps, and half with twenty. */
static const gap gaps[] = {
    {"two steps, identical", 2, 1, 1, {0.5, 0.3, 0, 0.2}, {0.5, 0.3, 0, 0.2}, 50000},
    {"two steps, close", 2, 1, 1, {0.5, 0.3, 0, 0.2}, {0.51, 0.3, 0, 0.2}, 150000},
    {"two steps, wider", 2, 1, 1, {0.5, 0.3, 0, 0.2}, {0.5, 0.3, 0, 0.6}, 150000},
    {"two steps, near", 2, 1, 0.9, {0.5, 0.3, 0, 0.2}, {0.7, 0.4, 0, 0}, 150000},
    {"two steps, far", 2, 1, 1, {0.5, 0.3, 0, 0.2}, {2, 0.5, 0, -0.3}, 150000},
    {"two steps, disjoint", 2, 1, 1, {0.5, 0.3, 0, 0.2}, {60, 0.3, 0, 0.2}, 50000},
    {"twenty steps, identical", 20, 2, 1, {0.5, 0.3, 0.2, 0.2}, {0.5, 0.3, 0.2, 0.2}, 20000},
    {"twenty steps, close", 20, 2, 1, {0.5, 0.3, 0.2, 0.2}, {0.51, 0.3, 0.2, 0.2}, 80000},
    {"twenty steps, near", 20, 2, 0.95, {0.5, 0.3, 0.2, 0.2}, {0.6, 0.35, 0.1, 0.15}, 80000},
    {"twenty steps, far", 20, 2, 1, {0.5, 0.3, 0.2, 0.2}, {1.2, 0.5, -0.1, 0.4}, 80000},
    {"twenty steps, disjoint", 20, 2, 1, {0.5, 0.3, 0.2, 0.2}, {30, 0.3, 0.2, 0.2}, 40000},
};
enum { GAPS = sizeof gaps / sizeof *gaps };

/* Returns the draws for a gap in this build's lane. */
static int draws_of(const gap *g)
{
    return g->n / (test_all ? 1 : g->steps == 2 ? 4 : 2);
}

static verifier *open_gap(kern_queue *k, const gap *g)
{
    return open_verifier(k, g->steps, g->channels, g->temperature, &g->p, &g->q, g->n);
}

TEST_CASE(paths_have_the_law_of_the_target)
{
    kern_queue *k = open_queue(MAR_DTYPE_F32, 0);
    long draws = 0;
    for (int i = 0; i < GAPS; i++) {
        verifier *v = open_gap(k, &gaps[i]);
        print_message("%s\n", gaps[i].name);
        assert_int_equal(run(v, draws_of(&gaps[i]), 1), 0);
        if (strstr(gaps[i].name, "identical")) assert_int_equal(v->accepted, v->n); /* the log ratio is exactly 0 */
        if (strstr(gaps[i].name, "disjoint")) assert_int_equal(v->accepted, 0);
        draws += v->n;
        close_verifier(v);
    }
    assert_int_equal(draws, test_all ? 1000000 : 325000);
    close_queue(k);
}

/* Each mutant must be caught at one gap at least, with two steps and with twenty. The distribution of the resulting
 * tokens must show it, whatever else is wrong. */
TEST_CASE(mutants_are_caught)
{
    static const struct {
        path_mutant mutant;
        int left_out;
        int by; /* flag that must be set */
    } mutants[] = {
        {PATH_SWAPPED, 0, WRONG_LAW},        {PATH_STEP_LEFT_OUT, 1, WRONG_LAW},
        {PATH_STEP_LEFT_OUT, -1, WRONG_LAW}, {PATH_STEP_LEFT_OUT, -10, WRONG_LAW},
        {PATH_KEEPS_ALL, 0, WRONG_LAW},      {PATH_LAST_COUNTED, 0, WRONG_LAW | WRONG_RATE | WRONG_CANDIDATES}};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 0);
    for (size_t m = 0; m < sizeof mutants / sizeof *mutants; m++)
        for (int steps = 2; steps <= 20; steps += 18) {
            int wrong = 0;
            if (mutants[m].left_out < -steps + 1) continue; /* the chain has no such step */
            for (int i = GAPS - 1; i >= 0 && !(wrong & mutants[m].by); i--) {
                if (gaps[i].steps != steps || strstr(gaps[i].name, "identical") || strstr(gaps[i].name, "disjoint"))
                    continue; /* here the mutants equal the original, or keep no candidate */
                path_mutation mutation;
                verifier *v = open_gap(k, &gaps[i]);
                path_mutant_begin(&mutation, k, mutants[m].mutant, mutants[m].left_out);
                wrong = run(v, draws_of(&gaps[i]) / (test_all ? 2 : 1), 0);
                path_mutant_end(&mutation, k);
                print_message("%s (%d), %s:%s%s%s%s\n", path_mutant_names[mutants[m].mutant], mutants[m].left_out,
                              gaps[i].name, wrong & WRONG_RATE ? " wrong acceptance" : "",
                              wrong & WRONG_CANDIDATES ? " wrong number of candidates" : "",
                              wrong & WRONG_LAW ? " wrong law" : "", wrong & ENDLESS ? " endless" : "");
                close_verifier(v);
            }
            if (!(wrong & mutants[m].by))
                fail_msg("%s, %d steps: not caught", path_mutant_names[mutants[m].mutant], steps);
        }
    close_queue(k);
}
