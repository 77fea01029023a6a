/* Executes steps: their buffers, plans and calls. */
#include "vae/pass.h"

vae_extent vae_size_after(const vae_step *s, vae_extent e)
{
    if (s->kind == VAE_UPSAMPLE || s->kind == VAE_DOUBLING) return (vae_extent){2 * e.height, 2 * e.width};
    if (s->kind == VAE_PATCHIFY) return (vae_extent){e.height / s->patch, e.width / s->patch};
    if (s->kind == VAE_UNPATCHIFY) return (vae_extent){s->patch * e.height, s->patch * e.width};
    return s->kind == VAE_DOWNSAMPLE || s->kind == VAE_HALVING ? (vae_extent){e.height / 2, e.width / 2} : e;
}

static size_t pass_max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* --- buffer sizes and flop of an image ---------------------------------------------------------------------------- */

typedef struct {
    kern_queue *k;
    const vae_vit *vit;
    vae_extent grid;
    vae_sizes *sizes;
} measuring;

static double conv_flop(double pixels, int in, int out, int taps)
{
    return 2.0 * pixels * in * out * taps;
}

/* Makes the buffers fit x of `streamed` floats and an operand of `operand` elements. */
static void pass_fit(const measuring *m, size_t streamed, size_t operand)
{
    m->sizes->stream = pass_max_size(m->sizes->stream, sizeof(float) * streamed);
    m->sizes->act = pass_max_size(m->sizes->act, m->k->device->act_size * operand);
}

static void fit_norm(const measuring *m, const vae_norm *norm, int channels)
{
    if (norm->cells)
        m->sizes->cells = pass_max_size(m->sizes->cells, 2 * sizeof(float) * vae_pixels(m->grid) * (size_t)channels);
}

static double residual_flop(const vae_step *s, double pixels)
{
    const double shortcut = s->shortcut ? conv_flop(pixels, s->in, s->out, 1) : 0;
    return conv_flop(pixels, s->in, s->out, 9) + conv_flop(pixels, s->out, s->out, 9) + shortcut;
}

/* pixels: of the block's input. A transposed convolution has a quarter of its taps at a pixel of its output. */
static double doubling_flop(const vae_step *s, double pixels)
{
    return conv_flop(4 * pixels, s->in, s->out, 4 + 1) + conv_flop(4 * pixels, s->out, s->out, 9);
}

/* pixels: of the block's input. */
static double halving_flop(const vae_step *s, double pixels)
{
    return conv_flop(pixels / 4, s->in, s->out, 9 + 4) + conv_flop(pixels / 4, s->out, s->out, 9);
}

static double measure_transformer(const measuring *m, size_t tokens)
{
    size_t streamed;
    const size_t bytes = vae_vit_bytes(m->k->device, m->vit, tokens, &streamed);
    pass_fit(m, streamed, 0);
    m->sizes->stream = pass_max_size(m->sizes->stream, bytes);
    return vae_vit_flop(m->vit, tokens);
}

static double measure_attention(const measuring *m, const vae_step *s, size_t pixels)
{
    const double n = (double)pixels;
    m->sizes->stream = pass_max_size(m->sizes->stream, 3 * pixels * (size_t)s->in * m->k->device->act_size);
    return conv_flop(n, s->in, s->in, 4) + 4.0 * n * n * s->in;
}

/* Fits one step's buffers. Sets *e to the size of its output. Returns its flop. */
static double pass_measure_step(const measuring *m, const vae_step *s, vae_extent *e)
{
    const size_t pixels = vae_pixels(*e);
    const size_t channels = (size_t)(s->in > s->out || s->kind == VAE_PATCHIFY ? s->in : s->out);
    pass_fit(m, pixels * channels, pixels * channels);
    fit_norm(m, &s->norm[0], s->in);
    fit_norm(m, &s->norm[1], s->out);
    *e = vae_size_after(s, *e);
    switch (s->kind) {
    case VAE_RESIDUAL:
        return residual_flop(s, (double)pixels);
    case VAE_DOUBLING:
        pass_fit(m, 4 * pixels * (size_t)s->out, 4 * pixels * (size_t)s->out);
        return doubling_flop(s, (double)pixels);
    case VAE_HALVING:
        return halving_flop(s, (double)pixels);
    case VAE_TRANSFORMER:
        return measure_transformer(m, pixels);
    case VAE_ATTENTION:
        return measure_attention(m, s, pixels);
    case VAE_UPSAMPLE:
        pass_fit(m, 4 * pixels * (size_t)s->out, 0);
        /* 4 of the 9 input pixels of an output pixel differ */
        return conv_flop(4.0 * (double)pixels, s->in, s->out, 4);
    case VAE_DOWNSAMPLE:
        return conv_flop((double)vae_pixels(*e), s->in, s->out, 9);
    case VAE_PATCHIFY:
        pass_fit(m, vae_pixels(*e) * (size_t)s->out, 0);
        return conv_flop((double)vae_pixels(*e), s->in, s->out, s->patch * s->patch);
    case VAE_UNPATCHIFY:
        pass_fit(m, vae_pixels(*e) * (size_t)s->out, vae_pixels(*e) * (size_t)s->out);
        return conv_flop((double)vae_pixels(*e), s->in, s->out, 1);
    }
    return 0;
}

