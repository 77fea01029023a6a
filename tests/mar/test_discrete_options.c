/* Tests which options and files LlamaGen sessions accept together. */
#include "mar/raster_options.h"

#include "mar_files.h"
#include "mar_methods.h"
#include "mar/accel/registry.h"
#include "tests/support/demo.h"
#include "tests/support/discrete_sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST_CASE(automatic_values)
{
    const discrete_models s = discrete_open(*state, 1);
    static const struct {
        const char *options;
        discrete_draft draft;
        const char *name, *value;
    } cases[] = {{"", NO_DRAFT, "num_iter", "16"},
                 {"num_iter 16", NO_DRAFT, "num_iter", "16"},
                 {"", NEAR, "spec", "vanilla"},
                 {"", NEAR, "gamma", "8"},
                 {"gamma auto", NEAR, "gamma", "8"},
                 {"gamma 16", NEAR, "gamma", "16"},
                 {"tree static", NEAR, "gamma", "5"},
                 {"tree 4/1, gamma 400", NEAR, "gamma", "2"},
                 {"gamma 400", NO_DRAFT, "gamma", "16"}, /* not used without a draft */
                 {"window 400", NEAR, "window", "16"},
                 {"spec sjd, window 16", NO_DRAFT, "window", "16"},
                 {"tree 2/1", NEAR, "gamma", "2"},
                 {"tree 2/1", NEAR, "tree", "2,1"},
                 {"spec sjd", NO_DRAFT, "window", "16"},
                 {"spec sjd, window 16", NO_DRAFT, "round_costs", ""},
                 {"spec sjd-pac, round_costs 1/1.2345", NO_DRAFT, "window", "4"},
                 {"spec sjd-pac, round_costs 1/1.2345", NO_DRAFT, "round_costs", "1,1.23"},
                 {"spec scd, window 8, round_costs 1.5/2/300", NO_DRAFT, "round_costs", "1.5,2,300"},
                 {"round_costs 2", NEAR, "round_costs", "2"},
                 {"round_costs 1.1/1.2+0.0346", NEAR, "round_costs", "1.1,1.2+0.035"},
                 {"round_costs 2+0.0004", NEAR, "round_costs", "2"},
                 {"tree 2/1, round_costs 2+12.34", EAGLE, "round_costs", "2+12.3"},
                 {"round_costs 2", NO_DRAFT, "round_costs", ""}, /* not used without a method */
                 {"", NO_DRAFT, "window", "standard"},
                 {"spec sjd", NO_DRAFT, "round_costs", "1.97,2.63,3.97,6.63"},
                 {"cfg 1, spec scd", NO_DRAFT, "round_costs", "1.7,2.1,2.9,4.5"},
                 {"spec sjd-pac, window 8", NO_DRAFT, "round_costs", ""},
                 {"", EAGLE, "round_costs", "2.3,3.3,5.3,9.3+0.222"},
                 {"gamma 8", NEAR, "round_costs", ""},
                 {"tree static", NEAR, "round_costs", ""},
                 {"tree static, gamma auto, round_costs 3", NEAR, "gamma", "5"},
                 {"spec lantern", NEAR, "round_costs", ""},
                 {"spec lantern, gamma auto", NEAR, "round_costs", ""},
                 {"spec vanilla, round_costs 1.1/1.2/1.3", NEAR, "gamma", "4"},
                 {"spec sjd, window auto", NO_DRAFT, "window", "16"},
                 {"spec sjd, window auto, round_costs 1/2", NO_DRAFT, "window", "4"},
                 {"spec sjd-pac, round_costs 1/9.996/12.34/1000", NO_DRAFT, "round_costs", "1,10,12.3,1000"},
                 {"spec sjd-pac, round_costs 1.10/9.09/99.96/250.5", NO_DRAFT, "round_costs", "1.1,9.09,100,251"},
                 {"spec cool-sd-linear", NEAR, "cool_ell", "9"},
                 {"spec lantern", NEAR, "lantern_k", "50"},
                 {"spec lantern, lantern_k 50", NEAR, "lantern_k", "50"},
                 {"spec lantern-pp", NEAR, "lantern_k", "10"},
                 {"cfg_interval 14", NO_DRAFT, "cfg_interval", "14"},
                 {"spec lantern-gstar, lantern_k 7", NEAR, "lantern_k", "7"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        mar_session *session = discrete_session(&s, cases[i].options, cases[i].draft, 1);
        const mar_params *p = mar_session_get_params(session);
        for (int k = 0; k < mar_param_count(); k++)
            if (strcmp(mar_param_get(k)->name, cases[i].name) == 0)
                assert_string_equal(mar_param_text(mar_param_get(k), p, text, sizeof text), cases[i].value);
        mar_session *same; /* resolved values are accepted as they are */
        assert_library(s.m, mar_session_create(s.target, s.vae, p, 1, &same));
        mar_session_free(same);
        mar_session_free(session);
    }
    discrete_close(s);
}

/* Measured costs are a parameter: with them, another session makes the same tokens. Where drafts do not pay, they are
 * those of plain decoding. */
TEST_CASE(costs_are_measured)
{
    const discrete_models s = discrete_open(*state, 1);
    static const int labels[] = {0};
    float tokens[2][16];
    mar_session *plain = discrete_session(&s, "cfg 2", NO_DRAFT, 1), *same;
    mar_session *first = discrete_session(&s, "cfg 2, spec sjd-pac, window auto", NO_DRAFT, 1);
    mar_session *dear = discrete_session(&s, "cfg 2, spec sjd-pac, round_costs 2/4/8/16", NO_DRAFT, 1);
    const mar_params *p = mar_session_get_params(first);
    mar_stats stats;
    assert_true(p->window == 16 && p->round_costs && *p->round_costs >= '1');
    assert_library(s.m, mar_session_create(s.target, s.vae, p, 1, &same));
    assert_string_equal(mar_session_get_params(same)->round_costs, p->round_costs);
    discrete_generate(first, 3, labels, 1, tokens[0]), discrete_generate(same, 3, labels, 1, tokens[1]);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    discrete_generate(plain, 3, labels, 1, tokens[0]), discrete_generate(dear, 3, labels, 1, tokens[1]);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    mar_stats_init(&stats, sizeof stats);
    mar_session_get_stats(dear, &stats);
    const double decoding = stats.decoder_s + stats.draft_s + stats.verify_s;
    assert_true(stats.rounds == 16 && stats.undrafted == 16 && stats.drafted == 0);
    assert_true(stats.plain_s > 0.99 * decoding && stats.plain_s < 1.01 * decoding);
    mar_session_get_stats(plain, &stats);
    assert_true(stats.plain_s == 0);
    mar_session_free(plain), mar_session_free(first), mar_session_free(dear), mar_session_free(same);
    discrete_close(s);
}

/* With a drafter, too: of chains and of trees, which plain rounds stand between. At temperature 0 any choice gives the
 * tokens of plain decoding. */
TEST_CASE(costs_of_drafters)
{
    static const struct {
        const char *options;
        discrete_draft draft;
    } cases[] = {{"cfg 2, gamma auto", NEAR},
                 {"cfg 2, gamma auto", EAGLE},
                 {"cfg 2, gamma auto, tree 2/1", EAGLE},
                 {"cfg 1, gamma auto, tree dynamic, tree_total 6", NEAR},
                 {"cfg 2", EAGLE}};
    const discrete_models s = discrete_open(*state, 1);
    float tokens[2][3 * 16];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_session *same, *first = discrete_session(&s, cases[i].options, cases[i].draft, 3);
        const mar_params *p = mar_session_get_params(first);
        assert_true(p->round_costs && *p->round_costs >= '1');
        assert_library(s.m, mar_session_create(s.target, s.vae, p, 3, &same));
        assert_string_equal(mar_session_get_params(same)->round_costs, p->round_costs);
        discrete_generate(first, 3, discrete_labels, 3, tokens[0]);
        discrete_generate(same, 3, discrete_labels, 3, tokens[1]);
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        mar_session_free(first), mar_session_free(same);
    }
    discrete_close(s);
}

