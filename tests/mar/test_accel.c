/* Tests of the registry of accelerators: legal combinations, effect on the output's distribution, and the printed
 * guarantee. */
#include "mar/masked.h"

#include "mar_methods.h"
#include "mar/accel/registry.h"
#include "mar/core/params.h"
#include "specdec/verifier.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

enum {
    SAMPLER = 1,
    DISA = 2,
    LAZY = 4,
    LAZY_HEAD = 8,
    HEAD_SPEC = 16,
    GTR = 32,
    DRAFT = 64,
    SPEC = 128, /* excludes PATH: both are values of --spec */
    PATH = 256,
    INTERVAL = 512,
    ALL = 1024
};

static mar_params params_of(int set, mar_model *draft)
{
    mar_params p = plain_params();
    p.num_iter = 8, p.num_sampling_steps = 4;
    p.gtr_generation_steps = 2;
    if (set & SAMPLER) p.sampler = MAR_SAMPLER_DDIM;
    if (set & DISA) p.diff_annealing = MAR_ANNEAL_LINEAR, p.diff_upper_steps = 4, p.diff_lower_steps = 3;
    p.lazy = (set & LAZY) != 0;
    p.lazy_head = (set & LAZY_HEAD) != 0;
    p.head_spec = set & HEAD_SPEC ? 4 : 0;
    p.gtr = (set & GTR) != 0;
    if (set & DRAFT) p.draft = draft;
    if (set & SPEC) p.spec = "paper";
    if (set & PATH) p.spec = "path";
    if (set & INTERVAL) p.cfg = 2, p.cfg_low = 0.25f;
    return p;
}

/* Returns whether the accelerators of a set may be combined. Lists the rules one by one, without stages. */
static int is_legal(int set)
{
    set &= ~INTERVAL;                                              /* goes with all */
    if ((set & DRAFT) && !(set & (SPEC | HEAD_SPEC))) set |= PATH; /* by default */
    const int solver = set & SAMPLER, annealed = set & DISA;
    if (set & PATH) return (set & ~(PATH | DISA | HEAD_SPEC | DRAFT)) == 0;
    if ((set & SPEC) && !(set & DRAFT)) return 0;
    if ((set & HEAD_SPEC) && (set & DRAFT) && (set & SPEC)) return 0;
    if ((set & HEAD_SPEC) && solver) return 0;
    if ((set & HEAD_SPEC) && (set & LAZY_HEAD)) return 0;
    if ((set & LAZY_HEAD) && (solver || annealed)) return 0;
    if ((set & DRAFT) && (solver || (set & (LAZY | LAZY_HEAD | GTR)))) return 0;
    if ((set & DRAFT) && annealed && !(set & HEAD_SPEC)) return 0;
    if ((set & GTR) && (annealed || (set & LAZY))) return 0;
    return 1;
}

/* Returns whether a refusal begins with two options of the set. */
static int names_two(const char *text, int set)
{
    static const struct {
        int bit;
        const char *name;
    } options[] = {{SAMPLER, "--sampler"},     {DISA, "--diff_annealing"}, {LAZY, "--lazy"},
                   {LAZY_HEAD, "--lazy_head"}, {HEAD_SPEC, "--head_spec"}, {GTR, "--gtr"},
                   {DRAFT, "--draft"},         {SPEC, "--spec paper"},     {PATH, "--spec path"}};
    enum { OPTIONS = sizeof options / sizeof *options };
    if ((set & DRAFT) && !(set & (SPEC | HEAD_SPEC))) set |= PATH; /* by default */
    for (int i = 0; i < OPTIONS * OPTIONS; i++) {
        char start[96];
        const int a = i / OPTIONS, b = i % OPTIONS;
        snprintf(start, sizeof start, "%s and %s do not go together: ", options[a].name, options[b].name);
        if ((set & options[a].bit) && (set & options[b].bit) && strncmp(text, start, strlen(start)) == 0) return a != b;
    }
    return 0;
}

/* Tries all 768 sets of accelerators. The rules allow 62 of them. Every other set is refused in one line that names two
 * of its options. */
