/* A host that makes every mistake there is: NULL for every pointer of every public function, numbers and indices out of
 * range, and a handle that was not opened. Nothing crashes or hangs; a call with a status says what is wrong. */
#include "tests/support/demo.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int out_of_range[] = {INT_MIN, INT_MIN + 1, -1000, -1, 1 << 20, INT_MAX - 1, INT_MAX};
enum { OUT_OF_RANGE = sizeof out_of_range / sizeof *out_of_range };

/* What the calls are made with. */
typedef struct {
    demo d;                 /* as it should be */
    mar *failed;            /* was not opened */
    mar_params p;           /* a short run */
    mar_session *s;         /* a finished batch of one image */
    mar_report *report;     /* of the demo */
    mar_features *features; /* of the demo, one image at a time */
} host;

static void one_line(const char *text, const char *what)
{
    assert_non_null(text);
    assert_null(strchr(text, '\n'));
    assert_says(text, what);
}

/* The call was refused, and the thread's reason for handle m, or for calls without one, says what. */
static void refused(mar_status status, const mar *m, const char *what)
{
    if (status != MAR_EARG) fail_msg("%s: %s, expected MAR_EARG", what, mar_status_name(status));
    one_line(mar_error(m), what);
}

static void session_refused(mar_status status, const mar_session *s, const char *what)
{
    if (status != MAR_EARG) fail_msg("%s: %s, expected MAR_EARG", what, mar_status_name(status));
    one_line(mar_session_error(s), what);
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static void hostile_mar_param_set(host *h)
{
    char why[128];
    const mar_param *cfg = mar_param_get(2);
    const mar_param choice = {.type = MAR_TYPE_CHOICE}, name = {.type = MAR_TYPE_NAME}, odd = {.type = (mar_type)99};
    int field[4] = {7, 7, 7, 7};
    assert_string_equal(cfg->name, "cfg");
    assert_int_equal(mar_param_set(NULL, &h->p, "1", why, sizeof why), MAR_EARG);
    one_line(why, "NULL");
    assert_int_equal(mar_param_set(cfg, NULL, "1", why, sizeof why), MAR_EARG);
    one_line(why, "cfg");
    assert_int_equal(mar_param_set(cfg, &h->p, NULL, why, sizeof why), MAR_EARG);
    one_line(why, "expected a number");
    assert_int_equal(mar_param_set(NULL, NULL, NULL, NULL, 0), MAR_EARG);
    assert_int_equal(mar_param_set(cfg, &h->p, NULL, NULL, sizeof why), MAR_EARG);
    why[0] = 'x';
    assert_int_equal(mar_param_set(cfg, &h->p, "1000", why, 0), MAR_EARG);
    assert_int_equal(why[0], 'x');
    assert_int_equal(mar_param_set(cfg, &h->p, "1000", why, 1), MAR_EARG);
    assert_string_equal(why, "");
    assert_int_equal(mar_param_set(cfg, &h->p, "1\n\x1b[31m", why, sizeof why), MAR_EARG);
    one_line(why, "cfg 1\\n\\x1b[31m: expected a number");
    assert_int_equal(mar_param_set(&choice, field, "on", why, sizeof why), MAR_EARG);
    assert_int_equal(mar_param_set(&name, field, "on", why, sizeof why), MAR_EARG);
    assert_int_equal(mar_param_set(&odd, field, "on", why, sizeof why), MAR_EARG);
    assert_int_equal(field[0], 7);
}

static void hostile_mar_param_expects(host *h)
{
    char text[64] = "x";
    (void)h;
    assert_string_equal(mar_param_expects(NULL, text, sizeof text), "");
    assert_string_equal(mar_param_expects(mar_param_get(0), NULL, 0), "");
    assert_string_equal(mar_param_expects(mar_param_get(0), NULL, 10), "");
    assert_string_equal(mar_param_expects(mar_param_get(0), text, 0), "");
    for (int type = -1; type < 12; type++) {
        const mar_param empty = {.type = (mar_type)type};
        assert_non_null(mar_param_expects(&empty, text, sizeof text));
        for (int i = 0; i < mar_param_count(); i++) mar_param_expects(mar_param_get(i), text, 1);
    }
}

static void hostile_mar_param_text(host *h)
{
    char text[64] = "x";
    int fields[4] = {INT_MIN, 0, 0, 0};
    assert_string_equal(mar_param_text(NULL, &h->p, text, sizeof text), "");
    assert_string_equal(mar_param_text(mar_param_get(0), NULL, text, sizeof text), "");
    assert_string_equal(mar_param_text(mar_param_get(0), &h->p, NULL, 0), "");
    assert_string_equal(mar_param_text(mar_param_get(0), &h->p, NULL, sizeof text), "");
    assert_string_equal(mar_param_text(mar_param_get(0), &h->p, text, 0), "");
    for (int type = MAR_TYPE_FLAG; type <= MAR_TYPE_CHOICE; type++) {
        const mar_param empty = {.type = (mar_type)type};
        assert_non_null(mar_param_text(&empty, fields, text, sizeof text));
    }
}

static void hostile_mar_param_is_default(host *h)
{
    assert_int_equal(mar_param_is_default(NULL, &h->p), 0);
    assert_int_equal(mar_param_is_default(mar_param_get(0), NULL), 0);
    assert_int_equal(mar_param_is_default(NULL, NULL), 0);
}

static void hostile_mar_option_count(host *h)
{
    (void)h;
    assert_true(mar_option_count() > 0);
}

static void hostile_mar_option_get(host *h)
{
    (void)h;
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_option_get(out_of_range[i]));
    assert_null(mar_option_get(mar_option_count()));
}

