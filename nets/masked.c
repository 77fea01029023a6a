#include "nets/masked.h"

#include "kernels/int8.h"
#include "weights/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Source, destination and errors of the loading functions. */
typedef struct {
    masked_net *net;
    kern_queue *k;
    const wt_file *file;
    mar_err *err;
} masked_loader;

static mar_status masked_load_host(masked_loader *l, const char *name, int rank, int64_t d0, int64_t d1, int64_t d2,
                                   float **out)
{
    const int64_t shape[3] = {d0, d1, d2};
    return wt_load_f32(l->file, name, rank, shape, out, l->err);
}

/* Loads a tensor as a backend array, with room for `tail` more floats at its end. */
static mar_status masked_load_array(masked_loader *l, const char *name, int rank, int64_t d0, int64_t d1, int64_t d2,
                                    size_t tail, float **out)
{
    const size_t n = (size_t)d0 * (size_t)(rank > 1 ? d1 : 1) * (size_t)(rank > 2 ? d2 : 1);
    float *host = NULL;
    void *p = NULL;
    mar_status status = masked_load_host(l, name, rank, d0, d1, d2, &host);
    if (status == MAR_OK) status = l->k->core->alloc(l->k->device, (n + tail) * sizeof(float), &p, l->err);
    if (status == MAR_OK) l->k->core->upload(l->k, p, host, n * sizeof(float));
    free(host);
    *out = p;
    return status;
}

/* Uploads gain [width], then bias [width], as a backend array. */
static mar_status masked_upload_norm(masked_loader *l, const float *gain, const float *bias, masked_norm *out)
{
    const size_t bytes = (size_t)l->net->shape.width * sizeof *gain;
    void *p = NULL;
    const mar_status status = l->k->core->alloc(l->k->device, 2 * bytes, &p, l->err);
    *out = p;
    if (status != MAR_OK) return status;
    l->k->core->upload(l->k, p, gain, bytes);
    l->k->core->upload(l->k, (char *)p + bytes, bias, bytes);
    return MAR_OK;
}

/* Reads name.weight [rows][in], or [rows] if `in` is 0, and name.bias [rows]. The caller owns the arrays even on
 * failure. */
static mar_status masked_read_pair(masked_loader *l, const char *name, int rows, int in, float **weight, float **bias)
{
    char full[96];
    *bias = NULL;
    snprintf(full, sizeof full, "%s.weight", name);
    mar_status status = masked_load_host(l, full, in ? 2 : 1, rows, in, 0, weight);
    snprintf(full, sizeof full, "%s.bias", name);
    return status == MAR_OK ? masked_load_host(l, full, 1, rows, 0, 0, bias) : status;
}

static mar_status masked_load_norm(masked_loader *l, const char *name, masked_norm *out)
{
    float *gain, *bias;
    mar_status status = masked_read_pair(l, name, l->net->shape.width, 0, &gain, &bias);
    if (status == MAR_OK) status = masked_upload_norm(l, gain, bias, out);
    free(gain);
    free(bias);
    return status;
}

/* The norm in front of a layer, and factors of the layer's columns, or NULL: host [width] each. */
typedef struct {
    float *gain, *bias, *column;
} masked_before;

static void masked_before_free(masked_before *b)
{
    free(b->gain);
    free(b->bias);
    free(b->column);
}

/* Loads rows first .. first + out - 1 of a layer's matrix [rows][in]. */
static mar_status masked_load_rows(masked_loader *l, const char *name, int rows, int first, int out, int in,
                                   const masked_before *b, kern_activation activation, int flags, kern_linear **layer)
{
    wt_rows w = {.file = l->file, .in = in, .count = 1, .piece = {{.rows = rows}}, .first = first, .column = b->column};
    w.bias = 1;
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s.weight", name);
    const kern_linear_spec spec = {
        .out = out, .activation = activation, .flags = flags, .norm = b->gain, .norm_bias = b->bias};
    return wt_create_linear(l->k, &w, spec, layer, l->err);
}

