/* The list of families, and the names of their tensors. */
#include "families/families.h"

#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

const wt_kind *const families[] = {&family_harmon,   &family_mar,      &family_spherear, &family_nextstep,
                                   &family_language, &family_llamagen, &family_eagle,    NULL};

mar_status family_rename(wt_file *f, mar_err *err)
{
    static const struct {
        const char *has[2]; /* the tensors that tell whose file it is */
        wt_naming names[3];
        int count;
    } releases[] = {
        {{"text_model.model.embed_tokens.weight"},
         {{"text_model.model.", "model.", 0}, {"text_model.lm_head.", "lm_head.", 0}},
         2},
        {{"model.text_model.embed_tokens.weight"}, {{"model.text_model.", "model.", 0}}, 1}, /* transformers 5's */
        {{"llm.model.embed_tokens.weight", "proj_in.0.weight"},
         {{"llm.model.", "model.", 0}, {"llm.lm_head.", "lm_head.", 0}, {"mar.", "", 0}},
         3},
    };
    for (size_t i = 0; i < sizeof releases / sizeof *releases; i++)
        if (wt_find(f, releases[i].has[0]) && (!releases[i].has[1] || wt_find(f, releases[i].has[1])))
            return wt_rename(f, releases[i].names, releases[i].count, err);
    return MAR_OK;
}

void family_add_titles(mar_order order, int discrete, char *text, size_t size)
{
    for (const wt_kind *const *row = families; *row; row++)
        for (const char *const *title = (*row)->titles; *title; title++) {
            const size_t used = strlen(text);
            if ((*row)->order == order && ((*row)->head == MAR_HEAD_SOFTMAX) == discrete)
                snprintf(text + used, size - used, "%s%s", used ? ", " : "", *title);
        }
}
