/* Linear layers: products in f32, bf16 and int8 with every activation, into rows of any stride, stored or added. */
#include "kernels/int4.h"
#include "kernels/int8.h"
#include "tests/cudahost/control.h"
#include "tests/ops/ops.h"

/* Numbers of a case; the last three of a skinny product. */
enum { ROWS, IN, OUT, ACTIVATION, FLAGS, GAP, NO_BIAS, OFFSET, GATED, NORM, INDEXED };

#define EPS 0.5f /* large, so that a norm without it shows */
#define F32 KERN_OUT_F32
#define ADD KERN_OUT_F32 | KERN_OUT_ADD
#define ALL KERN_IN_F32 | KERN_OUT_F32

static const int layers[][8] = {
    {7, 33, 30, KERN_GELU, 0, 0, 0, 0}, /* unaligned rows */
    {1, 16, 16, KERN_LINEAR, 0, 0, 0, 0},
    {64, 96, 96, KERN_GELU, 0, 0, 0, 0},
    {33, 128, 64, KERN_GELU, 0, 0, 1, 0},
    {65, 256, 128, KERN_LINEAR, ADD, 0, 0, 0},
    {64, 64, 72, KERN_LINEAR, ADD, 0, 1, 0},
    {130, 64, 192, KERN_LINEAR, 0, 0, 0, 0},
    {48, 64, 64, KERN_LINEAR, F32, 0, 0, 0},
    {20, 32, 64, KERN_LINEAR, F32, 64, 0, 0}, /* into wider rows */
    {21, 32, 64, KERN_SILU, 0, 128, 0, 0},
    {9, 16, 24, KERN_SILU, ALL, 0, 0, 0},
    {8, 48, 40, KERN_GELU, ALL, 0, 0, 0},
    {40, 16, 64, KERN_LINEAR, ALL, 0, 0, 0},
    {40, 64, 32, KERN_LINEAR, KERN_IN_F32 | ADD, 0, 0, 0},
    {7, 33, 130, KERN_SILU, 0, 0, 0, 0},
    {50, 40, 3, KERN_LINEAR, F32, 0, 0, 0},
    {17, 31, 18, KERN_LINEAR, ADD, 5, 1, 0},
    {17, 70, 100, KERN_LINEAR, ADD, 0, 0, 0}, /* groups of AMX overlap */
    {35, 70, 100, KERN_LINEAR, ADD, 0, 0, 0},
    {5, 6, 3, KERN_GELU, ALL, 2, 0, 0},
    {3, 100, 2, KERN_LINEAR, ALL, 0, 0, 0},
    {9, 6, 12, KERN_SILU, ALL, 0, 0, 0},
    {18, 40, 48, KERN_GELU, 0, 0, 0, 3}, /* unaligned addresses */
    {18, 40, 48, KERN_LINEAR, ADD, 16, 0, 1},
    {18, 40, 48, KERN_SILU, ALL, 0, 0, 1},
    {12, 40, 24, KERN_GELU_TANH, ALL, 0, 0, 0},
    {11, 32, 48, KERN_GELU_TANH, 0, 0, 0, 0},
    {13, 64, 48, KERN_SILU, F32, 0, 0, 0},
    {13, 64, 48, KERN_LINEAR, F32 | KERN_LOW, 0, 0, 0}, /* a device without int8 ignores KERN_LOW */
};

/* Several strips of every kernel, and widths of a model. */
static const int large_layers[][8] = {
    {300, 96, 200, KERN_GELU, 0, 0, 0, 0},      {130, 768, 700, KERN_LINEAR, F32, 0, 0, 0},
    {65, 1024, 520, KERN_LINEAR, ADD, 0, 0, 0}, {13, 512, 200, KERN_SILU, F32, 0, 0, 0},
    {200, 768, 648, KERN_LINEAR, 0, 0, 0, 0},   {200, 160, 648, KERN_SILU, 0, 0, 0, 0},
    {200, 96, 324, KERN_GELU, F32, 0, 0, 0},    {200, 96, 324, KERN_GELU_TANH, F32, 0, 0, 0},
    {200, 512, 200, KERN_LINEAR, ALL, 0, 0, 0},
};

