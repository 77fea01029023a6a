#include "tests/support/detok.h"

#include "tests/support/support.h"
#include "tests/support/tensor_files.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *list; /* list: NULL: a golden file */
} files[] = {{"mar_tiny.pth", "detok/mar_tensors.txt"},
             {"detok-tiny-decoder_tuned.pth", "detok/tokenizer_tensors.txt"},
             {"stats.pkl", NULL}};
enum { FILES = sizeof files / sizeof *files };

static void detok_write(const char *folder)
{
    file_tensor *tensors = calloc(FILE_TENSORS_MAX, sizeof *tensors);
    assert_non_null(tensors);
    for (int i = 0; i < FILES; i++) {
        if (!files[i].list) {
            bytes b = bytes_from_file("tests/golden/data/detok/stats.pkl");
            bytes_to_folder(folder, files[i].name, &b);
            continue;
        }
        const int count = tensors_drawn(files[i].list, tensors);
        tensors_write_torch(folder, files[i].name, "model_ema", tensors, count);
        tensors_free(tensors, count);
    }
    free(tensors);
}

const char *detok_path(const char *name)
{
    static char paths[FILES][PATH_MAX];
    int i = 0;
    while (i < FILES && strcmp(files[i].name, name) != 0) i++;
    if (i == FILES) fail_msg("%s: is no file of l-DeTok", name);
    if (!*paths[0]) {
        const char *folder = test_directory();
        detok_write(folder);
        for (int j = 0; j < FILES; j++) snprintf(paths[j], sizeof paths[j], "%s/%s", folder, files[j].name);
    }
    return paths[i];
}
