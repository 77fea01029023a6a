/* Models of discrete tokens behind mar.h. */
#include "llamagen/engine.h"

#include <stdio.h>
#include <stdlib.h>

mar_status mar_discrete_load(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err)
{
    gpt_config config;
    *out = NULL;
    mar_status status = gpt_config_recognise_decoder(f) ? mar_decoder_config(m, f, heads, &config, err)
                                                        : mar_discrete_config(m, f, heads, &config, err);
    if (status == MAR_OK && config.heads_guessed) status = mar_refuse_heads(f, config.width, err);
    if (status != MAR_OK) return status;
    mar_discrete_model *model = calloc(1, sizeof *model);
    if (!model) return err_set(err, MAR_ENOMEM, "out of memory");
    model->base.m = m;
    model->base.config = mar_discrete_public_config(&config);
    if (config.seq_len_guessed) model->base.config.warning = gpt_config_guess_text(&config, model->guess);
    status = gpt_model_load(k, f, &config, &model->gpt, err);
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
    gpt_model_free(model->gpt);
    free(model);
}

void mar_discrete_describe(const mar_model *model, char *text, size_t size)
{
    const kern_device *d = model->m->device;
    const char *low = kern_low_name(d);
    snprintf(text, size, "transformer: matrix products in %s%s%s", low ? low : "", low ? ", of logits in " : "",
             d->act_size == sizeof(float) ? "f32" : "bf16");
}
