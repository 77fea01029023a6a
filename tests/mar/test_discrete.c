/* Sessions of LlamaGen models through the public calls: every method, on small random models. */
#include "mar/discrete.h"
#include "mar/params.h"
#include "tests/support/changed.h"
#include "tests/support/demo.h"
#include "tests/support/llamagen.h"
#include "tests/support/spy.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEQ = 16, SIDE = 16, BATCH = 3, RGB = SIDE * SIDE * 3 }; /* of small_llamagen with vq.pth */

static const char captions_model[] = "tests/golden/data/llamagen_t2i.safetensors";
static const int labels[BATCH] = {3, -1, 0};

typedef enum { NO_DRAFT, NEAR, SMALL, ITSELF, EAGLE, DRAFTS } draft_kind;

typedef struct {
    char *directory, *target_path, *near_path, *small_path, *eagle_path, *vq_path;
} fixture;

typedef struct {
    mar *m;
    mar_model *target, *drafts[DRAFTS];
    mar_vae *vae;
} models;

static int set_up(void **state)
{
    fixture *f = *state = calloc(1, sizeof *f);
    gpt_config c = small_llamagen();
    f->directory = temporary_directory();
    f->target_path = write_llamagen(f->directory, "target.safetensors", &c, 1, 0, 1);
    f->near_path = write_llamagen(f->directory, "near.safetensors", &c, 1, 0.4, 1);
    c.width = 16, c.depth = 1, c.hidden = 24;
    f->small_path = write_llamagen(f->directory, "small.safetensors", &c, 2, 0, 1);
    const eagle_config e = {.width = 32, .hidden = 48, .bias = 1, .first_norm = 1};
    f->eagle_path = write_eagle(f->directory, "eagle.safetensors", &e, 3);
    f->vq_path = copy_vq(f->directory);
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    remove_directory(f->directory);
    free(f->target_path);
    free(f->near_path);
    free(f->small_path);
    free(f->eagle_path);
    free(f->vq_path);
    free(f->directory);
    free(f);
    return 0;
}

static models open_models(const fixture *f, int threads)
{
    models s = {.m = open_mar(MAR_DTYPE_F32, threads)};
    assert_library(s.m, mar_model_load(s.m, f->target_path, 0, &s.target));
    assert_library(s.m, mar_model_load(s.m, f->near_path, 0, &s.drafts[NEAR]));
    assert_library(s.m, mar_model_load(s.m, f->small_path, 0, &s.drafts[SMALL]));
    assert_library(s.m, mar_model_load(s.m, f->eagle_path, 0, &s.drafts[EAGLE]));
    s.drafts[ITSELF] = s.target;
    assert_library(s.m, mar_vae_load(s.m, f->vq_path, &s.vae));
    return s;
}

static void close_models(models s)
{
    mar_vae_free(s.vae);
    mar_model_free(s.drafts[EAGLE]);
    mar_model_free(s.drafts[SMALL]);
    mar_model_free(s.drafts[NEAR]);
    mar_model_free(s.target);
    mar_close(s.m);
}

