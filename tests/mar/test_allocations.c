/* Counts allocations: after a session's creation the library makes none on a CPU, in any arithmetic, with any
 * accelerator and for any batch. The sanitizers skip this test (tests/support/failing_allocations.h). */
#include "tests/support/brief.h"

#include "mar_measure.h"
#include "tests/support/demo.h"

#include "tests/support/failing_allocations.h"

#ifndef HAS_SANITIZER

/* Generates batches of all sizes and reads all results. Nothing is allocated after the session's creation. */
static void generate_all(const demo *d, const mar_params *p, const char *run)
{
    static float tokens[DEMO_BATCH * DEMO_TOKENS];
    static uint8_t rgb[DEMO_BATCH * DEMO_BYTES], map[DEMO_BATCH * DEMO_SEQ];
    static int step[DEMO_BATCH * DEMO_SEQ];
    mar_stats stats = {.size = sizeof stats};
    mar_session *s = demo_session(d, p, DEMO_BATCH);
    allocations = 0;
    for (int n = DEMO_BATCH; n > 0; n--) {
        assert_session(s, demo_run(s, n));
        assert_session(s, mar_session_tokens(s, tokens));
        assert_session(s, mar_session_images(s, rgb));
        assert_session(s, mar_session_token_status(s, map, step));
        mar_session_get_stats(s, &stats);
        if (allocations) fail_msg("%s: %ld allocations in a batch of %d", run, allocations, n);
    }
    mar_session_free(s);
}

/* Makes requests at different steps. Only submitting one allocates. */
static void request_all(const demo *d, const mar_params *p, const char *run)
{
    static uint8_t rgb[DEMO_BYTES];
    static float tokens[DEMO_TOKENS];
    mar_session *s = demo_session(d, p, DEMO_BATCH - 1);
    mar_pixels pixels = {.size = sizeof pixels, .data = rgb, .capacity = sizeof rgb};
    long made = 0;
    for (int n = 0, taken = 0; taken < DEMO_BATCH; n++) {
        mar_request r;
        uint64_t id;
        mar_request_init(s, &r, sizeof r);
        r.label = n % 10, r.image = (uint64_t)n;
        if (n < DEMO_BATCH) assert_session(s, mar_session_submit(s, &r, &id));
        allocations = 0;
        if (mar_session_pending(s)) assert_session(s, mar_session_step(s));
        for (; (id = mar_session_next_finished(s)) != 0; taken++) {
            assert_session(s, mar_session_preview(s, id, &pixels));
            assert_session(s, mar_session_take(s, id, tokens, &pixels));
        }
        made += allocations;
    }
    if (made) fail_msg("%s: %ld allocations in requests", run, made);
    mar_session_free(s);
}

static const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16, MAR_DTYPE_INT8};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

TEST_CASE(generating)
{
    static const struct demo_run paths[] = {
        {"num_iter 6, num_sampling_steps 6, cfg 2.9, spec path, gamma 6", 0},
        {"num_iter 6, num_sampling_steps 6, cfg 2.9, spec path", 0}, /* plain rounds */
        {"num_iter 6, num_sampling_steps 6, cfg 2.9, spec path, gamma 3", 1},
        {"num_iter 6, num_sampling_steps 6, cfg 2.9, spec path, gamma 3, context prefix", 1}};
    for (int i = 0; i < DTYPES; i++) {
        const demo d = demo_open_in(dtypes[i], 1);
        demo fast = d;
        if (!d.m) continue;
        fast.model = d.draft;                              /* as target where nothing drafts */
        const int apart = i > 0 && !test_all ? DTYPES : 1; /* the change lane tests all accelerators in f32 only */
        for (int run = apart > 1 ? i : 0; run < DEMO_RUNS; run += apart) {
            const mar_params p = demo_params(&d, run);
            const demo *models = demo_runs[run].draft ? &d : &fast;
            generate_all(models, &p, demo_runs[run].options);
            request_all(models, &p, demo_runs[run].options);
        }
        for (size_t run = 0; run < sizeof paths / sizeof *paths; run++) {
            mar_params p = params_with(paths[run].options);
            if (paths[run].draft) p.draft = d.draft;
            generate_all(&d, &p, paths[run].options);
        }
        demo_close(d);
    }
}

TEST_CASE(generating_discrete_tokens)
{
    enum { PLAIN, DRAFT, EAGLE };
    static const struct {
        const char *options;
        int draft;
    } with[] = {{"cfg 2", PLAIN},
                {"cfg 2, spec sjd, window 16", PLAIN},
                {"cfg 2, spec vanilla", DRAFT},
                {"cfg 1, spec vanilla, tree dynamic, gamma 3", EAGLE}};
    for (int i = 0; i < DTYPES; i++) {
        demo d = {.m = open_mar(dtypes[i], 1)};
        mar_model *drafts[] = {[PLAIN] = NULL, [DRAFT] = NULL, [EAGLE] = NULL};
        if (!d.m) continue;
        assert_library(d.m, mar_model_load(d.m, "demo-discrete", 0, &d.model));
        assert_library(d.m, mar_model_load(d.m, "demo-discrete-draft", 0, &drafts[DRAFT]));
        assert_library(d.m, mar_model_load(d.m, "demo-discrete-eagle", 0, &drafts[EAGLE]));
        assert_library(d.m, mar_vae_load(d.m, "demo-discrete", &d.vae));
        for (size_t run = 0; run < sizeof with / sizeof *with; run++) {
            mar_params p = params_with(with[run].options);
            p.draft = drafts[with[run].draft];
            generate_all(&d, &p, with[run].options);
        }
        for (int k = 0; k <= EAGLE; k++) mar_model_free(drafts[k]);
        mar_vae_free(d.vae);
        mar_model_free(d.model);
        mar_close(d.m);
    }
}

/* The rows of a prompt's embeddings come from the model's file, to memory that the session has. */
TEST_CASE(beginning_behind_prompts)
{
    enum { ROOM = 512 };
    float ids[ROOM] = {0};
    uint8_t mask[ROOM] = {0};
    mar_model *model;
    mar_session *s;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    const mar_params p = params_with("num_iter 0, cfg 2");
    assert_library(m, mar_model_load(m, "demo-mgpt", 0, &model));
    const int positions = mar_model_get_config(model)->caption_tokens;
    assert_in_range(positions, 20, ROOM);
    memset(mask + positions - 20, 1, 20);
    assert_library(m, mar_session_create(model, NULL, &p, 1, &s));
    assert_session(s, mar_session_set_negative(s, ids, mask));
    assert_session(s, mar_session_begin_captions(s, 0, ids, mask, 1));
    const long before = allocations;
    assert_session(s, mar_session_set_negative(s, ids, mask));
    assert_session(s, mar_session_begin_captions(s, 1, ids, mask, 1));
    assert_int_equal(allocations, before);
    mar_session_free(s);
    mar_model_free(model);
    mar_close(m);
}

#endif
