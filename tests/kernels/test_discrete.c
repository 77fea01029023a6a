/* Operations on discrete tokens: laws against PyTorch, draws against the laws, the likeliest tokens, and blocks of a
 * large vocabulary against the definitions. */
#include "kernels/discrete.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, SIZE = 331 };

/* As in tests/golden/make_sampling.py. */
static const struct {
    float cfg, temperature;
    int top_k;
    float top_p;
} settings[] = {{1, 1, 0, 1},        {4, 1, 0, 1},       {4, 1, 50, 1},     {1.5f, 0.7f, 0, 0.9f},
                {2, 1.3f, 40, 0.8f}, {1, 1e-7f, 0, 1},   {4, 1, 0, 0.001f}, {1, 1, 1000, 1},
                {1, 1, 7, 1},        {7.5f, 0.5f, 1, 1}, {1, 2, 0, 0.999f}};
enum { SETTINGS = sizeof settings / sizeof *settings };

static void make_laws(kern_queue *k, const float *logits, int i, float temperature, float *log_law)
{
    float cfg[ROWS];
    int place[ROWS];
    for (int r = 0; r < ROWS; r++) cfg[r] = settings[i].cfg, place[r] = ROWS - 1 - r;
    const kern_law_job job = {.rows = ROWS,
                              .size = SIZE,
                              .conditions = settings[i].cfg > 1 ? 2 : 1,
                              .logits = logits,
                              .cfg = cfg,
                              .temperature = temperature,
                              .top_k = settings[i].top_k,
                              .top_p = settings[i].top_p,
                              .log_law = log_law,
                              .place = place};
    k->discrete->laws(k, &job);
}

static void laws_are_the_official_ones(void **state)
{
    (void)state;
    wt_file *f = golden_open("sampling");
    kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
    float *logits = golden_f32(f, "logits", 2 * ROWS * SIZE), *law = malloc(sizeof *law * ROWS * SIZE);
    for (int i = 0; i < SETTINGS; i++) {
        char name[2][32];
        snprintf(name[0], sizeof name[0], "probs_%d", i), snprintf(name[1], sizeof name[1], "greedy_%d", i);
        float *probs = golden_f32(f, name[0], ROWS * SIZE), *greedy = golden_f32(f, name[1], ROWS);
        make_laws(k, logits, i, settings[i].temperature, law);
        for (int r = settings[i].top_p < 1; r < ROWS; r++) {
            const float *row = law + (ROWS - 1 - r) * SIZE;
            double sum = 0;
            for (int x = 0; x < SIZE; x++) {
                const double p = exp((double)row[x]), expected = (double)probs[r * SIZE + x];
                sum += p;
                if (!(fabs(p - expected) <= 2e-6 * expected + 1e-12) || (p > 1e-37 && expected == 0))
                    fail_msg("setting %d, row %d, token %d: %g, PyTorch %g", i, r, x, p, expected);
            }
            assert_true(fabs(sum - 1) < 2e-6);
        }
        make_laws(k, logits, i, 0, law);
        for (int r = settings[i].top_p < 1; r < ROWS; r++) {
            const float *row = law + (ROWS - 1 - r) * SIZE, *point = row;
            while (*point != 0) point++;
            for (int x = 0; x < SIZE; x++) assert_true(row + x == point || row[x] == -INFINITY);
            if (r > 0) assert_int_equal(point - row, greedy[r]); /* row 0 has equal ones */
        }
        free(probs), free(greedy);
    }
    free(logits), free(law);
    wt_close(f);
    close_queue(k);
}

/* Of equal logits the first is the point; top-p counts them by their numbers; top-k keeps them all. */
static void equal_logits(void **state)
{
    (void)state;
    const float logits[] = {1, 3, 3, 2, 3, 3}, cfg = 1;
    const int place = 0;
    static const struct {
        float temperature;
        int top_k;
        float top_p;
        int stay; /* a bit for each token */
    } cases[] = {{0, 0, 1, 2},         {1, 2, 1, 2 | 4 | 16 | 32}, {1, 0, 0.3f, 2 | 4}, {1, 0, 0.5f, 2 | 4 | 16},
                 {1, 4, 0.49f, 2 | 4}, {1, 5, 1, 63 - 1},          {1, 1, 0.2f, 2}};
    float law[6];
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kern_law_job job = {.rows = 1,
                                  .size = 6,
                                  .conditions = 1,
                                  .logits = logits,
                                  .cfg = &cfg,
                                  .temperature = cases[i].temperature,
                                  .top_k = cases[i].top_k,
                                  .top_p = cases[i].top_p,
                                  .log_law = law,
                                  .place = &place};
        k->discrete->laws(k, &job);
        for (int x = 0; x < 6; x++)
            if ((law[x] > -INFINITY) != (cases[i].stay >> x & 1)) fail_msg("case %zu, token %d: %g", i, x, law[x]);
    }
    close_queue(k);
}

