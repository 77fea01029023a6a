/* The GPUs of --devices. Each has its own copy of the models and a session, and makes every batch that is its turn
 * (tools/generate/images.h): an image is the same on each. */
#ifndef TOOLS_DEVICES_H
#define TOOLS_DEVICES_H

#include "tools/cli/interruption.h"
#include "mar_methods.h"
#include "tools/generate/images.h"
#include "tools/generate/models.h"

enum { DEVICES_MAX = INTERRUPTION_PLACES };

/* Initialise with {0}. */
typedef struct {
    int count; /* GPUs; 0: --devices was not given */
    int number[DEVICES_MAX];
    const mar_model *model[DEVICES_MAX]; /* of the second GPU on */
    mar_session *session[DEVICES_MAX];   /* likewise */
} run_devices;

/* The option, whose field is a const char *. */
extern const mar_param devices_option;

/* Reads the option's text, NULL if it was not given. Sets *o to the first GPU. Returns 0, or 1 with the error printed.
 */
int devices_read(const char *text, run_options *o, run_devices *d);
/* Loads the models of the run, which `first` has on the first GPU, on the others, and makes sessions of `max_batch`
 * images. Prints if there are fewer than two batches of `images` for two GPUs, and so on. Returns 0, or 1 with the
 * error printed. */
int devices_load(model_store *store, const run_options *o, const run_models *first, long images, int max_batch,
                 progress *bar, run_devices *d);
/* Writes a run for each GPU, all as that of the first. Returns their number; 1 for d NULL. */
int devices_runs(const run_devices *d, const image_run *first, image_run runs[DEVICES_MAX]);
void devices_free(run_devices *d);

#endif
