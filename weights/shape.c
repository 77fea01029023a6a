#include "weights/shape.h"

#include <stdlib.h>
#include <string.h>

mar_status wt_find_shape(const wt_file *f, const char *name, int rank, const wt_tensor **out, mar_err *err)
{
    char text[128];
    const wt_tensor *t = *out = wt_find(f, name);
    if (!t) return err_set(err, MAR_EMODEL, "%s: tensor %s is missing", wt_path(f), name);
    int good = t->rank == rank;
    for (int i = 0; good && i < rank; i++) good = t->shape[i] >= 1 && t->shape[i] <= WT_DIM_MAX;
    if (!good)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has shape %s, expected %d dimensions of 1 to %d", wt_path(f),
                       name, wt_shape_text(t, text, sizeof text), rank, WT_DIM_MAX);
    return MAR_OK;
}

int wt_count_parts(const wt_file *f, const char *prefix, int limit)
{
    const size_t length = strlen(prefix);
    long count = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        if (strncmp(name, prefix, length) != 0 || name[length] < '0' || name[length] > '9') continue;
        char *end;
        const long n = strtol(name + length, &end, 10);
        if (*end == '.' && n >= count && n < limit) count = n + 1;
    }
    return (int)count;
}

mar_status wt_metadata_number(const wt_file *f, const char *key, long *out, mar_err *err)
{
    const char *text = wt_metadata(f, key);
    char *end;
    if (!text) return MAR_OK;
    const long n = strtol(text, &end, 10);
    if (end == text || *end || n < 1)
        return err_set(err, MAR_EMODEL, "%s: metadata %s is \"%s\", expected a positive number", wt_path(f), key, text);
    *out = n;
    return MAR_OK;
}
