/* Where pictures go: one PNG, a directory of numbered ones, or standard output. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <stddef.h>

/* Initialise with {0}. */
typedef struct {
    const char *path; /* FILE.png, a directory, or "-" */
    int is_file;      /* one picture: the path is FILE.png or "-" */
    int is_stream;    /* the path is "-", standard output */
    size_t *made;     /* [made_count] lengths of the beginnings of the path that output_begin made directories of */
    int made_count;   /* of them */
    int directory;    /* open descriptor of the directory since output_begin, for output_sync; 0: none */
} output;

/* Decides what `path` is (a name ending in .png is a file, "-" standard output, anything else a directory) and tries
 * whether it can be written, leaving nothing behind. Directories on the way need not be there. Returns 0, or 1 after
 * printing what is wrong. */
int output_check(output *out, const char *path);

/* Whether `path` is a name that `out` gives to a picture. */
int output_writes(const output *out, const char *path);

/* Whether the directory has no picture with a name that `out` gives: 1 after printing which it has. */
int output_check_free(const output *out);
/* Removes those pictures. Returns 0, or 1 after printing an error. */
int output_clear(const output *out);

/* Makes the directories that are not there. Returns 0, or 1 after printing; none is left then. */
int output_begin(output *out);

/* DIR/000007.png, DIR/grid.png; FILE.png for a file. The caller frees it; NULL after printing "out of
 * memory". */
char *output_image_path(const output *out, long index);
char *output_grid_path(const output *out);
/* The index of an image that `name`, without a directory, is the name of; -1: of none. */
long output_image_index(const char *name);

/* After the last picture in a directory: makes all of them survive a failure of the machine. Returns 0, or 1 after
 * printing what could not be stored. */
int output_sync(const output *out);

/* After a failure: removes the directories that output_begin made and that are still empty. */
void output_abandon(output *out);
void output_free(output *out);

#endif
