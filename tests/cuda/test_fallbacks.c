/* The backend's fallbacks when the driver or the device refuses an operation. The next best method runs, makes the same
 * tokens, and the refusal is reported. Only the simulated device on the host can be told to refuse. */
#include "mar.h"
#include "mar_measure.h"
#include "tests/support/device.h"
#include "tests/cudahost/control.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cudaDeviceSynchronize(void); /* CUDA's own, also in the tested library */

enum { TOKENS = 6, STEPS = 2 };

/* Returns whether CUDA can be told to refuse operations. */
static int can_refuse(void)
{
    return cudahost_refuse && cudahost_instantiated;
}

static void expect_text(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);
}

static void expect_no_text(const char *text, const char *part)
{
    if (strstr(text, part)) fail_msg("\"%s\" says \"%s\"", text, part);
}

/* --- the driver ------------------------------------------------------------------------------------------------- */

typedef struct {
    char text[4096];
} log_lines;

static void take_line(void *user, mar_log_level level, const char *line)
{
    log_lines *lines = user;
    const size_t used = strlen(lines->text);
    snprintf(lines->text + used, sizeof lines->text - used, "%s%s\n", level == MAR_LOG_WARNING ? "warning: " : "",
             line);
}

static void drivers_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *version, *says;
    } cases[] = {
        {"12080", "the NVIDIA driver is too old: it supports CUDA 12.8, expected CUDA 13.0 or later (driver R580 or "
                  "later), or a libmar built with CUDA 12.8 (R570 or later); use the CPU backend"},
        {"11040", "it supports CUDA 11.4, expected CUDA 13.0"},
        {"0", "no GPU: there is no NVIDIA driver; use the CPU backend"},
        {"13010", NULL},
    };
    if (!can_refuse()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        log_lines lines = {""};
        const mar_options cuda = {.size = sizeof cuda, .backend = MAR_BACKEND_CUDA},
                          either = {.size = sizeof either, .threads = 1, .log = take_line, .log_user = &lines};
        mar *m = NULL;
        setenv("MAR_CUDAHOST_DRIVER", cases[i].version, 1);
        assert_int_equal(mar_open(&cuda, &m), cases[i].says ? MAR_EBACKEND : MAR_OK);
        if (cases[i].says) expect_text(mar_error(m), cases[i].says);
        mar_close(m);
        assert_int_equal(mar_gpu_count(), cases[i].says ? 0 : 1);
        assert_int_equal(mar_open(&either, &m), MAR_OK);
        assert_int_equal(strncmp(mar_backend_description(m), cases[i].says ? "cpu " : "cuda ", 4), 0);
        if (cases[i].says)
            expect_text(lines.text, cases[i].says);
        else
            expect_no_text(lines.text, "driver");
        mar_close(m);
    }
    setenv("MAR_CUDAHOST_DRIVER", "13000", 1);
    setenv("MAR_CUDAHOST_DEVICES", "0", 1);
    mar *m = NULL;
    const mar_options cuda = {.size = sizeof cuda, .backend = MAR_BACKEND_CUDA};
    assert_int_equal(mar_open(&cuda, &m), MAR_EBACKEND);
    expect_text(mar_error(m), "no GPU: no CUDA-capable device is detected; use the CPU backend");
    mar_close(m);
    unsetenv("MAR_CUDAHOST_DRIVER");
    unsetenv("MAR_CUDAHOST_DEVICES");
}

/* --- a head ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int width, depth, channels;
    const char *multiprocessors, *shared; /* bytes of shared memory; NULL: an H100's */
} shape;

static const shape small = {64, 1, 8, "4", NULL}, streaming = {256, 6, 16, "8", "150000"},
                   clustered = {CUDA_TEST_BRIEF ? 160 : 1056, 1, 4, CUDA_TEST_BRIEF ? "16" : "66", NULL};

/* A head with random weights, and a chain to run on it. */
typedef struct {
    kern_queue *k;
    kern_head *h;
    size_t values; /* floats in the chain's result */
    kern_chain_job job;
    kern_chain_coef coef[STEPS];
    float *start; /* [TOKENS][C] x_T */
    float cfg[TOKENS];
    uint64_t seed[TOKENS], image[TOKENS];
    int position[TOKENS], x_index[2 * TOKENS], t[STEPS];
    void *memory[4];
} bench;

