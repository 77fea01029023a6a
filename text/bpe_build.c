#include "text/bpe_build.h"

#include <stdlib.h>
#include <string.h>

static mar_status bpe_refuse_memory(const bpe_building *b)
{
    return err_set(b->err, MAR_ENOMEM, "%s: no memory for a tokenizer", b->label);
}

text_bpe *bpe_new_model(void)
{
    text_bpe *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->unknown = -1;
    for (int i = 0; i < 256; i++) m->bytes[i] = -1;
    return m;
}

int32_t bpe_piece_id(const text_bpe *b, const char *text, size_t length)
{
    const uint32_t node = text_trie_walk(&b->vocab, 0, text, length, NULL);
    return node ? b->vocab.nodes[node].id : -1;
}

/* Refuses an id out of 0 .. n-1 or of two pieces. seen is [n], zeros. */
static mar_status bpe_check_ids(const bpe_building *b, const text_piece *pieces, size_t n, uint8_t *seen)
{
    for (size_t i = 0; i < n; i++) {
        const text_piece *const p = &pieces[i];
        if (p->id < 0 || (size_t)p->id >= n)
            return err_set(b->err, MAR_EFORMAT,
                           "%s: vocab: \"%.*s\" has id %d of %zu pieces, expected ids without holes", b->label,
                           (int)p->length, p->text, p->id, n);
        if (seen[p->id]++)
            return err_set(b->err, MAR_EFORMAT, "%s: vocab: \"%.*s\" has id %d, as another piece", b->label,
                           (int)p->length, p->text, p->id);
    }
    return MAR_OK;
}

static mar_status bpe_check_texts(const bpe_building *b, const text_piece *sorted, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const text_piece *const p = &sorted[i];
        if (p->length == 0 || p->length > BPE_PIECE_MAX)
            return err_set(b->err, MAR_EFORMAT, "%s: vocab: piece %d has %u bytes, expected 1 to %d", b->label, p->id,
                           p->length, BPE_PIECE_MAX);
        if (i > 0 && text_same_piece(p, p - 1))
            return err_set(b->err, MAR_EFORMAT, "%s: vocab: \"%.*s\" is there twice", b->label, (int)p->length,
                           p->text);
    }
    return MAR_OK;
}

mar_status bpe_set_vocab(bpe_building *b, text_piece *pieces, size_t n)
{
    if (n == 0) return err_set(b->err, MAR_EFORMAT, "%s: vocab: no pieces", b->label);
    uint8_t *seen = calloc(n, 1);
    if (!seen) return bpe_refuse_memory(b);
    mar_status status = bpe_check_ids(b, pieces, n, seen);
    free(seen);
    if (status != MAR_OK) return status;
    text_sort_pieces(pieces, n);
    status = bpe_check_texts(b, pieces, n);
    if (status != MAR_OK) return status;
    if (!text_trie_build(pieces, n, &b->model->vocab)) return bpe_refuse_memory(b);
    b->n_vocab = n;
    b->model->count = (int)n;
    return MAR_OK;
}

mar_status bpe_put_merge(bpe_building *b, int32_t left, bpe_merge merge)
{
    bpe_named_merge *grown = text_grow(b->merges, b->n_merges, &b->capacity, sizeof *grown);
    if (!grown) return bpe_refuse_memory(b);
    b->merges = grown;
    b->merges[b->n_merges++] = (bpe_named_merge){left, merge};
    return MAR_OK;
}

mar_status bpe_add_merge(bpe_building *b, const char *left, size_t left_length, const char *right, size_t right_length)
{
    const text_trie *const t = &b->model->vocab;
    uint32_t node = 0;
    int32_t left_id = -1, id = -1;
    for (size_t i = 0; i < left_length + right_length; i++) {
        node = text_trie_step(t, node, (uint8_t)(i < left_length ? left[i] : right[i - left_length]));
        if (node == 0) break;
        if (i + 1 == left_length) left_id = t->nodes[node].id;
        if (i + 1 == left_length + right_length) id = t->nodes[node].id;
    }
    const int32_t right_id = bpe_piece_id(b->model, right, right_length);
    if (left_id < 0 || right_id < 0 || id < 0)
        return err_set(b->err, MAR_EFORMAT,
                       "%s: merge %zu: \"%.*s\", \"%.*s\" or both together are not in the vocabulary", b->label,
                       b->n_merges, (int)(left_length < 100 ? left_length : 100), left,
                       (int)(right_length < 100 ? right_length : 100), right);
    return bpe_put_merge(b, left_id, (bpe_merge){right_id, (int32_t)b->n_merges, id});
}

static int compare_merges(const void *a, const void *b)
{
    const bpe_merge *const x = a, *const y = b;
    return x->right != y->right ? (x->right > y->right) - (x->right < y->right)
                                : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Sorts the merges of a row from `begin`, and moves them to `to`. Of equal pairs the last counts. Returns the end. */
static uint32_t finish_row(bpe_merge *merges, uint32_t begin, uint32_t end, uint32_t to)
{
    if (end - begin > 1) qsort(merges + begin, end - begin, sizeof *merges, compare_merges);
    for (uint32_t i = begin; i < end; i++)
        if (i + 1 == end || merges[i].right != merges[i + 1].right) merges[to++] = merges[i];
    return to;
}

mar_status bpe_set_merges(bpe_building *b)
{
    text_bpe *const m = b->model;
    const size_t n = b->n_vocab;
    m->merge_rows = calloc(n + 2, sizeof *m->merge_rows);
    m->merges = malloc((b->n_merges + 1) * sizeof *m->merges);
    if (!m->merge_rows || !m->merges) return bpe_refuse_memory(b);
    uint32_t *const begin = m->merge_rows + 1; /* begin[i + 1] grows to the end of row i while it is filled */
    for (size_t i = 0; i < b->n_merges; i++) begin[b->merges[i].left]++;
    for (size_t i = 0, sum = 0; i <= n; i++) {
        const size_t size = begin[i];
        begin[i] = (uint32_t)sum;
        sum += size;
    }
    for (size_t i = 0; i < b->n_merges; i++) m->merges[begin[b->merges[i].left]++] = b->merges[i].merge;
    uint32_t to = 0, from = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t end = begin[i];
        m->merge_rows[i] = to;
        to = finish_row(m->merges, from, end, to);
        from = end;
    }
    m->merge_rows[n] = to;
    return MAR_OK;
}