TEST_CASE(combinations)
{
    int legal = 0;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model, *draft;
    assert_library(m, mar_model_load(m, "demo-draft", 0, &model));
    assert_library(m, mar_model_load(m, "demo-draft", 0, &draft));
    for (int set = 0; set < ALL; set++) {
        if ((set & SPEC) && (set & PATH)) continue;
        const mar_params p = params_of(set, draft);
        mar_session *s;
        const mar_status status = mar_session_create(model, NULL, &p, 1, &s);
        if ((status == MAR_OK) != is_legal(set))
            fail_msg("set %d: %s, %s", set, mar_status_name(status), status == MAR_OK ? "" : mar_error(m));
        if (status == MAR_OK) {
            /* Exact: no accelerator, or speculation inside the head or by whole paths, with a draft or without. */
            const int exact = (set & ~(HEAD_SPEC | DRAFT | PATH)) == 0;
            if ((strncmp(mar_session_guarantee(s), "exact to: ", 10) == 0) != exact)
                fail_msg("set %d: %s", set, mar_session_guarantee(s));
        } else {
            assert_int_equal(status, MAR_EARG);
            if ((!names_two(mar_error(m), set) && !strstr(mar_error(m), "needs --draft")) || strchr(mar_error(m), '\n'))
                fail_msg("set %d: \"%s\"", set, mar_error(m));
        }
        legal += status == MAR_OK;
        mar_session_free(s);
    }
    assert_int_equal(legal, 62);
    mar_model_free(draft);
    mar_model_free(model);
    mar_close(m);
}

/* Returns whether a set may be combined in raster order. */
static int is_legal_in_raster_order(int set)
{
    if (set & ~(SAMPLER | DISA | HEAD_SPEC | DRAFT | PATH | INTERVAL)) return 0;
    if (set & DRAFT) return !(set & SAMPLER) && !((set & HEAD_SPEC) && !(set & PATH));
    return !(set & PATH) && !((set & HEAD_SPEC) && (set & SAMPLER));
}

/* Tries the same sets with vectors in raster order, where the rules allow 24. */
TEST_CASE(combinations_in_raster_order)
{
    int legal = 0;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model, *draft;
    assert_library(m, mar_model_load(m, "demo-sphere-draft", 0, &model));
    assert_library(m, mar_model_load(m, "demo-sphere-draft", 0, &draft));
    for (int set = 0; set < ALL; set++) {
        if ((set & SPEC) && (set & PATH)) continue;
        mar_params p = params_of(set, draft);
        mar_session *s;
        p.num_iter = 0;
        const mar_status status = mar_session_create(model, NULL, &p, 1, &s);
        if (status != (is_legal_in_raster_order(set) ? MAR_OK : MAR_EARG))
            fail_msg("set %d: %s, %s", set, mar_status_name(status), status == MAR_OK ? "" : mar_error(m));
        const int exact = (set & ~(HEAD_SPEC | DRAFT | PATH)) == 0;
        if (status == MAR_OK && (strncmp(mar_session_guarantee(s), "exact to: ", 10) == 0) != exact)
            fail_msg("set %d: %s", set, mar_session_guarantee(s));
        if (status != MAR_OK && (strncmp(mar_error(m), "--", 2) != 0 || strchr(mar_error(m), '\n')))
            fail_msg("set %d: \"%s\"", set, mar_error(m));
        legal += status == MAR_OK;
        mar_session_free(s);
    }
    assert_int_equal(legal, 24);
    mar_model_free(draft);
    mar_model_free(model);
    mar_close(m);
}

/* Checks that a refusal names the stage, and says how each of the two options uses it. */
TEST_CASE(refusals_name_the_stage)
{
    mar_err err = {0};
    mar_params p = params_of(GTR | LAZY, NULL);
    assert_int_equal(mar_accels_check(&p, &err), MAR_EARG);
    assert_string_equal(err.text,
                        "--gtr and --lazy do not go together: --gtr changes the autoregressive steps, which --lazy "
                        "needs unchanged; expected one of them");
    p = params_of(SAMPLER | LAZY, NULL);
    assert_int_equal(mar_accels_check(&p, &err), MAR_OK);
    p = params_of(PATH | LAZY, NULL); /* an option with several methods is named with its value */
    assert_int_equal(mar_accels_check(&p, &err), MAR_EARG);
    assert_string_equal(err.text,
                        "--lazy and --spec path do not go together: --lazy changes the transformer passes, which "
                        "--spec path needs unchanged; expected one of them");
}

