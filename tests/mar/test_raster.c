/* What the loop in raster order does with facts that no family of today has: other norms of a diffusion head's tokens,
 * the falling schedule, a prompt in front of vectors. The weights are those of SphereAR's golden model. */
#include "mar/raster_tokens.h"
#include "tests/support/families.h"
#include "tests/support/device.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 16, C = 8, D = 48, TOKENS = SEQ * C, IMAGES = 2, PREFIX = 6 };

static const char path[] = "tests/golden/data/sphere_model.safetensors";

extern const mar_engine mar_raster_vectors_engine;

static raster_facts read_facts(const wt_file *f)
{
    family_facts c;
    mar_err err = {0};
    assert_ok(derive_facts(&family_spherear, f, (wt_asked){0}, &c, &err), &err);
    return (raster_facts){.config = c.config,
                          .net = c.shape,
                          .head = c.head,
                          .process = c.process,
                          .norm = c.norm,
                          .first_is_apart = c.first_is_apart};
}

/* Loads the weights as a model of these facts. */
static mar_model *load_facts(mar *m, const wt_file *f, const raster_facts *facts)
{
    kern_queue *k = queue_of(m);
    mar_model *model;
    mar_err err = {0};
    assert_ok(mar_raster_load(m, k, f, facts, "", &model, &err), &err);
    k->core->finish(k);
    free_queue(k);
    model->engine = &mar_raster_vectors_engine;
    model->references = 1;
    mar_retain(m);
    return model;
}

static mar_params params_of(const char *options)
{
    mar_params p = params_set(params_with("num_iter 0"), options);
    p.seed = 77;
    return p;
}

/* Makes images of a model whose tokens have this norm, which an option turns off if has_choice is 1. Its steps count
 * the last one if is_counted is 1. */
static void make_images_as(raster_norm norm, int has_choice, int is_counted, const char *options, float *tokens)
{
    static const int labels[IMAGES] = {1, 3};
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    wt_file *f = open_weights(path);
    raster_facts facts = read_facts(f);
    facts.norm = norm;
    facts.config.token_norm = has_choice;
    facts.last_is_counted = is_counted;
    mar_model *model = load_facts(m, f, &facts);
    const mar_params p = params_of(options);
    mar_session *s;
    assert_library(m, mar_session_create(model, NULL, &p, IMAGES, &s));
    assert_session(s, mar_session_begin(s, 5, labels, IMAGES));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
    mar_session_free(s);
    mar_model_free(model);
    wt_close(f);
    mar_close(m);
}

static void make_images(raster_norm norm, const char *options, float *tokens)
{
    make_images_as(norm, 0, 0, options, tokens);
}

TEST_CASE(tokens_have_their_norm)
{
    float sphere[IMAGES * TOKENS], layer[IMAGES * TOKENS], drawn[IMAGES * TOKENS];
    static const char options[] = "cfg 1, num_sampling_steps 5";
    make_images(RASTER_ON_SPHERE, options, sphere);
    make_images(RASTER_LAYER_NORM, options, layer);
    make_images(RASTER_AS_DRAWN, options, drawn);
    for (int t = 0; t < IMAGES * SEQ; t++) {
        double sum = 0, squares = 0;
        for (int c = 0; c < C; c++) sum += (double)layer[t * C + c], squares += pow((double)layer[t * C + c], 2);
        assert_float_equal(sum / C, 0, 1e-5);
        assert_float_equal(squares / C, 1, 1e-4);
    }
    for (int i = 0; i < IMAGES; i++) { /* the first tokens are drawn alike */
        const float *x = drawn + i * TOKENS;
        double sum = 0, squares = 0;
        for (int c = 0; c < C; c++) sum += (double)x[c] / C, squares += (double)x[c] * (double)x[c] / C;
        for (int c = 0; c < C; c++) {
            assert_float_equal((double)sphere[i * TOKENS + c], (double)x[c] / sqrt(squares), 1e-5);
            assert_float_equal((double)layer[i * TOKENS + c], ((double)x[c] - sum) / sqrt(squares - sum * sum), 1e-4);
        }
        assert_true(fabs(squares - 1) > 1e-3);
    }
}

/* Where the model leaves the choice, its own norm is the default, and off leaves tokens as drawn. */
TEST_CASE(the_norm_may_be_turned_off)
{
    float own[IMAGES * TOKENS], other[IMAGES * TOKENS];
    make_images(RASTER_LAYER_NORM, "num_sampling_steps 4", own);
    make_images_as(RASTER_LAYER_NORM, 1, 0, "num_sampling_steps 4", other);
    assert_memory_equal(own, other, sizeof own);
    make_images_as(RASTER_LAYER_NORM, 2, 0, "num_sampling_steps 4, token_norm on", other);
    assert_memory_equal(own, other, sizeof own);
    make_images(RASTER_AS_DRAWN, "num_sampling_steps 4", own);
    make_images_as(RASTER_LAYER_NORM, 1, 0, "num_sampling_steps 4, token_norm off", other);
    assert_memory_equal(own, other, sizeof own);
    make_images_as(RASTER_LAYER_NORM, 2, 0, "num_sampling_steps 4", other);
    assert_memory_equal(own, other, sizeof own);
}

