/* Tests requests of LlamaGen models: images that begin and end beside others, each with its own class or caption, seed,
 * guidance and known tokens. */
#include "tests/support/changed.h"
#include "tests/support/demo.h"
#include "tests/support/discrete_sessions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = DISCRETE_SEQ, BATCH = DISCRETE_BATCH, GUESTS = 9 };

/* Arrays of a request. */
typedef struct {
    float tokens[SEQ];
    uint8_t known[SEQ];
} edited;

static void know(mar_request *r, edited *e, const float *tokens, int n)
{
    memcpy(e->tokens, tokens, sizeof e->tokens);
    for (int i = 0; i < SEQ; i++) e->known[i] = i < n;
    r->tokens = e->tokens, r->known = e->known;
}

static uint64_t submit(mar_session *s, const mar_request *r)
{
    uint64_t id;
    assert_session(s, mar_session_submit(s, r, &id));
    return id;
}

/* Makes one image in a session without requests. */
static void generate(mar_session *s, const mar_request *r, float *tokens)
{
    const uint64_t id = submit(s, r);
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_take(s, id, tokens, NULL));
}

/* Sets request number i of GUESTS. Its known tokens are no model's. */
static void guest(const mar_session *s, int i, mar_request *r, edited *e)
{
    static const float scales[] = {2, 1, 3.5f};
    static const int known[GUESTS] = {0, 0, 5, 0, 1, 0, SEQ - 1, 0, SEQ};
    float tokens[SEQ];
    mar_request_init(s, r, sizeof *r);
    for (int j = 0; j < SEQ; j++) tokens[j] = (float)((7 * i + 11 * j) % 50);
    if (known[i]) know(r, e, tokens, known[i]);
    r->label = i % 6 - 1;
    r->seed = (uint64_t)(i / 4);
    r->image = (uint64_t)(i % 4);
    if (r->cfg > 1) r->cfg = scales[i % 3];
}

/* Makes the images of all guests in one session, in which they come and go. tokens [GUESTS][SEQ]; those of an image
 * that leaves early are -1. */
static void generate_all(mar_session *s, float tokens[GUESTS][SEQ])
{
    uint64_t id[GUESTS] = {0};
    int next = 0;
    for (int step = 0; next < GUESTS || mar_session_pending(s); step++) {
        assert_true(step < 8 * GUESTS * SEQ);
        while (next < GUESTS && (next < 2 || step >= 2 * next)) {
            mar_request r;
            edited e;
            guest(s, next, &r, &e);
            id[next++] = submit(s, &r);
        }
        if (mar_session_pending(s)) assert_session(s, mar_session_step(s));
        if (step == 9) { /* the others leave when they are finished */
            assert_session(s, mar_session_cancel_request(s, id[3]));
            for (int j = 0; j < SEQ; j++) tokens[3][j] = -1;
        }
    }
    for (int i = 0; i < GUESTS; i++)
        if (i != 3) assert_session(s, mar_session_take(s, id[i], tokens[i], NULL));
}

TEST_CASE(images_are_their_own)
{
    const discrete_models s = discrete_open(*state, 1);
    for (int run = 0; run < DISCRETE_RUNS; run++) {
        float beside[GUESTS][SEQ], alone[SEQ], batch[BATCH * SEQ];
        mar_session *one = discrete_session(&s, discrete_runs[run].options, discrete_runs[run].draft, 1);
        mar_session *many = discrete_session(&s, discrete_runs[run].options, discrete_runs[run].draft, BATCH);
        discrete_generate(many, 0, discrete_labels, BATCH, batch); /* leaves no slot occupied */
        generate_all(many, beside);
        for (int i = 0; i < GUESTS; i++) {
            mar_request r;
            edited e;
            guest(one, i, &r, &e);
            generate(one, &r, alone);
            if (i != 3 && memcmp(alone, beside[i], sizeof alone) != 0)
                fail_msg("%s: image %d has other tokens beside others", discrete_runs[run].options, i);
            for (int j = 0; j < SEQ; j++) {
                assert_true(alone[j] >= 0 && alone[j] < 50 && alone[j] == (float)(int)alone[j]);
                assert_true(!r.known || !r.known[j] || alone[j] == r.tokens[j]);
            }
        }
        mar_session_free(one);
        mar_session_free(many);
    }
    discrete_close(s);
}

