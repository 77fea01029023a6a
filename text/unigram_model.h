/* A unigram model in memory. Private to the files text/unigram*.c. */
#ifndef TEXT_UNIGRAM_MODEL_H
#define TEXT_UNIGRAM_MODEL_H

#include "text/charsmap.h"
#include "text/trie.h"

/* Types of pieces (sentencepiece_model.proto). */
typedef enum {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN = 2,
    PIECE_CONTROL = 3,
    PIECE_USER = 4, /* always one token where it stands in the text, and not normalised */
    PIECE_UNUSED = 5,
    PIECE_BYTE = 6
} unigram_piece_type;

struct text_unigram {
    char *file; /* the file's bytes, into which the pieces point */
    int count;
    float *score;             /* [count] log probability */
    uint8_t *type;            /* [count] unigram_piece_type */
    text_piece *pieces;       /* [count] sorted: those of text (n_text), then reserved ones, each part by itself */
    size_t n_text;            /* normal, user-defined and unused pieces */
    text_trie trie;           /* of the pieces of text */
    text_trie user;           /* of the user-defined ones; no nodes without them */
    text_charsmap charsmap;   /* replacements of the normaliser */
    int unknown;              /* id */
    int bytes[256];           /* [byte] ids, with byte_fallback */
    float min_score;          /* of the normal pieces */
    int byte_fallback;        /* unknown characters become bytes */
    int whitespace_is_suffix; /* treat_whitespace_as_suffix */
    int add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
};

#endif