/* A family may count the last step, which is without noise. A solver's steps are all of one kind. */
TEST_CASE(the_last_step_may_be_counted)
{
    static const struct {
        const char *counted, *not_counted;
    } cases[] = {{"num_sampling_steps 3", "num_sampling_steps 2"},
                 {"num_sampling_steps 9, time_shift 2, head_spec 3", "num_sampling_steps 8, time_shift 2, head_spec 3"},
                 {"num_sampling_steps 2, sampler dpmpp", "num_sampling_steps 2, sampler dpmpp"}};
    float counted[IMAGES * TOKENS], not_counted[IMAGES * TOKENS];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_images_as(RASTER_ON_SPHERE, 0, 1, cases[i].counted, counted);
        make_images_as(RASTER_ON_SPHERE, 0, 0, cases[i].not_counted, not_counted);
        assert_memory_equal(counted, not_counted, sizeof counted);
    }
}

/* Checks that a model whose steps count the last one refuses the option. */
static void check_refused(const char *options, const char *why)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    wt_file *f = open_weights(path);
    raster_facts facts = read_facts(f);
    facts.last_is_counted = 1;
    mar_model *model = load_facts(m, f, &facts);
    const mar_params p = params_of(options);
    mar_session *s;
    assert_int_equal(mar_session_create(model, NULL, &p, IMAGES, &s), MAR_EARG);
    assert_string_equal(mar_error(m), why);
    mar_model_free(model);
    wt_close(f);
    mar_close(m);
}

TEST_CASE(steps_of_no_chain_are_refused)
{
    check_refused("num_sampling_steps 2", "--num_sampling_steps 2: expected 3..1000, the last one included");
    check_refused("token_norm off",
                  "--token_norm has no effect: the tokens of SphereAR have no normalisation to choose");
}

TEST_CASE(the_linear_schedule_rises_or_falls)
{
    mar_raster_model model = {.facts = {.net = {.seq_len = 4}}};
    mar_raster g = {.model = &model, .plan = {.params = {.cfg_high = 1, .cfg_schedule = MAR_CFG_LINEAR}}};
    const mar_slot s = {.cfg = 3};
    static const float rising[4] = {1, 1.5f, 2, 2.5f}, falling[4] = {3, 2.5f, 2, 1.5f};
    for (int falls = 0; falls < 2; falls++) {
        model.facts.falls = falls;
        for (int i = 0; i < 4; i++) assert_float_equal(raster_scale(&g, &s, i), (falls ? falling : rising)[i], 0);
    }
}

/* Makes images behind prompts, with guidance away from another, in batches of `batch`. */
static void make_prompted(int batch, float *tokens)
{
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    wt_file *f = open_weights(path);
    raster_facts facts = read_facts(f);
    facts.net.classes = 0;
    facts.net.prompt = 1;
    facts.net.prefix = facts.config.buffer = facts.config.caption_tokens = PREFIX;
    facts.net.caption_dim = facts.config.caption_dim = 1;
    causal_names names = *facts.net.names;
    names.embedding = names.next_position; /* a table of rows as wide as any */
    facts.net.names = &names;
    facts.net.rows = SEQ;
    facts.net.rotation = CAUSAL_LINE;
    facts.norm = RASTER_LAYER_NORM;
    facts.first_is_apart = 0;
    facts.falls = 1;
    mar_model *model = load_facts(m, f, &facts);
    const mar_params p = params_of("cfg 3, num_sampling_steps 5");
    float ids[(IMAGES + 1) * PREFIX];
    uint8_t mask[(IMAGES + 1) * PREFIX];
    for (int i = 0; i < (IMAGES + 1) * PREFIX; i++)
        mask[i] = i % PREFIX >= 1 + i / PREFIX, ids[i] = (float)(i * 7 % SEQ);
    mar_session *s;
    assert_library(m, mar_session_create(model, NULL, &p, batch, &s));
    assert_int_equal(mar_session_begin_captions(s, 5, ids, mask, batch), MAR_EARG);
    assert_non_null(strstr(mar_session_error(s), "mar_session_set_negative"));
    assert_session(s, mar_session_set_negative(s, ids + IMAGES * PREFIX, mask + IMAGES * PREFIX));
    for (int i = 0; i < IMAGES; i += batch) {
        assert_session(s, mar_session_begin_captions(s, (uint64_t)(5 + i), ids + i * PREFIX, mask + i * PREFIX, batch));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_tokens(s, tokens + i * TOKENS));
    }
    mar_session_free(s);
    mar_model_free(model);
    wt_close(f);
    mar_close(m);
}

TEST_CASE(vectors_follow_prompts)
{
    float alone[IMAGES * TOKENS], together[IMAGES * TOKENS];
    make_prompted(1, alone);
    make_prompted(IMAGES, together);
    assert_memory_equal(alone, together, sizeof alone);
    for (int i = 0; i < IMAGES * TOKENS; i++) assert_true(isfinite(alone[i]));
    assert_true(memcmp(alone, alone + TOKENS, TOKENS * sizeof *alone) != 0);
}
