#include "kernels/trace.h"

#include "kernels/causal.h"
#include "kernels/discrete.h"
#include "kernels/doubling.h"
#include "kernels/head_work.h"
#include "kernels/int4.h"
#include "kernels/speculation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 256 }; /* kinds of operations */

struct kern_trace {
    kern_core_ops core; /* must be first: a traced queue's `core` points to it */
    kern_head_ops head;
    kern_conv_ops conv;
    kern_discrete_ops discrete;
    kern_fused_ops fused;
    kern_queue *k;
    const kern_core_ops *real_core; /* the backend's */
    const kern_head_ops *real_head;
    const kern_conv_ops *real_conv;
    const kern_discrete_ops *real_discrete;
    const kern_fused_ops *real_fused;
    kern_traced row[ROWS_MAX];
    int count;
};

/* --- the hook ----------------------------------------------------------------------------------------------------- */

/* Starts the clock of an operation. */
static const kern_trace *trace_start(kern_queue *k)
{
    const kern_trace *t = (const kern_trace *)k->core;
    t->real_core->timer_mark(k, NULL);
    return t;
}

/* Returns the row of an operation, adding it if new. When the table is full, the last row takes all. */
static kern_traced *trace_row(kern_trace *t, const char *name, int rows)
{
    for (int i = 0; i < t->count; i++)
        if (t->row[i].rows == rows && strcmp(t->row[i].name, name) == 0) return &t->row[i];
    if (t->count == ROWS_MAX) return &t->row[ROWS_MAX - 1];
    kern_traced *r = &t->row[t->count++];
    r->rows = rows;
    snprintf(r->name, sizeof r->name, "%s", name);
    return r;
}

/* Records the operation since `begin`: its time, bytes and flop; the name as for printf. */
__attribute__((format(printf, 5, 6))) static void trace_add(kern_queue *k, int rows, double bytes, double flop,
                                                            const char *format, ...)
{
    kern_trace *t = (kern_trace *)(uintptr_t)k->core;
    char name[sizeof t->row->name];
    va_list arguments;
    if (rows <= 0) return;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    kern_traced *r = trace_row(t, name, rows);
    t->real_core->timer_mark(k, &r->seconds);
    r->calls++;
    r->bytes += bytes;
    r->flop += flop;
}

/* Returns the bytes of n operands. */
static double act_bytes(const kern_queue *k, double n)
{
    return n * (double)k->device->act_size;
}

/* Returns the bytes of n results of a product. */
static double trace_result_bytes(const kern_queue *k, double n, int flags)
{
    return flags & KERN_OUT_F32 ? 4 * n * (flags & KERN_OUT_ADD ? 2 : 1) : act_bytes(k, n);
}

/* --- every model -------------------------------------------------------------------------------------------------- */

static void end_linear(kern_queue *k, const kern_linear *l, int rows, const char *also)
{
    static const char *const activations[] = {
        [KERN_LINEAR] = "", [KERN_GELU] = ", gelu", [KERN_SILU] = ", silu", [KERN_GELU_TANH] = ", gelu (tanh)"};
    kern_linear_spec s;
    k->device->measure->linear_spec(l, &s);
    const double weights = (double)s.out * s.in, rows_in = (double)rows * s.in;
    const int f32 = s.flags & KERN_IN_F32;
    const int int8 = k->device->int8 && s.flags & KERN_LOW; /* weights, with a scale for each output channel */
    const int int4 = k->device->int4 && s.flags & KERN_LOW && s.in % KERN_INT4_GROUP == 0; /* or for each group */
    const double operands = int8   ? weights + 4.0 * s.out + act_bytes(k, rows_in)
                            : int4 ? weights / 2 + 2 * weights / KERN_INT4_GROUP + act_bytes(k, rows_in)
                            : f32  ? 4 * (weights + rows_in)
                                   : act_bytes(k, weights + rows_in);
    trace_add(k, rows, operands + trace_result_bytes(k, (double)rows * s.out, s.flags), 2 * weights * rows,
              "linear %d x %d%s%s%s%s", s.out, s.in, activations[s.activation], s.flags & KERN_OUT_ADD ? ", added" : "",
              int8   ? ", int8"
              : int4 ? ", int4"
              : f32  ? ", f32"
                     : "",
              also);
}

static void linear(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y)
{
    trace_start(k)->real_core->linear(k, l, x, rows, y);
    end_linear(k, l, rows, "");
}

