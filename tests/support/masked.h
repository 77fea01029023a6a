/* The masked engine inside a session. */
#ifndef TESTS_MASKED_H
#define TESTS_MASKED_H

#include "mar/api/session.h"
#include "mar_measure.h"
#include "mar/masked.h"
#include "tests/support/support.h"

/* Returns the engine of a session whose model is a MAR model. */
static inline mar_masked *mar_masked_of(mar_session *s)
{
    return (mar_masked *)mar_session_engine_state(s);
}

/* Generates the begun batch of one image in rounds of at most gamma steps, gamma > 1. Checks that a round ends only
 * after its first step with a replaced token, or at full length. Without a draft model the first step is made alone,
 * and the next round has one step less. ends[0] counts rounds of full length, ends[1] the others. */
static inline void check_rounds(mar_session *s, int seq_len, int num_iter, int gamma, int ends[2])
{
    for (int first = 0, next; !mar_session_done(s); first = next) {
        int replaced[256] = {0};
        assert_session(s, mar_session_step(s));
        next = num_iter - mar_session_steps_left(s);
        const mar_masked *g = mar_masked_of(s);
        const int full = g->params.draft || first > 1 ? gamma : first == 0 ? 1 : gamma - 1;
        for (int i = 0; i < seq_len; i++)
            if (g->slots.token_status[i] == MAR_TOKEN_REPLACED && g->slots.ar_step[i] >= first)
                replaced[g->slots.ar_step[i]]++;
        for (int step = first; step < next - 1; step++) assert_int_equal(replaced[step], 0);
        if (next < first + full && next < num_iter) assert_true(replaced[next - 1] > 0);
        ends[next < first + full]++;
    }
}

#endif
