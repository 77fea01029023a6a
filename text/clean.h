/* LlamaGen's cleaning of captions. */
#ifndef TEXT_CLEAN_H
#define TEXT_CLEAN_H

#include "base/error.h"

#include <stddef.h>

/* Bytes of the longest caption. T5 reads 120 tokens of it. */
enum { TEXT_CAPTION_MAX = 4096 };

/* Cleans a caption as LlamaGen's language/t5.py does, whose text_preprocessing calls clean_caption twice: lower case;
 * URLs, tags, CJK, file names and other noise removed. Four things differ:
 *
 *   - ftfy, which repairs text of a wrong encoding, is left out.
 *   - U+0000 is removed.
 *   - A tag is "<", then a letter, "/", "!" or "?", and all up to ">" without another "<". It is removed; the release
 *     parses HTML with Beautiful Soup, which also removes the contents of script, style and template, and unclosed
 * tags.
 *   - Character references are those of html.unescape, also where Beautiful Soup decodes others.
 *
 * A caption without "<" and "&", also as escapes, is cleaned as the release does it, to the byte. text is char
 * [length], valid UTF-8. *out is a new string that the caller frees. Returns MAR_EARG for invalid UTF-8, for a longer
 * caption, or if a rule exceeds its limit of steps; or MAR_ENOMEM. */
mar_status text_clean_caption(const char *text, size_t length, char **out, mar_err *err);

#endif