/* Returns the next n random numbers, of standard deviation `scale`. */
static const float *draw(float **memory, size_t *at, size_t n, float scale)
{
    float *x = random_floats(n, scale, 100 + *at);
    memory[(*at)++] = x;
    return x;
}

/* Makes a head; f32 selects f32 operands on any device. */
static kern_head *make_head(kern_queue *k, shape s, int f32)
{
    const size_t w = (size_t)s.width, c = (size_t)s.channels;
    const float scale = 1 / sqrtf((float)w);
    float *memory[8 * 8];
    size_t n = 0;
    kern_head_block blocks[6];
    kern_head_spec spec = {.width = s.width,
                           .depth = s.depth,
                           .channels = s.channels,
                           .hidden = s.width,
                           .ada_layers = s.depth,
                           .blocks = blocks,
                           .dtype = f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO};
    spec.in_weight = draw(memory, &n, w * c, 0.5f), spec.in_bias = draw(memory, &n, w, 0.5f);
    for (int b = 0; b < s.depth; b++)
        blocks[b] = (kern_head_block){.ln_weight = draw(memory, &n, w, 1),
                                      .ln_bias = draw(memory, &n, w, 0.2f),
                                      .fc1_weight = draw(memory, &n, w * w, scale),
                                      .fc1_bias = draw(memory, &n, w, 0.2f),
                                      .fc2_weight = draw(memory, &n, w * w, scale),
                                      .fc2_bias = draw(memory, &n, w, 0.2f),
                                      .ada_weight = draw(memory, &n, 3 * w * w, 0.5f * scale),
                                      .ada_bias = draw(memory, &n, 3 * w, 0.3f)};
    spec.ada_weight = draw(memory, &n, 2 * w * w, 0.5f * scale), spec.ada_bias = draw(memory, &n, 2 * w, 0.3f);
    spec.out_weight = draw(memory, &n, 2 * c * w, scale), spec.out_bias = draw(memory, &n, 2 * c, 0.2f);
    kern_head *h = NULL;
    mar_err err = {0};
    assert_ok(k->head->create(k, &spec, &h, &err), &err);
    while (n > 0) free(memory[--n]);
    return h;
}

/* Makes the modulation rows of all steps. */
static void *modulate(kern_queue *k, const kern_head *h, int width)
{
    const int index[STEPS] = {0, 1}, rows = 2 * TOKENS;
    const size_t w = (size_t)width;
    float *temb = random_floats(STEPS * w, 1, 77), *cond = random_floats((size_t)rows * w, 1, 78);
    float *device_temb = to_device(k, temb, STEPS * w * sizeof *temb);
    float *device_cond = to_device(k, cond, (size_t)rows * w * sizeof *cond);
    void *scratch = to_device(k, NULL, k->head->scratch_bytes(h, STEPS * rows));
    void *mod = to_device(k, NULL, (size_t)(STEPS * rows) * k->head->mod_bytes(h));
    k->head->modulate(k, h, device_temb, index, NULL, STEPS, device_cond, rows, mod, scratch);
    k->core->finish(k);
    check_kern(k);
    k->core->free(k->device, device_temb), k->core->free(k->device, device_cond), k->core->free(k->device, scratch);
    free(temb), free(cond);
    return mod;
}