static void hostile_mar_param_count(host *h)
{
    (void)h;
    assert_true(mar_param_count() > 0);
}

static void hostile_mar_param_get(host *h)
{
    (void)h;
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_param_get(out_of_range[i]));
    assert_null(mar_param_get(mar_param_count()));
}

static void hostile_mar_params_init(host *h)
{
    mar_params p[2];
    mar_params_init(NULL, sizeof p[0]);
    mar_params_init(NULL, 0);
    memset(p, 0x55, sizeof p);
    mar_params_init(p, 0); /* writes nothing */
    for (size_t i = 0; i < sizeof p; i++) assert_int_equal(((unsigned char *)p)[i], 0x55);
    mar_params_init(p, 3); /* nor more than it may */
    for (size_t i = 3; i < sizeof p; i++) assert_int_equal(((unsigned char *)p)[i], 0x55);
    mar_session *s;
    mar_params_init(p, sizeof p); /* that of a newer header */
    refused(mar_session_create(h->d.model, NULL, p, 1, &s), h->d.m, "newer mar.h");
    static const size_t sizes[] = {0, 1, sizeof(size_t), sizeof(mar_params) - 1, sizeof(mar_params) + 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        p[0] = h->p;
        p[0].size = sizes[i];
        refused(mar_session_create(h->d.model, NULL, p, 1, &s), h->d.m, "mar_params of ");
        assert_null(mar_params_unused(p, 0));
    }
}

static void hostile_mar_params_set(host *h)
{
    char why[128];
    assert_int_equal(mar_params_set(NULL, "cfg", "1", why, sizeof why), MAR_EARG);
    one_line(why, "params is NULL");
    assert_int_equal(mar_params_set(&h->p, NULL, "1", why, sizeof why), MAR_EARG);
    one_line(why, "no such option");
    assert_int_equal(mar_params_set(&h->p, "cfg", NULL, why, sizeof why), MAR_EARG);
    one_line(why, "cfg NULL: expected a number");
    assert_int_equal(mar_params_set(&h->p, "cf\x1b", "1", why, sizeof why), MAR_EARG);
    one_line(why, "cf\\x1b: no such option");
    assert_int_equal(mar_params_set(NULL, NULL, NULL, NULL, 0), MAR_EARG);
    assert_int_equal(mar_params_set(&h->p, "cfg", NULL, NULL, sizeof why), MAR_EARG);
    assert_int_equal(mar_params_set(&h->p, "none", "1", why, 0), MAR_EARG);
}

static void hostile_mar_params_unused(host *h)
{
    assert_null(mar_params_unused(NULL, 0));
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_params_unused(&h->p, out_of_range[i]));
    assert_null(mar_params_unused(&h->p, mar_param_count()));
}

