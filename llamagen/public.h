/* The shape of models of ids behind mar.h. */
#ifndef LLAMAGEN_PUBLIC_H
#define LLAMAGEN_PUBLIC_H

#include "llamagen/config.h"
#include "mar/core/handle.h"
#include "specdec/eagle_model.h"

/* Derives the shape of a LlamaGen file. The handle gives the number of tokens if the file does not. Returns MAR_EARG if
 * the two differ. */
mar_status mar_discrete_config(const mar *m, const wt_file *f, int heads, gpt_config *out, mar_err *err);
/* Derives that of a decoder of text/grammar.h, for the handle's size of images. */
mar_status mar_decoder_config(const mar *m, const wt_file *f, int heads, gpt_config *out, mar_err *err);
/* Returns the shape as the public header has it. A drafter has no images, tokens or classes. */
mar_model_config mar_discrete_public_config(const gpt_config *c);
mar_model_config mar_eagle_public_config(const eagle_config *c);

#endif
