/* LlamaGen's cleaning of captions. */
#ifndef TEXT_CLEAN_H
#define TEXT_CLEAN_H

#include "base/error.h"

#include <stddef.h>

/* Cleans a caption as LlamaGen's language/t5.py does, whose text_preprocessing calls clean_caption twice: lower case;
 * URLs, HTML, CJK, file names and other noise removed. ftfy is left out. text is char [length], valid UTF-8. *out is a
 * new string that the caller frees. Returns MAR_EARG for invalid UTF-8, or MAR_ENOMEM. */
mar_status text_clean_caption(const char *text, size_t length, char **out, mar_err *err);

#endif
