/* What the two files about Harmon share. */
#ifndef FAMILIES_HARMON_H
#define FAMILIES_HARMON_H

#include "families/families.h"

/* MAR's official towers, as config.json names them. */
typedef struct {
    const char *type;
    int width, heads;
} harmon_tower;
enum { HARMON_TOWERS = 3 };
extern const harmon_tower harmon_towers[HARMON_TOWERS];

/* Tells whether the file, whose tensors have this library's names, is Harmon's or UniPic-1's. */
int harmon_recognise(const wt_file *f);
/* Tells UniPic-1 from Harmon. */
int harmon_is_unipic(const wt_file *f);
/* Returns config.json's part about the towers; NULL if there is none. */
const json_value *harmon_mar(const wt_file *f);
/* Reads a positive number of that part. Leaves *out unchanged if it is absent. */
mar_status harmon_number(const wt_file *f, const char *key, int *out, mar_err *err);

#endif
