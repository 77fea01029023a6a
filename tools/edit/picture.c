#include "tools/edit/picture.h"

#include "tools/cli/command.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int clamp(int x, int most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

/* Returns where the picture begins along an axis. */
static int begin_of(int given, int side, int canvas, int cell)
{
    return given >= 0 ? given : (canvas - side) / 2 / cell * cell;
}

int edit_place(const char *name, const image *picture, int x, int y, int width, int height, int columns, image *out,
               uint8_t *known)
{
    const int cell = width / columns, left = begin_of(x, picture->width, width, cell),
              top = begin_of(y, picture->height, height, cell);
    if (left + picture->width > width || top + picture->height > height)
        return tool_error("--offset %d,%d: %s does not fit there, expected %d,%d at most", left, top, name,
                          width - picture->width, height - picture->height);
    *out = (image){width, height, malloc((size_t)width * (size_t)height * 3)};
    if (!out->rgb) return tool_error("out of memory for a picture of %dx%d", width, height);
    for (int row = 0; row < height; row++)
        for (int column = 0; column < width; column++) {
            const int from_row = clamp(row - top, picture->height - 1),
                      from_column = clamp(column - left, picture->width - 1);
            const uint8_t *from = picture->rgb + 3 * ((size_t)from_row * (size_t)picture->width + (size_t)from_column);
            uint8_t *to = out->rgb + 3 * ((size_t)row * (size_t)width + (size_t)column);
            for (int c = 0; c < 3; c++) to[c] = from[c];
        }
    for (int i = 0; i < height / cell * columns; i++) {
        const int row = i / columns * cell, column = i % columns * cell;
        known[i] = row >= top && row + cell <= top + picture->height && column >= left &&
                   column + cell <= left + picture->width;
    }
    return 0;
}

int edit_mask(const char *name, const image *mask, const image *picture, int x, int y, int width, int height,
              int columns, uint8_t *known)
{
    const int cell = width / columns, is_canvas = mask->width == width && mask->height == height;
    const int left = is_canvas ? 0 : begin_of(x, picture->width, width, cell),
              top = is_canvas ? 0 : begin_of(y, picture->height, height, cell);
    if (!is_canvas && (mask->width != picture->width || mask->height != picture->height))
        return tool_error("%s: has %dx%d pixels, expected those of the picture, %dx%d, or of the model, %dx%d", name,
                          mask->width, mask->height, picture->width, picture->height, width, height);
    for (int row = 0; row < mask->height; row++)
        for (int column = 0; column < mask->width; column++) {
            const uint8_t *pixel = mask->rgb + 3 * ((size_t)row * (size_t)mask->width + (size_t)column);
            if (pixel[0] < 128 && pixel[1] < 128 && pixel[2] < 128) continue;
            known[(top + row) / cell * columns + (left + column) / cell] = 0;
        }
    return 0;
}

int edit_read_box(const char *text, int box[4])
{
    int end = 0;
    if (sscanf(text, "%6d,%6d,%6d,%6d%n", &box[0], &box[1], &box[2], &box[3], &end) == 4 && !text[end] && box[0] >= 0 &&
        box[1] >= 0 && box[2] >= 1 && box[3] >= 1)
        return 0;
    return tool_error("--box %s: expected X,Y,WIDTH,HEIGHT, four numbers of pixels such as 64,0,128,96", text);
}

int edit_box(const int box[4], int width, int height, image *out)
{
    const int x = box[0], y = box[1], w = box[2], h = box[3];
    if (x + w > width || y + h > height)
        return tool_error("--box %d,%d,%d,%d: ends at %d,%d, beyond the model's %dx%d pixels", x, y, w, h, x + w, y + h,
                          width, height);
    *out = (image){width, height, calloc((size_t)width * (size_t)height, 3)};
    if (!out->rgb) return tool_error("out of memory for a mask of %dx%d", width, height);
    for (int row = y; row < y + h; row++)
        memset(out->rgb + 3 * ((size_t)row * (size_t)width + (size_t)x), 255, 3 * (size_t)w);
    return 0;
}

