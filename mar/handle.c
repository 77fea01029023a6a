#include "mar/handle.h"

#include <stdlib.h>

/* AUTO takes a GPU where there is one: that it cannot be used is then an error, not a reason to compute slowly. */
static mar_backend choose(mar_backend asked)
{
    if (asked != MAR_BACKEND_AUTO) return asked;
    return kern_cuda_open && kern_cuda_devices && kern_cuda_devices() > 0 ? MAR_BACKEND_CUDA : MAR_BACKEND_CPU;
}

static mar_status open_backend(mar *m, const mar_options *o)
{
    switch (m->backend) {
    case MAR_BACKEND_CPU:
        return kern_cpu_open(o->dtype, o->threads, &m->device, &m->err);
    case MAR_BACKEND_CUDA:
        if (kern_cuda_open) return kern_cuda_open(o->dtype, o->device, &m->device, &m->err);
        return err_set(&m->err, MAR_EBACKEND,
                       "backend cuda: this libmar was built without CUDA; build it with the preset cuda");
    default:
        return err_set(&m->err, MAR_EARG, "backend %d: expected auto, cpu or cuda", (int)m->backend);
    }
}

mar_status mar_open(const mar_options *options, mar **out)
{
    const mar_options defaults = {0};
    if (!out) return MAR_EARG;
    if (!options) options = &defaults;
    *out = NULL;
    mar *m = calloc(1, sizeof *m);
    if (!m) return MAR_ENOMEM;
    *out = m;
    m->backend = choose(options->backend);
    return open_backend(m, options);
}

void mar_close(mar *m)
{
    if (!m) return;
    if (m->device) m->device->core->close(m->device);
    free(m);
}

const char *mar_error(const mar *m)
{
    return m ? m->err.text : "";
}

const char *mar_version(void)
{
    return MAR_VERSION;
}

const char *mar_backend_description(const mar *m)
{
    return m->device->description;
}
