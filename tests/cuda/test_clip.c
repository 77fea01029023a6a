/* CLIP's towers, and on a GPU VGG16, with the CUDA backend against transformers and PyTorch. */
#include "tests/support/scores.h"
#include "tests/support/device.h"
#include "tests/support/test.h"

#include "eval/clip.h"
#include "eval/reward.h"
#include "eval/vgg.h"

#include <string.h>

static clip *load(kern_queue *k)
{
    wt_file *f = NULL;
    clip *c = NULL;
    mar_err err = {0};
    assert_ok(wt_open_folder(clip_folder, MAR_WEIGHTS_AUTO, &f, &err), &err);
    assert_ok(clip_create(k, f, CLIP_TEXTS, &c, &err), &err);
    wt_close(f);
    return c;
}

static void check(mar_dtype dtype, double allowed)
{
    const int n = cuda_test_scale() > 1 ? CLIP_PICTURES : 2; /* pictures and texts */
    float embeddings[CLIP_PICTURES * CLIP_EMBEDDING];
    int ids[100], first[CLIP_PICTURES], length[CLIP_PICTURES], at = 0;
    mar_err err = {0};
    kern_queue *k = open_cuda(dtype);
    wt_file *golden = golden_open("clip");
    clip *c = load(k);
    eval_picture pictures[CLIP_PICTURES];
    for (int i = 0; i < n; i++) pictures[i] = (eval_picture){clip_picture(golden, i), clip_widths[i], clip_heights[i]};
    float *lengths = golden_f32(golden, "lengths", CLIP_TEXTS), *tokens = golden_f32(golden, "ids", -1);
    for (int i = 0; i < n; at += length[i++]) first[i] = at, length[i] = (int)lengths[i];
    for (int i = 0; i < at; i++) ids[i] = (int)tokens[i];
    assert_ok(clip_images(c, pictures, n, embeddings, &err), &err);
    clip_check(golden, "images", embeddings, n, allowed);
    assert_ok(clip_texts(c, ids, first, length, n, embeddings, &err), &err);
    clip_check(golden, "texts", embeddings, n, allowed);
    for (int i = 0; i < n; i++) free((uint8_t *)(uintptr_t)pictures[i].rgb);
    free(lengths);
    free(tokens);
    wt_close(golden);
    clip_free(c);
    close_queue(k);
}

TEST_CASE(clip_in_f32)
{
    check(MAR_DTYPE_F32, 1e-5);
}

TEST_CASE(clip_in_bf16)
{
    check(MAR_DTYPE_BF16, 0.03);
}

/* ImageReward of two pictures and texts of a few tokens; its numbers are those of the CPU. */
static void check_reward(mar_dtype dtype, double allowed)
{
    enum { N = 2 };
    static const int ids[] = {2, 40, 41, 3, 2, 3}, first[N] = {0, 4}, length[N] = {4, 2};
    double scores[2][N];
    eval_picture pictures[N];
    bytes model = score_model("imagereward");
    wt_file *f = NULL, *golden = golden_open("clip");
    mar_err err = {0};
    for (int i = 0; i < N; i++) pictures[i] = (eval_picture){clip_picture(golden, i), clip_widths[i], clip_heights[i]};
    assert_ok(wt_open_memory(model.data, model.size, "model", &f, &err), &err);
    for (int cuda = 0; cuda < 2; cuda++) {
        kern_queue *k = cuda ? open_cuda(dtype) : open_queue(MAR_DTYPE_F32, 1);
        reward *r;
        assert_ok(reward_create(k, f, N, &r, &err), &err);
        assert_ok(reward_run(r, pictures, ids, first, length, N, scores[cuda], &err), &err);
        reward_free(r);
        close_queue(k);
    }
    for (int i = 0; i < N; i++)
        if (!(fabs(scores[1][i] - scores[0][i]) <= allowed))
            fail_msg("image %d: %.6f, on the CPU %.6f", i, scores[1][i], scores[0][i]);
    for (int i = 0; i < N; i++) free((uint8_t *)(uintptr_t)pictures[i].rgb);
    bytes_free(&model);
    wt_close(golden);
    wt_close(f);
}

TEST_CASE(reward_in_f32)
{
    check_reward(MAR_DTYPE_F32, 1e-5);
}

TEST_CASE(reward_in_bf16)
{
    check_reward(MAR_DTYPE_BF16, 0.02);
}

/* A grey picture of 224x224 pixels. */
static void check_vgg(mar_dtype dtype, double allowed)
{
    enum { SIDE = 224, FEATURES = 10 };
    static uint8_t rgb[SIDE * SIDE * 3];
    const eval_picture picture = {rgb, SIDE, SIDE};
    float features[FEATURES];
    wt_file *f = NULL, *golden = golden_open("vgg");
    eval_vgg *v = NULL;
    mar_err err = {0};
    kern_queue *k = open_cuda(dtype);
    memset(rgb, 77, sizeof rgb);
    assert_ok(wt_open("tests/golden/data/vgg_tiny.pth", &f, &err), &err);
    assert_ok(eval_vgg_create(k, f, 1, &v, &err), &err);
    assert_ok(eval_vgg_run(v, &picture, 1, features, &err), &err);
    check_kern(k);
    float *expected = golden_f32(golden, "2.features", FEATURES);
    const double error = relative_error(features, expected, FEATURES);
    if (!(error <= allowed)) fail_msg("dtype %d: relative error %.3g, allowed %.3g", dtype, error, allowed);
    free(expected);
    eval_vgg_free(v);
    wt_close(f);
    wt_close(golden);
    close_queue(k);
}

TEST_CASE(vgg)
{
    if (cuda_test_scale() == 1) return; /* the host takes half a minute */
    check_vgg(MAR_DTYPE_F32, 1e-5);
    check_vgg(MAR_DTYPE_BF16, 0.03);
}
