/* The list of families. */
#include "families/families.h"

const wt_kind *const families[] = {&family_mar,      &family_spherear, &family_language,
                                   &family_llamagen, &family_eagle,    NULL};
