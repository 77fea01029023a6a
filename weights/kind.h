/* Kinds of files: how each is recognised, described, checked and converted. A row stands beside the code that loads
 * such files, a family's in its file of families/; mar/api/kinds.c lists all. */
#ifndef WEIGHTS_KIND_H
#define WEIGHTS_KIND_H

#include "mar_files.h"
#include "weights/weights.h"

/* What the caller and the library's handle say of a model beside its file; 0: nothing. */
typedef struct {
    int heads;         /* as in mar_model_load */
    int seq_len;       /* mar_options.seq_len */
    int patch_size;    /* mar_options.patch_size */
    int width, height; /* mar_options.image_size */
} wt_asked;

/* Sets of kinds, as bits: 1 << MAR_KIND_MAR | ... */
enum {
    WT_KINDS_OF_MODELS = 1 << MAR_KIND_MAR | 1 << MAR_KIND_SPHEREAR | 1 << MAR_KIND_LLAMAGEN | 1 << MAR_KIND_EAGLE |
                         1 << MAR_KIND_DECODER | 1 << MAR_KIND_NEXTSTEP
};

typedef void wt_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);

/* Destination of a file's facts, a line each. */
typedef struct {
    void (*add)(void *user, const char *line);
    void *user;
} wt_report;
void wt_add_fact(const wt_report *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { WT_PAIRS_MAX = 32 };
/* Metadata of a converted file: keys and values, which are static, in `numbers`, or `owned`. */
typedef struct {
    const char *pairs[WT_PAIRS_MAX][2];
    char numbers[WT_PAIRS_MAX][24];
    int count;
    char *owned; /* freed by wt_pairs_free */
} wt_pairs;
void wt_put_text(wt_pairs *m, const char *key, const char *value);
void wt_put_number(wt_pairs *m, const char *key, long value);
void wt_put_real(wt_pairs *m, const char *key, double value);
void wt_pairs_free(wt_pairs *m);

/* Returns whether a name begins with one of the prefixes, NULL at the end. */
int wt_begins_with(const char *name, const char *const *prefixes);
/* Returns the elements of the tensors whose names begin so, without the scales of low-bit matrices. */
long wt_sum_elements(const wt_file *f, const char *const *prefixes);

/* `facts` below is what `derive` makes of a file: a struct of the row's own. */
typedef struct {
    mar_kind kind;
    const char *name;      /* "MAR model" */
    const char *article;   /* "a" */
    const char *lacks;     /* proof that a file is not of this kind: "no class_emb.weight"; NULL: another row has it */
    const char *titles[4]; /* of its models' families, for messages, NULL at the end; none: they make no images */
    mar_order order;       /* of its models' tokens */
    mar_head head;         /* of its models */
    const char *instead;   /* file to give instead, for the error message; NULL: a supported kind. A row with one is
                              MAR_KIND_UNKNOWN and has no function but `recognise` */
    unsigned for_kinds;    /* bits of the kinds that `instead` replaces */
    int has_heads;         /* 1: the caller's heads have an effect */
    int has_seq_len;       /* 1: the handle's seq_len has an effect */
    int has_patch_size;    /* 1: the handle's patch_size has an effect */
    int has_prompts;       /* 1: its folder's tokenizer makes the ids of its prompts */
    int is_folder;         /* 1: mar_convert of a folder makes one, with configuration and tokenizer */
    int takes_ema;         /* 1: of several sets of weights its release takes `ema` first, not `model` */
    size_t facts_size;     /* bytes */
    int (*recognise)(const wt_file *f);
    /* Derives the facts, which are 0. Returns MAR_EARG for what is asked and impossible. */
    mar_status (*derive)(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err);
    void (*release)(void *facts); /* frees what the facts own; NULL: nothing */
    void (*tensors)(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user);
    int (*ignores)(const char *tensor); /* returns whether an unexpected tensor is harmless; NULL: none is */
    /* Returns whether the tensor has the values of another one, which counts; NULL: none has. */
    int (*repeats)(const wt_file *f, const char *tensor);
    /* Returns whether mar_convert may write the tensor in int8. The loader accepts the same tensors. NULL: none. */
    int (*is_int8)(const char *tensor);
    /* Writes to text the name of the layer norm in front of an int8 tensor. Smoothing changes that norm
     * (kern_int8_smooth). Returns text; NULL if there is none. A NULL field: no tensor has one. */
    const char *(*norm_of)(const char *tensor, char *text, size_t size);
    void (*describe)(const wt_file *f, const void *facts, const wt_report *to);
    void (*put)(const void *facts, wt_pairs *m);
    /* Adds pairs that stand behind mar.source_format; NULL: none. Returns MAR_ENOMEM. */
    mar_status (*put_more)(const void *facts, wt_pairs *m, mar_err *err);
} wt_kind;

#endif
