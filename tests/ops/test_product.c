/* A transformer's products on a GPU that has them (MAR_CUDA_PRODUCTS): norms, activations, SwiGLU, sums and their
 * copies as operands, with each size of blocks and several clusters. */
#include "tests/cudahost/control.h"
#include "tests/ops/ops.h"

#include <stdio.h>

/* Numbers of a case. NORM: 0, RMS or LAYER. ACT: x is also given as operands. */
enum { ROWS, IN, OUT, ACTIVATION, FLAGS, GAP, NO_BIAS, GATED, NORM, ACT, INDEXED };
enum { RMS = 1, LAYER };

#define EPS 0.5 /* large, so that a norm without it shows */
#define ADD KERN_OUT_F32 | KERN_OUT_ADD

/* Widths of MAR-B, L and H and of qwen 0.5B; inputs that fill no stage, or no part of a cluster. */
static const int normed[][11] = {
    {33, 768, 136, KERN_LINEAR, 0, 0, 0, 0, LAYER, 1, 0},    {129, 1024, 24, KERN_GELU, 0, 0, 0, 0, LAYER, 1, 0},
    {31, 896, 144, KERN_LINEAR, 0, 0, 1, 1, RMS, 1, 0},      {200, 136, 200, KERN_LINEAR, 0, 0, 0, 0, LAYER, 1, 0},
    {1, 72, 200, KERN_GELU, 0, 0, 1, 0, LAYER, 1, 0},        {127, 64, 272, KERN_LINEAR, 0, 0, 0, 1, LAYER, 1, 0},
    {65, 8, 4, KERN_SILU, KERN_OUT_F32, 8, 0, 0, RMS, 1, 0},
};
static const int plain[][11] = {
    {17, 1280, 72, KERN_LINEAR, ADD, 0, 0, 0, 0, 0, 0},
    {19, 4864, 40, KERN_LINEAR, ADD, 0, 1, 0, 0, 0, 0},
    {64, 520, 128, KERN_SILU, 0, 4, 0, 0, 0, 0, 0},
    {1024, 64, 64, KERN_LINEAR, ADD, 12, 0, 0, 0, 0, 0},
    {65, 8, 4, KERN_GELU_TANH, KERN_OUT_F32, 8, 0, 0, 0, 0, 0},
};
/* The norm's own kernel takes x as floats, and rows of it; linear takes more rows, and other widths. */
static const int left[][11] = {
    {50, 64, 64, KERN_LINEAR, 0, 0, 0, 0, LAYER, 0, 0},  {40, 96, 48, KERN_GELU, 0, 0, 0, 0, LAYER, 0, 1},
    {1025, 16, 8, KERN_LINEAR, 0, 0, 0, 0, LAYER, 1, 0}, {24, 40, 18, KERN_LINEAR, 0, 0, 0, 0, RMS, 1, 0},
    {24, 35, 16, KERN_LINEAR, 0, 0, 0, 0, LAYER, 1, 0},  {1025, 16, 8, KERN_LINEAR, ADD, 0, 0, 0, 0, 0, 0},
    {18, 35, 16, KERN_LINEAR, ADD, 0, 0, 0, 0, 0, 0},
};

/* The products of a block of MAR-B and of qwen 0.5B at all their rows. */
static const int large_products[][11] = {
    {640, 768, 2304, KERN_LINEAR, 0, 0, 0, 0, LAYER, 1, 0}, {640, 768, 768, KERN_LINEAR, ADD, 0, 0, 0, 0, 0, 0},
    {640, 768, 3072, KERN_GELU, 0, 0, 0, 0, LAYER, 1, 0},   {640, 3072, 768, KERN_LINEAR, ADD, 0, 0, 0, 0, 0, 0},
    {315, 896, 9728, KERN_LINEAR, 0, 0, 1, 1, RMS, 1, 0},   {1024, 4864, 896, KERN_LINEAR, ADD, 0, 1, 0, 0, 0, 0},
};

typedef struct {
    const float *weight, *bias, *gain, *shift;
    const int *index;
    int done; /* what the call returns */
} product_layer;

