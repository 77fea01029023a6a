/* MAR's towers by a transformer's own products (MAR_CUDA_PRODUCTS): as near to the CPU in f32 as those by cuBLASLt,
 * with two kernels a block less. */
#include "mar.h"
#include "mar/masked_runner.h"
#include "tests/cudahost/control.h"
#include "tests/support/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    setenv("MAR_CUDA_PRODUCTS", "1", 1);
    if (!cuda_has_asked()) skip();
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
#define FORMS                                                                                                          \
    ", expected 0, 1, 2, or a block's columns, 128, 96 or 64, then its cluster's parts, tiles down and across, such "  \
    "as 128:1:2:4"
#define HOPPER "it needs a GPU of compute capability 9.0, and code for 9.0a"
    static const struct {
        mar_status status;
        mar_dtype dtype;
        const char *variable, *asked, *capability, *says;
    } cases[] = {
        {MAR_EARG, MAR_DTYPE_BF16, "PRODUCTS", "yes", NULL, "'yes'" FORMS},
        {MAR_EARG, MAR_DTYPE_BF16, "PRODUCTS", "96:1:4:1", NULL, "'96:1:4:1'" FORMS},
        {MAR_EARG, MAR_DTYPE_BF16, "PRODUCTS", "128:2:2:4", NULL, "'128:2:2:4'" FORMS},
        {MAR_EARG, MAR_DTYPE_BF16, "PRODUCTS", "128:1:0:1", NULL, "'128:1:0:1'" FORMS},
        {MAR_EARG, MAR_DTYPE_BF16, "PRODUCTS", "128:1:1:1,", NULL, "'128:1:1:1,'" FORMS},
        {MAR_EARG, MAR_DTYPE_BF16, "PRODUCTS", "128:1:1:1:", NULL, "'128:1:1:1:'" FORMS},
        {MAR_EARG, MAR_DTYPE_BF16, "PRODUCTS", " 128:1:1:1", NULL, "' 128:1:1:1'" FORMS},
        {MAR_EARG, MAR_DTYPE_BF16, "PRODUCTS", "128:1:+1:1", NULL, "'128:1:+1:1'" FORMS},
        {MAR_EARG, MAR_DTYPE_BF16, "PRODUCTS", "128:0001:1:1:1:1", NULL, "'128:0001:1:1:1:1'" FORMS},
        {MAR_EBACKEND, MAR_DTYPE_F32, "PRODUCTS", "1", NULL, "1: it computes in bf16 only, not in f32"},
        {MAR_EBACKEND, MAR_DTYPE_INT8, "PRODUCTS", "2", NULL, "2: it computes in bf16 only, not in int8"},
        {MAR_EBACKEND, MAR_DTYPE_INT4, "PRODUCTS", "64:1:1:1", NULL, "64:1:1:1: it computes in bf16 only, not in int4"},
        {MAR_EBACKEND, MAR_DTYPE_BF16, "PRODUCTS", "1", "8.9", "1: " HOPPER},
        {MAR_EBACKEND, MAR_DTYPE_BF16, "PRODUCTS", "1", "10.0", "1: " HOPPER},
        {MAR_EARG, MAR_DTYPE_BF16, "ATTENTION", "2", NULL, "'2', expected 0 or 1"},
        {MAR_EBACKEND, MAR_DTYPE_F32, "ATTENTION", "1", NULL, "1: it computes in bf16 only, not in f32"},
        {MAR_EBACKEND, MAR_DTYPE_BF16, "ATTENTION", "1", "8.0", "1: " HOPPER}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kern_device *d = NULL;
        mar_err err = {0};
        char name[32], says[256];
        if (cases[i].capability && !cudahost_launches) continue; /* a GPU has its own */
        if (cases[i].capability) setenv("MAR_CUDAHOST_CAPABILITY", cases[i].capability, 1);
        snprintf(name, sizeof name, "MAR_CUDA_%s", cases[i].variable);
        snprintf(says, sizeof says, "the environment variable %s is %s", name, cases[i].says);
        unsetenv("MAR_CUDA_PRODUCTS");
        setenv(name, cases[i].asked, 1);
        assert_int_equal(kern_cuda_open(cases[i].dtype, 0, &d, &err), cases[i].status);
        unsetenv(name);
        unsetenv("MAR_CUDAHOST_CAPABILITY");
        assert_null(d);
        assert_string_equal(err.text, says);
    }
}

/* Checks that descriptions name the forms that are asked for: a bench's record has them. */
static void forms_are_described(void **state)
{
    (void)state;
    setenv("MAR_CUDA_PRODUCTS", "1", 1);
    if (!cuda_has_asked()) skip();
    for (int asked = 0; asked < 2; asked++) {
        const mar_params p = params_with("seed 1");
        char text[256];
        mar_session *s;
        setenv("MAR_CUDA_PRODUCTS", asked ? "2" : "0", 1);
        setenv("MAR_CUDA_ATTENTION", asked ? "1" : "0", 1);
        setenv("MAR_CUDA_DECODE", asked ? "1" : "0", 1);
        library l = open_library(MAR_BACKEND_CUDA, MAR_DTYPE_BF16, "demo-discrete", NULL, NULL);
        assert_library(l.m, mar_session_create(l.model, NULL, &p, 1, &s));
        assert_int_equal(strstr(mar_backend_description(l.m), ", MAR_CUDA_PRODUCTS=2, MAR_CUDA_ATTENTION=1") != NULL,
                         asked);
        assert_string_equal(mar_session_description(s, text, sizeof text),
                            asked ? "transformer: matrix products in bf16, passes of few rows in one launch"
                                  : "transformer: matrix products in bf16");
        mar_session_free(s);
        close_library(&l);
    }
    unsetenv("MAR_CUDA_DECODE");
    unsetenv("MAR_CUDA_ATTENTION");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_are_near), cmocka_unit_test(refused),
                                       cmocka_unit_test(forms_are_described)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
