/* The image loop of the command: the order of batches, their contents, and its end. */
#include "tests/support/spy.h"

#include "mar_measure.h"
#include "tests/support/command.h"

#include "tools/generate/images.h"
#include "tools/generate/models.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Demo tokens: 64 of 8 channels. Images: 32x32. */
enum { TOKENS = 64 * 8, PIXELS = 32 * 32 * 3, IMAGES = 7, BATCH = 3, TURNS = 3, CALLS_MAX = 64 };

static struct {
    mar *m;
    mar_model *models[2];
    mar_vae *vae;
    mar_session *with_decoder, *draft, *without_decoder;
} demo;

static mar_session *session(mar_model *model, mar_vae *vae)
{
    mar_session *s = NULL;
    const mar_params p = params_with("num_iter 3, num_sampling_steps 4, seed 5");
    if (mar_session_create(model, vae, &p, BATCH, &s) != MAR_OK) fail_msg("%s", mar_error(demo.m));
    return s;
}

static int open_demo(void **state)
{
    (void)state;
    demo.m = open_mar(MAR_DTYPE_F32, 1);
    assert_int_equal(mar_model_load(demo.m, "demo", 0, &demo.models[0]), MAR_OK);
    assert_int_equal(mar_model_load(demo.m, "demo-draft", 0, &demo.models[1]), MAR_OK);
    assert_int_equal(mar_vae_load(demo.m, "demo", &demo.vae), MAR_OK);
    demo.with_decoder = session(demo.models[0], demo.vae);
    demo.draft = session(demo.models[1], demo.vae);
    demo.without_decoder = session(demo.models[0], NULL);
    return 0;
}

static int close_demo(void **state)
{
    (void)state;
    mar_session_free(demo.with_decoder);
    mar_session_free(demo.draft);
    mar_session_free(demo.without_decoder);
    mar_vae_free(demo.vae);
    mar_model_free(demo.models[0]);
    mar_model_free(demo.models[1]);
    mar_close(demo.m);
    return 0;
}

/* Records the calls of the sinks in order. */
typedef struct {
    int count;
    struct {
        int sink, run, turn, n, has_tokens, has_pixels;
        long first;
        int labels[BATCH];
    } calls[CALLS_MAX];
    float tokens[3][IMAGES][TOKENS];   /* by run and image */
    uint8_t pixels[3][IMAGES][PIXELS]; /* the same */
    int parts;                         /* 1: the sinks may get parts of batches */
    int fail_at;                       /* the call that reports an error, from 1; 0: no error */
} record;

typedef struct {
    record *r;
    int number;
} recorder;

static int take(void *self, const image_batch *b)
{
    const recorder *sink = self;
    record *r = sink->r;
    assert_in_range(r->count, 0, CALLS_MAX - 1);
    const int at = r->count++;
    r->calls[at].sink = sink->number, r->calls[at].run = b->run, r->calls[at].turn = b->turn;
    r->calls[at].n = b->n, r->calls[at].first = b->first;
    r->calls[at].has_tokens = b->tokens != NULL, r->calls[at].has_pixels = b->rgb != NULL;
    memcpy(r->calls[at].labels, b->labels, (size_t)b->n * sizeof *b->labels);
    assert_true(b->stats->total_s > 0);
    assert_int_equal(b->stats->tokens, 64 * (r->parts ? BATCH : b->n));
    assert_in_range(b->first, 0, IMAGES - b->n);
    if (b->tokens) memcpy(r->tokens[b->run][b->first], b->tokens, (size_t)b->n * sizeof r->tokens[0][0]);
    if (b->rgb) memcpy(r->pixels[b->run][b->first], b->rgb, (size_t)b->n * sizeof r->pixels[0][0]);
    return r->count == r->fail_at;
}

static const int classes[] = {3, -1, 8};

static image_plan plan_of(const image_run *runs, int run_count)
{
    return (image_plan){.runs = runs,
                        .run_count = run_count,
                        .images = IMAGES,
                        .batch = BATCH,
                        .classes = classes,
                        .class_count = 3,
                        .class_images = 2,
                        .kept = "in memory"};
}

/* Makes the same images without the loop. */
static void make_directly(mar_session *s, const int *labels, float tokens[IMAGES][TOKENS])
{
    for (int i = 0; i < IMAGES; i++) {
        assert_int_equal(mar_session_begin(s, (uint64_t)i, labels + i, 1), MAR_OK);
        while (!mar_session_done(s)) assert_int_equal(mar_session_step(s), MAR_OK);
        assert_int_equal(mar_session_tokens(s, tokens[i]), MAR_OK);
    }
}

