/* Tests sessions of a small Harmon, plain and with each accelerator of MAR: an image's bits do not depend on its
 * company, prompts are computed once, known tokens are kept, and what is refused. */
#include "tests/support/demo.h"
#include "tests/support/harmon.h"
#include "tests/support/masked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPTS = 3, REQUESTS = 6, PLACES = 3, SEQ = HARMON_SEQ, CHANNELS = HARMON_CHANNELS, TOKENS = HARMON_TOKENS };
static const char *const prompts[PROMPTS] = {"a corgi in the snow", "Ein Café, naïve; e\u0301tude.", "two cats"};

TEST_GROUP(harmon_set_up, harmon_tear_down)

static harmon open_with(const harmon_files *f, mar_dtype dtype, harmon_kind draft)
{
    harmon h = harmon_open(f, HARMON_FOLDER, dtype, NULL, prompts, PROMPTS);
    harmon_load_draft(&h, f, draft);
    return h;
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

/* Every accelerator that applies. */
static const struct {
    const char *options;
    int draft;
} runs[] = {
    {"num_iter 4, num_sampling_steps 8, cfg 3", 0},
    {"num_iter 4, num_sampling_steps 8, cfg 1", 0},
    {"num_iter 4, num_sampling_steps 12, cfg 3, head_spec 4", 0},
    {"num_iter 4, num_sampling_steps 12, cfg 3, head_spec 4", 1},
    {"num_iter 4, num_sampling_steps 12, cfg 3, spec path, gamma 2", 0},
    {"num_iter 4, num_sampling_steps 12, cfg 1, spec path, gamma 4, head_spec 4", 0},
    {"num_iter 4, num_sampling_steps 12, cfg 3, spec path, gamma 2, context full", 1},
    {"num_iter 4, num_sampling_steps 12, cfg 1, spec path, gamma 3, context full, head_spec 4", 1},
    {"num_iter 4, num_sampling_steps 8, cfg 3, spec conditional, gamma 2", 1},
    {"num_iter 4, num_sampling_steps 8, cfg 3, spec paper, gamma 3, context full", 1},
    {"num_iter 4, num_sampling_steps 8, cfg 3, spec cspd, gamma 3, prefill 0", 1},
    {"num_iter 8, num_sampling_steps 14, cfg 3, lazy on, lazy_head on", 0},
    {"gtr on, gtr_generation_steps 3, num_sampling_steps 8, gtr_sampling_steps 4, cfg 3", 0},
    {"num_iter 4, num_sampling_steps 8, cfg 3, sampler ddim", 0},
    {"num_iter 4, num_sampling_steps 8, cfg 3, sampler dpmpp", 0},
    {"num_iter 4, cfg 3, diff_annealing linear, diff_upper_steps 9", 0},
    {"num_iter 4, num_sampling_steps 8, cfg 3, cfg_low 0.25, cfg_high 0.75", 0},
};
enum { RUNS = sizeof runs / sizeof *runs };

static mar_params params_of(const harmon *h, int run)
{
    mar_params p = params_with(runs[run].options);
    if (runs[run].draft) p.draft = h->draft;
    return p;
}

/* Returns whether a run's accelerator keeps a state of the batch. */
static int is_together(int run)
{
    const char *o = runs[run].options;
    return runs[run].draft || strstr(o, "lazy on") || strstr(o, "gtr on") || strstr(o, "spec path");
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* An image, and the number of steps that the session has made before it is submitted. */
typedef struct {
    int prompt;
    uint64_t seed, image;
    float cfg;
    int at;
    int negative; /* a prompt of its own in the second branch; 0: the session's */
} wish;

static const wish wishes[REQUESTS] = {{0, 0, 5, 3, 0, 0}, {1, 9, 0, 4, 1, 2},    {0, 1ull << 63, 1ull << 33, 3, 1, 1},
                                      {2, 9, 1, 1, 2, 0}, {1, 0, 5, 1.5f, 3, 0}, {0, 4, 6, 3, 5, 2}};

static wish wish_of(const mar_params *p, int together, int i)
{
    wish w = wishes[i];
    if (together || p->cfg == 1) w.cfg = p->cfg;
    return w;
}

/* Submits a wish with known tokens, both NULL: none. */
static uint64_t submit(const harmon *h, mar_session *s, const wish *w, const float *tokens, const uint8_t *known)
{
    mar_request r;
    uint64_t id;
    mar_request_init(s, &r, sizeof r);
    r.features = harmon_ids(h, w->prompt), r.mask = harmon_mask(h, w->prompt);
    r.seed = w->seed, r.image = w->image, r.cfg = w->cfg;
    r.tokens = tokens, r.known = known;
    if (w->negative) r.negative = harmon_ids(h, w->negative), r.negative_mask = harmon_mask(h, w->negative);
    assert_session(s, mar_session_submit(s, &r, &id));
    return id;
}

static void take_all(mar_session *s, uint64_t id, float *tokens)
{
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_take(s, id, tokens, NULL));
}

/* Makes a wish alone, by a batch of one in a session of its own. */
static void make_alone(const harmon *h, const mar_params *params, const wish *w, float *tokens)
{
    mar_params p = *params;
    p.seed = w->seed, p.cfg = w->cfg;
    mar_session *s = harmon_session(h, &p, 1);
    if (w->negative)
        assert_session(s, mar_session_set_negative(s, harmon_ids(h, w->negative), harmon_mask(h, w->negative)));
    assert_session(s, mar_session_begin_captions(s, w->image, harmon_ids(h, w->prompt), harmon_mask(h, w->prompt), 1));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
    mar_session_free(s);
}

/* Checks that images that come and go beside others have the bits of images made alone. */
static void in_company(const harmon *h, int run)
{
    const mar_params p = params_of(h, run);
    const int together = is_together(run);
    float alone[TOKENS], tokens[TOKENS];
    mar_session *s = harmon_session(h, &p, PLACES);
    uint64_t id[REQUESTS];
    for (int step = 0, submitted = 0, taken = 0; taken < REQUESTS; step++) {
        while (submitted < REQUESTS && (wishes[submitted].at <= step || !mar_session_pending(s))) {
            const wish w = wish_of(&p, together, submitted);
            id[submitted++] = submit(h, s, &w, NULL, NULL);
        }
        assert_session(s, mar_session_step(s));
        for (uint64_t done; (done = mar_session_next_finished(s)) != 0; taken++) {
            int i = 0;
            while (id[i] != done) i++;
            const wish w = wish_of(&p, together, i);
            assert_session(s, mar_session_take(s, done, tokens, NULL));
            make_alone(h, &p, &w, alone);
            if (memcmp(tokens, alone, sizeof alone) != 0)
                fail_msg("%s: image %d is another one in company", runs[run].options, i);
            for (int j = 0; j < TOKENS; j++) assert_true(isfinite(tokens[j]));
        }
    }
    mar_session_free(s);
}

TEST_CASE(company)
{
    harmon h = open_with(*state, MAR_DTYPE_F32, HARMON_DRAFT);
    for (int run = 0; run < RUNS; run++) in_company(&h, run);
    harmon_close(&h);
}

TEST_CASE(company_in_int8)
{
    harmon h = open_with(*state, MAR_DTYPE_INT8, HARMON_DRAFT);
    for (int run = 0; run < RUNS; run += 5) in_company(&h, run);
    harmon_close(&h);
}

/* Images of a batch have the bits of images made alone. */
TEST_CASE(batches)
{
    harmon h = open_with(*state, MAR_DTYPE_F32, HARMON_DRAFT);
    for (int run = 0; run < RUNS; run++) {
        const mar_params p = params_of(&h, run);
        float alone[TOKENS], tokens[PROMPTS][TOKENS];
        mar_session *s = harmon_session(&h, &p, PROMPTS);
        assert_session(s, mar_session_begin_captions(s, 7, h.ids, h.mask, PROMPTS));
        demo_finish(s);
        assert_session(s, mar_session_tokens(s, tokens[0]));
        mar_session_free(s);
        for (int i = 0; i < PROMPTS; i++) {
            make_alone(&h, &p, &(wish){i, p.seed, (uint64_t)(7 + i), p.cfg, 0, 0}, alone);
            assert_memory_equal(tokens[i], alone, sizeof alone);
        }
    }
    harmon_close(&h);
}

/* Returns the encoder's arithmetic for one image, of a batch or of a request. */
static double encoder_flop(const harmon *h, const char *options, int request)
{
    const mar_params p = params_with(options);
    mar_session *s = harmon_session(h, &p, 1);
    mar_stats stats;
    float tokens[TOKENS];
    mar_stats_init(&stats, sizeof stats);
    if (request) {
        take_all(s, submit(h, s, &(wish){0, 1, 1, p.cfg, 0, 0}, NULL, NULL), tokens);
    } else {
        assert_session(s, mar_session_begin_captions(s, 7, h->ids, h->mask, 1));
        demo_finish(s);
    }
    mar_session_get_stats(s, &stats);
    mar_session_free(s);
    return stats.encoder_flop;
}

/* The encoder sees no prompt, so both branches of guidance share its rows. */
TEST_CASE(the_encoder_runs_once)
{
    harmon h = harmon_open(*state, HARMON_FOLDER, MAR_DTYPE_F32, NULL, prompts, PROMPTS);
    for (int request = 0; request <= 1; request++) {
        const double one = encoder_flop(&h, "num_iter 4, num_sampling_steps 4, cfg 1", request);
        assert_true(one > 0);
        assert_float_equal(encoder_flop(&h, "num_iter 4, num_sampling_steps 4, cfg 3", request), one, 0.5);
    }
    harmon_close(&h);
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

/* Images that share a prompt compute it once. Another one in a slot, or the same again, makes the right image. */
TEST_CASE(a_prompt_is_computed_once)
{
    static const wish list[] = {{0, 1, 1, 3, 0, 0}, {0, 2, 2, 3, 0, 0}, {1, 3, 3, 3, 0, 0},
                                {1, 4, 4, 3, 0, 0}, {2, 5, 5, 3, 0, 0}, {0, 6, 6, 3, 0, 0}};
    enum { N = sizeof list / sizeof *list };
    harmon h = harmon_open(*state, HARMON_FOLDER, MAR_DTYPE_F32, NULL, prompts, PROMPTS);
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4, cfg 3");
    mar_session *s = harmon_session(&h, &p, PLACES);
    const between_runner *b = mar_masked_of(s)->target.between;
    float tokens[TOKENS], alone[TOKENS];
    uint64_t id[N];
    for (int i = 0; i < 3; i++) id[i] = submit(&h, s, &list[i], NULL, NULL);
    assert_session(s, mar_session_step(s));
    assert_int_equal(between_prompts(b), 2);
    for (int i = 3; i < 5; i++) id[i] = submit(&h, s, &list[i], NULL, NULL);
    assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_cancel_request(s, id[0])); /* its slot goes to image 3, of prompt 1 */
    assert_session(s, mar_session_step(s));
    assert_int_equal(between_prompts(b), 2);
    assert_session(s, mar_session_cancel_request(s, id[2])); /* its slot goes to image 4, of a new prompt */
    assert_session(s, mar_session_step(s));
    assert_int_equal(between_prompts(b), 3);
    id[5] = submit(&h, s, &list[5], NULL, NULL);
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    assert_int_equal(between_prompts(b), 3); /* image 1, of the same prompt, was beside the last one or before it */
    for (int i = 1; i < N; i++) {
        if (i == 2) continue;
        assert_session(s, mar_session_take(s, id[i], tokens, NULL));
        make_alone(&h, &p, &list[i], alone);
        if (memcmp(tokens, alone, sizeof alone) != 0) fail_msg("image %d is another one", i);
    }
    mar_session_free(s);
    harmon_close(&h);
}

/* Another negative prompt makes another image, and the first one again the first image. */
TEST_CASE(negative_prompts)
{
    harmon h = harmon_open(*state, HARMON_FOLDER, MAR_DTYPE_F32, NULL, prompts, PROMPTS);
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4, cfg 3");
    mar_session *s = harmon_session(&h, &p, 2);
    float tokens[3][TOKENS];
    for (int i = 0; i < 3; i++) {
        const int negative = i == 1 ? 2 : PROMPTS;
        assert_session(s, mar_session_set_negative(s, harmon_ids(&h, negative), harmon_mask(&h, negative)));
        take_all(s, submit(&h, s, &wishes[0], NULL, NULL), tokens[i]);
    }
    assert_memory_not_equal(tokens[0], tokens[1], sizeof tokens[0]);
    assert_memory_equal(tokens[0], tokens[2], sizeof tokens[0]);
    mar_session_free(s);
    harmon_close(&h);
}

/* Requests with the same negative prompt of their own compute it once. An image in progress keeps the one that it began
 * with. A session without one takes requests that have their own. */
TEST_CASE(negative_prompts_of_requests)
{
    harmon h = harmon_open(*state, HARMON_FOLDER, MAR_DTYPE_F32, NULL, prompts, PROMPTS);
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4, cfg 3");
    const wish plain = {0, 1, 1, 3, 0, 0}, own = {0, 1, 1, 3, 0, 2};
    float alone[2][TOKENS], tokens[TOKENS];
    uint64_t id[4];
    mar_session *s;
    make_alone(&h, &p, &plain, alone[0]);
    make_alone(&h, &p, &own, alone[1]);
    assert_library(h.m, mar_session_create(h.model, h.vae, &p, 4, &s));
    const between_runner *b = mar_masked_of(s)->target.between;
    for (int i = 0; i < 4; i++) {
        if (i == 2) assert_session(s, mar_session_set_negative(s, harmon_ids(&h, PROMPTS), harmon_mask(&h, PROMPTS)));
        id[i] = submit(&h, s, i < 2 ? &own : &plain, NULL, NULL);
        if (i == 1) assert_session(s, mar_session_step(s));
        if (i == 1) assert_int_equal(between_prompts(b), 2);
    }
    assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_set_negative(s, harmon_ids(&h, 1), harmon_mask(&h, 1)));
    assert_int_equal(between_prompts(b), 4);
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    for (int i = 0; i < 4; i++) {
        assert_session(s, mar_session_take(s, id[i], tokens, NULL));
        assert_memory_equal(tokens, alone[i < 2], sizeof tokens);
    }
    mar_session_free(s);
    harmon_close(&h);
}

