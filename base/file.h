/* Files: reads parts of a file that may change meanwhile; writes a file completely or not at all. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* A source of bytes: an open regular file, or memory. Files are never mapped: access to a mapping of a file that has
 * shrunk ends the program. Any number of threads may read from one source. */
typedef struct {
    const char *path;         /* path or label, for messages; owned by the caller */
    const uint8_t *memory;    /* [size]; NULL for a file */
    int fd;                   /* the open file; -1 for memory */
    int borrowed;             /* 1: file_source_close leaves fd open */
    uint64_t size;            /* bytes; a file's size at its opening */
    struct timespec modified; /* a file's modification time at its opening */
} file_source;

/* Opens a regular file. Returns MAR_EIO, with the path and the system's reason, if that fails. */
mar_status file_source_open(const char *path, file_source *out, mar_err *err);
/* Makes a source of a regular file that the caller has opened for reading. Neither moves its position nor closes it.
 * Returns MAR_EIO, with the label and the reason, for any other descriptor. */
mar_status file_source_of_fd(int fd, const char *label, file_source *out, mar_err *err);
/* Returns a source over data[size]. The memory must stay valid. */
file_source file_source_of_memory(const void *data, size_t size, const char *label);
void file_source_close(file_source *s);

/* Reads bytes offset .. offset+n-1 to dst[n]. Returns MAR_EFORMAT for bytes beyond the size at opening. Returns
 * MAR_EIO, with the reason, if reading fails or the file has become shorter. */
mar_status file_source_read(const file_source *s, uint64_t offset, size_t n, void *dst, mar_err *err);
/* Returns MAR_EIO if the file's size or modification time has changed since its opening. Call it after the last read:
 * parts read before and after a change may not belong together. */
mar_status file_source_check(const file_source *s, mar_err *err);

/* Writes a file completely or not at all. `open` creates an unnamed file in the directory of `path`. The system removes
 * it when the process ends. Where the system has no unnamed files, it creates a hidden one beside `path`. `commit`
 * flushes and fsyncs the file and renames it to `path`, replacing an existing file. `discard` removes it. Both close
 * the writer. */
typedef struct {
    FILE *stream;
    char *path;       /* final path */
    size_t directory; /* length of the directory in `path`, up to and including the last slash */
    char *temporary;  /* path of the hidden file; "" while the file has no name */
    int unsynced;     /* 1: commit does not fsync; the file may be lost if the machine fails */
} file_writer;

mar_status file_writer_open(const char *path, file_writer *out, mar_err *err);
mar_status file_writer_commit(file_writer *w, mar_err *err);
void file_writer_discard(file_writer *w);

#endif
