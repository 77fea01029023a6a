/* Sources of a model's configuration: tensor shapes and names, numbers in the metadata, and a folder's config.json. */
#ifndef WEIGHTS_SHAPE_H
#define WEIGHTS_SHAPE_H

#include "base/json.h"
#include "weights/weights.h"

enum { WT_DIM_MAX = 1 << 20 }; /* largest dimension of a model; the product of two fits 64 bits easily */

/* Finds the tensor `name`. Returns MAR_EMODEL unless it has this rank and dimensions of 1 to WT_DIM_MAX. */
mar_status wt_find_shape(const wt_file *f, const char *name, int rank, const wt_tensor **out, mar_err *err);
/* Returns one more than the largest N below `limit` among tensors "<prefix>N.", or 0 if there is none. Larger numbers
 * are left to the check for extra tensors. */
int wt_count_parts(const wt_file *f, const char *prefix, int limit);
/* Keeps only the tensors whose names begin with `prefix`, and removes it from their names. */
void wt_narrow(wt_file *f, const char *prefix);
/* Takes "model.", which Lightning adds, off the names that begin with it, if fits(f) returns 1 then, once or twice as
 * needed. Leaves the names as they are if it does not, or if it returns 1 for them already. Returns MAR_EFORMAT if two
 * tensors get the same name, and MAR_ENOMEM. */
mar_status wt_take_off_model(wt_file *f, int (*fits)(const wt_file *f), mar_err *err);
/* A part of a tensor's name, and what takes its place: "text_model.model." and "model.". # stands for the same number
 * in both. */
typedef struct {
    const char *from, *to;
    int rank; /* a matrix gets dimensions of 1 at its end up to this rank */
} wt_naming;
/* Gives all tensors the names that these make of theirs, one after another. Returns MAR_EFORMAT if two get the same
 * name, and MAR_ENOMEM. */
mar_status wt_rename(wt_file *f, const wt_naming *names, int count, mar_err *err);
/* Reads a positive number from the metadata. Leaves *out unchanged if the key is absent. Returns MAR_EMODEL if the
 * value is no positive number. */
mar_status wt_metadata_number(const wt_file *f, const char *key, long *out, mar_err *err);

/* Reads the JSON object in the file `name` of a folder, or beside a file: *text, and the values, which point into it.
 * The caller frees both (json_free), also after an error. They are NULL without that file, and for a file in memory. */
mar_status wt_read_beside(const wt_file *f, const char *name, char **text, json *out, mar_err *err);
/* Returns the object in config.json, or in params.json (wt_open_folder); NULL for a file, and for a folder without one.
 * The next three read its members. */
const json_value *wt_config(const wt_file *f);
/* Returns the string `key`; NULL if there is none. */
const char *wt_config_text(const wt_file *f, const char *key);
/* Reads the positive number `key`. Leaves *out unchanged if it is absent or null. Returns MAR_EMODEL for another
 * value. */
mar_status wt_config_number(const wt_file *f, const char *key, double *out, mar_err *err);
/* Returns the name of the architecture, such as "T5EncoderModel", else the model_type, "t5"; NULL if there is none. */
const char *wt_config_architecture(const wt_file *f);

#endif
