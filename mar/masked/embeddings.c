/* Embeddings of a batch (mar/masked/embeddings.h). */
#include "mar/masked/embeddings.h"

#include "base/arena.h"

void mar_embeddings_lay_out(mar_embeddings *e, const mar_masked_model *m, char *base, size_t *used)
{
    const mar_model_config *c = &m->base.config;
    const size_t d = (size_t)c->width, masks = (size_t)c->seq_len;
    e->token_rows = arena_carve(base, used, (size_t)e->images * masks * d, sizeof(float));
    e->class_rows = arena_carve(base, used, ((size_t)e->images + 1) * (size_t)c->buffer * d, sizeof(float));
    e->mask_rows = arena_carve(base, used, masks * d, sizeof(float));
}

int mar_class_row(const mar_masked_model *m, const mar_embeddings *e, int image, int branch)
{
    return (branch ? e->images : image) * m->base.config.buffer;
}

static void embed_classes(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n, const int *slot,
                          const int *label)
{
    kern_queue *k = w->k;
    const int buffer = m->base.config.buffer, d = m->base.config.width;
    const int rows = (n + e->cfg_branches - 1) * buffer; /* one class an image, and the unconditional one */
    for (int r = 0; r < rows; r++) {
        const int i = r / buffer, conditional = i < n;
        w->rows[0][r] = conditional ? label[i] : m->base.config.classes;
        w->rows[1][r] = r % buffer;
        w->rows[2][r] = mar_class_row(m, e, slot && conditional ? slot[i] : i, !conditional) + r % buffer;
    }
    k->core->copy_rows(k, w->x, NULL, m->class_emb, w->rows[0], m->encoder_pos, w->rows[1], rows, d);
    mar_watch(k, m, NULL, "class_emb", w->x, 1, rows, d);
    mar_layer_norm(k, m, w->x, NULL, rows, m->z_proj_ln, w->memory, 1);
    mar_watch(k, m, NULL, "z_proj_ln", w->memory, 1, rows, d);
    k->core->copy_rows(k, e->class_rows, w->rows[2], w->memory, NULL, NULL, NULL, rows, d);
}

static void embed_masks(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e)
{
    kern_queue *k = w->k;
    const int n = m->base.config.seq_len, d = m->base.config.width;
    for (int i = 0; i < n; i++) {
        w->rows[0][i] = 0;
        w->rows[1][i] = m->base.config.buffer + i;
    }
    k->core->copy_rows(k, e->mask_rows, NULL, m->mask_token, w->rows[0], m->decoder_pos, w->rows[1], n, d);
    mar_watch(k, m, NULL, "decoder_pos_embed_learned", e->mask_rows, 1, n, d);
}

void mar_embed_batch(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n, const int *slot,
                     const int *label)
{
    embed_classes(m, w, e, n, slot, label);
    embed_masks(m, w, e);
}

void mar_embed_tokens(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, const float *tokens, int n,
                      const int *image, const int *position)
{
    kern_queue *k = w->k;
    const int d = m->base.config.width;
    for (int r = 0; r < n; r++) {
        w->rows[0][r] = m->base.config.buffer + position[r];
        w->rows[1][r] = image[r] * m->base.config.seq_len + position[r];
    }
    k->core->linear(k, m->z_proj, tokens, n, w->x);
    mar_watch(k, m, NULL, "z_proj", w->x, 1, n, d);
    k->core->copy_rows(k, w->x, NULL, w->x, NULL, m->encoder_pos, w->rows[0], n, d);
    mar_watch(k, m, NULL, "encoder_pos_embed_learned", w->x, 1, n, d);
    mar_layer_norm(k, m, w->x, NULL, n, m->z_proj_ln, w->memory, 1);
    mar_watch(k, m, NULL, "z_proj_ln", w->memory, 1, n, d);
    k->core->copy_rows(k, e->token_rows, w->rows[1], w->memory, NULL, NULL, NULL, n, d);
}

static void gather(const mar_masked_model *m, mar_workspace *w, const float *rows, int n)
{
    w->k->core->copy_rows(w->k, w->x, w->rows[0], rows, w->rows[1], NULL, NULL, n, m->base.config.width);
}

void mar_gather_classes(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n)
{
    gather(m, w, e->class_rows, n);
}

void mar_gather_tokens(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n)
{
    gather(m, w, e->token_rows, n);
}