/* A trace has the layers' operations. */
static int trace_decode(kern_queue *k, const kern_decoder *decoder, const kern_decode_job *job)
{
    (void)k, (void)decoder, (void)job;
    return 0;
}

static void end_norm(kern_queue *k, const char *name, int rows, int dim, int y_f32)
{
    const double n = (double)rows * dim;
    trace_add(k, rows, 4 * n + (y_f32 ? 4 * n : act_bytes(k, n)), 0, "%s norm %d%s", name, dim, y_f32 ? ", f32" : "");
}

static int trace_skinny(kern_queue *k, const kern_linear *l, const kern_skinny_job *job)
{
    const int done = trace_start(k)->real_fused->skinny(k, l, job);
    const char *norm = !job->norm ? "" : job->norm_bias ? ", layer norm" : ", RMS norm";
    kern_linear_spec s;
    k->device->measure->linear_spec(l, &s);
    if (done == KERN_SKINNY_NORMED)
        end_norm(k, job->norm_bias ? "layer" : "RMS", job->rows, s.in, 0);
    else if (done != KERN_SKINNY_NOT)
        end_linear(k, l, job->rows, job->gated ? ", RMS norm, SwiGLU" : norm);
    return done;
}

static void trace_layer_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                             const float *bias, float eps, void *y, int y_f32)
{
    trace_start(k)->real_core->layer_norm(k, x, index, rows, dim, weight, bias, eps, y, y_f32);
    end_norm(k, "layer", rows, dim, y_f32);
}

static void copy_rows(kern_queue *k, float *dst, const int *dst_index, const float *src, const int *src_index,
                      const float *add, const int *add_index, int rows, int dim)
{
    trace_start(k)->real_core->copy_rows(k, dst, dst_index, src, src_index, add, add_index, rows, dim);
    trace_add(k, rows, (add ? 12.0 : 8.0) * rows * dim, 0, "copy rows %d%s", dim, add ? ", added" : "");
}

static void subtract(kern_queue *k, const float *a, const float *b, size_t n, float *y)
{
    trace_start(k)->real_core->subtract(k, a, b, n, y);
    trace_add(k, 1, 12 * (double)n, 0, "subtract %zu", n);
}

static void trace_to_act(kern_queue *k, const float *x, size_t n, act *y)
{
    trace_start(k)->real_core->to_act(k, x, n, y);
    trace_add(k, 1, 4 * (double)n + act_bytes(k, (double)n), 0, "to operands %zu", n);
}

static void attention(kern_queue *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride,
                      int n_seq, int n_q, int n_k, int heads, int head_dim, act *y)
{
    const double width = (double)heads * head_dim;
    trace_start(k)->real_core->attention(k, q, q_stride, key, value, kv_stride, n_seq, n_q, n_k, heads, head_dim, y);
    trace_add(k, n_seq * n_q, act_bytes(k, 2 * width * n_seq * ((double)n_q + n_k)), 4 * width * n_seq * n_q * n_k,
              "attention %d x %d, %d keys", heads, head_dim, n_k);
}

static void attention_spans(kern_queue *k, const act *q, int q_stride, const int *q_first, const int *n_q,
                            const act *key, const act *value, int kv_stride, const int *k_first, const int *n_k,
                            int n_seq, int heads, int head_dim, const float *bias, int reach, act *y)
{
    const double width = (double)heads * head_dim;
    double pairs = 0;
    int rows = 0, keys = 0;
    trace_start(k)->real_core->attention_spans(k, q, q_stride, q_first, n_q, key, value, kv_stride, k_first, n_k, n_seq,
                                               heads, head_dim, bias, reach, y);
    for (int s = 0; s < n_seq; s++) {
        rows += n_q[s];
        if (n_q[s] > 0) keys += n_k[s], pairs += (double)n_q[s] * n_k[s];
    }
    trace_add(k, rows, act_bytes(k, 2 * width * ((double)rows + keys)) + (bias ? 4.0 * heads * (2 * reach + 1) : 0),
              4 * width * pairs, "%sattention %d x %d, %d spans, %d keys", bias ? "biased " : "", heads, head_dim,
              n_seq, keys);
}

/* --- causal transformers ------------------------------------------------------------------------------------------ */

static void trace_rms_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                           float eps, void *y, int y_f32)
{
    trace_start(k)->real_core->rms_norm(k, x, index, rows, dim, weight, eps, y, y_f32);
    end_norm(k, "RMS", rows, dim, y_f32);
}

