#include "diffusion/head.h"

#include "kernels/head_work.h"
#include "weights/rows.h"
#include "weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FREQUENCIES = 256 }; /* TimestepEmbedder's frequency_embedding_size */

/* Tensor names of a family. A block's and the final layer's norms and products come first in the official files. */
typedef struct {
    const char *prefix;    /* of all names */
    const char *z;         /* the layer that makes z */
    const char *block[3];  /* norm, first and second product of a block, behind "res_blocks.N." */
    const char *ada[2];    /* adaLN layer: the name before and after its number */
    const char *final_ada; /* adaLN layer of the final layer */
    int scale_first;       /* 1: adaLN rows are scale, shift, gate; 0: shift, scale, gate */
    int predicts_variance; /* 1: the final layer also has rows for the variance fraction */
    float time;            /* what the head reads of 1 of diff_schedule.time */
} head_names;

static const head_names families[] = {
    [DIFF_HEAD_MAR] = {"diffloss.net.",
                       "diffusion_pos_embed_learned",
                       {"in_ln", "mlp.0", "mlp.2"},
                       {"res_blocks.", ".adaLN_modulation.1"},
                       "final_layer.adaLN_modulation.1",
                       0,
                       1,
                       1},
    [DIFF_HEAD_SPHEREAR] = {"head.net.",
                            "pos_for_diff",
                            {"norm", "w1", "w2"},
                            {"ada_ln_blocks.", ""},
                            "final_layer.ada_ln_modulation",
                            1,
                            0,
                            1},
    [DIFF_HEAD_NEXTSTEP] = {"image_head.net.",
                            "image_out_projector",
                            {"in_ln", "mlp.0", "mlp.2"},
                            {"res_blocks.", ".adaLN_modulation.1"},
                            "final_layer.adaLN_modulation.1",
                            0,
                            0,
                            0.001f},
};

const char *diff_head_prefix(const diff_head *h)
{
    return families[h->shape.family].prefix;
}

const char *diff_head_z_name(const diff_head *h)
{
    return families[h->shape.family].z;
}

/* --- shapes ------------------------------------------------------------------------------------------------------- */

/* Writes the name of a head's tensor, with a number between its parts unless that is negative. Returns it. */
static const char *head_tensor_name(const head_names *names, const char *before, int number, const char *after,
                                    char text[128])
{
    char digits[16] = "";
    if (number >= 0) snprintf(digits, sizeof digits, "%d", number);
    snprintf(text, 128, "%s%s%s%s", names->prefix, before, digits, after);
    return text;
}

/* Returns how many blocks or adaLN layers the file has, by the part of their names in front of the number. */
static int head_count(const wt_file *f, const head_names *names, const char *before)
{
    char text[128];
    return wt_count_parts(f, head_tensor_name(names, before, -1, "", text), wt_count(f));
}

mar_status diff_head_derive(const wt_file *f, diff_head_family family, int z_dim, diff_head_shape *out, mar_err *err)
{
    const head_names *names = &families[family];
    const int apart = family == DIFF_HEAD_SPHEREAR; /* adaLN layers are for several blocks */
    const wt_tensor *in, *w2;
    char text[128], last[64];
    *out = (diff_head_shape){.family = family, .z_dim = z_dim, .sphere = apart};
    snprintf(last, sizeof last, ".%s.weight", names->block[2]);
    mar_status status = wt_find_shape(f, head_tensor_name(names, "input_proj.weight", -1, "", text), 2, &in, err);
    if (status == MAR_OK) status = wt_find_shape(f, head_tensor_name(names, "res_blocks.", 0, last, text), 2, &w2, err);
    if (status != MAR_OK) return status;
    out->width = (int)in->shape[0];
    out->channels = (int)in->shape[1];
    out->hidden = (int)w2->shape[1];
    out->depth = head_count(f, names, "res_blocks.");
    out->ada_layers = apart ? head_count(f, names, "ada_ln_blocks.") : out->depth;
    if (!apart && out->hidden != out->width)
        return err_set(err, MAR_EMODEL, "%s: tensor %s takes %d numbers, expected the head's width %d", wt_path(f),
                       text, out->hidden, out->width);
    if (out->ada_layers == 0)
        return err_set(err, MAR_EMODEL, "%s: tensor head.net.ada_ln_blocks.0.weight is missing", wt_path(f));
    if (out->depth % out->ada_layers != 0)
        return err_set(err, MAR_EMODEL,
                       "%s: a head of %d adaLN layers (head.net.ada_ln_blocks) and %d blocks: expected "
                       "a number of layers that divides that of the blocks",
                       wt_path(f), out->ada_layers, out->depth);
    return MAR_OK;
}