/* --- tests ------------------------------------------------------------------------------------------ */

TEST_CASE(labels)
{
    const image_plan by_class = {.classes = classes, .class_count = 3, .class_images = 2, .images = 6, .batch = 4};
    const int in_class_order[] = {3, 3, -1, -1, 8, 8, 3};
    image_plan dealt = by_class;
    dealt.class_images = 1;
    for (int i = 0; i < 7; i++) {
        assert_int_equal(image_plan_label(&by_class, i), in_class_order[i]);
        assert_int_equal(image_plan_label(&dealt, i), classes[i % 3]);
    }
}

/* Checks the order. Each turn begins with another run. All sinks of a batch are called in order. The remaining images
 * come last. */
TEST_CASE(order)
{
    static record r;
    r = (record){0};
    const image_run runs[] = {{.model = demo.models[0], .session = demo.with_decoder},
                              {.model = demo.models[1], .session = demo.draft},
                              {.model = demo.models[0], .session = demo.without_decoder}};
    const image_plan plan = plan_of(runs, 3);
    recorder recorders[] = {{&r, 0}, {&r, 1}};
    const image_sink sinks[] = {{take, &recorders[0], 1, 0, 0}, {take, &recorders[1], 0, 1, 0}};
    assert_int_equal(run_images(&plan, sinks, 2), 0);
    assert_int_equal(r.count, 2 * 3 * TURNS);
    static const int run_order[TURNS][3] = {{0, 1, 2}, {1, 2, 0}, {2, 0, 1}};
    for (int i = 0; i < r.count; i++) {
        const int turn = i / 6, run = run_order[turn][i / 2 % 3];
        assert_int_equal(r.calls[i].sink, i % 2);
        assert_int_equal(r.calls[i].turn, turn);
        assert_int_equal(r.calls[i].run, run);
        assert_int_equal(r.calls[i].first, BATCH * turn);
        assert_int_equal(r.calls[i].n, turn == 2 ? 1 : BATCH);
        assert_true(r.calls[i].has_tokens);
        assert_int_equal(r.calls[i].has_pixels, run != 2);
        for (int k = 0; k < r.calls[i].n; k++)
            assert_int_equal(r.calls[i].labels[k], image_plan_label(&plan, r.calls[i].first + k));
    }
}

/* Checks that images do not depend on batches, turns or other runs. */
TEST_CASE(same_tokens)
{
    static record r;
    static float alone[IMAGES][TOKENS];
    static const int label_of[IMAGES] = {3, 3, -1, -1, 8, 8, 3};
    r = (record){0};
    const image_run runs[] = {{.model = demo.models[0], .session = demo.with_decoder},
                              {.model = demo.models[1], .session = demo.draft}};
    const image_plan plan = plan_of(runs, 2);
    recorder all = {&r, 0};
    const image_sink sink = {take, &all, 1, 1, 0};
    assert_int_equal(run_images(&plan, &sink, 1), 0);
    for (int run = 0; run < 2; run++) {
        make_directly(runs[run].session, label_of, alone);
        for (int i = 0; i < IMAGES; i++) assert_close(r.tokens[run][i], alone[i], TOKENS, 1e-5);
    }
    assert_true(memcmp(r.tokens[0], r.tokens[1], sizeof r.tokens[0]) != 0);
    assert_true(memcmp(r.pixels[0][0], r.pixels[0][1], PIXELS) != 0);
}

/* Runs one session several times. Each time gives the same images (mar bench --repeat). */
TEST_CASE(one_session_again)
{
    static record r;
    r = (record){0};
    const image_run run = {.model = demo.models[0], .session = demo.with_decoder}, runs[] = {run, run, run};
    image_plan plan = plan_of(runs, 3);
    plan.images = BATCH;
    recorder all = {&r, 0};
    const image_sink sink = {take, &all, 1, 0, 0};
    assert_int_equal(run_images(&plan, &sink, 1), 0);
    assert_int_equal(r.count, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r.calls[i].run, i);
        assert_int_equal(r.calls[i].first, 0);
        assert_false(r.calls[i].has_pixels); /* no sink takes them */
        assert_memory_equal(r.tokens[i], r.tokens[0], BATCH * sizeof r.tokens[0][0]);
    }
}