static void trace_gated(kern_queue *k, const act *x, int rows, int hidden, kern_activation activation, act *y)
{
    trace_start(k)->real_core->gated(k, x, rows, hidden, activation, y);
    trace_add(k, rows, act_bytes(k, 3.0 * rows * hidden), 0, "%s %d", activation == KERN_SILU ? "SwiGLU" : "gated GELU",
              hidden);
}

static void rotate(kern_queue *k, act *qkv, int rows, int heads, int head_dim, int angles, const float *rope,
                   const int *position, act *cache, const int *slot)
{
    trace_start(k)->real_core->rotate(k, qkv, rows, heads, head_dim, angles, rope, position, cache, slot);
    trace_add(k, rows, act_bytes(k, 6.0 * rows * heads * head_dim), 0, "positions into a cache %d x %d", heads,
              head_dim);
}

static void attention_cache(kern_queue *k, const kern_cache_job *job)
{
    const double width = (double)job->heads * job->head_dim, kv_width = (double)job->kv_heads * job->head_dim;
    const double slot = (double)kern_cache_slot_bytes(k->device, job->type, job->kv_heads, job->head_dim);
    double pairs = 0, slots = 0;
    trace_start(k)->real_core->attention_cache(k, job);
    for (int s = 0; s < job->spans; s++) {
        const int n = job->first[s + 1] - job->first[s];
        slots += n;
        pairs += (double)(job->row[s + 1] - job->row[s]) * n; /* upper bound: a tree's rows attend to somewhat fewer */
    }
    double bytes = slots * slot + act_bytes(k, 2 * width * job->rows);
    if (job->rope) bytes += job->rows * slot + act_bytes(k, 2 * (width + kv_width) * job->rows);
    trace_add(k, job->rows, bytes, 4 * width * pairs, "attention %d x %d over a cache, %d sequences", job->heads,
              job->head_dim, job->spans);
}

static void trace_embed(kern_queue *k, const float *table, int size, int dim, const int *token, const int *place,
                        int rows, float *y)
{
    trace_start(k)->real_core->embed(k, table, size, dim, token, place, rows, y);
    trace_add(k, rows, 8.0 * rows * dim, 0, "embeddings of drawn tokens %d", dim);
}

/* --- discrete tokens ---------------------------------------------------------------------------------------------- */

static void probs(kern_queue *k, const kern_probs_job *job)
{
    trace_start(k)->real_discrete->probs(k, job);
    trace_add(k, job->rows, 4.0 * job->rows * job->size * (job->conditions + 1), 0, "probs of %d tokens", job->size);
}

static void trace_draw(kern_queue *k, const kern_draw_job *job)
{
    trace_start(k)->real_discrete->draw(k, job);
    trace_add(k, job->rows, 4.0 * job->rows * job->size, 0, "draws from probs of %d tokens", job->size);
}

/* A block's reads depend on what is accepted: no bytes are counted. */
static void verify_blocks(kern_queue *k, const kern_block_job *job)
{
    trace_start(k)->real_discrete->verify(k, job);
    trace_add(k, job->blocks, 0, 0, "verification of %d drafts of %d tokens", job->node[job->blocks], job->size);
}

/* --- the diffusion head ------------------------------------------------------------------------------------------- */

static double trace_weight_size(const kern_queue *k, const kern_head_spec *s)
{
    return kern_head_weight_size(s->width, s->int8, (double)kern_act_size(k->device, s->dtype));
}

static void trace_modulate(kern_queue *k, const kern_head *h, const float *temb, const int *temb_index,
                           const uint8_t *fine, int steps, const float *cond, int rows, void *mod, void *scratch)
{
    kern_head_spec s;
    trace_start(k)->real_head->modulate(k, h, temb, temb_index, fine, steps, cond, rows, mod, scratch);
    k->device->measure->head_spec(h, &s);
    const double macs = kern_modulation_macs(&s), all = (double)steps * rows;
    trace_add(k, steps * rows, trace_weight_size(k, &s) * macs + all * (double)k->head->mod_bytes(h), 2 * macs * all,
              "modulation %d x %d", s.depth, s.width);
}

