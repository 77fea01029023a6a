/* Images in one call: a model, its image decoder and its text encoder, driven by the calls of mar.h. */
#include "mar/core/handle.h"
#include "mar/core/sized.h"

#include <stdlib.h>
#include <string.h>

struct mar_pipeline {
    mar *m;
    mar_model *model;
    mar_vae *vae;
    mar_text *text; /* NULL: a model of classes */
};

void mar_pipeline_free(mar_pipeline *p)
{
    if (!p) return;
    mar_text_free(p->text);
    mar_vae_free(p->vae);
    mar_model_free(p->model);
    free(p);
}

/* Returns MAR_EMODEL unless the encoder writes what the model reads: as many numbers a token, or the ids of its family.
 */
static mar_status pipeline_check_text(const mar_pipeline *p, mar_err *err)
{
    const mar_model_config *c = mar_model_get_config(p->model);
    const mar_text_config *t = mar_text_get_config(p->text);
    if (t->conditioning != c->conditioning)
        return err_set(err, MAR_EMODEL, "text: is of family %s, expected %s", t->family,
                       c->conditioning == MAR_CONDITION_IDS ? "the folder of the model" : "a T5 encoder");
    if (c->conditioning == MAR_CONDITION_IDS && strcmp(t->family, c->family) != 0)
        return err_set(err, MAR_EMODEL, "text: is of family %s, expected the model's, %s", t->family, c->family);
    if (c->conditioning == MAR_CONDITION_IDS && t->tokens != c->caption_tokens)
        return err_set(err, MAR_EMODEL, "text: has prompts of up to %d tokens, expected the model's %d", t->tokens,
                       c->caption_tokens);
    if (t->dim != c->caption_dim)
        return err_set(err, MAR_EMODEL, "text: has features of %d numbers, expected the model's %d", t->dim,
                       c->caption_dim);
    return MAR_OK;
}

mar_status mar_pipeline_load(mar *m, const char *model, const char *vae, const char *text, mar_pipeline **out)
{
    mar_err err = {0};
    mar_pipeline *p = NULL;
    if (out) *out = NULL;
    mar_status status = mar_check_handle(m, &err);
    if (status == MAR_OK) status = mar_check_given(model, "model", &err);
    if (status == MAR_OK) status = mar_check_given(out, "out", &err);
    if (status == MAR_OK && !(p = calloc(1, sizeof *p))) status = err_set(&err, MAR_ENOMEM, "out of memory");
    if (status != MAR_OK) return mar_result(m, status, &err);
    p->m = m;
    status = mar_model_load(m, model, 0, &p->model);
    if (status == MAR_OK) status = mar_vae_load(m, vae ? vae : model, &p->vae);
    if (status == MAR_OK && mar_model_get_config(p->model)->caption_tokens)
        status = mar_text_load(m, text ? text : model, &p->text);
    if (status == MAR_OK && p->text && (status = pipeline_check_text(p, &err)) != MAR_OK) mar_result(m, status, &err);
    if (status == MAR_OK)
        *out = p;
    else
        mar_pipeline_free(p);
    return status;
}

mar_model *mar_pipeline_model(const mar_pipeline *p)
{
    return p ? p->model : NULL;
}

void mar_job_init(mar_job *job, size_t size)
{
    const mar_job defaults = {.size = sizeof defaults, .label = -1};
    mar_sized_init(job, size, &defaults, sizeof defaults);
}

void mar_rgb_free(uint8_t *rgb)
{
    free(rgb);
}

/* Encodes the prompt and begins its image. */
static mar_status begin_prompt(mar_pipeline *p, const mar_job *job, mar_session *s, mar_err *err)
{
    const mar_model_config *c = mar_model_get_config(p->model);
    const size_t n = (size_t)c->caption_tokens, dim = (size_t)c->caption_dim;
    float *features = calloc(n * dim, sizeof *features);
    uint8_t *mask = calloc(n, sizeof *mask);
    mar_status status = features && mask ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory for a prompt");
    if (status == MAR_OK && mar_text_get_config(p->text)->tokens > 0) {
        status = mar_text_encode_negative(p->text, job->negative, (int)n, features, mask, NULL);
        if (status == MAR_OK) status = mar_session_set_negative(s, features, mask);
    } else if (status == MAR_OK && job->negative) {
        status = err_set(err, MAR_EARG, "mar_job.negative: the model has no negative prompt, expected NULL");
    }
    if (status == MAR_OK)
        status = mar_text_encode(p->text, &job->prompt, 1, MAR_CLEAN_LLAMAGEN, (int)n, features, mask, NULL);
    if (status == MAR_OK) status = mar_session_begin_captions(s, job->image, features, mask, 1);
    free(features);
    free(mask);
    return status;
}

/* Makes the image of a session. */
static mar_status make_image(mar_pipeline *p, const mar_job *job, mar_session *s, uint8_t **rgb, int *width,
                             int *height, mar_err *err)
{
    if (p->text && !job->prompt)
        return err_set(err, MAR_EARG, "mar_job.prompt is NULL: the model makes images of prompts");
    if (!p->text && job->prompt)
        return err_set(err, MAR_EARG, "mar_job.prompt: the model makes images of classes, expected NULL and a label");
    if (!p->text && job->negative)
        return err_set(err, MAR_EARG, "mar_job.negative: the model makes images of classes, expected NULL");
    mar_status status = p->text ? begin_prompt(p, job, s, err) : mar_session_begin(s, job->image, &job->label, 1);
    while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
    if (status != MAR_OK) return status;
    mar_session_image_size(s, width, height);
    *rgb = malloc((size_t)*width * (size_t)*height * 3);
    if (!*rgb) return err_set(err, MAR_ENOMEM, "out of memory for an image of %d x %d pixels", *width, *height);
    return mar_session_images(s, *rgb);
}

static mar_status check_generate(const mar_pipeline *p, const mar_job *job, mar_job *copy, uint8_t **rgb,
                                 const int *width, const int *height, mar_err *err)
{
    if (rgb) *rgb = NULL;
    if (!p) return err_set(err, MAR_EARG, "the pipeline is NULL");
    mar_status status = mar_check_handle(p->m, err);
    if (status == MAR_OK) status = mar_check_given(rgb, "rgb", err);
    if (status == MAR_OK) status = mar_check_given(width, "width", err);
    if (status == MAR_OK) status = mar_check_given(height, "height", err);
    return status == MAR_OK ? mar_sized_read(job, copy, sizeof *copy, "mar_job", err) : status;
}

mar_status mar_generate(mar_pipeline *p, const mar_job *job, uint8_t **rgb, int *width, int *height)
{
    mar_err err = {0};
    mar_job given = {.size = sizeof given, .label = -1};
    mar_params params;
    mar_session *s = NULL;
    mar_status status = check_generate(p, job, &given, rgb, width, height, &err);
    if (status != MAR_OK) return mar_result(p ? p->m : NULL, status, &err);
    mar_params_init(&params, sizeof params);
    status = mar_session_create(p->model, p->vae, given.params ? given.params : &params, 1, &s);
    if (status != MAR_OK) return status; /* mar_error has the reason */
    status = make_image(p, &given, s, rgb, width, height, &err);
    /* The session's reason becomes the handle's; that of the text encoder is there already. */
    if (status != MAR_OK && !err.text[0] && mar_session_error(s)[0]) err_set(&err, status, "%s", mar_session_error(s));
    mar_session_free(s);
    if (status == MAR_OK) return MAR_OK;
    free(*rgb);
    *rgb = NULL;
    return err.text[0] ? mar_result(p->m, status, &err) : status;
}
