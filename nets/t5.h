/* The encoder of T5 version 1.1 (Raffel et al., 2020; Shazeer, "GLU Variants Improve Transformer", 2020): flan-t5 and
 * t5-v1_1 of any size, mT5. Tensors have transformers' names (T5EncoderModel, or that part of
 * T5ForConditionalGeneration). */
#ifndef NETS_T5_H
#define NETS_T5_H

#include "nets/encoder.h"

enum { T5_BUCKETS_MAX = 4096, T5_DISTANCE_MAX = 1 << 16 };

typedef struct {
    nets_encoder_config layers; /* width, heads, ... */
    int vocabulary;
    int buckets;      /* of relative positions, both directions together: 32 */
    int max_distance; /* from which on a bucket is shared: 128 */
    long parameters;
} t5_config;

/* Returns 1 if the file has a T5 encoder's first layer. */
int t5_config_recognise(const wt_file *f);
/* Derives the configuration. Width, heads, head_dim, hidden, depth and buckets come from the tensors; eps, max_distance
 * and activation from config.json, else from the metadata, else they are 1e-6, 128 and gated-gelu. Returns MAR_EMODEL
 * for another architecture or activation, and for a config.json that contradicts the tensors. */
mar_status t5_config_derive(const wt_file *f, t5_config *out, mar_err *err);
/* Calls visit for each tensor. */
void t5_config_tensors(const wt_file *f, const t5_config *c,
                       void (*visit)(void *user, const char *name, int rank, const int64_t *shape), void *user);
/* Returns whether the tensor may be int8 in a file. */
int t5_config_is_int8(const char *tensor);
/* Returns whether the tensor belongs to the decoder. */
int t5_config_ignores(const char *tensor);
/* Returns whether the tensor is the embedding under its second name. */
int t5_config_repeats(const wt_file *f, const char *tensor);

/* Returns the bucket of a key's position minus a query's, as T5Attention._relative_position_bucket with
 * bidirectional=True. */
int t5_bucket(int distance, int buckets, int max_distance);

typedef struct t5_encoder t5_encoder;

/* Loads the encoder. Reads none of the decoder's tensors, and one matrix at a time. */
mar_status t5_create(kern_queue *k, const wt_file *f, t5_encoder **out, mar_err *err);
void t5_free(kern_device *d, t5_encoder *e); /* NULL is fine; no pending work may use it */
const t5_config *t5_get_config(const t5_encoder *e);

/* Encodes sequences that lie one after another: first and length as in nets_spans, ids host [spans->rows], each
 * 0..vocabulary-1. Writes the last hidden states, normed, to y, host float [spans->rows][width], and waits. Allocates
 * working memory that stays until t5_free. Returns MAR_ENOMEM, or the queue's failure. One queue at a time uses an
 * encoder. */
mar_status t5_run(kern_queue *k, t5_encoder *e, const nets_spans *spans, const int *ids, float *y, mar_err *err);

#endif
