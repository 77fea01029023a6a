/* Tests programs that were compiled with an older mar.h, whose structs end earlier: fields they lack have their
 * defaults, and bytes behind the struct are neither read nor written. Structs of the library have their size. */
#include "tests/support/demo.h"
#include "mar_eval.h"
#include "mar_files.h"
#include "mar_measure.h"
#include "mar_methods.h"

#include <stdlib.h>
#include <string.h>

enum { CANARY = 0x55 };

/* Returns memory of a newer struct, of which an older program has `size` bytes; the others are CANARY. */
static void *older(size_t own, size_t size, void (*init)(void *, size_t))
{
    unsigned char *bytes = malloc(own);
    assert_non_null(bytes);
    memset(bytes, CANARY, own);
    init(bytes, size);
    return bytes;
}

static void assert_canaries(const void *bytes, size_t from, size_t own)
{
    for (size_t i = from; i < own; i++)
        if (((const unsigned char *)bytes)[i] != CANARY) fail_msg("byte %zu of a struct of %zu was written", i, from);
}

static void init_options(void *o, size_t size)
{
    mar_options_init(o, size);
}

static void init_source(void *s, size_t size)
{
    mar_source_init(s, size);
}

static void init_params(void *p, size_t size)
{
    mar_params_init(p, size);
}

static void init_stats(void *s, size_t size)
{
    mar_stats_init(s, size);
}

static mar_session *owner; /* of requests */

static void init_request(void *r, size_t size)
{
    mar_request_init(owner, r, size);
}

static void init_info(void *i, size_t size)
{
    mar_request_info_init(i, size);
}

static void init_pixels(void *p, size_t size)
{
    mar_pixels_init(p, size);
}

TEST_CASE(older_options)
{
    mar *m;
    for (size_t size = 2 * sizeof(size_t); size <= sizeof(mar_options); size += sizeof(size_t)) {
        mar_options *o = older(sizeof *o, size, init_options);
        o->threads = 1;
        if (mar_open(o, &m) != MAR_OK) fail_msg("%zu bytes: %s", size, mar_error(m));
        assert_canaries(o, size, sizeof *o);
        mar_close(m);
        free(o);
    }
}

TEST_CASE(older_source)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_vae *vae;
    for (size_t size = 2 * sizeof(size_t); size <= sizeof(mar_source); size += sizeof(size_t)) {
        mar_source *o = older(sizeof *o, size, init_source);
        o->path = "demo";
        assert_library(m, mar_vae_load_from(m, o, &vae));
        assert_canaries(o, size, sizeof *o);
        mar_vae_free(vae);
        free(o);
    }
    mar_close(m);
}

TEST_CASE(older_params)
{
    const demo d = demo_open(1);
    mar_params q;
    mar_session *whole;
    mar_params_init(&q, sizeof q);
    q.num_iter = 3;
    assert_library(d.m, mar_session_create(d.model, NULL, &q, 1, &whole));
    for (size_t size = 2 * sizeof(size_t); size <= sizeof(mar_params); size += sizeof(size_t)) {
        char why[128];
        mar_session *s;
        mar_params *p = older(sizeof *p, size, init_params);
        const int has_last = size == sizeof *p;
        assert_int_equal(mar_params_set(p, "num_iter", "3", why, sizeof why), MAR_OK);
        assert_int_equal(mar_params_set(p, "head_costs", "1.5", why, sizeof why), has_last ? MAR_OK : MAR_EARG);
        if (has_last) p->head_costs = NULL; /* it needs head_spec */
        if (!has_last) assert_says(why, "--head_costs: the program was compiled with a mar.h that does not have it");
        assert_library(d.m, mar_session_create(d.model, NULL, p, 1, &s));
        assert_canaries(p, size, sizeof *p);
        if (!has_last) assert_memory_equal(mar_session_get_params(s), mar_session_get_params(whole), sizeof q);
        mar_session_free(s);
        free(p);
    }
    mar_session_free(whole);
    demo_close(d);
}

TEST_CASE(older_stats)
{
    const demo d = demo_open(1);
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2");
    float tokens[DEMO_TOKENS];
    mar_session *s = demo_session(&d, &p, 1);
    mar_stats all = {.size = sizeof all};
    demo_generate(s, 1, tokens);
    mar_session_get_stats(s, &all);
    assert_int_equal(all.tokens, DEMO_SEQ);
    for (size_t size = sizeof(size_t); size <= sizeof all; size += sizeof(size_t)) {
        mar_stats *o = older(sizeof *o, size, init_stats);
        mar_session_get_stats(s, o);
        assert_int_equal(o->size, size);
        assert_memory_equal((char *)o + sizeof size, (char *)&all + sizeof size, size - sizeof size);
        assert_canaries(o, size, sizeof *o);
        free(o);
    }
    struct {
        mar_stats stats;
        unsigned char later[16];
    } newer;
    memset(&newer, CANARY, sizeof newer);
    newer.stats.size = sizeof newer;
    mar_session_get_stats(s, &newer.stats);
    assert_int_equal(newer.stats.size, sizeof newer);
    assert_int_equal(newer.stats.tokens, all.tokens);
    assert_canaries(&newer, sizeof newer.stats, sizeof newer);
    mar_session_free(s);
    demo_close(d);
}

