/* Destinations of pictures: one file, a directory of numbered ones, or standard output. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include "tools/images/image.h"

#include <stddef.h>

/* Initialise with {0}. */
typedef struct {
    const char *path;    /* FILE.png, a directory, or "-" */
    int is_file;         /* 1: one picture; the path is FILE.png or "-" */
    int is_stream;       /* 1: the path is "-", standard output */
    image_format format; /* of the pictures */
    size_t *made;        /* [made_count] lengths of the path's prefixes that output_begin made directories of */
    int made_count;      /* of them */
    int directory;       /* descriptor of the directory since output_begin, for output_sync; 0: none */
} output;

/* Classifies `path`: a name with a format's ending is a file of that format, "-" standard output, anything else a
 * directory; for these two the format is `format`. Tests whether it can be written, and leaves nothing behind. Its
 * parent directories may be missing. Returns 0, or 1 with the error printed. */
int output_check(output *out, const char *path, image_format format);

/* Returns whether `out` gives the name `path` to a picture. */
int output_writes(const output *out, const char *path);

/* Checks that the directory has no numbered picture and no grid, of any format. Returns 1 after printing the first, and
 * the options that help; with `resumes`, and if it is of out's format, --resume is one. */
int output_check_free(const output *out, int resumes);
/* Removes those pictures. Returns 0, or 1 with the error printed. */
int output_clear(const output *out);

/* Makes the missing directories. Returns 0, or 1 with the error printed and none left. */
int output_begin(output *out);

/* Return DIR/000007.png or DIR/grid.png, with the format's ending; FILE.png for a file. The caller frees it. Returns
 * NULL after printing "out of memory". */
char *output_image_path(const output *out, long index);
char *output_grid_path(const output *out);
/* Returns the index of the image with the file name `name`, of any format; -1 if it is not an image's. */
long output_image_index(const char *name);
/* Returns whether it is the name of a directory's grid, of any format. */
int output_is_grid(const char *name);

/* Makes the pictures in a directory survive a failure of the machine; call it after the last. Returns 0, or 1 with the
 * error printed. */
int output_sync(const output *out);

/* Removes, after a failure, the directories that output_begin made and that are still empty. */
void output_abandon(output *out);
void output_free(output *out);

#endif
