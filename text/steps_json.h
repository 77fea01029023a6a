/* Reads the normalizers and pre-tokenizers of a tokenizer.json. */
#ifndef TEXT_STEPS_JSON_H
#define TEXT_STEPS_JSON_H

#include "base/json.h"
#include "text/steps.h"

/* v is the value of "normalizer" or "pre_tokenizer"; NULL or null adds no step. Returns MAR_EFORMAT, with the label and
 * the name of what is not supported, or if the compiled patterns exceed the file's budget; or MAR_ENOMEM. */
mar_status text_read_normalizers(const json_value *v, const char *label, text_budget *budget, text_steps *out,
                                 mar_err *err);
mar_status text_read_splits(const json_value *v, const char *label, text_budget *budget, text_steps *out, mar_err *err);

#endif
