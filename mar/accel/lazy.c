/* LazyMAR's caches (Yan et al., ICCV 2025; the released mar_cache.py and basic.py). The first five autoregressive
 * steps, and every ninth from then on, are fresh: they compute everything. A lazy step in between does less:
 * - It runs only the conditional half. The unconditional output is the conditional one plus their difference at that
 *   position in the last fresh step (condition cache).
 * - It encodes only the buffer and the tokens that became known in the step before. They attend to the encoder's cached
 *   keys and values of the others. Neither those nor the decoder's inputs from them are renewed.
 * - It runs the first three decoder blocks and the attention of the fourth on all rows. The rest runs only on kept
 *   rows: those to be predicted, those just predicted, and those whose values in the fourth block changed most since
 *   the step before. The other rows are present as their cached keys and values (token cache). The number of kept rows
 *   falls with the step. The release has a table for 64 steps; it is used unchanged for any number of steps.
 *
 * The release also caches inside the diffusion head: diff_chain_reuse. Without guidance only the token cache is left;
 * the release cannot do that. After many negative similarities the release might drop a token that is to be predicted.
 * Here such tokens are kept. */
#include "base/arena.h"
#include "mar/masked.h"

#include <math.h>
#include <stdlib.h>

/* Constants of the release. */
enum {
    START_STEP = 5,
    FRESH_EVERY = 9,
    PRUNE_BLOCK = 3,
    SPARE_ROWS = 15,
    MIN_STEPS = 7 /* of the autoregressive steps, the first six are fresh */
};

/* Work of one autoregressive step. */
typedef struct {
    int known, predicted; /* mar_step's */
    int fresh;            /* 1: computes everything, and so fills the caches */
    /* Branches of its transformer pass: 1 of a lazy step; of a fresh one 2 if any step before the next fresh one is
     * guided. */
    int cfg_branches;
    int previous; /* tokens that the step before predicted */
    int horizon;  /* tokens predicted from this step to the last before the next fresh one */
    int kept;     /* of buffer + seq_len rows, those that a lazy step computes after the decoder's first blocks */
    int prunes;   /* 1: kept is less than all, so the rows that changed most are read back from the backend */
} lazy_step;

/* The caches. L = buffer + seq_len. A row's queries, keys and values are 3D wide; cached queries are unused. The last
 * decoder block has keys and values only, 2D wide. */
typedef struct {
    const masked_net *model;
    kern_queue *k; /* the session's */
    int images;
    int between;      /* 1: something stands between the towers */
    float *score;     /* host [images * L] */
    int *kept;        /* host [images * L] */
    lazy_step *steps; /* [num_iter] */

    /* Backend memory, from lay_out. */
    act *encoder; /* [encoder_depth][images][L][3D], rows in the order they became known */
    act *decoder; /* [decoder_depth - 1][images][L][3D] by position */
    act *last;    /* [images][L][2D] */
    float *input; /* [images][L][D] the decoder's input */
    /* [images][L][D] the encoder's output by position, for what stands between the towers: it reads all of a sequence,
     * so lazy steps run it on rows that they have not computed. NULL: nothing does */
    float *encoded;
    float *difference; /* [images][seq_len][D] unconditional minus conditional output of the last block */
} lazy_caches;

