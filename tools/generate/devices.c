#include "tools/generate/devices.h"

#include "mar_methods.h"
#include "mar_measure.h"

#include "tools/cli/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const mar_param devices_option = {
    .name = OPTION("devices"),
    .group = "Machine",
    .type = MAR_TYPE_TEXT,
    .argument = "LIST",
    .help =
        "GPUs that share the images: 0,1 or all\n"
        "Numbers as CUDA counts them, after CUDA_VISIBLE_DEVICES. Each GPU has the models and makes --batch images at "
        "a time: the images, and their order, are those of one GPU. It takes the place of --backend cuda --device N. "
        "The GPUs must be of one kind."};

/* Reads "0,1" into d->number. Returns 0, or 1 with the error printed. */
static int read_list(const char *text, run_devices *d)
{
    const char *c = text;
    do {
        char *end;
        const long n = *c >= '0' && *c <= '9' ? strtol(c, &end, 10) : -1;
        if (n < 0 || n > 1023 || (*end && *end != ','))
            return tool_error("--devices %s: expected numbers of GPUs separated by commas, such as 0,1, or all",
                              *text ? text : "(empty)");
        if (d->count == DEVICES_MAX)
            return tool_error("--devices %s: expected %d GPUs at most", text, (int)DEVICES_MAX);
        for (int i = 0; i < d->count; i++)
            if (d->number[i] == n)
                return tool_error("--devices %s: GPU %ld is there twice, expected each once", text, n);
        d->number[d->count++] = (int)n;
        c = *end ? end + 1 : NULL;
    } while (c);
    return 0;
}

int devices_read(const char *text, run_options *o, run_devices *d)
{
    *d = (run_devices){0};
    if (!text) return 0;
    if (o->machine.backend == MAR_BACKEND_CPU) return tool_error("--devices: has no effect with --backend cpu");
    if (run_was_given(o, "device")) return tool_error("--device: has no effect with --devices, expected one of them");
    const int is_all = strcmp(text, "all") == 0, there = mar_gpu_count(); /* 0: opening one says why */
    if (!is_all && read_list(text, d) != 0) return 1;
    for (int i = 0; i < d->count && there > 0; i++)
        if (d->number[i] >= there)
            return tool_error("--devices %s: there is no GPU %d, expected numbers from 0 to %d", text, d->number[i],
                              there - 1);
    for (int i = 0; is_all && i < DEVICES_MAX && (i < there || i == 0); i++) d->number[d->count++] = i;
    o->machine.backend = MAR_BACKEND_CUDA;
    o->machine.device = d->number[0];
    return 0;
}

/* Loads the models on GPU i of the list, and makes its session. */
static int load_one(model_store *store, const run_options *o, const run_models *first, int max_batch, progress *bar,
                    int i, run_devices *d)
{
    run_models models;
    run_options own = *o;
    own.machine.device = d->number[i];
    if (models_load_again(store, &own, first, bar, &models) != 0) return 1;
    const char *there = mar_get_device(models.library)->arithmetic, *here = mar_get_device(first->library)->arithmetic;
    if (strcmp(there, here) != 0)
        return tool_error(
            "--devices: GPU %d is %s, GPU %d is %s; expected GPUs of one kind, which make the same images",
            d->number[0], here, d->number[i], there);
    own.params.draft = models.draft;
    d->model[i] = models.model;
    return models_session(&models, &own, max_batch, &d->session[i]);
}

int devices_load(model_store *store, const run_options *o, const run_models *first, long images, int max_batch,
                 progress *bar, run_devices *d)
{
    const long batches = (images + max_batch - 1) / max_batch;
    if (batches < d->count && !store->quiet)
        fprintf(stderr,
                "mar: warning: --devices: %ld batch%s of %d for %d GPUs; a smaller --batch divides the images\n",
                batches, batches == 1 ? "" : "es", max_batch, d->count);
    if (batches < d->count) d->count = (int)batches;
    for (int i = 1; i < d->count; i++)
        if (load_one(store, o, first, max_batch, bar, i, d) != 0) return 1;
    return 0;
}

int devices_runs(const run_devices *d, const image_run *first, image_run runs[DEVICES_MAX])
{
    const int count = d && d->count > 1 ? d->count : 1;
    for (int i = 0; i < count; i++) {
        runs[i] = *first;
        if (i > 0) runs[i].model = d->model[i], runs[i].session = d->session[i];
    }
    return count;
}

void devices_free(run_devices *d)
{
    for (int i = 1; i < d->count; i++) mar_session_free(d->session[i]);
    *d = (run_devices){0};
}