static const struct {
    const char *options;
    draft_kind draft;
    int exact;
} runs[] = {
    {"cfg 2", NO_DRAFT, 1},
    {"cfg 1, temperature 0.8, top_k 7, top_p 0.9", NO_DRAFT, 1},
    {"cfg 4, cfg_interval 5", NO_DRAFT, 1},
    {"cfg 2, gamma 3", NEAR, 1},
    {"cfg 1, spec vanilla, gamma 5", SMALL, 1},
    {"cfg 2, gamma 3", ITSELF, 1},
    {"cfg 2, top_k 9, tree static", NEAR, 1},
    {"cfg 1, tree 3/2/1", NEAR, 1},
    {"cfg 2, tree dynamic, gamma 4, tree_top 3, tree_total 9", NEAR, 1},
    {"cfg 2, tree chain, gamma 2, cfg_interval 4", SMALL, 1},
    {"cfg 2, gamma 3", EAGLE, 1},
    {"cfg 1, tree static", EAGLE, 1},
    {"cfg 2, tree dynamic, gamma 3, temperature 0.7", EAGLE, 1},
    {"cfg 1, spec lantern-pp, tree dynamic, gamma 3", EAGLE, 0},
    {"cfg 2, spec uniform-rsd, cool_delta 1.3, gamma 4", NEAR, 0},
    {"cfg 2, spec cool-sd-exp, cool_nu 0.5, gamma 4", NEAR, 0},
    {"cfg 2, spec cool-sd-linear, cool_ell 6, gamma 4", NEAR, 0},
    {"cfg 1, spec lantern, lantern_k 8, gamma 4", NEAR, 0},
    {"cfg 1, spec lantern-pp, lantern_metric cosine, tree static", NEAR, 0},
    {"cfg 1, spec lantern-gstar, lantern_delta 0.4, gamma 4", NEAR, 0},
    {"cfg 1, spec lantern-pp-gstar, lantern_lambda 3, tree dynamic, gamma 3", NEAR, 0},
    {"cfg 2, spec sjd, window 6", NO_DRAFT, 1},
    {"cfg 2, spec sjd, first left", NO_DRAFT, 1},
    {"cfg 1, spec sjd-pac, window 8, first above", NO_DRAFT, 1},
    {"cfg 2, spec sjd-pac, pac_children 2, pac_depth 2, pac_continue off", NO_DRAFT, 1},
    {"cfg 2, spec sjd-pac, pac_depth 0", NO_DRAFT, 1},
};
enum { RUNS = sizeof runs / sizeof *runs };

/* The defaults but for those of a list, such as "cfg 2, gamma 3"; "": none. */
static mar_params params_of(const char *list)
{
    static char trees_given[4][64];
    static int turn;
    char text[256], why[256], *rest;
    mar_params p;
    mar_params_init(&p, sizeof p);
    snprintf(text, sizeof text, "%s", list);
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        char name[64], value[64];
        assert_int_equal(sscanf(word, " %63s %63s", name, value), 2);
        for (char *c = value; *c; c++)
            if (*c == '/') *c = ',';               /* of a tree's levels */
        const mar_param *o = mar_param_find(name); /* which does not keep the text */
        if (o->type == MAR_TYPE_TEXT && mar_param_choice(o, value) < 0)
            *(const char **)mar_param_field(o, &p) = memcpy(trees_given[turn++ % 4], value, sizeof value);
        else if (mar_params_set(&p, name, value, why, sizeof why) != MAR_OK)
            fail_msg("%s", why);
    }
    return p;
}

static mar_session *session_of(const models *s, const char *options, draft_kind draft, int batch)
{
    mar_session *session;
    mar_params p = params_of(options);
    p.draft = s->drafts[draft];
    const mar_status status = mar_session_create(s->target, s->vae, &p, batch, &session);
    if (status != MAR_OK) fail_msg("%s: %s", options, mar_error(s->m));
    return session;
}

static mar_status run(mar_session *s, uint64_t first, const int *of, int n)
{
    mar_status status = mar_session_begin(s, first, of, n);
    while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
    return status;
}

static void generate(mar_session *s, uint64_t first, const int *of, int n, float *tokens)
{
    assert_session(s, run(s, first, of, n));
    assert_session(s, mar_session_tokens(s, tokens));
}

/* An image's tokens depend on its number, the label and the options, not on its batch, the number of threads, or what
 * the session has done before; and neither do its pixels. */
static void images_are_their_own(void **state)
{
    const models one = open_models(*state, 1), two = open_models(*state, 3);
    for (int i = 0; i < RUNS; i++) {
        float all[BATCH * SEQ], again[BATCH * SEQ], single[SEQ];
        static uint8_t rgb[BATCH * RGB], rgb_single[RGB];
        mar_session *s = session_of(&one, runs[i].options, runs[i].draft, BATCH);
        mar_session *t = session_of(&two, runs[i].options, runs[i].draft, BATCH);
        int width, height;
        mar_session_image_size(s, &width, &height);
        assert_true(width == SIDE && height == SIDE);
        generate(s, 7, labels, BATCH, all);
        assert_session(s, mar_session_images(s, rgb));
        for (int k = 0; k < BATCH * SEQ; k++) assert_true(all[k] >= 0 && all[k] < 50 && all[k] == (float)(int)all[k]);
        generate(t, 7, labels, BATCH, again);
        if (memcmp(all, again, sizeof all) != 0) fail_msg("%s: other tokens with other threads", runs[i].options);
        for (int k = BATCH - 1; k >= 0; k--) {
            generate(s, 7 + (uint64_t)k, labels + k, 1, single);
            assert_session(s, mar_session_images(s, rgb_single));
            if (memcmp(single, all + k * SEQ, sizeof single) != 0)
                fail_msg("%s: image %d has other tokens alone", runs[i].options, k);
            assert_memory_equal(rgb_single, rgb + k * RGB, RGB);
        }
        generate(s, 7, labels, BATCH, again);
        assert_memory_equal(all, again, sizeof all);
        generate(s, 8, labels, BATCH, again);
        assert_memory_not_equal(all, again, sizeof all);
        mar_session_free(s);
        mar_session_free(t);
    }
    close_models(one);
    close_models(two);
}