static void not_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    for (int i = 0; i < 4; i++)
        for (int at = 0; at < 40; at += 39) {
            float logits[40], law[40], cfg = 1;
            int place = 0, id, drawn, zero = 0, one = 1;
            for (int x = 0; x < 40; x++) logits[x] = (float)x;
            logits[at] = bad[i % 2];
            k->discrete->laws(k, &(kern_law_job){.rows = 1,
                                                 .size = 40,
                                                 .conditions = 1,
                                                 .logits = logits,
                                                 .cfg = &cfg,
                                                 .temperature = i < 2 ? 1 : 0,
                                                 .top_k = 3,
                                                 .top_p = 0.5f,
                                                 .log_law = law,
                                                 .place = &place});
            for (int x = 0; x < 40; x++) assert_true(isnan(law[x]));
            k->discrete->draw(k, &(kern_draw_job){.rows = 1,
                                                  .size = 40,
                                                  .log_law = law,
                                                  .law = &zero,
                                                  .most = 1,
                                                  .given = &zero,
                                                  .wanted = &one,
                                                  .earlier = &zero,
                                                  .address = &(kern_address){1, 2, 3, 4},
                                                  .id = &id,
                                                  .drawn = &drawn});
            assert_int_equal(drawn, 0);
            float log_p[2];
            int top[2];
            k->discrete->top(k, law, &zero, 1, 40, 2, top, log_p);
            assert_int_equal(top[0], -1);
        }
    close_queue(k);
}

/* A law of `size` tokens, some of them impossible. */
static void random_law(uint64_t seed, int size, double spread, float *law)
{
    double sum = 0;
    for (int x = 0; x < size; x++) {
        uint32_t w[4];
        float normal[4];
        kern_random_words(seed, KERN_NOISE_INIT, 0, (uint32_t)x, 0, 0, w);
        kern_normal4(w, normal);
        law[x] = w[3] % 7 == 0 ? -INFINITY : (float)spread * normal[0];
        sum += exp((double)law[x]);
    }
    for (int x = 0; x < size; x++) law[x] = (float)((double)law[x] - log(sum));
}

/* The first token at which the running sum passes. */
static int plain_draw(const double *weight, int size, double uniform)
{
    double total = 0, sum = 0;
    for (int x = 0; x < size; x++) total += weight[x];
    for (int x = 0; x < size; x++)
        if ((sum += weight[x]) > uniform * total) return x;
    return -1;
}

static void draws(void **state)
{
    (void)state;
    enum { BIG = 16384, N = 40, K = 4 };
    static const int sizes[] = {1, 3, 63, 64, 65, 4099, BIG};
    static float law[2 * BIG];
    static double weight[BIG];
    kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int size = sizes[i];
        int of[N], given[N], wanted[N], earlier[N * K] = {0}, id[N * K], drawn[N];
        kern_address a[N];
        for (int s = 0; s < 2; s++) random_law(10 * i + (uint64_t)s, size, 2, law + s * size);
        if (size == 1) law[0] = law[1] = 0;
        for (int r = 0; r < N; r++) {
            of[r] = r % 2, wanted[r] = r % (K + 1), given[r] = r % 3 == 0 && wanted[r] > 0;
            earlier[r * K] = size / 2;
            a[r] = (kern_address){5, (uint64_t)r, 7, 1};
        }
        k->discrete->draw(k, &(kern_draw_job){N, size, law, of, K, given, wanted, earlier, a, id, drawn});
        for (int r = 0; r < N; r++) {
            int n = given[r], left = 0;
            for (int x = 0; x < size; x++) weight[x] = exp((double)law[of[r] * size + x]);
            if (n) weight[earlier[r * K]] = 0, assert_int_equal(id[r * K], earlier[r * K]);
            for (; n < wanted[r]; n++) {
                const int x = plain_draw(weight, size, kern_uniform_at(&a[r], KERN_NOISE_STEP, (uint32_t)n));
                if (x < 0) break;
                assert_int_equal(id[r * K + n], x);
                weight[x] = 0;
            }
            assert_int_equal(drawn[r], n);
            for (int x = 0; x < size; x++) left += weight[x] > 0;
            assert_true(n == wanted[r] || left == 0);
        }
    }
    close_queue(k);
}

