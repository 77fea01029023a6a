/* Fails every allocation of libmar and every start of a thread once. This covers opening a handle, loading files, and
 * making and running a session. The call reports the failure and leaks nothing. Other sessions are not affected, and
 * the session itself still works. Then allocations of all libraries fail. A handle works with fewer threads if one does
 * not start. The sanitizers skip this test (tests/support/failing_allocations.h). */
#include "mar/core/handle.h"

#include "mar_eval.h"
#include "mar_measure.h"
#include "tests/support/demo.h"
#include "tests/support/harmon.h"
#include "tests/support/llamagen.h"

#include "tests/support/failing_allocations.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef HAS_SANITIZER

static long threads_missing; /* failed starts in this round */

/* A thread's start allocates its stack. Generated code lies in mapped memory. */
#pragma GCC visibility push(default)
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *arg)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (!fails_now(counts(__builtin_return_address(0)))) return real(thread, attributes, body, arg);
    threads_missing++;
    return EAGAIN;
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (fd < 0 && fails_now(0)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}
#pragma GCC visibility pop

/* --- one call with one failure ------------------------------------------------------------------------------------ */

typedef struct {
    const char *what; /* for messages */
    long round;       /* failing allocation, from 0 */
    int each, step;   /* the round grows by 1 in the first `each` rounds, then by `step` */
    long before;      /* allocated blocks at the round's begin */
    int done;         /* set when a round had no failure */
} rounds;

static rounds rounds_begin(const char *what, int each, int step)
{
    return (rounds){.what = what, .round = -1, .each = each, .step = step};
}

/* Begins the next round, with its failing allocation. Returns 0 after a round without failures. */
static int rounds_next(rounds *r)
{
    if (r->done) return 0;
    r->round += r->round < r->each ? 1 : r->step;
    r->before = held;
    failures = threads_missing = 0;
    until_failure = r->round;
    return 1;
}

/* Ends the round's failures; `status` is the call's. Returns whether it failed for lack of memory, with a reason of one
 * line. Anything else fails the test. */
static int rounds_failed(rounds *r, mar_status status, const char *reason)
{
    until_failure = -1;
    if (!failures && status != MAR_OK) fail_msg("%s: %s", r->what, reason);
    r->done = !failures;
    if (failures == threads_missing && status == MAR_OK) return 0;
    if (status == MAR_OK && others_fail) return 0; /* qsort works without memory */
    if (status == MAR_OK) fail_msg("%s: allocation %ld failed without a word", r->what, r->round);
    if (status != MAR_ENOMEM || !*reason || strchr(reason, '\n'))
        fail_msg("%s: allocation %ld: %s, \"%s\"", r->what, r->round, mar_status_name(status), reason);
    return 1;
}

/* Checks that the round's blocks are freed. */
static void rounds_freed(const rounds *r)
{
    if (held != r->before)
        fail_msg("%s: %ld blocks leak when allocation %ld fails", r->what, held - r->before, r->round);
}

/* --- another session of the handle -------------------------------------------------------------------------------- */

typedef struct {
    mar_session *s;
    float tokens[DEMO_TOKENS]; /* its expected tokens */
} bystander;

static bystander bystander_of(const demo *d)
{
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2");
    bystander b = {.s = demo_session(d, &p, 1)};
    demo_generate(b.s, 1, b.tokens);
    return b;
}