static bench *open_bench(shape s)
{
    bench *b = calloc(1, sizeof *b);
    mar_err err = {0};
    assert_non_null(b);
    setenv("MAR_CUDAHOST_SMS", s.multiprocessors, 1);
    if (s.shared) setenv("MAR_CUDAHOST_SHARED", s.shared, 1);
    kern_queue *k = b->k = open_cuda(MAR_DTYPE_BF16);
    b->h = make_head(k, s, 0);
    assert_ok(k->head->plan(k, b->h, STEPS * 2 * TOKENS, &err), &err);
    assert_ok(k->head->plan(k, b->h, 2 * TOKENS, &err), &err);
    b->values = TOKENS * (size_t)s.channels;
    b->start = random_floats(b->values, 1, 99);
    b->memory[0] = modulate(k, b->h, s.width);
    b->memory[1] = to_device(k, NULL, b->values * sizeof(float));
    b->memory[2] = to_device(k, NULL, 4 * b->values * sizeof(float));
    b->memory[3] = to_device(k, NULL, k->head->scratch_bytes(b->h, 2 * TOKENS));
    for (int i = 0; i < STEPS; i++) {
        b->coef[i] = (kern_chain_coef){1.1f, 0.5f, 0.4f, 0.55f, -4, -2.5f, (float)i};
        b->t[i] = 100 * i + 7;
    }
    for (int i = 0; i < TOKENS; i++)
        b->cfg[i] = 1.5f + 0.1f * (float)i, b->seed[i] = 11, b->image[i] = 5, b->position[i] = 3 * i;
    for (int i = 0; i < 2 * TOKENS; i++) b->x_index[i] = i % TOKENS;
    b->job = (kern_chain_job){.tokens = TOKENS,
                              .conditions = 2,
                              .first = STEPS - 1,
                              .mod = b->memory[0],
                              .x = b->memory[1],
                              .coef = b->coef,
                              .t = b->t,
                              .x_index = b->x_index,
                              .cfg = b->cfg,
                              .seed = b->seed,
                              .image = b->image,
                              .position = b->position,
                              .out = b->memory[2],
                              .scratch = b->memory[3]};
    return b;
}

static void close_bench(bench *b)
{
    kern_queue *k = b->k;
    for (int i = 0; i < 4; i++) k->core->free(k->device, b->memory[i]);
    k->head->free(k->device, b->h);
    close_queue(k);
    unsetenv("MAR_CUDAHOST_SMS");
    unsetenv("MAR_CUDAHOST_SHARED");
    free(b->start);
    free(b);
}

static void chain_body(void *arg)
{
    const bench *b = arg;
    b->k->fused->chain_run(b->k, b->h, &b->job);
}

/* Runs the chain, on a recording if one is given, and writes the result to x [values]. */
static void run_chain(bench *b, kern_recording **recording, float *x)
{
    kern_queue *k = b->k;
    k->core->upload(k, b->job.x, b->start, b->values * sizeof *x);
    if (recording)
        k->core->replay(k, recording, chain_body, b);
    else
        chain_body(b);
    from_device(k, x, b->job.x, b->values * sizeof *x);
}

/* Checks that `uses` uses of a recording each give the bits of the plain chain. */
static void expect_replays(bench *b, kern_recording **recording, int uses, const float *plain)
{
    float x[TOKENS * 32];
    for (int i = 0; i < uses; i++) {
        run_chain(b, recording, x);
        assert_memory_equal(x, plain, b->values * sizeof *x);
    }
}

/* --- forms of the head ------------------------------------------------------------------------------------------- */

/* Loads a head on a device that refuses `what`, and compares its chain with `expected`. The comparison is exact, or
 * within the rounding of f16. Returns the head's description, which the caller frees. */
static char *load_refused(shape s, unsigned what, int cluster, int to_the_bit, const float *expected)
{
    float x[TOKENS * 32];
    kern_recording *recording = NULL;
    cudahost_refuse(what, cluster);
    bench *b = open_bench(s);
    run_chain(b, &recording, x);
    if (to_the_bit)
        assert_memory_equal(x, expected, b->values * sizeof *x);
    else
        assert_close(x, expected, b->values, 7e-3);
    expect_replays(b, &recording, 1, x); /* the second use is recorded */
    char *how = strdup(b->k->head->describe(b->h));
    assert_non_null(how);
    assert_int_equal(b->k->recordings, 1);
    assert_int_equal(b->k->unrecorded, 0);
    b->k->core->recording_free(b->k, recording);
    close_bench(b);
    cudahost_refuse(0, 2);
    return how;
}

