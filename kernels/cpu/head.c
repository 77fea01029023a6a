/* The diffusion head: input projection, residual blocks, final layer. A block of MAR's form (SimpleMLPAdaLN) adds
 * gate * fc2(silu(fc1(LN(x)*(1+scale)+shift))) to x. A SWIGLU block has silu(a)*b between its products, with a and b
 * the halves of fc1's result. The modulation (shift, scale, gate) depends only on (condition, t) and is precomputed. In
 * MLP blocks the LN's weight and bias are folded into it (kernels/adaln.h).
 *
 * The input projection and the final linear layer are f32: at the first diffusion index an error of eps is multiplied
 * by 1/sqrt(abar), about 2e4. For the same reason an int8 head also keeps its blocks and modulation in the device's
 * operands. Each modulation row names the arithmetic it is for.
 *
 * A head in F16 computes in f32 with weights, operands and modulation rounded to FP16. Products of two FP16 numbers are
 * exact in f32, so all that differs from FP16 operands on a GPU is the order of the sums. */
#include "kernels/adaln.h"
#include "kernels/cpu/cpu.h"
#include "kernels/f16.h"

#include <stdlib.h>

/* Arithmetic of the blocks and their modulation. */
typedef enum { FINE, INT8, ARITHMETICS } arithmetic;

struct kern_head {
    int width, depth, channels;
    kern_head_form form;
    const char *prefix;     /* kern_head_spec */
    int hidden, ada_layers; /* kern_head_spec */
    mar_dtype dtype;        /* kern_head_spec */
    int f32;                /* dtype is F32 or F16: act below is float */
    int bf16;               /* act is bf16, else float */
    size_t act_size;        /* bytes of an element of act */
    kern_linear *in;        /* [W][C] f32 -> f32 */
    int int8;               /* 1: INT8 is also available */
    struct {
        kern_linear *fc1;                 /* [H][W] act -> act, with silu; SWIGLU: [2H][W], silu(a) * b */
        kern_linear *fc2;                 /* [W][H] act -> f32 */
    } * block[ARITHMETICS];               /* [depth] */
    float *norms;                         /* SWIGLU: [depth][2][W] weight and bias of the layer norms */
    kern_linear *ada_blocks[ARITHMETICS]; /* [ada_layers*3W][W] act -> act, rows of a modulation row */
    kern_linear *ada_final;               /* [2W][W] act -> f32, tail of a modulation row */
    kern_linear *out;                     /* [2C][W] f32 -> f32 */
    cpu_layers layers[ARITHMETICS];       /* of an evaluation */
};

void cpu_head_spec(const kern_head *h, kern_head_spec *spec)
{
    *spec = (kern_head_spec){.width = h->width,
                             .depth = h->depth,
                             .channels = h->channels,
                             .form = h->form,
                             .prefix = h->prefix,
                             .hidden = h->hidden,
                             .ada_layers = h->ada_layers,
                             .dtype = h->dtype,
                             .int8 = h->int8};
}

/* Returns p + n elements of this head's act. */
static void *head_at(const kern_head *h, const void *p, size_t n)
{
    return (char *)(uintptr_t)p + n * h->act_size;
}

/* A modulation row: act [ada_layers][3][W] (shift, scale, gate), then float [2][W] (shift, scale). A head with int8
 * appends an int: the row's arithmetic. */
enum { ROW_END = 64 };

static size_t mod_final_offset(const kern_head *h)
{
    return 3u * (size_t)h->ada_layers * (size_t)h->width * h->act_size;
}

size_t cpu_head_mod_bytes(const kern_head *h)
{
    return mod_final_offset(h) + 2u * (size_t)h->width * sizeof(float) + (h->int8 ? ROW_END : 0);
}

/* Returns the element of a modulation row at which block b's shift, scale and gate begin. */
static size_t mod_block(const kern_head *h, int b)
{
    const int layer = b / (h->depth / h->ada_layers);
    return 3u * (size_t)layer * (size_t)h->width;
}