static void assert_effect(mar_params p, int exact, const char *how)
{
    mar_effect effect;
    mar_accels_effect(&p, &effect);
    assert_int_equal(effect.exact, exact);
    assert_string_equal(effect.how, how);
}

TEST_CASE(effects)
{
    assert_effect(params_of(DISA | LAZY | SAMPLER, NULL), 0, "changed by diff_annealing, lazy, sampler ddim");
    assert_effect(params_of(HEAD_SPEC, NULL), 1, "by speculation inside the head");
    assert_effect(params_of(HEAD_SPEC | LAZY, NULL), 0, "changed by lazy");
    assert_effect(params_of(0, NULL), 1, "");
    assert_effect(params_of(INTERVAL | LAZY, NULL), 0, "changed by lazy, guidance in an interval");
    mar_params p = params_of(0, NULL);
    p.cfg = 2, p.cfg_high = 0.75f; /* limited from above */
    assert_effect(p, 0, "changed by guidance in an interval");
    p.cfg = 1; /* no guidance to limit */
    assert_effect(p, 1, "");
}

/* Checks that an option turns each accelerator on, and that each option's method exists. */
TEST_CASE(names)
{
    for (const mar_accel *const *way = mar_accels(); *way; way++) {
        assert_non_null(mar_param_find((*way)->name));
        if ((*way)->also) assert_non_null(mar_param_find((*way)->also));
        if ((*way)->replaces) assert_non_null(mar_param_find((*way)->replaces));
        assert_true(((*way)->changes & (*way)->needs) == 0);
        const mar_masked_hooks *hooks = (*way)->masked;
        if ((*way)->chain) assert_true((*way)->changes & MAR_STAGE_CHAIN);
        if (!hooks) continue;
        assert_true(!hooks->create || !hooks->lay_out || hooks->destroy);
        /* Only one accelerator at a time may replace the drawing of tokens, or the step. */
        if (hooks->step) assert_true(((*way)->needs | (*way)->changes) & MAR_STAGE_CHAIN);
    }
    for (const char *const *value = mar_param_find("spec")->choices; *value; value++) {
        mar_params p = plain_params();
        int on = 0;
        p.spec = *value;
        for (const mar_accel *const *way = mar_accels(); *way; way++)
            if (strcmp((*way)->name, "spec") == 0 && mar_accel_is_on(*way, &p)) {
                on++;
                assert_ptr_equal(mar_accel_of_verifier(*value), *way);
                const spec_method *m = spec_method_find(*value);
                assert_int_equal((*way)->asks_for != NULL, !m->paths && !m->stale);
                assert_string_equal((*way)->tokens, m->tokens & SPEC_DISCRETE ? "discrete" : "continuous");
            }
        if (on != 1) fail_msg("spec %s: turns on %d ways", *value, on);
    }
    assert_null(mar_accel_of_verifier("head_spec"));
    for (int i = 0; i < mar_param_count(); i++) {
        const char *methods = mar_param_get(i)->method;
        for (const char *at = methods; at && *at; at += strcspn(at, "|"), at += *at == '|') {
            char method[64];
            snprintf(method, sizeof method, "%.*s", (int)strcspn(at, "|"), at);
            int found = spec_method_find(method) != NULL;
            for (const mar_accel *const *way = mar_accels(); *way && !found; way++)
                found = strcmp((*way)->name, method) == 0;
            if (!found) fail_msg("%s needs %s, which is no way and no verifier", mar_param_get(i)->name, method);
        }
    }
}

/* Checks that mar_method_get lists every verifier and accelerator, with all options of its own. No limit cuts the
 * list. */
