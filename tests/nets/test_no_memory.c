/* Lets every allocation of libmar's own fail once while a LlamaGen model is loaded and a runner is made, planned and at
 * work. The call reports the failure and leaves nothing behind. Under the sanitizers this test is skipped
 * (tests/support/failing_allocations.h). */
#include "tests/support/causal_fixture.h"

#include "tests/support/failing_allocations.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef HAS_SANITIZER

enum { IMAGES = 2, DRAFTS = 3, PASSES = 5, LAWS = IMAGES * (DRAFTS + 1) };

/* Makes all calls that may allocate, and frees their results. `laws` is memory for the distributions. */
static mar_status use(kern_queue *k, const wt_file *file, float *laws, mar_err *err)
{
    static const causal_sampling sampling = {.cfg = 2, .cfg_interval = -1, .temperature = 1, .top_p = 1};
    static const int token[] = {3, 4}, draft[] = {5, 6, 7}, parent[] = {-1, 0, 0}, label[IMAGES] = {1, 2};
    causal_model *m = NULL;
    causal_runner *r = NULL;
    void *memory = NULL;
    family_facts config;
    mar_status status = derive_facts(&family_llamagen, file, (wt_asked){.heads = 0}, &config, err);
    if (status == MAR_OK) status = load_net(k, file, &config, &m, err);
    if (status == MAR_OK) status = causal_runner_create(k, m, &sampling, IMAGES, DRAFTS, 1, &r, err);
    if (status == MAR_OK) status = k->core->alloc(k->device, causal_runner_lay_out(r, NULL), &memory, err);
    if (status == MAR_OK) causal_runner_lay_out(r, memory);
    if (status == MAR_OK) status = causal_runner_plan(r, IMAGES, err);
    if (status == MAR_OK) causal_runner_begin(r, IMAGES, label);
    for (int i = 0; status == MAR_OK && i < PASSES; i++) { /* passes with other numbers of rows than the first */
        const causal_request request = {.sequence = i % IMAGES,
                                        .prefix = token,
                                        .length = 2,
                                        .draft = draft,
                                        .parent = parent,
                                        .count = i % DRAFTS};
        const long before = allocations;
        status = causal_runner_log_probs(r, &request, 1, laws, err);
        if (i > 0) assert_int_equal(allocations, before);
    }
    causal_runner_free(r);
    causal_model_free(m);
    k->core->recover(k);
    k->core->free(k->device, memory);
    return status;
}

static void each_allocation(kern_queue *k, const wt_file *file)
{
    mar_err err = {0};
    float *laws = backend_memory(k, LAWS * 73 * sizeof *laws);
    assert_ok(use(k, file, laws, &err), &err); /* now the device has what it keeps */
    const long before = allocations, left = held;
    assert_ok(use(k, file, laws, &err), &err);
    const long n = allocations - before;
    assert_true(n > 20);
    assert_int_equal(held, left);
    for (long i = 0; i < n; i++) {
        until_failure = i;
        failures = 0;
        const mar_status status = use(k, file, laws, &err);
        until_failure = -1;
        if (failures != 1 || status != MAR_ENOMEM)
            fail_msg("allocation %ld of %ld failed %ld times: %s: %s", i, n, failures, mar_status_name(status),
                     err.text);
        assert_int_equal(held, left);
    }
    k->core->free(k->device, laws);
}

TEST_CASE(no_memory)
{
    static const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
    wt_file *file = golden_open("llamagen_c2i20");
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_queue(dtypes[d], 1);
        if (!k) continue;
        each_allocation(k, file);
        close_queue(k);
    }
    wt_close(file);
}

#endif