/* Checks that no sink is called after one that reports an error. */
TEST_CASE(a_sink_fails)
{
    static record r;
    r = (record){.fail_at = 3};
    const image_run run = {.model = demo.models[0], .session = demo.without_decoder};
    const image_plan plan = plan_of(&run, 1);
    recorder recorders[] = {{&r, 0}, {&r, 1}};
    const image_sink sinks[] = {{take, &recorders[0], 0, 1, 0}, {take, &recorders[1], 0, 1, 0}};
    assert_int_equal(run_images(&plan, sinks, 2), 1);
    assert_int_equal(r.count, 3);
    assert_false(r.calls[0].has_tokens || r.calls[0].has_pixels); /* not taken; no image decoder */
}

/* Checks that a failure of the session fails the loop, and that no sink gets the batch. */
TEST_CASE(a_session_fails)
{
    static record r;
    r = (record){0};
    const image_run run = {.model = demo.models[0], .session = demo.without_decoder};
    image_plan plan = plan_of(&run, 1);
    static const int beyond[] = {10};
    plan.classes = beyond, plan.class_count = 1;
    recorder all = {&r, 0};
    const image_sink sink = {take, &all, 1, 0, 0};
    assert_int_equal(run_images(&plan, &sink, 1), 1);
    assert_int_equal(r.count, 0);
    assert_non_null(strstr(mar_session_error(demo.without_decoder), "class 10"));
}

/* Checks that existing images are not made again, and that the others do not change. */
TEST_CASE(some_are_there)
{
    static record r, all;
    r = all = (record){0};
    const image_run run = {.model = demo.models[0], .session = demo.with_decoder};
    image_plan plan = plan_of(&run, 1);
    recorder one = {&all, 0}, other = {&r, 0};
    const image_sink whole = {take, &one, 1, 1, 0}, part = {take, &other, 1, 1, 0};
    static const uint8_t have[IMAGES] = {0, 1, 0, 0, 0, 0, 1};
    assert_int_equal(run_images(&plan, &whole, 1), 0);
    plan.have = have;
    assert_int_equal(run_images(&plan, &part, 1), 0);
    static const long first[] = {0, 2, 3}, n[] = {1, 1, 3}; /* up to a multiple of the batch */
    assert_int_equal(r.count, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r.calls[i].first, first[i]);
        assert_int_equal(r.calls[i].n, n[i]);
        assert_int_equal(r.calls[i].turn, i);
    }
    for (int i = 0; i < IMAGES; i++)
        if (!have[i]) assert_close(r.tokens[0][i], all.tokens[0][i], TOKENS, 1e-5);
}

/* --- several workers */

enum { WORKERS = 3 };

/* Chooses single images, in order. */
typedef struct {
    long next;
    pthread_t first;   /* thread of the first worker */
    atomic_int others; /* images given to other threads */
    int label;         /* of image 4 */
} chooser;

static int choose_one(void *self, store_range *at)
{
    chooser *c = self;
    static int label;
    at->n = c->next < IMAGES;
    at->first = c->next;
    label = at->first == 4 ? c->label : 3;
    at->labels = &label;
    c->next += at->n;
    if (at->n && !pthread_equal(pthread_self(), c->first)) c->others++;
    return 0;
}

/* Holds the first worker's batch until another one has got one. */
static void hold(void *watcher, mar_session *s, int n, const uint8_t *rgb)
{
    (void)s, (void)n, (void)rgb;
    while (((chooser *)watcher)->others == 0) sched_yield();
}

static int take_and_interrupt(void *self, const image_batch *b)
{
    const int failed = take(self, b);
    if (((const recorder *)self)->r->count == 2) raise(SIGINT);
    return failed;
}

