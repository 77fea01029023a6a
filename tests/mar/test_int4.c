/* Tests dtype int4 above the kernels: files with int4 weights, a session's guarantee, and what a file's
 * weights are. */
#include "tests/support/archive.h"

#include "mar_files.h"
#include "mar_measure.h"
#include "tests/support/demo.h"

#include "mar/core/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *model;
    int matrices, tokens; /* int4 matrices; floats of an image */
} families[] = {{"demo", 16, DEMO_TOKENS}, {"demo-discrete", 30, DEMO_SEQ}};
enum { FAMILIES = 2, MOST_TOKENS = DEMO_TOKENS };

/* Makes the tokens of an image, and checks the guarantee's beginning. */
static void make(mar *m, const char *path, const char *guarantee, float *tokens)
{
    const int class = 3;
    mar_params p = params_with("num_iter 4");
    mar_model *model;
    mar_session *s;
    assert_library(m, mar_model_load(m, path, 0, &model));
    if (mar_model_get_config(model)->vocabulary) mar_params_init(&p, sizeof p);
    assert_library(m, mar_session_create(model, NULL, &p, 1, &s));
    assert_int_equal(strncmp(mar_session_guarantee(s), guarantee, strlen(guarantee)), 0);
    assert_session(s, mar_session_begin(s, 0, &class, 1));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
    mar_session_free(s);
    mar_model_free(model);
}

static int has_fact(const mar_report *r, const char *fact)
{
    for (int i = 0; i < mar_report_fact_count(r); i++)
        if (strcmp(mar_report_fact(r, i), fact) == 0) return 1;
    return 0;
}

/* An int4 file makes the tokens of its weights in f32 quantised when loaded, and int4 of an int4 file is the same. */
TEST_CASE(files)
{
    mar *f32 = open_mar(MAR_DTYPE_F32, 2), *int4 = open_mar(MAR_DTYPE_INT4, 2);
    assert_non_null(strstr(mar_backend_description(int4), "cpu int4, "));
    for (int i = 0; i < FAMILIES; i++) {
        char *dir = test_directory(), stored[600], restored[600], again[600], fact[128];
        float of_stored[MOST_TOKENS], of_restored[MOST_TOKENS];
        mar_report *r;
        snprintf(stored, sizeof stored, "%s/int4.safetensors", dir);
        snprintf(restored, sizeof restored, "%s/f32.safetensors", dir);
        snprintf(again, sizeof again, "%s/again.safetensors", dir);
        snprintf(fact, sizeof fact, "int4 weights: %d matrices with a scale for each 32 of a row; use: --dtype int4",
                 families[i].matrices);
        assert_library(f32, mar_convert(f32, families[i].model, stored, MAR_DTYPE_INT4, 0));
        assert_library(f32, mar_convert(f32, stored, restored, MAR_DTYPE_F32, 0));
        assert_library(f32, mar_convert(f32, stored, again, MAR_DTYPE_AUTO, 0));
        assert_library(f32, mar_inspect(f32, again, 0, &r));
        assert_int_equal(mar_report_problem_count(r), 0);
        if (!has_fact(r, fact)) fail_msg("no fact \"%s\"", fact);
        assert_int_equal(mar_report_model(r)->int8_weights, 0);
        mar_report_free(r);
        make(int4, stored, "approximate: int4", of_stored);
        make(int4, restored, "approximate: int4", of_restored);
        assert_memory_equal(of_stored, of_restored, (size_t)families[i].tokens * sizeof *of_stored);
        make(f32, stored, "exact", of_restored);
    }
    assert_int_equal(mar_convert(f32, "demo-vae", test_path("vae.safetensors"), MAR_DTYPE_INT4, 0), MAR_EARG);
    assert_string_equal(mar_error(f32), "--dtype int4: demo-vae is a KL autoencoder, expected a model, whose "
                                        "transformer's matrices become int4");
    mar_close(f32), mar_close(int4);
}
