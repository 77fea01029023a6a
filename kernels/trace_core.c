/* A trace's operations of every model: products, rows, attention. */
#include "kernels/trace_call.h"

typedef struct {
    kern_trace_call o;
    const kern_linear *l;
    const void *x;
    void *y;
} linear_call;

TRACE_BODY(linear, core->linear, c->l, c->x, c->o.rows, c->y)

static void traced_linear(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y)
{
    static const char *const activations[] = {
        [KERN_LINEAR] = "", [KERN_GELU] = ", gelu", [KERN_SILU] = ", silu", [KERN_GELU_TANH] = ", gelu (tanh)"};
    kern_linear_spec s;
    k->device->measure->linear_spec(l, &s);
    const double weights = (double)s.out * s.in, f32 = s.flags & KERN_IN_F32;
    const double rows_in = (double)rows * s.in, results = (double)rows * s.out;
    const int int8 = k->device->int8 && s.flags & KERN_INT8; /* weights, with a scale for each output channel */
    const double bytes =
        (int8  ? weights + 4.0 * s.out + kern_trace_act_bytes(k, rows_in)
         : f32 ? 4 * (weights + rows_in)
               : kern_trace_act_bytes(k, weights + rows_in)) +
        (s.flags & KERN_OUT_F32 ? 4 * results * (s.flags & KERN_OUT_ADD ? 2 : 1) : kern_trace_act_bytes(k, results));
    const kern_trace_call o =
        kern_trace_call_of(k, rows, bytes, 2 * weights * rows, "linear %d x %d%s%s%s", s.out, s.in,
                           activations[s.activation], s.flags & KERN_OUT_ADD ? ", added" : "",
                           int8  ? ", int8"
                           : f32 ? ", f32"
                                 : "");
    linear_call c = {o, l, x, y};
    kern_trace_run(&c.o, linear_body, &c);
}

typedef struct {
    kern_trace_call o;
    const float *x, *weight, *bias;
    const int *index;
    int dim, y_f32;
    float eps;
    void *y;
} norm_call;

TRACE_BODY(norm, core->layer_norm, c->x, c->index, c->o.rows, c->dim, c->weight, c->bias, c->eps, c->y, c->y_f32)

static void traced_layer_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                              const float *bias, float eps, void *y, int y_f32)
{
    const double n = (double)rows * dim;
    const kern_trace_call o = kern_trace_call_of(k, rows, 4 * n + (y_f32 ? 4 * n : kern_trace_act_bytes(k, n)), 0,
                                                 "layer norm %d%s", dim, y_f32 ? ", f32" : "");
    norm_call c = {o, x, weight, bias, index, dim, y_f32, eps, y};
    kern_trace_run(&c.o, norm_body, &c);
}

typedef struct {
    kern_trace_call o;
    float *dst;
    const float *src, *add;
    const int *dst_index, *src_index, *add_index;
    int dim;
} copy_call;

TRACE_BODY(copy, core->copy_rows, c->dst, c->dst_index, c->src, c->src_index, c->add, c->add_index, c->o.rows, c->dim)

static void traced_copy_rows(kern_queue *k, float *dst, const int *dst_index, const float *src, const int *src_index,
                             const float *add, const int *add_index, int rows, int dim)
{
    const kern_trace_call o =
        kern_trace_call_of(k, rows, (add ? 12.0 : 8.0) * rows * dim, 0, "copy rows %d%s", dim, add ? ", added" : "");
    copy_call c = {o, dst, src, add, dst_index, src_index, add_index, dim};
    kern_trace_run(&c.o, copy_body, &c);
}

typedef struct {
    kern_trace_call o;
    const float *a, *b;
    float *y;
    size_t n;
} subtract_call;

TRACE_BODY(subtract, core->subtract, c->a, c->b, c->n, c->y)

static void traced_subtract(kern_queue *k, const float *a, const float *b, size_t n, float *y)
{
    const kern_trace_call o = kern_trace_call_of(k, 1, 12 * (double)n, 0, "subtract %zu", n);
    subtract_call c = {o, a, b, y, n};
    kern_trace_run(&c.o, subtract_body, &c);
}

typedef struct {
    kern_trace_call o;
    const float *x;
    act *y;
    size_t n;
} to_act_call;

TRACE_BODY(to_act, core->to_act, c->x, c->n, c->y)

static void traced_to_act(kern_queue *k, const float *x, size_t n, act *y)
{
    const kern_trace_call o =
        kern_trace_call_of(k, 1, 4 * (double)n + kern_trace_act_bytes(k, (double)n), 0, "to operands %zu", n);
    to_act_call c = {o, x, y, n};
    kern_trace_run(&c.o, to_act_body, &c);
}

typedef struct {
    kern_trace_call o;
    const act *q, *key, *value;
    int q_stride, kv_stride, n_seq, n_q, n_k, heads, head_dim;
    act *y;
} attention_call;

TRACE_BODY(attention, core->attention, c->q, c->q_stride, c->key, c->value, c->kv_stride, c->n_seq, c->n_q, c->n_k,
           c->heads, c->head_dim, c->y)

static void traced_attention(kern_queue *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride,
                             int n_seq, int n_q, int n_k, int heads, int head_dim, act *y)
{
    const double width = (double)heads * head_dim;
    const kern_trace_call o =
        kern_trace_call_of(k, n_seq * n_q, kern_trace_act_bytes(k, 2 * width * n_seq * ((double)n_q + n_k)),
                           4 * width * n_seq * n_q * n_k, "attention %d x %d, %d keys", heads, head_dim, n_k);
    attention_call c = {o, q, key, value, q_stride, kv_stride, n_seq, n_q, n_k, heads, head_dim, y};
    kern_trace_run(&c.o, attention_body, &c);
}

typedef struct {
    kern_trace_call o;
    const act *q, *key, *value;
    const int *q_first, *n_q, *k_first, *n_k;
    int q_stride, kv_stride, n_seq, heads, head_dim;
    act *y;
} spans_call;

TRACE_BODY(spans, core->attention_spans, c->q, c->q_stride, c->q_first, c->n_q, c->key, c->value, c->kv_stride,
           c->k_first, c->n_k, c->n_seq, c->heads, c->head_dim, c->y)

static void traced_attention_spans(kern_queue *k, const act *q, int q_stride, const int *q_first, const int *n_q,
                                   const act *key, const act *value, int kv_stride, const int *k_first, const int *n_k,
                                   int n_seq, int heads, int head_dim, act *y)
{
    const double width = (double)heads * head_dim;
    double pairs = 0;
    int rows = 0, keys = 0;
    for (int s = 0; s < n_seq; s++) {
        rows += n_q[s];
        if (n_q[s] > 0) keys += n_k[s], pairs += (double)n_q[s] * n_k[s];
    }
    const kern_trace_call o =
        kern_trace_call_of(k, rows, kern_trace_act_bytes(k, 2 * width * ((double)rows + keys)), 4 * width * pairs,
                           "attention %d x %d, %d spans, %d keys", heads, head_dim, n_seq, keys);
    spans_call c = {o, q, key, value, q_first, n_q, k_first, n_k, q_stride, kv_stride, n_seq, heads, head_dim, y};
    kern_trace_run(&c.o, spans_body, &c);
}

void kern_trace_core(kern_trace *t)
{
    t->core.linear = traced_linear;
    t->core.layer_norm = traced_layer_norm;
    t->core.copy_rows = traced_copy_rows;
    t->core.subtract = traced_subtract;
    t->core.to_act = traced_to_act;
    t->core.attention = traced_attention;
    t->core.attention_spans = traced_attention_spans;
}
