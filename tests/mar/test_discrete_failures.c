/* Tests disturbed sessions of LlamaGen models: non-finite weights, cancels, failures, and other sessions at work. */
#include "tests/support/changed.h"
#include "tests/support/demo.h"
#include "tests/support/discrete_sessions.h"
#include "tests/support/spy.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum { SEQ = DISCRETE_SEQ, BATCH = DISCRETE_BATCH };

/* Checks that a NaN weight fails the batch. The message names the token's place, and with check the layer. */
TEST_CASE(numbers_that_are_not_finite)
{
    const discrete_files *f = *state;
    const mar_options options = {
        .size = sizeof options, .dtype = MAR_DTYPE_F32, .threads = 1, .backend = MAR_BACKEND_CPU, .allow_nonfinite = 1};
    mar *m;
    assert_int_equal(mar_open(&options, &m), MAR_OK);
    char *path =
        write_changed(m, f->directory, "nan.safetensors", f->target_path, "layers.1.ffn_norm.weight", 0, 1, NAN);
    for (int is_draft = 0; is_draft <= 1; is_draft++)
        for (int check = 0; check <= 1; check++) {
            mar_model *bad, *good;
            mar_session *s;
            mar_params p = discrete_params(check ? "gamma 3, check on" : "gamma 3");
            assert_library(m, mar_model_load(m, path, 0, &bad));
            assert_library(m, mar_model_load(m, f->target_path, 0, &good));
            if (is_draft) p.draft = bad;
            assert_library(m, mar_session_create(is_draft ? good : bad, NULL, &p, 2, &s));
            const mar_status status = discrete_run(s, 5, discrete_labels, 2);
            if (status != MAR_EMODEL) fail_msg("%s", mar_status_name(status));
            assert_says(mar_session_error(s), check      ? (is_draft ? "draft: layers.1." : "layers.1.")
                                              : is_draft ? "draft: image 5, token 0: "
                                                         : "image 5, token 0: ");
            if (!check) assert_says(mar_session_error(s), "; --check names the first layer whose output is not finite");
            assert_null(strchr(mar_session_error(s), '\n'));
            mar_session_free(s);
            mar_model_free(good);
            mar_model_free(bad);
        }
    free(path);
    mar_close(m);
}

/* Cancels or fails before some operations: the current call ends. The next batch equals a fresh session's. */
TEST_CASE(disturbances)
{
    enum { PLACES = 5 };
    const discrete_models s = discrete_open(*state, 1);
    for (int i = 0; i < DISCRETE_RUNS; i++) {
        float expected[BATCH * SEQ], tokens[BATCH * SEQ];
        mar_session *session = discrete_session(&s, discrete_runs[i].options, discrete_runs[i].draft, BATCH);
        discrete_generate(session, 0, discrete_labels, BATCH, expected);
        spy_on(session, NULL, -1, NULL);
        discrete_generate(session, 0, discrete_labels, BATCH, tokens);
        const long all = spy_off() - 1; /* the last one reads the tokens */
        assert_in_range(all, 1, 100000);
        for (int k = 0; k < 2 * PLACES; k++) {
            const int fails = k % 2;
            spy_on(session, NULL, (all - 1) * (k / 2) / (PLACES - 1), fails ? spy_break : spy_cancel);
            const mar_status status = discrete_run(session, 0, discrete_labels, BATCH);
            spy_off();
            if (status != (fails ? MAR_EBACKEND : MAR_ECANCELLED))
                fail_msg("%s: at %ld of %ld: %s", discrete_runs[i].options, spy.at, all, mar_status_name(status));
            assert_int_equal(mar_session_steps_left(session), 0);
            assert_int_equal(mar_session_tokens(session, tokens), MAR_EARG);
            discrete_generate(session, 0, discrete_labels, BATCH, tokens);
            if (memcmp(tokens, expected, sizeof tokens) != 0)
                fail_msg("%s: other tokens after %s at %ld of %ld", discrete_runs[i].options,
                         fails ? "a failure" : "a cancel", spy.at, all);
        }
        mar_session_free(session);
    }
    discrete_close(s);
}

/* Runs sessions of all methods at once, each on its own thread. Each gives the same tokens as alone. */
typedef struct {
    const discrete_models *s;
    int run;
    mar_session *session;
    float tokens[BATCH * SEQ];
    mar_status status;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < 4 && w->status == MAR_OK; i++) {
        w->status = discrete_run(w->session, 0, discrete_labels, BATCH);
        if (w->status == MAR_OK) w->status = mar_session_tokens(w->session, w->tokens);
    }
    return NULL;
}

TEST_CASE(threads)
{
    const discrete_models s = discrete_open(*state, 2);
    static worker workers[DISCRETE_RUNS];
    pthread_t ids[DISCRETE_RUNS];
    for (int i = 0; i < DISCRETE_RUNS; i++) {
        workers[i] =
            (worker){&s, i, discrete_session(&s, discrete_runs[i].options, discrete_runs[i].draft, BATCH), {0}, MAR_OK};
        assert_int_equal(pthread_create(&ids[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < DISCRETE_RUNS; i++) {
        float alone[BATCH * SEQ];
        pthread_join(ids[i], NULL);
        assert_session(workers[i].session, workers[i].status);
        mar_session_free(workers[i].session);
        mar_session *session = discrete_session(&s, discrete_runs[i].options, discrete_runs[i].draft, BATCH);
        discrete_generate(session, 0, discrete_labels, BATCH, alone);
        if (memcmp(alone, workers[i].tokens, sizeof alone) != 0)
            fail_msg("%s: other tokens beside other sessions", discrete_runs[i].options);
        mar_session_free(session);
    }
    discrete_close(s);
}

TEST_GROUP(discrete_set_up, discrete_tear_down)
