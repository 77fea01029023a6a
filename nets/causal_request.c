#include "nets/causal_request.h"

int causal_cfg_branches(const causal_sampling *s)
{
    return s->cfg > 1 ? 2 : 1;
}

int causal_sequence(int images, int image, int branch)
{
    return branch * images + image;
}

float causal_guidance(const causal_sampling *s, float cfg, int token)
{
    return s->cfg_interval > -1 && token - 1 > s->cfg_interval ? 1 : cfg;
}

int causal_request_depth(const causal_request *q, int draft)
{
    int depth = 0;
    for (int a = draft; a >= 0; a = q->parent[a]) depth++;
    return depth;
}

static mar_status check_token(const causal_shape *s, int token, int position, mar_err *err)
{
    if (token >= 0 && token < s->vocabulary && position < s->seq_len) return MAR_OK;
    return err_set(err, MAR_EARG, "token %d at position %d, expected one of %d tokens at one of %d positions", token,
                   position, s->vocabulary, s->seq_len);
}

mar_status causal_request_check(const causal_shape *s, int images, int drafts, const causal_request *q, mar_err *err)
{
    mar_status status = MAR_OK;
    if (q->sequence < 0 || q->sequence >= images || q->count < 0 || q->count > drafts)
        return err_set(err, MAR_EARG, "%d drafts for image %d of a batch, expected at most %d for one of %d", q->count,
                       q->sequence, drafts, images);
    if (q->drawn && (q->count > 0 || q->length < 1))
        return err_set(err, MAR_EARG, "a token on the device with %d drafts behind %d tokens, expected no drafts",
                       q->count, q->length);
    for (int i = 0; status == MAR_OK && i < q->length; i++) {
        const int unread = q->drawn && q->prefix[i] == CAUSAL_UNREAD;
        status = check_token(s, unread ? 0 : q->prefix[i], i, err);
    }
    for (int i = 0; status == MAR_OK && i < q->count; i++) {
        if (q->parent[i] < -1 || q->parent[i] >= i)
            return err_set(err, MAR_EARG, "draft %d follows draft %d, expected an earlier one", i, q->parent[i]);
        status = check_token(s, q->draft[i], q->length + causal_request_depth(q, i) - 1, err);
    }
    return status;
}