mar_status bpe_add_token(bpe_building *b, const char *text, bpe_added token)
{
    text_bpe *const m = b->model;
    const int32_t known = bpe_piece_id(m, text, token.length), expected = known >= 0 ? known : m->count;
    if (token.length == 0 || token.length > BPE_PIECE_MAX)
        return err_set(b->err, MAR_EFORMAT, "%s: added_tokens: token %d has %zu bytes, expected 1 to %d", b->label,
                       token.id, token.length, BPE_PIECE_MAX);
    if (token.id != expected)
        return err_set(b->err, MAR_EFORMAT, "%s: added_tokens: \"%.*s\" has id %d, expected %d", b->label,
                       (int)token.length, text, token.id, expected);
    bpe_added *grown = text_grow(m->added, m->n_added, &b->added_capacity, sizeof *grown);
    if (!grown) return bpe_refuse_memory(b);
    m->added = grown;
    token.text = malloc(token.length + 1);
    if (!token.text) return bpe_refuse_memory(b);
    memcpy(token.text, text, token.length);
    token.text[token.length] = '\0';
    m->added[m->n_added++] = token;
    m->count += known < 0;
    return MAR_OK;
}

/* Builds the trie of the added tokens that are normalized or not. pieces is [n_added]; their texts are in `texts`. */
static mar_status build_added(bpe_building *b, int normalized, text_buffer *texts, text_piece *pieces, text_trie *out)
{
    text_bpe *const m = b->model;
    size_t n = 0;
    for (size_t i = 0; i < m->n_added; i++)
        if (m->added[i].normalized == normalized && texts[i].length)
            pieces[n++] = (text_piece){texts[i].data, (uint32_t)texts[i].length, (int32_t)i};
    text_sort_pieces(pieces, n);
    for (size_t i = 1; i < n; i++)
        if (text_same_piece(&pieces[i], &pieces[i - 1]))
            return err_set(b->err, MAR_EFORMAT, "%s: added_tokens: \"%s\" is there twice", b->label, pieces[i].text);
    if (n && !text_trie_build(pieces, n, out)) return bpe_refuse_memory(b);
    return MAR_OK;
}

/* Writes the text in which a token is found. Charges the memory of its index by how much it grows. */
static mar_status find_form(bpe_building *b, const bpe_added *token, text_matcher *matcher, text_buffer *out)
{
    enum { INDEX_BYTES = 32 }; /* of a byte in a trie, and while it is built */
    const text_steps none = {0}, *const steps = token->normalized ? &b->model->normalizers : &none;
    mar_err why = {0};
    mar_status status = text_normalize(steps, matcher, token->text, token->length, out, &why);
    if (out->length > token->length) text_charge_bytes(&b->budget, INDEX_BYTES * (out->length - token->length));
    if (status == MAR_OK) status = text_budget_check(&b->budget, "its normal form", &why);
    if (status == MAR_OK) return MAR_OK;
    return err_set(b->err, status == MAR_ENOMEM ? MAR_ENOMEM : MAR_EFORMAT, "%s: added_tokens: \"%.*s\": %s", b->label,
                   (int)(token->length < 100 ? token->length : 100), token->text, why.text);
}

/* Sorts the tokens by their texts. The first of equal ones counts. */
static mar_status sort_names(bpe_building *b)
{
    text_bpe *const m = b->model;
    m->names = malloc(m->n_added * sizeof *m->names);
    if (!m->names) return bpe_refuse_memory(b);
    for (size_t i = 0; i < m->n_added; i++)
        m->names[i] = (text_piece){m->added[i].text, (uint32_t)m->added[i].length, m->added[i].id};
    text_sort_pieces(m->names, m->n_added);
    for (size_t i = 0; i < m->n_added; i++) {
        const text_piece *const p = &m->names[i], *const last = m->n_names ? &m->names[m->n_names - 1] : NULL;
        if (!last || !text_same_piece(last, p)) m->names[m->n_names++] = *p;
    }
    return MAR_OK;
}

mar_status bpe_index_added(bpe_building *b)
{
    text_bpe *const m = b->model;
    const size_t n = m->n_added;
    if (n == 0) return MAR_OK;
    mar_status status = sort_names(b);
    text_matcher *matcher = text_matcher_new(&b->budget);
    text_buffer *texts = calloc(n, sizeof *texts);
    text_piece *pieces = calloc(n, sizeof *pieces);
    if (status == MAR_OK && (!texts || !pieces || !matcher)) status = bpe_refuse_memory(b);
    for (size_t i = 0; i < n && status == MAR_OK; i++) status = find_form(b, &m->added[i], matcher, &texts[i]);
    if (status == MAR_OK) status = build_added(b, 0, texts, pieces, &m->raw);
    if (status == MAR_OK) status = build_added(b, 1, texts, pieces, &m->normal);
    for (size_t i = 0; texts && i < n; i++) text_buffer_free(&texts[i]);
    text_matcher_free(matcher);
    free(texts);
    free(pieces);
    return status;
}