/* --- known tokens ------------------------------------------------------------------------------------------------- */

/* Known tokens are kept, the others follow them and the prompt, and company changes no bit. */
TEST_CASE(known_tokens)
{
    harmon h = harmon_open(*state, HARMON_FOLDER, MAR_DTYPE_F32, NULL, prompts, PROMPTS);
    const mar_params p = params_with("num_iter 8, num_sampling_steps 4, cfg 3");
    mar_session *s = harmon_session(&h, &p, PLACES);
    float given[2][TOKENS], made[3][TOKENS], again[TOKENS];
    uint8_t known[SEQ];
    for (int t = 0; t < SEQ; t++) known[t] = t % 4 < 2;
    for (int i = 0; i < 2; i++) make_alone(&h, &p, &wishes[i], given[i]);
    for (int i = 0; i < 3; i++) { /* of two pictures, then of another prompt */
        const wish w = {i == 2, 3, 4, 3, 0, 0};
        take_all(s, submit(&h, s, &w, given[i == 1], known), made[i]);
        for (int t = 0; t < SEQ; t++) {
            const float *kept = given[i == 1] + t * CHANNELS;
            assert_int_equal(memcmp(made[i] + t * CHANNELS, kept, CHANNELS * sizeof *kept) == 0, known[t]);
        }
        submit(&h, s, &wishes[0], NULL, NULL); /* begins before, the next one beside it */
        submit(&h, s, &wishes[1], given[0], known);
        assert_session(s, mar_session_step(s));
        const uint64_t id = submit(&h, s, &w, given[i == 1], known);
        take_all(s, id, again);
        assert_memory_equal(again, made[i], sizeof again);
        for (uint64_t done; (done = mar_session_next_finished(s)) != 0;)
            assert_session(s, mar_session_cancel_request(s, done));
    }
    for (int t = 0; t < SEQ; t++)
        for (int i = 1; i < 3 && !known[t]; i++)
            assert_memory_not_equal(made[0] + t * CHANNELS, made[i] + t * CHANNELS, CHANNELS * sizeof(float));
    mar_session_free(s);
    harmon_close(&h);
}

