#include "mar/core/measure.h"

#include <stdlib.h>

void mar_measurements_add(mar_measurements *all, const char *group, const mar_measured *row)
{
    if (all->count == all->capacity) {
        const int capacity = 2 * all->capacity + 64;
        mar_measured *rows = realloc(all->row, (size_t)capacity * sizeof *rows);
        if (!rows) {
            all->out_of_memory = 1;
            return;
        }
        all->row = rows;
        all->capacity = capacity;
    }
    all->row[all->count] = *row;
    all->row[all->count++].group = group;
}

void mar_measurements_free(mar_measurements *all)
{
    free(all->row);
    *all = (mar_measurements){0};
}
