/* Files: whole-file mapping for reading, and writing that is complete or leaves nothing behind. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

#include <stdint.h>
#include <stdio.h>

typedef struct {
    const uint8_t *data; /* [size], read-only mapping; NULL if size is 0 */
    size_t size;
} file_map;

/* Maps a regular file. MAR_EIO with the path and the system's reason otherwise. */
mar_status file_map_open(const char *path, file_map *out, mar_err *err);
void file_map_close(file_map *map);

/* Writing: open creates a hidden temporary file beside `path`; commit flushes, fsyncs and renames it to
 * `path`; discard removes it. After either the writer is closed. */
typedef struct {
    FILE *stream;
    char *path, *temporary;
} file_writer;

mar_status file_writer_open(const char *path, file_writer *out, mar_err *err);
mar_status file_writer_commit(file_writer *w, mar_err *err);
void file_writer_discard(file_writer *w);

/* All of data in one go. */
mar_status file_write(const char *path, const void *data, size_t size, mar_err *err);

#endif
