/* The transformer of a ViT (SphereAR/layers.py, vae.py; DeTok/models/detok.py): register tokens and all tokens of an
 * image attend to each other. Queries and keys are rotated by their token's row and column, those of registers are
 * not. */
#include "vae/steps.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>

static const float rms_eps = 1e-6f; /* eps of RMSNorm in both */

struct vae_vit_pass {
    kern_queue *k;
    const vae_vit *v;
    int tokens;  /* of an image */
    float *rope; /* the table of this grid, if the decoder has none: owned */
    /* Lists for the images of a batch, in one allocation. */
    int *slot;             /* [images][registers + tokens] each row's own index */
    int *position;         /* [images][registers + tokens] row of the table of positions */
    int *row;              /* [images][tokens] row of each token */
    int *piece;            /* [images][tokens][patch] vae_vit_pieces */
    int *reg_row, *reg_at; /* [images][registers] row of each register token, and its index */
};

/* --- positions ---------------------------------------------------------------------------------------------------- */

/* Returns the table of positions, host float [registers + grid_h * grid_w][head][cos, sin]: the first half of a head's
 * pairs turns with the column, the second with the row, both measured at a token's centre, plus one. */
static float *vit_pass_make_table(const vae_vit_shape *s, int grid_h, int grid_w)
{
    const int head = s->width / s->heads, quarter = head / 4;
    const size_t rows = (size_t)s->registers + (size_t)grid_h * (size_t)grid_w;
    float *table = malloc(rows * (size_t)head * sizeof *table), *to = table;
    if (!table) return NULL;
    for (int r = -s->registers; r < grid_h * grid_w; r++)
        for (int axis = 0; axis < 2; axis++)
            for (int i = 0; i < quarter; i++) {
                const double at = r < 0 ? 0 : (axis ? r / grid_w : r % grid_w) + 1.5;
                const double turn = at * pow(10000, -(double)i / quarter);
                *to++ = (float)cos(turn);
                *to++ = (float)sin(turn);
            }
    return table;
}

/* Returns l-DeTok's table, host float [grid_h * grid_w][head][cos, sin]: an angle for each number of a head, the first
 * half by the row, the second by the column. Both count from 0 to 1. A half has its frequencies twice, from 7 down to
 * 7e-4 turns, one after another: so the numbers of a pair differ. */
static float *vit_pass_make_angles(const vae_vit_shape *s, int grid_h, int grid_w)
{
    const int head = s->width / s->heads, quarter = head / 4;
    float *table = malloc(2 * (size_t)grid_h * (size_t)grid_w * (size_t)head * sizeof *table), *to = table;
    if (!table) return NULL;
    for (int r = 0; r < grid_h * grid_w; r++)
        for (int i = 0; i < head; i++) {
            const int by_column = i >= head / 2, length = by_column ? grid_w : grid_h;
            const double at = (double)(by_column ? r % grid_w : r / grid_w) / (length > 1 ? length - 1 : 1);
            const double step = quarter > 1 ? (double)(i % quarter) / (quarter - 1) : 0;
            const double turn = 2 * acos(-1) * at * 7 * pow(1e-4, step);
            *to++ = (float)cos(turn);
            *to++ = (float)sin(turn);
        }
    return table;
}

static mar_status upload_table(vae_vit_pass *p, int grid_h, int grid_w, mar_err *err)
{
    const vae_vit_shape *s = &p->v->shape;
    const int angles = s->names->angles;
    const size_t n = (size_t)angles * (size_t)(s->registers + p->tokens) * (size_t)(s->width / s->heads);
    float *host = angles == 2 ? vit_pass_make_angles(s, grid_h, grid_w) : vit_pass_make_table(s, grid_h, grid_w);
    if (!host) return err_set(err, MAR_ENOMEM, "out of memory");
    const mar_status status = kern_new_array(p->k, host, n, &p->rope, err);
    free(host);
    return status == MAR_OK ? kern_check(p->k, err) : status;
}

