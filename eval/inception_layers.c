/* Layers of Inception-v3 (Szegedy et al., 2015) in TensorFlow's version of 2015-12-05, under torchvision's names. */
#include "eval/inception_layers.h"

#include <stdio.h>
#include <string.h>

/* Source and destination of a row. */
typedef enum {
    BLOCK, /* source: the block's input; destination: the next channels of its output */
    A,     /* scratch */
    B,     /* scratch */
} place;

typedef struct {
    const char *name; /* of a convolution; NULL: a 3x3 pool */
    int kernel_h, kernel_w;
    int stride;
    /* Convolutions: zero padding that keeps the size at stride 1. Pools: padding of one pixel. */
    int padded;
    kern_pool_kind pool;
    place from, to;
} row;

/* clang-format off */
static const row stem_1[] = {{"Conv2d_1a_3x3", 3, 3, 2, 0, 0, BLOCK, BLOCK}};
static const row stem_2[] = {{"Conv2d_2a_3x3", 3, 3, 1, 0, 0, BLOCK, BLOCK}};
static const row stem_3[] = {{"Conv2d_2b_3x3", 3, 3, 1, 1, 0, BLOCK, BLOCK}};
static const row stem_4[] = {{NULL, 3, 3, 2, 0, KERN_POOL_MAX, BLOCK, BLOCK}};
static const row stem_5[] = {{"Conv2d_3b_1x1", 1, 1, 1, 0, 0, BLOCK, BLOCK}};
static const row stem_6[] = {{"Conv2d_4a_3x3", 3, 3, 1, 0, 0, BLOCK, BLOCK}};

static const row inception_a[] = {
    {"branch1x1", 1, 1, 1, 0, 0, BLOCK, BLOCK},
    {"branch5x5_1", 1, 1, 1, 0, 0, BLOCK, A},
    {"branch5x5_2", 5, 5, 1, 1, 0, A, BLOCK},
    {"branch3x3dbl_1", 1, 1, 1, 0, 0, BLOCK, A},
    {"branch3x3dbl_2", 3, 3, 1, 1, 0, A, B},
    {"branch3x3dbl_3", 3, 3, 1, 1, 0, B, BLOCK},
    {NULL, 3, 3, 1, 1, KERN_POOL_MEAN, BLOCK, A},
    {"branch_pool", 1, 1, 1, 0, 0, A, BLOCK},
};
static const row inception_b[] = {
    {"branch3x3", 3, 3, 2, 0, 0, BLOCK, BLOCK},
    {"branch3x3dbl_1", 1, 1, 1, 0, 0, BLOCK, A},
    {"branch3x3dbl_2", 3, 3, 1, 1, 0, A, B},
    {"branch3x3dbl_3", 3, 3, 2, 0, 0, B, BLOCK},
    {NULL, 3, 3, 2, 0, KERN_POOL_MAX, BLOCK, BLOCK},
};
static const row inception_c[] = {
    {"branch1x1", 1, 1, 1, 0, 0, BLOCK, BLOCK},
    {"branch7x7_1", 1, 1, 1, 0, 0, BLOCK, A},
    {"branch7x7_2", 1, 7, 1, 1, 0, A, B},
    {"branch7x7_3", 7, 1, 1, 1, 0, B, BLOCK},
    {"branch7x7dbl_1", 1, 1, 1, 0, 0, BLOCK, A},
    {"branch7x7dbl_2", 7, 1, 1, 1, 0, A, B},
    {"branch7x7dbl_3", 1, 7, 1, 1, 0, B, A},
    {"branch7x7dbl_4", 7, 1, 1, 1, 0, A, B},
    {"branch7x7dbl_5", 1, 7, 1, 1, 0, B, BLOCK},
    {NULL, 3, 3, 1, 1, KERN_POOL_MEAN, BLOCK, A},
    {"branch_pool", 1, 1, 1, 0, 0, A, BLOCK},
};
static const row inception_d[] = {
    {"branch3x3_1", 1, 1, 1, 0, 0, BLOCK, A},
    {"branch3x3_2", 3, 3, 2, 0, 0, A, BLOCK},
    {"branch7x7x3_1", 1, 1, 1, 0, 0, BLOCK, A},
    {"branch7x7x3_2", 1, 7, 1, 1, 0, A, B},
    {"branch7x7x3_3", 7, 1, 1, 1, 0, B, A},
    {"branch7x7x3_4", 3, 3, 2, 0, 0, A, BLOCK},
    {NULL, 3, 3, 2, 0, KERN_POOL_MAX, BLOCK, BLOCK},
};
#define INCEPTION_E(pool)                                                                                              \
    {"branch1x1", 1, 1, 1, 0, 0, BLOCK, BLOCK},                                                                        \
    {"branch3x3_1", 1, 1, 1, 0, 0, BLOCK, A},                                                                          \
    {"branch3x3_2a", 1, 3, 1, 1, 0, A, BLOCK},                                                                         \
    {"branch3x3_2b", 3, 1, 1, 1, 0, A, BLOCK},                                                                         \
    {"branch3x3dbl_1", 1, 1, 1, 0, 0, BLOCK, A},                                                                       \
    {"branch3x3dbl_2", 3, 3, 1, 1, 0, A, B},                                                                           \
    {"branch3x3dbl_3a", 1, 3, 1, 1, 0, B, BLOCK},                                                                      \
    {"branch3x3dbl_3b", 3, 1, 1, 1, 0, B, BLOCK},                                                                      \
    {NULL, 3, 3, 1, 1, pool, BLOCK, A},                                                                                \
    {"branch_pool", 1, 1, 1, 0, 0, A, BLOCK}
