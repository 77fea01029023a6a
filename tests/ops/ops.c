#include "tests/ops/ops.h"
#include "tests/cudahost/control.h"

#include <limits.h>
#include <stdio.h>

const double ops_untouched = 0x1.123456789abcdp+1000, ops_any = 0x1.23456789abcdep+1000;

int ops_on_cuda(void)
{
    return kern_cuda_open != NULL;
}

int ops_has_asked(void)
{
    return !ops_on_cuda() || cuda_has_asked();
}

#ifdef CUDA_TEST_BRIEF
int ops_brief(void)
{
    return cuda_test_brief();
}

int ops_scale(void)
{
    return cuda_test_scale();
}
#else
int ops_brief(void)
{
    return test_brief;
}

int ops_scale(void)
{
    return 1;
}
#endif

kern_queue *ops_open(mar_dtype dtype)
{
    return ops_on_cuda() ? open_cuda(dtype) : open_queue(dtype, 2);
}

/* --- numbers -------------------------------------------------------------------------------------------------- */

double ops_bf16(double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(f)) return x;
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    float result;
    memcpy(&result, &bits, sizeof result);
    return (double)result;
}

double ops_element_of(const ops_call *c, ops_element type, double x)
{
    if (type == OPS_ACT && c->bf16) return ops_bf16(x);
    return type == OPS_FLOAT || type == OPS_ACT ? (double)(float)x : x;
}

