/* A byte-pair model in memory. Private to the files text/bpe*.c. */
#ifndef TEXT_BPE_MODEL_H
#define TEXT_BPE_MODEL_H

#include "text/steps.h"
#include "text/trie.h"

typedef struct {
    int32_t right; /* the second piece; the first is the merge's row */
    int32_t rank;  /* merges of lower rank go first */
    int32_t id;    /* of both together */
} bpe_merge;

/* A token that is found in the text before everything else. */
typedef struct {
    char *text; /* [length], owned */
    size_t length;
    int32_t id;
    int single_word;    /* only where no letter of a word stands beside it */
    int lstrip, rstrip; /* takes the white space before or behind it */
    int normalized;     /* is found in the normal form of the text, by its own normal form */
    int special;
} bpe_added;

typedef struct text_bpe {
    int count; /* ids 0 .. count-1 */
    text_trie vocab;
    uint32_t *merge_rows; /* [count + 1] first merge of each left piece */
    bpe_merge *merges;    /* sorted by row, then right */
    int unknown;          /* id for a character that is not in the vocabulary; -1: it is left out */
    int fuse_unknown;     /* several in a row are one */
    int bytes[256];       /* ids of "<0x00>" ..., tried before `unknown` with byte_fallback; else -1 */
    int ignore_merges;    /* a word of the vocabulary is one token */
    char *suffix;         /* [suffix_length] behind the last character of a word, such as "</w>"; NULL: none */
    size_t suffix_length;
    text_steps normalizers, splits;
    bpe_added *added; /* [n_added] */
    size_t n_added;
    text_piece *names; /* [n_names] their texts and ids, sorted, different */
    size_t n_names;
    text_trie raw, normal; /* of the added tokens, whose numbers are the ids; no nodes without them */
    text_pattern *word;    /* a letter of a word; NULL if no added token is single_word */
} text_bpe;

#endif