/* What the counts of a batch must come to. */
static void check_stats(const char *options, mar_session *s)
{
    mar_stats t;
    uint8_t fate[BATCH * SEQ];
    int round[BATCH * SEQ], late[BATCH * SEQ];
    long fates[3] = {0}, rounds = 0, accepted = 0;
    mar_session_get_stats(s, &t);
    assert_session(s, mar_session_fates(s, fate, round));
    assert_session(s, mar_session_fates(s, NULL, NULL));
    assert_session(s, mar_session_lateness(s, late));
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
    assert_in_range(t.accepted + t.rounds, BATCH * SEQ, BATCH * SEQ + BATCH); /* a round adds one token more */
    assert_int_equal(fates[MAR_TOKEN_ACCEPTED], t.accepted);
    if (mar_session_get_params(s)->draft) assert_true(t.draft_s > 0 && t.draft_flop > 0 && t.draft_calls > 0);
}

static void counts_and_guarantees(void **state)
{
    const models s = open_models(*state, 1);
    for (int i = 0; i < RUNS; i++) {
        float tokens[BATCH * SEQ];
        mar_session *session = session_of(&s, runs[i].options, runs[i].draft, BATCH);
        const char *guarantee = mar_session_guarantee(session), *spec = mar_session_get_params(session)->spec;
        generate(session, 0, labels, BATCH, tokens);
        check_stats(runs[i].options, session);
        if ((strncmp(guarantee, "exact: the target's law", 23) == 0) != runs[i].exact)
            fail_msg("%s: %s", runs[i].options, guarantee);
        if (!runs[i].exact) assert_int_equal(strncmp(guarantee, "approximate: changed by ", 24), 0);
        if (spec) assert_non_null(strstr(guarantee, spec));
        mar_session_free(session);
    }
    close_models(s);
}

/* With temperature 0 the law is a point, and every exact method comes to the same tokens. */
static void greedy(void **state)
{
    const models s = open_models(*state, 1);
    float expected[2][BATCH * SEQ], tokens[BATCH * SEQ];
    for (int cfg = 1; cfg <= 2; cfg++) {
        mar_session *plain =
            session_of(&s, cfg == 1 ? "temperature 0, cfg 1" : "temperature 0, cfg 2", NO_DRAFT, BATCH);
        generate(plain, 0, labels, BATCH, expected[cfg - 1]);
        generate(plain, 9, labels, BATCH, tokens);
        assert_memory_equal(tokens, expected[cfg - 1], sizeof tokens);
        mar_session_free(plain);
    }
    for (int i = 0; i < RUNS; i++) {
        char options[160];
        if (!runs[i].exact || strstr(runs[i].options, "cfg_interval")) continue;
        const int cfg = runs[i].options[4] - '0';
        snprintf(options, sizeof options, "%s, temperature 0", runs[i].options);
        mar_session *session = session_of(&s, options, runs[i].draft, BATCH);
        generate(session, 0, labels, BATCH, tokens);
        if (memcmp(tokens, expected[cfg - 1], sizeof tokens) != 0) fail_msg("%s: other tokens than plain", options);
        mar_session_free(session);
    }
    close_models(s);
}

