/* Tests a host that makes every possible mistake. It passes NULL for every pointer of every public function. Numbers
 * and indices are out of range; one handle is not open. Nothing crashes or hangs. A call with a status says what is
 * wrong. */
#include "tests/support/decoder_folder.h"

#include "mar_eval.h"
#include "mar_files.h"
#include "mar_measure.h"
#include "mar_methods.h"
#include "tests/support/scores.h"
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

/* Arguments of the calls */
static struct {
    demo d;                    /* a valid demo */
    mar *failed;               /* handle that failed to open */
    mar_params p;              /* a short run */
    mar_session *s;            /* a finished batch of one image */
    float tokens[DEMO_TOKENS]; /* its tokens */
    mar_report *report;        /* of the demo */
    mar_features *features;    /* of the demo, one image at a time */
} host;

static int set_up(void **state)
{
    const mar_options bad = {.size = sizeof bad, .backend = MAR_BACKEND_CPU, .threads = -1};
    (void)state;
    host.d = demo_open(2);
    host.p = params_with("num_iter 4, num_sampling_steps 4");
    assert_int_equal(mar_open(&bad, &host.failed), MAR_EARG);
    host.s = demo_session(&host.d, &host.p, 1);
    demo_generate(host.s, 1, host.tokens);
    assert_library(host.d.m, mar_inspect(host.d.m, "demo", 0, &host.report));
    assert_library(host.d.m, mar_features_load(host.d.m, "demo", 1, &host.features));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mar_report_free(host.report);
    mar_features_free(host.features);
    mar_session_free(host.s);
    mar_close(host.failed);
    demo_close(host.d);
    return 0;
}

TEST_GROUP(set_up, tear_down)

static int session_is_unharmed(void **state)
{
    float tokens[DEMO_TOKENS];
    (void)state;
    assert_session(host.s, mar_session_tokens(host.s, tokens));
    assert_memory_equal(tokens, host.tokens, sizeof tokens);
    return 0;
}

/* Begins the test of a function of the public headers. */
#define HOSTILE(name) TEST_WITH(hostile_##name, NULL, session_is_unharmed)
/* HOSTILE_NULL tests a function that accepts NULL. HOSTILE_IS tests one whose return value suffices. */
#define HOSTILE_NULL(name)                                                                                             \
    HOSTILE(name)                                                                                                      \
    {                                                                                                                  \
        name(NULL);                                                                                                    \
    }
#define HOSTILE_IS(name, condition)                                                                                    \
    HOSTILE(name)                                                                                                      \
    {                                                                                                                  \
        assert_true(condition);                                                                                        \
    }

/* Checks that the text is one line that says `what`. */
static void one_line(const char *text, const char *what)
{
    assert_non_null(text);
    assert_null(strchr(text, '\n'));
    assert_says(text, what);
}

/* Checks that the call was refused. The thread's reason says `what`: for handle m, or for calls without a handle. */
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

HOSTILE(mar_param_set)
{
    char why[128];
    const mar_param *cfg = mar_param_get(3);
    const mar_param choice = {.size = sizeof choice, .type = MAR_TYPE_CHOICE},
                    name = {.size = sizeof name, .type = MAR_TYPE_NAME},
                    odd = {.size = sizeof odd, .type = (mar_type)99}, no_size = {.type = MAR_TYPE_FLAG},
                    newer = {.size = 2 * sizeof newer, .type = MAR_TYPE_FLAG};
    int field[4] = {7, 7, 7, 7};
    assert_string_equal(cfg->name, "cfg");
    assert_int_equal(mar_param_set(NULL, &host.p, "1", why, sizeof why), MAR_EARG);
    one_line(why, "NULL");
    assert_int_equal(mar_param_set(cfg, NULL, "1", why, sizeof why), MAR_EARG);
    one_line(why, "cfg");
    assert_int_equal(mar_param_set(cfg, &host.p, NULL, why, sizeof why), MAR_EARG);
    one_line(why, "expected auto or a number");
    assert_int_equal(mar_param_set(NULL, NULL, NULL, NULL, 0), MAR_EARG);
    assert_int_equal(mar_param_set(cfg, &host.p, NULL, NULL, sizeof why), MAR_EARG);
    why[0] = 'x';
    assert_int_equal(mar_param_set(cfg, &host.p, "1000", why, 0), MAR_EARG);
    assert_int_equal(why[0], 'x');
    assert_int_equal(mar_param_set(cfg, &host.p, "1000", why, 1), MAR_EARG);
    assert_string_equal(why, "");
    assert_int_equal(mar_param_set(cfg, &host.p, "1\n\x1b[31m", why, sizeof why), MAR_EARG);
    one_line(why, "--cfg 1\\n\\x1b[31m: expected auto or a number");
    assert_int_equal(mar_param_set(&choice, field, "on", why, sizeof why), MAR_EARG);
    assert_int_equal(mar_param_set(&name, field, "on", why, sizeof why), MAR_EARG);
    assert_int_equal(mar_param_set(&odd, field, "on", why, sizeof why), MAR_EARG);
    assert_int_equal(mar_param_set(&no_size, field, "on", why, sizeof why), MAR_EARG);
    one_line(why, "mar_param.size is 0: expected sizeof(mar_param)");
    assert_int_equal(mar_param_set(&newer, field, "on", why, sizeof why), MAR_EARG);
    one_line(why, "mar_param.size is ");
    assert_int_equal(field[0], 7);
}

HOSTILE(mar_param_expects)
{
    char text[64] = "x";
    assert_string_equal(mar_param_expects(NULL, text, sizeof text), "");
    assert_string_equal(mar_param_expects(mar_param_get(0), NULL, 0), "");
    assert_string_equal(mar_param_expects(mar_param_get(0), NULL, 10), "");
    assert_string_equal(mar_param_expects(mar_param_get(0), text, 0), "");
    for (int type = -1; type < 12; type++) {
        const mar_param empty = {.size = sizeof empty, .type = (mar_type)type};
        assert_non_null(mar_param_expects(&empty, text, sizeof text));
        for (int i = 0; i < mar_param_count(); i++) mar_param_expects(mar_param_get(i), text, 1);
    }
}

HOSTILE(mar_param_text)
{
    char text[64] = "x";
    int fields[4] = {INT_MIN, 0, 0, 0};
    assert_string_equal(mar_param_text(NULL, &host.p, text, sizeof text), "");
    assert_string_equal(mar_param_text(mar_param_get(0), NULL, text, sizeof text), "");
    assert_string_equal(mar_param_text(mar_param_get(0), &host.p, NULL, 0), "");
    assert_string_equal(mar_param_text(mar_param_get(0), &host.p, NULL, sizeof text), "");
    assert_string_equal(mar_param_text(mar_param_get(0), &host.p, text, 0), "");
    for (int type = MAR_TYPE_FLAG; type <= MAR_TYPE_CHOICE; type++) {
        const mar_param empty = {.size = sizeof empty, .type = (mar_type)type};
        assert_non_null(mar_param_text(&empty, fields, text, sizeof text));
    }
}

HOSTILE(mar_param_is_default)
{
    assert_int_equal(mar_param_is_default(NULL, &host.p), 0);
    assert_int_equal(mar_param_is_default(mar_param_get(0), NULL), 0);
    assert_int_equal(mar_param_is_default(NULL, NULL), 0);
    assert_int_equal(mar_param_is_default(&(mar_param){.type = MAR_TYPE_FLAG}, &host.p), 0); /* no size */
}

HOSTILE(mar_options_init)
{
    unsigned char raw[sizeof(mar_options) + 8];
    mar *m;
    mar_options_init(NULL, sizeof(mar_options));
    memset(raw, 0x55, sizeof raw);
    mar_options_init((mar_options *)(void *)raw, 3); /* writes at most 3 bytes */
    for (size_t i = 3; i < sizeof raw; i++) assert_int_equal(raw[i], 0x55);
    static const size_t sizes[] = {0, 1, sizeof(size_t), sizeof(mar_options) - 1, sizeof(mar_options) + 8, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const mar_options o = {.size = sizes[i]};
        const mar_status status = mar_open(&o, &m);
        refused(status, m, "mar_options.size is ");
        mar_close(m);
    }
}

HOSTILE_IS(mar_option_count, mar_option_count() > 0)

HOSTILE(mar_option_get)
{
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_option_get(out_of_range[i]));
    assert_null(mar_option_get(mar_option_count()));
}

HOSTILE_IS(mar_param_count, mar_param_count() > 0)

HOSTILE(mar_param_get)
{
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_param_get(out_of_range[i]));
    assert_null(mar_param_get(mar_param_count()));
}