/* Checks requests, their states, and pixels, of which all fields but the format are necessary. */
TEST_CASE(older_requests)
{
    const demo d = demo_open(1);
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2");
    mar_request_info all;
    uint64_t id;
    owner = demo_session(&d, &p, 1);
    for (size_t size = 2 * sizeof(size_t); size <= sizeof(mar_request); size += sizeof(size_t)) {
        mar_request *r = older(sizeof *r, size, init_request);
        assert_session(owner, mar_session_submit(owner, r, &id));
        assert_canaries(r, size, sizeof *r);
        assert_session(owner, mar_session_cancel_request(owner, id));
        free(r);
    }
    mar_request whole;
    mar_request_init(owner, &whole, sizeof whole);
    assert_session(owner, mar_session_submit(owner, &whole, &id));
    assert_session(owner, mar_session_step(owner));
    mar_request_info_init(&all, sizeof all);
    assert_session(owner, mar_session_get_request(owner, id, &all));
    assert_int_equal(all.step, 1);
    for (size_t size = 2 * sizeof(size_t); size <= sizeof all; size += sizeof(size_t)) {
        mar_request_info *o = older(sizeof *o, size, init_info);
        assert_session(owner, mar_session_get_request(owner, id, o));
        assert_int_equal(o->size, size);
        assert_memory_equal((char *)o + sizeof size, (char *)&all + sizeof size, size - sizeof size);
        assert_canaries(o, size, sizeof *o);
        free(o);
    }
    for (size_t size = 2 * sizeof(size_t); size < sizeof(mar_pixels); size += sizeof(size_t)) {
        mar_pixels *o = older(sizeof *o, size, init_pixels);
        if (size > offsetof(mar_pixels, data)) o->data = &all;
        assert_int_equal(mar_session_preview(owner, id, o), MAR_EARG);
        assert_says(mar_session_error(owner),
                    size > offsetof(mar_pixels, data) ? "mar_pixels.capacity 0" : "mar_pixels.data is NULL");
        assert_canaries(o, size, sizeof *o);
        free(o);
    }
    mar_session_free(owner);
    demo_close(d);
}

/* Checks rows of a program's own table. */
TEST_CASE(older_rows)
{
    const mar_param whole = {.size = sizeof whole, .name = "depth", .help = "how deep", .type = MAR_TYPE_FLAG};
    for (size_t size = offsetof(mar_param, offset) + sizeof(size_t); size <= sizeof whole; size += sizeof(size_t)) {
        char text[64];
        int field = 0;
        mar_param row;
        memset(&row, CANARY, sizeof row);
        memcpy(&row, &whole, size);
        row.size = size;
        assert_int_equal(mar_param_set(&row, &field, "on", NULL, 0), MAR_OK);
        assert_string_equal(mar_param_text(&row, &field, text, sizeof text), "on");
        assert_int_equal(mar_param_is_default(&row, &field), 0);
        assert_string_equal(mar_param_expects(&row, text, sizeof text), "on or off");
        row.type = MAR_TYPE_TEXT; /* choices and argument may be beyond */
        if (size <= offsetof(mar_param, choices)) mar_param_expects(&row, text, sizeof text);
    }
}

static void has_progress_size(void *user, mar_session *s, const mar_progress *p)
{
    (void)s;
    if (p->size == sizeof *p) ++*(int *)user;
}

TEST_CASE(sizes_of_the_library)
{
    const demo d = demo_open(1);
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2");
    int reports = 0;
    float tokens[DEMO_TOKENS];
    mar_session *s = demo_session(&d, &p, 1);
    mar_features *f;
    mar_report *r;
    mar_session_on_progress(s, has_progress_size, &reports);
    demo_generate(s, 1, tokens);
    assert_int_equal(reports, 2);
    assert_int_equal(mar_session_get_params(s)->size, sizeof(mar_params));
    assert_library(d.m, mar_features_load(d.m, "demo", 1, &f));
    assert_int_equal(mar_features_get_config(f)->size, sizeof(mar_features_config));
    static const char *const models[] = {"demo", "demo-discrete", "demo-discrete-eagle"};
    for (int i = 0; i < 3; i++) {
        assert_library(d.m, mar_inspect(d.m, models[i], 0, &r));
        assert_int_equal(mar_report_model(r)->size, sizeof(mar_model_config));
        mar_report_free(r);
    }
    assert_int_equal(mar_model_get_config(d.model)->size, sizeof(mar_model_config));
    assert_int_equal(mar_vae_get_config(d.vae)->size, sizeof(mar_vae_config));
    for (int i = 0; i < mar_param_count(); i++) assert_int_equal(mar_param_get(i)->size, sizeof(mar_param));
    for (int i = 0; i < mar_option_count(); i++) assert_int_equal(mar_option_get(i)->size, sizeof(mar_param));
    for (int i = 0; i < mar_method_count(); i++) {
        assert_int_equal(mar_method_get(i)->size, sizeof(mar_method_info));
        for (int k = 0; k < mar_method_get(i)->parameter_count; k++)
            assert_int_equal(mar_method_get_parameter(i, k)->size, sizeof(mar_method_parameter));
    }
    assert_int_equal(mar_preset_get(1, mar_model_get_config(d.model))->size, sizeof(mar_preset));
    mar_features_free(f);
    mar_session_free(s);
    demo_close(d);
}
