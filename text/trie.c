#include "text/trie.h"

#include <stdlib.h>
#include <string.h>

static int trie_compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
    const int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int compare_pieces(const void *a, const void *b)
{
    const text_piece *const x = a, *const y = b;
    const int order = trie_compare(x->text, x->length, y->text, y->length);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

void text_sort_pieces(text_piece *pieces, size_t n)
{
    if (n > 1) qsort(pieces, n, sizeof *pieces, compare_pieces);
}

int text_same_piece(const text_piece *a, const text_piece *b)
{
    return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

const text_piece *text_find_piece(const text_piece *sorted, size_t n, const char *text, size_t length)
{
    size_t low = 0;
    while (n > 0) {
        const size_t half = n / 2;
        const int order = trie_compare(sorted[low + half].text, sorted[low + half].length, text, length);
        if (order == 0) return &sorted[low + half];
        if (order < 0) low += half + 1;
        n = order < 0 ? n - half - 1 : half;
    }
    return NULL;
}

/* Returns the number of different prefixes of sorted pieces, the empty one included. */
static size_t count_prefixes(const text_piece *sorted, size_t n)
{
    size_t count = 1;
    for (size_t i = 0; i < n; i++) {
        size_t shared = 0;
        if (i > 0)
            while (shared < sorted[i - 1].length && sorted[i - 1].text[shared] == sorted[i].text[shared]) shared++;
        count += sorted[i].length - shared;
    }
    return count;
}

/* The pieces that pass through a node, and its depth in bytes. */
typedef struct {
    uint32_t begin, end, depth;
} node_range;

/* Adds the children of a node in the order of their bytes. A piece that ends at the node is its first. */
static void add_children(text_trie *t, node_range *ranges, uint32_t node, const text_piece *sorted)
{
    const node_range r = ranges[node];
    uint32_t i = r.begin;
    t->nodes[node] = (trie_node){.first = (uint32_t)t->count, .id = -1};
    if (i < r.end && sorted[i].length == r.depth) t->nodes[node].id = sorted[i++].id;
    while (i < r.end) {
        const uint8_t byte = (uint8_t)sorted[i].text[r.depth];
        const uint32_t begin = i;
        while (i < r.end && (uint8_t)sorted[i].text[r.depth] == byte) i++;
        t->bytes[t->count] = byte;
        ranges[t->count++] = (node_range){begin, i, r.depth + 1};
        t->nodes[node].children++;
    }
}

int text_trie_build(const text_piece *sorted, size_t n, text_trie *out)
{
    const size_t count = count_prefixes(sorted, n);
    *out = (text_trie){0};
    if (count > INT32_MAX || n > INT32_MAX) return 0;
    out->nodes = malloc(count * sizeof *out->nodes);
    out->bytes = malloc(count);
    node_range *ranges = malloc(count * sizeof *ranges);
    if (!out->nodes || !out->bytes || !ranges) {
        free(ranges);
        text_trie_free(out);
        return 0;
    }
    out->bytes[0] = 0;
    ranges[0] = (node_range){0, (uint32_t)n, 0};
    out->count = 1;
    for (uint32_t node = 0; node < out->count; node++) add_children(out, ranges, node, sorted);
    free(ranges);
    return 1;
}

void text_trie_free(text_trie *t)
{
    free(t->nodes);
    free(t->bytes);
    *t = (text_trie){0};
}

uint32_t text_trie_walk(const text_trie *t, uint32_t node, const char *text, size_t n, size_t *passed)
{
    size_t i = 0;
    while (i < n && (node = text_trie_step(t, node, (uint8_t)text[i])) != 0) i++;
    if (passed) *passed = i;
    return node;
}

size_t text_trie_longest(const text_trie *t, uint32_t node, const char *text, size_t n, int32_t *id, size_t *passed)
{
    size_t longest = 0, i = 0;
    for (; i < n && (node = text_trie_step(t, node, (uint8_t)text[i])) != 0; i++)
        if (t->nodes[node].id >= 0) longest = i + 1, *id = t->nodes[node].id;
    if (passed) *passed = i;
    return longest;
}
