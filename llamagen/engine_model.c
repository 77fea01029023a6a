/* Models of discrete tokens behind mar.h. */
#include "llamagen/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mar_status mar_discrete_load_net(kern_queue *k, const wt_file *f, const gpt_config *c, causal_model **out, mar_err *err)
{
    const int vocabulary = c->shape.vocabulary;
    text_grammar g = {0};
    if (!c->grammar) return causal_model_load(k, f, &c->shape, NULL, out, err);
    mar_status status = text_grammar_open(f, &g, err);
    int *id = status == MAR_OK ? malloc(((size_t)vocabulary + 1) * sizeof *id) : NULL;
    if (status == MAR_OK && !id) status = err_set(err, MAR_ENOMEM, "%s: out of memory", wt_path(f));
    if (id) memcpy(id, g.image_id, (size_t)vocabulary * sizeof *id), id[vocabulary] = g.line_end;
    if (status == MAR_OK) status = causal_model_load(k, f, &c->shape, id, out, err);
    free(id);
    text_grammar_free(&g);
    return status;
}

mar_status mar_discrete_load(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err)
{
    gpt_config config;
    *out = NULL;
    mar_status status = gpt_config_recognise_decoder(f) ? mar_decoder_config(m, f, heads, &config, err)
                                                        : mar_discrete_config(m, f, heads, &config, err);
    if (status == MAR_OK && config.heads_guessed) status = mar_refuse_heads(f, config.shape.width, err);
    if (status != MAR_OK) return status;
    mar_discrete_model *model = calloc(1, sizeof *model);
    if (!model) return err_set(err, MAR_ENOMEM, "out of memory");
    model->base.m = m;
    model->base.config = mar_discrete_public_config(&config);
    if (config.seq_len_guessed) model->base.config.warning = gpt_config_guess_text(&config, model->guess);
    model->config = config;
    status = mar_discrete_load_net(k, f, &config, &model->gpt, err);
    if (status == MAR_OK)
        *out = &model->base;
    else
        free(model);
    return status;
}

void mar_discrete_unload(mar_model *base)
{
    mar_discrete_model *model = (mar_discrete_model *)base;
    if (!model) return;
    causal_model_free(model->gpt);
    free(model);
}

void mar_discrete_describe(const mar_model *model, char *text, size_t size)
{
    const kern_device *d = model->m->device;
    const char *low = kern_low_name(d);
    snprintf(text, size, "transformer: matrix products in %s%s%s", low ? low : "", low ? ", of logits in " : "",
             d->act_size == sizeof(float) ? "f32" : "bf16");
}
