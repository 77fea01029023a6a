#include "kernels/cpu/guard.h"
#include "kernels/cpu/onednn.h"

#include <dnnl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dnn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int workers;
    int primitives; /* made so far */
};

struct dnn_packed {
    dnnl_memory_desc_t md; /* 3.x: owned pointer; 2.x: struct */
    dnnl_memory_t memory;
    void *data;
    size_t bytes;
};

enum { ARGS = 5 };

struct dnn_primitive {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    int number;
    int args;      /* operands besides packed weights */
    int arg[ARGS]; /* oneDNN's number of each */
    dnnl_memory_desc_t md[ARGS];
    dnnl_memory_desc_t weights; /* required weight layout of a convolution */
    size_t scratch_bytes;
    int workers;
    dnn_operands **operands; /* [workers] */
};

struct dnn_operands {
    dnnl_memory_t memory[ARGS];
};

static const char *status_text(dnnl_status_t s)
{
    switch (s) {
    case dnnl_out_of_memory:
        return "out of memory";
    case dnnl_invalid_arguments:
        return "invalid arguments";
    case dnnl_unimplemented:
        return "not implemented for this processor";
    default:
        return "runtime error";
    }
}

/* --- the parts of the interface that differ between oneDNN 2.x and 3.x ------------------------------------ */

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t desc_strided(dnnl_memory_desc_t *md, int rank, const dnnl_dim_t *dims, dnnl_data_type_t type,
                                  const dnnl_dim_t *strides)
{
    dnnl_dims_t full_dims = {0}, full_strides = {0}; /* the interface takes whole dnnl_dims_t arrays */
    memcpy(full_dims, dims, sizeof *dims * (size_t)rank);
    memcpy(full_strides, strides, sizeof *strides * (size_t)rank);
    return dnnl_memory_desc_create_with_strides(md, rank, full_dims, type, full_strides);
}
static dnnl_status_t desc_any(dnnl_memory_desc_t *md, int rank, const dnnl_dim_t *dims, dnnl_data_type_t type)
{
    dnnl_dims_t full_dims = {0};
    memcpy(full_dims, dims, sizeof *dims * (size_t)rank);
    return dnnl_memory_desc_create_with_tag(md, rank, full_dims, type, dnnl_format_tag_any);
}
static void desc_free(dnnl_memory_desc_t *md)
{
    if (*md) dnnl_memory_desc_destroy(*md);
    *md = NULL;
}
static dnnl_status_t desc_copy(dnnl_memory_desc_t *md, const dnnl_memory_desc_t *from)
{
    return dnnl_memory_desc_clone(md, *from);
}
static size_t desc_bytes(const dnnl_memory_desc_t *md)
{
    return dnnl_memory_desc_get_size(*md);
}
static dnnl_status_t desc_query(const_dnnl_primitive_desc_t pd, dnnl_query_t what, dnnl_memory_desc_t *out)
{
    return dnnl_memory_desc_clone(out, dnnl_primitive_desc_query_md(pd, what, 0));
}
static dnnl_status_t memory_create(dnnl_memory_t *m, const dnnl_memory_desc_t *md, dnnl_engine_t e, void *p)
{
    return dnnl_memory_create(m, *md, e, p);
}
static dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha)
{
    return dnnl_post_ops_append_eltwise(ops, kind, alpha, 0.0f);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, const dnnl_memory_desc_t *a, const dnnl_memory_desc_t *b,
                                 const dnnl_memory_desc_t *bias, const dnnl_memory_desc_t *c,
                                 const_dnnl_primitive_attr_t attr, dnnl_engine_t engine)
{
    return dnnl_matmul_primitive_desc_create(pd, engine, *a, *b, bias ? *bias : NULL, *c, attr);
}
static dnnl_status_t reorder_desc(dnnl_primitive_desc_t *pd, const dnnl_memory_desc_t *src,
                                  const dnnl_memory_desc_t *dst, dnnl_engine_t e)
{
    return dnnl_reorder_primitive_desc_create(pd, *src, e, *dst, e, NULL);
}
static int desc_equal(const dnnl_memory_desc_t *a, const dnnl_memory_desc_t *b)
{
    return dnnl_memory_desc_equal(*a, *b);
}
static dnnl_status_t conv_desc(dnnl_primitive_desc_t *pd, const dnnl_memory_desc_t *src, const dnnl_memory_desc_t *w,
                               const dnnl_memory_desc_t *bias, const dnnl_memory_desc_t *dst, int stride,
                               const dnnl_dims_t padding[2], const_dnnl_primitive_attr_t attr, dnnl_engine_t engine)
{
    const dnnl_dims_t strides = {stride, stride}, dilation = {0, 0};
    return dnnl_convolution_forward_primitive_desc_create(pd, engine, dnnl_forward_inference, dnnl_convolution_direct,
                                                          *src, *w, *bias, *dst, strides, dilation, padding[0],
                                                          padding[1], attr);
}

