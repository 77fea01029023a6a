/* The pictures of jobs: their files and previews. */
#include "tools/serve/jobs.h"

#include <stdlib.h>
#include <string.h>

/* --- files -------------------------------------------------------------------------------------------------------- */

const uint8_t *jobs_encode(jobs *t, job *j, int i, const uint8_t **file, size_t *size)
{
    job_image *image = &j->image[i];
    pthread_mutex_lock(&t->lock);
    while (image->encoding) pthread_cond_wait(&j->changed, &t->lock);
    const uint8_t *rgb = image->state == JOB_DONE ? image->rgb : NULL;
    image->encoding = rgb != NULL;
    *file = image->file;
    *size = image->file_size;
    pthread_mutex_unlock(&t->lock);
    return rgb;
}

void jobs_encoded(jobs *t, job *j, int i, uint8_t *file, size_t size)
{
    job_image *image = &j->image[i];
    pthread_mutex_lock(&t->lock);
    image->encoding = 0;
    if (file) {
        free(image->rgb);
        image->rgb = NULL;
        image->file = file;
        image->file_size = size;
        const size_t bytes = j->bytes - t->image_bytes + size;
        if (j->kept && j->unfinished == 0) locked_add_kept(t, j, 0, bytes - j->bytes);
        j->bytes = bytes;
    }
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&t->lock);
}

/* --- previews ----------------------------------------------------------------------------------------------------- */

int jobs_ask_preview(jobs *t, job *j, int i)
{
    job_image *image = &j->image[i];
    uint8_t *rgb = malloc(t->image_bytes);
    if (!rgb) return 1;
    pthread_mutex_lock(&t->lock);
    const int can = image->state == JOB_RUNNING;
    image->wants_preview = can && image->preview_step < image->step;
    if (!image->preview && can) {
        image->preview = rgb;
        rgb = NULL;
    }
    pthread_mutex_unlock(&t->lock);
    free(rgb);
    return 0;
}

int jobs_get_preview(jobs *t, job *j, int i, uint8_t *rgb)
{
    const job_image *image = &j->image[i];
    pthread_mutex_lock(&t->lock);
    const int step = image->preview && !image->wants_preview ? image->preview_step : -1;
    if (step >= 0) memcpy(rgb, image->preview, t->image_bytes);
    pthread_mutex_unlock(&t->lock);
    return step;
}

int jobs_wants_preview(jobs *t, job *j, int i)
{
    pthread_mutex_lock(&t->lock);
    const int wants = j->image[i].wants_preview;
    pthread_mutex_unlock(&t->lock);
    return wants;
}

void jobs_put_preview(jobs *t, job *j, int i, int step, const uint8_t *rgb)
{
    job_image *image = &j->image[i];
    pthread_mutex_lock(&t->lock);
    image->wants_preview = 0;
    image->preview_step = step;
    memcpy(image->preview, rgb, t->image_bytes);
    locked_announce(j);
    pthread_mutex_unlock(&t->lock);
}