/* A visit of a head's tensors. */
typedef struct {
    const head_names *names;
    void (*visit)(void *, const char *, int, const int64_t *);
    void *user;
} head_visitor;

/* Visits a weight [out][in], or [out] if `in` is 0, and its bias [out]. */
static void head_visit_pair(const head_visitor *v, const char *before, int number, const char *after, int64_t out,
                            int64_t in)
{
    static const char *const ends[] = {".weight", ".bias"};
    const int64_t shape[2] = {out, in};
    char end[64], full[128];
    for (int bias = 0; bias < 2; bias++) {
        snprintf(end, sizeof end, "%s%s", after, ends[bias]);
        v->visit(v->user, head_tensor_name(v->names, before, number, end, full), in && !bias ? 2 : 1, shape);
    }
}

void diff_head_tensors(const diff_head_shape *s, void (*visit)(void *, const char *, int, const int64_t *), void *user)
{
    const int64_t w = s->width, first = s->family == DIFF_HEAD_SPHEREAR ? 2 * (int64_t)s->hidden : s->hidden;
    const head_names *names = &families[s->family];
    const head_visitor v = {names, visit, user};
    head_visit_pair(&v, "time_embed.mlp.0", -1, "", w, FREQUENCIES);
    head_visit_pair(&v, "time_embed.mlp.2", -1, "", w, w);
    head_visit_pair(&v, "cond_embed", -1, "", w, s->z_dim);
    head_visit_pair(&v, "input_proj", -1, "", w, s->channels);
    for (int b = 0; b < s->depth; b++) {
        const int64_t shapes[3][2] = {{w, 0}, {first, w}, {w, s->hidden}};
        for (int i = 0; i < 3; i++) {
            char name[64];
            snprintf(name, sizeof name, ".%s", names->block[i]);
            head_visit_pair(&v, "res_blocks.", b, name, shapes[i][0], shapes[i][1]);
        }
    }
    for (int i = 0; i < s->ada_layers; i++) head_visit_pair(&v, names->ada[0], i, names->ada[1], 3 * w, w);
    head_visit_pair(&v, names->final_ada, -1, "", 2 * w, w);
    head_visit_pair(&v, "final_layer.linear", -1, "", s->channels, w);
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* Source and shapes of the loading functions. */
typedef struct {
    const wt_file *f;
    const head_names *names;
    mar_err *err;
} loader;

/* Loads a tensor of the head as f32; cols 0 for a vector. */
static mar_status head_load_floats(const loader *l, const char *name, int rows, int cols, float **out)
{
    char full[128];
    const int64_t shape[2] = {rows, cols};
    snprintf(full, sizeof full, "%s%s", l->names->prefix, name);
    return wt_load_f32(l->f, full, cols ? 2 : 1, shape, out, l->err);
}

/* Loads name.weight and name.bias. The caller owns the arrays even on failure. */
static mar_status head_load_pair(const loader *l, const char *name, int rows, int cols, const float **weight,
                                 const float **bias)
{
    char full[96];
    float *w = NULL, *b = NULL;
    snprintf(full, sizeof full, "%s.weight", name);
    mar_status status = head_load_floats(l, full, rows, cols, &w);
    snprintf(full, sizeof full, "%s.bias", name);
    if (status == MAR_OK) status = head_load_floats(l, full, rows, 0, &b);
    *weight = w, *bias = b;
    return status;
}

/* Exchanges the first two of the parts of n numbers that an array consists of. */
static void head_exchange(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float first = x[i];
        x[i] = x[n + i];
        x[n + i] = first;
    }
}

/* Loads an adaLN layer of `parts` parts of w rows: shift and scale first. */
static mar_status head_load_ada(const loader *l, const char *name, int parts, int w, const float **weight,
                                const float **bias)
{
    const mar_status status = head_load_pair(l, name, parts * w, w, weight, bias);
    if (status != MAR_OK || !l->names->scale_first) return status;
    head_exchange((float *)(uintptr_t)*weight, (size_t)w * (size_t)w);
    head_exchange((float *)(uintptr_t)*bias, (size_t)w);
    return MAR_OK;
}

