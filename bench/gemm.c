/* Our linear layers and convolutions beside oneDNN 2.x's, in turns (bench/gemm.py):
 *
 *     MAR_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 gemm_bench f32|bf16|int8 THREADS TURNS <shapes
 *
 * A shape is a line:
 *     linear FLAGS ACTIVATION IN OUT ROWS                                       # numbers of kern_linear_spec
 *     conv FLAGS IN OUT KERNEL_H KERNEL_W STRIDE PAD_H PAD_W SIDE IMAGES       # numbers of kern_conv_spec
 * The first line of output has the machine, each other line a shape: the seconds of both, turn by turn. Before they are
 * timed, both results are compared.
 *
 * oneDNN gets packed weights, NHWC images, and activation, ReLU and sum as post-ops. In bf16 without instructions for
 * it, oneDNN's f32 is timed: its bf16 is slower. In int8 its x is quantised already; our time includes quantising. An
 * upsampling convolution is one 2x2 convolution with four times the channels there, without the shuffle of its result.
 * Weights of linear layers with fewer than 64 rows come from memory. With one thread processor time counts. */
#include "bench/peak.h"
#include "kernels/cpu/cpu.h"

#include <dnnl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FEW = 64, COLD_BYTES = 64 << 20, COPIES_MAX = 256, GROUPS = 3, TURNS_MAX = 99, READ_BYTES = 256 << 20 };
#define GROUP_SECONDS 0.002
#define SCALE         (1.0f / 65536) /* of the weights, integers times it: results are of the size a GELU meets */

static clockid_t clock_id = CLOCK_MONOTONIC;

static void stop(const char *why)
{
    fprintf(stderr, "gemm_bench: %s\n", why);
    exit(1);
}

static void check(mar_status s, const mar_err *err)
{
    if (s != MAR_OK) stop(err->text);
}

static void dnn(dnnl_status_t s)
{
    if (s != dnnl_success) stop(s == dnnl_unimplemented ? "oneDNN has no such product" : "oneDNN failed");
}

