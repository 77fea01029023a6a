/* What networks that judge images have in common: a queue of their own, the pictures of a call, and texts as tokens. */
#ifndef MAR_API_JUDGE_H
#define MAR_API_JUDGE_H

#include "eval/resize.h"
#include "mar/core/handle.h"
#include "text/tokenizer.h"
#include "weights/weights.h"

typedef struct {
    mar *m;                    /* library handle; referenced once the network is loaded */
    int batch;                 /* maximum images or texts of a call */
    kern_queue *k;             /* NULL: the network needs none */
    eval_picture *pictures;    /* [batch] of a call */
    text_tokenizer *tokenizer; /* NULL: it judges no texts */
    int start, end;            /* ids of the tokens around a text */
    int positions;             /* tokens of a text at most, these included */
    int *ids;                  /* [batch][positions] of a call */
    int *first, *length;       /* [batch] place in ids and tokens of each text */
} mar_judge;

/* Begins a call that loads a network from `path`. Returns MAR_EARG for a batch that is not 1..1024, too. */
mar_status mar_judge_check_load(const mar *m, const char *path, int batch, const void *out, mar_err *err);
/* Makes room for pictures in an empty judge. */
mar_status mar_judge_open(mar_judge *j, mar *m, int batch, mar_err *err);
/* Creates the queue and binds it, to load the network of f; end loading with mar_judge_end_load. */
mar_status mar_judge_begin_load(mar_judge *j, mar_err *err);
mar_status mar_judge_end_load(mar_judge *j, const wt_file *f, mar_status status, mar_err *err);
/* Finds the tokens around texts in j->tokenizer and makes room for texts. `path`: the tokenizer's, for the message. */
mar_status mar_judge_use_texts(mar_judge *j, const char *path, const char *start, const char *end, int positions,
                               mar_err *err);
/* Waits for the queue and leaves it bound: the network can be freed. mar_judge_close frees the rest. */
void mar_judge_stop(mar_judge *j);
void mar_judge_close(mar_judge *j);

/* Binds the queue of a call; mar_judge_end_run waits, and returns `status` or the queue's failure. */
void mar_judge_begin_run(mar_judge *j);
mar_status mar_judge_end_run(mar_judge *j, mar_status status, mar_err *err);
/* Returns MAR_EARG unless n is 1..batch. `what`: "images". */
mar_status mar_judge_check_count(const mar_judge *j, int n, const char *what, mar_err *err);
/* Takes n pictures of one size, or each of its own. Returns MAR_EARG for NULL, another n, and sizes that no network
 * takes. */
mar_status mar_judge_take(mar_judge *j, const uint8_t *rgb, int n, int width, int height, mar_err *err);
mar_status mar_judge_take_each(mar_judge *j, const uint8_t *const *rgb, const int *widths, const int *heights, int n,
                               mar_err *err);
/* Divides text i into tokens: start, as many of its own as fit, end. Returns MAR_EARG for NULL and invalid UTF-8. */
mar_status mar_judge_take_text(mar_judge *j, const char *text, int i, mar_err *err);

#endif
