#include "kernels/trace.h"

#include "kernels/head_work.h"
#include "kernels/speculation.h"
#include "kernels/trace_tokens.h"

#include <stdlib.h>

/* --- core --------------------------------------------------------------------------------------------------------- */

static void traced_lap(kern_queue *k, double *seconds)
{
    (void)k, (void)seconds;
}

static void traced_replay(kern_queue *k, kern_recording **recording, void (*body)(void *arg), void *arg)
{
    (void)k, (void)recording;
    body(arg);
}

typedef struct {
    kern_trace_call o;
    const kern_linear *l;
    const void *x;
    void *y;
} linear_call;

static void linear_body(void *arg)
{
    const linear_call *c = arg;
    c->o.core->linear(c->o.k, c->l, c->x, c->o.rows, c->y);
}

static void traced_linear(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y)
{
    static const char *const activations[] = {
        [KERN_LINEAR] = "", [KERN_GELU] = ", gelu", [KERN_SILU] = ", silu", [KERN_GELU_TANH] = ", gelu (tanh)"};
    kern_linear_spec s;
    k->device->measure->linear_spec(l, &s);
    const double weights = (double)s.out * s.in, f32 = s.flags & KERN_IN_F32;
    const double operands = weights + (double)rows * s.in, results = (double)rows * s.out;
    const double bytes =
        (f32 ? 4 * operands : kern_trace_act_bytes(k, operands)) +
        (s.flags & KERN_OUT_F32 ? 4 * results * (s.flags & KERN_OUT_ADD ? 2 : 1) : kern_trace_act_bytes(k, results));
    linear_call c = {kern_trace_call_of(k, rows, bytes, 2 * weights * rows, "linear %d x %d%s%s%s", s.out, s.in,
                                        activations[s.activation], s.flags & KERN_OUT_ADD ? ", added" : "",
                                        f32 ? ", f32" : ""),
                     l, x, y};
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

static void norm_body(void *arg)
{
    const norm_call *c = arg;
    c->o.core->layer_norm(c->o.k, c->x, c->index, c->o.rows, c->dim, c->weight, c->bias, c->eps, c->y, c->y_f32);
}

static void traced_layer_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                              const float *bias, float eps, void *y, int y_f32)
{
    const double n = (double)rows * dim;
    norm_call c = {kern_trace_call_of(k, rows, 4 * n + (y_f32 ? 4 * n : kern_trace_act_bytes(k, n)), 0,
                                      "layer norm %d%s", dim, y_f32 ? ", f32" : ""),
                   x,
                   weight,
                   bias,
                   index,
                   dim,
                   y_f32,
                   eps,
                   y};
    kern_trace_run(&c.o, norm_body, &c);
}

typedef struct {
    kern_trace_call o;
    float *dst;
    const float *src, *add;
    const int *dst_index, *src_index, *add_index;
    int dim;
} copy_call;

static void copy_body(void *arg)
{
    const copy_call *c = arg;
    c->o.core->copy_rows(c->o.k, c->dst, c->dst_index, c->src, c->src_index, c->add, c->add_index, c->o.rows, c->dim);
}

static void traced_copy_rows(kern_queue *k, float *dst, const int *dst_index, const float *src, const int *src_index,
                             const float *add, const int *add_index, int rows, int dim)
{
    copy_call c = {
        kern_trace_call_of(k, rows, (add ? 12.0 : 8.0) * rows * dim, 0, "copy rows %d%s", dim, add ? ", added" : ""),
        dst,
        src,
        add,
        dst_index,
        src_index,
        add_index,
        dim};
    kern_trace_run(&c.o, copy_body, &c);
}

typedef struct {
    kern_trace_call o;
    const float *a, *b;
    float *y;
    size_t n;
} subtract_call;

static void subtract_body(void *arg)
{
    const subtract_call *c = arg;
    c->o.core->subtract(c->o.k, c->a, c->b, c->n, c->y);
}

static void traced_subtract(kern_queue *k, const float *a, const float *b, size_t n, float *y)
{
    subtract_call c = {kern_trace_call_of(k, 1, 12 * (double)n, 0, "subtract %zu", n), a, b, y, n};
    kern_trace_run(&c.o, subtract_body, &c);
}

typedef struct {
    kern_trace_call o;
    const float *x;
    act *y;
    size_t n;
} to_act_call;

