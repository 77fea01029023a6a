/* Tests a process forked from one with an open handle. Calls on the parent's objects are refused. Nothing crashes or
 * hangs. The child can open its own handle. */
#include "tests/support/demo.h"
#include "mar_eval.h"
#include "mar_files.h"
#include "mar_measure.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void ignore_measurement(void *user, const mar_measurement *m)
{
    (void)user, (void)m;
}

/* Ends a child with a message. cmocka's jumps belong to the parent. */
#define CHECK(condition, text)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, text);                                          \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define CHECK_FORKED(status, error) CHECK((status) == MAR_EARG && strstr(error, "forked from"), error)

/* Forks; the child is killed after 60 s. Returns the child's process id in the parent, 0 in the child. */
static pid_t start_child(void)
{
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) alarm(60);
    return child;
}

static int exit_status_of(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0) assert_int_equal(errno, EINTR);
    if (!WIFEXITED(status)) fail_msg("the child was ended by signal %d (14: it hung)", WTERMSIG(status));
    return WEXITSTATUS(status);
}

static void wait_for(pid_t child)
{
    assert_int_equal(exit_status_of(child), 0);
}

/* Makes every call on the parent's objects, and frees them. */
static void use_in_child(demo d, mar_session *s, const mar_params *p)
{
    static float tokens[DEMO_TOKENS * DEMO_BATCH];
    static uint8_t rgb[DEMO_BYTES * DEMO_BATCH];
    static int late[DEMO_SEQ * DEMO_BATCH];
    mar_model *model;
    mar_vae *vae;
    mar_session *other;
    mar_report *report;
    mar_features *f;
    mar_stats stats = {.size = sizeof stats};
    double peak;
    int width, height;
    const int label = 1;
    CHECK_FORKED(mar_model_load(d.m, "demo", 0, &model), mar_error(d.m));
    CHECK_FORKED(mar_vae_load(d.m, "demo", &vae), mar_error(d.m));
    CHECK_FORKED(mar_inspect(d.m, "demo", 0, &report), mar_error(d.m));
    CHECK_FORKED(mar_convert(d.m, "demo", "/nowhere/at.all", MAR_DTYPE_AUTO, 0), mar_error(d.m));
    CHECK_FORKED(mar_measure_peak(d.m, &peak), mar_error(d.m));
    CHECK_FORKED(mar_measure_bandwidth(d.m, &peak), mar_error(d.m));
    CHECK_FORKED(mar_session_create(d.model, d.vae, p, 1, &other), mar_error(d.m));
    CHECK_FORKED(mar_features_load(d.m, "demo", 1, &f), mar_error(d.m));
    CHECK(*mar_backend_description(d.m), "no description");
    CHECK(mar_model_get_config(d.model)->seq_len == DEMO_SEQ, "no configuration");
    CHECK(mar_vae_get_config(d.vae)->stride > 0, "no configuration");
    while (!mar_session_done(s)) CHECK(mar_session_step(s) == MAR_OK, "a loop goes on for ever");
    CHECK_FORKED(mar_session_begin(s, 0, &label, 1), mar_session_error(s));
    CHECK_FORKED(mar_session_step(s), mar_session_error(s));
    CHECK_FORKED(mar_session_tokens(s, tokens), mar_session_error(s));
    CHECK_FORKED(mar_session_images(s, rgb), mar_session_error(s));
    CHECK_FORKED(mar_session_token_status(s, rgb, NULL), mar_session_error(s));
    CHECK_FORKED(mar_session_staleness(s, late), mar_session_error(s));
    CHECK_FORKED(mar_session_set_stream(s, NULL), mar_session_error(s));
    CHECK_FORKED(mar_session_measure(s, ignore_measurement, NULL), mar_session_error(s));
    CHECK(mar_session_steps_left(s) == 0, "steps are left");
    mar_session_cancel(s);
    mar_session_on_progress(s, NULL, NULL);
    mar_session_get_stats(s, &stats);
    mar_session_image_size(s, &width, &height);
    CHECK(width == DEMO_SIDE, "no size");
    CHECK(mar_session_get_params(s)->num_iter == p->num_iter, "no parameters");
    CHECK(*mar_session_guarantee(s), "no guarantee");
    mar_session_free(s);
    demo_close(d);
}

/* Generates in the child on its own handle. */
static void generate_in_child(const mar_params *p, const float *expected)
{
    static const int labels[DEMO_BATCH] = {3, -1, 7};
    static float tokens[DEMO_TOKENS];
    const mar_options options = {
        .size = sizeof options, .dtype = MAR_DTYPE_F32, .backend = MAR_BACKEND_CPU, .threads = 2};
    demo d = {0};
    mar_session *s = NULL;
    CHECK(mar_open(&options, &d.m) == MAR_OK, mar_error(d.m));
    CHECK(mar_model_load(d.m, "demo", 0, &d.model) == MAR_OK, mar_error(d.m));
    CHECK(mar_session_create(d.model, NULL, p, 1, &s) == MAR_OK, mar_error(d.m));
    CHECK(mar_session_begin(s, 0, labels, 1) == MAR_OK, mar_session_error(s));
    while (!mar_session_done(s)) CHECK(mar_session_step(s) == MAR_OK, mar_session_error(s));
    CHECK(mar_session_tokens(s, tokens) == MAR_OK, mar_session_error(s));
    CHECK(memcmp(tokens, expected, sizeof tokens) == 0, "other tokens");
    mar_session_free(s);
    mar_model_free(d.model);
    mar_close(d.m);
}