HOSTILE(mar_params_init)
{
    mar_params p[2];
    mar_params_init(NULL, sizeof p[0]);
    mar_params_init(NULL, 0);
    memset(p, 0x55, sizeof p);
    mar_params_init(p, 0); /* writes nothing */
    for (size_t i = 0; i < sizeof p; i++) assert_int_equal(((unsigned char *)p)[i], 0x55);
    mar_params_init(p, 3); /* writes at most 3 bytes */
    for (size_t i = 3; i < sizeof p; i++) assert_int_equal(((unsigned char *)p)[i], 0x55);
    mar_session *s;
    mar_params_init(p, sizeof p); /* size in a newer header */
    refused(mar_session_create(host.d.model, NULL, p, 1, &s), host.d.m, "newer mar.h");
    static const size_t sizes[] = {0, 1, sizeof(size_t), sizeof(mar_params) - 1, sizeof(mar_params) + 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        p[0] = host.p;
        p[0].size = sizes[i];
        refused(mar_session_create(host.d.model, NULL, p, 1, &s), host.d.m, "mar_params.size is ");
        assert_null(mar_params_unused(p, 0));
    }
}

HOSTILE(mar_params_new)
{
    mar_params *p = mar_params_new();
    assert_non_null(p);
    assert_int_equal(p->size, sizeof *p);
    for (int i = 0; i < mar_param_count(); i++) assert_true(mar_param_is_default(mar_param_get(i), p));
    mar_params_free(p);
}

HOSTILE(mar_params_free)
{
    mar_params_free(NULL);
}

HOSTILE(mar_params_set)
{
    char why[128];
    assert_int_equal(mar_params_set(NULL, "cfg", "1", why, sizeof why), MAR_EARG);
    one_line(why, "params is NULL");
    assert_int_equal(mar_params_set(&host.p, NULL, "1", why, sizeof why), MAR_EARG);
    one_line(why, "no such option");
    assert_int_equal(mar_params_set(&host.p, "cfg", NULL, why, sizeof why), MAR_EARG);
    one_line(why, "--cfg NULL: expected auto or a number");
    assert_int_equal(mar_params_set(&host.p, "cf\x1b", "1", why, sizeof why), MAR_EARG);
    one_line(why, "cf\\x1b: no such option");
    assert_int_equal(mar_params_set(NULL, NULL, NULL, NULL, 0), MAR_EARG);
    assert_int_equal(mar_params_set(&host.p, "cfg", NULL, NULL, sizeof why), MAR_EARG);
    assert_int_equal(mar_params_set(&host.p, "none", "1", why, 0), MAR_EARG);
}

HOSTILE(mar_params_unused)
{
    assert_null(mar_params_unused(NULL, 0));
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_params_unused(&host.p, out_of_range[i]));
    assert_null(mar_params_unused(&host.p, mar_param_count()));
}

/* --- sessions ----------------------------------------------------------------------------------------------------- */

/* Sets each parameter out of its range in turn, and floats to non-finite values. Each value is refused. */
static void wrong_numbers(void)
{
    mar_session *s;
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *o = mar_param_get(i);
        mar_params p = host.p;
        void *field = (char *)&p + o->offset;
        if (o->type == MAR_TYPE_FLOAT) {
            static const float wrong[] = {NAN, -NAN, INFINITY, -INFINITY, -0.5f, 1e30f};
            for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
                memcpy(field, &wrong[k], sizeof wrong[k]);
                refused(mar_session_create(host.d.model, NULL, &p, 1, &s), host.d.m, o->name);
            }
        } else if (o->type == MAR_TYPE_FLAG || o->type == MAR_TYPE_INT || o->type == MAR_TYPE_CHOICE) {
            for (int k = 0; k < OUT_OF_RANGE; k++) {
                if (out_of_range[k] == (int)o->min) continue; /* an option that may be -1 */
                memcpy(field, &out_of_range[k], sizeof(int));
                refused(mar_session_create(host.d.model, NULL, &p, 1, &s), host.d.m, o->name);
            }
        }
    }
}

HOSTILE(mar_session_create)
{
    mar_session *s = host.s;
    refused(mar_session_create(NULL, host.d.vae, &host.p, 1, &s), NULL, "model is NULL");
    assert_null(s);
    refused(mar_session_create(host.d.model, host.d.vae, NULL, 1, &s), host.d.m, "params is NULL");
    refused(mar_session_create(host.d.model, host.d.vae, &host.p, 1, NULL), host.d.m, "out is NULL");
    refused(mar_session_create(NULL, NULL, NULL, 0, NULL), NULL, "model is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_session_create(host.d.model, NULL, &host.p, out_of_range[i], &s), host.d.m, "batch of");
    wrong_numbers();
    const demo other = demo_open(1);
    mar_params p = host.p;
    refused(mar_session_create(host.d.model, other.vae, &p, 1, &s), host.d.m, "different handles");
    p.draft = other.draft;
    refused(mar_session_create(host.d.model, NULL, &p, 1, &s), host.d.m, "different handles");
    demo_close(other);
}

HOSTILE_NULL(mar_session_free)
HOSTILE_IS(mar_session_error, mar_session_error(NULL))

HOSTILE(mar_session_begin)
{
    const int label = 1;
    session_refused(mar_session_begin(NULL, 0, &label, 1), NULL, "session is NULL");
    session_refused(mar_session_begin(host.s, 0, NULL, 1), host.s, "labels is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        session_refused(mar_session_begin(host.s, 0, &label, out_of_range[i]), host.s, "images: expected 1..");
        if (out_of_range[i] != -1) session_refused(mar_session_begin(host.s, 0, &out_of_range[i], 1), host.s, "class ");
    }
    session_refused(mar_session_begin(host.s, 0, &label, 0), host.s, "0 images");
}

/* The demo knows classes only. mar.discrete tests refusals of models with captions. */
HOSTILE(mar_session_begin_captions)
{
    const float feature = 1;
    const uint8_t mask = 1;
    session_refused(mar_session_begin_captions(NULL, 0, &feature, &mask, 1), NULL, "session is NULL");
    session_refused(mar_session_begin_captions(host.s, 0, NULL, &mask, 1), host.s, "features is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        session_refused(mar_session_begin_captions(host.s, 0, &feature, &mask, out_of_range[i]), host.s,
                        "images: expected 1..");
    session_refused(mar_session_begin_captions(host.s, 0, &feature, &mask, 1), host.s,
                    "images of classes, not of captions");
}

HOSTILE(mar_session_set_negative)
{
    const float feature = 1;
    const uint8_t mask = 1;
    session_refused(mar_session_set_negative(NULL, &feature, &mask), NULL, "session is NULL");
    session_refused(mar_session_set_negative(host.s, NULL, &mask), host.s, "features is NULL");
    session_refused(mar_session_set_negative(host.s, &feature, NULL), host.s, "mask is NULL");
    session_refused(mar_session_set_negative(host.s, &feature, &mask), host.s, "it has no negative prompt");
}

HOSTILE(mar_session_step)
{
    session_refused(mar_session_step(NULL), NULL, "session is NULL");
    session_refused(mar_session_step(host.s), host.s, "no step left");
}

HOSTILE_IS(mar_session_done, mar_session_done(NULL) == 1)
HOSTILE_IS(mar_session_steps_left, mar_session_steps_left(NULL) == 0)

/* A request that the demo's session takes. */
static mar_request a_request(void)
{
    mar_request r;
    mar_request_init(host.s, &r, sizeof r);
    r.label = 1;
    return r;
}

HOSTILE(mar_request_init)
{
    mar_request r;
    mar_request_init(NULL, NULL, 0);
    mar_request_init(host.s, NULL, sizeof r);
    mar_request_init(NULL, &r, sizeof r);
    assert_int_equal(r.size, sizeof r);
    assert_int_equal(r.label, -1);
}

HOSTILE(mar_session_submit)
{
    mar_request r = a_request();
    uint64_t id = 3;
    session_refused(mar_session_submit(NULL, &r, &id), NULL, "session is NULL");
    assert_int_equal(id, 0);
    session_refused(mar_session_submit(host.s, NULL, &id), host.s, "mar_request is NULL");
    session_refused(mar_session_submit(host.s, &r, NULL), host.s, "id is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        r = a_request();
        if (out_of_range[i] != -1) r.label = out_of_range[i];
        if (out_of_range[i] != -1) session_refused(mar_session_submit(host.s, &r, &id), host.s, "class ");
        r = a_request();
        r.cfg = out_of_range[i] > 0 ? (float)out_of_range[i] : -1;
        session_refused(mar_session_submit(host.s, &r, &id), host.s, "cfg ");
    }
    r = a_request();
    r.size = sizeof r + 8;
    session_refused(mar_session_submit(host.s, &r, &id), host.s, "newer mar.h");
}

HOSTILE(mar_request_info_init)
{
    mar_request_info info;
    mar_request_info_init(NULL, sizeof info);
    mar_request_info_init(&info, sizeof info);
    assert_int_equal(info.size, sizeof info);
}

HOSTILE(mar_session_get_request)
{
    mar_request_info info;
    mar_request_info_init(&info, sizeof info);
    session_refused(mar_session_get_request(NULL, 1, &info), NULL, "session is NULL");
    session_refused(mar_session_get_request(host.s, 1, NULL), host.s, "mar_request_info is NULL");
    assert_session(host.s, mar_session_get_request(host.s, UINT64_MAX, &info));
    assert_int_equal(info.state, MAR_REQUEST_UNKNOWN);
    info.size = 0;
    session_refused(mar_session_get_request(host.s, 1, &info), host.s, "expected mar_request_info_init");
}

HOSTILE_IS(mar_session_pending, mar_session_pending(NULL) == 0 && mar_session_pending(host.s) == 0)
HOSTILE_IS(mar_session_next_finished, mar_session_next_finished(NULL) == 0 && mar_session_next_finished(host.s) == 0)

HOSTILE(mar_session_take)
{
    float tokens[DEMO_TOKENS];
    session_refused(mar_session_take(NULL, 1, tokens, NULL), NULL, "session is NULL");
    session_refused(mar_session_take(host.s, 0, tokens, NULL), host.s, "request 0: expected one that was submitted");
    session_refused(mar_session_take(host.s, UINT64_MAX, NULL, NULL), host.s, "expected one that was submitted");
    session_refused(mar_session_take(host.s, mar_session_batch_request(host.s, 0), tokens, NULL), host.s,
                    "is an image of a batch");
}

HOSTILE(mar_session_cancel_request)
{
    session_refused(mar_session_cancel_request(NULL, 1), NULL, "session is NULL");
    session_refused(mar_session_cancel_request(host.s, 0), host.s, "expected one that was submitted");
    session_refused(mar_session_cancel_request(host.s, mar_session_batch_request(host.s, 0)), host.s,
                    "is an image of a batch");
}

HOSTILE(mar_session_batch_request)
{
    assert_int_equal(mar_session_batch_request(NULL, 0), 0);
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_int_equal(mar_session_batch_request(host.s, out_of_range[i]), 0);
}

HOSTILE(mar_pixels_init)
{
    mar_pixels p;
    mar_pixels_init(NULL, sizeof p);
    mar_pixels_init(&p, sizeof p);
    assert_int_equal(p.size, sizeof p);
}

/* Tries every bad description of memory for pixels. `call` writes pixels of host.s. */
static void bad_pixels(mar_status (*call)(mar_session *s, mar_pixels *pixels))
{
    uint8_t rgb[DEMO_BYTES];
    mar_pixels p;
    mar_pixels_init(&p, sizeof p);
    session_refused(call(host.s, NULL), host.s, "mar_pixels is NULL");
    session_refused(call(host.s, &p), host.s, "mar_pixels.data is NULL");
    p.data = rgb;
    session_refused(call(host.s, &p), host.s, "mar_pixels.capacity 0: too few bytes");
    p.capacity = sizeof rgb;
    p.stride = 1;
    session_refused(call(host.s, &p), host.s, "mar_pixels.stride 1: expected 96");
    p.stride = SIZE_MAX;
    session_refused(call(host.s, &p), host.s, "mar_pixels.capacity 3072: too few bytes");
    p.stride = 0;
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        p.format = (mar_pixel_format)out_of_range[i];
        session_refused(call(host.s, &p), host.s, "mar_pixels.format ");
    }
    p.size = 3;
    session_refused(call(host.s, &p), host.s, "expected mar_pixels_init");
}

