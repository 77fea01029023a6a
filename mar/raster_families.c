/* The families whose models make tokens in raster order: from a file to facts (mar/raster_model.h). */
#include "llamagen/public.h"
#include "mar/raster_model.h"
#include "spherear/config.h"

#include <stdlib.h>

mar_status raster_load_ids(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err)
{
    gpt_config config;
    char note[GPT_GUESS_TEXT] = "";
    int *id = NULL;
    *out = NULL;
    mar_status status = gpt_config_recognise_decoder(f) ? mar_decoder_config(m, f, heads, &config, err)
                                                        : mar_discrete_config(m, f, heads, &config, err);
    if (status == MAR_OK && config.heads_guessed) status = mar_refuse_heads(f, config.shape.width, err);
    if (status == MAR_OK) status = gpt_config_image_ids(f, &config, &id, err);
    if (status != MAR_OK) return status;
    if (config.seq_len_guessed) gpt_config_guess_text(&config, note);
    const raster_facts facts = {.config = mar_discrete_public_config(&config), .net = config.shape, .image_id = id};
    status = mar_raster_load(m, k, f, &facts, note, out, err);
    free(id);
    return status;
}

mar_status raster_load_sphere(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err)
{
    sphere_config config;
    *out = NULL;
    mar_status status = sphere_config_derive(f, heads, &config, err);
    if (status == MAR_OK && config.transformer.heads_guessed)
        status = mar_refuse_heads(f, config.transformer.shape.width, err);
    if (status != MAR_OK) return status;
    const raster_facts facts = {.config = sphere_public_config(&config),
                                .net = config.transformer.shape,
                                .head = config.head,
                                .process = DIFF_FLOW,
                                .norm = RASTER_ON_SPHERE,
                                .first_is_apart = 1};
    return mar_raster_load(m, k, f, &facts, "", out, err);
}
