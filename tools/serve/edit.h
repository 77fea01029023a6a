/* The picture and the mask of an edit. */
#ifndef TOOLS_SERVE_EDIT_H
#define TOOLS_SERVE_EDIT_H

#include "base/json.h"
#include "tools/serve/answer.h"
#include "tools/serve/service.h"

/* Decodes two pictures of the session's size. A token is made anew if a pixel of its cell is transparent (alpha 0) in
 * the mask, or without one in the picture. In a mask without transparency, such as a JPEG, white takes its place, as in
 * mar edit. Sets out->picture, known and kept_tokens. Returns 0, or 1 with the error in *a
 * and nothing to free. */
int edit_read(const service *s, const json_value *picture, const json_value *mask, job_spec *out, answer *a);

#endif
