/* Tests sessions of LlamaGen models through the public calls: output of every method, on small random models. */
#include "tests/support/demo.h"

#include "mar_measure.h"
#include "mar/api/session.h"
#include "tests/support/discrete_sessions.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SEQ = DISCRETE_SEQ, SIDE = DISCRETE_SIDE, RGB = DISCRETE_BYTES, BATCH = DISCRETE_BATCH };

/* Checks that an image's tokens and pixels depend on its number, the label and the options only. The batch, the number
 * of threads and earlier work of the session do not matter. */
TEST_CASE(images_are_their_own)
{
    const discrete_models one = discrete_open(*state, 1), two = discrete_open(*state, 3);
    for (int i = 0; i < DISCRETE_RUNS; i++) {
        float all[BATCH * SEQ], again[BATCH * SEQ], single[SEQ];
        static uint8_t rgb[BATCH * RGB], rgb_single[RGB];
        mar_session *s = discrete_session(&one, discrete_runs[i].options, discrete_runs[i].draft, BATCH);
        mar_session *t = discrete_session(&two, discrete_runs[i].options, discrete_runs[i].draft, BATCH);
        int width, height;
        mar_session_image_size(s, &width, &height);
        assert_true(width == SIDE && height == SIDE);
        discrete_generate(s, 7, discrete_labels, BATCH, all);
        assert_session(s, mar_session_images(s, rgb));
        for (int k = 0; k < BATCH * SEQ; k++) assert_true(all[k] >= 0 && all[k] < 50 && all[k] == (float)(int)all[k]);
        discrete_generate(t, 7, discrete_labels, BATCH, again);
        if (memcmp(all, again, sizeof all) != 0)
            fail_msg("%s: other tokens with other threads", discrete_runs[i].options);
        for (int k = BATCH - 1; k >= 0; k--) {
            discrete_generate(s, 7 + (uint64_t)k, discrete_labels + k, 1, single);
            assert_session(s, mar_session_images(s, rgb_single));
            if (memcmp(single, all + k * SEQ, sizeof single) != 0)
                fail_msg("%s: image %d has other tokens alone", discrete_runs[i].options, k);
            assert_memory_equal(rgb_single, rgb + k * RGB, RGB);
        }
        discrete_generate(s, 7, discrete_labels, BATCH, again);
        assert_memory_equal(all, again, sizeof all);
        if (i == 0) {
            discrete_generate(s, 8, discrete_labels, BATCH, again);
            assert_memory_not_equal(all, again, sizeof all);
        }
        mar_session_free(s);
        mar_session_free(t);
    }
    discrete_close(one);
    discrete_close(two);
}

static void refuse_upload(kern_queue *k, void *dst, const void *src, size_t bytes)
{
    (void)k, (void)dst, (void)src;
    fail_msg("an upload of %zu bytes", bytes);
}

/* How tokens came to be is on the host: the call does not bind the queue. */
static void read_status(mar_session *s, uint8_t *map, int *round)
{
    kern_queue *k = mar_session_queue(s);
    const kern_core_ops *own = k->core;
    kern_core_ops core = *own;
    core.upload = refuse_upload;
    k->core = &core;
    assert_session(s, mar_session_token_status(s, map, round));
    k->core = own;
}

/* Checks that the counts of a batch add up. */
static void check_stats(const char *options, mar_session *s)
{
    mar_stats t = {.size = sizeof t};
    uint8_t fate[BATCH * SEQ];
    int round[BATCH * SEQ], late[BATCH * SEQ];
    long fates[3] = {0}, rounds = 0, accepted = 0;
    mar_session_get_stats(s, &t);
    read_status(s, fate, round);
    read_status(s, NULL, NULL);
    assert_session(s, mar_session_staleness(s, late));
    for (int i = 0; i < BATCH * SEQ; i++) {
        fates[fate[i]]++;
        assert_int_equal(late[i], 0);
        assert_true(i % SEQ == 0 ? round[i] == 0 : round[i] == round[i - 1] || round[i] == round[i - 1] + 1);
    }
    for (int i = 0; i < 66; i++) rounds += t.accepted_lengths[i], accepted += i * t.accepted_lengths[i];
    assert_int_equal(t.tokens, BATCH * SEQ);
    assert_true(t.passes >= 1 && t.contexts >= t.passes && t.decoder_s > 0 && t.decoder_flop > 0 && t.head_s == 0);
    if (!mar_session_get_params(s)->spec) {
        assert_true(t.rounds == 0 && t.drafted == 0 && rounds == 0 && fates[MAR_TOKEN_TARGET] == BATCH * SEQ);
        return;
    }
    if (rounds != t.rounds || accepted != t.accepted)
        fail_msg("%s: %ld of %ld rounds, %ld of %ld accepted drafts in the lengths", options, rounds, t.rounds,
                 accepted, t.accepted);
    assert_int_equal(t.round_steps, BATCH * SEQ);
    assert_in_range(t.accepted, 1, t.drafted);
    assert_in_range(t.accepted + t.rounds, BATCH * SEQ, BATCH * SEQ + BATCH); /* each round adds a token */
    assert_int_equal(fates[MAR_TOKEN_ACCEPTED], t.accepted);
    if (mar_session_get_params(s)->draft) assert_true(t.draft_s > 0 && t.draft_flop > 0 && t.draft_calls > 0);
}

