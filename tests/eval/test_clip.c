/* Both towers of CLIP against transformers, from tokens and pictures, and folders that are refused. */
#include "tests/support/clip.h"
#include "tests/support/test.h"

#include "eval/clip.h"

#include <math.h>
#include <string.h>

static clip *load(kern_queue *k, int batch)
{
    wt_file *f = NULL;
    clip *c = NULL;
    mar_err err = {0};
    assert_ok(wt_open_folder(clip_folder, MAR_WEIGHTS_AUTO, &f, &err), &err);
    assert_ok(clip_create(k, f, batch, &c, &err), &err);
    wt_close(f);
    return c;
}

static void compare(mar_dtype dtype, double tolerance)
{
    float images[CLIP_PICTURES * CLIP_EMBEDDING], texts[CLIP_TEXTS * CLIP_EMBEDDING];
    eval_picture pictures[CLIP_PICTURES];
    uint8_t *rgb[CLIP_PICTURES];
    int ids[100], first[CLIP_TEXTS], length[CLIP_TEXTS], at = 0;
    mar_err err = {0};
    kern_queue *k = open_queue(dtype, 1);
    if (!k) return; /* not on this processor */
    wt_file *golden = golden_open("clip");
    clip *c = load(k, CLIP_TEXTS);
    for (int i = 0; i < CLIP_PICTURES; i++) {
        rgb[i] = clip_picture(golden, i);
        pictures[i] = (eval_picture){rgb[i], clip_widths[i], clip_heights[i]};
    }
    float *lengths = golden_f32(golden, "lengths", CLIP_TEXTS);
    for (int i = 0; i < CLIP_TEXTS; at += length[i++]) first[i] = at, length[i] = (int)lengths[i];
    float *tokens = golden_f32(golden, "ids", at);
    for (int i = 0; i < at; i++) ids[i] = (int)tokens[i];

    assert_ok(clip_images(c, pictures, CLIP_PICTURES, images, &err), &err);
    clip_check(golden, "images", images, CLIP_PICTURES, tolerance);
    assert_ok(clip_texts(c, ids, first, length, CLIP_TEXTS, texts, &err), &err);
    clip_check(golden, "texts", texts, CLIP_TEXTS, tolerance);
    for (int i = 0; i < CLIP_PICTURES; i++) { /* alone: the same bits */
        float alone[CLIP_EMBEDDING];
        assert_ok(clip_images(c, &pictures[i], 1, alone, &err), &err);
        assert_memory_equal(alone, images + i * CLIP_EMBEDDING, sizeof alone);
        assert_ok(clip_texts(c, ids, &first[i], &length[i], 1, alone, &err), &err);
        assert_memory_equal(alone, texts + i * CLIP_EMBEDDING, sizeof alone);
        free(rgb[i]);
    }
    free(lengths);
    free(tokens);
    wt_close(golden);
    clip_free(c);
    close_queue(k);
}

TEST_CASE(against_transformers)
{
    compare(MAR_DTYPE_F32, 1e-5);
}

TEST_CASE(in_bf16)
{
    compare(MAR_DTYPE_BF16, 0.03);
}

TEST_CASE(in_int8)
{
    compare(MAR_DTYPE_INT8, 0.06);
}

/* More images than a pass holds. */
TEST_CASE(many_images)
{
    enum { MANY = 70 };
    static float images[MANY * CLIP_EMBEDDING];
    eval_picture pictures[MANY];
    uint8_t *rgb[CLIP_PICTURES];
    mar_err err = {0};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    wt_file *golden = golden_open("clip");
    clip *c = load(k, MANY);
    for (int i = 0; i < CLIP_PICTURES; i++) rgb[i] = clip_picture(golden, i);
    for (int i = 0; i < MANY; i++)
        pictures[i] =
            (eval_picture){rgb[i % CLIP_PICTURES], clip_widths[i % CLIP_PICTURES], clip_heights[i % CLIP_PICTURES]};
    assert_ok(clip_images(c, pictures, MANY, images, &err), &err);
    for (int i = 0; i + CLIP_PICTURES <= MANY; i += CLIP_PICTURES)
        clip_check(golden, "images", images + i * CLIP_EMBEDDING, CLIP_PICTURES, 1e-5);
    for (int i = 0; i < CLIP_PICTURES; i++) free(rgb[i]);
    wt_close(golden);
    clip_free(c);
    close_queue(k);
}

TEST_CASE(configuration)
{
    clip_config g;
    wt_file *f = NULL;
    mar_err err = {0};
    assert_ok(wt_open_folder(clip_folder, MAR_WEIGHTS_AUTO, &f, &err), &err);
    assert_ok(clip_config_derive(f, &g, &err), &err);
    wt_close(f);
    assert_int_equal(g.image.side, 32);
    assert_int_equal(g.image.patch, 8);
    assert_int_equal(g.image.patches, 16);
    assert_int_equal(g.positions, 20);
    assert_int_equal(g.embedding, CLIP_EMBEDDING);
    assert_int_equal(g.image.layers.heads, 3);
    assert_int_equal(g.text.heads, 2);
    assert_true(!g.image.layers.quick_gelu && g.text.quick_gelu && g.text.causal && !g.image.layers.causal);
}