/* Loads the final linear layer as [2C][w]. A head without a learned variance gets rows of zeros for it. */
static mar_status head_load_out(const loader *l, int channels, int w, const float **weight, const float **bias)
{
    const size_t rows = (size_t)channels, width = (size_t)w;
    if (l->names->predicts_variance) return head_load_pair(l, "final_layer.linear", 2 * channels, w, weight, bias);
    mar_status status = head_load_pair(l, "final_layer.linear", channels, w, weight, bias);
    if (status != MAR_OK) return status;
    float *all = realloc((void *)(uintptr_t)*weight, 2 * rows * width * sizeof **weight);
    if (all) {
        memset(all + rows * width, 0, rows * width * sizeof *all);
        *weight = all;
    }
    float *biases = all ? realloc((void *)(uintptr_t)*bias, 2 * rows * sizeof **bias) : NULL;
    if (!biases) return err_set(l->err, MAR_ENOMEM, "out of memory");
    memset(biases + rows, 0, rows * sizeof *biases);
    *bias = biases;
    return MAR_OK;
}

static mar_status head_load_linear(kern_queue *k, const loader *l, const char *name, int rows, int cols,
                                   kern_activation activation, kern_linear **out)
{
    wt_rows w = {.file = l->f, .in = cols, .count = 1, .piece = {{.rows = rows}}, .bias = 1};
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s%s.weight", l->names->prefix, name);
    const kern_linear_spec spec = {.out = rows, .activation = activation, .flags = KERN_IN_F32 | KERN_OUT_F32};
    return wt_create_linear(k, &w, spec, out, l->err);
}

/* Loads block `index`, with its adaLN layer if a group of blocks begins with it. */
static mar_status head_load_block(const loader *l, const kern_head_spec *s, int index, kern_head_block *b)
{
    const int w = s->width, group = s->depth / s->ada_layers, swiglu = s->form == KERN_HEAD_SWIGLU;
    const struct {
        int rows, cols;
        const float **weight, **bias;
    } parts[3] = {{w, 0, &b->ln_weight, &b->ln_bias},
                  {swiglu ? 2 * s->hidden : s->hidden, w, &b->fc1_weight, &b->fc1_bias},
                  {w, s->hidden, &b->fc2_weight, &b->fc2_bias}};
    char name[64];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "res_blocks.%d.%s", index, l->names->block[i]);
        const mar_status status = head_load_pair(l, name, parts[i].rows, parts[i].cols, parts[i].weight, parts[i].bias);
        if (status != MAR_OK) return status;
    }
    if (index % group != 0) return MAR_OK;
    snprintf(name, sizeof name, "%s%d%s", l->names->ada[0], index / group, l->names->ada[1]);
    return head_load_ada(l, name, 3, w, &b->ada_weight, &b->ada_bias);
}

static void head_free_host(kern_head_spec *spec, kern_head_block *blocks)
{
    const float *arrays[] = {spec->in_weight, spec->in_bias,    spec->ada_weight,
                             spec->ada_bias,  spec->out_weight, spec->out_bias};
    for (int i = 0; i < 6; i++) free((void *)(uintptr_t)arrays[i]);
    for (int b = 0; blocks && b < spec->depth; b++) {
        const float **p = &blocks[b].ln_weight; /* eight consecutive pointers */
        for (size_t i = 0; i < sizeof blocks[b] / sizeof *p; i++) free((void *)(uintptr_t)p[i]);
    }
    free(blocks);
}

/* Returns the head's shape and arithmetic, without weights. */
static kern_head_spec head_spec_of(const diff_head *h)
{
    const diff_head_shape *s = &h->shape;
    return (kern_head_spec){.width = s->width,
                            .depth = s->depth,
                            .channels = s->channels,
                            .form = s->family == DIFF_HEAD_SPHEREAR ? KERN_HEAD_SWIGLU : KERN_HEAD_MLP,
                            .prefix = families[s->family].prefix,
                            .hidden = s->hidden,
                            .ada_layers = s->ada_layers,
                            .dtype = h->dtype,
                            .int8 = h->int8_below > 0};
}

