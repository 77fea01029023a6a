/* Prompts of models that write images among text: ids of their own vocabulary. */
#include "mar/api/text.h"

#include <stdio.h>
#include <string.h>

static mar_text_config config_of(const mar_text *t)
{
    const text_family *family = t->grammar.family;
    return (mar_text_config){.size = sizeof(mar_text_config),
                             .name = family->title,
                             .dim = 1,
                             .vocabulary = t->grammar.vocabulary,
                             .family = family->name,
                             .tokens = text_grammar_room(&t->grammar, t->prompt.columns, t->prompt.rows),
                             .conditioning = MAR_CONDITION_IDS,
                             .negative = strstr(family->negative, "{prompt}") != NULL};
}

/* Returns MAR_EMODEL unless the tokenizer has the tokens of both templates. */
static mar_status check_templates(const mar_text *t, const char *folder, mar_err *err)
{
    mar_err reason = {0};
    int count;
    mar_status status = text_prompt_ids(&t->prompt, 0, "a", NULL, 0, &count, &reason);
    if (status == MAR_OK) status = text_prompt_ids(&t->prompt, 1, NULL, NULL, 0, &count, &reason);
    return status == MAR_OK ? MAR_OK : err_set(err, status, "%s: %s", folder, reason.text);
}

/* Sets and logs a warning for images of a size that the model was not trained on. */
static void warn_of_size(mar_text *t, const char *folder)
{
    const text_prompt *p = &t->prompt;
    const text_family *f = p->grammar->family;
    const int width = p->columns * f->stride, height = p->rows * f->stride;
    int nearest_width, nearest_height;
    text_grammar_nearest(p->grammar, p->columns, p->rows, &nearest_width, &nearest_height);
    if (width == nearest_width && height == nearest_height) return;
    snprintf(t->warning, sizeof t->warning, "an image of %dx%d: %s was trained on other sizes, the nearest is %dx%d",
             width, height, f->title, nearest_width, nearest_height);
    t->config.warning = t->warning;
    mar_log(t->m, MAR_LOG_WARNING, "model %s: %s", folder, t->warning);
}

mar_status mar_text_load_decoder(mar_text *t, wt_file *f, const char *folder, mar_err *err)
{
    text_prompt *p = &t->prompt;
    mar_status status = text_grammar_open(f, &t->grammar, err);
    if (status == MAR_OK)
        status =
            text_grammar_size(&t->grammar, folder, t->m->image_width, t->m->image_height, &p->columns, &p->rows, err);
    if (status == MAR_OK) status = text_tokenizer_open(folder, &t->tokenizer, err);
    if (status != MAR_OK) return status;
    p->grammar = &t->grammar;
    p->tokenizer = t->tokenizer;
    t->config = config_of(t);
    status = check_templates(t, folder, err);
    if (status != MAR_OK) return status;
    warn_of_size(t, folder);
    return MAR_OK;
}
