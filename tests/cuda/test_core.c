/* The CUDA backend's basics: opening, memory, staging of host arrays, recordings, timer marks, failures. */
#include "tests/cudahost/control.h"
#include "tests/support/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST_CASE(opening)
{
    kern_device *d = NULL;
    mar_err err = {0};
    const int devices = kern_cuda_devices(NULL);
    assert_true(devices >= 1);
    assert_int_equal(kern_cuda_open(MAR_DTYPE_F16, 0, &d, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "f16"));
    assert_int_equal(kern_cuda_open((mar_dtype)17, 0, &d, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "--dtype 17"));
    assert_int_equal(kern_cuda_open(MAR_DTYPE_BF16, 4711, &d, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "GPU number 4711: expected 0.."));
    assert_int_equal(kern_cuda_open(MAR_DTYPE_BF16, -1, &d, &err), MAR_EARG);
    assert_null(d);

    const mar_dtype dtypes[3] = {MAR_DTYPE_AUTO, MAR_DTYPE_BF16, MAR_DTYPE_F32};
    for (int i = 0; i < 3; i++) {
        kern_queue *k = open_cuda(dtypes[i]);
        assert_non_null(strstr(k->device->unit, "multiprocessors"));
        assert_int_equal(k->device->act_size, i < 2 ? 2 : 4);
        assert_int_equal(k->device->draft_budget, 64);
        assert_true(k->device->mod_budget >= (size_t)16 << 20 && k->device->mod_budget < (size_t)4 << 30);
        close_queue(k);
    }
}

TEST_CASE(memory)
{
    enum { N = 1 << 20 };
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    mar_err err = {0};
    unsigned char *host = malloc(N);
    void *p = to_device(k, NULL, N);
    assert_int_equal((uintptr_t)p % 64, 0);
    memset(host, 1, N);
    from_device(k, host, p, N);
    for (int i = 0; i < N; i++) assert_int_equal(host[i], 0);
    k->core->free(k->device, p);
    k->core->free(k->device, NULL);

    p = to_device(k, NULL, 0);
    assert_non_null(p);
    k->core->free(k->device, p);

    assert_int_equal(k->core->alloc(k->device, (size_t)1 << 46, &p, &err), MAR_ENOMEM);
    assert_null(p);
    assert_non_null(strstr(err.text, "out of GPU memory: 65536.0 GB asked, "));
    check_kern(k); /* the backend has not failed: a smaller allocation still works */
    p = to_device(k, host, N);
    k->core->free(k->device, p);
    close_queue(k);
    free(host);
}

static void expect_line(const mar_err *err, const char *begins, const char *says)
{
    if (strncmp(err->text, begins, strlen(begins)) != 0 || !strstr(err->text, says) || strchr(err->text, '\n'))
        fail_msg("\"%s\" does not begin with \"%s\" and say \"%s\" in one line", err->text, begins, says);
}

/* Checks that an error from outside the program says what the user can do: when a GPU is opened, and in a run. */
TEST_CASE(outside_errors)
{
    static const struct {
        int error;
        const char *is, *says;
    } cases[] = {{46, "CUDA-capable device(s) is/are busy or unavailable", "; another process has this GPU for itself"},
                 {209, "no kernel image is available for execution on the device", " in CUDAARCHS"},
                 {999, "unknown error", "; the GPU may be lost: the kernel's log (dmesg)"},
                 {100, "no CUDA-capable device is detected", "; the GPU may be lost: the kernel's log (dmesg)"},
                 {2, "out of GPU memory", " of 8.0 GB free"}};
    if (!cudahost_lose) skip(); /* a GPU that works */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kern_device *d = NULL;
        mar_err err = {0};
        char begins[128];
        float x[1] = {1};
        cudahost_lose(0, cases[i].error);
        const mar_status expected = cases[i].error == 2 ? MAR_ENOMEM : MAR_EBACKEND;
        assert_int_equal(kern_cuda_open(MAR_DTYPE_BF16, 0, &d, &err), expected);
        snprintf(begins, sizeof begins, "choosing the GPU: %s", cases[i].is);
        expect_line(&err, begins, cases[i].says);
        assert_null(d);
        cudahost_lose(0, 0);

        kern_queue *k = open_cuda(MAR_DTYPE_BF16);
        float *p = to_device(k, x, sizeof x);
        cudahost_lose(0, cases[i].error);
        k->core->download(k, x, p, sizeof x);
        assert_int_equal(kern_check(k, &err), expected);
        snprintf(begins, sizeof begins, "downloading: %s", cases[i].is);
        expect_line(&err, begins, cases[i].says);
        assert_float_equal(x[0], 0, 0);
        k->core->recover(k); /* which a lost GPU does not */
        assert_int_equal(kern_check(k, &err), expected);
        k->core->free(k->device, p);
        close_queue(k);
        cudahost_lose(0, 0);
    }
}

