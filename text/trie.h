/* A trie of byte strings: finds all pieces that begin at a place of a text. */
#ifndef TEXT_TRIE_H
#define TEXT_TRIE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *text; /* [length] */
    uint32_t length;
    int32_t id;
} text_piece;

typedef struct {
    uint32_t first;    /* number of the first child; the others follow it in the order of their bytes */
    uint16_t children; /* 0 .. 256 */
    int32_t id;        /* of the piece that ends here; -1 if none */
} trie_node;

typedef struct {
    trie_node *nodes; /* [count]; 0 is the root */
    uint8_t *bytes;   /* [count] byte between a node's parent and it */
    size_t count;
} text_trie;

/* Sorts pieces by their bytes; equal ones by id. */
void text_sort_pieces(text_piece *pieces, size_t n);
/* Returns the piece with this text among sorted ones; NULL if there is none. */
const text_piece *text_find_piece(const text_piece *sorted, size_t n, const char *text, size_t length);

/* Returns whether two pieces have the same text. */
int text_same_piece(const text_piece *a, const text_piece *b);

/* Builds the trie of sorted, different, non-empty pieces. Memory is proportional to their bytes, and nothing of them is
 * kept. Returns 0 without memory, or for more than 2^31 bytes. */
int text_trie_build(const text_piece *sorted, size_t n, text_trie *out);
void text_trie_free(text_trie *t);

/* Returns the child of a node by this byte; 0 if there is none. */
static inline uint32_t text_trie_step(const text_trie *t, uint32_t node, uint8_t byte)
{
    uint32_t low = t->nodes[node].first, n = t->nodes[node].children;
    while (n > 1) {
        const uint32_t half = n / 2;
        low += t->bytes[low + half] <= byte ? half : 0;
        n -= half;
    }
    return n == 1 && t->bytes[low] == byte ? low : 0;
}

/* Returns the node of text[n] from a node on; 0 if there is none. *passed, or NULL, gets the bytes before the search
 * ends. */
uint32_t text_trie_walk(const text_trie *t, uint32_t node, const char *text, size_t n, size_t *passed);
/* Returns the length of the longest piece that begins at text[0..n), behind a node, and sets *id to its id; 0 if there
 * is none. *passed as above. */
size_t text_trie_longest(const text_trie *t, uint32_t node, const char *text, size_t n, int32_t *id, size_t *passed);

#endif
