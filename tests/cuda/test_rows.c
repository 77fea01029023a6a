/* Operations on rows, on the device against the CPU's. */
#include "tests/cuda/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 500;
static const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};

static int *random_index(int rows, int below)
{
    int *index = malloc((size_t)(rows + 1) * sizeof *index);
    uint32_t words[4];
    for (int r = 0; r < rows; r++) {
        kern_random_words(seed, KERN_NOISE_INIT, 0, 0, (uint32_t)r, 0, words);
        index[r] = (int)(words[0] % (uint32_t)below);
    }
    seed++;
    return index;
}

/* --- layer norm ------------------------------------------------------------------------------------------- */

/* y as floats. `offset`: floats by which x misses its alignment. */
static float *norm(kern_queue *k, const float *x, int x_rows, int dim, const int *index, int rows, const float *weight,
                   const float *bias, int y_f32, int offset)
{
    const size_t row = (size_t)dim * sizeof(float), n = (size_t)rows * (size_t)dim;
    float *dx = to_device(k, NULL, (size_t)x_rows * row + 64);
    k->core->upload(k, dx + offset, x, (size_t)x_rows * row);
    float *w = to_device(k, weight, row), *b = to_device(k, bias, row);
    void *y = to_device(k, NULL, n * sizeof(float));
    k->core->layer_norm(k, dx + offset, index, rows, dim, w, b, 1e-6f, y, y_f32);
    float *got = malloc((n + 1) * sizeof *got);
    if (y_f32) {
        from_device(k, got, y, n * sizeof *got);
    } else {
        free(got);
        got = act_to_floats(k, y, n);
    }
    check_kern(k);
    k->core->free(k->device, dx);
    k->core->free(k->device, w);
    k->core->free(k->device, b);
    k->core->free(k->device, y);
    return got;
}

static void layer_norm(void **state)
{
    (void)state;
    const int dims[] = {4, 16, 64, 256, 260, 768, 1000, 1024, 1280, 1536, 5120, 5124, 1, 33, 1001};
    enum { X_ROWS = 6 };
    kern_queue *cpu = open_cpu();
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_cuda(dtypes[d]);
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
            for (int variant = 0; variant < 4; variant++) {
                const int dim = dims[i], y_f32 = variant % 2, offset = variant == 3;
                const int rows = variant < 2 ? 7 : X_ROWS - 1;
                float *x = random_floats((size_t)(X_ROWS * dim), 2, seed++);
                float *weight = random_floats((size_t)dim, 1, seed++), *bias = random_floats((size_t)dim, 1, seed++);
                for (int j = 0; j < X_ROWS * dim; j++) x[j] += 50; /* a mean far from zero */
                int *index = variant < 2 ? random_index(rows, X_ROWS) : NULL;
                float *want = norm(cpu, x, X_ROWS, dim, index, rows, weight, bias, 1, 0);
                float *got = norm(k, x, X_ROWS, dim, index, rows, weight, bias, y_f32, offset);
                /* A float of 50 is exact to 4e-6, which the scale of the result, 1/2, does not enlarge. */
                const double allowed = dim == 1 ? 1e-2 : y_f32 || d == 0 ? 2e-5 : 3e-3;
                const double error = relative_error(got, want, (size_t)rows * (size_t)dim);
                if (!(error <= allowed))
                    fail_msg("%s: width %d, variant %d: error %.3g, allowed %.3g", k->device->description, dim, variant,
                             error, allowed);
                free(x), free(weight), free(bias), free(index), free(want), free(got);
            }
        k->core->layer_norm(k, NULL, NULL, 0, 64, NULL, NULL, 1e-6f, NULL, 0);
        check_kern(k);
        close_queue(k);
    }
    close_queue(cpu);
}

