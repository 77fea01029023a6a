/* Chains of up to 8 rows whose weights stream through shared memory (kernels/cuda/streamed.cu) against the CPU, which
 * rounds the same numbers to FP16: the relative error is that of test_persistent.c. A token's bits do not depend on the
 * other tokens. */
#include "tests/cudahost/control.h"
#include "tests/support/chain_case.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = CHAIN_STEPS, MOST = 8 * 64 /* channels of a run */ };

static const shape shapes[] = {
    {64, 3, 16, "3", 0, 0},    /* two or three items a block; warps without inputs */
    {64, 1, 4, "40", 0, 0},    /* more multiprocessors than items */
    {288, 2, 64, "7", 0, 0},   /* uneven shares and items; more outputs than warps */
    {64, 2, 16, "12", 96, 1},  /* SwiGLU: blocks without items of x; two blocks of an adaLN layer */
    {128, 2, 4, "16", 64, 2},  /* blocks without items of fc1 */
    {288, 4, 8, "5", 416, 2},  /* more tiles than a block ends at a time */
    {1056, 1, 16, "16", 0, 0}, /* shares of a whole group and one unit; more channels of a block than threads */
    {1280, 8, 16, "", 0, 0},   /* from here on too slow for the host: MAR-L, MAR-H, NextStep-1, SphereAR-L and H */
    {1536, 12, 16, "", 0, 0},  {1536, 12, 64, "", 0, 0}, {1024, 8, 16, "", 1536, 2}, {1280, 12, 16, "", 1920, 3},
};
enum { ON_HOST = sizeof shapes / sizeof *shapes - 5, KERNELS = 3 /* up to 2, 4 and 8 rows */ };

static bench open_streamed(const network *n)
{
    setenv("MAR_CUDA_HEAD_RESIDENT", "2", 1);
    bench b = open_cuda_bench(n, 16);
    unsetenv("MAR_CUDA_HEAD_RESIDENT");
    if (!strstr(b.k->head->describe(b.h), "streamed up to 8 rows"))
        fail_msg("width %d: %s", n->s.width, b.k->head->describe(b.h));
    if (cudahost_launched_together) (void)cudahost_launched_together(); /* those that loading tries */
    return b;
}

/* Checks every number of rows, steps of both kinds, and that launches of one step do not read each other's words. */
static void agrees_with_cpu(void **state)
{
    (void)state;
    const run runs[] = {{1, 1, 1, 1, 0, 0},     {1, 1, 1, 0, 3, 1},        {1, 2, STEPS, 1, 0, 0},
                        {3, 1, STEPS, 1, 1, 0}, {2, 2, STEPS, 0, 2, 0.9f}, {5, 1, 2, 0, 0, 1},
                        {3, 2, STEPS, 0, 4, 1}, {7, 1, STEPS, 0, 2, 0.9f}, {4, 2, STEPS, 1, 0, 0},
                        {8, 1, STEPS, 0, 1, 1}};
    for (size_t i = 0; i < ON_HOST + (cuda_test_scale() > 1 ? 5 : 0); i++) {
        network n = make_network(shapes[i], 3000 * (i + 1));
        const size_t each = i == 0 || cuda_test_scale() > 1 ? 1 : i < 5 ? 3 : 4;
        bench cpu = make_bench(open_cpu(), &n, 16), cuda = open_streamed(&n);
        for (size_t j = i % each; j < sizeof runs / sizeof *runs; j += each) compare_chains(&cuda, &cpu, &runs[j], j);
        if (cudahost_launched_together && each == 1) assert_int_equal(cudahost_launched_together(), KERNELS);
        free_bench(&cpu), free_bench(&cuda);
        free_network(&n);
    }
}

/* Checks that a token's bits are the same alone and among others, in all kernels, and more rows as without the form. */
static void rows_are_independent(void **state)
{
    (void)state;
    static float all[MOST], some[MOST], more[2][MOST];
    static const int heads[] = {2, 3};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        network n = make_network(shapes[heads[i]], 5000);
        bench cuda = open_streamed(&n), plain = open_cuda_bench(&n, 16);
        run_chain(&cuda, &(run){8, 1, 2, 0, 0, 1}, all, NULL);
        for (int count = 1; count < 8; count += 2) {
            const int from = 8 - count;
            run_chain(&cuda, &(run){count, 1, 2, 0, from, 1}, some, NULL);
            assert_memory_equal(some, all + from * n.s.channels, (size_t)(count * n.s.channels) * sizeof *some);
        }
        run_chain(&cuda, &(run){5, 2, 2, 0, 0, 1}, more[0], NULL);
        run_chain(&plain, &(run){5, 2, 2, 0, 0, 1}, more[1], NULL);
        assert_memory_equal(more[0], more[1], (size_t)(5 * n.s.channels) * sizeof **more);
        free_bench(&plain), free_bench(&cuda);
        free_network(&n);
    }
}

