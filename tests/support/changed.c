#include "tests/support/changed.h"

#include "tests/support/archive.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *write_changed(mar *m, const char *directory, const char *file, const char *model, const char *tensor, long first,
                    long count, float value)
{
    char *path, key[256];
    uint64_t header;
    long begin, end;
    assert_true(asprintf(&path, "%s/%s", directory, file) > 0);
    assert_library(m, mar_convert(m, model, path, MAR_DTYPE_F32, 0));
    bytes b = bytes_from_file(path);
    memcpy(&header, b.data, sizeof header);
    snprintf(key, sizeof key, "\"%s\":", tensor);
    const char *entry = memmem(b.data + 8, header, key, strlen(key));
    if (!entry) fail_msg("%s has no tensor %s", model, tensor);
    assert_int_equal(sscanf(strstr(entry, "data_offsets"), "data_offsets\":[%ld,%ld]", &begin, &end), 2);
    const long n = count ? count : (end - begin) / (long)sizeof value - first;
    assert_true(begin + (first + n) * (long)sizeof value <= end);
    for (long i = first; i < first + n; i++)
        memcpy(b.data + 8 + header + (size_t)begin + (size_t)i * sizeof value, &value, sizeof value);
    bytes_to_file(&b, path);
    bytes_free(&b);
    return path;
}
