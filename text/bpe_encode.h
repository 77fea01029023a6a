/* The ids of a text by a byte-pair model. */
#ifndef TEXT_BPE_ENCODE_H
#define TEXT_BPE_ENCODE_H

#include "text/buffer.h"

typedef struct text_bpe text_bpe;

/* Adds the ids of text[length], valid UTF-8, to out. Time is proportional to n log n of the longest word. Returns
 * MAR_ENOMEM; or MAR_EARG for 2^28 bytes, or if a pattern of the file exceeds its limits (text/pattern.h). */
mar_status text_bpe_encode(const text_bpe *b, const char *text, size_t length, text_ids *out, mar_err *err);

#endif
