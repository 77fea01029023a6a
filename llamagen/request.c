#include "llamagen/request.h"

#include <string.h>

int gpt_cfg_branches(const gpt_sampling *s)
{
    return s->cfg > 1 ? 2 : 1;
}

int gpt_sequence(int images, int image, int branch)
{
    return branch * images + image;
}

float gpt_guidance(const gpt_sampling *s, float cfg, int token)
{
    return s->cfg_interval > -1 && token - 1 > s->cfg_interval ? 1 : cfg;
}

int gpt_request_depth(const spec_request *q, int draft)
{
    int depth = 0;
    for (int a = draft; a >= 0; a = q->parent[a]) depth++;
    return depth;
}

static mar_status check_token(const gpt_config *c, int token, int position, mar_err *err)
{
    if (token >= 0 && token < c->vocabulary && position < c->seq_len) return MAR_OK;
    return err_set(err, MAR_EARG, "token %d at position %d, expected one of %d tokens at one of %d positions", token,
                   position, c->vocabulary, c->seq_len);
}

mar_status gpt_request_check(const gpt_config *c, int images, int drafts, const spec_request *q, mar_err *err)
{
    mar_status status = MAR_OK;
    if (q->sequence < 0 || q->sequence >= images || q->count < 0 || q->count > drafts)
        return err_set(err, MAR_EARG, "%d drafts for image %d of a batch, expected at most %d for one of %d", q->count,
                       q->sequence, drafts, images);
    if (q->drawn && (q->count > 0 || q->length < 1))
        return err_set(err, MAR_EARG, "a token on the device with %d drafts behind %d tokens, expected no drafts",
                       q->count, q->length);
    for (int i = 0; status == MAR_OK && i < q->length; i++) {
        const int unread = q->drawn && q->prefix[i] == SPEC_UNREAD;
        status = check_token(c, unread ? 0 : q->prefix[i], i, err);
    }
    for (int i = 0; status == MAR_OK && i < q->count; i++) {
        if (q->parent[i] < -1 || q->parent[i] >= i)
            return err_set(err, MAR_EARG, "draft %d follows draft %d, expected an earlier one", i, q->parent[i]);
        status = check_token(c, q->draft[i], q->length + gpt_request_depth(q, i) - 1, err);
    }
    return status;
}

static int same_shape(const gpt_shape *a, const gpt_shape *b)
{
    return a->kind == b->kind && a->rows == b->rows && a->spans == b->spans && a->logit_rows == b->logit_rows &&
           a->log_probs == b->log_probs && a->drawn == b->drawn && a->with_continuation == b->with_continuation &&
           memcmp(a->continuation, b->continuation, sizeof a->continuation) == 0;
}

kern_recording **gpt_recordings_find(kern_queue *k, gpt_recordings *r, const gpt_shape *shape)
{
    int i = 0, oldest = 0;
    for (; i < r->count && !same_shape(&r->entry[i].shape, shape); i++)
        if (r->entry[i].used < r->entry[oldest].used) oldest = i;
    if (i == GPT_RECORDINGS) {
        i = oldest;
        k->core->recording_free(k, r->entry[i].recording);
        r->entry[i].recording = NULL;
    } else if (i == r->count) {
        r->count++;
        r->entry[i].recording = NULL;
    }
    r->entry[i].shape = *shape;
    r->entry[i].used = ++r->uses;
    return &r->entry[i].recording;
}

void gpt_recordings_free(kern_queue *k, gpt_recordings *r)
{
    for (int i = 0; i < r->count; i++) k->core->recording_free(k, r->entry[i].recording);
    r->count = 0;
}