static void goes_on(const bystander *b, const rounds *r)
{
    float tokens[DEMO_TOKENS];
    demo_generate(b->s, 1, tokens);
    if (memcmp(tokens, b->tokens, sizeof tokens) != 0)
        fail_msg("%s: another session makes other tokens after allocation %ld failed", r->what, r->round);
    if (*mar_session_error(b->s)) fail_msg("%s: \"%s\" in another session", r->what, mar_session_error(b->s));
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

TEST_CASE(opening)
{
    static const mar_options options[] = {{.size = sizeof *options, .dtype = MAR_DTYPE_F32, .threads = 1},
                                          {.size = sizeof *options, .dtype = MAR_DTYPE_F32, .threads = 4},
                                          {.size = sizeof *options, .threads = 2}};
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    for (size_t i = 0; i < 4 * sizeof options / sizeof *options; i++) {
        const mar_options *o = &options[i / 4];
        long fewer = 0;
        failures_last = i % 2;
        others_fail = i / 2 % 2;
        rounds r = rounds_begin(o->dtype ? "mar_open f32" : "mar_open", others_fail ? 100 : 0, others_fail ? 5 : 1);
        while (rounds_next(&r)) {
            mar *m;
            const mar_status status = mar_open(o, &m);
            if (rounds_failed(&r, status, m ? mar_error(m) : mar_status_name(status)) && !m)
                assert_int_equal(r.round, 0); /* the handle itself: nothing can hold the reason */
            if (status == MAR_OK && threads_missing) {
                fewer++;
                assert_non_null(strstr(mar_backend_description(m), "; the system starts no more)"));
            }
            mar_close(m);
            rounds_freed(&r);
        }
        assert_in_range(r.round, 3 + (o->threads > 1), others_fail ? 5000 : 50);
        if (o->threads > 1 && processors > 1 && !others_fail && !failures_last) assert_true(fewer > 0);
    }
    failures_last = others_fail = 0;
}

/* NULL is the only sign of failure. */
TEST_CASE(parameters)
{
    rounds r = rounds_begin("mar_params_new", 0, 1);
    while (rounds_next(&r)) {
        mar_params *p = mar_params_new();
        rounds_failed(&r, p ? MAR_OK : MAR_ENOMEM, "NULL");
        mar_params_free(p);
        rounds_freed(&r);
    }
    assert_int_equal(r.round, 1);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *path;
    int heads, vae;
} files[] = {{"demo", 0, 0},
             {"demo-draft", 0, 0},
             {"demo", 0, 1},
             {"tests/golden/data/lazy_small.safetensors", 0, 0},
             {"tests/weights/data/mar.pth", 2, 0},
             {"tests/weights/data/vae.ckpt", 0, 1},
             {"tests/golden/data/llamagen_c2i.safetensors", 0, 0},
             {"tests/golden/data/vq.pth", 0, 1}};

/* Loads file i with the function for its kind. */
static mar_status load(const demo *d, int i, mar_model **model, mar_vae **vae)
{
    *model = NULL;
    *vae = NULL;
    return files[i].vae ? mar_vae_load(d->m, files[i].path, vae)
                        : mar_model_load(d->m, files[i].path, files[i].heads, model);
}

TEST_CASE(loading)
{
    const demo d = demo_open(2);
    bystander other = bystander_of(&d);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        mar_model *model;
        mar_vae *vae;
        rounds r = rounds_begin(files[i].path, 0, 1);
        load(&d, (int)i, &model, &vae); /* fills the caches */
        mar_model_free(model);
        mar_vae_free(vae);
        while (rounds_next(&r)) {
            const mar_status status = load(&d, (int)i, &model, &vae);
            if (rounds_failed(&r, status, mar_error(d.m))) assert_true(!model && !vae);
            mar_model_free(model);
            mar_vae_free(vae);
            rounds_freed(&r);
            if (r.round % 8 == 0) goes_on(&other, &r); /* to save time */
        }
        assert_in_range(r.round, 30, 10000);
    }
    mar_session_free(other.s);
    demo_close(d);
}

/* --- networks that judge images ----------------------------------------------------------------------------------- */

/* Checks that loading reports each failure, and that running allocates nothing. */
TEST_CASE(judging)
{
    static const struct {
        const char *path;
        int side, step; /* a step of 29 saves time: Inception's convolutions are made alike */
    } networks[] = {{"demo", 32, 1}, {"tests/golden/data/inception_tiny.pth", 48, 29}};
    static uint8_t rgb[2 * 48 * 48 * 3];
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)(i * i >> 5);
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) {
        const int side = networks[i].side;
        float expected[2 * 128], features[2 * 128];
        const demo d = demo_open(2);
        mar_features *f;
        assert_library(d.m, mar_features_load(d.m, networks[i].path, 2, &f));
        const size_t bytes = 2 * sizeof *features * (size_t)mar_features_get_config(f)->features;
        assert_in_range(bytes, 1, sizeof features);
        assert_library(d.m, mar_features_run(f, rgb, 2, side, side, expected, NULL, NULL));
        mar_features_free(f);
        rounds r = rounds_begin(networks[i].path, 8, networks[i].step);
        while (rounds_next(&r)) {
            const mar_status status = mar_features_load(d.m, networks[i].path, 2, &f);
            if (rounds_failed(&r, status, mar_error(d.m))) assert_null(f);
            if (f) {
                failures = 0;
                until_failure = 0; /* the next allocation fails */
                assert_library(d.m, mar_features_run(f, rgb, 2, side, side, features, NULL, NULL));
                until_failure = -1;
                assert_int_equal(failures, 0);
                assert_memory_equal(features, expected, bytes);
            }
            mar_features_free(f);
            rounds_freed(&r);
        }
        assert_in_range(r.round, 10, 100000);
        demo_close(d);
    }
}

