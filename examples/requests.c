/* Makes images on request, several at a time: reads a class a line, and writes each image as a PPM file as soon as it
 * is finished. Images begin while others are in progress.
 *
 *     cc requests.c $(pkg-config --cflags --libs libmar) -o requests
 *     printf '3\n7\n1\n' | ./requests                    request-1.ppm, request-2.ppm, request-3.ppm: digits of the
 * demo
 */
#include <mar.h>

#include <stdio.h>
#include <stdlib.h>

enum { PLACES = 4 }; /* images in progress at a time; others wait */

static int save(const char *path, const uint8_t *rgb, int width, int height)
{
    FILE *file = fopen(path, "wb");
    const size_t pixels = (size_t)width * (size_t)height;
    int failed =
        !file || fprintf(file, "P6\n%d %d\n255\n", width, height) < 0 || fwrite(rgb, 3, pixels, file) != pixels;
    if (file && fclose(file) != 0) failed = 1;
    if (failed) perror(path);
    return failed;
}

/* Writes the finished images. */
static int take_finished(mar_session *s, mar_pixels *pixels, int width, int height)
{
    uint64_t id;
    while ((id = mar_session_next_finished(s)) != 0) {
        char path[64];
        if (mar_session_take(s, id, NULL, pixels) != MAR_OK) { /* this request failed; the others go on */
            fprintf(stderr, "request %llu: %s\n", (unsigned long long)id, mar_session_error(s));
            mar_session_cancel_request(s, id); /* if only its pixels cannot be had, it is still there */
            continue;
        }
        snprintf(path, sizeof path, "request-%llu.ppm", (unsigned long long)id);
        if (save(path, pixels->data, width, height) != 0) return 1;
    }
    return 0;
}

static int serve(mar_session *s)
{
    char line[64];
    int width, height, failed = 0, open = 1;
    mar_pixels pixels;
    mar_session_image_size(s, &width, &height);
    mar_pixels_init(&pixels, sizeof pixels);
    pixels.capacity = (size_t)width * (size_t)height * 3;
    pixels.data = malloc(pixels.capacity);
    if (!pixels.data) return 1;
    while (!failed && (open || mar_session_pending(s) > 0)) {
        open =
            open && fgets(line, sizeof line, stdin) != NULL; /* a server would not wait here while images are pending */
        if (open) {
            mar_request request;
            uint64_t id;
            mar_request_init(s, &request, sizeof request);
            request.label = atoi(line);
            if (mar_session_submit(s, &request, &id) != MAR_OK) fprintf(stderr, "%s\n", mar_session_error(s));
        }
        if (mar_session_pending(s) > 0 && mar_session_step(s) != MAR_OK) {
            fprintf(stderr, "%s\n", mar_session_error(s));
            failed = 1;
        }
        failed |= take_finished(s, &pixels, width, height);
    }
    free(pixels.data);
    return failed;
}

int main(void)
{
    mar *m;
    mar_model *model = NULL;
    mar_vae *vae = NULL;
    mar_session *session = NULL;
    mar_params params;
    mar_params_init(&params, sizeof params);
    mar_status status = mar_open(NULL, &m);
    if (status == MAR_OK) status = mar_model_load(m, "demo", 0, &model);
    if (status == MAR_OK) status = mar_vae_load(m, "demo", &vae);
    if (status == MAR_OK) status = mar_session_create(model, vae, &params, PLACES, &session);
    if (status != MAR_OK) fprintf(stderr, "%s\n", m ? mar_error(m) : mar_status_name(status));
    const int failed = status != MAR_OK || serve(session) != 0;
    mar_session_free(session);
    mar_vae_free(vae);
    mar_model_free(model);
    mar_close(m);
    return failed;
}
