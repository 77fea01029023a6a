/* What the passes of a batch begin with (mar/masked/embeddings.h). */
#include "mar/masked/embeddings.h"

#include "base/arena.h"
/* --- memory and plans --------------------------------------------------------------------------------------------- */

void mar_embeddings_lay_out(mar_embeddings *e, const mar_masked_model *m, size_t act_size, char *base, size_t *used)
{
    const mar_model_config *c = &m->base.config;
    const size_t d = (size_t)c->width, masks = (size_t)c->seq_len, tokens = (size_t)e->images * masks;
    const size_t classes = ((size_t)e->images + 1) * (size_t)c->buffer;
    e->token_rows = arena_carve(base, used, tokens * d, sizeof(float));
    e->class_rows = arena_carve(base, used, classes * d, sizeof(float));
    e->mask_rows = arena_carve(base, used, masks * d, sizeof(float));
    e->token_operands = arena_carve(base, used, tokens * 3 * d, act_size);
    e->class_operands = arena_carve(base, used, classes * 3 * d, act_size);
    e->mask_operands = arena_carve(base, used, masks * 3 * d, act_size);
}

mar_status mar_embeddings_check(const kern_queue *k, const mar_masked_model *m, mar_err *err)
{
    const int d = m->base.config.width;
    if ((size_t)d * k->device->act_size % sizeof(float) == 0) return MAR_OK; /* operands are copied as floats */
    return err_set(err, MAR_EMODEL, "expected a model of even width, not %d", d);
}

/* Rows of the classes of so many images: one class each, and the unconditional one. */
static int class_rows(const mar_masked_model *m, int images, int conditions)
{
    return (images + conditions - 1) * m->base.config.buffer;
}

mar_status mar_embeddings_plan_batch(kern_queue *k, const mar_masked_model *m, int images, int conditions, mar_err *err)
{
    const mar_block *first = mar_first_decoder_block(m);
    const int rows = class_rows(m, images, conditions);
    const mar_status status = k->core->linear_plan(k, m->encoder[0].qkv, rows, err);
    return status == MAR_OK && first ? k->core->linear_plan(k, first->qkv, m->base.config.seq_len, err) : status;
}

mar_status mar_embeddings_plan_tokens(kern_queue *k, const mar_masked_model *m, int tokens, mar_err *err)
{
    const mar_status status = k->core->linear_plan(k, m->z_proj, tokens, err);
    return status == MAR_OK ? k->core->linear_plan(k, m->encoder[0].qkv, tokens, err) : status;
}

const mar_block *mar_first_decoder_block(const mar_masked_model *m)
{
    return m->base.config.decoder_depth > 1 ? m->decoder : NULL;
}

/* --- rows of classes, masks and tokens ---------------------------------------------------------------------------- */

int mar_class_row(const mar_masked_model *m, const mar_embeddings *e, int image, int condition)
{
    return (condition ? e->images : image) * m->base.config.buffer;
}

static void embed_classes(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int images,
                          const int *label)
{
    kern_queue *k = w->k;
    const int buffer = m->base.config.buffer, d = m->base.config.width, rows = class_rows(m, images, e->conditions);
    for (int r = 0; r < rows; r++) {
        const int i = r / buffer, conditional = i < images;
        w->rows[0][r] = conditional ? label[i] : m->base.config.classes;
        w->rows[1][r] = r % buffer;
        w->rows[2][r] = mar_class_row(m, e, i, !conditional) + r % buffer;
    }
    k->core->copy_rows(k, w->x, NULL, m->class_emb, w->rows[0], m->encoder_pos, w->rows[1], rows, d);
    mar_watch(k, m, NULL, "class_emb", w->x, 1, rows, d);
    mar_layer_norm(k, m, w->x, NULL, rows, m->z_proj_ln, w->memory, 1);
    mar_watch(k, m, NULL, "z_proj_ln", w->memory, 1, rows, d);
    k->core->copy_rows(k, e->class_rows, w->rows[2], w->memory, NULL, NULL, NULL, rows, d);
    mar_block_operands(m, w, &m->encoder[0], w->memory, NULL, rows, w->hidden);
    mar_copy_operands(k, m, e->class_operands, w->rows[2], w->hidden, NULL, rows, 3);
}

static void embed_masks(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e)
{
    kern_queue *k = w->k;
    const mar_block *first = mar_first_decoder_block(m);
    const int n = m->base.config.seq_len, d = m->base.config.width;
    for (int i = 0; i < n; i++) {
        w->rows[0][i] = 0;
        w->rows[1][i] = m->base.config.buffer + i;
    }
    k->core->copy_rows(k, e->mask_rows, NULL, m->mask_token, w->rows[0], m->decoder_pos, w->rows[1], n, d);
    mar_watch(k, m, NULL, "decoder_pos_embed_learned", e->mask_rows, 1, n, d);
    if (!first) return;
    mar_block_operands(m, w, first, e->mask_rows, NULL, n, w->hidden);
    mar_copy_operands(k, m, e->mask_operands, NULL, w->hidden, NULL, n, 3);
}

void mar_embed_batch(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int images, const int *label)
{
    embed_classes(m, w, e, images, label);
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
    mar_block_operands(m, w, &m->encoder[0], w->memory, NULL, n, w->hidden);
    mar_copy_operands(k, m, e->token_operands, w->rows[1], w->hidden, NULL, n, 3);
}

static void take(const mar_masked_model *m, mar_workspace *w, const float *rows, const act *operands, int n)
{
    kern_queue *k = w->k;
    k->core->copy_rows(k, w->x, w->rows[0], rows, w->rows[1], NULL, NULL, n, m->base.config.width);
    mar_copy_operands(k, m, w->qkv, w->rows[0], operands, w->rows[1], n, 3);
}

void mar_take_classes(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n)
{
    take(m, w, e->class_rows, e->class_operands, n);
}

void mar_take_tokens(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n)
{
    take(m, w, e->token_rows, e->token_operands, n);
}

/* --- arithmetic --------------------------------------------------------------------------------------------------- */

double mar_embed_classes_flop(const mar_masked_model *m, int images, int conditions)
{
    return mar_operands_flop(m, class_rows(m, images, conditions));
}

double mar_embed_masks_flop(const mar_masked_model *m)
{
    return mar_first_decoder_block(m) ? mar_operands_flop(m, m->base.config.seq_len) : 0;
}
