/* Tests encoder and decoder of one autoregressive step against PyTorch, and the schedule of steps. */
#include "mar/masked_runner.h"
#include "tests/support/detok.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, SEQ = 16, BUFFER = 8, D = 96, CHANNELS = 6, KNOWN = 7, PREDICTED = 9, LENGTH = BUFFER + SEQ };

static void *array(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0, n);
    return p;
}

typedef struct {
    mar *m;
    mar_model *model;
    masked_workspace w;
    masked_embeddings embedded;
    char *rows; /* of embedded */
    float *z;
} fixture;

static const char small[] = "tests/golden/data/mar_small.safetensors";

static int open_fixture(fixture *f, const char *path, mar_dtype dtype, int heads)
{
    f->m = open_mar(dtype, 2);
    if (!f->m) return 0;
    f->w.k = queue_of(f->m);
    assert_library(f->m, mar_model_load(f->m, path, heads, &f->model));
    const size_t rows = IMAGES * LENGTH;
    f->w.x = array(rows * D * 4);
    f->w.memory = array(rows * D * 4);
    f->w.normed = array(rows * D * 4);
    f->w.qkv = array(rows * 3 * D * 4);
    f->w.attn = array(rows * D * 4);
    f->w.hidden = array(rows * 4 * D * 4);
    for (int i = 0; i < 3; i++) f->w.rows[i] = array(rows * sizeof(int));
    f->w.list = array(IMAGES * sizeof *f->w.list);
    f->embedded = (masked_embeddings){.images = IMAGES, .cfg_branches = 1};
    size_t used = 0;
    masked_embeddings_lay_out(&f->embedded, &mar_masked_model_of(f->model)->net, NULL, &used);
    f->rows = array(used);
    used = 0;
    masked_embeddings_lay_out(&f->embedded, &mar_masked_model_of(f->model)->net, f->rows, &used);
    f->z = array(IMAGES * PREDICTED * D * 4);
    return 1;
}

static void close_fixture(fixture *f)
{
    void *arrays[] = {f->w.x,       f->w.memory,  f->w.normed,  f->w.qkv,  f->w.attn, f->w.hidden,
                      f->w.rows[0], f->w.rows[1], f->w.rows[2], f->w.list, f->rows,   f->z};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    free_queue(f->w.k);
    mar_model_free(f->model);
    mar_close(f->m);
}

static int place_among(const int *positions, int n, int position)
{
    int before = 0;
    for (int i = 0; i < n; i++) before += positions[i] < position;
    return before;
}

/* Compares the passes of a model in `path` with those of a golden file. */
static void check_passes(const char *path, int heads, const char *golden_name)
{
    wt_file *golden = golden_open(golden_name);
    float *order_f = golden_f32(golden, "pass.order", IMAGES * SEQ);
    float *tokens = golden_f32(golden, "pass.tokens", IMAGES * SEQ * CHANNELS);
    float *encoded = golden_f32(golden, "pass.encoded", IMAGES * (BUFFER + KNOWN) * D);
    float *z = golden_f32(golden, "pass.z", IMAGES * SEQ * D);
    int order_data[IMAGES][SEQ], image[IMAGES * SEQ], position[IMAGES * SEQ];
    for (int i = 0; i < IMAGES * SEQ; i++) {
        order_data[i / SEQ][i % SEQ] = (int)order_f[i];
        image[i] = i / SEQ;
        position[i] = i % SEQ;
    }
    const int *order[IMAGES] = {order_data[0], order_data[1]}, label[IMAGES] = {3, 1};
    static const struct {
        mar_dtype dtype;
        double tolerance;
    } runs[] = {{MAR_DTYPE_F32, 1e-5}, {MAR_DTYPE_BF16, 2e-2}, {MAR_DTYPE_INT8, 5e-2}};
    for (int run = 0; run < 3; run++) {
        fixture f = {0};
        mar_err err = {0};
        if (!open_fixture(&f, path, runs[run].dtype, heads)) continue;
        const double tolerance = runs[run].tolerance;
        const masked_pass pass = {IMAGES, IMAGES, KNOWN, PREDICTED, order, 0, &f.embedded, 0, 0};
        assert_ok(masked_passes_plan(f.w.k, &mar_masked_model_of(f.model)->net, IMAGES, KNOWN, PREDICTED, &err), &err);
        assert_ok(f.w.k->core->linear_plan(f.w.k, mar_masked_model_of(f.model)->net.z_proj, IMAGES * SEQ, &err), &err);
        masked_embed_batch(&mar_masked_model_of(f.model)->net, &f.w, &f.embedded, IMAGES, NULL, label);
        masked_embed_tokens(&mar_masked_model_of(f.model)->net, &f.w, &f.embedded, tokens, IMAGES * SEQ, image,
                            position);
        masked_encoder_input(&mar_masked_model_of(f.model)->net, &f.w, &pass, KNOWN);
        masked_encode(&mar_masked_model_of(f.model)->net, &f.w, &pass);
        /* PyTorch keeps the known tokens by ascending position, with the norm applied */
        float *normed = array(IMAGES * (BUFFER + KNOWN) * D * 4), *sorted = array(IMAGES * (BUFFER + KNOWN) * D * 4);
        f.w.k->core->layer_norm(f.w.k, f.w.x, NULL, IMAGES * (BUFFER + KNOWN), D,
                                mar_masked_model_of(f.model)->net.encoder_norm,
                                mar_masked_model_of(f.model)->net.encoder_norm + D, 1e-6f, normed, 1);
        for (int s = 0; s < IMAGES; s++)
            for (int i = 0; i < BUFFER + KNOWN; i++) {
                const int *known = order[s] + SEQ - KNOWN;
                int place = i < BUFFER ? i : BUFFER + place_among(known, KNOWN, known[i - BUFFER]);
                memcpy(sorted + (s * (BUFFER + KNOWN) + place) * D, normed + (s * (BUFFER + KNOWN) + i) * D, D * 4);
            }
        assert_close(sorted, encoded, IMAGES * (BUFFER + KNOWN) * D, tolerance);
        masked_decode(&mar_masked_model_of(f.model)->net, &f.w, &pass, f.z, NULL);
        for (int s = 0; s < IMAGES; s++)
            for (int i = 0; i < PREDICTED; i++)
                assert_close(f.z + (s * PREDICTED + i) * D, z + (s * SEQ + order[s][i]) * D, D, tolerance);
        assert_ok(kern_check(f.w.k, &err), &err);
        free(normed), free(sorted);
        close_fixture(&f);
    }
    free(order_f), free(tokens), free(encoded), free(z);
    wt_close(golden);
}