typedef struct {
    const float *weight, *bias;
    int8_t *quantised; /* replaces the weight unless NULL, with `scale` */
    float *scale;
    uint8_t *codes; /* replaces the weight unless NULL, with `scales`: int4 */
    uint16_t *scales;
    int in, next;     /* inputs; next row to be read */
    int reads;        /* pieces to read before one fails; 0: none fails */
    const int *index; /* of a skinny product */
} layer;

/* Checks that rows are read in order. */
static mar_status next_rows(layer *l, int first, int n, mar_err *err)
{
    assert_int_equal(first, l->next);
    assert_true(n > 0);
    l->next += n;
    if (l->reads && --l->reads == 0) return err_set(err, MAR_EIO, "rows %d to %d", first, first + n - 1);
    return MAR_OK;
}

static mar_status read_rows(void *user, int first, int n, float *weight, mar_err *err)
{
    layer *l = user;
    memcpy(weight, l->weight + (size_t)first * (size_t)l->in, (size_t)n * (size_t)l->in * sizeof *weight);
    return next_rows(l, first, n, err);
}

static mar_status read_int8(void *user, int first, int n, int8_t *q, float *scale, mar_err *err)
{
    layer *l = user;
    memcpy(q, l->quantised + (size_t)first * (size_t)l->in, (size_t)n * (size_t)l->in);
    memcpy(scale, l->scale + first, (size_t)n * sizeof *scale);
    return next_rows(l, first, n, err);
}

static double activate(double x, int activation)
{
    if (activation == KERN_GELU) return x * 0.5 * (1 + erf(x / sqrt(2.0)));
    if (activation == KERN_SILU) return x / (1 + exp(-x));
    if (activation == KERN_GELU_TANH) return x * 0.5 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    return x;
}

/* Adds x and y. Rows of y have GAP elements outside the layer. */
static double *build_arrays(ops_call *c, double scale)
{
    const int rows = c->rows = c->n[ROWS], in = c->n[IN], flags = c->n[FLAGS];
    const size_t stride = (size_t)(c->n[OUT] + c->n[GAP]);
    layer *l = c->data = ops_host(c, sizeof *l);
    l->weight = ops_weights(c, (size_t)(c->n[OUT] * in), scale);
    l->bias = ops_weights(c, (size_t)c->n[OUT], 1);
    double *x = ops_input(c, flags & KERN_IN_F32 ? OPS_FLOAT : OPS_ACT, (size_t)(rows * in), (size_t)in, 1);
    ops_last(c)->offset = (size_t)c->n[OFFSET];
    const double coarse =
        c->n[ACTIVATION] == KERN_LINEAR ? (ops_on_cuda() ? 1e-4 : 1e-5) : 3e-3; /* a GPU approximates GELU, SiLU */
    ops_output(c, flags & KERN_OUT_F32 ? OPS_FLOAT : OPS_ACT, (size_t)rows * stride, stride,
               ops_on_cuda() ? 1e-5 : 2e-6, flags & KERN_OUT_F32 ? coarse : 5e-3);
    ops_last(c)->offset = (size_t)c->n[OFFSET];
    if (flags & KERN_IN_F32) ops_last(c)->allowed = ops_on_cuda() ? 1e-5 : 2e-6;
    return x;
}

/* Writes the weights that the layer multiplies by: rounded, or on a GPU restored of int8 or int4, and in a product of
 * many rows rounded then. Every second case has its integers read from a file. */
