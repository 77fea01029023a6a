/* Tests the promises of mar.h for a session: errors, cancelling, progress, log, and lifetimes. */
#include "tests/support/demo.h"

#include "mar_measure.h"
#include "tests/support/spy.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = DEMO_TOKENS, BYTES = DEMO_BYTES };

/* Returns parameters of four autoregressive steps, with eight diffusion steps each. */
static mar_params quick(void)
{
    return params_with("num_iter 4, num_sampling_steps 8, cfg 2.9");
}

/* Generates the tokens of an undisturbed session. */
static void generate_alone(const demo *d, const mar_params *p, int n, float *tokens)
{
    mar_session *s = demo_session(d, p, n);
    demo_generate(s, n, tokens);
    mar_session_free(s);
}

/* --- errors ------------------------------------------------------------------------------------------------------- */

static void *fail_elsewhere(void *arg)
{
    const demo *l = arg;
    mar_model *none;
    if (*mar_error(l->m)) return "the thread has an error before its first call";
    if (mar_model_load(l->m, "no such file", 0, &none) == MAR_OK) return "there is a file";
    return strstr(mar_error(l->m), "no such file") ? NULL : "its error is another's";
}

TEST_CASE(errors_belong_to_whom_they_concern)
{
    const demo l = demo_open(1), other = demo_open(1);
    const mar_params p = quick();
    mar_session *a = demo_session(&l, &p, 1), *b = demo_session(&l, &p, 1), *none;
    float tokens[TOKENS];
    uint8_t rgb[1];
    assert_string_equal(mar_error(l.m), "");
    assert_string_equal(mar_session_error(a), "");
    assert_int_equal(mar_session_begin(a, 0, (int[]){10}, 1), MAR_EARG);
    assert_says(mar_session_error(a), "class 10");
    assert_string_equal(mar_session_error(b), "");
    assert_string_equal(mar_error(l.m), "");

    assert_int_equal(mar_session_step(b), MAR_EARG);
    assert_says(mar_session_error(b), "no step left");
    assert_int_equal(mar_session_tokens(b, tokens), MAR_EARG);
    assert_int_equal(mar_session_images(b, rgb), MAR_EARG);
    assert_int_equal(mar_session_token_status(b, NULL, NULL), MAR_EARG);
    assert_says(mar_session_error(b), "no images");
    assert_int_equal(mar_session_set_stream(b, NULL), MAR_EARG);
    assert_says(mar_session_error(b), "on a CPU");
    assert_says(mar_session_error(a), "class 10");
    assert_true(mar_gpu_count() >= 0);

    assert_int_equal(mar_session_create(l.model, other.vae, &p, 1, &none), MAR_EARG);
    assert_null(none);
    assert_says(mar_error(l.m), "different handles");
    assert_string_equal(mar_error(other.m), "");
    pthread_t thread;
    void *problem;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, (void *)&l), 0);
    assert_int_equal(pthread_join(thread, &problem), 0);
    if (problem) fail_msg("%s", (const char *)problem);
    assert_says(mar_error(l.m), "different handles");

    mar *closed;
    assert_int_equal(
        mar_open(&(mar_options){.size = sizeof(mar_options), .backend = MAR_BACKEND_CPU, .threads = -1}, &closed),
        MAR_EARG);
    assert_says(mar_error(closed), "threads -1");
    assert_string_equal(mar_error(NULL), "");
    mar_close(closed);
    mar_session_free(a);
    mar_session_free(b);
    demo_close(other);
    demo_close(l);
}

/* Checks that a session keeps the registry's text of the verifier's name. The caller may change its own. */
TEST_CASE(parameters_are_copied)
{
    const demo l = demo_open(1);
    char name[] = "paper";
    mar_params p = quick();
    p.draft = l.draft;
    p.spec = name;
    mar_session *s = demo_session(&l, &p, 1);
    strcpy(name, "?????");
    assert_string_equal(mar_session_get_params(s)->spec, "paper");
    mar_session_free(s);
    demo_close(l);
}

/* --- cancelling --------------------------------------------------------------------------------------------------- */

