#include "mar/handle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* AUTO takes a GPU where there is one: that it cannot be used is then an error, not a reason to compute slowly. */
static mar_backend choose(mar_backend asked)
{
    if (asked != MAR_BACKEND_AUTO) return asked;
    return mar_gpu_count() > 0 ? MAR_BACKEND_CUDA : MAR_BACKEND_CPU;
}

static mar_status open_backend(mar *m, const mar_options *o, mar_err *err)
{
    switch (m->backend) {
    case MAR_BACKEND_CPU:
        return kern_cpu_open(o->dtype, o->threads, &m->device, err);
    case MAR_BACKEND_CUDA:
        if (kern_cuda_open) return kern_cuda_open(o->dtype, o->device, &m->device, err);
        return err_set(err, MAR_EBACKEND,
                       "backend cuda: this libmar was built without CUDA; build it with the preset cuda");
    default:
        return err_set(err, MAR_EARG, "backend %d: expected auto, cpu or cuda", (int)m->backend);
    }
}

mar_status mar_open(const mar_options *options, mar **out)
{
    static atomic_uint_fast64_t handles;
    const mar_options defaults = {0};
    mar_err err = {0};
    if (!out) return MAR_EARG;
    if (!options) options = &defaults;
    *out = NULL;
    mar *m = calloc(1, sizeof *m);
    if (!m) return MAR_ENOMEM;
    *out = m;
    m->serial = atomic_fetch_add(&handles, 1) + 1;
    m->references = 1;
    m->log = options->log;
    m->log_user = options->log_user;
    m->allow_nonfinite = options->allow_nonfinite;
    m->backend = choose(options->backend);
    const mar_status status = open_backend(m, options, &err);
    if (status == MAR_OK) mar_log(m, MAR_LOG_INFO, "libmar %s on %s", mar_version(), mar_backend_description(m));
    return mar_result(m, status, &err);
}

void mar_retain(mar *m)
{
    atomic_fetch_add(&m->references, 1);
}

void mar_release(mar *m)
{
    if (atomic_fetch_sub(&m->references, 1) > 1) return;
    if (m->device) m->device->core->close(m->device);
    free(m);
}

void mar_close(mar *m)
{
    if (m) mar_release(m);
}

/* A thread's last error. It goes with the thread, and needs no lock. */
static _Thread_local struct {
    uint64_t serial; /* of the handle whose call failed */
    mar_err err;
} last;

mar_status mar_result(const mar *m, mar_status status, const mar_err *err)
{
    if (status != MAR_OK) {
        last.serial = m->serial;
        last.err = *err;
    }
    return status;
}

const char *mar_error(const mar *m)
{
    return m && last.serial == m->serial ? last.err.text : "";
}

void mar_log(const mar *m, mar_log_level level, const char *format, ...)
{
    mar_err line; /* err_set keeps names from outside to one printable line */
    char text[sizeof line.text];
    va_list arguments;
    if (!m->log) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    err_set(&line, MAR_OK, "%s", text);
    m->log(m->log_user, level, line.text);
}

double mar_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *mar_version(void)
{
    return MAR_VERSION;
}

const char *mar_backend_description(const mar *m)
{
    return m->device ? m->device->description : "";
}

int mar_gpu_count(void)
{
    return kern_cuda_open && kern_cuda_devices ? kern_cuda_devices() : 0;
}