static arithmetic arithmetic_of(const kern_head *h, const char *mod_row)
{
    int a = FINE;
    if (h->int8) memcpy(&a, mod_row + cpu_head_mod_bytes(h) - ROW_END, sizeof a);
    return (arithmetic)a;
}

const char *cpu_head_describe(const kern_head *h)
{
    if (h->int8) return h->bf16 ? "matrix products in int8 and bf16" : "matrix products in int8 and f32";
    if (h->dtype == MAR_DTYPE_F16) return "matrix products in f32 of numbers rounded to f16";
    return h->bf16 ? "matrix products in bf16" : "matrix products in f32";
}

/* Returns working memory: `modulate` needs act [rows][W]. `eval` needs float x and y and act u, all [rows][W], act v
 * [rows][H], and the states [rows][C]. Mixed arithmetics in one call also need lists and partial results. */
size_t cpu_head_scratch_bytes(const kern_head *h, int rows)
{
    const size_t n = (size_t)rows, channels = (size_t)h->channels, w = (size_t)h->width, v = (size_t)h->hidden;
    const size_t some = h->int8 ? n * (3 * sizeof(int) + 2 * channels * sizeof(float)) : 0;
    const size_t of_row = (2 * w + channels) * sizeof(float) + (w + v + 1) / 2 * 2 * h->act_size;
    return n * of_row + 64 * (2 * sizeof(float) + 2 * h->act_size) + some;
}

/* Creates a layer, by `swiglu` one of fc1's with SwiGLU. In F16 its weights [out][in] are rounded. */
static mar_status create_layer(kern_queue *k, const kern_head *h, kern_linear_spec spec, int swiglu, kern_linear **l,
                               mar_err *err)
{
    const size_t n = (size_t)spec.out * (size_t)spec.in;
    const int rounds = h->dtype == MAR_DTYPE_F16 && !(spec.flags & KERN_IN_F32);
    float *copy = rounds ? malloc(n * sizeof *copy) : NULL;
    if (rounds && !copy) return err_set(err, MAR_ENOMEM, "out of memory: %zu weights", n);
    if (copy) kern_f16_round(memcpy(copy, spec.weight, n * sizeof *copy), n), spec.weight = copy;
    if (h->f32) spec.flags |= KERN_IN_F32 | KERN_OUT_F32;
    const mar_status status = swiglu ? cpu_linear_create_swiglu(k, &spec, l, err) : cpu_linear_create(k, &spec, l, err);
    free(copy);
    return status;
}

static mar_status head_create_linear(kern_queue *k, const kern_head *h, int out, int in, const float *weight,
                                     const float *bias, kern_activation activation, int flags, int y_stride,
                                     kern_linear **l, mar_err *err)
{
    const kern_linear_spec spec = {.out = out,
                                   .in = in,
                                   .weight = weight,
                                   .bias = bias,
                                   .activation = activation,
                                   .flags = flags,
                                   .y_stride = y_stride};
    return create_layer(k, h, spec, 0, l, err);
}

/* Returns 1 if the head has this arithmetic, and the flag of its products. */
static int head_has(const kern_head *h, arithmetic a, int *flag)
{
    *flag = a == INT8 ? KERN_LOW : 0;
    return a == FINE || (a == INT8 && h->int8);
}

