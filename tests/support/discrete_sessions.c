#include "tests/support/discrete_sessions.h"

#include "mar_methods.h"

#include "mar/core/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char discrete_captions[] = "tests/golden/data/llamagen_t2i.safetensors";
const int discrete_labels[DISCRETE_BATCH] = {3, -1, 0};

int discrete_set_up(void **state)
{
    discrete_files *f = *state = calloc(1, sizeof *f);
    family_facts c = small_llamagen();
    f->directory = test_directory();
    f->target_path = write_llamagen(f->directory, "target.safetensors", &c, 1, 0, 1);
    f->near_path = write_llamagen(f->directory, "near.safetensors", &c, 1, 0.4, 1);
    c.shape.width = 16, c.shape.depth = 1, c.shape.hidden = 24;
    f->small_path = write_llamagen(f->directory, "small.safetensors", &c, 2, 0, 1);
    const eagle_config e = {.width = 32, .hidden = 48, .bias = 1, .first_norm = 1};
    f->eagle_path = write_eagle(f->directory, "eagle.safetensors", &e, 3);
    f->vq_path = copy_vq(f->directory);
    return 0;
}

int discrete_tear_down(void **state)
{
    discrete_files *f = *state;
    free(f->target_path);
    free(f->near_path);
    free(f->small_path);
    free(f->eagle_path);
    free(f->vq_path);
    free(f);
    return 0;
}

discrete_models discrete_open(const discrete_files *f, int threads)
{
    discrete_models s = {.m = open_mar(MAR_DTYPE_F32, threads)};
    assert_library(s.m, mar_model_load(s.m, f->target_path, 0, &s.target));
    assert_library(s.m, mar_model_load(s.m, f->near_path, 0, &s.drafts[NEAR]));
    assert_library(s.m, mar_model_load(s.m, f->small_path, 0, &s.drafts[SMALL]));
    assert_library(s.m, mar_model_load(s.m, f->eagle_path, 0, &s.drafts[EAGLE]));
    s.drafts[ITSELF] = s.target;
    assert_library(s.m, mar_vae_load(s.m, f->vq_path, &s.vae));
    return s;
}

void discrete_close(discrete_models s)
{
    mar_vae_free(s.vae);
    mar_model_free(s.drafts[EAGLE]);
    mar_model_free(s.drafts[SMALL]);
    mar_model_free(s.drafts[NEAR]);
    mar_model_free(s.target);
    mar_close(s.m);
}

const discrete_way discrete_runs[DISCRETE_RUNS] = {
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
    {"cfg 2, spec sjd, window 16, first left", NO_DRAFT, 1},
    {"cfg 1, spec sjd-pac, window 8, first above", NO_DRAFT, 1},
    {"cfg 2, spec sjd-pac, window 16, pac_children 2, pac_depth 2, pac_continue off", NO_DRAFT, 1},
    {"cfg 2, spec sjd-pac, window 16, pac_depth 0", NO_DRAFT, 1},
    {"cfg 2, spec scd, window 8, pac_children 4, first above", NO_DRAFT, 1},
    {"cfg 1, spec scd, window 16", NO_DRAFT, 1},
    {"cfg 2, spec sjd-pac, round_costs 1.01/1.02/1.03", NO_DRAFT, 1},
    {"cfg 1, spec scd, round_costs 1/1/1.1/1.2", NO_DRAFT, 1},
};

mar_params discrete_params(const char *list)
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
            if (*c == '/') *c = ',';               /* separates a tree's levels, or costs */
        const mar_param *o = mar_param_find(name); /* it does not keep the text */
        if (o->type == MAR_TYPE_TEXT && mar_param_choice(o, value) < 0)
            *(const char **)mar_param_field(o, &p) = memcpy(trees_given[turn++ % 4], value, sizeof value);
        else if (mar_params_set(&p, name, value, why, sizeof why) != MAR_OK)
            fail_msg("%s", why);
    }
    return p;
}

mar_session *discrete_session(const discrete_models *s, const char *options, discrete_draft draft, int batch)
{
    mar_session *session;
    mar_params p = discrete_params(options);
    p.draft = s->drafts[draft];
    const mar_status status = mar_session_create(s->target, s->vae, &p, batch, &session);
    if (status != MAR_OK) fail_msg("%s: %s", options, mar_error(s->m));
    return session;
}

mar_status discrete_run(mar_session *s, uint64_t first, const int *labels, int n)
{
    mar_status status = mar_session_begin(s, first, labels, n);
    while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
    return status;
}

void discrete_generate(mar_session *s, uint64_t first, const int *labels, int n, float *tokens)
{
    assert_session(s, discrete_run(s, first, labels, n));
    assert_session(s, mar_session_tokens(s, tokens));
}
