#ifndef MAR_TEXT_H
#define MAR_TEXT_H

#include "families/language.h"
#include "mar/api/load.h"
#include "nets/t5.h"
#include "text/tokenizer.h"

struct mar_text {
    mar *m; /* library handle; referenced */
    mar_text_config config;
    text_tokenizer *tokenizer;
    int end; /* T5: id of the end token */
    t5_encoder *encoder;
    kern_queue *k;
    char warning[256]; /* config.warning */
    language language;
    int columns, rows; /* tokens of an image */
};

/* Loads the prompts' side of a model of prompt ids. The file may be closed afterwards; NULL: the folder has a tokenizer
 * alone, whose tokens tell the family (language_open_tokenizer). */
mar_status mar_text_load_decoder(mar_text *t, const wt_file *f, const char *folder, mar_err *err);

#endif
