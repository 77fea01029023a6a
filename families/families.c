/* The list of families. */
#include "families/families.h"

#include <stdio.h>
#include <string.h>

const wt_kind *const families[] = {&family_mar,      &family_spherear, &family_language,
                                   &family_llamagen, &family_eagle,    NULL};

/* Returns title i of a row; NULL behind the last, and if such files make no images. */
static const char *family_title(const wt_kind *row, int i)
{
    if (row == &family_language) return language_title(i);
    return i == 0 ? row->title : NULL;
}

void family_add_titles(mar_order order, int discrete, char *text, size_t size)
{
    const char *title;
    for (const wt_kind *const *row = families; *row; row++)
        for (int i = 0; (title = family_title(*row, i)) != NULL; i++) {
            const size_t used = strlen(text);
            if ((*row)->order == order && ((*row)->head == MAR_HEAD_SOFTMAX) == discrete)
                snprintf(text + used, size - used, "%s%s", used ? ", " : "", title);
        }
}
