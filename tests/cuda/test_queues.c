/* Several queues of one device. Threads that share weights get the same bits as each gets alone. Failures and cancels
 * stay in their queue. A queue works on the caller's stream. */
#include "diffusion/speculate.h"
#include "tests/support/device.h"
#include "tests/cudahost/control.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

/* CUDA's own functions, also in the tested library. */
int cudaSetDevice(int device);
int cudaGetDevice(int *device);
int cudaStreamCreateWithFlags(void **stream, unsigned flags);
int cudaStreamDestroy(void *stream);
static void *const legacy_stream = (void *)1, *const per_thread_stream = (void *)2;

enum {
    CHANNELS = 8,
    WIDTH = 128,
    Z_DIM = 64,
    STEPS = 4,
    FEW = 3,   /* tokens of a chain by a persistent kernel, in bf16 */
    MANY = 33, /* tokens of a chain by products */
    WINDOW = 3,
    LINEAR_ROWS = 21,
    LINEAR_OUT = 72,
    CONV_HEIGHT = 5,
    CONV_WIDTH = 6,
    CONV_IN = 16,
    CONV_OUT = 24,
    CONV_VALUES = 4 * CONV_HEIGHT * CONV_WIDTH * CONV_OUT,
    ATTENTION_ROWS = 18,
    VALUES = 2 * LINEAR_ROWS * LINEAR_OUT + CONV_VALUES + ATTENTION_ROWS * Z_DIM + (4 * FEW + MANY) * CHANNELS,
    ROUNDS = 2,
    THREADS = 3,
};

/* --- the weights ------------------------------------------------------------------------------------------------ */

typedef struct {
    kern_device *device;
    diff_head head, draft; /* of the demo models */
    kern_linear *linear;   /* [LINEAR_OUT][Z_DIM] */
    kern_conv *conv;
} weights;

static void load_head(kern_queue *k, const char *path, int width, int depth, int z_dim, diff_head *head)
{
    mar_err err = {0};
    wt_file *file;
    assert_ok(wt_open(path, &file, &err), &err);
    assert_ok(diff_head_load(k, file,
                             &(diff_head_shape){.width = width, .depth = depth, .channels = CHANNELS, .z_dim = z_dim},
                             0, 0, head, &err),
              &err);
    wt_close(file);
}

static mar_status make_linear(kern_queue *k, kern_linear **l, mar_err *err)
{
    float *weight = random_floats(LINEAR_OUT * Z_DIM, 0.1f, 1), *bias = random_floats(LINEAR_OUT, 1, 2);
    const kern_linear_spec spec = {
        .out = LINEAR_OUT, .in = Z_DIM, .weight = weight, .bias = bias, .activation = KERN_GELU};
    const mar_status status = k->core->linear_create(k, &spec, l, err);
    free(weight), free(bias);
    return status;
}

static kern_conv *make_conv(kern_queue *k)
{
    float *weight = random_floats(CONV_OUT * CONV_IN * 9, 0.2f, 3), *bias = random_floats(CONV_OUT, 1, 4);
    const kern_conv_spec spec = {CONV_OUT, CONV_IN, 3, 3, 1, 1, 1, 0, weight, bias, KERN_OUT_F32 | KERN_UPSAMPLE, 0};
    kern_conv *conv = NULL;
    mar_err err = {0};
    assert_ok(k->conv->create(k, &spec, &conv, &err), &err);
    free(weight), free(bias);
    return conv;
}

static weights load(mar_dtype dtype)
{
    kern_queue *k = open_cuda(dtype);
    weights w = {.device = k->device};
    mar_err err = {0};
    load_head(k, "weights/demo/target.safetensors", WIDTH, 2, Z_DIM, &w.head);
    load_head(k, "weights/demo/draft.safetensors", 48, 1, 32, &w.draft);
    assert_ok(make_linear(k, &w.linear, &err), &err);
    w.conv = make_conv(k);
    k->core->finish(k);
    check_kern(k);
    free_queue(k); /* the weights survive the queue */
    return w;
}

static void unload(weights *w)
{
    diff_head_free(&w->head);
    diff_head_free(&w->draft);
    w->device->core->linear_free(w->device, w->linear);
    w->device->conv->free(w->device, w->conv);
    w->device->core->close(w->device);
}

