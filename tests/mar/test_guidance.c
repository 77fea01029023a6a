/* Tests that steps without guidance compute one row a token. Tokens are the same with every accelerator, and the
 * arithmetic drops. Also tests guidance in an interval. */
#include "tests/support/brief.h"

#include "mar_measure.h"
#include "tests/support/masked.h"
#include "mar/core/params.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

static const char small[] = "tests/golden/data/lazy_small.safetensors";
enum { SEQ = 64, CHANNELS = 5, TOKENS = SEQ * CHANNELS, STEPS = 24, N = 2 };

/* Accelerators by their options; `drafts`: the model is its own draft. */
static const struct {
    const char *options;
    int drafts;
} ways[] = {
    {"", 0},
    {"diff_annealing linear, diff_upper_steps 9, diff_lower_steps 4", 0},
    {"sampler dpmpp", 0},
    {"lazy on", 0},
    {"lazy_head on", 0},
    {"lazy on, lazy_head on", 0},
    {"gtr on, gtr_generation_steps 5, gtr_reconstruction_steps 3, gtr_sampling_steps 4", 0},
    {"head_spec 4", 0},
    {"head_spec 4", 1},
    {"spec conditional, gamma 3", 1},
    {"spec conditional, gamma 3, context full", 1},
    {"spec path, gamma 3", 0},
    {"spec path, gamma 3", 1},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Returns whether an accelerator works on tokens of several steps at once. */
static int in_blocks(int way)
{
    return strstr(ways[way].options, "spec ") == ways[way].options;
}

static mar_params params_of(int way, mar_model *model)
{
    mar_params p = plain_params();
    if (*ways[way].options) p = params_set(p, ways[way].options);
    p.num_iter = STEPS;
    p.num_sampling_steps = 9;
    p.cfg = 2.9f;
    if (ways[way].drafts) p.draft = model;
    return p;
}

/* Generates tokens of N images. With `interval`, steps outside it have scale 1, as its options ask, but compute both
 * rows. */
static void generate(mar *m, mar_model *model, const mar_params *p, const mar_params *interval, float *tokens,
                     mar_stats *stats)
{
    const int labels[N] = {2, -1};
    mar_session *s;
    assert_library(m, mar_session_create(model, NULL, p, N, &s));
    mar_masked *g = mar_masked_of(s);
    for (int i = 0; interval && i < g->params.num_iter; i++) {
        const float known = (float)g->steps[i].known / SEQ;
        if (known < interval->cfg_low || known > interval->cfg_high) g->steps[i].cfg = 1, g->steps[i].share = 0;
    }
    assert_session(s, mar_session_begin(s, 100, labels, N));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
    if (stats) {
        mar_stats_init(stats, sizeof *stats);
        mar_session_get_stats(s, stats);
    }
    mar_session_free(s);
}

/* Checks that an interval without steps equals no guidance: bit for bit, with the same arithmetic. */
TEST_CASE(nowhere)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    assert_library(m, mar_model_load(m, small, 0, &model));
    for (int way = 0; way < WAYS; way++) {
        static float tokens[2][N * TOKENS];
        mar_stats stats[2];
        mar_params p = params_of(way, model);
        p.cfg_low = p.cfg_high = 1; /* no step begins with all tokens known */
        generate(m, model, &p, NULL, tokens[0], &stats[0]);
        p = params_of(way, model);
        p.cfg = 1;
        generate(m, model, &p, NULL, tokens[1], &stats[1]);
        if (memcmp(tokens[0], tokens[1], sizeof tokens[0]) != 0) fail_msg("%s: other tokens", ways[way].options);
        assert_true(stats[0].encoder_flop == stats[1].encoder_flop && stats[0].decoder_flop == stats[1].decoder_flop);
        assert_true(stats[0].head_flop == stats[1].head_flop && stats[0].draft_flop == stats[1].draft_flop);
    }
    mar_model_free(model);
    mar_close(m);
}

/* Checks guidance in some steps, in the change lane one interval with each accelerator. The reference computes two rows
 * everywhere, with scale 1 in the other steps. There the guided prediction u + (c - u) is c but for rounding. */
TEST_CASE(somewhere)
{
    static const float intervals[][2] = {{0, 0.3f}, {0.3f, 1}, {0.1f, 0.6f}};
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    assert_library(m, mar_model_load(m, small, 0, &model));
    for (int way = 0; way < WAYS; way++) {
        static float tokens[3][N * TOKENS];
        const mar_params p = params_of(way, model);
        generate(m, model, &p, NULL, tokens[2], NULL);
        for (int i = 0; i < 3; i++) {
            mar_stats stats[2];
            mar_params q = p;
            if (!test_all && i != way % 3) continue;
            q.cfg_low = intervals[i][0], q.cfg_high = intervals[i][1];
            generate(m, model, &q, NULL, tokens[0], &stats[0]);
            generate(m, model, &p, &q, tokens[1], &stats[1]);
            const double error = relative_error(tokens[0], tokens[1], N * TOKENS);
            if (!(error <= 1e-5))
                fail_msg("%s, from %g to %g: relative error %.3g", ways[way].options, (double)q.cfg_low,
                         (double)q.cfg_high, error);
            assert_true(relative_error(tokens[0], tokens[2], N * TOKENS) > 1e-3);
            if (in_blocks(way)) continue;
            assert_true(stats[0].head_flop < 0.9 * stats[1].head_flop);
            assert_true(stats[0].decoder_flop < stats[1].decoder_flop);
        }
    }
    mar_model_free(model);
    mar_close(m);
}