#else

static dnnl_status_t desc_strided(dnnl_memory_desc_t *md, int rank, const dnnl_dim_t *dims, dnnl_data_type_t type,
                                  const dnnl_dim_t *strides)
{
    dnnl_dims_t full_dims = {0}, full_strides = {0};
    memcpy(full_dims, dims, sizeof *dims * (size_t)rank);
    memcpy(full_strides, strides, sizeof *strides * (size_t)rank);
    return dnnl_memory_desc_init_by_strides(md, rank, full_dims, type, full_strides);
}
static dnnl_status_t desc_any(dnnl_memory_desc_t *md, int rank, const dnnl_dim_t *dims, dnnl_data_type_t type)
{
    dnnl_dims_t full_dims = {0};
    memcpy(full_dims, dims, sizeof *dims * (size_t)rank);
    return dnnl_memory_desc_init_by_tag(md, rank, full_dims, type, dnnl_format_tag_any);
}
static void desc_free(dnnl_memory_desc_t *md)
{
    (void)md;
}
static dnnl_status_t desc_copy(dnnl_memory_desc_t *md, const dnnl_memory_desc_t *from)
{
    *md = *from;
    return dnnl_success;
}
static size_t desc_bytes(const dnnl_memory_desc_t *md)
{
    return dnnl_memory_desc_get_size(md);
}
static dnnl_status_t desc_query(const_dnnl_primitive_desc_t pd, dnnl_query_t what, dnnl_memory_desc_t *out)
{
    const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(pd, what, 0);
    if (!md) return dnnl_runtime_error;
    *out = *md;
    return dnnl_success;
}
static dnnl_status_t memory_create(dnnl_memory_t *m, const dnnl_memory_desc_t *md, dnnl_engine_t e, void *p)
{
    return dnnl_memory_create(m, md, e, p);
}
static dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha)
{
    return dnnl_post_ops_append_eltwise(ops, 1.0f, kind, alpha, 0.0f);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}
static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, const dnnl_memory_desc_t *a, const dnnl_memory_desc_t *b,
                                 const dnnl_memory_desc_t *bias, const dnnl_memory_desc_t *c,
                                 const_dnnl_primitive_attr_t attr, dnnl_engine_t engine)
{
    dnnl_matmul_desc_t md;
    dnnl_status_t s = dnnl_matmul_desc_init(&md, a, b, bias, c);
    return s == dnnl_success ? dnnl_primitive_desc_create(pd, &md, attr, engine, NULL) : s;
}
static dnnl_status_t reorder_desc(dnnl_primitive_desc_t *pd, const dnnl_memory_desc_t *src,
                                  const dnnl_memory_desc_t *dst, dnnl_engine_t e)
{
    return dnnl_reorder_primitive_desc_create(pd, src, e, dst, e, NULL);
}
static int desc_equal(const dnnl_memory_desc_t *a, const dnnl_memory_desc_t *b)
{
    return dnnl_memory_desc_equal(a, b);
}
static dnnl_status_t conv_desc(dnnl_primitive_desc_t *pd, const dnnl_memory_desc_t *src, const dnnl_memory_desc_t *w,
                               const dnnl_memory_desc_t *bias, const dnnl_memory_desc_t *dst, int stride,
                               const dnnl_dims_t padding[2], const_dnnl_primitive_attr_t attr, dnnl_engine_t engine)
{
    const dnnl_dims_t strides = {stride, stride};
    dnnl_convolution_desc_t desc;
    dnnl_status_t s = dnnl_convolution_forward_desc_init(&desc, dnnl_forward_inference, dnnl_convolution_direct, src, w,
                                                         bias, dst, strides, padding[0], padding[1]);
    return s == dnnl_success ? dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL) : s;
}