static void to_act_body(void *arg)
{
    const to_act_call *c = arg;
    c->o.core->to_act(c->o.k, c->x, c->n, c->y);
}

static void traced_to_act(kern_queue *k, const float *x, size_t n, act *y)
{
    to_act_call c = {
        kern_trace_call_of(k, 1, 4 * (double)n + kern_trace_act_bytes(k, (double)n), 0, "to operands %zu", n), x, y, n};
    kern_trace_run(&c.o, to_act_body, &c);
}

typedef struct {
    kern_trace_call o;
    const act *q, *key, *value;
    int q_stride, kv_stride, n_seq, n_q, n_k, heads, head_dim;
    act *y;
} attention_call;

static void attention_body(void *arg)
{
    const attention_call *c = arg;
    c->o.core->attention(c->o.k, c->q, c->q_stride, c->key, c->value, c->kv_stride, c->n_seq, c->n_q, c->n_k, c->heads,
                         c->head_dim, c->y);
}

static void traced_attention(kern_queue *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride,
                             int n_seq, int n_q, int n_k, int heads, int head_dim, act *y)
{
    const double width = (double)heads * head_dim;
    attention_call c = {
        kern_trace_call_of(k, n_seq * n_q, kern_trace_act_bytes(k, 2 * width * n_seq * ((double)n_q + n_k)),
                           4 * width * n_seq * n_q * n_k, "attention %d x %d, %d keys", heads, head_dim, n_k),
        q,
        key,
        value,
        q_stride,
        kv_stride,
        n_seq,
        n_q,
        n_k,
        heads,
        head_dim,
        y};
    kern_trace_run(&c.o, attention_body, &c);
}

typedef struct {
    kern_trace_call o;
    const act *q, *key, *value;
    const int *q_first, *n_q, *k_first, *n_k;
    int q_stride, kv_stride, n_seq, heads, head_dim;
    act *y;
} spans_call;

static void spans_body(void *arg)
{
    const spans_call *c = arg;
    c->o.core->attention_spans(c->o.k, c->q, c->q_stride, c->q_first, c->n_q, c->key, c->value, c->kv_stride,
                               c->k_first, c->n_k, c->n_seq, c->heads, c->head_dim, c->y);
}

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
    spans_call c = {kern_trace_call_of(k, rows, kern_trace_act_bytes(k, 2 * width * ((double)rows + keys)),
                                       4 * width * pairs, "attention %d x %d, %d spans, %d keys", heads, head_dim,
                                       n_seq, keys),
                    q,
                    key,
                    value,
                    q_first,
                    n_q,
                    k_first,
                    n_k,
                    q_stride,
                    kv_stride,
                    n_seq,
                    heads,
                    head_dim,
                    y};
    kern_trace_run(&c.o, spans_body, &c);
}

/* --- head --------------------------------------------------------------------------------------------------------- */

static double head_macs(const kern_head_spec *s)
{
    return kern_head_macs(s->width, s->depth, s->channels);
}

static double evaluation_bytes(const kern_queue *k, const kern_head *h, const kern_head_spec *s, int rows)
{
    const double size = s->f32 ? sizeof(float) : (double)k->device->act_size;
    const double weights = kern_head_weight_bytes(s->width, s->depth, s->channels, size);
    return kern_head_bytes(weights, (double)k->head->mod_bytes(h), s->channels, rows);
}

static kern_head_spec spec_of(const kern_queue *k, const kern_head *h)
{
    kern_head_spec s;
    k->device->measure->head_spec(h, &s);
    return s;
}

typedef struct {
    kern_trace_call o;
    const kern_head *h;
    const float *temb, *cond;
    const int *temb_index;
    int steps, each;
    void *mod, *scratch;
} modulate_call;

static void modulate_body(void *arg)
{
    const modulate_call *c = arg;
    c->o.head->modulate(c->o.k, c->h, c->temb, c->temb_index, c->steps, c->cond, c->each, c->mod, c->scratch);
}

static void traced_modulate(kern_queue *k, const kern_head *h, const float *temb, const int *temb_index, int steps,
                            const float *cond, int rows, void *mod, void *scratch)
{
    const kern_head_spec s = spec_of(k, h);
    const double macs = kern_modulation_macs(s.width, s.depth), all = (double)steps * rows;
    modulate_call c = {kern_trace_call_of(k, steps * rows,
                                          kern_trace_act_bytes(k, macs) + all * (double)k->head->mod_bytes(h),
                                          2 * macs * all, "modulation %d x %d", s.depth, s.width),
                       h,
                       temb,
                       cond,
                       temb_index,
                       steps,
                       rows,
                       mod,
                       scratch};
    kern_trace_run(&c.o, modulate_body, &c);
}

