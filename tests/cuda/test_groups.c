/* The chain in groups of rows (kernels/cuda/groups.cu) against the CPU, which rounds the same numbers to FP16: the
 * relative error is that of test_persistent.c. A token's bits do not depend on the other tokens nor on the size of
 * groups. */
#include "tests/cudahost/control.h"
#include "tests/support/chain_case.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = CHAIN_STEPS, MOST = CHAIN_MOST };

/* A form: a head, a simulated device and a run. */
typedef struct {
    shape s;
    const char *shared; /* bytes of a block's shared memory; NULL: all */
    run r[3];           /* those that have tokens */
} form;

static const form forms[] = {
    /* the demo model's head: one block a product, two that turn; an uneven last tile, a solver, groups of one tile */
    {{64, 3, 16, "8", 0, 0}, NULL, {{17, 1, STEPS, 0, 3, 1}, {21, 2, STEPS, 1, 0, 0}, {52, 2, 2, 0, 0, 0.9f}}},
    /* blocks of one and of two tiles of columns, halves of two and of three pairs; groups of one and of two tiles */
    {{160, 1, 4, "24", 0, 0}, NULL, {{53, 2, STEPS, 0, 3, 1}, {16, 1, 1, 1, 5, 0}, {90, 1, STEPS, 1, 0, 0}}},
    /* three passes of fc1's columns, of one block */
    {{256, 1, 16, "5", 0, 0}, NULL, {{19, 2, 2, 0, 1, 0.9f}}},
    /* some weights are not in shared memory */
    {{256, 2, 16, "13", 0, 0}, "53000", {{36, 2, 2, 1, 0, 0}}},
    {{288, 2, 32, "20", 0, 0}, NULL, {{11, 2, 2, 0, 0, 1}}},
    /* SwiGLU: two passes of fc1's columns, adaLN layers of two blocks; groups of one and of two tiles */
    {{288, 4, 16, "30", 416, 2}, NULL, {{9, 2, 2, 0, 2, 1}}},
    {{64, 1, 4, "6", 96, 1}, NULL, {{100, 1, STEPS, 0, 2, 1}, {20, 1, STEPS, 0, 0, 1}, {40, 2, STEPS, 1, 0, 0}}},
    /* from here on too slow for the host: MAR-B, SphereAR-B */
    {{1024, 6, 16, "", 0, 0}, NULL, {{16, 2, STEPS, 0, 0, 1}, {261, 2, STEPS, 0, 0, 1}}},
    {{768, 6, 16, "", 1152, 2}, NULL, {{16, 2, STEPS, 0, 0, 1}, {261, 2, STEPS, 0, 0, 1}}},
};
enum { ON_HOST = sizeof forms / sizeof *forms - 2 };

static int rows_of(const run *r)
{
    return r->tokens * r->conditions;
}

static size_t form_count(void)
{
    return cuda_test_scale() > 1 ? ON_HOST + 2 : ON_HOST;
}

static bench open_groups(const network *n, const char *shared, int most)
{
    setenv("MAR_CUDA_HEAD_GROUPS", "1", 1);
    if (shared) setenv("MAR_CUDAHOST_SHARED", shared, 1);
    bench b = open_cuda_bench(n, most);
    unsetenv("MAR_CUDA_HEAD_GROUPS"), unsetenv("MAR_CUDAHOST_SHARED");
    if (!strstr(b.k->head->describe(b.h), ", in groups from 16 rows on"))
        fail_msg("width %d: %s", n->s.width, b.k->head->describe(b.h));
    if (cudahost_launched_together) (void)cudahost_launched_together(); /* those that loading tries */
    return b;
}

static void agrees_with_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < form_count(); i++) {
        network n = make_network(forms[i].s, 3000 * (i + 1));
        int most = 0;
        for (int j = 0; j < 3; j++)
            if (most < forms[i].r[j].from + rows_of(&forms[i].r[j]))
                most = forms[i].r[j].from + rows_of(&forms[i].r[j]);
        bench cpu = make_bench(open_cpu(), &n, most), cuda = open_groups(&n, forms[i].shared, most);
        for (int j = 0; j < (cuda_test_brief() ? 1 : 3); j++) {
            const run *r = &forms[i].r[j];
            if (r->tokens) compare_chains(&cuda, &cpu, r, (size_t)j);
        }
        free_bench(&cpu), free_bench(&cuda);
        free_network(&n);
    }
}

/* Checks that a token's bits are the same alone and among others, in groups of one and of two tiles. */
static void rows_are_independent(void **state)
{
    (void)state;
    static float all[MOST * 32], some[MOST * 32];
    network n = make_network(forms[1].s, 5000);
    bench cuda = open_groups(&n, NULL, 120);
    for (int conditions = 1; conditions <= 2; conditions++) {
        const int most = 120 / conditions, counts[] = {16, 34, 42};
        run_chain(&cuda, &(run){most, conditions, 2, 0, 0, 1}, all, NULL);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            const int from = most - counts[i] - (int)i;
            run_chain(&cuda, &(run){counts[i], conditions, 2, 0, from, 1}, some, NULL);
            assert_memory_equal(some, all + from * n.s.channels, (size_t)(counts[i] * n.s.channels) * sizeof *some);
        }
    }
    if (cudahost_launched_together) assert_int_equal(cudahost_launched_together(), 2);
    free_bench(&cuda);
    free_network(&n);
}