static mar_status create_modulation(kern_queue *k, const kern_head_spec *spec, kern_head *h, mar_err *err)
{
    int flag;
    float *weight;
    const float *bias;
    const int rows = 3 * h->width * h->ada_layers, row = (int)(cpu_head_mod_bytes(h) / h->act_size);
    mar_status status = kern_head_adaln(spec, &weight, &bias, err);
    if (status != MAR_OK) return status;
    if (h->dtype == MAR_DTYPE_F16) kern_f16_round(weight, (size_t)rows * (size_t)(h->width + 1)); /* and the bias */
    for (int a = FINE; status == MAR_OK && head_has(h, (arithmetic)a, &flag); a++)
        status = head_create_linear(k, h, rows, h->width, weight, bias, KERN_LINEAR, flag, row, &h->ada_blocks[a], err);
    free(weight);
    if (status == MAR_OK)
        status = head_create_linear(k, h, 2 * h->width, h->width, spec->ada_weight, spec->ada_bias, KERN_LINEAR,
                                    KERN_OUT_F32, (int)(cpu_head_mod_bytes(h) / sizeof(float)), &h->ada_final, err);
    return status;
}

static mar_status create_fc1(kern_queue *k, const kern_head *h, const kern_head_block *from, int flag, kern_linear **l,
                             mar_err *err)
{
    if (h->form == KERN_HEAD_MLP)
        return head_create_linear(k, h, h->hidden, h->width, from->fc1_weight, from->fc1_bias, KERN_SILU, flag, 0, l,
                                  err);
    const kern_linear_spec spec = {
        .out = 2 * h->hidden, .in = h->width, .weight = from->fc1_weight, .bias = from->fc1_bias, .flags = flag};
    return create_layer(k, h, spec, 1, l, err);
}

static mar_status create_block(kern_queue *k, const kern_head_block *from, kern_head *h, int b, mar_err *err)
{
    int flag;
    mar_status status = MAR_OK;
    for (int a = FINE; status == MAR_OK && head_has(h, (arithmetic)a, &flag); a++) {
        status = create_fc1(k, h, from, flag, &h->block[a][b].fc1, err);
        if (status == MAR_OK)
            status = head_create_linear(k, h, h->width, h->hidden, from->fc2_weight, from->fc2_bias, KERN_LINEAR,
                                        flag | KERN_OUT_F32, 0, &h->block[a][b].fc2, err);
    }
    return status;
}

/* Copies the layer norms that are not folded into the modulation. */
static mar_status create_norms(const cpu_device *d, const kern_head_spec *spec, kern_head *h, mar_err *err)
{
    const size_t w = (size_t)h->width;
    if (h->form == KERN_HEAD_MLP) return MAR_OK;
    const mar_status status = cpu_zeros(d, 2 * (size_t)h->depth * w, &h->norms, err);
    for (int b = 0; status == MAR_OK && b < h->depth; b++) {
        memcpy(h->norms + 2 * (size_t)b * w, spec->blocks[b].ln_weight, w * sizeof *h->norms);
        memcpy(h->norms + (2 * (size_t)b + 1) * w, spec->blocks[b].ln_bias, w * sizeof *h->norms);
    }
    return status;
}

static void head_join_layers(kern_head *h, arithmetic a)
{
    cpu_linear_join(h->in, &h->layers[a]);
    for (int b = 0; b < h->depth; b++) {
        cpu_linear_join(h->block[a][b].fc1, &h->layers[a]);
        cpu_linear_join(h->block[a][b].fc2, &h->layers[a]);
    }
    cpu_linear_join(h->out, &h->layers[a]);
}

