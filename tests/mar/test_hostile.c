/* A host that makes every mistake there is: NULL for every pointer of every public function, numbers and indices out of
 * range, and a handle that was not opened. Nothing crashes or hangs; a call with a status says what is wrong. Here are
 * the handle, models and files; mar.hostile_options and mar.hostile_sessions have the rest. */
#include "tests/support/hostile.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the handle -----------------------------------------------------------------------------------------------------
 */

static void hostile_mar_open(host *h)
{
    mar *m;
    (void)h;
    refused(mar_open(NULL, NULL), NULL, "out is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        for (int option = 0; option < mar_option_count(); option++) {
            const mar_param *o = mar_option_get(option);
            mar_options bad = {.backend = MAR_BACKEND_CPU, .threads = 1};
            memcpy((char *)&bad + o->offset, &out_of_range[i], sizeof(int));
            const mar_status status = mar_open(&bad, &m);
            assert_non_null(m);
            refused(status, m, o->name);
            one_line(mar_error(m), "expected");
            mar_close(m);
        }
    const mar_options half = {.dtype = MAR_DTYPE_F16, .backend = MAR_BACKEND_CPU};
    const mar_status status = mar_open(&half, &m);
    refused(status, m, "expected auto, f32, bf16 or int8");
    mar_close(m);
}

static void hostile_mar_close(host *h)
{
    (void)h;
    mar_close(NULL);
}

static void *error_of(void *m)
{
    return (void *)(uintptr_t)mar_error(m);
}

static void hostile_mar_error(host *h)
{
    pthread_t thread;
    void *text;
    assert_non_null(mar_error(NULL));
    pthread_create(&thread, NULL, error_of, h->failed); /* a thread that has seen nothing fail */
    pthread_join(thread, &text);
    one_line(text, "threads -1");
    mar_session *s;
    refused(mar_session_create(NULL, NULL, NULL, 0, &s), NULL, "model is NULL");
    assert_string_equal(mar_session_error(NULL), mar_error(NULL));
    one_line(mar_error(h->failed), "threads -1");
}

static void hostile_mar_status_name(host *h)
{
    (void)h;
    for (int i = 0; i < OUT_OF_RANGE; i++)
        assert_string_equal(mar_status_name((mar_status)out_of_range[i]), "unknown status");
}

static void hostile_mar_version(host *h)
{
    (void)h;
    assert_non_null(mar_version());
}

static void hostile_mar_backend_description(host *h)
{
    assert_string_equal(mar_backend_description(NULL), "");
    assert_string_equal(mar_backend_description(h->failed), "");
}

static void hostile_mar_gpu_count(host *h)
{
    (void)h;
    assert_true(mar_gpu_count() >= 0);
}

static void hostile_mar_measure_peak(host *h)
{
    double rate;
    refused(mar_measure_peak(NULL, &rate), NULL, "handle is NULL");
    refused(mar_measure_peak(NULL, NULL), NULL, "handle is NULL");
    refused(mar_measure_peak(h->d.m, NULL), h->d.m, "flop_per_second is NULL");
    refused(mar_measure_peak(h->failed, &rate), h->failed, "not opened: --threads -1");
}

static void hostile_mar_measure_bandwidth(host *h)
{
    double rate;
    refused(mar_measure_bandwidth(NULL, &rate), NULL, "handle is NULL");
    refused(mar_measure_bandwidth(NULL, NULL), NULL, "handle is NULL");
    refused(mar_measure_bandwidth(h->d.m, NULL), h->d.m, "bytes_per_second is NULL");
    refused(mar_measure_bandwidth(h->failed, &rate), h->failed, "not opened: --threads -1");
}

/* --- models ---------------------------------------------------------------------------------------------------------
 */