TEST_CASE(passes)
{
    check_passes(small, 0, "mar");
}

/* l-DeTok's MAR has LTH14's layers: tests/golden/make_detok.py runs the other code on a model of the same sizes. */
TEST_CASE(passes_of_detok)
{
    check_passes(detok_path("mar_tiny.pth"), 3, "detok_mar");
}

enum { ENCODED = IMAGES * (BUFFER + KNOWN) * D, PREDICTIONS = IMAGES * PREDICTED * D };

/* Computes encoded [ENCODED] with `heads` heads, and z [PREDICTIONS]. The decoder reads `memory` [ENCODED], or
 * `encoded` if NULL. */
static void pass_with(int heads, const float *tokens, const float *memory, float *encoded, float *z)
{
    static const int label[IMAGES] = {3, 1};
    int order_data[IMAGES][SEQ], image[IMAGES * SEQ], position[IMAGES * SEQ];
    for (int i = 0; i < IMAGES * SEQ; i++) {
        image[i] = i / SEQ;
        order_data[i / SEQ][i % SEQ] = position[i] = i % SEQ;
    }
    const int *order[IMAGES] = {order_data[0], order_data[1]};
    fixture f = {0};
    mar_err err = {0};
    assert_true(open_fixture(&f, small, MAR_DTYPE_F32, heads));
    const masked_net *m = &mar_masked_model_of(f.model)->net;
    const masked_pass pass = {IMAGES, IMAGES, KNOWN, PREDICTED, order, 0, &f.embedded, 0, 0};
    assert_ok(masked_passes_plan(f.w.k, m, IMAGES, KNOWN, PREDICTED, &err), &err);
    masked_embed_batch(m, &f.w, &f.embedded, IMAGES, NULL, label);
    masked_embed_tokens(m, &f.w, &f.embedded, tokens, IMAGES * SEQ, image, position);
    masked_encoder_input(m, &f.w, &pass, KNOWN);
    masked_encode(m, &f.w, &pass);
    memcpy(encoded, f.w.x, ENCODED * sizeof *encoded);
    if (memory) memcpy(f.w.x, memory, ENCODED * sizeof *memory);
    masked_decode(m, &f.w, &pass, f.z, NULL);
    memcpy(z, f.z, PREDICTIONS * sizeof *z);
    assert_ok(kern_check(f.w.k, &err), &err);
    close_fixture(&f);
}

/* Tests separate numbers of heads for encoder and decoder. Each half equals that half of a model with its number of
 * heads everywhere. The model is that of `passes`; its 3 heads are PyTorch's. */
TEST_CASE(two_numbers_of_heads)
{
    static float encoded[3][ENCODED], z[3][PREDICTIONS];
    wt_file *golden = golden_open("mar");
    float *tokens = golden_f32(golden, "pass.tokens", IMAGES * SEQ * CHANNELS);
    pass_with(0, tokens, NULL, encoded[0], z[0]);
    pass_with(mar_heads(3, 4), tokens, encoded[0], encoded[1], z[1]);
    pass_with(mar_heads(4, 3), tokens, encoded[0], encoded[2], z[2]);
    assert_memory_equal(encoded[1], encoded[0], sizeof *encoded);
    assert_memory_equal(z[2], z[0], sizeof *z);
    assert_true(relative_error(encoded[2], encoded[0], ENCODED) > 1e-3);
    assert_true(relative_error(z[1], z[0], PREDICTIONS) > 1e-3);
    free(tokens);
    wt_close(golden);
}

/* Checks that every token is predicted exactly once, at least one a step. Guidance follows the official formula. */
TEST_CASE(steps)
{
    for (int seq = 1; seq <= 256; seq += 51)
        for (int n = 1; n <= seq; n++) {
            mar_step plan[256];
            mar_steps_plan(n, seq, 3.0f, MAR_CFG_LINEAR, plan);
            int known = 0;
            for (int i = 0; i < n; i++) {
                assert_int_equal(plan[i].known, known);
                assert_true(plan[i].predicted >= 1);
                known += plan[i].predicted;
                int after = seq - known > 1 ? seq - known : 1;
                assert_float_equal(plan[i].cfg, 1 + 2.0 * (seq - after) / seq, 1e-6);
            }
            assert_int_equal(known, seq);
        }
    mar_step plan[64];
    mar_steps_plan(64, 256, 2.9f, MAR_CFG_CONSTANT, plan);
    assert_float_equal(plan[0].cfg, 2.9f, 0);
    assert_int_equal(plan[0].predicted, 1);      /* floor(256 cos(pi/128)) = 255 */
    assert_int_equal(plan[32].known, 256 - 181); /* floor(256 cos(pi/4)) = 181 */
}
