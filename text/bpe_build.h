/* Puts a byte-pair model together: the vocabulary, then merges, then added tokens. Messages begin with the label, the
 * path of the file. */
#ifndef TEXT_BPE_BUILD_H
#define TEXT_BPE_BUILD_H

#include "text/bpe_model.h"

enum { BPE_PIECE_MAX = 4096 }; /* bytes of the longest piece */

/* A merge before all are known. */
typedef struct {
    int32_t left;
    bpe_merge merge;
} bpe_named_merge;

typedef struct {
    text_bpe *model;
    const char *label;
    size_t n_vocab;
    bpe_named_merge *merges; /* [n_merges] in the order of the file */
    size_t n_merges, capacity;
    size_t added_capacity; /* of model->added */
    text_budget budget;    /* of the file */
    mar_err *err;
} bpe_building;

/* Returns an empty model, which text_bpe_free frees; NULL without memory. */
text_bpe *bpe_new_model(void);

/* Sets the vocabulary. Sorts pieces. Refuses pieces that are there twice, and ids that are not 0 .. n-1. */
mar_status bpe_set_vocab(bpe_building *b, text_piece *pieces, size_t n);
/* Adds a merge, the next in rank. Both parts and both together must be in the vocabulary. */
mar_status bpe_add_merge(bpe_building *b, const char *left, size_t left_length, const char *right, size_t right_length);
/* Adds a merge of pieces of the vocabulary. */
mar_status bpe_put_merge(bpe_building *b, int32_t left, bpe_merge merge);
/* Sets the model's merges. */
mar_status bpe_set_merges(bpe_building *b);
/* Adds a token, whose text it copies. Its id must be the vocabulary's, or the next free one. */
mar_status bpe_add_token(bpe_building *b, const char *text, bpe_added token);
/* Makes the index of the added tokens. The normalizers must be there. */
mar_status bpe_index_added(bpe_building *b);

/* Returns the id of a piece of the vocabulary; -1 if it has none. */
int32_t bpe_piece_id(const text_bpe *b, const char *text, size_t length);

#endif