/* --- a session: a queue and the work of one thread --------------------------------------------------------------- */

typedef struct {
    const weights *w;
    kern_queue *k;
    diff_chain few, many, draft_chain;
    diff_speculation by_filter, by_draft;
    void *memory[5]; /* device memory of the chains and speculations */
    kern_recording *recording;
    /* Inputs of a round: host [..] and device copies. */
    float *z, *x;            /* host [2*MANY][Z_DIM], [ATTENTION_ROWS][3*Z_DIM] */
    float *device_z, *state; /* [2*MANY][Z_DIM], [MANY][CHANNELS] */
    act *row, *y, *qkv, *attended;
    float *decoded;
    uint64_t seed[MANY], image[MANY];
    int position[MANY];
    float cfg[MANY];
} session;

static void *memory_for(kern_queue *k, size_t bytes)
{
    return to_device(k, NULL, bytes);
}

static void open_chains(session *s)
{
    kern_queue *k = s->k;
    mar_err err = {0};
    assert_ok(diff_chain_create(k, &s->w->head, STEPS, 1, FEW, 1, &s->few, &err), &err);
    assert_ok(diff_chain_create(k, &s->w->head, STEPS, 1, MANY, 1, &s->many, &err), &err);
    assert_ok(diff_chain_create(k, &s->w->draft, STEPS, 1, FEW, 1, &s->draft_chain, &err), &err);
    diff_chain *const chains[3] = {&s->few, &s->many, &s->draft_chain};
    for (int i = 0; i < 3; i++)
        diff_chain_lay_out(chains[i], s->memory[i] = memory_for(k, diff_chain_lay_out(chains[i], NULL)));
    assert_ok(diff_speculate_create(&s->few, NULL, WINDOW, 0, &s->by_filter, &err), &err);
    assert_ok(diff_speculate_create(&s->few, &s->draft_chain, WINDOW, 0, &s->by_draft, &err), &err);
    diff_speculation *const speculations[2] = {&s->by_filter, &s->by_draft};
    for (int i = 0; i < 2; i++) {
        void *memory = s->memory[3 + i] = memory_for(k, diff_speculate_lay_out(speculations[i], NULL));
        diff_speculate_lay_out(speculations[i], memory);
        assert_ok(diff_speculate_plan(speculations[i], FEW, FEW, &err), &err);
    }
    assert_ok(diff_chain_plan(&s->few, FEW, &err), &err);
    assert_ok(diff_chain_plan(&s->many, MANY, &err), &err);
}

static void open_session(session *s, const weights *w)
{
    *s = (session){.w = w, .k = new_queue(w->device)};
    kern_queue *k = s->k;
    mar_err err = {0};
    open_chains(s);
    assert_ok(k->conv->plan(k, w->conv, 1, CONV_HEIGHT, CONV_WIDTH, &err), &err);
    assert_ok(
        k->core->attention_plan(k, ATTENTION_ROWS / 2, ATTENTION_ROWS / 2, 2, Z_DIM / 2, 3 * Z_DIM, 3 * Z_DIM, &err),
        &err);
    s->device_z = memory_for(k, 2 * MANY * Z_DIM * sizeof(float));
    s->state = memory_for(k, MANY * CHANNELS * sizeof(float));
    s->row = memory_for(k, LINEAR_ROWS * Z_DIM * sizeof(float));
    s->y = memory_for(k, LINEAR_ROWS * LINEAR_OUT * sizeof(float));
    s->qkv = memory_for(k, ATTENTION_ROWS * 3 * Z_DIM * sizeof(float));
    s->attended = memory_for(k, ATTENTION_ROWS * Z_DIM * sizeof(float));
    s->decoded = memory_for(k, CONV_VALUES * sizeof(float));
}

static void close_session(session *s)
{
    kern_queue *k = s->k;
    kern_device *d = k->device;
    void *const arrays[] = {s->device_z, s->state, s->row, s->y, s->qkv, s->attended, s->decoded};
    k->core->recording_free(k, s->recording);
    diff_speculate_free(&s->by_filter);
    diff_speculate_free(&s->by_draft);
    diff_chain_free(&s->few);
    diff_chain_free(&s->many);
    diff_chain_free(&s->draft_chain);
    k->core->finish(k);
    for (int i = 0; i < 5; i++) d->core->free(d, s->memory[i]);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) d->core->free(d, arrays[i]);
    free_queue(k);
}

