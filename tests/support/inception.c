#include "tests/support/inception.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WEIGHT_SEED = 20151205, IMAGE_SEED = 299, LAYERS_MAX = 128 };

const int inception_single[INCEPTION_SINGLE][2] = {{256, 256}, {64, 64}, {299, 299}, {500, 333}, {33, 40}};

/* --- weights ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const char *name;
    int out, in, height, width; /* for fc: classes, features, 1, 1 */
    double gain;                /* mean variance of the results; for fc: scale of the weights */
} layer;

/* Reads the layers in the order of their numbers. Returns their count. */
static int read_layers(const wt_file *golden, const char *which, layer *layers)
{
    char prefix[16];
    int count = 0;
    const size_t n = (size_t)snprintf(prefix, sizeof prefix, "%s.", which);
    for (int i = 0; i < wt_count(golden); i++) {
        const wt_tensor *t = wt_at(golden, i);
        if (strncmp(t->name, prefix, n) != 0) continue;
        float *row = golden_f32(golden, t->name, 6);
        const int number = (int)row[5];
        assert_in_range(number, 0, LAYERS_MAX - 1);
        layers[number] = (layer){t->name + n, (int)row[0], (int)row[1], (int)row[2], (int)row[3], (double)row[4]};
        free(row);
        count++;
    }
    assert_true(count > 90);
    return count;
}

/* Fills u[n] with uniform numbers in (-1/2, 1/2): numbers 0..n-1 at this address. */
static void uniform(int number, int row, int step, int n, double *u)
{
    uint32_t words[4];
    for (int i = 0; i < n; i++) {
        if (i % 4 == 0)
            kern_random_words(WEIGHT_SEED, KERN_NOISE_INIT, (uint64_t)number, (uint32_t)row, (uint32_t)step,
                              (uint32_t)i / 4, words);
        u[i] = (words[i % 4] + 0.5) / 4294967296.0 - 0.5;
    }
}

/* Makes a row of a convolution's weights. Except in the first layer their mean is 0. */
static void filter_row(int number, int row, int n, double *u)
{
    double mean = 0;
    uniform(number, row, 0, n, u);
    for (int i = 0; i < n && number > 0; i++) mean += u[i] / n;
    for (int i = 0; i < n; i++) u[i] = (u[i] - mean) * sqrt(12.0 / n);
}

static void write_floats(FILE *f, const double *x, int n, double scale, double offset)
{
    float *y = malloc(sizeof *y * (size_t)n);
    assert_non_null(y);
    for (int i = 0; i < n; i++) y[i] = (float)(offset + scale * x[i]);
    assert_int_equal(fwrite(y, sizeof *y, (size_t)n, f), n);
    free(y);
}

static void write_vector(FILE *f, int number, int step, int n, double scale, double offset)
{
    double *u = malloc(sizeof *u * (size_t)n);
    assert_non_null(u);
    uniform(number, 0, step, n, u);
    write_floats(f, u, n, scale, offset);
    free(u);
}

static void write_layer(FILE *f, int number, const layer *l)
{
    const int n = l->in * l->height * l->width, is_fc = strcmp(l->name, "fc") == 0;
    double *u = malloc(sizeof *u * (size_t)n);
    assert_non_null(u);
    for (int row = 0; row < l->out; row++) {
        if (is_fc)
            uniform(number, row, 0, n, u);
        else
            filter_row(number, row, n, u);
        write_floats(f, u, n, is_fc ? l->gain : 1, 0);
    }
    free(u);
    if (is_fc) {
        write_vector(f, number, 1, l->out, 1, 0);
        return;
    }
    write_vector(f, number, 1, l->out, 0.5, 1);
    write_vector(f, number, 2, l->out, 0.5, 0);
    write_vector(f, number, 3, l->out, 0.4 * sqrt(l->gain), 0);
    write_vector(f, number, 4, l->out, 0.8 * l->gain, l->gain);
}

