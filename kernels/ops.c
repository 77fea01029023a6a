#include "kernels/ops.h"

void kern_fail(kern *k, mar_status status, const mar_err *err)
{
    if (k->failed != MAR_OK) return;
    k->failed = status;
    k->failure = *err;
}

mar_status kern_check(const kern *k, mar_err *err)
{
    if (k->failed == MAR_OK) return MAR_OK;
    return err_set(err, k->failed, "%s", k->failure.text);
}
