/* Tests requests (mar_session_submit): an image's bits do not depend on its company, known tokens are kept, and what
 * happens to one request does not harm the others. */
#include "tests/support/brief.h"

#include "mar_measure.h"
#include "tests/support/demo.h"

#include "mar/core/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 6, PLACES = 3 };

/* An image, and the number of steps that the session has made before it is submitted. */
typedef struct {
    int label;
    uint64_t seed, image;
    float cfg;
    int at;
} wish;

static const wish wishes[REQUESTS] = {{3, 0, 5, 2.9f, 0}, {7, 9, 0, 4, 1},    {-1, 1ull << 63, 1ull << 33, 2.9f, 1},
                                      {1, 9, 1, 1, 2},    {8, 0, 5, 1.5f, 3}, {3, 4, 6, 2.9f, 5}};

/* Returns wish i as a session can have it: with its own guidance if `together`. */
static wish wish_of(const mar_params *p, int together, int i)
{
    wish w = wishes[i];
    if (together || p->cfg == 1) w.cfg = p->cfg;
    return w;
}

static uint64_t submit(mar_session *s, const wish *w)
{
    mar_request r;
    uint64_t id;
    mar_request_init(s, &r, sizeof r);
    r.label = w->label, r.seed = w->seed, r.image = w->image, r.cfg = w->cfg;
    assert_session(s, mar_session_submit(s, &r, &id));
    assert_true(id != 0);
    return id;
}

static mar_request_info info_of(mar_session *s, uint64_t id)
{
    mar_request_info info;
    mar_request_info_init(&info, sizeof info);
    assert_session(s, mar_session_get_request(s, id, &info));
    return info;
}

/* Makes a wish alone, by a batch of one in a session of its own. */
static void make_alone(const demo *d, const mar_params *params, const wish *w, float *tokens)
{
    mar_params p = *params;
    p.seed = w->seed, p.cfg = w->cfg;
    mar_session *s = demo_session(d, &p, 1);
    assert_session(s, mar_session_begin(s, w->image, &w->label, 1));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
    mar_session_free(s);
}

static int is_together(int run)
{
    const char *o = demo_runs[run].options;
    return demo_runs[run].draft || strstr(o, "lazy on") || strstr(o, "gtr on") || strstr(o, "spec ");
}

/* Images that come and go beside others have the bits of images made alone. */
static void in_company(mar_dtype dtype, int run_step)
{
    const demo d = demo_open_in(dtype, 2);
    if (!d.m) skip();
    for (int run = 0; run < DEMO_RUNS; run += run_step) {
        const mar_params p = demo_params(&d, run);
        const int together = is_together(run);
        static float alone[DEMO_TOKENS], tokens[DEMO_TOKENS];
        mar_session *s = demo_session(&d, &p, PLACES);
        uint64_t id[REQUESTS];
        int submitted = 0, taken = 0;
        for (int step = 0; taken < REQUESTS; step++) {
            while (submitted < REQUESTS && (wishes[submitted].at <= step || !mar_session_pending(s))) {
                const wish w = wish_of(&p, together, submitted);
                id[submitted++] = submit(s, &w);
            }
            assert_session(s, mar_session_step(s));
            for (uint64_t done; (done = mar_session_next_finished(s)) != 0; taken++) {
                int i = 0;
                while (id[i] != done) i++;
                const wish w = wish_of(&p, together, i);
                assert_session(s, mar_session_take(s, done, tokens, NULL));
                make_alone(&d, &p, &w, alone);
                if (memcmp(tokens, alone, sizeof alone) != 0)
                    fail_msg("%s: image %d is another one in company", demo_runs[run].options, i);
            }
        }
        assert_int_equal(mar_session_pending(s), 0);
        mar_session_free(s);
    }
    demo_close(d);
}

TEST_CASE(company)
{
    in_company(MAR_DTYPE_F32, 1);
}

TEST_CASE(company_in_bf16)
{
    in_company(MAR_DTYPE_BF16, 4);
}

TEST_CASE(company_in_int8)
{
    in_company(MAR_DTYPE_INT8, 4);
}

