#ifndef MAR_TEXT_H
#define MAR_TEXT_H

#include "mar/core/handle.h"
#include "text/t5.h"
#include "text/tokenizer.h"

struct mar_text {
    mar *m; /* library handle; referenced */
    mar_text_config config;
    text_tokenizer *tokenizer;
    int end; /* id of the end token */
    t5_encoder *encoder;
    kern_queue *k;
};

#endif