mar_status cpu_head_create(kern_queue *k, const kern_head_spec *spec, kern_head **out, mar_err *err)
{
    *out = NULL;
    kern_head *h = calloc(1, sizeof *h);
    if (!h) return err_set(err, MAR_ENOMEM, "out of memory");
    h->width = spec->width;
    h->depth = spec->depth;
    h->channels = spec->channels;
    h->form = spec->form;
    h->prefix = spec->prefix;
    h->hidden = spec->hidden;
    h->ada_layers = spec->ada_layers;
    h->dtype = spec->dtype;
    h->f32 = spec->dtype != MAR_DTYPE_AUTO;
    h->bf16 = !h->f32 && k->device->act_size != sizeof(float);
    h->act_size = h->bf16 ? k->device->act_size : sizeof(float);
    h->int8 = spec->int8 && !h->f32 && k->device->int8;
    for (int a = 0; a < ARITHMETICS; a++) h->block[a] = calloc((size_t)h->depth + 1, sizeof *h->block[a]);
    mar_status status = h->block[FINE] && h->block[INT8] ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK)
        status = head_create_linear(k, h, h->width, h->channels, spec->in_weight, spec->in_bias, KERN_LINEAR,
                                    KERN_IN_F32 | KERN_OUT_F32, 0, &h->in, err);
    for (int b = 0; status == MAR_OK && b < h->depth; b++) status = create_block(k, &spec->blocks[b], h, b, err);
    if (status == MAR_OK) status = create_norms(cpu_of(k)->d, spec, h, err);
    if (status == MAR_OK) status = create_modulation(k, spec, h, err);
    if (status == MAR_OK)
        status = head_create_linear(k, h, 2 * h->channels, h->width, spec->out_weight, spec->out_bias, KERN_LINEAR,
                                    KERN_IN_F32 | KERN_OUT_F32, 0, &h->out, err);
    if (status != MAR_OK) {
        cpu_head_free(k->device, h);
        return status;
    }
    int flag;
    for (int a = FINE; head_has(h, (arithmetic)a, &flag); a++) head_join_layers(h, (arithmetic)a);
    *out = h;
    return MAR_OK;
}

void cpu_head_free(kern_device *d, kern_head *h)
{
    if (!h) return;
    for (int a = 0; a < ARITHMETICS; a++) {
        for (int b = 0; h->block[a] && b < h->depth; b++) {
            cpu_linear_free(d, h->block[a][b].fc1);
            cpu_linear_free(d, h->block[a][b].fc2);
        }
        free(h->block[a]);
        cpu_linear_free(d, h->ada_blocks[a]);
    }
    cpu_pages_free((const cpu_device *)d, h->norms);
    cpu_linear_free(d, h->in);
    cpu_linear_free(d, h->ada_final);
    cpu_linear_free(d, h->out);
    free(h);
}

mar_status cpu_head_plan(kern_queue *k, const kern_head *h, int rows, mar_err *err)
{
    mar_status status = cpu_linear_plan(k, h->in, rows, err);
    if (status == MAR_OK) status = cpu_linear_plan(k, h->out, rows, err);
    if (status == MAR_OK) status = cpu_linear_plan(k, h->ada_final, rows, err);
    int flag;
    for (int a = FINE; status == MAR_OK && head_has(h, (arithmetic)a, &flag); a++) {
        status = cpu_linear_plan(k, h->ada_blocks[a], rows, err);
        for (int b = 0; status == MAR_OK && b < h->depth; b++) {
            status = cpu_linear_plan(k, h->block[a][b].fc1, rows, err);
            if (status == MAR_OK) status = cpu_linear_plan(k, h->block[a][b].fc2, rows, err);
        }
    }
    return status;
}

/* Rounds n numbers of act to the head's F16. */
static void round_act(const kern_head *h, void *x, size_t n)
{
    if (h->dtype == MAR_DTYPE_F16) kern_f16_round(x, n);
}

typedef struct {
    const cpu_device *d;
    const kern_head *h;
    const float *temb;
    const int *temb_index;
    const float *cond;
    int rows;
    void *u;
    char *mod;
} condition_loop;

static void condition_body(void *arg, int first, int last, int thread)
{
    const condition_loop *l = arg;
    const size_t w = (size_t)l->h->width;
    (void)thread;
    for (int i = first; i < last; i++)
        l->d->rows->silu_add(l->temb + (size_t)l->temb_index[i / l->rows] * w, l->cond + (size_t)(i % l->rows) * w, w,
                             head_at(l->h, l->u, (size_t)i * w), l->h->bf16);
    round_act(l->h, head_at(l->h, l->u, (size_t)first * w), (size_t)(last - first) * w);
}