static int is_white(const image *mask, int row, int column)
{
    if (row < 0 || column < 0 || row >= mask->height || column >= mask->width) return 0;
    const uint8_t *pixel = mask->rgb + 3 * ((size_t)row * (size_t)mask->width + (size_t)column);
    return pixel[0] >= 128 || pixel[1] >= 128 || pixel[2] >= 128;
}

/* Writes each pixel's distance, up to `most`, to the nearest one of its column that is made. */
static void column_distances(const uint8_t *made, int width, int height, int most, int *distance)
{
    for (int column = 0; column < width; column++) {
        for (int row = 0, last = most; row < height; row++) {
            last = made[row * width + column] ? 0 : last < most ? last + 1 : most;
            distance[row * width + column] = last;
        }
        for (int row = height - 1, last = most; row >= 0; row--) {
            last = made[row * width + column] ? 0 : last < most ? last + 1 : most;
            if (last < distance[row * width + column]) distance[row * width + column] = last;
        }
    }
}

int edit_paste_weights(const image *mask, const image *picture, int x, int y, int width, int height, int columns,
                       int feather, uint8_t *weight)
{
    const int cell = width / columns, left = begin_of(x, picture->width, width, cell),
              top = begin_of(y, picture->height, height, cell);
    const int is_canvas = mask && mask->width == width && mask->height == height;
    const int most = feather + 1; /* where all is pasted */
    int *distance = malloc((size_t)width * (size_t)height * sizeof *distance);
    if (!distance) return tool_error("out of memory for a mask of %dx%d", width, height);
    for (int row = 0; row < height; row++)
        for (int column = 0; column < width; column++) {
            const int inside =
                row >= top && row < top + picture->height && column >= left && column < left + picture->width;
            weight[row * width + column] = (uint8_t)(!inside || (mask && is_white(mask, is_canvas ? row : row - top,
                                                                                  is_canvas ? column : column - left)));
        }
    column_distances(weight, width, height, most, distance);
    for (int row = 0; row < height; row++) {
        const int *of_row = distance + row * width;
        for (int column = 0; column < width; column++) {
            int nearest = most * most; /* squared */
            const int first = clamp(column - most, width - 1), end = clamp(column + most, width - 1);
            for (int i = first; i <= end; i++) {
                const int square = of_row[i] * of_row[i] + (i - column) * (i - column);
                if (square < nearest) nearest = square;
            }
            weight[row * width + column] = (uint8_t)lrint(255 * fmin(1, sqrt(nearest) / most));
        }
    }
    free(distance);
    return 0;
}

void edit_paste(const image *canvas, const uint8_t *weight, uint8_t *rgb)
{
    const size_t n = (size_t)canvas->width * (size_t)canvas->height;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++) {
            const int from = canvas->rgb[3 * i + c], to = rgb[3 * i + c];
            rgb[3 * i + c] = (uint8_t)((from * weight[i] + to * (255 - weight[i]) + 127) / 255);
        }
}

/* Returns the next random number (SplitMix64: Steele, Lea, Flood, 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void edit_keep(double fraction, uint64_t seed, uint64_t number, int count, uint8_t *known)
{
    uint64_t state = seed;
    state = next_random(&state) ^ number;
    int left = edit_count(known, count), kept = (int)(fraction * left + 0.5);
    if (fraction < 1 && kept == left && left > 0) kept--; /* something is made */
    for (int i = 0; i < count; i++) {
        if (!known[i]) continue;
        known[i] = next_random(&state) % (uint64_t)left < (uint64_t)kept; /* each choice of `kept` is as likely */
        kept -= known[i];
        left--;
    }
}

int edit_count(const uint8_t *known, int count)
{
    int n = 0;
    for (int i = 0; i < count; i++) n += known[i];
    return n;
}