/* Checks that a batch's images are those of requests, in a session with the same guidance and in one with another. */
TEST_CASE(batches_are_requests)
{
    const discrete_models s = discrete_open(*state, 1);
    for (int run = 0; run < DISCRETE_RUNS; run++) {
        float batch[BATCH * SEQ], tokens[SEQ];
        mar_session *t = discrete_session(&s, discrete_runs[run].options, discrete_runs[run].draft, BATCH), *guided;
        mar_params p = discrete_params(discrete_runs[run].options);
        p.draft = s.drafts[discrete_runs[run].draft];
        p.cfg = p.cfg > 1 ? 3.5f : 7;
        assert_library(s.m, mar_session_create(s.target, s.vae, &p, 1, &guided));
        discrete_generate(t, 5, discrete_labels, BATCH, batch);
        for (int i = 0; i < 2 * BATCH; i++) {
            mar_request r;
            mar_request_init(t, &r, sizeof r);
            r.label = discrete_labels[i / 2], r.image = 5 + (uint64_t)(i / 2);
            generate(i % 2 ? guided : t, &r, tokens);
            if (memcmp(tokens, batch + i / 2 * SEQ, sizeof tokens) != 0)
                fail_msg("%s: image %d has other tokens as a request", discrete_runs[run].options, i);
        }
        mar_session_free(t);
        mar_session_free(guided);
    }
    discrete_close(s);
}

/* Checks that plain decoding continues its own tokens to the same image, and that every exact method continues other
 * tokens to plain decoding's image at temperature 0. */
TEST_CASE(known_tokens)
{
    const discrete_models s = discrete_open(*state, 1);
    for (int run = 0; run < DISCRETE_RUNS; run++) {
        char options[160];
        float expected[SEQ], tokens[SEQ];
        const int plain = discrete_runs[run].draft == NO_DRAFT && !strstr(discrete_runs[run].options, "spec");
        edited e;
        mar_request r;
        if (!discrete_runs[run].exact) continue;
        snprintf(options, sizeof options, "%s%s", discrete_runs[run].options, plain ? "" : ", temperature 0");
        mar_session *t = discrete_session(&s, options, discrete_runs[run].draft, 1);
        snprintf(options, sizeof options, "cfg %s, temperature 0%s", discrete_runs[run].options[4] == '2' ? "2" : "1",
                 strstr(discrete_runs[run].options, "cfg_interval 4") ? ", cfg_interval 4" : "");
        mar_session *greedy = discrete_session(&s, options, NO_DRAFT, 1);
        mar_request_init(t, &r, sizeof r);
        r.label = 1, r.seed = 8;
        generate(plain ? t : greedy, &r, expected);
        for (int n = 1; n <= SEQ; n += 3) {
            if (!plain) { /* another image, whose first tokens differ from the model's */
                float others[SEQ];
                for (int j = 0; j < SEQ; j++) others[j] = (float)((3 * n + 17 * j) % 50);
                know(&r, &e, others, n);
                generate(greedy, &r, expected);
                assert_memory_equal(expected, others, (size_t)n * sizeof *others);
            } else {
                know(&r, &e, expected, n);
            }
            r.label = 3; /* the same tokens of another class leave nothing behind */
            generate(t, &r, tokens);
            r.label = 1;
            generate(t, &r, tokens);
            if (memcmp(tokens, expected, sizeof tokens) != 0)
                fail_msg("%s: other tokens after %d known ones", discrete_runs[run].options, n);
        }
        mar_session_free(t);
        mar_session_free(greedy);
    }
    discrete_close(s);
}

TEST_CASE(refusals)
{
    const discrete_models s = discrete_open(*state, 1);
    mar_session *t = discrete_session(&s, "cfg 1", NO_DRAFT, 1);
    mar_request r;
    edited e = {.tokens = {0}};
    uint64_t id;
    mar_request_init(t, &r, sizeof r);
    r.cfg = 2;
    assert_int_equal(mar_session_submit(t, &r, &id), MAR_EARG);
    assert_string_equal(mar_session_error(t),
                        "guidance 2: the session was created with guidance 1 and has no memory for more");
    r.cfg = 1;
    know(&r, &e, e.tokens, 14);
    e.known[9] = 0, e.known[11] = 0;
    assert_int_equal(mar_session_submit(t, &r, &id), MAR_EARG);
    assert_string_equal(mar_session_error(t),
                        "a model of family llamagen makes tokens in raster order: expected known tokens to be a "
                        "prefix, but token 10 is known and token 9 is not");
    mar_session_free(t);
    discrete_close(s);
}