static void round_mod_body(void *arg, int first, int last, int thread)
{
    const condition_loop *l = arg;
    (void)thread;
    for (int r = first; r < last; r++)
        round_act(l->h, l->mod + (size_t)r * cpu_head_mod_bytes(l->h), mod_final_offset(l->h) / l->h->act_size);
}

static arithmetic step_arithmetic(const kern_head *h, const uint8_t *fine, int step)
{
    return h->int8 && !(fine && fine[step]) ? INT8 : FINE;
}

static void mark(const kern_head *h, char *mod_row, arithmetic a)
{
    const int number = a;
    memcpy(mod_row + cpu_head_mod_bytes(h) - ROW_END, &number, sizeof number);
}

void cpu_head_modulate(kern_queue *k, const kern_head *h, const float *temb, const int *temb_index, const uint8_t *fine,
                       int steps, const float *cond, int rows, void *mod, void *scratch)
{
    cpu_queue *q = cpu_of(k);
    const int total = steps * rows;
    if (total <= 0 || !kern_live(k)) return;
    int flag;
    for (int a = FINE; head_has(h, (arithmetic)a, &flag); a++)
        if (!cpu_linear_ready(q, h->ada_blocks[a], total)) return;
    if (!cpu_linear_ready(q, h->ada_final, total)) return;
    condition_loop l = {q->d, h, temb, temb_index, cond, rows, scratch, mod};
    cpu_for(q, total, 16.0 * total * h->width, condition_body, &l);
    for (int s = 0, end; s < steps; s = end) { /* up to the next step of the other arithmetic */
        const arithmetic a = step_arithmetic(h, fine, s);
        for (end = s + 1; end < steps && step_arithmetic(h, fine, end) == a;) end++;
        char *first = (char *)mod + (size_t)(s * rows) * cpu_head_mod_bytes(h);
        cpu_linear_run(q, h->ada_blocks[a], head_at(h, scratch, (size_t)(s * rows) * (size_t)h->width),
                       (end - s) * rows, first);
        for (int r = 0; h->int8 && r < (end - s) * rows; r++) mark(h, first + (size_t)r * cpu_head_mod_bytes(h), a);
    }
    cpu_linear_run(q, h->ada_final, scratch, total, (char *)mod + mod_final_offset(h));
    if (h->dtype == MAR_DTYPE_F16) cpu_for(q, total, 16.0 * total * 3 * h->ada_layers * h->width, round_mod_body, &l);
    kern_watch_modulation(k, h->form, h->prefix, mod, h->f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO, total, h->ada_layers,
                          h->width, cpu_head_mod_bytes(h));
}

/* An evaluation of the head. */
typedef struct {
    cpu_queue *q;
    const kern_head *h;
    const char *mod;
    const int *mod_index;
    int rows;
    float *state; /* [rows][C] */
    float *x, *y;
    void *u, *v;
    float *out;  /* [rows][2C] */
    float *kept; /* [depth][kept_rows][W] cached outputs; NULL: no reuse */
    int kept_rows;
    kern_head_reuse reuse;
    arithmetic arithmetic;
    int parts; /* rows of their own that threads would evaluate */
    int block; /* current block */
} evaluation;

static const char *cpu_mod_row(const evaluation *e, int r)
{
    return e->mod + (size_t)(e->mod_index ? e->mod_index[r] : r) * cpu_head_mod_bytes(e->h);
}

/* Runs a loop over the rows of an evaluation. */
static void for_rows(evaluation *e, parallel_body *body)
{
    cpu_for(e->q, e->rows, 16.0 * e->rows * e->h->width, body, e);
}

/* u[r] = LN(x[r]) * (1 + scale) + shift, for the block's products. The modulation of an MLP block includes the layer
 * norm's weight and bias. */
