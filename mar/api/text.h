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
    wt_file *f;           /* a model that writes images among text: its file, owned; NULL: T5 */
    const mar_file *file; /* the open file that f is a view of, referenced; NULL: f is a file of its own */
    char warning[256];    /* config.warning */
    language language;
    int columns, rows; /* tokens of an image */
};

/* Loads a model that writes images among text. On success t->f is f, which t then owns. */
mar_status mar_text_load_decoder(mar_text *t, wt_file *f, const char *folder, mar_err *err);
/* Reads the embedding's rows of `ids`, [count], to y, float [count][dim]. */
mar_status mar_text_read_rows(const mar_text *t, const int *ids, int count, float *y, mar_err *err);

#endif
