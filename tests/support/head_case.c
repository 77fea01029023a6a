#include "tests/support/head_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

float *even_floats(size_t n, float low, float high, uint64_t seed)
{
    float *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        uint32_t words[4];
        kern_random_words(seed, KERN_NOISE_INIT, i >> 16, 0, 0, (uint32_t)i & 0xffff, words);
        x[i] = low + (high - low) * ((float)(words[0] >> 8) / (float)(1 << 24));
    }
    return x;
}

/* Fills n floats at *at with values in low .. high and advances *at. */
static const float *draw(float **at, size_t n, float low, float high, uint64_t seed)
{
    float *x = even_floats(n, low, high, seed), *to = *at;
    memcpy(to, x, n * sizeof *x);
    free(x);
    *at += n;
    return to;
}

static float *writable(const float *weights)
{
    return (float *)(uintptr_t)weights;
}

static head_case make_case(kern_head_spec spec, uint64_t seed)
{
    const size_t w = (size_t)spec.width, c = (size_t)spec.channels, hidden = (size_t)spec.hidden;
    const size_t fc1 = spec.form == KERN_HEAD_SWIGLU ? 2 * hidden : hidden;     /* outputs */
    const float scale = sqrtf(3 / (float)w), scale2 = sqrtf(3 / (float)hidden); /* a product keeps its magnitude */
    head_case h = {.spec = spec};
    h.blocks = calloc((size_t)spec.depth + 1, sizeof *h.blocks);
    h.weights =
        malloc(((size_t)spec.depth * (3 * w + fc1 * (w + 1) + w * hidden) +
                (size_t)spec.ada_layers * (3 * w * w + 3 * w) + w * (c + 1) + 2 * w * (w + 1) + 2 * c * (w + 1)) *
               sizeof(float));
    assert_non_null(h.blocks);
    assert_non_null(h.weights);
    float *p = h.weights;
    for (int b = 0; b < spec.depth; b++) {
        kern_head_block *block = &h.blocks[b];
        block->ln_weight = draw(&p, w, 0.3f, 2, ++seed);
        block->ln_bias = draw(&p, w, -0.5f, 0.5f, ++seed);
        block->fc1_weight = draw(&p, fc1 * w, -scale, scale, ++seed);
        block->fc1_bias = draw(&p, fc1, -0.3f, 0.3f, ++seed);
        block->fc2_weight = draw(&p, w * hidden, -scale2, scale2, ++seed);
        block->fc2_bias = draw(&p, w, -0.3f, 0.3f, ++seed);
        if (b % (spec.depth / spec.ada_layers)) continue;
        block->ada_weight = draw(&p, 3 * w * w, -scale, scale, ++seed);
        block->ada_bias = draw(&p, 3 * w, -0.5f, 0.5f, ++seed);
    }
    h.spec.blocks = h.blocks;
    h.spec.in_weight = draw(&p, w * c, -0.5f, 0.5f, ++seed);
    h.spec.in_bias = draw(&p, w, 0, 1, ++seed); /* the residual stream has a mean */
    h.spec.ada_weight = draw(&p, 2 * w * w, -scale, scale, ++seed);
    h.spec.ada_bias = draw(&p, 2 * w, -0.5f, 0.5f, ++seed);
    h.spec.out_weight = draw(&p, 2 * c * w, -scale, scale, ++seed);
    h.spec.out_bias = draw(&p, 2 * c, -0.3f, 0.3f, ++seed);
    return h;
}

head_case make_head_case(int width, int depth, int channels, uint64_t seed)
{
    return make_case((kern_head_spec){.width = width,
                                      .depth = depth,
                                      .channels = channels,
                                      .prefix = "diffloss.net.",
                                      .hidden = width,
                                      .ada_layers = depth},
                     seed);
}

head_case make_swiglu_case(int width, int depth, int channels, int hidden, int ada_layers, uint64_t seed)
{
    return make_case((kern_head_spec){.width = width,
                                      .depth = depth,
                                      .channels = channels,
                                      .form = KERN_HEAD_SWIGLU,
                                      .prefix = "head.net.",
                                      .hidden = hidden,
                                      .ada_layers = ada_layers},
                     seed);
}