/* Each failed allocation of loading a text encoder, then of encoding. Results are all or none. */
TEST_CASE(text_encoder)
{
    enum { TOKENS = 6, DIM = 32 };
    static const char folder[] = "tests/golden/data/t5";
    const char *const prompts[] = {"a bold seven", "x"};
    float expected[2 * TOKENS * DIM], features[2 * TOKENS * DIM], none[2 * TOKENS * DIM] = {0};
    uint8_t mask[2 * TOKENS];
    const demo d = demo_open(2);
    mar_text *t;
    assert_library(d.m, mar_text_load(d.m, folder, &t));
    assert_library(d.m, mar_text_encode(t, prompts, 2, MAR_CLEAN_OFF, TOKENS, expected, mask, NULL));
    mar_text_free(t);
    rounds r = rounds_begin("loading a text encoder", 60, 7);
    while (rounds_next(&r)) {
        const mar_status status = mar_text_load(d.m, folder, &t);
        if (rounds_failed(&r, status, mar_error(d.m))) assert_null(t);
        mar_text_free(t);
        rounds_freed(&r);
    }
    assert_in_range(r.round, 40, 100000);
    assert_library(d.m, mar_text_load(d.m, folder, &t));
    r = rounds_begin("encoding prompts", 100, 1);
    while (rounds_next(&r)) {
        const mar_status status = mar_text_encode(t, prompts, 2, MAR_CLEAN_OFF, TOKENS, features, mask, NULL);
        const int failed = rounds_failed(&r, status, mar_error(d.m));
        assert_memory_equal(features, failed ? none : expected, sizeof features);
    }
    assert_in_range(r.round, 8, 1000);
    mar_text_free(t);
    demo_close(d);
}

/* Checks that each failed allocation leaves nothing of the two sets, and both numbers 0. */
TEST_CASE(precision_and_recall)
{
    enum { N = 40, DIM = 3, K = 3 };
    float x[2 * N * DIM];
    for (int i = 0; i < 2 * N * DIM; i++) x[i] = (float)(i * i % 97);
    const demo d = demo_open(2);
    double precision, recall, expected[2];
    assert_library(d.m, mar_precision_recall(d.m, x, N, x + N * DIM, N, DIM, K, &expected[0], &expected[1]));
    assert_true(expected[0] > 0);
    rounds r = rounds_begin("precision and recall", 100, 1);
    while (rounds_next(&r)) {
        const mar_status status = mar_precision_recall(d.m, x, N, x + N * DIM, N, DIM, K, &precision, &recall);
        if (rounds_failed(&r, status, mar_error(d.m)))
            assert_true(precision == 0 && recall == 0);
        else
            assert_true(precision == expected[0] && recall == expected[1]);
        rounds_freed(&r);
    }
    assert_in_range(r.round, 10, 1000);
    demo_close(d);
}

TEST_CASE(kernel_distance)
{
    enum { N = 40, DIM = 3, SIZE = 20 };
    float x[2 * N * DIM];
    for (int i = 0; i < 2 * N * DIM; i++) x[i] = (float)(i * i % 97);
    const demo d = demo_open(2);
    double mean, deviation, expected[2];
    assert_library(d.m, mar_kernel_distance(d.m, x, N, x + N * DIM, N, DIM, 2, SIZE, &expected[0], &expected[1]));
    assert_true(expected[1] > 0);
    rounds r = rounds_begin("the kernel distance", 100, 1);
    while (rounds_next(&r)) {
        const mar_status status = mar_kernel_distance(d.m, x, N, x + N * DIM, N, DIM, 2, SIZE, &mean, &deviation);
        if (rounds_failed(&r, status, mar_error(d.m)))
            assert_true(mean == 0 && deviation == 0);
        else
            assert_true(mean == expected[0] && deviation == expected[1]);
        rounds_freed(&r);
    }
    assert_in_range(r.round, 10, 1000);
    demo_close(d);
}