typedef struct {
    kern_trace_call o;
    const kern_head *h;
    const float *x;
    const int *x_index, *mod_index;
    const void *mod;
    kern_head_reuse reuse;
    float *kept;
    int kept_rows;
    float *out;
    void *scratch;
} eval_call;

static void eval_body(void *arg)
{
    const eval_call *c = arg;
    if (c->kept)
        c->o.head->eval_reusing(c->o.k, c->h, c->x, c->x_index, c->mod, c->mod_index, c->o.rows, c->reuse, c->kept,
                                c->kept_rows, c->out, c->scratch);
    else
        c->o.head->eval(c->o.k, c->h, c->x, c->x_index, c->mod, c->mod_index, c->o.rows, c->out, c->scratch);
}

static void traced_eval_reusing(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                                const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows,
                                float *out, void *scratch)
{
    static const char *const reuses[] = {"", ", warm", ", kept"};
    const kern_head_spec s = spec_of(k, h);
    eval_call c = {kern_trace_call_of(k, rows, evaluation_bytes(k, h, &s, rows), 2 * head_macs(&s) * rows,
                                      "head %d x %d%s", s.depth, s.width, reuses[reuse]),
                   h,
                   x,
                   x_index,
                   mod_index,
                   mod,
                   reuse,
                   kept,
                   kept_rows,
                   out,
                   scratch};
    kern_trace_run(&c.o, eval_body, &c);
}

static void traced_eval(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                        const int *mod_index, int rows, float *out, void *scratch)
{
    traced_eval_reusing(k, h, x, x_index, mod, mod_index, rows, KERN_HEAD_FRESH, NULL, 0, out, scratch);
}

typedef struct {
    kern_trace_call o;
    const kern_head *h;
    const kern_chain_job *job;
} chain_call;

static void chain_body(void *arg)
{
    const chain_call *c = arg;
    c->o.head->chain_run(c->o.k, c->h, c->job);
}

static void traced_chain_run(kern_queue *k, const kern_head *h, const kern_chain_job *job)
{
    const kern_head_spec s = spec_of(k, h);
    const int rows = job->tokens * job->conditions, steps = job->first - job->last + 1;
    chain_call c = {kern_trace_call_of(k, rows, steps * evaluation_bytes(k, h, &s, rows),
                                       2 * head_macs(&s) * rows * steps, "chain %d x %d, %d steps", s.depth, s.width,
                                       steps),
                    h, job};
    kern_trace_run(&c.o, chain_body, &c);
}

typedef struct {
    kern_trace_call o;
    const kern_verify_job *job;
} verify_call;

static void verify_body(void *arg)
{
    const verify_call *c = arg;
    c->o.head->verify(c->o.k, c->job);
}

static void traced_verify(kern_queue *k, const kern_verify_job *job)
{
    verify_call c = {kern_trace_call_of(k, job->rows, 24.0 * job->rows * job->channels, 0, "verify"), job};
    c.o.recorded = 0; /* x may be the draft, which a second run would not find */
    kern_trace_run(&c.o, verify_body, &c);
}

typedef struct {
    kern_trace_call o;
    const kern_path_job *job;
} path_ratio_call;

static void path_ratio_body(void *arg)
{
    const path_ratio_call *c = arg;
    c->o.head->path_ratio(c->o.k, c->job);
}

static void traced_path_ratio(kern_queue *k, const kern_path_job *job)
{
    const double numbers = (double)job->paths * job->steps * job->channels;
    path_ratio_call c = {kern_trace_call_of(k, job->paths, 4 * numbers * (3 + 2 * job->conditions), 0,
                                            "path ratio, %d steps", job->steps),
                         job};
    kern_trace_run(&c.o, path_ratio_body, &c);
}

typedef struct {
    kern_trace_call o;
    const kern_path_verdict *job;
} path_decide_call;

static void path_decide_body(void *arg)
{
    const path_decide_call *c = arg;
    c->o.head->path_decide(c->o.k, c->job);
}