/* Given the tokens of an image's first steps, the rest of the same noise is the same. */
TEST_CASE(continuation)
{
    harmon h = harmon_open(*state, HARMON_FOLDER, MAR_DTYPE_F32, NULL, prompts, PROMPTS);
    const mar_params p = params_with("num_iter 6, num_sampling_steps 6, cfg 3, head_spec 3");
    mar_session *s = harmon_session(&h, &p, 2);
    const wish w = {1, p.seed, 11, 3, 0, 0};
    float tokens[TOKENS], again[TOKENS];
    int step[SEQ];
    assert_session(s, mar_session_begin_captions(s, w.image, harmon_ids(&h, 1), harmon_mask(&h, 1), 1));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
    assert_session(s, mar_session_token_status(s, NULL, step));
    for (int from = 1; from <= 6; from++) {
        uint8_t known[SEQ];
        for (int t = 0; t < SEQ; t++) known[t] = step[t] < from;
        const uint64_t other = submit(&h, s, &wishes[0], NULL, NULL);
        take_all(s, submit(&h, s, &w, tokens, known), again);
        assert_memory_equal(again, tokens, sizeof tokens);
        assert_session(s, mar_session_cancel_request(s, other));
    }
    mar_session_free(s);
    harmon_close(&h);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

static void refused(mar_session *s, mar_status status, const char *what)
{
    assert_int_equal(status, MAR_EARG);
    assert_says(mar_session_error(s), what);
}

TEST_CASE(refused_prompts)
{
    harmon h = harmon_open(*state, HARMON_FOLDER, MAR_DTYPE_F32, NULL, prompts, PROMPTS);
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4, cfg 3");
    const int last = h.tokens - 1, label = 0;
    mar_session *s;
    mar_request r;
    uint64_t id;
    assert_library(h.m, mar_session_create(h.model, h.vae, &p, 2, &s));
    refused(s, mar_session_begin_captions(s, 0, h.ids, h.mask, 1),
            "guidance 3 has nothing to guide away from: expected mar_session_set_negative before the first image");
    refused(s, mar_session_begin(s, 0, &label, 1), "the model makes images of captions: expected their features, ");
    mar_session_free(s);

    s = harmon_session(&h, &p, 2);
    mar_request_init(s, &r, sizeof r);
    refused(s, mar_session_submit(s, &r, &id), "the model makes images of captions");
    r.features = h.ids, r.mask = h.mask;
    static const float bad[] = {-1, 528, 0.5f, 1e9f};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const float good = h.ids[last];
        h.ids[last] = bad[i];
        refused(s, mar_session_submit(s, &r, &id), ", expected 0..527");
        refused(s, mar_session_begin_captions(s, 0, h.ids, h.mask, 1), "the prompt's id at position ");
        refused(s, mar_session_set_negative(s, h.ids, h.mask), ", expected 0..527");
        r.negative = h.ids, r.features = harmon_ids(&h, 1), r.mask = harmon_mask(&h, 1);
        refused(s, mar_session_submit(s, &r, &id), ", expected 0..527");
        r.negative = NULL, r.features = h.ids, r.mask = h.mask;
        h.ids[last] = good;
    }
    h.mask[last - 1] = 0;
    refused(s, mar_session_submit(s, &r, &id), " behind a 1, expected padding on the left alone");
    refused(s, mar_session_set_negative(s, h.ids, h.mask), " behind a 1, expected padding on the left alone");
    memset(h.mask, 0, (size_t)h.tokens);
    refused(s, mar_session_submit(s, &r, &id), "the caption's mask is 0 everywhere, expected a prompt");
    mar_session_free(s);
    harmon_close(&h);
}

/* Checks that a session with this draft is refused. */
static void refuse_draft(const harmon *h, const char *what)
{
    mar_params p = params_with("num_iter 4, num_sampling_steps 4, cfg 3, spec path");
    mar_session *s;
    p.draft = h->draft;
    assert_int_equal(mar_session_create(h->model, NULL, &p, 1, &s), MAR_EMODEL);
    assert_null(s);
    assert_says(mar_error(h->m), what);
}

TEST_CASE(refused_drafts)
{
    harmon h = open_with(*state, MAR_DTYPE_F32, HARMON_UNIPIC);
    refuse_draft(&h, "the draft, UniPic-1, has another noise schedule than the model, Harmon");
    mar_masked_model_of(h.draft)->between.language->shape.rows = 500;
    refuse_draft(&h, "the draft knows 500 ids of prompts, expected the model's 528");
    mar_model_free(h.draft);
    assert_library(h.m, mar_model_load(h.m, "demo-draft", 0, &h.draft));
    refuse_draft(&h, "the draft makes 64 tokens of 8 channels, expected the model's 16 of 6");
    harmon_close(&h);
}