/* --- the work --------------------------------------------------------------------------------------------------- */

static void linear(session *s)
{
    kern_queue *k = s->k;
    k->core->upload(k, s->device_z, s->z, 2 * MANY * Z_DIM * sizeof(float));
    k->core->to_act(k, s->device_z, LINEAR_ROWS * Z_DIM, s->row);
    k->core->linear(k, s->w->linear, s->row, LINEAR_ROWS, s->y);
}

/* Runs the same linear layer and a chain, as a recording. */
static void recorded(void *arg)
{
    session *s = arg;
    linear(s);
    diff_chain_sample(&s->few, s->device_z, FEW, s->cfg, s->seed, s->image, s->position, s->state);
}

/* Fetches the activations' bits, of any type. */
static float *take_act(session *s, const act *from, size_t n, float *to)
{
    memset(to, 0, n * sizeof *to);
    s->k->core->download(s->k, to, from, n * s->k->device->act_size);
    return to + n;
}

static float *take_state(session *s, int tokens, float *to)
{
    s->k->core->download(s->k, to, s->state, (size_t)(tokens * CHANNELS) * sizeof *to);
    return to + tokens * CHANNELS;
}

static float *attend(session *s, float *out)
{
    kern_queue *k = s->k;
    const size_t bytes = Z_DIM * k->device->act_size;
    k->core->upload(k, s->device_z, s->x, ATTENTION_ROWS * 3 * Z_DIM * sizeof(float));
    k->core->to_act(k, s->device_z, ATTENTION_ROWS * 3 * Z_DIM, s->qkv);
    k->core->attention(k, s->qkv, 3 * Z_DIM, (char *)s->qkv + bytes, (char *)s->qkv + 2 * bytes, 3 * Z_DIM, 2,
                       ATTENTION_ROWS / 2, ATTENTION_ROWS / 2, 2, Z_DIM / 2, s->attended);
    return take_act(s, s->attended, ATTENTION_ROWS * Z_DIM, out);
}

static float *decode(session *s, float *out)
{
    kern_queue *k = s->k;
    k->core->to_act(k, s->device_z, CONV_HEIGHT * CONV_WIDTH * CONV_IN, s->qkv);
    k->conv->conv(k, s->w->conv, s->qkv, 1, CONV_HEIGHT, CONV_WIDTH, s->decoded);
    k->core->download(k, out, s->decoded, CONV_VALUES * sizeof *out);
    return out + CONV_VALUES;
}

static float *speculate(session *s, diff_speculation *by, float *out)
{
    diff_speculation_stats stats = {0};
    const diff_tokens drawn = {.count = FEW,
                               .sources = FEW,
                               .z = s->device_z,
                               .draft_z = s->device_z,
                               .cfg = s->cfg,
                               .seed = s->seed,
                               .image = s->image,
                               .position = s->position};
    diff_speculate_sample(by, &drawn, s->state, NULL, &stats);
    return take_state(s, FEW, out);
}

/* Does each operation once, for a seed: out [VALUES]. A failed queue returns zeros for skipped work. */
static void work(session *s, uint64_t seed, float *out)
{
    s->z = random_floats(2 * MANY * Z_DIM, 1, seed + 1000);
    s->x = random_floats(ATTENTION_ROWS * 3 * Z_DIM, 1, seed + 2000);
    for (int i = 0; i < MANY; i++) {
        s->seed[i] = seed;
        s->image[i] = seed + (uint64_t)i / 7;
        s->position[i] = i % 7;
        s->cfg[i] = 1.5f + 0.25f * (float)(i % 5);
    }
    linear(s);
    out = take_act(s, s->y, LINEAR_ROWS * LINEAR_OUT, out);
    diff_chain_sample(&s->few, s->device_z, FEW, s->cfg, s->seed, s->image, s->position, s->state);
    out = take_state(s, FEW, out);
    s->k->core->replay(s->k, &s->recording, recorded, s);
    out = take_act(s, s->y, LINEAR_ROWS * LINEAR_OUT, out);
    out = take_state(s, FEW, out);
    diff_chain_sample(&s->many, s->device_z, MANY, s->cfg, s->seed, s->image, s->position, s->state);
    out = take_state(s, MANY, out);
    out = speculate(s, &s->by_filter, out);
    out = speculate(s, &s->by_draft, out);
    out = attend(s, out);
    decode(s, out);
    free(s->z), free(s->x);
}