TEST_CASE(methods)
{
    int expected = 0, verifiers = 0, choices = 0;
    for (const spec_method *const *m = spec_methods(); *m; m++, expected++) verifiers++;
    for (const mar_accel *const *way = mar_accels(); *way; way++)
        for (const mar_accel_method *m = (*way)->methods; m && m->name; m++, expected++) {
            const mar_param *turns_on = mar_param_find((*way)->name);
            const int is_number = turns_on->type == MAR_TYPE_INT || turns_on->type == MAR_TYPE_FLOAT;
            int parameters = is_number + ((*way)->also != NULL), found = 0;
            for (int i = 0; i < mar_param_count(); i++) {
                const mar_param *o = mar_param_get(i);
                parameters += mar_is_listed(o->method, (*way)->name);
            }
            for (int i = 0; i < mar_method_count(); i++)
                if (strcmp(mar_method_get(i)->name, m->name) == 0 && mar_method_get(i)->parameter_count == parameters)
                    found = 1;
            if (!found) fail_msg("%s: expected in mar_method_get, with %d parameters", m->name, parameters);
        }
    expected += 2; /* int8 and int4, options of the handle */
    assert_int_equal(mar_method_count(), expected);
    for (const char *const *name = mar_param_find("spec")->choices; *name; name++) choices++;
    assert_int_equal(choices, verifiers);
}

static const char *why_unused(int set, const char *name)
{
    static char text[160];
    const mar_params p = params_of(set, (mar_model *)text); /* never dereferenced: only its presence counts */
    int i = 0;
    while (strcmp(mar_param_get(i)->name, name) != 0) i++;
    const char *why = mar_params_unused(&p, i);
    snprintf(text, sizeof text, "%s", why ? why : "used");
    return text;
}

TEST_CASE(unused_options)
{
    assert_string_equal(why_unused(0, "cfg"), "used");
    assert_string_equal(why_unused(0, "gtr"), "used");
    assert_string_equal(why_unused(0, "gtr_detail"), "needs --gtr");
    assert_string_equal(why_unused(GTR, "gtr_detail"), "used");
    assert_string_equal(why_unused(GTR, "num_iter"),
                        "has no effect with --gtr, expected --gtr_generation_steps and --gtr_reconstruction_steps");
    assert_string_equal(why_unused(DISA, "num_sampling_steps"),
                        "has no effect with --diff_annealing, expected --diff_upper_steps and --diff_lower_steps");
    assert_string_equal(why_unused(0, "spec"), "used"); /* path needs no draft */
    assert_string_equal(why_unused(SPEC, "spec"), "needs --draft");
    assert_string_equal(why_unused(DRAFT | SPEC, "spec"), "used");
    assert_string_equal(why_unused(PATH, "spec"), "used");
    assert_string_equal(why_unused(0, "gamma"), "needs --draft or --spec path");
    assert_string_equal(why_unused(SPEC, "gamma"), "used");  /* the missing draft is reported for spec */
    assert_string_equal(why_unused(DRAFT, "gamma"), "used"); /* spec becomes path */
    assert_string_equal(why_unused(PATH, "gamma"), "used");
    assert_string_equal(why_unused(DRAFT | HEAD_SPEC, "gamma"), "needs no --head_spec, or --spec path");
    assert_string_equal(why_unused(HEAD_SPEC, "gamma"), "needs --draft and no --head_spec, or --spec path");
    assert_string_equal(why_unused(PATH | HEAD_SPEC, "gamma"), "used");
    assert_string_equal(why_unused(PATH | HEAD_SPEC, "head_spec"), "used"); /* path may speculate inside the head */
    assert_string_equal(why_unused(0, "context"), "needs --draft");
    assert_string_equal(why_unused(DRAFT, "context"), "used");
    assert_string_equal(why_unused(PATH, "context"), "needs --draft");
    assert_string_equal(why_unused(PATH | DRAFT, "context"), "used");
    assert_string_equal(why_unused(HEAD_SPEC, "context"), "needs --draft and no --head_spec");
    assert_string_equal(why_unused(DRAFT | HEAD_SPEC, "context"), "needs no --head_spec");
    for (int i = 0; i < 2; i++) {
        const char *const of_others = i ? "prefill" : "align";
        assert_string_equal(why_unused(0, of_others), "needs --draft and --spec conditional, paper or cspd");
        assert_string_equal(why_unused(DRAFT, of_others), "needs --spec conditional, paper or cspd");
        assert_string_equal(why_unused(DRAFT | SPEC, of_others), "used");
        assert_string_equal(why_unused(PATH, of_others), "needs --draft and --spec conditional, paper or cspd");
        assert_string_equal(why_unused(PATH | DRAFT, of_others), "needs --spec conditional, paper or cspd");
    }
    assert_string_equal(why_unused(DRAFT | SPEC, "inner_temperature"), "needs --spec cspd");
    assert_string_equal(why_unused(0, "inner_temperature"), "needs --draft and --spec cspd");
    assert_string_equal(why_unused(PATH, "inner_temperature"), "needs --draft and --spec cspd");
    assert_string_equal(why_unused(PATH | DRAFT | HEAD_SPEC, "inner_temperature"),
                        "needs --spec cspd and no --head_spec");
    assert_string_equal(why_unused(DRAFT | HEAD_SPEC, "inner_temperature"), "needs --spec cspd and no --head_spec");
    assert_string_equal(why_unused(0, "diff_upper_steps"), "needs --diff_annealing linear, cosine or two-stage");
}