/* --- a pass's lists and memory -------------------------------------------------------------------------------------
 */

static int vit_pass_rows_of(const vae_vit_pass *p)
{
    return p->v->shape.registers + p->tokens;
}

/* Lists the rows of pixels of each patch. */
static void list_pieces(vae_vit_pass *p, int grid_w, int images)
{
    const int patch = p->v->shape.patch, grid_h = p->tokens / grid_w;
    int *to = p->piece;
    for (int row = 0; row < images * grid_h; row++)
        for (int column = 0; column < grid_w; column++)
            for (int i = 0; i < patch; i++) *to++ = (row * patch + i) * grid_w + column;
}

static mar_status make_lists(vae_vit_pass *p, int images, mar_err *err)
{
    const int registers = p->v->shape.registers, rows = vit_pass_rows_of(p);
    const size_t n = (size_t)images, pieces = (size_t)p->tokens * (size_t)p->v->shape.patch;
    int *list = p->slot = malloc(n * (3 * (size_t)rows + (size_t)registers + pieces) * sizeof *list);
    if (!list) return err_set(err, MAR_ENOMEM, "out of memory for the rows of %d images", images);
    p->position = p->slot + n * (size_t)rows;
    p->row = p->position + n * (size_t)rows;
    p->reg_row = p->row + n * (size_t)p->tokens;
    p->reg_at = p->reg_row + n * (size_t)registers;
    p->piece = p->reg_at + n * (size_t)registers;
    for (int image = 0, token = 0, reg = 0; image < images; image++)
        for (int i = 0; i < rows; i++) {
            const int row = image * rows + i;
            p->slot[row] = row;
            p->position[row] = i;
            if (i >= registers) {
                p->row[token++] = row;
            } else {
                p->reg_row[reg] = row;
                p->reg_at[reg++] = i;
            }
        }
    return MAR_OK;
}

mar_status vae_vit_pass_create(kern_queue *k, const vae_vit *v, int grid_h, int grid_w, int images, vae_vit_pass **out,
                               mar_err *err)
{
    const int grid = v->shape.grid;
    *out = NULL;
    if (grid && (grid_h != grid || grid_w != grid))
        return err_set(err, MAR_EMODEL, "the image decoder is for %dx%d tokens, expected such an image, not %dx%d",
                       grid, grid, grid_h, grid_w);
    vae_vit_pass *p = calloc(1, sizeof *p);
    if (!p) return err_set(err, MAR_ENOMEM, "out of memory");
    *p = (vae_vit_pass){.k = k, .v = v, .tokens = grid_h * grid_w};
    mar_status status = make_lists(p, images, err);
    if (status == MAR_OK) list_pieces(p, grid_w, images);
    if (status == MAR_OK && !v->rope) status = upload_table(p, grid_h, grid_w, err);
    if (status != MAR_OK) {
        vae_vit_pass_free(p);
        return status;
    }
    *out = p;
    return MAR_OK;
}

void vae_vit_pass_free(vae_vit_pass *p)
{
    if (!p) return;
    if (p->rope) p->k->core->finish(p->k); /* its upload, or a pass, may still run */
    p->k->core->free(p->k->device, p->rope);
    free(p->slot);
    free(p);
}

/* Arrays of operands: [rows] of each. */
typedef struct {
    act *normed; /* [width] */
    act *qkv;    /* [3 * width] */
    act *cache;  /* [2 * width] rotated keys, and values */
    act *attn;   /* [width] */
    act *hidden; /* [2 * hidden] */
    act *gated;  /* [hidden] */
} arrays;

