/* Operations on rows of floats and of operands: norms, SwiGLU, rotary positions, tables, copies, distances. */
#include "tests/ops/ops.h"

#include <float.h>
#include <limits.h>
#include <stdio.h>

/* --- norms ------------------------------------------------------------------------------------------------------ */

enum { DIM, ROWS, INDEXED, Y_F32, OFFSET, KIND }; /* numbers of a norm's case */
enum { PLAIN, HUGE_ROW };
enum { X_ROWS = 6 };

static const int norms[][6] = {
    {96, 7, 1, 1, 0, PLAIN},     {4, 7, 1, 0, 0, PLAIN},    {16, 5, 0, 0, 1, PLAIN},   {15, 7, 1, 1, 0, PLAIN},
    {64, 5, 0, 1, 1, PLAIN},     {256, 7, 1, 0, 0, PLAIN},  {260, 5, 0, 1, 0, PLAIN},  {768, 7, 1, 0, 0, PLAIN},
    {1000, 5, 0, 0, 1, PLAIN},   {1024, 7, 1, 1, 0, PLAIN}, {1280, 5, 0, 0, 0, PLAIN}, {1536, 7, 1, 1, 0, PLAIN},
    {3200, 5, 0, 0, 1, PLAIN},   {5120, 7, 1, 0, 0, PLAIN}, {5120, 5, 0, 1, 1, PLAIN}, {1, 7, 1, 1, 0, PLAIN},
    {1, 5, 0, 0, 1, PLAIN},      {33, 7, 1, 0, 0, PLAIN},   {1001, 5, 0, 1, 1, PLAIN}, {768, 300, 1, 0, 0, PLAIN},
    {768, 3, 0, 1, 0, HUGE_ROW},
};

/* Adds x, weight, bias and the output. rms_norm has no bias. */
static void build_norm(ops_call *c, int rms, double mean, double f32)
{
    const int dim = c->n[DIM], rows = c->rows = c->n[ROWS] * (c->n[ROWS] > 100 ? ops_scale() : 1);
    const int x_rows = c->n[INDEXED] && rows < 100 ? X_ROWS : rows;
    const size_t d = (size_t)dim;
    c->data = c->n[INDEXED] ? ops_below(c, (size_t)rows, x_rows) : NULL;
    double *x = ops_input(c, OPS_FLOAT, (size_t)x_rows * d, c->n[INDEXED] ? 0 : d, 2);
    ops_last(c)->offset = (size_t)c->n[OFFSET];
    for (size_t i = 0; i < (size_t)x_rows * d; i++) {
        x[i] = (double)(float)(x[i] + mean);
        if (c->n[KIND] == HUGE_ROW && i / d == 1) x[i] = (double)(i % 3 ? 3e38f : -3e38f);
    }
    const double *weight = ops_input(c, OPS_FLOAT, d, 0, 1), *bias = ops_input(c, OPS_FLOAT, d, 0, 1);
    /* A float near 50 is exact to 4e-6. The result's scale of 1/2 does not enlarge this. */
    double *y = ops_output(c, c->n[Y_F32] ? OPS_FLOAT : OPS_ACT, (size_t)rows * d, d, dim == 1 ? 1e-2 : f32, 3e-3);
    if (c->n[Y_F32] && dim > 1) ops_last(c)->allowed = f32;
    if (dim == 1) ops_last(c)->allowed = 1e-2;
    for (size_t r = 0; r < (size_t)rows; r++) {
        const double *row = x + (c->data ? (size_t)((int *)c->data)[r] : r) * d;
        double sum = 0, square = 0;
        for (size_t i = 0; i < d; i++) sum += rms ? 0 : row[i] / dim;
        for (size_t i = 0; i < d; i++) square += (row[i] - sum) * (row[i] - sum) / dim;
        for (size_t i = 0; i < d; i++)
            y[r * d + i] = square * dim > (double)FLT_MAX
                               ? NAN
                               : (row[i] - sum) / sqrt(square + (rms ? 1e-5 : 1e-6)) * weight[i] + (rms ? 0 : bias[i]);
    }
}