static mar_status image_0(mar_session *s, mar_pixels *pixels)
{
    return mar_session_image(s, 0, pixels);
}

static mar_status preview_0(mar_session *s, mar_pixels *pixels)
{
    return mar_session_preview(s, mar_session_batch_request(s, 0), pixels);
}

HOSTILE(mar_session_image)
{
    mar_pixels p;
    mar_pixels_init(&p, sizeof p);
    session_refused(mar_session_image(NULL, 0, &p), NULL, "session is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        session_refused(mar_session_image(host.s, out_of_range[i], &p), host.s, "expected 0..0, one of the batch");
    bad_pixels(image_0);
}

HOSTILE(mar_session_preview)
{
    mar_pixels p;
    mar_pixels_init(&p, sizeof p);
    session_refused(mar_session_preview(NULL, 1, &p), NULL, "session is NULL");
    session_refused(mar_session_preview(host.s, 0, &p), host.s, "expected one that was submitted");
    bad_pixels(preview_0);
}
HOSTILE_NULL(mar_session_cancel)

static void note(void *user, mar_session *s, const mar_progress *p)
{
    (void)user, (void)s, (void)p;
}

HOSTILE(mar_session_on_progress)
{
    mar_session_on_progress(NULL, note, &host);
    mar_session_on_progress(NULL, NULL, NULL);
    mar_session_on_progress(host.s, NULL, &host);
}

HOSTILE(mar_session_set_stream)
{
    session_refused(mar_session_set_stream(NULL, NULL), NULL, "session is NULL");
    session_refused(mar_session_set_stream(host.s, &host), host.s, "no streams");
}

static void ignore_measurement(void *user, const mar_measurement *m)
{
    (void)user, (void)m;
}

HOSTILE(mar_session_measure)
{
    session_refused(mar_session_measure(NULL, ignore_measurement, NULL), NULL, "session is NULL");
    session_refused(mar_session_measure(NULL, NULL, NULL), NULL, "session is NULL");
    session_refused(mar_session_measure(host.s, NULL, NULL), host.s, "f is NULL");
}

HOSTILE(mar_session_tokens)
{
    float tokens[DEMO_TOKENS];
    session_refused(mar_session_tokens(NULL, tokens), NULL, "session is NULL");
    session_refused(mar_session_tokens(host.s, NULL), host.s, "tokens is NULL");
    session_refused(mar_session_tokens(NULL, NULL), NULL, "session is NULL");
}

HOSTILE(mar_session_images)
{
    uint8_t rgb[DEMO_BYTES];
    session_refused(mar_session_images(NULL, rgb), NULL, "session is NULL");
    session_refused(mar_session_images(host.s, NULL), host.s, "rgb is NULL");
    session_refused(mar_session_images(NULL, NULL), NULL, "session is NULL");
}

HOSTILE(mar_session_encode)
{
    static uint8_t rgb[DEMO_BYTES];
    float tokens[DEMO_TOKENS];
    mar_pixels pixels;
    mar_pixels_init(&pixels, sizeof pixels);
    session_refused(mar_session_encode(NULL, &pixels, tokens), NULL, "session is NULL");
    session_refused(mar_session_encode(host.s, NULL, tokens), host.s, "mar_pixels is NULL");
    session_refused(mar_session_encode(host.s, &pixels, NULL), host.s, "tokens is NULL");
    session_refused(mar_session_encode(host.s, &pixels, tokens), host.s, "mar_pixels.data is NULL");
    pixels.data = rgb;
    pixels.capacity = DEMO_BYTES - 1;
    session_refused(mar_session_encode(host.s, &pixels, tokens), host.s, "mar_pixels.capacity 3071: too few bytes");
    pixels.capacity = DEMO_BYTES;
    pixels.stride = 1;
    session_refused(mar_session_encode(host.s, &pixels, tokens), host.s, "mar_pixels.stride 1: expected 96");
    pixels.stride = 0;
    session_refused(mar_session_encode(host.s, &pixels, tokens), host.s, "loaded without its encoder");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        pixels.format = (mar_pixel_format)out_of_range[i];
        session_refused(mar_session_encode(host.s, &pixels, tokens), host.s, "mar_pixels.format");
    }
    session_refused(mar_session_encode(NULL, NULL, NULL), NULL, "session is NULL");
}

HOSTILE(mar_session_decode)
{
    static float tokens[DEMO_TOKENS];
    uint8_t rgb[DEMO_BYTES];
    session_refused(mar_session_decode(NULL, 0, tokens, 1, rgb), NULL, "session is NULL");
    session_refused(mar_session_decode(host.s, 0, NULL, 1, rgb), host.s, "tokens is NULL");
    session_refused(mar_session_decode(host.s, 0, tokens, 1, NULL), host.s, "rgb is NULL");
    session_refused(mar_session_decode(host.s, 0, tokens, 0, rgb), host.s, "0 images: expected 1..");
    session_refused(mar_session_decode(host.s, 0, tokens, 1 << 20, rgb), host.s, "1048576 images: expected 1..");
    tokens[7] = NAN;
    session_refused(mar_session_decode(host.s, 0, tokens, 1, rgb), host.s,
                    "number 7 of the tokens is nan, expected a fin");
    session_refused(mar_session_decode(NULL, 0, NULL, 0, NULL), NULL, "session is NULL");
}

HOSTILE(mar_session_image_size)
{
    int width = 7, height = 7;
    mar_session_image_size(NULL, &width, &height);
    assert_int_equal(width, 0);
    assert_int_equal(height, 0);
    mar_session_image_size(host.s, NULL, &height);
    assert_int_equal(height, DEMO_SIDE);
    mar_session_image_size(host.s, &width, NULL);
    assert_int_equal(width, DEMO_SIDE);
    mar_session_image_size(NULL, NULL, NULL);
}

HOSTILE_IS(mar_session_get_params, !mar_session_get_params(NULL))

