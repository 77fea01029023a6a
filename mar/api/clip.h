#ifndef MAR_CLIP_H
#define MAR_CLIP_H

#include "eval/clip.h"
#include "mar/core/handle.h"
#include "text/tokenizer.h"

struct mar_clip {
    mar *m; /* library handle; referenced */
    mar_clip_config config;
    int batch; /* maximum images or texts of a call */
    clip *network;
    text_tokenizer *tokenizer;
    int start, end; /* ids of these tokens */
    kern_queue *k;
    eval_picture *pictures; /* [batch] of a call */
    int *ids;               /* [batch][positions] of a call */
    int *first, *length;    /* [batch] */
};

#endif