/* Lays out the arrays of `rows` rows at base. Returns their size. With base NULL it only counts. */
static size_t vit_pass_lay_out(const vae_vit_shape *s, size_t rows, size_t size, char *base, arrays *a)
{
    const size_t d = (size_t)s->width, hidden = (size_t)s->hidden;
    size_t used = 0;
    a->normed = arena_carve(base, &used, rows * d, size);
    a->qkv = arena_carve(base, &used, rows * 3 * d, size);
    a->cache = arena_carve(base, &used, rows * 2 * d, size);
    a->attn = arena_carve(base, &used, rows * d, size);
    a->hidden = arena_carve(base, &used, rows * 2 * hidden, size);
    a->gated = arena_carve(base, &used, rows * hidden, size);
    return used;
}

size_t vae_vit_bytes(const kern_device *device, const vae_vit *v, size_t tokens, size_t *streamed)
{
    const size_t rows = (size_t)v->shape.registers + tokens;
    arrays a;
    *streamed = rows * (size_t)v->shape.width;
    return vit_pass_lay_out(&v->shape, rows, device->act_size, NULL,
                            &a); /* more images are aligned together, which is less */
}

double vae_vit_flop(const vae_vit *v, size_t tokens)
{
    const vae_vit_shape *s = &v->shape;
    const double d = s->width, rows = (double)s->registers + (double)tokens;
    return s->depth * (2 * rows * d * (4 * d + 3.0 * s->hidden) + 4 * rows * rows * d);
}

mar_status vae_vit_plan(const vae_vit_pass *p, int images, mar_err *err)
{
    const vae_vit_shape *s = &p->v->shape;
    kern_queue *k = p->k;
    const int n = vit_pass_rows_of(p), d = s->width;
    mar_status status = k->core->attention_plan(k, n, n, s->heads, d / s->heads, 3 * d, 2 * d, err);
    for (int i = 0; status == MAR_OK && i < s->depth; i++) {
        const vae_vit_layer *l = &p->v->layers[i];
        const kern_linear *layers[] = {l->qkv, l->wo, l->w1, l->w2};
        for (int j = 0; status == MAR_OK && j < 4; j++) status = k->core->linear_plan(k, layers[j], images * n, err);
    }
    return status;
}

/* --- the transformer -----------------------------------------------------------------------------------------------
 */

/* State of a call. */
typedef struct {
    const vae_vit_pass *p;
    int images, rows;
    float *x; /* [rows][width] residual stream */
    arrays a;
    const char *name;
} call;

/* Shows a layer's output to the search for the first non-finite one. */
static void vit_pass_watch(const call *c, int layer, const char *module, const char *name, const void *y, int f32,
                           int width)
{
    kern_watch(c->p->k, y, f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO, c->rows, width, width, "%s.%d.%s%s%s", c->name, layer,
               module, *name ? "." : "", name);
}

/* x += wo(attention(rotate(qkv(norm(x))))) */
static void attend(const call *c, int layer)
{
    const vae_vit_pass *p = c->p;
    const vae_vit_shape *s = &p->v->shape;
    const vae_vit_layer *l = &p->v->layers[layer];
    const arrays *a = &c->a;
    kern_queue *k = p->k;
    const int n = vit_pass_rows_of(p), d = s->width, head = d / s->heads;
    k->core->rms_norm(k, c->x, NULL, c->rows, d, l->attention_norm, rms_eps, a->normed, 0);
    vit_pass_watch(c, layer, s->names->norm[0], "", a->normed, 0, d);
    k->core->linear(k, l->qkv, a->normed, c->rows, a->qkv);
    vit_pass_watch(c, layer, s->names->attention, s->names->qkv, a->qkv, 0, 3 * d);
    k->core->rotate(k, a->qkv, c->rows, s->heads, head, s->names->angles, p->v->rope ? p->v->rope : p->rope,
                    p->position, a->cache, p->slot);
    k->core->attention(k, a->qkv, 3 * d, a->cache, (char *)a->cache + (size_t)d * k->device->act_size, 2 * d, c->images,
                       n, n, s->heads, head, a->attn);
    vit_pass_watch(c, layer, s->names->attention, "", a->attn, 0, d);
    k->core->linear(k, l->wo, a->attn, c->rows, c->x);
    vit_pass_watch(c, layer, s->names->attention, s->names->wo, c->x, 1, d);
}