static void hostile_mar_model_load(host *h)
{
    mar_model *model = h->d.model;
    refused(mar_model_load(NULL, "demo", 0, &model), NULL, "handle is NULL");
    assert_null(model);
    refused(mar_model_load(h->d.m, NULL, 0, &model), h->d.m, "path is NULL");
    refused(mar_model_load(h->d.m, "demo", 0, NULL), h->d.m, "out is NULL");
    refused(mar_model_load(h->failed, "demo", 0, &model), h->failed, "not opened: --threads -1");
    refused(mar_model_load(NULL, NULL, 0, NULL), NULL, "handle is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_model_load(h->d.m, "demo", out_of_range[i], &model), h->d.m, "head");
    assert_int_equal(mar_model_load(h->d.m, "", 0, &model), MAR_EIO);
    assert_null(model);
}

static void hostile_mar_model_free(host *h)
{
    (void)h;
    mar_model_free(NULL);
}

static void hostile_mar_model_get_config(host *h)
{
    (void)h;
    assert_null(mar_model_get_config(NULL));
}

static void hostile_mar_vae_load(host *h)
{
    mar_vae *vae = h->d.vae;
    refused(mar_vae_load(NULL, "demo", &vae), NULL, "handle is NULL");
    assert_null(vae);
    refused(mar_vae_load(h->d.m, NULL, &vae), h->d.m, "path is NULL");
    refused(mar_vae_load(h->d.m, "demo", NULL), h->d.m, "out is NULL");
    refused(mar_vae_load(h->failed, "demo", &vae), h->failed, "not opened: --threads -1");
    refused(mar_vae_load(NULL, NULL, NULL), NULL, "handle is NULL");
}

static void hostile_mar_vae_free(host *h)
{
    (void)h;
    mar_vae_free(NULL);
}

static void hostile_mar_vae_get_config(host *h)
{
    (void)h;
    assert_null(mar_vae_get_config(NULL));
}

static void hostile_mar_vae_codebook(host *h)
{
    assert_null(mar_vae_codebook(NULL));
    assert_null(mar_vae_codebook(h->d.vae)); /* it has none */
}

/* --- judging images -------------------------------------------------------------------------------------------------
 */

static void hostile_mar_features_load(host *h)
{
    mar_features *f = h->features;
    refused(mar_features_load(NULL, "demo", 1, &f), NULL, "handle is NULL");
    assert_null(f);
    refused(mar_features_load(h->d.m, NULL, 1, &f), h->d.m, "path is NULL");
    refused(mar_features_load(h->d.m, "demo", 1, NULL), h->d.m, "out is NULL");
    refused(mar_features_load(h->failed, "demo", 1, &f), h->failed, "not opened: --threads -1");
    refused(mar_features_load(NULL, NULL, 0, NULL), NULL, "handle is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_features_load(h->d.m, "demo", out_of_range[i], &f), h->d.m, "expected 1..1024");
    refused(mar_features_load(h->d.m, "demo", 0, &f), h->d.m, "batch of 0 images");
    assert_int_equal(mar_features_load(h->d.m, "", 1, &f), MAR_EIO);
    assert_null(f);
}

static void hostile_mar_features_free(host *h)
{
    (void)h;
    mar_features_free(NULL);
}

static void hostile_mar_features_get_config(host *h)
{
    (void)h;
    assert_null(mar_features_get_config(NULL));
}

static void hostile_mar_features_run(host *h)
{
    static const uint8_t rgb[DEMO_BYTES];
    float features[64], logits[10];
    mar *m = h->d.m;
    refused(mar_features_run(NULL, rgb, 1, 32, 32, features, logits, NULL), NULL, "features are NULL");
    refused(mar_features_run(NULL, NULL, 0, 0, 0, NULL, NULL, NULL), NULL, "features are NULL");
    refused(mar_features_run(h->features, NULL, 1, 32, 32, features, logits, NULL), m, "rgb is NULL");
    refused(mar_features_run(h->features, rgb, 0, 32, 32, features, logits, NULL), m, "0 images: expected 1..1");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        const int n = out_of_range[i];
        refused(mar_features_run(h->features, rgb, n, 32, 32, features, logits, NULL), m, "images: expected 1..1");
        refused(mar_features_run(h->features, rgb, 1, n, 32, features, logits, NULL), m, "x32 pixels");
        refused(mar_features_run(h->features, rgb, 1, 32, n, features, logits, NULL), m, "images of 32x");
    }
    assert_library(m, mar_features_run(h->features, rgb, 1, 32, 32, NULL, NULL, NULL));
}

/* --- files and methods ----------------------------------------------------------------------------------------------
 */

static void hostile_mar_inspect(host *h)
{
    mar_report *r = h->report;
    refused(mar_inspect(NULL, "demo", 0, &r), NULL, "handle is NULL");
    assert_null(r);
    refused(mar_inspect(h->d.m, NULL, 0, &r), h->d.m, "path is NULL");
    refused(mar_inspect(h->d.m, "demo", 0, NULL), h->d.m, "out is NULL");
    refused(mar_inspect(h->failed, "demo", 0, &r), h->failed, "not opened: --threads -1");
    for (int i = 0; i < OUT_OF_RANGE; i++) refused(mar_inspect(h->d.m, "demo", out_of_range[i], &r), h->d.m, "head");
}

static void hostile_mar_report_free(host *h)
{
    (void)h;
    mar_report_free(NULL);
}

static void hostile_mar_report_kind(host *h)
{
    (void)h;
    assert_int_equal(mar_report_kind(NULL), MAR_KIND_UNKNOWN);
}

static void hostile_mar_report_model(host *h)
{
    (void)h;
    assert_null(mar_report_model(NULL));
}

static void hostile_mar_report_vae(host *h)
{
    assert_null(mar_report_vae(NULL));
    assert_null(mar_report_vae(h->report));
}

static void hostile_mar_report_fact_count(host *h)
{
    (void)h;
    assert_int_equal(mar_report_fact_count(NULL), 0);
}

static void hostile_mar_report_fact(host *h)
{
    assert_null(mar_report_fact(NULL, 0));
    assert_non_null(mar_report_fact(h->report, 0));
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_report_fact(h->report, out_of_range[i]));
    assert_null(mar_report_fact(h->report, mar_report_fact_count(h->report)));
}

