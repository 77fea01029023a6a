/* Decodes the last steps of a large image in bands of rows, so that the working memory is little more than one residual
 * stream. Every number is computed by the same operations from the same inputs as in whole images: on a CPU the bits
 * are the same.
 *
 * A stage is an upsampling with the residual block after it, a residual block, or norm_out with conv_out. Between
 * stages the whole stream is in `store`. A group norm needs the whole image's mean and variance. So a stage computes
 * its bands up to each norm, adds them to the norm's sums, and drops them:
 *   1. upsampling -> sums of norm 0 (without upsampling the stream itself has them);
 *   2. upsampling, norm 0, convolution 0 -> sums of norm 1;
 *   3. all -> the stream.
 * The first steps are computed again for that: in a residual block one of two convolutions. Each band has as many rows
 * around it as its 3x3 convolutions see: results at the band's ends that lack rows are not used.
 *
 * The third pass replaces the stream in place. Its bands go from the end of the image to the begin, to a place a few
 * rows behind the stream's, so that no band writes rows that another still needs; or from the begin to the end, to a
 * place in front of it. */
#include "vae/bands.h"

#include "base/arena.h"

#include <stdlib.h>

enum { ROWS_MOST = 64, ROWS_FEWEST = 8, STAGES_MAX = 64 };

typedef struct {
    const vae_step *up, *residual; /* up: NULL without upsampling; both NULL: norm_out and conv_out */
    const vae_norm *norm;          /* the first norm */
    vae_extent from, to;           /* stream before and after */
    int in, out;                   /* channels of these */
    size_t read, write;            /* bytes in front of the stream in the store, before and after */
    int descends;                  /* 1: the third pass begins at the end of the image */
} stage;

struct vae_bands {
    const vae_decoder *d;
    int first; /* step of the first stage */
    int rows;  /* of a band */
    stage stages[STAGES_MAX];
    int n_stages;
    vae_sizes whole;                         /* of the steps before */
    size_t store_bytes, x_bytes, h_bytes;    /* of the stream, of a band's */
    size_t a_bytes, cells_bytes, sums_bytes; /* sums: of one norm */
    char *store;                             /* the stream between stages; the buffers of whole steps begin here, too */
    float *x, *h, *cells, *pixels;
    act *a;
    double *sums[2];
};

/* Rows first .. last - 1 of an image. */
typedef struct {
    int first, last;
} range;

/* A band: rows of the result, and those it is computed from. */
typedef struct {
    range to;   /* rows of the result */
    range h;    /* of convolution 0's result that convolution 1 reads */
    range x;    /* of the stage's input, after upsampling */
    range from; /* of its input */
} band;

static int bands_count(range r)
{
    return r.last - r.first;
}

static range around(range r, int rows, int height)
{
    return (range){r.first > rows ? r.first - rows : 0, r.last + rows < height ? r.last + rows : height};
}

static size_t row_bytes(vae_extent e, int channels)
{
    return sizeof(float) * (size_t)e.width * (size_t)channels;
}

static size_t bands_bytes_of(vae_extent e, int channels)
{
    return (size_t)e.height * row_bytes(e, channels);
}

static int bands_of(const vae_bands *b, const stage *s)
{
    return (s->to.height + b->rows - 1) / b->rows;
}

static band band_at(const vae_bands *b, const stage *s, int i)
{
    const int height = s->to.height, end = (i + 1) * b->rows;
    band at = {.to = {i * b->rows, end < height ? end : height}};
    at.h = around(at.to, s->residual ? 1 : 0, height);
    at.x = around(at.h, 1, height);
    at.from = at.x;
    if (s->up) { /* the convolution sees upsampled rows x.first - 1 .. x.last */
        const range seen = around(at.x, 1, height);
        at.from = (range){seen.first / 2, (seen.last + 1) / 2};
    }
    return at;
}

/* --- the division ------------------------------------------------------------------------------------------------- */

