/* Tests speculation across tokens by whole paths: equality to the bit, and its counts. test_path_law.c tests its
 * distribution. */
#include "mar.h"
#include "mar_measure.h"
#include "specdec/path.h"
#include "tests/support/masked.h"
#include "tests/support/demo.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = DEMO_BATCH };

static const int labels[N] = {3, 9, -1};

/* Generates the tokens of N images, in batches of at most `batch`. Returns the statistics of the last batch in
 * *stats. */
static void generate(const demo *d, const mar_params *p, int batch, float *tokens, mar_stats *stats)
{
    mar_session *s = demo_session(d, p, batch);
    for (int i = 0; i < N; i += batch) {
        const int n = N - i < batch ? N - i : batch;
        assert_session(s, mar_session_begin(s, (uint64_t)(20 + i), labels + i, n));
        demo_finish(s);
        assert_session(s, mar_session_tokens(s, tokens + i * DEMO_TOKENS));
    }
    if (stats) {
        mar_stats_init(stats, sizeof *stats);
        mar_session_get_stats(s, stats);
    }
    mar_session_free(s);
}

/* Returns the models for runs without a draft model. The draft model as target takes a tenth of the time. */
static demo fast_of(const demo *d)
{
    demo fast = *d;
    fast.model = d->draft;
    return fast;
}

/* `draft` is "self", "draft" or "target": the model as its own draft. */
static mar_params params_of(const demo *d, const char *draft, const char *options)
{
    mar_params p = params_with(options);
    p.seed = 5;
    p.spec = "path";
    if (strcmp(draft, "draft") == 0) p.draft = d->draft;
    if (strcmp(draft, "target") == 0) p.draft = d->model;
    return p;
}

static mar_params plain_of(const mar_params *p)
{
    mar_params plain = *p;
    plain.spec = NULL, plain.draft = NULL;
    return plain;
}

/* --- the same to the bit ------------------------------------------------------------------------------------------ */

/* Checks that a model that drafts for itself in the same context is always accepted. The image equals the plain one. */
TEST_CASE(own_draft_is_plain)
{
    static const char *const cases[] = {
        "num_iter 8, num_sampling_steps 10, cfg 2.9, context full, gamma 3",
        "num_iter 8, num_sampling_steps 10, cfg 1, context full, gamma 8, head_spec 4",
        "num_iter 8, num_sampling_steps 10, cfg 2.9, context full, gamma 5, temperature 0.8",
        "num_iter 8, num_sampling_steps 10, cfg 2.9, context full, gamma 4, temperature 0",
        "num_iter 10, cfg 2.9, context full, gamma 4, diff_annealing linear, diff_upper_steps 12, diff_lower_steps 5",
        "num_iter 8, num_sampling_steps 10, cfg 2.9, context prefix, gamma 1, head_spec 3",
        "num_iter 1, num_sampling_steps 10, cfg 2.9, context full, gamma 4",
    };
    static float plain[N * DEMO_TOKENS], tokens[N * DEMO_TOKENS];
    demo d = demo_open(1);
    const demo fast = fast_of(&d);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_params p = params_of(&fast, "target", cases[i]), alone = plain_of(&p);
        mar_stats stats;
        generate(&fast, &alone, N, plain, NULL);
        generate(&fast, &p, N, tokens, &stats);
        if (stats.drafted == 0 || stats.accepted != stats.drafted)
            fail_msg("%s: %ld of %ld accepted", cases[i], stats.accepted, stats.drafted);
        if (memcmp(tokens, plain, sizeof plain) != 0) fail_msg("%s: not the plain image", cases[i]);
        assert_true(stats.accepted_shift == 0);
    }
    demo_close(d);
}

