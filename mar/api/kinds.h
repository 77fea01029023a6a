/* Kinds of files: how each is recognised, described and converted. */
#ifndef MAR_KINDS_H
#define MAR_KINDS_H

#include "eval/inception.h"
#include "eval/vgg.h"
#include "specdec/eagle_model.h"
#include "mar/core/handle.h"
#include "nets/t5.h"
#include "spherear/config.h"
#include "weights/weights.h"

/* The configuration of a file. Its kind fills in the member of that kind. */
typedef struct {
    mar_model_config model;
    mar_vae_config vae;
    eval_inception_config inception;
    eval_vgg_config vgg;
    gpt_config gpt;
    eagle_config eagle;
    sphere_config sphere;
    t5_config t5;
} mar_configs;

enum { MAR_METADATA_MAX = 24 };

/* Strings of a converted file's metadata. */
typedef struct {
    const char *pairs[MAR_METADATA_MAX][2];
    char numbers[MAR_METADATA_MAX][24];
    int count;
} mar_metadata;

void mar_metadata_text(mar_metadata *m, const char *key, const char *value);

typedef void mar_kind_visitor(void *user, const char *name, int rank, const int64_t *shape);
typedef void mar_kind_fact(void *user, const char *line);

typedef struct {
    mar_kind kind;
    const char *name;    /* "MAR model" */
    const char *article; /* "a" */
    const char *lacks;   /* proof that a file is not of this kind: "no class_emb.weight"; NULL: another row has it */
    const char *instead; /* file to give instead, for the error message; NULL: a supported kind. A row with one is
                            MAR_KIND_UNKNOWN and has no function but `recognise` */
    unsigned for_kinds;  /* bits of the kinds that `instead` replaces */
    int has_heads;       /* 1: the caller's heads have an effect */
    int has_seq_len;     /* 1: the handle's seq_len has an effect */
    int has_patch_size;  /* 1: the handle's patch_size has an effect */
    int is_folder;       /* 1: mar_convert of a folder makes one, with configuration and tokenizer */
    int takes_ema;       /* 1: of several sets of weights its release takes `ema` first, not `model` */
    int (*recognise)(const wt_file *f);
    /* Derives the configuration for models of the handle. Returns MAR_EARG for impossible heads. */
    mar_status (*derive)(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err);
    void (*tensors)(const wt_file *f, const mar_configs *c, mar_kind_visitor *visit, void *user);
    int (*ignores)(const char *tensor); /* returns whether an unexpected tensor is harmless; NULL: none is */
    /* Returns whether the tensor has the values of another one, which counts; NULL: none has. */
    int (*repeats)(const wt_file *f, const char *tensor);
    /* Returns whether mar_convert may write the tensor in int8. The loader accepts the same tensors. NULL: none. */
    int (*is_int8)(const char *tensor);
    /* Writes to text the name of the layer norm in front of an int8 tensor. Smoothing changes that norm
     * (kern_int8_smooth). Returns text; NULL if there is none. A NULL field: no tensor has one. */
    const char *(*norm_of)(const char *tensor, char *text, size_t size);
    void (*facts)(const wt_file *f, const mar_configs *c, mar_kind_fact *add, void *user);
    void (*put)(const mar_configs *c, mar_metadata *m);
} mar_file_kind;

/* Returns the first kind that recognises the file; NULL if it is unknown. */
const mar_file_kind *mar_kind_of(const wt_file *f);
/* Sets of kinds, as bits: 1 << MAR_KIND_MAR | ... */
enum {
    MAR_KINDS_OF_MODELS = 1 << MAR_KIND_MAR | 1 << MAR_KIND_SPHEREAR | 1 << MAR_KIND_LLAMAGEN | 1 << MAR_KIND_EAGLE |
                          1 << MAR_KIND_DECODER
};
/* Returns MAR_OK if the file is of one of these kinds. Otherwise returns MAR_EMODEL with a message that names its kind
 * and `expected`. */
mar_status mar_check_kind(const wt_file *f, unsigned wanted, const char *expected, mar_err *err);
/* Returns MAR_EARG for `heads` that hold two numbers, unless the file is a MAR model. */
mar_status mar_check_heads(const wt_file *f, int heads, mar_err *err);
/* Writes to text why a file is not of these kinds: "neither a MAR model (no class_emb.weight) nor a KL autoencoder (no
 * post_quant_conv.weight)". Returns text. */
const char *mar_kinds_lack(unsigned wanted, char *text, size_t size);

/* Returns 1 if a matrix that int8 covers is stored as this type, WT_I8 or WT_I4. */
int mar_has_low(const wt_file *f, wt_dtype dtype);

/* Writes to text the set of weights and the prefix removed from names: " of model_ema, names without module.". Writes
 * "" if there is neither. */
void mar_weights_text(const wt_file *f, char *text, size_t size);

#endif