static void modulate_body(void *arg, int first, int last, int thread)
{
    const evaluation *e = arg;
    const kern_head *h = e->h;
    const size_t w = (size_t)h->width;
    const float *norm = h->norms ? h->norms + 2 * (size_t)e->block * w : NULL;
    (void)thread;
    for (int r = first; r < last; r++) {
        const void *shift = head_at(h, cpu_mod_row(e, r), mod_block(h, e->block)), *scale = head_at(h, shift, w);
        const float *x = e->x + (size_t)r * w;
        void *u = head_at(h, e->u, (size_t)r * w);
        if (norm)
            e->q->d->rows->modulate_norm(x, h->width, norm, norm + w, 1e-6f, shift, scale, u, h->bf16);
        else
            e->q->d->rows->modulate(x, h->width, 1e-6f, shift, scale, h->bf16, u, h->bf16);
        round_act(h, u, w);
    }
}

/* Rounds fc1's results. */
static void round_v_body(void *arg, int first, int last, int thread)
{
    const evaluation *e = arg;
    const size_t n = (size_t)e->h->hidden;
    (void)thread;
    round_act(e->h, head_at(e->h, e->v, (size_t)first * n), (size_t)(last - first) * n);
}

/* y[r] = LN(x[r]) * (1 + scale) + shift, for the final layer. */
static void modulate_final_body(void *arg, int first, int last, int thread)
{
    const evaluation *e = arg;
    const size_t w = (size_t)e->h->width;
    (void)thread;
    for (int r = first; r < last; r++) {
        const float *m = (const float *)(cpu_mod_row(e, r) + mod_final_offset(e->h));
        e->q->d->rows->modulate(e->x + (size_t)r * w, e->h->width, 1e-6f, m, m + w, 0, e->y + (size_t)r * w, 0);
    }
}

/* x[r] += gate of the block * y[r] */
static void gate_row(const evaluation *e, float *x, const float *y, int r)
{
    const kern_head *h = e->h;
    const size_t w = (size_t)h->width, row = (size_t)r * w;
    e->q->d->rows->gate_add(x + row, head_at(h, cpu_mod_row(e, r), mod_block(h, e->block) + 2 * w), y + row, w,
                            h->bf16);
}

static float *kept_of(const evaluation *e)
{
    return e->kept + (size_t)e->block * (size_t)e->kept_rows * (size_t)e->h->width;
}

static void reuse_body(void *arg, int first, int last, int thread)
{
    const evaluation *e = arg;
    const size_t w = (size_t)e->h->width;
    float *kept = kept_of(e);
    (void)thread;
    for (int r = first; r < last; r++) {
        float *row = kept + (size_t)r * w;
        if (!kern_head_caches_gated(e->block)) {
            gate_row(e, e->x, kept, r);
            continue;
        }
        if (kern_head_computes(e->reuse, e->block)) {
            memset(row, 0, w * sizeof *row);
            gate_row(e, kept, e->y, r);
        }
        e->q->d->rows->add(e->x + (size_t)r * w, e->x + (size_t)r * w, row, w);
    }
}

/* Returns fc1 of the block that follows, which may be the next step's first. */
static const kern_linear *fc1_after(const evaluation *e)
{
    return e->h->block[e->arithmetic][e->block + 1 < e->h->depth ? e->block + 1 : 0].fc1;
}

static gemm_gate gate_of(const evaluation *e)
{
    const kern_head *h = e->h;
    const size_t offset = (mod_block(h, e->block) + 2 * (size_t)h->width) * h->act_size;
    return (gemm_gate){e->mod + offset, e->mod_index, cpu_head_mod_bytes(h), !h->bf16};
}

/* Runs both products of the block; the second's epilogue adds the gated result to x. */
static void run_columns(evaluation *e)
{
    const kern_head *h = e->h;
    const kern_linear *fc1 = h->block[e->arithmetic][e->block].fc1, *fc2 = h->block[e->arithmetic][e->block].fc2;
    const kern_linear *after = fc1_after(e);
    const gemm_gate gate = gate_of(e);
    cpu_linear_columns(e->q, fc1, e->u, e->rows, e->v, NULL, fc2);
    if (h->dtype == MAR_DTYPE_F16) for_rows(e, round_v_body);
    cpu_linear_columns(e->q, fc2, e->v, e->rows, e->x, &gate, after);
}