/* Checks that the first step of a model that drafts for itself is drafted with its true conditions. */
TEST_CASE(one_step_is_plain)
{
    static float plain[N * DEMO_TOKENS], tokens[N * DEMO_TOKENS];
    static const char *const cases[] = {"num_iter 1, num_sampling_steps 12, cfg 2.9",
                                        "num_iter 1, num_sampling_steps 12, cfg 1, head_spec 4, gamma auto"};
    demo d = demo_open(1);
    const demo fast = fast_of(&d);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_params p = params_of(&fast, "self", cases[i]), alone = plain_of(&p);
        mar_stats stats;
        generate(&fast, &alone, N, plain, NULL);
        generate(&fast, &p, N, tokens, &stats);
        assert_int_equal(stats.drafted, 0);
        assert_true(stats.passes == 1);
        assert_memory_equal(tokens, plain, sizeof plain);
    }
    demo_close(d);
}

/* Checks that neither the batch nor the threads matter. With few steps many tokens wait for candidates together. How
 * many candidates are drawn at a time depends on that; which one is kept does not. */
TEST_CASE(batch_does_not_matter)
{
    static const char *const cases[][2] = {
        {"self", "num_iter 8, num_sampling_steps 10, cfg 2.9, gamma 4"},
        {"self", "num_iter 3, num_sampling_steps 8, cfg 2.9, gamma 3, head_spec 4"},
        {"self", "num_iter 12, num_sampling_steps 10, cfg 1, gamma 12"},
        {"self", "num_iter 8, cfg 2.9, gamma 4, diff_annealing linear, diff_upper_steps 12, diff_lower_steps 5"},
        {"self", "num_iter 6, num_sampling_steps 8, cfg 2.9, gamma 6, temperature 0"},
        {"draft", "num_iter 8, num_sampling_steps 10, cfg 2.9, gamma 4, context full, head_spec 4"},
        {"draft", "num_iter 4, num_sampling_steps 10, cfg 1, gamma 2, context prefix"},
    };
    enum { CASES = sizeof cases / sizeof *cases };
    static float one[CASES][N * DEMO_TOKENS], others[N * DEMO_TOKENS];
    for (int threads = 1; threads <= 2; threads++) {
        demo d = demo_open(threads);
        const demo fast = fast_of(&d);
        for (size_t i = 0; i < CASES; i++) {
            const demo *models = strcmp(cases[i][0], "self") == 0 ? &fast : &d;
            const mar_params p = params_of(models, cases[i][0], cases[i][1]);
            mar_stats stats;
            if (threads == 1) generate(models, &p, 1, one[i], NULL);
            generate(models, &p, threads == 1 ? N : 2, others, &stats);
            if (threads == 1) assert_true(stats.accepted < stats.drafted); /* there were candidates */
            if (memcmp(others, one[i], sizeof others) != 0)
                fail_msg("%s, %s: another image in another batch", cases[i][0], cases[i][1]);
        }
        demo_close(d);
    }
}

/* --- counts ------------------------------------------------------------------------------------------------------- */