/* Checks that the source of an upload may change once the call has returned. Some uploads are large; the small ones
 * exceed the staging ring. */
TEST_CASE(uploads)
{
    enum { SMALL = 64 << 10, PIECES = 200, N = SMALL * PIECES };
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    unsigned char *host = malloc(N), *got = malloc(N), *piece = malloc(SMALL);
    for (int i = 0; i < N; i++) host[i] = (unsigned char)((unsigned)i * 2654435761u >> 24);
    unsigned char *p = to_device(k, NULL, N);
    for (int i = 0; i < PIECES; i++) {
        memcpy(piece, host + i * SMALL, SMALL);
        k->core->upload(k, p + i * SMALL, piece, SMALL);
        memset(piece, 0xaa, SMALL);
    }
    from_device(k, got, p, N);
    assert_memory_equal(got, host, N);

    unsigned char *q = to_device(k, NULL, N), *copy = malloc(N);
    memcpy(copy, host, N);
    k->core->upload(k, q, copy, N);
    memset(copy, 0xaa, N);
    k->core->upload(k, q, copy, 0);
    from_device(k, got, q, N);
    assert_memory_equal(got, host, N);
    k->core->free(k->device, p);
    k->core->free(k->device, q);
    close_queue(k);
    free(host), free(got), free(piece), free(copy);
}

/* Stages several host arrays per operation that need a larger ring. */
TEST_CASE(large_host_arrays)
{
    enum { ROWS = 600000 }; /* indices of 2.4 MB */
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    int *index = malloc(ROWS * sizeof *index), *reverse = malloc(ROWS * sizeof *reverse);
    float *x = random_floats(ROWS, 1, 1), *y = malloc(ROWS * sizeof *y);
    for (int r = 0; r < ROWS; r++) index[r] = (int)((long)r * 7919 % ROWS), reverse[r] = ROWS - 1 - r;
    float *src = to_device(k, x, ROWS * sizeof *x), *dst = to_device(k, NULL, ROWS * sizeof *y);
    for (int times = 0; times < 2; times++) k->core->copy_rows(k, dst, reverse, src, index, src, reverse, ROWS, 1);
    for (int r = 0; r < ROWS; r++) index[r] = reverse[r] = 0; /* the upload has already read them */
    from_device(k, y, dst, ROWS * sizeof *y);
    for (int r = 0; r < ROWS; r++) assert_float_equal(y[ROWS - 1 - r], x[(long)r * 7919 % ROWS] + x[ROWS - 1 - r], 0);
    k->core->free(k->device, src);
    k->core->free(k->device, dst);
    close_queue(k);
    free(index), free(reverse), free(x), free(y);
}

/* Checks operations whose host arrays lie in two parts of the ring, while it goes around more than once. Each adds
 * src[index[r]] to sum[to[r]], from one of two arrays to the other. */
TEST_CASE(arrays_around_the_ring)
{
    enum { ROWS = 40000, TIMES = 24 }; /* 72 arrays of 160 KB; the ring has 4 parts of 2 MB */
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    int *index = malloc(ROWS * sizeof *index), *to = malloc(ROWS * sizeof *to);
    float *x = random_floats(ROWS, 1, 1), *want = calloc(ROWS, sizeof *want), *got = malloc(ROWS * sizeof *got);
    float *src = to_device(k, x, ROWS * sizeof *x);
    float *sum[2] = {to_device(k, NULL, ROWS * sizeof *got), to_device(k, NULL, ROWS * sizeof *got)};
    for (int times = 0; times < TIMES; times++) {
        for (int r = 0; r < ROWS; r++) {
            to[r] = (r + 7 * times) % ROWS, index[r] = (int)((long)r * 7919 % ROWS + times) % ROWS;
            want[to[r]] = x[index[r]] + want[to[r]];
        }
        k->core->copy_rows(k, sum[1 - times % 2], to, src, index, sum[times % 2], to, ROWS, 1);
    }
    from_device(k, got, sum[TIMES % 2], ROWS * sizeof *got);
    assert_memory_equal(got, want, ROWS * sizeof *got);
    for (int i = 0; i < 2; i++) k->core->free(k->device, sum[i]);
    k->core->free(k->device, src);
    close_queue(k);
    free(index), free(to), free(x), free(want), free(got);
}