#endif

/* --- forks -------------------------------------------------------------------------------------------------- */

/* The process, and the number of its threads creating something in oneDNN. Creation takes locks and leaves notes. After
 * a fork both are copies of the earlier state: if a thread was at work, its locks stay locked in the child, and oneDNN
 * would wait for ever. */
static _Atomic uint64_t makers; /* process << 32 | threads */

/* Begins a creation. Returns 0 if oneDNN cannot be used in this process. */
static int makers_enter(void)
{
    const uint64_t here = (uint64_t)getpid() << 32;
    uint64_t before = atomic_load(&makers), after;
    do {
        const uint64_t threads = before & UINT32_MAX;
        const int inherited = before - threads != here;
        if (inherited && threads > 0) return 0;
        after = inherited ? here + 1 : before + 1;
    } while (!atomic_compare_exchange_weak(&makers, &before, after));
    return 1;
}

static void makers_leave(void)
{
    atomic_fetch_sub(&makers, 1);
}

/* --- guarded calls ------------------------------------------------------------------------------------------ */

/* Arguments and temporaries of a step that calls oneDNN. An exception that ends the step leaves the temporaries to be
 * freed. */
typedef struct {
    dnn *d;
    dnn_primitive *p;
    const dnn_matmul_spec *matmul;
    const dnn_conv_spec *conv;
    const dnn_packed *layout;
    dnn_packed *packed;
    const void *from; /* source of packing, in the layout `plain` */
    dnn_operands **operands;

    dnnl_post_ops_t ops;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t pd, other_pd;
    dnnl_memory_desc_t plain, a, b, c;
    dnnl_memory_t source;
    dnnl_primitive_t reorder;
} step;

static void step_free(step *t)
{
    if (t->reorder) dnnl_primitive_destroy(t->reorder);
    if (t->source) dnnl_memory_destroy(t->source);
    if (t->other_pd) dnnl_primitive_desc_destroy(t->other_pd);
    if (t->pd) dnnl_primitive_desc_destroy(t->pd);
    if (t->attr) dnnl_primitive_attr_destroy(t->attr);
    if (t->ops) dnnl_post_ops_destroy(t->ops);
    desc_free(&t->plain), desc_free(&t->a), desc_free(&t->b), desc_free(&t->c);
}

/* Runs the step, and frees its temporaries. */
static dnnl_status_t take(int (*body)(void *step), step *t)
{
    if (!makers_enter()) return dnnl_runtime_error; /* dnn_open has said why */
    const dnnl_status_t s = (dnnl_status_t)guard_call(body, t, dnnl_out_of_memory);
    step_free(t);
    makers_leave();
    return s;
}

/* --- engine ------------------------------------------------------------------------------------------------ */

/* Turns off oneDNN's primitive cache. It allocates while holding a lock; an exception would leave it locked.
 * kernels/cpu/matmul.c and conv.c keep what is reused. */
static int start(void *arg)
{
    dnn *d = ((step *)arg)->d;
    dnnl_status_t s = dnnl_set_primitive_cache_capacity(0);
    if (s == dnnl_success) s = dnnl_engine_create(&d->engine, dnnl_cpu, 0);
    if (s == dnnl_success) s = dnnl_stream_create(&d->stream, d->engine, dnnl_stream_default_flags);
    return s;
}