/* Checks that an image with a NaN fails alone. Class 4's embedding has one, or the draft model's. The others are those
 * of a session that is not disturbed. */
TEST_CASE(a_failure_is_its_image_s)
{
    const discrete_files *f = *state;
    const mar_options options = {
        .size = sizeof options, .dtype = MAR_DTYPE_F32, .threads = 1, .backend = MAR_BACKEND_CPU, .allow_nonfinite = 1};
    mar *m;
    assert_int_equal(mar_open(&options, &m), MAR_OK);
    const int width = small_llamagen().shape.width;
    char *path = write_changed(m, f->directory, "nan.safetensors", f->target_path,
                               "cls_embedding.embedding_table.weight", 4 * width, 1, NAN);
    mar_model *bad, *good;
    assert_library(m, mar_model_load(m, path, 0, &bad));
    assert_library(m, mar_model_load(m, f->target_path, 0, &good));
    for (int kind = 0; kind < 6; kind++) {
        const int is_draft = kind >= 4, check = kind % 2;
        static const char *const specs[] = {"cfg 2",   "cfg 2",  "spec sjd, window 16", "spec sjd, window 16",
                                            "gamma 3", "gamma 3"};
        mar_session *s;
        mar_params p = discrete_params(specs[kind]);
        float tokens[SEQ], expected[3][SEQ];
        uint64_t id[4];
        mar_request r;
        p.draft = is_draft ? bad : NULL;
        p.check = check;
        assert_library(m, mar_session_create(is_draft ? good : bad, NULL, &p, 4, &s));
        mar_request_init(s, &r, sizeof r);
        for (int i = 0; i < 3; i++) {
            r.label = i, r.image = (uint64_t)i;
            generate(s, &r, expected[i]);
        }
        for (int i = 0; i < 4; i++) {
            r.label = i < 3 ? i : 4, r.image = i < 3 ? (uint64_t)i : 9;
            id[i] = submit(s, &r);
            if (i == 1) assert_session(s, mar_session_step(s));
        }
        while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
        for (int i = 0; i < 3; i++) {
            assert_session(s, mar_session_take(s, id[i], tokens, NULL));
            assert_memory_equal(tokens, expected[i], sizeof tokens);
        }
        assert_int_equal(mar_session_next_finished(s), id[3]);
        assert_int_equal(mar_session_take(s, id[3], tokens, NULL), MAR_EMODEL);
        assert_int_equal(strncmp(mar_session_error(s), "draft: ", 7) == 0, is_draft);
        assert_says(mar_session_error(s), "image 9, token 0: the logits are not finite");
        assert_says(mar_session_error(s),
                    check ? is_draft ? "is not finite: draft: cls_embedding" : "is not finite: cls_embedding"
                          : "--check names the first layer");
        mar_session_free(s);
    }
    mar_model_free(bad);
    mar_model_free(good);
    free(path);
    mar_close(m);
}

/* Measuring --window auto with a model of NaNs ends, and gives costs that another session takes. The images fail. */
TEST_CASE(a_model_of_nans_is_measured)
{
    const discrete_files *f = *state;
    const mar_options options = {
        .size = sizeof options, .dtype = MAR_DTYPE_F32, .threads = 1, .backend = MAR_BACKEND_CPU, .allow_nonfinite = 1};
    mar *m;
    mar_model *bad;
    mar_session *s, *same;
    mar_request r;
    float tokens[SEQ];
    assert_int_equal(mar_open(&options, &m), MAR_OK);
    char *path = write_changed(m, f->directory, "nans.safetensors", f->target_path, "norm.weight", 0, 1, NAN);
    const mar_params p = discrete_params("spec sjd-pac, window auto");
    assert_library(m, mar_model_load(m, path, 0, &bad));
    assert_library(m, mar_session_create(bad, NULL, &p, 2, &s));
    assert_library(m, mar_session_create(bad, NULL, mar_session_get_params(s), 2, &same));
    assert_string_equal(mar_session_get_params(same)->round_costs, mar_session_get_params(s)->round_costs);
    mar_request_init(s, &r, sizeof r);
    const uint64_t id = submit(s, &r);
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    assert_int_equal(mar_session_take(s, id, tokens, NULL), MAR_EMODEL);
    assert_says(mar_session_error(s), "token 0: the logits are not finite");
    mar_session_free(same), mar_session_free(s);
    mar_model_free(bad);
    free(path);
    mar_close(m);
}