static const int *index_of(const ops_call *c)
{
    return c->data ? (const int *)c->data + c->first : NULL;
}

static void build_layer_norm(ops_call *c)
{
    build_norm(c, 0, 50, 2e-5);
}

static void run_layer_norm(kern_queue *k, const ops_call *c, void *const *a)
{
    k->core->layer_norm(k, a[0], index_of(c), c->rows, c->n[DIM], a[1], a[2], 1e-6f, a[3], c->n[Y_F32]);
}

static void build_rms_norm(ops_call *c)
{
    build_norm(c, 1, 0, 2e-6);
}

static void run_rms_norm(kern_queue *k, const ops_call *c, void *const *a)
{
    k->core->rms_norm(k, a[0], index_of(c), c->rows, c->n[DIM], a[1], 1e-5f, a[3], c->n[Y_F32]);
}

/* PyTorch's numbers (tests/golden/make_causal.py). */
static void build_golden_rms_norm(ops_call *c)
{
    enum { GOLDEN = 5, WIDTH = 100 };
    static int index[3] = {4, 0, 4};
    wt_file *f = golden_open("causal");
    const float *x = ops_golden(c, f, "norm.x", GOLDEN * WIDTH), *weight = ops_golden(c, f, "norm.weight", WIDTH);
    const float *y = ops_golden(c, f, "norm.y", GOLDEN * WIDTH);
    const int indexed = c->n[INDEXED];
    c->data = indexed ? index : NULL, c->rows = indexed ? 3 : GOLDEN;
    double *to = ops_input(c, OPS_FLOAT, GOLDEN * WIDTH, indexed ? 0 : WIDTH, 1);
    for (int i = 0; i < GOLDEN * WIDTH; i++) to[i] = (double)x[i];
    to = ops_input(c, OPS_FLOAT, WIDTH, 0, 1);
    for (int i = 0; i < WIDTH; i++) to[i] = (double)weight[i];
    ops_input(c, OPS_FLOAT, WIDTH, 0, 1);
    to = ops_output(c, c->n[Y_F32] ? OPS_FLOAT : OPS_ACT, (size_t)c->rows * WIDTH, WIDTH, 1e-6, 3e-3);
    if (c->n[Y_F32]) ops_last(c)->allowed = 1e-6;
    for (int i = 0; i < c->rows * WIDTH; i++)
        to[i] = (double)y[(indexed ? index[i / WIDTH] : i / WIDTH) * WIDTH + i % WIDTH];
    wt_close(f);
}

static const int golden_norms[][6] = {{100, 5, 0, 1, 0, PLAIN}, {100, 3, 1, 0, 0, PLAIN}};

/* --- SwiGLU and rotary positions ---------------------------------------------------------------------------------- */