/* Runs the work of a seed on a queue alone. Returns [VALUES], which the caller frees. */
static float *alone(const weights *w, uint64_t seed)
{
    float *x = malloc(VALUES * sizeof *x);
    session s;
    assert_non_null(x);
    open_session(&s, w);
    work(&s, seed, x);
    check_kern(s.k);
    close_session(&s);
    return x;
}

static void expect_work(session *s, uint64_t seed, const float *expected)
{
    float *x = malloc(VALUES * sizeof *x);
    assert_non_null(x);
    work(s, seed, x);
    check_kern(s->k);
    assert_memory_equal(x, expected, VALUES * sizeof *x);
    free(x);
}

static void expect_failure(kern_queue *k, mar_status status, const char *text)
{
    mar_err err = {0};
    assert_int_equal(kern_check(k, &err), status);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

/* --- threads ---------------------------------------------------------------------------------------------------- */

typedef struct {
    const weights *w;
    uint64_t seed;
    float *made; /* [ROUNDS][VALUES] */
    mar_status status;
} thread_job;

static void *thread_main(void *arg)
{
    thread_job *job = arg;
    mar_err err = {0};
    for (int round = 0; round < ROUNDS; round++) { /* queues also open and close while others work */
        session s;
        open_session(&s, job->w);
        for (int again = 0; again < 3; again++) work(&s, job->seed, job->made + round * VALUES);
        if (job->status == MAR_OK) job->status = kern_check(s.k, &err);
        close_session(&s);
    }
    return NULL;
}

static void check_threads(mar_dtype dtype)
{
    weights w = load(dtype);
    thread_job jobs[THREADS] = {0};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (thread_job){&w, (uint64_t)i + 1, malloc(ROUNDS * VALUES * sizeof(float)), MAR_OK};
        assert_non_null(jobs[i].made);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &jobs[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        float *expected = alone(&w, jobs[i].seed);
        assert_int_equal(jobs[i].status, MAR_OK);
        for (int round = 0; round < ROUNDS; round++)
            assert_memory_equal(jobs[i].made + round * VALUES, expected, VALUES * sizeof(float));
        free(expected), free(jobs[i].made);
    }
    unload(&w);
}

static void threads_share_weights(void **state)
{
    (void)state;
    check_threads(MAR_DTYPE_BF16);
    setenv("MAR_CUDAHOST_LAZY", "1", 1); /* ignored by a GPU, which is always asynchronous */
    check_threads(MAR_DTYPE_F32);
    unsetenv("MAR_CUDAHOST_LAZY");
}

/* --- failures --------------------------------------------------------------------------------------------------- */

/* Checks that a failure does not affect other queues, and that recover clears it. Earlier recordings still work. */
static void failures_stay_in_their_queue(void **state)
{
    (void)state;
    weights w = load(MAR_DTYPE_BF16);
    float *expected = alone(&w, 5), *none = calloc(VALUES, sizeof *none), *x = malloc(VALUES * sizeof *x);
    session a, b;
    mar_err err = {0};
    int cancel = 0;
    assert_true(none && x);
    open_session(&a, &w), open_session(&b, &w);
    expect_work(&a, 5, expected);
    for (int how = 0; how < 2; how++) {
        a.k->cancel = &cancel;
        if (how)
            cancel = 1;
        else
            kern_fail(a.k, err_set(&err, MAR_EBACKEND, "made to fail"), &err);
        work(&a, 5, x);
        assert_memory_equal(x, none, VALUES * sizeof *x);
        if (how)
            expect_failure(a.k, MAR_ECANCELLED, "cancelled");
        else
            expect_failure(a.k, MAR_EBACKEND, "made to fail");
        kern_linear *l = NULL;
        assert_int_not_equal(make_linear(a.k, &l, &err), MAR_OK);
        assert_null(l);
        expect_work(&b, 5, expected);
        cancel = 0;
        expect_failure(a.k, how ? MAR_ECANCELLED : MAR_EBACKEND, "");
        a.k->core->recover(a.k);
        check_kern(a.k);
        expect_work(&a, 5, expected);
    }
    double seconds = 0;
    a.k->core->timer_mark(a.k, NULL);
    a.k->core->timer_mark(a.k, &seconds);
    kern_fail(a.k, err_set(&err, MAR_EBACKEND, "made to fail"), &err);
    a.k->core->recover(a.k); /* marks from before are no longer added */
    a.k->core->finish(a.k);
    assert_true(seconds == 0);
    check_kern(a.k);
    close_session(&a), close_session(&b);
    unload(&w);
    free(expected), free(none), free(x);
}

typedef struct {
    session *s;
    int *cancel;
    int started;
} cancelled_job;

static void *work_until_cancelled(void *arg)
{
    cancelled_job *job = arg;
    mar_err err;
    float *x = malloc(VALUES * sizeof *x);
    while (x && kern_check(job->s->k, &err) == MAR_OK) {
        work(job->s, 5, x);
        __atomic_store_n(&job->started, 1, __ATOMIC_RELEASE);
    }
    free(x);
    return NULL;
}

/* Checks that another thread can cancel, at any point of the work. */
static void cancels_from_another_thread(void **state)
{
    (void)state;
    weights w = load(MAR_DTYPE_BF16);
    float *expected = alone(&w, 5);
    int cancel = 0;
    session s;
    open_session(&s, &w);
    s.k->core->unbind(s.k);
    s.k->cancel = &cancel;
    for (int times = 0; times < 3; times++) {
        cancelled_job job = {&s, &cancel, 0};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, work_until_cancelled, &job), 0);
        while (!__atomic_load_n(&job.started, __ATOMIC_ACQUIRE)) sched_yield();
        __atomic_store_n(&cancel, 1, __ATOMIC_RELAXED);
        pthread_join(thread, NULL);
        expect_failure(s.k, MAR_ECANCELLED, "cancelled");
        cancel = 0;
        s.k->core->recover(s.k);
        expect_work(&s, 5, expected);
    }
    s.k->core->bind(s.k);
    close_session(&s);
    unload(&w);
    free(expected);
}

