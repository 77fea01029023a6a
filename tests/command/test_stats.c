/* Sums the statistics of batches. */
#include "tests/support/support.h"

#include "mar_measure.h"

#include "tools/generate/stats.h"

#include <math.h>
#include <string.h>

TEST_CASE(sums_and_largest)
{
    const mar_stats first = {.total_s = 1,
                             .head_s = 0.5,
                             .tokens = 64,
                             .accepted = 1,
                             .accepted_shift = 1,
                             .head_calls_max = 7,
                             .arena_bytes = 100,
                             .recorded_bytes = 9,
                             .head_call_bytes = 5,
                             .head_call_products = 6};
    const mar_stats second = {.total_s = 2,
                              .head_s = 0.25,
                              .tokens = 32,
                              .accepted = 3,
                              .accepted_shift = 3,
                              .head_calls_max = 4,
                              .arena_bytes = 200,
                              .recorded_bytes = 8,
                              .head_call_bytes = 50,
                              .head_call_products = 60};
    mar_stats sum = {0};
    stats_add(&sum, &first);
    stats_add(&sum, &second);
    assert_true(sum.total_s == 3 && sum.head_s == 0.75 && sum.tokens == 96 && sum.accepted == 4);
    assert_true(sum.head_calls_max == 7 && sum.arena_bytes == 200 && sum.recorded_bytes == 9);
    assert_true(sum.head_call_bytes == 50 && sum.head_call_products == 60);
    assert_float_equal(sum.accepted_shift, sqrt(7), 1e-12); /* (1 + 3 * 9) / 4 */
}

/* Checks that the sum over one batch has every field. */
TEST_CASE(no_field_is_left_out)
{
    mar_stats all = {
        .encoder_s = 1, .decoder_s = 2, .head_s = 3, .vae_s = 4, .draft_s = 5, .verify_s = 6, .total_s = 7};
    all.encoder_flop = 8, all.decoder_flop = 9, all.head_flop = 10, all.vae_flop = 11, all.draft_flop = 12;
    all.arena_bytes = 13, all.recorded_bytes = 14, all.head_call_bytes = 15, all.head_call_products = 16;
    all.tokens = 17, all.head_calls = 18, all.head_calls_max = 19, all.head_batched = 20, all.draft_calls = 21;
    all.head_rows = 22, all.proposals = 23, all.proposals_accepted = 24, all.drafted = 25, all.accepted = 26;
    all.passes = 31, all.contexts = 32;
    all.rounds = 27, all.round_steps = 28, all.residual_tries = 29, all.accepted_shift = 30;
    mar_stats sum = {0};
    stats_add(&sum, &all);
    for (size_t at = 0; at + 4 <= sizeof all; at += 4) /* no field is smaller */
        if (memcmp((const char *)&sum + at, (const char *)&all + at, 4) != 0)
            fail_msg("the field at byte %zu is not added up", at);
}
