/* The pixels that an evaluation keeps: --save_images, --save_npz, and those that its report shows. */
#ifndef TOOLS_EVAL_PIXELS_H
#define TOOLS_EVAL_PIXELS_H

#include "tools/eval/job.h"
#include "tools/images/image.h"
#include "weights/npz.h"

typedef struct {
    const eval_job *job;
    int images;    /* 1: PNG files in RUN/images */
    output folder; /* RUN/images */
    char folder_path[RUN_PATH];
    int npz; /* descriptor of RUN/images.npz.part plus 1; 0: none is to be written */
    char npz_path[RUN_PATH];
    npz_slots slots;
    int *place; /* [images] where in arr_0 an image is */
} eval_pixels;

/* Opens what the options ask for: makes RUN/images, and RUN/images.npz.part at its full size. Returns 0, 1 after
 * printing, or an interruption's status; eval_pixels_close in all cases. */
int eval_pixels_open(eval_job *job, eval_pixels *out);
void eval_pixels_close(eval_pixels *p);

/* Writes image `index` of that class, rgb [height][width][3], unsynced. Returns 0, or 1 after printing an error. */
int eval_pixels_write(const eval_pixels *p, long index, int label, const uint8_t *rgb);

/* Makes what was written survive a failure of the machine. Returns 0, or 1 after printing an error. */
int eval_pixels_sync(const eval_pixels *p);

/* Whether the files have image i, by the CRC-32 of its pixels; rgb is room for them. */
int eval_pixels_have(const eval_pixels *p, long i, uint32_t crc, uint8_t *rgb);
/* Completes RUN/images.npz, which is open, of crc [images]. Returns 0, or 1 after printing an error. */
int eval_pixels_finish_npz(const eval_pixels *p, const uint32_t *crc);
/* Prints that the file is lost, which with --merge cannot be made again. Returns 1. */
int eval_pixels_refuse_lost(const char *path);

/* The pixels of an image that the report shows, in the store. Writing returns 0, or 1 after printing an error; reading
 * 0, or 1 if they are not there. */
int eval_picture_write(const eval_job *job, long index, int label, const uint8_t *rgb);
int eval_picture_read(const eval_job *job, long index, int label, uint8_t *rgb);

#endif
