#include "kernels/ops.h"

#include <stdarg.h>
#include <stdio.h>

void kern_queue_init(kern_queue *k, kern_device *d)
{
    k->device = d;
    k->core = d->core;
    k->head = d->head;
    k->conv = d->conv;
    k->discrete = d->discrete;
    k->fused = &d->fused;
    kern_watch_begin(k);
}

void kern_fail(kern_queue *k, mar_status status, const mar_err *err)
{
    if (k->failed != MAR_OK) return;
    k->failed = status;
    k->failure = *err;
}

int kern_live(kern_queue *k)
{
    if (k->failed == MAR_OK && k->cancel && __atomic_load_n(k->cancel, __ATOMIC_RELAXED)) {
        mar_err err;
        kern_fail(k, err_set(&err, MAR_ECANCELLED, "cancelled"), &err);
    }
    return k->failed == MAR_OK;
}

mar_status kern_check(kern_queue *k, mar_err *err)
{
    if (kern_live(k)) return MAR_OK;
    return err_set(err, k->failed, "%s", k->failure.text);
}

void kern_watch_begin(kern_queue *k)
{
    k->watch.part = "";
    k->watch.index = -1;
    k->watch.layer[0] = '\0';
}

void kern_run_recorded(kern_queue *k, const char *part, kern_recording **recording, void (*body)(void *arg), void *arg,
                       double *seconds)
{
    k->watch.part = part;
    k->core->timer_mark(k, NULL);
    if (recording && !k->watch.on) /* the search for a non-finite layer waits between layers */
        k->core->replay(k, recording, body, arg);
    else
        body(arg);
    k->core->timer_mark(k, seconds);
}

#undef kern_watch
void kern_watch(kern_queue *k, const void *x, mar_dtype type, int rows, int width, int stride, const char *name, ...)
{
    kern_watching *w = &k->watch;
    char layer[96];
    va_list arguments;
    if (!w->on || w->layer[0] || rows <= 0 || k->core->first_nonfinite(k, x, type, rows, width, stride) < 0) return;
    va_start(arguments, name);
    vsnprintf(layer, sizeof layer, name, arguments);
    va_end(arguments);
    if (w->index < 0)
        snprintf(w->layer, sizeof w->layer, "%s%s", w->part, layer);
    else
        snprintf(w->layer, sizeof w->layer, "%s%s at diffusion step %d", w->part, layer, w->index);
}

void kern_watch_modulation(kern_queue *k, kern_head_form form, const char *prefix, const void *mod, mar_dtype type,
                           int rows, int layers, int width, size_t mod_bytes)
{
    const size_t act_size = type == MAR_DTYPE_F32   ? sizeof(float)
                            : type == MAR_DTYPE_F16 ? sizeof(uint16_t)
                                                    : k->device->act_size;
    const size_t layer = 3 * (size_t)width * act_size;
    const char *row = mod;
    const int stride = (int)(mod_bytes / act_size), swiglu = form == KERN_HEAD_SWIGLU;
    for (int i = 0; i < layers && k->watch.on; i++)
        kern_watch(k, row + (size_t)i * layer, type, rows, 3 * width, stride,
                   swiglu ? "%sada_ln_blocks.%d" : KERN_HEAD_BLOCK ".adaLN_modulation.1", prefix, i);
    kern_watch(k, row + (size_t)layers * layer, MAR_DTYPE_F32, rows, 2 * width, (int)(mod_bytes / sizeof(float)),
               swiglu ? KERN_HEAD_FINAL ".ada_ln_modulation" : KERN_HEAD_FINAL ".adaLN_modulation.1", prefix);
}

mar_status kern_new_array(kern_queue *k, const float *host, size_t n, float **out, mar_err *err)
{
    void *p = NULL;
    const mar_status status = k->core->alloc(k->device, n * sizeof *host, &p, err);
    if (status == MAR_OK) k->core->upload(k, p, host, n * sizeof *host);
    *out = p;
    return status;
}