/* --- failing calls ---------------------------------------------------------------------------------------------- */

/* Returns whether calls to CUDA can be made to fail. The tests below fail each call once, until all succeed. */
static int can_fail(void)
{
    return cudahost_fail_after && cudahost_objects;
}

/* Checks that a failed open leaves no objects. */
static void failing_to_open(void **state)
{
    (void)state;
    if (!can_fail()) skip();
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    kern_device *d = k->device;
    const long before = cudahost_objects();
    mar_err err = {0};
    mar_status status = MAR_ENOMEM;
    for (long n = 0; status != MAR_OK; n++) {
        kern_device *other = NULL;
        cudahost_fail_after(n);
        status = kern_cuda_open(MAR_DTYPE_BF16, 0, &other, &err);
        cudahost_fail_after(-1);
        assert_true((status == MAR_OK) == (other != NULL));
        if (other) other->core->close(other);
        assert_int_equal(cudahost_objects(), before);
    }
    status = MAR_ENOMEM;
    for (long n = 0; status != MAR_OK; n++) {
        kern_queue *other = NULL;
        cudahost_fail_after(n);
        status = d->core->queue_create(d, &other, &err);
        cudahost_fail_after(-1);
        assert_true((status == MAR_OK) == (other != NULL));
        d->core->queue_free(other);
        assert_int_equal(cudahost_objects(), before);
    }
    close_queue(k);
}

