/* What a run leaves for later: text in its PNGs and, with --json, one record on stdout. */
#ifndef TOOLS_RECORD_H
#define TOOLS_RECORD_H

#include "tools/generate/job.h"
#include "tools/store/store.h"

typedef struct {
    image_text *texts; /* [count]. The struct owns the array and the values, not the keys */
    int count;         /* of texts */
} record_texts;

/* Reads every byte of the model files. Returns 0, or 1 after printing an error. */
int record_identify(const run_options *run, record_ids *out);

/* The same of one file, into text; "" for NULL and for what is built in. */
int record_identify_file(const char *path, char text[RECORD_ID]);

/* Texts one by one: begin (1: out of memory), add, end (1: some text had no memory; the texts are freed then). Not more
 * than the options of a run and 32. */
int record_texts_begin(record_texts *out);
void record_texts_add(record_texts *out, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int record_texts_end(record_texts *texts);
/* Adds what the run's images depend on: options, models, backend. After models_session. */
void record_texts_add_run(record_texts *out, const run_options *run, const run_models *models, const record_ids *ids);

/* Parts of these: the image decoder by what is in its file, and what the library runs on. */
void record_texts_add_decoder(record_texts *out, const run_options *run, const record_ids *ids);
void record_texts_add_backend(record_texts *out, const mar *library);

/* Opens the run's part of the store in `directory`, which knows its tokens by all that they depend on, made `batch` at
 * a time: on a GPU their last bits depend on that. After models_session. Returns 0, or 1 after printing an error. */
int record_open_store(const char *directory, const run_options *run, const run_models *models, const record_ids *ids,
                      int batch, store_run *out);

/* Text of image `index`, or of the grid for index -1; `title` may be NULL. Of the options it has those that have an
 * effect and either say what is sampled in how many steps, belong to a way to be faster that is on, or are not at their
 * defaults. Of a grid that is not complete it says how many images there are. The last is the guarantee. Returns 0, or
 * 1 after printing "out of memory". */
int record_texts_make(const generate_job *job, long index, const char *title, record_texts *out);
void record_texts_free(record_texts *texts);

/* Prints the JSON record. Returns 0, or 1 after printing an error. */
int record_print_json(const generate_job *job);

#endif