/* Checks that the backends of one process do not affect each other. */
TEST_CASE(side_by_side)
{
    enum { N = 1000 };
    kern_queue *k[2] = {open_cuda(MAR_DTYPE_BF16), open_cuda(MAR_DTYPE_F32)};
    float *x[2], *p[2], *q[2], got[N];
    for (int i = 0; i < 2; i++) {
        x[i] = random_floats(N, 1, 30 + (uint64_t)i);
        p[i] = to_device(k[i], x[i], N * sizeof(float));
        q[i] = to_device(k[i], NULL, N * sizeof(float));
    }
    for (int times = 0; times < 3; times++)
        for (int i = 0; i < 2; i++) k[i]->core->subtract(k[i], times ? q[i] : p[i], times ? p[i] : q[i], N, q[i]);
    k[0]->core->free(k[0]->device, p[0]);
    for (int i = 0; i < 2; i++) {
        from_device(k[i], got, q[i], sizeof got); /* x, then 0, then -x */
        for (int j = 0; j < N; j++) assert_float_equal(got[j], -x[i][j], 0);
    }
    k[0]->core->free(k[0]->device, q[0]);
    close_queue(k[0]);
    k[1]->core->free(k[1]->device, p[1]);
    k[1]->core->free(k[1]->device, q[1]);
    check_kern(k[1]);
    close_queue(k[1]);
    free(x[0]), free(x[1]);
}

/* --- recordings ------------------------------------------------------------------------------------------------ */

enum { ROWS = 40, DIM = 36 };

typedef struct {
    kern_queue *k;
    const float *fresh;   /* host [DIM] */
    const int *from, *to; /* host [ROWS] */
    float *row, *sum;     /* device [DIM] */
    float *x, *y;         /* device [ROWS][DIM] */
    kern_recording *inner;
    int staged; /* number of rows with indices */
    int runs;   /* runs of the body */
} work;

static void inner_body(void *arg)
{
    work *w = arg;
    w->k->core->copy_rows(w->k, w->y, w->to, w->x, w->from, NULL, NULL, w->staged, DIM);
}

/* Computes y[to[r]] = x[from[r]], then y[3] = y[3] - fresh and sum = sum - fresh. */
static void body(void *arg)
{
    work *w = arg;
    kern_queue *k = w->k;
    w->runs++;
    k->core->upload(w->k, w->row, w->fresh, DIM * sizeof(float));
    k->core->replay(w->k, &w->inner, inner_body, w);
    k->core->subtract(w->k, w->y + 3 * DIM, w->row, DIM, w->y + 3 * DIM);
    k->core->subtract(w->k, w->sum, w->row, DIM, w->sum);
}

static void expect(const work *w, const float *x)
{
    float *want = calloc(ROWS * DIM, sizeof *want), *got = malloc(ROWS * DIM * sizeof *got);
    for (int r = 0; r < ROWS; r++) memcpy(want + w->to[r] * DIM, x + w->from[r] * DIM, DIM * sizeof *want);
    for (int i = 0; i < DIM; i++) want[3 * DIM + i] -= w->fresh[i];
    from_device(w->k, got, w->y, ROWS * DIM * sizeof *got);
    assert_memory_equal(got, want, ROWS * DIM * sizeof *got);
    free(want), free(got);
}

static void open_work(work *w, float **x, int *from, int *to)
{
    memset(w, 0, sizeof *w);
    *x = random_floats(ROWS * DIM, 1, 2);
    w->k = open_cuda(MAR_DTYPE_F32);
    w->row = to_device(w->k, NULL, DIM * sizeof(float));
    w->sum = to_device(w->k, NULL, DIM * sizeof(float));
    w->x = to_device(w->k, *x, ROWS * DIM * sizeof(float));
    w->y = to_device(w->k, NULL, ROWS * DIM * sizeof(float));
    w->from = from;
    w->to = to;
    w->staged = ROWS;
    for (int r = 0; r < ROWS; r++) from[r] = r, to[r] = ROWS - 1 - r;
}

static void close_work(work *w, float *x)
{
    w->k->core->free(w->k->device, w->row);
    w->k->core->free(w->k->device, w->sum);
    w->k->core->free(w->k->device, w->x);
    w->k->core->free(w->k->device, w->y);
    close_queue(w->k);
    free(x);
}