enum { CAPTION = 120, CAPTION_DIM = 12, CAPTIONS = 5 };

/* Makes images of captions, whose masks differ, alone, and then each beginning beside others. Their tokens are the
 * same. Writes them to alone [CAPTIONS][SEQ]. */
static void generate_captions(const discrete_models *s, mar_model *model, mar_model *draft, const char *options,
                              float (*alone)[SEQ])
{
    static float features[CAPTIONS * CAPTION * CAPTION_DIM];
    static uint8_t mask[CAPTIONS * CAPTION];
    float tokens[SEQ];
    uint64_t id[CAPTIONS];
    mar_session *one, *many;
    for (int i = 0; i < CAPTIONS * CAPTION * CAPTION_DIM; i++) features[i] = sinf((float)(i % 977));
    for (int i = 0; i < CAPTIONS * CAPTION; i++) mask[i] = i % CAPTION >= 100 - 20 * (i / CAPTION);
    mar_params p = discrete_params(options);
    p.draft = draft;
    assert_library(s->m, mar_session_create(model, NULL, &p, 1, &one));
    assert_library(s->m, mar_session_create(model, NULL, &p, 2, &many));
    for (int i = 0; i < CAPTIONS; i++) {
        mar_request r;
        mar_request_init(one, &r, sizeof r);
        r.features = features + i * CAPTION * CAPTION_DIM;
        r.mask = i == 3 ? NULL : mask + i * CAPTION;
        r.image = 3 + (uint64_t)i;
        generate(one, &r, alone[i]);
        id[i] = submit(many, &r);
        for (int step = 0; step < 5; step++) assert_session(many, mar_session_step(many));
    }
    while (mar_session_pending(many)) assert_session(many, mar_session_step(many));
    for (int i = 0; i < CAPTIONS; i++) {
        assert_session(many, mar_session_take(many, id[i], tokens, NULL));
        assert_memory_equal(tokens, alone[i], sizeof tokens);
    }
    mar_session_free(one);
    mar_session_free(many);
}

/* An EAGLE drafter as LANTERN publishes it reads the caption's positions, too. Greedy tokens are the same with it. */
TEST_CASE(captions)
{
    const discrete_models s = discrete_open(*state, 1);
    float tokens[CAPTIONS][SEQ], greedy[CAPTIONS][SEQ];
    mar_model *model, *lantern;
    assert_library(s.m, mar_model_load(s.m, discrete_captions, 0, &model));
    assert_library(s.m, mar_model_load(s.m, "tests/golden/data/lantern_t2i.bin", 0, &lantern));
    generate_captions(&s, model, NULL, "cfg 2", tokens);
    for (int i = 1; i < CAPTIONS; i++) assert_memory_not_equal(tokens[i], tokens[0], sizeof tokens[0]);
    generate_captions(&s, model, lantern, "cfg 2, tree dynamic, gamma 3, tree_top 3, tree_total 9", tokens);
    generate_captions(&s, model, NULL, "cfg 2, spec scd, window 6", tokens);
    generate_captions(&s, model, NULL, "cfg 2, temperature 0", greedy);
    generate_captions(&s, model, lantern, "cfg 2, temperature 0, tree naive_extend_57", tokens);
    assert_memory_equal(tokens, greedy, sizeof tokens);
    generate_captions(&s, model, NULL, "cfg 2, temperature 0, spec scd, window 6", tokens);
    assert_memory_equal(tokens, greedy, sizeof tokens);
    mar_model_free(lantern);
    mar_model_free(model);
    discrete_close(s);
}

TEST_GROUP(discrete_set_up, discrete_tear_down)
