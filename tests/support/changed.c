#include "tests/support/changed.h"

#include "mar_files.h"

#include "tests/support/archive.h"
#include "tests/support/support.h"

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