mar_status dnn_open(int workers, dnn **out, mar_err *err)
{
    *out = NULL;
    dnn *d = calloc(1, sizeof *d);
    if (!d) return err_set(err, MAR_ENOMEM, "out of memory");
    d->workers = workers;
    guard_open((const void *)(uintptr_t)dnnl_version);
    if (!makers_enter()) { /* until the first step has begun */
        free(d);
        return err_set(err, MAR_EBACKEND,
                       "this process was forked while another thread of process %ld was making products in oneDNN, "
                       "whose locks it has kept: expected a fork while none loads a model or begins a batch",
                       (long)(atomic_load(&makers) >> 32));
    }
    const dnnl_status_t s = take(start, &(step){.d = d});
    makers_leave();
    if (s != dnnl_success) {
        dnn_close(d);
        return err_set(err, s == dnnl_out_of_memory ? MAR_ENOMEM : MAR_EBACKEND, "oneDNN cannot start: %s",
                       status_text(s));
    }
    *out = d;
    return MAR_OK;
}

void dnn_close(dnn *d)
{
    if (!d) return;
    if (d->stream) dnnl_stream_destroy(d->stream);
    if (d->engine) dnnl_engine_destroy(d->engine);
    free(d);
}

const char *dnn_version_text(void)
{
    static _Thread_local char text[48];
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "oneDNN %d.%d.%d isa %x", v->major, v->minor, v->patch,
             (unsigned)dnnl_get_effective_cpu_isa());
    return text;
}

/* --- primitives and their operands -------------------------------------------------------------------------------- */

static dnnl_status_t make_operands(const dnn *d, const dnn_primitive *p, dnn_operands **out)
{
    dnnl_status_t s = dnnl_success;
    dnn_operands *o = *out = calloc(1, sizeof *o);
    if (!o) return dnnl_out_of_memory;
    for (int i = 0; s == dnnl_success && i < p->args; i++)
        s = memory_create(&o->memory[i], &p->md[i], d->engine, DNNL_MEMORY_NONE);
    return s;
}

static int make_operands_step(void *arg)
{
    const step *t = arg;
    return make_operands(t->d, t->p, t->operands);
}

mar_status dnn_operands_create(const dnn *d, const dnn_primitive *p, dnn_operands **out, mar_err *err)
{
    *out = NULL;
    const dnnl_status_t s = take(
        make_operands_step, &(step){.d = (dnn *)(uintptr_t)d, .p = (dnn_primitive *)(uintptr_t)p, .operands = out});
    if (s == dnnl_success) return MAR_OK;
    dnn_operands_free(*out);
    *out = NULL;
    return err_set(err, s == dnnl_out_of_memory ? MAR_ENOMEM : MAR_EBACKEND, "oneDNN operands: %s", status_text(s));
}

void dnn_operands_free(dnn_operands *o)
{
    if (!o) return;
    for (int i = 0; i < ARGS; i++)
        if (o->memory[i]) dnnl_memory_destroy(o->memory[i]);
    free(o);
}

/* Creates the workers' operands. */
static dnnl_status_t create_operands(const dnn *d, dnn_primitive *p)
{
    dnnl_status_t s = dnnl_success;
    p->workers = d->workers;
    p->operands = calloc((size_t)p->workers + 1, sizeof *p->operands);
    if (!p->operands) return dnnl_out_of_memory;
    for (int i = 0; s == dnnl_success && i < p->workers; i++) s = make_operands(d, p, &p->operands[i]);
    return s;
}

dnn_operands *dnn_worker_operands(const dnn_primitive *p, int worker)
{
    return p->operands[worker - 1];
}

static dnnl_status_t create(dnn *d, dnn_primitive *p, const_dnnl_primitive_desc_t pd)
{
    dnnl_status_t s = dnnl_primitive_create(&p->primitive, pd);
    if (s == dnnl_success) s = desc_query(pd, dnnl_query_scratchpad_md, &p->md[p->args]);
    if (s == dnnl_success) p->scratch_bytes = desc_bytes(&p->md[p->args]);
    if (p->scratch_bytes > 0) p->arg[p->args++] = DNNL_ARG_SCRATCHPAD;
    p->stream = d->stream;
    if (s == dnnl_success) s = create_operands(d, p);
    if (s == dnnl_success) p->number = d->primitives++;
    return s;
}

void dnn_primitive_free(dnn_primitive *p)
{
    if (!p) return;
    for (int i = 0; p->operands && i < p->workers; i++) dnn_operands_free(p->operands[i]);
    free(p->operands);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    for (int i = 0; i < ARGS; i++) desc_free(&p->md[i]);
    desc_free(&p->weights);
    free(p);
}