/* Checks that failed loading of weights leaves no objects. */
static void failing_to_load(void **state)
{
    (void)state;
    if (!can_fail()) skip();
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    const long before = cudahost_objects();
    mar_err err = {0};
    wt_file *file;
    mar_status status = MAR_ENOMEM;
    for (long n = 0; status != MAR_OK; n++) {
        kern_linear *l = NULL;
        cudahost_fail_after(n);
        status = make_linear(k, &l, &err);
        cudahost_fail_after(-1);
        assert_true((status == MAR_OK) == (l != NULL));
        k->core->linear_free(k->device, l);
        k->core->recover(k);
        assert_int_equal(cudahost_objects(), before);
    }
    assert_ok(wt_open("weights/demo/target.safetensors", &file, &err), &err);
    status = MAR_ENOMEM;
    for (long n = 0; status != MAR_OK; n++) {
        diff_head head = {0};
        cudahost_fail_after(n);
        status = diff_head_load(k, file,
                                &(diff_head_shape){.width = WIDTH, .depth = 2, .channels = CHANNELS, .z_dim = Z_DIM}, 0,
                                0, &head, &err);
        cudahost_fail_after(-1);
        if (status == MAR_OK) diff_head_free(&head);
        k->core->recover(k);
        assert_int_equal(cudahost_objects(), before);
    }
    wt_close(file);
    close_queue(k);
}

/* Checks that no memory is freed while an upload, or the conversion of its operands, may still write to it. */
static void failing_to_load_waits(void **state)
{
    (void)state;
    if (!can_fail()) skip();
    setenv("MAR_CUDAHOST_LAZY", "1", 1);
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    mar_err err = {0};
    wt_file *file;
    assert_ok(wt_open("weights/demo/target.safetensors", &file, &err), &err);
    mar_status status = MAR_ENOMEM;
    for (long n = 0; status != MAR_OK; n++) {
        diff_head head = {0};
        const long hasty = cudahost_hasty_frees();
        cudahost_fail_after(n);
        status = diff_head_load(k, file,
                                &(diff_head_shape){.width = WIDTH, .depth = 2, .channels = CHANNELS, .z_dim = Z_DIM}, 0,
                                0, &head, &err);
        cudahost_fail_after(-1);
        if (status != MAR_OK && cudahost_hasty_frees() != hasty)
            fail_msg("the load whose call %ld failed has freed memory while work was to be done", n);
        k->core->finish(k);
        if (status == MAR_OK) diff_head_free(&head);
        k->core->recover(k);
    }
    wt_close(file);
    close_queue(k);
    unsetenv("MAR_CUDAHOST_LAZY");
}

/* Checks that a queue recovers when some of its calls fail. */
static void failing_work(void **state)
{
    (void)state;
    if (!can_fail()) skip();
    weights w = load(MAR_DTYPE_BF16);
    float *expected = alone(&w, 5), *x = malloc(VALUES * sizeof *x);
    mar_err err = {0};
    assert_non_null(x);
    for (long n = 0, failed = 1; failed; n += 1 + n / 2) {
        session s;
        open_session(&s, &w);
        cudahost_fail_after(n);
        work(&s, 5, x);
        cudahost_fail_after(-1);
        failed = kern_check(s.k, &err) != MAR_OK;
        s.k->core->recover(s.k);
        expect_work(&s, 5, expected);
        close_session(&s);
    }
    unload(&w);
    free(expected), free(x);
}

/* --- streams and devices ---------------------------------------------------------------------------------------- */

static void streams_of_the_caller(void **state)
{
    (void)state;
    weights w = load(MAR_DTYPE_BF16);
    float *expected = alone(&w, 5);
    session s;
    open_session(&s, &w);
    kern_queue *k = s.k;
    mar_err err = {0};
    void *stream = NULL;
    expect_work(&s, 5, expected);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, 0), 0);
    assert_ok(k->core->set_stream(k, stream, &err), &err);
    expect_work(&s, 5, expected); /* replays the recording made on the queue's own stream */
    k->core->recording_free(k, s.recording);
    s.recording = NULL;
    assert_ok(k->core->set_stream(k, legacy_stream, &err), &err);
    for (int times = 0; times < 3; times++) expect_work(&s, 5, expected); /* uses a recording made on this stream */
    assert_int_equal(k->core->set_stream(k, per_thread_stream, &err), MAR_EARG);
    if (!strstr(err.text, "cudaStreamPerThread, which is another one on every thread: expected a stream that was"))
        fail_msg("\"%s\"", err.text);
    expect_work(&s, 5, expected); /* on the previous stream */
    assert_ok(k->core->set_stream(k, NULL, &err), &err);
    assert_int_equal(cudaStreamDestroy(stream), 0);
    expect_work(&s, 5, expected);

    assert_int_equal(cudaStreamCreateWithFlags(&stream, 1), 0); /* closed while it works on the caller's stream */
    assert_ok(k->core->set_stream(k, stream, &err), &err);
    expect_work(&s, 5, expected);
    close_session(&s);
    assert_int_equal(cudaStreamDestroy(stream), 0);
    unload(&w);
    free(expected);
}