double ops_dot(const double *x, const double *y, int n)
{
    double sum[4] = {0};
    int i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++) sum[j] += x[i + j] * y[i + j];
    for (; i < n; i++) sum[0] += x[i] * y[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

void *ops_keep(ops_call *c, void *p)
{
    assert_non_null(p);
    assert_in_range(c->hosts, 0, sizeof c->host / sizeof *c->host - 1);
    return c->host[c->hosts++] = p;
}

void *ops_host(ops_call *c, size_t bytes)
{
    return ops_keep(c, calloc(bytes + 16, 1));
}

static float *normals(ops_call *c, size_t n, double scale, uint64_t other)
{
    return ops_keep(c, random_floats(n, (float)scale, c->stream++ * 2 + other));
}

float *ops_floats(ops_call *c, size_t n, double scale)
{
    return normals(c, n, scale, (uint64_t)c->other);
}

float *ops_weights(ops_call *c, size_t n, double scale)
{
    return normals(c, n, scale, 0);
}

uint32_t ops_word(ops_call *c)
{
    uint32_t words[4];
    kern_random_words(c->stream++, KERN_NOISE_ORDER, (uint64_t)c->other, 0, 0, 0, words);
    return words[0];
}

int *ops_below(ops_call *c, size_t n, int bound)
{
    int *x = ops_host(c, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (int)(ops_word(c) % (uint32_t)bound);
    return x;
}

float *ops_golden(ops_call *c, const wt_file *f, const char *name, int64_t n)
{
    return ops_keep(c, golden_f32(f, name, n));
}

ops_array *ops_last(ops_call *c)
{
    return &c->array[c->arrays - 1];
}

double *ops_input(ops_call *c, ops_element type, size_t n, size_t row, double scale)
{
    assert_in_range(c->arrays, 0, OPS_ARRAYS - 1);
    ops_array *a = &c->array[c->arrays++];
    *a = (ops_array){.type = type, .n = n, .row = row, .x = ops_host(c, n * sizeof(double))};
    float *x = random_floats(n, (float)(scale != 0 ? scale : 1), c->stream++ * 2 + (uint64_t)c->other);
    for (size_t i = 0; i < n; i++)
        a->x[i] = scale == 0         ? 0
                  : type == OPS_INT  ? rint((double)x[i] * 1000) + 0.0 /* no -0 */
                  : type == OPS_BYTE ? fmod(fabs(rint((double)x[i] * 256)), 256)
                                     : ops_element_of(c, type, (double)x[i]);
    free(x);
    return a->x;
}

double *ops_written(ops_call *c, double f32, double bf16)
{
    ops_array *a = ops_last(c);
    a->want = ops_host(c, a->n * sizeof(double));
    a->allowed = c->bf16 ? bf16 : f32;
    for (size_t i = 0; i < a->n; i++) a->want[i] = ops_untouched;
    return a->want;
}

double *ops_output(ops_call *c, ops_element type, size_t n, size_t row, double f32, double bf16)
{
    ops_input(c, type, n, row, 1);
    return ops_written(c, f32, bf16);
}

/* --- a case on a queue ------------------------------------------------------------------------------------------ */

static size_t size_of(const kern_queue *k, ops_element type)
{
    return type == OPS_ACT ? k->device->act_size : type == OPS_BYTE ? 1 : type == OPS_DOUBLE ? 8 : 4;
}

/* Convert an array's numbers to the backend's representation, and back. */
static void to_bits(const kern_queue *k, const ops_array *a, unsigned char *bits)
{
    const size_t size = size_of(k, a->type);
    for (size_t i = 0; i < a->n; i++) {
        const float f = (float)a->x[i];
        const int whole = a->type == OPS_INT || a->type == OPS_BYTE ? (int)a->x[i] : 0;
        uint32_t word;
        memcpy(&word, &f, sizeof word);
        if (a->type == OPS_INT || a->type == OPS_BYTE)
            memcpy(bits + i * size, &whole, size); /* little-endian */
        else if (a->type == OPS_DOUBLE)
            memcpy(bits + i * size, &a->x[i], size);
        else
            memcpy(bits + i * size, (char *)&word + (4 - size), size);
    }
}

static void from_bits(const kern_queue *k, const ops_array *a, const unsigned char *bits, double *x)
{
    const size_t size = size_of(k, a->type);
    for (size_t i = 0; i < a->n; i++) {
        uint32_t word = 0;
        float f;
        int whole = 0;
        if (a->type == OPS_DOUBLE) {
            memcpy(&x[i], bits + i * size, size);
        } else if (a->type == OPS_INT || a->type == OPS_BYTE) {
            memcpy(&whole, bits + i * size, size);
            x[i] = whole;
        } else {
            memcpy((char *)&word + (4 - size), bits + i * size, size);
            memcpy(&f, &word, sizeof f);
            x[i] = (double)f;
        }
    }
}

/* A case with its arrays in a queue's memory. */
typedef struct {
    const ops_entry *e;
    ops_call *c;
    kern_queue *k;
    unsigned char *memory[OPS_ARRAYS], *a[OPS_ARRAYS];
    unsigned char *bits[OPS_ARRAYS]; /* results of the last call */
    kern_recording *recording;
    void *object;
} bench;

static size_t bytes_of(const bench *b, int i)
{
    return b->c->array[i].n * size_of(b->k, b->c->array[i].type);
}

static void open_bench(bench *b, const ops_entry *e, ops_call *c, kern_queue *k)
{
    *b = (bench){.e = e, .c = c, .k = k};
    if (e->prepare) b->object = e->prepare(k, c);
    for (int i = 0; i < c->arrays; i++) {
        const size_t skipped = c->array[i].offset * size_of(k, c->array[i].type);
        b->memory[i] = backend_memory(k, bytes_of(b, i) + skipped);
        b->a[i] = b->memory[i] + skipped;
        b->bits[i] = malloc(bytes_of(b, i) + 1);
        assert_non_null(b->bits[i]);
    }
}

static void close_bench(bench *b)
{
    b->k->core->recording_free(b->k, b->recording);
    if (b->e->release) b->e->release(b->k->device, b->object);
    for (int i = 0; i < b->c->arrays; i++) b->k->core->free(b->k->device, b->memory[i]), free(b->bits[i]);
}

static void describe(const bench *b, char *text, size_t size)
{
    int used = snprintf(text, size, "%s, case %d%s (", b->e->name, b->c->index, b->c->other ? ", other contents" : "");
    for (int i = 0; i < b->e->width; i++) used += snprintf(text + used, size - (size_t)used, "%d ", b->c->n[i]);
    snprintf(text + used, size - (size_t)used, "of %s), rows %d..%d, on %s", b->e->numbers, b->c->first,
             b->c->first + b->c->rows, b->k->device->unit);
}

#define fail_case(b, ...)                                                                                              \
    do {                                                                                                               \
        char what_[600], where_[512];                                                                                  \
        snprintf(what_, sizeof what_, __VA_ARGS__);                                                                    \
        describe(b, where_, sizeof where_);                                                                            \
        fail_msg("%s: %s", where_, what_);                                                                             \
    } while (0)

static void upload_all(const bench *b)
{
    for (int i = 0; i < b->c->arrays; i++) {
        to_bits(b->k, &b->c->array[i], b->bits[i]);
        b->k->core->upload(b->k, b->a[i], b->bits[i], bytes_of(b, i));
    }
}

static void call(void *arg)
{
    const bench *b = arg;
    void *at[OPS_ARRAYS];
    for (int i = 0; i < b->c->arrays; i++)
        at[i] = b->a[i] + (size_t)b->c->first * b->c->array[i].row * size_of(b->k, b->c->array[i].type);
    b->c->object = b->object;
    b->e->run(b->k, b->c, at);
}

/* Calls the operation on fresh arrays. Stores the arrays' contents after it in `bits`. */
static void run(bench *b, int recorded)
{
    upload_all(b);
    if (recorded)
        b->k->core->replay(b->k, &b->recording, call, b);
    else
        call(b);
    for (int i = 0; i < b->c->arrays; i++) b->k->core->download(b->k, b->bits[i], b->a[i], bytes_of(b, i));
}

static void run_well(bench *b, int recorded)
{
    mar_err err = {0};
    run(b, recorded);
    if (kern_check(b->k, &err) != MAR_OK) fail_case(b, "%s", err.text);
}

/* --- what must hold --------------------------------------------------------------------------------------------- */

static int same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Compares array i with its expected contents. */
static void compare(const bench *b, int i, const double *got)
{
    const ops_array *a = &b->c->array[i];
    double error = 0, norm = 0;
    for (size_t j = 0; j < a->n; j++) {
        const double want = a->want ? a->want[j] : ops_untouched, x = got[j];
        if (want == ops_any) continue;
        if (want == ops_untouched) {
            if (!same(x, a->x[j]) && !(isnan(x) && isnan(a->x[j])))
                fail_case(b, "array %d, element %zu was written: %.9g, before %.9g", i, j, x, a->x[j]);
            continue;
        }
        const double gap = fabs(x - want), bound = a->each * fmax(1, fabs(want));
        const int right = isnan(want)                                    ? isnan(x)
                          : !isfinite(want) || (!a->allowed && !a->each) ? x == want
                          : a->each                                      ? gap <= bound
                                                                         : isfinite(x) != 0;
        if (!right) fail_case(b, "array %d, element %zu: %.9g, expected %.9g", i, j, x, want);
        if (isfinite(want)) error += gap * gap, norm += want * want;
    }
    error = sqrt(error) / (norm > 0 ? sqrt(norm) : 1);
    if (a->allowed != 0 && !a->each && !(error <= a->allowed))
        fail_case(b, "array %d: relative error %.3g, allowed %.3g", i, error, a->allowed);
}

static void compare_all(bench *b)
{
    double *got[OPS_ARRAYS];
    for (int i = 0; i < b->c->arrays; i++) {
        got[i] = malloc(b->c->array[i].n * sizeof(double) + 1);
        assert_non_null(got[i]);
        from_bits(b->k, &b->c->array[i], b->bits[i], got[i]);
        compare(b, i, got[i]);
    }
    if (b->e->check) b->e->check(b->c, got);
    for (int i = 0; i < b->c->arrays; i++) free(got[i]);
}

/* Compares the bits of called rows with another bench, and those of other rows with their previous contents. */
static void compare_bits(const bench *b, const bench *whole, const char *what)
{
    for (int i = 0; i < b->c->arrays; i++) {
        const ops_array *a = &b->c->array[i];
        const size_t size = size_of(b->k, a->type);
        if (!a->want || size != size_of(whole->k, a->type)) continue;
        if (b->c->first == 0 && b->c->rows == whole->c->rows) {
            if (memcmp(b->bits[i], whole->bits[i], bytes_of(b, i)) == 0) continue;
        } else if (!a->row) {
            continue;
        }
        unsigned char *before = malloc(bytes_of(b, i) + 1);
        assert_non_null(before);
        to_bits(b->k, a, before);
        for (size_t j = 0; j < a->n; j++) {
            const size_t row = a->row ? j / a->row : 0;
            const int called = !a->row || (row >= (size_t)b->c->first && row < (size_t)(b->c->first + b->c->rows));
            const unsigned char *want = called ? whole->bits[i] : before;
            if (memcmp(b->bits[i] + j * size, want + j * size, size) != 0)
                fail_case(b, "array %d, element %zu differs in some bit: %s", i, j, what);
        }
        free(before);
    }
}

/* Checks that calls with fewer rows give the same bits. */
static void check_parts(bench *whole, int thorough)
{
    static const int counts[] = {1, 2, 3, 5, 8, 17, 31, 63, 64, 65, 100, 128, 199};
    const int rows = whole->c->rows;
    ops_call c = *whole->c;
    bench part = *whole;
    part.c = &c, part.recording = NULL;
    for (int i = 0; i < whole->c->arrays; i++) assert_non_null(part.bits[i] = malloc(bytes_of(whole, i) + 1));
    const int turns = rows > 1 ? (!thorough ? 2 : 2 + (int)(sizeof counts / sizeof *counts)) : 0;
    for (int turn = 0; turn < turns; turn++) {
        c.first = turn == 0 ? rows - 1 : turn == 1 ? rows / 3 : 0;
        c.rows = turn == 0 ? 1 : turn == 1 ? (rows + 2) / 3 : counts[turn - 2];
        if (c.first + c.rows > rows) continue;
        run_well(&part, 0);
        compare_bits(&part, whole, "alone it is another");
    }
    for (int i = 0; i < whole->c->arrays; i++) free(part.bits[i]);
}

static void check_nothing(bench *b, const char *what)
{
    for (int i = 0; i < b->c->arrays; i++) {
        unsigned char *before = malloc(bytes_of(b, i) + 1);
        assert_non_null(before);
        to_bits(b->k, &b->c->array[i], before);
        b->k->core->download(b->k, b->bits[i], b->a[i], bytes_of(b, i));
        if (memcmp(before, b->bits[i], bytes_of(b, i)) != 0) fail_case(b, "array %d was written %s", i, what);
        free(before);
    }
}

/* Checks that the operation changes nothing without rows, after a failure, and after a cancel. */
static void check_idle(bench *b)
{
    int cancel = 1;
    mar_err err = {0};
    const int rows = b->c->rows;
    if (rows > 0) {
        b->c->rows = 0;
        upload_all(b);
        call(b);
        assert_ok(kern_check(b->k, &err), &err);
        check_nothing(b, "without rows");
        b->c->rows = rows;
    }
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        upload_all(b);
        b->k->core->finish(b->k);
        if (cancelled)
            b->k->cancel = &cancel;
        else
            kern_fail(b->k, err_set(&err, MAR_EBACKEND, "injected"), &err);
        call(b);
        assert_int_equal(kern_check(b->k, &err), cancelled ? MAR_ECANCELLED : MAR_EBACKEND);
        b->k->cancel = NULL;
        b->k->core->recover(b->k);
        check_nothing(b, cancelled ? "on a cancelled queue" : "on a failed queue");
    }
}

/* Checks a run, its recording, a replay with other contents, and a replay with the original contents. */
static void check_recording(bench *b, ops_call *other)
{
    ops_call *mine = b->c;
    bench theirs = *b;
    theirs.c = other, theirs.recording = NULL;
    for (int i = 0; i < other->arrays; i++) assert_non_null(theirs.bits[i] = malloc(bytes_of(&theirs, i) + 1));
    run_well(&theirs, 0);
    compare_all(&theirs);
    bench first = *b;
    for (int i = 0; i < mine->arrays; i++) {
        assert_non_null(first.bits[i] = malloc(bytes_of(b, i) + 1));
        memcpy(first.bits[i], b->bits[i], bytes_of(b, i));
    }
    for (int turn = 0; turn < 4; turn++) {
        b->c = turn == 2 ? other : mine;
        run_well(b, 1);
        compare_bits(b, turn == 2 ? &theirs : &first, "replayed it is another");
    }
    b->c = mine;
    if (b->k->unrecorded) fail_case(b, "%s", b->k->why_unrecorded.text);
    for (int i = 0; i < mine->arrays; i++) free(first.bits[i]), free(theirs.bits[i]);
}

/* --- the loop --------------------------------------------------------------------------------------------------- */

static void build(const ops_entry *e, ops_call *c, int index, const kern_device *d, int other)
{
    uint64_t hash = 1469598103934665603u;
    for (const char *s = e->name; *s; s++) hash = (hash ^ (uint64_t)*s) * 1099511628211u;
    memset(c, 0, sizeof *c);
    c->built = 1, c->index = index, c->other = other;
    c->bf16 = d->act_size == 2, c->int8 = d->int8, c->int4 = d->int4;
    c->stream = hash % 1000000 * 1000000 + (uint64_t)index * 10000;
    if (e->width > OPS_NUMBERS)
        fail_msg("%s: %d numbers of a case, expected at most %d", e->name, e->width, OPS_NUMBERS);
    for (int i = 0; i < e->width && e->cases; i++) c->n[i] = e->cases[index * e->width + i];
    e->build(c);
}

static void free_call(ops_call *c)
{
    for (int i = 0; i < c->hosts; i++) free(c->host[i]);
}

enum { QUEUES = 16 };

/* Queues for tests with one operand type. The first of an instruction set has two threads. */
typedef struct {
    kern_queue *k;
    int isa;
} tested;

static int is_same(const kern_device *a, const kern_device *b)
{
    return strcmp(a->unit, b->unit) == 0 && a->threads == b->threads && a->act_size == b->act_size &&
           kern_low_name(a) == kern_low_name(b);
}

/* Returns 1 if a queue has the same kernels and number of threads as k: sets without kernels for a type change nothing,
 * and a machine's processors limit the threads. */
static int is_tested(const tested *q, int n, const kern_queue *k)
{
    for (int i = 0; i < n; i++)
        if (is_same(q[i].k->device, k->device)) return 1;
    return 0;
}

/* Opens a queue of CUDA. */
static int open_cuda_queues(const ops_entry *e, mar_dtype dtype, tested *q)
{
    if ((dtype == MAR_DTYPE_INT8 || dtype == MAR_DTYPE_INT4) && !(e->flags & OPS_CUDA)) return 0;
    q[0] = (tested){open_cuda(dtype), 0};
    return 1;
}

static int open_queues(const ops_entry *e, mar_dtype dtype, tested *q)
{
#if defined(__aarch64__)
    static const char *const isas[] = {"", "dotprod", "generic"};
#else
    static const char *const isas[] = {"", "avx512_bf16", "avx512", "avx_vnni", "avx2", "generic"};
#endif
    enum { ISAS = sizeof isas / sizeof *isas };
    static const int threads[] = {2, 1, 3, 8};
    int n = 0;
    if (ops_on_cuda()) return open_cuda_queues(e, dtype, q);
    for (int isa = 0; isa < (e->flags & OPS_NOT_ISAS ? 1 : ISAS); isa++) {
        setenv("MAR_ISA", isas[isa], 1);
        for (int t = 0; t < (ops_brief() ? 2 : 4); t++) {
            if (isa > 0 && t > 1) continue;
            kern_queue *k = open_queue(dtype, threads[t]);
            if (k && is_tested(q, n, k))
                close_queue(k);
            else if (k)
                q[n++] = (tested){k, isa};
        }
        unsetenv("MAR_ISA");
    }
    return n;
}

/* Returns a case's call for the queue's operands, f32 or bf16. Builds it on first use. */
static ops_call *call_of(const ops_entry *e, int index, const kern_queue *k, ops_call calls[2])
{
    ops_call *c = &calls[k->device->act_size == 2];
    if (!c->built) build(e, c, index, k->device, 0);
    return c;
}

/* Tests a case. Compares the first queue of an instruction set with the reference, and other queues with that one. */
static void test_case(const ops_entry *e, int index, const tested *q, int queues)
{
    const unsigned alone = ops_on_cuda() ? OPS_ALONE : OPS_ALONE | OPS_ALONE_ON_CPU;
    const int thorough = !ops_brief() || index == 0;
    ops_call calls[2] = {{.built = 0}};
    bench base = {.e = NULL};
    for (int i = 0; i < queues; i++) {
        kern_queue *k = q[i].k;
        bench b;
        open_bench(&b, e, call_of(e, index, k, calls), k);
        run_well(&b, 0);
        const int first = i == 0 || q[i].isa != q[i - 1].isa;
        if (b.c->rows > 0 && e->flags & alone && thorough && (i == 0 || index == 0 || test_all))
            check_parts(&b, i == 0 && !ops_brief() && !ops_on_cuda());
        if (!first) {
            compare_bits(&b, &base, "with another number of threads");
            close_bench(&b);
            continue;
        }
        compare_all(&b);
        if (base.e) close_bench(&base);
        base = b;
        if (ops_on_cuda() && !(e->flags & OPS_HOST) && thorough) {
            ops_call other;
            build(e, &other, index, k->device, 1);
            check_recording(&base, &other);
            free_call(&other);
        }
        if (i == 0 && index == 0) check_idle(&base), run_well(&base, 0);
    }
    close_bench(&base);
    for (int i = 0; i < 2; i++) free_call(&calls[i]);
}

static void test_entry(void **state)
{
    const ops_entry *e = *state;
    int tests = 0;
    for (int dtype = 0; dtype < 4; dtype++) {
        static const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16, MAR_DTYPE_INT8, MAR_DTYPE_INT4};
        tested q[QUEUES];
        if (ops_on_cuda() && ops_scale() == 1 && e->flags & (ops_brief() ? OPS_LARGE | OPS_LONG : OPS_LARGE)) continue;
        if ((dtypes[dtype] == MAR_DTYPE_INT8) != ((e->flags & OPS_INT8) != 0)) continue;
        if ((dtypes[dtype] == MAR_DTYPE_INT4) != ((e->flags & OPS_INT4) != 0)) continue;
        if (e->flags & OPS_BF16 && dtypes[dtype] != MAR_DTYPE_BF16) continue;
        if (e->flags & OPS_CUDA && !ops_on_cuda()) continue;
        const int queues = open_queues(e, dtypes[dtype], q);
        for (int i = 0; i < e->count && queues > 0; i++) {
            /* Long lists on the host: each case in one of two arithmetics */
            if (ops_on_cuda() && ops_brief() && e->count > 8 && i > 0 && i % 2 != dtype % 2) continue;
            test_case(e, i, q, queues);
            tests++;
        }
        for (int i = 0; i < queues; i++) close_queue(q[i].k);
    }
    if (tests == 0) skip();
}

int ops_run(const ops_entry *table, size_t count, const struct CMUnitTest *others, size_t other_count)
{
    struct CMUnitTest tests[64] = {{0}};
    assert_true(count + other_count <= 64);
    for (size_t i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){table[i].name, test_entry, NULL, NULL, (void *)(uintptr_t)&table[i]};
    if (other_count) memcpy(tests + count, others, other_count * sizeof *others);
    return cmocka_run_group_tests(tests, NULL, NULL); /* it skips entries without a function */
}
