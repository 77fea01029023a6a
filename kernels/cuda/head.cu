/* The diffusion head for many rows: products by cuBLASLt, with two kernels per block between them (head_rows.cu). In a
 * chain's step the input projection runs once per token, because both conditions share the token's state. */
#include "kernels/cuda/head.h"

#include <stdlib.h>
#include <string.h>

/* --- the layers ---------------------------------------------------------------------------------------------- */

size_t cuda_head_mod_bytes(const kern_head *h)
{
    return cuda_mod_final_offset(h) + 2u * (size_t)h->width * sizeof(float);
}

/* A head that is being loaded. After a failure nothing more is made. */
typedef struct {
    kern_queue *k;
    kern_head *h;
    mar_status status;
    mar_err *err;
} loading;

static kern_linear *make_linear(loading *l, int out, int in, const float *weight, const float *bias, int flags,
                                int y_stride)
{
    kern_linear_spec spec = {};
    kern_linear *made = NULL;
    if (l->status != MAR_OK) return NULL;
    spec.out = out, spec.in = in, spec.weight = weight, spec.bias = bias, spec.y_stride = y_stride;
    spec.flags = flags | (l->h->f16 ? KERN_F16 : KERN_IN_F32 | KERN_OUT_F32);
    l->status = cuda_linear_create(l->k, &spec, &made, l->err);
    return made;
}

static void make_modulation(loading *l, const kern_head_spec *spec)
{
    kern_head *h = l->h;
    float *weight;
    const float *bias;
    const size_t row = cuda_head_mod_bytes(h);
    if (l->status == MAR_OK) l->status = kern_head_adaln(spec, &weight, &bias, l->err);
    if (l->status != MAR_OK) return;
    h->ada_blocks = make_linear(l, 3 * h->width * h->ada_layers, h->width, weight, bias, 0, (int)(row / h->act_size));
    free(weight);
    h->ada_final = make_linear(l, 2 * h->width, h->width, spec->ada_weight, spec->ada_bias, KERN_OUT_F32,
                               (int)(row / sizeof(float)));
}

/* Returns the number of fc1's outputs. */
static int fc1_outputs(const kern_head *h)
{
    return h->form == KERN_HEAD_SWIGLU ? 2 * h->hidden : h->hidden;
}

static void make_blocks(loading *l, const kern_head_spec *spec)
{
    kern_head *h = l->h;
    for (int b = 0; b < h->depth; b++) {
        const kern_head_block *from = &spec->blocks[b];
        h->block[b].fc1 = make_linear(l, fc1_outputs(h), h->width, from->fc1_weight, from->fc1_bias, KERN_OUT_F32, 0);
        h->block[b].fc2 = make_linear(l, h->width, h->hidden, from->fc2_weight, from->fc2_bias, KERN_OUT_F32, 0);
    }
}

/* Uploads the layer norms that are not folded into the modulation. */
static mar_status make_norms(cuda_queue *c, const kern_head_spec *spec, kern_head *h, mar_err *err)
{
    const size_t w = (size_t)h->width, n = 2 * (size_t)h->depth * w;
    if (h->form == KERN_HEAD_MLP) return MAR_OK;
    float *host = (float *)malloc((n + 1) * sizeof *host);
    if (!host) return err_set(err, MAR_ENOMEM, "out of memory");
    for (int b = 0; b < h->depth; b++) {
        memcpy(host + 2 * (size_t)b * w, spec->blocks[b].ln_weight, w * sizeof *host);
        memcpy(host + (2 * (size_t)b + 1) * w, spec->blocks[b].ln_bias, w * sizeof *host);
    }
    const mar_status status = kern_new_array(&c->base, host, n, &h->norms, err);
    free(host);
    return status;
}