int dnn_primitive_number(const dnn_primitive *p)
{
    return p->number;
}

size_t dnn_primitive_scratch_bytes(const dnn_primitive *p)
{
    return p->scratch_bytes;
}

typedef struct {
    const dnn_primitive *p;
    const dnn_operands *o;
    const void *const *data;
    const dnn_packed *w;
} execution;

static int execute(void *arg)
{
    const execution *x = arg;
    const dnn_primitive *p = x->p;
    dnnl_exec_arg_t args[ARGS + 1];
    dnnl_status_t s = dnnl_success;
    for (int i = 0; s == dnnl_success && i < p->args; i++) {
        s = dnnl_memory_set_data_handle(x->o->memory[i], (void *)(uintptr_t)x->data[i]);
        args[i] = (dnnl_exec_arg_t){p->arg[i], x->o->memory[i]};
    }
    if (x->w) args[p->args] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, x->w->memory};
    return s == dnnl_success ? dnnl_primitive_execute(p->primitive, p->stream, p->args + (x->w != NULL), args) : s;
}

/* Runs p; `data` are the arrays of p's operands, in order. */
static mar_status run(const dnn_primitive *p, const dnn_operands *o, const void *const *data, const dnn_packed *w)
{
    const int s = guard_call(execute, &(execution){p, o, data, w}, dnnl_out_of_memory);
    return s == dnnl_success ? MAR_OK : s == dnnl_out_of_memory ? MAR_ENOMEM : MAR_EBACKEND;
}

/* --- matrix products ------------------------------------------------------------------------------------------ */

static dnnl_status_t make_attributes(step *t, kern_activation activation, int accumulate)
{
    dnnl_status_t s = dnnl_primitive_attr_create(&t->attr);
    if (s == dnnl_success) s = dnnl_primitive_attr_set_scratchpad_mode(t->attr, dnnl_scratchpad_mode_user);
    if (s == dnnl_success) s = dnnl_post_ops_create(&t->ops);
    if (s == dnnl_success && activation == KERN_GELU) s = append_eltwise(t->ops, dnnl_eltwise_gelu_erf, 0);
    if (s == dnnl_success && activation == KERN_GELU_TANH) s = append_eltwise(t->ops, dnnl_eltwise_gelu_tanh, 0);
    if (s == dnnl_success && activation == KERN_SILU) s = append_eltwise(t->ops, dnnl_eltwise_swish, 1);
    if (s == dnnl_success && accumulate) s = append_sum(t->ops);
    return s == dnnl_success ? dnnl_primitive_attr_set_post_ops(t->attr, t->ops) : s;
}

/* Returns the next operand of p. */
static dnnl_memory_desc_t *add_operand(dnn_primitive *p, int arg)
{
    p->arg[p->args] = arg;
    return &p->md[p->args++];
}

static int matmul_build(void *arg)
{
    step *t = arg;
    dnn_primitive *p = t->p;
    const dnn_matmul_spec *spec = t->matmul;
    const dnnl_data_type_t type = spec->bf16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_data_type_t c_type = spec->bf16 && !spec->c_f32 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dim_t da[2] = {spec->m, spec->k}, sa[2] = {spec->lda, 1};
    const dnnl_dim_t db[2] = {spec->k, spec->n};
    const dnnl_dim_t sb[2] = {spec->b_transposed ? 1 : spec->ldb, spec->b_transposed ? spec->ldb : 1};
    const dnnl_dim_t dc[2] = {spec->m, spec->n}, sc[2] = {spec->ldc, 1};
    const dnnl_dim_t dv[2] = {1, spec->n}, sv[2] = {spec->n, 1};

    /* in the order of dnn_matmul_run's arrays */
    dnnl_memory_desc_t *a = add_operand(p, DNNL_ARG_SRC), *b = NULL, *bias = NULL, *c;
    dnnl_status_t s = desc_strided(a, 2, da, type, sa);
    if (s == dnnl_success && !spec->packed) s = desc_strided(b = add_operand(p, DNNL_ARG_WEIGHTS), 2, db, type, sb);
    if (s == dnnl_success && spec->has_bias)
        s = desc_strided(bias = add_operand(p, DNNL_ARG_BIAS), 2, dv, dnnl_f32, sv);
    c = add_operand(p, DNNL_ARG_DST);
    if (s == dnnl_success) s = desc_strided(c, 2, dc, c_type, sc);
    if (s == dnnl_success) s = make_attributes(t, spec->activation, spec->accumulate);
    if (s == dnnl_success) s = matmul_desc(&t->pd, a, b ? b : &spec->packed->md, bias, c, t->attr, t->d->engine);
    return s == dnnl_success ? create(t->d, p, t->pd) : s;
}