static mar_status masked_load_linear(masked_loader *l, const char *name, int out, int in, kern_activation activation,
                                     int flags, kern_linear **layer)
{
    return masked_load_rows(l, name, out, 0, out, in, &(masked_before){0}, activation, flags, layer);
}

/* Moves the norm's outliers to the columns of the next layer's weights [rows][width], the ones to become int8
 * (kern_int8_smooth). Sets *column to their factors; the caller frees it. */
static mar_status masked_smooth(masked_loader *l, float *gain, float *bias, const char *name, int rows, float **column)
{
    const int width = l->net->shape.width;
    float *weight = malloc((size_t)rows * (size_t)width * sizeof *weight),
          *factor = malloc((size_t)width * sizeof *factor);
    *column = factor;
    mar_status status = weight && factor ? MAR_OK : err_set(l->err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) status = wt_load_matrix_rows(l->file, name, rows, width, 0, rows, weight, l->err);
    if (status == MAR_OK) kern_int8_smooth(gain, weight, rows, width, factor);
    for (int i = 0; status == MAR_OK && i < width; i++) gain[i] /= factor[i], bias[i] /= factor[i];
    free(weight);
    return status;
}

/* Loads the norm in front of a layer of `rows` rows. The caller frees *b even on failure. */
static mar_status masked_load_norm_before(masked_loader *l, const char *norm, const char *layer, int rows,
                                          masked_norm *out, masked_before *b)
{
    char name[96];
    snprintf(name, sizeof name, "%s.weight", layer);
    b->column = NULL;
    mar_status status = masked_read_pair(l, norm, l->net->shape.width, 0, &b->gain, &b->bias);
    if (status == MAR_OK && l->k->device->int8 && !wt_is_int8(l->file, name))
        status = masked_smooth(l, b->gain, b->bias, name, rows, &b->column);
    return status == MAR_OK ? masked_upload_norm(l, b->gain, b->bias, out) : status;
}

static mar_status masked_load_attention(masked_loader *l, const char *name, int last_decoder, masked_block *b)
{
    const int d = l->net->shape.width;
    char norm[96], layer[96];
    masked_before before;
    snprintf(norm, sizeof norm, "%s.norm1", name);
    snprintf(layer, sizeof layer, "%s.attn.qkv", name);
    mar_status status = masked_load_norm_before(l, norm, layer, 3 * d, &b->norm1, &before);
    if (status == MAR_OK && !last_decoder)
        status = masked_load_rows(l, layer, 3 * d, 0, 3 * d, d, &before, KERN_LINEAR, KERN_LOW, &b->qkv);
    if (status == MAR_OK && last_decoder)
        status = masked_load_rows(l, layer, 3 * d, 0, d, d, &before, KERN_LINEAR, KERN_LOW, &b->q);
    if (status == MAR_OK && last_decoder)
        status = masked_load_rows(l, layer, 3 * d, d, 2 * d, d, &before, KERN_LINEAR, KERN_LOW, &b->kv);
    masked_before_free(&before);
    snprintf(layer, sizeof layer, "%s.attn.proj", name);
    return status == MAR_OK
               ? masked_load_linear(l, layer, d, d, KERN_LINEAR, KERN_LOW | KERN_OUT_F32 | KERN_OUT_ADD, &b->proj)
               : status;
}

static mar_status masked_load_mlp(masked_loader *l, const char *name, masked_block *b)
{
    const int d = l->net->shape.width, hidden = l->net->shape.mlp_hidden;
    char norm[96], layer[96];
    masked_before before;
    snprintf(norm, sizeof norm, "%s.norm2", name);
    snprintf(layer, sizeof layer, "%s.mlp.fc1", name);
    mar_status status = masked_load_norm_before(l, norm, layer, hidden, &b->norm2, &before);
    if (status == MAR_OK)
        status = masked_load_rows(l, layer, hidden, 0, hidden, d, &before, KERN_GELU, KERN_LOW, &b->fc1);
    masked_before_free(&before);
    snprintf(layer, sizeof layer, "%s.mlp.fc2", name);
    return status == MAR_OK
               ? masked_load_linear(l, layer, d, hidden, KERN_LINEAR, KERN_LOW | KERN_OUT_F32 | KERN_OUT_ADD, &b->fc2)
               : status;
}

