/* Emu3's tokenizer (mllm/tokenization_emu3.py, after Qwen's): byte-pair encoding by tiktoken. emu3.tiktoken has a line
 * for each piece, its bytes in base64 and its rank, which is its id; two pieces merge if both together are a piece, the
 * lowest rank first. Special tokens follow: those of Qwen, then the lines of emu3_vision_tokens.txt. Texts are
 * normalised to NFC. */
#ifndef TEXT_TIKTOKEN_H
#define TEXT_TIKTOKEN_H

#include "text/bpe.h"

enum { TIKTOKEN_PIECE_MAX = 256 }; /* bytes of the longest piece */

/* Reads the bytes of both files. Returns MAR_EFORMAT or MAR_ENOMEM with the label of one. */
mar_status text_tiktoken_read(const char *ranks, size_t ranks_length, const char *ranks_label, const char *tokens,
                              size_t tokens_length, const char *tokens_label, text_bpe **out, mar_err *err);

#endif
