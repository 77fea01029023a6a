/* Decoding an image: executes the list of steps with three buffers. */
#include "vae/steps.h"

#include "base/arena.h"

#include <stdlib.h>

struct vae_run {
    kern_queue *k;
    const vae_decoder *d;
    int grid_h, grid_w;
    float *stream[2];          /* buffers for x and h, which change places */
    act *a;                    /* [pixels][channels] the input of a product or convolution */
    size_t stream_bytes;       /* of each stream */
    size_t act_bytes;          /* of a */
    double flop;               /* of an image */
    kern_recording *recording; /* of decode */

    /* While an image is decoded: */
    float *x; /* [pixels][channels] the residual stream */
    float *h; /* of the same size: the result between two convolutions, or q, k, v as act */
};

typedef struct {
    int height, width;
} extent;

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static double conv_flop(double pixels, int in, int out, int taps)
{
    return 2.0 * pixels * in * out * taps;
}

/* --- preparation: plans, buffer sizes and arithmetic of each step ------------------------------------------------ */

static mar_status plan_residual(vae_run *r, const vae_step *s, extent e, mar_err *err)
{
    kern_queue *k = r->k;
    const double pixels = (double)e.height * e.width;
    mar_status status = k->conv->group_norm_plan(k, e.height * e.width, s->in, err);
    if (status == MAR_OK) status = k->conv->plan(k, s->conv[0], e.height, e.width, err);
    if (status == MAR_OK && s->shortcut) status = k->conv->plan(k, s->shortcut, e.height, e.width, err);
    if (status == MAR_OK) status = k->conv->group_norm_plan(k, e.height * e.width, s->out, err);
    if (status == MAR_OK) status = k->conv->plan(k, s->conv[1], e.height, e.width, err);
    r->flop += conv_flop(pixels, s->in, s->out, 9) + conv_flop(pixels, s->out, s->out, 9);
    if (s->shortcut) r->flop += conv_flop(pixels, s->in, s->out, 1);
    return status;
}

static mar_status plan_attention(vae_run *r, const vae_step *s, extent e, mar_err *err)
{
    kern_queue *k = r->k;
    const int n = e.height * e.width, c = s->in;
    mar_status status = k->conv->group_norm_plan(k, n, c, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, s->qkv, n, err);
    if (status == MAR_OK) status = k->core->attention_plan(k, n, n, 1, c, 3 * c, 3 * c, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, s->proj, n, err);
    r->flop += conv_flop(n, c, c, 4) + 4.0 * n * n * c;
    r->stream_bytes = most(r->stream_bytes, 3 * (size_t)n * (size_t)c * k->device->act_size);
    return status;
}

/* Plans one step; *e becomes the size of its output. */
static mar_status plan_step(vae_run *r, const vae_step *s, extent *e, mar_err *err)
{
    kern_queue *k = r->k;
    const size_t pixels = (size_t)e->height * (size_t)e->width;
    const size_t channels = (size_t)(s->in > s->out ? s->in : s->out);
    mar_status status = MAR_OK;
    r->stream_bytes = most(r->stream_bytes, pixels * channels * sizeof(float));
    r->act_bytes = most(r->act_bytes, pixels * channels * k->device->act_size);
    switch (s->kind) {
    case VAE_RESIDUAL:
        return plan_residual(r, s, *e, err);
    case VAE_ATTENTION:
        return plan_attention(r, s, *e, err);
    case VAE_UPSAMPLE:
        status = k->conv->plan(k, s->conv[0], e->height, e->width, err);
        *e = (extent){2 * e->height, 2 * e->width};
        r->stream_bytes = most(r->stream_bytes, 4 * pixels * (size_t)s->out * sizeof(float));
        /* Of the 9 input pixels of an output pixel 4 differ. */
        r->flop += conv_flop(4.0 * (double)pixels, s->in, s->out, 4);
        break;
    }
    return status;
}