TEST_CASE(recordings)
{
    work w;
    int from[ROWS], to[ROWS];
    float *x, *fresh = random_floats(8 * DIM, 1, 3);
    kern_recording *recording = NULL, *other = NULL;
    open_work(&w, &x, from, to);
    for (int times = 0; times < 4; times++) { /* run, recorded, then replayed with new contents in the host arrays */
        w.fresh = fresh + times * DIM;
        for (int r = 0; r < ROWS; r++) from[r] = (r * 7 + times) % ROWS, to[r] = (r * 11 + 3 * times) % ROWS;
        w.k->core->replay(w.k, &recording, body, &w);
        expect(&w, x);
    }
    assert_null(w.inner); /* part of the outer recording */
    const int runs = w.runs;
    for (int times = 4; times < 8; times++) { /* back to back; the arrays change in between */
        float changing[DIM];
        memcpy(changing, fresh + times * DIM, sizeof changing);
        for (int r = 0; r < ROWS; r++) from[r] = (r + times) % ROWS;
        w.fresh = changing;
        w.k->core->replay(w.k, &recording, body, &w);
        memset(changing, 0, sizeof changing);
        if (times < 7) memset(from, 0, sizeof from);
    }
    assert_int_equal(w.runs, runs + 4);
    w.fresh = fresh + 7 * DIM;
    expect(&w, x);
    float sum[DIM], want[DIM] = {0};
    for (int times = 0; times < 8; times++)
        for (int i = 0; i < DIM; i++) want[i] -= fresh[times * DIM + i];
    from_device(w.k, sum, w.sum, sizeof sum); /* each replay read its own array */
    assert_memory_equal(sum, want, sizeof sum);
    w.k->core->replay(w.k, &other, inner_body, &w); /* a second recording; one without host arrays in between */
    w.k->core->subtract(w.k, w.y + 3 * DIM, w.row, DIM, w.y + 3 * DIM);
    expect(&w, x);
    w.k->core->recording_free(w.k, recording);
    w.k->core->recording_free(w.k, other);
    w.k->core->recording_free(w.k, NULL);
    check_kern(w.k);
    close_work(&w, x);
    free(fresh);
}

static void empty_body(void *arg)
{
    (void)arg;
}

TEST_CASE(empty_recording)
{
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    kern_recording *recording = NULL;
    for (int times = 0; times < 3; times++) k->core->replay(k, &recording, empty_body, NULL);
    k->core->finish(k);
    check_kern(k);
    k->core->recording_free(k, recording);
    close_queue(k);
}