/* Runs a head with nothing refused. Stores its result and returns its description. */
static char *load_whole(shape s, float *expected)
{
    (void)cudahost_launched_together();
    bench *b = open_bench(s);
    assert_int_equal(cudahost_launched_together(), 3); /* loading has tried both chains and speculation */
    run_chain(b, NULL, expected);
    char *how = strdup(b->k->head->describe(b->h));
    assert_non_null(how);
    close_bench(b);
    return how;
}

static void heads_without_cooperation(void **state)
{
    (void)state;
    float expected[TOKENS * 32];
    if (!can_refuse()) skip();
    char *whole = load_whole(streaming, expected);
    expect_text(whole, "persistent kernel up to 128 rows, ");
    expect_text(whole, " of 12 products in shared memory");
    expect_no_text(whole, "refused");
    char *how = load_refused(streaming, CUDAHOST_COOPERATIVE, 2, 0, expected);
    expect_text(how, "cuBLASLt for any number of rows: refused with ");
    expect_text(how, "launching the head's kernels: operation not supported");
    free(how), free(whole);
}

/* Checks that refused clusters fall back to smaller ones, and finally to none. */
static void heads_without_clusters(void **state)
{
    (void)state;
    static const struct {
        unsigned what;
        const char *says;
    } cases[] = {{CUDAHOST_CLUSTER_ROOM, "the GPU has room for none"},
                 {CUDAHOST_CLUSTERS, "launching the head's kernels: cluster misconfiguration"}};
    float expected[TOKENS * 32];
    if (!can_refuse()) skip();
    char *whole = load_whole(clustered, expected), half[64];
    const char *size = strstr(whole, "clusters of ");
    assert_non_null(size);
    const int most = atoi(size + strlen("clusters of "));
    assert_true(most >= 2);
    snprintf(half, sizeof half, most > 2 ? "clusters of %d blocks, " : "no clusters, ", most / 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *how = load_refused(clustered, cases[i].what, i == 0 ? 2 : most, 0, expected);
        expect_text(how, i == 0 ? "persistent kernel up to 128 rows, no clusters, " : half);
        expect_text(how, "; refused with clusters of ");
        expect_text(how, cases[i].says);
        free(how);
    }
    free(whole);
}

/* Checks that heads without a persistent kernel say so. */
static void heads_of_other_kinds(void **state)
{
    (void)state;
    static const shape odd = {40, 1, 4, "4", NULL};
    static const char f32_says[] = "cuBLASLt for any number of rows: the head is in f32, and the persistent kernel "
                                   "computes in f16 only";
    const char *const says[4] = {f32_says,
                                 "cuBLASLt for any number of rows: no form of the persistent kernel fits this head",
                                 f32_says, "matrix products in f32"};
    for (int i = 0; i < 4; i++) {
        kern_queue *k = i < 3 ? open_cuda(i == 0 ? MAR_DTYPE_F32 : MAR_DTYPE_BF16) : open_cpu();
        const int f32 = i == 2; /* of a shape that has a persistent kernel in f16 */
        kern_head *h = make_head(k, f32 ? small : odd, f32);
        expect_text(k->head->describe(h), says[i]);
        k->head->free(k->device, h);
        close_queue(k);
    }
}

/* --- recordings refused while they are made or used -------------------------------------------------------------- */

static void recordings_are_refused(void **state)
{
    (void)state;
    const unsigned refusals[] = {CUDAHOST_BEGIN_CAPTURE, CUDAHOST_END_CAPTURE, CUDAHOST_INSTANTIATE,
                                 CUDAHOST_GRAPH_LAUNCH, CUDAHOST_COOPERATIVE_CAPTURED};
    if (!can_refuse()) skip();
    float plain[TOKENS * 32];
    bench *b = open_bench(small);
    run_chain(b, NULL, plain);
    for (int late = 0; late < 2; late++) /* refused when it is made, or after several uses */
        for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
            kern_recording *recording = NULL;
            if (late) expect_replays(b, &recording, 3, plain);
            const int broken = !late || refusals[i] == CUDAHOST_GRAPH_LAUNCH;
            assert_int_equal(b->k->recordings, late);
            const long objects = cudahost_objects();
            cudahost_refuse(refusals[i], 2);
            expect_replays(b, &recording, 4, plain);
            cudahost_refuse(0, 2);
            check_kern(b->k);
            assert_int_equal(b->k->recordings, late && !broken);
            assert_int_equal(b->k->unrecorded, broken);
            if (!late) assert_int_equal(cudahost_objects(), objects); /* its objects are freed */
            if (broken) expect_text(b->k->why_unrecorded.text, ": operation");
            const long launches = cudahost_graph_launches();
            expect_replays(b, &recording, 4, plain); /* the state stays after the refusal ends */
            assert_int_equal(cudahost_graph_launches() - launches, broken ? 0 : 4);
            b->k->core->recording_free(b->k, recording);
            assert_int_equal(b->k->recordings + b->k->unrecorded, 0);
            assert_int_equal(b->k->recorded_bytes, 0);
        }
    close_bench(b);
}