/* Plain rounds stand between drafted ones: the drafter catches up on their tokens. */
TEST_CASE(drafters_catch_up)
{
    static const struct {
        const char *options;
        discrete_draft draft;
        int mixed; /* 1: some rounds have drafts, some none */
    } cases[] = {{"cfg 2, temperature 0, round_costs 1.05/1.06/1.07", NEAR, 1},
                 {"cfg 2, temperature 0, round_costs 1.05/1.06/1.07", EAGLE, 1},
                 {"cfg 2, temperature 0, tree 2/1, round_costs 1.06", EAGLE, 1},
                 {"cfg 2, temperature 0, tree dynamic, gamma 3, tree_top 3, round_costs 1.06", EAGLE, 1},
                 {"cfg 2, temperature 0, tree 2/1, round_costs 1.06", SMALL, 1},
                 {"cfg 2, temperature 0, round_costs 9/9/9", NEAR, 0}};
    const discrete_models s = discrete_open(*state, 1);
    float tokens[2][3 * 16];
    mar_session *plain = discrete_session(&s, "cfg 2, temperature 0", NO_DRAFT, 3);
    discrete_generate(plain, 3, discrete_labels, 3, tokens[0]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_stats stats;
        mar_session *session = discrete_session(&s, cases[i].options, cases[i].draft, 3);
        discrete_generate(session, 3, discrete_labels, 3, tokens[1]);
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        mar_stats_init(&stats, sizeof stats);
        mar_session_get_stats(session, &stats);
        if (getenv("SHOW"))
            print_message("%s: %ld rounds, %ld without drafts\n", cases[i].options, (long)stats.rounds,
                          (long)stats.undrafted);
        assert_true((stats.undrafted > 0) && (stats.undrafted < stats.rounds) == cases[i].mixed);
        mar_session_free(session);
    }
    mar_session_free(plain);
    discrete_close(s);
}

