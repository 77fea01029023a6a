/* A model's folder as Hugging Face writes it: written completely or not at all. */
#ifndef MAR_API_FOLDER_H
#define MAR_API_FOLDER_H

#include "base/error.h"

#include <limits.h>

/* A folder that is being written beside its final place. */
typedef struct {
    char path[PATH_MAX]; /* the final path */
    char temporary[PATH_MAX];
    char model[PATH_MAX]; /* file to write: model.safetensors in the temporary folder */
} mar_folder_writer;

/* Makes the temporary folder. Returns MAR_EIO if that fails, or if `path` exists and is no empty folder. */
mar_status mar_folder_open(const char *path, mar_folder_writer *out, mar_err *err);
/* Copies config.json and the tokenizer's files that the folder `from` has, or Meta's release beside it, and moves the
 * new folder to its path. */
mar_status mar_folder_commit(mar_folder_writer *w, const char *from, mar_err *err);
/* Removes the temporary folder and what is in it. */
void mar_folder_discard(mar_folder_writer *w);

#endif