/* --- the handle --------------------------------------------------------------------------------------------------- */

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
    refused(status, m, "expected auto, f32 or bf16");
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
    refused(mar_measure_peak(h->failed, &rate), h->failed, "not opened: threads -1");
}

static void hostile_mar_measure_bandwidth(host *h)
{
    double rate;
    refused(mar_measure_bandwidth(NULL, &rate), NULL, "handle is NULL");
    refused(mar_measure_bandwidth(NULL, NULL), NULL, "handle is NULL");
    refused(mar_measure_bandwidth(h->d.m, NULL), h->d.m, "bytes_per_second is NULL");
    refused(mar_measure_bandwidth(h->failed, &rate), h->failed, "not opened: threads -1");
}

/* --- models ------------------------------------------------------------------------------------------------------- */

static void hostile_mar_model_load(host *h)
{
    mar_model *model = h->d.model;
    refused(mar_model_load(NULL, "demo", 0, &model), NULL, "handle is NULL");
    assert_null(model);
    refused(mar_model_load(h->d.m, NULL, 0, &model), h->d.m, "path is NULL");
    refused(mar_model_load(h->d.m, "demo", 0, NULL), h->d.m, "out is NULL");
    refused(mar_model_load(h->failed, "demo", 0, &model), h->failed, "not opened: threads -1");
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
    refused(mar_vae_load(h->failed, "demo", &vae), h->failed, "not opened: threads -1");
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

/* --- judging images ----------------------------------------------------------------------------------------------- */

static void hostile_mar_features_load(host *h)
{
    mar_features *f = h->features;
    refused(mar_features_load(NULL, "demo", 1, &f), NULL, "handle is NULL");
    assert_null(f);
    refused(mar_features_load(h->d.m, NULL, 1, &f), h->d.m, "path is NULL");
    refused(mar_features_load(h->d.m, "demo", 1, NULL), h->d.m, "out is NULL");
    refused(mar_features_load(h->failed, "demo", 1, &f), h->failed, "not opened: threads -1");
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

/* --- sessions ----------------------------------------------------------------------------------------------------- */

/* Every number of the parameters that is out of its range, and every float that is none. */
static void wrong_numbers(host *h)
{
    mar_session *s;
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *o = mar_param_get(i);
        mar_params p = h->p;
        void *field = (char *)&p + o->offset;
        if (o->type == MAR_TYPE_FLOAT) {
            static const float wrong[] = {NAN, -NAN, INFINITY, -INFINITY, -1, 1e30f};
            for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
                memcpy(field, &wrong[k], sizeof wrong[k]);
                refused(mar_session_create(h->d.model, NULL, &p, 1, &s), h->d.m, o->name);
            }
        } else if (o->type == MAR_TYPE_FLAG || o->type == MAR_TYPE_INT || o->type == MAR_TYPE_CHOICE) {
            for (int k = 0; k < OUT_OF_RANGE; k++) {
                if (out_of_range[k] == (int)o->value) continue; /* of an option that may be -1 */
                memcpy(field, &out_of_range[k], sizeof(int));
                refused(mar_session_create(h->d.model, NULL, &p, 1, &s), h->d.m, o->name);
            }
        }
    }
}

