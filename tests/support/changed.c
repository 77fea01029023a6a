#include "tests/support/changed.h"

#include "mar_files.h"

#include "tests/support/archive.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *file_tensor(const bytes *b, const char *tensor, long *count)
{
    uint64_t header;
    char key[256];
    long begin, end;
    memcpy(&header, b->data, sizeof header);
    snprintf(key, sizeof key, "\"%s\":", tensor);
    const char *entry = memmem(b->data + 8, header, key, strlen(key));
    if (!entry) fail_msg("the file has no tensor %s", tensor);
    assert_int_equal(sscanf(strstr(entry, "data_offsets"), "data_offsets\":[%ld,%ld]", &begin, &end), 2);
    *count = (end - begin) / (long)sizeof(float);
    return b->data + 8 + header + (size_t)begin;
}

char *write_changed(mar *m, const char *directory, const char *file, const char *model, const char *tensor, long first,
                    long count, float value)
{
    char *path;
    long all;
    assert_true(asprintf(&path, "%s/%s", directory, file) > 0);
    assert_library(m, mar_convert(m, model, path, MAR_DTYPE_F32, 0));
    bytes b = bytes_from_file(path);
    char *at = file_tensor(&b, tensor, &all);
    const long n = count ? count : all - first;
    assert_true(first + n <= all);
    for (long i = first; i < first + n; i++) memcpy(at + (size_t)i * sizeof value, &value, sizeof value);
    bytes_to_file(&b, path);
    bytes_free(&b);
    return path;
}

void write_copy_without(const char *from, const char *to, wt_dtype dtype, const char *tensor, int rank,
                        const int64_t *shape, int (*skips)(const char *name))
{
    wt_file *f = open_weights(from);
    mar_err err = {0};
    wt_output *out = calloc((size_t)wt_count(f), sizeof *out);
    int count = 0, seen = 0;
    assert_non_null(out);
    for (int i = 0; i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i);
        const int is_it = tensor && strcmp(t->name, tensor) == 0;
        if (skips && skips(t->name)) continue;
        seen += is_it;
        if (is_it && rank == 0) continue;
        out[count] = (wt_output){t->name, dtype, is_it ? rank : t->rank, {0}, f, t, WT_VALUES, NULL};
        memcpy(out[count].shape, is_it ? shape : t->shape, sizeof *shape * (size_t)out[count].rank);
        count++;
    }
    assert_int_equal(seen, tensor != NULL);
    assert_ok(wt_save_safetensors(to, out, count, NULL, 0, &err), &err);
    wt_close(f);
    free(out);
}

void write_nan(const char *path, const char *tensor, long at)
{
    const float nan = NAN;
    wt_file *f = open_weights(path);
    const wt_tensor *t = wt_find(f, tensor);
    assert_non_null(t);
    FILE *file = fopen(path, "r+b");
    assert_true(file && fseek(file, (long)t->offset + at * (long)sizeof nan, SEEK_SET) == 0);
    assert_int_equal(fwrite(&nan, sizeof nan, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    wt_close(f);
}
