/* cuBLASLt's algorithms of a product: which of them is taken, and what becomes of those that cannot be run. */
#include "mar.h"
#include "tests/support/device.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* --- timed algorithms -------------------------------------------------------------------------------------------- */

/* tests/cudahost/cublasLt.h and cuda_runtime.h; a GPU has nothing like them. */
enum { REVERSED = 1, FAR, BIAS_FIRST };
typedef struct {
    double ms;
    int fails, differs;
} cudahost_algorithm;
__attribute__((weak)) void cudahost_algorithms(const cudahost_algorithm *list, int n);
__attribute__((weak)) int cudahost_last_algorithm(long *products);
__attribute__((weak)) void cudahost_fail_after(long calls);
__attribute__((weak)) long cudahost_objects(void);
__attribute__((weak)) long cudahost_hasty_frees(void);

static long products(void)
{
    long n;
    (void)cudahost_last_algorithm(&n);
    return n;
}

/* A layer of 64 to 64 numbers on a new device that times algorithms, or not. */
typedef struct {
    kern_queue *k;
    kern_linear *l;
    void *x, *y;
    size_t n; /* numbers of y */
} timed_layer;

enum { TIMED = 64, TIMED_ROWS = 40 };

static timed_layer open_layer(mar_dtype dtype, int flags, kern_activation activation, int tune)
{
    timed_layer t = {.k = open_cuda(dtype), .n = (size_t)TIMED_ROWS * TIMED};
    mar_err err = {0};
    float *w = random_floats(TIMED * TIMED, 0.125f, 5), *b = random_floats(TIMED, 1, 6), *x = random_floats(t.n, 1, 7);
    const kern_linear_spec spec = {
        .out = TIMED, .in = TIMED, .weight = w, .bias = b, .activation = activation, .flags = flags};
    t.k->device->tune = tune;
    assert_ok(t.k->core->linear_create(t.k, &spec, &t.l, &err), &err);
    t.x = flags & KERN_IN_F32 ? to_device(t.k, x, t.n * sizeof *x) : to_act(t.k, x, t.n);
    t.y = to_device(t.k, NULL, t.n * sizeof(float));
    free(w), free(b), free(x);
    return t;
}

/* Plans and computes; the bits of y as they are go to `y`. Returns the number of the algorithm. */
static int run_layer(const timed_layer *t, void *y)
{
    mar_err err = {0};
    long count;
    assert_ok(t->k->core->linear_plan(t->k, t->l, TIMED_ROWS, &err), &err);
    t->k->core->linear(t->k, t->l, t->x, TIMED_ROWS, t->y);
    from_device(t->k, y, t->y, t->n * sizeof(float));
    return cudahost_last_algorithm(&count);
}

static void close_layer(timed_layer *t)
{
    t->k->core->linear_free(t->k->device, t->l);
    t->k->core->free(t->k->device, t->x), t->k->core->free(t->k->device, t->y);
    close_queue(t->k);
}