/* x += w2(swiglu(w1(norm(x)))) */
static void feed_forward(const call *c, int layer)
{
    const vae_vit_shape *s = &c->p->v->shape;
    const vae_vit_layer *l = &c->p->v->layers[layer];
    const arrays *a = &c->a;
    kern_queue *k = c->p->k;
    k->core->rms_norm(k, c->x, NULL, c->rows, s->width, l->ffn_norm, rms_eps, a->normed, 0);
    vit_pass_watch(c, layer, s->names->norm[1], "", a->normed, 0, s->width);
    k->core->linear(k, l->w1, a->normed, c->rows, a->hidden);
    vit_pass_watch(c, layer, s->names->mlp, s->names->w1, a->hidden, 0, 2 * s->hidden);
    k->core->gated(k, a->hidden, c->rows, s->hidden, KERN_SILU, a->gated);
    vit_pass_watch(c, layer, s->names->mlp, "", a->gated, 0, s->hidden);
    k->core->linear(k, l->w2, a->gated, c->rows, c->x);
    vit_pass_watch(c, layer, s->names->mlp, s->names->w2, c->x, 1, s->width);
}

const int *vae_vit_pieces(const vae_vit_pass *p)
{
    return p->piece;
}

/* Writes the rows of the layers to c->x: registers and tokens, or tokens with their positions, normed. */
static void vit_pass_begin(const call *c, float *x)
{
    const vae_vit_pass *p = c->p;
    const vae_vit *v = p->v;
    const vae_vit_shape *s = &v->shape;
    const kern_core_ops *ops = p->k->core;
    const int tokens = c->images * p->tokens;
    if (v->positions) ops->copy_rows(p->k, x, NULL, x, NULL, v->positions, p->position, tokens, s->width);
    if (v->before) {
        ops->rms_norm(p->k, x, NULL, tokens, s->width, v->before, rms_eps, c->x, 1);
        kern_watch(p->k, c->x, MAR_DTYPE_F32, tokens, s->width, s->width, "%s.%s", s->side, s->names->before);
        return;
    }
    ops->copy_rows(p->k, c->x, p->reg_row, v->registers, p->reg_at, NULL, NULL, c->images * s->registers, s->width);
    ops->copy_rows(p->k, c->x, p->row, x, NULL, NULL, NULL, tokens, s->width);
}

/* Writes the tokens' rows to x, normed if the side has a norm there. */
static void vit_pass_end(const call *c, float *x)
{
    const vae_vit_pass *p = c->p;
    const vae_vit *v = p->v;
    const vae_vit_shape *s = &v->shape;
    const int tokens = c->images * p->tokens;
    if (!v->after) {
        p->k->core->copy_rows(p->k, x, NULL, c->x, p->row, NULL, NULL, tokens, s->width);
        return;
    }
    p->k->core->rms_norm(p->k, c->x, p->row, tokens, s->width, v->after, rms_eps, x, 1);
    kern_watch(p->k, x, MAR_DTYPE_F32, tokens, s->width, s->width, "%s.%s", s->side, s->names->after);
}

void vae_vit_run(const vae_vit_pass *p, int images, float *x, float *h, void *work, const char *name)
{
    const vae_vit_shape *s = &p->v->shape;
    call c = {.p = p, .images = images, .rows = images * vit_pass_rows_of(p), .x = h, .name = name};
    vit_pass_begin(&c, x);
    vit_pass_lay_out(s, (size_t)c.rows, p->k->device->act_size, work, &c.a);
    for (int i = 0; i < s->depth; i++) {
        attend(&c, i);
        feed_forward(&c, i);
    }
    vit_pass_end(&c, x);
}
