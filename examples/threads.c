/* Generates images of several classes at once from one model in memory: one session per thread.
 *
 *     cc threads.c $(pkg-config --cflags --libs libmar) -pthread -o threads
 *     ./threads 4 40 images                                       40 digits by 4 threads, from the demo
 *     ./threads 2 8 images mar_base.safetensors kl16.safetensors
 *
 * Request i is image i of seed 0. Its class is i modulo the number of classes, its file i-CLASS.ppm in the folder. The
 * files do not depend on the number of threads. Ctrl-C cancels the images in progress and leaves no partial file.
 */
#include <mar.h>
#include <mar_measure.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_THREADS = 64 };

static mar_model *model;
static mar_vae *vae;
static const char *folder;
static int requests;
static atomic_int next, done, failed;
static mar_session *sessions[MOST_THREADS];
static atomic_int stopped;

static void on_interrupt(int number)
{
    (void)number;
    stopped = 1;
    for (int i = 0; i < MOST_THREADS; i++)
        if (sessions[i]) mar_session_cancel(sessions[i]); /* allowed in a signal handler */
}

static int write_image(int request, int label, const uint8_t *rgb, int width, int height)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%d-%d.ppm", folder, request, label);
    FILE *file = fopen(path, "wb");
    const size_t pixels = (size_t)width * (size_t)height;
    int bad = !file || fprintf(file, "P6\n%d %d\n255\n", width, height) < 0 || fwrite(rgb, 3, pixels, file) != pixels;
    if (file && fclose(file) != 0) bad = 1;
    if (bad) perror(path);
    return bad;
}

/* Serves one request. Returns MAR_OK or the error. */
static mar_status serve(mar_session *s, int request, int label, uint8_t *rgb)
{
    mar_status status = mar_session_begin(s, (uint64_t)request, &label, 1);
    if (stopped) return MAR_ECANCELLED; /* begin clears an earlier cancel */
    while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
    return status == MAR_OK ? mar_session_images(s, rgb) : status;
}

static void *serve_all(void *arg)
{
    mar_session *s = *(mar_session **)arg;
    int width, height;
    mar_session_image_size(s, &width, &height);
    uint8_t *rgb = malloc((size_t)width * (size_t)height * 3);
    const int classes = mar_model_get_config(model)->classes;
    if (!rgb) atomic_fetch_add(&failed, 1);
    for (int i; rgb && !stopped && (i = atomic_fetch_add(&next, 1)) < requests;) {
        const mar_status status = serve(s, i, i % classes, rgb);
        if (status == MAR_ECANCELLED) break;
        if (status != MAR_OK) fprintf(stderr, "request %d: %s\n", i, mar_session_error(s));
        if (status != MAR_OK || write_image(i, i % classes, rgb, width, height))
            atomic_fetch_add(&failed, 1);
        else
            atomic_fetch_add(&done, 1);
    }
    free(rgb);
    return NULL;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    const int threads = argc > 2 ? atoi(argv[1]) : 0;
    requests = argc > 2 ? atoi(argv[2]) : 0;
    if ((argc != 4 && argc != 6) || threads < 1 || threads > MOST_THREADS || requests < 1) {
        fprintf(stderr, "usage: %s THREADS REQUESTS FOLDER [MODEL VAE]\n", argv[0]);
        return 1;
    }
    folder = argv[3];
    mar *m;
    mar_params params;
    mar_params_init(&params, sizeof params);
    mar_status status = mar_open(NULL, &m);
    if (status == MAR_OK) status = mar_model_load(m, argc == 6 ? argv[4] : "demo", 0, &model);
    if (status == MAR_OK) status = mar_vae_load(m, argc == 6 ? argv[5] : "demo", &vae);
    for (int i = 0; status == MAR_OK && i < threads; i++)
        status = mar_session_create(model, vae, &params, 1, &sessions[i]);
    int started = 0;
    pthread_t thread[MOST_THREADS];
    if (status != MAR_OK) {
        fprintf(stderr, "%s\n", m ? mar_error(m) : mar_status_name(status));
    } else {
        signal(SIGINT, on_interrupt);
        const double start = now();
        while (started < threads && pthread_create(&thread[started], NULL, serve_all, &sessions[started]) == 0)
            started++;
        for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
        signal(SIGINT, SIG_DFL);
        printf("%d of %d images by %d threads in %.3f s on %s\n", done, requests, started, now() - start,
               mar_backend_description(m));
    }
    mar_model_free(model); /* the sessions still hold references on model and VAE */
    mar_vae_free(vae);
    for (int i = 0; i < threads; i++) mar_session_free(sessions[i]);
    mar_close(m);
    return done == requests && !failed ? 0 : 1;
}