/* Checks which heads have which form, and that what is no form is refused by name. */
static void heads_that_stream(void **state)
{
    (void)state;
    static const char resident[] = ", resident up to 8 rows", streamed[] = ", streamed up to 8 rows";
    static const char none[] =
        "the environment variable MAR_CUDA_HEAD_RESIDENT is 1: this head has no resident or streamed form on this GPU";
    static const struct {
        shape s;
        const char *asked, *shared, *describes, *error;
    } heads[] = {
        {{128, 2, 8, "16", 0, 0}, "1", NULL, resident, NULL},
        {{128, 2, 8, "16", 0, 0}, "2", NULL, streamed, NULL},
        {{128, 2, 16, "16", 0, 0}, "1", NULL, streamed, NULL}, /* here one thing differs from a resident head's */
        {{128, 3, 8, "16", 0, 0}, "1", NULL, streamed, NULL},
        {{96, 2, 8, "16", 0, 0}, "1", NULL, streamed, NULL},
        {{128, 4, 16, "16", 256, 2}, "1", NULL, streamed, NULL},
        {{128, 4, 16, "16", 192, 4}, "1", NULL, streamed, NULL},
        {{128, 3, 16, "16", 128, 3}, "1", NULL, streamed, NULL},
        {{128, 2, 64, "16", 0, 0}, "1", NULL, "cuBLASLt, streamed up to 8 rows: no form of the persistent", NULL},
        {{128, 2, 8, "16", 0, 0},
         "3",
         NULL,
         NULL,
         "the environment variable MAR_CUDA_HEAD_RESIDENT is '3', expected 0, 1 or 2"},
        {{1568, 1, 16, "16", 0, 0}, "1", NULL, NULL, none},   /* too wide */
        {{48, 1, 8, "16", 0, 0}, "1", NULL, NULL, none},      /* no multiple of 32 */
        {{128, 2, 8, "15", 0, 0}, "1", NULL, streamed, NULL}, /* a multiprocessor too few; and with too little shared */
        {{128, 4, 16, "16", 192, 2}, "1", "50000", NULL, none}, /* memory: a GPU has its own */
    };
    mar_err err = {0};
    for (size_t i = 0; i < sizeof heads / sizeof *heads - (cudahost_objects ? 0 : 2); i++) {
        network n = make_network(heads[i].s, 9200);
        kern_head *h = NULL;
        setenv("MAR_CUDAHOST_SMS", n.s.multiprocessors, 1);
        if (heads[i].shared) setenv("MAR_CUDAHOST_SHARED", heads[i].shared, 1);
        kern_queue *k = open_cuda(MAR_DTYPE_BF16);
        setenv("MAR_CUDA_HEAD_RESIDENT", heads[i].asked, 1);
        const mar_status status = k->head->create(k, &n.spec, &h, &err);
        unsetenv("MAR_CUDA_HEAD_RESIDENT"), unsetenv("MAR_CUDAHOST_SHARED");
        if (heads[i].error) {
            assert_int_equal(status, *heads[i].asked == '3' ? MAR_EARG : MAR_EBACKEND);
            assert_string_equal(err.text, heads[i].error);
        } else {
            assert_ok(status, &err);
            if (!strstr(k->head->describe(h), heads[i].describes)) fail_msg("head %zu: %s", i, k->head->describe(h));
        }
        k->head->free(k->device, h);
        close_queue(k);
        free_network(&n);
    }
}

/* Checks that a launch of which only a part runs ends with an error, and that the next launch is as always: its last
 * block begins late, but before the others give up. */
static void missing_blocks_are_an_error(void **state)
{
    (void)state;
    if (!cudahost_hold_last) skip(); /* a GPU cannot be told to */
    const run r = {8, 1, STEPS, 0, 0, 1};
    static float x[3][MOST];
    network n = make_network(shapes[0], 9000);
    bench cuda = open_streamed(&n);
    run_chain(&cuda, &r, x[0], NULL);
    for (int i = 1; i < 3; i++) {
        chain c;
        mar_err err = {0};
        open_chain(&cuda, &r, &c);
        cudahost_hold_last(i == 1 ? ULONG_MAX : 300000);
        cudahost_give_up_after(i == 1 ? 512 : 400000);
        chain_body(&c);
        cuda.k->core->finish(cuda.k);
        cudahost_hold_last(0);
        cudahost_give_up_after(UINT_MAX);
        assert_int_equal(kern_check(cuda.k, &err), i == 1 ? MAR_EBACKEND : MAR_OK);
        cuda.k->core->recover(cuda.k);
        check_kern(cuda.k);
        close_chain(&c, x[i], NULL);
    }
    assert_memory_equal(x[2], x[0], (size_t)(r.tokens * n.s.channels) * sizeof **x);
    free_bench(&cuda);
    free_network(&n);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_cpu),
        cmocka_unit_test(rows_are_independent),
        cmocka_unit_test(heads_that_stream),
        cmocka_unit_test(missing_blocks_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
