/* Every allocation of libmar's own fails once while a session is made: it says so, and nothing is left. Under the
 * sanitizers this test does nothing (tests/support/failing_allocations.h). */
#include "mar/handle.h"
#include "tests/support/support.h"

#include "tests/support/failing_allocations.h"

#include <string.h>

#ifdef HAS_SANITIZER

int main(void)
{
    return 0;
}

#else

/* Those of this program, which libmar is part of; not those of oneDNN and OpenMP, whose C++ would end it. */
static int counts(const void *caller)
{
    extern const char __executable_start, etext;
    return (const char *)caller >= &__executable_start && (const char *)caller < &etext;
}

static const char *const runs[] = {
    "num_iter 8",
    "num_iter 8, lazy on, lazy_head on",
    "gtr on, gtr_generation_steps 3",
    "head_spec 4, diff_annealing linear, diff_upper_steps 12",
    "sampler dpmpp",
    "draft, spec paper, gamma 2",
    "draft, head_spec 4",
};

static void session(void **state)
{
    (void)state;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model, *draft;
    mar_vae *vae;
    assert_library(m, mar_model_load(m, "demo", 0, &model));
    assert_library(m, mar_model_load(m, "demo-draft", 0, &draft));
    assert_library(m, mar_vae_load(m, "demo", &vae));
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const int drafts = strncmp(runs[i], "draft, ", 7) == 0;
        mar_params p = params_with(drafts ? runs[i] + 7 : runs[i]);
        mar_session *s;
        if (drafts) p.draft = draft;
        p.num_sampling_steps = p.diff_annealing ? p.num_sampling_steps : 12;
        p.gtr_sampling_steps = 0;
        if (!p.gtr) p.num_iter = 8;
        assert_library(m, mar_session_create(model, vae, &p, 2, &s)); /* what is made once is made */
        mar_session_free(s);
        mar_status status;
        long round = 0;
        do {
            const long before = live;
            failures = 0;
            until_failure = round++;
            status = mar_session_create(model, vae, &p, 2, &s);
            until_failure = -1;
            if (failures && status == MAR_OK) fail_msg("%s: allocation %ld failed without a word", runs[i], round);
            if (failures && (status != MAR_ENOMEM || s || !*mar_error(m)))
                fail_msg("%s: allocation %ld: %s, \"%s\"", runs[i], round, mar_status_name(status), mar_error(m));
            mar_session_free(s);
            if (live > before) fail_msg("%s: %ld blocks leak when allocation %ld fails", runs[i], live - before, round);
        } while (failures);
        assert_int_equal(status, MAR_OK);
        assert_true(round > 20);
    }
    mar_vae_free(vae);
    mar_model_free(draft);
    mar_model_free(model);
    mar_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(session)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
