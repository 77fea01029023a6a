#include "text/bpe_encode.h"

#include "base/printable.h"
#include "text/bpe_model.h"

#include <stdlib.h>
#include <string.h>

/* --- added tokens: find_matches in tokenizers/src/tokenizer/added_vocabulary.rs ----------------------------------- */

/* Returns the size of the character that ends at text[end], end > 0. */
static size_t size_before(const char *text, size_t end)
{
    size_t size = 1;
    while (size < end && size < 4 && ((uint8_t)text[end - size] & 0xc0) == 0x80) size++;
    return size;
}

/* Returns whether the whole of text[n] matches a pattern for a character. */
static int is_a(const text_pattern *p, text_matcher *m, const char *text, size_t n)
{
    text_match match;
    return text_pattern_find(p, m, text, n, 0, &match) > 0;
}

/* Returns whether letters of words stand beside text[begin..end). */
static int is_inside_word(const text_bpe *b, text_matcher *m, const char *text, size_t n, size_t begin, size_t end)
{
    unsigned c;
    const size_t before = begin ? size_before(text, begin) : 0,
                 after = end < n ? utf8_decode(text + end, n - end, &c) : 0;
    return (before && is_a(b->word, m, text + begin - before, before)) ||
           (after && is_a(b->word, m, text + end, after));
}

/* Widens a match over white space, but not into the token before, which ends at `done`. */
static void bpe_strip(const bpe_added *a, const char *text, size_t n, size_t done, size_t *begin, size_t *end)
{
    unsigned c;
    while (a->lstrip && *begin > done) {
        const size_t size = size_before(text, *begin);
        if (!utf8_decode(text + *begin - size, size, &c) || !text_is_space(c)) break;
        *begin -= size;
    }
    while (a->rstrip && *end < n) {
        const size_t size = utf8_decode(text + *end, n - *end, &c);
        if (size == 0 || !text_is_space(c)) break;
        *end += size;
    }
}

/* Cuts text[n] at the added tokens of the trie, until the budget is exceeded. It starts at `start` of the whole. */
static void cut_added(const text_bpe *b, const text_trie *trie, text_matcher *m, const char *text, size_t n,
                      size_t start, text_parts *out)
{
    size_t done = 0;
    if (!trie->nodes) {
        text_add_part(out, start, n, -1);
        return;
    }
    text_budget *const budget = text_matcher_budget(m);
    for (size_t at = 0; at < n && !budget->exceeded;) {
        int32_t number = 0;
        size_t passed;
        const size_t length = text_trie_longest(trie, 0, text + at, n - at, &number, &passed);
        text_charge_steps(budget, passed + 1);
        if (length == 0) {
            at++;
            continue;
        }
        const bpe_added *const a = &b->added[number];
        size_t begin = at, end = at + length;
        at = end;
        if (a->single_word && is_inside_word(b, m, text, n, begin, end)) continue;
        bpe_strip(a, text, n, done, &begin, &end);
        if (done < begin) text_add_part(out, start + done, begin - done, -1);
        text_add_part(out, 0, 0, a->id);
        if (end > at) at = end;
        done = end;
    }
    if (done < n) text_add_part(out, start + done, n - done, -1);
}

/* Finds added tokens in the text, normalises the rest and finds the others there. */
static mar_status find_parts(const text_bpe *b, text_matcher *m, const char *text, size_t n, text_parts *out,
                             mar_err *err)
{
    text_parts raw = {0};
    mar_status status = MAR_OK;
    cut_added(b, &b->raw, m, text, n, 0, &raw);
    for (size_t i = 0; i < raw.count && status == MAR_OK; i++) {
        const text_part part = raw.list[i];
        if (part.id >= 0) {
            text_add_part(out, 0, 0, part.id);
            continue;
        }
        text_buffer normal = {0};
        const size_t start = out->text.length;
        status = text_normalize(&b->normalizers, m, text + part.start, part.length, &normal, err);
        if (status == MAR_OK) {
            text_put(&out->text, normal.data, normal.length);
            cut_added(b, &b->normal, m, normal.data, normal.length, start, out);
        }
        text_buffer_free(&normal);
    }
    if (status == MAR_OK && (raw.failed || out->failed || out->text.failed)) status = text_refuse_memory(n, err);
    if (status == MAR_OK) status = text_budget_check(text_matcher_budget(m), "the tokenizer: added_tokens", err);
    text_parts_free(&raw);
    return status;
}