static void make_expected(const demo *d, const mar_params *p, float *tokens)
{
    const int label = 3;
    mar_session *s = demo_session(d, p, 1);
    assert_session(s, mar_session_begin(s, 0, &label, 1));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
    mar_session_free(s);
}

TEST_CASE(a_child_is_told)
{
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4");
    static float expected[DEMO_TOKENS], tokens[DEMO_TOKENS];
    const int label = 3;
    const demo d = demo_open(4);
    make_expected(&d, &p, expected);
    mar_session *s = demo_session(&d, &p, 1);
    assert_session(s, mar_session_begin(s, 0, &label, 1));
    assert_session(s, mar_session_step(s));
    mar_features *f;
    assert_library(d.m, mar_features_load(d.m, "demo", 1, &f));
    const pid_t child = start_child();
    if (child == 0) {
        static const uint8_t rgb[DEMO_BYTES];
        CHECK_FORKED(mar_features_run(f, rgb, 1, DEMO_SIDE, DEMO_SIDE, NULL, NULL, NULL), mar_error(d.m));
        CHECK(mar_features_get_config(f)->features == 64, "no configuration");
        mar_features_free(f);
        use_in_child(d, s, &p);
        generate_in_child(&p, expected);
        const pid_t grandchild = fork();
        if (grandchild == 0) {
            generate_in_child(&p, expected);
            _exit(0);
        }
        int status;
        CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0, "the grandchild failed");
        _exit(0);
    }
    wait_for(child);
    mar_features_free(f);
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s)); /* the parent goes on */
    assert_session(s, mar_session_tokens(s, tokens));
    assert_memory_equal(tokens, expected, sizeof tokens);
    mar_session_free(s);
    demo_close(d);
}

static pid_t forked; /* set by the callback */

static void fork_there(void *user, mar_session *s, const mar_progress *p)
{
    (void)user, (void)s, (void)p;
    forked = start_child();
}

/* Checks that the call that runs the callback fails in the child, with a reason. */
TEST_CASE(a_callback_may_fork)
{
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4");
    const demo d = demo_open(2);
    for (int images = 0; images < 2; images++) {
        uint8_t rgb[DEMO_BYTES * 2];
        mar_session *s = demo_session(&d, &p, 2);
        demo_begin(s, 2);
        if (images) demo_finish(s);
        mar_session_on_progress(s, fork_there, NULL);
        const mar_status status = images ? mar_session_images(s, rgb) : mar_session_step(s);
        if (forked == 0) {
            CHECK_FORKED(status, mar_session_error(s));
            _exit(0);
        }
        assert_session(s, status);
        wait_for(forked);
        mar_session_free(s);
    }
    demo_close(d);
}

typedef struct {
    const demo *d;
    const mar_params *p;
    int loads; /* 1: loads models and makes sessions; 0: only steps */
    atomic_int *stop, *ready;
} worker;

static void *work(void *arg)
{
    const worker *w = arg;
    mar_session *s = NULL;
    float *tokens = malloc(DEMO_TOKENS * sizeof *tokens);
    while (!atomic_load(w->stop)) {
        mar_model *model = NULL;
        if (!s) s = demo_session(w->d, w->p, 1);
        if (w->loads && mar_model_load(w->d->m, "demo", 0, &model) != MAR_OK) break;
        demo_generate(s, 1, tokens);
        atomic_store(w->ready, 1);
        if (w->loads) mar_session_free(s), s = NULL;
        mar_model_free(model);
    }
    mar_session_free(s);
    free(tokens);
    return NULL;
}

/* Checks that locks held by other threads at the fork do not block the child. It generates on its own handle. */
static void fork_beside(int loads, int times)
{
    enum { THREADS = 3 };
    static float expected[DEMO_TOKENS];
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4");
    const demo d = demo_open(2);
    make_expected(&d, &p, expected);
    mar_session *s = demo_session(&d, &p, 1);
    demo_begin(s, 1);
    atomic_int stop = 0, ready[THREADS] = {0};
    worker workers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){&d, &p, loads, &stop, &ready[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
        while (!atomic_load(&ready[i])) usleep(1000);
    }
    for (int i = 0; i < times; i++) {
        usleep((useconds_t)(i * 37 % 1000));
        const pid_t child = start_child();
        if (child == 0) {
            use_in_child(d, s, &p);
#ifndef __SANITIZE_ADDRESS__ /* its allocator may be locked by another thread */
            generate_in_child(&p, expected);
#endif
            _exit(0);
        }
        wait_for(child);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    mar_session_free(s);
    demo_close(d);
}

TEST_CASE(forks_beside_steps)
{
    fork_beside(0, 10);
}

TEST_CASE(forks_beside_loads)
{
    fork_beside(1, 30);
}
