#include "tests/support/t5_case.h"

#include "tests/support/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const int t5_lengths[T5_CASES] = {1, 7, 40, 150, 300};

float *t5_golden(const char *name, int64_t count)
{
    wt_file *f = open_weights(T5_FOLDER "/features.safetensors");
    float *x = golden_f32(f, name, count);
    wt_close(f);
    return x;
}

t5_encoder *t5_load(kern_queue *k, const char *folder)
{
    wt_file *f;
    t5_encoder *e;
    mar_err err = {0};
    assert_ok(wt_open_folder(folder, MAR_WEIGHTS_AUTO, &f, &err), &err);
    assert_ok(t5_create(k, f, &e, &err), &err);
    wt_close(f);
    return e;
}

float *t5_encode(kern_queue *k, t5_encoder *e, int first, int n)
{
    int at[T5_CASES], length[T5_CASES], rows = 0;
    mar_err err = {0};
    for (int i = 0; i < n; i++) {
        at[i] = rows;
        rows += length[i] = t5_lengths[first + i];
    }
    int *ids = malloc((size_t)rows * sizeof *ids);
    float *y = malloc((size_t)(rows * T5_DIM) * sizeof *y);
    assert_true(ids && y);
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "ids.%d", length[i]);
        float *id = t5_golden(name, length[i]);
        for (int j = 0; j < length[i]; j++) ids[at[i] + j] = (int)id[j];
        free(id);
    }
    const nets_spans spans = {n, rows, at, length};
    assert_ok(t5_run(k, e, &spans, ids, y, &err), &err);
    free(ids);
    return y;
}

double t5_error(kern_queue *k, t5_encoder *e, int n, int alone)
{
    float *together = t5_encode(k, e, 0, n), *at = together;
    double most = 0;
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "features.%d", t5_lengths[i]);
        const size_t size = (size_t)(t5_lengths[i] * T5_DIM);
        float *expected = t5_golden(name, (int64_t)size);
        most = fmax(most, relative_error(at, expected, size));
        if (alone) {
            float *one = t5_encode(k, e, i, 1);
            assert_memory_equal(one, at, size * sizeof *one);
            free(one);
        }
        free(expected);
        at += size;
    }
    free(together);
    return most;
}
