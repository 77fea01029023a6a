/* Limits of the work and the memory that one file of a tokenizer, or one text, may cause. Every loop that they drive
 * charges the same budget, so that its limits hold for the sum. */
#ifndef TEXT_BUDGET_H
#define TEXT_BUDGET_H

#include "base/error.h"

#include <stddef.h>

/* A step is a byte passed, a part of a pattern tried, or work of about the same time. */
typedef struct {
    size_t steps, bytes;         /* left */
    size_t all_steps, all_bytes; /* at first */
    const char *exceeded;        /* "steps" or "bytes"; NULL: none */
} text_budget;

/* Returns the budget of reading a file. A file of any size has the same: what a reader does once for each byte or
 * value of the file is not charged. Emu3's, with 150,000 pieces, takes an eighth. */
text_budget text_budget_of_file(void);
/* Returns the budget of a text of n bytes. Real tokenizers take a tenth or less. */
text_budget text_budget_of_text(size_t n);

/* Returns the budget of cleaning a caption of n bytes. The slowest ones take half of it. */
text_budget text_budget_of_caption(size_t n);

/* Charges steps, or bytes by which texts or tables grow beyond their sources. Returns 0 from the first charge on that
 * exceeds a limit. */
int text_charge_steps(text_budget *b, size_t n);
int text_charge_bytes(text_budget *b, size_t n);

/* Returns MAR_OK if no limit is exceeded; else MAR_EARG with `what`, the part that exceeded it. */
mar_status text_budget_check(const text_budget *b, const char *what, mar_err *err);

#endif