/* Checks the counts of a batch's rounds and tokens. */
static void check_counts(const demo *d, const mar_params *p, int images)
{
    static float tokens[N * DEMO_TOKENS];
    static uint8_t fate[N * DEMO_SEQ];
    static int born[N * DEMO_SEQ], late[N * DEMO_SEQ];
    int made[DEMO_SEQ] = {0}, of_fate[3] = {0}, rounds = 0;
    const int self = !p->draft;
    mar_step steps[DEMO_SEQ];
    mar_stats stats = {.size = sizeof stats};
    mar_steps_plan(p->num_iter, DEMO_SEQ, p->cfg, p->cfg_schedule, steps);
    mar_session *s = demo_session(d, p, N);
    assert_session(s, mar_session_begin(s, 31, labels, images));
    for (int left = p->num_iter; !mar_session_done(s); left = mar_session_steps_left(s), rounds++) {
        assert_int_equal(left, mar_session_steps_left(s));
        assert_session(s, mar_session_step(s));
        assert_true(mar_session_steps_left(s) < left);
    }
    assert_session(s, mar_session_tokens(s, tokens));
    assert_session(s, mar_session_token_status(s, fate, born));
    assert_session(s, mar_session_staleness(s, late));
    mar_session_get_stats(s, &stats);
    for (int i = 0; i < images * DEMO_SEQ; i++) {
        of_fate[fate[i]]++;
        made[born[i]]++;
        assert_int_equal(fate[i] == MAR_TOKEN_TARGET, self && born[i] == 0);
        assert_true(self && fate[i] != MAR_TOKEN_TARGET ? late[i] >= 1 : late[i] == 0);
        assert_true(late[i] <= born[i] && (p->gamma <= 0 || late[i] <= p->gamma));
    }
    for (int i = 0; i < p->num_iter; i++) assert_int_equal(made[i], images * steps[i].predicted);
    assert_int_equal(stats.tokens, images * DEMO_SEQ);
    assert_int_equal(stats.accepted, of_fate[MAR_TOKEN_ACCEPTED]);
    assert_int_equal(stats.drafted, of_fate[MAR_TOKEN_ACCEPTED] + of_fate[MAR_TOKEN_REPLACED]);
    assert_int_equal(stats.round_steps, images * p->num_iter);
    assert_true(stats.rounds <= stats.round_steps);
    if (!p->head_spec) assert_true(stats.residual_tries >= of_fate[MAR_TOKEN_REPLACED]);
    if (p->temperature == 0) assert_int_equal(stats.residual_tries, of_fate[MAR_TOKEN_REPLACED]);
    assert_true(stats.passes == rounds && (images > 1 || stats.rounds == rounds) && stats.plain_s == 0);
    assert_true(stats.contexts >= (p->context == MAR_CONTEXT_FULL || self ? (double)images * p->num_iter : 0));
    assert_true(stats.accepted_shift < 0.01); /* tokens have a standard deviation of 1 */
    mar_session_free(s);
}

TEST_CASE(counts)
{
    static const struct {
        const char *draft, *options;
    } cases[] = {
        {"self", "num_iter 16, num_sampling_steps 8, cfg 2.9, gamma 5"},
        {"self", "num_iter 16, num_sampling_steps 8, cfg 1, gamma 16, head_spec 4"},
        {"self", "num_iter 8, num_sampling_steps 8, cfg 2.9, gamma 1"},
        {"self", "num_iter 64, num_sampling_steps 6, cfg 2.9, gamma 16"},
        {"self", "num_iter 8, num_sampling_steps 8, cfg 2.9, gamma 3, temperature 0"},
        {"self", "num_iter 1, num_sampling_steps 8, cfg 2.9, gamma 8"},
        {"draft", "num_iter 8, num_sampling_steps 8, cfg 2.9, gamma 3, context full"},
        {"draft", "num_iter 8, num_sampling_steps 8, cfg 1, gamma 8, context prefix"},
        {"draft", "num_iter 8, num_sampling_steps 8, cfg 1, gamma 3, context full, head_spec 3"},
    };
    demo d = demo_open(1);
    const demo fast = fast_of(&d);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const demo *models = strcmp(cases[i].draft, "self") == 0 ? &fast : &d;
        const mar_params p = params_of(models, cases[i].draft, cases[i].options);
        check_counts(models, &p, 1);
        check_counts(models, &p, N);
    }
    demo_close(d);
}