static mar_status plan_run(vae_run *r, mar_err *err)
{
    const vae_decoder *d = r->d;
    kern_queue *k = r->k;
    const int z = d->config.z_channels, tokens = r->grid_h * r->grid_w;
    extent e = {r->grid_h, r->grid_w};
    r->stream_bytes = sizeof(float) * (size_t)tokens * (size_t)z;
    r->act_bytes = k->device->act_size * (size_t)tokens * (size_t)z;
    r->flop = conv_flop(tokens, z, z, 1) + conv_flop(tokens, z, d->width_in, 9);
    mar_status status = k->core->linear_plan(k, d->post_quant, tokens, err);
    if (status == MAR_OK) status = k->conv->plan(k, d->conv_in, e.height, e.width, err);
    for (int i = 0; status == MAR_OK && i < d->n_steps; i++) status = plan_step(r, &d->steps[i], &e, err);
    if (status == MAR_OK) status = k->conv->group_norm_plan(k, e.height * e.width, d->width_out, err);
    if (status == MAR_OK) status = k->conv->plan(k, d->conv_out, e.height, e.width, err);
    r->flop += conv_flop((double)e.height * e.width, d->width_out, 3, 9);
    return status;
}

size_t vae_run_lay_out(vae_run *r, char *base)
{
    size_t used = 0;
    r->stream[0] = arena_carve(base, &used, 1, r->stream_bytes);
    r->stream[1] = arena_carve(base, &used, 1, r->stream_bytes);
    r->a = arena_carve(base, &used, 1, r->act_bytes);
    return used;
}

mar_status vae_run_create(kern_queue *k, const vae_decoder *d, int grid_h, int grid_w, vae_run **out, mar_err *err)
{
    *out = NULL;
    const int longest = 16384 / d->config.stride; /* far below sizes that overflow */
    if (grid_h < 1 || grid_w < 1 || grid_h > longest || grid_w > longest)
        return err_set(err, MAR_EARG, "latent grid %dx%d: expected 1..%d by 1..%d", grid_h, grid_w, longest, longest);
    vae_run *r = calloc(1, sizeof *r);
    if (!r) return err_set(err, MAR_ENOMEM, "out of memory");
    r->k = k;
    r->d = d;
    r->grid_h = grid_h;
    r->grid_w = grid_w;
    mar_status status = plan_run(r, err);
    if (status != MAR_OK) {
        vae_run_free(r);
        return status;
    }
    *out = r;
    return MAR_OK;
}

void vae_run_free(vae_run *r)
{
    if (!r) return;
    kern_queue *k = r->k;
    k->core->recording_free(k, r->recording);
    free(r);
}

double vae_run_flop(const vae_run *r)
{
    return r->flop;
}

/* --- decoding ---------------------------------------------------------------------------------------------------- */

/* Shows the search for layers (kern_watch) the output of a layer, act or float if f32. */
static void watch(vae_run *r, const char *step, const char *layer, const void *x, int f32, extent e, int channels)
{
    kern_watch(r->k, x, f32, e.height * e.width, channels, channels, "%s%s", step, layer);
}

static void norm(vae_run *r, const float *x, extent e, int channels, const vae_norm *n, int silu)
{
    kern_queue *k = r->k;
    k->conv->group_norm(k, x, e.height * e.width, channels, VAE_GROUPS, n->weight, n->bias, VAE_EPS, silu, r->a);
}

static void run_residual(vae_run *r, const vae_step *s, extent e)
{
    kern_queue *k = r->k;
    norm(r, r->x, e, s->in, &s->norm[0], 1);
    watch(r, s->name, ".norm1", r->a, 0, e, s->in);
    k->conv->conv(k, s->conv[0], r->a, e.height, e.width, r->h);
    watch(r, s->name, ".conv1", r->h, 1, e, s->out);
    if (s->shortcut) { /* x becomes shortcut(x), from its copy in a */
        k->core->to_act(k, r->x, (size_t)e.height * (size_t)e.width * (size_t)s->in, r->a);
        k->conv->conv(k, s->shortcut, r->a, e.height, e.width, r->x);
        watch(r, s->name, ".nin_shortcut", r->x, 1, e, s->out);
    }
    norm(r, r->h, e, s->out, &s->norm[1], 1);
    watch(r, s->name, ".norm2", r->a, 0, e, s->out);
    k->conv->conv(k, s->conv[1], r->a, e.height, e.width, r->x);
    watch(r, s->name, ".conv2", r->x, 1, e, s->out);
}