static mar_status masked_load_block(masked_loader *l, const char *stack, int index, int heads, int last_decoder,
                                    masked_block *b)
{
    char name[64];
    b->heads = heads;
    snprintf(name, sizeof name, "%s.%d", stack, index);
    const mar_status status = masked_load_attention(l, name, last_decoder, b);
    return status == MAR_OK ? masked_load_mlp(l, name, b) : status;
}

/* Loads fake_latent, behind the classes if there are any. */
static mar_status masked_load_classes(masked_loader *l)
{
    masked_net *m = l->net;
    const masked_shape *c = &m->shape;
    const int d = c->width;
    float *fake = NULL;
    if (!c->classes) return masked_load_array(l, "fake_latent", 2, 1, d, 0, 0, &m->class_emb);
    mar_status status = masked_load_array(l, "class_emb.weight", 2, c->classes, d, 0, (size_t)d, &m->class_emb);
    if (status == MAR_OK) status = masked_load_host(l, "fake_latent", 2, 1, d, 0, &fake);
    if (status == MAR_OK)
        l->k->core->upload(l->k, m->class_emb + (size_t)c->classes * (size_t)d, fake, (size_t)d * sizeof *fake);
    free(fake);
    return status;
}

/* Returns where position i of `to` reads in a row of `from`, as torch's interpolate without align_corners. */
static float masked_source(int i, int from, int to)
{
    const float at = ((float)i + 0.5f) * ((float)from / (float)to) - 0.5f;
    return at < 0 ? 0 : at;
}

/* Resizes the grid of a table [side * side][D] bilinearly to the image's, [seq_len][D]. */
static void masked_resize(const masked_shape *c, const float *from, float *to)
{
    const int side = c->side, rows = c->seq_len / c->columns, d = c->width;
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < c->columns; x++, to += d) {
            const float at_y = masked_source(y, side, rows), at_x = masked_source(x, side, c->columns);
            const int y0 = (int)at_y, x0 = (int)at_x, y1 = y0 + (y0 < side - 1), x1 = x0 + (x0 < side - 1);
            const float part_y = at_y - (float)y0, part_x = at_x - (float)x0;
            const float *a = from + (size_t)(y0 * side + x0) * (size_t)d,
                        *b = from + (size_t)(y0 * side + x1) * (size_t)d;
            const float *e = from + (size_t)(y1 * side + x0) * (size_t)d,
                        *f = from + (size_t)(y1 * side + x1) * (size_t)d;
            for (int i = 0; i < d; i++)
                to[i] = (1 - part_y) * ((1 - part_x) * a[i] + part_x * b[i]) +
                        part_y * ((1 - part_x) * e[i] + part_x * f[i]);
        }
}

/* Loads a table of positions: `buffer` rows, then those of the grid. */
static mar_status masked_load_positions(masked_loader *l, const char *name, int buffer, float **out)
{
    const masked_shape *c = &l->net->shape;
    const size_t d = (size_t)c->width, head = (size_t)buffer * d, n = head + (size_t)c->seq_len * d;
    if (!c->side || (c->side == c->columns && c->side * c->side == c->seq_len))
        return masked_load_array(l, name, 3, 1, buffer + c->seq_len, c->width, 0, out);
    float *host = NULL, *table = malloc(n * sizeof *table);
    mar_status status = table ? MAR_OK : err_set(l->err, MAR_ENOMEM, "out of memory for %s", name);
    if (status == MAR_OK) status = masked_load_host(l, name, 3, 1, buffer + c->side * c->side, c->width, &host);
    if (status == MAR_OK) {
        memcpy(table, host, head * sizeof *table);
        masked_resize(c, host + head, table + head);
        status = kern_new_array(l->k, table, n, out, l->err);
    }
    free(host);
    free(table);
    return status;
}