static void expect_failure(kern_queue *k, const char *text)
{
    mar_err err = {0};
    assert_int_equal(kern_check(k, &err), MAR_EBACKEND);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

/* Checks heads of more than 128 elements: a plan and a call refuse more keys than the working memory has room for,
 * spans are refused, and a call needs no plan. */
TEST_CASE(wide_heads)
{
    enum { WIDE = 136, KEYS = 1 << 24 };
    static const int zero = 0, one = 1;
    mar_err err = {0};
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    act *x = to_device(k, NULL, WIDE * sizeof(uint16_t)), *y = to_device(k, NULL, WIDE * sizeof(uint16_t));
    assert_int_equal(k->core->attention_plan(k, 1, KEYS, 1, WIDE, WIDE, WIDE, &err), MAR_EBACKEND);
    assert_non_null(strstr(err.text, "attention over 16777216 keys: a GPU's working memory of "));
    assert_ok(k->core->attention_plan(k, 0, KEYS, 1, WIDE, WIDE, WIDE, &err), &err); /* no queries need no memory */
    check_kern(k);
    k->core->attention(k, x, WIDE, x, x, WIDE, 1, 1, KEYS, 1, WIDE, y);
    expect_failure(k, "attention over 16777216 keys: ");
    k->core->recover(k);
    k->core->attention_spans(k, x, WIDE, &zero, &one, x, x, WIDE, &zero, &one, 1, 1, WIDE, NULL, 0, y);
    expect_failure(k, "spans with heads of 136 elements: a GPU takes up to 128");
    k->core->recover(k);
    k->core->attention(k, x, WIDE, x, x, WIDE, 1, 1, 1, 1, WIDE, y);
    check_kern(k);
    k->core->free(k->device, x);
    k->core->free(k->device, y);
    close_queue(k);
}

/* Checks that any change in a body's host arrays since the recording is detected. */
TEST_CASE(changed_recordings)
{
    for (int what = 0; what < 3; what++) {
        work w;
        int from[ROWS], to[ROWS];
        float *x, *fresh = random_floats(DIM, 1, 4), got[1] = {5};
        kern_recording *recording = NULL;
        open_work(&w, &x, from, to);
        w.fresh = fresh;
        for (int times = 0; times < 2; times++) { /* run, then recorded */
            w.k->core->replay(w.k, &recording, body, &w);
            expect(&w, x);
        }
        if (what == 0) w.staged = ROWS / 2;
        if (what == 1) w.from = NULL;
        if (what == 2) w.staged = 1 << 20, w.from = w.to = calloc(1 << 20, sizeof(int));
        w.k->core->replay(w.k, &recording, body, &w);
        expect_failure(w.k, "internal error: a recording's host arrays are not those that were recorded");
        w.k->core->download(w.k, got, w.x, sizeof got); /* after a failure, calls do nothing and return */
        assert_float_equal(got[0], 0, 0);
        w.k->core->replay(w.k, &recording, body, &w);
        if (what == 2) free((void *)(uintptr_t)w.to);
        w.k->core->recording_free(w.k, recording);
        close_work(&w, x);
        free(fresh);
    }
}

static void loading(void *arg)
{
    kern_queue *k = ((work *)arg)->k;
    const float weight[1] = {1};
    const kern_linear_spec spec = {.out = 1, .in = 1, .weight = weight};
    kern_linear *l = NULL;
    mar_err err = {0};
    assert_int_not_equal(k->core->linear_create(k, &spec, &l, &err), MAR_OK);
    assert_null(l);
}
static void downloading(void *arg)
{
    float x = 0;
    ((work *)arg)->k->core->download(((work *)arg)->k, &x, ((work *)arg)->x, sizeof x);
}
static void waiting(void *arg)
{
    ((work *)arg)->k->core->finish(((work *)arg)->k);
}
static void timing(void *arg)
{
    ((work *)arg)->k->core->timer_mark(((work *)arg)->k, NULL);
}

/* The call under test. A recording refuses it while it is measured, recorded or refilled. */
static void (*forbidden)(void *arg);
static int forbid; /* first run that makes the forbidden call */

static void forbidden_body(void *arg)
{
    body(arg);
    if (forbid-- <= 0) forbidden(arg);
}

TEST_CASE(forbidden_in_recordings)
{
    void (*const calls[4])(void *) = {loading, downloading, waiting, timing};
    const char *const texts[4] = {"a load inside a recording", "a download inside a recording",
                                  "a wait inside a recording", "a timer mark inside a recording"};
    for (int i = 0; i < 12; i++) {
        work w;
        int from[ROWS], to[ROWS];
        float *x, *fresh = random_floats(DIM, 1, 5);
        kern_recording *recording = NULL;
        open_work(&w, &x, from, to);
        w.fresh = fresh;
        forbidden = calls[i % 4];
        forbid = 1 + i / 4; /* when measured, recorded or refilled; the first use makes no recording */
        for (int times = 0; times < (i / 4 == 2 ? 3 : 2); times++) {
            check_kern(w.k);
            w.k->core->replay(w.k, &recording, forbidden_body, &w);
        }
        expect_failure(w.k, texts[i % 4]);
        w.k->core->recording_free(w.k, recording);
        close_work(&w, x);
        free(fresh);
    }
}

/* --- timer marks ------------------------------------------------------------------------------------------------- */

TEST_CASE(timer_marks)
{
    enum { N = 1 << 16, MANY = 6000 };
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    float *x = to_device(k, NULL, N * sizeof *x), first;
    double work_time = 0, rest = 0, all = 0, unused = 0;
    k->core->timer_mark(k, &unused); /* starts the clock */
    k->core->finish(k);
    assert_true(unused == 0);
    k->core->timer_mark(k, NULL);
    k->core->subtract(k, x, x, N, x);
    k->core->timer_mark(k, &work_time);
    k->core->timer_mark(k, &rest);
    from_device(k, &first, x, sizeof first);
    assert_true(work_time > 0 && rest >= 0 && work_time < 60 && rest < 60);
    const double before = work_time;
    k->core->subtract(k, x, x, N, x);
    k->core->timer_mark(k, &work_time); /* counted from the last mark, despite the wait */
    k->core->finish(k);
    assert_true(work_time > before);
    k->core->timer_mark(k, NULL);
    for (int i = 0; i < MANY; i++) k->core->timer_mark(k, &all);
    k->core->finish(k);
    assert_true(all > 0 && all < 60);
    check_kern(k);
    k->core->free(k->device, x);
    close_queue(k);
}