static mar_status head_load_net(kern_queue *k, diff_head *h, const loader *l)
{
    const int w = h->shape.width, c = h->shape.channels;
    kern_head_spec spec = head_spec_of(h);
    kern_head_block *blocks = calloc((size_t)spec.depth + 1, sizeof *blocks);
    spec.blocks = blocks;
    mar_status status = blocks ? MAR_OK : err_set(l->err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) status = head_load_pair(l, "input_proj", w, c, &spec.in_weight, &spec.in_bias);
    for (int b = 0; status == MAR_OK && b < spec.depth; b++) status = head_load_block(l, &spec, b, &blocks[b]);
    if (status == MAR_OK) status = head_load_ada(l, l->names->final_ada, 2, w, &spec.ada_weight, &spec.ada_bias);
    if (status == MAR_OK) status = head_load_out(l, c, w, &spec.out_weight, &spec.out_bias);
    if (status == MAR_OK) status = k->head->create(k, &spec, &h->net, l->err);
    head_free_host(&spec, blocks);
    return status;
}

/* --- FP16's range ------------------------------------------------------------------------------------------------- */

const char diff_head_f32_warning[] =
    "the diffusion head computes in f32: f16 ends at 65504, and a weight or an activation is beyond it";

const char *diff_head_range_text(const diff_head *h)
{
    return h->dtype == MAR_DTYPE_F16 ? "; the head is in f16, which ends at 65504: --head_dtype f32 does not" : "";
}

enum { PROBES = 4 };

/* Evaluates the head at a normal condition and normal states, one for each of some timesteps. Writes whether the
 * outputs are finite: an infinite weight or activation makes others of them. */
static mar_status head_probe(kern_queue *k, const diff_head *h, int *finite, mar_err *err)
{
    static const float time[PROBES] = {0, 333, 666, 999};
    static const int step[PROBES] = {0, 1, 2, 3};
    const int outputs = 2 * h->shape.channels;
    const size_t states = (size_t)(PROBES * h->shape.channels), width = (size_t)h->shape.width;
    const size_t n = 3 * states + width + (size_t)h->shape.z_dim;
    float *host = malloc((n + 4) * sizeof *host), *x = NULL, *temb = NULL;
    void *mod = NULL, *scratch = NULL;
    for (uint32_t i = 0; host && i < n; i += 4) {
        uint32_t words[4];
        kern_random_words(0, KERN_NOISE_INIT, 0, 0, 0, i / 4, words);
        kern_normal4(words, host + i);
    }
    mar_status status = host ? kern_new_array(k, host, n, &x, err) : err_set(err, MAR_ENOMEM, "out of memory");
    free(host);
    if (status == MAR_OK) status = diff_head_time_embeddings(k, h, time, PROBES, &temb, err);
    if (status == MAR_OK) status = k->core->alloc(k->device, PROBES * k->head->mod_bytes(h->net), &mod, err);
    if (status == MAR_OK) status = k->core->alloc(k->device, k->head->scratch_bytes(h->net, PROBES), &scratch, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, h->cond, 1, err);
    if (status == MAR_OK) status = k->head->plan(k, h->net, PROBES, err);
    if (status == MAR_OK) {
        float *out = x + states, *cond = out + 2 * states, *z = cond + width;
        k->core->linear(k, h->cond, z, 1, cond);
        k->head->modulate(k, h->net, temb, step, NULL, PROBES, cond, 1, mod, scratch);
        k->head->eval(k, h->net, x, NULL, mod, NULL, PROBES, out, scratch);
        *finite = k->core->first_nonfinite(k, out, MAR_DTYPE_F32, PROBES, outputs, outputs) < 0;
        status = kern_check(k, err);
    }
    k->core->finish(k);
    k->core->free(k->device, x), k->core->free(k->device, temb);
    k->core->free(k->device, mod), k->core->free(k->device, scratch);
    return status;
}

/* Loads the network again, in F32, if F16 does not hold it. */
static mar_status head_check_range(kern_queue *k, diff_head *h, const loader *l)
{
    int finite = 1;
    mar_status status = h->dtype == MAR_DTYPE_F16 ? head_probe(k, h, &finite, l->err) : MAR_OK;
    if (status != MAR_OK || finite) return status;
    k->head->free(k->device, h->net);
    h->net = NULL, h->dtype = MAR_DTYPE_F32;
    return head_load_net(k, h, l);
}

