#include "tests/support/hostile.h"

#include <string.h>

void one_line(const char *text, const char *what)
{
    assert_non_null(text);
    assert_null(strchr(text, '\n'));
    assert_says(text, what);
}

void refused(mar_status status, const mar *m, const char *what)
{
    if (status != MAR_EARG) fail_msg("%s: %s, expected MAR_EARG", what, mar_status_name(status));
    one_line(mar_error(m), what);
}

void session_refused(mar_status status, const mar_session *s, const char *what)
{
    if (status != MAR_EARG) fail_msg("%s: %s, expected MAR_EARG", what, mar_status_name(status));
    one_line(mar_session_error(s), what);
}

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

void make_mistakes(hostile_call *const calls[], int n)
{
    host h = host_open();
    float before[DEMO_TOKENS], after[DEMO_TOKENS];
    assert_session(h.s, mar_session_tokens(h.s, before));
    for (int i = 0; i < n; i++) calls[i](&h);
    assert_session(h.s, mar_session_tokens(h.s, after));
    assert_memory_equal(after, before, sizeof after);
    host_close(&h);
}
