#include "mar/raster_options.h"

#include "mar_methods.h"
#include "mar/accel.h"
#include "mar/core/params.h"
#include "mar/raster_draft.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- trees -------------------------------------------------------------------------------------------------------- */

/* Trees by name: the numbers of children of the prefix and of each draft, level by level; the others have none.
 * The names are those of LANTERN's models/drafters/choices.py. "static" is the first, that of EAGLE (Li et al. 2024)
 * and LANTERN++. */
static const struct {
    const char *name;
    int depth, parents;
    uint8_t children[44];
} named_trees[] = {
    {"mc_sim_7b_63", 5, 22, {4, 3, 2, 2, 1, 3, 2, 2, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2}},
    {"mc_sim_7b_63_balanced", 5, 22, {3, 3, 3, 2, 3, 2, 0, 2, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 2}},
    {"naive_extend_57", 5, 43, {5, 4, 3, 3, 2, 1, 4, 3, 3, 2, 2, 1, 0, 1, 0, 0, 0, 0, 0, 4, 3, 2,
                                1, 2, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0, 2, 1, 0, 1}},
    {"medusa_2_7b_63", 4, 44, {10, 10, 5, 2, 2, 1, 1, 1, 1, 0, 0, 9, 4, 2, 1, 1, 1, 0, 0, 0, 0, 3,
                               1,  0,  0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 1, 1, 0, 0, 0, 0, 0, 0, 1}},
    {"reverse_balanced_25", 5, 16, {3, 2, 1, 1, 3, 2, 1, 0, 3, 2, 0, 0, 0, 0, 4, 3}},
};

/* Makes the tree of this name. Returns 0 if there is none. */
static int make_named(const char *name, raster_tree *t)
{
    for (size_t i = 0; i < sizeof named_trees / sizeof *named_trees; i++) {
        if (strcmp(named_trees[i].name, name) != 0 && (i > 0 || strcmp(name, "static") != 0)) continue;
        t->depth = named_trees[i].depth;
        for (int parent = 0; parent < named_trees[i].parents; parent++)
            for (int c = 0; c < named_trees[i].children[parent]; c++) t->parent[t->count++] = parent - 1;
        return 1;
    }
    return 0;
}

/* Adds a level with `children` children of each draft of the last level, drafts `first` and on. Returns 0 if they
 * exceed RASTER_TREE_DRAFTS. */
static int add_level(raster_tree *t, int first, long children)
{
    const int end = t->count, parents = t->depth ? end - first : 1;
    if (children > RASTER_TREE_DRAFTS || t->count + parents * children > RASTER_TREE_DRAFTS) return 0;
    for (int p = 0; p < parents; p++)
        for (int c = 0; c < children; c++) t->parent[t->count++] = t->depth ? first + p : -1;
    t->depth++;
    return 1;
}