static void the_likeliest(void **state)
{
    (void)state;
    enum { BIG = 5000, N = 9, COUNT = 13 };
    static float law[N * BIG];
    int of[N], id[N * COUNT];
    float log_p[N * COUNT];
    kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
    for (int r = 0; r < N; r++) {
        of[r] = N - 1 - r;
        random_law((uint64_t)r, BIG, 1, law + r * BIG);
        for (int x = 0; x < BIG && r == 0; x++) law[x] = floorf(law[x]); /* many equal ones */
        for (int x = 5; x < BIG && r == 1; x++) law[BIG + x] = -INFINITY;
    }
    k->discrete->top(k, law, of, N, BIG, COUNT, id, log_p);
    for (int r = 0; r < N; r++) {
        const float *row = law + of[r] * BIG;
        char listed[BIG] = {0};
        for (int i = 0; i < COUNT; i++) {
            int best = -1;
            for (int x = 0; x < BIG; x++)
                if (!listed[x] && row[x] > (best < 0 ? -INFINITY : row[best])) best = x;
            assert_int_equal(id[r * COUNT + i], best);
            assert_true(log_p[r * COUNT + i] == (best < 0 ? -INFINITY : row[best]));
            if (best >= 0) listed[best] = 1;
        }
    }
    close_queue(k);
}

/* --- blocks of a large vocabulary --- */

enum { BIG = 2048, BLOCKS = 12, DRAFTS = 3, NEAR = 40 };

typedef struct {
    float p[BLOCKS * BIG], q[BLOCKS * BIG];
    int neighbours[BIG * NEAR];
} big_laws;

/* One position with siblings by the definitions, in the order of the header: tokens and verdicts. */
static int plain_site(const big_laws *l, int b, const int *draft, const kern_discrete_rule *rule, int point,
                      const kern_address *a, int *accepted)
{
    static double p[BIG], q[BIG], g[BIG];
    for (int x = 0; x < BIG; x++) p[x] = exp((double)l->p[b * BIG + x]), q[x] = exp((double)l->q[b * BIG + x]);
    for (int k = 0; k < DRAFTS; k++) {
        const int x = draft[k];
        double mass[BIG], total = 0, rest = 0;
        int near[BIG];
        for (int y = 0; y < BIG; y++) {
            if (point) q[y] = y == x;
            mass[y] = exp(rule->log_omega) * p[y], near[y] = 1;
            if (!rule->neighbours) continue;
            double others = 0;
            for (; near[y] < rule->neighbours; near[y]++) {
                const double next = p[l->neighbours[y * NEAR + near[y]]];
                if (!(others + next < rule->bound + rule->bound_p * p[y])) break;
                others += next;
            }
            mass[y] = p[y] + others;
        }
        if (kern_uniform_at(a, KERN_NOISE_VERIFY, (uint32_t)k) * q[x] < mass[x]) {
            *accepted = k;
            return x;
        }
        for (int y = 0; y < BIG; y++)
            g[y] = fmax(0, p[y] - (rule->without || q[y] == 0 ? q[y] : q[y] * fmin(1, mass[y] / q[y])));
        for (int i = 0; i < near[x] && rule->without; i++) g[l->neighbours[x * NEAR + i]] = 0;
        for (int y = 0; y < BIG; y++) total += g[y], rest += y == x ? 0 : q[y];
        for (int y = 0; y < BIG; y++) p[y] = g[y] / total, q[y] = y == x ? 0 : q[y] / rest;
    }
    *accepted = -1;
    return plain_draw(p, BIG, kern_uniform_at(a, KERN_NOISE_RESIDUAL, 0));
}