TEST_CASE(trees)
{
    raster_tree t;
    mar_err err;
    assert_ok(raster_tree_read("2,2,1", &t, &err), &err);
    static const int expected[] = {-1, -1, 0, 0, 1, 1, 2, 3, 4, 5};
    assert_true(t.count == 10 && t.depth == 3);
    assert_memory_equal(t.parent, expected, sizeof expected);
    assert_ok(raster_tree_read("static", &t, &err), &err);
    /* mc_sim_7b_63 of EAGLE's choices.py: number of drafts at each level, and children of the first drafts. */
    int depth[RASTER_TREE_DRAFTS], levels[6] = {0}, children[RASTER_TREE_DRAFTS] = {0};
    assert_true(t.count == 25 && t.depth == 5);
    for (int n = 0; n < t.count; n++) {
        assert_true(t.parent[n] < n && (n == 0 || t.parent[n] >= t.parent[n - 1]));
        depth[n] = t.parent[n] < 0 ? 1 : depth[t.parent[n]] + 1;
        levels[depth[n]]++;
        if (t.parent[n] >= 0) children[t.parent[n]]++;
    }
    static const int of_levels[] = {0, 4, 8, 8, 3, 2}, of_first[] = {3, 2, 2, 1, 3, 2, 2, 1, 0};
    assert_memory_equal(levels, of_levels, sizeof of_levels);
    assert_memory_equal(children, of_first, sizeof of_first);
    assert_true(children[12] == 3 && children[20] == 2);
}

static void refused(const discrete_models *s, mar_model *model, mar_vae *vae, const mar_params *p, mar_status expected,
                    const char *why)
{
    mar_session *session = (mar_session *)p;
    const mar_status status = mar_session_create(model, vae, p, 1, &session);
    assert_null(session);
    const char *found = strstr(mar_error(s->m), why); /* behind the image decoder's name, if it is at fault */
    if (status != expected || !found || strcmp(found, why) != 0)
        fail_msg("%s, \"%s\", expected \"%s\"", mar_status_name(status), mar_error(s->m), why);
}

#define COSTS                                                                                                          \
    "expected the times of rounds of 2, 4, 8, ... drafts, at most 128 of them, none below 1 or the one before, as in " \
    "1.05,1.1,1.3"

#define DRAFTED_COSTS                                                                                                  \
    "expected the times of rounds of 1, 2, 4, ... drafts, at most 64 of them, none below 1 or the one before, as in "  \
    "1.05,1.1,1.3, or behind them, as in 1.05,1.1,1.3+0.02, that of catching up on a token"