static mar_status masked_load_embeddings(masked_loader *l)
{
    masked_net *m = l->net;
    const masked_shape *c = &m->shape;
    mar_status status = masked_load_classes(l);
    if (status == MAR_OK) status = masked_load_positions(l, "encoder_pos_embed_learned", c->buffer, &m->encoder_pos);
    if (status == MAR_OK) status = masked_load_positions(l, "decoder_pos_embed_learned", c->buffer, &m->decoder_pos);
    if (status == MAR_OK) status = masked_load_positions(l, "diffusion_pos_embed_learned", 0, &m->diffusion_pos);
    return status == MAR_OK ? masked_load_array(l, "mask_token", 3, 1, 1, c->width, 0, &m->mask_token) : status;
}

static mar_status masked_load_all(masked_loader *l)
{
    masked_net *m = l->net;
    const masked_shape *c = &m->shape;
    const int d = c->width;
    mar_status status = masked_load_embeddings(l);
    if (status == MAR_OK)
        status = masked_load_linear(l, "z_proj", d, c->token_dim, KERN_LINEAR, KERN_IN_F32 | KERN_OUT_F32, &m->z_proj);
    if (status == MAR_OK) status = masked_load_norm(l, "z_proj_ln", &m->z_proj_ln);
    if (status == MAR_OK) status = masked_load_norm(l, "encoder_norm", &m->encoder_norm);
    if (status == MAR_OK) status = masked_load_norm(l, "decoder_norm", &m->decoder_norm);
    if (status == MAR_OK)
        status = masked_load_linear(l, "decoder_embed", d, d, KERN_LINEAR, KERN_OUT_F32, &m->decoder_embed);
    for (int i = 0; status == MAR_OK && i < c->encoder_depth; i++)
        status = masked_load_block(l, "encoder_blocks", i, c->heads, 0, &m->encoder[i]);
    for (int i = 0; status == MAR_OK && i < c->decoder_depth; i++)
        status = masked_load_block(l, "decoder_blocks", i, c->decoder_heads, i == c->decoder_depth - 1, &m->decoder[i]);
    return status;
}

mar_status masked_net_load(kern_queue *k, const wt_file *f, const masked_shape *shape, masked_net *out, mar_err *err)
{
    masked_loader l = {out, k, f, err};
    *out = (masked_net){.shape = *shape,
                        .encoder = calloc((size_t)shape->encoder_depth + 1, sizeof *out->encoder),
                        .decoder = calloc((size_t)shape->decoder_depth + 1, sizeof *out->decoder)};
    return out->encoder && out->decoder ? masked_load_all(&l) : err_set(err, MAR_ENOMEM, "out of memory");
}

static void masked_free_blocks(kern_device *d, masked_block *blocks, int n)
{
    for (int i = 0; blocks && i < n; i++) {
        kern_linear *layers[] = {blocks[i].qkv,  blocks[i].q,   blocks[i].kv,
                                 blocks[i].proj, blocks[i].fc1, blocks[i].fc2};
        for (int j = 0; j < 6; j++) d->core->linear_free(d, layers[j]);
        d->core->free(d, blocks[i].norm1);
        d->core->free(d, blocks[i].norm2);
    }
    free(blocks);
}

void masked_net_free(kern_device *d, masked_net *net)
{
    float *arrays[] = {net->class_emb,  net->encoder_pos, net->decoder_pos,  net->diffusion_pos,
                       net->mask_token, net->z_proj_ln,   net->encoder_norm, net->decoder_norm};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) d->core->free(d, arrays[i]);
    d->core->linear_free(d, net->z_proj);
    d->core->linear_free(d, net->decoder_embed);
    masked_free_blocks(d, net->encoder, net->shape.encoder_depth);
    masked_free_blocks(d, net->decoder, net->shape.decoder_depth);
}