/* Makes single images with three workers. Returns the status. */
static int run_workers(record *r, int label, int (*to)(void *self, const image_batch *b))
{
    image_run runs[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        runs[i] = (image_run){.model = demo.models[0], .session = session(demo.models[0], demo.vae)};
    chooser c = {.first = pthread_self(), .label = label};
    image_plan plan = plan_of(runs, 1);
    plan.workers = WORKERS, plan.kept = NULL;
    plan.choose = choose_one, plan.chooser = &c;
    plan.watch = hold, plan.watcher = &c;
    recorder all = {r, 0};
    const image_sink sink = {to, &all, 1, 1, 0};
    const int status = run_images(&plan, &sink, 1);
    assert_true(c.others > 0);
    for (int i = 0; i < WORKERS; i++) mar_session_free(runs[i].session);
    return status;
}

/* Checks that the sinks get the images of several workers as from one: all of them, in their order, with the same bits.
 * After a failure or a signal they get none behind it. */
TEST_CASE(workers_share_the_images)
{
    static record r;
    static float alone[IMAGES][TOKENS];
    static const int label_of[IMAGES] = {3, 3, 3, 3, 3, 3, 3};
    make_directly(demo.with_decoder, label_of, alone);
    r = (record){0};
    assert_int_equal(run_workers(&r, 3, take), 0);
    assert_int_equal(r.count, IMAGES);
    for (int i = 0; i < IMAGES; i++) assert_true(r.calls[i].first == i && r.calls[i].turn == i && r.calls[i].n == 1);
    assert_memory_equal(r.tokens[0], alone, sizeof alone);

    r = (record){.fail_at = 3}; /* a sink */
    assert_int_equal(run_workers(&r, 3, take), 1);
    assert_int_equal(r.count, 3);

    r = (record){0}; /* a session: there is no such class */
    assert_int_equal(run_workers(&r, 10, take), 1);
    assert_true(r.count <= 4);
    for (int i = 0; i < r.count; i++) assert_int_equal(r.calls[i].first, i);

    const pid_t child = fork();
    if (child == 0) {
        open_demo(NULL);
        r = (record){0};
        const int status = run_workers(&r, 3, take_and_interrupt); /* others may have finished one, which is kept */
        _exit(status == 130 && r.count >= 2 && r.count <= WORKERS + 1 ? 0 : 1);
    }
    int ended;
    waitpid(child, &ended, 0);
    assert_int_equal(ended, 0);
}

static void interrupt(mar_session *s)
{
    (void)s;
    raise(SIGINT);
}

/* Signals in the middle of an image's decoding. The images before it in the batch are finished. A plan that takes parts
 * keeps them. Each signal needs a new process: a process cannot forget a signal, and it opens the library itself. */
TEST_CASE(interrupted_while_decoding)
{
    static record r;
    const image_run run = {.model = demo.models[0], .session = demo.with_decoder};
    image_plan plan = plan_of(&run, 1);
    recorder all = {&r, 0};
    const image_sink sink = {take, &all, 1, 1, 0};
    r = (record){0};
    spy_on(demo.with_decoder, "conv", -1, NULL);
    assert_int_equal(run_images(&plan, &sink, 1), 0);
    const long convolutions = spy_off() / IMAGES; /* of one image */
    static uint8_t expected[BATCH][PIXELS];
    memcpy(expected, r.pixels[0], sizeof expected);
    plan.kept = NULL;
    for (int parts = 0; parts < 2; parts++)
        for (int whole = 0; whole < BATCH; whole++) {
            const pid_t child = fork();
            if (child == 0) {
                open_demo(NULL);
                const image_run own = {.model = demo.models[0], .session = demo.with_decoder};
                plan.runs = &own;
                plan.takes_parts = parts;
                r = (record){.parts = 1};
                spy_on(demo.with_decoder, "conv", convolutions * whole + 3, interrupt);
                const int status = run_images(&plan, &sink, 1), kept = parts ? whole : 0;
                if (status != 130) _exit(1);
                if (r.count != (kept > 0)) _exit(2);
                if (kept && (r.calls[0].n != kept || r.calls[0].first != 0)) _exit(3);
                _exit(memcmp(r.pixels[0], expected, (size_t)kept * PIXELS) == 0 ? 0 : 4);
            }
            int ended;
            waitpid(child, &ended, 0);
            if (ended != 0) fail_msg("parts %d, image %d: %x", parts, whole, ended);
        }
}

/* Checks that runs share a file if they load it with the same arithmetic and heads. */
TEST_CASE(files_are_loaded_once)
{
    static model_store store;
    enum { RUNS = 12 };
    run_options options[RUNS];
    run_models models[RUNS];
    for (int i = 0; i < RUNS; i++) {
        run_options_init(&options[i]);
        options[i].machine.threads = 1;
    }
    options[1].draft = "demo-draft", options[1].params.spec = "cspd";
    options[2].model = "demo-draft";
    options[3].machine.threads = 2;
    options[4].machine.dtype = MAR_DTYPE_F32, options[5].machine.dtype = MAR_DTYPE_BF16;
    options[6].heads = "2";
    options[7].machine.head_dtype = MAR_DTYPE_F32;
    for (int i = 8; i < 11; i++) options[i].params.gamma = 8;
    options[8].params.spec = "path";
    options[9].params.spec = "path", options[9].machine.dtype = MAR_DTYPE_F32;
    options[10].draft = "demo-draft"; /* without --spec: --spec path */
    options[11].model = "demo-discrete", options[11].draft = "demo-discrete-draft";
    for (int i = 0; i < RUNS; i++) assert_int_equal(models_load(&store, &options[i], NULL, &models[i]), 0);
    assert_ptr_equal(models[2].model, models[1].draft);
    assert_ptr_equal(options[1].params.draft, models[1].draft);
    assert_null(models[0].draft);
    assert_int_equal(mar_model_get_config(models[6].model)->heads, 2);
    assert_int_equal(options[8].machine.head_dtype, MAR_DTYPE_AUTO); /* as given, for the runs that inherit it */
    const int half = strncmp(mar_backend_description(models[0].library), "cpu bf16", 8) == 0; /* arithmetic of auto */
    const struct {
        int run, other;
        int library, model, vae; /* 1: the same, 0: another, -1: not checked */
    } pairs[] = {
        {1, 0, 1, 1, 1},
        {3, 0, 0, 0, 0},
        {4, 3, 0, 0, 0},
        {5, 3, 0, 0, 0},
        {5, 4, 0, 0, 0},
        {4, 0, !half, !half, -1}, /* auto is one of the two arithmetics */
        {5, 0, half, half, -1},
        {6, 0, 1, 0, 1},
        /* A head in f32 is another model where the rest is bf16. It is given, or follows from verified paths. */
        {7, 0, !half, !half, -1},
        {8, 7, 1, 1, -1},
        {9, 4, 1, 1, -1},
        {10, 8, 1, 1, -1},
        {11, 0, 1, -1, -1}, /* has no head */
    };
    for (size_t i = 0; i < LENGTH(pairs); i++) {
        const run_models *a = &models[pairs[i].run], *b = &models[pairs[i].other];
        assert_int_equal(a->library == b->library, pairs[i].library);
        if (pairs[i].model >= 0) assert_int_equal(a->model == b->model, pairs[i].model);
        if (pairs[i].vae >= 0) assert_int_equal(a->vae == b->vae, pairs[i].vae);
    }
    for (int i = 0; i < RUNS; i++)
        assert_int_equal(strstr(mar_backend_description(models[i].library), "bf16, head f32") != NULL,
                         half && (i == 7 || i == 8 || i == 10));
    /* A network without a head takes any of these handles. */
    mar_options judge = run_machine(&options[8]);
    assert_ptr_equal(models_open(&store, &judge, "features_dtype"), models[0].library);
    assert_int_equal(store.handle_count, 3 + half);
    /* model, decoder, draft; model and decoder of two; model; model, decoder, draft with a head in f32; discrete ones
     * */
    assert_int_equal(store.file_count, 3 + 2 * 2 + 1 + 3 * half + 3);
    models_free(&store);
}

/* Checks that runs in int8 share a handle if their heads are in int8 at the same timesteps. A network without a head
 * ignores these. */
TEST_CASE(int8_is_shared)
{
    static model_store store;
    enum { RUNS = 4 };
    run_options options[RUNS];
    run_models models[RUNS];
    for (int i = 0; i < RUNS; i++) {
        run_options_init(&options[i]);
        options[i].machine.threads = 1, options[i].machine.dtype = MAR_DTYPE_INT8;
        options[i].machine.int8_below = i == 2 ? 500 : 0;
        if (i == 3) options[i].machine.head_dtype = MAR_DTYPE_F32;
        assert_int_equal(models_load(&store, &options[i], NULL, &models[i]), 0);
    }
    assert_ptr_equal(models[1].model, models[0].model);
    assert_ptr_not_equal(models[2].library, models[0].library);
    assert_ptr_not_equal(models[3].library, models[0].library);
    mar_options judge = run_machine(&options[2]);
    assert_ptr_equal(models_open(&store, &judge, "features_dtype"), models[0].library);
    assert_int_equal(store.handle_count, 3);
    models_free(&store);
}

TEST_GROUP(open_demo, close_demo)
