/* What the CUDA backend measures (kern_measure_ops): the same operations as on the CPU, and phases of the persistent
 * kernel, which must leave the head as it was. No time decides anything. */
#include "mar.h"
#include "tests/support/device.h"
#include "tests/support/measured.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- operations --------------------------------------------------------------------------------------------------- */

static void assert_there(const measured_list *l, const char *group, const char *name, int rows)
{
    const mar_measurement *m = measured_get(l, group, name, rows);
    if (!(m->seconds > 0)) fail_msg("%s %s of %d rows takes %g s", group, name, rows, m->seconds);
}

static measured_list *measure(mar_backend backend, mar_dtype dtype, const char *params)
{
    const mar_options options = {.dtype = dtype, .threads = 1, .backend = backend};
    mar *m;
    mar_model *model;
    mar_vae *vae;
    mar_session *s;
    mar_params p = params_with(params);
    const mar_status status = mar_open(&options, &m);
    assert_library(m, status);
    assert_library(m, mar_model_load(m, "demo", 0, &model));
    assert_library(m, mar_vae_load(m, "demo", &vae));
    assert_library(m, mar_session_create(model, vae, &p, 1, &s));
    measured_list *l = measured_session(s);
    mar_session_free(s);
    mar_vae_free(vae);
    mar_model_free(model);
    mar_close(m);
    return l;
}

/* The same operation in bf16 of one in f32: where operands are copied, whose length counts in floats, it is half as
 * long. */
static const mar_measurement *counterpart(const measured_list *l, const mar_measurement *m)
{
    int width, end = 0;
    char name[64];
    const mar_measurement *same = measured_find(l, m->group, m->name, m->rows);
    if (same || sscanf(m->name, "copy rows %d%n", &width, &end) != 1 || m->name[end]) return same;
    snprintf(name, sizeof name, "copy rows %d", width / 2);
    return measured_find(l, m->group, name, m->rows);
}

/* Operations of a step and of the image decoder: names, rows, calls and arithmetic. */
static void assert_same_operations(const measured_list *got, const measured_list *want)
{
    static const char *const groups[] = {"operation", "image decoder"};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        int n = 0;
        for (int i = 0; i < want->count; i++) {
            const mar_measurement *w = &want->row[i];
            if (strcmp(w->group, groups[g]) != 0) continue;
            const mar_measurement *m = counterpart(got, w);
            if (!m) fail_msg("no %s of %d rows", w->name, w->rows);
            if (m->count != w->count || m->flop != w->flop)
                fail_msg("%s of %d rows: %g calls of %g flop, expected %g of %g", w->name, w->rows, m->count, m->flop,
                         w->count, w->flop);
            if (!(m->seconds > 0)) fail_msg("%s of %d rows takes %g s", w->name, w->rows, m->seconds);
            n++;
        }
        for (int i = 0; i < got->count; i++)
            if (strcmp(got->row[i].group, groups[g]) == 0) n--;
        assert_int_equal(n, 0);
    }
}

static void lists_what_the_cpu_lists(void **state)
{
    (void)state;
    static const int rows[] = {2, 8, 16, 32, 64};
    static const char params[] = "num_iter 2, num_sampling_steps 4, cfg 2.9, check on";
    setenv("MAR_CUDAHOST_L2", "65536", 1); /* means nothing to a GPU; the copy is of four times as much */
    measured_list *cuda = measure(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, params);
    measured_list *cpu = measure(MAR_BACKEND_CPU, MAR_DTYPE_F32, params);
    assert_same_operations(cuda, cpu);
    assert_there(cuda, "machine", "matrix product", 1024);
    assert_there(cuda, "machine", "memory copy", -1);
    assert_there(cuda, "machine", "least operation", 1);
    assert_non_null(measured_find(cuda, "machine", "blocks of the head's grid", 0));
    assert_there(cuda, "phase", "barrier", 0);
    assert_there(cuda, "phase", "operand read", 64);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_there(cuda, "phase", "fc1", rows[i]);
        assert_there(cuda, "phase", "fc2", rows[i]);
        assert_there(cuda, "phase", "evaluation", rows[i]);
        if (rows[i] == 8 || rows[i] == 64) assert_there(cuda, "phase", "evaluation, clusters of 1", rows[i]);
        assert_there(cuda, "step", "chain step", rows[i]);
        assert_there(cuda, "step", "evaluation by products", rows[i]);
    }
    assert_there(cuda, "speculation", "rejection", 1);
    assert_there(cuda, "speculation", "round, window 8", 64);
    assert_there(cuda, "pass", "encoder", -1);
    assert_there(cuda, "pass", "decoder", -1);
    assert_there(cuda, "pass", "head", -1);
    assert_there(cuda, "pass", "image decoder", 1);
    free(cuda);
    free(cpu);
}

