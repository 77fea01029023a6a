/* Sources of checkpoints: files, memory, descriptors and open files; and loading one, with progress. */
#ifndef MAR_API_LOAD_H
#define MAR_API_LOAD_H

#include "mar/core/handle.h"
#include "mar_files.h"
#include "weights/kind.h"

struct mar_file {
    wt_file *f;
    char folder[PATH_MAX]; /* or file, where the tokenizer is looked for: of a built-in one its place */
    mar_file_info info;
    atomic_int references; /* mar_file_open's, and one a model that reads its prompts' embeddings */
};

void mar_file_retain(const mar_file *f);
/* Returns the engines that make images, NULL at the end. */
const struct mar_engine *const *mar_engines(void);
/* Returns what the caller and the handle say of a model. */
wt_asked mar_asked(const mar *m, int heads);

/* Begins a call that reads `path`. Returns MAR_OK if the handle can be used here, and path and out are not NULL. */
mar_status mar_check_load(const mar *m, const char *path, const void *out, mar_err *err);
/* Begins a call that loads `source`, and copies its fields to `copy`. Returns MAR_OK if the handle can be used here,
 * the source gives one of path, data, fd and file, and out is not NULL. */
mar_status mar_check_source(const mar *m, const mar_source *source, const void *out, mar_source *copy, mar_err *err);

/* Opens the file, or the built-in one of that name. If a model and an image decoder share a name, is_vae 1 opens the
 * decoder. Returns MAR_EIO for a directory, naming a file in it. */
mar_status mar_open_checkpoint(const char *path, int is_vae, mar_weights weights, wt_file **out, mar_err *err);
/* Does the same for any source; of an open file makes a view. */
mar_status mar_open_source(const mar_source *source, int is_vae, mar_weights weights, wt_file **out, mar_err *err);

/* Opens a folder (wt_open_folder), with the names that this library has for its tensors. */
mar_status mar_open_folder(const char *path, mar_weights weights, wt_file **out, mar_err *err);

/* Loading of an open file on a queue of its own. */
typedef struct {
    kern_queue *k;            /* bound between begin and end */
    wt_file *file;            /* the caller's */
    const mar_source *source; /* the caller's */
    wt_progress progress;
    uint64_t hash; /* of what was read, set by mar_loader_end */
} mar_loader;

/* Creates the queue, and begins the hash and the progress. */
mar_status mar_loader_begin(mar_loader *l, mar *m, wt_file *file, const mar_source *source, mar_err *err);
/* Waits for the queue and frees it. All queues can use what was loaded then. Returns `status`, or why what was loaded
 * must be freed: a failure of the queue, a changed file, or a cancel. */
mar_status mar_loader_end(mar_loader *l, mar_status status, mar_err *err);

#endif