static double product_activate(double x, int activation)
{
    if (activation == KERN_GELU) return x * 0.5 * (1 + erf(x / sqrt(2.0)));
    if (activation == KERN_SILU) return x / (1 + exp(-x));
    if (activation == KERN_GELU_TANH) return x * 0.5 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    return x;
}

/* Returns KERN_SKINNY_* of a case. */
static int product_expected(const int *n)
{
    const int most = strcmp(getenv("MAR_CUDA_PRODUCTS"), "1") == 0 ? 1024 : n[ROWS];
    const int fits = n[ROWS] <= most && n[IN] % 8 == 0 && n[OUT] % (n[GATED] ? 8 : 4) == 0;
    if (!fits) return n[NORM] ? KERN_SKINNY_NORMED : KERN_SKINNY_NOT;
    return n[FLAGS] & KERN_OUT_ADD ? KERN_SKINNY_ROUNDED : KERN_SKINNY_DONE;
}

/* Writes the operands that a row of x makes. */
static void product_norm(const ops_call *c, const product_layer *l, const double *x, double *y)
{
    const int in = c->n[IN], norm = c->n[NORM];
    double mean = 0, square = 0;
    for (int i = 0; i < in && norm == LAYER; i++) mean += x[i] / in;
    for (int i = 0; i < in; i++) square += (x[i] - mean) * (x[i] - mean) / in;
    for (int i = 0; i < in; i++)
        y[i] =
            !norm ? x[i]
                  : (x[i] - mean) / sqrt(square + EPS) * (double)l->gain[i] + (norm == LAYER ? (double)l->shift[i] : 0);
}

/* Arrays: x, its operands, y, y's or the norm's operands. */
static void build_product(ops_call *c)
{
    if (c->n[ROWS] > 1 && c->n[ROWS] < 100) c->n[ROWS] *= ops_scale();
    enum { SPARE = 4 }; /* rows of x that are not read */
    const int rows = c->rows = c->n[ROWS], in = c->n[IN], out = c->n[OUT], gated = c->n[GATED], norm = c->n[NORM];
    const int columns = gated ? out / 2 : out, stride = columns + c->n[GAP], f32 = c->n[FLAGS] & KERN_OUT_F32;
    product_layer *l = c->data = ops_host(c, sizeof *l);
    l->done = product_expected(c->n);
    l->weight = ops_weights(c, (size_t)(out * in), 1 / sqrt(in));
    l->bias = ops_weights(c, (size_t)out, 1);
    l->gain = ops_weights(c, (size_t)in, 1), l->shift = ops_weights(c, (size_t)in, 1);
    l->index = c->n[INDEXED] ? ops_below(c, (size_t)rows, rows + SPARE) : NULL;
    double *x = ops_input(c, norm ? OPS_FLOAT : OPS_ACT, (size_t)((rows + SPARE) * in), 0, 1);
    for (int i = 0; i < rows * in && norm; i++) x[i] = (double)(float)(x[i] + 0.5); /* with a mean */
    double *rounded = ops_input(c, OPS_ACT, (size_t)(rows * in), 0, 1);
    for (int i = 0; i < rows * in; i++) rounded[i] = ops_element_of(c, OPS_ACT, x[i]);
    double *y = ops_output(c, f32 ? OPS_FLOAT : OPS_ACT, (size_t)(rows * stride), 0, 1e-5, 5e-3);
    ops_array *to = ops_last(c);
    double *copy = ops_output(c, OPS_ACT, (size_t)(rows * (in > columns ? in : columns)), 0, 1e-5, 5e-3);
    double *operand = ops_host(c, (size_t)in * sizeof *operand), *w = ops_host(c, (size_t)(out * in) * sizeof *w);
    for (int i = 0; i < out * in; i++)
        w[i] = norm ? (double)l->weight[i] : ops_element_of(c, OPS_ACT, (double)l->weight[i]);
    for (int i = 0; norm && i < rows * (in > columns ? in : columns); i++) copy[i] = ops_any;
    for (int r = 0; r < rows; r++) {
        product_norm(c, l, x + (l->index ? l->index[r] : r) * in, operand);
        for (int o = 0; o < columns && l->done != KERN_SKINNY_NOT && l->done != KERN_SKINNY_NORMED; o++) {
            double sum = ops_dot(operand, w + o * in, in) + (c->n[NO_BIAS] ? 0 : (double)l->bias[o]);
            if (gated)
                sum = product_activate(sum, KERN_SILU) * (ops_dot(operand, w + (columns + o) * in, in) +
                                                          (c->n[NO_BIAS] ? 0 : (double)l->bias[columns + o]));
            sum = product_activate(sum, c->n[ACTIVATION]) + (c->n[FLAGS] & KERN_OUT_ADD ? to->x[r * stride + o] : 0);
            y[r * stride + o] = sum;
            if (l->done == KERN_SKINNY_ROUNDED) copy[r * columns + o] = sum;
        }
    }
}

