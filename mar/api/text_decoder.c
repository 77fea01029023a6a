/* Prompts of models that write images among text: ids of their own vocabulary. */
#include "mar/api/text.h"

#include <stdio.h>
#include <string.h>

static mar_text_config text_decoder_config_of(const mar_text *t)
{
    const language_family *family = t->language.family;
    return (mar_text_config){.size = sizeof(mar_text_config),
                             .name = family->title,
                             .dim = 1,
                             .vocabulary = t->language.vocabulary.rows,
                             .family = family->name,
                             .tokens = language_room(&t->language, t->columns, t->rows),
                             .conditioning = MAR_CONDITION_IDS,
                             .negative = strstr(family->negative, "{prompt}") != NULL};
}

/* Returns MAR_EMODEL unless the tokenizer has the tokens of both templates. */
static mar_status check_templates(const mar_text *t, const char *folder, mar_err *err)
{
    mar_err reason = {0};
    int count;
    mar_status status = language_ids(&t->language, t->tokenizer, t->columns, t->rows, 0, "a", NULL, 0, &count, &reason);
    if (status == MAR_OK)
        status = language_ids(&t->language, t->tokenizer, t->columns, t->rows, 1, NULL, NULL, 0, &count, &reason);
    return status == MAR_OK ? MAR_OK : err_set(err, status, "%s: %s", folder, reason.text);
}

/* Sets and logs a warning for images of a size that the model was not trained on. */
static void warn_of_size(mar_text *t, const char *folder)
{
    const language_family *f = t->language.family;
    const int width = t->columns * t->language.stride, height = t->rows * t->language.stride;
    int nearest_width, nearest_height;
    language_nearest(&t->language, t->columns, t->rows, &nearest_width, &nearest_height);
    if (width == nearest_width && height == nearest_height) return;
    snprintf(t->warning, sizeof t->warning, "an image of %dx%d: %s was trained on other sizes, the nearest is %dx%d",
             width, height, f->title, nearest_width, nearest_height);
    t->config.warning = t->warning;
    mar_log(t->m, MAR_LOG_WARNING, "model %s: %s", folder, t->warning);
}

mar_status mar_text_load_decoder(mar_text *t, const wt_file *f, const char *folder, mar_err *err)
{
    mar_status status = f ? language_open(f, &t->language, err) : MAR_OK;
    if (status == MAR_OK) status = text_tokenizer_open(folder, &t->tokenizer, err);
    if (status == MAR_OK && !f && !language_open_tokenizer(t->tokenizer, &t->language))
        status = err_set(err, MAR_EMODEL,
                         "%s: has a tokenizer without a model, expected Qwen2.5's, with a token <|im_start|>, or a "
                         "folder with model.safetensors",
                         folder);
    if (status == MAR_OK)
        status = language_size(&t->language, folder, t->m->image_width, t->m->image_height, &t->columns, &t->rows, err);
    if (status != MAR_OK) return status;
    t->config = text_decoder_config_of(t);
    status = check_templates(t, folder, err);
    if (status != MAR_OK) return status;
    warn_of_size(t, folder);
    return MAR_OK;
}
