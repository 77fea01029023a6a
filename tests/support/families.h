/* What a family derives of a file, without a handle. */
#ifndef TESTS_FAMILIES_H
#define TESTS_FAMILIES_H

#include "families/families.h"

/* Derives what `family`, one of families/families.h, makes of a file. The caller calls release_facts. */
static inline mar_status derive_facts(const wt_kind *family, const wt_file *f, wt_asked asked, family_facts *out,
                                      mar_err *err)
{
    *out = (family_facts){.seq_len_guessed = 0};
    return family->derive(f, &asked, out, err);
}

static inline void release_facts(family_facts *facts)
{
    language_free(&facts->language);
}

#endif