HOSTILE(mar_stats_init)
{
    mar_stats stats;
    mar_stats_init(NULL, sizeof stats);
    memset(&stats, 0x55, sizeof stats);
    mar_stats_init(&stats, 3); /* writes at most 3 bytes */
    for (size_t i = 3; i < sizeof stats; i++) assert_int_equal(((unsigned char *)&stats)[i], 0x55);
}

HOSTILE(mar_session_get_stats)
{
    mar_stats stats, zeros = {0};
    memset(&stats, 0x55, sizeof stats);
    stats.size = 0;
    mar_session_get_stats(host.s, &stats); /* writes nothing */
    assert_int_equal(stats.size, 0);
    for (size_t i = sizeof(size_t); i < sizeof stats; i++) assert_int_equal(((unsigned char *)&stats)[i], 0x55);
    stats.size = sizeof stats;
    mar_session_get_stats(NULL, &stats);
    zeros.size = sizeof zeros;
    assert_memory_equal(&stats, &zeros, sizeof zeros);
    mar_session_get_stats(host.s, NULL);
    mar_session_get_stats(NULL, NULL);
}

HOSTILE(mar_session_token_status)
{
    uint8_t map[DEMO_SEQ];
    int step[DEMO_SEQ];
    session_refused(mar_session_token_status(NULL, map, step), NULL, "session is NULL");
    assert_session(host.s, mar_session_token_status(host.s, NULL, NULL));
    assert_session(host.s, mar_session_token_status(host.s, map, NULL));
    assert_session(host.s, mar_session_token_status(host.s, NULL, step));
}

HOSTILE(mar_session_staleness)
{
    int late[DEMO_SEQ];
    session_refused(mar_session_staleness(NULL, late), NULL, "session is NULL");
    session_refused(mar_session_staleness(host.s, NULL), host.s, "late is NULL");
    session_refused(mar_session_staleness(NULL, NULL), NULL, "session is NULL");
    memset(late, 0x55, sizeof late);
    assert_session(host.s, mar_session_staleness(host.s, late));
    for (int i = 0; i < DEMO_SEQ; i++) assert_int_equal(late[i], 0);
}

HOSTILE_IS(mar_session_guarantee, !*mar_session_guarantee(NULL))

HOSTILE_IS(mar_session_get_guarantee, !mar_session_get_guarantee(NULL))

HOSTILE(mar_session_request_guarantee)
{
    char text[1024] = "?";
    mar_request request, unset = {0};
    mar_request_init(host.s, &request, sizeof request);
    assert_string_equal(mar_session_request_guarantee(NULL, &request, text, sizeof text), "");
    assert_string_equal(mar_session_request_guarantee(host.s, NULL, text, sizeof text), "");
    assert_string_equal(mar_session_request_guarantee(host.s, &unset, text, sizeof text), "");
    assert_string_equal(mar_session_request_guarantee(host.s, &request, NULL, 0), "");
    assert_string_equal(mar_session_request_guarantee(host.s, &request, text, 6), "exact");
}

HOSTILE(mar_session_description)
{
    char text[1024] = "?";
    assert_string_equal(mar_session_description(NULL, text, sizeof text), "");
    assert_string_equal(mar_session_description(NULL, NULL, 0), "");
}

/* --- the handle --------------------------------------------------------------------------------------------------- */

HOSTILE(mar_open)
{
    mar *m;
    refused(mar_open(NULL, NULL), NULL, "out is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        for (int option = 0; option < mar_option_count(); option++) {
            const mar_param *o = mar_option_get(option);
            mar_options bad = {.size = sizeof bad, .backend = MAR_BACKEND_CPU, .threads = 1};
            const char *const text = i % 2 ? "768" : "";
            if (o->type == MAR_TYPE_TEXT)
                memcpy((char *)&bad + o->offset, &text, sizeof text);
            else
                memcpy((char *)&bad + o->offset, &out_of_range[i], sizeof(int));
            const mar_status status = mar_open(&bad, &m);
            assert_non_null(m);
            refused(status, m, o->name);
            one_line(mar_error(m), "expected");
            mar_close(m);
        }
    const mar_options half = {.size = sizeof half, .dtype = MAR_DTYPE_F16, .backend = MAR_BACKEND_CPU};
    const mar_status status = mar_open(&half, &m);
    refused(status, m, "expected auto, f32, bf16, int8 or int4");
    mar_close(m);
}

HOSTILE_NULL(mar_close)

static void *error_of(void *m)
{
    return (void *)(uintptr_t)mar_error(m);
}

HOSTILE(mar_error)
{
    pthread_t thread;
    void *text;
    assert_non_null(mar_error(NULL));
    pthread_create(&thread, NULL, error_of, host.failed); /* a thread without failures of its own */
    pthread_join(thread, &text);
    one_line(text, "threads -1");
    mar_session *s;
    refused(mar_session_create(NULL, NULL, NULL, 0, &s), NULL, "model is NULL");
    assert_string_equal(mar_session_error(NULL), mar_error(NULL));
    one_line(mar_error(host.failed), "threads -1");
}

HOSTILE(mar_status_name)
{
    for (int i = 0; i < OUT_OF_RANGE; i++)
        assert_string_equal(mar_status_name((mar_status)out_of_range[i]), "unknown status");
}

HOSTILE_IS(mar_version, *mar_version())

HOSTILE(mar_version_number)
{
    int major, minor, patch;
    assert_int_equal(sscanf(mar_version(), "%d.%d.%d", &major, &minor, &patch), 3);
    assert_int_equal(mar_version_number(), major * 10000 + minor * 100 + patch);
    assert_true(major == MAR_VERSION_MAJOR && minor == MAR_VERSION_MINOR && patch == MAR_VERSION_PATCH);
}

HOSTILE(mar_backend_description)
{
    assert_string_equal(mar_backend_description(NULL), "");
    assert_string_equal(mar_backend_description(host.failed), "");
}

HOSTILE_IS(mar_get_device, !mar_get_device(NULL) && !mar_get_device(host.failed))

HOSTILE_IS(mar_gpu_count, mar_gpu_count() >= 0)

HOSTILE(mar_measure_peak)
{
    double rate;
    refused(mar_measure_peak(NULL, &rate), NULL, "handle is NULL");
    refused(mar_measure_peak(NULL, NULL), NULL, "handle is NULL");
    refused(mar_measure_peak(host.d.m, NULL), host.d.m, "flop_per_second is NULL");
    refused(mar_measure_peak(host.failed, &rate), host.failed, "not opened: --threads -1");
}

HOSTILE(mar_measure_bandwidth)
{
    double rate;
    refused(mar_measure_bandwidth(NULL, &rate), NULL, "handle is NULL");
    refused(mar_measure_bandwidth(NULL, NULL), NULL, "handle is NULL");
    refused(mar_measure_bandwidth(host.d.m, NULL), host.d.m, "bytes_per_second is NULL");
    refused(mar_measure_bandwidth(host.failed, &rate), host.failed, "not opened: --threads -1");
}

/* --- models ------------------------------------------------------------------------------------------------------- */

HOSTILE(mar_model_load)
{
    mar_model *model = host.d.model;
    refused(mar_model_load(NULL, "demo", 0, &model), NULL, "handle is NULL");
    assert_null(model);
    refused(mar_model_load(host.d.m, NULL, 0, &model), host.d.m, "path is NULL");
    refused(mar_model_load(host.d.m, "demo", 0, NULL), host.d.m, "out is NULL");
    refused(mar_model_load(host.failed, "demo", 0, &model), host.failed, "not opened: --threads -1");
    refused(mar_model_load(NULL, NULL, 0, NULL), NULL, "handle is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_model_load(host.d.m, "demo", out_of_range[i], &model), host.d.m, "head");
    assert_int_equal(mar_model_load(host.d.m, "", 0, &model), MAR_EIO);
    assert_null(model);
}

HOSTILE(mar_source_init)
{
    unsigned char raw[sizeof(mar_source) + 8];
    mar_source_init(NULL, sizeof(mar_source));
    mar_source_init(NULL, 0);
    memset(raw, 0x55, sizeof raw);
    mar_source_init((mar_source *)(void *)raw, 3); /* writes at most 3 bytes */
    for (size_t i = 3; i < sizeof raw; i++) assert_int_equal(raw[i], 0x55);
}

HOSTILE(mar_model_load_from)
{
    static const size_t sizes[] = {0, 1, sizeof(mar_source) - 1, sizeof(mar_source) + 1, SIZE_MAX};
    mar *m = host.d.m;
    mar_model *model = host.d.model;
    mar_source s, none;
    mar_source_init(&none, sizeof none);
    s = none;
    s.path = "demo";
    refused(mar_model_load_from(NULL, &s, &model), NULL, "handle is NULL");
    assert_null(model);
    refused(mar_model_load_from(m, NULL, &model), m, "source is NULL");
    refused(mar_model_load_from(m, &s, NULL), m, "out is NULL");
    refused(mar_model_load_from(host.failed, &s, &model), host.failed, "not opened: --threads -1");
    refused(mar_model_load_from(NULL, NULL, NULL), NULL, "handle is NULL");
    refused(mar_model_load_from(m, &none, &model), m, "path is NULL, data is NULL and fd is -1");
    s.fd = 0;
    refused(mar_model_load_from(m, &s, &model), m, "mar_source gives path and fd");
    s.data = "";
    refused(mar_model_load_from(m, &s, &model), m, "mar_source gives path and data");
    s.path = NULL;
    refused(mar_model_load_from(m, &s, &model), m, "mar_source gives data and fd");
    s.fd = INT_MIN;
    s.bytes = SIZE_MAX; /* a failed call's -1 */
    refused(mar_model_load_from(m, &s, &model), m, "mar_source.bytes is 18446744073709551615");
    s.path = "demo";
    refused(mar_model_load_from(m, &s, &model), m, "mar_source gives path and data");
    s = none;
    s.path = "demo";
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        s.size = sizes[i];
        refused(mar_model_load_from(m, &s, &model), m, "mar_source.size is ");
    }
    s.size = sizeof s;
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        s.heads = out_of_range[i];
        refused(mar_model_load_from(m, &s, &model), m, "head");
    }
    s.heads = 0;
    s.encoder = 1;
    refused(mar_model_load_from(m, &s, &model), m, "mar_source.encoder is 1: demo");
    s.encoder = 2;
    refused(mar_model_load_from(m, &s, &model), m, "mar_source.encoder is 2: expected 0 or 1");
    assert_null(model);
}

