/* Compares the transformer with PyTorch where no family of today goes: heads times their size are not the width, q, k
 * and v alone have biases, the output layer is the embedding, tokens are vectors behind two layers
 * (tests/golden/make_qwen.py). */
#include "nets/causal_runner.h"
#include "tests/support/archive.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 24, VOCABULARY = 20, TOKENS = 9, PROMPT = 5, PREFIX = 7, CHANNELS = 6 };

static const causal_names names = {
    .layers = "model.layers",
    .joined = {NULL, "self_attn.o_proj", NULL, "mlp.down_proj", "input_layernorm", "post_attention_layernorm"},
    .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    .w13 = {"mlp.gate_proj", "mlp.up_proj"},
    .norm = "model.norm.weight",
    .embedding = "model.embed_tokens.weight",
    .project = {"project.0.weight", "project.2.weight"}};

static const causal_shape of_ids = {.names = &names,
                                    .width = WIDTH,
                                    .depth = 2,
                                    .hidden = 40,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 12,
                                    .bias = 1u << CAUSAL_WQKV,
                                    .halves = 1,
                                    .rope_base = 1e6f,
                                    .eps = 1e-6f,
                                    .vocabulary = VOCABULARY,
                                    .rows = VOCABULARY,
                                    .tied = 1,
                                    .seq_len = TOKENS,
                                    .columns = 3,
                                    .prefix = PREFIX,
                                    .caption_dim = WIDTH,
                                    .prompt = 1};

static causal_shape of_vectors(void)
{
    causal_shape s = of_ids;
    s.vocabulary = s.rows = s.tied = 0;
    s.token_dim = CHANNELS;
    s.project_hidden = 16;
    return s;
}

/* A model of the golden file at work on one image behind its prompt, which is padded. */
typedef struct {
    kern_queue *k;
    wt_file *golden;
    bytes rows; /* of the prompt's embedding, the golden prompt first */
    wt_file *prompt;
    causal_model *model;
    causal_runner *runner;
    void *memory;
} fixture;

/* Gives the model an embedding whose first rows are the golden prompt, for its ids. */
static void open_prompt(fixture *f)
{
    char header[160];
    mar_err err = {0};
    const size_t size = VOCABULARY * WIDTH * sizeof(float);
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[0,%zu]}}",
             names.embedding, VOCABULARY, WIDTH, size);
    f->rows = make_safetensors(header, size);
    float *prompt = golden_f32(f->golden, "prompt", PROMPT * WIDTH);
    memcpy(f->rows.data + f->rows.size - size, prompt, PROMPT * WIDTH * sizeof *prompt);
    free(prompt);
    assert_ok(wt_open_memory(f->rows.data, f->rows.size, "prompt", &f->prompt, &err), &err);
    f->model->prompt_file = f->prompt;
    f->model->shape.rows = VOCABULARY;
}

static void open_fixture(fixture *f, const causal_shape *shape, mar_dtype dtype, int drafts)
{
    float ids[PREFIX] = {0};
    uint8_t mask[PREFIX] = {0};
    mar_err err = {0};
    *f = (fixture){.k = open_queue(dtype, 2), .golden = golden_open("qwen")};
    const causal_sampling plain = {.cfg = 1, .cfg_interval = -1, .temperature = 1, .top_p = 1};
    assert_ok(causal_model_load(f->k, f->golden, shape, NULL, &f->model, &err), &err);
    open_prompt(f);
    assert_ok(causal_runner_create(f->k, f->model, &plain, 1, drafts, 0, &f->runner, &err), &err);
    f->memory = backend_memory(f->k, causal_runner_lay_out(f->runner, NULL));
    causal_runner_lay_out(f->runner, f->memory);
    assert_ok(causal_runner_plan(f->runner, 1, &err), &err);
    for (int i = 0; i < PROMPT; i++) ids[PREFIX - PROMPT + i] = (float)i;
    memset(mask + PREFIX - PROMPT, 1, PROMPT);
    causal_runner_begin_captions(f->runner, 1, ids, mask);
}

static void close_fixture(fixture *f)
{
    causal_runner_free(f->runner);
    causal_model_free(f->model);
    f->k->core->free(f->k->device, f->memory);
    wt_close(f->prompt);
    bytes_free(&f->rows);
    wt_close(f->golden);
    close_queue(f->k);
}

