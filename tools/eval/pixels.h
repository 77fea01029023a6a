/* The pixels that an evaluation keeps: --save_images and --save_npz. */
#ifndef TOOLS_EVAL_PIXELS_H
#define TOOLS_EVAL_PIXELS_H

#include "tools/eval/job.h"
#include "tools/images/image.h"
#include "weights/npz.h"

typedef struct {
    const eval_layout *layout;
    int images;    /* 1: PNG files in RUN/images */
    output folder; /* RUN/images */
    char folder_path[RUN_PATH];
    int npz; /* descriptor of RUN/images.npz.part plus 1; 0: none */
    char npz_path[RUN_PATH];
    npz_slots slots;
    int *place; /* [images] where in arr_0 an image is */
} eval_pixels;

/* Opens what the options ask for: makes RUN/images, and RUN/images.npz.part at its full size. Returns 0, 1 after
 * printing, or an interruption's status; eval_pixels_close in all cases. With --save_npz and npz 0 then, all has been
 * made in the meantime. */
int eval_pixels_open(eval_job *job, eval_pixels *out);
void eval_pixels_close(eval_pixels *p);

/* Write image `index`, rgb [height][width][3], unsynced. Return 0, or 1 after printing an error. */
int eval_pixels_write_png(const eval_pixels *p, long index, const uint8_t *rgb, const image_text *texts, int count);
int eval_pixels_write_slot(const eval_pixels *p, long index, const uint8_t *rgb);

/* Whether the files have the pixels of the record's images, by their CRC. */
int eval_pixels_have(const eval_pixels *p, const eval_record *r);

/* Makes what was written survive a failure of the machine. Returns 0, or 1 after printing an error. */
int eval_pixels_sync(const eval_pixels *p);

/* Completes RUN/images.npz of crc [images], the CRC-32 of each image. Returns 0, or 1 after printing an error. */
int eval_pixels_finish_npz(eval_job *job, const uint32_t *crc);

#endif