/* Writes the block's MLP at u to y. */
static void run_products(evaluation *e, float *y)
{
    const kern_head *h = e->h;
    cpu_linear_run(e->q, h->block[e->arithmetic][e->block].fc1, e->u, e->rows, e->v);
    if (h->dtype == MAR_DTYPE_F16) for_rows(e, round_v_body);
    cpu_linear_run(e->q, h->block[e->arithmetic][e->block].fc2, e->v, e->rows, y);
}

static void run_block(evaluation *e)
{
    const int computed = kern_head_computes(e->reuse, e->block);
    if (computed) for_rows(e, modulate_body);
    if (e->kept) {
        if (computed) run_products(e, kern_head_caches_gated(e->block) ? e->y : kept_of(e));
        for_rows(e, reuse_body);
    } else {
        run_columns(e);
    }
}

static int is_ready(cpu_queue *q, const kern_head *h, int rows)
{
    if (!cpu_linear_ready(q, h->in, rows) || !cpu_linear_ready(q, h->out, rows)) return 0;
    int flag;
    for (int a = FINE; head_has(h, (arithmetic)a, &flag); a++)
        for (int b = 0; b < h->depth; b++)
            if (!cpu_linear_ready(q, h->block[a][b].fc1, rows) || !cpu_linear_ready(q, h->block[a][b].fc2, rows))
                return 0;
    return 1;
}

/* Evaluates parts first .. last-1 of the rows, each in one thread. */
static void parts_body(void *arg, int first, int last, int thread)
{
    const evaluation *all = arg;
    const kern_head *h = all->h;
    const cpu_layers *layers = &h->layers[all->arithmetic];
    for (int i = first; i < last; i++) {
        evaluation e = *all;
        const int row = parallel_part(e.rows, e.parts, i), end = parallel_part(e.rows, e.parts, i + 1);
        cpu_linear_rows(e.q, h->in, layers, e.state, row, end, e.x, NULL, h->block[e.arithmetic][0].fc1);
        for (; e.block < h->depth; e.block++) {
            const kern_linear *fc1 = h->block[e.arithmetic][e.block].fc1, *fc2 = h->block[e.arithmetic][e.block].fc2;
            const gemm_gate gate = gate_of(&e);
            modulate_body(&e, row, end, thread);
            cpu_linear_rows(e.q, fc1, layers, e.u, row, end, e.v, NULL, fc2);
            if (h->dtype == MAR_DTYPE_F16) round_v_body(&e, row, end, thread);
            cpu_linear_rows(e.q, fc2, layers, e.v, row, end, e.x, &gate, fc1_after(&e));
        }
        modulate_final_body(&e, row, end, thread);
        cpu_linear_rows(e.q, h->out, layers, e.y, row, end, e.out, NULL, NULL);
    }
}

/* Returns 1 if threads evaluate rows of their own, and wait for each other at the end alone: there are rows enough to
 * pay for reading all weights in each, and these are in a cache that all share. */
static int evaluates_parts(const evaluation *e)
{
    enum { ROWS = 16, SHARED = 28 << 20 }; /* of a thread; bytes: most of a common L3 */
    const cpu_layers *layers = &e->h->layers[e->arithmetic];
    return e->parts > 1 && e->rows >= ROWS * e->parts && layers->weight_bytes <= SHARED && !layers->in_tiles &&
           !e->kept && !e->q->base.watch.on;
}

