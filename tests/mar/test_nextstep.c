/* Tests NextStep-1 against its own code (tests/golden/make_nextstep.py): prompts and whole images of a small model in
 * the layouts of its releases. */
#include "tests/support/nextstep.h"

#include "tests/support/demo.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, CHANNELS = NEXTSTEP_CHANNELS };
static const uint64_t seed = 0x1234567890ABCDEF;
static const char *const prompts[IMAGES] = {"a corgi in the snow", "Ein Café, naïve; e\u0301tude."};

TEST_GROUP(nextstep_set_up, nextstep_tear_down)

/* Returns the largest difference relative to the largest number. */
static double relative(const float *x, const float *expected, size_t n)
{
    double difference = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        difference = fmax(difference, fabs((double)x[i] - (double)expected[i]));
        most = fmax(most, fabs((double)expected[i]));
    }
    assert_true(most > 0);
    return difference / most;
}

TEST_CASE(images_of_the_official_code)
{
    static const struct {
        const char *name, *size;
        nextstep_kind kind;
        float cfg;
        mar_cfg_schedule schedule;
        float time_shift;
        int token_norm;
    } cases[] = {
        {"images.square", "64x64", NEXTSTEP_FOLDER, -1, MAR_CFG_AUTO, 0, 0},
        {"images.square", "64x64", NEXTSTEP_SHARDS, 7.5f, MAR_CFG_CONSTANT, 0, 0},
        {"images.tall", "32x48", NEXTSTEP_FOLDER, -1, MAR_CFG_AUTO, 0, 0},
        {"images.linear", "64x64", NEXTSTEP_FOLDER, -1, MAR_CFG_LINEAR, 0, 0},
        {"images.plain", "64x64", NEXTSTEP_FOLDER, 1, MAR_CFG_AUTO, 0, 0},
        {"images.pos", "64x64", NEXTSTEP_POSITIONS, -1, MAR_CFG_AUTO, 0, 0},
        {"images.shifted", "64x64", NEXTSTEP_FOLDER, -1, MAR_CFG_AUTO, 1.5f, 0},
        {"images.raw", "64x64", NEXTSTEP_FOLDER, -1, MAR_CFG_AUTO, 0, 2},
    };
    const nextstep_files *f = *state;
    wt_file *golden = golden_open("nextstep");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float tokens[IMAGES * NEXTSTEP_SEQ * CHANNELS];
        const char *folder = f->folder[cases[i].kind];
        harmon h = harmon_open_paths(folder, NULL, folder, MAR_DTYPE_F32, cases[i].size, prompts, IMAGES,
                                     "lowres, bad anatomy, blurry.");
        mar_params p;
        mar_params_init(&p, sizeof p);
        p.num_sampling_steps = NEXTSTEP_STEPS;
        p.time_shift = cases[i].time_shift;
        p.token_norm = cases[i].token_norm;
        p.cfg = cases[i].cfg;
        p.cfg_schedule = cases[i].schedule;
        p.seed = seed;
        mar_session *s = harmon_session(&h, &p, IMAGES);
        assert_session(s, mar_session_begin_captions(s, NEXTSTEP_FIRST, h.ids, h.mask, IMAGES));
        demo_finish(s);
        assert_session(s, mar_session_tokens(s, tokens));
        mar_session_free(s);
        const size_t n = (size_t)(IMAGES * mar_model_get_config(h.model)->seq_len * CHANNELS);
        float *expected = golden_f32(golden, cases[i].name, (int64_t)n);
        const double error = relative(tokens, expected, n);
        printf("%s %g\n", cases[i].name, error);
        if (error > 1e-4) fail_msg("%s: relative error %g", cases[i].name, error);
        free(expected);
        harmon_close(&h);
    }
    wt_close(golden);
}