static void traced_path_decide(kern_queue *k, const kern_path_verdict *job)
{
    path_decide_call c = {kern_trace_call_of(k, job->rows, 12.0 * job->rows, 0, "path verdict"), job};
    kern_trace_run(&c.o, path_decide_body, &c);
}

typedef struct {
    kern_trace_call o;
    float *x;
    int channels, step;
    uint64_t seed;
    kern_noise purpose;
    const uint64_t *image;
    const int *position;
} normal_call;

static void normal_body(void *arg)
{
    const normal_call *c = arg;
    c->o.head->normal(c->o.k, c->x, c->o.rows, c->channels, c->seed, c->purpose, c->image, c->position, c->step);
}

static void traced_normal(kern_queue *k, float *x, int rows, int channels, uint64_t seed, kern_noise purpose,
                          const uint64_t *image, const int *position, int step)
{
    normal_call c = {kern_trace_call_of(k, rows, 4.0 * rows * channels, 0, "noise %d", channels),
                     x,
                     channels,
                     step,
                     seed,
                     purpose,
                     image,
                     position};
    kern_trace_run(&c.o, normal_body, &c);
}

/* Speculation inside the head: each call is timed where it is, for it depends on what it finds. */
typedef struct {
    kern_trace_call o;
    kern_speculation *w;
    const kern_speculation_head *at;
    int result;
} speculation_call;

static void propose_body(void *arg)
{
    speculation_call *c = arg;
    c->result = c->o.head->speculate_propose(c->o.k, c->w, c->at);
}
static void walk_body(void *arg)
{
    speculation_call *c = arg;
    c->o.head->speculate_walk(c->o.k, c->w, c->at);
}
static void run_body(void *arg)
{
    speculation_call *c = arg;
    c->result = c->o.head->speculate_run(c->o.k, c->w, c->at);
}

static int speculate(kern_queue *k, kern_speculation *w, const kern_speculation_head *at, const char *name,
                     void (*body)(void *arg))
{
    speculation_call c = {
        kern_trace_call_of(k, w->tokens * w->conditions * w->window, 0, 0, "%s, window %d", name, w->window), w, at, 0};
    c.o.recorded = 0;
    kern_trace_run(&c.o, body, &c);
    return c.result;
}

static int traced_propose(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft)
{
    return speculate(k, w, draft, "proposals", propose_body);
}
static void traced_walk(kern_queue *k, kern_speculation *w, const kern_speculation_head *target)
{
    (void)speculate(k, w, target, "walk", walk_body);
}
static int traced_run(kern_queue *k, kern_speculation *w, const kern_speculation_head *target)
{
    return speculate(k, w, target, "all rounds", run_body);
}

/* --- conv --------------------------------------------------------------------------------------------------------- */

typedef struct {
    kern_trace_call o;
    const kern_conv *conv;
    const act *x;
    int images, height, width;
    void *y;
} conv_call;

static void conv_body(void *arg)
{
    const conv_call *c = arg;
    c->o.conv->conv(c->o.k, c->conv, c->x, c->images, c->height, c->width, c->y);
}

static void traced_conv(kern_queue *k, const kern_conv *conv, const act *x, int images, int height, int width, void *y)
{
    kern_conv_spec s;
    k->device->measure->conv_spec(conv, &s);
    const int upsample = (s.flags & KERN_UPSAMPLE) != 0;
    const double in_pixels = (double)images * height * width, in = in_pixels * s.in;
    const double rows = (height + 2 * s.pad_h - s.kernel_h) / s.stride + 1;
    const double columns = (width + 2 * s.pad_w - s.kernel_w) / s.stride + 1;
    const double pixels = upsample ? 4 * in_pixels : images * rows * columns;
    const double taps = upsample ? 4 : (double)s.kernel_h * s.kernel_w; /* input pixels that differ, as vae_run_flop */
    const double results = pixels * s.out, weights = (double)s.out * s.in * s.kernel_h * s.kernel_w;
    const double bytes =
        kern_trace_act_bytes(k, in + weights) +
        (s.flags & KERN_OUT_F32 ? 4 * results * (s.flags & KERN_OUT_ADD ? 2 : 1) : kern_trace_act_bytes(k, results));
    conv_call c = {kern_trace_call_of(k, (int)pixels, bytes, 2 * results * s.in * taps,
                                      "convolution %dx%d, %d to %d%s%s%s", s.kernel_h, s.kernel_w, s.in, s.out,
                                      s.stride > 1 ? ", stride 2" : "", upsample ? ", upsampled" : "",
                                      s.flags & KERN_OUT_ADD ? ", added" : ""),
                   conv,
                   x,
                   images,
                   height,
                   width,
                   y};
    kern_trace_run(&c.o, conv_body, &c);
}