static const row inception_e[] = {INCEPTION_E(KERN_POOL_MEAN)};
/* The last block uses a max pool, as TensorFlow's network does. All others, and the paper, use a mean pool. */
static const row inception_e_max[] = {INCEPTION_E(KERN_POOL_MAX)};

#define ROWS(rows) rows, sizeof rows / sizeof *rows
static const struct {
    const char *name; /* "": its rows have full names */
    const row *rows;
    size_t count;
    int spatial; /* 1: source of the spatial features, the first channels of branch1x1 */
} blocks[] = {
    {"", ROWS(stem_1), 0},
    {"", ROWS(stem_2), 0},
    {"", ROWS(stem_3), 0},
    {"", ROWS(stem_4), 0},
    {"", ROWS(stem_5), 0},
    {"", ROWS(stem_6), 0},
    {"", ROWS(stem_4), 0},
    {"Mixed_5b.", ROWS(inception_a), 0},
    {"Mixed_5c.", ROWS(inception_a), 0},
    {"Mixed_5d.", ROWS(inception_a), 0},
    {"Mixed_6a.", ROWS(inception_b), 0},
    {"Mixed_6b.", ROWS(inception_c), 0},
    {"Mixed_6c.", ROWS(inception_c), 0},
    {"Mixed_6d.", ROWS(inception_c), 1},
    {"Mixed_6e.", ROWS(inception_c), 0},
    {"Mixed_7a.", ROWS(inception_d), 0},
    {"Mixed_7b.", ROWS(inception_e), 0},
    {"Mixed_7c.", ROWS(inception_e_max), 0},
};
/* clang-format on */

enum { SPATIAL_CHANNELS = 7, CHANNELS_MAX = 1 << 16 };

/* State while the layers are listed. */
typedef struct {
    const wt_file *f;
    inception_layers *l;
    int input;    /* array, 0 or 1, that the block reads; it writes the other one */
    int channels; /* of the block's input */
    int side;     /* of the block's input */
    mar_err *err;
} builder;

/* Derives the output channels of a convolution with s->in input channels. */
static mar_status derive_channels(const builder *p, const inception_step *s, int *out)
{
    char name[INCEPTION_NAME + 16], expected[96], found[128];
    snprintf(name, sizeof name, "%s.conv.weight", s->name);
    snprintf(expected, sizeof expected, "[1..%d, %d, %d, %d]", CHANNELS_MAX, s->in, s->kernel_h, s->kernel_w);
    const wt_tensor *t = wt_find(p->f, name);
    if (!t)
        return err_set(p->err, MAR_EMODEL, "%s: tensor %s is missing, expected shape %s", wt_path(p->f), name,
                       expected);
    if (t->rank != 4 || t->shape[0] < 1 || t->shape[0] > CHANNELS_MAX || t->shape[1] != s->in ||
        t->shape[2] != s->kernel_h || t->shape[3] != s->kernel_w)
        return err_set(p->err, MAR_EMODEL, "%s: tensor %s has shape %s, expected %s", wt_path(p->f), name,
                       wt_shape_text(t, found, sizeof found), expected);
    *out = (int)t->shape[0];
    return MAR_OK;
}

static void grow_buffer(builder *p, int buffer, int side, int channels)
{
    const size_t elements = (size_t)side * (size_t)side * (size_t)channels;
    if (p->l->elements[buffer] < elements) p->l->elements[buffer] = elements;
}

