/* Files: mapping a whole file for reading, and writing a file completely or not at all. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

#include <stdint.h>
#include <stdio.h>

typedef struct {
    const uint8_t *data; /* [size], read-only mapping; NULL if size is 0 */
    size_t size;
} file_map;

/* Maps a regular file. MAR_EIO, with the path and the system's reason, if it cannot. */
mar_status file_map_open(const char *path, file_map *out, mar_err *err);
void file_map_close(file_map *map);

/* Writing. `open` creates a hidden temporary file beside `path`. `commit` flushes, fsyncs and renames it to `path`;
 * `discard` removes it. Either closes the writer. */
typedef struct {
    FILE *stream;
    char *path;      /* of the file */
    char *temporary; /* path of the temporary file */
} file_writer;

mar_status file_writer_open(const char *path, file_writer *out, mar_err *err);
mar_status file_writer_commit(file_writer *w, mar_err *err);
void file_writer_discard(file_writer *w);

#endif
