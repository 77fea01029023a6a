/* EAGLE drafters (2401.15077), also LANTERN's, for a model of ids; their shape is in specdec/eagle_model.h. */
#include "families/families.h"

static mar_status eagle_derive(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    family_facts *out = facts;
    const eagle_config *c = &out->eagle;
    const mar_status status = eagle_config_derive(f, asked->heads, &out->eagle, err);
    if (status != MAR_OK) return status;
    out->config = (mar_model_config){.size = sizeof(mar_model_config),
                                     .width = c->width,
                                     .decoder_depth = 1,
                                     .heads = c->heads,
                                     .decoder_heads = c->heads,
                                     .mlp_hidden = c->hidden,
                                     .parameters = c->parameters,
                                     .family = "eagle",
                                     .title = "EAGLE",
                                     .cfg_schedule = MAR_CFG_AUTO,
                                     .order = MAR_ORDER_RASTER,
                                     .head = MAR_HEAD_SOFTMAX};
    return MAR_OK;
}

static void eagle_visit_tensors(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    (void)f;
    eagle_config_tensors(&((const family_facts *)facts)->eagle, visit, user);
}

static void eagle_describe_facts(const wt_file *f, const void *facts, const wt_report *to)
{
    const eagle_config *c = &((const family_facts *)facts)->eagle;
    (void)f;
    wt_add_fact(to, "use: --draft FILE, with the model that it was trained for");
    wt_add_fact(to, "layer: width %d, SwiGLU %d%s%s", c->width, c->hidden, c->bias ? ", fc with a bias" : "",
                c->first_norm ? "" : ", no norm in front of its attention");
    if (c->published) wt_add_fact(to, "names: LANTERN's%s", c->vocabulary ? ", with an embedding of its own" : "");
    wt_add_fact(to, "parameters: %ld", c->parameters);
}

static void eagle_put(const void *facts, wt_pairs *m)
{
    const eagle_config *c = &((const family_facts *)facts)->eagle;
    wt_put_text(m, "mar.kind", "eagle");
    wt_put_number(m, "mar.width", c->width);
    wt_put_number(m, "mar.hidden", c->hidden);
    if (c->heads) wt_put_number(m, "mar.heads", c->heads);
    wt_put_number(m, "mar.parameters", c->parameters);
}

const wt_kind family_eagle = {
    .kind = MAR_KIND_EAGLE,
    .name = "EAGLE drafter",
    .article = "an",
    .lacks = "no eagle.fc.weight",
    .has_heads = 1,
    .facts_size = sizeof(family_facts),
    .recognise = eagle_config_recognise,
    .derive = eagle_derive,
    .tensors = eagle_visit_tensors,
    .is_int8 = family_is_int8,
    .ignores = eagle_config_ignores,
    .describe = eagle_describe_facts,
    .put = eagle_put,
};