/* Trees have siblings at temperature 0, too, where the laws of plain decoding are points, and with top_k 1. */
static void greedy_trees(void **state)
{
    const models s = open_models(*state, 1);
    static const struct {
        const char *options;
        draft_kind draft;
    } cases[] = {
        {"temperature 0, tree 4/2/1", NEAR},
        {"temperature 0, tree 4/2/1", EAGLE},
        {"temperature 0, tree dynamic, gamma 3, tree_top 4, tree_total 20", NEAR},
        {"temperature 0, tree dynamic, gamma 3, tree_top 4, tree_total 20", EAGLE},
        {"top_k 1, tree dynamic, gamma 3, tree_top 4, tree_total 20", NEAR},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float tokens[BATCH * SEQ];
        mar_stats chain, tree;
        mar_session *a = session_of(&s, "temperature 0, gamma 3", cases[i].draft, BATCH);
        mar_session *b = session_of(&s, cases[i].options, cases[i].draft, BATCH);
        generate(a, 0, labels, BATCH, tokens), generate(b, 0, labels, BATCH, tokens);
        mar_session_get_stats(a, &chain), mar_session_get_stats(b, &tree);
        if (!(tree.rounds < chain.rounds && tree.drafted > 3 * tree.rounds))
            fail_msg("%s: %ld rounds, %ld drafts; a chain has %ld", cases[i].options, tree.rounds, tree.drafted,
                     chain.rounds);
        mar_session_free(a);
        mar_session_free(b);
    }
    close_models(s);
}

/* A draft with the target's weights is always right. */
static void itself_as_draft(void **state)
{
    const models s = open_models(*state, 1);
    float tokens[BATCH * SEQ];
    mar_stats t;
    mar_session *session = session_of(&s, "cfg 2, gamma 3, top_k 20", ITSELF, BATCH);
    generate(session, 0, labels, BATCH, tokens);
    mar_session_get_stats(session, &t);
    assert_int_equal(t.accepted, t.drafted);
    assert_int_equal(t.accepted_lengths[3], BATCH * SEQ / 4);
    assert_int_equal(t.rounds, BATCH * SEQ / 4);
    mar_session_free(session);
    close_models(s);
}