/* A program that waits for the whole GPU during a recording. */
typedef struct {
    bench *b;
    int runs;        /* runs of the body */
    int from, until; /* runs in which it waits */
} disturbed;

static void disturbed_body(void *arg)
{
    disturbed *d = arg;
    chain_body(d->b);
    if (d->runs >= d->from && d->runs < d->until) (void)cudaDeviceSynchronize();
    d->runs++;
}

static void recordings_are_invalidated(void **state)
{
    (void)state;
    if (!can_refuse()) skip();
    bench *b = open_bench(small);
    for (int times = 1; times <= 2; times++) {
        kern_recording *recording = NULL;
        disturbed d = {b, 0, 2, 2 + times}; /* run, measured, recorded, recorded again */
        float plain[TOKENS * 32], x[TOKENS * 32];
        run_chain(b, NULL, plain);
        for (int use = 0; use < 3; use++) {
            b->k->core->upload(b->k, b->job.x, b->start, b->values * sizeof *x);
            b->k->core->replay(b->k, &recording, disturbed_body, &d);
            from_device(b->k, x, b->job.x, b->values * sizeof *x);
            assert_memory_equal(x, plain, b->values * sizeof *x);
        }
        assert_int_equal(b->k->recordings, times == 1);
        assert_int_equal(b->k->unrecorded, times == 2);
        if (times == 2) expect_text(b->k->why_unrecorded.text, "a recording: operation");
        b->k->core->recording_free(b->k, recording);
    }
    close_bench(b);
}

/* --- sessions ---------------------------------------------------------------------------------------------------- */

static void make_batch(mar_session *s, uint64_t first, float *tokens)
{
    const int label = 3;
    assert_session(s, mar_session_begin(s, first, &label, 1));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
}

/* Checks that only the second image makes graphs. The first has no repeated work, and the third replays. A device that
 * refuses graphs makes the same images. The log and the description report the refusal. */
static void sessions_record_at_the_second_use(void **state)
{
    (void)state;
    enum { VALUES = 64 * 8, BATCHES = 3, ITERATIONS = 3 }; /* of the demo; as in p */
    if (!can_refuse()) skip();
    float tokens[2][BATCHES][VALUES];
    for (int refused = 0; refused < 2; refused++) {
        log_lines lines = {""};
        const mar_options options = {
            .size = sizeof options, .backend = MAR_BACKEND_CUDA, .log = take_line, .log_user = &lines};
        mar_params p = params_with("seed 11, num_iter 3, num_sampling_steps 4, cfg 2.9");
        mar *m;
        mar_model *model;
        mar_session *s;
        char how[1024];
        assert_int_equal(mar_open(&options, &m), MAR_OK);
        assert_library(m, mar_model_load(m, "demo", 0, &model));
        expect_text(lines.text, "; head: persistent kernel up to 128 rows, ");
        assert_library(m, mar_session_create(model, NULL, &p, 1, &s));
        expect_no_text(mar_session_description(s, how, sizeof how), "recording");
        cudahost_refuse(refused ? CUDAHOST_INSTANTIATE : 0, 2);
        for (int i = 0; i < BATCHES; i++) {
            const long before = cudahost_instantiated();
            make_batch(s, (uint64_t)i, tokens[refused][i]);
            const long made = cudahost_instantiated() - before;
            if (refused || i != 1)
                assert_int_equal(made, 0);
            else
                assert_in_range(made, 2 * ITERATIONS, 5 * ITERATIONS); /* at least those of encoder and decoder */
        }
        expect_text(mar_session_description(s, how, sizeof how), "head: persistent kernel up to 128 rows, ");
        expect_text(how, refused ? "; 0 recordings, " : " recordings");
        if (refused) {
            expect_text(how, " refused: preparing a recording: operation not supported");
            const char *line = "warning: work that is repeated cannot be recorded, and takes longer: preparing";
            expect_text(lines.text, line);
            expect_no_text(strstr(lines.text, line) + 1, line); /* reported once */
        } else {
            expect_no_text(lines.text, "warning");
        }
        cudahost_refuse(0, 2);
        mar_session_free(s);
        mar_model_free(model);
        mar_close(m);
    }
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
}