/* --- sessions ----------------------------------------------------------------------------------------------------- */

static const char *const runs[] = {
    "num_iter 4, num_sampling_steps 4, cfg 2.9",
    "num_iter 8, num_sampling_steps 4, lazy on, lazy_head on",
    "gtr on, gtr_generation_steps 2, gtr_reconstruction_steps 2, num_sampling_steps 4, gtr_sampling_steps 2",
    "num_iter 3, head_spec 4, diff_annealing linear, diff_upper_steps 6, diff_lower_steps 3",
    "num_iter 3, num_sampling_steps 4, sampler dpmpp",
    "draft, num_iter 4, num_sampling_steps 4, spec paper, gamma 2",
    "draft, num_iter 4, num_sampling_steps 4, cfg 2.9, spec paper, gamma 3, context full",
    "draft, num_iter 3, num_sampling_steps 4, head_spec 4",
};
enum { RUNS = sizeof runs / sizeof *runs };

static mar_params params_of(const demo *d, const char *run)
{
    const int drafts = strncmp(run, "draft, ", 7) == 0;
    mar_params p = params_with(drafts ? run + 7 : run);
    if (drafts) p.draft = d->draft;
    return p;
}

/* Makes sessions on a device with cached products. The plan of the shapes comes last and repeats a few kinds of
 * allocations. These are a product's operands, the list of its threads' operands and occasional growth. An odd step
 * saves time and fails each kind many times. */
TEST_CASE(creating)
{
    for (int threads = 1; threads <= 2; threads++) {
        const demo d = demo_open(threads);
        bystander other = bystander_of(&d);
        for (int i = 0; i < (threads == 1 ? RUNS : 1); i++) { /* other runs differ only before threads matter */
            mar_vae *vae = i == 0 ? d.vae : NULL;
            const mar_params p = params_of(&d, runs[i]);
            mar_session *s;
            assert_library(d.m, mar_session_create(d.model, vae, &p, 2, &s)); /* fills the caches */
            mar_session_free(s);
            rounds r = rounds_begin(runs[i], 140, 9);
            while (rounds_next(&r)) {
                const mar_status status = mar_session_create(d.model, vae, &p, 2, &s);
                if (rounds_failed(&r, status, mar_error(d.m))) assert_null(s);
                mar_session_free(s);
                rounds_freed(&r);
                if (r.round % 16 == 0) goes_on(&other, &r); /* to save time */
            }
            assert_in_range(r.round, 30, 10000);
        }
        mar_session_free(other.s);
        demo_close(d);
    }
}

static mar_status picture(const demo *d, const mar_params *p, uint8_t *rgb)
{
    mar_session *s;
    const mar_status status = mar_session_create(d->model, d->vae, p, 1, &s);
    if (status != MAR_OK) return status;
    until_failure = -1;
    assert_session(s, demo_run(s, 1));
    assert_session(s, mar_session_images(s, rgb));
    mar_session_free(s);
    return MAR_OK;
}

/* Tests the first session of a device or a VAE. It makes what later ones share: products, and filters in their
 * convolutions' layout. If it fails, the second session reuses the finished part. */
TEST_CASE(first_sessions)
{
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2");
    const demo reference = demo_open(1);
    uint8_t expected[DEMO_BYTES], rgb[DEMO_BYTES];
    assert_library(reference.m, picture(&reference, &p, expected));
    for (int device = 0; device <= 1; device++) {
        /* Skips allocations to save time: products are all made alike, and so are convolutions. */
        rounds r =
            rounds_begin(device ? "the first session of a device" : "the first session of a VAE", 0, device ? 17 : 3);
        while (!r.done) {
            const long before = held;
            demo d = reference;
            if (device)
                d = demo_open(1);
            else
                assert_library(d.m, mar_vae_load(d.m, "demo", &d.vae));
            rounds_next(&r);
            const mar_status status = picture(&d, &p, rgb);
            if (rounds_failed(&r, status, mar_error(d.m))) assert_library(d.m, picture(&d, &p, rgb));
            assert_memory_equal(rgb, expected, sizeof rgb);
            if (device)
                demo_close(d);
            else
                mar_vae_free(d.vae);
            r.before = before;
            rounds_freed(&r);
        }
        assert_in_range(r.round, 30, 10000);
    }
    demo_close(reference);
}

