/* What the pages of `mar fidelity` and `mar eval` have in common: their look, pictures, lists of options. A page is one
 * HTML file that needs no other. */
#ifndef TOOLS_PAGE_H
#define TOOLS_PAGE_H

#include "tools/images/image.h"
#include "tools/cli/text.h"

#include <stdio.h>

/* Begins the page: a stream into *text, with everything in front of the first heading. `style`: CSS besides the common
 * one, or "". NULL after printing "out of memory"; `path` is for messages. */
FILE *page_open(text_buffer *text, const char *title, const char *style, const char *path);
/* Ends the page and writes it to `path`, whole or not at all. `lacks`: 1 if memory ran out for a picture. Returns 0, or
 * 1 after printing an error. */
int page_close(FILE *out, text_buffer *text, int lacks, const char *path);

/* <img> of the picture as PNG, width x height CSS pixels large. Returns 0, or 1 if memory ran out. */
int page_picture(FILE *out, const image *picture, int width, int height, const char *title);

/* <code> of "--head_spec 8 --cfg 2": lines break between options, not within. */
void page_options(FILE *out, const char *options);

/* <td> with a share of 0..1 in percent; a dash for NaN and what is below 0. */
void page_share(FILE *out, double share);

#endif
