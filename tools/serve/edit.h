/* The picture and the mask of an edit. */
#ifndef TOOLS_SERVE_EDIT_H
#define TOOLS_SERVE_EDIT_H

#include "base/json.h"
#include "tools/serve/answer.h"
#include "tools/serve/service.h"

/* What of a mask marks the pixels to be made anew. White is 128 or more in a channel, as for mar edit. */
typedef enum {
    MASK_CLEAR, /* OpenAI's: transparent, alpha 0; white if nothing can be, as in a JPEG */
    MASK_WHITE, /* AUTOMATIC1111's: white; if something is transparent, what is opaque, alpha above 128 */
    MASK_BLACK  /* the same inverted */
} edit_mask;

/* Decodes two pictures of the session's size, JSON_STRING with the bytes of a file. A token is made anew if a pixel of
 * its cell is marked in the mask, or without one is transparent in the picture. `name`: what the client calls the
 * picture. Sets out->picture, known and kept_tokens. Returns 0, or 1 with the error in *a and nothing to free. */
int edit_read(const service *s, const json_value *picture, const char *name, const json_value *mask, edit_mask kind,
              job_spec *out, answer *a);

#endif