HOSTILE_NULL(mar_model_free)
HOSTILE_IS(mar_model_get_config, !mar_model_get_config(NULL))

HOSTILE(mar_vae_load)
{
    mar_vae *vae = host.d.vae;
    refused(mar_vae_load(NULL, "demo", &vae), NULL, "handle is NULL");
    assert_null(vae);
    refused(mar_vae_load(host.d.m, NULL, &vae), host.d.m, "path is NULL");
    refused(mar_vae_load(host.d.m, "demo", NULL), host.d.m, "out is NULL");
    refused(mar_vae_load(host.failed, "demo", &vae), host.failed, "not opened: --threads -1");
    refused(mar_vae_load(NULL, NULL, NULL), NULL, "handle is NULL");
}

HOSTILE(mar_vae_load_from)
{
    mar_vae *vae = host.d.vae;
    mar_source s;
    mar_source_init(&s, sizeof s);
    s.path = "demo";
    refused(mar_vae_load_from(NULL, &s, &vae), NULL, "handle is NULL");
    assert_null(vae);
    refused(mar_vae_load_from(host.d.m, NULL, &vae), host.d.m, "source is NULL");
    refused(mar_vae_load_from(host.d.m, &s, NULL), host.d.m, "out is NULL");
    refused(mar_vae_load_from(host.failed, &s, &vae), host.failed, "not opened: --threads -1");
    s.heads = 2;
    refused(mar_vae_load_from(host.d.m, &s, &vae), host.d.m, "--heads has no effect: demo is an image decoder");
    assert_null(vae);
}

HOSTILE_NULL(mar_vae_free)
HOSTILE_IS(mar_vae_get_config, !mar_vae_get_config(NULL))

HOSTILE(mar_vae_codebook)
{
    assert_null(mar_vae_codebook(NULL));
    assert_null(mar_vae_codebook(host.d.vae)); /* it has none */
}

/* --- text --------------------------------------------------------------------------------------------------------- */

static const char text_folder[] = "tests/golden/data/t5";
enum { TEXT_DIM = 32 };

HOSTILE(mar_text_load)
{
    mar_text *t = (mar_text *)1;
    refused(mar_text_load(NULL, text_folder, &t), NULL, "handle is NULL");
    assert_null(t);
    refused(mar_text_load(host.d.m, NULL, &t), host.d.m, "path is NULL");
    refused(mar_text_load(host.d.m, text_folder, NULL), host.d.m, "out is NULL");
    refused(mar_text_load(host.failed, text_folder, &t), host.failed, "not opened: --threads -1");
    assert_int_equal(mar_text_load(host.d.m, "", &t), MAR_EIO);
    assert_int_equal(mar_text_load(host.d.m, "demo", &t), MAR_EIO);
    assert_null(t);
}

HOSTILE(mar_text_load_from)
{
    mar_text *t = (mar_text *)1;
    mar_source source;
    mar_source_init(&source, sizeof source);
    refused(mar_text_load_from(host.d.m, NULL, &t), host.d.m, "source is NULL");
    assert_null(t);
    refused(mar_text_load_from(host.d.m, &source, &t), host.d.m, "path is NULL");
    source.fd = 0;
    refused(mar_text_load_from(host.d.m, &source, &t), host.d.m, "a text encoder is a folder");
    source.fd = -1, source.path = text_folder;
    refused(mar_text_load_from(NULL, &source, &t), NULL, "handle is NULL");
    refused(mar_text_load_from(host.d.m, &source, NULL), host.d.m, "out is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        source.heads = out_of_range[i];
        refused(mar_text_load_from(host.d.m, &source, &t), host.d.m, "mar_source.heads");
    }
    source.heads = 0, source.encoder = 1;
    refused(mar_text_load_from(host.d.m, &source, &t), host.d.m, "mar_source.encoder is 1");
    source.encoder = 0, source.size = 0;
    refused(mar_text_load_from(host.d.m, &source, &t), host.d.m, "mar_source");
    assert_null(t);
}

HOSTILE_NULL(mar_text_free)
HOSTILE_IS(mar_text_get_config, !mar_text_get_config(NULL))

HOSTILE(mar_text_encode)
{
    const char *const prompts[] = {"seven", "eight"}, *const nothing[] = {"seven", NULL};
    float features[2 * 3 * TEXT_DIM];
    uint8_t mask[2 * 3];
    int counts[2];
    mar *m = host.d.m;
    mar_text *t;
    assert_library(m, mar_text_load(m, text_folder, &t));
    refused(mar_text_encode(NULL, prompts, 2, MAR_CLEAN_OFF, 3, features, mask, counts), NULL, "encoder is NULL");
    refused(mar_text_encode(t, NULL, 2, MAR_CLEAN_OFF, 3, features, mask, counts), m, "prompts is NULL");
    refused(mar_text_encode(t, prompts, 2, MAR_CLEAN_OFF, 3, NULL, mask, counts), m, "features is NULL");
    refused(mar_text_encode(t, prompts, 2, MAR_CLEAN_OFF, 3, features, NULL, counts), m, "mask is NULL");
    refused(mar_text_encode(t, nothing, 2, MAR_CLEAN_OFF, 3, features, mask, counts), m, "prompt 1 is NULL");
    refused(mar_text_encode(t, prompts, 0, MAR_CLEAN_OFF, 3, features, mask, counts), m, "0 prompts");
    refused(mar_text_encode(t, prompts, -1, MAR_CLEAN_OFF, 3, features, mask, counts), m, "-1 prompts");
    refused(mar_text_encode(t, prompts, 2, MAR_CLEAN_OFF, 0, features, mask, counts), m, "0 tokens: expected 1..4096");
    refused(mar_text_encode(t, prompts, 2, MAR_CLEAN_OFF, 4097, features, mask, counts), m, "4097 tokens: expected");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        refused(mar_text_encode(t, prompts, 2, MAR_CLEAN_OFF, out_of_range[i], features, mask, counts), m, "tokens");
        refused(mar_text_encode(t, prompts, 2, (mar_clean)out_of_range[i], 3, features, mask, counts), m, "clean is ");
    }
    assert_library(m, mar_text_encode(t, prompts, 2, MAR_CLEAN_OFF, 3, features, mask, NULL));
    mar_text_free(t);
}

HOSTILE(mar_text_encode_negative)
{
    float features[16 * 4];
    uint8_t mask[16];
    int count;
    mar *m = host.d.m;
    mar_text *t, *t5;
    assert_library(m, mar_text_load(m, text_folder, &t5));
    refused(mar_text_encode_negative(t5, NULL, 3, features, mask, &count), m, "a T5 has no second context");
    mar_text_free(t5);
    assert_library(m, mar_text_load(m, decoder_folder("emu3", "F32", 4), &t));
    refused(mar_text_encode_negative(NULL, NULL, 16, features, mask, &count), NULL, "encoder is NULL");
    refused(mar_text_encode_negative(t, "a", 16, NULL, mask, &count), m, "features is NULL");
    refused(mar_text_encode_negative(t, "a", 16, features, NULL, &count), m, "mask is NULL");
    refused(mar_text_encode_negative(t, "\xff", 16, features, mask, &count), m, "the negative prompt: the text is not");
    refused(mar_text_encode_negative(t, "a", 3, features, mask, &count), m, "expected 3 at most");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_text_encode_negative(t, "a", out_of_range[i], features, mask, &count), m, "tokens");
    assert_library(m, mar_text_encode_negative(t, "a", 16, features, mask, NULL));
    mar_text_free(t);
}

/* --- images in one call ------------------------------------------------------------------------------------------- */