/* Checks that a cancel between calls ends the next call, but not a batch begun afterwards. */
TEST_CASE(cancel_between_calls)
{
    const demo l = demo_open(1);
    const mar_params p = quick();
    float expected[TOKENS], tokens[TOKENS];
    generate_alone(&l, &p, 1, expected);
    mar_session *s = demo_session(&l, &p, 1);
    mar_session_cancel(s);
    demo_generate(s, 1, tokens);
    assert_memory_equal(tokens, expected, sizeof tokens);
    for (int steps = 0; steps < 4; steps++) {
        assert_session(s, mar_session_begin(s, 77, (int[]){8}, 1));
        for (int i = 0; i < steps; i++) assert_session(s, mar_session_step(s));
        mar_session_cancel(s);
        assert_int_equal(mar_session_step(s), MAR_ECANCELLED);
        assert_string_equal(mar_session_error(s), "cancelled");
        demo_assert_dropped(s, "cancelled: begin another");
        demo_generate(s, 1, tokens);
        assert_memory_equal(tokens, expected, sizeof tokens);
    }
    assert_session(s, mar_session_begin(s, 77, (int[]){8}, 1));
    assert_session(s, mar_session_step(s));
    mar_session_cancel(s); /* the next batch discards this cancel */
    demo_generate(s, 1, tokens);
    assert_memory_equal(tokens, expected, sizeof tokens);
    mar_session_cancel(s); /* finished tokens survive it */
    memset(tokens, 0, sizeof tokens);
    assert_int_equal(mar_session_tokens(s, tokens), MAR_ECANCELLED);
    assert_session(s, mar_session_tokens(s, tokens));
    assert_memory_equal(tokens, expected, sizeof tokens);
    mar_session_free(s);
    demo_close(l);
}

typedef struct {
    int step, images; /* when to cancel */
} moment;

static void cancel_at(void *user, mar_session *s, const mar_progress *p)
{
    const moment *when = user;
    if (p->step == when->step && p->images == when->images) mar_session_cancel(s);
}

TEST_CASE(cancel_from_the_callback)
{
    const demo l = demo_open(1);
    const mar_params p = quick();
    float expected[TOKENS], tokens[TOKENS];
    generate_alone(&l, &p, 1, expected);
    mar_session *s = demo_session(&l, &p, 1);
    for (int step = 1; step <= 4; step++) {
        moment when = {step, 0};
        mar_session_on_progress(s, cancel_at, &when);
        demo_begin(s, 1);
        for (int i = 1; i < step; i++) assert_session(s, mar_session_step(s));
        assert_int_equal(mar_session_step(s), MAR_ECANCELLED);
        if (step < 4) {
            demo_assert_dropped(s, "cancelled: begin another");
        } else { /* the last step: the images are complete */
            assert_int_equal(mar_session_done(s), 1);
            assert_session(s, mar_session_tokens(s, tokens));
            assert_memory_equal(tokens, expected, sizeof tokens);
        }
        mar_session_on_progress(s, NULL, NULL);
        demo_generate(s, 1, tokens);
        assert_memory_equal(tokens, expected, sizeof tokens);
    }
    mar_session_free(s);
    demo_close(l);
}

/* Checks a cancelled mar_session_images: written images are complete, the others are untouched. The second call writes
 * all of them. */
TEST_CASE(cancel_images)
{
    enum { N = 3 };
    const demo l = demo_open(1);
    const mar_params p = quick();
    uint8_t *expected = malloc(N * BYTES), *rgb = malloc(N * BYTES), untouched[BYTES];
    assert_true(expected && rgb);
    memset(untouched, 0xa5, sizeof untouched);
    mar_session *s = demo_session(&l, &p, N);
    demo_begin(s, N);
    demo_finish(s);
    spy_on(s, "conv", -1, NULL);
    assert_session(s, mar_session_images(s, expected));
    const long convolutions = spy_off();
    for (int whole = 0; whole <= N; whole++)
        for (int inside = 0; inside < 2; inside++) {
            moment when = {4, whole};
            if (inside ? whole == N : whole == 0) continue; /* no such place */
            memset(rgb, 0xa5, N * BYTES);
            if (inside)
                spy_on(s, "conv", convolutions / N * whole + 3, spy_cancel); /* inside the next image */
            else
                mar_session_on_progress(s, cancel_at, &when);
            assert_int_equal(mar_session_images(s, rgb), MAR_ECANCELLED);
            if (inside) spy_off();
            mar_session_on_progress(s, NULL, NULL);
            assert_memory_equal(rgb, expected, (size_t)whole * BYTES);
            for (int i = whole; i < N; i++) assert_memory_equal(rgb + i * BYTES, untouched, BYTES);
            assert_session(s, mar_session_images(s, rgb));
            assert_memory_equal(rgb, expected, N * BYTES);
        }
    free(expected), free(rgb);
    mar_session_free(s);
    demo_close(l);
}

