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
    int is_file;    /* 1: HPS, whose texts are cleaned first */
    int start, end; /* ids of these tokens */
    kern_queue *k;
    eval_picture *pictures; /* [batch] of a call */
    int *ids;               /* [batch][positions] of a call */
    int *first, *length;    /* [batch] */
};

/* Checks a picture's size as the networks' calls do. Returns MAR_EARG. */
mar_status mar_clip_check_size(int width, int height, mar_err *err);

#endif
