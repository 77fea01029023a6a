/* Replaces libFuzzer where it is missing. Runs a target once on each file of a folder, the last argument, and once
 * on the empty input. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size)
{
    (void)data, (void)max_size;
    return size;
}

/* Runs one input, in memory of exactly its size, so that reading past its end is seen. */
static void run(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) fuzz_fail("cannot read %s", path);
    const size_t size = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(size ? size : 1);
    if (!data || fread(data, 1, size, f) != size) fuzz_fail("cannot read %s", path);
    fclose(f);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
}

int main(int argc, char **argv)
{
    const char *folder = argv[argc - 1];
    DIR *dir = opendir(folder);
    if (!dir) fuzz_fail("cannot open %s", folder);
    if (LLVMFuzzerInitialize && LLVMFuzzerInitialize(&argc, &argv) != 0) fuzz_fail("no memory");
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    int inputs = 0;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        printf("%s\n", path); /* the last one printed is the one that failed */
        fflush(stdout);
        run(path);
        inputs++;
    }
    closedir(dir);
    if (inputs == 0) fuzz_fail("%s is empty", folder);
    return 0;
}