static void write_weights(ops_call *c, layer *l, int many, double *w)
{
    const int in = c->n[IN], out = c->n[OUT], given = c->index % 2;
    const int low = ops_on_cuda() && c->n[FLAGS] & KERN_LOW && (c->int8 || (c->int4 && in % KERN_INT4_GROUP == 0));
    const size_t n = (size_t)(in * out);
    for (size_t i = 0; i < n; i++)
        w[i] = c->n[FLAGS] & KERN_IN_F32 ? (double)l->weight[i] : ops_element_of(c, OPS_ACT, (double)l->weight[i]);
    if (!low) return;
    float *restored = ops_host(c, n * sizeof *restored);
    if (c->int8) {
        int8_t *q = ops_host(c, n);
        float *scale = ops_host(c, (size_t)out * sizeof *scale);
        kern_int8_quantise(l->weight, out, in, q, scale);
        kern_int8_restore(q, scale, out, in, restored);
        if (given) l->quantised = q, l->scale = scale;
    } else {
        uint8_t *codes = ops_host(c, n / 2);
        uint16_t *scales = ops_host(c, n / KERN_INT4_GROUP * sizeof *scales);
        kern_int4_quantise(l->weight, out, in, codes, scales);
        kern_int4_restore(codes, scales, out, in, restored);
        if (given) l->codes = codes, l->scales = scales;
    }
    for (size_t i = 0; i < n; i++) w[i] = many ? ops_element_of(c, OPS_ACT, (double)restored[i]) : (double)restored[i];
}

static void build_layer(ops_call *c)
{
    const int in = c->n[IN], out = c->n[OUT], stride = out + c->n[GAP], flags = c->n[FLAGS];
    if (c->n[ROWS] >= 30) c->n[ROWS] *= ops_scale();
    const double *x = build_arrays(c, 1 / sqrt(in));
    layer *l = c->data;
    const ops_array *y = ops_last(c);
    double *w = ops_host(c, (size_t)(in * out) * sizeof *w);
    write_weights(c, l, 1, w);
    for (int i = 0; i < c->rows * out; i++) {
        const int r = i / out, o = i % out, at = r * stride + o;
        const double sum = ops_dot(x + r * in, w + o * in, in) + (c->n[NO_BIAS] ? 0 : (double)l->bias[o]);
        y->want[at] = activate(sum, c->n[ACTIVATION]) + (flags & KERN_OUT_ADD ? y->x[at] : 0);
    }
}

/* Tests GELU near 0 with an identity layer. There bf16 is finer than the stated error of a GPU's form. */
static void build_gelu(ops_call *c)
{
    const double *x = build_arrays(c, 1);
    const layer *l = c->data;
    const ops_array *y = ops_last(c);
    const int n = c->n[IN];
    for (int i = 0; i < n * n; i++) ((float *)(uintptr_t)l->weight)[i] = i % n == i / n;
    for (int i = 0; i < c->rows * n; i++) ((double *)(uintptr_t)x)[i] = (i - 128) / 32.0;
    for (int i = 0; i < c->rows * n; i++) y->want[i] = activate(x[i], KERN_GELU);
    c->array[1].each = c->bf16 ? 4e-3 : 1e-6;
}

static void check_gelu(const ops_call *c, double *const *got)
{
    for (size_t i = 0; i < c->array[1].n; i++) {
        const double exact = c->array[1].want[i];
        assert_true(fabs(got[1][i] - exact) < 5e-4 + fabs(exact) / 256);
    }
}

static const int gelus[][8] = {{16, 16, 16, KERN_GELU, 0, 0, 1, 0}};

static mar_status read_int4(void *user, int first, int n, uint8_t *q, uint16_t *scale, mar_err *err)
{
    layer *l = user;
    const size_t at = (size_t)first * (size_t)l->in, count = (size_t)n * (size_t)l->in;
    memcpy(q, l->codes + at / 2, count / 2);
    memcpy(scale, l->scales + at / KERN_INT4_GROUP, count / KERN_INT4_GROUP * sizeof *scale);
    return next_rows(l, first, n, err);
}