/* Tests requests: one that cannot be had leaves the others as they are, and steps, previews and results need no
 * memory. */
TEST_CASE(requests)
{
    const mar_params p = params_with("num_iter 3, num_sampling_steps 2, cfg 2.9");
    const demo d = demo_open(1);
    static float tokens[2][DEMO_TOKENS];
    static uint8_t rgb[DEMO_BYTES], known[DEMO_SEQ] = {1, 1};
    mar_session *s = demo_session(&d, &p, 2);
    mar_pixels pixels = {.size = sizeof pixels, .data = rgb, .capacity = sizeof rgb};
    mar_request request;
    mar_request_init(s, &request, sizeof request);
    rounds r = rounds_begin("requests", 100, 1);
    while (rounds_next(&r)) {
        uint64_t first, second;
        mar_status status = mar_session_submit(s, &request, &first);
        mar_request edit = request;
        edit.tokens = tokens[0], edit.known = known;
        if (status == MAR_OK) status = mar_session_submit(s, &edit, &second);
        const int some = mar_session_pending(s) > 0;
        if (some) assert_session(s, mar_session_step(s));
        if (some) assert_session(s, mar_session_preview(s, first, &pixels));
        while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
        if (some) assert_session(s, mar_session_take(s, first, tokens[some && r.round > 1], &pixels));
        if (!rounds_failed(&r, status, mar_session_error(s))) assert_session(s, mar_session_cancel_request(s, second));
        rounds_freed(&r);
    }
    assert_int_equal(r.round, 2); /* an allocation each */
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    mar_session_free(s);
    demo_close(d);
}

/* Tests a first session on a new device. Allocations of every library fail. Afterwards a session gives the same output
 * as without failures. */
TEST_CASE(others)
{
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2");
    for (int threads = 1; threads <= 2; threads++) {
        const demo reference = demo_open(threads);
        uint8_t expected[DEMO_BYTES], rgb[DEMO_BYTES];
        assert_library(reference.m, picture(&reference, &p, expected));
        rounds r = rounds_begin("a device's first picture", 0, threads == 1 ? 307 : 1009);
        others_fail = 1;
        while (!r.done) {
            const long before = held;
            demo d = demo_open(threads);
            mar_session *s;
            rounds_next(&r);
            mar_status status = mar_session_create(d.model, d.vae, &p, 1, &s);
            if (status == MAR_OK) status = demo_run(s, 1);
            if (status == MAR_OK) status = mar_session_images(s, rgb);
            if (rounds_failed(&r, status, s ? mar_session_error(s) : mar_error(d.m))) {
                mar_session_free(s);
                s = NULL;
                assert_library(d.m, picture(&d, &p, rgb));
            }
            assert_memory_equal(rgb, expected, sizeof rgb);
            mar_session_free(s);
            demo_close(d);
            r.before = before;
            rounds_freed(&r);
        }
        others_fail = 0;
        assert_in_range(r.round, 100, 1000000);
        demo_close(reference);
    }
}

/* --- prompts between MAR's towers --------------------------------------------------------------------------------- */

/* Makes a session of a small Harmon and an image of a prompt. The first failing call ends it; *s is the session, if it
 * was made. */
static mar_status harmon_image(const harmon *h, const mar_params *p, mar_session **s, float tokens[HARMON_TOKENS])
{
    mar_request request;
    uint64_t id;
    mar_status status = mar_session_create(h->model, h->vae, p, 2, s);
    if (status == MAR_OK) status = mar_session_set_negative(*s, harmon_ids(h, 1), harmon_mask(h, 1));
    if (status != MAR_OK) return status;
    mar_request_init(*s, &request, sizeof request);
    request.features = harmon_ids(h, 0);
    request.mask = harmon_mask(h, 0);
    status = mar_session_submit(*s, &request, &id);
    while (status == MAR_OK && mar_session_pending(*s)) status = mar_session_step(*s);
    return status == MAR_OK ? mar_session_take(*s, id, tokens, NULL) : status;
}