static double now(void)
{
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *room(size_t bytes)
{
    static const cpu_device plain; /* memory of the C library */
    void *p;
    mar_err err;
    if (cpu_pages(&plain, bytes, "an operand", &p, &err) != MAR_OK) stop(err.text);
    return memset(p, 0, bytes);
}

/* Returns the bytes a second that all threads read from memory. */
static double bandwidth(kern_queue *k)
{
    float *x = room(READ_BYTES);
    double least = INFINITY;
    for (int i = 0; i < 8; i++) {
        const double begin = now();
        k->device->measure->read(k, x, READ_BYTES / sizeof *x);
        least = fmin(least, now() - begin);
    }
    free(x);
    return READ_BYTES / least;
}

/* --- shapes ------------------------------------------------------------------------------------------------------ */

typedef struct {
    kern_conv_spec c;                /* a linear layer is a 1x1 convolution of one row of pixels */
    int linear, activation, rows;    /* rows: of a linear layer */
    int side, images, out_h, out_w;  /* in pixels: of x and y */
    size_t weights, inputs, results; /* numbers: of the weights, x and y */
    float *x, *w, *bias;             /* x: integers 0..127 */
} shape;

static int has(const shape *s, int flag)
{
    return (s->c.flags & flag) != 0;
}

static float *random_numbers(size_t n, size_t row, int least, int most, float scale)
{
    uint32_t state = 1;
    float *x = room(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = scale * (float)(i % row ? least + (int)(state >> 16) % (most - least + 1) : most);
    }
    return x;
}

/* Reads a line and makes numbers. Each row of x and of the weights has a 127, so that quantising changes nothing. */
static void shape_begin(shape *s, const char *line)
{
    *s = (shape){.c = {.kernel_h = 1, .kernel_w = 1, .stride = 1}, .images = 1};
    kern_conv_spec *c = &s->c;
    s->linear = sscanf(line, "linear %d %d %d %d %d", &c->flags, &s->activation, &c->in, &c->out, &s->rows) == 5;
    if (!s->linear && sscanf(line, "conv %d %d %d %d %d %d %d %d %d %d", &c->flags, &c->in, &c->out, &c->kernel_h,
                             &c->kernel_w, &c->stride, &c->pad_h, &c->pad_w, &s->side, &s->images) != 10)
        stop("a line is not a shape");
    s->out_h = s->linear ? 1 : (s->side + 2 * c->pad_h - c->kernel_h) / c->stride + 1;
    s->out_w = s->linear ? s->rows : (s->side + 2 * c->pad_w - c->kernel_w) / c->stride + 1;
    const size_t row = (size_t)(c->in * c->kernel_h * c->kernel_w);
    if (has(s, KERN_UPSAMPLE)) s->out_h *= 2, s->out_w *= 2;
    s->weights = (size_t)c->out * row;
    s->inputs = (size_t)c->in * (size_t)(s->linear ? s->rows : s->images * s->side * s->side);
    s->results = (size_t)c->out * (size_t)(s->images * s->out_h * s->out_w);
    s->x = random_numbers(s->inputs, (size_t)c->in, 0, 127, 1);
    s->w = random_numbers(s->weights, row, -127, 127, SCALE);
    s->bias = random_numbers((size_t)c->out, (size_t)c->out, -64, 64, 1.0f / 64);
    c->weight = s->w, c->bias = s->bias;
}

/* --- ours -------------------------------------------------------------------------------------------------------- */

typedef struct {
    kern_queue *k;
    gemm_type type;
    const shape *s;
    int copies, next;
    kern_linear *linear[COPIES_MAX];
    kern_conv *conv;
    void *x, *y;
} ours;

static void ours_begin(ours *o, const shape *s)
{
    kern_queue *k = o->k;
    const size_t bytes = s->weights * (o->type == GEMM_F32 ? 4 : o->type == GEMM_BF16 ? 2 : 1);
    kern_linear_spec spec = {.out = s->c.out, .in = s->c.in, .weight = s->w, .bias = s->bias};
    mar_err err = {0};
    *o = (ours){.k = k, .type = o->type, .s = s};
    o->copies = s->linear && s->rows < FEW ? cpu_lesser((int)(COLD_BYTES / bytes) + 1, COPIES_MAX) : 1;
    o->x = room(s->inputs * k->device->act_size), o->y = room(s->results * sizeof(float));
    k->core->to_act(k, s->x, s->inputs, o->x);
    spec.activation = (kern_activation)s->activation, spec.flags = s->c.flags | KERN_LOW;
    for (int i = 0; s->linear && i < o->copies; i++, spec.previous = o->linear[i - 1])
        check(k->core->linear_create(k, &spec, &o->linear[i], &err), &err);
    if (!s->linear) check(k->conv->create(k, &s->c, &o->conv, &err), &err);
    check(s->linear ? k->core->linear_plan(k, o->linear[0], s->rows, &err)
                    : k->conv->plan(k, o->conv, s->images, s->side, s->side, &err),
          &err);
}

static void ours_run(void *arg)
{
    ours *o = arg;
    const shape *s = o->s;
    if (s->linear)
        o->k->core->linear(o->k, o->linear[o->next++ % o->copies], o->x, s->rows, o->y);
    else
        o->k->conv->conv(o->k, o->conv, o->x, s->images, s->side, s->side, o->y);
}

static void ours_end(ours *o)
{
    kern_queue *k = o->k;
    k->conv->free(k->device, o->conv);
    for (int i = o->copies; i-- > 0;) k->core->linear_free(k->device, o->linear[i]);
    free(o->x), free(o->y);
}

/* --- oneDNN's ---------------------------------------------------------------------------------------------------- */

typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    const shape *s;
    int out; /* channels: four times as many when upsampling */
    dnnl_data_type_t x_type, w_type, y_type;
    dnnl_primitive_t primitive;
    dnnl_memory_t x, y, bias, w[COPIES_MAX];
    int copies, next;
    const char *name;
    dnnl_primitive_desc_t pd;
} theirs;

static dnnl_memory_desc_t desc(int rank, const dnnl_dim_t *dims, dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t d;
    dnn(dnnl_memory_desc_init_by_tag(&d, rank, dims, type, tag));
    return d;
}

static void *data_of(dnnl_memory_t m)
{
    void *data;
    dnn(dnnl_memory_get_data_handle(m, &data));
    return data;
}

/* Describes an array of that memory, or of new memory if data is NULL. */
static dnnl_memory_t memory(const theirs *t, const dnnl_memory_desc_t *d, void *data)
{
    dnnl_memory_t m;
    dnn(dnnl_memory_create(&m, d, t->engine, data ? data : room(dnnl_memory_desc_get_size(d))));
    return m;
}

static void drop(dnnl_memory_t m)
{
    free(data_of(m));
    dnnl_memory_destroy(m);
}

