/* A host that makes every mistake there is, with sessions: mar_session_*. */
#include "tests/support/hostile.h"

#include <math.h>
#include <string.h>

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

static void hostile_mar_session_decode(host *h)
{
    static float tokens[DEMO_TOKENS];
    uint8_t rgb[DEMO_BYTES];
    session_refused(mar_session_decode(NULL, 0, tokens, 1, rgb), NULL, "session is NULL");
    session_refused(mar_session_decode(h->s, 0, NULL, 1, rgb), h->s, "tokens is NULL");
    session_refused(mar_session_decode(h->s, 0, tokens, 1, NULL), h->s, "rgb is NULL");
    session_refused(mar_session_decode(h->s, 0, tokens, 0, rgb), h->s, "0 images: expected 1..");
    session_refused(mar_session_decode(h->s, 0, tokens, 1 << 20, rgb), h->s, "1048576 images: expected 1..");
    tokens[7] = NAN;
    session_refused(mar_session_decode(h->s, 0, tokens, 1, rgb), h->s, "number 7 of the tokens is nan, expected a fin");
    session_refused(mar_session_decode(NULL, 0, NULL, 0, NULL), NULL, "session is NULL");
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

static void mistakes_are_refused(void **state)
{
    (void)state;
    static hostile_call *const calls[] = {HOSTILE_SESSIONS(HOSTILE_CALL)};
    make_mistakes(calls, sizeof calls / sizeof *calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