HOSTILE(mar_pipeline_load)
{
    mar *m = host.d.m;
    mar_pipeline *p = (mar_pipeline *)&host;
    refused(mar_pipeline_load(NULL, "demo", NULL, NULL, &p), NULL, "NULL");
    assert_null(p);
    refused(mar_pipeline_load(m, NULL, NULL, NULL, &p), m, "model is NULL");
    refused(mar_pipeline_load(m, "demo", NULL, NULL, NULL), m, "out is NULL");
    refused(mar_pipeline_load(host.failed, "demo", NULL, NULL, &p), host.failed, "threads");
    assert_int_equal(mar_pipeline_load(m, "demo-sphere", "demo-t5", NULL, &p), MAR_EIO);
    assert_null(p);
    one_line(mar_error(m), "demo-t5");
    assert_int_equal(mar_pipeline_load(m, "demo-t2i", NULL, "demo", &p), MAR_EIO);
    one_line(mar_error(m), "demo");
}
HOSTILE_NULL(mar_pipeline_free)
HOSTILE_IS(mar_pipeline_model, !mar_pipeline_model(NULL))
HOSTILE_NULL(mar_rgb_free)

HOSTILE(mar_job_init)
{
    mar_job job;
    mar_job_init(NULL, sizeof job);
    mar_job_init(&job, sizeof job);
    assert_true(job.size == sizeof job && job.label == -1 && !job.prompt && !job.negative && !job.params);
}

HOSTILE(mar_generate)
{
    mar *m = host.d.m;
    mar_pipeline *p;
    mar_job job;
    uint8_t *rgb = (uint8_t *)&job;
    int width, height;
    mar_job_init(&job, sizeof job);
    job.params = &host.p;
    assert_library(m, mar_pipeline_load(m, "demo", NULL, NULL, &p));
    refused(mar_generate(NULL, &job, &rgb, &width, &height), NULL, "pipeline is NULL");
    assert_null(rgb);
    refused(mar_generate(p, NULL, &rgb, &width, &height), m, "mar_job");
    refused(mar_generate(p, &job, NULL, &width, &height), m, "rgb is NULL");
    refused(mar_generate(p, &job, &rgb, NULL, &height), m, "width is NULL");
    refused(mar_generate(p, &job, &rgb, &width, NULL), m, "height is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        job.label = out_of_range[i];
        if (job.label != -1) refused(mar_generate(p, &job, &rgb, &width, &height), m, "expected 0..9");
    }
    job.label = 3;
    job.prompt = "a bold seven";
    refused(mar_generate(p, &job, &rgb, &width, &height), m, "makes images of classes");
    assert_null(rgb);
    mar_pipeline_free(p);
    assert_library(m, mar_pipeline_load(m, "demo-t2i", NULL, NULL, &p));
    job.params = NULL;
    job.prompt = NULL;
    refused(mar_generate(p, &job, &rgb, &width, &height), m, "makes images of prompts");
    job.prompt = "\xff";
    refused(mar_generate(p, &job, &rgb, &width, &height), m, "not UTF-8");
    job.prompt = "a bold seven";
    job.negative = "blurred";
    refused(mar_generate(p, &job, &rgb, &width, &height), m, "no negative prompt");
    assert_null(rgb);
    mar_pipeline_free(p);
}

/* --- judging images ----------------------------------------------------------------------------------------------- */

HOSTILE(mar_features_load)
{
    mar_features *f = host.features;
    refused(mar_features_load(NULL, "demo", 1, &f), NULL, "handle is NULL");
    assert_null(f);
    refused(mar_features_load(host.d.m, NULL, 1, &f), host.d.m, "path is NULL");
    refused(mar_features_load(host.d.m, "demo", 1, NULL), host.d.m, "out is NULL");
    refused(mar_features_load(host.failed, "demo", 1, &f), host.failed, "not opened: --threads -1");
    refused(mar_features_load(NULL, NULL, 0, NULL), NULL, "handle is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_features_load(host.d.m, "demo", out_of_range[i], &f), host.d.m, "expected 1..1024");
    refused(mar_features_load(host.d.m, "demo", 0, &f), host.d.m, "batch of 0 images");
    assert_int_equal(mar_features_load(host.d.m, "", 1, &f), MAR_EIO);
    assert_null(f);
}

HOSTILE_NULL(mar_features_free)
HOSTILE_IS(mar_features_get_config, !mar_features_get_config(NULL))

HOSTILE(mar_features_run)
{
    static const uint8_t rgb[DEMO_BYTES];
    float features[64], logits[10];
    mar *m = host.d.m;
    refused(mar_features_run(NULL, rgb, 1, 32, 32, features, logits, NULL), NULL, "features are NULL");
    refused(mar_features_run(NULL, NULL, 0, 0, 0, NULL, NULL, NULL), NULL, "features are NULL");
    refused(mar_features_run(host.features, NULL, 1, 32, 32, features, logits, NULL), m, "rgb is NULL");
    refused(mar_features_run(host.features, rgb, 0, 32, 32, features, logits, NULL), m, "0 images: expected 1..1");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        const int n = out_of_range[i];
        refused(mar_features_run(host.features, rgb, n, 32, 32, features, logits, NULL), m, "images: expected 1..1");
        refused(mar_features_run(host.features, rgb, 1, n, 32, features, logits, NULL), m, "x32 pixels");
        refused(mar_features_run(host.features, rgb, 1, 32, n, features, logits, NULL), m, "images of 32x");
    }
    assert_library(m, mar_features_run(host.features, rgb, 1, 32, 32, NULL, NULL, NULL));
}

HOSTILE(mar_features_run_each)
{
    static const uint8_t picture[DEMO_BYTES];
    const uint8_t *rgb[1] = {picture}, *const none[1] = {NULL};
    float features[64], logits[10];
    const int side[1] = {32};
    mar *m = host.d.m;
    mar_features *f = host.features;
    refused(mar_features_run_each(NULL, rgb, side, side, 1, features, logits, NULL), NULL, "features are NULL");
    refused(mar_features_run_each(f, NULL, side, side, 1, features, logits, NULL), m, "rgb is NULL");
    refused(mar_features_run_each(f, none, side, side, 1, features, logits, NULL), m, "rgb is NULL");
    refused(mar_features_run_each(f, rgb, NULL, side, 1, features, logits, NULL), m, "widths is NULL");
    refused(mar_features_run_each(f, rgb, side, NULL, 1, features, logits, NULL), m, "heights is NULL");
    refused(mar_features_run_each(f, rgb, side, side, 0, features, logits, NULL), m, "0 images: expected 1..1");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        const int bad[1] = {out_of_range[i]};
        refused(mar_features_run_each(f, rgb, side, side, *bad, features, logits, NULL), m, "images: expected 1..1");
        refused(mar_features_run_each(f, rgb, bad, side, 1, features, logits, NULL), m, "x32 pixels");
        refused(mar_features_run_each(f, rgb, side, bad, 1, features, logits, NULL), m, "images of 32x");
    }
    assert_library(m, mar_features_run_each(f, rgb, side, side, 1, features, logits, NULL));
}

HOSTILE(mar_features_set_resize)
{
    refused(mar_features_set_resize(NULL, MAR_RESIZE_CLEAN), NULL, "features are NULL");
    refused(mar_features_set_resize(host.features, MAR_RESIZE_CLEAN), host.d.m, "is for Inception");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_features_set_resize(host.features, (mar_resize)out_of_range[i]), host.d.m, "expected MAR_RESIZE_");
    assert_library(host.d.m, mar_features_set_resize(host.features, MAR_RESIZE_DEFAULT));
}

HOSTILE(mar_clip_load)
{
    mar_clip *c = (mar_clip *)1;
    refused(mar_clip_load(NULL, clip_folder, 1, &c), NULL, "handle is NULL");
    assert_null(c);
    refused(mar_clip_load(host.d.m, NULL, 1, &c), host.d.m, "path is NULL");
    refused(mar_clip_load(host.d.m, clip_folder, 1, NULL), host.d.m, "out is NULL");
    refused(mar_clip_load(host.failed, clip_folder, 1, &c), host.failed, "not opened: --threads -1");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_clip_load(host.d.m, clip_folder, out_of_range[i], &c), host.d.m, "expected 1..1024");
    assert_int_equal(mar_clip_load(host.d.m, "", 1, &c), MAR_EIO);
    assert_int_equal(mar_clip_load(host.d.m, text_folder, 1, &c), MAR_EMODEL);
    assert_null(c);
}

HOSTILE_NULL(mar_clip_free)
HOSTILE_IS(mar_clip_get_config, !mar_clip_get_config(NULL))

