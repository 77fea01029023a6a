/* A host that makes every mistake there is, with options: mar_param_*, mar_option_* and mar_params_*. */
#include "tests/support/hostile.h"

#include <string.h>

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
    one_line(why, "--cfg 1\\n\\x1b[31m: expected a number");
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
    one_line(why, "--cfg NULL: expected a number");
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

static void mistakes_are_refused(void **state)
{
    (void)state;
    static hostile_call *const calls[] = {HOSTILE_OPTIONS(HOSTILE_CALL)};
    make_mistakes(calls, sizeof calls / sizeof *calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
