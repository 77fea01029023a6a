/* MAR's towers by a transformer's own products (MAR_CUDA_PRODUCTS): as near to the CPU in f32 as those by cuBLASLt,
 * with two kernels a block less. */
#include "mar.h"
#include "mar/masked_runner.h"
#include "tests/cudahost/control.h"
#include "tests/support/device.h"

#include <stdlib.h>
#include <string.h>

#define VARIABLE "the environment variable MAR_CUDA_PRODUCTS is "

enum { TOKENS = 64 * 8 }; /* of the demo */

/* Makes an image in one step. Returns the kernels it has launched; writes those that norms in products save. */
static long make(mar_backend backend, mar_dtype dtype, const char *products, float *tokens, long *saved)
{
    const mar_params p = params_with("seed 11, diff_annealing linear, num_iter 2, cfg 2.9, diff_upper_steps 5, "
                                     "diff_lower_steps 4");
    const int label = 3;
    mar_session *s;
    setenv("MAR_CUDA_PRODUCTS", products, 1);
    library l = open_library(backend, dtype, cuda_test_brief() ? "demo-draft" : "demo", NULL, NULL);
    assert_library(l.m, mar_session_create(l.model, NULL, &p, 1, &s));
    const long before = cudahost_launches ? cudahost_launches() : 0;
    assert_session(s, mar_session_begin(s, 5, &label, 1));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
    const long launches = cudahost_launches ? cudahost_launches() - before : 0;
    const masked_shape *c = &mar_masked_model_of(l.model)->net.shape;
    /* Of a step. The first norm of each tower stays, and that of the last block's queries. */
    *saved = 2 * ((2 * c->encoder_depth - 1) + (2 * c->decoder_depth - 1));
    mar_session_free(s);
    close_library(&l);
    return launches;
}

static void products_are_near(void **state)
{
    float expected[TOKENS], theirs[TOKENS], own[TOKENS], again[TOKENS];
    long saved;
    (void)state;
    make(MAR_BACKEND_CPU, MAR_DTYPE_F32, "0", expected, &saved);
    const long by_library = make(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "0", theirs, &saved);
    const long by_own = make(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "1", own, &saved);
    make(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "1", again, &saved);
    assert_memory_equal(own, again, sizeof own);
    const double far = relative_error(theirs, expected, TOKENS), error = relative_error(own, expected, TOKENS);
    if (!(error <= 2 * far && error <= 5e-2)) fail_msg("relative error %.3g, that of cuBLASLt %.3g", error, far);
    if (cudahost_launches) assert_int_equal(by_library - by_own, saved);
}

/* Checks that an unknown value, and a device without the form that is asked for, is an error by name. */
static void refused(void **state)
{
    static const struct {
        mar_dtype dtype;
        const char *asked, *capability, *says;
    } cases[] = {{MAR_DTYPE_BF16, "yes", NULL, "'yes', expected 0 to 4"},
                 {MAR_DTYPE_F32, "1", NULL, "1: they compute in bf16 only, not in f32"},
                 {MAR_DTYPE_INT8, "2", NULL, "2: they compute in bf16 only, not in int8"},
                 {MAR_DTYPE_INT4, "3", NULL, "3: they compute in bf16 only, not in int4"},
                 {MAR_DTYPE_BF16, "4", "8.9", "4: they need 112128 bytes of shared memory, and this GPU has 101376"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kern_device *d = NULL;
        mar_err err = {0};
        if (cases[i].capability && !cudahost_launches) continue; /* a GPU has its own */
        if (cases[i].capability) setenv("MAR_CUDAHOST_CAPABILITY", cases[i].capability, 1);
        setenv("MAR_CUDA_PRODUCTS", cases[i].asked, 1);
        assert_int_equal(kern_cuda_open(cases[i].dtype, 0, &d, &err), i == 0 ? MAR_EARG : MAR_EBACKEND);
        unsetenv("MAR_CUDAHOST_CAPABILITY");
        assert_null(d);
        assert_memory_equal(err.text, VARIABLE, strlen(VARIABLE));
        assert_string_equal(err.text + strlen(VARIABLE), cases[i].says);
    }
}

/* Checks that descriptions name the forms that are asked for: a bench's record has them. */
static void forms_are_described(void **state)
{
    (void)state;
    for (int asked = 0; asked < 2; asked++) {
        const mar_params p = params_with("seed 1");
        char text[256];
        mar_session *s;
        setenv("MAR_CUDA_PRODUCTS", asked ? "3" : "0", 1);
        setenv("MAR_CUDA_DECODE", asked ? "1" : "0", 1);
        library l = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "demo-discrete", NULL, NULL);
        assert_library(l.m, mar_session_create(l.model, NULL, &p, 1, &s));
        assert_int_equal(strstr(mar_backend_description(l.m), ", MAR_CUDA_PRODUCTS=3") != NULL, asked);
        assert_string_equal(mar_session_description(s, text, sizeof text),
                            asked ? "transformer: matrix products in bf16, passes of few rows in one launch"
                                  : "transformer: matrix products in bf16");
        mar_session_free(s);
        close_library(&l);
    }
    unsetenv("MAR_CUDA_DECODE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_are_near), cmocka_unit_test(refused),
                                       cmocka_unit_test(forms_are_described)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