/* Checks that fewer than 16 rows run in the other form. */
static void few_rows_run_as_ever(void **state)
{
    (void)state;
    const run r = {7, 2, 2, 0, 0, 1};
    float x[2][MOST * 32];
    network n = make_network(forms[0].s, 5100);
    bench plain = open_cuda_bench(&n, 16), cuda = open_groups(&n, NULL, 16);
    run_chain(&plain, &r, x[0], NULL);
    run_chain(&cuda, &r, x[1], NULL);
    assert_memory_equal(x[1], x[0], (size_t)(r.tokens * n.s.channels) * sizeof **x);
    free_bench(&plain), free_bench(&cuda);
    free_network(&n);
}

/* Checks that the form is refused by name where it is asked for and cannot be. */
static void groups_are_refused(void **state)
{
    (void)state;
    static const char none[] =
        "the environment variable MAR_CUDA_HEAD_GROUPS is 1: this head has no form in groups on this GPU";
    static const struct {
        shape s;
        const char *asked;
        mar_status status;
        const char *error;
    } refused[] = {
        {{64, 3, 16, "8", 0, 0},
         "2",
         MAR_EARG,
         "the environment variable MAR_CUDA_HEAD_GROUPS is '2', expected 0 or 1"},
        {{1568, 1, 16, "16", 0, 0}, "1", MAR_EBACKEND, none}, /* no persistent kernel at all */
        {{64, 3, 16, "6", 0, 0}, "1", MAR_EBACKEND, none},    /* a multiprocessor too few; a GPU has more */
    };
    mar_err err = {0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused - !cudahost_objects; i++) {
        network n = make_network(refused[i].s, 9200);
        kern_head *h = NULL;
        setenv("MAR_CUDAHOST_SMS", n.s.multiprocessors, 1);
        kern_queue *k = open_cuda(MAR_DTYPE_BF16);
        setenv("MAR_CUDA_HEAD_GROUPS", refused[i].asked, 1);
        assert_int_equal(k->head->create(k, &n.spec, &h, &err), refused[i].status);
        unsetenv("MAR_CUDA_HEAD_GROUPS");
        assert_null(h);
        assert_string_equal(err.text, refused[i].error);
        close_queue(k);
        free_network(&n);
    }
}

/* Checks the launch on a recording, with other host arrays at each call. */
static void replays(void **state)
{
    (void)state;
    const run r = {11, 2, STEPS, 0, 0, 1};
    network n = make_network(forms[0].s, 6000);
    bench cuda = open_groups(&n, NULL, 32);
    kern_queue *k = cuda.k;
    kern_recording *recording = NULL;
    chain c;
    static float plain[MOST * 32], recorded[MOST * 32];
    const size_t bytes = (size_t)(r.tokens * n.s.channels) * sizeof *plain;
    open_chain(&cuda, &r, &c);
    float *x = random_floats(MOST * (size_t)n.s.channels, 1, 99);
    for (int call = 0; call < 3; call++) { /* run, recorded, replayed */
        fill_chain(&c, &r);
        for (int i = 0; i < r.tokens; i++) c.seed[i] += (uint64_t)(i * call), c.cfg[i] -= 0.2f * (float)call;
        k->core->upload(k, c.job.x, x, bytes);
        k->core->replay(k, &recording, chain_body, &c);
        from_device(k, recorded, c.job.x, bytes);
        k->core->upload(k, c.job.x, x, bytes);
        chain_body(&c);
        from_device(k, plain, c.job.x, bytes);
        assert_memory_equal(recorded, plain, bytes);
    }
    k->core->recording_free(k, recording);
    free(x);
    close_chain(&c, NULL, NULL);
    free_bench(&cuda);
    free_network(&n);
}

/* Checks that a launch of which only a part runs ends with an error, and that the next launch is as always: its last
 * block begins late, but before the others give up. */
static void missing_blocks_are_an_error(void **state)
{
    (void)state;
    if (!cudahost_hold_last) skip(); /* a GPU cannot be told to */
    const run r = {18, 1, STEPS, 0, 0, 1};
    static float x[3][MOST * 32];
    network n = make_network(forms[0].s, 9000);
    bench cuda = open_groups(&n, NULL, 32);
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
        cmocka_unit_test(few_rows_run_as_ever),
        cmocka_unit_test(groups_are_refused),
        cmocka_unit_test(replays),
        cmocka_unit_test(missing_blocks_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