head_case make_rounding_case(int width, int channels, kern_head_form form, uint64_t seed)
{
    const size_t w = (size_t)width, fc1 = form == KERN_HEAD_SWIGLU ? 2 * w : w;
    head_case h = form == KERN_HEAD_SWIGLU ? make_swiglu_case(width, 1, channels, width, 1, seed)
                                           : make_head_case(width, 1, channels, seed);
    const kern_head_block *block = &h.blocks[0];
    float *norm = writable(block->ln_weight), *bias = writable(block->fc1_bias), *fc2 = writable(block->fc2_weight);
    float *gate = writable(block->ada_bias) + 2 * w;
    for (size_t i = 0; i < w; i++) norm[i] = 1;
    for (size_t i = 0; i < fc1; i++) bias[i] = 3 * (1 + bias[i]); /* SiLU's slope is far from 0 */
    memset(writable(block->ln_bias), 0, w * sizeof(float));
    memset(writable(block->fc1_weight), 0, fc1 * w * sizeof(float));
    memset(fc2, 0, w * w * sizeof(float)), memset(writable(block->fc2_bias), 0, w * sizeof(float));
    for (size_t i = 0; i < w; i++) fc2[i * w + i] = 1;
    memset(writable(block->ada_weight), 0, 3 * w * w * sizeof(float));
    memset(writable(block->ada_bias), 0, 2 * w * sizeof(float));
    for (size_t i = 0; i < w; i++) gate[i] = 1;
    memset(writable(h.spec.ada_weight), 0, 2 * w * w * sizeof(float));
    return h;
}

head_case make_faint_case(int width, int depth, int channels, uint64_t seed)
{
    const size_t w = (size_t)width;
    head_case h = make_head_case(width, depth, channels, seed);
    for (int b = 0; b < depth; b++) {
        const kern_head_block *block = &h.blocks[b];
        float *norm = (float *)(uintptr_t)block->ln_weight, *fc1 = (float *)(uintptr_t)block->fc1_weight;
        float *weight = even_floats(w, 0.05f, 0.3f, ++seed);
        memcpy(norm, weight, w * sizeof *norm);
        memset((void *)(uintptr_t)block->ln_bias, 0, w * sizeof *norm);
        memset((void *)(uintptr_t)block->ada_weight, 0, w * w * sizeof *norm); /* the shift's rows */
        memset((void *)(uintptr_t)block->ada_bias, 0, w * sizeof *norm);
        for (size_t i = 0; i < w * w; i++) fc1[i] /= 0.175f;
        free(weight);
    }
    return h;
}

void free_head_case(head_case *h)
{
    free(h->blocks);
    free(h->weights);
}

/* Rounds x to the type: F32 leaves it. The sum with a power of two has the type's last bit as its own. */
static double rounded(double x, mar_dtype type)
{
    const int f16 = type == MAR_DTYPE_F16, mantissa = f16 ? 10 : 7, least = 1023 + (f16 ? -14 : -126);
    double a = fabs(x), power;
    uint64_t exponent;
    if (type == MAR_DTYPE_F32) return x;
    memcpy(&exponent, &a, sizeof a);
    exponent >>= 52;
    exponent = (exponent < (uint64_t)least ? (uint64_t)least : exponent) + 52 - (uint64_t)mantissa;
    exponent <<= 52;
    memcpy(&power, &exponent, sizeof power);
    a = (a + power) - power;
    return copysign(f16 && a > 65504 ? (double)INFINITY : a, x);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* y [out] = weight [out][in] x + bias */
static void product(const float *weight, const float *bias, int out, int in, const double *x, mar_dtype type, double *y)
{
    for (int o = 0; o < out; o++) {
        y[o] = (double)bias[o];
        for (int i = 0; i < in; i++) y[o] += rounded((double)weight[(size_t)o * (size_t)in + (size_t)i], type) * x[i];
    }
}

/* u = (x - mean) / sqrt(var + 1e-6) */
static void normalise(const double *x, int n, double *u)
{
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++) mean += x[i] / n;
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / n;
    for (int i = 0; i < n; i++) u[i] = (x[i] - mean) / sqrt(square + 1e-6);
}

/* Returns the number of doubles of reference_row's working memory. */
static size_t work_size(const kern_head_spec *s)
{
    return 6 * (size_t)s->width + 2 * (size_t)s->hidden + 2 * (size_t)s->channels;
}

