/* The kinds of files (weights/kind.h): all rows in one list. */
#ifndef MAR_KINDS_H
#define MAR_KINDS_H

#include "families/families.h"

/* Returns the first kind that recognises the file; NULL if it is unknown. */
const wt_kind *mar_kind_of(const wt_file *f);
/* Returns MAR_OK if the file is of one of these kinds. Otherwise returns MAR_EMODEL with a message that names its kind
 * and `expected`. */
mar_status mar_check_kind(const wt_file *f, unsigned wanted, const char *expected, mar_err *err);
/* Returns MAR_EARG for `heads` that hold two numbers, unless the file is a MAR model. */
mar_status mar_check_heads(const wt_file *f, int heads, mar_err *err);
/* Writes to text why a file is not of these kinds: "neither a MAR model (no class_emb.weight) nor a KL autoencoder (no
 * post_quant_conv.weight)". Returns text. */
const char *mar_kinds_lack(unsigned wanted, char *text, size_t size);

/* Returns 1 if a matrix that int8 covers is stored as this type, WT_I8 or WT_I4. */
int mar_has_low(const wt_file *f, wt_dtype dtype);

/* Writes to text the set of weights and the prefix removed from names: " of model_ema, names without module.". Writes
 * "" if there is neither. */
void mar_weights_text(const wt_file *f, char *text, size_t size);

#endif