/* More rows than a wave of blocks, at a model's width. */
static void many_rows(void **state)
{
    (void)state;
    const int rows = 300 * cuda_test_scale(), dim = 768;
    const size_t n = (size_t)rows * (size_t)dim;
    kern_queue *cpu = open_cpu(), *k = open_cuda(MAR_DTYPE_BF16);
    float *x = random_floats(n, 1, seed++), *weight = random_floats((size_t)dim, 1, seed++);
    float *bias = random_floats((size_t)dim, 1, seed++);
    int *index = random_index(rows, rows);
    float *want = norm(cpu, x, rows, dim, index, rows, weight, bias, 1, 0);
    float *got = norm(k, x, rows, dim, index, rows, weight, bias, 0, 0);
    assert_close(got, want, n, 3e-3);
    close_queue(k);
    close_queue(cpu);
    free(x), free(weight), free(bias), free(index), free(want), free(got);
}

/* --- copies ----------------------------------------------------------------------------------------------- */

enum { FROM = 9, TO = 21, MORE = 5, COPIED = 14 };

/* All of dst, TO rows, after the copy. */
static float *copy(kern_queue *k, const float *dst, const float *src, const float *add, int dim, const int *index[3],
                   int offset)
{
    const size_t row = (size_t)dim * sizeof(float);
    float *d = to_device(k, NULL, TO * row + 64), *s = to_device(k, src, TO * row);
    float *a = add ? to_device(k, add, TO * row) : NULL, *got = malloc(TO * row + 1);
    k->core->upload(k, d + offset, dst, TO * row);
    k->core->copy_rows(k, d + offset, index[0], s, index[1], a, index[2], COPIED, dim);
    k->core->copy_rows(k, d + offset, index[0], s, index[1], a, index[2], 0, dim);
    from_device(k, got, d + offset, TO * row);
    k->core->free(k->device, d);
    k->core->free(k->device, s);
    if (a) k->core->free(k->device, a);
    return got;
}

static void copies(void **state)
{
    (void)state;
    const int dims[] = {1, 3, 4, 16, 20, 64, 768, 1280};
    kern_queue *cpu = open_cpu(), *k = open_cuda(MAR_DTYPE_BF16);
    int *from = random_index(COPIED, FROM), *more = random_index(COPIED, MORE), to[COPIED];
    for (int r = 0; r < COPIED; r++) to[r] = (r * 8 + 3) % TO; /* each row once: 8 and 21 share no factor */
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int variant = 0; variant < 32; variant++) {
            const int dim = dims[i];
            const size_t n = (size_t)(TO * dim);
            const int *index[3] = {variant & 1 ? to : NULL, variant & 2 ? from : NULL, variant & 4 ? more : NULL};
            float *dst = random_floats(n, 1, seed++), *src = random_floats(n, 1, seed++);
            float *add = variant & 8 ? random_floats(n, 1, seed++) : NULL;
            if (!add) { /* bits: NaNs of any payload, infinities, two operands in a float */
                uint32_t bits[4] = {0x7fc12345, 0xff812345, 0x7f800000, 0x80000000};
                memcpy(src + dim, bits, sizeof bits);
            }
            float *want = copy(cpu, dst, src, add, dim, index, 0);
            float *got = copy(k, dst, src, add, dim, index, variant >> 4);
            assert_memory_equal(got, want, n * sizeof *got);
            free(dst), free(src), free(add), free(want), free(got);
        }
    close_queue(k);
    close_queue(cpu);
    free(from), free(more);
}

/* --- similarity of rows -------------------------------------------------------------------------------------- */