/* Computes one row. work receives the final layer's operand at W; kept is NULL or the row's [depth][W]. */
static void reference_row(const kern_head_spec *s, const float *state, const float *cond, mar_dtype type,
                          kern_head_reuse reuse, double *kept, double *work, float *out)
{
    const int w = s->width, hidden = s->hidden, swiglu = s->form == KERN_HEAD_SWIGLU;
    double *x = work, *u = x + w, *c = u + w, *mod = c + w, *v = mod + 3 * w; /* mod [3W], v [2H + 2C] */
    for (int i = 0; i < s->channels; i++) u[i] = (double)state[i];
    product(s->in_weight, s->in_bias, w, s->channels, u, MAR_DTYPE_F32, x);
    for (int i = 0; i < w; i++) c[i] = rounded(silu((double)cond[i]), type);
    for (int b = 0; b < s->depth; b++) {
        const kern_head_block *block = &s->blocks[b];
        if (block->ada_weight) {
            product(block->ada_weight, block->ada_bias, 3 * w, w, c, type, mod);
            for (int i = 0; i < 3 * w && type == MAR_DTYPE_F16; i++)
                mod[i] += rounded((double)block->ada_bias[i], type) - (double)block->ada_bias[i];
            for (int i = 0; i < 3 * w; i++) mod[i] = rounded(mod[i], type);
        }
        const int inner = b >= 1 && b <= 4; /* kept outputs of these blocks are gated */
        double *keeps = kept ? kept + (size_t)b * (size_t)w : NULL;
        if (kept && (reuse == KERN_HEAD_KEPT || (reuse == KERN_HEAD_WARM && inner))) {
            for (int i = 0; i < w; i++) x[i] += inner ? keeps[i] : mod[2 * w + i] * keeps[i];
            continue;
        }
        normalise(x, w, u);
        for (int i = 0; i < w; i++) {
            u[i] = u[i] * (double)block->ln_weight[i] + (double)block->ln_bias[i];
            u[i] = rounded(u[i] * (1 + mod[w + i]) + mod[i], type);
        }
        product(block->fc1_weight, block->fc1_bias, swiglu ? 2 * hidden : hidden, w, u, type, v);
        for (int i = 0; i < hidden; i++) v[i] = rounded(silu(v[i]) * (swiglu ? v[hidden + i] : 1), type);
        product(block->fc2_weight, block->fc2_bias, w, hidden, v, type, u);
        for (int i = 0; i < w; i++) x[i] += mod[2 * w + i] * u[i];
        for (int i = 0; i < w && kept; i++) keeps[i] = inner ? mod[2 * w + i] * u[i] : u[i];
    }
    product(s->ada_weight, s->ada_bias, 2 * w, w, c, type, mod);
    normalise(x, w, u);
    for (int i = 0; i < w; i++) u[i] = u[i] * (1 + mod[w + i]) + mod[i];
    product(s->out_weight, s->out_bias, 2 * s->channels, w, u, MAR_DTYPE_F32, v);
    for (int i = 0; i < 2 * s->channels; i++) out[i] = (float)v[i];
}

void head_reference(const head_case *h, const float *x, const float *cond, int rows, mar_dtype type, float *out)
{
    head_reference_reusing(h, x, cond, rows, type, KERN_HEAD_FRESH, NULL, out);
}

double head_terms(const head_case *h, const float *x, const float *cond, int rows, mar_dtype type)
{
    const size_t w = (size_t)h->spec.width, c = (size_t)h->spec.channels;
    double *work = malloc(work_size(&h->spec) * sizeof *work), squares = 0;
    float *out = malloc(2 * c * sizeof *out);
    assert_non_null(work), assert_non_null(out);
    for (size_t r = 0; r < (size_t)rows; r++) {
        reference_row(&h->spec, x + r * c, cond + r * w, type, KERN_HEAD_FRESH, NULL, work, out);
        for (size_t i = 0; i < 2 * c * w; i++) squares += pow((double)h->spec.out_weight[i] * work[w + i % w], 2);
    }
    free(work), free(out);
    return sqrt(squares);
}

void head_reference_reusing(const head_case *h, const float *x, const float *cond, int rows, mar_dtype type,
                            kern_head_reuse reuse, double *kept, float *out)
{
    const size_t w = (size_t)h->spec.width, c = (size_t)h->spec.channels, depth = (size_t)h->spec.depth;
    double *work = malloc(work_size(&h->spec) * sizeof *work);
    assert_non_null(work);
    for (size_t r = 0; r < (size_t)rows; r++)
        reference_row(&h->spec, x + r * c, cond + r * w, type, reuse, kept ? kept + r * depth * w : NULL, work,
                      out + r * 2 * c);
    free(work);
}
