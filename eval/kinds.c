/* Kinds of files with a network that judges images. */
#include "eval/kinds.h"

#include "eval/inception.h"
#include "eval/vgg.h"

#include <string.h>

/* --- VGG16 -------------------------------------------------------------------------------------------------------- */

static mar_status derive_vgg(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    (void)asked;
    return eval_vgg_derive(f, facts, err);
}

static void visit_vgg(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    eval_vgg_tensors(f, facts, visit, user);
}

static void describe_vgg(const wt_file *f, const void *facts, const wt_report *to)
{
    const eval_vgg_config *c = facts;
    (void)f;
    wt_add_fact(to, "use: mar eval --vgg FILE, for precision and recall");
    wt_add_fact(to, "features: %d", c->features);
    wt_add_fact(to, "parameters: %ld", c->parameters);
}

static void put_vgg(const void *facts, wt_pairs *m)
{
    const eval_vgg_config *c = facts;
    wt_put_text(m, "mar.kind", "vgg16");
    wt_put_number(m, "mar.features", c->features);
    wt_put_number(m, "mar.parameters", c->parameters);
}

/* --- Inception ---------------------------------------------------------------------------------------------------- */

static mar_status derive_inception(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    (void)asked;
    return eval_inception_derive(f, facts, err);
}

static void visit_inception(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    (void)facts;
    eval_inception_tensors(f, visit, user);
}

/* Returns whether the tensor counts the batches seen by a batch norm. No code needs it. */
static int is_counter(const char *tensor)
{
    static const char end[] = ".bn.num_batches_tracked";
    const size_t n = strlen(tensor);
    return n >= sizeof end && strcmp(tensor + n + 1 - sizeof end, end) == 0;
}

static void describe_inception(const wt_file *f, const void *facts, const wt_report *to)
{
    const eval_inception_config *c = facts;
    (void)f;
    wt_add_fact(to, "use: mar eval --inception FILE, for FID, sFID, Inception score, precision and recall");
    wt_add_fact(to, "features: %d, %d spatial; %d classes", c->features, c->spatial, c->classes);
    wt_add_fact(to, "parameters: %ld", c->parameters);
}

static void put_inception(const void *facts, wt_pairs *m)
{
    const eval_inception_config *c = facts;
    wt_put_text(m, "mar.kind", "inception");
    wt_put_number(m, "mar.features", c->features);
    wt_put_number(m, "mar.classes", c->classes);
    wt_put_number(m, "mar.parameters", c->parameters);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

const wt_kind eval_kinds[] = {
    {.kind = MAR_KIND_VGG16,
     .name = "VGG16 network",
     .article = "a",
     .lacks = "no features.28.weight, no classifier.3.weight",
     .facts_size = sizeof(eval_vgg_config),
     .recognise = eval_vgg_recognise,
     .derive = derive_vgg,
     .tensors = visit_vgg,
     .describe = describe_vgg,
     .put = put_vgg},
    {.kind = MAR_KIND_INCEPTION,
     .name = "Inception-v3 network",
     .article = "an",
     .lacks = "no Mixed_5b.branch1x1.conv.weight",
     .facts_size = sizeof(eval_inception_config),
     .recognise = eval_inception_recognise,
     .derive = derive_inception,
     .tensors = visit_inception,
     .ignores = is_counter,
     .describe = describe_inception,
     .put = put_inception},
    {.name = NULL},
};
