/* Embeddings of a batch (nets/masked_embeddings.h). */
#include "nets/masked_embeddings.h"

#include "base/arena.h"

void masked_embeddings_lay_out(masked_embeddings *e, const masked_net *m, char *base, size_t *used)
{
    const masked_shape *c = &m->shape;
    const size_t d = (size_t)c->width, masks = (size_t)c->seq_len;
    e->token_rows = arena_carve(base, used, (size_t)e->images * masks * d, sizeof(float));
    e->class_rows = arena_carve(base, used, ((size_t)e->images + 1) * (size_t)c->buffer * d, sizeof(float));
    e->mask_rows = arena_carve(base, used, masks * d, sizeof(float));
}

int masked_class_row(const masked_net *m, const masked_embeddings *e, int image, int branch)
{
    return (branch ? e->images : image) * m->shape.buffer;
}

static void masked_embed_classes(const masked_net *m, masked_workspace *w, const masked_embeddings *e, int n,
                                 const int *slot, const int *label)
{
    kern_queue *k = w->k;
    const int buffer = m->shape.buffer, d = m->shape.width;
    const int rows = (n + e->cfg_branches - 1) * buffer; /* one class an image, and the unconditional one */
    for (int r = 0; r < rows; r++) {
        const int i = r / buffer, conditional = i < n;
        w->rows[0][r] = conditional ? label[i] : m->shape.classes;
        w->rows[1][r] = r % buffer;
        w->rows[2][r] = masked_class_row(m, e, slot && conditional ? slot[i] : i, !conditional) + r % buffer;
    }
    k->core->copy_rows(k, w->x, NULL, m->class_emb, w->rows[0], m->encoder_pos, w->rows[1], rows, d);
    masked_watch(k, m, NULL, "class_emb", w->x, 1, rows, d);
    masked_layer_norm(k, m, w->x, NULL, rows, m->z_proj_ln, w->memory, 1);
    masked_watch(k, m, NULL, "z_proj_ln", w->memory, 1, rows, d);
    k->core->copy_rows(k, e->class_rows, w->rows[2], w->memory, NULL, NULL, NULL, rows, d);
}

static void masked_embed_masks(const masked_net *m, masked_workspace *w, const masked_embeddings *e)
{
    kern_queue *k = w->k;
    const int n = m->shape.seq_len, d = m->shape.width;
    for (int i = 0; i < n; i++) {
        w->rows[0][i] = 0;
        w->rows[1][i] = m->shape.buffer + i;
    }
    k->core->copy_rows(k, e->mask_rows, NULL, m->mask_token, w->rows[0], m->decoder_pos, w->rows[1], n, d);
    masked_watch(k, m, NULL, "decoder_pos_embed_learned", e->mask_rows, 1, n, d);
}

void masked_embed_batch(const masked_net *m, masked_workspace *w, const masked_embeddings *e, int n, const int *slot,
                        const int *label)
{
    masked_embed_classes(m, w, e, n, slot, label);
    masked_embed_masks(m, w, e);
}

void masked_embed_tokens(const masked_net *m, masked_workspace *w, const masked_embeddings *e, const float *tokens,
                         int n, const int *image, const int *position)
{
    kern_queue *k = w->k;
    const int d = m->shape.width;
    for (int r = 0; r < n; r++) {
        w->rows[0][r] = m->shape.buffer + position[r];
        w->rows[1][r] = image[r] * m->shape.seq_len + position[r];
    }
    k->core->linear(k, m->z_proj, tokens, n, w->x);
    masked_watch(k, m, NULL, "z_proj", w->x, 1, n, d);
    k->core->copy_rows(k, w->x, NULL, w->x, NULL, m->encoder_pos, w->rows[0], n, d);
    masked_watch(k, m, NULL, "encoder_pos_embed_learned", w->x, 1, n, d);
    masked_layer_norm(k, m, w->x, NULL, n, m->z_proj_ln, w->memory, 1);
    masked_watch(k, m, NULL, "z_proj_ln", w->memory, 1, n, d);
    k->core->copy_rows(k, e->token_rows, w->rows[1], w->memory, NULL, NULL, NULL, n, d);
}

static void masked_gather(const masked_net *m, masked_workspace *w, const float *rows, int n)
{
    w->k->core->copy_rows(w->k, w->x, w->rows[0], rows, w->rows[1], NULL, NULL, n, m->shape.width);
}

void masked_gather_classes(const masked_net *m, masked_workspace *w, const masked_embeddings *e, int n)
{
    masked_gather(m, w, e->class_rows, n);
}

void masked_gather_tokens(const masked_net *m, masked_workspace *w, const masked_embeddings *e, int n)
{
    masked_gather(m, w, e->token_rows, n);
}