/* The fastest of those that can be run and give the first one's bits; without timing the first. */
static void the_fastest_with_the_same_bits(void **state)
{
    static const struct {
        int expected, timed, n;
        cudahost_algorithm list[9];
    } cases[] = {
        {2, 1, 5, {{3, 0, 0}, {4, 0, 0}, {2, 0, 0}, {0.5, 1, 0}, {1, 0, REVERSED}}},
        {0, 1, 2, {{3, 0, 0}, {3, 0, 0}}},
        {0, 0, 3, {{3, 0, 0}, {1, 0, REVERSED}, {2, 1, 0}}},
        {0, 0, 2, {{3, 0, 0}, {1, 0, FAR}}},
        {0, 0, 2, {{3, 0, 0}, {1, 0, BIAS_FIRST}}},
        {3, 1, 4, {{1, 1, 0}, {3, 0, REVERSED}, {2, 0, 0}, {2, 0, REVERSED}}}, /* the first that can be run counts */
        {1, 0, 2, {{1, 1, 0}, {2, 0, 0}}},
        {7, 1, 9, {{9, 0, 0}, {8, 0, 0}, {7, 0, 0}, {6, 0, 0}, {5, 0, 0}, {4, 0, 0}, {3, 0, 0}, {2, 0, 0}, {1, 0, 0}}},
    };
    static const int flags[] = {0, KERN_OUT_F32, KERN_OUT_F32 | KERN_OUT_ADD, KERN_IN_F32 | KERN_OUT_F32};
    (void)state;
    if (!cudahost_algorithms) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int d = 0; d < 2; d++)
            for (int f = 0; f < 4; f++) {
                static float y[TIMED_ROWS * TIMED], untimed[TIMED_ROWS * TIMED];
                const kern_activation activation = f ? KERN_LINEAR : KERN_GELU;
                const mar_dtype dtype = d ? MAR_DTYPE_BF16 : MAR_DTYPE_F32;
                cudahost_algorithms(cases[i].list, cases[i].n);
                timed_layer t = open_layer(dtype, flags[f], activation, 1);
                assert_int_equal(run_layer(&t, y), cases[i].expected);
                assert_int_equal(t.k->device->tuned, cases[i].timed);
                assert_int_equal(t.k->device->tuned_otherwise, cases[i].timed && cases[i].expected != 0);
                assert_int_equal(run_layer(&t, untimed), cases[i].expected); /* and again */
                close_layer(&t);
                if (cases[i].list[0].fails) continue;
                t = open_layer(dtype, flags[f], activation, 0);
                const long before = products();
                assert_int_equal(run_layer(&t, untimed), 0);
                assert_int_equal(products(), before + 1);
                assert_int_equal(t.k->device->tuned, 0);
                assert_memory_equal(y, untimed, sizeof y);
                close_layer(&t);
            }
    cudahost_algorithms(NULL, 0);
}

/* Without any algorithm the simple kernel computes. If none can be run, the product says so. */
static void without_an_algorithm(void **state)
{
    static const cudahost_algorithm bad[2] = {{1, 1, 0}, {1, 1, 0}};
    static float y[TIMED_ROWS * TIMED], expected[TIMED_ROWS * TIMED];
    mar_err err = {0};
    (void)state;
    if (!cudahost_algorithms) return;
    timed_layer t = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1);
    run_layer(&t, expected);
    close_layer(&t);
    cudahost_algorithms(NULL, -1);
    const long before = products();
    t = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1);
    run_layer(&t, y);
    assert_int_equal(products(), before);
    assert_close(y, expected, TIMED_ROWS * TIMED, 1e-5);
    close_layer(&t);
    cudahost_algorithms(bad, 2);
    t = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1);
    assert_ok(t.k->core->linear_plan(t.k, t.l, TIMED_ROWS, &err), &err);
    t.k->core->linear(t.k, t.l, t.x, TIMED_ROWS, t.y);
    assert_int_equal(kern_check(t.k, &err), MAR_EBACKEND);
    assert_non_null(strstr(err.text, "cuBLASLt: a product of 40 x 64 by 64 x 64"));
    assert_int_equal(t.k->device->tuned, 0);
    close_layer(&t);
    cudahost_algorithms(NULL, 0);
}

static void plan_rows(const timed_layer *t, int rows)
{
    mar_err err = {0};
    assert_ok(t->k->core->linear_plan(t->k, t->l, rows, &err), &err);
}

/* A product is computed twice for its bits and timed three times, long ones once; and so many that all take two
 * seconds. */
static void timing_is_bounded(void **state)
{
    static const cudahost_algorithm quick[2] = {{1, 0, 0}, {2, 0, 0}}, slow[2] = {{400, 0, 0}, {300, 0, 0}};
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(quick, 2);
    timed_layer t = open_layer(MAR_DTYPE_BF16, 0, KERN_LINEAR, 1);
    long before = products();
    plan_rows(&t, 16);
    assert_int_equal(products() - before, 2 * 2 + 3 * 2);
    assert_int_equal(t.k->device->tuning_ns, 9000000);
    plan_rows(&t, 16);
    assert_int_equal(products() - before, 2 * 2 + 3 * 2);
    cudahost_algorithms(slow, 2);
    for (int i = 1; i <= 5; i++) { /* 0.7 s each */
        before = products();
        plan_rows(&t, 16 + i);
        assert_int_equal(products() - before, i <= 3 ? 2 * 2 + 2 : 0);
    }
    assert_int_equal(t.k->device->tuned, 4);
    close_layer(&t);
    cudahost_algorithms(NULL, 0);
}