static void similarity(void **state)
{
    (void)state;
    static const struct {
        int rows, heads, head_dim, stride;
    } shapes[] = {{1, 1, 16, 16}, {13, 4, 64, 256}, {9, 3, 80, 250}, {20, 16, 20, 960}, {0, 2, 8, 16}};
    kern_queue *cpu = open_cpu();
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_cuda(dtypes[d]);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const int rows = shapes[i].rows, stride = shapes[i].stride, width = shapes[i].heads * shapes[i].head_dim;
            const size_t n = (size_t)((rows + 1) * stride);
            float *a = random_floats(n, 1, seed++), *b = random_floats(n, 1, seed++);
            for (size_t j = 0; j < n; j++) b[j] = a[j] + 0.5f * b[j];
            if (rows > 2) memset(a, 0, (size_t)width * sizeof *a), memset(b, 0, (size_t)width * sizeof *b);
            if (rows > 2) memset(a + stride, 0, (size_t)shapes[i].head_dim * sizeof *a);
            void *ka = to_act(k, a, n), *kb = to_act(k, b, n);
            float *ra = act_to_floats(k, ka, n), *rb = act_to_floats(k, kb, n); /* rounded to bf16 */
            void *ca = to_act(cpu, ra, n), *cb = to_act(cpu, rb, n);
            float want[32], got[32];
            for (int j = 0; j < 32; j++) want[j] = got[j] = 7;
            cpu->core->similarity(cpu, ca, cb, stride, rows, shapes[i].heads, shapes[i].head_dim, want);
            k->core->similarity(k, ka, kb, stride, rows, shapes[i].heads, shapes[i].head_dim, got);
            check_kern(k);
            for (int j = 0; j < 32; j++) assert_float_equal(got[j], want[j], 1e-5f);
            cpu->core->free(cpu->device, ca);
            cpu->core->free(cpu->device, cb);
            k->core->free(k->device, ka);
            k->core->free(k->device, kb);
            free(a), free(b), free(ra), free(rb);
        }
        close_queue(k);
    }
    close_queue(cpu);
}

static void subtract(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 3, 4, 17, 1000, 4099};
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t offset = 0; offset < 2; offset++) {
            const size_t n = sizes[i];
            float *a = random_floats(n + 1, 1, seed++), *b = random_floats(n + 1, 1, seed++);
            float *da = to_device(k, a, (n + 1) * sizeof *a), *db = to_device(k, b, (n + 1) * sizeof *b);
            float *y = malloc((n + 1) * sizeof *y);
            k->core->subtract(k, da + offset, db + offset, n, db + offset); /* in place, too */
            from_device(k, y, db, (n + 1) * sizeof *y);
            for (size_t j = 0; j < n; j++) assert_float_equal(y[offset + j], a[offset + j] - b[offset + j], 0);
            assert_float_equal(y[offset ? 0 : n], b[offset ? 0 : n], 0);
            k->core->free(k->device, da);
            k->core->free(k->device, db);
            free(a), free(b), free(y);
        }
    close_queue(k);
}

/* Conversion rounds to nearest, ties to even, and keeps what is no number. */
static void conversion(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_cuda(dtypes[d]);
        const size_t sizes[] = {0, 1, 5, 8, 1003, 70000};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t offset = 0; offset < 2; offset++) {
                const size_t n = sizes[i];
                float *x = random_floats(n + 1, 3, seed++);
                const uint32_t special[8] = {0x3f808000, 0x3f818000, 0x3f808001, 0x7f800000,
                                             0xff800000, 0x7f7fffff, 0x80000001, 0x00000000};
                if (n > 8) memcpy(x + 1, special, sizeof special);
                float *dx = to_device(k, x, (n + 1) * sizeof *x);
                char *y = to_device(k, NULL, (n + 2) * k->device->act_size);
                k->core->to_act(k, dx + offset, n, y + offset * k->device->act_size);
                float *got = act_to_floats(k, y, n + 2);
                void *rounded = to_act(k, x, n + 1);
                float *want = act_to_floats(k, rounded, n + 1);
                assert_memory_equal(got + offset, want + offset, n * sizeof *got);
                assert_float_equal(got[offset ? 0 : n], 0, 0);
                k->core->free(k->device, dx);
                k->core->free(k->device, y);
                k->core->free(k->device, rounded);
                free(x), free(got), free(want);
            }
        float nan = NAN, *p = to_device(k, &nan, sizeof nan), *back;
        void *q = to_device(k, NULL, 4);
        k->core->to_act(k, p, 1, q);
        back = act_to_floats(k, q, 1);
        assert_true(isnan(back[0]));
        k->core->free(k->device, p);
        k->core->free(k->device, q);
        close_queue(k);
        free(back);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_norm), cmocka_unit_test(many_rows), cmocka_unit_test(copies),
        cmocka_unit_test(similarity), cmocka_unit_test(subtract),  cmocka_unit_test(conversion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