static void hostile_mar_session_create(host *h)
{
    mar_session *s = h->s;
    refused(mar_session_create(NULL, h->d.vae, &h->p, 1, &s), NULL, "model is NULL");
    assert_null(s);
    refused(mar_session_create(h->d.model, h->d.vae, NULL, 1, &s), h->d.m, "params is NULL");
    refused(mar_session_create(h->d.model, h->d.vae, &h->p, 1, NULL), h->d.m, "out is NULL");
    refused(mar_session_create(NULL, NULL, NULL, 0, NULL), NULL, "model is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_session_create(h->d.model, NULL, &h->p, out_of_range[i], &s), h->d.m, "batch of");
    wrong_numbers(h);
    const demo other = demo_open(1);
    mar_params p = h->p;
    refused(mar_session_create(h->d.model, other.vae, &p, 1, &s), h->d.m, "different handles");
    p.draft = other.draft;
    refused(mar_session_create(h->d.model, NULL, &p, 1, &s), h->d.m, "different handles");
    demo_close(other);
}

static void hostile_mar_session_free(host *h)
{
    (void)h;
    mar_session_free(NULL);
}

static void hostile_mar_session_error(host *h)
{
    (void)h;
    assert_non_null(mar_session_error(NULL));
}

static void hostile_mar_session_begin(host *h)
{
    const int label = 1;
    session_refused(mar_session_begin(NULL, 0, &label, 1), NULL, "session is NULL");
    session_refused(mar_session_begin(h->s, 0, NULL, 1), h->s, "labels is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        session_refused(mar_session_begin(h->s, 0, &label, out_of_range[i]), h->s, "images: expected 1..");
        if (out_of_range[i] != -1) session_refused(mar_session_begin(h->s, 0, &out_of_range[i], 1), h->s, "class ");
    }
    session_refused(mar_session_begin(h->s, 0, &label, 0), h->s, "0 images");
}

/* The demo knows classes; what a model of captions refuses is in mar.discrete. */
static void hostile_mar_session_begin_captions(host *h)
{
    const float feature = 1;
    const uint8_t mask = 1;
    session_refused(mar_session_begin_captions(NULL, 0, &feature, &mask, 1), NULL, "session is NULL");
    session_refused(mar_session_begin_captions(h->s, 0, NULL, &mask, 1), h->s, "features is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        session_refused(mar_session_begin_captions(h->s, 0, &feature, &mask, out_of_range[i]), h->s,
                        "images: expected 1..");
    session_refused(mar_session_begin_captions(h->s, 0, &feature, &mask, 1), h->s,
                    "images of classes, not of captions");
}

static void hostile_mar_session_step(host *h)
{
    session_refused(mar_session_step(NULL), NULL, "session is NULL");
    session_refused(mar_session_step(h->s), h->s, "no step left");
}

static void hostile_mar_session_done(host *h)
{
    (void)h;
    assert_int_equal(mar_session_done(NULL), 1); /* a loop until then ends */
}

static void hostile_mar_session_steps_left(host *h)
{
    (void)h;
    assert_int_equal(mar_session_steps_left(NULL), 0);
}

static void hostile_mar_session_cancel(host *h)
{
    (void)h;
    mar_session_cancel(NULL);
}

static void note(void *user, mar_session *s, const mar_progress *p)
{
    (void)user, (void)s, (void)p;
}

static void hostile_mar_session_on_progress(host *h)
{
    mar_session_on_progress(NULL, note, h);
    mar_session_on_progress(NULL, NULL, NULL);
    mar_session_on_progress(h->s, NULL, h);
}

static void hostile_mar_session_set_stream(host *h)
{
    session_refused(mar_session_set_stream(NULL, NULL), NULL, "session is NULL");
    session_refused(mar_session_set_stream(h->s, h), h->s, "no streams");
}

static void ignore_measurement(void *user, const mar_measurement *m)
{
    (void)user, (void)m;
}

static void hostile_mar_session_measure(host *h)
{
    session_refused(mar_session_measure(NULL, ignore_measurement, NULL), NULL, "session is NULL");
    session_refused(mar_session_measure(NULL, NULL, NULL), NULL, "session is NULL");
    session_refused(mar_session_measure(h->s, NULL, NULL), h->s, "f is NULL");
}

static void hostile_mar_session_tokens(host *h)
{
    float tokens[DEMO_TOKENS];
    session_refused(mar_session_tokens(NULL, tokens), NULL, "session is NULL");
    session_refused(mar_session_tokens(h->s, NULL), h->s, "tokens is NULL");
    session_refused(mar_session_tokens(NULL, NULL), NULL, "session is NULL");
}

static void hostile_mar_session_images(host *h)
{
    uint8_t rgb[DEMO_BYTES];
    session_refused(mar_session_images(NULL, rgb), NULL, "session is NULL");
    session_refused(mar_session_images(h->s, NULL), h->s, "rgb is NULL");
    session_refused(mar_session_images(NULL, NULL), NULL, "session is NULL");
}

static void hostile_mar_session_image_size(host *h)
{
    int width = 7, height = 7;
    mar_session_image_size(NULL, &width, &height);
    assert_int_equal(width, 0);
    assert_int_equal(height, 0);
    mar_session_image_size(h->s, NULL, &height);
    assert_int_equal(height, DEMO_SIDE);
    mar_session_image_size(h->s, &width, NULL);
    assert_int_equal(width, DEMO_SIDE);
    mar_session_image_size(NULL, NULL, NULL);
}

static void hostile_mar_session_get_params(host *h)
{
    (void)h;
    assert_null(mar_session_get_params(NULL));
}

static void hostile_mar_session_get_stats(host *h)
{
    mar_stats stats;
    const mar_stats none = {0};
    memset(&stats, 0x55, sizeof stats);
    mar_session_get_stats(NULL, &stats);
    assert_int_equal(stats.tokens, 0);
    assert_true(stats.total_s == none.total_s && stats.accepted_shift == none.accepted_shift);
    mar_session_get_stats(h->s, NULL);
    mar_session_get_stats(NULL, NULL);
}

static void hostile_mar_session_fates(host *h)
{
    uint8_t map[DEMO_SEQ];
    int step[DEMO_SEQ];
    session_refused(mar_session_fates(NULL, map, step), NULL, "session is NULL");
    assert_session(h->s, mar_session_fates(h->s, NULL, NULL));
    assert_session(h->s, mar_session_fates(h->s, map, NULL));
    assert_session(h->s, mar_session_fates(h->s, NULL, step));
}

static void hostile_mar_session_lateness(host *h)
{
    int late[DEMO_SEQ];
    session_refused(mar_session_lateness(NULL, late), NULL, "session is NULL");
    session_refused(mar_session_lateness(h->s, NULL), h->s, "late is NULL");
    session_refused(mar_session_lateness(NULL, NULL), NULL, "session is NULL");
    memset(late, 0x55, sizeof late);
    assert_session(h->s, mar_session_lateness(h->s, late));
    for (int i = 0; i < DEMO_SEQ; i++) assert_int_equal(late[i], 0);
}

static void hostile_mar_session_guarantee(host *h)
{
    (void)h;
    assert_string_equal(mar_session_guarantee(NULL), "");
}

static void hostile_mar_session_description(host *h)
{
    char text[1024] = "?";
    (void)h;
    assert_string_equal(mar_session_description(NULL, text, sizeof text), "");
    assert_string_equal(mar_session_description(NULL, NULL, 0), "");
}

/* --- files and methods -------------------------------------------------------------------------------------------- */

static void hostile_mar_inspect(host *h)
{
    mar_report *r = h->report;
    refused(mar_inspect(NULL, "demo", 0, &r), NULL, "handle is NULL");
    assert_null(r);
    refused(mar_inspect(h->d.m, NULL, 0, &r), h->d.m, "path is NULL");
    refused(mar_inspect(h->d.m, "demo", 0, NULL), h->d.m, "out is NULL");
    refused(mar_inspect(h->failed, "demo", 0, &r), h->failed, "not opened: threads -1");
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
    refused(mar_convert(h->failed, "demo", out, MAR_DTYPE_AUTO, 0), h->failed, "not opened: threads -1");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        char what[64];
        snprintf(what, sizeof what, "dtype %d: expected auto, f32, bf16 or f16", out_of_range[i]);
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
    refused(mar_precision_recall(h->failed, x, 4, x, 4, 2, 3, &p, &r), h->failed, "not opened: threads -1");
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

/* --- all of them -------------------------------------------------------------------------------------------------- */

#define CALLS(X)                                                                                                       \
    X(mar_param_set)                                                                                                   \
    X(mar_param_expects)                                                                                               \
    X(mar_param_text)                                                                                                  \
    X(mar_param_is_default)                                                                                            \
    X(mar_option_count)                                                                                                \
    X(mar_option_get)                                                                                                  \
    X(mar_param_count)                                                                                                 \
    X(mar_param_get)                                                                                                   \
    X(mar_params_init)                                                                                                 \
    X(mar_params_set)                                                                                                  \
    X(mar_params_unused)                                                                                               \
    X(mar_open)                                                                                                        \
    X(mar_close)                                                                                                       \
    X(mar_error)                                                                                                       \
    X(mar_status_name)                                                                                                 \
    X(mar_version)                                                                                                     \
    X(mar_backend_description)                                                                                         \
    X(mar_gpu_count)                                                                                                   \
    X(mar_measure_peak)                                                                                                \
    X(mar_measure_bandwidth)                                                                                           \
    X(mar_model_load)                                                                                                  \
    X(mar_model_free)                                                                                                  \
    X(mar_model_get_config)                                                                                            \
    X(mar_vae_load)                                                                                                    \
    X(mar_vae_free)                                                                                                    \
    X(mar_vae_codebook)                                                                                                \
    X(mar_vae_get_config)                                                                                              \
    X(mar_features_load)                                                                                               \
    X(mar_features_free)                                                                                               \
    X(mar_features_get_config)                                                                                         \
    X(mar_features_run)                                                                                                \
    X(mar_session_create)                                                                                              \
    X(mar_session_free)                                                                                                \
    X(mar_session_error)                                                                                               \
    X(mar_session_begin)                                                                                               \
    X(mar_session_begin_captions)                                                                                      \
    X(mar_session_step)                                                                                                \
    X(mar_session_done)                                                                                                \
    X(mar_session_steps_left)                                                                                          \
    X(mar_session_cancel)                                                                                              \
    X(mar_session_on_progress)                                                                                         \
    X(mar_session_set_stream)                                                                                          \
    X(mar_session_tokens)                                                                                              \
    X(mar_session_images)                                                                                              \
    X(mar_session_image_size)                                                                                          \
    X(mar_session_get_params)                                                                                          \
    X(mar_session_get_stats)                                                                                           \
    X(mar_session_measure)                                                                                             \
    X(mar_session_fates)                                                                                               \
    X(mar_session_lateness)                                                                                            \
    X(mar_session_description)                                                                                         \
    X(mar_session_guarantee)                                                                                           \
    X(mar_inspect)                                                                                                     \
    X(mar_report_free)                                                                                                 \
    X(mar_report_kind)                                                                                                 \
    X(mar_report_model)                                                                                                \
    X(mar_report_vae)                                                                                                  \
    X(mar_report_fact_count)                                                                                           \
    X(mar_report_fact)                                                                                                 \
    X(mar_report_problem_count)                                                                                        \
    X(mar_report_problem)                                                                                              \
    X(mar_precision_recall)                                                                                            \
    X(mar_convert)                                                                                                     \
    X(mar_method_count)                                                                                                \
    X(mar_method_get)

#define CALL(name) {#name, hostile_##name},
static const struct {
    const char *name;
    void (*run)(host *h);
} calls[] = {CALLS(CALL)};
enum { CALL_COUNT = sizeof calls / sizeof *calls };

static host host_open(void)
{
    host h = {.d = demo_open(2), .p = params_with("num_iter 4, num_sampling_steps 4")};
    const mar_options bad = {.backend = MAR_BACKEND_CPU, .threads = -1};
    float tokens[DEMO_TOKENS];
    assert_int_equal(mar_open(&bad, &h.failed), MAR_EARG);
    h.s = demo_session(&h.d, &h.p, 1);
    demo_generate(h.s, 1, tokens);
    assert_library(h.d.m, mar_inspect(h.d.m, "demo", 0, &h.report));
    assert_library(h.d.m, mar_features_load(h.d.m, "demo", 1, &h.features));
    return h;
}

static void host_close(host *h)
{
    mar_report_free(h->report);
    mar_features_free(h->features);
    mar_session_free(h->s);
    mar_close(h->failed);
    demo_close(h->d);
}

/* And afterwards all is as it was. */
static void mistakes_are_refused(void **state)
{
    (void)state;
    host h = host_open();
    float before[DEMO_TOKENS], after[DEMO_TOKENS];
    assert_session(h.s, mar_session_tokens(h.s, before));
    for (int i = 0; i < CALL_COUNT; i++) calls[i].run(&h);
    assert_session(h.s, mar_session_tokens(h.s, after));
    assert_memory_equal(after, before, sizeof after);
    host_close(&h);
}

/* Each function that the header declares is in the table. */
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
        for (int i = 0; i < CALL_COUNT; i++) known |= strcmp(calls[i].name, name) == 0;
        if (!known) fail_msg("%s is declared in mar.h and not tested here", name);
        found++;
    }
    fclose(header);
    assert_int_equal(found, CALL_COUNT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_refused),
        cmocka_unit_test(none_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