/* Counts `steps` evaluations of `rows` rows. */
static void end_evaluations(kern_queue *k, const kern_head *h, int rows, int steps, const char *name, const char *how)
{
    kern_head_spec s;
    k->device->measure->head_spec(h, &s);
    const double weights = kern_head_weight_bytes(&s, trace_weight_size(k, &s));
    trace_add(k, rows, steps * kern_head_bytes(weights, (double)k->head->mod_bytes(h), s.channels, rows),
              2 * kern_head_macs(&s) * rows * steps, "%s %d x %d%s", name, s.depth, s.width, how);
}

static void trace_eval(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                       const int *mod_index, int rows, float *out, void *scratch)
{
    trace_start(k)->real_head->eval(k, h, x, x_index, mod, mod_index, rows, out, scratch);
    end_evaluations(k, h, rows, 1, "head", "");
}

static void eval_reusing(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                         const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows, float *out,
                         void *scratch)
{
    static const char *const reuses[] = {"", ", warm", ", kept"};
    trace_start(k)->real_head->eval_reusing(k, h, x, x_index, mod, mod_index, rows, reuse, kept, kept_rows, out,
                                            scratch);
    end_evaluations(k, h, rows, 1, "head", reuses[reuse]);
}

static void use_tables(kern_queue *k, const kern_core_ops *core, const kern_head_ops *head)
{
    k->core = core, k->head = head;
}

static void chain_run(kern_queue *k, const kern_head *h, const kern_chain_job *job)
{
    char how[32];
    const int steps = job->first - job->last + 1;
    const kern_trace *t = trace_start(k);
    use_tables(k, t->real_core, t->real_head); /* its parts are not counted by themselves */
    t->real_fused->chain_run(k, h, job);
    use_tables(k, &t->core, &t->head);
    snprintf(how, sizeof how, ", %d steps", steps);
    end_evaluations(k, h, job->tokens * job->conditions, steps, "chain", how);
}

static void trace_verify(kern_queue *k, const kern_verify_job *job)
{
    trace_start(k)->real_head->verify(k, job);
    trace_add(k, job->rows, 24.0 * job->rows * job->channels, 0, "verify");
}

static void path_ratio(kern_queue *k, const kern_path_job *job)
{
    trace_start(k)->real_head->path_ratio(k, job);
    trace_add(k, job->paths, 4.0 * job->paths * job->steps * job->channels * (3 + 2 * job->conditions), 0,
              "path ratio, %d steps", job->steps);
}

static void path_decide(kern_queue *k, const kern_path_verdict *job)
{
    trace_start(k)->real_head->path_decide(k, job);
    trace_add(k, job->rows, 12.0 * job->rows, 0, "path verdict");
}

static void normal(kern_queue *k, float *x, int rows, int channels, const uint64_t *seed, kern_noise purpose,
                   const uint64_t *image, const int *position, int step)
{
    trace_start(k)->real_head->normal(k, x, rows, channels, seed, purpose, image, position, step);
    trace_add(k, rows, 4.0 * rows * channels, 0, "noise %d", channels);
}

static void end_speculation(kern_queue *k, const kern_speculation *w, const char *name)
{
    trace_add(k, w->tokens * w->conditions * w->window, 0, 0, "%s, window %d", name, w->window);
}

static int trace_speculate_propose(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft)
{
    const int any = trace_start(k)->real_head->speculate_propose(k, w, draft);
    end_speculation(k, w, "proposals");
    return any;
}

static void trace_speculate_walk(kern_queue *k, kern_speculation *w, const kern_speculation_head *target)
{
    trace_start(k)->real_head->speculate_walk(k, w, target);
    end_speculation(k, w, "walk");
}

static void trace_speculate_run(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft,
                                const kern_speculation_head *target)
{
    trace_start(k)->real_fused->speculate_run(k, w, draft, target);
    end_speculation(k, w, "all rounds");
}

/* --- image decoders ----------------------------------------------------------------------------------------------- */