TEST_CASE(counts_and_guarantees)
{
    const discrete_models s = discrete_open(*state, 1);
    for (int i = 0; i < DISCRETE_RUNS; i++) {
        float tokens[BATCH * SEQ];
        mar_session *session = discrete_session(&s, discrete_runs[i].options, discrete_runs[i].draft, BATCH);
        const char *guarantee = mar_session_guarantee(session), *spec = mar_session_get_params(session)->spec;
        discrete_generate(session, 0, discrete_labels, BATCH, tokens);
        check_stats(discrete_runs[i].options, session);
        if ((strncmp(guarantee, "exact to: plain sampling, ", 26) == 0) != discrete_runs[i].exact)
            fail_msg("%s: %s", discrete_runs[i].options, guarantee);
        if (!discrete_runs[i].exact) assert_int_equal(strncmp(guarantee, "approximate: changed by ", 24), 0);
        if (spec) assert_non_null(strstr(guarantee, spec));
        mar_session_free(session);
    }
    discrete_close(s);
}

/* Checks that every exact method gives the same tokens at temperature 0. The distribution is a point there. */
TEST_CASE(greedy)
{
    const discrete_models s = discrete_open(*state, 1);
    float expected[2][BATCH * SEQ], tokens[BATCH * SEQ];
    for (int cfg = 1; cfg <= 2; cfg++) {
        mar_session *plain =
            discrete_session(&s, cfg == 1 ? "temperature 0, cfg 1" : "temperature 0, cfg 2", NO_DRAFT, BATCH);
        discrete_generate(plain, 0, discrete_labels, BATCH, expected[cfg - 1]);
        discrete_generate(plain, 9, discrete_labels, BATCH, tokens);
        assert_memory_equal(tokens, expected[cfg - 1], sizeof tokens);
        mar_session_free(plain);
    }
    for (int i = 0; i < DISCRETE_RUNS; i++) {
        char options[160];
        if (!discrete_runs[i].exact || strstr(discrete_runs[i].options, "cfg_interval")) continue;
        const int cfg = discrete_runs[i].options[4] - '0';
        snprintf(options, sizeof options, "%s, temperature 0", discrete_runs[i].options);
        mar_session *session = discrete_session(&s, options, discrete_runs[i].draft, BATCH);
        discrete_generate(session, 0, discrete_labels, BATCH, tokens);
        if (memcmp(tokens, expected[cfg - 1], sizeof tokens) != 0) fail_msg("%s: other tokens than plain", options);
        mar_session_free(session);
    }
    discrete_close(s);
}

/* Checks that trees have siblings at temperature 0 and with top_k 1. Plain decoding's distributions are points
 * there. */
TEST_CASE(greedy_trees)
{
    const discrete_models s = discrete_open(*state, 1);
    static const struct {
        const char *options;
        discrete_draft draft;
    } cases[] = {
        {"temperature 0, tree 4/2/1", NEAR},
        {"temperature 0, tree 4/2/1", EAGLE},
        {"temperature 0, tree dynamic, gamma 3, tree_top 4, tree_total 20", NEAR},
        {"temperature 0, tree dynamic, gamma 3, tree_top 4, tree_total 20", EAGLE},
        {"top_k 1, tree dynamic, gamma 3, tree_top 4, tree_total 20", NEAR},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float tokens[BATCH * SEQ];
        mar_stats chain = {.size = sizeof chain}, tree = {.size = sizeof tree};
        mar_session *a = discrete_session(&s, "temperature 0, gamma 3", cases[i].draft, BATCH);
        mar_session *b = discrete_session(&s, cases[i].options, cases[i].draft, BATCH);
        discrete_generate(a, 0, discrete_labels, BATCH, tokens),
            discrete_generate(b, 0, discrete_labels, BATCH, tokens);
        mar_session_get_stats(a, &chain), mar_session_get_stats(b, &tree);
        if (!(tree.rounds < chain.rounds && tree.drafted > 3 * tree.rounds))
            fail_msg("%s: %ld rounds, %ld drafts; a chain has %ld", cases[i].options, tree.rounds, tree.drafted,
                     chain.rounds);
        mar_session_free(a);
        mar_session_free(b);
    }
    discrete_close(s);
}