static mar_status make_layers(kern_queue *k, const kern_head_spec *spec, kern_head *h, mar_err *err)
{
    const int w = h->width, c = h->channels, f32 = KERN_IN_F32 | KERN_OUT_F32;
    loading l = {k, h, MAR_OK, err};
    mar_err how = {};
    h->block = (struct kern_head::kern_head_layers *)calloc((size_t)h->depth + 1, sizeof *h->block);
    if (!h->block) return err_set(err, MAR_ENOMEM, "out of memory");
    h->in = make_linear(&l, w, c, spec->in_weight, spec->in_bias, f32, 0);
    make_blocks(&l, spec);
    make_modulation(&l, spec);
    if (l.status == MAR_OK) l.status = make_norms(cuda_of(k), spec, h, err);
    if (l.status == MAR_OK) l.status = cuda_head_pack_out(cuda_of(k), spec, h, err);
    if (!h->out_packed) h->out = make_linear(&l, 2 * c, w, spec->out_weight, spec->out_bias, f32, 0);
    if (!h->f16)
        (void)err_set(&how, MAR_OK, "the head is in f32, and the persistent kernel computes in f16 only");
    else if (l.status == MAR_OK)
        l.status = persistent_create(cuda_of(k), spec, h, &how, err);
    (void)err_set(&h->how, MAR_OK, "%s%s",
                  h->persistent ? ""
                  : h->streamed ? "cuBLASLt, streamed up to 8 rows: "
                                : "cuBLASLt for any number of rows: ",
                  how.text);
    return l.status;
}

void cuda_head_spec(const kern_head *h, kern_head_spec *spec)
{
    *spec = {};
    spec->width = h->width, spec->depth = h->depth, spec->channels = h->channels;
    spec->dtype = h->f16 ? MAR_DTYPE_F16 : MAR_DTYPE_F32;
    spec->form = h->form, spec->prefix = h->prefix, spec->hidden = h->hidden, spec->ada_layers = h->ada_layers;
}

const char *cuda_head_describe(const kern_head *h)
{
    return h->how.text;
}

mar_status cuda_head_create(kern_queue *k, const kern_head_spec *spec, kern_head **out, mar_err *err)
{
    *out = NULL;
    if (spec->width % CUDA_HEAD_LANES || spec->width > CUDA_HEAD_WIDTH)
        return err_set(err, MAR_EBACKEND, "a diffusion head of width %d: expected a multiple of %d up to %d on a GPU",
                       spec->width, (int)CUDA_HEAD_LANES, (int)CUDA_HEAD_WIDTH);
    if (spec->hidden % CUDA_HEAD_LANES)
        return err_set(err, MAR_EBACKEND, "a diffusion head of %d hidden channels: expected a multiple of %d on a GPU",
                       spec->hidden, (int)CUDA_HEAD_LANES);
    kern_head *h = (kern_head *)calloc(1, sizeof *h);
    if (!h) return err_set(err, MAR_ENOMEM, "out of memory");
    h->width = spec->width;
    h->depth = spec->depth;
    h->channels = spec->channels;
    h->form = spec->form;
    h->prefix = spec->prefix;
    h->hidden = spec->hidden;
    h->ada_layers = spec->ada_layers;
    h->f16 = spec->dtype == MAR_DTYPE_F16 || (spec->dtype == MAR_DTYPE_AUTO && cuda_of(k)->device->bf16);
    h->act_size = h->f16 ? sizeof(f16) : sizeof(float);
    mar_status status = make_layers(k, spec, h, err);
    if (status == MAR_OK) status = kern_check(k, err);
    if (status != MAR_OK) {
        (void)cudaStreamSynchronize(cuda_of(k)->stream); /* uploads may still be in flight */
        cuda_head_free(k->device, h);
        return status;
    }
    *out = h;
    return MAR_OK;
}