static void expect_device(int expected)
{
    int device = -1;
    assert_int_equal(cudaGetDevice(&device), 0);
    assert_int_equal(device, expected);
}

/* Checks a thread's current GPU: that of its last bound queue, and its own after all are unbound. */
static void current_device(void **state)
{
    (void)state;
    setenv("MAR_CUDAHOST_DEVICES", "2", 1);
    if (kern_cuda_devices(NULL) < 2) skip();
    kern_device *d[2];
    kern_queue *k[2];
    mar_err err = {0};
    float x[2] = {1, 2}, got[2][2];
    void *p[2];
    assert_int_equal(cudaSetDevice(1), 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(kern_cuda_open(MAR_DTYPE_BF16, i, &d[i], &err), &err);
        assert_ok(d[i]->core->queue_create(d[i], &k[i], &err), &err);
        assert_ok(d[i]->core->alloc(d[i], sizeof x, &p[i], &err), &err);
        expect_device(1);
    }
    k[0]->core->bind(k[0]);
    expect_device(0);
    k[1]->core->bind(k[1]);
    expect_device(1);
    k[0]->core->bind(k[0]);
    expect_device(0);
    k[0]->core->unbind(k[0]);
    for (int i = 0; i < 2; i++) k[i]->core->upload(k[i], p[i], x, sizeof x);
    for (int times = 0; times < 2; times++) /* alternating */
        for (int i = 0; i < 2; i++) {
            kern_linear *l = NULL;
            assert_ok(make_linear(k[i], &l, &err), &err);
            d[i]->core->linear_free(d[i], l);
            k[i]->core->subtract(k[i], p[i], p[i], 1, p[i]);
        }
    for (int i = 0; i < 2; i++) {
        k[i]->core->download(k[i], got[i], p[i], sizeof got[i]);
        check_kern(k[i]);
        assert_true(got[i][0] == 0 && got[i][1] == 2);
    }
    k[1]->core->unbind(k[1]);
    k[0]->core->unbind(k[0]);
    expect_device(1);
    assert_int_equal(cudaSetDevice(0), 0);
    for (int i = 0; i < 2; i++) {
        d[i]->core->free(d[i], p[i]);
        d[i]->core->queue_free(k[i]);
        d[i]->core->close(d[i]);
        expect_device(0);
    }
    unsetenv("MAR_CUDAHOST_DEVICES");
}

