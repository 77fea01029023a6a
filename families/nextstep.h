/* What the two files about NextStep-1 share. */
#ifndef FAMILIES_NEXTSTEP_H
#define FAMILIES_NEXTSTEP_H

#include "families/families.h"

int nextstep_recognise(const wt_file *f);

#endif