/* Writes the numbers of `from`, times scale, in the layout and type of `to`. */
static void convert(const theirs *t, const dnnl_memory_desc_t *from_desc, const void *from, float scale,
                    const dnnl_memory_desc_t *to_desc, void *to)
{
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t reorder;
    dnnl_memory_t source = memory(t, from_desc, (void *)(uintptr_t)from), target = memory(t, to_desc, to);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}};
    dnn(dnnl_primitive_attr_create(&attr));
    if (scale != 1) dnn(dnnl_primitive_attr_set_output_scales(attr, 1, 0, &scale));
    dnn(dnnl_reorder_primitive_desc_create(&pd, from_desc, t->engine, to_desc, t->engine, attr));
    dnn(dnnl_primitive_create(&reorder, pd));
    dnn(dnnl_primitive_execute(reorder, t->stream, 2, args));
    dnn(dnnl_stream_wait(t->stream));
    dnnl_memory_destroy(source), dnnl_memory_destroy(target), dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(pd), dnnl_primitive_attr_destroy(attr);
}

static void convert_array(const theirs *t, const void *from, dnnl_data_type_t type, size_t n, dnnl_data_type_t to_type,
                          void *to)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)n};
    const dnnl_memory_desc_t from_desc = desc(1, dims, type, dnnl_a), to_desc = desc(1, dims, to_type, dnnl_a);
    convert(t, &from_desc, from, 1, &to_desc, to);
}

static dnnl_primitive_attr_t attributes(const theirs *t)
{
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    dnn(dnnl_primitive_attr_create(&attr));
    dnn(dnnl_post_ops_create(&ops));
    if (t->s->activation == KERN_GELU) dnn(dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_gelu_erf, 0, 0));
    if (t->s->activation == KERN_SILU) dnn(dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_swish, 1, 0));
    if (has(t->s, KERN_RELU)) dnn(dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_relu, 0, 0));
    if (has(t->s, KERN_OUT_ADD)) dnn(dnnl_post_ops_append_sum(ops, 1));
    dnn(dnnl_primitive_attr_set_post_ops(attr, ops));
    dnnl_post_ops_destroy(ops);
    if (t->w_type == dnnl_s8) {
        float *scales = random_numbers((size_t)t->out, 1, 0, 1, SCALE); /* all are SCALE */
        dnn(dnnl_primitive_attr_set_output_scales(attr, t->out, 2, scales));
        free(scales);
    }
    return attr;
}

/* Describes the primitive, with weights in any layout, and its arrays; makes these but the weights. */
static void describe(theirs *t)
{
    const shape *s = t->s;
    const kern_conv_spec *c = &s->c;
    const int up = has(s, KERN_UPSAMPLE), kernel_h = up ? 2 : c->kernel_h, kernel_w = up ? 2 : c->kernel_w;
    const int out_h = up ? s->side + 1 : s->out_h, out_w = up ? s->side + 1 : s->out_w;
    dnnl_primitive_attr_t attr = attributes(t);
    dnnl_memory_desc_t x, w, y, bias;
    if (s->linear) {
        dnnl_matmul_desc_t d;
        x = desc(2, (dnnl_dims_t){s->rows, c->in}, t->x_type, dnnl_ab);
        w = desc(2, (dnnl_dims_t){c->in, t->out}, t->w_type, dnnl_format_tag_any);
        y = desc(2, (dnnl_dims_t){s->rows, t->out}, t->y_type, dnnl_ab);
        bias = desc(2, (dnnl_dims_t){1, t->out}, dnnl_f32, dnnl_ab);
        dnn(dnnl_matmul_desc_init(&d, &x, &w, &bias, &y));
        dnn(dnnl_primitive_desc_create(&t->pd, &d, attr, t->engine, NULL));
    } else {
        const dnnl_dims_t strides = {c->stride, c->stride}, pads = {c->pad_h, c->pad_w};
        dnnl_convolution_desc_t d;
        x = desc(4, (dnnl_dims_t){s->images, c->in, s->side, s->side}, t->x_type, dnnl_nhwc);
        w = desc(4, (dnnl_dims_t){t->out, c->in, kernel_h, kernel_w}, t->w_type, dnnl_format_tag_any);
        y = desc(4, (dnnl_dims_t){s->images, t->out, out_h, out_w}, t->y_type, dnnl_nhwc);
        bias = desc(1, (dnnl_dims_t){t->out}, dnnl_f32, dnnl_a);
        dnn(dnnl_convolution_forward_desc_init(&d, dnnl_forward_inference, dnnl_convolution_direct, &x, &w, &bias, &y,
                                               strides, pads, pads));
        dnn(dnnl_primitive_desc_create(&t->pd, &d, attr, t->engine, NULL));
    }
    dnnl_primitive_attr_destroy(attr);
    t->x = memory(t, &x, NULL), t->y = memory(t, &y, NULL), t->bias = memory(t, &bias, NULL);
}

