/* A host that makes every mistake there is, for the tests mar.hostile*: what it has, and the calls that each tests. */
#ifndef TESTS_HOSTILE_H
#define TESTS_HOSTILE_H

#include "tests/support/demo.h"

#include <limits.h>

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

/* The text is one line that says `what`. */
void one_line(const char *text, const char *what);
/* The call was refused, and the thread's reason for handle m, or for calls without one, says what. */
void refused(mar_status status, const mar *m, const char *what);
void session_refused(mar_status status, const mar_session *s, const char *what);

/* Makes all the mistakes; afterwards all is as it was. */
typedef void hostile_call(host *h);
void make_mistakes(hostile_call *const calls[], int n);

/* Every function that mar.h declares, as X(name): hostile_NAME in mar.hostile_options, mar.hostile_sessions or
 * mar.hostile. */
#define HOSTILE_OPTIONS(X)                                                                                             \
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
    X(mar_params_unused)

#define HOSTILE_SESSIONS(X)                                                                                            \
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
    X(mar_session_measure)                                                                                             \
    X(mar_session_tokens)                                                                                              \
    X(mar_session_images)                                                                                              \
    X(mar_session_decode)                                                                                              \
    X(mar_session_image_size)                                                                                          \
    X(mar_session_get_params)                                                                                          \
    X(mar_session_get_stats)                                                                                           \
    X(mar_session_fates)                                                                                               \
    X(mar_session_lateness)                                                                                            \
    X(mar_session_guarantee)                                                                                           \
    X(mar_session_description)

#define HOSTILE_OTHERS(X)                                                                                              \
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
    X(mar_vae_get_config)                                                                                              \
    X(mar_vae_codebook)                                                                                                \
    X(mar_features_load)                                                                                               \
    X(mar_features_free)                                                                                               \
    X(mar_features_get_config)                                                                                         \
    X(mar_features_run)                                                                                                \
    X(mar_inspect)                                                                                                     \
    X(mar_report_free)                                                                                                 \
    X(mar_report_kind)                                                                                                 \
    X(mar_report_model)                                                                                                \
    X(mar_report_vae)                                                                                                  \
    X(mar_report_fact_count)                                                                                           \
    X(mar_report_fact)                                                                                                 \
    X(mar_report_problem_count)                                                                                        \
    X(mar_report_problem)                                                                                              \
    X(mar_convert)                                                                                                     \
    X(mar_method_count)                                                                                                \
    X(mar_method_get)                                                                                                  \
    X(mar_precision_recall)

#define HOSTILE_CALL(name) hostile_##name,

#endif