/* Makes an image with its tokens' steps. */
static void make_with_steps(mar_session *s, const wish *w, float *tokens, int *step)
{
    assert_session(s, mar_session_begin(s, w->image, &w->label, 1));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
    assert_session(s, mar_session_token_status(s, NULL, step));
}

static uint64_t submit_known(mar_session *s, const wish *w, const float *tokens, const uint8_t *known)
{
    mar_request r;
    uint64_t id;
    mar_request_init(s, &r, sizeof r);
    r.label = w->label, r.seed = w->seed, r.image = w->image, r.cfg = w->cfg;
    r.tokens = tokens, r.known = known;
    assert_session(s, mar_session_submit(s, &r, &id));
    return id;
}

static void finish(mar_session *s, uint64_t id, float *tokens)
{
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_take(s, id, tokens, NULL));
}

/* Given the tokens of an image's first steps, the rest of the same noise is the same: the law of the rest is the
 * model's, given what is known. */
TEST_CASE(continuation)
{
    static const char *const options[] = {"num_iter 6, num_sampling_steps 4, cfg 2.9",
                                          "num_iter 6, cfg 2.9, diff_annealing linear, diff_upper_steps 9",
                                          "num_iter 6, num_sampling_steps 6, cfg 2.9, head_spec 3"};
    const demo d = demo_open(2);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const mar_params p = params_with(options[i]);
        const wish w = {5, p.seed, 11, p.cfg, 0};
        float tokens[DEMO_TOKENS], again[DEMO_TOKENS];
        int step[DEMO_SEQ];
        mar_session *s = demo_session(&d, &p, 2);
        make_with_steps(s, &w, tokens, step);
        for (int from = 1; from <= 6; from += test_all ? 1 : 2) {
            uint8_t known[DEMO_SEQ];
            for (int t = 0; t < DEMO_SEQ; t++) known[t] = step[t] < from;
            const uint64_t other = submit(s, &wishes[1]); /* beside an image that begins with nothing */
            const uint64_t id = submit_known(s, &w, tokens, known);
            assert_session(s, mar_session_step(s));
            assert_int_equal(info_of(s, id).steps, 6 - from);
            finish(s, id, again);
            assert_memory_equal(again, tokens, sizeof tokens);
            assert_session(s, mar_session_cancel_request(s, other));
        }
        mar_session_free(s);
    }
    demo_close(d);
}

/* Any tokens at any places are kept, and the rest follows them: the other half differs with the half that is given. */
TEST_CASE(known_tokens)
{
    const demo d = demo_open(2);
    const mar_params p = params_with("num_iter 8, num_sampling_steps 4, cfg 2.9");
    mar_session *s = demo_session(&d, &p, PLACES);
    float tokens[2][DEMO_TOKENS], result[2][DEMO_TOKENS];
    uint8_t known[DEMO_SEQ];
    int differ = 0;
    const wish w = {2, 3, 4, 2.9f, 0};
    for (int t = 0; t < DEMO_SEQ; t++) known[t] = t % 8 < 4;
    for (int i = 0; i < 2; i++) {
        make_alone(&d, &p, &wishes[i], tokens[i]);
        const uint64_t id = submit_known(s, &w, tokens[i], known);
        finish(s, id, result[i]);
        for (int t = 0; t < DEMO_SEQ; t++)
            if (known[t])
                assert_memory_equal(result[i] + t * DEMO_CHANNELS, tokens[i] + t * DEMO_CHANNELS,
                                    DEMO_CHANNELS * sizeof(float));
    }
    for (int t = 0; t < DEMO_SEQ; t++)
        differ +=
            memcmp(result[0] + t * DEMO_CHANNELS, result[1] + t * DEMO_CHANNELS, DEMO_CHANNELS * sizeof(float)) != 0;
    assert_int_equal(differ, DEMO_SEQ);

    memset(known, 1, sizeof known); /* nothing is left to draw */
    const uint64_t id = submit_known(s, &w, tokens[0], known);
    finish(s, id, result[0]);
    assert_memory_equal(result[0], tokens[0], sizeof tokens[0]);
    mar_session_free(s);
    demo_close(d);
}