static size_t bands_larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static stage stage_at(const vae_network *net, int *i, vae_extent e)
{
    stage s = {.from = e, .to = e, .in = net->width_out, .out = net->width_out, .norm = &net->norm_out};
    if (*i == net->n_steps) return s;
    if (net->steps[*i].kind == VAE_UPSAMPLE) s.up = &net->steps[(*i)++];
    s.residual = &net->steps[(*i)++];
    s.norm = &s.residual->norm[0];
    s.in = s.residual->in;
    s.out = s.residual->out;
    if (s.up) s.to = vae_size_after(s.up, e);
    return s;
}

/* Sets the place of the stage's result: in front of its input if there is room, else behind it. In front, a band must
 * not write what the next one reads. */
static void bands_place(const vae_bands *b, stage *s)
{
    const size_t in = row_bytes(s->from, s->in), out = row_bytes(s->to, s->out);
    size_t in_front = 0, behind = 0;
    for (int i = 0; i + 1 < bands_of(b, s); i++) {
        const band at = band_at(b, s, i), next = band_at(b, s, i + 1);
        const size_t written = (size_t)at.to.last * out, needed = (size_t)next.from.first * in;
        const size_t begin = (size_t)next.to.first * out, end = (size_t)at.from.last * in;
        if (written > needed) in_front = bands_larger(in_front, written - needed);
        if (end > begin) behind = bands_larger(behind, end - begin);
    }
    s->descends = s->read < in_front;
    s->write = s->descends ? s->read + behind : s->read - in_front;
}

/* Makes the band's buffers fit a stage. */
static void bands_fit(vae_bands *b, const vae_pass *p, const stage *s)
{
    const size_t element = p->k->device->act_size;
    b->store_bytes = bands_larger(b->store_bytes, s->read + bands_bytes_of(s->from, s->in));
    if (s->residual) b->store_bytes = bands_larger(b->store_bytes, s->write + bands_bytes_of(s->to, s->out));
    for (int i = 0; i < bands_of(b, s); i++) {
        const band at = band_at(b, s, i);
        const size_t width = (size_t)s->to.width, rows = width * (size_t)bands_count(at.x);
        const size_t upsampled = s->up ? width * 2 * (size_t)bands_count(at.from) : rows;
        const size_t channels = (size_t)(s->in > s->out ? s->in : s->out);
        b->x_bytes =
            bands_larger(b->x_bytes, sizeof(float) * bands_larger(upsampled * (size_t)s->in, rows * (size_t)s->out));
        b->h_bytes = bands_larger(b->h_bytes, sizeof(float) * rows * (size_t)(s->residual ? s->out : 3));
        b->a_bytes = bands_larger(b->a_bytes, element * rows * channels);
        if (!s->norm->cells) continue;
        const int side = s->to.width / p->grid.width, cells = (at.x.last - 1) / side + 1 - at.x.first / side;
        b->cells_bytes = bands_larger(b->cells_bytes, 2 * sizeof(float) * (size_t)(cells * p->grid.width) * channels);
    }
    b->sums_bytes =
        bands_larger(b->sums_bytes, sizeof(double) * 2 * KERN_NORM_CHUNKS * (size_t)(s->in > s->out ? s->in : s->out));
}

/* Divides the steps from number `first` on into stages with bands of `rows` rows. */
static vae_bands bands_divide(const vae_pass *p, const vae_decoder *d, int first, int rows)
{
    const vae_network *net = &d->network;
    vae_bands b = {.d = d, .first = first, .rows = rows};
    vae_extent e = p->grid;
    vae_measure(p->k, net, d->vit, p->grid, first, p->grid, &b.whole);
    for (int i = 0; i < first; i++) e = vae_size_after(&net->steps[i], e);
    size_t read = 0;
    for (int i = first, last = 0; !last && b.n_stages < STAGES_MAX;) {
        last = i == net->n_steps;
        stage *s = &b.stages[b.n_stages++];
        *s = stage_at(net, &i, e);
        s->read = read;
        bands_place(&b, s);
        bands_fit(&b, p, s);
        read = s->write;
        e = s->to;
    }
    return b;
}

/* Returns 1 if stages can begin at step `first`. */
static int can_begin(const vae_network *net, int first)
{
    if (net->n_steps - first >= STAGES_MAX) return 0;
    for (int i = first; i < net->n_steps; i++)
        if (net->steps[i].kind != VAE_RESIDUAL &&
            (net->steps[i].kind != VAE_UPSAMPLE || i + 1 == net->n_steps || net->steps[i + 1].kind != VAE_RESIDUAL))
            return 0;
    return 1;
}