typedef struct {
    mar_session *s;
    sem_t begun;
    int seen; /* set when the cancel took effect */
} canceller;

static void *cancel_until_seen(void *arg)
{
    canceller *c = arg;
    while (sem_wait(&c->begun) != 0) continue;
    while (!__atomic_load_n(&c->seen, __ATOMIC_RELAXED)) mar_session_cancel(c->s);
    return NULL;
}

static void tell(void *user, mar_session *s, const mar_progress *p)
{
    canceller *c = user;
    (void)s;
    if (p->step == 1) sem_post(&c->begun);
}

TEST_CASE(cancel_from_another_thread)
{
    const demo l = demo_open(2);
    const mar_params p = params_with("num_iter 64, num_sampling_steps 100, cfg 2.9");
    canceller c = {.s = demo_session(&l, &p, 1)};
    pthread_t thread;
    sem_init(&c.begun, 0, 0);
    mar_session_on_progress(c.s, tell, &c);
    assert_int_equal(pthread_create(&thread, NULL, cancel_until_seen, &c), 0);
    mar_status status;
    while ((status = demo_run(c.s, 1)) == MAR_OK) continue;
    __atomic_store_n(&c.seen, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    assert_int_equal(status, MAR_ECANCELLED);
    mar_session_free(c.s);
    sem_destroy(&c.begun);
    demo_close(l);
}

static mar_session *signalled;

static void on_signal(int number)
{
    (void)number;
    mar_session_cancel(signalled);
}

static void send_signal(mar_session *s)
{
    signalled = s;
    raise(SIGUSR1);
}

TEST_CASE(cancel_from_a_signal_handler)
{
    const demo l = demo_open(1);
    const mar_params p = quick();
    struct sigaction before, handler = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &handler, &before);
    mar_session *s = demo_session(&l, &p, 1);
    spy_on(s, NULL, 60, send_signal);
    assert_int_equal(demo_run(s, 1), MAR_ECANCELLED);
    assert_int_equal(spy_off() > 60, 1);
    mar_session_free(s);
    sigaction(SIGUSR1, &before, NULL);
    demo_close(l);
}

/* --- progress and log --------------------------------------------------------------------------------------------- */

enum { SEEN_MAX = 64 };

typedef struct {
    mar_session *s;
    int count;
    mar_progress seen[SEEN_MAX];
} witness;

static void note(void *user, mar_session *s, const mar_progress *p)
{
    witness *w = user;
    assert_true(w->count < SEEN_MAX);
    w->s = s;
    w->seen[w->count++] = *p;
}

static void assert_progress(const mar_progress *p, int step, int images)
{
    assert_int_equal(p->step, step);
    assert_int_equal(p->images, images);
    assert_int_equal(p->steps, 4);
    assert_int_equal(p->batch, 3);
    assert_int_equal(p->first_image, 5);
}