/* Evaluates rows of one arithmetic. */
static void eval_as(arithmetic a, kern_queue *k, const kern_head *h, const float *x, const int *x_index,
                    const void *mod, const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows,
                    float *out, void *scratch)
{
    cpu_queue *q = cpu_of(k);
    const size_t n = (size_t)rows * (size_t)h->width, channels = (size_t)h->channels;
    if (rows <= 0 || !kern_live(k) || !is_ready(q, h, rows)) return;
    float *xw = scratch, *y = xw + n, *state = y + n;
    char *u = (char *)(state + (size_t)rows * channels);
    char *v = u + n * h->act_size;
    for (int r = 0; r < rows; r++)
        memcpy(state + (size_t)r * channels, x + (size_t)(x_index ? x_index[r] : r) * channels, channels * sizeof *x);
    evaluation e = {
        q, h, mod, mod_index, rows, state, xw, y, u, v, out, kept, kept_rows, reuse, a, parallel_width(q->client), 0};
    if (evaluates_parts(&e)) {
        cpu_for(q, e.parts, 2.0 * rows * h->depth * h->width * h->hidden, parts_body, &e);
        return;
    }
    cpu_linear_run(q, h->in, state, rows, xw);
    kern_watch(k, xw, MAR_DTYPE_F32, rows, h->width, h->width, KERN_HEAD_INPUT, h->prefix);
    for (; e.block < h->depth; e.block++) {
        run_block(&e);
        kern_watch(k, xw, MAR_DTYPE_F32, rows, h->width, h->width, KERN_HEAD_BLOCK, h->prefix, e.block);
    }
    for_rows(&e, modulate_final_body);
    cpu_linear_run(q, h->out, y, rows, out);
    kern_watch(k, out, MAR_DTYPE_F32, rows, 2 * h->channels, 2 * h->channels, KERN_HEAD_FINAL, h->prefix);
}

/* Evaluates rows of both arithmetics, one after the other: tokens at different steps need it. */
static void eval_mixed(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                       const int *mod_index, int rows, float *out, void *scratch)
{
    const size_t width = 2 * (size_t)h->channels, n = (size_t)rows;
    float *some_out = (float *)((char *)scratch + cpu_head_scratch_bytes(h, rows)) - n * width;
    int *row = (int *)some_out - 3 * n, *some_x = row + n, *some_mod = some_x + n;
    for (int a = FINE; a < ARITHMETICS; a++) {
        int some = 0;
        for (int r = 0; r < rows; r++) {
            const int at = mod_index ? mod_index[r] : r;
            if (arithmetic_of(h, (const char *)mod + (size_t)at * cpu_head_mod_bytes(h)) != (arithmetic)a) continue;
            row[some] = r;
            some_x[some] = x_index ? x_index[r] : r;
            some_mod[some++] = at;
        }
        eval_as((arithmetic)a, k, h, x, some_x, mod, some_mod, some, KERN_HEAD_FRESH, NULL, 0, some_out, scratch);
        for (int r = 0; r < some; r++)
            memcpy(out + (size_t)row[r] * width, some_out + (size_t)r * width, width * sizeof *out);
    }
}

/* `kept` implies rows of one step, and so one arithmetic. */
void cpu_head_eval_reusing(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                           const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows,
                           float *out, void *scratch)
{
    int fine = h->int8 ? 0 : rows;
    for (int r = 0; h->int8 && r < rows; r++) {
        const size_t at = (size_t)(mod_index ? mod_index[r] : r);
        fine += arithmetic_of(h, (const char *)mod + at * cpu_head_mod_bytes(h)) == FINE;
    }
    if (fine > 0 && fine < rows && !kept)
        eval_mixed(k, h, x, x_index, mod, mod_index, rows, out, scratch);
    else
        eval_as(fine > 0 ? FINE : INT8, k, h, x, x_index, mod, mod_index, rows, reuse, kept, kept_rows, out, scratch);
}

void cpu_head_eval(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                   const int *mod_index, int rows, float *out, void *scratch)
{
    cpu_head_eval_reusing(k, h, x, x_index, mod, mod_index, rows, KERN_HEAD_FRESH, NULL, 0, out, scratch);
}
