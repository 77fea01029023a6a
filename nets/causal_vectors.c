/* Passes over tokens that are vectors. Token i of a sequence has the slot behind the prefix with its number, so tokens
 * behind a position may be computed anew with other values. */
#include "nets/causal_state.h"

void causal_vectors_begin(causal_runner *r, const float *vectors)
{
    causal_pass_begin_vectors(&r->pass, vectors);
}

void causal_vectors_want_first(causal_runner *r, int image, int branch, int to)
{
    causal_pass_want(&r->pass, r->pass.rows_max + causal_sequence(r->images, image, branch), 0, to);
}

void causal_vectors_add(causal_runner *r, int image, int branch, int first, int n, const int *source, int wanted,
                        const int *to, int offset)
{
    causal_pass *p = &r->pass;
    const causal_image *im = &r->image[image];
    const int prefix = r->model->shape.prefix, sequence = causal_sequence(r->images, image, branch);
    causal_pass_add_span(p);
    const int common = causal_add_visible(r, im, branch, sequence, prefix) + first;
    for (int i = 0; i < first; i++) causal_pass_add_slot(p, sequence, prefix + i);
    causal_pass_set_common(p);
    for (int i = first; i < first + n; i++) causal_pass_add_slot(p, sequence, prefix + i);
    for (int i = 0; i < n; i++) {
        const int position = prefix - im->begin[branch] + first + i;
        uint64_t *mask = causal_pass_add_row(p, source[i], position, sequence, prefix + first + i);
        causal_mask_add(mask, 0, i + 1);
        p->attended += common + i + 1;
        if (i >= n - wanted) causal_pass_want(p, p->rows - 1, first + i + 1, to[i - n + wanted] + offset);
    }
}

/* Argument of a recording's body. */
typedef struct {
    const causal_pass *pass;
    float *hidden;
} vectors_pass;

static void compute_vectors(void *arg)
{
    const vectors_pass *v = arg;
    causal_pass_rows(v->pass);
    causal_pass_hidden(v->pass, v->hidden);
}

void causal_vectors_run(causal_runner *r, float *hidden)
{
    const causal_pass *p = &r->pass;
    const net_recording_shape shape = {
        .rows = p->rows, .spans = p->spans, .logit_rows = p->logit_rows, .in = p->table, .out = hidden};
    vectors_pass body = {p, hidden};
    if (p->rows == 0 && p->logit_rows == 0) return;
    kern_run_recorded(r->k, r->part, net_recordings_find(r->k, &r->recordings, &shape), compute_vectors, &body,
                      &r->stats.tokens_s);
    causal_count_pass(r);
}
