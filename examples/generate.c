/* Writes an image of one class as a PPM file.
 *
 *     cc generate.c $(pkg-config --cflags --libs libmar) -o generate
 *     ./generate 7 seven.ppm                                            a digit, from the demo
 *     ./generate 207 dog.ppm mar_base.safetensors kl16.safetensors      a golden retriever
 */
#include <mar.h>

#include <stdio.h>
#include <stdlib.h>

/* Generates an image of class `label`. Returns its pixels for the caller to free, or NULL after printing the error. */
static uint8_t *generate(mar *m, const char *model_path, const char *vae_path, int label, int *width, int *height)
{
    mar_params params;
    mar_params_init(&params, sizeof params);
    mar_model *model = NULL;
    mar_vae *vae = NULL;
    mar_session *session = NULL;
    uint8_t *rgb = NULL;
    mar_status status = mar_model_load(m, model_path, 0, &model);
    if (status == MAR_OK) status = mar_vae_load(m, vae_path, &vae);
    if (status == MAR_OK) status = mar_session_create(model, vae, &params, 1, &session);
    if (status == MAR_OK) status = mar_session_begin(session, 0, &label, 1);
    while (status == MAR_OK && !mar_session_done(session)) status = mar_session_step(session);
    if (status == MAR_OK) {
        mar_session_image_size(session, width, height);
        rgb = malloc((size_t)*width * (size_t)*height * 3);
        status = rgb ? mar_session_images(session, rgb) : MAR_ENOMEM;
    }
    if (status != MAR_OK) {
        const char *reason = session ? mar_session_error(session) : mar_error(m);
        fprintf(stderr, "%s\n", *reason ? reason : mar_status_name(status));
        free(rgb);
        rgb = NULL;
    }
    mar_session_free(session); /* these accept NULL */
    mar_vae_free(vae);
    mar_model_free(model);
    return rgb;
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 5) {
        fprintf(stderr, "usage: %s CLASS FILE.ppm [MODEL VAE]\n", argv[0]);
        return 1;
    }
    mar *m;
    mar_status status = mar_open(NULL, &m);
    if (status != MAR_OK) {
        fprintf(stderr, "%s\n", m ? mar_error(m) : mar_status_name(status));
        mar_close(m);
        return 1;
    }
    int width, height, failed = 1;
    uint8_t *rgb =
        generate(m, argc == 5 ? argv[3] : "demo", argc == 5 ? argv[4] : "demo", atoi(argv[1]), &width, &height);
    if (rgb) {
        FILE *file = fopen(argv[2], "wb");
        failed = !file || fprintf(file, "P6\n%d %d\n255\n", width, height) < 0 ||
                 fwrite(rgb, 3, (size_t)width * (size_t)height, file) != (size_t)width * (size_t)height;
        if (file && fclose(file) != 0) failed = 1;
        if (failed)
            perror(argv[2]);
        else
            printf("%s: %dx%d by libmar %s on %s\n", argv[2], width, height, mar_version(), mar_backend_description(m));
    }
    free(rgb);
    mar_close(m);
    return failed;
}
