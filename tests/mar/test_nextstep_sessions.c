/* Tests sessions of a small NextStep-1: an image's bits do not depend on its company, accelerators are exact by their
 * guarantee, known tokens are kept, and what is refused. */
#include "tests/support/nextstep.h"

#include "mar_measure.h"
#include "tests/support/changed.h"
#include "tests/support/demo.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PROMPTS = 3, SEQ = NEXTSTEP_SEQ, CHANNELS = NEXTSTEP_CHANNELS, TOKENS = SEQ * CHANNELS, FIRST = 7 };
static const char *const prompts[PROMPTS] = {"a corgi in the snow", "Ein Café, naïve; e\u0301tude.", "two cats"};
static const char bad[] = "lowres, blurry";

TEST_GROUP(nextstep_set_up, nextstep_tear_down)

static harmon open_with_draft(const nextstep_files *f, nextstep_kind kind, mar_dtype dtype)
{
    const char *folder = f->folder[kind];
    harmon h = harmon_open_paths(folder, NULL, folder, dtype, "64x64", prompts, PROMPTS, bad);
    assert_library(h.m, mar_model_load(h.m, f->folder[NEXTSTEP_DRAFT], 0, &h.draft));
    return h;
}

/* Returns the model's own parameters with the options of a list set. */
static mar_params model_params(const char *list)
{
    mar_params p;
    mar_params_init(&p, sizeof p);
    return params_set(p, list);
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

/* Every accelerator that applies. */
static const struct {
    const char *options;
    int draft;
    const char *method; /* of the guarantee */
    int exact;
} runs[] = {
    {"cfg 7.5, num_sampling_steps 8", 0, "", 1},
    {"cfg 1, num_sampling_steps 8", 0, "", 1},
    {"cfg 3, num_sampling_steps 8, cfg_schedule linear, time_shift 2, token_norm off", 0, "", 1},
    {"cfg 3, num_sampling_steps 8, temperature 0.9", 0, "", 1},
    {"cfg 3, num_sampling_steps 20, head_spec 4", 0, "by speculation inside the head", 1},
    {"cfg 3, num_sampling_steps 20, head_spec 16, time_shift 1.5", 0, "by speculation inside the head", 1},
    {"cfg 3, num_sampling_steps 8, spec path, gamma 3", 1, "of whole paths, by criterion path with drafts of the draft",
     1},
    {"cfg 1, num_sampling_steps 8, spec path, gamma 4, head_spec 4", 1,
     "of whole paths, by criterion path with drafts of the draft", 1},
    {"cfg 3, num_sampling_steps 8, sampler ddim", 0, "changed by sampler ddim", 0},
    {"cfg 3, num_sampling_steps 8, sampler dpmpp", 0, "changed by sampler dpmpp", 0},
    {"cfg 3, diff_annealing linear, diff_upper_steps 8, diff_lower_steps 4", 0, "changed by diff_annealing", 0},
    {"cfg 3, num_sampling_steps 8, cfg_low 0.25, cfg_high 0.75", 0, "changed by guidance in an interval", 0},
};
enum { RUNS = sizeof runs / sizeof *runs };

static mar_params params_of(const harmon *h, int run)
{
    mar_params p = model_params(runs[run].options);
    if (runs[run].draft) p.draft = h->draft;
    return p;
}

/* Makes images FIRST and on of prompts `from` and on, in one batch. */
static mar_stats make_batch(const harmon *h, const mar_params *p, int from, int n, float *tokens)
{
    mar_stats stats;
    mar_session *s = harmon_session(h, p, n);
    assert_session(
        s, mar_session_begin_captions(s, (uint64_t)(FIRST + from), harmon_ids(h, from), harmon_mask(h, from), n));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
    mar_stats_init(&stats, sizeof stats);
    mar_session_get_stats(s, &stats);
    mar_session_free(s);
    for (int i = 0; i < n * TOKENS; i++) assert_true(isfinite(tokens[i]));
    return stats;
}

/* Submits image FIRST + i of prompt i, guided away from prompt `negative` or with -1 from the session's, with known
 * tokens, both NULL: none. */
static uint64_t submit_prompt(const harmon *h, mar_session *s, int i, int negative, const float *tokens,
                              const uint8_t *known)
{
    mar_request r;
    uint64_t id;
    mar_request_init(s, &r, sizeof r);
    r.features = harmon_ids(h, i), r.mask = harmon_mask(h, i);
    r.image = (uint64_t)(FIRST + i);
    if (negative >= 0) r.negative = harmon_ids(h, negative), r.negative_mask = harmon_mask(h, negative);
    r.tokens = tokens, r.known = known;
    assert_session(s, mar_session_submit(s, &r, &id));
    return id;
}

/* --- company ------------------------------------------------------------------------------------------------------ */

/* Checks that images of a batch, and of requests that begin apart, have the bits of images made alone. */
static void check_company(const harmon *h, int run)
{
    const mar_params p = params_of(h, run);
    float alone[PROMPTS * TOKENS], together[PROMPTS * TOKENS];
    uint64_t id[PROMPTS];
    for (int i = 0; i < PROMPTS; i++) make_batch(h, &p, i, 1, alone + i * TOKENS);
    make_batch(h, &p, 0, PROMPTS, together);
    if (memcmp(alone, together, sizeof alone) != 0) fail_msg("%s: a batch has other images", runs[run].options);
    mar_session *s = harmon_session(h, &p, PROMPTS - 1); /* the last one waits for a place */
    for (int i = 0; i < PROMPTS; i++) {
        id[i] = submit_prompt(h, s, i, -1, NULL, NULL);
        for (int step = 0; step < 3; step++) assert_session(s, mar_session_step(s));
    }
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    for (int i = 0; i < PROMPTS; i++) assert_session(s, mar_session_take(s, id[i], together + i * TOKENS, NULL));
    if (memcmp(alone, together, sizeof alone) != 0) fail_msg("%s: requests have other images", runs[run].options);
    mar_session_free(s);
}

TEST_CASE(company)
{
    harmon h = open_with_draft(*state, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    for (int run = 0; run < RUNS; run++) check_company(&h, run);
    harmon_close(&h);
}

TEST_CASE(company_of_the_newer_release)
{
    harmon h = open_with_draft(*state, NEXTSTEP_NEWER, MAR_DTYPE_F32);
    for (int run = 0; run < RUNS; run++)
        if (!runs[run].draft) check_company(&h, run);
    harmon_close(&h);
}

TEST_CASE(company_with_positions_in_int8)
{
    harmon h = open_with_draft(*state, NEXTSTEP_POSITIONS, MAR_DTYPE_INT8);
    for (int run = 0; run < RUNS; run += 4) check_company(&h, run);
    harmon_close(&h);
}

/* Requests of one step with negative prompts of their own, and one with the session's, have the bits of images alone.
 */
TEST_CASE(negative_prompts_of_requests)
{
    static const int negative[PROMPTS] = {2, -1, 0};
    harmon h = open_with_draft(*state, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    for (int run = 0; run < RUNS; run++) {
        const mar_params p = params_of(&h, run);
        float alone[PROMPTS * TOKENS], together[PROMPTS * TOKENS], plain[TOKENS];
        uint64_t id[PROMPTS];
        if (p.cfg == 1) continue;
        for (int i = 0; i < PROMPTS; i++) {
            mar_session *s = harmon_session(&h, &p, 1);
            id[0] = submit_prompt(&h, s, i, negative[i], NULL, NULL);
            while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
            assert_session(s, mar_session_take(s, id[0], alone + i * TOKENS, NULL));
            mar_session_free(s);
        }
        make_batch(&h, &p, 0, 1, plain);
        assert_memory_not_equal(plain, alone, sizeof plain);
        mar_session *s = harmon_session(&h, &p, PROMPTS);
        for (int i = 0; i < PROMPTS; i++) id[i] = submit_prompt(&h, s, i, negative[i], NULL, NULL);
        while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
        for (int i = 0; i < PROMPTS; i++) assert_session(s, mar_session_take(s, id[i], together + i * TOKENS, NULL));
        if (memcmp(alone, together, sizeof alone) != 0) fail_msg("%s: other images", runs[run].options);
        mar_session_free(s);
    }
    harmon_close(&h);
}

/* --- accelerators ------------------------------------------------------------------------------------------------- */

TEST_CASE(guarantees)
{
    harmon h = open_with_draft(*state, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    for (int run = 0; run < RUNS; run++) {
        const mar_params p = params_of(&h, run);
        mar_session *s = harmon_session(&h, &p, 1);
        const mar_guarantee *g = mar_session_get_guarantee(s);
        if (g->exact != runs[run].exact || strncmp(g->method, runs[run].method, strlen(runs[run].method)) != 0)
            fail_msg("%s: %s", runs[run].options, mar_session_guarantee(s));
        mar_session_free(s);
    }
    harmon_close(&h);
}

/* A window of one step is the plain chain. Wider ones propose, reject some, and need fewer calls in sequence; a chain
 * has at most as many as it has steps. */
TEST_CASE(speculation_inside_the_head)
{
    static const int windows[] = {1, 4, 16};
    harmon h = open_with_draft(*state, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    float plain[PROMPTS * TOKENS], tokens[PROMPTS * TOKENS];
    mar_params p = model_params("cfg 3, num_sampling_steps 50");
    make_batch(&h, &p, 0, PROMPTS, plain);
    for (int i = 0; i < 3; i++) {
        p.head_spec = windows[i];
        const mar_stats stats = make_batch(&h, &p, 0, PROMPTS, tokens);
        const double calls = stats.head_calls / (double)stats.tokens;
        print_message("window %2d: %.2f calls a token of 50, most %d, %ld of %ld accepted\n", windows[i], calls,
                      stats.head_calls_max, stats.proposals_accepted, stats.proposals);
        assert_int_equal(stats.tokens, PROMPTS * SEQ);
        assert_true(stats.head_calls_max <= 51);
        assert_int_equal(memcmp(tokens, plain, sizeof plain) == 0, windows[i] == 1);
        if (windows[i] == 1) continue;
        assert_true(calls < 50.0 / windows[i] + 4);
        assert_true(stats.proposals_accepted > 0 && stats.proposals_accepted < stats.proposals);
    }
    harmon_close(&h);
}

/* A draft that is the model itself: every path is accepted, and the images are the plain ones. */
TEST_CASE(paths_of_the_model_itself_are_accepted)
{
    const nextstep_files *f = *state;
    harmon h = open_with_draft(f, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    mar_model *other = h.draft;
    assert_library(h.m, mar_model_load(h.m, f->folder[NEXTSTEP_FOLDER], 0, &h.draft));
    mar_params p = model_params("cfg 3, num_sampling_steps 8");
    float plain[PROMPTS * TOKENS], tokens[PROMPTS * TOKENS];
    make_batch(&h, &p, 0, PROMPTS, plain);
    p = params_set(p, "spec path, gamma 4");
    p.draft = h.draft;
    mar_stats stats = make_batch(&h, &p, 0, PROMPTS, tokens);
    print_message("%ld of %ld tokens of itself accepted, shift %g\n", stats.accepted, stats.drafted,
                  stats.accepted_shift);
    assert_memory_equal(tokens, plain, sizeof plain);
    assert_int_equal(stats.drafted, stats.accepted);
    assert_true(stats.drafted >= PROMPTS * (SEQ - 1));
    p.draft = other;
    stats = make_batch(&h, &p, 0, PROMPTS, tokens);
    print_message("%ld of %ld tokens of another draft accepted\n", stats.accepted, stats.drafted);
    assert_true(stats.accepted < stats.drafted);
    mar_model_free(other);
    harmon_close(&h);
}

/* The noise of the last step is not the chain's. */
TEST_CASE(paths_of_the_newer_release_are_refused)
{
    harmon h = open_with_draft(*state, NEXTSTEP_NEWER, MAR_DTYPE_F32);
    mar_params p = model_params("num_sampling_steps 8, spec path");
    mar_session *s;
    p.draft = h.draft;
    assert_int_equal(mar_session_create(h.model, NULL, &p, 1, &s), MAR_EARG);
    assert_string_equal(mar_error(h.m),
                        "--spec path: paths do not compare the noise of the last step of NextStep-1.1's tokens");
    harmon_close(&h);
}

/* --- known tokens ------------------------------------------------------------------------------------------------- */

/* Given its first tokens, an image of the same noise goes on the same; given another's, they are kept and followed. */
TEST_CASE(known_tokens_come_first)
{
    harmon h = open_with_draft(*state, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    const mar_params p = model_params("cfg 3, num_sampling_steps 8");
    float images[2 * TOKENS], made[TOKENS];
    make_batch(&h, &p, 0, 2, images);
    mar_session *s = harmon_session(&h, &p, 2);
    for (int n = 1; n <= SEQ; n += 5)
        for (int of = 0; of < 2; of++) {
            uint8_t known[SEQ] = {0};
            memset(known, 1, (size_t)n);
            const uint64_t beside = submit_prompt(&h, s, 2, -1, NULL, NULL);
            assert_session(s, mar_session_step(s));
            const uint64_t id = submit_prompt(&h, s, 0, -1, images + of * TOKENS, known);
            while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
            assert_session(s, mar_session_take(s, id, made, NULL));
            assert_session(s, mar_session_cancel_request(s, beside));
            assert_memory_equal(made, images + of * TOKENS, (size_t)(n * CHANNELS) * sizeof *made);
            const int same = memcmp(made, images, sizeof made) == 0;
            assert_int_equal(same, of == 0);
        }
    mar_session_free(s);
    harmon_close(&h);
}

/* Makes image FIRST of prompt 0 with known tokens in a session of its own. Returns the steps that it took. */
static int make_with(const harmon *h, const mar_params *p, const float *tokens, const uint8_t *known, float *made)
{
    mar_session *s = harmon_session(h, p, 2);
    const uint64_t id = submit_prompt(h, s, 0, -1, tokens, known);
    int steps = 0;
    for (; mar_session_pending(s); steps++) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_take(s, id, made, NULL));
    mar_session_free(s);
    return steps;
}

/* Known tokens at any places of an image: its own leave it as it is; another's are kept, and a token behind them does
 * not depend on known ones that follow it, nor on the image's company. One step makes one token. */
static void check_scattered(const harmon *h, int run)
{
    static const uint8_t known[SEQ + 3] = {0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1}; /* another: + 3 */
    const mar_params p = params_of(h, run);
    float images[2 * TOKENS], made[TOKENS], again[TOKENS];
    uint8_t more[SEQ];
    make_batch(h, &p, 0, 2, images);
    assert_int_equal(make_with(h, &p, images, known, made), 8);
    if (memcmp(made, images, sizeof made) != 0) fail_msg("%s: other images of their own tokens", runs[run].options);
    make_with(h, &p, images + TOKENS, known, made);
    for (int t = 0; t < SEQ; t++) {
        const float *token = made + t * CHANNELS, *given = images + TOKENS + t * CHANNELS, *own = images + t * CHANNELS;
        assert_int_equal(memcmp(token, given, CHANNELS * sizeof *token) == 0, known[t]);
        assert_int_equal(memcmp(token, own, CHANNELS * sizeof *token) == 0, t == 0); /* before the first known one */
    }
    for (int end = 1; end <= SEQ; end += 4) { /* what has been made, and no known token behind it */
        for (int t = 0; t < SEQ; t++) more[t] = t < end;
        make_with(h, &p, made, more, again);
        for (int t = end; t < SEQ && !known[t]; t++)
            assert_memory_equal(again + t * CHANNELS, made + t * CHANNELS, CHANNELS * sizeof *made);
    }
    mar_session *s = harmon_session(h, &p, 2);
    submit_prompt(h, s, 1, -1, images, known + 3);
    for (int step = 0; step < 2; step++) assert_session(s, mar_session_step(s));
    const uint64_t id = submit_prompt(h, s, 0, -1, images + TOKENS, known);
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_take(s, id, again, NULL));
    assert_memory_equal(again, made, sizeof made);
    mar_session_free(s);
}

TEST_CASE(known_tokens_anywhere)
{
    for (int kind = NEXTSTEP_FOLDER; kind <= NEXTSTEP_NEWER; kind++) {
        harmon h = open_with_draft(*state, (nextstep_kind)kind, MAR_DTYPE_F32);
        for (int run = kind; run < RUNS; run += 1 + kind)
            if (!runs[run].draft) check_scattered(&h, run);
        harmon_close(&h);
    }
}

/* The guarantee says what an unknown token is drawn given; whole paths are refused. */
TEST_CASE(guarantees_of_known_tokens)
{
    static const struct {
        uint8_t known[SEQ];
        const char *line;
    } cases[] = {{{1, 1, 1}, "exact to: plain sampling of the unknown tokens, 16 steps of 8; not"},
                 {{1, 0, 1}, "exact to: plain sampling of the unknown tokens, each given those before it, 16 steps"}};
    harmon h = open_with_draft(*state, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    mar_params p = model_params("cfg 3, num_sampling_steps 8");
    float tokens[TOKENS] = {0};
    char text[1024];
    mar_session *s = harmon_session(&h, &p, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_request r;
        mar_request_init(s, &r, sizeof r);
        r.known = cases[i].known;
        assert_says(mar_session_request_guarantee(s, &r, text, sizeof text), cases[i].line);
    }
    mar_session_free(s);
    p = params_set(p, "spec path, gamma 3");
    p.draft = h.draft;
    s = harmon_session(&h, &p, 1);
    mar_request r;
    uint64_t id;
    mar_request_init(s, &r, sizeof r);
    r.features = harmon_ids(&h, 0), r.mask = harmon_mask(&h, 0), r.tokens = tokens, r.known = cases[0].known;
    assert_int_equal(mar_session_submit(s, &r, &id), MAR_EARG);
    assert_says(mar_session_error(s), "--spec path: expected a request without known tokens");
    mar_session_free(s);
    harmon_close(&h);
}

/* --- arithmetic --------------------------------------------------------------------------------------------------- */

/* Returns the root mean square of the difference relative to that of the tokens, whose norm is 1. */
static double distance(const float *a, const float *b, int n)
{
    double squares = 0;
    for (int i = 0; i < n; i++) squares += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(squares / n);
}

/* Images of the same noise are near those of f32. */
TEST_CASE(dtypes)
{
    static const struct {
        mar_dtype dtype;
        const char *name;
        double most;
    } cases[] = {{MAR_DTYPE_BF16, "bf16", 0.02}, {MAR_DTYPE_INT8, "int8", 0.05}, {MAR_DTYPE_INT4, "int4", 0.3}};
    const mar_params p = model_params("cfg 1, num_sampling_steps 8");
    float exact[PROMPTS * TOKENS], tokens[PROMPTS * TOKENS];
    harmon h = open_with_draft(*state, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    make_batch(&h, &p, 0, PROMPTS, exact);
    harmon_close(&h);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar *m = open_mar(cases[i].dtype, 1);
        if (!m) continue; /* not on this processor */
        mar_close(m);
        h = open_with_draft(*state, NEXTSTEP_FOLDER, cases[i].dtype);
        make_batch(&h, &p, 0, PROMPTS, tokens);
        const double away = distance(tokens, exact, PROMPTS * TOKENS);
        print_message("%s: %.4f from f32\n", cases[i].name, away);
        assert_true(away > 0 && away < cases[i].most);
        harmon_close(&h);
    }
}

/* Keys and values of fewer bits: images are near those of f32, do not depend on their company, and are not said to be
 * exact. */
TEST_CASE(types_of_keys_and_values)
{
    const nextstep_files *f = *state;
    static const struct {
        const char *option, *method;
        double most;
    } cases[] = {{"cache_dtype bf16", "approximate: keys and values in bf16; relative to plain", 0.01},
                 {"cache_dtype int8", "approximate: keys and values in int8; relative to plain", 0.05}};
    static const char *const with[] = {"cfg 3, num_sampling_steps 8", "cfg 1, num_sampling_steps 8, head_spec 1",
                                       "cfg 3, num_sampling_steps 8, spec path, gamma 3"};
    harmon h = open_with_draft(f, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    float exact[PROMPTS * TOKENS], tokens[PROMPTS * TOKENS], alone[TOKENS];
    mar_model_free(h.draft);
    assert_library(h.m, mar_model_load(h.m, f->folder[NEXTSTEP_FOLDER], 0, &h.draft));
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        mar_params p = model_params(with[i]);
        p.draft = p.spec ? h.draft : NULL;
        make_batch(&h, &p, 0, PROMPTS, exact);
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            const mar_params rounded = params_set(p, cases[c].option);
            const mar_stats stats = make_batch(&h, &rounded, 0, PROMPTS, tokens);
            const double away = distance(tokens, exact, PROMPTS * TOKENS);
            print_message("%s, %s: %.4f from f32\n", with[i], cases[c].option, away);
            assert_true(away > 0 && away < cases[c].most);
            assert_int_equal(stats.drafted, stats.accepted); /* the draft, the model itself, has the same type */
            make_batch(&h, &rounded, 1, 1, alone);
            assert_memory_equal(alone, tokens + TOKENS, sizeof alone);
            mar_session *s = harmon_session(&h, &rounded, 1);
            assert_says(mar_session_guarantee(s), cases[c].method);
            mar_session_free(s);
        }
    }
    harmon_close(&h);
}

/* Weights whose products overflow: the token, and with check the layer, are named. */
TEST_CASE(layers_that_are_not_finite_are_named)
{
    static const struct {
        const char *tensor, *layer;
    } cases[] = {
        {"layers.1.mlp.down_proj.weight", "layers.1.feed_forward.w2"},
        {"image_out_projector.weight", "image_out_projector"},
        {"image_head.net.cond_embed.weight", "image_head.net.cond_embed"},
        {"image_head.net.res_blocks.1.mlp.2.weight", "image_head.net.res_blocks.1"},
        {"image_head.net.final_layer.linear.weight", "image_head.net.final_layer"},
    };
    char folder[512], path[600];
    snprintf(folder, sizeof folder, "%s/huge", test_directory());
    assert_int_equal(mkdir(folder, 0777), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        long count;
        nextstep_write(folder, NEXTSTEP_DRAFT);
        bytes b = bytes_from_file(path);
        char *at = file_tensor(&b, cases[i].tensor, &count);
        const float huge = 3e38f;
        for (long k = 0; k < count; k++) memcpy(at + (size_t)k * sizeof huge, &huge, sizeof huge);
        bytes_to_file(&b, path);
        bytes_free(&b);
        harmon h = harmon_open_paths(folder, NULL, folder, MAR_DTYPE_F32, "64x64", prompts, 1, bad);
        for (int check = 0; check < 2; check++) {
            mar_params p = model_params("cfg 3, num_sampling_steps 8");
            p.check = check;
            mar_session *s = harmon_session(&h, &p, 1);
            mar_status status = mar_session_begin_captions(s, FIRST, h.ids, h.mask, 1);
            while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
            assert_int_equal(status, MAR_EMODEL);
            print_message("%s\n", mar_session_error(s));
            assert_says(mar_session_error(s), check ? cases[i].layer : "--check names the first layer");
            mar_session_free(s);
        }
        harmon_close(&h);
    }
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

TEST_CASE(what_does_not_apply_is_refused_by_name)
{
    static const struct {
        const char *options, *error;
    } cases[] = {
        {"lazy on", "--lazy changes the transformer passes"},
        {"num_iter 8", "--num_iter 8: expected 0 or 16"},
        {"num_sampling_steps 2", "--num_sampling_steps 2: expected 3..1000"},
        {"spec path", "--spec path: needs --draft with a NextStep-1 model"},
        {"spec cspd", "--spec cspd changes the verdicts on states"},
        {"sampler ddim, temperature 0.9", "--temperature 0.9: expected 1 with an ODE solver as --sampler"},
        {"head_spec 4, sampler ddim", "--sampler and --head_spec do not go together"},
    };
    harmon h = open_with_draft(*state, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    mar_session *s;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_params p = model_params(cases[i].options);
        assert_int_equal(mar_session_create(h.model, NULL, &p, 1, &s), MAR_EARG);
        assert_says(mar_error(h.m), cases[i].error);
    }
    mar_params p = model_params("cfg 3, num_sampling_steps 8");
    assert_library(h.m, mar_session_create(h.model, NULL, &p, 1, &s));
    assert_int_equal(mar_session_begin_captions(s, 0, h.ids, h.mask, 1), MAR_EARG);
    assert_says(mar_session_error(s), "guidance 3 has nothing to guide away from");
    mar_session_free(s);
    mar_model_free(h.draft);
    assert_library(h.m, mar_model_load(h.m, "demo-sphere", 0, &h.draft));
    p = params_set(p, "spec path");
    p.draft = h.draft;
    assert_int_equal(mar_session_create(h.model, NULL, &p, 1, &s), MAR_EMODEL);
    assert_says(mar_error(h.m), "the draft makes 64 tokens of 16 channels, expected the model's 16 of 16");
    harmon_close(&h);
}

/* A draft reads the prompt's ids, too. */
TEST_CASE(a_draft_with_a_smaller_embedding_is_refused)
{
    const nextstep_files *f = *state;
    harmon h = open_with_draft(f, NEXTSTEP_FOLDER, MAR_DTYPE_F32);
    mar_model_free(h.draft);
    assert_library(h.m, mar_model_load(h.m, f->folder[NEXTSTEP_SMALLER], 0, &h.draft));
    mar_params p = model_params("cfg 3, num_sampling_steps 8, spec path");
    mar_session *s;
    p.draft = h.draft;
    assert_int_equal(mar_session_create(h.model, NULL, &p, 1, &s), MAR_EMODEL);
    assert_string_equal(mar_error(h.m),
                        "the draft's embedding has 530 rows, expected the model's 536: prompts are its ids");
    harmon_close(&h);
}
