/* Passes over contexts with the CUDA backend, run, recorded and replayed. They are compared with the CPU's plain passes
 * in f32. */
#include "tests/support/device.h"
#include "tests/support/contexts.h"

#include <stdlib.h>
#include <string.h>

static mar *open_backend(mar_backend backend, mar_dtype dtype)
{
    const mar_options options = {.size = sizeof options, .dtype = dtype, .threads = 1, .backend = backend};
    mar *m = NULL;
    assert_int_equal(mar_open(&options, &m), MAR_OK);
    return m;
}

/* Gives each image a new order, the same in both fixtures. */
static void shuffle_orders(context_fixture *f, context_fixture *theirs, dice *d)
{
    for (int i = 0; i < f->images; i++) {
        dice_shuffle(d, f->order[i], f->seq);
        memcpy(theirs->order[i], f->order[i], sizeof f->order[i]);
    }
}

static void assert_near(context_fixture *f, const masked_contexts *c, const masked_context *list, int n,
                        context_fixture *theirs, double tolerance)
{
    const size_t d = (size_t)f->width;
    int total = 0, before = 0;
    for (int i = 0; i < n; i++) total += list[i].n_queries;
    float *z = malloc((size_t)(f->conditions * total) * d * sizeof *z);
    assert_non_null(z);
    from_device(f->k, z, c->z, (size_t)(f->conditions * total) * d * sizeof *z);
    for (int i = 0; i < n; i++) {
        masked_context x = list[i];
        x.order = theirs->order[x.image];
        plain_pass(theirs, &x);
        for (int condition = 0; condition < f->conditions; condition++)
            assert_close(z + (size_t)(condition * total + before) * d,
                         theirs->runner.net.z + (size_t)(condition * x.n_queries) * d, (size_t)x.n_queries * d,
                         tolerance);
        before += x.n_queries;
    }
    free(z);
}

static void as_on_the_cpu(void **state)
{
    (void)state;
    static const struct {
        mar_dtype dtype;
        int conditions, images, gamma, chunk, recorded;
    } cases[] = {{MAR_DTYPE_F32, 2, 2, 3, CONTEXT_LIST, 1},
                 {MAR_DTYPE_BF16, 2, 1, 4, CONTEXT_LIST, 1},
                 {MAR_DTYPE_F32, 1, 1, 3, 2, 0}}; /* in chunks: nothing is recorded */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char path[] = "tests/golden/data/mar_small.safetensors";
        dice d = {30 + i}, same = d;
        context_fixture f, theirs;
        masked_contexts c;
        void *memory;
        mar_err err = {0};
        masked_context list[CONTEXT_LIST];
        masked_recordings recordings = {0};
        open_context_fixture(&f, open_backend(MAR_BACKEND_CUDA, cases[i].dtype), path, cases[i].conditions,
                             cases[i].images, &d);
        open_context_fixture(&theirs, open_backend(MAR_BACKEND_CPU, MAR_DTYPE_F32), path, cases[i].conditions,
                             cases[i].images, &same);
        open_contexts(&f, CONTEXT_LIST, cases[i].chunk, &c, &memory);
        const int n = random_contexts(&f, &d, cases[i].gamma, list);
        assert_ok(masked_contexts_plan(&c, &err), &err);
        for (int round = 0; round < 4; round++) { /* plain, recorded, then replayed twice with other orders */
            shuffle_orders(&f, &theirs, &d);
            masked_contexts_place(list, n);
            masked_contexts_run(&c, list, n, &f.runner.net.embedded, &recordings);
            check_kern(f.k);
            assert_near(&f, &c, list, n, &theirs, cases[i].dtype == MAR_DTYPE_BF16 ? 2e-2 : 1e-5);
            assert_int_equal(f.k->recordings, cases[i].recorded && round > 0 ? 2 : 0);
        }
        assert_int_equal(f.k->unrecorded, 0);
        masked_recordings_free(f.k, &recordings);
        close_contexts(&f, &c, memory);
        close_context_fixture(&theirs);
        close_context_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_on_the_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