/* Checks that with one step a round a model that drafts for itself verifies every token, one step later. */
TEST_CASE(gamma_1_verifies_every_step)
{
    static int late[DEMO_SEQ], born[DEMO_SEQ];
    int first = 0;
    demo d = demo_open(1);
    const mar_params p = params_of(&d, "self", "num_iter 16, num_sampling_steps 8, cfg 2.9, gamma 1");
    mar_session *s = demo_session(&d, &p, 1);
    mar_stats stats = {.size = sizeof stats};
    demo_begin(s, 1);
    for (int step = 0; !mar_session_done(s); step++) {
        assert_int_equal(mar_session_steps_left(s), p.num_iter - step);
        assert_session(s, mar_session_step(s));
    }
    mar_session_get_stats(s, &stats);
    assert_session(s, mar_session_token_status(s, NULL, born));
    assert_session(s, mar_session_staleness(s, late));
    for (int i = 0; i < DEMO_SEQ; i++) assert_int_equal(late[i], born[i] > 0);
    assert_true(stats.passes == p.num_iter && stats.contexts == p.num_iter);
    for (int i = 0; i < DEMO_SEQ; i++) first += born[i] == 0;
    assert_int_equal(stats.drafted, DEMO_SEQ - first);
    mar_session_free(s);
    demo_close(d);
}

/* Checks that a round ends with the first step in which a token is replaced. Otherwise it has its full length. */
TEST_CASE(stops_at_a_replacement)
{
    static const char *const drafts[] = {"self", "draft"};
    int ends[2] = {0};
    demo d = demo_open(1);
    for (int i = 0; i < 2; i++) {
        const mar_params p =
            params_of(&d, drafts[i], "num_iter 32, num_sampling_steps 8, cfg 1, gamma 3, context full");
        mar_session *s = demo_session(&d, &p, 1);
        for (int image = 0; image < 3; image++) {
            assert_session(s, mar_session_begin(s, (uint64_t)image, labels, 1));
            check_rounds(s, DEMO_SEQ, p.num_iter, 3, ends);
        }
        mar_session_free(s);
    }
    assert_true(ends[0] > 0 && ends[1] > 0);
    demo_close(d);
}

/* --- rounds by choice --------------------------------------------------------------------------------------------- */

/* Checks that a CPU makes no drafts by default, and that its images are plain ones: so they are where drafts never
 * pay. */
TEST_CASE(rounds_without_drafts_are_plain)
{
    static const struct {
        const char *draft, *options, *costs;
    } cases[] = {
        {"self", "num_iter 8, num_sampling_steps 10, cfg 2.9", NULL},
        {"self", "num_iter 8, num_sampling_steps 10, cfg 1, head_spec 3", NULL},
        {"self", "num_iter 8, cfg 2.9, diff_annealing linear, diff_upper_steps 12, diff_lower_steps 5", "1000"},
        {"draft", "num_iter 8, num_sampling_steps 10, cfg 2.9", NULL},
        {"draft", "num_iter 8, num_sampling_steps 10, cfg 1, temperature 0.8", "3,7"},
        {"self", "num_iter 1, num_sampling_steps 10, cfg 1, gamma auto", NULL},
    };
    static float plain[N * DEMO_TOKENS], tokens[N * DEMO_TOKENS];
    demo d = demo_open(2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const demo models = strcmp(cases[i].draft, "self") == 0 ? fast_of(&d) : d;
        mar_params p = params_of(&models, cases[i].draft, cases[i].options);
        mar_stats stats;
        p.round_costs = cases[i].costs;
        mar_params alone = plain_of(&p);
        alone.round_costs = NULL, alone.gamma = -1;
        for (int batch = 1; batch <= N; batch += N - 1) {
            generate(&models, &alone, batch, plain, NULL);
            generate(&models, &p, batch, tokens, &stats);
            if (memcmp(tokens, plain, sizeof plain) != 0) fail_msg("%s: not the plain image", cases[i].options);
            assert_true(stats.drafted == 0 && stats.undrafted == stats.rounds && stats.passes == p.num_iter);
            assert_int_equal(stats.rounds, (N % batch ? N % batch : batch) * p.num_iter);
            const double seconds = stats.encoder_s + stats.decoder_s + stats.head_s + stats.draft_s + stats.verify_s;
            assert_true(stats.plain_s > 0.999 * seconds && stats.plain_s < 1.001 * seconds);
        }
    }
    demo_close(d);
}

