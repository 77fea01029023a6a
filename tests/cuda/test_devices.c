/* --devices: the GPUs of one process share the images. Two devices of the shim, or of a machine that has them. */
#include "tests/cudahost/control.h"
#include "tests/support/command.h"

#include "tools/generate/devices.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 16, CHANNELS = 8, TOKENS = SEQ * CHANNELS, IMAGES = 3 }; /* of the golden model */

static void lists(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "--devices (empty): expected numbers of GPUs separated by commas, such as 0,1, or all"},
        {"0,", "--devices 0,: expected numbers of GPUs"},
        {"0;1", "--devices 0;1: expected numbers of GPUs"},
        {"-1", "--devices -1: expected numbers of GPUs"},
        {"1,0,1", "--devices 1,0,1: GPU 1 is there twice, expected each once"},
        {"0,2", "--devices 0,2: there is no GPU 2, expected numbers from 0 to 1"},
        {"1,0", NULL},
        {"all", NULL},
    };
    if (mar_gpu_count() != 2) skip();
    for (size_t i = 0; i < LENGTH(cases); i++) {
        run_options o;
        run_devices d;
        run_options_init(&o);
        capture_begin();
        command_result r = capture_end(devices_read(cases[i].text, &o, &d));
        assert_int_equal(r.status, cases[i].says != NULL);
        if (cases[i].says)
            assert_has(r.err, cases[i].says);
        else
            assert_true(d.count == 2 && d.number[0] + d.number[1] == 1 && o.machine.device == d.number[0] &&
                        o.machine.backend == MAR_BACKEND_CUDA);
        command_result_free(&r);
    }
}

typedef struct {
    float tokens[IMAGES][TOKENS];
    long taken;        /* images */
    long next;         /* to choose */
    pthread_t first;   /* thread of GPU 0 */
    atomic_int others; /* images given to GPU 1 */
} images;

static int take(void *self, const image_batch *b)
{
    images *all = self;
    assert_int_equal(b->first, all->taken++);
    memcpy(all->tokens[b->first], b->tokens, sizeof all->tokens[0]);
    return 0;
}

static int choose(void *self, store_range *at)
{
    static const int labels[IMAGES] = {1, 3, 0};
    images *all = self;
    *at = (store_range){all->next, all->next < IMAGES, labels + all->next};
    all->next += at->n;
    if (at->n && !pthread_equal(pthread_self(), all->first)) all->others++;
    return 0;
}

/* Holds the batch of GPU 0 until GPU 1 has one, too. */
static void hold(void *watcher, mar_session *s, int n, const uint8_t *rgb)
{
    (void)s, (void)n, (void)rgb;
    while (((images *)watcher)->others == 0) sched_yield();
}

/* Makes single images on these GPUs, the second of which may be lost then. Returns the status. */
static int make(const char *devices, int is_lost, images *all)
{
    static model_store store;
    run_options o;
    run_devices d;
    run_models models;
    mar_session *s;
    image_run runs[DEVICES_MAX];
    store.quiet = 1;
    run_options_init(&o);
    o.model = "tests/golden/data/sphere_model.safetensors";
    o.params = params_with("num_iter 0, num_sampling_steps 3, cfg 3");
    assert_int_equal(devices_read(devices, &o, &d), 0);
    assert_int_equal(models_load(&store, &o, NULL, &models), 0);
    assert_int_equal(models_session(&models, &o, 1, &s), 0);
    assert_int_equal(devices_load(&store, &o, &models, IMAGES, 1, NULL, &d), 0);
    if (is_lost) cudahost_lose(1, 999);
    *all = (images){.first = pthread_self()};
    const image_run first = {.model = models.model, .session = s};
    const int workers = devices_runs(&d, &first, runs);
    const image_plan plan = {.runs = runs,
                             .run_count = 1,
                             .workers = workers,
                             .images = IMAGES,
                             .batch = 1,
                             .choose = choose,
                             .chooser = all,
                             .watch = workers > 1 ? hold : NULL,
                             .watcher = all};
    const image_sink sink = {take, all, 1, 0, 0};
    const int status = run_images(&plan, &sink, 1);
    if (is_lost) cudahost_lose(1, 0);
    mar_session_free(s);
    devices_free(&d);
    models_free(&store);
    return status;
}

static void same_images(void **state)
{
    (void)state;
    static images one, two;
    if (mar_gpu_count() != 2) skip();
    assert_int_equal(make("0", 0, &one), 0);
    assert_int_equal(make("0,1", 0, &two), 0);
    assert_true(one.others == 0 && two.others > 0);
    assert_true(one.taken == IMAGES && two.taken == IMAGES);
    assert_memory_equal(two.tokens, one.tokens, sizeof one.tokens);
}

/* A GPU that is lost ends the run with its line; the images before are kept. */
static void one_is_lost(void **state)
{
    (void)state;
    static images all;
    if (!cudahost_lose) skip();
    capture_begin();
    command_result r = capture_end(make("0,1", 1, &all));
    assert_int_equal(r.status, 1);
    assert_has(r.err, "unknown error; the GPU may be lost: the kernel's log (dmesg)");
    assert_ptr_equal(strchr(r.err, '\n'), strrchr(r.err, '\n'));
    assert_true(all.taken < IMAGES);
    command_result_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists), cmocka_unit_test(same_images),
                                       cmocka_unit_test(one_is_lost)};
    setenv("MAR_CUDAHOST_DEVICES", "2", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