HOSTILE(mar_clip_images)
{
    static const uint8_t rgb[DEMO_BYTES];
    float y[CLIP_EMBEDDING];
    mar *m = host.d.m;
    mar_clip *c;
    assert_library(m, mar_clip_load(m, clip_folder, 1, &c));
    refused(mar_clip_images(NULL, rgb, 1, 32, 32, y), NULL, "CLIP is NULL");
    refused(mar_clip_images(c, NULL, 1, 32, 32, y), m, "rgb is NULL");
    refused(mar_clip_images(c, rgb, 1, 32, 32, NULL), m, "embedding is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        const int n = out_of_range[i];
        refused(mar_clip_images(c, rgb, n, 32, 32, y), m, "images: expected 1..1");
        refused(mar_clip_images(c, rgb, 1, n, 32, y), m, "x32 pixels");
        refused(mar_clip_images(c, rgb, 1, 32, n, y), m, "images of 32x");
    }
    assert_library(m, mar_clip_images(c, rgb, 1, 32, 32, y));
    mar_clip_free(c);
}

HOSTILE(mar_clip_images_each)
{
    static const uint8_t picture[DEMO_BYTES];
    const uint8_t *rgb[1] = {picture}, *const none[1] = {NULL};
    const int side[1] = {32};
    float y[CLIP_EMBEDDING];
    mar *m = host.d.m;
    mar_clip *c;
    assert_library(m, mar_clip_load(m, clip_folder, 1, &c));
    refused(mar_clip_images_each(NULL, rgb, side, side, 1, y), NULL, "CLIP is NULL");
    refused(mar_clip_images_each(c, NULL, side, side, 1, y), m, "rgb is NULL");
    refused(mar_clip_images_each(c, none, side, side, 1, y), m, "rgb is NULL");
    refused(mar_clip_images_each(c, rgb, NULL, side, 1, y), m, "widths is NULL");
    refused(mar_clip_images_each(c, rgb, side, NULL, 1, y), m, "heights is NULL");
    refused(mar_clip_images_each(c, rgb, side, side, 1, NULL), m, "embedding is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        const int bad[1] = {out_of_range[i]};
        refused(mar_clip_images_each(c, rgb, side, side, *bad, y), m, "images: expected 1..1");
        refused(mar_clip_images_each(c, rgb, bad, side, 1, y), m, "x32 pixels");
        refused(mar_clip_images_each(c, rgb, side, bad, 1, y), m, "images of 32x");
    }
    mar_clip_free(c);
}

HOSTILE(mar_clip_texts)
{
    const char *const texts[1] = {"a cat"}, *const none[1] = {NULL}, *const broken[1] = {"a \xff"};
    float y[CLIP_EMBEDDING];
    mar *m = host.d.m;
    mar_clip *c;
    assert_library(m, mar_clip_load(m, clip_folder, 1, &c));
    refused(mar_clip_texts(NULL, texts, 1, y), NULL, "CLIP is NULL");
    refused(mar_clip_texts(c, NULL, 1, y), m, "texts is NULL");
    refused(mar_clip_texts(c, none, 1, y), m, "text 0 is NULL");
    refused(mar_clip_texts(c, broken, 1, y), m, "text 0: ");
    refused(mar_clip_texts(c, texts, 1, NULL), m, "embedding is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_clip_texts(c, texts, out_of_range[i], y), m, "texts: expected 1..1");
    assert_library(m, mar_clip_texts(c, texts, 1, y));
    mar_clip_free(c);
}

HOSTILE(mar_reward_load)
{
    mar_reward *r = (mar_reward *)1;
    refused(mar_reward_load(NULL, clip_folder, 1, &r), NULL, "handle is NULL");
    assert_null(r);
    refused(mar_reward_load(host.d.m, NULL, 1, &r), host.d.m, "path is NULL");
    refused(mar_reward_load(host.d.m, "demo", 1, NULL), host.d.m, "out is NULL");
    refused(mar_reward_load(host.failed, "demo", 1, &r), host.failed, "not opened: --threads -1");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_reward_load(host.d.m, "demo", out_of_range[i], &r), host.d.m, "expected 1..1024");
    assert_int_equal(mar_reward_load(host.d.m, "", 1, &r), MAR_EIO);
    assert_int_equal(mar_reward_load(host.d.m, clip_folder, 1, &r), MAR_EMODEL);
    assert_int_equal(mar_reward_load(host.d.m, "demo", 1, &r), MAR_EMODEL);
    assert_null(r);
}

HOSTILE_NULL(mar_reward_free)

HOSTILE(mar_reward_score)
{
    static const uint8_t picture[DEMO_BYTES];
    const uint8_t *rgb[1] = {picture}, *const none[1] = {NULL};
    const char *const texts[1] = {"a cat"}, *const no_text[1] = {NULL}, *const broken[1] = {"a \xff"};
    const int side[1] = {32};
    double y[1];
    char *directory = temporary_directory(), path[4096];
    mar *m = host.d.m;
    mar_reward *r;
    score_folder(directory);
    snprintf(path, sizeof path, "%s/reward.pt", directory);
    assert_library(m, mar_reward_load(m, path, 1, &r));
    refused(mar_reward_score(NULL, rgb, side, side, texts, 1, y), NULL, "ImageReward is NULL");
    refused(mar_reward_score(r, NULL, side, side, texts, 1, y), m, "rgb is NULL");
    refused(mar_reward_score(r, none, side, side, texts, 1, y), m, "rgb is NULL");
    refused(mar_reward_score(r, rgb, NULL, side, texts, 1, y), m, "widths is NULL");
    refused(mar_reward_score(r, rgb, side, NULL, texts, 1, y), m, "heights is NULL");
    refused(mar_reward_score(r, rgb, side, side, NULL, 1, y), m, "texts is NULL");
    refused(mar_reward_score(r, rgb, side, side, no_text, 1, y), m, "text 0 is NULL");
    refused(mar_reward_score(r, rgb, side, side, broken, 1, y), m, "text 0: ");
    refused(mar_reward_score(r, rgb, side, side, texts, 1, NULL), m, "scores is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        const int bad[1] = {out_of_range[i]};
        refused(mar_reward_score(r, rgb, side, side, texts, *bad, y), m, "images: expected 1..1");
        refused(mar_reward_score(r, rgb, bad, side, texts, 1, y), m, "x32 pixels");
        refused(mar_reward_score(r, rgb, side, bad, texts, 1, y), m, "images of 32x");
    }
    assert_library(m, mar_reward_score(r, rgb, side, side, texts, 1, y));
    mar_reward_free(r);
    remove_directory(directory);
    free(directory);
}

/* --- files and methods -------------------------------------------------------------------------------------------- */

HOSTILE(mar_inspect)
{
    mar_report *r = host.report;
    refused(mar_inspect(NULL, "demo", 0, &r), NULL, "handle is NULL");
    assert_null(r);
    refused(mar_inspect(host.d.m, NULL, 0, &r), host.d.m, "path is NULL");
    refused(mar_inspect(host.d.m, "demo", 0, NULL), host.d.m, "out is NULL");
    refused(mar_inspect(host.failed, "demo", 0, &r), host.failed, "not opened: --threads -1");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_inspect(host.d.m, "demo", out_of_range[i], &r), host.d.m, "head");
}

HOSTILE_NULL(mar_report_free)
HOSTILE_IS(mar_report_kind, mar_report_kind(NULL) == MAR_KIND_UNKNOWN)

HOSTILE(mar_file_open)
{
    mar_file *f;
    refused(mar_file_open(NULL, MAR_WEIGHTS_AUTO, &f), NULL, "path is NULL");
    assert_null(f);
    refused(mar_file_open("demo", MAR_WEIGHTS_AUTO, NULL), NULL, "out is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_file_open("demo", (mar_weights)out_of_range[i], &f), NULL, "expected auto, ema or model");
}

HOSTILE_NULL(mar_file_close)
HOSTILE_IS(mar_file_get_info, !mar_file_get_info(NULL))

HOSTILE(mar_file_get_model)
{
    mar_file *f, *vae;
    mar_model_config c = {.size = sizeof c}, none = {0};
    assert_int_equal(mar_file_open("demo", MAR_WEIGHTS_AUTO, &f), MAR_OK);
    assert_int_equal(mar_file_open("demo-vae", MAR_WEIGHTS_AUTO, &vae), MAR_OK);
    refused(mar_file_get_model(NULL, f, 0, &c), NULL, "handle is NULL");
    refused(mar_file_get_model(host.failed, f, 0, &c), host.failed, "not opened: --threads -1");
    refused(mar_file_get_model(host.d.m, NULL, 0, &c), host.d.m, "file is NULL");
    refused(mar_file_get_model(host.d.m, f, 0, NULL), host.d.m, "mar_model_config is NULL");
    refused(mar_file_get_model(host.d.m, f, 0, &none), host.d.m, "mar_model_config");
    assert_int_equal(mar_file_get_model(host.d.m, vae, 0, &c), MAR_EMODEL);
    one_line(mar_error(host.d.m), "is an image decoder");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        refused(mar_file_get_model(host.d.m, f, out_of_range[i], &c), host.d.m, "head");
    assert_library(host.d.m, mar_file_get_model(host.d.m, f, 0, &c));
    mar_file_close(f);
    mar_file_close(vae);
}

HOSTILE_IS(mar_report_model, !mar_report_model(NULL))

HOSTILE(mar_report_vae)
{
    assert_null(mar_report_vae(NULL));
    assert_null(mar_report_vae(host.report));
}

HOSTILE_IS(mar_report_fact_count, mar_report_fact_count(NULL) == 0)

HOSTILE(mar_report_fact)
{
    assert_null(mar_report_fact(NULL, 0));
    assert_non_null(mar_report_fact(host.report, 0));
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_report_fact(host.report, out_of_range[i]));
    assert_null(mar_report_fact(host.report, mar_report_fact_count(host.report)));
}

