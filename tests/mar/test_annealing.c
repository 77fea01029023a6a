/* Tests speculation with DiSA's annealed numbers of diffusion steps. Target and draft distributions of a token use the
 * count of its step. The target serves as its own draft, so both distributions agree. A wrong count or respacing on one
 * side would cause rejections. */
#include "tests/support/demo.h"
#include "mar_measure.h"

#include <stdio.h>

static mar_params annealed(const char *with, mar_model *draft)
{
    char list[256];
    snprintf(list, sizeof list, "num_iter 12, diff_annealing linear, diff_upper_steps 14, diff_lower_steps 4, %s",
             with);
    mar_params p = params_with(list);
    p.draft = draft;
    return p;
}

static mar_stats run(const demo *d, const mar_params *p)
{
    static float tokens[2 * DEMO_TOKENS];
    mar_stats stats = {.size = sizeof stats};
    mar_session *s = demo_session(d, p, 2);
    demo_generate(s, 2, tokens);
    mar_session_get_stats(s, &stats);
    assert_says(mar_session_guarantee(s), "approximate: changed by diff_annealing; relative to plain sampling, ");
    mar_session_free(s);
    return stats;
}

TEST_CASE(inside_the_head)
{
    const demo d = demo_open(1);
    const mar_params same = annealed("head_spec 4", d.model), other = annealed("head_spec 4", d.draft);
    const mar_stats of_same = run(&d, &same), of_other = run(&d, &other);
    assert_true(of_same.proposals > 0 && of_same.proposals_accepted == of_same.proposals);
    assert_true(of_other.proposals_accepted > 0 && of_other.proposals_accepted < of_other.proposals);
    demo_close(d);
}

TEST_CASE(whole_paths)
{
    const demo d = demo_open(1);
    const char *const ways[] = {"spec path, context full, gamma 4", "spec path, context full, gamma 4, head_spec 4"};
    for (int i = 0; i < 2; i++) {
        const mar_params same = annealed(ways[i], d.model), other = annealed(ways[i], d.draft);
        const mar_stats of_same = run(&d, &same), of_other = run(&d, &other);
        assert_int_equal(of_same.drafted, 2 * DEMO_SEQ);
        assert_int_equal(of_same.accepted, of_same.drafted);
        assert_true(of_other.accepted > 0 && of_other.accepted < of_other.drafted);
        const mar_params alone = annealed(i ? "spec path, gamma 8, head_spec 4" : "spec path, gamma 8", NULL);
        const mar_stats of_alone = run(&d, &alone);
        assert_true(of_alone.accepted > 0 && of_alone.accepted < of_alone.drafted && of_alone.passes < 12);
    }
    demo_close(d);
}