/* Checks that a draft with the target's weights is always accepted. */
TEST_CASE(itself_as_draft)
{
    const discrete_models s = discrete_open(*state, 1);
    float tokens[BATCH * SEQ];
    mar_stats t = {.size = sizeof t};
    mar_session *session = discrete_session(&s, "cfg 2, gamma 3, top_k 20", ITSELF, BATCH);
    discrete_generate(session, 0, discrete_labels, BATCH, tokens);
    mar_session_get_stats(session, &t);
    assert_int_equal(t.accepted, t.drafted);
    assert_int_equal(t.accepted_lengths[3], BATCH * SEQ / 4);
    assert_int_equal(t.rounds, BATCH * SEQ / 4);
    mar_session_free(session);
    discrete_close(s);
}

TEST_CASE(captions)
{
    enum { TOKENS = 120, DIM = 12 };
    const discrete_models s = discrete_open(*state, 1);
    mar_model *model;
    mar_session *session;
    static float features[2 * TOKENS * DIM];
    static uint8_t mask[2 * TOKENS];
    float both[2 * SEQ], single[SEQ], tokens[2 * SEQ];
    for (int i = 0; i < 2 * TOKENS * DIM; i++) features[i] = sinf((float)(i % 977));
    for (int i = 0; i < 2 * TOKENS; i++) mask[i] = i % TOKENS >= (i < TOKENS ? 100 : 40);
    assert_library(s.m, mar_model_load(s.m, discrete_captions, 0, &model));
    const mar_model_config *c = mar_model_get_config(model);
    assert_true(c->caption_tokens == TOKENS && c->caption_dim == DIM && c->classes == 0 && c->vocabulary == 50);
    const mar_params p = discrete_params("cfg 2");
    assert_library(s.m, mar_session_create(model, s.vae, &p, 2, &session));
    assert_session(session, mar_session_begin_captions(session, 3, features, mask, 2));
    demo_finish(session);
    assert_session(session, mar_session_tokens(session, both));
    for (int i = 1; i >= 0; i--) {
        assert_session(session, mar_session_begin_captions(session, 3 + (uint64_t)i, features + i * TOKENS * DIM,
                                                           mask + i * TOKENS, 1));
        demo_finish(session);
        assert_session(session, mar_session_tokens(session, single));
        assert_memory_equal(single, both + i * SEQ, sizeof single);
    }
    /* Masked features are ignored; without a mask all features count. */
    for (int i = 0; i < TOKENS * DIM; i++)
        if (!mask[i / DIM]) features[i] = 7;
    assert_session(session, mar_session_begin_captions(session, 3, features, mask, 2));
    demo_finish(session);
    assert_session(session, mar_session_tokens(session, tokens));
    assert_memory_equal(tokens, both, sizeof tokens);
    assert_session(session, mar_session_begin_captions(session, 3, features, NULL, 2));
    demo_finish(session);
    assert_session(session, mar_session_tokens(session, tokens));
    assert_memory_not_equal(tokens, both, sizeof tokens);

    assert_int_equal(mar_session_begin(session, 0, discrete_labels, 1), MAR_EARG);
    assert_string_equal(mar_session_error(session),
                        "the model makes images of captions: expected their features, 120 by 12");
    features[TOKENS * DIM + 3 * DIM + 2] = NAN;
    assert_int_equal(mar_session_begin_captions(session, 0, features, mask, 2), MAR_EARG);
    assert_string_equal(mar_session_error(session), "caption 1: a feature is NaN (position 3, number 2)");
    static const int counts[] = {INT_MIN, -1, 0, 3, INT_MAX};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(mar_session_begin_captions(session, 0, features, mask, counts[i]), MAR_EARG);
        assert_says(mar_session_error(session), "images: expected 1..2");
    }
    assert_int_equal(mar_session_begin_captions(session, 0, NULL, mask, 1), MAR_EARG);
    assert_string_equal(mar_session_error(session), "features is NULL");
    mar_session_free(session);
    mar_model_free(model);
    session = discrete_session(&s, "", NO_DRAFT, 1);
    assert_int_equal(mar_session_begin_captions(session, 0, features, mask, 1), MAR_EARG);
    assert_string_equal(mar_session_error(session),
                        "the model makes images of classes, not of captions: expected labels");
    mar_session_free(session);
    discrete_close(s);
}

/* Counts rows of measuring, which needs neither a head nor classes. */
static void count_row(void *user, const mar_measurement *row)
{
    if (strcmp(row->group, "pass") == 0) ++*(int *)user;
}

TEST_CASE(measuring)
{
    const discrete_models s = discrete_open(*state, 1);
    mar_model *captioned;
    assert_library(s.m, mar_model_load(s.m, discrete_captions, 0, &captioned));
    for (int i = 0; i < 2; i++) {
        mar_session *session;
        int passes = 0;
        const mar_params p = discrete_params("cfg 2");
        assert_library(s.m, mar_session_create(i ? captioned : s.target, s.vae, &p, 1, &session));
        assert_session(session, mar_session_measure(session, count_row, &passes));
        assert_true(passes >= 3); /* the transformer, the step, the image decoder */
        mar_session_free(session);
    }
    mar_model_free(captioned);
    discrete_close(s);
}

TEST_GROUP(discrete_set_up, discrete_tear_down)