HOSTILE_IS(mar_report_problem_count, mar_report_problem_count(NULL) == 0)

HOSTILE(mar_report_problem)
{
    assert_null(mar_report_problem(NULL, 0));
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_report_problem(host.report, out_of_range[i]));
    assert_null(mar_report_problem(host.report, mar_report_problem_count(host.report)));
}

HOSTILE(mar_convert)
{
    char *out = test_path("out.safetensors");
    refused(mar_convert(NULL, "demo", out, MAR_DTYPE_AUTO, 0), NULL, "handle is NULL");
    refused(mar_convert(host.d.m, NULL, out, MAR_DTYPE_AUTO, 0), host.d.m, "in is NULL");
    refused(mar_convert(host.d.m, "demo", NULL, MAR_DTYPE_AUTO, 0), host.d.m, "out is NULL");
    refused(mar_convert(host.failed, "demo", out, MAR_DTYPE_AUTO, 0), host.failed, "not opened: --threads -1");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        char what[64];
        snprintf(what, sizeof what, "--dtype %d: expected auto, f32, bf16, int8, f16 or int4", out_of_range[i]);
        refused(mar_convert(host.d.m, "demo", out, (mar_dtype)out_of_range[i], 0), host.d.m, what);
        refused(mar_convert(host.d.m, "demo", out, MAR_DTYPE_AUTO, out_of_range[i]), host.d.m, "head");
    }
    assert_int_equal(access(out, F_OK), -1);
}

HOSTILE_IS(mar_method_count, mar_method_count() > 0)

HOSTILE(mar_method_get)
{
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_method_get(out_of_range[i]));
    assert_null(mar_method_get(mar_method_count()));
}

HOSTILE(mar_method_get_parameter)
{
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        assert_null(mar_method_get_parameter(out_of_range[i], 0));
        assert_null(mar_method_get_parameter(0, out_of_range[i]));
    }
    assert_null(mar_method_get_parameter(mar_method_count(), 0));
    for (int i = 0; i < mar_method_count(); i++)
        assert_null(mar_method_get_parameter(i, mar_method_get(i)->parameter_count));
}

HOSTILE(mar_preset_get)
{
    const mar_model_config *model = mar_model_get_config(host.d.model), none = {0};
    for (int i = 0; i < OUT_OF_RANGE; i++) assert_null(mar_preset_get(out_of_range[i], model));
    assert_null(mar_preset_get(0, model));
    assert_null(mar_preset_get(4, model));
    assert_null(mar_preset_get(1, NULL));
    assert_null(mar_preset_get(1, &none));
    for (int level = 1; level <= 3; level++) assert_string_equal(mar_preset_get(level, model)->options[0], "dtype");
}

HOSTILE(mar_preset_value)
{
    const mar_model_config *model = mar_model_get_config(host.d.model), none = {0};
    const mar_preset *p = mar_preset_get(1, model);
    char text[8] = "x";
    assert_string_equal(mar_preset_value(p, 1, model, text, sizeof text), "16");
    for (int i = 0; i < OUT_OF_RANGE; i++)
        assert_string_equal(mar_preset_value(p, out_of_range[i], model, text, sizeof text), "");
    assert_string_equal(mar_preset_value(p, 3, model, text, sizeof text), ""); /* behind the last */
    assert_string_equal(mar_preset_value(NULL, 0, model, text, sizeof text), "");
    assert_string_equal(mar_preset_value(&(mar_preset){0}, 0, model, text, sizeof text), "");
    assert_string_equal(mar_preset_value(p, 0, NULL, text, sizeof text), "");
    assert_string_equal(mar_preset_value(p, 0, &none, text, sizeof text), "");
    assert_string_equal(mar_preset_value(p, 0, model, NULL, 8), "");
    assert_string_equal(mar_preset_value(p, 0, model, text, 0), "");
}

HOSTILE(mar_precision_recall)
{
    float x[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    double p = 7, r = 7;
    mar *m = host.d.m;
    refused(mar_precision_recall(NULL, x, 4, x, 4, 2, 3, &p, &r), NULL, "handle is NULL");
    refused(mar_precision_recall(NULL, NULL, 0, NULL, 0, 0, 0, NULL, NULL), NULL, "handle is NULL");
    refused(mar_precision_recall(host.failed, x, 4, x, 4, 2, 3, &p, &r), host.failed, "not opened: --threads -1");
    refused(mar_precision_recall(m, NULL, 4, x, 4, 2, 3, &p, &r), m, "reference is NULL");
    refused(mar_precision_recall(m, x, 4, NULL, 4, 2, 3, &p, &r), m, "images is NULL");
    refused(mar_precision_recall(m, x, 4, x, 4, 2, 3, NULL, &r), m, "precision is NULL");
    refused(mar_precision_recall(m, x, 4, x, 4, 2, 3, &p, NULL), m, "recall is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        const int n = out_of_range[i];
        if (n != 1 << 20) { /* may be valid */
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

HOSTILE(mar_kernel_distance)
{
    float x[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    double a = 7, b = 7;
    mar *m = host.d.m;
    refused(mar_kernel_distance(NULL, x, 4, x, 4, 2, 3, 2, &a, &b), NULL, "handle is NULL");
    refused(mar_kernel_distance(NULL, NULL, 0, NULL, 0, 0, 0, 0, NULL, NULL), NULL, "handle is NULL");
    refused(mar_kernel_distance(host.failed, x, 4, x, 4, 2, 3, 2, &a, &b), host.failed, "not opened: --threads -1");
    refused(mar_kernel_distance(m, NULL, 4, x, 4, 2, 3, 2, &a, &b), m, "reference is NULL");
    refused(mar_kernel_distance(m, x, 4, NULL, 4, 2, 3, 2, &a, &b), m, "images is NULL");
    refused(mar_kernel_distance(m, x, 4, x, 4, 2, 3, 2, NULL, &b), m, "mean is NULL");
    refused(mar_kernel_distance(m, x, 4, x, 4, 2, 3, 2, &a, NULL), m, "deviation is NULL");
    for (int i = 0; i < OUT_OF_RANGE; i++) {
        const int n = out_of_range[i];
        if (n != 1 << 20) { /* may be valid */
            refused(mar_kernel_distance(m, x, n, x, 4, 2, 3, 4, &a, &b), m, "reference: ");
            refused(mar_kernel_distance(m, x, 4, x, n, 2, 3, 4, &a, &b), m, "images: ");
            refused(mar_kernel_distance(m, x, 4, x, 4, n, 3, 4, &a, &b), m, "dim ");
            refused(mar_kernel_distance(m, x, 4, x, 4, 2, n, 4, &a, &b), m, "subsets ");
        }
        refused(mar_kernel_distance(m, x, 4, x, 4, 2, 3, n, &a, &b), m,
                n < 0 ? "subset_size " : "reference: 4 feature vectors");
    }
    refused(mar_kernel_distance(m, x, 4, x, 4, 0, 3, 2, &a, &b), m, "dim 0");
    refused(mar_kernel_distance(m, x, 4, x, 4, 2, 0, 2, &a, &b), m, "subsets 0");
    refused(mar_kernel_distance(m, x, 4, x, 4, 2, 3, 1, &a, &b), m, "subset_size 1");
    refused(mar_kernel_distance(m, x, 4, x, 3, 2, 3, 4, &a, &b), m, "images: 3 feature vectors");
    x[5] = NAN;
    refused(mar_kernel_distance(m, x, 4, x, 4, 2, 3, 2, &a, &b), m, "reference: vector 2 has a number");
    assert_true(a == 0 && b == 0);
}

/* Checks that each function of the headers is tested. */
TEST_CASE(none_is_missing)
{
    char line[400];
    int found = 0, tested = 0;
    FILE *header = popen("cat include/*.h", "r");
    assert_non_null(header);
    while (fgets(line, sizeof line, header)) {
        if (strncmp(line, "MAR_API ", 8) != 0) continue;
        char *end = strchr(line, '('), *name = end, test[128];
        assert_non_null(end);
        *end = '\0';
        while (name[-1] != ' ' && name[-1] != '*') name--;
        snprintf(test, sizeof test, "hostile_%s", name);
        const registered_test *e = test_first;
        while (e && strcmp(e->test.name, test) != 0) e = e->next;
        if (!e) fail_msg("%s is declared in include/ and not tested here", name);
        found++;
    }
    assert_int_equal(pclose(header), 0);
    for (const registered_test *e = test_first; e; e = e->next) tested += strncmp(e->test.name, "hostile_", 8) == 0;
    assert_int_equal(found, tested);
}