/* Every second case has its weights read by rows. */
static void *prepare_layer(kern_queue *k, const ops_call *c)
{
    layer *l = c->data;
    const kern_linear_rows rows = {read_rows, l->quantised ? read_int8 : NULL, l->codes ? read_int4 : NULL, l};
    const int by_rows = c->index % 2 || l->quantised || l->codes;
    const kern_linear_spec spec = {.out = c->n[OUT],
                                   .in = c->n[IN],
                                   .weight = by_rows ? NULL : l->weight,
                                   .bias = c->n[NO_BIAS] ? NULL : l->bias,
                                   .activation = (kern_activation)c->n[ACTIVATION],
                                   .flags = c->n[FLAGS],
                                   .y_stride = c->n[OUT] + c->n[GAP],
                                   .rows = by_rows ? &rows : NULL};
    l->in = c->n[IN], l->next = 0;
    kern_linear *made = NULL;
    mar_err err = {0};
    assert_ok(k->core->linear_create(k, &spec, &made, &err), &err);
    if (c->rows % 2 || !ops_on_cuda()) /* a GPU plans at the first use */
        assert_ok(k->core->linear_plan(k, made, c->rows, &err), &err);
    return made;
}

static void release_layer(kern_device *d, void *object)
{
    d->core->linear_free(d, object);
    d->core->linear_free(d, NULL);
}

static void run_layer(kern_queue *k, const ops_call *c, void *const *a)
{
    k->core->linear(k, c->object, a[0], c->rows, a[1]);
}

/* --- int8 --------------------------------------------------------------------------------------------------------- */

enum { EXTREME = 60, GIVEN, INT8_CASES = GIVEN + 2 }; /* from GIVEN on: weights that are int8 */

/* Returns numbers of very different magnitudes, like activations. They are exact in bf16, so both operand types are
 * equal. */
static double uneven(double x, uint32_t word)
{
    return ops_bf16(ops_bf16(x) * (word % 64 ? 1 : 20));
}

/* Plants non-finite numbers, which must show exactly in their row or column. Rows and columns of zeros must give the
 * bias. */
static void make_extreme(const ops_call *c, double *x, float *w)
{
    const int in = c->n[IN];
    x[1] = NAN, x[in + 2] = -INFINITY, w[3 * in] = INFINITY;
    for (int i = 0; i < in; i++) x[2 * in + i] = 0, w[2 * in + i] = 0;
}

/* Computes integer products: x quantised by row, weights by output channel. f32 results without activation must match
 * to the bit. */
static void build_int8(ops_call *c)
{
    static const int flags[] = {F32, F32, ADD, 0};
    c->n[ROWS] = 1 + (c->index * 7 + 3) % 70, c->n[IN] = 1 + (int)(ops_word(c) % 600);
    c->n[OUT] = 4 + (int)(ops_word(c) % 400), c->n[GAP] = c->index % 2 * 16;
    c->n[FLAGS] = flags[c->index % 4] | KERN_LOW;
    c->n[ACTIVATION] = c->index % 4 ? (int)(ops_word(c) % 4) : KERN_LINEAR;
    if (c->index == EXTREME) c->n[ROWS] = 9, c->n[IN] = 77;
    if (c->n[FLAGS] & KERN_OUT_ADD) c->n[ACTIVATION] = KERN_LINEAR;
    double *x = build_arrays(c, 0.02); /* keeps GELU's results out of the subnormal range */
    layer *l = c->data;
    const int in = c->n[IN], out = c->n[OUT], rows = c->rows, linear = c->n[ACTIVATION] == KERN_LINEAR;
    float *w = (float *)(uintptr_t)l->weight, *scale = ops_host(c, (size_t)out * sizeof *scale);
    int8_t *q = ops_host(c, (size_t)(in * out));
    ops_array *y = ops_last(c);
    for (int i = 0; i < rows * in; i++) x[i] = uneven(x[i], ops_word(c));
    for (int i = 0; i < out * in; i++) w[i] = (float)uneven((double)w[i], (uint32_t)i * 2654435761u >> 7);
    if (c->index == EXTREME) make_extreme(c, x, w);
    kern_int8_quantise(w, out, in, q, scale);
    if (c->index >= GIVEN) l->quantised = q, l->scale = scale;
    y->allowed = !(c->n[FLAGS] & KERN_OUT_F32) ? 4e-3 : linear && !(c->n[FLAGS] & KERN_OUT_ADD) ? 0 : 2e-6;
    for (int r = 0; r < rows; r++) {
        float most = 0;
        int bad = 0;
        for (int i = 0; i < in; i++) most = fmaxf(most, fabsf((float)x[r * in + i])), bad |= !isfinite(x[r * in + i]);
        const float factor = 127.0f / most;
        for (int o = 0; o < out; o++) {
            long long sum = 0;
            const int at = r * (out + c->n[GAP]) + o;
            for (int i = 0; i < in && !bad && most > 0; i++)
                sum += (int)nearbyint(x[r * in + i] * (double)factor) * (long long)q[o * in + i];
            volatile float both = most / 127.0f * scale[o], product = (float)sum * both; /* rounded separately */
            const float result = bad || isnan(scale[o]) ? NAN : product + l->bias[o];
            y->want[at] = activate((double)result, c->n[ACTIVATION]);
            if (c->n[FLAGS] & KERN_OUT_ADD) y->want[at] += y->x[at];
        }
    }
}

