/* RUN/report.html: the result of an evaluation as a self-contained page. */
#ifndef TOOLS_EVAL_REPORT_H
#define TOOLS_EVAL_REPORT_H

#include "tools/eval/result.h"
#include "tools/generate/class_names.h"
#include "tools/images/image.h"

#include <stddef.h>
#include <stdint.h>

enum {
    EVAL_SHEET_MAX = 100,  /* images of the contact sheet */
    EVAL_REJECTED_MAX = 16 /* images with the largest share of rejected drafts */
};

/* An image on the page. */
typedef struct {
    long index;        /* number in the run */
    int label;         /* class; -1: unconditional, or unknown */
    long verified;     /* tokens drafted and verified; 0: none */
    long replaced;     /* of these, tokens not accepted */
    uint8_t *rgb;      /* [height][width][3]; only read */
    int width, height; /* of the picture shown; it may be smaller than the image */
} eval_report_image;

/* Parts of the page besides the result. {0}: none. The struct owns nothing. */
typedef struct {
    const char *title; /* what was judged, as given: "demo", "mar_base.pth", "images/"; NULL: the result's model */
    const image_text *settings; /* [setting_count] rows of the table */
    int setting_count;
    const eval_report_image *sheet; /* [sheet_count] images of the contact sheet, in order */
    int sheet_count;                /* at most EVAL_SHEET_MAX */
    const eval_report_image
        *rejected;      /* [rejected_count] images with the largest share of rejected drafts, in descending order */
    int rejected_count; /* at most EVAL_REJECTED_MAX; 0: no draft model */
    const class_table *names; /* names of the model's classes; NULL: labels are numbers */
    int has_prompts;          /* 1: labels are numbers of prompts, from 0 */
} eval_report_extras;

/* Keeps the EVAL_REJECTED_MAX images with the largest share replaced / verified in list[0..*count), in descending
 * order. Ties go by number, so the list is independent of the order of calls. Images without verified drafts are left
 * out. The list has room for one more: an image that drops out of a full list is moved there, so that its pixels can be
 * freed. Returns the index of the new image; -1 if it was not added. */
int eval_report_rank(eval_report_image list[EVAL_REJECTED_MAX + 1], int *count, const eval_report_image *candidate);

/* Writes the page, whole or not at all. Returns 0, or 1 with the error printed. */
int eval_report_write(const eval_result *r, const eval_report_extras *x, const char *path);

/* --- published numbers of the official models, and of other accelerators of them ---------------------- */

/* A published result; NaN: not published. */
typedef struct {
    const char *model;   /* "MAR-B" */
    const char *setting; /* "with guidance", "LazyMAR, 2.83 times as fast" */
    const char *source;  /* who published it */
    double fid, is;      /* Inception score */
    double precision, recall;
} eval_published;

/* Returns the published model of this shape: "MAR-B", "SphereAR-L"; "" if there is none. Static. */
const char *eval_published_model(const mar_model_config *config);

/* Returns result i of a model, in the order of the page; NULL behind the last one. Static. */
const eval_published *eval_published_get(const char *model, int i);

#endif