mar_status vae_bands_create(const vae_pass *p, const vae_decoder *d, size_t limit, vae_bands **out, mar_err *err)
{
    const vae_network *net = &d->network;
    vae_sizes all = {0};
    vae_measure(p->k, net, d->vit, p->grid, net->n_steps, p->grid, &all);
    size_t least = 2 * all.stream + all.act + all.cells;
    *out = NULL;
    if (least <= limit) return MAR_OK;
    vae_bands *b = malloc(sizeof *b);
    if (!b) return err_set(err, MAR_ENOMEM, "out of memory");
    for (int first = net->n_steps - 1; first >= 0 && least > limit && can_begin(net, first); first--)
        for (int rows = ROWS_MOST; rows >= ROWS_FEWEST && least > limit; rows /= 2) {
            vae_bands tried = bands_divide(p, d, first, rows);
            const size_t bytes = vae_bands_lay_out(&tried, NULL);
            if (bytes >= least) continue;
            least = bytes;
            *b = tried;
            *out = b;
        }
    if (!*out) free(b);
    return MAR_OK;
}

void vae_bands_free(vae_bands *b)
{
    free(b);
}

int vae_bands_first(const vae_bands *b)
{
    return b->first;
}

size_t vae_bands_lay_out(vae_bands *b, char *base)
{
    const stage *last = &b->stages[b->n_stages - 1];
    size_t used = 0;
    b->store = arena_carve(base, &used, 1, b->store_bytes);
    b->x = arena_carve(base, &used, 1, b->x_bytes);
    b->h = arena_carve(base, &used, 1, b->h_bytes);
    b->a = arena_carve(base, &used, 1, b->a_bytes);
    b->cells = arena_carve(base, &used, 1, b->cells_bytes);
    b->pixels = arena_carve(base, &used, 1, bands_bytes_of(last->to, 3));
    for (int i = 0; i < 2; i++) b->sums[i] = arena_carve(base, &used, 1, b->sums_bytes);
    size_t whole = 0;
    for (int i = 0; i < 2; i++) arena_carve(NULL, &whole, 1, b->whole.stream);
    arena_carve(NULL, &whole, 1, b->whole.act);
    arena_carve(NULL, &whole, 1, b->whole.cells);
    return bands_larger(used, whole);
}