static const int int8_layers[INT8_CASES][8];

/* --- int4 --------------------------------------------------------------------------------------------------------- */

enum { INT4_EXTREME = 20, INT4_GIVEN, INT4_CASES };

/* Writes the integers and the scale of a group of x. Returns 0 for a group with a non-finite number. */
static int quantise_group(const double *x, int q[KERN_INT4_GROUP], float *scale)
{
    float most = 0;
    int finite = 1;
    for (int i = 0; i < KERN_INT4_GROUP; i++) most = fmaxf(most, fabsf((float)x[i])), finite &= isfinite(x[i]) != 0;
    const float factor = 127.0f / most;
    *scale = most / 127.0f;
    for (int i = 0; i < KERN_INT4_GROUP; i++) {
        const volatile float product = (float)x[i] * factor; /* rounded before it is made whole */
        q[i] = finite && most > 0 ? (int)nearbyintf(product) : 0;
    }
    return finite;
}

/* Computes products of int4 weights with x in int8, both in groups. Sums of groups are exact; f32 rounds their sum. */
static void build_int4(ops_call *c)
{
    static const int flags[] = {F32, F32, ADD, 0};
    c->n[ROWS] = 1 + (c->index * 7) % 70, c->n[IN] = KERN_INT4_GROUP * (1 + (int)(ops_word(c) % 20));
    c->n[OUT] = 4 + (int)(ops_word(c) % 300), c->n[GAP] = c->index % 2 * 16;
    c->n[FLAGS] = flags[c->index % 4] | KERN_LOW;
    c->n[ACTIVATION] = c->index % 4 ? (int)(ops_word(c) % 4) : KERN_LINEAR;
    if (c->index == INT4_EXTREME) c->n[ROWS] = 9;
    if (c->n[FLAGS] & KERN_OUT_ADD) c->n[ACTIVATION] = KERN_LINEAR;
    double *x = build_arrays(c, 0.02);
    layer *l = c->data;
    const int in = c->n[IN], out = c->n[OUT], rows = c->rows, groups = in / KERN_INT4_GROUP;
    float *w = (float *)(uintptr_t)l->weight, *restored = ops_host(c, (size_t)(in * out) * sizeof *restored);
    uint8_t *codes = ops_host(c, (size_t)(in * out / 2));
    uint16_t *scales = ops_host(c, (size_t)(out * groups) * sizeof *scales);
    ops_array *y = ops_last(c);
    for (int i = 0; i < rows * in; i++) x[i] = uneven(x[i], ops_word(c));
    if (c->index == INT4_EXTREME) make_extreme(c, x, w);
    kern_int4_quantise(w, out, in, codes, scales);
    kern_int4_restore(codes, scales, out, in, restored);
    if (c->index == INT4_GIVEN) l->codes = codes, l->scales = scales;
    y->allowed = c->n[FLAGS] & KERN_OUT_F32 ? 2e-6 : 4e-3;
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            const int at = r * (out + c->n[GAP]) + o;
            double sum = (double)l->bias[o];
            for (int g = 0; g < groups; g++) {
                int q[KERN_INT4_GROUP];
                float scale;
                double products = 0;
                const float *weight = restored + (size_t)o * (size_t)in + g * KERN_INT4_GROUP;
                if (!quantise_group(x + r * in + g * KERN_INT4_GROUP, q, &scale)) sum = NAN;
                for (int i = 0; i < KERN_INT4_GROUP; i++) products += q[i] * (double)weight[i];
                sum += (double)scale * products;
            }
            y->want[at] = activate(sum, c->n[ACTIVATION]) + (c->n[FLAGS] & KERN_OUT_ADD ? y->x[at] : 0);
        }
}