/* Works on GPU 1 in a thread without a context. Returns NULL, or an error message. */
static void *use_second_device(void *arg)
{
    (void)arg;
    kern_device *d;
    kern_queue *k;
    mar_err err = {0};
    void *p;
    kern_linear *l;
    float x[2] = {1, 2};
    int device = -1;
    (void)cudahost_contexts();
    if (kern_cuda_devices(NULL) != 2) return "there are not two GPUs";
    if (kern_cuda_open(MAR_DTYPE_BF16, 1, &d, &err) != MAR_OK || d->core->queue_create(d, &k, &err) != MAR_OK)
        return "GPU 1 cannot be opened";
    if (d->core->alloc(d, sizeof x, &p, &err) != MAR_OK) return "no memory";
    k->core->bind(k);
    if (cudaGetDevice(&device) != 0 || device != 1) return "GPU 1 is not current inside";
    if (make_linear(k, &l, &err) != MAR_OK) return "a layer cannot be loaded";
    kern_conv *conv = make_conv(k);
    diff_head head;
    load_head(k, "weights/demo/target.safetensors", WIDTH, 2, Z_DIM, &head);
    k->core->upload(k, p, x, sizeof x);
    k->core->download(k, x, p, sizeof x);
    k->core->unbind(k);
    /* Plans made outside bind and unbind also belong to the queue's GPU. */
    if (k->core->linear_plan(k, l, LINEAR_ROWS, &err) != MAR_OK ||
        k->core->attention_plan(k, 16, 16, 2, 64, 3 * 128, 3 * 128, &err) != MAR_OK ||
        k->head->plan(k, head.net, 2 * FEW, &err) != MAR_OK ||
        k->conv->plan(k, conv, 1, CONV_HEIGHT, CONV_WIDTH, &err) != MAR_OK ||
        k->conv->group_norm_plan(k, 1, CONV_HEIGHT * CONV_WIDTH, 24, &err) != MAR_OK)
        return "a plan fails";
    diff_head_free(&head);
    d->conv->free(d, conv);
    d->core->linear_free(d, l);
    d->core->free(d, p);
    d->core->queue_free(k);
    d->core->close(d);
    if (cudaGetDevice(&device) != 0 || device != 0) return "GPU 0 is not current after";
    return cudahost_contexts() == 1u << 1 ? NULL : "there is a context on GPU 0";
}

/* Checks that a program on GPU 1 creates no context on GPU 0. */
static void no_context_elsewhere(void **state)
{
    (void)state;
    if (!can_fail()) skip();
    pthread_t thread;
    void *wrong = NULL;
    setenv("MAR_CUDAHOST_DEVICES", "2", 1);
    assert_int_equal(pthread_create(&thread, NULL, use_second_device, NULL), 0);
    pthread_join(thread, &wrong);
    if (wrong) fail_msg("%s", (const char *)wrong);
    unsetenv("MAR_CUDAHOST_DEVICES");
}

/* Checks a thread whose context the driver cannot report. It keeps the device's context, instead of none. */
static void unknown_context(void **state)
{
    (void)state;
    if (!can_fail()) skip();
    setenv("MAR_CUDAHOST_DEVICES", "2", 1);
    kern_device *d;
    mar_err err = {0};
    void *p;
    assert_int_equal(cudaSetDevice(0), 0);
    assert_ok(kern_cuda_open(MAR_DTYPE_BF16, 1, &d, &err), &err);
    expect_device(0);
    (void)cudahost_refuse_once(CUDAHOST_CURRENT_CONTEXT);
    assert_ok(d->core->alloc(d, 4, &p, &err), &err);
    assert_int_equal(cudahost_refuse_once(0), 0); /* the query was made, and refused */
    expect_device(1);
    assert_int_equal(cudaSetDevice(0), 0);
    d->core->free(d, p);
    d->core->close(d);
    expect_device(0);
    unsetenv("MAR_CUDAHOST_DEVICES");
}

#ifdef __SANITIZE_THREAD__
enum { ONLY_THREADS = 1 }; /* ThreadSanitizer checks only the tests that have several threads */
#else
enum { ONLY_THREADS = 0 };
#endif

int main(void)
{
    const struct CMUnitTest threads[] = {
        cmocka_unit_test(threads_share_weights),
        cmocka_unit_test(cancels_from_another_thread),
    };
    const struct CMUnitTest alone_on_a_thread[] = {
        cmocka_unit_test(failures_stay_in_their_queue),
        cmocka_unit_test(failing_to_open),
        cmocka_unit_test(failing_to_load),
        cmocka_unit_test(failing_to_load_waits),
        cmocka_unit_test(failing_work),
        cmocka_unit_test(streams_of_the_caller),
        cmocka_unit_test(current_device),
        cmocka_unit_test(no_context_elsewhere),
        cmocka_unit_test(unknown_context),
    };
    const int failed = cmocka_run_group_tests(threads, NULL, NULL);
    if (ONLY_THREADS)
        printf("SKIPPED: of cuda/test_queues.c, under ThreadSanitizer, the %zu tests that are alone on a thread\n",
               sizeof alone_on_a_thread / sizeof *alone_on_a_thread);
    return failed || ONLY_THREADS ? failed : cmocka_run_group_tests(alone_on_a_thread, NULL, NULL);
}
