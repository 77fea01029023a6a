/* Files: reading pieces of one, which may change meanwhile, and writing one completely or not at all. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* What is read: an open regular file, or memory that stands for one. A file is never mapped: a mapping of one that
 * shrinks ends the program at the next access. Any number of threads may read from it. */
typedef struct {
    const char *path;         /* for messages: the file's, or a label; the caller's */
    const uint8_t *memory;    /* [size]; NULL if it is a file */
    int fd;                   /* the open file, or -1 */
    uint64_t size;            /* bytes; of a file: when it was opened */
    struct timespec modified; /* of a file: when it was last written to, as of its opening */
} file_source;

/* Opens a regular file. MAR_EIO, with the path and the system's reason, if it cannot. */
mar_status file_source_open(const char *path, file_source *out, mar_err *err);
/* Memory, which must stay valid. */
file_source file_source_of_memory(const void *data, size_t size, const char *label);
void file_source_close(file_source *s);

/* dst[n] = bytes offset .. offset+n-1. MAR_EIO, with the system's reason, or saying that the file has become shorter;
 * MAR_EFORMAT for bytes that were never in it. */
mar_status file_source_read(const file_source *s, uint64_t offset, size_t n, void *dst, mar_err *err);
/* MAR_EIO if the file's size or time of modification is no longer that of its opening. To be called when everything is
 * read: pieces of a file that changed in between need not belong together. */
mar_status file_source_check(const file_source *s, mar_err *err);

/* Writing. `open` creates a file without a name in the directory of `path`, which is gone with the process however that
 * ends; where the system has no such files, it is a hidden one beside `path`. `commit` flushes and fsyncs it and gives
 * it the name `path`, in place of what had that name; `discard` removes it. Either closes the writer. */
typedef struct {
    FILE *stream;
    char *path;       /* of the file */
    size_t directory; /* that many bytes of `path` are its directory, up to the last slash */
    char *temporary;  /* path of the hidden file; "" while it has no name */
    int unsynced; /* 1: commit does not fsync: the file is whole if the process is killed, not if the machine fails */
} file_writer;

mar_status file_writer_open(const char *path, file_writer *out, mar_err *err);
mar_status file_writer_commit(file_writer *w, mar_err *err);
void file_writer_discard(file_writer *w);

#endif