mar_status raster_tree_read(const char *text, raster_tree *out, mar_err *err)
{
    *out = (raster_tree){.count = 0};
    if (make_named(text, out)) return MAR_OK;
    int first = 0; /* index of the last level's first draft */
    for (const char *at = text; at;) {
        char *end = NULL;
        const int level = out->count;
        const long children = *at >= '1' && *at <= '9' ? strtol(at, &end, 10) : 0;
        if (children < 1 || (*end != ',' && *end != '\0'))
            return err_set(err, MAR_EARG,
                           "--tree %s: expected chain, static, dynamic, or the numbers of children by levels, such as "
                           "4,2,1,1",
                           text);
        if (!add_level(out, first, children))
            return err_set(err, MAR_EARG, "--tree %s: expected at most %d drafts", text, RASTER_TREE_DRAFTS);
        first = level;
        at = *end ? end + 1 : NULL;
    }
    return MAR_OK;
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

static mar_status options_check_draft(const mar_model *model, const mar_model *draft, mar_err *err)
{
    const mar_model_config *t = &model->config, *d = &draft->config;
    if (draft->m != model->m) return err_set(err, MAR_EARG, "draft and model belong to different handles");
    const eagle_model *eagle = raster_eagle_of(draft);
    if (eagle) return eagle_config_fits(&eagle->config, &mar_raster_model_of(model)->net->shape, err);
    if (strcmp(d->family, t->family) != 0) /* those of families/language.h differ in templates and line ends */
        return err_set(
            err, MAR_EMODEL,
            "the draft is a model of family %s, expected one of family %s, as the model is, or an EAGLE drafter",
            d->family, t->family);
    if (d->vocabulary != t->vocabulary)
        return err_set(err, MAR_EMODEL, "the draft's vocabulary has %d tokens, expected the model's %d", d->vocabulary,
                       t->vocabulary);
    if (d->seq_len != t->seq_len)
        return err_set(err, MAR_EMODEL, "the draft makes images of %d tokens, expected the model's %d", d->seq_len,
                       t->seq_len);
    if (d->classes != t->classes)
        return err_set(err, MAR_EMODEL, "the draft knows %d classes, expected the model's %d", d->classes, t->classes);
    if (d->caption_tokens != t->caption_tokens || d->caption_dim != t->caption_dim)
        return err_set(err, MAR_EMODEL, "the draft takes captions of %d by %d features, expected the model's %d by %d",
                       d->caption_tokens, d->caption_dim, t->caption_tokens, t->caption_dim);
    return MAR_OK;
}

mar_status raster_resolve_steps(const mar_raster_model *model, mar_params *p, mar_err *err)
{
    const int n = model->base.config.seq_len;
    if (p->num_iter != 0 && p->num_iter != n)
        return err_set(err, MAR_EARG, "--num_iter %d: expected 0 or %d: the model makes its tokens one after another",
                       p->num_iter, n);
    p->num_iter = n;
    return MAR_OK;
}

static mar_status options_check_model(const mar_raster_model *model, mar_params *p, mar_err *err)
{
    const mar_model_config *c = &model->base.config;
    const mar_status status = raster_resolve_steps(model, p, err);
    if (status != MAR_OK) return status;
    if (p->cfg_interval > c->seq_len - 2)
        return err_set(err, MAR_EARG, "--cfg_interval %d: expected -1..%d, the number of an image's tokens less 2",
                       p->cfg_interval, c->seq_len - 2);
    if (p->top_k > c->vocabulary)
        return err_set(err, MAR_EARG, "--top_k %d: expected 0..%d, the model's vocabulary", p->top_k, c->vocabulary);
    return p->draft ? options_check_draft(&model->base, p->draft, err) : MAR_OK;
}

/* Lowers the option's value to the model's limit. Returns MAR_EARG if the run uses the option and it exceeds the limit
 * without being the default. */
static mar_status options_lower(mar_params *p, const char *name, int is_used, int most, const char *of, mar_err *err)
{
    const mar_param *o = mar_param_find(name);
    int *value = mar_param_field(o, p);
    if (*value <= most) return MAR_OK;
    if (is_used && !mar_param_is_default(o, p))
        return err_set(err, MAR_EARG, "--%s %d: expected %d at most, %s", name, *value, most, of);
    *value = most;
    return MAR_OK;
}

/* --- methods ------------------------------------------------------------------------------------------------------ */

static double options_number_of(const mar_param *o, const mar_params *p)
{
    const void *field = mar_param_field(o, p);
    return o->type == MAR_TYPE_FLOAT ? (double)*(const float *)field : *(const int *)field;
}

/* Returns whether the option stands at 0, spelled "auto": the method's default. */
static int is_automatic(const mar_param *o, const mar_params *p)
{
    return o->type == MAR_TYPE_INT && o->choices && *(const int *)mar_param_field(o, p) == 0;
}

static mar_status resolve_method(raster_plan *plan, int vocabulary, mar_err *err)
{
    mar_params *p = &plan->params;
    mar_status status = MAR_OK;
    const spec_method *m = plan->method = p->spec ? spec_method_find(p->spec) : NULL;
    for (int i = 0; status == MAR_OK && m && m->parameters[i].name; i++) {
        const mar_param *o = mar_param_of_method(m->name, m->parameters[i].name);
        plan->parameter[i] = o && !is_automatic(o, p) ? options_number_of(o, p) : m->parameters[i].value;
        if (!m->neighbours || strcmp(m->parameters[i].name, "k") != 0) {
            if (o && is_automatic(o, p)) *(int *)mar_param_field(o, p) = (int)plan->parameter[i];
            continue;
        }
        if (p->lantern_k == 0 && plan->parameter[i] > vocabulary) plan->parameter[i] = vocabulary;
        status = options_lower(p, "lantern_k", 1, vocabulary, "the tokens of the codebook", err);
        p->lantern_k = plan->neighbours = (int)plan->parameter[i];
    }
    return status;
}

/* --- drafts of a round -------------------------------------------------------------------------------------------- */

/* What rounds may draft: nothing, or first, 2 * first, 4 * first, ... drafts. first == most: a tree, whole. */
typedef struct {
    int first, most, is_tree;
    int has_draft; /* 1: a draft model makes them, which catches up behind plain rounds */
    int asked;     /* the option's value: -1: not given; 0: auto */
    int *length;   /* the option's field */
    const char *option;
} round_drafts;

/* Returns the weights that a pass reads. */
static double weights_of(const causal_shape *s, int depth, int hidden)
{
    const double d = s->width, layer = d * (causal_qkv_width(s) + causal_q_width(s) + 3. * hidden);
    return depth * layer + d * s->vocabulary;
}

/* Returns the rows whose arithmetic takes as long as reading `weights` weights: the least that bench/RESULTS.md ("The
 * standard costs of rounds") has measured, or fewer. Below 64 MB the caches have the weights, and 4 is safe. */
static double standard_rows(const kern_device *d, double weights)
{
    const char *unit = d->unit; /* begins with that of the layers' products */
    const double bytes = weights * (d->int8 ? 1 : d->int4 ? 0.5 : (double)d->act_size);
    const int avx512 = strncmp(unit, "avx512", 6) == 0, bf16 = strncmp(unit, "avx512_bf16", 11) == 0;
    const int vnni = bf16 || strncmp(unit, "avx512_vnni", 11) == 0, avx2 = strncmp(unit, "avx", 3) == 0;
    double rows;
    if (d->int8)
        rows = vnni ? 8 : avx2 ? 2 : 0.8;
    else if (d->int4)
        rows = vnni ? 3.5 : avx2 ? 2.5 : 0.3;
    else if (d->act_size == sizeof(float))
        rows = avx512 ? 6 : 2;
    else
        rows = bf16 ? 8 : avx2 ? 2.5 : 1;
    if (strncmp(unit, "amx", 3) == 0) rows = 64;
    return bytes < 64e6 ? fmin(rows, 4) : rows;
}

/* Returns the time of a draft model's pass over that of the model: its share of the weights, or of the layers if that
 * is more, which a small model's calls take. */
static double standard_draft(const mar_params *p, const causal_shape *t)
{
    const eagle_model *eagle = raster_eagle_of(p->draft);
    const causal_shape *d = eagle ? t : &mar_raster_model_of(p->draft)->net->shape;
    const int depth = eagle ? 1 : d->depth, hidden = eagle ? eagle->config.hidden : d->hidden;
    return fmax(weights_of(d, depth, hidden) / weights_of(t, t->depth, t->hidden), (depth + 1.) / (t->depth + 1.));
}

/* Sets the standard costs. They are upper bounds for an image made alone, and depend on model, draft, type and
 * instruction set only, since an image must be the same on any machine of that set and in any batch. A pass over `rows`
 * rows takes 1 + rows / standard_rows. Drafting and verifying add 0.3 of a small model's plain round. A draft model
 * catches up in one pass, whose first row is that of a draft. */
static void standard_costs(raster_plan *plan, const mar_raster_model *model)
{
    spec_choice *c = &plan->choice;
    const causal_shape *s = &model->net->shape;
    const kern_device *d = model->base.m->device;
    const double most = standard_rows(d, weights_of(s, s->depth, s->hidden));
    const double rows = plan->params.cfg > 1 ? 2 : 1, plain = 1 + rows / most;
    const double draft = plan->method->stale ? 0 : standard_draft(&plan->params, s);
    for (int i = 1; i < c->widths; i++) {
        const double pass = (1 + rows * (c->drafts[i] + 1) / most) / plain;
        c->cost[i] = fmin(pass + 0.3 * (most <= 4) + draft * c->drafts[i], SPEC_COST_MOST);
    }
    c->catch_up = fmin(draft * rows / most / plain, SPEC_COST_MOST);
}

/* Keeps the costs as text, which pictures have. */
static void take_costs(raster_plan *plan, const round_drafts *r)
{
    plan->params.round_costs = spec_costs_write(&plan->choice, plan->costs_text);
    if (!r->is_tree) *r->length = plan->choice.drafts[plan->choice.widths - 1];
}

mar_status raster_costs_read(const char *text, int first, int most, int may_catch_up, spec_choice *out, mar_err *err)
{
    if (spec_costs_read(text, first, most, may_catch_up, out)) return MAR_OK;
    if (first == most)
        return err_set(err, MAR_EARG, "--round_costs %s: expected the time of a round of all %d drafts, 1 or more%s",
                       text, first, may_catch_up ? ", and maybe, as in 2+0.1, that of catching up on a token" : "");
    return err_set(err, MAR_EARG,
                   "--round_costs %s: expected the times of rounds of %d, %d, %d, ... drafts, at most %d of them, none "
                   "below 1 or the one before, as in 1.05,1.1,1.3%s",
                   text, first, 2 * first, 4 * first, most,
                   may_catch_up ? ", or behind them, as in 1.05,1.1,1.3+0.02, that of catching up on a token" : "");
}

/* Takes the costs given. Their most drafts are the window or gamma. */
static mar_status resolve_costs(raster_plan *plan, round_drafts *r, const char *given, int seq_len, mar_err *err)
{
    const spec_choice *c = &plan->choice;
    if (!r->is_tree) r->most = r->first << (SPEC_WIDTHS - 2);
    const mar_status status = raster_costs_read(given, r->first, r->most, r->has_draft, &plan->choice, err);
    if (status != MAR_OK) return status;
    const int most = c->drafts[c->widths - 1], is_set = r->asked > 0;
    if (!r->is_tree && (is_set ? most != r->asked : most > seq_len))
        return err_set(err, MAR_EARG, "--round_costs %s: has times of up to %d drafts, expected up to %d, the %s",
                       given, most, is_set ? r->asked : seq_len, is_set ? r->option : "tokens of an image");
    take_costs(plan, r);
    return MAR_OK;
}

/* Decides whether each round chooses its drafts, by costs given, by the standard ones or by those to measure. */
static mar_status resolve_choice(raster_plan *plan, const mar_raster_model *model, round_drafts *r, mar_err *err)
{
    mar_params *p = &plan->params;
    const char *costs = p->round_costs;
    p->round_costs = NULL;
    if (!plan->method || !plan->method->exact) return MAR_OK;
    plan->choice.depth = r->is_tree ? p->gamma : 0;
    if (costs) return resolve_costs(plan, r, costs, model->base.config.seq_len, err);
    const int is_standard = r->asked < 0 && !p->tree && !model->base.m->device->asynchronous;
    if (r->most < r->first || (r->asked != 0 && !is_standard)) return MAR_OK;
    spec_costs_begin(&plan->choice, r->first, r->most);
    if (is_standard) {
        plan->is_standard = 1;
        standard_costs(plan, model);
        take_costs(plan, r);
        return MAR_OK;
    }
    if (!r->is_tree) *r->length = plan->choice.drafts[plan->choice.widths - 1];
    plan->measures = 1;
    return MAR_OK;
}

/* Sets the number of drafts in a chain or of a round, at most the tokens of the image. `gamma` is the option's value,
 * before a static tree had replaced it. */
static mar_status resolve_length(raster_plan *plan, const mar_raster_model *model, int gamma, mar_err *err)
{
    static const char tokens[] = "the tokens of an image";
    mar_params *p = &plan->params;
    const int seq_len = model->base.config.seq_len, budget = model->base.m->device->draft_budget;
    const int jacobi = plan->method && plan->method->stale, dynamic = p->tree && strcmp(p->tree, "dynamic") == 0;
    const int tree = plan->tree.count ? plan->tree.count : dynamic ? p->tree_total : 0;
    round_drafts r = {jacobi ? 2 : 1, 0, 0, !jacobi, gamma, &p->gamma, "--gamma"};
    if (jacobi) r.asked = p->window, r.length = &p->window, r.option = "--window";
    if (jacobi && p->window <= 0) p->window = budget < seq_len ? budget : seq_len;
    if (p->gamma <= 0) p->gamma = MAR_GAMMA_AUTO < seq_len ? MAR_GAMMA_AUTO : seq_len;
    r.most = *r.length;
    if (tree && !jacobi) r.first = r.most = tree, r.is_tree = 1;
    if (plan->tree.depth > seq_len)
        return err_set(err, MAR_EARG, "--tree %s: expected %d levels at most, %s", p->tree, seq_len, tokens);
    mar_status status = options_lower(p, "gamma", plan->method && !jacobi, seq_len, tokens, err);
    if (status == MAR_OK) status = options_lower(p, "window", jacobi, seq_len, tokens, err);
    return status == MAR_OK ? resolve_choice(plan, model, &r, err) : status;
}

/* Sets the shape of a block. It stays empty without drafts or without a draft model. */
static mar_status resolve_tree(raster_plan *plan, mar_err *err)
{
    mar_params *p = &plan->params;
    const char *given = p->tree;
    p->tree = NULL;
    if (!given || !plan->method || plan->method->stale) return MAR_OK;
    if (strlen(given) >= sizeof plan->tree_text)
        return err_set(err, MAR_EARG, "--tree %.32s...: expected at most %d drafts", given, RASTER_TREE_DRAFTS);
    snprintf(plan->tree_text, sizeof plan->tree_text, "%s", given);
    p->tree = plan->tree_text;
    if (strcmp(p->tree, "chain") == 0 || strcmp(p->tree, "dynamic") == 0) return MAR_OK;
    const mar_status status = raster_tree_read(p->tree, &plan->tree, err);
    if (status == MAR_OK) p->gamma = plan->tree.depth;
    return status;
}

/* Checks that Cool-SD's line reaches zero only behind the block. Drafts from there on would never be accepted. */
static mar_status options_check_line(const raster_plan *plan, mar_err *err)
{
    const spec_method *m = plan->method;
    for (int i = 0; m && m->parameters[i].name; i++)
        if (strcmp(m->parameters[i].name, "ell") == 0 && plan->parameter[i] <= plan->params.gamma)
            return err_set(err, MAR_EARG,
                           "--cool_ell %g: expected more than %d, %s: nothing drafted from number %g on is accepted",
                           plan->parameter[i], plan->params.gamma,
                           plan->tree.count ? "the depth of the tree" : "which is --gamma", plan->parameter[i]);
    return MAR_OK;
}

/* Returns the most drafts that either model is asked about at a time (spec_sampler_target_drafts,
 * spec_sampler_draft_drafts). */
static int64_t most_drafts(const raster_plan *plan)
{
    const mar_params *p = &plan->params;
    if (!plan->method) return 0;
    if (plan->method->stale) return p->window;
    if (plan->tree.count) return plan->tree.count;
    if (!p->tree || strcmp(p->tree, "dynamic") != 0) return p->gamma;
    const int64_t expanded = (int64_t)p->tree_top * (p->gamma - 1);
    return expanded > p->tree_total ? expanded : p->tree_total;
}

/* Checks that slots, rows and their indices in lists fit in an int. */
static mar_status options_check_size(const raster_plan *plan, const mar_model_config *c, int max_images, mar_err *err)
{
    const int64_t drafts = most_drafts(plan);
    const int64_t rows = (int64_t)max_images * (plan->params.cfg > 1 ? 2 : 1) * (c->buffer + c->seq_len + drafts + 1);
    if (rows <= INT_MAX / 8) return MAR_OK;
    return err_set(err, MAR_EARG, "batch of %d images of %d tokens and %lld drafts at a time: too large", max_images,
                   c->seq_len, (long long)drafts);
}

kern_cache_type raster_cache_type(const mar_params *p)
{
    static const kern_cache_type types[] = {KERN_CACHE_ACT, KERN_CACHE_BF16, KERN_CACHE_INT8};
    return types[p->cache_dtype];
}

mar_status raster_resolve_ids(const mar_raster_model *model, const mar_params *params, int max_images, raster_plan *out,
                              mar_err *err)
{
    const mar_model_config *c = &model->base.config;
    *out = (raster_plan){.params = *params};
    mar_params *p = &out->params;
    const int gamma = p->gamma;
    mar_status status = options_check_model(model, p, err);
    if (status == MAR_OK) status = resolve_method(out, c->vocabulary, err);
    if (status == MAR_OK) status = resolve_tree(out, err);
    if (status == MAR_OK) status = resolve_length(out, model, gamma, err);
    if (status == MAR_OK) status = options_check_line(out, err);
    return status == MAR_OK ? options_check_size(out, c, max_images, err) : status;
}