static const int gates[][3] = {{34, 64},  {1, 2048}, {34, 2816, 1}, {3, 8704},
                               {5, 7, 1}, {2, 1},    {9, 24, 1},    {4, 40, 1}};

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double gelu_tanh(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* The third number: 1 for GELU in place of SiLU. */
static void build_gated(ops_call *c)
{
    const size_t hidden = (size_t)c->n[1], n = (size_t)c->n[0] * hidden;
    c->rows = c->n[0];
    double *x = ops_input(c, OPS_ACT, 2 * n, 2 * hidden, 2), *y = NULL;
    x[0] = -200, x[2 * n - 1] = 1000; /* exp(200) is infinite in f32 */
    y = ops_output(c, OPS_ACT, n, hidden, 2e-6, 4e-3);
    for (size_t i = 0; i < n; i++) {
        const double *row = x + i / hidden * 2 * hidden;
        y[i] = (c->n[2] ? gelu_tanh : silu)(row[i % hidden]) * row[hidden + i % hidden];
    }
}

static void run_gated(kern_queue *k, const ops_call *c, void *const *a)
{
    k->core->gated(k, a[0], c->rows, c->n[1], c->n[2] ? KERN_GELU_TANH : KERN_SILU, a[1]);
}

static const int golden_swiglus[][2] = {{5, 75}};

static void build_golden_swiglu(ops_call *c)
{
    wt_file *f = golden_open("causal");
    const int hidden = c->n[1], n = c->n[0] * hidden;
    const float *x = ops_golden(c, f, "swiglu.x", 2 * n), *y = ops_golden(c, f, "swiglu.y", n);
    c->rows = c->n[0];
    double *to = ops_input(c, OPS_ACT, 2 * (size_t)n, 2 * (size_t)hidden, 1);
    for (int i = 0; i < 2 * n; i++) to[i] = ops_element_of(c, OPS_ACT, (double)x[i]);
    to = ops_output(c, OPS_ACT, (size_t)n, (size_t)hidden, 2e-6, 6e-3);
    for (int i = 0; i < n; i++) to[i] = (double)y[i];
    wt_close(f);
}

enum { SLOTS = 40, POSITIONS = 9 };
typedef struct {
    const int *position, *slot;
} rotation;

static const int rotations[][4] = {{5, 3, 16, 1},  {1, 12, 64, 1}, {34, 2, 100, 1}, {3, 1, 2, 1}, {2, 4, 128, 1},
                                   {34, 3, 64, 2}, {5, 2, 20, 2},  {1, 16, 72, 2},  {3, 1, 2, 2}};

static void build_rotate(ops_call *c)
{
    const int rows = c->rows = c->n[0], heads = c->n[1], dim = c->n[2], angles = c->n[3];
    const size_t width = (size_t)(heads * dim);
    rotation *lists = c->data = ops_host(c, sizeof *lists);
    int *position = ops_below(c, (size_t)rows, POSITIONS), *slot = ops_host(c, (size_t)rows * sizeof *slot);
    *lists = (rotation){position, slot};
    position[0] = 0; /* position 0 turns keys and queries into zeros */
    for (int r = 0; r < rows; r++) slot[r] = (r * 7 + c->other) % SLOTS;
    double *qkv = ops_input(c, OPS_ACT, 3 * (size_t)rows * width, 3 * width, 1);
    double *want = ops_written(c, 2e-6, 4e-3);
    double *turn = ops_input(c, OPS_FLOAT, (size_t)(POSITIONS * dim * angles), 0, 1);
    for (int i = 0; i < POSITIONS * dim * angles; i += 2) {
        turn[i] = i < dim * angles ? 0 : (double)cosf(0.37f * (float)i),
        turn[i + 1] = i < dim * angles ? 0 : (double)sinf(0.37f * (float)i);
    }
    double *cache = ops_output(c, OPS_ACT, SLOTS * 2 * width, 0, 2e-6, 4e-3);
    for (int r = 0; r < rows; r++)
        for (size_t i = 0; i<3 * width; i += dim> 1 ? 2 : 1) {
            const double *pair = qkv + (size_t)r * 3 * width + i;
            const double *t = turn + (size_t)angles * ((size_t)position[r] * (size_t)dim + i % (size_t)dim);
            const double *u = angles == 2 ? t + 2 : t;
            const double turned[2] = {pair[0] * t[0] - pair[1] * t[1], pair[1] * u[0] + pair[0] * u[1]};
            const int value = i >= 2 * width;
            double *to = i < width ? want + (size_t)r * 3 * width + i : cache + (size_t)slot[r] * 2 * width + i - width;
            to[0] = value ? pair[0] : turned[0], to[1] = value ? pair[1] : turned[1];
            for (int j = 0; j < 2 && i >= width; j++) want[(size_t)r * 3 * width + i + (size_t)j] = ops_any;
        }
}

static void run_rotate(kern_queue *k, const ops_call *c, void *const *a)
{
    const rotation *lists = c->data;
    k->core->rotate(k, a[0], c->rows, c->n[1], c->n[2], c->n[3], a[1], lists->position + c->first, a[2],
                    lists->slot + c->first);
}

static const int golden_rotations[][4] = {{5, 2, 64, 1}, {5, 2, 100, 1}};

static void build_golden_rotate(ops_call *c)
{
    enum { GOLDEN = 5, CACHE = 9, TURNS = 7 };
    static const int slot[GOLDEN] = {8, 2, 0, 5, 3};
    static const char *const names[] = {"turn", "qkv", "q", "k", "v", "position"};
    const int size = c->n[2], width = 2 * size, n = GOLDEN * width;
    const int counts[] = {TURNS * size, 3 * n, n, n, n, GOLDEN};
    const float *golden[6];
    rotation *lists = c->data = ops_host(c, sizeof *lists);
    int *position = ops_host(c, GOLDEN * sizeof *position);
    wt_file *f = golden_open("causal");
    for (int i = 0; i < 6; i++) {
        char name[64];
        snprintf(name, sizeof name, "rotate%d.%s", size, names[i]);
        golden[i] = ops_golden(c, f, name, counts[i]);
    }
    wt_close(f);
    for (int r = 0; r < GOLDEN; r++) position[r] = (int)golden[5][r];
    *lists = (rotation){position, slot};
    c->rows = GOLDEN;
    double *qkv = ops_input(c, OPS_ACT, 3 * (size_t)n, 3 * (size_t)width, 1), *want = ops_written(c, 2e-6, 5e-3);
    double *turn = ops_input(c, OPS_FLOAT, (size_t)counts[0], 0, 1);
    double *cache = ops_output(c, OPS_ACT, CACHE * 2 * (size_t)width, 0, 2e-6, 5e-3);
    for (int i = 0; i < counts[0]; i++) turn[i] = (double)golden[0][i];
    for (int i = 0; i < 3 * n; i++) {
        const int r = i / (3 * width), part = i / width % 3, at = r * width + i % width;
        qkv[i] = ops_element_of(c, OPS_ACT, (double)golden[1][i]);
        want[i] = part == 0 ? (double)golden[2][at] : ops_any;
        if (part > 0) cache[slot[r] * 2 * width + (part - 1) * width + i % width] = (double)golden[2 + part][at];
    }
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

static const int look_ups[][3] = {{8, 700, 300}, {1, 700, 300}, {8, 16384, 4}}; /* dim, size, rows */

/* Numbers outside the table take the nearest row. */
static void build_look_up(ops_call *c)
{
    const int dim = c->n[0], size = c->n[1], rows = c->rows = c->n[2];
    static const double odd[] = {NAN, -INFINITY, 0, 3e9, INFINITY, -3};
    double *table = ops_input(c, OPS_FLOAT, (size_t)(size * dim), 0, 1);
    double *x = ops_input(c, OPS_FLOAT, (size_t)rows, 1, 1), *y = NULL;
    const int *row = ops_below(c, (size_t)rows, size);
    for (int r = 0; r < rows; r++) x[r] = r == 0 ? size - 1 : row[r];
    for (int r = 0; r < 6 && rows > 20; r++) x[7 + r] = r == 2 ? size : (double)(float)odd[r];
    y = ops_output(c, OPS_FLOAT, (size_t)(rows * dim), (size_t)dim, 0, 0);
    for (int i = 0; i < rows * dim; i++) {
        const double at = x[i / dim];
        y[i] = table[(at >= size ? size - 1 : at > 0 ? (int)at : 0) * dim + i % dim];
    }
}

static void run_look_up(kern_queue *k, const ops_call *c, void *const *a)
{
    k->core->look_up(k, a[0], c->n[1], c->n[0], a[1], c->rows, a[2]);
}

static const int embeddings[][1] = {{24}, {7}, {4}, {1}};

static void build_embed(ops_call *c)
{
    enum { SIZE = 90, TOKENS = 40, COUNT = 70 };
    static const int odd[] = {-1, SIZE, INT_MAX, INT_MIN};
    const int dim = c->n[0];
    double *table = ops_input(c, OPS_FLOAT, (size_t)(SIZE * dim), 0, 1);
    double *token = ops_input(c, OPS_INT, TOKENS, 0, 1), *y = NULL;
    int *place = c->data = ops_below(c, COUNT, TOKENS);
    const int *any = ops_below(c, TOKENS, SIZE);
    c->rows = COUNT;
    for (int t = 0; t < TOKENS; t++) token[t] = t >= 3 && t < 7 ? odd[t - 3] : any[t];
    for (int r = 0; r < TOKENS; r++) place[r] = TOKENS - 1 - r;
    place[TOKENS] = -1, place[TOKENS + 1] = -SIZE, place[TOKENS + 2] = -1 - SIZE, place[COUNT - 1] = -8;
    y = ops_output(c, OPS_FLOAT, (size_t)(COUNT * dim), (size_t)dim, 0, 0);
    for (int i = 0; i < COUNT * dim; i++) {
        const int p = place[i / dim];
        const double at = p < 0 ? -1 - p : token[p];
        y[i] = table[(at < 0 ? 0 : at >= SIZE ? SIZE - 1 : (int)at) * dim + i % dim];
    }
}

static void run_embed(kern_queue *k, const ops_call *c, void *const *a)
{
    k->core->embed(k, a[0], 90, c->n[0], a[1], (const int *)c->data + c->first, c->rows, a[2]);
}

/* --- copies, differences, conversion ------------------------------------------------------------------------------ */

enum { COPIED = 14, TO = 21, FROM = 9, MORE = 5 };
enum { BY_TO = 1, BY_FROM = 2, BY_MORE = 4, ADDS = 8, UNALIGNED = 16 };

/* dim, and the indexed sides. A copy without an added term keeps bits, so it is tested with arbitrary integers. */
static const int copies[][2] = {
    {20, 15}, {1, 0},    {1, 31},   {3, 7},    {3, 26},    {4, 1},     {4, 11},   {4, 23},  {16, 0},  {16, 9},
    {16, 18}, {16, 31},  {20, 6},   {20, 24},  {64, 3},    {64, 13},   {64, 22},  {64, 29}, {768, 2}, {768, 12},
    {768, 7}, {768, 31}, {1280, 4}, {1280, 8}, {1280, 15}, {1280, 19}, {1280, 5}, {1, 10},  {3, 17},  {3, 28},
};

typedef struct {
    int *to, *from, *more;
} copy_lists;

static void build_copy(ops_call *c)
{
    const size_t dim = (size_t)c->n[0];
    const int how = c->n[1];
    const ops_element type = how & ADDS ? OPS_FLOAT : OPS_INT;
    copy_lists *l = c->data = ops_host(c, sizeof *l);
    l->from = how & BY_FROM ? ops_below(c, COPIED, FROM) : NULL;
    l->more = how & BY_MORE ? ops_below(c, COPIED, MORE) : NULL;
    l->to = how & BY_TO ? ops_host(c, COPIED * sizeof(int)) : NULL;
    for (int r = 0; r < COPIED && l->to; r++) l->to[r] = (r * 8 + 3 + c->other) % TO; /* each row is written once */
    c->rows = how & (BY_TO | BY_FROM | BY_MORE) ? 0 : COPIED;
    double *src = ops_input(c, type, TO * dim, dim, 1);
    const double *add = ops_input(c, OPS_FLOAT, TO * dim, dim, 1);
    for (size_t i = 0; i < TO * dim && type == OPS_INT; i++) src[i] = (int)ops_word(c);
    if (type == OPS_INT) src[0] = 0x7f812345, src[dim] = INT_MIN; /* a signalling NaN, -0 */
    double *dst = ops_output(c, type, TO * dim, dim, 0, 0);
    ops_last(c)->offset = how & UNALIGNED ? 1 : 0;
    for (size_t i = 0; i < COPIED * dim; i++) {
        const size_t r = i / dim, column = i % dim;
        const double x = src[(size_t)(l->from ? l->from[r] : (int)r) * dim + column];
        const double y = add[(size_t)(l->more ? l->more[r] : (int)r) * dim + column];
        dst[(size_t)(l->to ? l->to[r] : (int)r) * dim + column] = how & ADDS ? (double)((float)x + (float)y) : x;
    }
}

static void run_copy(kern_queue *k, const ops_call *c, void *const *a)
{
    const copy_lists *l = c->data;
    k->core->copy_rows(k, a[2], l->to, a[0], l->from, c->n[1] & ADDS ? a[1] : NULL, l->more,
                       c->rows || !(c->n[1] & 7) ? c->rows : COPIED, c->n[0]);
}

static const int counts[][2] = {{1000, 0}, {0, 0}, {1, 0}, {3, 1}, {4, 0}, {17, 1}, {17, 0}, {4099, 1}, {70000, 0}};

/* Computes b = a - b in place. */
static void build_subtract(ops_call *c)
{
    const size_t n = (size_t)c->n[0], offset = (size_t)c->n[1];
    const double *a = ops_input(c, OPS_FLOAT, n, 0, 1);
    ops_last(c)->offset = offset;
    double *b = ops_input(c, OPS_FLOAT, n + 1, 0, 1), *y = ops_written(c, 0, 0);
    ops_last(c)->offset = offset;
    for (size_t i = 0; i < n; i++) y[i] = (double)((float)a[i] - (float)b[i]);
}

static void run_subtract(kern_queue *k, const ops_call *c, void *const *a)
{
    k->core->subtract(k, a[0], a[1], (size_t)c->n[0], a[1]);
}

/* Conversion rounds to nearest, ties to even, and keeps NaN and infinities. */
static void build_to_act(ops_call *c)
{
    const uint32_t special[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x7f800000, 0xff800000,
                                0x7f7fffff, 0x80000001, 0x00000000, 0x7fc00000, 0xffc00000};
    const size_t n = (size_t)c->n[0], offset = (size_t)c->n[1];
    double *x = ops_input(c, OPS_FLOAT, n, 0, 3), *y = NULL;
    ops_last(c)->offset = offset;
    for (size_t i = 0; i < 10 && n > 11; i++) {
        float f;
        memcpy(&f, &special[i], sizeof f);
        x[i + 1] = (double)f;
    }
    y = ops_output(c, OPS_ACT, n + 1, 0, 0, 0);
    ops_last(c)->offset = offset;
    for (size_t i = 0; i < n; i++) y[i] = ops_element_of(c, OPS_ACT, x[i]);
}

static void run_to_act(kern_queue *k, const ops_call *c, void *const *a)
{
    k->core->to_act(k, a[0], (size_t)c->n[0], a[1]);
}

/* --- comparisons -------------------------------------------------------------------------------------------------- */

/* rows, heads, head_dim, stride */
static const int similarities[][4] = {{13, 4, 64, 256}, {1, 1, 16, 16}, {9, 3, 80, 250}, {20, 16, 20, 960}};

static void build_similarity(ops_call *c)
{
    const int rows = c->rows = c->n[0], heads = c->n[1], dim = c->n[2];
    const size_t stride = (size_t)c->n[3], n = (size_t)rows * stride;
    double *a = ops_input(c, OPS_ACT, n, stride, 1), *b = ops_input(c, OPS_ACT, n, stride, 1);
    for (size_t i = 0; i < n; i++) {
        b[i] = ops_element_of(c, OPS_ACT, a[i] + 0.5 * b[i]);
        if (rows > 2 && i < (size_t)(heads * dim)) a[i] = b[i] = 0;
        if (rows > 2 && i >= stride && i < stride + (size_t)dim) a[i] = 0;
    }
    double *y = ops_output(c, OPS_FLOAT, (size_t)rows, 1, 1, 1);
    ops_last(c)->each = 1e-5;
    for (int r = 0; r < rows; r++) {
        y[r] = 0;
        for (int h = 0; h < heads; h++) {
            double ab = 0, aa = 0, bb = 0;
            for (int i = 0; i < dim; i++) {
                const double u = a[(size_t)r * stride + (size_t)(h * dim + i)];
                const double v = b[(size_t)r * stride + (size_t)(h * dim + i)];
                ab += u * v, aa += u * u, bb += v * v;
            }
            y[r] += aa > 0 && bb > 0 ? ab / sqrt(aa * bb) / heads : 0;
        }
    }
}

static void run_similarity(kern_queue *k, const ops_call *c, void *const *a)
{
    float y[32] = {7};
    k->core->similarity(k, a[0], a[1], c->n[3], c->rows, c->n[1], c->n[2], y);
    k->core->upload(k, a[2], y, (size_t)c->rows * sizeof *y);
}

/* Row of the non-finite value (-1: none), and its kind. Non-finite numbers behind the rows must not matter. */
static const int nonfinites[][2] = {{69, 0}, {-1, 0}, {40, 1}, {9, 2}, {0, 3}};
enum { SEARCHED = 70, WIDTH = 37, STRIDE = 40 };

static void build_first_nonfinite(ops_call *c)
{
    static const double values[4] = {NAN, -NAN, INFINITY, -INFINITY};
    const int row = c->n[0];
    for (int operands = 0; operands < 2; operands++) {
        double *x = ops_input(c, operands ? OPS_ACT : OPS_FLOAT, SEARCHED * STRIDE, STRIDE, 1e37);
        for (int r = 0; r < SEARCHED; r++) x[r * STRIDE + WIDTH] = NAN;
        if (row >= 0) x[row * STRIDE + c->n[1] * 12] = values[c->n[1]], x[SEARCHED * STRIDE - STRIDE] = NAN;
    }
    double *found = ops_output(c, OPS_INT, 3, 0, 0, 0);
    found[0] = found[1] = row, found[2] = -1;
}

static void run_first_nonfinite(kern_queue *k, const ops_call *c, void *const *a)
{
    const int failed = k->failed != MAR_OK;
    (void)c;
    const int found[3] = {k->core->first_nonfinite(k, a[0], MAR_DTYPE_F32, SEARCHED, WIDTH, STRIDE),
                          k->core->first_nonfinite(k, a[1], MAR_DTYPE_AUTO, SEARCHED, WIDTH, STRIDE),
                          k->core->first_nonfinite(k, a[0], MAR_DTYPE_F32, 0, WIDTH, STRIDE)};
    if (failed) assert_true(found[0] == -1 && found[1] == -1);
    k->core->upload(k, a[2], found, sizeof found);
}

/* rows, columns, dim, offset: one block or several, with or without vectors */
static const int distances[][4] = {{3, 2, 64, 0}, {1, 1, 1, 0},    {130, 131, 24, 0}, {17, 140, 37, 0},
                                   {9, 5, 36, 1}, {2, 3, 2048, 0}, {100, 37, 2048, 0}};

/* Equal rows must have distance 0, however far they are from 0. The other array has the transposed distances. */
static void build_distances(ops_call *c)
{
    const int rows = c->rows = c->n[0], columns = c->n[1], dim = c->n[2];
    const size_t d = (size_t)dim;
    double *a = ops_input(c, OPS_FLOAT, (size_t)rows * d, d, 1);
    ops_last(c)->offset = (size_t)c->n[3];
    double *b = ops_input(c, OPS_FLOAT, (size_t)columns * d, 0, 1);
    for (size_t i = 0; i < (size_t)rows * d; i++) a[i] = (double)(float)(a[i] + 1000);
    for (size_t i = 0; i < (size_t)columns * d; i++) b[i] = (double)(float)(b[i] + 1000);
    memcpy(b + (size_t)(columns - 1) * d, a, d * sizeof *a);
    double *y = ops_output(c, OPS_FLOAT, (size_t)(rows * columns), (size_t)columns, 0, 0);
    ops_last(c)->allowed = 1e-5;
    double *back = ops_output(c, OPS_FLOAT, (size_t)(rows * columns), 0, 0, 0);
    for (int i = 0; i < rows * columns; i++) {
        y[i] = 0, back[i] = ops_any;
        for (int j = 0; j < dim; j++) y[i] += pow(a[i / columns * dim + j] - b[i % columns * dim + j], 2);
    }
}

static void run_distances(kern_queue *k, const ops_call *c, void *const *a)
{
    k->core->distances(k, a[0], c->rows, a[1], c->n[1], c->n[2], a[2]);
    k->core->distances(k, a[1], c->rows ? c->n[1] : 0, a[0], c->rows, c->n[2], a[3]);
}

static void check_distances(const ops_call *c, double *const *got)
{
    const int rows = c->n[0], columns = c->n[1];
    assert_true(got[2][columns - 1] == 0);
    for (int i = 0; i < rows * columns; i++) {
        const double y = got[2][i], want = c->array[2].want[i];
        assert_true(y == got[3][i % columns * rows + i / columns]);
        if (!(fabs(y - want) <= 1e-5 * want))
            fail_msg("%d and %d: %.9g, expected %.9g", i / columns, i % columns, y, want);
    }
}

static const ops_entry table[] = {
    {"layer_norm", "dim rows indexed y_f32 offset kind", OPS_CASES(norms), OPS_ALONE, build_layer_norm, run_layer_norm,
     NULL, NULL, NULL},
    {"rms_norm", "dim rows indexed y_f32 offset kind", OPS_CASES(norms), OPS_ALONE, build_rms_norm, run_rms_norm, NULL,
     NULL, NULL},
    {"rms_norm, PyTorch", "dim rows indexed y_f32", OPS_CASES(golden_norms), OPS_ALONE, build_golden_rms_norm,
     run_rms_norm, NULL, NULL, NULL},
    {"gated", "rows hidden gelu", OPS_CASES(gates), OPS_ALONE, build_gated, run_gated, NULL, NULL, NULL},
    {"swiglu, PyTorch", "rows hidden", OPS_CASES(golden_swiglus), OPS_ALONE, build_golden_swiglu, run_gated, NULL, NULL,
     NULL},
    {"rotate", "rows heads dim angles", OPS_CASES(rotations), OPS_ALONE, build_rotate, run_rotate, NULL, NULL, NULL},
    {"rotate, PyTorch", "rows heads dim angles", OPS_CASES(golden_rotations), OPS_ALONE, build_golden_rotate,
     run_rotate, NULL, NULL, NULL},
    {"look_up", "dim size rows", OPS_CASES(look_ups), OPS_ALONE, build_look_up, run_look_up, NULL, NULL, NULL},
    {"embed", "dim", OPS_CASES(embeddings), OPS_ALONE, build_embed, run_embed, NULL, NULL, NULL},
    {"copy_rows", "dim indexed", OPS_CASES(copies), OPS_ALONE, build_copy, run_copy, NULL, NULL, NULL},
    {"subtract", "n offset", OPS_CASES(counts), 0, build_subtract, run_subtract, NULL, NULL, NULL},
    {"to_act", "n offset", OPS_CASES(counts), 0, build_to_act, run_to_act, NULL, NULL, NULL},
    {"similarity", "rows heads dim stride", OPS_CASES(similarities), OPS_ALONE | OPS_HOST, build_similarity,
     run_similarity, NULL, NULL, NULL},
    {"first_nonfinite", "row value", OPS_CASES(nonfinites), OPS_HOST, build_first_nonfinite, run_first_nonfinite, NULL,
     NULL, NULL},
    {"distances", "rows columns dim offset", OPS_CASES(distances), OPS_ALONE, build_distances, run_distances, NULL,
     NULL, check_distances},
};

int main(void)
{
    return ops_main(table);
}
