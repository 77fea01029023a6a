/* Pooling, means over pixels, and the resizing of images for Inception. */
#include "kernels/cpu/cpu.h"

/* --- pools -------------------------------------------------------------------------------------------------------- */

enum { MOST = 8 }; /* maximum rows and columns of a window */

typedef struct {
    const cpu_device *d;
    const kern_pool *p;
    const act *x;
    int height, width, channels; /* of x */
    int rows, columns;           /* of y */
    act *y;
    size_t y_stride;
} pool_loop;

/* Finds the window's pixels inside an image and returns their number. */
static int pool_gather(const pool_loop *l, const void *image, int row, int column, const void **pixel)
{
    const kern_pool *p = l->p;
    const int top = row * p->stride - p->pad, left = column * p->stride - p->pad;
    const int bottom = cpu_lesser(top + p->window, l->height), right = cpu_lesser(left + p->window, l->width);
    int n = 0;
    for (int i = top > 0 ? top : 0; i < bottom; i++)
        for (int j = left > 0 ? left : 0; j < right; j++)
            pixel[n++] = act_at(&l->d->base, image, ((size_t)i * (size_t)l->width + (size_t)j) * (size_t)l->channels);
    return n;
}

/* Computes row i % rows of image i / rows. */
static void pool_body(void *arg, int first, int last, int thread)
{
    const pool_loop *l = arg;
    const kern_device *d = &l->d->base;
    const size_t image_size = (size_t)l->height * (size_t)l->width * (size_t)l->channels;
    const void *pixel[MOST * MOST];
    (void)thread;
    for (int i = first; i < last; i++) {
        const void *image = act_at(d, l->x, (size_t)(i / l->rows) * image_size);
        for (int j = 0; j < l->columns; j++) {
            const int n = pool_gather(l, image, i % l->rows, j, pixel);
            void *y = act_at(d, l->y, ((size_t)i * (size_t)l->columns + (size_t)j) * l->y_stride);
            if (l->p->kind == KERN_POOL_MAX)
                l->d->rows->max_rows(pixel, n, (size_t)l->channels, y, l->d->bf16);
            else
                l->d->rows->mean_rows(pixel, n, (size_t)l->channels, y, l->d->bf16);
        }
    }
}

void cpu_pool(kern_queue *k, const kern_pool *p, const act *x, int images, int height, int width, int channels, act *y,
              int y_stride)
{
    cpu_queue *q = cpu_of(k);
    pool_loop l = {.d = q->d,
                   .p = p,
                   .x = x,
                   .height = height,
                   .width = width,
                   .channels = channels,
                   .rows = (height + 2 * p->pad - p->window) / p->stride + 1,
                   .columns = (width + 2 * p->pad - p->window) / p->stride + 1,
                   .y = y,
                   .y_stride = (size_t)y_stride};
    const double elements = (double)images * l.rows * l.columns * p->window * p->window * channels;
    if (kern_live(k)) cpu_for(q, images * l.rows, 4 * elements, pool_body, &l);
}

/* --- means and copies --------------------------------------------------------------------------------------------- */

typedef struct {
    const cpu_device *d;
    const act *x;
    size_t size;     /* elements of an item in x */
    int pixels;      /* of an item; of a copy: 1 */
    size_t channels; /* of y */
    float *y;
} channels_loop;

static void mean_pixels_body(void *arg, int first, int last, int thread)
{
    const channels_loop *l = arg;
    (void)thread;
    for (size_t i = (size_t)first; i < (size_t)last; i++)
        l->d->rows->mean_of_all(act_at(&l->d->base, l->x, i * l->size), l->pixels, l->channels, l->y + i * l->channels,
                                l->d->bf16);
}

void cpu_mean_pixels(kern_queue *k, const act *x, int images, int pixels, int channels, float *y)
{
    cpu_queue *q = cpu_of(k);
    const size_t n = (size_t)channels;
    channels_loop l = {q->d, x, (size_t)pixels * n, pixels, n, y};
    if (kern_live(k)) cpu_for(q, images, 8.0 * images * pixels * channels, mean_pixels_body, &l);
}

static void take_channels_body(void *arg, int first, int last, int thread)
{
    const channels_loop *l = arg;
    (void)thread;
    for (size_t i = (size_t)first; i < (size_t)last; i++)
        l->d->rows->from_act(act_at(&l->d->base, l->x, i * l->size), l->channels, l->y + i * l->channels, l->d->bf16);
}

