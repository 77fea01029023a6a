/* What a run leaves for later: text in its PNGs and, with --json, one record on stdout. */
#ifndef TOOLS_RECORD_H
#define TOOLS_RECORD_H

#include "tools/generate.h"

enum { RECORD_TEXTS_MAX = 20 };

typedef struct {
    image_text texts[RECORD_TEXTS_MAX];
    int count;
    char *values[RECORD_TEXTS_MAX]; /* owned; texts[].value points here */
} record_texts;

/* Text of image `index`, or of the grid for index -1; `title` may be NULL. Returns 0, or 1 after printing "out of
 * memory". */
int record_texts_make(const generate_job *job, long index, const char *title, record_texts *out);
void record_texts_free(record_texts *texts);

/* Prints the JSON record. Returns 0, or 1 after printing an error. */
int record_print_json(const generate_job *job);

#endif
