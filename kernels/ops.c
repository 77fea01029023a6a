#include "kernels/ops.h"

void kern_queue_init(kern_queue *k, kern_device *d)
{
    k->device = d;
    k->core = d->core;
    k->head = d->head;
    k->conv = d->conv;
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