static void blocks(void **state)
{
    (void)state;
    static const kern_discrete_rule rules[] = {{0},
                                               {.log_omega = 0.4},
                                               {.log_omega = -0.9},
                                               {.log_omega = -INFINITY},
                                               {.neighbours = NEAR, .bound = 0.05, .without = 1},
                                               {.neighbours = NEAR, .bound = 0.05},
                                               {.neighbours = 10, .bound_p = 3, .without = 1},
                                               {.neighbours = 10, .bound_p = 3}};
    enum { TRIALS = 40 };
    big_laws *l = malloc(sizeof *l);
    float *workspace = malloc(sizeof *workspace * BLOCKS * 2 * BIG);
    int accepted = 0, replaced = 0;
    for (int b = 0; b < BLOCKS; b++)
        random_law(100 + (uint64_t)b, BIG, 1, l->p + b * BIG), random_law(200 + (uint64_t)b, BIG, 1, l->q + b * BIG);
    for (int x = 0; x < BIG; x++)
        for (int i = 0; i < NEAR; i++) l->neighbours[x * NEAR + i] = (x + i * 37) % BIG;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        for (int trial = 0; trial < TRIALS; trial++) {
            int node[BLOCKS + 1], draft[BLOCKS * DRAFTS], parent[BLOCKS * DRAFTS], p[BLOCKS * (DRAFTS + 1)],
                q[BLOCKS * (DRAFTS + 1)], verdict[BLOCKS * DRAFTS], id[BLOCKS * 2], law[BLOCKS * 2],
                count[BLOCKS * KERN_BLOCK_COUNTS], given[BLOCKS] = {0}, wanted[BLOCKS], of[BLOCKS], drawn[BLOCKS];
            kern_discrete_rule rule[BLOCKS * 2];
            kern_address a[BLOCKS];
            for (int b = 0; b < BLOCKS; b++) {
                a[b] = (kern_address){9, (uint64_t)b, (uint32_t)trial, (uint32_t)r};
                rule[2 * b] = rules[r], wanted[b] = DRAFTS, of[b] = b;
            }
            k->discrete->draw(k,
                              &(kern_draw_job){BLOCKS, BIG, l->q, of, DRAFTS, given, wanted, draft, a, draft, drawn});
            for (int b = 0; b <= BLOCKS; b++) node[b] = b * DRAFTS;
            for (int i = 0; i < BLOCKS * DRAFTS; i++) parent[i] = -1;
            for (int i = 0; i < BLOCKS * (DRAFTS + 1); i++) {
                const int b = i / (DRAFTS + 1), first = i % (DRAFTS + 1) == 0;
                p[i] = first ? b : b % 2 ? BLOCKS - 1 - b : -1; /* some have no bonus token */
                q[i] = b % 3 == 0 ? -1 : b;
            }
            const kern_block_job job = {.size = BIG,
                                        .blocks = BLOCKS,
                                        .node = node,
                                        .draft = draft,
                                        .parent = parent,
                                        .log_p = l->p,
                                        .p = p,
                                        .log_q = l->q,
                                        .q = q,
                                        .positions = 2,
                                        .rule = rule,
                                        .neighbours = l->neighbours,
                                        .neighbour_count = NEAR,
                                        .address = a,
                                        .verdict = verdict,
                                        .id = id,
                                        .law = law,
                                        .count = count,
                                        .workspace = workspace};
            k->discrete->verify(k, &job);
            for (int b = 0; b < BLOCKS; b++) {
                int child;
                const int x = plain_site(l, b, draft + b * DRAFTS, &rules[r], b % 3 == 0, &a[b], &child);
                const int bonus = child >= 0 && b % 2;
                assert_int_equal(id[2 * b], x);
                assert_int_equal(count[b * KERN_BLOCK_COUNTS + KERN_BLOCK_ACCEPTED], child >= 0);
                assert_int_equal(count[b * KERN_BLOCK_COUNTS + KERN_BLOCK_FINAL], 1 + bonus);
                for (int n = 0; n < DRAFTS; n++)
                    assert_int_equal(verdict[b * DRAFTS + n], n == child                     ? KERN_DRAFT_ACCEPTED
                                                              : child < 0 && n == DRAFTS - 1 ? KERN_DRAFT_REPLACED
                                                                                             : KERN_DRAFT_DROPPED);
                if (bonus) {
                    static double weight[BIG];
                    kern_address next = a[b];
                    next.position++;
                    for (int y = 0; y < BIG; y++) weight[y] = exp((double)l->p[(BLOCKS - 1 - b) * BIG + y]);
                    assert_int_equal(id[2 * b + 1],
                                     plain_draw(weight, BIG, kern_uniform_at(&next, KERN_NOISE_RESIDUAL, 0)));
                    assert_int_equal(law[2 * b + 1], child + 1);
                }
                accepted += child >= 0, replaced += child < 0;
            }
        }
    assert_true(accepted > 500 && replaced > 500);
    free(l), free(workspace);
    close_queue(k);
}

