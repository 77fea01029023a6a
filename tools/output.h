/* Where pictures go: one PNG, or a directory of numbered ones. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

typedef struct {
    const char *path; /* FILE.png, or a directory */
    int is_file;      /* the path is FILE.png */
    int created;      /* the directory was made by output_begin */
} output;

/* Decides what `path` is (a name ending in .png is a file, anything else a directory) and tries whether it
 * can be written, leaving nothing behind. Returns 0, or 1 after printing what is wrong. */
int output_check(output *out, const char *path);

/* Whether `path` is a name that `out` gives to a picture. */
int output_writes(const output *out, const char *path);

/* Makes the directory if it is not there. Returns 0, or 1 after printing. */
int output_begin(output *out);

/* DIR/000007.png, DIR/grid.png; FILE.png for a file. The caller frees it; NULL after printing "out of
 * memory". */
char *output_image_path(const output *out, long index);
char *output_grid_path(const output *out);

/* After a failure: removes the directory that output_begin made, if it is still empty. */
void output_abandon(output *out);

#endif