TEST_CASE(prompts_between_towers)
{
    static const char *const options[] = {"num_iter 3, num_sampling_steps 3, cfg 3",
                                          "num_iter 3, num_sampling_steps 3, cfg 3, spec path, gamma 2"};
    const char *const prompt = "a corgi";
    void *written;
    harmon_set_up(&written);
    harmon h = harmon_open(written, HARMON_FOLDER, MAR_DTYPE_F32, NULL, &prompt, 1);
    harmon_load_draft(&h, written, HARMON_DRAFT);
    for (size_t i = 0; i < 2; i++) {
        mar_params p = params_with(options[i]);
        float expected[HARMON_TOKENS], tokens[HARMON_TOKENS];
        mar_session *s;
        if (i == 1) p.draft = h.draft;
        assert_library(h.m, harmon_image(&h, &p, &s, expected)); /* fills the caches */
        mar_session_free(s);
        rounds r = rounds_begin(options[i], 60, 5);
        while (rounds_next(&r)) {
            const mar_status status = harmon_image(&h, &p, &s, tokens);
            if (rounds_failed(&r, status, s && *mar_session_error(s) ? mar_session_error(s) : mar_error(h.m))) {
                mar_session_free(s);
                assert_library(h.m, harmon_image(&h, &p, &s, tokens));
            }
            assert_memory_equal(tokens, expected, sizeof tokens);
            mar_session_free(s);
            rounds_freed(&r);
        }
        assert_in_range(r.round, 20, 10000);
    }
    harmon_close(&h);
    harmon_tear_down(&written);
}

/* --- discrete tokens ---------------------------------------------------------------------------------------------- */

/* A LlamaGen model as target, with itself or nothing as draft */
static const struct {
    const char *options;
    int drafts;
} discrete_runs[] = {{"num_iter 0, cfg 2", 0},
                     {"num_iter 0, cfg 1, tree dynamic, gamma 3", 1},
                     {"num_iter 0, cfg 2, spec sjd-pac, window 6", 0},
                     {"num_iter 0, cfg 2, spec sjd-pac, window auto", 0}};

/* Makes a session and one image. The first failing call ends it; *s is the session, if it was made. */
static mar_status discrete_image(const demo *d, const mar_params *p, mar_session **s, float tokens[DEMO_TOKENS])
{
    mar_status status = mar_session_create(d->model, d->vae, p, 1, s);
    if (status == MAR_OK) status = demo_run(*s, 1);
    return status == MAR_OK ? mar_session_tokens(*s, tokens) : status;
}

/* Fails every allocation of a session. Then that session, or the next one, works. */
TEST_CASE(discrete_tokens)
{
    const family_facts c = small_llamagen();
    char *directory = test_directory(), *path = write_llamagen(directory, "m.safetensors", &c, 1, 0, 1);
    char *vq = copy_vq(directory);
    demo d = {.m = open_mar(MAR_DTYPE_F32, 1)};
    assert_library(d.m, mar_model_load(d.m, path, 0, &d.model));
    assert_library(d.m, mar_vae_load(d.m, vq, &d.vae));
    for (size_t i = 0; i < sizeof discrete_runs / sizeof *discrete_runs; i++) {
        mar_params p = params_with(discrete_runs[i].options);
        float expected[DEMO_TOKENS], tokens[DEMO_TOKENS];
        mar_session *s;
        if (discrete_runs[i].drafts) p.draft = d.model;
        assert_library(d.m, discrete_image(&d, &p, &s, expected)); /* fills the caches */
        mar_session_free(s);
        rounds r = rounds_begin(discrete_runs[i].options, 60, 5);
        while (rounds_next(&r)) {
            const mar_status status = discrete_image(&d, &p, &s, tokens);
            if (rounds_failed(&r, status, s ? mar_session_error(s) : mar_error(d.m)) && s)
                assert_session(s, demo_run(s, 1));
            if (s) {
                assert_session(s, mar_session_tokens(s, tokens));
                assert_memory_equal(tokens, expected, (size_t)c.shape.seq_len * sizeof *tokens);
            }
            mar_session_free(s);
            rounds_freed(&r);
        }
        assert_in_range(r.round, 20, 10000);
    }
    mar_vae_free(d.vae);
    mar_model_free(d.model);
    mar_close(d.m);
    free(vq);
    free(path);
}

#endif