/* Checks that the image decoder is recorded when images are decoded again without a step. */
static void refused_decoders_are_told(void **state)
{
    (void)state;
    if (!can_refuse()) skip();
    static float tokens[64 * 8];
    static uint8_t rgb[2][32 * 32 * 3];
    log_lines lines = {""};
    const mar_options options = {
        .size = sizeof options, .backend = MAR_BACKEND_CUDA, .log = take_line, .log_user = &lines};
    const mar_params p = params_with("seed 11, num_iter 2, num_sampling_steps 2, cfg 1");
    mar *m;
    mar_model *model;
    mar_vae *vae;
    mar_session *s;
    assert_int_equal(mar_open(&options, &m), MAR_OK);
    assert_library(m, mar_model_load(m, "demo", 0, &model));
    assert_library(m, mar_vae_load(m, "demo", &vae));
    assert_library(m, mar_session_create(model, vae, &p, 1, &s));
    make_batch(s, 0, tokens);
    cudahost_refuse(CUDAHOST_INSTANTIATE, 2);
    assert_session(s, mar_session_images(s, rgb[0]));
    expect_no_text(lines.text, "warning");
    assert_session(s, mar_session_images(s, rgb[1]));
    expect_text(lines.text, "warning: work that is repeated cannot be recorded, and takes longer: preparing");
    assert_memory_equal(rgb[0], rgb[1], sizeof rgb[0]);
    cudahost_refuse(0, 2);
    mar_session_free(s);
    mar_vae_free(vae);
    mar_model_free(model);
    mar_close(m);
}

/* --- failures that happen once ----------------------------------------------------------------------------------- */

/* Checks that a recording without memory for its area at one use is made at the next use. */
static void recordings_wait_for_memory(void **state)
{
    (void)state;
    if (!can_refuse()) skip();
    float plain[TOKENS * 32];
    bench *b = open_bench(small);
    kern_recording *recording = NULL;
    run_chain(b, NULL, plain);
    expect_replays(b, &recording, 1, plain);
    const long objects = cudahost_objects();
    for (int use = 0; use < 2; use++) {
        (void)cudahost_refuse_once(CUDAHOST_PINNED);
        expect_replays(b, &recording, 1, plain);
        assert_int_equal(cudahost_refuse_once(0), 0);
        check_kern(b->k);
        assert_int_equal(b->k->recordings + b->k->unrecorded, 0);
        assert_int_equal(b->k->recorded_bytes, 0);
        assert_int_equal(cudahost_objects(), objects);
    }
    const long launches = cudahost_graph_launches();
    expect_replays(b, &recording, 2, plain);
    assert_int_equal(cudahost_graph_launches() - launches, 2);
    assert_int_equal(b->k->recordings, 1);
    assert_int_equal(b->k->unrecorded, 0);
    b->k->core->recording_free(b->k, recording);
    close_bench(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drivers_are_named),
        cmocka_unit_test(heads_without_cooperation),
        cmocka_unit_test(heads_without_clusters),
        cmocka_unit_test(heads_of_other_kinds),
        cmocka_unit_test(recordings_are_refused),
        cmocka_unit_test(recordings_are_invalidated),
        cmocka_unit_test(sessions_record_at_the_second_use),
        cmocka_unit_test(refused_decoders_are_told),
        cmocka_unit_test(recordings_wait_for_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