static void layer_body(void *arg)
{
    const timed_layer *t = arg;
    t->k->core->linear(t->k, t->l, t->x, TIMED_ROWS, t->y);
}

typedef struct {
    const timed_layer *layer;
    int rows;
} some_rows;

static void rows_body(void *arg)
{
    const some_rows *r = arg;
    const timed_layer *t = r->layer;
    t->k->core->linear(t->k, t->l, t->x, r->rows, t->y);
}

/* A product that was not planned is timed where the body runs at once, as it does the first time, but not in a
 * recording, which would hold what was timed; nor later. */
static void not_in_a_recording(void **state)
{
    static const cudahost_algorithm list[2] = {{2, 0, 0}, {1, 0, 0}};
    static float y[TIMED_ROWS * TIMED];
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(list, 2);
    timed_layer t = open_layer(MAR_DTYPE_BF16, 0, KERN_LINEAR, 1);
    some_rows r = {&t, 8};
    kern_recording *recording = NULL;
    for (int i = 0; i < 3; i++) {
        t.k->core->replay(t.k, &recording, rows_body, &r);
        r.rows = TIMED_ROWS;
    }
    t.k->core->finish(t.k);
    check_kern(t.k);
    assert_int_equal(t.k->recordings, 1);
    assert_int_equal(t.k->device->tuned, 1);
    assert_int_equal(run_layer(&t, y), 0);
    assert_int_equal(t.k->device->tuned, 1);
    t.k->core->recording_free(t.k, recording);
    close_layer(&t);
    cudahost_algorithms(NULL, 0);
}

typedef struct {
    timed_layer mine, other;
    int planned; /* by the other */
} two_queues;

static void body_beside_plans(void *arg)
{
    two_queues *t = arg;
    layer_body(&t->mine);
    plan_rows(&t->other, 16 + t->planned++);
}

/* Timing waits for its own stream only: another queue may be recording. */
static void timing_disturbs_no_recording(void **state)
{
    static const cudahost_algorithm list[2] = {{2, 0, 0}, {1, 0, 0}};
    static float want[TIMED_ROWS * TIMED], got[TIMED_ROWS * TIMED];
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(list, 2);
    two_queues t = {.mine = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1)};
    assert_int_equal(run_layer(&t.mine, want), 1);
    t.other = t.mine;
    t.other.k = new_queue(t.mine.k->device);
    kern_recording *recording = NULL;
    for (int i = 0; i < 3; i++) t.mine.k->core->replay(t.mine.k, &recording, body_beside_plans, &t);
    from_device(t.mine.k, got, t.mine.y, sizeof got);
    assert_memory_equal(got, want, sizeof got);
    assert_int_equal(t.mine.k->device->tuned, 1 + t.planned);
    assert_true(t.planned > 1);
    check_kern(t.other.k);
    t.mine.k->core->recording_free(t.mine.k, recording);
    t.other.k->core->leave(t.other.k);
    t.other.k->core->queue_free(t.other.k);
    close_layer(&t.mine);
    cudahost_algorithms(NULL, 0);
}

enum { SHAPES = 6, PLANNERS = 3 };

static void *plan_shapes(void *arg)
{
    const timed_layer *t = arg;
    timed_layer own = *t;
    own.k = new_queue(t->k->device);
    for (int i = 0; i < SHAPES; i++) plan_rows(&own, 8 + i);
    own.k->core->leave(own.k);
    own.k->core->queue_free(own.k);
    return NULL;
}