mar_status dnn_matmul_create(dnn *d, const dnn_matmul_spec *spec, dnn_primitive **out, mar_err *err)
{
    *out = NULL;
    dnn_primitive *p = calloc(1, sizeof *p);
    if (!p) return err_set(err, MAR_ENOMEM, "out of memory");
    const dnnl_status_t s = take(matmul_build, &(step){.d = d, .matmul = spec, .p = p});
    if (s != dnnl_success) {
        dnn_primitive_free(p);
        return err_set(err, s == dnnl_out_of_memory ? MAR_ENOMEM : MAR_EBACKEND, "oneDNN %s product %dx%dx%d: %s",
                       spec->bf16 ? "bf16" : "f32", spec->m, spec->n, spec->k, status_text(s));
    }
    *out = p;
    return MAR_OK;
}

mar_status dnn_matmul_run(const dnn_primitive *p, dnn_operands *o, const void *a, const dnn_packed *w, const void *b,
                          const float *bias, void *c, void *scratch)
{
    const void *data[ARGS];
    int n = 0;
    data[n++] = a;
    if (!w) data[n++] = b;
    if (bias) data[n++] = bias;
    data[n++] = c;
    data[n] = scratch;
    return run(p, o, data, w);
}

/* --- packed weights ------------------------------------------------------------------------------------------- */

/* Allocates w for its descriptor and copies `from` into it, converting layout and type. */
static dnnl_status_t packed_fill(step *t)
{
    dnn_packed *w = t->packed;
    w->bytes = desc_bytes(&w->md);
    w->data = aligned_alloc(64, (w->bytes + 63) / 64 * 64);
    if (!w->data) return dnnl_out_of_memory;
    dnnl_status_t s = memory_create(&t->source, &t->plain, t->d->engine, (void *)(uintptr_t)t->from);
    if (s == dnnl_success) s = memory_create(&w->memory, &w->md, t->d->engine, w->data);
    if (s == dnnl_success) s = reorder_desc(&t->pd, &t->plain, &w->md, t->d->engine);
    if (s == dnnl_success) s = dnnl_primitive_create(&t->reorder, t->pd);
    if (s != dnnl_success) return s;
    const dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, t->source}, {DNNL_ARG_TO, w->memory}};
    return dnnl_primitive_execute(t->reorder, t->d->stream, 2, args);
}

/* Packs in the layout oneDNN chooses for a 64-row product. */
static int pack(void *arg)
{
    step *t = arg;
    const int n = t->matmul->n, k = t->matmul->k;
    const dnnl_data_type_t type = t->matmul->bf16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dim_t da[2] = {64, k}, sa[2] = {k, 1}, db[2] = {k, n}, dc[2] = {64, n}, sc[2] = {n, 1},
                     plain[2] = {1, k};
    dnnl_status_t s = desc_strided(&t->a, 2, da, type, sa);
    if (s == dnnl_success) s = desc_any(&t->b, 2, db, type);
    if (s == dnnl_success) s = desc_strided(&t->c, 2, dc, dnnl_f32, sc);
    if (s == dnnl_success) s = matmul_desc(&t->other_pd, &t->a, &t->b, NULL, &t->c, NULL, t->d->engine);
    if (s == dnnl_success) s = desc_query(t->other_pd, dnnl_query_weights_md, &t->packed->md);
    if (s == dnnl_success) s = desc_strided(&t->plain, 2, db, dnnl_f32, plain);
    return s == dnnl_success ? packed_fill(t) : s;
}