/* A request whose numbers overflow fails alone, with its reason. */
TEST_CASE(one_fails)
{
    const demo d = demo_open(2);
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4, cfg 2.9");
    mar_session *s = demo_session(&d, &p, PLACES);
    float huge[DEMO_TOKENS], tokens[DEMO_TOKENS], alone[DEMO_TOKENS];
    uint8_t known[DEMO_SEQ] = {1};
    for (int i = 0; i < DEMO_TOKENS; i++) huge[i] = 1e38f;
    const uint64_t first = submit(s, &wishes[0]), bad = submit_known(s, &wishes[1], huge, known),
                   last = submit(s, &wishes[2]);
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    const mar_request_info info = info_of(s, bad);
    assert_int_equal(info.state, MAR_REQUEST_FAILED);
    assert_int_equal(info.status, MAR_EMODEL);
    assert_says(info.why, "image 0, step 0: a token is ");
    assert_int_equal(mar_session_take(s, bad, tokens, NULL), MAR_EMODEL);
    assert_says(mar_session_error(s), "image 0, step 0: a token is ");
    assert_int_equal(info_of(s, bad).state, MAR_REQUEST_UNKNOWN);
    const uint64_t good[] = {first, last};
    for (int i = 0; i < 2; i++) {
        make_alone(&d, &p, &wishes[2 * i], alone);
        assert_session(s, mar_session_take(s, good[i], tokens, NULL));
        assert_memory_equal(tokens, alone, sizeof alone);
    }
    mar_session_free(s);
    demo_close(d);
}

/* Requests that are cancelled in any state leave the others as they are; a cancelled step fails those in progress. */
TEST_CASE(cancelled)
{
    const demo d = demo_open(2);
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4, cfg 2.9");
    mar_session *s = demo_session(&d, &p, 2);
    float tokens[DEMO_TOKENS], alone[DEMO_TOKENS];
    uint64_t id[4];
    for (int i = 0; i < 4; i++) id[i] = submit(s, &wishes[i]);
    assert_session(s, mar_session_step(s));
    assert_int_equal(info_of(s, id[1]).state, MAR_REQUEST_RUNNING);
    assert_int_equal(info_of(s, id[2]).state, MAR_REQUEST_WAITING);
    assert_session(s, mar_session_cancel_request(s, id[0])); /* in progress */
    assert_session(s, mar_session_cancel_request(s, id[3])); /* waiting */
    assert_int_equal(mar_session_pending(s), 2);
    assert_session(s, mar_session_step(s));
    assert_int_equal(info_of(s, id[2]).state, MAR_REQUEST_RUNNING); /* in the place that became free */
    mar_session_cancel(s);
    assert_int_equal(mar_session_step(s), MAR_ECANCELLED);
    assert_int_equal(info_of(s, id[1]).state, MAR_REQUEST_FAILED);
    assert_int_equal(info_of(s, id[1]).status, MAR_ECANCELLED);
    assert_int_equal(mar_session_take(s, id[1], tokens, NULL), MAR_ECANCELLED);
    assert_session(s, mar_session_cancel_request(s, id[2])); /* failed */
    assert_int_equal(mar_session_pending(s), 0);
    id[0] = submit(s, &wishes[0]);
    finish(s, id[0], tokens);
    make_alone(&d, &p, &wishes[0], alone);
    assert_memory_equal(tokens, alone, sizeof alone);
    mar_session_free(s);
    demo_close(d);
}

static mar_pixels pixels_in(void *data, size_t capacity, mar_pixel_format format, size_t stride)
{
    mar_pixels p;
    mar_pixels_init(&p, sizeof p);
    p.format = format, p.data = data, p.capacity = capacity, p.stride = stride;
    return p;
}