void vae_measure(kern_queue *k, const vae_network *net, const vae_vit *vit, vae_extent grid, int count, vae_extent e,
                 vae_sizes *sizes)
{
    const measuring m = {k, vit, grid, sizes};
    const size_t in = vae_pixels(e) * (size_t)net->in;
    pass_fit(&m, pass_max_size(in, vae_pixels(e) * (size_t)net->width_in), in);
    if (net->conv_in) sizes->flop += conv_flop((double)vae_pixels(e), net->in, net->width_in, 9);
    for (int i = 0; i < count; i++) sizes->flop += pass_measure_step(&m, &net->steps[i], &e);
    if (count < net->n_steps || !net->conv_out) return;
    pass_fit(&m, vae_pixels(e) * (size_t)net->out, 0);
    fit_norm(&m, &net->norm_out, net->width_out);
    sizes->flop += conv_flop((double)vae_pixels(e), net->width_out, net->out, 9);
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

mar_status vae_plan_norm(const vae_pass *p, const vae_norm *norm, int n, int pixels, int channels, int cells,
                         mar_err *err)
{
    const mar_status status = p->k->conv->group_norm_plan(p->k, n, pixels, channels, err);
    return status == MAR_OK && norm->cells ? p->k->core->linear_plan(p->k, norm->cells, n * cells, err) : status;
}

static mar_status plan_whole_norm(const vae_pass *p, const vae_norm *norm, int n, vae_extent e, int channels,
                                  mar_err *err)
{
    return vae_plan_norm(p, norm, n, (int)vae_pixels(e), channels, (int)vae_pixels(p->grid), err);
}

static mar_status plan_residual(const vae_pass *p, const vae_step *s, int n, vae_extent e, mar_err *err)
{
    kern_queue *k = p->k;
    mar_status status = plan_whole_norm(p, &s->norm[0], n, e, s->in, err);
    if (status == MAR_OK) status = k->conv->plan(k, s->conv[0], n, e.height, e.width, err);
    if (status == MAR_OK && s->shortcut) status = k->conv->plan(k, s->shortcut, n, e.height, e.width, err);
    e = vae_size_after(s, e);
    if (status == MAR_OK) status = plan_whole_norm(p, &s->norm[1], n, e, s->out, err);
    return status == MAR_OK ? k->conv->plan(k, s->conv[1], n, e.height, e.width, err) : status;
}

static mar_status plan_attention(const vae_pass *p, const vae_step *s, int n, vae_extent e, mar_err *err)
{
    kern_queue *k = p->k;
    const int pixels = e.height * e.width, c = s->in;
    mar_status status = plan_whole_norm(p, &s->norm[0], n, e, c, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, s->qkv, n * pixels, err);
    if (status == MAR_OK) status = k->core->attention_plan(k, pixels, pixels, 1, c, 3 * c, 3 * c, err);
    return status == MAR_OK ? k->core->linear_plan(k, s->proj, n * pixels, err) : status;
}

static mar_status plan_step(const vae_pass *p, const vae_step *s, int n, vae_extent e, mar_err *err)
{
    kern_queue *k = p->k;
    switch (s->kind) {
    case VAE_TRANSFORMER:
        return vae_vit_plan(p->vit, n, err);
    case VAE_RESIDUAL:
    case VAE_DOUBLING:
    case VAE_HALVING:
        return plan_residual(p, s, n, e, err);
    case VAE_ATTENTION:
        return plan_attention(p, s, n, e, err);
    case VAE_UPSAMPLE:
    case VAE_DOWNSAMPLE:
        return k->conv->plan(k, s->conv[0], n, e.height, e.width, err);
    case VAE_PATCHIFY:
        e = vae_size_after(s, e);
        return k->core->linear_plan(k, s->proj, n * e.height * e.width, err);
    case VAE_UNPATCHIFY:
        return k->core->linear_plan(k, s->proj, n * e.height * e.width, err);
    }
    return MAR_OK;
}

mar_status vae_plan(const vae_pass *p, const vae_network *net, int n, int count, vae_extent e, mar_err *err)
{
    kern_queue *k = p->k;
    mar_status status = net->conv_in ? k->conv->plan(k, net->conv_in, n, e.height, e.width, err) : MAR_OK;
    for (int i = 0; status == MAR_OK && i < count; i++) {
        status = plan_step(p, &net->steps[i], n, e, err);
        e = vae_size_after(&net->steps[i], e);
    }
    if (status != MAR_OK || count < net->n_steps || !net->conv_out) return status;
    if (net->norm_out.groups) status = plan_whole_norm(p, &net->norm_out, n, e, net->width_out, err);
    return status == MAR_OK ? k->conv->plan(k, net->conv_out, n, e.height, e.width, err) : status;
}

/* --- the steps ---------------------------------------------------------------------------------------------------- */

void vae_watch(const vae_pass *p, const char *step, const char *layer, const void *x, int f32, vae_extent e,
               int channels)
{
    kern_watch(p->k, x, f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO, p->n * e.height * e.width, channels, channels, "%s%s",
               step, layer);
}

void vae_pass_norm(const vae_pass *p, const vae_norm *norm, const float *x, vae_extent e, int channels, int silu,
                   const vae_rows *rows)
{
    kern_queue *k = p->k;
    kern_norm call = {.groups = norm->groups, .eps = VAE_EPS, .silu = silu, .weight = norm->weight, .bias = norm->bias};
    if (rows) call.sums = rows->sums, call.total = rows->pixels;
    if (norm->cells) {
        const int side = e.width / p->grid.width, first = rows ? rows->first / side : 0;
        const int count = rows ? (rows->first + e.height - 1) / side + 1 - first : p->n * p->grid.height;
        k->core->linear(k, norm->cells, p->zq + (size_t)(first * p->grid.width) * (size_t)p->z, count * p->grid.width,
                        p->cells);
        call.cells = p->cells, call.width = e.width, call.side = side, call.top = rows ? rows->first % side : 0;
    }
    k->conv->group_norm(k, &call, x, p->n, e.height * e.width, channels, p->a);
}

static void run_residual(vae_pass *p, const vae_step *s, vae_extent e)
{
    kern_queue *k = p->k;
    const vae_extent after = vae_size_after(s, e);
    vae_pass_norm(p, &s->norm[0], p->x, e, s->in, 1, NULL);
    vae_watch(p, s->name, s->names->norm[0], p->a, 0, e, s->in);
    k->conv->conv(k, s->conv[0], p->a, p->n, e.height, e.width, p->h);
    vae_watch(p, s->name, s->names->conv[0], p->h, 1, after, s->out);
    if (s->shortcut) { /* x becomes shortcut(x), from its copy in a */
        k->core->to_act(k, p->x, (size_t)p->n * vae_pixels(e) * (size_t)s->in, p->a);
        k->conv->conv(k, s->shortcut, p->a, p->n, e.height, e.width, p->x);
        vae_watch(p, s->name, s->names->shortcut, p->x, 1, after, s->out);
    }
    vae_pass_norm(p, &s->norm[1], p->h, after, s->out, 1, NULL);
    vae_watch(p, s->name, s->names->norm[1], p->a, 0, after, s->out);
    k->conv->conv(k, s->conv[1], p->a, p->n, after.height, after.width, p->x);
    vae_watch(p, s->name, s->names->conv[1], p->x, 1, after, s->out);
}

static void run_attention(vae_pass *p, const vae_step *s, vae_extent e)
{
    kern_queue *k = p->k;
    const int pixels = e.height * e.width, rows = p->n * pixels, c = s->in;
    const char *qkv = (const char *)p->h; /* act [rows][3][c] */
    vae_pass_norm(p, &s->norm[0], p->x, e, c, 0, NULL);
    vae_watch(p, s->name, ".norm", p->a, 0, e, c);
    k->core->linear(k, s->qkv, p->a, rows, p->h);
    for (int i = 0; i < 3; i++)
        kern_watch(k, qkv + (size_t)(i * c) * k->device->act_size, MAR_DTYPE_AUTO, rows, c, 3 * c, "%s.%c", s->name,
                   "qkv"[i]);
    k->core->attention(k, qkv, 3 * c, qkv + (size_t)c * k->device->act_size, qkv + 2 * (size_t)c * k->device->act_size,
                       3 * c, p->n, pixels, pixels, 1, c, p->a);
    vae_watch(p, s->name, "", p->a, 0, e, c);
    k->core->linear(k, s->proj, p->a, rows, p->x);
    vae_watch(p, s->name, ".proj_out", p->x, 1, e, c);
}

static void run_resample(vae_pass *p, const vae_step *s, vae_extent e)
{
    kern_queue *k = p->k;
    k->core->to_act(k, p->x, (size_t)p->n * vae_pixels(e) * (size_t)s->in, p->a);
    k->conv->conv(k, s->conv[0], p->a, p->n, e.height, e.width, p->x);
    vae_watch(p, s->name, s->kind == VAE_UPSAMPLE ? ".upsample.conv" : ".downsample.conv", p->x, 1,
              vae_size_after(s, e), s->out);
}

static void run_patchify(const vae_pass *p, const vae_step *s, vae_extent e)
{
    kern_queue *k = p->k;
    const vae_extent after = vae_size_after(s, e);
    const int rows = p->n * after.height * after.width;
    k->core->copy_rows(k, p->h, NULL, p->x, vae_vit_pieces(p->vit), NULL, NULL, rows * s->patch, 3 * s->patch);
    k->core->linear(k, s->proj, p->h, rows, p->x);
    vae_watch(p, s->name, "", p->x, 1, after, s->out);
}

static void run_unpatchify(const vae_pass *p, const vae_step *s, vae_extent e)
{
    kern_queue *k = p->k;
    const int rows = p->n * e.height * e.width;
    k->core->to_act(k, p->x, (size_t)rows * (size_t)s->in, p->a);
    k->core->linear(k, s->proj, p->a, rows, p->h);
    vae_watch(p, s->name, "", p->h, 1, e, 3 * s->patch * s->patch);
    k->core->copy_rows(k, p->x, vae_vit_pieces(p->vit), p->h, NULL, NULL, NULL, rows * s->patch, 3 * s->patch);
}

static void pass_run_step(vae_pass *p, const vae_step *s, vae_extent e)
{
    switch (s->kind) {
    case VAE_TRANSFORMER:
        vae_vit_run(p->vit, p->n, p->x, p->h, p->x, s->name);
        break;
    case VAE_RESIDUAL:
    case VAE_DOUBLING:
    case VAE_HALVING:
        run_residual(p, s, e);
        break;
    case VAE_ATTENTION:
        run_attention(p, s, e);
        break;
    case VAE_UPSAMPLE:
    case VAE_DOWNSAMPLE:
        run_resample(p, s, e);
        break;
    case VAE_PATCHIFY:
        run_patchify(p, s, e);
        break;
    case VAE_UNPATCHIFY:
        run_unpatchify(p, s, e);
        break;
    }
}

vae_extent vae_pass_steps(vae_pass *p, const vae_network *net, int count, vae_extent e)
{
    kern_queue *k = p->k;
    if (net->conv_in) {
        k->core->to_act(k, p->x, (size_t)p->n * vae_pixels(e) * (size_t)net->in, p->a);
        k->conv->conv(k, net->conv_in, p->a, p->n, e.height, e.width, p->x);
        vae_watch(p, net->side, net->ends->conv_in, p->x, 1, e, net->width_in);
    }
    for (int i = 0; i < count; i++) {
        pass_run_step(p, &net->steps[i], e);
        e = vae_size_after(&net->steps[i], e);
    }
    return e;
}

void vae_pass_end(vae_pass *p, const vae_network *net, vae_extent e)
{
    kern_queue *k = p->k;
    if (!net->conv_out) {
        float *x = p->x;
        p->x = p->h, p->h = x;
        return;
    }
    if (net->norm_out.groups) {
        vae_pass_norm(p, &net->norm_out, p->x, e, net->width_out, 1, NULL);
        vae_watch(p, net->side, net->ends->norm_out, p->a, 0, e, net->width_out);
    } else
        k->core->to_act(k, p->x, (size_t)p->n * vae_pixels(e) * (size_t)net->width_out, p->a);
    k->conv->conv(k, net->conv_out, p->a, p->n, e.height, e.width, p->h);
    vae_watch(p, net->side, net->ends->conv_out, p->h, 1, e, net->out);
}