mar_status dnn_pack(dnn *d, const float *w, int n, int k, int bf16, dnn_packed **out, mar_err *err)
{
    *out = NULL;
    dnn_packed *p = calloc(1, sizeof *p);
    if (!p) return err_set(err, MAR_ENOMEM, "out of memory");
    const dnn_matmul_spec spec = {.n = n, .k = k, .bf16 = bf16};
    const dnnl_status_t s = take(pack, &(step){.d = d, .matmul = &spec, .packed = p, .from = w});
    if (s != dnnl_success) {
        mar_status status = err_set(err, s == dnnl_out_of_memory ? MAR_ENOMEM : MAR_EBACKEND,
                                    "oneDNN cannot pack %dx%d weights (%zu bytes): %s", n, k, p->bytes, status_text(s));
        dnn_packed_free(p);
        return status;
    }
    *out = p;
    return MAR_OK;
}

void dnn_packed_free(dnn_packed *w)
{
    if (!w) return;
    if (w->memory) dnnl_memory_destroy(w->memory);
    desc_free(&w->md);
    free(w->data);
    free(w);
}

/* --- convolutions ------------------------------------------------------------------------------------------------ */

/* Describes NHWC activations. */
static dnnl_status_t image_desc(dnnl_memory_desc_t *md, int height, int width, int channels, dnnl_data_type_t type)
{
    const dnnl_dim_t h = height, w = width, c = channels;
    const dnnl_dim_t dims[4] = {1, c, h, w}, strides[4] = {h * w * c, 1, w * c, c};
    return desc_strided(md, 4, dims, type, strides);
}

static int same_implementation(const_dnnl_primitive_desc_t a, const_dnnl_primitive_desc_t b)
{
    const char *name_a = NULL, *name_b = NULL;
    dnnl_primitive_desc_query(a, dnnl_query_impl_info_str, 0, &name_a);
    dnnl_primitive_desc_query(b, dnnl_query_impl_info_str, 0, &name_b);
    return name_a && name_b && strcmp(name_a, name_b) == 0;
}

enum { CONV_SRC, CONV_BIAS, CONV_DST, CONV_ARGS }; /* operands, in order */

static dnnl_status_t conv_desc_for(dnnl_primitive_desc_t *pd, const step *t, const dnnl_memory_desc_t *weights)
{
    const dnn_conv_spec *c = t->conv;
    const dnnl_memory_desc_t *md = t->p->md;
    const dnnl_dims_t padding[2] = {{c->pad_top, c->pad_side}, {c->pad_bottom, c->pad_side}};
    return conv_desc(pd, &md[CONV_SRC], weights, &md[CONV_BIAS], &md[CONV_DST], c->stride, padding, t->attr,
                     t->d->engine);
}

/* Chooses t->layout for the weights if that costs no speed: if oneDNN has the same implementation for it as for a free
 * layout. */
static dnnl_status_t conv_choose(step *t)
{
    const dnn_conv_spec *c = t->conv;
    const dnnl_dim_t dims[4] = {c->out, c->in, c->kernel_h, c->kernel_w};
    dnnl_status_t s = desc_any(&t->b, 4, dims, c->bf16 ? dnnl_bf16 : dnnl_f32);
    if (s == dnnl_success) s = conv_desc_for(&t->pd, t, &t->b);
    if (s != dnnl_success || !t->layout) return s;
    s = conv_desc_for(&t->other_pd, t, &t->layout->md);
    if (s == dnnl_success && same_implementation(t->other_pd, t->pd)) {
        dnnl_primitive_desc_t free_layout = t->pd;
        t->pd = t->other_pd;
        t->other_pd = free_layout;
    }
    return s == dnnl_out_of_memory ? s : dnnl_success;
}

