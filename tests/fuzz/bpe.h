/* What the targets of byte-pair files share. */
#ifndef TESTS_FUZZ_BPE_H
#define TESTS_FUZZ_BPE_H

#include "text/bpe.h"

/* Cuts some texts by two tokenizers of the same files. Their ids must be the same and below the number of ids. Frees
 * both. */
void fuzz_check_bpe(text_bpe *a, text_bpe *b);

#endif