/* --- phases ------------------------------------------------------------------------------------------------------- */

typedef struct {
    int width, depth, channels;
    const char *multiprocessors, *capability; /* of the host's device */
} shape;

/* A head with random weights; *at is freed by the caller when the head is gone. */
static kern_head *make_head(kern_queue *k, const shape *s)
{
    const size_t w = (size_t)s->width, c = (size_t)s->channels;
    float *x = random_floats(3 * w * w + 64 * w, 0.03f, 1);
    kern_head_block *blocks = calloc((size_t)s->depth, sizeof *blocks);
    kern_head *h = NULL;
    mar_err err = {0};
    assert_non_null(blocks);
    assert_true(2 * c * w <= 3 * w * w);
    for (int b = 0; b < s->depth; b++) blocks[b] = (kern_head_block){x, x, x, x, x, x, x, x};
    const kern_head_spec spec = {.width = s->width,
                                 .depth = s->depth,
                                 .channels = s->channels,
                                 .in_weight = x,
                                 .in_bias = x,
                                 .blocks = blocks,
                                 .ada_weight = x,
                                 .ada_bias = x,
                                 .out_weight = x,
                                 .out_bias = x};
    assert_ok(k->head->create(k, &spec, &h, &err), &err);
    assert_ok(k->head->plan(k, h, 64, &err), &err);
    free(blocks);
    free(x);
    return h;
}

/* Chain of one step, of which the outcome depends on all of the head. */
static void step(kern_queue *k, const kern_head *h, const shape *s, const void *mod, void *scratch, float *x)
{
    static const kern_chain_coef coef = {1.1f, 0.5f, 0.4f, 0.55f, -4, -2.5f, 0};
    static const int t = 7, position = 3;
    static const uint64_t image = 1;
    const size_t bytes = (size_t)s->channels * sizeof(float);
    float *noise = random_floats((size_t)s->channels, 1, 2);
    void *state = to_device(k, noise, bytes), *out = to_device(k, NULL, 2 * bytes);
    const kern_chain_job job = {.tokens = 1,
                                .conditions = 1,
                                .mod = mod,
                                .x = state,
                                .coef = &coef,
                                .t = &t,
                                .image = &image,
                                .position = &position,
                                .out = out,
                                .scratch = scratch};
    k->head->chain_run(k, h, &job);
    from_device(k, x, state, bytes);
    k->core->free(k->device, state), k->core->free(k->device, out);
    free(noise);
}

static void phases_run_and_change_nothing(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {64, 3, 16, "4", "9.0"},   /* warps without channels */
        {256, 6, 16, "8", "9.0"},  /* weights stream */
        {1056, 1, 4, "66", "9.0"}, /* in clusters */
        {64, 3, 16, "4", "8.0"},   /* without */
    };
    static const kern_phase phases[] = {KERN_PHASE_BARRIER, KERN_PHASE_FC1, KERN_PHASE_FC2, KERN_PHASE_EVALUATION,
                                        KERN_PHASE_READ};
    static const int rows[] = {1, 9, 17, 64};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        setenv("MAR_CUDAHOST_SMS", s->multiprocessors, 1);
        setenv("MAR_CUDAHOST_CAPABILITY", s->capability, 1);
        kern_queue *k = open_cuda(MAR_DTYPE_BF16);
        const kern_measure_ops *measure_ops = k->device->measure;
        kern_head *h = make_head(k, s);
        float before[32], after[32];
        kern_machine m;
        void *scratch = to_device(k, NULL, k->head->scratch_bytes(h, 64));
        void *mod = to_device(k, NULL, k->head->mod_bytes(h));
        measure_ops->machine(k->device, h, &m);
        assert_true(m.blocks > 0 && m.blocks <= m.clusters * m.cluster && m.clusters * m.cluster <= m.processors);
        step(k, h, s, mod, scratch, before);
        for (size_t p = 0; p < sizeof phases / sizeof *phases; p++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                const int is_product = phases[p] == KERN_PHASE_FC1 || phases[p] == KERN_PHASE_EVALUATION;
                if (i % 2 == 1 && cuda_test_scale() == 1 && r != 2) continue; /* the host's time is short */
                if (i == 2 && cuda_test_scale() == 1 && (r != 1 || !is_product)) continue;
                assert_int_equal(measure_ops->phase(k, h, phases[p], 0, rows[r], 2, mod, scratch), 1);
                check_kern(k);
            }
        const int clusters = measure_ops->phase(k, h, KERN_PHASE_CLUSTER_BARRIER, 0, 0, 3, mod, scratch);
        assert_int_equal(clusters, m.cluster > 1);
        if (cuda_test_scale() == 1 && i >= 2) assert_int_equal(clusters, i == 2);
        assert_int_equal(measure_ops->phase(k, h, KERN_PHASE_FC1, 0, 65, 2, mod, scratch), 0);
        step(k, h, s, mod, scratch, after);
        check_kern(k);
        assert_memory_equal(before, after, (size_t)s->channels * sizeof *before);
        k->core->free(k->device, mod), k->core->free(k->device, scratch);
        k->head->free(k->device, h);
        close_queue(k);
    }
    unsetenv("MAR_CUDAHOST_CAPABILITY");
}