static void automatic_values(void **state)
{
    const models s = open_models(*state, 1);
    static const struct {
        const char *options;
        draft_kind draft;
        const char *name, *value;
    } cases[] = {{"", NO_DRAFT, "num_iter", "16"},
                 {"num_iter 16", NO_DRAFT, "num_iter", "16"},
                 {"", NEAR, "spec", "vanilla"},
                 {"", NEAR, "gamma", "8"},
                 {"gamma auto", NEAR, "gamma", "8"},
                 {"gamma 400", NEAR, "gamma", "16"},
                 {"tree static", NEAR, "gamma", "5"},
                 {"tree 2/1", NEAR, "gamma", "2"},
                 {"tree 2/1", NEAR, "tree", "2,1"},
                 {"spec sjd", NO_DRAFT, "window", "16"},
                 {"spec cool-sd-linear", NEAR, "cool_ell", "9"},
                 {"spec lantern", NEAR, "lantern_k", "50"},
                 {"spec lantern-pp", NEAR, "lantern_k", "10"},
                 {"spec lantern-gstar, lantern_k 7", NEAR, "lantern_k", "7"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        mar_session *session = session_of(&s, cases[i].options, cases[i].draft, 1);
        const mar_params *p = mar_session_get_params(session);
        for (int k = 0; k < mar_param_count(); k++)
            if (strcmp(mar_param_get(k)->name, cases[i].name) == 0)
                assert_string_equal(mar_param_text(mar_param_get(k), p, text, sizeof text), cases[i].value);
        mar_session *same; /* what was filled in is taken as it is */
        assert_library(s.m, mar_session_create(s.target, s.vae, p, 1, &same));
        mar_session_free(same);
        mar_session_free(session);
    }
    close_models(s);
}

/* --- what is refused ---------------------------------------------------------------------------------------------- */

static void refused(const models *s, mar_model *model, mar_vae *vae, const mar_params *p, mar_status expected,
                    const char *why)
{
    mar_session *session = (mar_session *)p;
    const mar_status status = mar_session_create(model, vae, p, 1, &session);
    assert_null(session);
    if (status != expected || strcmp(mar_error(s->m), why) != 0)
        fail_msg("%s, \"%s\", expected \"%s\"", mar_status_name(status), mar_error(s->m), why);
}

static void options_that_cannot_be(void **state)
{
    const models s = open_models(*state, 1);
    static const struct {
        const char *options;
        draft_kind draft;
        const char *why;
    } cases[] = {
        {"num_iter 8", NO_DRAFT, "num_iter 8: expected 0 or 16: the model makes its tokens one after another"},
        {"top_k 51", NO_DRAFT, "top_k 51: expected 0..50, the model's vocabulary"},
        {"lazy on", NO_DRAFT, "lazy has no effect: the model's tokens are discrete"},
        {"head_spec 4", NEAR, "head_spec has no effect: the model's tokens are discrete"},
        {"num_sampling_steps 50", NO_DRAFT, "num_sampling_steps has no effect: the model's tokens are discrete"},
        {"sampler ddim", NO_DRAFT, "sampler has no effect: the model's tokens are discrete"},
        {"gtr on", NO_DRAFT, "gtr has no effect: the model's tokens are discrete"},
        {"spec path", NO_DRAFT,
         "spec path verifies continuous tokens, but the model's are discrete: expected vanilla, uniform-rsd, "
         "cool-sd-exp, cool-sd-linear, lantern, lantern-pp, lantern-gstar, lantern-pp-gstar, sjd or sjd-pac"},
        {"spec vanilla", NO_DRAFT, "spec vanilla: needs draft"},
        {"spec lantern-pp", NO_DRAFT, "spec lantern-pp: needs draft"},
        {"spec sjd", NEAR,
         "draft and spec sjd do not go together: draft changes the drafting, which spec sjd needs unchanged; expected "
         "one of them"},
        {"tree 2//1", NEAR,
         "tree 2,,1: expected chain, static, dynamic, or the numbers of children by levels, such as 4,2,1,1"},
        {"tree 0", NEAR,
         "tree 0: expected chain, static, dynamic, or the numbers of children by levels, such as 4,2,1,1"},
        {"tree 9/9/9", NEAR, "tree 9,9,9: expected at most 256 drafts"},
        {"spec cool-sd-linear, cool_ell 8", NEAR,
         "cool_ell 8: expected more than 8, which is gamma: no draft from number 8 on is accepted"},
        {"spec cool-sd-linear, gamma 10", NEAR,
         "cool_ell 9: expected more than 10, which is gamma: no draft from number 9 on is accepted"},
        {"spec cool-sd-linear, cool_ell 4.5, tree static", NEAR,
         "cool_ell 4.5: expected more than 5, the depth of the tree: no draft from number 4.5 on is accepted"},
        {"tree 257", NEAR, "tree 257: expected at most 256 drafts"},
        {"tree 99999999999999999999", NEAR, "tree 99999999999999999999: expected at most 256 drafts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_params p = params_of(cases[i].options);
        if (!strstr(cases[i].options, "num_sampling_steps")) p.num_sampling_steps = 100;
        p.draft = s.drafts[cases[i].draft];
        refused(&s, s.target, s.vae, &p, MAR_EARG, cases[i].why);
    }
    mar_params p = params_of("spec lantern");
    p.draft = s.drafts[NEAR];
    refused(&s, s.target, NULL, &p, MAR_EARG,
            "spec lantern: needs the image decoder's codebook, but the session has no VAE");
    close_models(s);
}

/* A batch's size counts the drafts that the models are asked about, at a dynamic tree tree_top at each level but the
 * last. */
static void batches_that_are_too_large(void **state)
{
    const models s = open_models(*state, 1);
    static const struct {
        const char *options;
        draft_kind draft;
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
        mar_discrete_plan plan;
        mar_params p = params_of(cases[i].options);
        p.draft = s.drafts[cases[i].draft];
        const mar_status status =
            mar_discrete_settle(mar_discrete_model_of(s.target), &p, cases[i].images, &plan, &err);
        snprintf(why, sizeof why, "batch of %d images of 16 tokens and %d drafts at a time: too large", cases[i].images,
                 cases[i].drafts);
        if (status != (cases[i].drafts < 0 ? MAR_OK : MAR_EARG) || (status != MAR_OK && strcmp(err.text, why) != 0))
            fail_msg("%s, %d images: \"%s\"", cases[i].options, cases[i].images, err.text);
    }
    close_models(s);
}

/* Loads a model of the small shape with something else in it as a draft. */
static mar_model *other_model(const fixture *f, const models *s, const gpt_config *c)
{
    mar_model *model;
    char *path = write_llamagen(f->directory, "other.safetensors", c, 4, 0, 1);
    assert_library(s->m, mar_model_load(s->m, path, 0, &model));
    free(path);
    return model;
}

static void files_that_do_not_go_together(void **state)
{
    const fixture *f = *state;
    const models s = open_models(f, 1);
    mar_model *continuous, *captioned;
    mar_vae *kl;
    mar_params p = params_of("");
    assert_library(s.m, mar_model_load(s.m, "demo", 0, &continuous));
    assert_library(s.m, mar_model_load(s.m, captions_model, 0, &captioned));
    assert_library(s.m, mar_vae_load(s.m, "demo", &kl));
    refused(&s, s.target, kl, &p, MAR_EMODEL,
            "the VAE decodes continuous latents (KL), but the model's tokens are numbers of a codebook: expected a VQ "
            "tokenizer");
    refused(&s, continuous, s.vae, &p, MAR_EMODEL,
            "the VAE decodes numbers of a codebook (VQ), but the model's tokens are continuous: expected a KL "
            "autoencoder");
    p.spec = "vanilla";
    refused(&s, continuous, NULL, &p, MAR_EARG,
            "spec vanilla verifies discrete tokens, but the model's are continuous: expected path, conditional, paper "
            "or cspd");
    p.spec = NULL, p.top_k = 3;
    refused(&s, continuous, NULL, &p, MAR_EARG, "top_k has no effect: the model's tokens are continuous");
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
        gpt_config c;
        const char *why;
    } drafts[] = {
        {{32, 1, 2, 64, 49, 16, 5, 1, 0, 0}, "the draft's vocabulary has 49 tokens, expected the model's 50"},
        {{32, 1, 2, 64, 50, 36, 5, 1, 0, 0}, "the draft makes images of 36 tokens, expected the model's 16"},
        {{32, 1, 2, 64, 50, 16, 4, 1, 0, 0}, "the draft knows 4 classes, expected the model's 5"},
    };
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) {
        mar_model *other = p.draft = other_model(f, &s, &drafts[i].c);
        refused(&s, s.target, NULL, &p, MAR_EMODEL, drafts[i].why);
        p.draft = NULL;
        if (i == 0)
            refused(&s, other, s.vae, &p, MAR_EMODEL,
                    "tokenizer and model have different codebooks: the VAE's has 50 tokens, the model's 49");
        mar_model_free(other);
    }
    mar_vae_free(kl);
    mar_model_free(captioned);
    mar_model_free(continuous);
    close_models(s);
}