static const int int4_layers[INT4_CASES][8];

/* A device without int4 for this width computes as without KERN_LOW. */
static const int int4_odd[][8] = {{13, 48, 48, KERN_LINEAR, F32 | KERN_LOW, 0, 0, 0}};

/* --- skinny products ---------------------------------------------------------------------------------------------- */

/* Tiles in part, chunks in part, more than the warps take at once, and the widths of LlamaGen-L. In f32 nothing is
 * done. */
static const int skinny[][11] = {
    {2, 1024, 96, KERN_LINEAR, 0, 0, 1, 0, 0, 1, 0},     {1, 40, 24, KERN_LINEAR, ADD, 0, 1, 0, 0, 0, 0},
    {3, 1096, 88, KERN_LINEAR, 0, 0, 0, 0, 1, 1, 0},     {8, 2816, 72, KERN_LINEAR, ADD, 0, 0, 0, 0, 0, 0},
    {9, 96, 130, KERN_LINEAR, 0, 0, 1, 0, 1, 1, 0},      {16, 1024, 50, KERN_LINEAR, F32, 14, 1, 0, 0, 1, 1},
    {16, 1096, 200, KERN_LINEAR, ADD, 0, 0, 0, 0, 0, 0}, {4, 8, 3, KERN_LINEAR, 0, 0, 0, 0, 0, 1, 1},
};

/* The same with int8 and int4 weights: units in part, more than the warps take at once, and a width without int4. */
#define LOW KERN_LOW
static const int low_skinny[][11] = {
    {2, 1024, 96, KERN_LINEAR, LOW, 0, 1, 0, 0, 1, 0},      {1, 4256, 40, KERN_LINEAR, LOW | ADD, 0, 0, 0, 0, 0, 0},
    {3, 224, 88, KERN_LINEAR, LOW, 0, 0, 0, 1, 1, 0},       {9, 2816, 72, KERN_LINEAR, LOW | ADD, 0, 1, 0, 0, 0, 0},
    {16, 96, 130, KERN_LINEAR, LOW, 0, 0, 0, 1, 1, 0},      {12, 72, 52, KERN_LINEAR, LOW | F32, 12, 0, 0, 0, 1, 1},
    {8, 160, 35, KERN_LINEAR, LOW | ADD, 0, 0, 0, 0, 1, 1},
};
/* More rows: the weights are restored. */
static const int low_layers[][8] = {
    {17, 96, 72, KERN_GELU, LOW, 0, 0, 0},
    {20, 1056, 40, KERN_LINEAR, LOW | ADD, 16, 1, 0},
    {33, 72, 35, KERN_LINEAR, LOW | F32, 0, 0, 0},
};
/* More than fits in the memory for restored weights. */
static const int low_large[][8] = {{40, 4096, 8192, KERN_LINEAR, LOW, 0, 0, 0}};