static void *prepare_product(kern_queue *k, const ops_call *c)
{
    const product_layer *l = c->data;
    const int norm = c->n[NORM];
    const kern_linear_spec spec = {.out = c->n[OUT],
                                   .in = c->n[IN],
                                   .weight = l->weight,
                                   .bias = c->n[NO_BIAS] ? NULL : l->bias,
                                   .activation = (kern_activation)c->n[ACTIVATION],
                                   .flags = c->n[FLAGS],
                                   .y_stride = c->n[GATED] ? 0 : c->n[OUT] + c->n[GAP],
                                   .norm = norm ? l->gain : NULL,
                                   .norm_bias = norm == LAYER ? l->shift : NULL};
    kern_linear *made = NULL;
    mar_err err = {0};
    assert_ok(k->core->linear_create(k, &spec, &made, &err), &err);
    return made;
}

static void release_product(kern_device *d, void *object)
{
    d->core->linear_free(d, object);
}

static void run_product(kern_queue *k, const ops_call *c, void *const *a)
{
    const product_layer *l = c->data;
    static const float some = 1; /* the norm's weights are in the layer: nobody reads them here */
    const int norm = c->n[NORM];
    const kern_skinny_job job = {.rows = c->rows,
                                 .x = a[0],
                                 .index = l->index,
                                 .norm = norm ? &some : NULL,
                                 .norm_bias = norm == LAYER ? &some : NULL,
                                 .x_act = norm && c->n[ACT] ? a[1] : NULL,
                                 .normed = norm ? a[3] : NULL,
                                 .y_act = norm                         ? NULL
                                          : c->n[FLAGS] & KERN_OUT_ADD ? a[3]
                                                                       : NULL,
                                 .eps = (float)EPS,
                                 .gated = c->n[GATED],
                                 .y = a[2]};
    const int done = k->fused->skinny(k, c->object, &job);
    if (c->rows > 0) assert_int_equal(done, l->done);
}

#define ENTRY(name, cases, flags)                                                                                      \
    {                                                                                                                  \
        name, "rows in out activation flags gap no_bias gated norm act indexed", OPS_CASES(cases),                     \
            OPS_CUDA | OPS_BF16 | (flags), build_product, run_product, prepare_product, release_product, NULL          \
    }
static const ops_entry table[] = {ENTRY("product, norm", normed, 0), ENTRY("product", plain, 0),
                                  ENTRY("product, others", left, 0),
                                  ENTRY("product, large", large_products, OPS_LARGE)};

int main(void)
{
    int failed = 0;
    setenv("MAR_CUDAHOST_SMS", "132", 1); /* an H200's, for its cuts */
    static const struct {
        const char *asked, *kernel;
        unsigned cluster; /* of the kernel that must run */
    } hows[] = {{"1", "product_form<", 0},
                {"128:1:1:4", "product_form<128,", 4},
                {"128:2:2:2", "product_form<128,", 8},
                {"96:1:2:2", "product_form<96,", 4},
                {"64:2:4:1", "product_form<64,", 8},
                {"64:8:1:1", "product_form<64,", 8}};
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
        setenv("MAR_CUDA_PRODUCTS", hows[i].asked, 1);
        if (!ops_has_asked()) return failed;
        if (cudahost_ran) (void)cudahost_ran("", 0);
        failed += ops_main(table);
        if (!cudahost_ran || cudahost_ran(hows[i].kernel, hows[i].cluster)) continue;
        printf("no kernel %s in clusters of %u for %s\n", hows[i].kernel, hows[i].cluster, hows[i].asked);
        failed++;
    }
    return failed;
}
