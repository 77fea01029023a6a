/* A small NextStep-1 in the layout of its releases. Its weights are those of tests/golden/make_nextstep.py, which makes
 * tests/golden/data/nextstep.safetensors of them. */
#ifndef TESTS_NEXTSTEP_H
#define TESTS_NEXTSTEP_H

#include "tests/support/harmon.h"

typedef enum {
    NEXTSTEP_FOLDER,    /* config.json, model.safetensors, tokenizer files, vae/ with config.json and checkpoint.pt */
    NEXTSTEP_POSITIONS, /* the same with use_gen_pos_embed */
    NEXTSTEP_NEWER,     /* NextStep-1.1: NEXTSTEP_FOLDER in two shards with an index, other names in config.json, no
                         * gen_pos_embed */
    NEXTSTEP_DRAFT,     /* NEXTSTEP_FOLDER with other numbers, a tenth beside those of the others; no vae/ */
    NEXTSTEP_SMALLER    /* NEXTSTEP_DRAFT whose embedding has NEXTSTEP_FEW rows */
} nextstep_kind;

/* Writes one into a folder that exists. A failure fails the test. */
void nextstep_write(const char *folder, nextstep_kind kind);

enum {
    NEXTSTEP_KINDS = NEXTSTEP_SMALLER + 1,
    NEXTSTEP_FEW = 530, /* of 536 */
    NEXTSTEP_SEQ = 16,  /* tokens of the golden images, 64x64 pixels */
    NEXTSTEP_CHANNELS = 16,
    NEXTSTEP_WIDTH = 64,
    NEXTSTEP_STEPS = 8,
    NEXTSTEP_FIRST = 40 /* the first golden image's number */
};
typedef struct {
    char folder[NEXTSTEP_KINDS][400];
} nextstep_files;

/* Set-up and tear-down of a group of tests whose *state is nextstep_files. */
int nextstep_set_up(void **state);
int nextstep_tear_down(void **state);

#endif