static void conv(kern_queue *k, const kern_conv *c, const act *x, int images, int height, int width, void *y)
{
    kern_conv_spec s;
    trace_start(k)->real_conv->conv(k, c, x, images, height, width, y);
    k->device->measure->conv_spec(c, &s);
    const int upsample = (s.flags & KERN_UPSAMPLE) != 0, doubles = kern_conv_doubles(s.flags);
    const double window = kern_conv_window(s.flags, s.kernel_h) * (double)kern_conv_window(s.flags, s.kernel_w);
    const double in_pixels = (double)images * height * width;
    const double rows = (height + 2 * s.pad_h + s.pad_end - s.kernel_h) / s.stride + 1;
    const double columns = (width + 2 * s.pad_w + s.pad_end - s.kernel_w) / s.stride + 1;
    const double results = (doubles ? 4 * in_pixels : images * rows * columns) * s.out;
    const double operands = in_pixels * s.in + (double)s.out * s.in * s.kernel_h * s.kernel_w;
    trace_add(k, (int)(results / s.out), act_bytes(k, operands) + trace_result_bytes(k, results, s.flags),
              2 * results * s.in * window /* as in vae_run_flop */, "convolution %dx%d, %d to %d%s%s%s", s.kernel_h,
              s.kernel_w, s.in, s.out, s.stride > 1 ? ", stride 2" : "",
              upsample  ? ", upsampled"
              : doubles ? ", transposed"
                        : "",
              s.flags & KERN_OUT_ADD ? ", added" : "");
}

static void group_norm(kern_queue *k, const kern_norm *norm, const float *x, int images, int pixels, int channels,
                       act *y)
{
    const double n = (double)images * pixels * channels;
    trace_start(k)->real_conv->group_norm(k, norm, x, images, pixels, channels, y);
    trace_add(k, images * pixels, 8 * n + act_bytes(k, n), 0, "group norm %d%s", channels, norm->silu ? ", silu" : "");
}

static void to_bytes(kern_queue *k, const float *x, int images, int values, kern_bytes how, uint8_t *y, int *found)
{
    trace_start(k)->real_conv->to_bytes(k, x, images, values, how, y, found);
    trace_add(k, images * values, 5.0 * images * values, 0, "pixels to bytes");
}

/* --- the tables --------------------------------------------------------------------------------------------------- */

static void no_timer_mark(kern_queue *k, double *seconds)
{
    (void)k, (void)seconds;
}

static void no_replay(kern_queue *k, kern_recording **recording, void (*body)(void *arg), void *arg)
{
    (void)k, (void)recording;
    body(arg);
}

static void trace_replace(kern_trace *t)
{
    t->core.timer_mark = no_timer_mark, t->core.replay = no_replay;
    t->core.linear = linear, t->core.layer_norm = trace_layer_norm, t->core.copy_rows = copy_rows;
    t->core.subtract = subtract, t->core.to_act = trace_to_act, t->core.attention = attention;
    t->core.attention_spans = attention_spans, t->core.attention_cache = attention_cache;
    t->core.rms_norm = trace_rms_norm, t->core.gated = trace_gated, t->core.rotate = rotate,
    t->core.embed = trace_embed;
    t->fused.skinny = trace_skinny, t->fused.linear_gated = kern_linear_then_gated, t->fused.chain_run = chain_run;
    t->fused.decode = trace_decode;
    if (t->fused.speculate_run != kern_speculate_rounds)
        t->fused.speculate_run = trace_speculate_run; /* else by rounds */
    t->discrete.probs = probs, t->discrete.draw = trace_draw, t->discrete.verify = verify_blocks;
    t->head.modulate = trace_modulate, t->head.eval = trace_eval, t->head.eval_reusing = eval_reusing;
    t->head.verify = trace_verify, t->head.path_ratio = path_ratio;
    t->head.path_decide = path_decide, t->head.normal = normal;
    t->head.speculate_propose = trace_speculate_propose, t->head.speculate_walk = trace_speculate_walk;
    t->conv.conv = conv, t->conv.group_norm = group_norm, t->conv.to_bytes = to_bytes;
}

mar_status kern_trace_begin(kern_queue *k, kern_trace **out, mar_err *err)
{
    kern_trace *t = *out = calloc(1, sizeof *t);
    if (!t) return err_set(err, MAR_ENOMEM, "out of memory");
    t->k = k;
    t->real_core = k->core, t->real_head = k->head, t->real_conv = k->conv, t->real_discrete = k->discrete;
    t->real_fused = k->fused, t->fused = *k->fused;
    t->core = *k->core, t->head = *k->head, t->conv = *k->conv, t->discrete = *k->discrete;
    trace_replace(t);
    k->core->finish(k);
    k->core = &t->core, k->head = &t->head, k->conv = &t->conv, k->discrete = &t->discrete;
    k->fused = &t->fused;
    return MAR_OK;
}

void kern_trace_end(kern_trace *t)
{
    kern_queue *k = t->k;
    k->core = t->real_core, k->head = t->real_head, k->conv = t->real_conv, k->discrete = t->real_discrete;
    k->fused = t->real_fused;
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