/* --- captions ----------------------------------------------------------------------------------------------------- */

static void captions(void **state)
{
    enum { TOKENS = 120, DIM = 12 };
    const models s = open_models(*state, 1);
    mar_model *model;
    mar_session *session;
    static float features[2 * TOKENS * DIM];
    static uint8_t mask[2 * TOKENS];
    float both[2 * SEQ], single[SEQ], tokens[2 * SEQ];
    for (int i = 0; i < 2 * TOKENS * DIM; i++) features[i] = sinf((float)(i % 977));
    for (int i = 0; i < 2 * TOKENS; i++) mask[i] = i % TOKENS >= (i < TOKENS ? 100 : 40);
    assert_library(s.m, mar_model_load(s.m, captions_model, 0, &model));
    const mar_model_config *c = mar_model_get_config(model);
    assert_true(c->caption_tokens == TOKENS && c->caption_dim == DIM && c->classes == 0 && c->vocabulary == 50);
    const mar_params p = params_of("cfg 2");
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
    /* what the mask leaves out is not looked at, and without a mask it is all looked at */
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

    assert_int_equal(mar_session_begin(session, 0, labels, 1), MAR_EARG);
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
    session = session_of(&s, "", NO_DRAFT, 1);
    assert_int_equal(mar_session_begin_captions(session, 0, features, mask, 1), MAR_EARG);
    assert_string_equal(mar_session_error(session),
                        "the model makes images of classes, not of captions: expected labels");
    mar_session_free(session);
    close_models(s);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* A file that does not say how large its images are is what the handle says; a converted one says it itself. */
static void sizes_of_images(void **state)
{
    const fixture *f = *state;
    const gpt_config c = small_llamagen();
    char *path = write_llamagen(f->directory, "silent.safetensors", &c, 1, 0, 0), *converted;
    static const struct {
        int asked, seq_len;
    } cases[] = {{0, 256}, {36, 36}, {576, 576}, {35, 0}};
    assert_true(asprintf(&converted, "%s/converted.safetensors", f->directory) > 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_options options = {
            .dtype = MAR_DTYPE_F32, .threads = 1, .backend = MAR_BACKEND_CPU, .seq_len = cases[i].asked};
        mar *m;
        mar_model *model, *again;
        assert_int_equal(mar_open(&options, &m), MAR_OK);
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
            assert_string_equal(mar_error(m), "seq_len 35: expected a square number, such as 256 or 576");
        }
        mar_close(m);
    }
    free(converted);
    free(path);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* A weight that is NaN fails the batch with the token's place, and with check the layer. */
static void numbers_that_are_not_finite(void **state)
{
    const fixture *f = *state;
    const mar_options options = {
        .dtype = MAR_DTYPE_F32, .threads = 1, .backend = MAR_BACKEND_CPU, .allow_nonfinite = 1};
    mar *m;
    assert_int_equal(mar_open(&options, &m), MAR_OK);
    char *path =
        write_changed(m, f->directory, "nan.safetensors", f->target_path, "layers.1.ffn_norm.weight", 0, 1, NAN);
    for (int is_draft = 0; is_draft <= 1; is_draft++)
        for (int check = 0; check <= 1; check++) {
            mar_model *bad, *good;
            mar_session *s;
            mar_params p = params_of(check ? "check on" : "");
            assert_library(m, mar_model_load(m, path, 0, &bad));
            assert_library(m, mar_model_load(m, f->target_path, 0, &good));
            if (is_draft) p.draft = bad;
            assert_library(m, mar_session_create(is_draft ? good : bad, NULL, &p, 2, &s));
            const mar_status status = run(s, 5, labels, 2);
            if (status != MAR_EMODEL) fail_msg("%s", mar_status_name(status));
            assert_says(mar_session_error(s), check      ? (is_draft ? "draft: layers.1." : "layers.1.")
                                              : is_draft ? "draft: image 5, token 0: "
                                                         : "image 5, token 0: ");
            if (!check) assert_says(mar_session_error(s), "; check names the first layer whose output is not finite");
            assert_null(strchr(mar_session_error(s), '\n'));
            mar_session_free(s);
            mar_model_free(good);
            mar_model_free(bad);
        }
    free(path);
    mar_close(m);
}

/* A cancel or a failure before any operation ends the call at hand, and the next batch is that of a fresh session. */
static void disturbances(void **state)
{
    enum { PLACES = 5 };
    const models s = open_models(*state, 1);
    for (int i = 0; i < RUNS; i++) {
        float expected[BATCH * SEQ], tokens[BATCH * SEQ];
        mar_session *session = session_of(&s, runs[i].options, runs[i].draft, BATCH);
        generate(session, 0, labels, BATCH, expected);
        spy_on(session, NULL, -1, NULL);
        generate(session, 0, labels, BATCH, tokens);
        const long all = spy_off() - 1; /* the last one reads the tokens */
        assert_in_range(all, 1, 100000);
        for (int k = 0; k < 2 * PLACES; k++) {
            const int fails = k % 2;
            spy_on(session, NULL, (all - 1) * (k / 2) / (PLACES - 1), fails ? spy_break : spy_cancel);
            const mar_status status = run(session, 0, labels, BATCH);
            spy_off();
            if (status != (fails ? MAR_EBACKEND : MAR_ECANCELLED))
                fail_msg("%s: at %ld of %ld: %s", runs[i].options, spy.at, all, mar_status_name(status));
            assert_int_equal(mar_session_steps_left(session), 0);
            assert_int_equal(mar_session_tokens(session, tokens), MAR_EARG);
            generate(session, 0, labels, BATCH, tokens);
            if (memcmp(tokens, expected, sizeof tokens) != 0)
                fail_msg("%s: other tokens after %s at %ld of %ld", runs[i].options, fails ? "a failure" : "a cancel",
                         spy.at, all);
        }
        mar_session_free(session);
    }
    close_models(s);
}

/* Sessions of all methods at once, on threads of their own, make what they make alone. */
typedef struct {
    const models *s;
    int run;
    mar_session *session;
    float tokens[BATCH * SEQ];
    mar_status status;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < 4 && w->status == MAR_OK; i++) {
        w->status = run(w->session, 0, labels, BATCH);
        if (w->status == MAR_OK) w->status = mar_session_tokens(w->session, w->tokens);
    }
    return NULL;
}