/* Every format has the same picture; rows keep what is between them. */
TEST_CASE(formats)
{
    enum { STRIDE = DEMO_SIDE * 4 + 8 };
    static uint8_t rgb[DEMO_BYTES], other[DEMO_BYTES], rgba[DEMO_SIDE * STRIDE];
    static float numbers[DEMO_BYTES];
    const demo d = demo_open(2);
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4, cfg 2.9");
    mar_session *s = demo_session(&d, &p, 1);
    demo_begin(s, 1);
    demo_finish(s);
    assert_session(s, mar_session_images(s, rgb));
    mar_pixels out = pixels_in(other, sizeof other, MAR_PIXELS_RGB8, 0);
    assert_session(s, mar_session_image(s, 0, &out));
    assert_memory_equal(other, rgb, sizeof rgb);
    memset(rgba, 7, sizeof rgba);
    out = pixels_in(rgba, sizeof rgba - 8, MAR_PIXELS_RGBA8, STRIDE);
    assert_session(s, mar_session_image(s, 0, &out));
    out = pixels_in(numbers, sizeof numbers, MAR_PIXELS_RGB_F32, 0);
    assert_session(s, mar_session_image(s, 0, &out));
    for (int y = 0; y < DEMO_SIDE; y++) {
        for (int x = 0; x < DEMO_SIDE; x++) {
            const uint8_t *a = rgb + 3 * (y * DEMO_SIDE + x), *b = rgba + y * STRIDE + 4 * x;
            assert_memory_equal(a, b, 3);
            assert_int_equal(b[3], 255);
            for (int c = 0; c < 3; c++) {
                const float value = numbers[3 * (y * DEMO_SIDE + x) + c];
                assert_true(fabsf(fminf(fmaxf(value, 0), 1) * 255 - (float)a[c]) <= 0.501f);
            }
        }
        for (int x = DEMO_SIDE * 4; x < STRIDE; x++) assert_int_equal(rgba[y * STRIDE + x], 7);
    }
    memset(other, 7, sizeof other);
    out = pixels_in(other, sizeof other - 1, MAR_PIXELS_RGB8, 0);
    assert_int_equal(mar_session_image(s, 0, &out), MAR_EARG);
    assert_says(mar_session_error(s), "mar_pixels.capacity 3071: too few bytes for 32 rows of 96");
    for (int i = 0; i < DEMO_BYTES; i++) assert_int_equal(other[i], 7);
    mar_session_free(s);
    demo_close(d);
}

/* A preview shows known cells as the finished image would from the same tokens alone, the others grey, and changes
 * nothing. The images have `columns` tokens in a row. */
static void check_preview(int columns)
{
    enum { CELL = DEMO_SIDE / 8 };
    const int width = columns * CELL;
    static uint8_t rgba[DEMO_SIDE * DEMO_SIDE * 4];
    const demo d = demo_open(2);
    const mar_params p = params_with("num_iter 6, num_sampling_steps 4, cfg 2.9");
    d.model->config.grid_width = columns;
    mar_session *s = demo_session(&d, &p, 2);
    float tokens[DEMO_TOKENS], alone[DEMO_TOKENS];
    mar_pixels out = pixels_in(rgba, sizeof rgba, MAR_PIXELS_RGBA8, 0);
    const uint64_t id = submit(s, &wishes[0]), beside = submit(s, &wishes[1]);
    assert_int_equal(mar_session_preview(s, id, &out), MAR_EARG); /* it has not begun */
    for (int step = 1; mar_session_pending(s); step++) {
        assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_preview(s, id, &out));
        int shown = 0;
        for (int cell = 0; cell < DEMO_SEQ; cell++) {
            const uint8_t *corner = rgba + 4 * (cell / columns * CELL * width + cell % columns * CELL);
            shown += corner[3] == 255;
            for (int y = 0; y < CELL; y++)
                for (int x = 0; x < CELL; x++) {
                    const uint8_t *pixel = corner + 4 * (y * width + x);
                    assert_int_equal(pixel[3], corner[3]);
                    if (!corner[3]) assert_true(pixel[0] == 128 && pixel[1] == 128 && pixel[2] == 128);
                }
        }
        assert_true(step < 6 ? shown > 0 && shown < DEMO_SEQ : shown == DEMO_SEQ);
    }
    assert_session(s, mar_session_take(s, id, tokens, NULL));
    make_alone(&d, &p, &wishes[0], alone);
    assert_memory_equal(tokens, alone, sizeof alone);
    assert_session(s, mar_session_take(s, beside, tokens, NULL));
    make_alone(&d, &p, &wishes[1], alone);
    assert_memory_equal(tokens, alone, sizeof alone);

    demo_begin(s, 2); /* the images of a batch have ids, too */
    assert_int_equal(mar_session_batch_request(s, 2), 0);
    assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_preview(s, mar_session_batch_request(s, 1), &out));
    assert_int_equal(info_of(s, mar_session_batch_request(s, 1)).step, 1);
    assert_int_equal(mar_session_take(s, mar_session_batch_request(s, 1), NULL, NULL), MAR_EARG);
    mar_session_free(s);
    demo_close(d);
}