/* Returns upsampling weights [4][out][in][2][2] of the parities. Tap y of parity p sums the 3x3 taps that fall on its
 * input row: {0}, {1,2} for even rows, {0,1}, {2} for odd. */
static float *merged(const shape *s)
{
    static const int tap_of[2][3] = {{0, 1, 1}, {0, 0, 1}};
    const size_t pairs = (size_t)s->c.out * (size_t)s->c.in;
    float *w = room(16 * pairs * sizeof *w);
    for (size_t i = 0; i < 4 * pairs; i++)
        for (int tap = 0; tap < 9; tap++)
            w[4 * i + (size_t)(2 * tap_of[i / pairs / 2][tap / 3] + tap_of[i / pairs % 2][tap % 3])] +=
                s->w[9 * (i % pairs) + (size_t)tap];
    return w;
}

/* Packs the weights, once; the other copies are copied. */
static void pack(theirs *t, const dnnl_memory_desc_t *packed)
{
    const shape *s = t->s;
    const dnnl_memory_desc_t plain = desc(packed->ndims, packed->dims, dnnl_f32, s->linear ? dnnl_ba : dnnl_oihw);
    float *w = has(s, KERN_UPSAMPLE) ? merged(s) : s->w;
    for (int i = 0; i < t->copies; i++) t->w[i] = memory(t, packed, NULL);
    convert(t, &plain, w, t->w_type == dnnl_s8 ? 1 / SCALE : 1, packed, data_of(t->w[0]));
    for (int i = 1; i < t->copies; i++) memcpy(data_of(t->w[i]), data_of(t->w[0]), dnnl_memory_desc_get_size(packed));
    if (w != s->w) free(w);
}

static void theirs_begin(theirs *t, const ours *o)
{
    const shape *s = o->s;
    const int bf16 = o->k->device->act_size == 2 && ((cpu_device *)o->k->device)->gemm[GEMM_BF16]->native;
    const dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    t->s = s;
    t->out = has(s, KERN_UPSAMPLE) ? 4 * s->c.out : s->c.out;
    t->copies = o->copies;
    t->x_type = o->type == GEMM_INT8 ? dnnl_u8 : type;
    t->w_type = o->type == GEMM_INT8 ? dnnl_s8 : type;
    t->y_type = has(s, KERN_OUT_F32) ? dnnl_f32 : type;
    describe(t);
    dnn(dnnl_primitive_desc_query(t->pd, dnnl_query_impl_info_str, 0, &t->name));
    dnn(dnnl_primitive_create(&t->primitive, t->pd));
    pack(t, dnnl_primitive_desc_query_md(t->pd, dnnl_query_weights_md, 0));
    convert_array(t, s->x, dnnl_f32, s->inputs, t->x_type, data_of(t->x));
    for (int i = 0; i < t->out; i++) /* the scale multiplies the bias, too */
        ((float *)data_of(t->bias))[i] = s->bias[i % s->c.out] * (t->w_type == dnnl_s8 ? 1 / SCALE : 1);
}

static void theirs_run(void *arg)
{
    theirs *t = arg;
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, t->x},
                                    {DNNL_ARG_WEIGHTS, t->w[t->next++ % t->copies]},
                                    {DNNL_ARG_BIAS, t->bias},
                                    {DNNL_ARG_DST, t->y}};
    dnn(dnnl_primitive_execute(t->primitive, t->stream, 4, args));
    dnn(dnnl_stream_wait(t->stream));
}

static void theirs_end(theirs *t)
{
    for (int i = 0; i < t->copies; i++) drop(t->w[i]);
    drop(t->x), drop(t->y), drop(t->bias);
    dnnl_primitive_destroy(t->primitive), dnnl_primitive_desc_destroy(t->pd);
    t->next = 0;
}

/* --- comparison -------------------------------------------------------------------------------------------------- */

/* Returns the place of our number i in oneDNN's result. Row i of the 2x2 convolution has rows 2i-1 and 2i of y. */
static size_t place(const shape *s, size_t i)
{
    if (!has(s, KERN_UPSAMPLE)) return i;
    const size_t n = (size_t)s->c.out, column = i / n % (size_t)s->out_w, row = i / n / (size_t)s->out_w;
    const size_t pixel = (row + 1) / 2 * (size_t)(s->side + 1) + (column + 1) / 2;
    return (4 * pixel + 2 * (row % 2) + column % 2) * n + i % n;
}