TEST_CASE(progress_is_exact)
{
    const demo l = demo_open(1);
    mar_params p = quick();
    uint8_t *rgb = malloc(3 * BYTES);
    witness w = {0};
    mar_session *s = demo_session(&l, &p, 3);
    mar_session_on_progress(s, note, &w);
    for (int round = 0; round < 2; round++) {
        w.count = 0;
        demo_begin(s, 3);
        assert_int_equal(w.count, 0);
        demo_finish(s);
        assert_int_equal(w.count, 4);
        for (int i = 0; i < 4; i++) assert_progress(&w.seen[i], i + 1, 0);
        for (int call = 0; call < 2; call++) {
            w.count = 0;
            assert_session(s, mar_session_images(s, rgb));
            assert_int_equal(w.count, 3);
            for (int i = 0; i < 3; i++) assert_progress(&w.seen[i], 4, i + 1);
        }
    }
    assert_ptr_equal(w.s, s);
    mar_session_free(s);

    /* A round of speculation across tokens takes several steps. */
    p = params_with("num_iter 8, num_sampling_steps 8, spec conditional, gamma 3, prefill 0.25");
    p.draft = l.draft;
    s = demo_session(&l, &p, 2);
    w.count = 0;
    mar_session_on_progress(s, note, &w);
    assert_session(s, mar_session_begin(s, 0, (int[]){8, 9}, 2));
    demo_finish(s);
    static const int steps[] = {1, 2, 5, 8};
    assert_int_equal(w.count, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(w.seen[i].step, steps[i]);
    mar_session_free(s);
    free(rgb);
    demo_close(l);
}

typedef struct {
    int count;
    mar_log_level level[SEEN_MAX];
    char line[SEEN_MAX][512];
} journal;

static void keep_line(void *user, mar_log_level level, const char *line)
{
    journal *j = user;
    assert_true(j->count < SEEN_MAX);
    j->level[j->count] = level;
    snprintf(j->line[j->count++], sizeof j->line[0], "%s", line);
}

static void assert_logged(const journal *j, int i, mar_log_level level, const char *what)
{
    assert_true(i < j->count);
    assert_int_equal(j->level[i], level);
    assert_says(j->line[i], what);
    assert_null(strchr(j->line[i], '\n'));
}

TEST_CASE(lines_go_to_the_handles_host)
{
    static journal mine, other;
    mine.count = other.count = 0;
    const mar_params p = quick();
    mar *n;
    demo l = {0};
    assert_int_equal(mar_open(&(mar_options){.size = sizeof(mar_options),
                                             .backend = MAR_BACKEND_CPU,
                                             .log = keep_line,
                                             .log_user = &mine},
                              &l.m),
                     0);
    assert_int_equal(mar_open(&(mar_options){.size = sizeof(mar_options),
                                             .backend = MAR_BACKEND_CPU,
                                             .log = keep_line,
                                             .log_user = &other},
                              &n),
                     0);
    assert_library(l.m, mar_model_load(l.m, "demo", 0, &l.model));
    assert_library(l.m, mar_vae_load(l.m, "demo", &l.vae));
    mar_session *s = demo_session(&l, &p, 2);
    spy_on(s, NULL, 60, spy_break);
    assert_int_equal(demo_run(s, 2), MAR_EBACKEND);
    spy_off();
    assert_int_equal(mine.count, 5);
    assert_logged(&mine, 0, MAR_LOG_INFO, mar_backend_description(l.m));
    assert_logged(&mine, 1, MAR_LOG_INFO, "model demo: 479760 parameters");
    assert_logged(&mine, 2, MAR_LOG_INFO, "VAE demo: 739915 parameters");
    assert_logged(&mine, 3, MAR_LOG_INFO, "batches of 2 images");
    assert_logged(&mine, 4, MAR_LOG_WARNING, "the batch of 2 images from number 5 failed: injected");
    spy_on(s, NULL, 60, spy_cancel);
    assert_int_equal(demo_run(s, 2), MAR_ECANCELLED);
    spy_off();
    assert_session(s, demo_run(s, 2));
    mar_session_free(s);
    demo_close(l);
    assert_int_equal(mine.count, 5); /* no other lines */
    assert_int_equal(other.count, 1);
    mar_close(n);
}

/* Checks that tokens kept from a batch decode to its pixels, bit for bit, in any batches. The session's own batch is
 * dropped. */
TEST_CASE(decodes_given_tokens)
{
    static const char *const models[][2] = {{"demo", "demo"}, {"demo-discrete", "demo-discrete"}};
    static float tokens[DEMO_BATCH * DEMO_TOKENS];
    static uint8_t made[DEMO_BATCH * DEMO_BYTES], decoded[DEMO_BATCH * DEMO_BYTES];
    for (int i = 0; i < 2; i++) {
        mar *m = open_mar(MAR_DTYPE_F32, 1);
        mar_model *model;
        mar_vae *vae;
        mar_session *s;
        mar_params p;
        mar_params_init(&p, sizeof p);
        if (i == 0) p.num_iter = 4, p.num_sampling_steps = 4;
        assert_int_equal(mar_model_load(m, models[i][0], 0, &model), MAR_OK);
        assert_int_equal(mar_vae_load(m, models[i][1], &vae), MAR_OK);
        if (mar_session_create(model, vae, &p, DEMO_BATCH, &s) != MAR_OK) fail_msg("%s", mar_error(m));
        const mar_model_config *c = mar_model_get_config(model);
        const size_t numbers = (size_t)c->seq_len * (size_t)c->token_dim;
        int width, height;
        mar_session_image_size(s, &width, &height);
        const size_t bytes = (size_t)width * (size_t)height * 3;
        assert_true(numbers <= DEMO_TOKENS && bytes <= DEMO_BYTES);
        demo_begin(s, DEMO_BATCH);
        demo_finish(s);
        assert_session(s, mar_session_tokens(s, tokens));
        assert_session(s, mar_session_images(s, made));
        demo_begin(s, 1); /* dropped by the decoding */
        assert_session(s, mar_session_decode(s, DEMO_FIRST, tokens, DEMO_BATCH, decoded));
        assert_memory_equal(made, decoded, DEMO_BATCH * bytes);
        mar_stats stats = {.size = sizeof stats};
        mar_session_get_stats(s, &stats);
        assert_true(stats.vae_flop > 0 && stats.total_s >= stats.vae_s);
        assert_int_equal(mar_session_done(s), 1);
        assert_int_equal(mar_session_images(s, decoded), MAR_EARG);
        assert_says(mar_session_error(s), "the session has decoded other tokens: begin a batch first");
        memset(decoded, 0, sizeof decoded);
        for (size_t k = 0; k < DEMO_BATCH; k++)
            assert_session(s, mar_session_decode(s, DEMO_FIRST + k, tokens + k * numbers, 1, decoded + k * bytes));
        assert_memory_equal(made, decoded, DEMO_BATCH * bytes);
        tokens[1] = c->vocabulary ? (float)c->vocabulary : INFINITY;
        assert_int_equal(mar_session_decode(s, DEMO_FIRST, tokens, 1, decoded), MAR_EARG);
        assert_says(mar_session_error(s), c->vocabulary ? "expected one of the vocabulary" : "expected a finite one");
        demo_begin(s, DEMO_BATCH); /* works as before */
        demo_finish(s);
        assert_session(s, mar_session_images(s, decoded));
        assert_memory_equal(made, decoded, DEMO_BATCH * bytes);
        mar_session_free(s);
        mar_vae_free(vae);
        mar_model_free(model);
        mar_close(m);
    }
}

/* Makes every call on a session from its own callback. Calls with a status are refused, and the session is not
 * freed. */
typedef struct {
    mar_session *s;
    int count;
} meddler;

static void meddle(meddler *m)
{
    static uint8_t rgb[3 * BYTES];
    static float tokens[3 * TOKENS];
    static int numbers[3 * DEMO_SEQ];
    char text[256];
    mar_stats stats = {.size = sizeof stats};
    mar_session *s = m->s;
    m->count++;
    assert_int_equal(mar_session_begin(s, 9, (int[]){1, 2, 3}, 3), MAR_EARG);
    assert_says(mar_session_error(s), "not from a callback");
    assert_int_equal(mar_session_begin_captions(s, 9, tokens, NULL, 1), MAR_EARG);
    assert_int_equal(mar_session_step(s), MAR_EARG);
    assert_int_equal(mar_session_images(s, rgb), MAR_EARG);
    assert_int_equal(mar_session_tokens(s, tokens), MAR_EARG);
    assert_int_equal(mar_session_decode(s, 9, tokens, 1, rgb), MAR_EARG);
    assert_int_equal(mar_session_token_status(s, rgb, numbers), MAR_EARG);
    assert_int_equal(mar_session_staleness(s, numbers), MAR_EARG);
    assert_int_equal(mar_session_set_stream(s, NULL), MAR_EARG);
    assert_int_equal(mar_session_measure(s, NULL, NULL), MAR_EARG);
    assert_says(mar_session_error(s), "not from a callback");
    mar_session_free(s);
    assert_says(mar_session_error(s), "not from a callback");
    mar_session_get_stats(s, &stats);
    assert_says(mar_session_guarantee(s), "exact");
    assert_non_null(mar_session_description(s, text, sizeof text));
}

static void meddle_at_progress(void *user, mar_session *s, const mar_progress *p)
{
    (void)p;
    assert_ptr_equal(s, ((meddler *)user)->s);
    meddle(user);
}

static void meddle_in_log(void *user, mar_log_level level, const char *line)
{
    (void)level, (void)line;
    if (((meddler *)user)->s) meddle(user);
}

static void meddle_at_measurement(void *user, const mar_measurement *m)
{
    (void)m;
    if (((meddler *)user)->count == 0) meddle(user);
}

TEST_CASE(callbacks_do_not_use_their_session)
{
    const mar_params p = quick();
    static float expected[3 * TOKENS], tokens[3 * TOKENS];
    static uint8_t rgb[3 * BYTES];
    meddler logging = {0}, other = {0};
    demo l = demo_open(1);
    generate_alone(&l, &p, 3, expected);
    demo_close(l);
    l.draft = NULL;
    assert_int_equal(mar_open(&(mar_options){.size = sizeof(mar_options),
                                             .dtype = MAR_DTYPE_F32,
                                             .backend = MAR_BACKEND_CPU,
                                             .threads = 1,
                                             .log = meddle_in_log,
                                             .log_user = &logging},
                              &l.m),
                     0);
    assert_library(l.m, mar_model_load(l.m, "demo", 0, &l.model));
    assert_library(l.m, mar_vae_load(l.m, "demo", &l.vae));
    assert_library(l.m, mar_session_create(l.model, l.vae, &p, 3, &logging.s));
    assert_int_equal(logging.count, 1); /* logged while the session is made */
    mar_session *s = other.s = logging.s;

    mar_session_on_progress(s, meddle_at_progress, &other);
    demo_generate(s, 3, tokens);
    assert_memory_equal(tokens, expected, sizeof tokens);
    assert_int_equal(other.count, 4);
    assert_session(s, mar_session_images(s, rgb));
    assert_int_equal(other.count, 7);
    mar_session_on_progress(s, NULL, NULL);

    spy_on(s, NULL, 60, spy_break);
    assert_int_equal(demo_run(s, 3), MAR_EBACKEND);
    spy_off();
    assert_int_equal(logging.count, 2);
    assert_says(mar_session_error(s), "injected");

    other.count = 0;
    assert_session(s, mar_session_measure(s, meddle_at_measurement, &other));
    assert_int_equal(other.count, 1);
    demo_generate(s, 3, tokens);
    assert_memory_equal(tokens, expected, sizeof tokens);
    logging.s = NULL;
    mar_session_free(s);
    demo_close(l);
}

/* --- lifetimes ---------------------------------------------------------------------------------------------------- */

/* Checks the description of how a session computes its batches, in buffers of any size. */
TEST_CASE(descriptions)
{
    const demo l = demo_open(1);
    mar_params p[2] = {params_with("num_iter 2, num_sampling_steps 4"),
                       params_with("num_iter 2, num_sampling_steps 4, spec conditional, gamma 2")};
    char text[1024] = "?", part[8];
    p[1].draft = l.draft;
    for (int drafts = 0; drafts < 2; drafts++) {
        mar_session *s = NULL;
        assert_library(l.m, mar_session_create(l.model, l.vae, &p[drafts], 1, &s));
        assert_ptr_equal(mar_session_description(s, text, sizeof text), text);
        assert_string_equal(text, drafts ? "head: matrix products in f32; draft's head: matrix products in f32"
                                         : "head: matrix products in f32");
        assert_string_equal(mar_session_description(s, part, sizeof part), "head: m");
        assert_string_equal(mar_session_description(s, text, 0), "");
        mar_session_free(s);
    }
    demo_close(l);
}

/* Frees handle, model, draft and VAE in every order before the session has made its images. */
TEST_CASE(any_order_of_freeing)
{
    float expected[TOKENS], tokens[TOKENS];
    static uint8_t pictures[BYTES], rgb[BYTES];
    for (int order = 0; order < 24; order++) {
        const demo l = demo_open(1);
        mar_params p = params_with("num_iter 4, num_sampling_steps 4, spec conditional, gamma 2");
        p.draft = l.draft;
        mar_session *s = demo_session(&l, &p, 1);
        int left[4] = {0, 1, 2, 3};
        for (int n = 4, code = order; n > 0; code /= n--) {
            const int i = code % n, what = left[i];
            left[i] = left[n - 1];
            if (what == 0) mar_close(l.m);
            if (what == 1) mar_model_free(l.model);
            if (what == 2) mar_model_free(l.draft);
            if (what == 3) mar_vae_free(l.vae);
        }
        demo_generate(s, 1, order ? tokens : expected);
        assert_session(s, mar_session_images(s, order ? rgb : pictures));
        if (order) assert_memory_equal(tokens, expected, sizeof tokens);
        if (order) assert_memory_equal(rgb, pictures, sizeof rgb);
        assert_string_equal(mar_session_get_params(s)->spec, "conditional");
        mar_session_free(s);
    }
    /* Models outlive the handle, too, and still make sessions. */
    const demo l = demo_open(1);
    const mar_params p = quick();
    mar_session *s;
    mar_close(l.m);
    assert_int_equal(mar_session_create(l.model, l.vae, &p, 1, &s), MAR_OK);
    mar_model_free(l.model);
    mar_vae_free(l.vae);
    mar_model_free(l.draft);
    demo_generate(s, 1, tokens);
    mar_session_free(s);
    mar_model_free(NULL);
    mar_vae_free(NULL);
    mar_session_free(NULL);
    mar_close(NULL);
}