TEST_CASE(options_that_cannot_be)
{
    const discrete_models s = discrete_open(*state, 1);
    static const struct {
        const char *options;
        discrete_draft draft;
        const char *why;
    } cases[] = {
        {"num_iter 8", NO_DRAFT, "--num_iter 8: expected 0 or 16: the model makes its tokens one after another"},
        {"top_k 51", NO_DRAFT, "--top_k 51: expected 0..50, the model's vocabulary"},
        {"cfg_interval 15", NO_DRAFT, "--cfg_interval 15: expected -1..14, the number of an image's tokens less 2"},
        {"gamma 17", NEAR, "--gamma 17: expected 16 at most, the tokens of an image"},
        {"tree dynamic, gamma 17", NEAR, "--gamma 17: expected 16 at most, the tokens of an image"},
        {"tree 1/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1", NEAR,
         "--tree 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1: expected 16 levels at most, the tokens of an image"},
        {"spec sjd, window 17", NO_DRAFT, "--window 17: expected 16 at most, the tokens of an image"},
        {"spec sjd-pac, window 65", NO_DRAFT, "--window 65: expected 16 at most, the tokens of an image"},
        {"spec sjd, round_costs 1/1/1/1/1", NO_DRAFT,
         "--round_costs 1,1,1,1,1: has times of up to 32 drafts, expected up to 16, the tokens of an image"},
        {"spec sjd, window 16, round_costs 1.1/1.2/1.4", NO_DRAFT,
         "--round_costs 1.1,1.2,1.4: has times of up to 8 drafts, expected up to 16, the --window"},
        {"spec sjd, round_costs 0x1p1", NO_DRAFT, "--round_costs 0x1p1: " COSTS},
        {"spec sjd, round_costs 1.1.1", NO_DRAFT, "--round_costs 1.1.1: " COSTS},
        {"spec sjd, window 4, round_costs 1.1/1.2/1.4", NO_DRAFT,
         "--round_costs 1.1,1.2,1.4: has times of up to 8 drafts, expected up to 4, the --window"},
        {"spec sjd, round_costs 1.1/1.05", NO_DRAFT, "--round_costs 1.1,1.05: " COSTS},
        {"spec sjd, round_costs 0.9", NO_DRAFT, "--round_costs 0.9: " COSTS},
        {"spec sjd, round_costs 1.1/", NO_DRAFT, "--round_costs 1.1,: " COSTS},
        {"spec sjd, round_costs nan", NO_DRAFT, "--round_costs nan: " COSTS},
        {"spec sjd, round_costs 1/1/1/1/1/1/1/1", NO_DRAFT, "--round_costs 1,1,1,1,1,1,1,1: " COSTS},
        {"spec sjd, round_costs 1.1+0.1", NO_DRAFT, "--round_costs 1.1+0.1: " COSTS},
        {"round_costs 1.1+0.1/1.2", NEAR, "--round_costs 1.1+0.1,1.2: " DRAFTED_COSTS},
        {"round_costs 1.1+1001", NEAR, "--round_costs 1.1+1001: " DRAFTED_COSTS},
        {"round_costs 1.1+", NEAR, "--round_costs 1.1+: " DRAFTED_COSTS},
        {"tree 2/1, round_costs 0.9+0.1", NEAR,
         "--round_costs 0.9+0.1: expected the time of a round of all 4 drafts, 1 or more, and maybe, as in 2+0.1, that "
         "of catching up on a token"},
        {"spec lantern, lantern_k 51", NEAR, "--lantern_k 51: expected 50 at most, the tokens of the codebook"},
        {"spec lantern-pp-gstar, lantern_k 1000", NEAR,
         "--lantern_k 1000: expected 50 at most, the tokens of the codebook"},
        {"lazy on", NO_DRAFT, "--lazy has no effect: the model's tokens are discrete"},
        {"head_spec 4", NEAR, "--head_spec has no effect: the model's tokens are discrete"},
        {"num_sampling_steps 50", NO_DRAFT, "--num_sampling_steps has no effect: the model's tokens are discrete"},
        {"sampler ddim", NO_DRAFT, "--sampler has no effect: the model's tokens are discrete"},
        {"gtr on", NO_DRAFT, "--gtr has no effect: the model's tokens are discrete"},
        {"spec path", NO_DRAFT,
         "--spec path verifies continuous tokens, but the model's are discrete: expected vanilla, uniform-rsd, "
         "cool-sd-exp, cool-sd-linear, lantern, lantern-pp, lantern-gstar, lantern-pp-gstar, sjd, sjd-pac or scd"},
        {"spec vanilla", NO_DRAFT, "--spec vanilla: needs --draft"},
        {"spec lantern-pp", NO_DRAFT, "--spec lantern-pp: needs --draft"},
        {"spec sjd", NEAR,
         "--draft and --spec sjd do not go together: --draft changes the drafting, which --spec sjd needs unchanged; "
         "expected one of them"},
        {"tree 2//1", NEAR,
         "--tree 2,,1: expected chain, static, dynamic, or the numbers of children by levels, such as 4,2,1,1"},
        {"tree 0", NEAR,
         "--tree 0: expected chain, static, dynamic, or the numbers of children by levels, such as 4,2,1,1"},
        {"tree 9/9/9", NEAR, "--tree 9,9,9: expected at most 256 drafts"},
        {"spec cool-sd-linear, cool_ell 8", NEAR,
         "--cool_ell 8: expected more than 8, which is --gamma: nothing drafted from number 8 on is accepted"},
        {"spec cool-sd-linear, gamma 10", NEAR,
         "--cool_ell 9: expected more than 10, which is --gamma: nothing drafted from number 9 on is accepted"},
        {"spec cool-sd-linear, cool_ell 4.5, tree static", NEAR,
         "--cool_ell 4.5: expected more than 5, the depth of the tree: nothing drafted from number 4.5 on is accepted"},
        {"tree 257", NEAR, "--tree 257: expected at most 256 drafts"},
        {"tree 99999999999999999999", NEAR, "--tree 99999999999999999999: expected at most 256 drafts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_params p = discrete_params(cases[i].options);
        if (!strstr(cases[i].options, "num_sampling_steps")) p.num_sampling_steps = 0;
        p.draft = s.drafts[cases[i].draft];
        refused(&s, s.target, s.vae, &p, MAR_EARG, cases[i].why);
    }
    mar_params p = discrete_params("spec lantern");
    p.draft = s.drafts[NEAR];
    refused(&s, s.target, NULL, &p, MAR_EARG,
            "--spec lantern: needs the image decoder's codebook, but the session has no VAE");
    discrete_close(s);
}

/* Checks the limit on a batch's size, which counts the drafts in each model pass. A dynamic tree counts tree_top drafts
 * at each level but the last. */
TEST_CASE(batches_that_are_too_large)
{
    extern const mar_engine mar_raster_ids_engine;
    const discrete_models s = discrete_open(*state, 1);
    static const struct {
        const char *options;
        discrete_draft draft;
        int images, drafts; /* -1: it fits */
    } cases[] = {
        {"cfg 2", NO_DRAFT, 4000000, -1},
        {"cfg 2", NO_DRAFT, 8000000, 0},
        {"cfg 2, gamma 2", NEAR, 4000000, -1},
        {"cfg 2, gamma 16", NEAR, 4000000, 16},
        {"cfg 2, spec sjd", NO_DRAFT, 4000000, 16},
        {"cfg 2, spec sjd-pac, window 4", NO_DRAFT, 4000000, -1},
        {"cfg 2, tree 16/8", NEAR, 800000, -1},
        {"cfg 2, tree 16/8", NEAR, 1000000, 144},
        {"cfg 2, tree dynamic, gamma 16, tree_top 64", NEAR, 100000, -1},
        {"cfg 2, tree dynamic, gamma 16, tree_top 64", NEAR, 140000, 960},
        {"cfg 2, tree dynamic, gamma 1, tree_top 64, tree_total 64", NEAR, 1500000, -1},
        {"cfg 2, tree dynamic, gamma 1, tree_top 64, tree_total 64", NEAR, 2000000, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char why[128];
        mar_err err = {0};
        raster_plan plan;
        mar_params p = discrete_params(cases[i].options);
        p.draft = s.drafts[cases[i].draft];
        mar_accels_on ways;
        assert_ok(mar_accels_resolve_params(&p, &mar_raster_ids_engine, &ways, &err), &err);
        const mar_status status = raster_resolve_ids(mar_raster_model_of(s.target), &p, cases[i].images, &plan, &err);
        snprintf(why, sizeof why, "batch of %d images of 16 tokens and %d drafts at a time: too large", cases[i].images,
                 cases[i].drafts);
        if (status != (cases[i].drafts < 0 ? MAR_OK : MAR_EARG) || (status != MAR_OK && strcmp(err.text, why) != 0))
            fail_msg("%s, %d images: \"%s\"", cases[i].options, cases[i].images, err.text);
    }
    discrete_close(s);
}

/* Loads a model of the small shape, changed in one respect, as a draft. */
static mar_model *other_model(const discrete_files *f, const discrete_models *s, const family_facts *c)
{
    mar_model *model;
    char *path = write_llamagen(f->directory, "other.safetensors", c, 4, 0, 1);
    assert_library(s->m, mar_model_load(s->m, path, 0, &model));
    free(path);
    return model;
}

TEST_CASE(files_that_do_not_go_together)
{
    const discrete_files *f = *state;
    const discrete_models s = discrete_open(f, 1);
    mar_model *continuous, *captioned;
    mar_vae *kl;
    mar_params p = discrete_params("");
    assert_library(s.m, mar_model_load(s.m, "demo", 0, &continuous));
    assert_library(s.m, mar_model_load(s.m, discrete_captions, 0, &captioned));
    assert_library(s.m, mar_vae_load(s.m, "demo", &kl));
    refused(&s, s.target, kl, &p, MAR_EMODEL,
            "demo: the VAE decodes continuous latents (KL), but the model's tokens are numbers of a codebook: expected "
            "a VQ "
            "tokenizer");
    refused(&s, continuous, s.vae, &p, MAR_EMODEL,
            "the VAE decodes numbers of a codebook (VQ), but the model's tokens are continuous: expected a KL "
            "autoencoder");
    p.spec = "vanilla";
    refused(
        &s, continuous, NULL, &p, MAR_EARG,
        "--spec vanilla verifies discrete tokens, but the model's are continuous: expected path, conditional, paper "
        "or cspd");
    p.spec = NULL, p.top_k = 3;
    refused(&s, continuous, NULL, &p, MAR_EARG, "--top_k has no effect: the model's tokens are continuous");
    p.top_k = 0, p.draft = continuous;
    refused(
        &s, s.target, NULL, &p, MAR_EMODEL,
        "the draft is a model of family mar, expected one of family llamagen, as the model is, or an EAGLE drafter");
    p.draft = s.target;
    refused(&s, continuous, NULL, &p, MAR_EMODEL,
            "the draft is a model of family llamagen, expected one of family mar, as the model is");
    p.draft = NULL;
    refused(&s, s.drafts[EAGLE], NULL, &p, MAR_EMODEL,
            "an EAGLE drafter makes no images: expected a LlamaGen model, for which it is the draft");
    const eagle_config narrow = {.width = 16, .hidden = 48, .first_norm = 1};
    char *path = write_eagle(f->directory, "narrow.safetensors", &narrow, 3);
    mar_model *drafter;
    assert_library(s.m, mar_model_load(s.m, path, 0, &drafter));
    free(path);
    p.draft = drafter;
    refused(&s, s.target, NULL, &p, MAR_EMODEL, "the EAGLE drafter has width 16, expected the model's, 32");
    refused(&s, continuous, NULL, &p, MAR_EMODEL,
            "the draft is a model of family eagle, expected one of family mar, as the model is");
    mar_model_free(drafter);
    p.draft = captioned;
    refused(&s, s.target, NULL, &p, MAR_EMODEL, "the draft knows 0 classes, expected the model's 5");

    const struct {
        int vocabulary, seq_len, classes;
        const char *why;
    } drafts[] = {
        {49, 16, 5, "the draft's vocabulary has 49 tokens, expected the model's 50"},
        {50, 36, 5, "the draft makes images of 36 tokens, expected the model's 16"},
        {50, 16, 4, "the draft knows 4 classes, expected the model's 5"},
    };
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) {
        family_facts c = small_llamagen();
        c.shape.depth = 1, c.shape.vocabulary = drafts[i].vocabulary, c.shape.seq_len = drafts[i].seq_len,
        c.shape.classes = drafts[i].classes;
        mar_model *other = p.draft = other_model(f, &s, &c);
        refused(&s, s.target, NULL, &p, MAR_EMODEL, drafts[i].why);
        p.draft = NULL;
        if (i == 0)
            refused(&s, other, s.vae, &p, MAR_EMODEL,
                    "the VAE and the model have different codebooks: the VAE's has 50 tokens, the model's 49");
        mar_model_free(other);
    }
    mar_vae_free(kl);
    mar_model_free(captioned);
    mar_model_free(continuous);
    discrete_close(s);
}

static void keep_warning(void *user, mar_log_level level, const char *line)
{
    if (level == MAR_LOG_WARNING) snprintf(user, 512, "%s", line);
}

/* A checkpoint of train_c2i.py has the image size in its options. Where nothing has it, a warning names the sizes. */
TEST_CASE(sizes_of_training_checkpoints)
{
    const discrete_files *f = *state;
    const family_facts c = small_llamagen();
    char *silent = write_llamagen(f->directory, "says_nothing.safetensors", &c, 1, 0, 0), warning[512] = "";
    mar_options options;
    mar *m;
    mar_model *model;
    mar_options_init(&options, sizeof options);
    options.backend = MAR_BACKEND_CPU;
    options.threads = 1;
    options.log = keep_warning;
    options.log_user = warning;
    assert_int_equal(mar_open(&options, &m), MAR_OK);
    assert_library(m, mar_model_load(m, "tests/weights/data/llamagen_384.pt", 2, &model));
    assert_int_equal(mar_model_get_config(model)->seq_len, 576);
    assert_string_equal(warning, "");
    mar_model_free(model);
    assert_int_equal(mar_model_load(m, "tests/weights/data/llamagen_odd.pt", 2, &model), MAR_EMODEL);
    assert_says(mar_error(m), ": args.image_size is the string '384', expected a positive integer");
    assert_library(m, mar_model_load(m, "tests/weights/data/llamagen_dict.pt", 2, &model)); /* args: vars(args) */
    assert_int_equal(mar_model_get_config(model)->seq_len, 576);
    assert_string_equal(warning, "");
    mar_model_free(model);

    assert_library(m, mar_model_load(m, silent, 2, &model));
    assert_says(warning, "nothing in the file says how many tokens an image has: 256 is a guess, for 256 pixels; with "
                         "another --seq_len: 576 for 384 pixels, 784 for 448, 1024 for 512");
    mar_model_free(model);
    mar_close(m);

    warning[0] = '\0';
    options.seq_len = 256;
    assert_int_equal(mar_open(&options, &m), MAR_OK);
    assert_library(m, mar_model_load(m, silent, 2, &model)); /* no guess */
    assert_string_equal(warning, "");
    mar_model_free(model);
    assert_int_equal(mar_model_load(m, "tests/weights/data/llamagen_384.pt", 2, &model), MAR_EARG);
    assert_says(mar_error(m), "--seq_len 256: the options of the training (args) of ");
    mar_close(m);
    free(silent);
}

/* Checks that a file without an image size takes the handle's. A converted file has its own. */
TEST_CASE(sizes_of_images)
{
    const discrete_files *f = *state;
    const family_facts c = small_llamagen();
    char *path = write_llamagen(f->directory, "silent.safetensors", &c, 1, 0, 0), *converted;
    static const struct {
        int asked, seq_len;
    } cases[] = {{0, 256}, {36, 36}, {576, 576}, {35, 0}};
    assert_true(asprintf(&converted, "%s/converted.safetensors", f->directory) > 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_options options = {.size = sizeof options,
                                     .dtype = MAR_DTYPE_F32,
                                     .threads = 1,
                                     .backend = MAR_BACKEND_CPU,
                                     .seq_len = cases[i].asked};
        mar *m;
        mar_model *model, *again;
        assert_int_equal(mar_open(&options, &m), MAR_OK);
        assert_int_equal(mar_model_load(m, path, 0, &model), cases[i].seq_len ? MAR_EMODEL : MAR_EARG);
        if (cases[i].seq_len)
            assert_non_null(
                strstr(mar_error(m),
                       ": its width of 32 is no official model's, and nothing in it says its "
                       "number of attention heads: expected --heads N or --heads ENCODER,DECODER; mar convert --heads "
                       "writes them to its metadata"));
        const mar_status status = mar_model_load(m, path, 2, &model);
        assert_int_equal(status, cases[i].seq_len ? MAR_OK : MAR_EARG);
        if (status == MAR_OK) {
            assert_int_equal(mar_model_get_config(model)->seq_len, cases[i].seq_len);
            assert_library(m, mar_convert(m, path, converted, MAR_DTYPE_AUTO, 2));
            mar_close(m);
            m = open_mar(MAR_DTYPE_F32, 1);
            assert_library(m, mar_model_load(m, converted, 0, &again));
            const mar_model_config *a = mar_model_get_config(again);
            assert_int_equal(a->seq_len, cases[i].seq_len);
            assert_int_equal(a->heads, 2);
            assert_string_equal(a->family, "llamagen");
            mar_model_free(again);
            mar_model_free(model);
        } else {
            assert_string_equal(mar_error(m), "--seq_len 35: expected a square number, such as 256 or 576");
        }
        mar_close(m);
    }
    free(converted);
    free(path);
}

TEST_GROUP(discrete_set_up, discrete_tear_down)
