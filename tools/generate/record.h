/* The records of a run: text in its PNGs and, with --json, one record on stdout. */
#ifndef TOOLS_RECORD_H
#define TOOLS_RECORD_H

#include "tools/generate/job.h"
#include "tools/store/store.h"

/* Texts, collected one by one. Initialise with {0}. */
typedef struct {
    image_text *texts; /* [count]; the struct owns the array and the values, not the keys */
    int count;         /* of texts */
    int lacks;         /* 1: memory ran out, and a text is missing */
} record_texts;

/* Identifies the loaded files by their hashes, and reads those of captions. Returns 0, or 1 with the error printed. */
int record_identify(const run_options *run, run_models *out);

/* Identifies the prompts that models_load encoded, by their features; nothing for other models. */
void record_identify_prompts(run_models *models);

/* Identifies one file, to text; "" for NULL and for a built-in one. Returns 0, or 1 with the error printed. */
int record_identify_file(const char *path, char text[RECORD_ID]);

void record_texts_add(record_texts *out, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends the collection. Returns 0. If memory ran out, frees the texts and returns 1 after printing "out of memory for"
 * and `what`. */
int record_texts_end(record_texts *texts, const char *what);
/* Adds the class of an image, its name if it has one, its prompt with a hash of the features, and the image's number.
 */
void record_texts_add_image(record_texts *out, const run_models *models, int label, long index);
/* Adds everything the run's images depend on but classes and prompts: options, models, backend. Call it after
 * models_session. */
void record_texts_add_run(record_texts *out, const run_options *run, const run_models *models);
/* Adds a hash of all prompts' features, for texts about a whole run. */
void record_texts_add_prompts(record_texts *out, const run_options *run, const run_models *models);

/* Adds parts of these: the image decoder, by its file's content, and the arithmetic. */
void record_texts_add_decoder(record_texts *out, const run_options *run, const run_models *models);
void record_texts_add_arithmetic(record_texts *out, const mar *library);

/* Checks the argument of --store, a directory that may be missing; NULL: none. Leaves nothing behind. Returns 0, or 1
 * with the error printed. */
int record_check_store(const char *directory, output *out);
/* Opens the run's store in `directory`. The run's address hashes everything its tokens depend on, with `batch`: on a
 * GPU their last bits depend on the batch size. Call it after models_session. Returns 0, or 1 with the error
 * printed. */
int record_open_store(const char *directory, const run_options *run, const run_models *models, int batch,
                      store_run *out);

/* Makes the texts of image `index` of the run, from 0, of DPG's grid that begins with it, or for -1 of the grid;
 * `title` may be NULL. An option is included if it has an effect and meets one of three conditions: it is basic
 * sampling, belongs to an accelerator that is on, or is not at its default. An incomplete grid gets its number of
 * images. The last text is the guarantee. Returns 0, or 1 after printing "out of memory". */
int record_texts_make(const generate_job *job, long index, const char *title, record_texts *out);
void record_texts_free(record_texts *texts);

/* Prints the JSON record. Returns 0, or 1 with the error printed. */
int record_print_json(const generate_job *job);

#endif
