/* The kinds of files there are: how each is opened and recognised, what is said of it, and what a converted one says of
 * itself. */
#ifndef MAR_KINDS_H
#define MAR_KINDS_H

#include "eval/inception.h"
#include "llamagen/eagle_model.h"
#include "mar/core/handle.h"
#include "weights/weights.h"

/* The configuration of a file, of which its kind fills what is its own. */
typedef struct {
    mar_model_config model;
    mar_vae_config vae;
    eval_inception_config inception;
    gpt_config gpt;
    eagle_config eagle;
} mar_configs;

enum { MAR_METADATA_MAX = 24 };

/* What is written to a converted file's metadata. */
typedef struct {
    const char *pairs[MAR_METADATA_MAX][2];
    char numbers[MAR_METADATA_MAX][24];
    int count;
} mar_metadata;

void mar_metadata_text(mar_metadata *m, const char *key, const char *value);
void mar_metadata_number(mar_metadata *m, const char *key, long value);

typedef void mar_kind_visitor(void *user, const char *name, int rank, const int64_t *shape);
typedef void mar_kind_fact(void *user, const char *line);

typedef struct {
    mar_kind kind;
    const char *name;    /* "MAR model" */
    const char *article; /* "a" */
    const char *lacks;   /* what a file without is none: "no class_emb.weight"; NULL: another row says it */
    const char *instead; /* the file to give in its place, for the error message; NULL for supported kinds. A kind with
                          * one is MAR_KIND_UNKNOWN, and has no functions but `recognise` */
    unsigned for_kinds;  /* bits of the kinds that `instead` is meant for */
    int has_heads;       /* 1: heads, as a caller gives them, have an effect */
    int has_seq_len;     /* 1: and so does the handle's seq_len */
    int has_patch_size;  /* 1: and so does its patch_size */
    int (*recognise)(const wt_file *f);
    /* Derives the configuration for models of the handle. MAR_EARG for heads that cannot be. */
    mar_status (*derive)(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err);
    void (*tensors)(const wt_file *f, const mar_configs *c, mar_kind_visitor *visit, void *user);
    int (*ignores)(const char *tensor); /* whether a tensor besides is harmless; NULL: none is */
    /* Whether mar_convert makes int8 weights of a tensor, which the loader takes, too; NULL: of none. */
    int (*is_int8)(const char *tensor);
    /* The layer norm in front of such a tensor, which smoothing changes with it (kern_int8_smooth), to text, or NULL;
     * the field is NULL: none has one. */
    const char *(*norm_of)(const char *tensor, char *text, size_t size);
    void (*facts)(const wt_file *f, const mar_configs *c, mar_kind_fact *add, void *user);
    void (*put)(const mar_configs *c, mar_metadata *m);
} mar_file_kind;

/* The first kind that recognises the file; NULL: it is unknown. */
const mar_file_kind *mar_kind_of(const wt_file *f);
/* Bits of kinds: 1 << MAR_KIND_MAR | ... */
enum { MAR_KINDS_OF_MODELS = 1 << MAR_KIND_MAR | 1 << MAR_KIND_LLAMAGEN | 1 << MAR_KIND_EAGLE };
/* MAR_OK if the file is of one of these kinds; else MAR_EMODEL, saying what it is, and that `expected` was. */
mar_status mar_check_kind(const wt_file *f, unsigned wanted, const char *expected, mar_err *err);
/* MAR_EARG for `heads` that are two numbers, for a file other than a MAR model. */
mar_status mar_check_heads(const wt_file *f, int heads, mar_err *err);
/* "neither a MAR model (no class_emb.weight) nor a KL autoencoder (no post_quant_conv.weight)", of the kinds of these
 * bits, to text, which it returns. */
const char *mar_kinds_lack(unsigned wanted, char *text, size_t size);

/* " of model_ema, names without module." to text: the set of weights that was taken and the prefix that names have
 * lost; "" if there are neither. */
void mar_weights_text(const wt_file *f, char *text, size_t size);

/* What a call that reads `path` begins with: MAR_OK if the handle can be used here, and path and out are not NULL. */
mar_status mar_check_load(const mar *m, const char *path, const void *out, mar_err *err);
/* Opens the file, or what is built in under that name: of a model and an image decoder that have the same name, the
 * decoder if is_vae is 1. MAR_EIO for a directory, naming the file in it that may be meant. */
mar_status mar_open_checkpoint(const char *path, int is_vae, mar_weights weights, wt_file **out, mar_err *err);

#endif
