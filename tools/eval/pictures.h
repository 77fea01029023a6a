/* The pixels that an evaluation keeps: --save_images, --save_npz, and the pictures of its page. Missing ones are
 * decoded again from the tokens. */
#ifndef TOOLS_EVAL_PICTURES_H
#define TOOLS_EVAL_PICTURES_H

#include "tools/eval/job.h"
#include "tools/eval/report.h"
#include "tools/images/image.h"
#include "weights/npz.h"

typedef struct {
    const eval_job *job;
    int images;    /* 1: PNG files in RUN/images */
    output folder; /* RUN/images */
    char folder_path[RUN_PATH];
    int npz; /* descriptor of RUN/images.npz.part plus 1; 0: none */
    char npz_path[RUN_PATH];
    npz_slots slots;
    int *place; /* [images] index of an image in arr_0 */
} eval_pixels;

/* Opens the requested files: makes RUN/images, and RUN/images.npz.part at its full size. Returns 0, 1 with the error
 * printed, or an interruption's status. Call eval_pixels_close either way. */
int eval_pixels_open(eval_job *job, eval_pixels *out);
void eval_pixels_close(eval_pixels *p);

/* Writes image `index` of that class, rgb [height][width][3], without syncing. Returns 0, or 1 with the error
 * printed. */
int eval_pixels_write(const eval_pixels *p, long index, int label, const uint8_t *rgb);

/* Makes the written files survive a failure of the machine. Returns 0, or 1 with the error printed. */
int eval_pixels_sync(const eval_pixels *p);

/* Writes the pixels of a picture on the page to the store. Returns 0, or 1 with the error printed. */
int eval_picture_write(const eval_job *job, long index, int label, const uint8_t *rgb);

/* Completes RUN/images and RUN/images.npz. crc [images]: CRC-32 of each image. Returns 0, 1 with the error printed, or
 * an interruption's status. */
int eval_pictures_finish(eval_job *job, const uint32_t *crc);

/* Allocates the pixels of the list's images. Without a model, images that the store lacks are dropped from the list.
 * Returns as eval_pictures_finish. */
int eval_pictures_get(eval_job *job, eval_report_image *list, int *count);

#endif