void cpu_take_channels(kern_queue *k, const act *x, int rows, int stride, int channels, float *y)
{
    cpu_queue *q = cpu_of(k);
    channels_loop l = {q->d, x, (size_t)stride, 1, (size_t)channels, y};
    if (kern_live(k)) cpu_for(q, rows, 16.0 * rows * channels, take_channels_body, &l);
}

/* --- resizing ----------------------------------------------------------------------------------------------------- */

/* A row of y is blended from two rows of rgb, whose pixels are first blended to y's columns. A strip of columns is
 * computed row by row: a blended row of rgb stays in cache as long as rows of y need it. */
enum { STRIP = 64, STRIP_VALUES = 3 * STRIP, BAND = 32 /* rows of y per item */ };

typedef struct {
    const cpu_device *d;
    const uint8_t *rgb;
    int height, width, side;
    act *y;
} resize_loop;

/* A row or column of y lies at lower + t between the rows or columns lower and upper of rgb. */
typedef struct {
    int lower, upper;
    float t;
} place;

static place pool_place(int i, int from, int to)
{
    const float at = (float)i * (float)((double)from / to);
    const int lower = cpu_lesser((int)at, from - 1);
    return (place){lower, cpu_lesser(lower + 1, from - 1), at - (float)lower};
}

typedef struct {
    int first, columns;
    place place[STRIP];
    float row[2][STRIP_VALUES]; /* two blended rows of rgb */
    int number[2];              /* rgb row of each; -1: none yet */
} strip;

static const float *blended(const resize_loop *l, const uint8_t *image, strip *s, int row, int into)
{
    if (s->number[into] != row && s->number[1 - into] == row) {
        memcpy(s->row[into], s->row[1 - into], sizeof s->row[into]);
        s->number[into] = row;
    }
    if (s->number[into] == row) return s->row[into];
    const uint8_t *in = image + (size_t)row * (size_t)l->width * 3;
    for (int j = 0; j < s->columns; j++)
        for (int c = 0; c < 3; c++) {
            const float a = in[3 * s->place[j].lower + c], b = in[3 * s->place[j].upper + c];
            s->row[into][3 * j + c] = a + (b - a) * s->place[j].t;
        }
    s->number[into] = row;
    return s->row[into];
}

static void resize_strip(const resize_loop *l, const uint8_t *image, strip *s, int first, int last, void *y)
{
    const size_t side = (size_t)l->side;
    s->number[0] = s->number[1] = -1;
    for (int j = 0; j < s->columns; j++) s->place[j] = pool_place(s->first + j, l->width, l->side);
    for (int i = first; i < last; i++) {
        const place p = pool_place(i, l->height, l->side);
        const float *lower = blended(l, image, s, p.lower, 0), *upper = blended(l, image, s, p.upper, 1);
        l->d->rows->blend_pixels(lower, upper, p.t, 3 * (size_t)s->columns,
                                 act_at(&l->d->base, y, 3 * ((size_t)i * side + (size_t)s->first)), l->d->bf16);
    }
}

static int pool_bands(int side)
{
    return (side + BAND - 1) / BAND;
}

/* Computes band i % bands of image i / bands. */
static void resize_body(void *arg, int first, int last, int thread)
{
    const resize_loop *l = arg;
    const int bands = pool_bands(l->side);
    strip s;
    (void)thread;
    for (int i = first; i < last; i++) {
        const size_t image = (size_t)(i / bands), side = (size_t)l->side;
        const uint8_t *rgb = l->rgb + image * (size_t)l->height * (size_t)l->width * 3;
        const int top = i % bands * BAND;
        for (s.first = 0; s.first < l->side; s.first += STRIP) {
            s.columns = cpu_lesser(STRIP, l->side - s.first);
            resize_strip(l, rgb, &s, top, cpu_lesser(top + BAND, l->side),
                         act_at(&l->d->base, l->y, 3 * image * side * side));
        }
    }
}

void cpu_resize(kern_queue *k, const uint8_t *rgb, int images, int height, int width, int side, act *y)
{
    cpu_queue *q = cpu_of(k);
    resize_loop l = {q->d, rgb, height, width, side, y};
    if (kern_live(k)) cpu_for(q, images * pool_bands(side), 48.0 * images * side * side, resize_body, &l);
}
