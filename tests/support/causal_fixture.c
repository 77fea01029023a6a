#include "tests/support/causal_fixture.h"

#include "tests/support/device.h"

#include <stdlib.h>
#include <string.h>

const causal_sampling causal_fixture_plain = {.cfg = 1, .cfg_interval = -1, .temperature = 1, .top_p = 1};

mar_status load_net(kern_queue *k, const wt_file *f, const family_facts *config, causal_model **out, mar_err *err)
{
    return causal_model_load(k, f, &config->shape, config->language.vocabulary.image_id, out, err);
}

/* Opens the model of a file, which the fixture then owns, and its runner. Frees the facts. */
static void open_runner(causal_fixture *f, wt_file *file, family_facts *config, const causal_sampling *sampling,
                        int images, int drafts, int keep)
{
    mar_err err = {0};
    assert_ok(load_net(f->k, file, config, &f->model, &err), &err);
    f->file = file;
    f->vocabulary = config->shape.vocabulary;
    f->seq_len = config->shape.seq_len;
    assert_ok(causal_runner_create(f->k, f->model, sampling, images, drafts, keep, &f->runner, &err), &err);
    f->memory = backend_memory(f->k, causal_runner_lay_out(f->runner, NULL));
    causal_runner_lay_out(f->runner, f->memory);
    f->laws = backend_memory(f->k, (size_t)f->rows * (size_t)config->shape.vocabulary * sizeof *f->laws);
    assert_ok(causal_runner_plan(f->runner, images, &err), &err);
    release_facts(config);
}

/* Derives the facts of LlamaGen or of a decoder. */
static void derive_net(wt_file *file, family_facts *config)
{
    mar_err err = {0};
    if (language_recognise(file))
        assert_ok(derive_facts(&family_language, file, (wt_asked){.width = 0, .height = 0}, config, &err), &err);
    else
        assert_ok(derive_facts(&family_llamagen, file, (wt_asked){.heads = 0}, config, &err), &err);
}

int causal_fixture_open(causal_fixture *f, kern_queue *k, const char *name, int seq_len,
                        const causal_sampling *sampling, int images, int drafts, int keep, int rows)
{
    family_facts config;
    *f = (causal_fixture){.k = k, .rows = rows};
    if (!f->k) return 0;
    wt_file *file = golden_open(name);
    derive_net(file, &config);
    if (seq_len) config.shape.seq_len = seq_len, config.shape.columns = causal_side(seq_len);
    open_runner(f, file, &config, sampling, images, drafts, keep);
    return 1;
}

int causal_fixture_open_file(causal_fixture *f, kern_queue *k, const char *path, const causal_sampling *sampling,
                             int images, int drafts, int keep, int rows)
{
    family_facts config;
    *f = (causal_fixture){.k = k, .rows = rows};
    if (!f->k) return 0;
    wt_file *file = open_weights(path);
    derive_net(file, &config);
    open_runner(f, file, &config, sampling, images, drafts, keep);
    return 1;
}

int causal_fixture_open_decoder(causal_fixture *f, kern_queue *k, const char *folder, int width, int height,
                                const causal_sampling *sampling, int images, int drafts, int rows)
{
    family_facts config;
    mar_err err = {0};
    *f = (causal_fixture){.k = k, .rows = rows};
    if (!f->k) return 0;
    wt_file *file;
    assert_ok(wt_open_folder(folder, MAR_WEIGHTS_AUTO, &file, &err), &err);
    assert_ok(family_rename(file, &err), &err);
    assert_ok(derive_facts(&family_language, file, (wt_asked){.width = width, .height = height}, &config, &err), &err);
    open_runner(f, file, &config, sampling, images, drafts, 0);
    return 1;
}

void causal_fixture_begin_prompts(causal_runner *r, const causal_shape *c, int images)
{
    const size_t positions = (size_t)c->prefix, n = (size_t)images;
    float *ids = malloc((n + 1) * positions * sizeof *ids);
    uint8_t *mask = malloc((n + 1) * positions);
    assert_true(ids && mask);
    for (size_t i = 0; i <= n; i++)
        for (size_t j = 0; j < positions; j++) {
            mask[i * positions + j] = j >= (5 * i + 1) % (positions - 1);
            ids[i * positions + j] = (float)((7919 * (i * positions + j) + 21) % (size_t)c->rows);
        }
    causal_runner_set_negative(r, ids + n * positions, mask + n * positions);
    causal_runner_begin_captions(r, images, ids, mask);
    free(ids);
    free(mask);
}

void causal_fixture_close(causal_fixture *f)
{
    causal_runner_free(f->runner);
    causal_model_free(f->model);
    wt_close(f->file);
    f->k->core->free(f->k->device, f->memory);
    f->k->core->free(f->k->device, f->laws);
    close_queue(f->k);
}

void causal_fixture_laws(causal_fixture *f, const causal_request *request, int n)
{
    mar_err err = {0};
    assert_ok(causal_runner_log_probs(f->runner, request, n, f->laws, &err), &err);
}

const float *causal_fixture_law(const causal_fixture *f, int row)
{
    return f->laws + (size_t)row * (size_t)f->vocabulary;
}