static void hostile_mar_report_problem_count(host *h)
{
    (void)h;
    assert_int_equal(mar_report_problem_count(NULL), 0);
}

static void hostile_mar_report_problem(host *h)
{
    assert_null(mar_report_problem(NULL, 0));
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_report_problem(h->report, out_of_range[i]));
    assert_null(mar_report_problem(h->report, mar_report_problem_count(h->report)));
}

static void hostile_mar_convert(host *h)
{
    char *directory = temporary_directory(), out[600];
    snprintf(out, sizeof out, "%s/out.safetensors", directory);
    refused(mar_convert(NULL, "demo", out, MAR_DTYPE_AUTO, 0), NULL, "handle is NULL");
    refused(mar_convert(h->d.m, NULL, out, MAR_DTYPE_AUTO, 0), h->d.m, "in is NULL");
    refused(mar_convert(h->d.m, "demo", NULL, MAR_DTYPE_AUTO, 0), h->d.m, "out is NULL");
    refused(mar_convert(h->failed, "demo", out, MAR_DTYPE_AUTO, 0), h->failed, "not opened: --threads -1");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        char what[64];
        snprintf(what, sizeof what, "--dtype %d: expected auto, f32, bf16, int8 or f16", out_of_range[i]);
        refused(mar_convert(h->d.m, "demo", out, (mar_dtype)out_of_range[i], 0), h->d.m, what);
        refused(mar_convert(h->d.m, "demo", out, MAR_DTYPE_AUTO, out_of_range[i]), h->d.m, "head");
    }
    assert_int_equal(access(out, F_OK), -1);
    remove_directory(directory);
    free(directory);
}