static void threads(void **state)
{
    const models s = open_models(*state, 2);
    static worker workers[RUNS];
    pthread_t ids[RUNS];
    for (int i = 0; i < RUNS; i++) {
        workers[i] = (worker){&s, i, session_of(&s, runs[i].options, runs[i].draft, BATCH), {0}, MAR_OK};
        assert_int_equal(pthread_create(&ids[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < RUNS; i++) {
        float alone[BATCH * SEQ];
        pthread_join(ids[i], NULL);
        assert_session(workers[i].session, workers[i].status);
        mar_session_free(workers[i].session);
        mar_session *session = session_of(&s, runs[i].options, runs[i].draft, BATCH);
        generate(session, 0, labels, BATCH, alone);
        if (memcmp(alone, workers[i].tokens, sizeof alone) != 0)
            fail_msg("%s: other tokens beside other sessions", runs[i].options);
        mar_session_free(session);
    }
    close_models(s);
}

/* Measuring needs neither a head nor classes. */
static void count_row(void *user, const mar_measurement *row)
{
    if (strcmp(row->group, "pass") == 0) ++*(int *)user;
}

static void measuring(void **state)
{
    const models s = open_models(*state, 1);
    mar_model *captioned;
    assert_library(s.m, mar_model_load(s.m, captions_model, 0, &captioned));
    for (int i = 0; i < 2; i++) {
        mar_session *session;
        int passes = 0;
        const mar_params p = params_of("cfg 2");
        assert_library(s.m, mar_session_create(i ? captioned : s.target, s.vae, &p, 1, &session));
        assert_session(session, mar_session_measure(session, count_row, &passes));
        assert_true(passes >= 3); /* the transformer, the step, the image decoder */
        mar_session_free(session);
    }
    mar_model_free(captioned);
    close_models(s);
}

/* --- trees -------------------------------------------------------------------------------------------------------- */

static void trees(void **state)
{
    (void)state;
    mar_tree t;
    mar_err err;
    assert_ok(mar_tree_read("2,2,1", &t, &err), &err);
    static const int expected[] = {-1, -1, 0, 0, 1, 1, 2, 3, 4, 5};
    assert_true(t.count == 10 && t.depth == 3);
    assert_memory_equal(t.parent, expected, sizeof expected);
    assert_ok(mar_tree_read("static", &t, &err), &err);
    /* mc_sim_7b_63 of EAGLE's choices.py: the number of its drafts at each level, and of the first ones' children */
    int depth[MAR_TREE_DRAFTS], levels[6] = {0}, children[MAR_TREE_DRAFTS] = {0};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_are_their_own),
        cmocka_unit_test(counts_and_guarantees),
        cmocka_unit_test(greedy),
        cmocka_unit_test(greedy_trees),
        cmocka_unit_test(itself_as_draft),
        cmocka_unit_test(automatic_values),
        cmocka_unit_test(options_that_cannot_be),
        cmocka_unit_test(batches_that_are_too_large),
        cmocka_unit_test(files_that_do_not_go_together),
        cmocka_unit_test(captions),
        cmocka_unit_test(sizes_of_images),
        cmocka_unit_test(numbers_that_are_not_finite),
        cmocka_unit_test(disturbances),
        cmocka_unit_test(threads),
        cmocka_unit_test(measuring),
        cmocka_unit_test(trees),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