/* Returns RETAIN_RATIO_SCHEDULE of the release's basic.py. */
static double retained_share(int step)
{
    static const struct {
        int until;
        double share;
    } table[] = {{20, 1}, {21, 0.6}, {25, 0.5}, {30, 0.4}, {35, 0.15}, {40, 0.12}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (step < table[i].until) return table[i].share;
    return 0.05;
}

static int is_fresh(int step)
{
    return step < START_STEP || (step - START_STEP) % FRESH_EVERY == 0;
}

/* Returns the maximum branches of the steps from i to the next fresh one. */
static int guided_until_fresh(const mar_step *plan, int i, int n)
{
    int most = plan[i].cfg_branches;
    for (int j = i + 1; j < n && !is_fresh(j); j++)
        if (plan[j].cfg_branches > most) most = plan[j].cfg_branches;
    return most;
}

/* Fills z->steps [num_iter], and reads_back in the plan. */
static void lazy_plan_steps(const lazy_caches *z, mar_step *plan, int n)
{
    const masked_shape *c = &z->model->shape;
    const int length = c->buffer + c->seq_len;
    for (int i = n - 1; i >= 0; i--) {
        lazy_step *s = &z->steps[i];
        const int least = (int)(length * retained_share(i));
        s->known = plan[i].known;
        s->predicted = plan[i].predicted;
        s->fresh = is_fresh(i);
        s->cfg_branches = s->fresh ? guided_until_fresh(plan, i, n) : 1;
        s->previous = i ? plan[i - 1].predicted : 0;
        s->horizon = s->predicted + (i + 1 < n && !is_fresh(i + 1) ? s[1].horizon : 0);
        s->kept = s->predicted + s->previous + SPARE_ROWS;
        if (s->kept < least) s->kept = least;
        if (s->kept > length || c->decoder_depth <= PRUNE_BLOCK + 1) s->kept = length;
        s->prunes = plan[i].reads_back = !s->fresh && s->kept < length;
    }
}

static int row_length(const lazy_caches *z)
{
    return z->model->shape.buffer + z->model->shape.seq_len;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static size_t lazy_lay_out(void *state, char *base)
{
    lazy_caches *z = state;
    const masked_shape *c = &z->model->shape;
    const size_t images = (size_t)z->images, d = (size_t)c->width, rows = images * (size_t)(c->buffer + c->seq_len);
    const size_t act_size = z->k->device->act_size;
    size_t used = 0;
    z->encoder = arena_carve(base, &used, (size_t)c->encoder_depth * rows * 3 * d, act_size);
    z->decoder = arena_carve(base, &used, (size_t)(c->decoder_depth - 1) * rows * 3 * d, act_size);
    z->last = arena_carve(base, &used, rows * 2 * d, act_size);
    z->input = arena_carve(base, &used, rows * d, sizeof(float));
    if (z->between) z->encoded = arena_carve(base, &used, rows * d, sizeof(float));
    z->difference = arena_carve(base, &used, images * (size_t)c->seq_len * d, sizeof(float));
    return used;
}

static const masked_passes passes;

static mar_status lazy_create(mar_masked *g, void **state, mar_err *err)
{
    lazy_caches *z = *state = calloc(1, sizeof *z);
    const int d = g->model->base.config.width;
    if (!z) return err_set(err, MAR_ENOMEM, "out of memory");
    if ((size_t)d * g->k->device->act_size % sizeof(float) != 0) /* operands are copied as floats */
        return err_set(err, MAR_EMODEL, "--lazy: expected a model of even width, not %d", d);
    *z = (lazy_caches){
        .model = &g->model->net, .k = g->k, .images = g->max_images, .between = g->target.net.work.between != NULL};
    const size_t rows = (size_t)g->max_images * (size_t)row_length(z);
    z->score = calloc(rows, sizeof *z->score);
    z->kept = calloc(rows, sizeof *z->kept);
    z->steps = calloc((size_t)g->params.num_iter, sizeof *z->steps);
    if (!z->score || !z->kept || !z->steps) return err_set(err, MAR_ENOMEM, "out of memory");
    lazy_plan_steps(z, g->steps, g->params.num_iter);
    g->target.net.passes = &passes;
    g->target.net.passes_state = z;
    return MAR_OK;
}

static void lazy_destroy(void *state)
{
    lazy_caches *z = state;
    free(z->score);
    free(z->kept);
    free(z->steps);
    free(z);
}

/* --- arithmetic, 2 per multiply-add ------------------------------------------------------------------------------- */

/* Returns the tokens of an image whose rows of the decoder's input a lazy step computes. */
static int visible_tokens(const lazy_caches *z, const lazy_step *step)
{
    return z->between ? step->known : step->previous;
}

static double encode_flop(const lazy_caches *z, int images, const lazy_step *step)
{
    const masked_net *m = z->model;
    if (step->fresh) return masked_encode_flop(m, images * step->cfg_branches, step->known);
    const double rows = (double)images * (m->shape.buffer + step->previous);
    return m->shape.encoder_depth * masked_block_flop(m, rows, rows, m->shape.buffer + step->known);
}

static double decode_flop(const lazy_caches *z, int images, const lazy_step *step)
{
    const masked_net *m = z->model;
    const masked_shape *c = &m->shape;
    const double length = row_length(z), d = c->width, all = images * length, kept = (double)images * step->kept;
    const double visible = (double)images * (c->buffer + visible_tokens(z, step));
    if (step->fresh) return masked_decode_flop(m, images * step->cfg_branches, step->known, step->horizon);
    double flop = 2.0 * visible * d * d;                                 /* decoder_embed */
    if (c->decoder_depth > 1) flop -= masked_qkv_flop(m, all - visible); /* decode_lazily */
    for (int b = 0; b + 1 < c->decoder_depth; b++) {
        flop += masked_block_flop(m, b <= PRUNE_BLOCK ? all : kept, b <= PRUNE_BLOCK ? all : kept, length);
        if (b == PRUNE_BLOCK) flop -= 4.0 * (all - kept) * d * c->mlp_hidden; /* its MLP runs on the kept rows */
    }
    return flop + masked_block_flop(m, (double)images * step->predicted, kept, length);
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

static act *at(const lazy_caches *z, const act *p, size_t elements)
{
    return (char *)(uintptr_t)p + elements * z->k->device->act_size;
}

/* Returns block b's part of a cache: [images][L][3D]. */
static act *block_cache(const lazy_caches *z, const act *cache, int b)
{
    const size_t d = (size_t)z->model->shape.width;
    return at(z, cache, (size_t)b * (size_t)z->images * (size_t)row_length(z) * 3 * d);
}

/* Writes cache[to[r]] = rows[r], `parts` * D operands each. */
static void remember(const lazy_caches *z, act *cache, const int *to, const act *rows, int n, int parts)
{
    const size_t bytes = (size_t)parts * (size_t)z->model->shape.width * z->k->device->act_size;
    z->k->core->copy_rows(z->k, cache, to, rows, NULL, NULL, NULL, n, (int)(bytes / sizeof(float)));
}

/* Computes x += proj(attention of `sequences` x n_q rows of q to n_k rows each of kv), both [..][3D]. */
static void lazy_attend(const lazy_caches *z, masked_workspace *w, const masked_block *b, float *x, int sequences,
                        int n_q, const act *q, const act *kv, int n_k)
{
    kern_queue *k = z->k;
    const masked_shape *c = &z->model->shape;
    const size_t d = (size_t)c->width;
    k->core->attention(k, q, 3 * c->width, at(z, kv, d), at(z, kv, 2 * d), 3 * c->width, sequences, n_q, n_k, b->heads,
                       c->width / b->heads, w->attn);
    masked_watch(k, z->model, b, "attn", w->attn, 0, sequences * n_q, c->width);
    k->core->linear(k, b->proj, w->attn, sequences * n_q, x);
    masked_watch(k, z->model, b, "attn.proj", x, 1, sequences * n_q, c->width);
}

/* Runs a block on the encoder's rows [sequences][buffer + count]. to[] gives the places of the conditional rows in the
 * cache. In a lazy step a sequence has more keys than rows, and fewer than the cache's capacity. So each sequence is a
 * call of its own. */
static void encoder_block(lazy_caches *z, masked_workspace *w, const masked_pass *p, const masked_block *b, act *cache,
                          const int *to, int sequences, int length, int fresh)
{
    kern_queue *k = z->k;
    const masked_shape *c = &z->model->shape;
    const size_t d = (size_t)c->width;
    masked_block_qkv(z->model, w, b, w->x, NULL, NULL, sequences * length, w->qkv);
    remember(z, cache, to, w->qkv, p->images * length, 3);
    if (fresh) {
        lazy_attend(z, w, b, w->x, sequences, length, w->qkv, w->qkv, length);
    } else {
        for (int s = 0; s < sequences; s++) {
            const act *kv = at(z, cache, (size_t)s * (size_t)row_length(z) * 3 * d);
            const size_t first = (size_t)s * (size_t)length;
            k->core->attention(k, at(z, w->qkv, first * 3 * d), 3 * c->width, at(z, kv, d), at(z, kv, 2 * d),
                               3 * c->width, 1, length, c->buffer + p->known, b->heads, c->width / b->heads,
                               at(z, w->attn, first * d));
        }
        masked_watch(k, z->model, b, "attn", w->attn, 0, sequences * length, c->width);
        k->core->linear(k, b->proj, w->attn, sequences * length, w->x);
        masked_watch(k, z->model, b, "attn.proj", w->x, 1, sequences * length, c->width);
    }
    masked_block_mlp(z->model, w, b, w->x, NULL, sequences * length);
}

/* Lists in w->rows[0] the places by position of the buffers and the `count` tokens that became known last. */
static void lazy_list_places(const lazy_caches *z, masked_workspace *w, const masked_pass *p, int count)
{
    const masked_shape *c = &z->model->shape;
    for (int s = 0, n = 0; s < p->images; s++)
        for (int i = 0; i < c->buffer + count; i++, n++)
            w->rows[0][n] = s * row_length(z) +
                            (i < c->buffer ? i : c->buffer + p->order[s][c->seq_len - p->known + i - c->buffer]);
}

static double lazy_encode(void *state, const masked_net *m, masked_workspace *w, const masked_pass *p)
{
    lazy_caches *z = state;
    const lazy_step *step = &z->steps[p->step];
    masked_pass pass = *p;
    const int count = step->fresh ? p->known : step->previous, length = m->shape.buffer + count;
    pass.sequences = p->images * step->cfg_branches;
    masked_encoder_input(m, w, &pass, count);
    for (int s = 0, n = 0; s < p->images; s++)
        for (int i = 0; i < length; i++, n++)
            w->rows[0][n] = s * row_length(z) + (i < m->shape.buffer ? i : i + p->known - count);
    for (int b = 0; b < m->shape.encoder_depth; b++)
        encoder_block(z, w, p, &m->encoder[b], block_cache(z, z->encoder, b), w->rows[0], pass.sequences, length,
                      step->fresh);
    if (z->between) {
        lazy_list_places(z, w, p, count);
        z->k->core->copy_rows(z->k, z->encoded, w->rows[0], w->x, NULL, NULL, NULL, p->images * length, m->shape.width);
    }
    return encode_flop(z, p->images, step);
}

/* Stores the difference of the last block's output y: conditional rows, then unconditional ones, `count` an image
 * each. */
static void remember_difference(lazy_caches *z, masked_workspace *w, const masked_pass *p, int count,
                                const int *position, const float *y)
{
    kern_queue *k = z->k;
    const int d = z->model->shape.width, n = p->images * count;
    if (p->sequences == p->images) return;
    k->core->subtract(k, y + (size_t)n * (size_t)d, y, (size_t)n * (size_t)d, w->x);
    for (int i = 0; i < n; i++) w->rows[0][i] = i / count * z->model->shape.seq_len + position[i];
    k->core->copy_rows(k, z->difference, w->rows[0], w->x, NULL, NULL, NULL, n, d);
}

/* Decodes as masked_decode does, but the last block computes all tokens up to the next fresh step. */
static void decode_fresh(lazy_caches *z, masked_workspace *w, const masked_pass *p, const lazy_step *step, float *out,
                         const int *z_index)
{
    const masked_net *m = z->model;
    kern_queue *k = z->k;
    const masked_shape *c = &m->shape;
    const masked_block *last = &m->decoder[c->decoder_depth - 1];
    masked_pass pass = *p;
    pass.sequences = p->images * step->cfg_branches;
    const int length = row_length(z), rows = pass.sequences * length, count = step->horizon;
    masked_decoder_input(m, w, &pass);
    k->core->copy_rows(k, z->input, NULL, w->x, NULL, NULL, NULL, p->images * length, c->width);
    for (int b = 0; b + 1 < c->decoder_depth; b++) {
        masked_block_qkv(m, w, &m->decoder[b], w->x, NULL, NULL, rows, w->qkv);
        remember(z, block_cache(z, z->decoder, b), NULL, w->qkv, p->images * length, 3);
        lazy_attend(z, w, &m->decoder[b], w->x, pass.sequences, length, w->qkv, w->qkv, length);
        masked_block_mlp(m, w, &m->decoder[b], w->x, NULL, rows);
    }
    masked_last_block_kv(m, w, last, w->x, NULL, rows);
    remember(z, z->last, NULL, w->qkv, p->images * length, 2);
    const int n = masked_predicted_positions(m, &pass, count, w->rows[1]);
    for (int i = 0; i < n; i++) w->rows[0][i] = i / count * length + c->buffer + w->rows[1][i];
    const masked_spans queries = {.sequences = pass.sequences, .rows = n},
                       keys = {.sequences = pass.sequences, .rows = rows};
    masked_last_block_run(m, w, last, w->x, w->rows[0], &queries, w->qkv, &keys, w->memory);
    remember_difference(z, w, &pass, count, w->rows[1], w->memory);
    /* this step's tokens are the last ones of each sequence */
    const int predicted = p->sequences * p->predicted;
    for (int i = 0; i < predicted; i++)
        w->rows[0][i] = i / p->predicted * count + count - p->predicted + i % p->predicted;
    k->core->copy_rows(k, w->x, NULL, w->memory, w->rows[0], NULL, NULL, predicted, c->width);
    masked_predicted_positions(m, p, p->predicted, w->rows[1]);
    masked_compute_z(k, m, w->x, w->rows[1], predicted, w->memory, out, z_index);
}

/* Chooses the rows of image s that are computed further, ascending: those to be predicted, those just predicted, then
 * those that changed most. Chooses exactly `kept` rows whatever is in score [L]; a failed backend has not written it.
 * Overwrites score. */
static void lazy_choose(const lazy_caches *z, const masked_pass *p, const lazy_step *step, int s, float *score,
                        int *kept)
{
    const masked_shape *c = &z->model->shape;
    const int *must = p->order[s] + c->seq_len - p->known - p->predicted; /* to be predicted, then just predicted */
    const int length = row_length(z);
    for (int i = 0; i < length; i++)
        if (!(fabsf(score[i]) < 2)) score[i] = 0;                                            /* not a cosine */
    for (int i = 0; i < p->predicted + step->previous; i++) score[c->buffer + must[i]] = -2; /* below any cosine */
    for (int n = 0; n < step->kept; n++) {
        int least = 0;
        for (int i = 1; i < length; i++)
            if (score[i] < score[least]) least = i;
        score[least] = 3; /* above any cosine: taken */
    }
    for (int i = 0, n = 0; i < length; i++)
        if (score[i] == 3) kept[n++] = i;
}

/* Selects the rows of x [images][L][D] that are computed further, by z->score. Writes them to y [images][kept][D] and
 * their positions to z->kept [images][kept]. */
static void prune(lazy_caches *z, masked_workspace *w, const masked_pass *p, const lazy_step *step, const float *x,
                  float *y)
{
    kern_queue *k = z->k;
    const masked_shape *c = &z->model->shape;
    const int length = row_length(z), n = p->images * step->kept;
    for (int s = 0; s < p->images; s++) lazy_choose(z, p, step, s, z->score + s * length, z->kept + s * step->kept);
    for (int i = 0; i < n; i++) w->rows[0][i] = i / step->kept * length + z->kept[i];
    k->core->copy_rows(k, y, NULL, x, w->rows[0], NULL, NULL, n, c->width);
}

/* Runs the blocks before the last on the conditional sequences; the first one's cache is up to date. Returns the final
 * rows [images][kept][D]; w->rows[0] has their places among [images][L]. */
static float *decode_blocks(lazy_caches *z, masked_workspace *w, const masked_pass *p, const lazy_step *step)
{
    const masked_net *m = z->model;
    kern_queue *k = z->k;
    const masked_shape *c = &m->shape;
    const int length = row_length(z);
    int count = length; /* rows an image */
    float *x = w->x;
    for (int i = 0; i < p->images * length; i++) w->rows[0][i] = i;
    for (int b = 0; b + 1 < c->decoder_depth; b++) {
        const masked_block *block = &m->decoder[b];
        act *cache = block_cache(z, z->decoder, b);
        const int pruning = b == PRUNE_BLOCK && step->prunes;
        if (b > 0) masked_block_qkv(m, w, block, x, NULL, NULL, p->images * count, w->qkv);
        if (pruning)
            k->core->similarity(k, at(z, w->qkv, 2 * (size_t)c->width), at(z, cache, 2 * (size_t)c->width),
                                3 * c->width, p->images * length, block->heads, c->width / block->heads, z->score);
        if (b > 0) remember(z, cache, w->rows[0], w->qkv, p->images * count, 3);
        lazy_attend(z, w, block, x, p->images, count, b > 0 ? w->qkv : cache, cache, length);
        if (pruning) {
            prune(z, w, p, step, x, w->memory);
            x = w->memory, count = step->kept;
        }
        masked_block_mlp(m, w, block, x, NULL, p->images * count);
    }
    return x;
}

static void decode_lazily(lazy_caches *z, masked_workspace *w, const masked_pass *p, const lazy_step *step, float *out,
                          const int *z_index)
{
    const masked_net *m = z->model;
    kern_queue *k = z->k;
    const masked_shape *c = &m->shape;
    const masked_block *last = &m->decoder[c->decoder_depth - 1];
    const int length = row_length(z), d = c->width, n = p->images * p->predicted;
    masked_pass pass = *p;
    pass.sequences = p->images;
    const int tokens = visible_tokens(z, step);
    if (z->between) {
        lazy_list_places(z, w, p, tokens);
        k->core->copy_rows(k, w->x, NULL, z->encoded, w->rows[0], NULL, NULL, p->images * (c->buffer + tokens), d);
    }
    const int changed = masked_decoder_visible(m, w, &pass, tokens, z->input);
    if (c->decoder_depth > 1) { /* the other rows of its input are those of the step before */
        masked_block_qkv(m, w, m->decoder, z->input, NULL, w->rows[0], changed, w->hidden);
        remember(z, z->decoder, w->rows[0], w->hidden, changed, 3);
    }
    k->core->copy_rows(k, w->x, NULL, z->input, NULL, NULL, NULL, p->images * length, d);
    float *x = decode_blocks(z, w, p, step), *y = x == w->x ? w->memory : w->x;
    masked_last_block_kv(m, w, last, x, NULL, p->images * step->kept);
    remember(z, z->last, w->rows[0], w->qkv, p->images * step->kept, 2);
    /* w->rows[1]: positions, w->rows[2]: their rows among the kept ones */
    masked_predicted_positions(m, &pass, p->predicted, w->rows[1]);
    for (int i = 0; i < n; i++) {
        const int s = i / p->predicted, row = s * length + c->buffer + w->rows[1][i];
        int r = s * step->kept;
        while (w->rows[0][r] != row) r++;
        w->rows[2][i] = r;
    }
    const masked_spans queries = {.sequences = p->images, .rows = n};
    const masked_spans keys = {.sequences = p->images, .rows = p->images * length};
    masked_last_block_run(m, w, last, x, w->rows[2], &queries, z->last, &keys, y);
    if (p->sequences > p->images) {
        for (int i = 0; i < n; i++) {
            w->rows[0][i] = i / p->predicted * c->seq_len + w->rows[1][i];
            w->rows[1][n + i] = w->rows[1][i];
        }
        k->core->copy_rows(k, y + (size_t)n * (size_t)d, NULL, y, NULL, z->difference, w->rows[0], n, d);
    }
    masked_compute_z(k, m, y, w->rows[1], p->sequences * p->predicted, x, out, z_index);
}

static double lazy_decode(void *state, const masked_net *m, masked_workspace *w, const masked_pass *p, float *z,
                          const int *z_index)
{
    const lazy_caches *caches = state;
    const lazy_step *step = &caches->steps[p->step];
    (void)m;
    if (step->fresh)
        decode_fresh(state, w, p, step, z, z_index);
    else
        decode_lazily(state, w, p, step, z, z_index);
    return decode_flop(state, p->images, step);
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static mar_status lazy_plan_attention(const lazy_caches *z, int heads, int n_q, int n_k, int parts, mar_err *err)
{
    kern_queue *k = z->k;
    const masked_shape *c = &z->model->shape;
    return k->core->attention_plan(k, n_q, n_k, heads, c->width / heads, parts == 3 ? 3 * c->width : c->width,
                                   parts * c->width, err);
}

static mar_status lazy_plan(kern_queue *k, const void *state, const masked_net *m, const masked_pass *p, mar_err *err)
{
    const lazy_caches *z = state;
    const lazy_step *step = &z->steps[p->step];
    const masked_shape *c = &m->shape;
    const masked_block *last = &m->decoder[c->decoder_depth - 1];
    const int length = row_length(z), images = p->images, sequences = images * step->cfg_branches;
    if (step->fresh) {
        mar_status status = masked_passes_plan(k, m, sequences, step->known, step->predicted, err);
        if (status == MAR_OK) status = masked_block_plan(k, last, sequences * step->horizon, sequences * length, err);
        return status == MAR_OK ? lazy_plan_attention(z, c->decoder_heads, step->horizon, length, 2, err) : status;
    }
    const int encoded = c->buffer + step->previous, visible = c->buffer + visible_tokens(z, step);
    mar_status status = k->core->linear_plan(k, m->decoder_embed, images * visible, err);
    if (status == MAR_OK && c->decoder_depth > 1)
        status = k->core->linear_plan(k, m->decoder->qkv, images * visible, err);
    for (int b = 0; status == MAR_OK && b < c->encoder_depth; b++)
        status = masked_block_plan(k, &m->encoder[b], images * encoded, 0, err);
    for (int b = 0; status == MAR_OK && b + 1 < c->decoder_depth; b++) {
        if (b <= PRUNE_BLOCK) status = masked_block_plan(k, &m->decoder[b], images * length, 0, err);
        if (status == MAR_OK && b >= PRUNE_BLOCK)
            status = masked_block_plan(k, &m->decoder[b], images * step->kept, 0, err);
    }
    if (status == MAR_OK) status = masked_block_plan(k, last, images * step->predicted, images * step->kept, err);
    if (status == MAR_OK) status = lazy_plan_attention(z, c->heads, encoded, c->buffer + step->known, 3, err);
    if (status == MAR_OK) status = lazy_plan_attention(z, c->decoder_heads, length, length, 3, err);
    if (status == MAR_OK) status = lazy_plan_attention(z, c->decoder_heads, step->kept, length, 3, err);
    return status == MAR_OK ? lazy_plan_attention(z, c->decoder_heads, step->predicted, length, 2, err) : status;
}

static const masked_passes passes = {.plan = lazy_plan, .encode = lazy_encode, .decode = lazy_decode};

static mar_status lazy_check(const mar_model *model, mar_params *p, mar_err *err)
{
    (void)model;
    if (p->num_iter >= MIN_STEPS) return MAR_OK;
    return err_set(err, MAR_EARG,
                   "--lazy: the first %d autoregressive steps fill the caches, expected --num_iter %d or more",
                   MIN_STEPS - 1, MIN_STEPS);
}

static const mar_masked_hooks lazy_hooks = {
    .create = lazy_create,
    .destroy = lazy_destroy,
    .lay_out = lazy_lay_out,
};

const mar_accel mar_accel_lazy = {
    .name = "lazy",
    .together = 1,
    .changes = MAR_STAGE_PASSES,
    .needs = MAR_STAGE_AR_STEPS,
    .methods = (const mar_accel_method[]){{.name = "lazymar",
                                           .guarantee = "none",
                                           .source = "LazyMAR (2025)",
                                           .summary = "keep features of tokens and of the unguided pass that change "
                                                      "little between steps"},
                                          {0}},
    .check = lazy_check,
    .masked = &lazy_hooks,
};