typedef struct {
    char *text;
    size_t size, used;
    uint64_t offset;
} header;

static void add_tensor(header *h, const char *layer_name, const char *part, const char *shape, uint64_t floats)
{
    h->used += (size_t)snprintf(h->text + h->used, h->size - h->used,
                                "%s\"%s.%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                                h->used > 1 ? "," : "", layer_name, part, shape, (unsigned long long)h->offset,
                                (unsigned long long)(h->offset + 4 * floats));
    assert_true(h->used < h->size);
    h->offset += 4 * floats;
}

static void add_layer(header *h, const layer *l)
{
    static const char *const norm[] = {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"};
    char shape[64], vector[16];
    const uint64_t floats = (uint64_t)l->out * (uint64_t)l->in * (uint64_t)l->height * (uint64_t)l->width;
    snprintf(vector, sizeof vector, "%d", l->out);
    if (strcmp(l->name, "fc") == 0) {
        snprintf(shape, sizeof shape, "%d,%d", l->out, l->in);
        add_tensor(h, l->name, "weight", shape, floats);
        add_tensor(h, l->name, "bias", vector, (uint64_t)l->out);
        return;
    }
    snprintf(shape, sizeof shape, "%d,%d,%d,%d", l->out, l->in, l->height, l->width);
    add_tensor(h, l->name, "conv.weight", shape, floats);
    for (int i = 0; i < 4; i++) add_tensor(h, l->name, norm[i], vector, (uint64_t)l->out);
}

void inception_write(const wt_file *golden, const char *which, const char *path)
{
    layer layers[LAYERS_MAX];
    const int count = read_layers(golden, which, layers);
    header h = {.size = 1 << 17};
    h.text = malloc(h.size);
    assert_non_null(h.text);
    h.text[h.used++] = '{';
    for (int i = 0; i < count; i++) add_layer(&h, &layers[i]);
    h.text[h.used++] = '}';
    while (h.used % 8 != 0) h.text[h.used++] = ' ';
    uint64_t length = h.used;
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&length, sizeof length, 1, f), 1);
    assert_int_equal(fwrite(h.text, 1, h.used, f), h.used);
    for (int i = 0; i < count; i++) write_layer(f, i, &layers[i]);
    assert_int_equal(fclose(f), 0);
    free(h.text);
}

/* --- images ------------------------------------------------------------------------------------------------------- */

/* Draws triangle waves of random frequency, direction and colour. Those of odd images are longer. */
void inception_image(int number, int height, int width, uint8_t *rgb)
{
    enum { WAVES = 3, WORDS = 10 };
    uint32_t w[32];
    for (uint32_t b = 0; b < 8; b++)
        kern_random_words(IMAGE_SEED, KERN_NOISE_INIT, (uint64_t)number, 0, 0, b, w + 4 * b);
    const int most = number % 2 ? 8 : 24;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < 3; c++) {
                int64_t total = 0, weight = 1;
                for (int k = 0; k < WAVES; k++) {
                    const uint32_t *p = w + WORDS * k;
                    const int64_t a = p[0] % (uint32_t)(2 * most + 1) - (int64_t)most;
                    const int64_t b = p[1] % (uint32_t)(2 * most + 1) - (int64_t)most;
                    const int64_t t = (a * x + b * y + (int64_t)p[2 + c]) & 511, amplitude = p[5 + c] & 255;
                    total += (t < 256 ? t : 511 - t) * amplitude;
                    weight += amplitude;
                }
                rgb[(y * width + x) * 3 + c] = (uint8_t)(total / weight);
            }
}

void inception_images(int first, int n, uint8_t *rgb)
{
    for (int i = 0; i < n; i++)
        inception_image(INCEPTION_FIRST + first + i, INCEPTION_SIDE, INCEPTION_SIDE,
                        rgb + (size_t)i * INCEPTION_SIDE * INCEPTION_SIDE * 3);
}