/* Compares both results: the differences are at most a hundredth of the largest number, in f32 1e-5 of it. */
static void compare(ours *o, theirs *t)
{
    const shape *s = o->s;
    const size_t results =
        has(s, KERN_UPSAMPLE) ? 4 * (size_t)s->c.out * (size_t)(s->side + 1) * (size_t)(s->side + 1) : s->results;
    const dnnl_data_type_t type = o->k->device->act_size == 4 || has(s, KERN_OUT_F32) ? dnnl_f32 : dnnl_bf16;
    float *mine = room(s->results * sizeof *mine), *other = room(results * sizeof *other), largest = 0;
    size_t different = 0;
    ours_run(o), theirs_run(t);
    convert_array(t, o->y, type, s->results, dnnl_f32, mine);
    convert_array(t, data_of(t->y), t->y_type, results, dnnl_f32, other);
    for (size_t i = 0; i < s->results; i++) largest = fmaxf(largest, fabsf(mine[i]));
    const float most = (o->type == GEMM_F32 ? 1e-5f : 1e-2f) * largest;
    for (size_t i = 0; i < s->results; i++) different += !(fabsf(mine[i] - other[place(s, i)]) <= most);
    free(mine), free(other);
    if (different || !(largest > 0)) stop("the results differ");
}

/* Returns the seconds of a call: the least of some groups of calls, after one that wakes the threads. */
static double turn(void (*run)(void *), void *arg, int calls)
{
    double least = INFINITY;
    run(arg);
    for (int g = 0; g < GROUPS; g++) {
        const double begin = now();
        for (int i = 0; i < calls; i++) run(arg);
        least = fmin(least, (now() - begin) / calls);
    }
    return least;
}

static void measure(ours *o, theirs *t, const char *line, int turns)
{
    double mine[TURNS_MAX], other[TURNS_MAX];
    shape s;
    shape_begin(&s, line);
    ours_begin(o, &s);
    theirs_begin(t, o);
    compare(o, t);
    const int calls = (int)(GROUP_SECONDS / turn(ours_run, o, 1)) + 1;
    const int other_calls = (int)(GROUP_SECONDS / turn(theirs_run, t, 1)) + 1;
    for (int i = 0; i < turns; i++) {
        mine[i] = turn(ours_run, o, calls);
        other[i] = turn(theirs_run, t, other_calls);
        usleep(1000); /* idle threads fall asleep */
    }
    printf("{\"by\": \"%s\", \"turns\": [", t->name);
    for (int i = 0; i < turns; i++) printf("%s[%.4g, %.4g]", i ? ", " : "", mine[i], other[i]);
    puts("]}");
    theirs_end(t), ours_end(o);
    free(s.x), free(s.w), free(s.bias);
}

int main(int argc, char **argv)
{
    const int threads = argc == 4 ? atoi(argv[2]) : 0, turns = threads ? atoi(argv[3]) : 0;
    static ours o;
    static theirs t;
    kern_device *d;
    mar_err err = {0};
    char line[256];
    if (threads < 1 || turns < 1 || turns > TURNS_MAX) stop("expected f32|bf16|int8 THREADS TURNS <shapes");
    o.type = strcmp(argv[1], "f32") == 0 ? GEMM_F32 : strcmp(argv[1], "bf16") == 0 ? GEMM_BF16 : GEMM_INT8;
    if (threads == 1) clock_id = CLOCK_THREAD_CPUTIME_ID;
    check(kern_cpu_open((mar_dtype)(MAR_DTYPE_F32 + (int)o.type), threads, NULL, &d, &err), &err);
    check(d->core->queue_create(d, &o.k, &err), &err);
    dnn(dnnl_engine_create(&t.engine, dnnl_cpu, 0));
    dnn(dnnl_stream_create(&t.stream, t.engine, dnnl_stream_default_flags));
    o.k->core->bind(o.k);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("{\"backend\": \"%s\", \"onednn\": \"%d.%d.%d\", \"peak\": %.4g, \"bandwidth\": %.4g}\n", d->description,
           dnnl_version()->major, dnnl_version()->minor, dnnl_version()->patch,
           peak_of(((cpu_device *)d)->gemm[o.type]->unit, o.type, now) * ((cpu_device *)d)->threads, bandwidth(o.k));
    while (fgets(line, sizeof line, stdin)) measure(&o, &t, line, turns);
    o.k->core->unbind(o.k);
    d->core->queue_free(o.k), d->core->close(d);
    dnnl_stream_destroy(t.stream), dnnl_engine_destroy(t.engine);
    return ferror(stdout);
}
