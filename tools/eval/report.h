/* RUN/report.html: what an evaluation has found, as a page that needs no other file. */
#ifndef TOOLS_EVAL_REPORT_H
#define TOOLS_EVAL_REPORT_H

#include "tools/eval/result.h"

#include <stddef.h>
#include <stdint.h>

enum {
    EVAL_SHEET_MAX = 100,  /* images of the contact sheet */
    EVAL_REJECTED_MAX = 16 /* images whose drafts were replaced most */
};

/* An image that the page shows. */
typedef struct {
    long index;         /* its number in the run */
    int label;          /* its class; -1: unconditional, or unknown */
    long verified;      /* its tokens that were drafted and verified; 0: none */
    long replaced;      /* of these, those that were not accepted */
    const uint8_t *rgb; /* [height][width][3] */
    int width, height;  /* of the picture that is shown, which may be smaller than the image */
} eval_report_image;

/* What the page shows besides the result. All of it may be absent: {0}. The struct owns nothing. */
typedef struct {
    const char *title;     /* what was judged, as given: "demo", "mar_base.pth", "images/"; NULL: the result's model */
    const cJSON *settings; /* object: a row of the table for each item, with its value; an object in it (such as
                              params_record's) is a table of its own. NULL: none */
    const eval_report_image *sheet; /* [sheet_count] for the contact sheet, in the order in which they are shown */
    int sheet_count;                /* EVAL_SHEET_MAX at most */
    const eval_report_image
        *rejected;      /* [rejected_count] the images with the largest share of replaced drafts, the largest first */
    int rejected_count; /* EVAL_REJECTED_MAX at most; 0: no draft model */
    int classes;        /* that the model knows, for the names of labels; 0: labels are numbers */
} eval_report_extras;

/* Which images a contact sheet shows: up to `room` of images 0..images-1, spread evenly, to sheet[room], ascending.
 * Returns how many. With classes in their order (balanced) that is as many classes as there is room for. */
int eval_report_choose(long images, int room, long *sheet);

/* Keeps the EVAL_REJECTED_MAX images with the largest share replaced / verified in list[0..*count), the largest first;
 * images of the same share are in the order of their numbers, so that the list does not depend on the order in which
 * images come. Images without verified drafts do not enter. The list has room for one more: if it was full, the image
 * that fell out is in its last place, so that its pixels can be freed. Returns the place of the new image; -1: it did
 * not enter. */
int eval_report_rank(eval_report_image list[EVAL_REJECTED_MAX + 1], int *count, const eval_report_image *candidate);

/* Writes the page, whole or not at all. Returns 0, or 1 after printing an error. */
int eval_report_write(const eval_result *r, const eval_report_extras *x, const char *path);

#endif