static void run_attention(vae_run *r, const vae_step *s, extent e)
{
    kern_queue *k = r->k;
    const int n = e.height * e.width, c = s->in;
    const char *qkv = (const char *)r->h; /* act [n][3][c] */
    norm(r, r->x, e, c, &s->norm[0], 0);
    watch(r, s->name, ".norm", r->a, 0, e, c);
    k->core->linear(k, s->qkv, r->a, n, r->h);
    for (int i = 0; i < 3; i++)
        kern_watch(k, qkv + (size_t)(i * c) * k->device->act_size, 0, n, c, 3 * c, "%s.%c", s->name, "qkv"[i]);
    k->core->attention(k, qkv, 3 * c, qkv + (size_t)c * k->device->act_size, qkv + 2 * (size_t)c * k->device->act_size,
                       3 * c, 1, n, n, 1, c, r->a);
    watch(r, s->name, "", r->a, 0, e, c);
    k->core->linear(k, s->proj, r->a, n, r->x);
    watch(r, s->name, ".proj_out", r->x, 1, e, c);
}

static void run_upsample(vae_run *r, const vae_step *s, extent *e)
{
    kern_queue *k = r->k;
    float *larger = r->h;
    k->core->to_act(k, r->x, (size_t)e->height * (size_t)e->width * (size_t)s->in, r->a);
    k->conv->conv(k, s->conv[0], r->a, e->height, e->width, larger);
    r->h = r->x;
    r->x = larger;
    *e = (extent){2 * e->height, 2 * e->width};
    watch(r, s->name, ".upsample.conv", r->x, 1, *e, s->out);
}

/* Decodes the latent in r->stream[0] to the pixels in r->h. */
static void decode(void *arg)
{
    vae_run *r = arg;
    r->x = r->stream[0], r->h = r->stream[1];
    const vae_decoder *d = r->d;
    kern_queue *k = r->k;
    extent e = {r->grid_h, r->grid_w};
    const size_t n = (size_t)(r->grid_h * r->grid_w) * (size_t)d->config.z_channels;
    k->core->to_act(k, r->x, n, r->a);
    k->conv->conv(k, d->conv_in, r->a, e.height, e.width, r->x);
    watch(r, "", "decoder.conv_in", r->x, 1, e, d->width_in);
    for (int i = 0; i < d->n_steps; i++) {
        const vae_step *s = &d->steps[i];
        switch (s->kind) {
        case VAE_RESIDUAL:
            run_residual(r, s, e);
            break;
        case VAE_ATTENTION:
            run_attention(r, s, e);
            break;
        case VAE_UPSAMPLE:
            run_upsample(r, s, &e);
            break;
        }
    }
    norm(r, r->x, e, d->width_out, &d->norm_out, 1);
    watch(r, "", "decoder.norm_out", r->a, 0, e, d->width_out);
    k->conv->conv(k, d->conv_out, r->a, e.height, e.width, r->h);
    watch(r, "", "decoder.conv_out", r->h, 1, e, 3);
}

const float *vae_decode(vae_run *r, const float *tokens)
{
    kern_queue *k = r->k;
    k->watch.part = "";
    k->core->linear(k, r->d->post_quant, tokens, r->grid_h * r->grid_w, r->stream[0]);
    watch(r, "", "post_quant_conv", r->stream[0], 1, (extent){r->grid_h, r->grid_w}, r->d->config.z_channels);
    if (k->watch.on) /* it waits in between */
        decode(r);
    else
        k->core->replay(k, &r->recording, decode, r);
    return r->h;
}
