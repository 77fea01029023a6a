/* Every call that loads leaves a reason, and keeps it while a program goes on with what it did not get. */
#include "tests/support/support.h"
#include "mar_eval.h"
#include "mar_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mar *m;

static int open_handle(void **state)
{
    (void)state;
    return mar_open(&(mar_options){.size = sizeof(mar_options), .backend = MAR_BACKEND_CPU, .threads = 1}, &m);
}

static int close_handle(void **state)
{
    (void)state;
    mar_close(m);
    return 0;
}

TEST_GROUP(open_handle, close_handle)

static mar_status load_model(mar *handle, const char *path)
{
    mar_model *model;
    return mar_model_load(handle, path, 0, &model);
}

static mar_status load_vae(mar *handle, const char *path)
{
    mar_vae *vae;
    return mar_vae_load(handle, path, &vae);
}

static mar_status load_text(mar *handle, const char *path)
{
    mar_text *text;
    return mar_text_load(handle, path, &text);
}

static mar_status load_features(mar *handle, const char *path)
{
    mar_features *features;
    return mar_features_load(handle, path, 1, &features);
}

static mar_status load_clip(mar *handle, const char *path)
{
    mar_clip *clip;
    return mar_clip_load(handle, path, 1, &clip);
}

static mar_status load_reward(mar *handle, const char *path)
{
    mar_reward *reward;
    return mar_reward_load(handle, path, 1, &reward);
}

static mar_status inspect(mar *handle, const char *path)
{
    mar_report *report = NULL;
    const mar_status status = mar_inspect(handle, path, 7, &report); /* heads that nothing has */
    mar_report_free(report);
    return status;
}

static mar_status convert(mar *handle, const char *path)
{
    return mar_convert(handle, path, "/nonexistent/out.safetensors", MAR_DTYPE_F32, 0);
}

static int cancel(void *user, uint64_t done, uint64_t total)
{
    (void)user, (void)done, (void)total;
    return 1;
}

static mar_status load_source(mar *handle, const char *path)
{
    mar_model *model;
    mar_source source;
    mar_source_init(&source, sizeof source);
    source.path = path;
    source.progress = cancel;
    return mar_model_load_from(handle, &source, &model);
}

static mar_status load_memory(mar *handle, const char *path)
{
    mar_vae *vae;
    mar_source source;
    mar_source_init(&source, sizeof source);
    source.data = path;
    source.bytes = path ? strlen(path) : 0;
    return mar_vae_load_from(handle, &source, &vae);
}

static mar_status load_descriptor(mar *handle, const char *path)
{
    mar_model *model;
    mar_source source;
    (void)path;
    mar_source_init(&source, sizeof source);
    source.fd = 1000000;
    return mar_model_load_from(handle, &source, &model);
}

static const struct {
    const char *name;
    mar_status (*load)(mar *handle, const char *path);
} loads[] = {{"model", load_model},      {"vae", load_vae},       {"text", load_text},    {"features", load_features},
             {"clip", load_clip},        {"reward", load_reward}, {"inspect", inspect},   {"convert", convert},
             {"cancelled", load_source}, {"memory", load_memory}, {"fd", load_descriptor}};

static const char *const paths[] = {"/nonexistent/file",
                                    "",
                                    NULL,
                                    "tests",
                                    "tests/weights/make_files.py",
                                    "tests/weights/data/dtypes.pt",
                                    "tests/weights/data/big.pt",
                                    "tests/weights/data/no_tensors.pt",
                                    "tests/weights/data/views.pt",
                                    "tests/golden/data/inception.safetensors",
                                    "/dev/null",
                                    "weights/demo"};

static void expect_reason(const char *name, const char *path, mar *handle, mar_status status)
{
    if (status == MAR_OK) return; /* what is no model can be inspected */
    char reason[600];
    snprintf(reason, sizeof reason, "%s", mar_error(handle));
    if (!*reason) fail_msg("%s of %s: %s without a reason", name, path ? path : "NULL", mar_status_name(status));
    if (strchr(reason, '\n')) fail_msg("%s of %s: \"%s\" is more than a line", name, path, reason);
    /* A program that goes on without what it did not get still finds the reason. */
    mar_session *s;
    mar_params params;
    mar_params_init(&params, sizeof params);
    assert_int_equal(mar_session_create(NULL, NULL, &params, 1, &s), MAR_EARG);
    assert_string_equal(mar_error(handle), reason);
    assert_true(!handle || *mar_error(NULL));
}

TEST_CASE(loads_leave_a_reason)
{
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
        for (size_t j = 0; j < sizeof paths / sizeof *paths; j++)
            expect_reason(loads[i].name, paths[j], m, loads[i].load(m, paths[j]));
}

/* A handle that did not open, and one after another. */
TEST_CASE(handles_keep_their_reasons)
{
    mar *closed, *other;
    assert_int_equal(mar_open(&(mar_options){.size = sizeof(mar_options), .threads = -1}, &closed), MAR_EARG);
    assert_library(
        other, mar_open(&(mar_options){.size = sizeof(mar_options), .backend = MAR_BACKEND_CPU, .threads = 1}, &other));
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        assert_int_equal(loads[i].load(closed, "demo"), MAR_EARG);
        assert_non_null(strstr(mar_error(closed), "threads"));
    }
    assert_int_equal(load_model(m, "/nonexistent/first"), MAR_EIO);
    assert_int_equal(load_model(other, "/nonexistent/second"), MAR_EIO);
    assert_int_equal(load_model(NULL, "demo"), MAR_EARG);
    assert_non_null(strstr(mar_error(m), "/nonexistent/first"));
    assert_non_null(strstr(mar_error(other), "/nonexistent/second"));
    assert_non_null(strstr(mar_error(closed), "threads"));
    assert_non_null(strstr(mar_error(NULL), "the handle is NULL"));
    mar_close(other);
    mar_close(closed);
}
