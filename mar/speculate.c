/* Speculation across tokens: the draft drafts a block of autoregressive steps, the target verifies it. */
#include "mar/session.h"

mar_status mar_speculation_create(mar_session *s, mar_err *err)
{
    (void)s;
    return err_set(err, MAR_EARG, "draft: not here yet");
}
void mar_speculation_free(mar_session *s)
{
    (void)s;
}
size_t mar_speculation_bytes(const mar_session *s)
{
    (void)s;
    return 0;
}
mar_status mar_speculation_plan(mar_session *s, int n, mar_err *err)
{
    (void)s;
    (void)n;
    (void)err;
    return MAR_OK;
}
mar_status mar_speculation_round(mar_session *s, mar_err *err)
{
    (void)s;
    (void)err;
    return MAR_OK;
}
int mar_speculation_prefill(const mar_session *s)
{
    (void)s;
    return 0;
}