/* 0/0 is 1; what rounding rejects where p = q stays; nothing of probability 0 comes out; a NaN shows. */
static void corners(void **state)
{
    (void)state;
    const float laws[] = {-0.6931472f, -INFINITY, -0.6931472f, NAN, NAN, NAN, 0, -INFINITY, -INFINITY};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    static const struct {
        int draft, p, q;
        double log_omega;
        int verdict, id; /* id -2: 0 or 2 */
    } cases[] = {
        {1, 0, 0, 0, KERN_DRAFT_ACCEPTED, 1},          /* 0/0 */
        {1, 0, -1, 0, KERN_DRAFT_REPLACED, -2},        /* a point that p excludes */
        {2, 1, 0, 0, KERN_DRAFT_REPLACED, -1},         /* NaN */
        {2, 1, -1, 0, KERN_DRAFT_REPLACED, -1},        /* NaN */
        {0, 2, 2, -1e-9, KERN_DRAFT_ACCEPTED, 0},      /* p = q = 1 but for rounding */
        {0, 2, -1, 0, KERN_DRAFT_ACCEPTED, 0},         /* greedy */
        {1, 2, -1, 0, KERN_DRAFT_REPLACED, 0},         /* greedy */
        {2, 0, 0, -INFINITY, KERN_DRAFT_REPLACED, -2}, /* nothing is accepted: a draw from p */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int node[] = {0, 1}, parent = -1, p[] = {cases[i].p, -1}, q[] = {cases[i].q, -1}, verdict, id[2], law[2],
            count[KERN_BLOCK_COUNTS];
        float workspace[6];
        const kern_discrete_rule rule[2] = {{.log_omega = cases[i].log_omega}};
        k->discrete->verify(k, &(kern_block_job){.size = 3,
                                                 .blocks = 1,
                                                 .node = node,
                                                 .draft = &cases[i].draft,
                                                 .parent = &parent,
                                                 .log_p = laws,
                                                 .p = p,
                                                 .log_q = laws,
                                                 .q = q,
                                                 .positions = 2,
                                                 .rule = rule,
                                                 .address = &(kern_address){1, 2, 3, 4},
                                                 .verdict = &verdict,
                                                 .id = id,
                                                 .law = law,
                                                 .count = count,
                                                 .workspace = workspace});
        if (verdict != cases[i].verdict || !(cases[i].id == -2 ? id[0] == 0 || id[0] == 2 : id[0] == cases[i].id))
            fail_msg("case %zu: verdict %d, token %d", i, verdict, id[0]);
        assert_int_equal(count[KERN_BLOCK_FINAL], 1);
    }
    close_queue(k);
}

/* LANTERN's own resampler, where the draft has no probability and its neighbours have all that there is: their law is
 * made with the sum 1/2, so that half of the uniforms reject the draft, and no other token is left to replace it. */
static void neighbours_with_all_of_p(void **state)
{
    (void)state;
    const float laws[] = {-INFINITY, -1.3862944f, -1.3862944f, -INFINITY};
    static const int neighbours[] = {0, 1, 2, 1, 2, 0, 2, 1, 0, 3, 0, 1}, draft = 0, parent = -1, node[] = {0, 1};
    const int p[] = {0, -1}, q[] = {-1, -1};
    const kern_discrete_rule rule[2] = {{.neighbours = 3, .bound = 1, .without = 1}};
    int high = 0;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    for (uint32_t step = 0; step < 20; step++) {
        const kern_address a = {1, 2, 3, step};
        int verdict, id[2], law[2], count[KERN_BLOCK_COUNTS];
        float workspace[8];
        k->discrete->verify(k, &(kern_block_job){.size = 4,
                                                 .blocks = 1,
                                                 .node = node,
                                                 .draft = &draft,
                                                 .parent = &parent,
                                                 .log_p = laws,
                                                 .p = p,
                                                 .log_q = laws,
                                                 .q = q,
                                                 .positions = 2,
                                                 .rule = rule,
                                                 .neighbours = neighbours,
                                                 .neighbour_count = 3,
                                                 .address = &a,
                                                 .verdict = &verdict,
                                                 .id = id,
                                                 .law = law,
                                                 .count = count,
                                                 .workspace = workspace});
        high += kern_uniform_at(&a, KERN_NOISE_VERIFY, 0) > 0.51;
        assert_int_equal(verdict, KERN_DRAFT_ACCEPTED);
        assert_int_equal(id[0], draft);
    }
    assert_true(high > 3);
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(laws_are_the_official_ones),
        cmocka_unit_test(equal_logits),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(draws),
        cmocka_unit_test(the_likeliest),
        cmocka_unit_test(blocks),
        cmocka_unit_test(corners),
        cmocka_unit_test(neighbours_with_all_of_p),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