static void build_skinny(ops_call *c)
{
    enum { X_ROWS = 20 };
    const int rows = c->rows = c->n[ROWS], in = c->n[IN], out = c->n[OUT], gated = c->n[GATED];
    const int columns = gated ? out / 2 : out, stride = columns + c->n[GAP], x_rows = c->n[INDEXED] ? X_ROWS : rows;
    layer *l = c->data = ops_host(c, sizeof *l);
    l->weight = ops_weights(c, (size_t)(out * in), 1 / sqrt(in));
    l->bias = ops_weights(c, (size_t)out, 1);
    l->index = c->n[INDEXED] ? ops_below(c, (size_t)rows, x_rows) : NULL;
    const double *x = ops_input(c, c->n[NORM] ? OPS_FLOAT : OPS_ACT, (size_t)(x_rows * in), 0, 3);
    const double *norm = ops_input(c, OPS_FLOAT, (size_t)in, 0, 1);
    const int f32 = c->n[FLAGS] & KERN_OUT_F32;
    double *y = ops_output(c, f32 ? OPS_FLOAT : OPS_ACT, (size_t)(rows * stride), 0, 1e-5, f32 ? 3e-3 : 5e-3);
    double *w = ops_host(c, (size_t)(in * out) * sizeof *w), *operand = ops_host(c, (size_t)in * sizeof *operand);
    write_weights(c, l, 0, w);
    for (int r = 0; r < rows; r++) {
        const double *row = x + (l->index ? l->index[r] : r) * in;
        const double scale = c->n[NORM] ? 1 / sqrt(ops_dot(row, row, in) / in + EPS) : 1;
        for (int i = 0; i < in; i++) operand[i] = row[i] * scale * (c->n[NORM] ? norm[i] : 1);
        for (int o = 0; o < columns; o++) {
            const double bias[2] = {c->n[NO_BIAS] ? 0 : (double)l->bias[o],
                                    c->n[NO_BIAS] || !gated ? 0 : (double)l->bias[columns + o]};
            double *to = &y[r * stride + o], sum = ops_dot(operand, w + o * in, in) + bias[0];
            if (gated) sum = activate(sum, KERN_SILU) * (ops_dot(operand, w + (columns + o) * in, in) + bias[1]);
            *to = sum + (c->n[FLAGS] & KERN_OUT_ADD ? ops_last(c)->x[r * stride + o] : 0);
            if (!c->bf16) *to = ops_untouched;
        }
    }
}

static void run_skinny(kern_queue *k, const ops_call *c, void *const *a)
{
    const layer *l = c->data;
    const kern_skinny_job job = {.rows = c->rows,
                                 .x = a[0],
                                 .index = l->index,
                                 .norm = c->n[NORM] ? a[1] : NULL,
                                 .eps = EPS,
                                 .gated = c->n[GATED],
                                 .y = a[2]};
    assert_int_equal(k->fused->skinny(k, c->object, &job), c->bf16);
}

