/* The pixels that an evaluation keeps: --save_images, --save_npz, and the pictures of its page. */
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

/* Returns whether the files have image i, by the CRC-32 of its pixels. rgb: room for them. */
int eval_pixels_have(const eval_pixels *p, long i, uint32_t crc, uint8_t *rgb);
/* Completes the open RUN/images.npz. crc [images]. Returns 0, or 1 with the error printed. */
int eval_pixels_finish_npz(const eval_pixels *p, const uint32_t *crc);
/* Prints that the file is lost and cannot be made again with --merge. Returns 1. */
int eval_pixels_refuse_lost(const char *path);

/* Write and read the pixels of a picture on the page in the store. Writing returns 0, or 1 with the error printed;
 * reading 0, or 1 if they are missing. */
int eval_picture_write(const eval_job *job, long index, int label, const uint8_t *rgb);
int eval_picture_read(const eval_job *job, long index, int label, uint8_t *rgb);

#endif
