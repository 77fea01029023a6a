#include "tools/eval/pictures.h"

#include "tools/cli/command.h"
#include "tools/cli/interruption.h"
#include "tools/eval/pixels.h"

#include <stdlib.h>
#include <string.h>

/* --- files ---------------------------------------------------------------------------------------------- */

/* An image_sink: writes the pictures again. */
static int take_again(void *self, const image_batch *batch)
{
    const eval_pixels *p = self;
    const size_t bytes = eval_pixel_bytes(&p->job->layout);
    for (int i = 0; i < batch->n; i++)
        if (eval_pixels_write(p, batch->first + i, batch->labels[i], batch->rgb + (size_t)i * bytes) != 0) return 1;
    return 0;
}

/* Checks that the files have all images of the batch, and decodes them again if not. rgb: room for an image. */
static int complete(eval_pixels *p, eval_job *job, long first, const uint32_t *crc, uint8_t *rgb)
{
    int all = 1;
    for (long i = first; i < first + eval_batch_size(&job->layout, first) && all; i++)
        all = eval_pixels_have(p, i, crc[i], rgb);
    if (all) return 0;
    if (!job->session) return eval_pixels_refuse_lost(p->npz ? p->npz_path : p->folder.path);
    return eval_make_pixels(job, first, (image_sink){take_again, p, 0, 1, 0});
}

int eval_pictures_finish(eval_job *job, const uint32_t *crc)
{
    eval_pixels p;
    uint8_t *rgb = malloc(eval_pixel_bytes(&job->layout));
    int status = eval_pixels_open(job, &p);
    if (status == 0 && !rgb) status = tool_error("out of memory for an image");
    for (long i = 0; i < job->layout.images && status == 0 && (p.npz || p.images); i += job->layout.batch)
        status = interruption_came() ? interruption_status() : complete(&p, job, i, crc, rgb);
    if (status == 0) status = eval_pixels_sync(&p);
    if (status == 0 && p.npz) status = eval_pixels_finish_npz(&p, crc);
    eval_pixels_close(&p);
    free(rgb);
    return status;
}

/* --- pictures of the page ----------------------------------------------------------------------------------------- */

/* The source of pictures that the store lacks: their batch, decoded again. */
typedef struct {
    const eval_job *job;
    long index;
    uint8_t *rgb;
} picture_sink;

static int take_picture(void *self, const image_batch *batch)
{
    const picture_sink *p = self;
    const size_t bytes = eval_pixel_bytes(&p->job->layout);
    memcpy(p->rgb, batch->rgb + (size_t)(p->index - batch->first) * bytes, bytes);
    return 0;
}

int eval_pictures_get(eval_job *job, eval_report_image *list, int *count)
{
    const int all = *count;
    *count = 0;
    for (int i = 0; i < all; i++) {
        eval_report_image picture = list[i];
        uint8_t *rgb = malloc(eval_pixel_bytes(&job->layout));
        if (!rgb) return tool_error("out of memory for a picture of the report");
        picture.rgb = rgb;
        picture_sink sink = {job, picture.index, rgb};
        int status = eval_picture_read(job, picture.index, picture.label, rgb);
        const int missing = status != 0;
        if (missing && job->session)
            status = eval_make_pixels(job, picture.index - picture.index % job->layout.batch,
                                      (image_sink){take_picture, &sink, 0, 1, 0});
        if (status == 0)
            list[(*count)++] = picture;
        else
            free(rgb);
        if (status != 0 && job->session) return status;
    }
    return 0;
}
