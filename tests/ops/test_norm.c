/* Group normalisation: of images by channel, by cells of pixels, and of an image in parts. Rows are images here. */
#include "tests/ops/ops.h"

/* --- group norms -------------------------------------------------------------------------------------------------- */

/* MEAN and SPREAD: of the input, in hundredths. MILLIONTHS: allowed f32 error, in millionths. x*scale + shift cancels
 * for means far from 0. */
enum { N_IMAGES, PIXELS, CHANNELS, GROUPS, MEAN, SPREAD, SILU, MILLIONTHS };

static const int group_norms[][8] = {
    {3, 35, 64, 32, 100, 100, 1, 10},     {1, 1, 32, 32, 0, 100, 0, 100},    {1, 1, 64, 32, 0, 100, 1, 100},
    {1, 35, 64, 32, 100, 100, 0, 10},     {1, 256, 512, 32, 0, 3000, 1, 10}, {1, 1031, 96, 32, -300, 100, 0, 10},
    {1, 1000, 40, 8, 10000, 100, 1, 100}, {1, 70, 33, 1, 0, 1, 0, 10},       {1, 2100, 128, 32, 1000, 1000, 1, 10},
    {4, 300, 96, 32, -300, 100, 0, 10},   {5, 321, 64, 32, 100, 100, 1, 10}, {1, 4109, 96, 32, -300, 58, 1, 10},
};

static void build_group_norm(ops_call *c)
{
    const int *n = c->n, size = n[CHANNELS] / n[GROUPS], count = n[PIXELS] * size;
    const size_t image = (size_t)(n[PIXELS] * n[CHANNELS]), all = (size_t)n[N_IMAGES] * image;
    c->rows = n[N_IMAGES];
    double *x = ops_input(c, OPS_FLOAT, all, image, n[SPREAD] / 100.0);
    for (size_t i = 0; i < all; i++) /* images differ */
        x[i] = (double)(float)(x[i] * (double)(i / image + 1) + n[MEAN] / 100.0 + (double)(i / image));
    const double *w = ops_input(c, OPS_FLOAT, (size_t)n[CHANNELS], 0, 1);
    const double *b = ops_input(c, OPS_FLOAT, (size_t)n[CHANNELS], 0, 1);
    double *y = ops_output(c, OPS_ACT, all, image, n[MILLIONTHS] * 1e-6, 4e-3);
    for (int g = 0; g < n[N_IMAGES] * n[GROUPS]; g++) {
        const size_t first = (size_t)(g / n[GROUPS]) * image;
        double mean = 0, variance = 0;
#define ELEMENT (first + (size_t)(i / size * n[CHANNELS] + g % n[GROUPS] * size + i % size))
        for (int i = 0; i < count; i++) mean += x[ELEMENT] / count;
        for (int i = 0; i < count; i++) variance += (x[ELEMENT] - mean) * (x[ELEMENT] - mean) / count;
        for (int i = 0; i < count; i++) {
            const int channel = g % n[GROUPS] * size + i % size;
            const double v = (x[ELEMENT] - mean) / sqrt(variance + 1e-6) * w[channel] + b[channel];
            y[ELEMENT] = n[SILU] ? v / (1 + exp(-v)) : v;
        }
#undef ELEMENT
    }
}

static void *prepare_group_norm(kern_queue *k, const ops_call *c)
{
    mar_err err = {0};
    for (int images = 1; images <= c->n[N_IMAGES]; images++)
        assert_ok(k->conv->group_norm_plan(k, images, c->n[PIXELS], c->n[CHANNELS], &err), &err);
    return NULL;
}

static void run_group_norm(kern_queue *k, const ops_call *c, void *const *a)
{
    const kern_norm norm = {.groups = c->n[GROUPS], .eps = 1e-6f, .silu = c->n[SILU], .weight = a[1], .bias = a[2]};
    k->conv->group_norm(k, &norm, a[0], c->rows, c->n[PIXELS], c->n[CHANNELS], a[3]);
}

/* --- group norms of cells, and in parts --------------------------------------------------------------------------- */

enum { G_IMAGES, G_HEIGHT, G_WIDTH, G_CHANNELS, G_GROUPS, G_SIDE, G_SILU, G_PARTS };

static const int cell_norms[][8] = {
    {2, 6, 10, 64, 32, 2, 1, 0},   {3, 8, 4, 96, 32, 4, 0, 0},   {1, 16, 24, 40, 8, 8, 1, 0},
    {2, 5, 7, 33, 1, 1, 1, 0},     {1, 24, 16, 64, 32, 8, 1, 3}, {1, 70, 36, 32, 32, 2, 0, 6},
    {1, 33, 40, 128, 32, 1, 1, 4},
};