mar_status diff_head_load(kern_queue *k, const wt_file *f, const diff_head_shape *shape, mar_dtype dtype,
                          int int8_below, diff_head *out, mar_err *err)
{
    const loader l = {f, &families[shape->family], err};
    *out = (diff_head){.device = k->device, .shape = *shape, .dtype = dtype, .int8_below = int8_below};
    if (!shape->hidden) out->shape.hidden = shape->width;
    if (!shape->ada_layers) out->shape.ada_layers = shape->depth;
    const int width = shape->width;
    mar_status status = head_load_linear(k, &l, "cond_embed", width, shape->z_dim, KERN_LINEAR, &out->cond);
    if (status == MAR_OK)
        status = head_load_linear(k, &l, "time_embed.mlp.0", width, FREQUENCIES, KERN_SILU, &out->time1);
    if (status == MAR_OK) status = head_load_linear(k, &l, "time_embed.mlp.2", width, width, KERN_LINEAR, &out->time2);
    if (status == MAR_OK) status = head_load_net(k, out, &l);
    if (status == MAR_OK) status = head_check_range(k, out, &l);
    if (status != MAR_OK) diff_head_free(out);
    return status;
}

void diff_head_free(diff_head *h)
{
    kern_device *d = h->device;
    if (!d) return;
    d->head->free(d, h->net);
    d->core->linear_free(d, h->cond);
    d->core->linear_free(d, h->time1);
    d->core->linear_free(d, h->time2);
    *h = (diff_head){0};
}

int diff_head_is_bf16(const diff_head *h)
{
    return h->dtype == MAR_DTYPE_AUTO && h->device->act_size != sizeof(float);
}

/* Computes cos and sin of time * 10000^(-i/128), in f32 as the official codes do. */
static void head_time_features(float time, float *features)
{
    const int half = FREQUENCIES / 2;
    for (int i = 0; i < half; i++) {
        const float frequency = expf((float)-log(10000.0) * (float)i / (float)half);
        features[i] = cosf(time * frequency);
        features[half + i] = sinf(time * frequency);
    }
}

mar_status diff_head_time_embeddings(kern_queue *k, const diff_head *h, const float *time, int n, float **temb,
                                     mar_err *err)
{
    kern_device *d = k->device;
    const size_t width = (size_t)h->shape.width, rows = (size_t)n;
    void *features = NULL, *hidden = NULL, *out = NULL;
    *temb = NULL;
    float *host = malloc(rows * FREQUENCIES * sizeof *host);
    mar_status status = host ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) status = d->core->alloc(d, rows * FREQUENCIES * sizeof(float), &features, err);
    if (status == MAR_OK) status = d->core->alloc(d, rows * width * sizeof(float), &hidden, err);
    if (status == MAR_OK) status = d->core->alloc(d, rows * width * sizeof(float), &out, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, h->time1, n, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, h->time2, n, err);
    if (status == MAR_OK) {
        const float scale = families[h->shape.family].time;
        for (int i = 0; i < n; i++) head_time_features(time[i] * scale, host + (size_t)i * FREQUENCIES);
        k->core->upload(k, features, host, rows * FREQUENCIES * sizeof(float));
        k->core->linear(k, h->time1, features, n, hidden);
        k->core->linear(k, h->time2, hidden, n, out);
        k->core->finish(k); /* waits, because their inputs are freed below */
        status = kern_check(k, err);
    }
    free(host);
    d->core->free(d, features);
    d->core->free(d, hidden);
    if (status == MAR_OK)
        *temb = out;
    else
        d->core->free(d, out);
    return status;
}

double diff_head_macs(const diff_head *h, double modulations, double evaluations)
{
    const kern_head_spec spec = head_spec_of(h);
    return modulations * kern_modulation_macs(&spec) + evaluations * kern_head_macs(&spec);
}

/* Returns the bytes of a weight of the blocks at most steps: an operand, or int8 with its share of a scale. */
static double head_weight_size(const diff_head *h)
{
    const int int8 = h->device->int8 && h->int8_below > 0;
    return kern_head_weight_size(h->shape.width, int8, (double)kern_act_size(h->device, h->dtype));
}

double diff_head_sequential_bytes(const diff_head *h)
{
    const kern_head_spec spec = head_spec_of(h);
    return kern_head_weight_bytes(&spec, head_weight_size(h));
}