static void compare_log_probs(mar_dtype dtype, double tolerance)
{
    fixture f;
    int token[TOKENS];
    mar_err err = {0};
    open_fixture(&f, &of_ids, dtype, 0);
    float *ids = golden_f32(f.golden, "ids", TOKENS), found[TOKENS * VOCABULARY];
    float *expected = golden_f32(f.golden, "log_probs", TOKENS * VOCABULARY);
    float *row = backend_memory(f.k, VOCABULARY * sizeof *row);
    for (int i = 0; i < TOKENS; i++) token[i] = (int)ids[i];
    for (int i = 0; i < TOKENS; i++) {
        const causal_request q = {.prefix = token, .length = i};
        assert_ok(causal_runner_log_probs(f.runner, &q, 1, row, &err), &err);
        f.k->core->download(f.k, found + i * VOCABULARY, row, VOCABULARY * sizeof *row);
    }
    assert_close(found, expected, TOKENS * VOCABULARY, tolerance);
    f.k->core->free(f.k->device, row);
    free(ids), free(expected);
    close_fixture(&f);
}

/* Computes the hidden rows in passes of `most` vectors. */
static void compute_hidden(const fixture *f, int most, float *found)
{
    mar_err err = {0};
    int source[TOKENS], to[TOKENS];
    float *host = golden_f32(f->golden, "vectors", TOKENS * CHANNELS);
    float *vectors = backend_memory(f->k, TOKENS * CHANNELS * sizeof *vectors);
    float *hidden = backend_memory(f->k, TOKENS * WIDTH * sizeof *hidden);
    f->k->core->upload(f->k, vectors, host, TOKENS * CHANNELS * sizeof *host);
    causal_vectors_begin(f->runner, NULL);
    causal_vectors_want_first(f->runner, 0, 0, 0);
    causal_vectors_run(f->runner, hidden);
    for (int first = 0, n; first < TOKENS - 1; first += n) {
        n = TOKENS - 1 - first < most ? TOKENS - 1 - first : most;
        for (int i = 0; i < n; i++) source[i] = first + i, to[i] = first + i;
        causal_vectors_begin(f->runner, vectors);
        causal_vectors_add(f->runner, 0, 0, first, n, source, n, to, 1);
        causal_vectors_run(f->runner, hidden);
    }
    f->k->core->download(f->k, found, hidden, TOKENS * WIDTH * sizeof *found);
    assert_ok(kern_check(f->k, &err), &err);
    f->k->core->free(f->k->device, vectors);
    f->k->core->free(f->k->device, hidden);
    free(host);
}

static void compare_hidden(mar_dtype dtype, double tolerance)
{
    fixture f;
    const causal_shape shape = of_vectors();
    float one[TOKENS * WIDTH], four[TOKENS * WIDTH];
    open_fixture(&f, &shape, dtype, 3);
    float *expected = golden_f32(f.golden, "hidden", TOKENS * WIDTH);
    compute_hidden(&f, 1, one);
    compute_hidden(&f, 4, four); /* tokens computed anew replace the ones before */
    assert_close(one, expected, TOKENS * WIDTH, tolerance);
    assert_memory_equal(one, four, sizeof one);
    free(expected);
    close_fixture(&f);
}

TEST_CASE(log_probs_are_pytorchs)
{
    compare_log_probs(MAR_DTYPE_F32, 1e-5);
}

TEST_CASE(log_probs_in_bf16_are_near)
{
    compare_log_probs(MAR_DTYPE_BF16, 2e-2);
}

TEST_CASE(hidden_rows_are_pytorchs)
{
    compare_hidden(MAR_DTYPE_F32, 1e-5);
}

TEST_CASE(hidden_rows_in_bf16_are_near)
{
    compare_hidden(MAR_DTYPE_BF16, 2e-2);
}

/* Lists name and shape of each tensor that the shape has. */
static void expect_tensor(void *user, const char *name, int rank, const int64_t *shape)
{
    int *count = user;
    const wt_file *f = golden_open("qwen");
    const wt_tensor *t = wt_find(f, name);
    if (!t) fail_msg("no tensor %s", name);
    assert_int_equal(t->rank, rank);
    assert_memory_equal(t->shape, shape, (size_t)rank * sizeof *shape);
    ++*count;
    wt_close((wt_file *)(uintptr_t)f);
}

TEST_CASE(tensors_have_their_shapes)
{
    int ids = 0, vectors = 0;
    const causal_shape shape = of_vectors();
    causal_tensors(&of_ids, expect_tensor, &ids);
    causal_tensors(&shape, expect_tensor, &vectors);
    assert_int_equal(ids, 2 + 2 * 12);
    assert_int_equal(vectors, 4 + 1 + 2 * 12);
}
