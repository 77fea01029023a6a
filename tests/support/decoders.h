/* Small decoders that write images among text, in the layouts of their releases. Their weights are those of
 * tests/golden/make_mgpt.py, which makes tests/golden/data/mgpt.safetensors of them. */
#ifndef TESTS_DECODERS_H
#define TESTS_DECODERS_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    DECODER_LUMINA,     /* Lumina-mGPT: a folder of two shards, codebook of 8192 */
    DECODER_ANOLE,      /* Anole: a folder of three shards; the same function as the release */
    DECODER_RELEASE,    /* Anole: consolidated.pth and params.json, codebook of 64 */
    DECODER_EMU3,       /* Emu3-Gen: a folder of two shards, grouped queries, codebook of 128 */
    DECODER_EMU3_SAVED, /* the same function as transformers' Emu3ForConditionalGeneration saves it */
    DECODER_EMU3_STATE, /* and with the names of its state dict */
    DECODER_FEW,        /* Lumina-mGPT's layout with a codebook of 3 */
    DECODERS
} decoder_kind;

enum { DECODER_WIDTH = 32, DECODER_IDS = 256 /* most ids of a prompt */ };

/* Writes the folder DIRECTORY/NAME. A variant other than 0 is a model near to the golden one, such as a draft. Returns
 * the path; the caller frees it. A failure fails the test. */
char *decoder_write(const char *directory, decoder_kind kind, unsigned variant);

/* Write the ids before the first image token, for images of columns x rows tokens, to ids [DECODER_IDS]: of a prompt,
 * and of the second context of guidance. Return their number. */
int decoder_prompt(decoder_kind kind, const char *text, int columns, int rows, int *ids);
int decoder_negative(decoder_kind kind, int columns, int rows, int *ids);
/* Writes n ids to the last of `positions` places, features [positions], and 1 to the mask there; 0 to the others. */
void decoder_features(const int *ids, int n, int positions, float *features, uint8_t *mask);
int decoder_codebook(decoder_kind kind);

#endif