void vae_bands_whole(const vae_bands *b, vae_pass *p)
{
    size_t used = 0;
    p->x = arena_carve(b->store, &used, 1, b->whole.stream);
    p->h = arena_carve(b->store, &used, 1, b->whole.stream);
    p->a = arena_carve(b->store, &used, 1, b->whole.act);
    p->cells = arena_carve(b->store, &used, 1, b->whole.cells);
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static int pixels_of(const stage *s, range r)
{
    return bands_count(r) * s->to.width;
}

static mar_status plan_norm(const vae_pass *p, const stage *s, const vae_norm *norm, range rows, int channels,
                            mar_err *err)
{
    const int side = s->to.width / p->grid.width, cells = (rows.last - 1) / side + 1 - rows.first / side;
    return vae_plan_norm(p, norm, 1, pixels_of(s, rows), channels, cells * p->grid.width, err);
}

static mar_status plan_band(const vae_pass *p, const vae_network *net, const stage *s, const band *at, mar_err *err)
{
    const kern_conv_ops *conv = p->k->conv;
    const int width = s->to.width;
    mar_status status = plan_norm(p, s, s->norm, at->x, s->in, err);
    if (status != MAR_OK || !s->residual)
        return status == MAR_OK ? conv->plan(p->k, net->conv_out, 1, bands_count(at->x), width, err) : status;
    if (s->up) status = conv->plan(p->k, s->up->conv[0], 1, bands_count(at->from), s->from.width, err);
    if (status == MAR_OK) status = conv->plan(p->k, s->residual->conv[0], 1, bands_count(at->x), width, err);
    if (status == MAR_OK && s->residual->shortcut)
        status = conv->plan(p->k, s->residual->shortcut, 1, bands_count(at->x), width, err);
    if (status == MAR_OK) status = plan_norm(p, s, &s->residual->norm[1], at->h, s->out, err);
    return status == MAR_OK ? conv->plan(p->k, s->residual->conv[1], 1, bands_count(at->h), width, err) : status;
}

mar_status vae_bands_plan(const vae_bands *b, const vae_pass *p, mar_err *err)
{
    mar_status status = MAR_OK;
    for (const stage *s = b->stages; s < b->stages + b->n_stages; s++)
        for (int i = 0; status == MAR_OK && i < bands_of(b, s); i++) {
            const band at = band_at(b, s, i);
            status = plan_band(p, &b->d->network, s, &at, err);
        }
    return status;
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

/* A pass over bands: its buffers and the stage. */
typedef struct {
    const vae_bands *b;
    const stage *s;
    vae_pass p;
} pass;

static vae_extent bands_rows_of(const stage *s, range r)
{
    return (vae_extent){bands_count(r), s->to.width};
}

/* Returns the first number of row `row` in x, rows of the result's width. */
static float *row_at(const stage *s, const float *x, int row, int channels)
{
    return (float *)(uintptr_t)x + (size_t)row * (size_t)s->to.width * (size_t)channels;
}

static const float *stream_at(const pass *t, int row)
{
    const stage *s = t->s;
    return (const float *)(const void *)(t->b->store + s->read + (size_t)row * row_bytes(s->from, s->in));
}

static void add_sums(const pass *t, const float *x, range rows, int channels, double *sums)
{
    const int width = t->s->to.width;
    t->p.k->conv->group_sums(t->p.k, x, t->s->to.height * width, channels, rows.first * width,
                             bands_count(rows) * width, sums);
}

/* Loads rows at->x of the stage's input, upsampled, into p.x. */
static void bands_load(pass *t, const band *at, int watched)
{
    const stage *s = t->s;
    kern_queue *k = t->p.k;
    t->p.x = t->b->x;
    if (!s->up) {
        k->core->copy_rows(k, t->p.x, NULL, stream_at(t, at->x.first), NULL, NULL, NULL, pixels_of(s, at->x), s->in);
        return;
    }
    k->core->to_act(k, stream_at(t, at->from.first),
                    (size_t)bands_count(at->from) * (size_t)s->from.width * (size_t)s->in, t->p.a);
    k->conv->conv(k, s->up->conv[0], t->p.a, 1, bands_count(at->from), s->from.width, t->p.x);
    t->p.x = row_at(s, t->p.x, at->x.first - 2 * at->from.first, s->in);
    if (watched) vae_watch(&t->p, s->up->name, ".upsample.conv", t->p.x, 1, bands_rows_of(s, at->x), s->in);
}

static void run_norm(const pass *t, int i, const vae_norm *norm, const float *x, range rows, int channels)
{
    const vae_rows known = {rows.first, t->b->sums[i], (int)vae_pixels(t->s->to)};
    vae_pass_norm(&t->p, norm, x, bands_rows_of(t->s, rows), channels, 1, &known);
}

/* Computes rows at->x of convolution 0's result in p.h from those in p.x; rows at->h of it are complete. */
static void run_first(const pass *t, const band *at, int watched)
{
    const vae_step *s = t->s->residual;
    kern_queue *k = t->p.k;
    const vae_extent e = bands_rows_of(t->s, at->x);
    run_norm(t, 0, &s->norm[0], t->p.x, at->x, s->in);
    if (watched) vae_watch(&t->p, s->name, s->names->norm[0], t->p.a, 0, e, s->in);
    k->conv->conv(k, s->conv[0], t->p.a, 1, e.height, e.width, t->p.h);
    if (watched) vae_watch(&t->p, s->name, s->names->conv[0], t->p.h, 1, e, s->out);
}

/* Computes rows at->to of the block's result from p.x and p.h. Returns the first of them. */
static const float *run_second(pass *t, const band *at)
{
    const vae_step *s = t->s->residual;
    kern_queue *k = t->p.k;
    const vae_extent e = bands_rows_of(t->s, at->x), inner = bands_rows_of(t->s, at->h);
    if (s->shortcut) {
        k->core->to_act(k, t->p.x, vae_pixels(e) * (size_t)s->in, t->p.a);
        t->p.x = t->b->x;
        k->conv->conv(k, s->shortcut, t->p.a, 1, e.height, e.width, t->p.x);
        vae_watch(&t->p, s->name, s->names->shortcut, t->p.x, 1, e, s->out);
    }
    float *x = row_at(t->s, t->p.x, at->h.first - at->x.first, s->out);
    run_norm(t, 1, &s->norm[1], row_at(t->s, t->p.h, at->h.first - at->x.first, s->out), at->h, s->out);
    vae_watch(&t->p, s->name, s->names->norm[1], t->p.a, 0, inner, s->out);
    k->conv->conv(k, s->conv[1], t->p.a, 1, inner.height, inner.width, x);
    x = row_at(t->s, x, at->to.first - at->h.first, s->out);
    vae_watch(&t->p, s->name, s->names->conv[1], x, 1, bands_rows_of(t->s, at->to), s->out);
    return x;
}

/* Computes the sums of the stage's norms. */
static void sum_up(pass *t)
{
    const stage *s = t->s;
    const int n = bands_of(t->b, s);
    if (!s->up) add_sums(t, stream_at(t, 0), (range){0, s->to.height}, s->in, t->b->sums[0]);
    for (int i = 0; s->up && i < n; i++) {
        const band at = band_at(t->b, s, i);
        bands_load(t, &at, 1);
        add_sums(t, row_at(s, t->p.x, at.to.first - at.x.first, s->in), at.to, s->in, t->b->sums[0]);
    }
    for (int i = 0; s->residual && i < n; i++) {
        const band at = band_at(t->b, s, i);
        bands_load(t, &at, 0);
        run_first(t, &at, 1);
        add_sums(t, row_at(s, t->p.h, at.to.first - at.x.first, s->out), at.to, s->out, t->b->sums[1]);
    }
}

static void run_stage(pass *t)
{
    const stage *s = t->s;
    kern_queue *k = t->p.k;
    float *to = (float *)(void *)(t->b->store + s->write);
    sum_up(t);
    for (int i = 0, n = bands_of(t->b, s); i < n; i++) {
        const band at = band_at(t->b, s, s->descends ? n - 1 - i : i);
        bands_load(t, &at, 0);
        run_first(t, &at, 0);
        const float *x = run_second(t, &at);
        k->core->copy_rows(k, row_at(s, to, at.to.first, s->out), NULL, x, NULL, NULL, NULL, pixels_of(s, at.to),
                           s->out);
    }
}

/* Runs norm_out, SiLU and conv_out. */
static void run_end(pass *t)
{
    const stage *s = t->s;
    const vae_network *net = &t->b->d->network;
    kern_queue *k = t->p.k;
    sum_up(t);
    for (int i = 0; i < bands_of(t->b, s); i++) {
        const band at = band_at(t->b, s, i);
        const vae_extent e = bands_rows_of(s, at.x);
        run_norm(t, 0, &net->norm_out, stream_at(t, at.x.first), at.x, s->in);
        vae_watch(&t->p, net->side, net->ends->norm_out, t->p.a, 0, e, s->in);
        k->conv->conv(k, net->conv_out, t->p.a, 1, e.height, e.width, t->p.h);
        const float *x = row_at(s, t->p.h, at.to.first - at.x.first, 3);
        vae_watch(&t->p, net->side, net->ends->conv_out, x, 1, bands_rows_of(s, at.to), 3);
        k->core->copy_rows(k, row_at(s, t->b->pixels, at.to.first, 3), NULL, x, NULL, NULL, NULL, pixels_of(s, at.to),
                           3);
    }
}

float *vae_bands_run(const vae_bands *b, const vae_pass *p)
{
    pass t = {.b = b, .p = *p};
    t.p.n = 1;
    t.p.h = b->h, t.p.a = b->a, t.p.cells = b->cells;
    for (t.s = b->stages; t.s < b->stages + b->n_stages; t.s++) {
        if (t.s->residual)
            run_stage(&t);
        else
            run_end(&t);
    }
    return b->pixels;
}