/* Does the same for options set by name, with a draft or without. */
static const char *why_discrete(const char *options, int drafts, const char *name)
{
    static char text[256];
    mar_params p;
    mar_params_init(&p, sizeof p);
    if (drafts) p.draft = (mar_model *)text; /* never dereferenced: only its presence counts */
    char list[256], *rest;
    snprintf(list, sizeof list, "%s", options);
    for (char *word = strtok_r(list, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        const char *value = strtok_r(NULL, " ", &rest);
        assert_int_equal(mar_params_set(&p, word, value, text, sizeof text), MAR_OK);
    }
    int i = 0;
    while (strcmp(mar_param_get(i)->name, name) != 0) i++;
    const char *why = mar_params_unused(&p, i);
    snprintf(text, sizeof text, "%s", why ? why : "used");
    return text;
}

TEST_CASE(unused_options_of_discrete_tokens)
{
    static const struct {
        const char *options;
        int drafts;
        const char *name, *why;
    } cases[] = {
        {"", 0, "top_k", "used"},
        {"", 0, "window", "needs --spec sjd, sjd-pac or scd"},
        {"", 0, "pac_depth", "needs --spec sjd-pac or scd"},
        {"", 0, "tree", "needs --draft"},
        {"", 0, "tree_top", "needs --draft and --tree dynamic"},
        {"", 0, "cool_delta", "needs --draft and --spec uniform-rsd, cool-sd-exp or cool-sd-linear"},
        {"", 0, "lantern_metric", "needs --draft and --spec lantern, lantern-pp, lantern-gstar or lantern-pp-gstar"},
        {"", 1, "tree", "used"}, /* the model may be one of discrete tokens */
        {"", 1, "gamma", "used"},
        {"", 1, "context", "used"},
        {"", 1, "num_sampling_steps", "used"},
        {"top_k 5", 1, "context", "has no effect with --top_k, which is for discrete tokens"},
        {"top_k 5", 1, "gamma", "used"},
        {"top_k 5", 1, "num_iter", "used"},
        {"top_k 5 gtr on", 0, "gtr", "has no effect with --top_k, which is for discrete tokens"},
        {"top_k 5 gtr on", 0, "top_k", "used"},
        {"cfg_interval 5", 0, "cfg_interval", "used"},
        {"cfg_interval 0.2,0.8", 0, "cfg_low", "used"},
        {"cfg_interval 0.2,0.8", 0, "top_k", "has no effect with --cfg_low, which is for continuous tokens"},
        {"", 0, "head_costs", "needs --head_spec"},
        {"head_spec auto", 0, "head_costs", "used"},
        {"gtr on", 0, "top_k", "has no effect with --gtr, which is for continuous tokens"},
        {"spec path", 0, "window", "has no effect with --spec path, which is for continuous tokens"},
        {"spec vanilla", 1, "head_spec", "has no effect with --spec vanilla, which is for discrete tokens"},
        {"spec vanilla", 0, "spec", "needs --draft"},
        {"spec vanilla", 1, "spec", "used"},
        {"spec vanilla", 1, "cool_delta", "needs --spec uniform-rsd, cool-sd-exp or cool-sd-linear"},
        {"spec cool-sd-linear", 1, "cool_delta", "used"},
        {"spec cool-sd-linear", 1, "cool_ell", "used"},
        {"spec cool-sd-linear", 1, "cool_nu", "needs --spec cool-sd-exp"},
        {"spec sjd", 0, "spec", "used"},
        {"spec sjd", 0, "window", "used"},
        {"spec sjd", 0, "round_costs", "used"},
        {"", 0, "round_costs", "needs --spec path"},
        {"spec sjd", 0, "pac_continue", "needs --spec sjd-pac"},
        {"spec sjd-pac", 0, "pac_continue", "used"},
        {"spec scd", 0, "pac_continue", "needs --spec sjd-pac"},
        {"spec scd", 0, "pac_children", "used"},
        {"spec scd", 0, "first", "used"},
        {"spec sjd", 0, "gamma",
         "needs --draft and --spec vanilla, uniform-rsd, cool-sd-exp, cool-sd-linear, lantern, lantern-pp, "
         "lantern-gstar "
         "or lantern-pp-gstar"},
        {"spec lantern tree dynamic", 1, "tree_total", "used"},
        {"spec lantern tree dynamic", 1, "gamma", "used"},
        {"spec lantern tree static", 1, "tree_total", "needs --tree dynamic"},
        {"spec lantern tree static", 1, "gamma", "has no effect with --tree, expected the levels of --tree"},
        {"spec lantern tree chain", 1, "gamma", "used"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *why = why_discrete(cases[i].options, cases[i].drafts, cases[i].name);
        if (strcmp(why, cases[i].why) != 0)
            fail_msg("%s of \"%s\": \"%s\", expected \"%s\"", cases[i].name, cases[i].options, why, cases[i].why);
    }
}

/* Checks that the accelerator that uses gamma resolves its automatic value. */
TEST_CASE(automatic_gamma)
{
    char text[32];
    static const struct {
        int set, gamma;
    } cases[] = {{PATH, 0}, {PATH | DRAFT, 0}, {PATH | HEAD_SPEC, 0}, {DRAFT, 0}, {DRAFT | SPEC, 8}, {SPEC, 8}, {0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_params p = params_of(cases[i].set, (mar_model *)text);
        assert_int_equal(mar_params_set(&p, "gamma", "auto", NULL, 0), MAR_OK);
        assert_int_equal(p.gamma, 0);
        mar_accels_resolve(&p, "continuous");
        assert_int_equal(p.gamma, cases[i].gamma);
        p.gamma = 3; /* explicit values are kept */
        mar_accels_resolve(&p, "continuous");
        assert_int_equal(p.gamma, 3);
    }
}

/* Checks the defaults of a draft: spec path, which is exact, with each token in its own context. Another method, or
 * speculation inside the head, must be requested. */
TEST_CASE(a_draft_alone_is_exact)
{
    char text[32];
    static const struct {
        int set;
        mar_context given, context;
        const char *spec;
    } cases[] = {
        {DRAFT, MAR_CONTEXT_AUTO, MAR_CONTEXT_FULL, "path"},
        {DRAFT, MAR_CONTEXT_PREFIX, MAR_CONTEXT_PREFIX, "path"}, /* explicit values are kept */
        {DRAFT | PATH, MAR_CONTEXT_AUTO, MAR_CONTEXT_FULL, "path"},
        {PATH, MAR_CONTEXT_AUTO, MAR_CONTEXT_FULL, "path"},
        {DRAFT | SPEC, MAR_CONTEXT_AUTO, MAR_CONTEXT_PREFIX, "paper"},
        {DRAFT | SPEC, MAR_CONTEXT_FULL, MAR_CONTEXT_FULL, "paper"},
        {DRAFT | HEAD_SPEC, MAR_CONTEXT_AUTO, MAR_CONTEXT_PREFIX, NULL},
        {0, MAR_CONTEXT_AUTO, MAR_CONTEXT_PREFIX, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_params p = params_of(cases[i].set, (mar_model *)text);
        assert_int_equal(p.context, MAR_CONTEXT_AUTO);
        p.context = cases[i].given;
        mar_accels_resolve(&p, "continuous");
        if (p.context != cases[i].context || (p.spec == NULL) != (cases[i].spec == NULL) ||
            (p.spec && strcmp(p.spec, cases[i].spec) != 0))
            fail_msg("case %zu: spec %s, context %d", i, p.spec ? p.spec : "none", (int)p.context);
    }
    mar_params p = params_of(DRAFT, (mar_model *)text);
    mar_accels_resolve(&p, "discrete");
    assert_string_equal(p.spec, "vanilla");
}