static void set_extent(inception_step *s, const row *r)
{
    s->kernel_h = r->kernel_h;
    s->kernel_w = r->kernel_w;
    s->stride = r->stride;
    s->pad_h = r->padded ? r->kernel_h / 2 : 0;
    s->pad_w = r->padded ? r->kernel_w / 2 : 0;
    s->out_side = (s->side + 2 * s->pad_h - s->kernel_h) / s->stride + 1;
    s->pool = (kern_pool){r->pool, r->kernel_h, r->stride, s->pad_h};
}

static mar_status add_block(builder *p, const char *name, const row *rows, size_t count)
{
    inception_layers *l = p->l;
    const int first = l->count, output = 1 - p->input;
    int channels[3] = {p->channels}, offset = 0, side = 0; /* of each place; of the block's output */
    for (size_t i = 0; i < count; i++) {
        const row *r = &rows[i];
        inception_step *s = &l->steps[l->count++];
        *s = (inception_step){.kind = r->name ? INCEPTION_CONV : INCEPTION_POOL, .in = channels[r->from]};
        s->side = p->side;
        s->from = r->from == BLOCK ? p->input : 1 + (int)r->from;
        s->to = r->to == BLOCK ? output : 1 + (int)r->to;
        s->out = s->in;
        set_extent(s, r);
        if (r->name) {
            snprintf(s->name, sizeof s->name, "%s%s", name, r->name);
            const mar_status status = derive_channels(p, s, &s->out);
            if (status != MAR_OK) return status;
        }
        if (r->to == BLOCK) {
            s->offset = offset;
            offset += s->out;
            side = s->out_side;
        } else {
            channels[r->to] = s->row = s->out;
            grow_buffer(p, s->to, s->out_side, s->out);
        }
    }
    if (offset > CHANNELS_MAX)
        return err_set(p->err, MAR_EMODEL, "%s: block %s has %d channels, expected at most %d", wt_path(p->f), name,
                       offset, CHANNELS_MAX);
    for (int i = first; i < l->count; i++)
        if (l->steps[i].to == output) l->steps[i].row = offset;
    grow_buffer(p, output, side, offset);
    p->input = output;
    p->channels = offset;
    p->side = side;
    return MAR_OK;
}

/* Appends the step that copies the spatial features, the first channels of branch1x1, from the last block's output. */
static void add_spatial(builder *p, const inception_step *branch1x1)
{
    inception_layers *l = p->l;
    l->spatial_channels = branch1x1->out < SPATIAL_CHANNELS ? branch1x1->out : SPATIAL_CHANNELS;
    l->spatial_side = p->side;
    l->steps[l->count++] = (inception_step){.kind = INCEPTION_TAKE,
                                            .in = p->channels,
                                            .out = l->spatial_channels,
                                            .side = p->side,
                                            .out_side = p->side,
                                            .from = p->input};
}

static mar_status derive_classes(const builder *p, inception_layers *l)
{
    char found[128];
    const wt_tensor *t = wt_find(p->f, "fc.weight");
    if (!t)
        return err_set(p->err, MAR_EMODEL, "%s: tensor fc.weight is missing, expected shape [classes, %d]",
                       wt_path(p->f), l->features);
    if (t->rank != 2 || t->shape[0] < 1 || t->shape[0] > CHANNELS_MAX || t->shape[1] != l->features)
        return err_set(p->err, MAR_EMODEL, "%s: tensor fc.weight has shape %s, expected [1..%d, %d]", wt_path(p->f),
                       wt_shape_text(t, found, sizeof found), CHANNELS_MAX, l->features);
    l->classes = (int)t->shape[0];
    return MAR_OK;
}

mar_status inception_layers_derive(const wt_file *f, inception_layers *out, mar_err *err)
{
    builder p = {.f = f, .l = out, .channels = 3, .side = INCEPTION_SIDE, .err = err};
    memset(out, 0, sizeof *out);
    if (wt_find(f, "AuxLogits.fc.weight"))
        return err_set(err, MAR_EMODEL,
                       "%s: is torchvision's own Inception-v3, which has AuxLogits; expected TensorFlow's weights of "
                       "2015-12-05, which FID and the Inception score are defined with",
                       wt_path(f));
    grow_buffer(&p, 0, INCEPTION_SIDE, 3);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        const inception_step *first = &out->steps[out->count];
        const mar_status status = add_block(&p, blocks[i].name, blocks[i].rows, blocks[i].count);
        if (status != MAR_OK) return status;
        if (blocks[i].spatial) add_spatial(&p, first);
    }
    out->last = p.input;
    out->last_side = p.side;
    out->features = p.channels;
    out->parameters = wt_count_parameters(f);
    return derive_classes(&p, out);
}