/* Queues that plan the same shapes at the same time share what one of them has timed. */
static void a_shape_is_timed_once(void **state)
{
    static const cudahost_algorithm list[2] = {{2, 0, 0}, {1, 0, 0}};
    pthread_t threads[PLANNERS];
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(list, 2);
    timed_layer t = open_layer(MAR_DTYPE_BF16, 0, KERN_LINEAR, 1);
    const long before = products();
    for (int i = 0; i < PLANNERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, plan_shapes, &t), 0);
    for (int i = 0; i < PLANNERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(t.k->device->tuned, SHAPES);
    assert_int_equal(t.k->device->tuned_otherwise, SHAPES);
    assert_int_equal(products() - before, SHAPES * (2 * 2 + 3 * 2));
    close_layer(&t);
    cudahost_algorithms(NULL, 0);
}

/* mar_options.tuning: on by default; the tokens are the same, and the statistics say what it did. */
static void sessions_time_unless_told_not_to(void **state)
{
    static const cudahost_algorithm list[2] = {{2, 0, 0}, {1, 0, 0}};
    static float tokens[2][64 * 8]; /* the demo's */
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(list, 2);
    for (int off = 0; off < 2; off++) {
        const mar_options options = {.backend = MAR_BACKEND_CUDA, .tuning = off ? MAR_TUNING_OFF : MAR_TUNING_ON};
        const mar_params p = params_with("num_iter 1, num_sampling_steps 2, cfg 1");
        mar *m;
        mar_model *model;
        mar_session *s;
        mar_stats stats;
        assert_int_equal(mar_open(&options, &m), MAR_OK);
        assert_library(m, mar_model_load(m, "demo", 0, &model));
        assert_library(m, mar_session_create(model, NULL, &p, 1, &s));
        assert_session(s, mar_session_begin(s, 0, (int[]){3}, 1));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_tokens(s, tokens[off]));
        mar_session_get_stats(s, &stats);
        assert_true(off ? stats.products_tuned == 0 : stats.products_tuned > 5);
        assert_int_equal(stats.products_otherwise, stats.products_tuned);
        assert_true(fabs(stats.tuning_s - 0.009 * stats.products_tuned) < 1e-6);
        mar_session_free(s);
        mar_model_free(model);
        mar_close(m);
    }
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    cudahost_algorithms(NULL, 0);
}

/* Whatever fails while algorithms are timed, only their heuristic fails a plan: the product is right, nothing is lost,
 * and another queue can time a larger product at once, whose memory replaces that of the first, unused by then. */
static void failures_while_timing(void **state)
{
    static const cudahost_algorithm list[3] = {{3, 0, 0}, {2, 0, 0}, {1, 0, 0}};
    static float y[TIMED_ROWS * TIMED], expected[TIMED_ROWS * TIMED];
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(list, 3);
    timed_layer t = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1);
    run_layer(&t, expected);
    close_layer(&t);
    for (int n = 0, done = 0; !done; n++) {
        mar_err err = {0};
        const long before = cudahost_objects();
        t = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1);
        cudahost_fail_after(n);
        const mar_status status = t.k->core->linear_plan(t.k, t.l, TIMED_ROWS, &err);
        cudahost_fail_after(-1);
        assert_int_equal(status, n == 0 ? MAR_EBACKEND : MAR_OK);
        check_kern(t.k);
        done = t.k->device->tuned;
        if (!done) {
            timed_layer other = t;
            const long hasty = cudahost_hasty_frees();
            other.k = new_queue(t.k->device);
            plan_rows(&other, 2 * TIMED_ROWS);
            assert_int_equal(cudahost_hasty_frees(), hasty);
            assert_int_equal(t.k->device->tuned, 1);
            other.k->core->leave(other.k);
            other.k->core->queue_free(other.k);
        }
        if (n > 0) assert_int_equal(run_layer(&t, y), done ? 2 : 0);
        if (n > 0) assert_memory_equal(y, expected, sizeof y);
        close_layer(&t);
        assert_int_equal(cudahost_objects(), before);
        assert_true(n < 200);
    }
    cudahost_algorithms(NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_with_the_same_bits),
        cmocka_unit_test(without_an_algorithm),
        cmocka_unit_test(timing_is_bounded),
        cmocka_unit_test(not_in_a_recording),
        cmocka_unit_test(timing_disturbs_no_recording),
        cmocka_unit_test(a_shape_is_timed_once),
        cmocka_unit_test(sessions_time_unless_told_not_to),
        cmocka_unit_test(failures_while_timing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
