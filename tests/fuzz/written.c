/* Keeps written files in memory. Linked with --wrap for the writer of base/file.h. */
#include "tests/fuzz/fuzz.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>

char *fuzz_written;
size_t fuzz_written_size;

mar_status __wrap_file_writer_open(const char *path, file_writer *out, mar_err *err);
mar_status __wrap_file_writer_commit(file_writer *w, mar_err *err);
void __wrap_file_writer_discard(file_writer *w);

mar_status __wrap_file_writer_open(const char *path, file_writer *out, mar_err *err)
{
    *out = (file_writer){.stream = open_memstream(&fuzz_written, &fuzz_written_size)};
    return out->stream ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory", path);
}

mar_status __wrap_file_writer_commit(file_writer *w, mar_err *err)
{
    (void)err;
    fclose(w->stream);
    *w = (file_writer){0};
    return MAR_OK;
}

void __wrap_file_writer_discard(file_writer *w)
{
    fclose(w->stream);
    *w = (file_writer){0};
}

void fuzz_forget_written(void)
{
    free(fuzz_written);
    fuzz_written = NULL;
    fuzz_written_size = 0;
}