static int conv_build(void *arg)
{
    step *t = arg;
    const dnn_conv_spec *c = t->conv;
    dnn_primitive *p = t->p;
    const dnnl_data_type_t type = c->bf16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dim_t bias_dims[1] = {c->out}, bias_strides[1] = {1};
    const int out_h = (c->height + c->pad_top + c->pad_bottom - c->kernel_h) / c->stride + 1;
    const int out_w = (c->width + 2 * c->pad_side - c->kernel_w) / c->stride + 1;
    add_operand(p, DNNL_ARG_SRC), add_operand(p, DNNL_ARG_BIAS), add_operand(p, DNNL_ARG_DST);
    dnnl_status_t s = image_desc(&p->md[CONV_SRC], c->height, c->width, c->in, type);
    if (s == dnnl_success) s = image_desc(&p->md[CONV_DST], out_h, out_w, c->out, c->y_f32 ? dnnl_f32 : type);
    if (s == dnnl_success) s = desc_strided(&p->md[CONV_BIAS], 1, bias_dims, dnnl_f32, bias_strides);
    if (s == dnnl_success) s = make_attributes(t, KERN_LINEAR, c->accumulate);
    if (s == dnnl_success) s = conv_choose(t);
    if (s == dnnl_success) s = create(t->d, p, t->pd);
    return s == dnnl_success ? desc_query(t->pd, dnnl_query_weights_md, &p->weights) : s;
}

mar_status dnn_conv_create(dnn *d, const dnn_conv_spec *spec, const dnn_packed *layout, dnn_primitive **out,
                           mar_err *err)
{
    *out = NULL;
    dnn_primitive *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, MAR_ENOMEM, "out of memory");
    const dnnl_status_t s = take(conv_build, &(step){.d = d, .conv = spec, .layout = layout, .p = c});
    if (s != dnnl_success) {
        dnn_primitive_free(c);
        return err_set(err, s == dnnl_out_of_memory ? MAR_ENOMEM : MAR_EBACKEND,
                       "oneDNN %s convolution %dx%d, %d to %d channels, on %dx%d pixels: %s",
                       spec->bf16 ? "bf16" : "f32", spec->kernel_h, spec->kernel_w, spec->in, spec->out, spec->height,
                       spec->width, status_text(s));
    }
    *out = c;
    return MAR_OK;
}

mar_status dnn_conv_run(const dnn_primitive *c, dnn_operands *o, const void *x, const dnn_packed *w, const float *bias,
                        void *y, void *scratch)
{
    const void *data[CONV_ARGS + 1] = {x, bias, y, scratch};
    return run(c, o, data, w);
}

int dnn_conv_takes(const dnn_primitive *c, const dnn_packed *w)
{
    return desc_equal(&c->weights, &w->md);
}

static int conv_pack(void *arg)
{
    step *t = arg;
    const dnnl_dim_t n = t->conv->out, i = t->conv->in, r = t->conv->kernel_h, c = t->conv->kernel_w;
    const dnnl_dim_t dims[4] = {n, i, r, c}, strides[4] = {i * r * c, r * c, c, 1};
    dnnl_status_t s = desc_copy(&t->packed->md, &t->p->weights);
    if (s == dnnl_success)
        s = t->layout ? desc_copy(&t->plain, &t->layout->md) : desc_strided(&t->plain, 4, dims, dnnl_f32, strides);
    return s == dnnl_success ? packed_fill(t) : s;
}

mar_status dnn_conv_pack(dnn *d, const dnn_primitive *c, const dnn_conv_spec *spec, const float *plain,
                         const dnn_packed *packed, dnn_packed **out, mar_err *err)
{
    *out = NULL;
    dnn_packed *w = calloc(1, sizeof *w);
    if (!w) return err_set(err, MAR_ENOMEM, "out of memory");
    step t = {.d = d,
              .p = (dnn_primitive *)(uintptr_t)c, /* read only */
              .conv = spec,
              .layout = packed,
              .packed = w,
              .from = packed ? packed->data : plain};
    const dnnl_status_t s = take(conv_pack, &t);
    if (s != dnnl_success) {
        mar_status status = err_set(err, s == dnnl_out_of_memory ? MAR_ENOMEM : MAR_EBACKEND,
                                    "oneDNN cannot pack a filter of %zu bytes: %s", w->bytes, status_text(s));
        dnn_packed_free(w);
        return status;
    }
    *out = w;
    return MAR_OK;
}