TEST_CASE(preview)
{
    check_preview(8);
}

TEST_CASE(preview_of_oblong_images)
{
    check_preview(16);
}

/* A cancel that comes between calls ends one call; a failed step leaves finished requests as they are, also while
 * others wait. */
TEST_CASE(results_after_a_cancel)
{
    static uint8_t rgb[DEMO_BYTES];
    const demo d = demo_open(1);
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2, cfg 2.9");
    mar_session *s = demo_session(&d, &p, 1);
    mar_pixels out = pixels_in(rgb, sizeof rgb, MAR_PIXELS_RGB8, 0);
    uint64_t id = submit(s, &wishes[0]);
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    mar_session_cancel(s);
    assert_int_equal(mar_session_take(s, id, NULL, &out), MAR_ECANCELLED);
    assert_session(s, mar_session_take(s, id, NULL, &out));

    id = submit(s, &wishes[0]);
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    const uint64_t fails = submit(s, &wishes[1]), waits = submit(s, &wishes[2]);
    assert_session(s, mar_session_step(s));
    mar_session_cancel(s);
    assert_int_equal(mar_session_step(s), MAR_ECANCELLED);
    assert_int_equal(info_of(s, fails).state, MAR_REQUEST_FAILED);
    assert_int_equal(info_of(s, waits).state, MAR_REQUEST_WAITING);
    assert_session(s, mar_session_preview(s, id, &out));
    assert_session(s, mar_session_take(s, id, NULL, &out));
    mar_session_free(s);
    demo_close(d);
}

/* Guidance that is rounded away in every step of the session's plan leaves room for a request's. */
TEST_CASE(guidance_beside_hardly_any)
{
    float tokens[DEMO_TOKENS], alone[DEMO_TOKENS];
    const demo d = demo_open(1);
    const mar_params p = params_with("num_iter 4, num_sampling_steps 2, cfg 1.0000001, cfg_high 0"),
                     q = params_with("num_iter 4, num_sampling_steps 2, cfg 50, cfg_high 0");
    mar_session *s = demo_session(&d, &p, 2);
    const wish w = {3, p.seed, 7, 50, 0};
    const uint64_t id = submit(s, &w), other = submit(s, &wishes[3]);
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_take(s, id, tokens, NULL));
    assert_session(s, mar_session_take(s, other, alone, NULL));
    make_alone(&d, &q, &w, alone);
    assert_memory_equal(tokens, alone, sizeof alone);
    mar_session_free(s);
    demo_close(d);
}

/* The search for a non-finite layer names it once: the request with it fails, the others go on. */
TEST_CASE(search_with_one_failure)
{
    const demo d = demo_open(1);
    const mar_params p = params_with("num_iter 4, num_sampling_steps 2, cfg 2.9, check on");
    float huge[DEMO_TOKENS], tokens[DEMO_TOKENS];
    uint8_t known[DEMO_SEQ] = {1};
    for (int i = 0; i < DEMO_TOKENS; i++) huge[i] = 1e38f;
    mar_session *s = demo_session(&d, &p, 2);
    const uint64_t good = submit(s, &wishes[0]), bad = submit_known(s, &wishes[1], huge, known);
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    assert_int_equal(info_of(s, bad).state, MAR_REQUEST_FAILED);
    assert_says(info_of(s, bad).why, "the first layer whose output is not finite: ");
    assert_session(s, mar_session_take(s, good, tokens, NULL));
    mar_session_free(s);
    demo_close(d);
}

