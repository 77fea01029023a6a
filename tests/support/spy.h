/* Counts the operations of one session, and disturbs it before one of them. A test includes this in one file. Counting
 * tables replace the tables of the session's queue. */
#ifndef TESTS_SPY_H
#define TESTS_SPY_H

#include "kernels/causal.h"
#include "tests/support/masked.h"
#include "tests/support/support.h"

#include <string.h>

static struct {
    mar_session *session;
    const char *only; /* count this operation alone; NULL: all */
    long count;       /* operations so far */
    long at;          /* index of the disturbed operation; -1: none */
    void (*disturb)(mar_session *s);
    kern_core_ops core;
    kern_head_ops head;
    kern_conv_ops conv;
    kern_discrete_ops discrete;
    kern_fused_ops fused;
    const kern_core_ops *real_core;
    const kern_head_ops *real_head;
    const kern_conv_ops *real_conv;
    const kern_discrete_ops *real_discrete;
    const kern_fused_ops *real_fused;
} spy;

static void spy_count(const char *operation)
{
    if (spy.only && strcmp(spy.only, operation) != 0) return;
    if (spy.count++ == spy.at) spy.disturb(spy.session);
}

/* Defines the counting form of TABLE.NAME with its parameters and arguments. */
#define SPY_OPERATION(result, table, name, parameters, ...)                                                            \
    static result spy_##table##_##name parameters                                                                      \
    {                                                                                                                  \
        spy_count(#name);                                                                                              \
        return spy.real_##table->name(__VA_ARGS__);                                                                    \
    }

SPY_OPERATION(void, core, upload, (kern_queue * k, void *dst, const void *src, size_t n), k, dst, src, n)
SPY_OPERATION(void, core, download, (kern_queue * k, void *dst, const void *src, size_t n), k, dst, src, n)
SPY_OPERATION(void, core, linear, (kern_queue * k, const kern_linear *l, const void *x, int rows, void *y), k, l, x,
              rows, y)
SPY_OPERATION(void, core, layer_norm,
              (kern_queue * k, const float *x, const int *index, int rows, int dim, const float *weight,
               const float *bias, float eps, void *y, int y_f32),
              k, x, index, rows, dim, weight, bias, eps, y, y_f32)
SPY_OPERATION(void, core, copy_rows,
              (kern_queue * k, float *dst, const int *dst_index, const float *src, const int *src_index,
               const float *add, const int *add_index, int rows, int dim),
              k, dst, dst_index, src, src_index, add, add_index, rows, dim)
SPY_OPERATION(void, core, similarity,
              (kern_queue * k, const act *a, const act *b, int stride, int rows, int heads, int head_dim, float *y), k,
              a, b, stride, rows, heads, head_dim, y)
SPY_OPERATION(void, core, subtract, (kern_queue * k, const float *a, const float *b, size_t n, float *y), k, a, b, n, y)
SPY_OPERATION(void, core, attention,
              (kern_queue * k, const act *q, int q_stride, const act *key, const act *value, int kv_stride, int n_seq,
               int n_q, int n_k, int heads, int head_dim, act *y),
              k, q, q_stride, key, value, kv_stride, n_seq, n_q, n_k, heads, head_dim, y)
SPY_OPERATION(void, core, attention_spans,
              (kern_queue * k, const act *q, int q_stride, const int *q_first, const int *n_q, const act *key,
               const act *value, int kv_stride, const int *k_first, const int *n_k, int n_seq, int heads, int head_dim,
               const float *bias, int reach, act *y),
              k, q, q_stride, q_first, n_q, key, value, kv_stride, k_first, n_k, n_seq, heads, head_dim, bias, reach, y)
SPY_OPERATION(void, head, modulate,
              (kern_queue * k, const kern_head *h, const float *temb, const int *temb_index, const uint8_t *fine,
               int steps, const float *cond, int rows, void *mod, void *scratch),
              k, h, temb, temb_index, fine, steps, cond, rows, mod, scratch)
SPY_OPERATION(void, head, eval_reusing,
              (kern_queue * k, const kern_head *h, const float *x, const int *x_index, const void *mod,
               const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows, float *out,
               void *scratch),
              k, h, x, x_index, mod, mod_index, rows, reuse, kept, kept_rows, out, scratch)
SPY_OPERATION(void, fused, linear_gated,
              (kern_queue * k, const kern_linear *l, const act *x, int rows, kern_activation activation, act *hidden,
               act *y),
              k, l, x, rows, activation, hidden, y)
SPY_OPERATION(void, fused, chain_run, (kern_queue * k, const kern_head *h, const kern_chain_job *job), k, h, job)
SPY_OPERATION(void, head, verify, (kern_queue * k, const kern_verify_job *job), k, job)
SPY_OPERATION(void, head, speculate_start, (kern_queue * k, kern_speculation *w), k, w)
SPY_OPERATION(int, head, speculate_propose, (kern_queue * k, kern_speculation *w, const kern_speculation_head *draft),
              k, w, draft)
SPY_OPERATION(void, head, speculate_walk, (kern_queue * k, kern_speculation *w, const kern_speculation_head *target), k,
              w, target)
SPY_OPERATION(void, conv, conv,
              (kern_queue * k, const kern_conv *c, const act *x, int images, int height, int width, void *y), k, c, x,
              images, height, width, y)

SPY_OPERATION(void, core, rms_norm,
              (kern_queue * k, const float *x, const int *index, int rows, int dim, const float *weight, float eps,
               void *y, int y_f32),
              k, x, index, rows, dim, weight, eps, y, y_f32)
SPY_OPERATION(void, core, gated,
              (kern_queue * k, const act *x, int rows, int hidden, kern_activation activation, act *y), k, x, rows,
              hidden, activation, y)
SPY_OPERATION(void, core, rotate,
              (kern_queue * k, act *qkv, int rows, int heads, int head_dim, int angles, const float *rope,
               const int *position, act *cache, const int *slot),
              k, qkv, rows, heads, head_dim, angles, rope, position, cache, slot)
SPY_OPERATION(void, core, attention_cache, (kern_queue * k, const kern_cache_job *job), k, job)
SPY_OPERATION(void, discrete, probs, (kern_queue * k, const kern_probs_job *job), k, job)
SPY_OPERATION(void, discrete, draw, (kern_queue * k, const kern_draw_job *job), k, job)
SPY_OPERATION(void, discrete, verify, (kern_queue * k, const kern_block_job *job), k, job)

/* Disturbances before an operation. */
__attribute__((unused)) static void spy_cancel(mar_session *s)
{
    mar_session_cancel(s);
}

__attribute__((unused)) static void spy_break(mar_session *s)
{
    mar_err err;
    kern_fail(mar_session_queue(s), err_set(&err, MAR_EBACKEND, "injected"), &err);
}

/* Begins to count. Calls `disturb` before counted operation number `at`, or never if `at` is -1. */
static void spy_on(mar_session *s, const char *only, long at, void (*disturb)(mar_session *s))
{
    kern_queue *k = mar_session_queue(s);
    spy.session = s, spy.only = only, spy.count = 0, spy.at = at, spy.disturb = disturb;
    spy.real_core = k->core, spy.real_head = k->head, spy.real_conv = k->conv;
    spy.core = *k->core, spy.head = *k->head, spy.conv = *k->conv;
    spy.real_discrete = k->discrete, spy.discrete = *k->discrete;
    spy.real_fused = k->fused, spy.fused = *k->fused;
    spy.core.upload = spy_core_upload;
    spy.core.download = spy_core_download;
    spy.core.linear = spy_core_linear;
    spy.core.layer_norm = spy_core_layer_norm;
    spy.core.copy_rows = spy_core_copy_rows;
    spy.core.similarity = spy_core_similarity;
    spy.core.subtract = spy_core_subtract;
    spy.core.attention = spy_core_attention;
    spy.core.attention_spans = spy_core_attention_spans;
    spy.head.modulate = spy_head_modulate;
    spy.head.eval_reusing = spy_head_eval_reusing;
    spy.fused.chain_run = spy_fused_chain_run;
    spy.fused.linear_gated = spy_fused_linear_gated;
    spy.head.verify = spy_head_verify;
    spy.head.speculate_start = spy_head_speculate_start;
    spy.head.speculate_propose = spy_head_speculate_propose;
    spy.head.speculate_walk = spy_head_speculate_walk;
    spy.conv.conv = spy_conv_conv;
    spy.core.rms_norm = spy_core_rms_norm;
    spy.core.gated = spy_core_gated;
    spy.core.rotate = spy_core_rotate;
    spy.core.attention_cache = spy_core_attention_cache;
    spy.discrete.probs = spy_discrete_probs;
    spy.discrete.draw = spy_discrete_draw;
    spy.discrete.verify = spy_discrete_verify;
    k->core = &spy.core, k->head = &spy.head, k->conv = &spy.conv, k->discrete = &spy.discrete;
    k->fused = &spy.fused;
}

/* Ends counting. Returns the number of operations. */
static long spy_off(void)
{
    kern_queue *k = mar_session_queue(spy.session);
    k->core = spy.real_core, k->head = spy.real_head, k->conv = spy.real_conv, k->discrete = spy.real_discrete;
    k->fused = spy.real_fused;
    return spy.count;
}

#endif
