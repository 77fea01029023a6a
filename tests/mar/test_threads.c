/* Tests one handle and one set of models on many threads. Sessions of all kinds are made, used, cancelled and freed
 * while others run. Models and handles are loaded and freed. Every token equals that of a session alone. Each thread's
 * seed decides the random moments. tests/cuda/test_threads.c does less of it with the CUDA backend. */
#include "tests/support/demo.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef THREADS_ON_CUDA
enum { THREADS = 8, JOBS = 1, BATCH = 1 };
static const mar_backend backend = MAR_BACKEND_CUDA;
#else
enum { THREADS = 8, JOBS = 5, BATCH = 2 };
static const mar_backend backend = MAR_BACKEND_CPU;
#endif

static const struct {
    const char *options;
    int draft; /* 1: the parameters name the draft model */
} kinds[] = {
#ifdef THREADS_ON_CUDA
    {"num_iter 1, num_sampling_steps 2, cfg 2.9", 0},
    {"num_iter 1, num_sampling_steps 3, cfg 1, head_spec 2", 0},
    {"num_iter 2, num_sampling_steps 2, cfg 1, spec conditional, gamma 2", 1},
#else
    {"num_iter 4, num_sampling_steps 4, cfg 2.9", 0},
    {"num_iter 5, num_sampling_steps 5, cfg 1, seed 7", 0},
    {"num_iter 8, num_sampling_steps 3, cfg 2.9, lazy on", 0},
    {"num_iter 2, num_sampling_steps 10, cfg 2.9, lazy_head on", 0},
    {"num_iter 2, num_sampling_steps 8, cfg 2.9, head_spec 4", 0},
    {"num_iter 2, num_sampling_steps 8, cfg 2.9, head_spec 3", 1},
    {"num_iter 4, num_sampling_steps 4, cfg 2.9, spec conditional, gamma 2", 1},
    {"num_iter 4, num_sampling_steps 3, cfg 2.9, spec paper, gamma 2, context full", 1},
    {"gtr on, gtr_generation_steps 3, num_sampling_steps 4, gtr_sampling_steps 2, cfg 2.9", 0},
    {"num_iter 4, num_sampling_steps 5, cfg 2.9, sampler dpmpp", 0},
    {"num_iter 4, cfg 2.9, diff_annealing linear, diff_upper_steps 5, diff_lower_steps 3", 0},
#endif
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Tokens and pixels of a batch */
typedef struct {
    float tokens[BATCH * DEMO_TOKENS];
    uint8_t rgb[BATCH * DEMO_BYTES];
} result;

typedef struct worker worker;

typedef struct {
    demo demo;
    mar_dtype dtype;
    pthread_barrier_t barrier; /* of the workers and the test */
    result *expected;          /* [KINDS][BATCH], the batches of 1, 2, ... images */
    worker *workers;           /* [THREADS] */
} stage;

struct worker {
    stage *stage;
    int number;
    uint64_t random;
    result *mine;
    char problem[256]; /* "" if none: a thread cannot fail a test by itself */
    int cancelled;     /* number of calls cancelled, by any thread */

    pthread_mutex_t lock; /* protects session, which other threads cancel while it exists */
    mar_session *session;
};

static const int labels[] = {3, 4}; /* [BATCH] or more */

static unsigned draw(worker *w, unsigned n) /* 0..n-1, xorshift64* */
{
    w->random ^= w->random >> 12;
    w->random ^= w->random << 25;
    w->random ^= w->random >> 27;
    return (unsigned)((w->random * 0x2545F4914F6CDD1D) >> 33) % n;
}

static void complain(worker *w, const char *what, const char *reason)
{
    if (!*w->problem) snprintf(w->problem, sizeof w->problem, "thread %d: %s: %s", w->number, what, reason);
}

static mar_params params_of(const demo *d, int kind)
{
    mar_params p = params_with(kinds[kind].options);
    if (kinds[kind].draft) p.draft = d->draft;
    return p;
}

/* --- a thread's work ---------------------------------------------------------------------------------------------- */

static void show(worker *w, mar_session *s)
{
    pthread_mutex_lock(&w->lock);
    w->session = s;
    pthread_mutex_unlock(&w->lock);
}

/* Makes a session. Returns NULL after recording a problem. */
static mar_session *create(worker *w, const demo *d, int kind, int n)
{
    const mar_params p = params_of(d, kind);
    mar_session *s;
    if (mar_session_create(d->model, d->vae, &p, n, &s) != MAR_OK) complain(w, kinds[kind].options, mar_error(d->m));
    if (s) show(w, s);
    return s;
}

static void release(worker *w, mar_session *s)
{
    show(w, NULL);
    mar_session_free(s);
}

/* Makes a batch of n images. Begins it again whenever another thread cancels it. */
static mar_status make(worker *w, mar_session *s, int n, result *r)
{
    mar_status status;
    do {
        status = mar_session_begin(s, DEMO_FIRST, labels, n);
        while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
        if (status == MAR_OK) status = mar_session_tokens(s, r->tokens);
        if (status == MAR_OK) status = mar_session_images(s, r->rgb);
        w->cancelled += status == MAR_ECANCELLED;
    } while (status == MAR_ECANCELLED);
    return status;
}

static void compare(worker *w, mar_session *s, int kind, int n)
{
    const result *expected = &w->stage->expected[kind * BATCH + n - 1];
    if (make(w, s, n, w->mine) != MAR_OK)
        complain(w, kinds[kind].options, mar_session_error(s));
    else if (memcmp(w->mine->tokens, expected->tokens, (size_t)n * DEMO_TOKENS * sizeof(float)) != 0)
        complain(w, kinds[kind].options, "other tokens than alone");
    else if (memcmp(w->mine->rgb, expected->rgb, (size_t)n * DEMO_BYTES) != 0)
        complain(w, kinds[kind].options, "other images than alone");
}

static void generate(worker *w)
{
    const int kind = (int)draw(w, KINDS), n = 1 + (int)draw(w, BATCH);
    mar_session *s = create(w, &w->stage->demo, kind, n);
    if (s) compare(w, s, kind, n);
    release(w, s);
}

/* Makes the image of a batch of one by a request, beside a second one that begins a step later. Submits both again
 * whenever another thread cancels them. */
static mar_status take_requests(mar_session *s, mar_pixels *pixels, result *r)
{
    mar_request request;
    uint64_t id[2] = {0};
    mar_request_init(s, &request, sizeof request);
    request.label = labels[0], request.image = DEMO_FIRST;
    mar_status status = mar_session_submit(s, &request, &id[0]);
    if (status == MAR_OK) status = mar_session_step(s);
    request.label = labels[1], request.image = 0;
    if (status == MAR_OK) status = mar_session_submit(s, &request, &id[1]);
    if (status == MAR_OK) status = mar_session_preview(s, id[0], pixels);
    while (status == MAR_OK && mar_session_pending(s)) status = mar_session_step(s);
    if (status == MAR_OK) status = mar_session_take(s, id[0], r->tokens, pixels);
    mar_session_cancel_request(s, id[1]);
    if (status == MAR_ECANCELLED) mar_session_cancel_request(s, id[0]); /* in whatever state */
    return status;
}

static void request(worker *w)
{
    const int kind = (int)draw(w, KINDS);
    const result *expected = &w->stage->expected[kind * BATCH];
    mar_session *s = create(w, &w->stage->demo, kind, 2);
    mar_pixels pixels;
    mar_pixels_init(&pixels, sizeof pixels);
    pixels.data = w->mine->rgb, pixels.capacity = DEMO_BYTES;
    mar_status status = s ? MAR_ECANCELLED : MAR_OK;
    for (; s && status == MAR_ECANCELLED; w->cancelled += status == MAR_ECANCELLED)
        status = take_requests(s, &pixels, w->mine);
    if (s && status != MAR_OK)
        complain(w, kinds[kind].options, mar_session_error(s));
    else if (s && (memcmp(w->mine->tokens, expected->tokens, DEMO_TOKENS * sizeof(float)) != 0 ||
                   memcmp(w->mine->rgb, expected->rgb, DEMO_BYTES) != 0))
        complain(w, kinds[kind].options, "another image by a request than alone");
    release(w, s);
}

/* Frees a session in the middle of a batch. */
static void abandon(worker *w)
{
    mar_session *s = create(w, &w->stage->demo, (int)draw(w, KINDS), BATCH);
    mar_status status = s ? mar_session_begin(s, 0, labels, BATCH) : MAR_EARG;
    for (unsigned steps = draw(w, 3); steps > 0 && status == MAR_OK && !mar_session_done(s); steps--)
        status = mar_session_step(s);
    release(w, s);
}

/* Loads models on the shared handle or on its own. Frees all but the session before it works. */
static void load(worker *w)
{
    const int kind = (int)draw(w, KINDS), own = (int)draw(w, 2);
    demo d = {.m = w->stage->demo.m};
    const mar_options options = {
        .size = sizeof options, .dtype = w->stage->dtype, .threads = 1 + (int)draw(w, 2), .backend = backend};
    mar_session *s = NULL;
    if ((own && mar_open(&options, &d.m) != MAR_OK) || mar_model_load(d.m, "demo", 0, &d.model) != MAR_OK ||
        mar_model_load(d.m, "demo-draft", 0, &d.draft) != MAR_OK || mar_vae_load(d.m, "demo", &d.vae) != MAR_OK)
        complain(w, "loading", mar_error(d.m));
    else
        s = create(w, &d, kind, 1);
    if (own) mar_close(d.m);
    mar_model_free(d.model);
    mar_model_free(d.draft);
    mar_vae_free(d.vae);
    if (s) compare(w, s, kind, 1);
    release(w, s);
}

/* Checks that a failure's reason is this thread's, whatever fails beside it. */
static void fail_to_load(worker *w)
{
    mar *m = w->stage->demo.m;
    mar_model *model;
    char path[64];
    snprintf(path, sizeof path, "no file of thread %d", w->number);
    for (int i = 0; i < 200; i++) {
        if (mar_model_load(m, path, 0, &model) != MAR_EIO) complain(w, path, "was loaded");
        if (!strstr(mar_error(m), path)) complain(w, path, mar_error(m));
    }
}

static void cancel_another(worker *w)
{
    worker *other = &w->stage->workers[draw(w, THREADS)];
    pthread_mutex_lock(&other->lock);
    if (other->session) mar_session_cancel(other->session);
    pthread_mutex_unlock(&other->lock);
}

static void *work(void *arg)
{
    worker *w = arg;
    static void (*const jobs[])(worker * w) = {generate, generate, request, request,     request,
                                               load,     load,     abandon, fail_to_load};
    fail_to_load(w);
    for (int i = 0; i < JOBS && !*w->problem; i++) {
        jobs[draw(w, sizeof jobs / sizeof *jobs)](w);
        cancel_another(w);
    }
    /* Each thread's last session still works when handle and models are freed. */
    const int kind = w->number % KINDS, n = 1 + w->number % BATCH;
    mar_session *s = create(w, &w->stage->demo, kind, n);
    pthread_barrier_wait(&w->stage->barrier);
    if (s) compare(w, s, kind, n);
    release(w, s);
    return NULL;
}

/* --- the test ----------------------------------------------------------------------------------------------------- */

static void alone(stage *g)
{
    g->expected = malloc(KINDS * BATCH * sizeof *g->expected);
    assert_non_null(g->expected);
    for (int kind = 0; kind < KINDS; kind++) {
        const mar_params p = params_of(&g->demo, kind);
        mar_session *s = demo_session(&g->demo, &p, BATCH);
        for (int n = 1; n <= BATCH; n++) {
            demo_generate(s, n, g->expected[kind * BATCH + n - 1].tokens);
            assert_session(s, mar_session_images(s, g->expected[kind * BATCH + n - 1].rgb));
        }
        mar_session_free(s);
    }
}

static void together(mar_dtype dtype)
{
    static worker workers[THREADS];
    stage g = {.dtype = dtype, .workers = workers};
    pthread_t threads[THREADS];
    int cancelled = 0;
    const mar_options options = {.size = sizeof options, .dtype = dtype, .threads = 2, .backend = backend};
    mar *m;
    const mar_status opened = mar_open(&options, &m);
    if (dtype == MAR_DTYPE_BF16 && opened == MAR_EBACKEND) { /* a processor without bf16 */
        mar_close(m);
        skip();
    }
    assert_library(m, opened);
    g.demo.m = m;
    assert_library(m, mar_model_load(m, "demo", 0, &g.demo.model));
    assert_library(m, mar_model_load(m, "demo-draft", 0, &g.demo.draft));
    assert_library(m, mar_vae_load(m, "demo", &g.demo.vae));
    alone(&g);
    pthread_barrier_init(&g.barrier, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.stage = &g, .number = i, .random = 0x9E3779B97F4A7C15 * (uint64_t)(i + 1)};
        workers[i].mine = malloc(sizeof *workers[i].mine);
        assert_non_null(workers[i].mine);
        pthread_mutex_init(&workers[i].lock, NULL);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    pthread_barrier_wait(&g.barrier);
    demo_close(g.demo);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        if (*workers[i].problem) fail_msg("%s", workers[i].problem);
        cancelled += workers[i].cancelled;
        free(workers[i].mine);
        pthread_mutex_destroy(&workers[i].lock);
    }
    print_message("%d calls were cancelled\n", cancelled);
    pthread_barrier_destroy(&g.barrier);
    free(g.expected);
}

#ifndef THREADS_ON_CUDA
TEST_CASE(in_f32)
{
    together(MAR_DTYPE_F32);
}
#endif

TEST_CASE(in_bf16)
{
    together(MAR_DTYPE_BF16);
}