/* --- merging: merge_all in tokenizers/src/models/bpe/word.rs ------------------------------------------------------ */

/* A piece of the word. */
typedef struct {
    int32_t id;
    int32_t previous, next; /* -1: there is none; a piece that was merged has next -2 */
} symbol;

/* A merge that is possible, of the pieces at `at` and behind it. */
typedef struct {
    int32_t rank, at, id;
} candidate;

/* Steps of a budget for a byte of a word: merges take the logarithm of their number. */
enum { SYMBOL_STEPS = 8 };

/* What one word after another is split with. */
typedef struct {
    const text_bpe *b;
    text_budget *budget;
    symbol *symbols; /* [n] */
    size_t n, capacity;
    candidate *heap; /* [heap_count], a binary heap: the lowest rank, then the first place, on top */
    size_t heap_count, heap_capacity;
    int failed;
} splitter;

static int is_before(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void bpe_push(splitter *s, candidate c)
{
    candidate *grown = text_grow(s->heap, s->heap_count, &s->heap_capacity, sizeof *grown);
    if (!grown) {
        s->failed = 1;
        return;
    }
    s->heap = grown;
    size_t i = s->heap_count++;
    for (; i > 0 && is_before(c, s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = c;
}

static candidate bpe_pop(splitter *s)
{
    const candidate top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->heap_count) break;
        if (child + 1 < s->heap_count && is_before(s->heap[child + 1], s->heap[child])) child++;
        if (!is_before(s->heap[child], last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Returns the merge of two pieces; NULL if there is none. */
static const bpe_merge *find_merge(const text_bpe *b, int32_t left, int32_t right)
{
    uint32_t low = b->merge_rows[left], n = b->merge_rows[left + 1] - low;
    while (n > 0) {
        const uint32_t half = n / 2;
        const bpe_merge *const m = &b->merges[low + half];
        if (m->right == right) return m;
        if (m->right < right) low += half + 1;
        n = m->right < right ? n - half - 1 : half;
    }
    return NULL;
}

/* Adds the merge of the piece at `at` with the next one, if there is one. */
static void consider(splitter *s, int32_t at)
{
    if (at < 0 || s->symbols[at].next < 0) return;
    const bpe_merge *m = find_merge(s->b, s->symbols[at].id, s->symbols[s->symbols[at].next].id);
    if (m) bpe_push(s, (candidate){m->rank, at, m->id});
}

static void merge_all(splitter *s)
{
    for (size_t i = 0; i + 1 < s->n; i++) consider(s, (int32_t)i);
    while (s->heap_count > 0 && !s->failed) {
        const candidate top = bpe_pop(s);
        symbol *const left = &s->symbols[top.at];
        if (left->next < 0) continue;
        symbol *const right = &s->symbols[left->next];
        const bpe_merge *m = find_merge(s->b, left->id, right->id);
        if (!m || m->id != top.id) continue; /* one of them has changed meanwhile */
        left->id = top.id;
        left->next = right->next;
        right->next = -2;
        if (left->next >= 0) s->symbols[left->next].previous = top.at;
        consider(s, left->previous);
        consider(s, top.at);
    }
}

static void add_symbol(splitter *s, int32_t id)
{
    symbol *grown = s->n < INT32_MAX ? text_grow(s->symbols, s->n, &s->capacity, sizeof *grown) : NULL;
    if (!grown) {
        s->failed = 1;
        return;
    }
    s->symbols = grown;
    if (s->n) s->symbols[s->n - 1].next = (int32_t)s->n;
    s->symbols[s->n] = (symbol){id, (int32_t)s->n - 1, -1};
    s->n++;
}

/* Adds the bytes of a character, the suffix included. Returns 0, and adds none, if a byte has no piece. */
static int add_bytes(splitter *s, const char *text, size_t size, const char *suffix, size_t suffix_size)
{
    for (size_t i = 0; i < size + suffix_size; i++)
        if (s->b->bytes[(uint8_t)(i < size ? text[i] : suffix[i - size])] < 0) return 0;
    for (size_t i = 0; i < size + suffix_size; i++)
        add_symbol(s, s->b->bytes[(uint8_t)(i < size ? text[i] : suffix[i - size])]);
    return 1;
}

/* Makes symbols of the characters of a word. */
static void add_characters(splitter *s, const char *text, size_t n)
{
    const text_bpe *const b = s->b;
    int unknown = 0; /* one is yet to be added */
    unsigned c;
    for (size_t at = 0, size; at < n && !s->failed; at += size) {
        size = utf8_decode(text + at, n - at, &c);
        if (size == 0) size = 1;
        const size_t suffix = at + size == n ? b->suffix_length : 0;
        uint32_t node = text_trie_walk(&b->vocab, 0, text + at, size, NULL);
        if (node && suffix) node = text_trie_walk(&b->vocab, node, b->suffix, suffix, NULL);
        if (node && b->vocab.nodes[node].id >= 0) {
            if (unknown) add_symbol(s, b->unknown);
            unknown = 0;
            add_symbol(s, b->vocab.nodes[node].id);
        } else if (!add_bytes(s, text + at, size, b->suffix, suffix) && b->unknown >= 0) {
            if (unknown && !b->fuse_unknown) add_symbol(s, b->unknown);
            unknown = 1;
        }
    }
    if (unknown) add_symbol(s, b->unknown);
}

static void bpe_add_word(splitter *s, const char *text, size_t n, text_ids *out)
{
    const text_bpe *const b = s->b;
    if (b->ignore_merges) {
        const uint32_t node = text_trie_walk(&b->vocab, 0, text, n, NULL);
        if (node && b->vocab.nodes[node].id >= 0) {
            text_add_id(out, b->vocab.nodes[node].id);
            return;
        }
    }
    s->n = s->heap_count = 0;
    if (!text_charge_steps(s->budget, SYMBOL_STEPS * (n + b->suffix_length))) return;
    add_characters(s, text, n);
    merge_all(s);
    for (size_t i = 0; i < s->n; i++)
        if (s->symbols[i].next != -2) text_add_id(out, s->symbols[i].id);
}

static mar_status bpe_encode_text(const text_bpe *b, text_matcher *m, const char *text, size_t n, text_ids *out,
                                  mar_err *err)
{
    text_parts parts = {0};
    splitter s = {.b = b, .budget = text_matcher_budget(m)};
    mar_status status = find_parts(b, m, text, n, &parts, err);
    if (status == MAR_OK) status = text_split(&b->splits, m, &parts, err);
    for (size_t i = 0; i < parts.count && status == MAR_OK; i++) {
        if (parts.list[i].id >= 0)
            text_add_id(out, parts.list[i].id);
        else
            bpe_add_word(&s, parts.text.data + parts.list[i].start, parts.list[i].length, out);
        if (s.failed) status = text_refuse_memory(n, err);
        if (status == MAR_OK) status = text_budget_check(s.budget, "the tokenizer: model", err);
    }
    if (status == MAR_OK) status = text_matcher_check(m, "the tokenizer", err);
    free(s.symbols);
    free(s.heap);
    text_parts_free(&parts);
    return status;
}

mar_status text_bpe_encode(const text_bpe *b, const char *text, size_t length, text_ids *out, mar_err *err)
{
    if (length > INT32_MAX / 8) return err_set(err, MAR_EARG, "a text of %zu bytes, expected fewer than 2^28", length);
    text_budget budget = text_budget_of_text(length);
    text_matcher *m = text_matcher_new(&budget);
    if (!m) return text_refuse_memory(length, err);
    const mar_status status = bpe_encode_text(b, m, text, length, out, err);
    text_matcher_free(m);
    return status;
}