void cuda_head_free(kern_device *d, kern_head *h)
{
    if (!h) return;
    for (int b = 0; h->block && b < h->depth; b++) {
        cuda_linear_free(d, h->block[b].fc1);
        cuda_linear_free(d, h->block[b].fc2);
    }
    free(h->block);
    cuda_linear_free(d, h->in);
    cuda_linear_free(d, h->ada_blocks);
    cuda_linear_free(d, h->ada_final);
    cuda_linear_free(d, h->out);
    cuda_free(d, h->out_packed);
    cuda_free(d, h->out_bias);
    cuda_free(d, h->norms);
    persistent_free(d, h->persistent);
    streamed_free(d, h->streamed);
    free(h);
}

mar_status cuda_head_plan(kern_queue *k, const kern_head *h, int rows, mar_err *err)
{
    const kern_linear *const layers[] = {h->in, h->ada_blocks, h->ada_final, h->out};
    mar_status status = rows % 2 ? MAR_OK : cuda_linear_plan(k, h->in, rows / 2, err); /* tokens with guidance */
    for (int i = 0; status == MAR_OK && i < (h->out ? 4 : 3); i++) status = cuda_linear_plan(k, layers[i], rows, err);
    for (int b = 0; status == MAR_OK && b < h->depth; b++) {
        status = cuda_linear_plan(k, h->block[b].fc1, rows, err);
        if (status == MAR_OK) status = cuda_linear_plan(k, h->block[b].fc2, rows, err);
    }
    if (status == MAR_OK && (h->persistent || h->streamed)) status = cuda_working_memory(cuda_of(k), err);
    return status;
}

void cuda_head_modulate(kern_queue *k, const kern_head *h, const float *temb, const int *temb_index,
                        const uint8_t *fine, int steps, const float *cond, int rows, void *mod, void *scratch)
{
    cuda_queue *c = cuda_of(k);
    const int total = steps * rows;
    (void)fine;
    temb_index = cuda_stage(c, temb_index, (size_t)steps);
    if (total <= 0) return;
    cuda_head_condition(c, h, temb, temb_index, total, cond, rows, scratch);
    cuda_linear(k, h->ada_blocks, scratch, total, mod);
    cuda_linear(k, h->ada_final, scratch, total, (char *)mod + cuda_mod_final_offset(h));
    kern_watch_modulation(k, h->form, h->prefix, mod, h->f16 ? MAR_DTYPE_F16 : MAR_DTYPE_F32, total, h->ada_layers,
                          h->width, cuda_head_mod_bytes(h));
}

/* --- evaluation ---------------------------------------------------------------------------------------------- */

/* Lays out the arrays of an evaluation in `scratch`. Returns their bytes. */
static size_t cuda_evaluation_lay_out(cuda_evaluation *e, void *scratch)
{
    const kern_head *h = e->h;
    const size_t n = (size_t)e->rows, stream = n * (size_t)h->width, states = n * (size_t)h->channels;
    const size_t sums = n * (size_t)(fc1_outputs(h) > h->width ? fc1_outputs(h) : h->width);
    char *base = (char *)scratch;
    size_t used = 0;
    e->x = (float *)arena_carve(base, &used, stream, sizeof(float));
    e->y = (float *)arena_carve(base, &used, sums, sizeof(float));
    e->u = arena_carve(base, &used, stream, h->act_size);
    e->v = arena_carve(base, &used, n * (size_t)h->hidden, h->act_size);
    e->entry = (float *)arena_carve(base, &used, stream / 2 > states ? stream / 2 : states, sizeof(float));
    return used;
}

size_t cuda_head_scratch_bytes(const kern_head *h, int rows)
{
    cuda_evaluation e = {};
    e.h = h, e.rows = rows;
    const size_t evaluation = cuda_evaluation_lay_out(&e, NULL), groups = groups_scratch_bytes(h->persistent, rows);
    return evaluation > groups ? evaluation : groups;
}

