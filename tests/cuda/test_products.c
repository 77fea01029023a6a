/* MAR's towers by a transformer's own products (MAR_CUDA_PRODUCTS): as near to the CPU in f32 as those by cuBLASLt,
 * with two kernels a block less. */
#include "mar.h"
#include "mar/masked_runner.h"
#include "tests/cudahost/control.h"
#include "tests/support/device.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64 * 8 }; /* of the demo */

/* Makes an image in one step. Returns the kernels it has launched; writes those that norms in products save. */
static long make(mar_backend backend, mar_dtype dtype, const char *products, float *tokens, long *saved)
{
    const mar_options options = {.size = sizeof options, .dtype = dtype, .threads = 1, .backend = backend};
    const mar_params p = params_with("seed 11, diff_annealing linear, num_iter 2, cfg 2.9, diff_upper_steps 5, "
                                     "diff_lower_steps 4");
    const int label = 3;
    mar *m;
    mar_model *model;
    mar_session *s;
    setenv("MAR_CUDA_PRODUCTS", products, 1);
    const mar_status status = mar_open(&options, &m);
    assert_library(m, status);
    assert_library(m, mar_model_load(m, cuda_test_brief() ? "demo-draft" : "demo", 0, &model));
    assert_library(m, mar_session_create(model, NULL, &p, 1, &s));
    const long before = cudahost_launches ? cudahost_launches() : 0;
    assert_session(s, mar_session_begin(s, 5, &label, 1));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
    const long launches = cudahost_launches ? cudahost_launches() - before : 0;
    const masked_shape *c = &mar_masked_model_of(model)->net.shape;
    /* Of a step. The first norm of each tower stays, and that of the last block's queries. */
    *saved = 2 * ((2 * c->encoder_depth - 1) + (2 * c->decoder_depth - 1));
    mar_session_free(s);
    mar_model_free(model);
    mar_close(m);
    return launches;
}

static void products_are_near(void **state)
{
    float expected[TOKENS], library[TOKENS], own[TOKENS], again[TOKENS];
    long saved;
    (void)state;
    make(MAR_BACKEND_CPU, MAR_DTYPE_F32, "0", expected, &saved);
    const long by_library = make(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "0", library, &saved);
    const long by_own = make(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "1", own, &saved);
    make(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "1", again, &saved);
    assert_memory_equal(own, again, sizeof own);
    const double far = relative_error(library, expected, TOKENS), error = relative_error(own, expected, TOKENS);
    if (!(error <= 2 * far && error <= 5e-2)) fail_msg("relative error %.3g, that of cuBLASLt %.3g", error, far);
    if (cudahost_launches) assert_int_equal(by_library - by_own, saved);
}

static void other_values_are_refused(void **state)
{
    kern_device *d = NULL;
    mar_err err = {0};
    (void)state;
    setenv("MAR_CUDA_PRODUCTS", "yes", 1);
    assert_int_equal(kern_cuda_open(MAR_DTYPE_BF16, 0, &d, &err), MAR_EARG);
    assert_string_equal(err.text, "the environment variable MAR_CUDA_PRODUCTS is 'yes', expected 0 to 4");
    assert_null(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_are_near), cmocka_unit_test(other_values_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