static const ops_entry table[] = {
    {"linear", "rows in out activation flags gap no_bias offset", OPS_CASES(layers), OPS_ALONE_ON_CPU, build_layer,
     run_layer, prepare_layer, release_layer, NULL},
    {"linear, large", "rows in out activation flags", OPS_CASES(large_layers), OPS_ALONE_ON_CPU | OPS_LARGE,
     build_layer, run_layer, prepare_layer, release_layer, NULL},
    {"linear, GELU", "rows in out", OPS_CASES(gelus), OPS_ALONE_ON_CPU, build_gelu, run_layer, prepare_layer,
     release_layer, check_gelu},
    {"linear, int4", "(none)", OPS_CASES(int4_layers), OPS_ALONE | OPS_INT4, build_int4, run_layer, prepare_layer,
     release_layer, NULL},
    {"linear, no int4", "rows in out activation flags", OPS_CASES(int4_odd), OPS_ALONE | OPS_INT4, build_layer,
     run_layer, prepare_layer, release_layer, NULL},
    {"skinny", "rows in out activation flags gap no_bias offset gated norm indexed", OPS_CASES(skinny), OPS_CUDA,
     build_skinny, run_skinny, prepare_layer, release_layer, NULL},
    {"skinny, int8", "rows in out", OPS_CASES(low_skinny), OPS_CUDA | OPS_INT8, build_skinny, run_skinny, prepare_layer,
     release_layer, NULL},
    {"skinny, int4", "rows in out", OPS_CASES(low_skinny), OPS_CUDA | OPS_INT4, build_skinny, run_skinny, prepare_layer,
     release_layer, NULL},
    {"linear, int8 restored", "rows in out", OPS_CASES(low_layers), OPS_CUDA | OPS_INT8, build_layer, run_layer,
     prepare_layer, release_layer, NULL},
    {"linear, int8 in pieces", "rows in out", OPS_CASES(low_large), OPS_CUDA | OPS_LARGE | OPS_INT8, build_layer,
     run_layer, prepare_layer, release_layer, NULL},
    {"linear, int4 restored", "rows in out", OPS_CASES(low_layers), OPS_CUDA | OPS_INT4, build_layer, run_layer,
     prepare_layer, release_layer, NULL},
    {"linear, int4 in pieces", "rows in out", OPS_CASES(low_large), OPS_CUDA | OPS_LARGE | OPS_INT4, build_layer,
     run_layer, prepare_layer, release_layer, NULL},
    {"linear, int8", "(none)", OPS_CASES(int8_layers), OPS_ALONE | OPS_INT8, build_int8, run_layer, prepare_layer,
     release_layer, NULL},
};

static void layers_that_are_refused(void **state)
{
    (void)state;
    static const float w[64];
    static const kern_linear_spec bad[] = {
        {.out = 8, .in = 8, .weight = w, .flags = KERN_IN_F32},
        {.out = 8, .in = 8, .weight = w, .flags = KERN_OUT_ADD},
        {.out = 8, .in = 8, .weight = w, .activation = KERN_GELU, .flags = KERN_OUT_F32 | KERN_OUT_ADD},
    };
    kern_queue *k = ops_open(MAR_DTYPE_F32);
    for (int i = 0; i < (ops_on_cuda() ? 3 : 1); i++) {
        kern_linear *l = NULL;
        mar_err err = {0};
        assert_int_equal(k->core->linear_create(k, &bad[i], &l, &err), MAR_EARG);
        assert_null(l);
        assert_non_null(strstr(err.text, "f32 output"));
    }
    close_queue(k);
}

/* Checks that the error of a piece ends the creation. */
static void rows_that_cannot_be_read(void **state)
{
    (void)state;
    enum { MANY = 4000, SOME = 300 }; /* more than one piece, also on a GPU */
    float *w = calloc((size_t)MANY * SOME, sizeof *w);
    int8_t *q = calloc((size_t)MANY * SOME, 1);
    float scale[SOME] = {0};
    for (int reads = 1; reads <= 2; reads++)
        for (int dtype = MAR_DTYPE_F32; dtype <= (ops_on_cuda() ? MAR_DTYPE_BF16 : MAR_DTYPE_INT8); dtype++) {
            kern_queue *k = ops_open((mar_dtype)dtype);
            if (!k) continue;
            layer l = {.weight = w, .quantised = q, .scale = scale, .in = MANY, .reads = reads};
            const kern_linear_rows rows = {read_rows, read_int8, read_int4, &l};
            const kern_linear_spec spec = {.out = SOME, .in = MANY, .flags = KERN_LOW, .rows = &rows};
            kern_linear *made = NULL;
            mar_err err = {0};
            assert_int_equal(k->core->linear_create(k, &spec, &made, &err), MAR_EIO);
            assert_null(made);
            assert_memory_equal(err.text, "rows ", 5);
            close_queue(k);
        }
    free(w), free(q);
}

int main(void)
{
    const struct CMUnitTest others[] = {cmocka_unit_test(layers_that_are_refused),
                                        cmocka_unit_test(rows_that_cannot_be_read)};
    return ops_main_and(table, others);
}