/* Implements spec_choice.choose without regard to costs: all widths, by what may decide. */
static int choose_any(const spec_choice *c, const spec_past *past)
{
    return c->drafts[(past->known + 2 * past->rounds + 3 * past->accepted) % c->widths];
}

/* Generates the tokens of N images by choose_any, in batches. */
static mar_stats generate_by_any(const demo *d, const mar_params *p, int batch, float *tokens)
{
    extern const mar_accel mar_accel_path; /* its state begins with a spec_path */
    mar_session *s = demo_session(d, p, batch);
    mar_stats stats;
    ((spec_path *)mar_masked_state(mar_masked_of(s), &mar_accel_path))->o.choice.choose = choose_any;
    for (int i = 0; i < N; i += batch) {
        const int n = N - i < batch ? N - i : batch;
        assert_session(s, mar_session_begin(s, (uint64_t)(20 + i), labels + i, n));
        demo_finish(s);
        assert_session(s, mar_session_tokens(s, tokens + i * DEMO_TOKENS));
    }
    mar_stats_init(&stats, sizeof stats);
    mar_session_get_stats(s, &stats);
    mar_session_free(s);
    return stats;
}

/* Checks that images choose for themselves: plain and drafted rounds side by side make the images that they make alone.
 * A model that drafts for itself makes the plain ones. */
TEST_CASE(images_choose_for_themselves)
{
    static const struct {
        const char *draft, *options;
    } cases[] = {
        {"self", "num_iter 16, num_sampling_steps 8, cfg 2.9"},
        {"self", "num_iter 16, num_sampling_steps 8, cfg 1, head_spec 4"},
        {"self", "num_iter 16, cfg 2.9, diff_annealing linear, diff_upper_steps 12, diff_lower_steps 5"},
        {"draft", "num_iter 16, num_sampling_steps 8, cfg 2.9"},
        {"target", "num_iter 16, num_sampling_steps 8, cfg 2.9"},
    };
    static float one[N * DEMO_TOKENS], all[N * DEMO_TOKENS], plain[N * DEMO_TOKENS];
    demo d = demo_open(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const demo models = strcmp(cases[i].draft, "draft") == 0 ? d : fast_of(&d);
        mar_params p = params_of(&models, cases[i].draft, cases[i].options);
        p.round_costs = "1,1,1";
        mar_params alone = plain_of(&p);
        alone.round_costs = NULL;
        const mar_stats of_one = generate_by_any(&models, &p, 1, one), of_all = generate_by_any(&models, &p, N, all);
        if (memcmp(one, all, sizeof one) != 0) fail_msg("%s, %s: by batch", cases[i].draft, cases[i].options);
        assert_true(of_one.undrafted > 0 && of_one.undrafted < of_one.rounds && of_one.drafted > 0);
        assert_true(of_all.undrafted > of_one.undrafted);
        assert_int_equal(of_all.round_steps, N * p.num_iter);
        if (strcmp(cases[i].draft, "target") != 0) continue;
        generate(&models, &alone, N, plain, NULL);
        assert_memory_equal(all, plain, sizeof plain);
    }
    demo_close(d);
}

/* Checks that measured costs make the images that they make when they are given, and that losses are bounded. */
TEST_CASE(measured_costs_are_kept)
{
    static float x[N * DEMO_TOKENS], again[N * DEMO_TOKENS];
    static const char *const drafts[] = {"self", "draft"};
    demo d = demo_open(1);
    for (int i = 0; i < 2; i++) {
        const demo models = i == 0 ? fast_of(&d) : d;
        mar_params p = params_of(&models, drafts[i], "num_iter 32, num_sampling_steps 8, cfg 2.9, gamma auto");
        char costs[128];
        mar_session *s = demo_session(&models, &p, N);
        const mar_params *used = mar_session_get_params(s);
        assert_true(used->gamma >= 2 && used->round_costs && *used->round_costs >= '1');
        snprintf(costs, sizeof costs, "%s", used->round_costs);
        demo_generate(s, N, x);
        mar_session_free(s);
        p.round_costs = costs;
        s = demo_session(&models, &p, N);
        assert_string_equal(mar_session_get_params(s)->round_costs, costs);
        demo_generate(s, N, again);
        mar_session_free(s);
        assert_memory_equal(x, again, sizeof x);
    }
    demo_close(d);
}

