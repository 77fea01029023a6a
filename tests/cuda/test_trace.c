/* mar_session_measure on the device: the CPU's operations, with the queue's own times. The test only requires times to
 * be positive. */
#include "mar.h"
#include "mar_measure.h"
#include "tests/support/device.h"
#include "tests/support/measured.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static measured_list *measure(mar_backend backend, mar_dtype dtype)
{
    const mar_options options = {.size = sizeof options, .dtype = dtype, .threads = 1, .backend = backend};
    mar *m;
    mar_model *model;
    mar_vae *vae;
    mar_session *s;
    mar_params p = params_with("num_iter 2, num_sampling_steps 4, cfg 2.9, check on");
    const mar_status status = mar_open(&options, &m);
    assert_library(m, status);
    assert_library(m, mar_model_load(m, cuda_test_brief() ? "demo-draft" : "demo", 0, &model));
    assert_library(m, mar_vae_load(m, "demo", &vae));
    assert_library(m, mar_session_create(model, vae, &p, 1, &s));
    measured_list *l = measured_session(s);
    mar_session_free(s);
    mar_vae_free(vae);
    mar_model_free(model);
    mar_close(m);
    return l;
}

static void lists_what_the_cpu_lists(void **state)
{
    static const char *const passes[] = {"encoder", "decoder", "head", "image decoder"};
    (void)state;
    setenv("MAR_CUDAHOST_L2", "65536", 1); /* ignored by a GPU */
    measured_list *cuda = measure(MAR_BACKEND_CUDA, MAR_DTYPE_F32), *cpu = measure(MAR_BACKEND_CPU, MAR_DTYPE_F32);
    int operations = 0;
    for (int i = 0; i < cpu->count; i++) {
        const mar_measurement *w = &cpu->row[i];
        if (strcmp(w->group, "operation") != 0 && strcmp(w->group, "image decoder") != 0) continue;
        const mar_measurement *m = measured_get(cuda, w->group, w->name, w->rows);
        if (m->count != w->count || m->flop != w->flop || m->bytes != w->bytes || !(m->seconds > 0))
            fail_msg("%s of %d rows: %g calls of %g flop, %g bytes, %g s, expected %g of %g, %g", w->name, w->rows,
                     m->count, m->flop, m->bytes, m->seconds, w->count, w->flop, w->bytes);
        operations++;
    }
    for (int i = 0; i < cuda->count; i++)
        operations -= strcmp(cuda->row[i].group, "operation") == 0 || strcmp(cuda->row[i].group, "image decoder") == 0;
    assert_int_equal(operations, 0);
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
        assert_true(measured_get(cuda, "pass", passes[i], -1)->seconds > 0);
    assert_true(measured_get(cuda, "machine", "matrix product", 1024)->seconds > 0);
    assert_true(measured_get(cuda, "machine", "memory", -1)->seconds > 0);
    free(cuda);
    free(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists_what_the_cpu_lists)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
