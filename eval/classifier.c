#include "eval/classifier.h"

#include "weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONVOLUTIONS = 3, FEATURES = EVAL_DIGIT_FEATURES, SIDE = EVAL_DIGIT_SIDE };

static const int channels[CONVOLUTIONS + 1] = {1, 16, 32, 64};

struct eval_classifier {
    float *conv_weight[CONVOLUTIONS]; /* [out][in][3][3], batch norm folded in */
    float *conv_bias[CONVOLUTIONS];   /* [out] */
    float *features_weight;           /* [64][64*4*4] */
    float *features_bias;             /* [64] */
    float *out_weight;                /* [10][64] */
    float *out_bias;                  /* [10] */
    float input[16 * SIDE * SIDE];    /* activations of a layer, at most 16 channels of 32x32 */
    float output[16 * SIDE * SIDE];   /* activations of the next layer */
    long parameters;
};

static const wt_demo classifier = {"digit classifier", "classifier.safetensors"};

static mar_status classifier_load(const wt_file *f, eval_classifier *c, mar_err *err)
{
    char name[32];
    mar_status status = MAR_OK;
    for (int i = 0; i < CONVOLUTIONS && status == MAR_OK; i++) {
        snprintf(name, sizeof name, "conv%d.weight", i);
        status = wt_load_f32(f, name, 4, (int64_t[]){channels[i + 1], channels[i], 3, 3}, &c->conv_weight[i], err);
        snprintf(name, sizeof name, "conv%d.bias", i);
        if (status == MAR_OK) status = wt_load_f32(f, name, 1, (int64_t[]){channels[i + 1]}, &c->conv_bias[i], err);
    }
    const struct {
        const char *name;
        int rank;
        int64_t shape[2];
        float **to;
    } linear[] = {
        {"features.weight", 2, {FEATURES, 64 * 4 * 4}, &c->features_weight},
        {"features.bias", 1, {FEATURES}, &c->features_bias},
        {"out.weight", 2, {EVAL_DIGITS, FEATURES}, &c->out_weight},
        {"out.bias", 1, {EVAL_DIGITS}, &c->out_bias},
    };
    for (size_t i = 0; i < sizeof linear / sizeof linear[0] && status == MAR_OK; i++)
        status = wt_load_f32(f, linear[i].name, linear[i].rank, linear[i].shape, linear[i].to, err);
    return status;
}

mar_status eval_classifier_open(eval_classifier **out, char *why, size_t why_size)
{
    mar_err err = {0};
    mar_status status = MAR_OK;
    wt_file *f = NULL;
    *out = NULL;
    eval_classifier *c = calloc(1, sizeof *c);
    if (!c) status = err_set(&err, MAR_ENOMEM, "out of memory for the digit classifier");
    if (status == MAR_OK) status = wt_open_demo(&classifier, &f, &err);
    if (status == MAR_OK) status = classifier_load(f, c, &err);
    for (int i = 0; status == MAR_OK && i < wt_count(f); i++) c->parameters += (long)wt_at(f, i)->count;
    wt_close(f);
    if (status == MAR_OK) {
        *out = c;
    } else {
        snprintf(why, why_size, "%s", err.text);
        eval_classifier_close(c);
    }
    return status;
}

void eval_classifier_close(eval_classifier *c)
{
    if (!c) return;
    for (int i = 0; i < CONVOLUTIONS; i++) {
        free(c->conv_weight[i]);
        free(c->conv_bias[i]);
    }
    free(c->features_weight);
    free(c->features_bias);
    free(c->out_weight);
    free(c->out_bias);
    free(c);
}

long eval_classifier_parameters(const eval_classifier *c)
{
    return c->parameters;
}

/* Adds w * x, shifted by (dy, dx) with zeros outside, to y; planes [side][side]. */
static void add_shifted(const float *x, int side, int dy, int dx, float w, float *y)
{
    const int top = dy < 0 ? 1 : 0, bottom = dy > 0 ? side - 1 : side;
    const int left = dx < 0 ? 1 : 0, right = dx > 0 ? side - 1 : side;
    for (int i = top; i < bottom; i++)
        for (int j = left; j < right; j++) y[i * side + j] += w * x[(i + dy) * side + j + dx];
}

/* Computes y [out][side][side] from x [in][side][side]. */
static void convolve(const float *x, int in, int side, const float *weight, const float *bias, int out, float *y)
{
    const int plane = side * side;
    for (int o = 0; o < out; o++) {
        for (int i = 0; i < plane; i++) y[o * plane + i] = bias[o];
        for (int c = 0; c < in; c++)
            for (int k = 0; k < 9; k++)
                add_shifted(x + c * plane, side, k / 3 - 1, k % 3 - 1, weight[(o * in + c) * 9 + k], y + o * plane);
    }
}

/* Applies 2x2 max pooling and ReLU: x [n][side][side] to y [n][side/2][side/2]. */
static void pool(const float *x, int n, int side, float *y)
{
    for (int row = 0; row < n * side / 2; row++)
        for (int j = 0; j < side / 2; j++) {
            const float *corner = x + 2 * row * side + 2 * j;
            float most = 0;
            for (int k = 0; k < 4; k++) {
                const float v = corner[k / 2 * side + k % 2];
                if (v > most) most = v;
            }
            y[row * (side / 2) + j] = most;
        }
}

static void linear_layer(const float *x, int in, const float *weight, const float *bias, int out, float *y)
{
    for (int o = 0; o < out; o++) {
        double sum = (double)bias[o];
        for (int i = 0; i < in; i++) sum += (double)weight[o * in + i] * (double)x[i];
        y[o] = (float)sum;
    }
}

void eval_classify(eval_classifier *c, const uint8_t *rgb, float *features, float *logits)
{
    for (int i = 0; i < SIDE * SIDE; i++)
        c->input[i] = (float)(rgb[3 * i] + rgb[3 * i + 1] + rgb[3 * i + 2]) / (3 * 127.5f) - 1;
    int side = SIDE;
    for (int i = 0; i < CONVOLUTIONS; i++, side /= 2) {
        convolve(c->input, channels[i], side, c->conv_weight[i], c->conv_bias[i], channels[i + 1], c->output);
        pool(c->output, channels[i + 1], side, c->input);
    }
    float hidden[FEATURES];
    linear_layer(c->input, 64 * side * side, c->features_weight, c->features_bias, FEATURES, hidden);
    if (features) memcpy(features, hidden, sizeof hidden);
    if (!logits) return;
    for (int i = 0; i < FEATURES; i++)
        if (hidden[i] < 0) hidden[i] = 0;
    linear_layer(hidden, FEATURES, c->out_weight, c->out_bias, EVAL_DIGITS, logits);
}