static void hostile_mar_method_count(host *h)
{
    (void)h;
    assert_true(mar_method_count() > 0);
}

static void hostile_mar_method_get(host *h)
{
    (void)h;
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_method_get(out_of_range[i]));
    assert_null(mar_method_get(mar_method_count()));
}

static void hostile_mar_precision_recall(host *h)
{
    float x[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    double p = 7, r = 7;
    mar *m = h->d.m;
    refused(mar_precision_recall(NULL, x, 4, x, 4, 2, 3, &p, &r), NULL, "handle is NULL");
    refused(mar_precision_recall(NULL, NULL, 0, NULL, 0, 0, 0, NULL, NULL), NULL, "handle is NULL");
    refused(mar_precision_recall(h->failed, x, 4, x, 4, 2, 3, &p, &r), h->failed, "not opened: --threads -1");
    refused(mar_precision_recall(m, NULL, 4, x, 4, 2, 3, &p, &r), m, "reference is NULL");
    refused(mar_precision_recall(m, x, 4, NULL, 4, 2, 3, &p, &r), m, "images is NULL");
    refused(mar_precision_recall(m, x, 4, x, 4, 2, 3, NULL, &r), m, "precision is NULL");
    refused(mar_precision_recall(m, x, 4, x, 4, 2, 3, &p, NULL), m, "recall is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        const int n = out_of_range[i];
        if (n != 1 << 20) { /* which may be right */
            refused(mar_precision_recall(m, x, n, x, 4, 2, 3, &p, &r), m, "reference: ");
            refused(mar_precision_recall(m, x, 4, x, n, 2, 3, &p, &r), m, "images: ");
            refused(mar_precision_recall(m, x, 4, x, 4, n, 3, &p, &r), m, "dim ");
        }
        refused(mar_precision_recall(m, x, 4, x, 4, 2, n, &p, &r), m, n < 0 ? "k " : "reference: 4 feature vectors");
    }
    refused(mar_precision_recall(m, x, 4, x, 4, 0, 3, &p, &r), m, "dim 0");
    refused(mar_precision_recall(m, x, 4, x, 4, 2, 0, &p, &r), m, "k 0");
    refused(mar_precision_recall(m, x, 4, x, 3, 2, 3, &p, &r), m, "images: 3 feature vectors");
    x[5] = NAN;
    refused(mar_precision_recall(m, x, 4, x, 4, 2, 3, &p, &r), m, "reference: vector 2 has a number");
    assert_true(p == 0 && r == 0);
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    static hostile_call *const calls[] = {HOSTILE_OTHERS(HOSTILE_CALL)};
    make_mistakes(calls, sizeof calls / sizeof *calls);
}

#define NAME(name) #name,
static const char *const declared[] = {HOSTILE_OPTIONS(NAME) HOSTILE_SESSIONS(NAME) HOSTILE_OTHERS(NAME)};
enum { DECLARED = sizeof declared / sizeof *declared };

/* Each function that the header declares is tested. */
static void none_is_missing(void **state)
{
    (void)state;
    char line[400];
    int found = 0;
    FILE *header = fopen("include/mar.h", "r");
    assert_non_null(header);
    while (fgets(line, sizeof line, header)) {
        if (strncmp(line, "MAR_API ", 8) != 0) continue;
        char *end = strchr(line, '('), *name = end;
        assert_non_null(end);
        *end = '\0';
        while (name[-1] != ' ' && name[-1] != '*') name--;
        int known = 0;
        for (int i = 0; i < DECLARED; i++) known |= strcmp(declared[i], name) == 0;
        if (!known) fail_msg("%s is declared in mar.h and not in tests/support/hostile.h", name);
        found++;
    }
    fclose(header);
    assert_int_equal(found, DECLARED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_refused),
        cmocka_unit_test(none_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
