/* --preview: a picture of the images in progress, replaced as they form. */
#ifndef TOOLS_PREVIEW_H
#define TOOLS_PREVIEW_H

#include "mar.h"
#include "tools/images/image.h"

/* Initialise with {0}. */
typedef struct {
    const char *path; /* file; NULL: no preview */
    image_format format;
    int width, height; /* of an image */
    image grid;        /* the images of the batch in progress */
    int columns;       /* of the grid */
    double not_before; /* time of the next preview */
    int next;          /* image that is drawn next */
    int is_over;       /* 1: the grid shows finished images, or nothing */
    int has_failed;    /* 1: one was not drawn or written, with the error printed; there are no more */
} preview;

/* Checks the name and place of the file; NULL: no preview. Returns 0, or 1 with the error printed. */
int preview_check(const char *path);
/* Makes room for batches of up to `images` images. Returns 0, or 1 with the error printed. */
int preview_create(preview *p, const char *path, mar_session *session, int images);
void preview_free(preview *p);

/* Draws the n images of the session's batch, as far as they are known, and writes the file, unless the last preview was
 * just now: previews take a tenth of the time. If decoding all of them takes long, it draws some, in turn, and the file
 * is written every few seconds nevertheless. */
void preview_show(preview *p, mar_session *session, int n);
/* Writes the finished images of the batch, uint8_t rgb[n][height][width][3]. */
void preview_finish(preview *p, int n, const uint8_t *rgb);

#endif
