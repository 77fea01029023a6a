/* Images in one call, of every kind of conditioning: the pixels of a session with the same parameters. */
#include "tests/support/demo.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

/* Makes image `image` of a prompt by the session's calls. */
static uint8_t *by_session(mar *m, mar_model *model, const char *text_path, const char *vae_path, const mar_job *job)
{
    const mar_model_config *c = mar_model_get_config(model);
    const size_t n = (size_t)c->caption_tokens * (size_t)c->caption_dim;
    float *features = calloc(n, sizeof *features);
    uint8_t *mask = calloc((size_t)c->caption_tokens, 1);
    mar_text *text;
    mar_vae *vae;
    mar_session *s;
    int width, height;
    assert_library(m, mar_text_load(m, text_path, &text));
    assert_library(m, mar_vae_load(m, vae_path, &vae));
    assert_library(m, mar_session_create(model, vae, job->params, 1, &s));
    if (mar_text_get_config(text)->tokens) {
        assert_library(m, mar_text_encode_negative(text, job->negative, c->caption_tokens, features, mask, NULL));
        assert_session(s, mar_session_set_negative(s, features, mask));
    }
    assert_library(m,
                   mar_text_encode(text, &job->prompt, 1, MAR_CLEAN_LLAMAGEN, c->caption_tokens, features, mask, NULL));
    assert_session(s, mar_session_begin_captions(s, job->image, features, mask, 1));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    mar_session_image_size(s, &width, &height);
    uint8_t *rgb = malloc((size_t)width * (size_t)height * 3);
    assert_session(s, mar_session_images(s, rgb));
    free(features);
    free(mask);
    mar_session_free(s);
    mar_vae_free(vae);
    mar_text_free(text);
    return rgb;
}

static void check_prompt(const char *model, const char *text, const char *vae, const char *prompt)
{
    mar *m;
    mar_pipeline *p;
    mar_job job;
    mar_params params;
    uint8_t *rgb;
    int width, height;
    assert_int_equal(mar_open(NULL, &m), MAR_OK);
    assert_library(m, mar_pipeline_load(m, model, NULL, NULL, &p));
    mar_params_init(&params, sizeof params);
    params.seed = 7;
    mar_job_init(&job, sizeof job);
    job.prompt = prompt;
    job.image = 3;
    job.params = &params;
    assert_library(m, mar_generate(p, &job, &rgb, &width, &height));
    uint8_t *expected = by_session(m, mar_pipeline_model(p), text, vae, &job);
    assert_memory_equal(rgb, expected, (size_t)width * (size_t)height * 3);
    mar_rgb_free(rgb);
    job.image = 4;
    assert_library(m, mar_generate(p, &job, &rgb, &width, &height));
    assert_memory_not_equal(rgb, expected, (size_t)width * (size_t)height * 3);
    free(expected);
    mar_rgb_free(rgb);
    mar_pipeline_free(p);
    mar_close(m);
}

TEST_CASE(captions)
{
    check_prompt("demo-t2i", "demo-t5", "demo-discrete", "a bold seven");
}

TEST_CASE(prompts_of_a_decoder)
{
    check_prompt("demo-mgpt", "demo-mgpt", "demo-mgpt", "a bold seven");
}

TEST_CASE(prompts_between_towers)
{
    check_prompt("demo-harmon", "demo-harmon", "demo-harmon", "a bold seven");
}

TEST_CASE(prompts_of_vectors)
{
    check_prompt("demo-nextstep", "demo-nextstep", "demo-nextstep", "a bold seven");
}

/* The pipeline keeps its handle. */
TEST_CASE(classes)
{
    static const char *const models[] = {"demo", "demo-sphere", "demo-discrete"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        mar *m;
        mar_pipeline *p;
        mar_job job;
        uint8_t *first, *second;
        int width, height;
        assert_int_equal(mar_open(NULL, &m), MAR_OK);
        assert_library(m, mar_pipeline_load(m, models[i], NULL, NULL, &p));
        mar_close(m); /* the pipeline keeps the handle */
        mar_job_init(&job, sizeof job);
        job.label = 7;
        assert_int_equal(mar_generate(p, &job, &first, &width, &height), MAR_OK);
        assert_true(width == 32 && height == 32);
        job.label = 8;
        assert_int_equal(mar_generate(p, &job, &second, &width, &height), MAR_OK);
        assert_memory_not_equal(first, second, 32 * 32 * 3);
        mar_rgb_free(first);
        mar_rgb_free(second);
        mar_pipeline_free(p);
    }
}

static void refuse_text(mar *m, const char *model, const char *text, const char *reason)
{
    mar_pipeline *p;
    assert_int_equal(mar_pipeline_load(m, model, NULL, text, &p), MAR_EMODEL);
    assert_null(p);
    assert_says(mar_error(m), reason);
}

/* Another encoder would write behind the model's features, or ids of another vocabulary. */
TEST_CASE(encoders_of_other_models)
{
    mar *m;
    mar_pipeline *p;
    mar_job job;
    uint8_t *rgb;
    int width, height;
    assert_int_equal(mar_open(NULL, &m), MAR_OK);
    refuse_text(m, "demo-mgpt", "demo-t5", "text: is of family t5, expected the folder of the model");
    refuse_text(m, "demo-t2i", "demo-mgpt", "text: is of family demo-mgpt, expected a T5 encoder");
    assert_library(m, mar_pipeline_load(m, "demo-discrete", NULL, NULL, &p));
    mar_job_init(&job, sizeof job);
    job.negative = "a square";
    assert_int_equal(mar_generate(p, &job, &rgb, &width, &height), MAR_EARG);
    assert_says(mar_error(m), "mar_job.negative");
    assert_null(rgb);
    mar_pipeline_free(p);
    mar_close(m);
}