/* Whatever the costs are, by them an image takes at most 2 % longer than by plain rounds. */
TEST_CASE(losses_are_bounded)
{
    static const char *const costs[] = {"1.4,2,3", "1.01,1.02,1.5", "1,1,1,1", "1.3", "2,2,2"};
    extern const mar_accel mar_accel_path;
    demo d = demo_open(1);
    const demo fast = fast_of(&d);
    int drafted = 0;
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        for (int large = 0; large < 2; large++) { /* large steps are rejected more often */
            mar_params p = params_of(&fast, "self",
                                     large ? "num_iter 16, num_sampling_steps 6, cfg 2.9"
                                           : "num_iter 64, num_sampling_steps 6, cfg 1");
            p.round_costs = costs[i];
            mar_session *s = demo_session(&fast, &p, 1);
            const spec_path *rounds = mar_masked_state(mar_masked_of(s), &mar_accel_path);
            for (int image = 0; image < 2; image++) {
                assert_session(s, mar_session_begin(s, (uint64_t)image, labels, 1));
                demo_finish(s);
                mar_stats stats = {.size = sizeof stats};
                mar_session_get_stats(s, &stats);
                const double account = rounds->spent / rounds->plain;
                print_message("%s: %.3f of plain decoding, %ld of %ld rounds plain\n", costs[i], account,
                              stats.undrafted, stats.rounds);
                assert_true(rounds->plain == p.num_iter && account < 1.02001);
                drafted += stats.drafted > 0;
            }
            mar_session_free(s);
        }
    assert_true(drafted > 0);
    demo_close(d);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

static kern_head_ops hopeless; /* the queue's operations, except that no candidate is kept */
static void (*real_decide)(kern_queue *k, const kern_path_verdict *job);
static spec_path *paths;

/* Keeps no candidate. The candidates are the last that a token may have. */
static void keep_none(kern_queue *k, const kern_path_verdict *job)
{
    real_decide(k, job);
    if (!job->candidates) return;
    for (int i = 0; i < job->groups; i++) job->first[i] = INT_MAX;
    for (int i = 0; i < paths->n_pending; i++) paths->pending[i].tries = SPEC_PATH_TRIES_MOST;
}

/* Checks that a token without a kept candidate ends the batch. The next batch is complete. */
TEST_CASE(no_candidate_is_kept)
{
    static float first[N * DEMO_TOKENS], again[N * DEMO_TOKENS];
    demo d = demo_open(1);
    const mar_params p = params_of(&d, "self", "num_iter 8, num_sampling_steps 8, cfg 2.9, gamma 4");
    mar_session *s = demo_session(&d, &p, N);
    mar_status status = MAR_OK;
    demo_generate(s, N, first);
    kern_queue *k = mar_masked_of(s)->k;
    const kern_head_ops *real = k->head;
    extern const mar_accel mar_accel_path; /* its state begins with a spec_path */
    paths = mar_masked_state(mar_masked_of(s), &mar_accel_path);
    hopeless = *real, real_decide = real->path_decide;
    hopeless.path_decide = keep_none;
    demo_begin(s, N);
    k->head = &hopeless;
    while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
    k->head = real;
    assert_int_equal(status, MAR_EMODEL);
    const char *text = mar_session_error(s);
    if (!strstr(text, ": none of ") || !strstr(text, " candidates for a token is kept")) fail_msg("\"%s\"", text);
    demo_generate(s, N, again);
    assert_memory_equal(again, first, sizeof first);
    mar_session_free(s);
    demo_close(d);
}