typedef struct {
    kern_trace_call o;
    const float *x, *weight, *bias;
    int images, channels, groups, silu;
    float eps;
    act *y;
} group_norm_call;

static void group_norm_body(void *arg)
{
    const group_norm_call *c = arg;
    c->o.conv->group_norm(c->o.k, c->x, c->images, c->o.rows / c->images, c->channels, c->groups, c->weight, c->bias,
                          c->eps, c->silu, c->y);
}

static void traced_group_norm(kern_queue *k, const float *x, int images, int pixels, int channels, int groups,
                              const float *weight, const float *bias, float eps, int silu, act *y)
{
    const double n = (double)images * pixels * channels;
    group_norm_call c = {kern_trace_call_of(k, images * pixels, 8 * n + kern_trace_act_bytes(k, n), 0,
                                            "group norm %d%s", channels, silu ? ", silu" : ""),
                         x,
                         weight,
                         bias,
                         images,
                         channels,
                         groups,
                         silu,
                         eps,
                         y};
    kern_trace_run(&c.o, group_norm_body, &c);
}

typedef struct {
    kern_trace_call o;
    const float *x;
    int images;
    kern_bytes how;
    uint8_t *y;
    int *found;
} to_bytes_call;

static void to_bytes_body(void *arg)
{
    const to_bytes_call *c = arg;
    c->o.conv->to_bytes(c->o.k, c->x, c->images, c->o.rows / c->images, c->how, c->y, c->found);
}

static void traced_to_bytes(kern_queue *k, const float *x, int images, int values, kern_bytes how, uint8_t *y,
                            int *found)
{
    const int n = images * values;
    to_bytes_call c = {kern_trace_call_of(k, n, 5.0 * n, 0, "pixels to bytes"), x, images, how, y, found};
    kern_trace_run(&c.o, to_bytes_body, &c);
}

/* --- begin and end --------------------------------------------------------------------------------------------------
 */

mar_status kern_trace_begin(kern_queue *k, kern_trace **out, mar_err *err)
{
    kern_trace *t = *out = calloc(1, sizeof *t);
    if (!t) return err_set(err, MAR_ENOMEM, "out of memory");
    t->k = k;
    t->real_core = k->core, t->real_head = k->head, t->real_conv = k->conv, t->real_discrete = k->discrete;
    t->core = *k->core, t->head = *k->head, t->conv = *k->conv, t->discrete = *k->discrete;
    t->core.lap = traced_lap;
    t->core.replay = traced_replay;
    t->core.linear = traced_linear;
    t->core.layer_norm = traced_layer_norm;
    t->core.copy_rows = traced_copy_rows;
    t->core.subtract = traced_subtract;
    t->core.to_act = traced_to_act;
    t->core.attention = traced_attention;
    t->core.attention_spans = traced_attention_spans;
    t->head.modulate = traced_modulate;
    t->head.eval = traced_eval;
    t->head.eval_reusing = traced_eval_reusing;
    t->head.chain_run = traced_chain_run;
    t->head.verify = traced_verify;
    t->head.path_ratio = traced_path_ratio;
    t->head.path_decide = traced_path_decide;
    t->head.normal = traced_normal;
    t->head.speculate_propose = traced_propose;
    t->head.speculate_walk = traced_walk;
    if (t->head.speculate_run) t->head.speculate_run = traced_run;
    t->conv.conv = traced_conv;
    t->conv.group_norm = traced_group_norm;
    t->conv.to_bytes = traced_to_bytes;
    kern_trace_tokens(t);
    k->core->finish(k);
    k->core = &t->core, k->head = &t->head, k->conv = &t->conv, k->discrete = &t->discrete;
    return MAR_OK;
}

void kern_trace_end(kern_trace *t)
{
    kern_queue *k = t->k;
    k->core = t->real_core, k->head = t->real_head, k->conv = t->real_conv, k->discrete = t->real_discrete;
    k->core->finish(k);
}

const kern_traced *kern_trace_rows(const kern_trace *t, int *count)
{
    *count = t->count;
    return t->row;
}

void kern_trace_free(kern_trace *t)
{
    free(t);
}