/* Of a head none of whose products stays in shared memory: a repeat's weights are there before they are read. */
static void streamed_phases(void **state)
{
    (void)state;
    static const shape s = {256, 3, 16, "8", "9.0"};
    setenv("MAR_CUDAHOST_SMS", s.multiprocessors, 1);
    setenv("MAR_CUDAHOST_SHARED", "83616", 1);
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    kern_head *h = make_head(k, &s);
    kern_machine m;
    void *scratch = to_device(k, NULL, k->head->scratch_bytes(h, 64));
    void *mod = to_device(k, NULL, k->head->mod_bytes(h));
    k->device->measure->machine(k->device, h, &m);
    assert_true(m.blocks > 0);
    if (cuda_test_scale() == 1) assert_int_equal(m.resident, 0);
    for (int phase = KERN_PHASE_FC1; phase <= KERN_PHASE_EVALUATION; phase++)
        assert_int_equal(k->device->measure->phase(k, h, (kern_phase)phase, 0, 9, s.depth + 1, mod, scratch), 1);
    k->core->finish(k);
    check_kern(k);
    k->core->free(k->device, mod), k->core->free(k->device, scratch);
    k->head->free(k->device, h);
    close_queue(k);
    unsetenv("MAR_CUDAHOST_SHARED");
}

/* An evaluation in clusters of each size that the device takes, which changes nothing in the head. */
static void clusters_are_compared(void **state)
{
    (void)state;
    static const shape s = {256, 2, 16, "8", "9.0"};
    setenv("MAR_CUDAHOST_SMS", s.multiprocessors, 1);
    setenv("MAR_CUDAHOST_CLUSTER", "4", 1);
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    kern_head *h = make_head(k, &s);
    kern_machine m;
    float before[32], after[32];
    void *scratch = to_device(k, NULL, k->head->scratch_bytes(h, 64));
    void *mod = to_device(k, NULL, k->head->mod_bytes(h));
    k->device->measure->machine(k->device, h, &m);
    step(k, h, &s, mod, scratch, before);
    for (int cluster = 8; cluster > 0; cluster /= 2) {
        const int there = k->device->measure->phase(k, h, KERN_PHASE_EVALUATION, cluster, 9, 1, mod, scratch);
        if (cuda_test_scale() == 1 || cluster == 1) assert_int_equal(there, cluster <= 4);
        check_kern(k);
    }
    assert_int_equal(k->device->measure->phase(k, h, KERN_PHASE_CLUSTER_BARRIER, 1, 0, 1, mod, scratch), 0);
    kern_machine again;
    k->device->measure->machine(k->device, h, &again);
    assert_memory_equal(&again, &m, sizeof m);
    step(k, h, &s, mod, scratch, after);
    check_kern(k);
    assert_memory_equal(before, after, (size_t)s.channels * sizeof *before);
    k->core->free(k->device, mod), k->core->free(k->device, scratch);
    k->head->free(k->device, h);
    close_queue(k);
    unsetenv("MAR_CUDAHOST_CLUSTER");
}

/* In f32 there is no persistent kernel, and a phase that is not there does nothing. */
static void no_phases_in_f32(void **state)
{
    (void)state;
    const shape s = {64, 1, 16, "4", "9.0"};
    setenv("MAR_CUDAHOST_SMS", s.multiprocessors, 1);
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    kern_head *h = make_head(k, &s);
    kern_machine m;
    k->device->measure->machine(k->device, h, &m);
    assert_true(m.blocks == 0 && m.processors > 0);
    assert_int_equal(k->device->measure->phase(k, h, KERN_PHASE_BARRIER, 0, 0, 1, NULL, NULL), 0);
    k->head->free(k->device, h);
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_run_and_change_nothing),
        cmocka_unit_test(clusters_are_compared),
        cmocka_unit_test(streamed_phases),
        cmocka_unit_test(no_phases_in_f32),
        cmocka_unit_test(lists_what_the_cpu_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