/* Batches and requests exclude one another, and bad requests are refused with a line. */
TEST_CASE(refusals)
{
    static const struct {
        int run;
        const char *says;
    } bad[] = {{0, "class 10: expected 0..9"},
               {1, "cfg nan: expected a number from 0 to 100"},
               {2, "known is NULL: expected tokens and known, or neither"},
               {3, "known token 5: number 0 is inf, expected a finite one"},
               {4, "the model makes images of classes"},
               {5, "mar_request.size is 0: expected mar_request_init"},
               {6, "mar_request.negative: the model has no negative prompt, expected NULL"}};
    const demo d = demo_open(1);
    const mar_params p = params_with("num_iter 4, num_sampling_steps 4, cfg 2.9");
    const int label = 1;
    mar_session *s = demo_session(&d, &p, 1);
    float tokens[DEMO_TOKENS] = {0};
    uint8_t known[DEMO_SEQ] = {0};
    known[5] = 1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mar_request r;
        uint64_t id = 5;
        mar_request_init(s, &r, sizeof r);
        tokens[5 * DEMO_CHANNELS] = i == 3 ? INFINITY : 0;
        if (i == 0) r.label = 10;
        if (i == 1) r.cfg = NAN;
        if (i == 2) r.tokens = tokens;
        if (i == 3) r.tokens = tokens, r.known = known;
        if (i == 4) r.features = tokens;
        if (i == 5) r.size = 0;
        if (i == 6) r.label = 1, r.negative = tokens;
        assert_int_equal(mar_session_submit(s, &r, &id), MAR_EARG);
        assert_says(mar_session_error(s), bad[i].says);
        assert_int_equal(id, 0);
    }
    assert_int_equal(mar_session_step(s), MAR_EARG);
    demo_begin(s, 1);
    const uint64_t id = submit(s, &wishes[0]);
    assert_int_equal(mar_session_tokens(s, tokens), MAR_EARG);
    assert_says(mar_session_error(s), "the session was given requests: begin a batch first");
    assert_int_equal(mar_session_begin(s, 0, &label, 1), MAR_EARG);
    assert_says(mar_session_error(s), "the session has 1 request: take or cancel it first");
    assert_int_equal(mar_session_take(s, id, tokens, NULL), MAR_EARG);
    assert_says(mar_session_error(s), "has not begun");
    assert_session(s, mar_session_step(s));
    assert_int_equal(mar_session_take(s, id, tokens, NULL), MAR_EARG);
    assert_says(mar_session_error(s), "is not finished: 3 steps left");
    finish(s, id, tokens);
    assert_int_equal(mar_session_take(s, id, tokens, NULL), MAR_EARG);
    demo_begin(s, 1);
    mar_session_free(s);

    mar_params lazy = params_with("num_iter 8, num_sampling_steps 4, cfg 2.9, lazy on");
    mar_request r;
    uint64_t other;
    s = demo_session(&d, &lazy, 1);
    mar_request_init(s, &r, sizeof r);
    r.cfg = 4;
    assert_int_equal(mar_session_submit(s, &r, &other), MAR_EARG);
    assert_says(mar_session_error(s), "guidance 4: with --lazy expected that of the session, 2.9");
    r.cfg = 2.9f, r.tokens = tokens, r.known = known;
    assert_int_equal(mar_session_submit(s, &r, &other), MAR_EARG);
    assert_says(mar_session_error(s),
                "--lazy keeps a state of the whole batch: expected a request without known tokens");
    mar_session_free(s);

    mar_params path = params_with("num_iter 4, num_sampling_steps 4, cfg 2.9, spec path");
    s = demo_session(&d, &path, 1);
    mar_request_init(s, &r, sizeof r);
    r.image = 1ull << 40;
    assert_int_equal(mar_session_submit(s, &r, &other), MAR_EARG);
    assert_says(mar_session_error(s), "image 1099511627776: with --spec path expected a number below 2^40");
    mar_session_free(s);
    demo_close(d);
}