cuda_evaluation cuda_evaluation_in(cuda_queue *c, const kern_head *h, const void *mod, const int *mod_index, int rows,
                                   void *scratch)
{
    cuda_evaluation e = {};
    e.c = c, e.h = h, e.mod = (const char *)mod, e.mod_index = mod_index, e.rows = rows;
    (void)cuda_evaluation_lay_out(&e, scratch);
    return e;
}

/* Runs fc1, SiLU or SwiGLU, and fc2. cuBLASLt has neither, so fc1 writes its f32 sums, and a kernel applies it and
 * rounds once. The persistent kernels and the CPU also apply it to f32 sums. Bytes an element in f16: 4 written by
 * fc1, 4 read and 2 written here, 2 read by fc2. These 12, against 8 with sums rounded before SiLU, stay in the L2 for
 * up to a few thousand rows. With SwiGLU they are 20, against 12. */
void cuda_head_products(const cuda_evaluation *e, int b, float *y)
{
    cuda_queue *c = e->c;
    cuda_linear(&c->base, e->h->block[b].fc1, e->u, e->rows, e->y);
    if (e->h->form == KERN_HEAD_SWIGLU)
        cuda_swiglu_rows(c, e->y, e->rows, e->h->hidden, e->h->f16, e->v);
    else
        cuda_silu_rows(c, e->y, (size_t)e->rows, e->h->hidden, e->h->f16, e->v);
    cuda_linear(&c->base, e->h->block[b].fc2, e->v, e->rows, y);
}

void cuda_head_eval(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                    const int *mod_index, int rows, float *out, void *scratch)
{
    cuda_head_eval_reusing(k, h, x, x_index, mod, mod_index, rows, KERN_HEAD_FRESH, NULL, 0, out, scratch);
}

void cuda_head_eval_at(cuda_queue *c, const kern_head *h, const float *x, int states, const void *mod,
                       const int *mod_index, int rows, float *out, void *scratch)
{
    const cuda_evaluation e = cuda_evaluation_in(c, h, mod, mod_index, rows, scratch);
    float *entry = states < rows ? e.entry : e.x; /* not e.x: several rows read a state's projection */
    if (!cuda_live(c)) return;
    cuda_linear(&c->base, h->in, x, states, entry);
    cuda_head_layers(&e, entry, states, KERN_HEAD_FRESH, NULL, 0, out);
}

/* --- the chain ----------------------------------------------------------------------------------------------- */

void cuda_chain_run(kern_queue *k, const kern_head *h, const kern_chain_job *job)
{
    cuda_queue *c = cuda_of(k);
    const int rows = job->tokens * job->conditions, last = job->last;
    const size_t tokens = (size_t)job->tokens, steps = (size_t)(job->first - last + 1);
    if (rows <= 0 || job->first < last) return;
    kern_chain_job j = *job;
    j.first -= last, j.last = 0;
    j.cfg = cuda_stage(c, job->conditions == 2 ? job->cfg : NULL, tokens);
    j.seed = cuda_stage(c, job->seed, tokens);
    j.image = cuda_stage(c, job->image, tokens);
    j.position = cuda_stage(c, job->position, tokens);
    j.t = cuda_stage(c, job->t ? job->t + last : NULL, steps);
    j.coef = cuda_stage(c, job->coef ? job->coef + last : NULL, steps);
    j.ode = cuda_stage(c, job->coef ? NULL : job->ode + last, steps);
    if (groups_run(c, h->persistent, &j) || streamed_run(c, h->streamed, &j)) return;
    if (h->persistent && rows <= PERSISTENT_ROWS) {
        persistent_run(c, h, &j);
        return;
    }
    const char *mod = (const char *)job->mod;
    for (int i = j.first; i >= 0 && cuda_live(c); i--, mod += (size_t)rows * cuda_head_mod_bytes(h)) {
        k->watch.index = i + last;
        cuda_head_eval_at(c, h, j.x, j.tokens, mod, NULL, rows, j.out, j.scratch);
        cuda_chain_advance(c, &j, h->channels, i);
    }
    k->watch.index = -1;
}