/* Arrays: x, cells, y, sums. */
static void build_cells(ops_call *c)
{
    const int *n = c->n, pixels = n[G_HEIGHT] * n[G_WIDTH], size = n[G_CHANNELS] / n[G_GROUPS];
    const size_t channels = (size_t)n[G_CHANNELS], image = (size_t)pixels * channels;
    const size_t cells = 2 * image / (size_t)(n[G_SIDE] * n[G_SIDE]), images = (size_t)n[G_IMAGES];
    c->rows = n[G_PARTS] ? 0 : n[G_IMAGES];
    double *x = ops_input(c, OPS_FLOAT, images * image, image, 2);
    const double *cell = ops_input(c, OPS_FLOAT, images * cells, cells, 1);
    double *y = ops_output(c, OPS_ACT, images * image, image, 1e-5, 4e-3);
    double *sums = ops_output(c, OPS_DOUBLE, 2 * KERN_NORM_CHUNKS * channels, 0, 0, 0);
    for (size_t i = 0; i < images * image; i++) x[i] = (double)(float)(x[i] + 0.5);
    for (size_t i = 0; i < 2 * KERN_NORM_CHUNKS * channels && n[G_PARTS]; i++) sums[i] = ops_any;
    for (int g = 0; g < n[G_IMAGES] * n[G_GROUPS]; g++) {
        const size_t first = (size_t)(g / n[G_GROUPS]) * image + (size_t)(g % n[G_GROUPS] * size);
        double mean = 0, variance = 0;
#define ELEMENT (first + (size_t)(i / size) * channels + (size_t)(i % size))
        for (int i = 0; i < pixels * size; i++) mean += x[ELEMENT] / (pixels * size);
        for (int i = 0; i < pixels * size; i++) variance += pow(x[ELEMENT] - mean, 2) / (pixels * size);
        for (int i = 0; i < pixels * size; i++) {
            const int row = i / size / n[G_WIDTH], column = i / size % n[G_WIDTH];
            const int at = row / n[G_SIDE] * (n[G_WIDTH] / n[G_SIDE]) + column / n[G_SIDE];
            const double *pair = cell + (size_t)(g / n[G_GROUPS]) * cells + (size_t)(2 * at) * channels +
                                 (size_t)(g % n[G_GROUPS] * size + i % size);
            const double v = (x[ELEMENT] - mean) / sqrt(variance + 1e-6) * pair[0] + pair[channels];
            y[ELEMENT] = n[G_SILU] ? v / (1 + exp(-v)) : v;
        }
#undef ELEMENT
    }
}

static void *prepare_cells(kern_queue *k, const ops_call *c)
{
    mar_err err = {0};
    const int *n = c->n;
    for (int images = 1; images <= n[G_IMAGES]; images++)
        assert_ok(k->conv->group_norm_plan(k, images, n[G_HEIGHT] * n[G_WIDTH], n[G_CHANNELS], &err), &err);
    return NULL;
}

/* Normalises the images, or one in parts of rows, that begin amid cells. */
static void run_cells(kern_queue *k, const ops_call *c, void *const *a)
{
    const int *n = c->n, parts = n[G_PARTS], pixels = n[G_HEIGHT] * n[G_WIDTH];
    kern_norm norm = {
        .groups = n[G_GROUPS], .eps = 1e-6f, .silu = n[G_SILU], .cells = a[1], .width = n[G_WIDTH], .side = n[G_SIDE]};
    if (!parts) {
        k->conv->group_norm(k, &norm, a[0], c->rows, pixels, n[G_CHANNELS], a[2]);
        return;
    }
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < parts; i++) {
            const int row = i * n[G_HEIGHT] / parts, count = ((i + 1) * n[G_HEIGHT] / parts - row) * n[G_WIDTH];
            const size_t at = (size_t)(row * n[G_WIDTH]) * (size_t)n[G_CHANNELS];
            const float *x = (const float *)a[0] + at;
            norm.sums = a[3], norm.total = pixels, norm.top = row % n[G_SIDE];
            norm.cells =
                (const float *)a[1] + (size_t)(row / n[G_SIDE] * (n[G_WIDTH] / n[G_SIDE]) * 2) * (size_t)n[G_CHANNELS];
            if (pass == 0)
                k->conv->group_sums(k, x, pixels, n[G_CHANNELS], row * n[G_WIDTH], count, a[3]);
            else
                k->conv->group_norm(k, &norm, x, 1, count, n[G_CHANNELS], (char *)a[2] + at * k->device->act_size);
        }
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static const ops_entry entries[] = {
    {"group_norm", "images pixels channels groups mean spread silu", OPS_CASES(group_norms), OPS_ALONE,
     build_group_norm, run_group_norm, prepare_group_norm, NULL, NULL},
    {"group_norm, cells", "images height width channels groups side silu parts", OPS_CASES(cell_norms), OPS_ALONE,
     build_cells, run_cells, prepare_cells, NULL, NULL},
};

int main(void)
{
    return ops_main(entries);
}