/* Checks which steps have guidance. They take twice the arithmetic of the others. */
TEST_CASE(arithmetic)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    mar_session *s;
    mar_stats stats, unguided;
    float tokens[N * TOKENS];
    assert_library(m, mar_model_load(m, small, 0, &model));
    const masked_net *of = &mar_masked_model_of(model)->net;
    mar_params p = params_of(0, model);
    p.cfg = 1;
    generate(m, model, &p, NULL, tokens, &unguided);
    p.cfg = 2.9f, p.cfg_low = 0.25f, p.cfg_high = 0.5f;
    assert_library(m, mar_session_create(model, NULL, &p, N, &s));
    const mar_masked *g = mar_masked_of(s);
    mar_step plan[STEPS];
    mar_steps_plan(STEPS, SEQ, p.cfg, p.cfg_schedule, plan);
    double encoder = 0, decoder = 0;
    int guided = 0, steps = 0;
    for (int i = 0; i < STEPS; i++) {
        const int within = 4 * plan[i].known >= SEQ && 2 * plan[i].known <= SEQ, rows = within ? 2 : 1;
        assert_int_equal(g->steps[i].cfg_branches, rows);
        assert_true(g->steps[i].cfg == (within ? plan[i].cfg : 1));
        assert_int_equal(plan[i].cfg_branches, 2);
        encoder += masked_encode_flop(of, N * rows, plan[i].known);
        decoder += masked_decode_flop(of, N * rows, plan[i].known, plan[i].predicted);
        if (within) guided += plan[i].predicted, steps++;
    }
    assert_true(steps > 3 && steps < STEPS - 3);
    mar_session_free(s);
    generate(m, model, &p, NULL, tokens, &stats);
    /* Both ends of the interval are fractions of known tokens: 16 and 32 of 64. */
    assert_float_equal(stats.encoder_flop / encoder, 1, 1e-12);
    assert_float_equal(stats.decoder_flop / decoder, 1, 1e-12);
    assert_float_equal(stats.head_flop / unguided.head_flop, 1 + guided / (double)SEQ, 1e-12);
    mar_model_free(model);
    mar_close(m);
}

/* Recounts the arithmetic of every step's passes. */
TEST_CASE(arithmetic_is_counted)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    mar_stats stats;
    float tokens[N * TOKENS];
    assert_library(m, mar_model_load(m, small, 0, &model));
    const masked_net *of = &mar_masked_model_of(model)->net;
    const mar_model_config *c = &model->config;
    const mar_params p = params_of(0, model);
    generate(m, model, &p, NULL, tokens, &stats);
    mar_step plan[STEPS];
    mar_steps_plan(STEPS, SEQ, p.cfg, p.cfg_schedule, plan);
    const double d = c->width, length = c->buffer + SEQ;
    double encoder = 0, decoder = 0;
    for (int i = 0; i < STEPS; i++) {
        const double rows = 2 * N * (c->buffer + plan[i].known);
        encoder += c->encoder_depth * masked_block_flop(of, rows, rows, c->buffer + plan[i].known);
        decoder += (c->decoder_depth - 1) * masked_block_flop(of, 2 * N * length, 2 * N * length, length) +
                   masked_block_flop(of, 2 * N * plan[i].predicted, 2 * N * length, length) + 2 * rows * d * d;
    }
    assert_float_equal(stats.encoder_flop / encoder, 1, 1e-12);
    assert_float_equal(stats.decoder_flop / decoder, 1, 1e-12);
    mar_model_free(model);
    mar_close(m);
}

/* Checks that cfg_interval LOW,HIGH sets cfg_low and cfg_high. Anything else is refused in one line that describes an
 * interval. */
TEST_CASE(by_name)
{
    static const char *const bad[] = {"0.8,0.2", "-0.1,0.5", "0.5,1.5", "0.5,", ",", "0.2,0.4,0.6", "a,b", "nan,1"};
    char why[256], expected[256];
    mar_params p;
    mar_params_init(&p, sizeof p);
    assert_true(p.cfg_low == 0 && p.cfg_high == 1);
    snprintf(why, sizeof why, "as before");
    assert_int_equal(mar_params_set(&p, "cfg_interval", "0.25,0.75", why, sizeof why), MAR_OK);
    assert_string_equal(why, "as before");
    assert_true(p.cfg_low == 0.25f && p.cfg_high == 0.75f && p.cfg_interval == -1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(mar_params_set(&p, "cfg_interval", bad[i], why, sizeof why), MAR_EARG);
        snprintf(expected, sizeof expected,
                 "--cfg_interval %s: expected LOW,HIGH, two fractions of known tokens from 0 to 1, the lower first",
                 bad[i]);
        assert_string_equal(why, expected);
        assert_true(p.cfg_low == 0.25f && p.cfg_high == 0.75f);
    }
    p.size = offsetof(mar_params, cfg_low); /* size in an older mar.h */
    assert_int_equal(mar_params_set(&p, "cfg_interval", "0,1", why, sizeof why), MAR_EARG);
    assert_string_equal(why, "--cfg_interval: the program was compiled with a mar.h that does not have it");
}

TEST_CASE(refused)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    mar_session *s;
    assert_library(m, mar_model_load(m, small, 0, &model));
    mar_params p = params_of(0, model);
    p.cfg_low = 0.75f, p.cfg_high = 0.5f;
    assert_int_equal(mar_session_create(model, NULL, &p, 1, &s), MAR_EARG);
    assert_string_equal(mar_error(m), "--cfg_low 0.75 and --cfg_high 0.5: expected low <= high");
    p = params_of(0, model);
    p.cfg_interval = 7;
    assert_int_equal(mar_session_create(model, NULL, &p, 1, &s), MAR_EARG);
    assert_string_equal(mar_error(m), "--cfg_interval 7: expected LOW,HIGH, two fractions of known tokens, as the "
                                      "model's tokens are continuous");
    mar_model_free(model);
    mar_close(m);
}
