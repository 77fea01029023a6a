#include "mar/handle.h"

#include <stdlib.h>

mar_status mar_open(const mar_options *options, mar **out)
{
    const mar_options defaults = {MAR_DTYPE_AUTO, 0};
    if (!out) return MAR_EARG;
    if (!options) options = &defaults;
    *out = NULL;
    mar *m = calloc(1, sizeof *m);
    if (!m) return MAR_ENOMEM;
    *out = m;
    return kern_cpu_open(options->dtype, options->threads, &m->kern, &m->err);
}

void mar_close(mar *m)
{
    if (!m) return;
    if (m->kern) m->kern->ops->close(m->kern);
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
    return m->kern->description;
}
