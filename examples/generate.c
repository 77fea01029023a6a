/* Writes an image of a class or a prompt as a PPM file.
 *
 *     cc generate.c $(pkg-config --cflags --libs libmar) -o generate
 *     ./generate 7 seven.ppm                                            a digit, from the demo
 *     ./generate "a bold seven" seven.ppm demo-t2i                      the same of a prompt
 *     ./generate 207 dog.ppm mar_base.safetensors kl16.safetensors      a golden retriever
 */
#include <mar.h>

#include <stdio.h>
#include <stdlib.h>

/* Writes pixels [height][width][3]. Returns 0 on failure. */
static int write_ppm(const char *path, const uint8_t *rgb, int width, int height)
{
    const size_t pixels = (size_t)width * (size_t)height;
    FILE *file = fopen(path, "wb");
    if (!file) return 0;
    const int written = fprintf(file, "P6\n%d %d\n255\n", width, height) > 0 && fwrite(rgb, 3, pixels, file) == pixels;
    return fclose(file) == 0 && written;
}

int main(int argc, char **argv)
{
    mar *m;
    mar_pipeline *pipeline = NULL;
    mar_job job;
    uint8_t *rgb = NULL;
    int width, height;
    if (argc < 3 || argc > 5) {
        fprintf(stderr, "usage: %s CLASS|PROMPT FILE.ppm [MODEL [VAE]]\n", argv[0]);
        return 1;
    }
    char *end;
    mar_job_init(&job, sizeof job);
    job.label = (int)strtol(argv[1], &end, 10);
    if (*end) job.prompt = argv[1];
    mar_status status = mar_open(NULL, &m);
    if (status == MAR_OK)
        status = mar_pipeline_load(m, argc > 3 ? argv[3] : "demo", argc > 4 ? argv[4] : NULL, NULL, &pipeline);
    if (status == MAR_OK) status = mar_generate(pipeline, &job, &rgb, &width, &height);
    int failed = status != MAR_OK;
    if (failed) {
        fprintf(stderr, "%s\n", m ? mar_error(m) : mar_status_name(status));
    } else if ((failed = !write_ppm(argv[2], rgb, width, height))) {
        perror(argv[2]);
    } else {
        printf("%s: %dx%d by libmar %s\n", argv[2], width, height, mar_version());
    }
    mar_rgb_free(rgb); /* these accept NULL */
    mar_pipeline_free(pipeline);
    mar_close(m);
    return failed;
}
